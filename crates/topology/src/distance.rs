//! How far two functions are apart, in the five steps that `nvidia-smi topo` and NCCL name, and
//! what a claim may ask of it.

use std::fmt;
use std::str::FromStr;

use lanekeeper_model::PciAddr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tree::PciTree;

/// How far two functions are apart; the nearer is the less.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// Behind one bridge, or one switch: PIX.
    Pix,
    /// Behind one root port, over more than one switch: PXB.
    Pxb,
    /// Over the host bridge of one root complex: PHB.
    Phb,
    /// Over several host bridges of one NUMA node: NODE.
    Node,
    /// From one NUMA node to another: SYS.
    Sys,
}

impl Distance {
    /// In words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Pix => "behind one PCIe switch",
            Self::Pxb => "behind one root port, over several switches",
            Self::Phb => "over the host bridge",
            Self::Node => "over several host bridges of one NUMA node",
            Self::Sys => "on another NUMA node",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        })
    }
}

impl PciTree {
    /// How far two functions are apart; `None` if one of them was not read.
    pub fn distance(&self, a: PciAddr, b: PciAddr) -> Option<Distance> {
        let (node_a, node_b) = (self.node(a)?, self.node(b)?);
        if a == b {
            return Some(Distance::Pix);
        }
        let between = self.between(a, b);
        if between.common.is_some() {
            // A switch has two ports on the way: one on each side of what they have in common.
            let one_switch = between.up.len() <= 1 && between.down.len() <= 1;
            return Some(if one_switch { Distance::Pix } else { Distance::Pxb });
        }
        let same_node = match (node_a.numa_node, node_b.numa_node) {
            (Some(a), Some(b)) => a == b,
            // A platform without NUMA nodes is one.
            _ => true,
        };
        if !same_node {
            return Some(Distance::Sys);
        }
        Some(if root_bus(a) == root_bus(b) || self.same_root(a, b) {
            Distance::Phb
        } else {
            Distance::Node
        })
    }

    /// Whether the ways up from both end on one root bus, which is one host bridge.
    fn same_root(&self, a: PciAddr, b: PciAddr) -> bool {
        let root = |addr| root_bus(self.bridges(addr).last().copied().unwrap_or(addr));
        root(a) == root(b)
    }
}

/// Domain and bus, as text: those of a function on a root bus name its host bridge.
pub(crate) fn root_bus(addr: PciAddr) -> String {
    let text = addr.to_string();
    text.rsplit_once(':').map_or(text.clone(), |(bus, _)| bus.to_owned())
}

/// Whether an affinity must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Strictness {
    /// Refuse what is further away.
    Strict,
    /// Take the nearest, and say how far it is.
    #[default]
    Preferred,
}

impl FromStr for Strictness {
    type Err = AffinityError;

    fn from_str(text: &str) -> Result<Self, AffinityError> {
        match text {
            "strict" => Ok(Self::Strict),
            "preferred" => Ok(Self::Preferred),
            _ => Err(AffinityError::Strictness(text.to_owned())),
        }
    }
}

/// Where a claim wants its VF to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Affinity {
    /// On this NUMA node.
    Numa(u32),
    /// As near as this to this GPU.
    Gpu {
        /// Which GPU.
        addr: PciAddr,
        /// At most so far; PXB is what GPUDirect wants.
        within: Distance,
    },
}

/// Why an affinity cannot be met.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AffinityError {
    /// Neither of the two words.
    #[error("'{0}' is not a strictness; use strict or preferred")]
    Strictness(String),
    /// There is no such function.
    #[error("there is no PCIe function {0} on this host; `lanekeeper host show` lists the GPUs")]
    NoSuchFunction(PciAddr),
}

impl Affinity {
    /// How far `pf` is from what is wanted, and whether that is near enough.
    ///
    /// # Errors
    /// [`AffinityError::NoSuchFunction`].
    pub fn judge(&self, tree: &PciTree, pf: PciAddr) -> Result<(Distance, bool), AffinityError> {
        let node = tree.node(pf).ok_or(AffinityError::NoSuchFunction(pf))?;
        match *self {
            Self::Numa(wanted) => {
                let there = node.numa_node.is_none_or(|node| node == wanted);
                Ok((if there { Distance::Node } else { Distance::Sys }, there))
            }
            Self::Gpu { addr, within } => {
                let distance = tree.distance(pf, addr);
                let distance = distance.ok_or(AffinityError::NoSuchFunction(addr))?;
                Ok((distance, distance <= within))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{BRIDGE, NIC, at, host, node};

    #[test]
    fn each_of_the_five_distances_is_told() {
        let host = host();
        let nic = at("0000:04:00.0");
        for (other, wanted) in [
            ("0000:04:00.1", Distance::Pix),
            ("0000:03:00.0", Distance::Pix),
            ("0000:08:00.0", Distance::Phb),
            ("0001:01:00.0", Distance::Sys),
        ] {
            assert_eq!(host.distance(nic, at(other)), Some(wanted), "{other}");
        }
        assert_eq!(host.distance(nic, at("0000:ff:00.0")), None);
    }

    #[test]
    fn a_second_switch_on_the_way_is_pxb_and_a_second_host_bridge_node() {
        let tree = PciTree::new(vec![
            node("0000:00:01.0", None, BRIDGE, 0),
            node("0000:01:00.0", Some("0000:00:01.0"), BRIDGE, 0),
            node("0000:02:00.0", Some("0000:01:00.0"), BRIDGE, 0),
            node("0000:03:00.0", Some("0000:02:00.0"), BRIDGE, 0),
            node("0000:04:00.0", Some("0000:03:00.0"), BRIDGE, 0),
            node("0000:05:00.0", Some("0000:04:00.0"), NIC, 0),
            node("0000:02:01.0", Some("0000:01:00.0"), BRIDGE, 0),
            node("0000:06:00.0", Some("0000:02:01.0"), NIC, 0),
            node("0000:40:01.0", None, BRIDGE, 0),
            node("0000:41:00.0", Some("0000:40:01.0"), NIC, 0),
        ])
        .expect("a tree");
        let distance = |a, b| tree.distance(at(a), at(b));
        assert_eq!(distance("0000:05:00.0", "0000:06:00.0"), Some(Distance::Pxb));
        assert_eq!(distance("0000:05:00.0", "0000:41:00.0"), Some(Distance::Node));
    }

    #[test]
    fn strict_affinity_can_tell_near_from_far() {
        let host = host();
        let near = Affinity::Gpu { addr: at("0000:03:00.0"), within: Distance::Pxb };
        let judge = |affinity: Affinity, pf| affinity.judge(&host, at(pf));
        assert_eq!(judge(near, "0000:04:00.0"), Ok((Distance::Pix, true)));
        assert_eq!(judge(near, "0001:01:00.0"), Ok((Distance::Sys, false)));
        assert_eq!(judge(Affinity::Numa(1), "0001:01:00.0"), Ok((Distance::Node, true)));
        assert_eq!(judge(Affinity::Numa(1), "0000:04:00.0"), Ok((Distance::Sys, false)));
        let nowhere = Affinity::Gpu { addr: at("0000:ff:00.0"), within: Distance::Pxb };
        let refusal = judge(nowhere, "0000:04:00.0").expect_err("no such GPU");
        assert!(refusal.to_string().contains("0000:ff:00.0"), "{refusal}");
    }
}
