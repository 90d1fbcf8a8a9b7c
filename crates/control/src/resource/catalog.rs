//! What the operator offers: regions, flavors, images; and what hosts have, as it is shown.

use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use lanekeeper_host::RdmaNeed;
use lanekeeper_model::Mbps;
use lanekeeper_topology::Distance;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, resource};
use crate::keys::{FabricName, GpuModel, HostName, LeafName, PfName, PodName, RegionName};
use crate::placement::{self, Cable, Closed, DataPath, Scalars};
use crate::protocol;

/// VLANs that networks of a region get theirs from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VlanRange {
    /// The first, 1 to 4094.
    #[schemars(range(min = 1, max = 4094))]
    pub from: u16,
    /// The last.
    #[schemars(range(min = 1, max = 4094))]
    pub to: u16,
}

/// A region: hosts on one fabric, and the ranges its networks are made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Region {
    /// Id.
    pub id: u64,
    /// Name.
    pub name: RegionName,
    /// What it is, for people.
    pub description: String,
    /// The country it is in, for people.
    pub country: String,
    /// The fabric that networks are on.
    pub fabric: FabricName,
    /// VLANs for networks.
    pub vlans: VlanRange,
    /// Addresses for subnets.
    #[schemars(with = "String")]
    pub addresses: Ipv4Net,
    /// When it was made.
    pub created_at: Time,
}
resource!(Region, "regions", "region", global, name);

/// A new region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegionSpec {
    /// Name.
    pub name: RegionName,
    /// What it is, for people.
    #[serde(default)]
    #[schemars(length(max = 500))]
    pub description: String,
    /// The country it is in, for people.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub country: String,
    /// The fabric that networks are on: that which agents report.
    pub fabric: FabricName,
    /// VLANs for networks.
    pub vlans: VlanRange,
    /// Addresses for subnets, as `10.64.0.0/12`.
    #[schemars(with = "String")]
    pub addresses: Ipv4Net,
}

/// The GPUs of a flavor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// Their model, as agents report it.
    pub model: GpuModel,
    /// How many.
    #[schemars(range(min = 1, max = 32))]
    pub count: u32,
}

/// The VFs of a flavor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VfSpec {
    /// How many.
    #[schemars(range(min = 1, max = 32))]
    pub count: u32,
    /// The rate that is set aside for each, in Mbit/s.
    pub rate_mbps: u32,
    /// The RDMA they are for.
    #[serde(default)]
    pub rdma: RdmaNeed,
    /// How far from the GPUs they may be; the nearest are taken in any case.
    #[serde(default = "anywhere")]
    pub farthest: Distance,
    /// Whether the k-th VF of each VM is to be on the same rail.
    #[serde(default)]
    pub rail_aligned: bool,
}

fn anywhere() -> Distance {
    Distance::Sys
}

/// What a VM can be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FlavorResource {
    /// Id.
    pub id: u64,
    /// When it was made.
    pub created_at: Time,
    /// What it is.
    #[serde(flatten)]
    pub spec: FlavorSpec,
}

impl AsRef<str> for FlavorResource {
    fn as_ref(&self) -> &str {
        &self.spec.name
    }
}

impl super::Resource for FlavorResource {
    const KIND: &'static str = "flavors";
    const NOUN: &'static str = "flavor";
    fn id(&self) -> u64 {
        self.id
    }
    fn name(&self) -> Option<&str> {
        Some(&self.spec.name)
    }
}
impl super::Global for FlavorResource {}

