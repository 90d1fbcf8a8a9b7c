//! VMs, groups of them, and what they are made with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FlavorSpec, ImageSpec, NetworkAttachment, Time, resource};
use crate::keys::{HostName, OrgName, PlacementId, RegionName};
use crate::placement::{Policy, VmPlace};

/// A public key that VMs let log in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Keypair {
    /// Id.
    pub id: u64,
    /// Name, unique in the organization.
    pub name: String,
    /// Whose it is.
    pub organization: OrgName,
    /// The environment it is of.
    pub environment: u64,
    /// The key, as a line of OpenSSH's `authorized_keys`.
    pub public_key: String,
    /// When it was made.
    pub created_at: Time,
}
resource!(Keypair, "keypairs", "key pair", tenant, name);

/// A new key pair: the tenant keeps its private half.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeypairSpec {
    /// Name, unique in the organization.
    #[schemars(length(min = 1, max = 50))]
    pub name: String,
    /// The environment it is to be of, by id.
    pub environment: u64,
    /// The key, as a line of OpenSSH's `authorized_keys`.
    #[schemars(length(min = 1, max = 16384))]
    pub public_key: String,
}

/// How VMs of a group lie to each other, under a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PolicyResource {
    /// Id.
    pub id: u64,
    /// Name, unique in the organization.
    pub name: String,
    /// Whose it is.
    pub organization: OrgName,
    /// How they lie.
    pub policy: Policy,
    /// When it was made.
    pub created_at: Time,
}
resource!(PolicyResource, "placement-policies", "placement policy", tenant, name);

/// A new placement policy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// Name, unique in the organization.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// How they lie.
    pub policy: Policy,
}

/// What may come to or from a VM. What the VM's path cannot enforce is refused when it is asked for,
/// never taken and forgotten.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecurityRule {
    /// Id within its VM; given by the server.
    #[serde(default)]
    pub id: u64,
    /// `ingress` or `egress`.
    pub direction: String,
    /// `IPv4` or `IPv6`.
    pub ethertype: String,
    /// `any`, or the name of a protocol.
    pub protocol: String,
    /// Whom it is about, as `0.0.0.0/0`.
    pub remote_ip_prefix: String,
    /// First port, if ports are meant.
    #[serde(default)]
    pub port_range_min: Option<u16>,
    /// Last port.
    #[serde(default)]
    pub port_range_max: Option<u16>,
    /// When it was made; given by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

/// A VM's status, as the public API publishes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum VmStatus {
    /// It is asked for and not placed yet.
    Creating,
    /// It is placed, and its host makes it.
    Build,
    /// It runs.
    Active,
    /// It is being stopped.
    Stopping,
    /// It does not run; what it has stays its own.
    Shutoff,
    /// It is being started.
    Starting,
    /// It is being reset.
    Rebooting,
    /// It cannot be as it should: see its fault.
    Error,
    /// It is being deleted.
    Deleting,
}

/// What is wanted of a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// That it runs.
    Running,
    /// That it is there and does not run.
    Stopped,
    /// That it is gone.
    Deleted,
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// There is no room for it.
    NoRoom,
    /// It would exceed the quota.
    Quota,
    /// Its host could not make it.
    Host,
    /// Its host is lost.
    HostLost,
}

/// Why a VM is in error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// What kind of thing.
    pub kind: FaultKind,
    /// What, and what to do.
    pub message: String,
}

/// Where a VM is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Located {
    /// Its host.
    pub host: HostName,
    /// What it has of it.
    pub place: VmPlace,
}

