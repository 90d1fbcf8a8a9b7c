//! What a host has, as its agent reports it: GPUs, PFs and software NICs with their place on PCIe and
//! in the fabric. An [`Inventory`] that exists is consistent; an agent that reports nonsense is told so
//! and changes nothing.

use std::collections::BTreeSet;

use lanekeeper_model::{Mbps, PciAddr, VfIndex};
use lanekeeper_topology::Distance;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Scalars;
use crate::keys::{FabricName, GpuModel, LeafName, PfName, PodName};

/// Where a function is on PCIe: numbers the agent gave to what lies above it, equal for what two
/// functions share. `None` where there is no such thing, as for a software NIC.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct PciPosition {
    /// NUMA node; none on a platform without.
    pub numa: Option<u32>,
    /// Host bridge.
    pub host_bridge: Option<u32>,
    /// Root port.
    pub root_port: Option<u32>,
    /// The switch, or the bridge, right above it.
    pub switch: Option<u32>,
}

/// What two positions share if they are within a distance: the same for both, and for no third that
/// is farther.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Island(Option<u32>, [Option<u32>; 3]);

impl PciPosition {
    /// How far two functions are apart.
    pub fn distance(self, other: Self) -> Distance {
        let shared = |a: Option<u32>, b: Option<u32>| a.is_some() && a == b;
        if self.numa != other.numa {
            Distance::Sys
        } else if !shared(self.host_bridge, other.host_bridge) {
            Distance::Node
        } else if !shared(self.root_port, other.root_port) {
            Distance::Phb
        } else if !shared(self.switch, other.switch) {
            Distance::Pxb
        } else {
            Distance::Pix
        }
    }

    /// The island of all that is within `distance`; none if it shares nothing at that level.
    pub(super) fn island(self, distance: Distance) -> Option<Island> {
        let (bridge, port, switch) = (self.host_bridge, self.root_port, self.switch);
        Some(match distance {
            Distance::Sys => Island(None, [None; 3]),
            Distance::Node => Island(self.numa, [None; 3]),
            Distance::Phb => Island(self.numa, [Some(bridge?), None, None]),
            Distance::Pxb => Island(self.numa, [Some(bridge?), Some(port?), None]),
            Distance::Pix => Island(self.numa, [Some(bridge?), Some(port?), Some(switch?)]),
        })
    }
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its address on the host.
    pub addr: PciAddr,
    /// Where it is.
    pub position: PciPosition,
}

/// The GPUs of a host, which are of one model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpus {
    /// Their model.
    pub model: GpuModel,
    /// Each of them.
    pub list: Vec<Gpu>,
}

/// What carries a VF's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataPath {
    /// An SR-IOV NIC with an RDMA engine of its own.
    SriovRdma,
    /// An SR-IOV NIC without.
    Sriov,
    /// The software NIC.
    Software,
}

/// A PF, or a software NIC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pf {
    /// Its name on the host.
    pub name: PfName,
    /// What carries its VFs' frames.
    pub path: DataPath,
    /// The fabric it is cabled to.
    pub fabric: FabricName,
    /// Its rail in that fabric.
    pub rail: Option<u16>,
    /// The leaf at the other end of its cable, from LLDP or from a label.
    pub leaf: Option<LeafName>,
    /// Where it is.
    pub position: PciPosition,
    /// What it can carry, to be divided among its VFs.
    pub rate: Mbps,
    /// The VFs that VMs can have: those in quarantine are not among them.
    pub vfs: BTreeSet<VfIndex>,
    /// Its link and who is at the other end, as seen and as expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cable: Option<Cable>,
}

/// A PF's link and the other end of its cable, as they are and as the operator expects them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cable {
    /// It has a link.
    pub up: bool,
    /// Speed of the link in Mbit/s, if the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Who is at the other end, by LLDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<Neighbour>,
    /// The speed that it should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_speed_mbps: Option<u32>,
    /// Who should be at the other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_neighbour: Option<Neighbour>,
}

/// The other end of a cable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Neighbour {
    /// Name of the switch.
    pub system: String,
    /// Its port.
    pub port: String,
}

impl std::fmt::Display for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.system, self.port)
    }
}

impl Cable {
    /// In what it is not as expected, in sentences. A neighbour that is not heard of differs from none.
    pub fn differences(&self) -> Vec<String> {
        let mut differs = Vec::new();
        if !self.up {
            differs.push("it has no link".to_owned());
        }
        if let (true, Some(wanted), Some(found)) =
            (self.up, self.expected_speed_mbps, self.speed_mbps)
            && wanted != found
        {
            differs.push(format!("its link has {found} Mb/s, and {wanted} are expected"));
        }
        if let (Some(wanted), Some(found)) = (&self.expected_neighbour, &self.neighbour)
            && wanted != found
        {
            differs.push(format!("it is cabled to {found}, and {wanted} is expected"));
        }
        differs
    }
}

/// What an agent reports of its host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostReport {
    /// The pod it stands in.
    pub pod: Option<PodName>,
    /// What VMs can have of it beside GPUs and VFs.
    pub scalars: Scalars,
    /// GPUs, if it has any.
    pub gpus: Option<Gpus>,
    /// PFs and software NICs.
    pub pfs: Vec<Pf>,
}

/// A report that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// Two GPUs at one address.
    #[error("two GPUs are reported at {0}; report each once")]
    GpuTwice(PciAddr),
    /// Two PFs of one name.
    #[error("two PFs are reported as {0}; give each a name of its own")]
    PfTwice(PfName),
    /// Two PFs on one rail: a rail's VFs would have two places.
    #[error("{pf} and another PF are both on rail {rail} of {fabric}; a host has one PF a rail")]
    RailTwice {
        /// The second of them.
        pf: PfName,
        /// The rail.
        rail: u16,
        /// Of which fabric.
        fabric: FabricName,
    },
    /// A rail number that no fabric has.
    #[error("{pf} is on rail {rail}; rails are numbered from 0 to {most}", most = Inventory::MOST_RAILS - 1)]
    Rail {
        /// The PF.
        pf: PfName,
        /// The number.
        rail: u16,
    },
}

