//! Where a claim wants its VF to be: whether this host has such a place, and how far a PF is from it.

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::PciAddr;
use lanekeeper_topology::{Affinity, Distance, Kind, PciTree};

use crate::error::HostError;
use crate::owner::Owner;

/// A place that this host has.
pub(crate) enum Place {
    /// A NUMA node.
    Node {
        /// Its number.
        wanted: u32,
        /// The host has no other, so that everything is on it.
        only: bool,
    },
    /// Beside a GPU.
    Gpu {
        /// Which, and how near.
        to: Affinity,
        /// What the distance is judged by.
        tree: PciTree,
    },
}

impl Place {
    /// # Errors
    /// [`HostError::Affinity`] for a NUMA node or a GPU that this host does not have.
    pub(crate) fn of(owner: &Owner, to: Affinity) -> Result<Self, HostError> {
        match to {
            Affinity::Numa(wanted) => {
                let nodes = owner.preflight.numa_nodes();
                if nodes.contains(&wanted) {
                    return Ok(Self::Node { wanted, only: nodes.len() == 1 });
                }
                Err(HostError::Affinity(format!(
                    "this host has no NUMA node {wanted}; it has {}",
                    listed(&nodes)
                )))
            }
            Affinity::Gpu { addr, .. } => {
                let tree = owner.topology()?;
                let gpus: Vec<_> = tree.of_kind(Kind::Gpu).map(|gpu| gpu.addr).collect();
                if gpus.contains(&addr) {
                    return Ok(Self::Gpu { to, tree });
                }
                let instead = if gpus.is_empty() {
                    "this host has no GPU".to_owned()
                } else {
                    format!("those of this host are {}", listed(&gpus))
                };
                Err(HostError::Affinity(format!("{addr} is no GPU; {instead}")))
            }
        }
    }

    /// How far a PF is, and whether that is near enough; `None` if its NUMA node is not known.
    pub(crate) fn judge(&self, pf: &PfReading) -> Result<Option<(Distance, bool)>, HostError> {
        match self {
            Self::Node { wanted, only } => {
                let node = pf.numa_node.or(only.then_some(*wanted));
                let judged = |node| if node == *wanted { Distance::Node } else { Distance::Sys };
                Ok(node.map(|node| (judged(node), node == *wanted)))
            }
            Self::Gpu { to, tree } => {
                let judged = to.judge(tree, PciAddr::from(pf.addr));
                judged.map(Some).map_err(|error| HostError::Affinity(error.to_string()))
            }
        }
    }
}

fn listed(found: &[impl ToString]) -> String {
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    found.join(", ")
}
