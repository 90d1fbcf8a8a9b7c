//! Placement: which hosts, GPUs and VFs serve a request.
//!
//! A pure function of a request and an [`Index`] of one region's hosts, without I/O or clock. It gives
//! a [`Placement`] for all VMs of the request or, for none, a [`Refusal`] that counts the hosts that
//! failed each filter.
//!
//! What fits on one host is decided exactly. A VM's GPUs and VFs are divided into *units* as small as
//! they can be: with four GPUs and eight VFs a unit is one GPU and two VFs, with eight GPUs and four
//! VFs two GPUs and one VF; if neither number divides the other, the VM is one unit. A unit is placed
//! within one *island*: functions no farther from each other than the request allows. Distances in
//! PCIe are those of a tree, so islands do not overlap, and counting units by island says how many VMs
//! a host takes. Where nearer islands have room, they are used first; and the VFs of an island go to
//! the PFs that have most left.
//!
//! Rail-aligned, a VM's VFs are on as many neighbouring rails, from a multiple of their number on (two
//! VFs: rails 0 and 1, or 2 and 3, ...), the k-th of each VM of the request on the same rail. So VMs
//! of one size share rails completely or not at all, and what is left over is usable by the next.
//!
//! Which hosts is decided by free capacity: hosts are kept in buckets of alike free capacity, leaf
//! groups and pods by what they have in sum, and the tightest that fits is tried first. A placement
//! looks at few hosts however many there are; a refusal looks at each once, to count.

mod free;
mod index;
mod inventory;
mod refusal;
mod request;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use lanekeeper_model::{Mbps, PciAddr, VfIndex};
use lanekeeper_topology::Distance;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use index::Index;
pub use inventory::{
    Cable, DataPath, Gpu, Gpus, HostReport, Inventory, InventoryError, Neighbour, PciPosition, Pf,
};
pub use refusal::{Filter, Refusal};
pub use request::{Flavor, GpuNeed, Policy, Quota, Request, RequestError, Scalars, Usage, VfNeed};

use crate::keys::{GpuModel, HostName, PfName, PlacementId};

/// A VF of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VfPlace {
    /// Its PF, or software NIC.
    pub pf: PfName,
    /// Which of its VFs.
    #[schemars(with = "u16")]
    pub vf: VfIndex,
    /// The rate that is set aside for it.
    #[schemars(with = "u32")]
    pub rate: Mbps,
    /// How far it is at most from the GPUs of its unit; none without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<Distance>,
}

/// What one VM has of its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmPlace {
    /// Number of the VM in its request, from 0; spares come after the VMs.
    pub vm: u32,
    /// GPUs.
    #[schemars(with = "Vec<String>")]
    pub gpus: Vec<PciAddr>,
    /// VFs, in the order of the VM's ports.
    pub vfs: Vec<VfPlace>,
    /// The rest.
    pub scalars: Scalars,
}

/// Where a request is: the VMs on each of its hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Placement(pub BTreeMap<HostName, Vec<VmPlace>>);

/// Why a host takes no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Closed {
    /// It is being drained.
    Draining,
    /// Its agent is not heard of.
    Lost,
}

/// What is claimed of a host, as it is written under its key: all its agent needs to see, and what a
/// transaction compares. Whether it is closed is here, because to close a host and to place on it
/// must exclude each other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostClaims {
    /// Whether nothing more is to be placed on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
    /// The VMs on it, by placement.
    #[serde(default)]
    pub placements: BTreeMap<PlacementId, Vec<VmPlace>>,
}

impl Index {
    /// Place a request, or say why not. The index stays as it is.
    ///
    /// # Errors
    /// [`Refusal`]: no placement of the whole request is possible with what is free.
    pub fn place(&self, request: &Request) -> Result<Placement, Refusal> {
        search::place(self, request)
    }

    /// How many VMs of a flavor open hosts have room for, each by itself.
    pub fn room(&self, flavor: &Flavor) -> u64 {
        search::room(self, flavor)
    }

    /// The GPU models of hosts that were reported.
    pub fn gpu_models(&self) -> BTreeSet<GpuModel> {
        let reports = self.reported().filter_map(|host| host.inventory.as_ref());
        reports
            .filter_map(|inventory| Some(inventory.report().gpus.as_ref()?.model.clone()))
            .collect()
    }
}