/// A new flavor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FlavorSpec {
    /// Name.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// GPUs, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuSpec>,
    /// CPUs, as threads.
    #[schemars(range(min = 1, max = 4096))]
    pub vcpus: u32,
    /// Memory, in MiB.
    #[schemars(range(min = 64))]
    pub ram_mib: u64,
    /// Local disk, in GiB.
    #[serde(default)]
    pub disk_gib: u64,
    /// VFs, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vfs: Option<VfSpec>,
    /// Whether it is meant for RoCE between VMs.
    #[serde(default)]
    pub network_optimised: bool,
    /// Labels, for people and their tools.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl FlavorSpec {
    /// As placement knows it, on a fabric.
    pub fn to_placement(&self, fabric: &FabricName) -> placement::Flavor {
        let gpus = self
            .gpus
            .as_ref()
            .map(|gpus| placement::GpuNeed { model: gpus.model.clone(), count: gpus.count });
        let vfs = self.vfs.as_ref().map(|vfs| placement::VfNeed {
            count: vfs.count,
            rate: Mbps(vfs.rate_mbps),
            fabric: fabric.clone(),
            rdma: vfs.rdma,
            farthest: vfs.farthest,
            rail_aligned: vfs.rail_aligned,
        });
        let scalars = Scalars { vcpus: self.vcpus, ram_mib: self.ram_mib, disk_gib: self.disk_gib };
        placement::Flavor { gpus, vfs, scalars }
    }

    /// How many VFs a VM has.
    pub fn vf_count(&self) -> u32 {
        self.vfs.as_ref().map_or(0, |vfs| vfs.count)
    }

    /// How many GPUs a VM has.
    pub fn gpu_count(&self) -> u32 {
        self.gpus.as_ref().map_or(0, |gpus| gpus.count)
    }
}

/// What a VM can boot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ImageResource {
    /// Id.
    pub id: u64,
    /// When it was made.
    pub created_at: Time,
    /// What it is.
    #[serde(flatten)]
    pub spec: ImageSpec,
}

impl super::Resource for ImageResource {
    const KIND: &'static str = "images";
    const NOUN: &'static str = "image";
    fn id(&self) -> u64 {
        self.id
    }
    fn name(&self) -> Option<&str> {
        Some(&self.spec.name)
    }
}
impl super::Global for ImageResource {}

/// A new image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ImageSpec {
    /// Name.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Operating system, as `debian`.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub os: String,
    /// Its version.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub version: String,
    /// What it is, for people.
    #[serde(default)]
    #[schemars(length(max = 500))]
    pub description: String,
    /// Size in bytes, for people.
    #[serde(default)]
    pub size: u64,
    /// Where it comes from.
    pub source: protocol::Image,
}

/// A host, as it is shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostView {
    /// Name.
    pub name: HostName,
    /// Where it is.
    pub region: RegionName,
    /// The pod it stands in.
    pub pod: Option<PodName>,
    /// Whether its agent is heard of.
    pub alive: bool,
    /// Why it takes no more VMs, if it does not.
    pub closed: Option<Closed>,
    /// CPUs, memory and disk in all.
    pub total: Scalars,
    /// Of it claimed.
    pub used: Scalars,
    /// The model of its GPUs.
    pub gpu_model: Option<GpuModel>,
    /// GPUs in all.
    pub gpus: u32,
    /// Of them claimed.
    pub gpus_used: u32,
    /// VFs in all.
    pub vfs: u32,
    /// Of them claimed.
    pub vfs_used: u32,
    /// VMs on it, by id.
    pub vms: Vec<u64>,
}

/// A PF or a software NIC, as it is shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NicView {
    /// Its host.
    pub host: HostName,
    /// Name.
    pub name: PfName,
    /// What carries its VFs' frames.
    pub path: DataPath,
    /// The fabric it is cabled to.
    pub fabric: FabricName,
    /// Its rail in that fabric.
    pub rail: Option<u16>,
    /// The leaf at the other end of its cable.
    pub leaf: Option<LeafName>,
    /// What it can carry, in Mbit/s.
    pub rate_mbps: u32,
    /// Of it set aside for VFs.
    pub rate_used_mbps: u32,
    /// VFs in all.
    pub vfs: u32,
    /// Of them claimed.
    pub vfs_used: u32,
    /// Its link and the other end of its cable, as seen and as expected, if its agent tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cable: Option<Cable>,
    /// In what these differ, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
}

/// What a VF is used for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VfUse {
    /// Nobody has it.
    Free,
    /// A VM has it, or a place held for one.
    Claimed,
}

/// A VF, as it is shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VfView {
    /// Its host.
    pub host: HostName,
    /// Its PF, or software NIC.
    pub nic: PfName,
    /// Its number.
    pub vf: u16,
    /// What it is used for.
    pub state: VfUse,
    /// The placement that has it.
    pub placement: Option<String>,
    /// The rate set aside for it, in Mbit/s.
    pub rate_mbps: Option<u32>,
}