/// A VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Vm {
    /// Id.
    pub id: u64,
    /// Name, unique in its environment: its host name within.
    pub name: String,
    /// Whose it is.
    pub organization: OrgName,
    /// The environment it is of.
    pub environment: u64,
    /// Where its environment is.
    pub region: RegionName,
    /// What it is, as the flavor was when it was made.
    pub flavor: FlavorSpec,
    /// The flavor's id.
    pub flavor_id: u64,
    /// What it boots, as the image was when it was made.
    pub image: ImageSpec,
    /// The image's id.
    pub image_id: u64,
    /// The key pair that may log in, by id.
    pub keypair: Option<u64>,
    /// Its public key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// cloud-init's user data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Its ports, by id, in the order of its VFs.
    pub ports: Vec<u64>,
    /// What may come and go.
    #[serde(default)]
    pub security_rules: Vec<SecurityRule>,
    /// Labels, for people and their tools.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The group it is of, and its number in it.
    pub group: Option<GroupMember>,
    /// What it is.
    pub status: VmStatus,
    /// What is wanted of it.
    pub want: Want,
    /// One more whenever its host is to do something else.
    pub generation: u64,
    /// How often it was to be reset in all.
    pub resets: u64,
    /// Where it is; nowhere before it is placed.
    pub located: Option<Located>,
    /// Why it is in error.
    pub fault: Option<Fault>,
    /// When it was made.
    pub created_at: Time,
    /// When its status was last another.
    pub changed_at: Time,
}
resource!(Vm, "vms", "VM", tenant, name);

impl Vm {
    /// The placement that it is of.
    pub fn placement(&self) -> PlacementId {
        let name = match self.group {
            Some(GroupMember { group, .. }) => format!("group-{group}"),
            None => format!("vm-{}", self.id),
        };
        PlacementId::new(&name).unwrap_or_else(|_| unreachable!("letters, a dash and digits"))
    }

    /// Its number within its placement.
    pub fn number(&self) -> u32 {
        self.group.map_or(0, |member| member.number)
    }
}

/// A VM's place in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GroupMember {
    /// The group, by id.
    pub group: u64,
    /// Its number in it, from 0.
    pub number: u32,
}

/// A new VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// Name, unique in its environment: letters, digits, `-` and `.`, its host name within.
    #[schemars(length(min = 1, max = 50), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9.-]*$"))]
    pub name: String,
    /// The environment it is to be of, by id.
    pub environment: u64,
    /// The flavor, by name.
    pub flavor: String,
    /// The image, by name.
    pub image: String,
    /// The key pair that may log in, by name.
    #[serde(default)]
    pub keypair: Option<String>,
    /// The networks of its VFs; the environment's default network if none is said.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub networks: Vec<NetworkAttachment>,
    /// What may come and go; everything, if nothing is said.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub security_rules: Vec<SecurityRule>,
    /// cloud-init's user data.
    #[serde(default)]
    #[schemars(length(max = 65536))]
    pub user_data: Option<String>,
    /// Labels, for people and their tools.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub labels: Vec<String>,
}

/// VMs that are placed together, all or none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Id.
    pub id: u64,
    /// Name, unique in its environment; its VMs are called by it and their number.
    pub name: String,
    /// Whose it is.
    pub organization: OrgName,
    /// The environment it is of.
    pub environment: u64,
    /// Where its environment is.
    pub region: RegionName,
    /// Its VMs, by id, by number.
    pub vms: Vec<u64>,
    /// How its VMs lie to each other.
    pub policy: Policy,
    /// How many more places are held for VMs whose host is lost.
    pub spares: u32,
    /// The places that are held, once it is placed.
    pub held: Vec<Kept>,
    /// Whether all its VMs have been made: it is not placed before.
    pub complete: bool,
    /// Whether it is being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// When it was made.
    pub created_at: Time,
}
resource!(Group, "groups", "group", tenant, name);

/// A place that is held for a VM of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Kept {
    /// Where.
    pub located: Located,
    /// Whose VM may still run there: nobody else can have the place before its host has been heard of
    /// again.
    pub fenced: Option<u64>,
}

/// A new group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// How many VMs.
    #[schemars(range(min = 1, max = 1024))]
    pub count: u32,
    /// How many more places to hold for VMs whose host is lost.
    #[serde(default)]
    #[schemars(range(max = 1024))]
    pub spares: u32,
    /// How they lie to each other; compact, preferred, if not said.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// What each of them is; its name is followed by each one's number.
    pub vm: VmSpec,
}