/// A report that is consistent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "HostReport", into = "HostReport")]
pub struct Inventory(HostReport);

impl Inventory {
    /// Most rails of a fabric.
    pub const MOST_RAILS: u16 = 64;

    /// Check a report.
    ///
    /// # Errors
    /// [`InventoryError`].
    pub fn new(report: HostReport) -> Result<Self, InventoryError> {
        let mut addresses = BTreeSet::new();
        for gpu in report.gpus.iter().flat_map(|gpus| &gpus.list) {
            if !addresses.insert(gpu.addr) {
                return Err(InventoryError::GpuTwice(gpu.addr));
            }
        }
        let (mut names, mut rails) = (BTreeSet::new(), BTreeSet::new());
        for Pf { name, fabric, rail, .. } in &report.pfs {
            if !names.insert(name) {
                return Err(InventoryError::PfTwice(name.clone()));
            }
            let Some(rail) = *rail else { continue };
            if rail >= Self::MOST_RAILS {
                return Err(InventoryError::Rail { pf: name.clone(), rail });
            }
            if !rails.insert((fabric, rail)) {
                let (pf, fabric) = (name.clone(), fabric.clone());
                return Err(InventoryError::RailTwice { pf, rail, fabric });
            }
        }
        Ok(Self(report))
    }

    /// What it says.
    pub fn report(&self) -> &HostReport {
        &self.0
    }

    /// The leaf group it is in: the leaves that its PFs hang off, rail by rail. None unless each PF
    /// says its leaf.
    pub(super) fn leaf_group(&self) -> Option<Vec<(FabricName, Option<u16>, LeafName)>> {
        let pfs = self.0.pfs.iter();
        let leaves = pfs.map(|pf| Some((pf.fabric.clone(), pf.rail, pf.leaf.clone()?)));
        let mut leaves: Vec<_> = leaves.collect::<Option<_>>()?;
        leaves.sort();
        leaves.dedup();
        (!leaves.is_empty()).then_some(leaves)
    }
}

impl TryFrom<HostReport> for Inventory {
    type Error = InventoryError;
    fn try_from(report: HostReport) -> Result<Self, InventoryError> {
        Self::new(report)
    }
}

impl From<Inventory> for HostReport {
    fn from(inventory: Inventory) -> Self {
        inventory.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTANCES: [Distance; 5] =
        [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys];

    #[test]
    fn a_cable_says_in_what_it_is_not_as_expected() {
        let leaf = |port: &str| Neighbour { system: "leaf1".to_owned(), port: port.to_owned() };
        let good = Cable {
            up: true,
            speed_mbps: Some(100_000),
            neighbour: Some(leaf("Ethernet1/1")),
            expected_speed_mbps: Some(100_000),
            expected_neighbour: Some(leaf("Ethernet1/1")),
        };
        assert_eq!(good.differences(), [""; 0]);
        let slow = Cable { speed_mbps: Some(25_000), ..good.clone() };
        assert!(slow.differences()[0].contains("25000 Mb/s, and 100000"));
        let swapped = Cable { neighbour: Some(leaf("Ethernet1/2")), ..good.clone() };
        assert!(swapped.differences()[0].contains("Ethernet1/2, and leaf1 Ethernet1/1"));
        let down = Cable { up: false, speed_mbps: None, neighbour: None, ..good.clone() };
        assert_eq!(down.differences(), ["it has no link"]);
        let unheard = Cable { neighbour: None, ..good };
        assert_eq!(unheard.differences(), [""; 0], "LLDP may be off");
    }

    #[test]
    fn two_functions_are_in_one_island_if_and_only_if_they_are_near_enough() {
        let choices = [None, Some(0), Some(1)];
        let all = |numa| {
            choices.into_iter().flat_map(move |host_bridge| {
                choices.into_iter().flat_map(move |root_port| {
                    choices.into_iter().map(move |switch| PciPosition {
                        numa,
                        host_bridge,
                        root_port,
                        switch,
                    })
                })
            })
        };
        let positions: Vec<PciPosition> = choices.into_iter().flat_map(all).collect();
        for a in &positions {
            for b in &positions {
                for size in DISTANCES {
                    let island = a.island(size);
                    let together = island.is_some() && island == b.island(size);
                    assert_eq!(together, a.distance(*b) <= size, "{a:?} {b:?} {size:?}");
                }
            }
        }
    }

    #[test]
    fn a_report_that_contradicts_itself_is_refused() {
        let pf = |name: &str, rail| Pf {
            name: PfName::new(name).expect("a name"),
            path: DataPath::SriovRdma,
            fabric: FabricName::new("f").expect("a name"),
            rail: Some(rail),
            leaf: None,
            position: PciPosition::default(),
            rate: Mbps(100_000),
            vfs: BTreeSet::new(),
            cable: None,
        };
        let report = |pfs| HostReport { pod: None, scalars: Scalars::default(), gpus: None, pfs };
        assert!(Inventory::new(report(vec![pf("a", 0), pf("b", 1)])).is_ok());
        let refused = |pfs| Inventory::new(report(pfs)).expect_err("refused").to_string();
        assert!(refused(vec![pf("a", 0), pf("a", 1)]).contains("reported as a"));
        assert!(refused(vec![pf("a", 3), pf("b", 3)]).contains("on rail 3 of f"));
        assert!(refused(vec![pf("a", 64)]).contains("from 0 to 63"));
    }
}
