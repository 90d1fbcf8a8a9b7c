//! What is asked for: VMs of a flavor, all or none, under a policy and within a quota.

use lanekeeper_host::RdmaNeed;
use lanekeeper_model::Mbps;
use lanekeeper_topology::{Distance, Strictness};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::{FabricName, GpuModel};

/// What a VM has of its host that is only counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scalars {
    /// CPUs, as threads.
    pub vcpus: u32,
    /// Memory, in MiB.
    pub ram_mib: u64,
    /// Local disk, in GiB.
    pub disk_gib: u64,
}

/// The GPUs of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuNeed {
    /// Their model.
    pub model: GpuModel,
    /// How many, at least 1.
    pub count: u32,
}

/// The VFs of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VfNeed {
    /// How many, at least 1.
    pub count: u32,
    /// Set aside for each; 0 sets nothing aside.
    pub rate: Mbps,
    /// The fabric of the network they are for.
    pub fabric: FabricName,
    /// The RDMA they are for.
    pub rdma: RdmaNeed,
    /// How far the VFs of a unit may be from its GPUs (see [the module](super)); the nearest are taken
    /// in any case, and `Sys` takes any. Without GPUs it is of no matter.
    pub farthest: Distance,
    /// Whether the k-th VF of each VM is to be on the same rail.
    pub rail_aligned: bool,
}

/// What each VM is to have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flavor {
    /// GPUs, if any.
    pub gpus: Option<GpuNeed>,
    /// VFs, if any.
    pub vfs: Option<VfNeed>,
    /// The rest.
    pub scalars: Scalars,
}

/// How the VMs of one request are to lie to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// As near as can be: in one leaf group, else in one pod, else on few hosts. Strict: no farther
    /// than in one pod.
    Compact(Strictness),
    /// In one leaf group: hosts whose PFs hang off the same leaves, rail by rail. Preferred, this is
    /// the same as compact.
    SameLeaf(Strictness),
    /// On as many hosts as can be. Strict: no two on one host.
    Spread(Strictness),
}

/// A request to place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// How many VMs.
    pub vms: u32,
    /// How many more places to hold for VMs whose host is lost: under the same policy, and on hosts
    /// without a VM of this request as far as there are any.
    pub spares: u32,
    /// What each of them has.
    pub flavor: Flavor,
    /// How they lie.
    pub policy: Policy,
}

/// A request that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// None of something that was asked for.
    #[error("0 {0} are asked for; ask for one, or leave it out")]
    None(&'static str),
    /// More than one request can have.
    #[error("{count} {what} are asked for; {most} is the most: divide the request")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u64,
        /// How many may be.
        most: u32,
    },
}

impl Request {
    /// Most VMs and spares together.
    pub const MOST_VMS: u32 = 1024;
    /// Most GPUs, and most VFs, of one VM.
    pub const MOST_DEVICES: u32 = 64;

    /// Whether it makes sense at all.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn check(&self) -> Result<(), RequestError> {
        let within = |what, count: u64, most| match count {
            0 => Err(RequestError::None(what)),
            _ if count > u64::from(most) => Err(RequestError::TooMany { what, count, most }),
            _ => Ok(()),
        };
        within("VMs", u64::from(self.vms), Self::MOST_VMS)?;
        within("VMs and spares", u64::from(self.vms) + u64::from(self.spares), Self::MOST_VMS)?;
        if let Some(gpus) = &self.flavor.gpus {
            within("GPUs", gpus.count.into(), Self::MOST_DEVICES)?;
        }
        if let Some(vfs) = &self.flavor.vfs {
            within("VFs", vfs.count.into(), Self::MOST_DEVICES)?;
        }
        Ok(())
    }

    /// VMs and spares.
    pub(super) fn total(&self) -> u32 {
        self.vms.saturating_add(self.spares)
    }

    /// What it adds to its organization's usage, spares included.
    pub fn usage(&self) -> Usage {
        let each = |count: u64| count * u64::from(self.total());
        let Flavor { gpus, vfs, scalars } = &self.flavor;
        Usage {
            vms: each(1),
            gpus: each(gpus.as_ref().map_or(0, |gpus| gpus.count.into())),
            vfs: each(vfs.as_ref().map_or(0, |vfs| vfs.count.into())),
            vcpus: each(scalars.vcpus.into()),
            ram_mib: each(scalars.ram_mib),
            disk_gib: each(scalars.disk_gib),
        }
    }
}

/// What an organization uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// VMs, and places held for VMs.
    pub vms: u64,
    /// GPUs.
    pub gpus: u64,
    /// VFs.
    pub vfs: u64,
    /// CPUs.
    pub vcpus: u64,
    /// Memory, in MiB.
    pub ram_mib: u64,
    /// Local disk, in GiB.
    pub disk_gib: u64,
}

impl Usage {
    /// Each number of both, by `join`.
    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            vms: join(self.vms, other.vms),
            gpus: join(self.gpus, other.gpus),
            vfs: join(self.vfs, other.vfs),
            vcpus: join(self.vcpus, other.vcpus),
            ram_mib: join(self.ram_mib, other.ram_mib),
            disk_gib: join(self.disk_gib, other.disk_gib),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Without the other.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }
}

/// What an organization may use; what is not mentioned is not limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// VMs.
    pub vms: Option<u64>,
    /// GPUs.
    pub gpus: Option<u64>,
    /// VFs.
    pub vfs: Option<u64>,
    /// CPUs.
    pub vcpus: Option<u64>,
    /// Memory, in MiB.
    pub ram_mib: Option<u64>,
    /// Local disk, in GiB.
    pub disk_gib: Option<u64>,
}

impl Quota {
    /// Whether what is `used` and what is `asked` are within it.
    ///
    /// # Errors
    /// [`super::Refusal::Quota`], of the first that is exceeded.
    pub fn allows(&self, used: Usage, asked: Usage) -> Result<(), super::Refusal> {
        for (what, limit, used, asked) in [
            ("VMs", self.vms, used.vms, asked.vms),
            ("GPUs", self.gpus, used.gpus, asked.gpus),
            ("VFs", self.vfs, used.vfs, asked.vfs),
            ("vCPUs", self.vcpus, used.vcpus, asked.vcpus),
            ("MiB of RAM", self.ram_mib, used.ram_mib, asked.ram_mib),
            ("GiB of disk", self.disk_gib, used.disk_gib, asked.disk_gib),
        ] {
            // What exceeds a limit that was lowered later is no reason to refuse what needs none.
            match limit {
                Some(limit) if asked > 0 && used.saturating_add(asked) > limit => {
                    return Err(super::Refusal::Quota { what, limit, used, asked });
                }
                _ => {}
            }
        }
        Ok(())
    }
}
