//! Cluster networks, their subnets, and the ports of VMs on them.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use lanekeeper_model::MacAddr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, resource};
use crate::keys::{FabricName, OrgName, RegionName};

/// What a network's path must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// RDMA over Ethernet beside ordinary traffic.
    #[default]
    Roce,
    /// Ordinary traffic alone.
    Ethernet,
    /// InfiniBand, its partitions instead of VLANs. Not run on hardware yet.
    Infiniband,
}

/// Version of RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoceVersion {
    /// Ethertype 0x8915: within one Ethernet segment (InfiniBand Architecture, annex A16).
    V1,
    /// UDP port 4791: routable (annex A17).
    #[default]
    V2,
}

/// A cluster network: one tenant's, with a VLAN of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Network {
    /// Id.
    pub id: u64,
    /// Name, unique in the organization.
    pub name: String,
    /// Whose it is.
    pub organization: OrgName,
    /// The environment it is of.
    pub environment: u64,
    /// Where it is.
    pub region: RegionName,
    /// The fabric it is on.
    pub fabric: FabricName,
    /// What its path must do.
    pub profile: Profile,
    /// Version of RoCE that its VMs use.
    pub roce: RoceVersion,
    /// The VLAN that holds it apart; an InfiniBand network has none.
    pub vlan: Option<u16>,
    /// The partition that holds an InfiniBand network apart (its P_Key, without the membership bit).
    pub partition: Option<u16>,
    /// MTU of its ports, in bytes.
    pub mtu: u16,
    /// Whether its subnets reach each other by a router.
    pub routed: bool,
    /// Whether it is being deleted: nothing more is put on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// When it was made.
    pub created_at: Time,
}
resource!(Network, "networks", "network", tenant, name);

/// A new network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// Name, unique in the organization.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// The environment it is to be of, by id.
    pub environment: u64,
    /// What its path must do.
    #[serde(default)]
    pub profile: Profile,
    /// Version of RoCE that its VMs use.
    #[serde(default)]
    pub roce: RoceVersion,
    /// MTU of its ports, in bytes, 1280 to 9000.
    #[serde(default = "usual_mtu")]
    #[schemars(range(min = 1280, max = 9000))]
    pub mtu: u16,
    /// Subnets to make with it, one for each rail.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub rails: u16,
    /// Whether its subnets reach each other by a router of the fabric, at the first address of each.
    #[serde(default)]
    pub routed: bool,
    /// The first subnet, as `192.168.7.0/24`; the others follow it. From the region's addresses if
    /// not said.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub cidr: Option<Ipv4Net>,
}

fn usual_mtu() -> u16 {
    4200
}

fn one() -> u16 {
    1
}

/// A subnet of a network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Subnet {
    /// Id.
    pub id: u64,
    /// Whose it is.
    pub organization: OrgName,
    /// The network it is of.
    pub network: u64,
    /// Its addresses.
    #[schemars(with = "String")]
    pub cidr: Ipv4Net,
    /// The router to other subnets, if there is one.
    pub gateway: Option<Ipv4Addr>,
    /// The rail that it is for.
    pub rail: Option<u16>,
    /// When it was made.
    pub created_at: Time,
}
resource!(Subnet, "subnets", "subnet", tenant);

/// A new subnet of a network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubnetSpec {
    /// The network it is to be of, by id.
    pub network: u64,
    /// Its addresses, as `192.168.7.0/24`; from the region's if not said.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub cidr: Option<Ipv4Net>,
    /// The router to other subnets: an address of its own that no port gets.
    #[serde(default)]
    pub gateway: Option<Ipv4Addr>,
    /// The rail that it is for.
    #[serde(default)]
    #[schemars(range(max = 63))]
    pub rail: Option<u16>,
}

/// Which network a VM's VFs are to be on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkAttachment {
    /// The network, by id.
    pub network: u64,
    /// How many of the VM's VFs; all that are left if not said.
    #[serde(default)]
    #[schemars(range(min = 1, max = 64))]
    pub vfs: Option<u32>,
}

/// A VM's port on a network. Its MAC and its address stay the same as long as it is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// Id.
    pub id: u64,
    /// Whose it is.
    pub organization: OrgName,
    /// The VM it is of.
    pub vm: u64,
    /// Its number within the VM: the k-th VF.
    pub index: u32,
    /// The interface's name within the guest, as `rail0`.
    pub name: String,
    /// The network it is on.
    pub network: u64,
    /// The subnet that its address is of.
    pub subnet: u64,
    /// Its MAC: the only one that may send through it.
    #[schemars(with = "String")]
    pub mac: MacAddr,
    /// Its address: the only one that may send through it.
    pub address: Ipv4Addr,
    /// Bits of the subnet's prefix.
    pub prefix: u8,
    /// Node and port GUID on an InfiniBand network, as `0002:c903:00a1:b2c3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guid: Option<String>,
    /// When it was made.
    pub created_at: Time,
}
resource!(Port, "ports", "port", tenant, name);
