//! The PCIe tree as read, checked once so that every walk up ends.

use std::collections::{BTreeMap, BTreeSet};

use lanekeeper_hw::inventory::PciNode;
use lanekeeper_model::PciAddr;
use serde::Serialize;

use crate::distance::Distance;

/// What a function is, by its class code (PCI Code and ID Assignment 1.16, section 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bridges two buses: a root port, or a port of a switch.
    Bridge,
    /// Network or InfiniBand controller.
    Nic,
    /// Something to compute or draw on: a display controller that is no plain VGA adapter, or a
    /// processing accelerator.
    Gpu,
    /// Anything else.
    Other,
}

impl Kind {
    /// Of a class code: base class, subclass, programming interface.
    pub fn of(class: u32) -> Self {
        match (class >> 16 & 0xff, class >> 8 & 0xff) {
            (0x06, 0x04) => Self::Bridge,
            (0x02, _) => Self::Nic,
            // 0300 is a VGA adapter: a server's console, seldom a GPU of use.
            (0x03, subclass) if subclass != 0 => Self::Gpu,
            (0x12, _) => Self::Gpu,
            _ => Self::Other,
        }
    }
}

/// Why what was read is no tree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeError {
    /// A function was read twice.
    #[error("{0} was read twice; read the host again")]
    Twice(PciAddr),
    /// Going up from a function comes back to it.
    #[error("{0} is its own bridge, by way of others; read the host again")]
    Loop(PciAddr),
}

/// Every PCIe function of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PciTree {
    nodes: BTreeMap<PciAddr, PciNode>,
}

impl PciTree {
    /// From what was read. A bridge that was not read is a root: what is above it is unknown.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn new(read: Vec<PciNode>) -> Result<Self, TreeError> {
        let mut tree = Self::default();
        for node in read {
            let addr = node.addr;
            if tree.nodes.insert(addr, node).is_some() {
                return Err(TreeError::Twice(addr));
            }
        }
        for addr in tree.nodes.keys() {
            let mut seen = BTreeSet::from([*addr]);
            let mut at = *addr;
            while let Some(parent) = tree.parent(at) {
                if !seen.insert(parent) {
                    return Err(TreeError::Loop(*addr));
                }
                at = parent;
            }
        }
        Ok(tree)
    }

    /// One function.
    pub fn node(&self, addr: PciAddr) -> Option<&PciNode> {
        self.nodes.get(&addr)
    }

    /// Every function of a kind, by address.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &PciNode> {
        self.nodes.values().filter(move |node| Kind::of(node.class) == kind)
    }

    /// Every GPU of the host with its distance from `addr`, the nearest first.
    pub fn gpus_by_distance(&self, addr: PciAddr) -> Vec<(PciAddr, Distance)> {
        let mut gpus: Vec<_> = self
            .of_kind(Kind::Gpu)
            .filter_map(|gpu| Some((gpu.addr, self.distance(addr, gpu.addr)?)))
            .collect();
        gpus.sort_by_key(|(addr, distance)| (*distance, *addr));
        gpus
    }

    /// The bridges above a function, the nearest first.
    pub fn bridges(&self, addr: PciAddr) -> Vec<PciAddr> {
        std::iter::successors(self.parent(addr), |at| self.parent(*at)).collect()
    }

    /// The bridges that a transfer passes on the shortest way: those above `a` up to, and without,
    /// the first common one; likewise for `b`; and that common one, if there is any.
    pub(crate) fn between(&self, a: PciAddr, b: PciAddr) -> Between {
        let (up, down) = (self.bridges(a), self.bridges(b));
        let common = up.iter().copied().find(|bridge| down.contains(bridge));
        let below = |bridges: Vec<PciAddr>| {
            bridges.into_iter().take_while(|bridge| Some(*bridge) != common).collect()
        };
        Between { up: below(up), down: below(down), common }
    }

    fn parent(&self, addr: PciAddr) -> Option<PciAddr> {
        self.nodes.get(&addr)?.parent.filter(|parent| self.nodes.contains_key(parent))
    }
}

/// What lies between two functions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Between {
    pub(crate) up: Vec<PciAddr>,
    pub(crate) down: Vec<PciAddr>,
    pub(crate) common: Option<PciAddr>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn at(text: &str) -> PciAddr {
        text.parse().expect("a PCI address")
    }

    pub(crate) fn node(addr: &str, parent: Option<&str>, class: u32, numa: u32) -> PciNode {
        PciNode {
            addr: at(addr),
            parent: parent.map(at),
            class,
            vendor: 0x10de,
            device: 0x2330,
            driver: None,
            numa_node: Some(numa),
            iommu_group: None,
            acs: None,
            ats: None,
            relaxed_ordering: None,
            max_read_request: None,
        }
    }

    pub(crate) const BRIDGE: u32 = 0x06_0400;
    pub(crate) const NIC: u32 = 0x02_0000;
    pub(crate) const GPU: u32 = 0x03_0200;

    /// Two sockets. On the first a switch with a GPU and a NIC, and another GPU on a root port of
    /// its own; on the second a NIC.
    pub(crate) fn host() -> PciTree {
        PciTree::new(vec![
            node("0000:00:01.0", None, BRIDGE, 0),
            node("0000:01:00.0", Some("0000:00:01.0"), BRIDGE, 0),
            node("0000:02:00.0", Some("0000:01:00.0"), BRIDGE, 0),
            node("0000:02:01.0", Some("0000:01:00.0"), BRIDGE, 0),
            node("0000:03:00.0", Some("0000:02:00.0"), GPU, 0),
            node("0000:04:00.0", Some("0000:02:01.0"), NIC, 0),
            node("0000:04:00.1", Some("0000:02:01.0"), NIC, 0),
            node("0000:00:02.0", None, BRIDGE, 0),
            node("0000:08:00.0", Some("0000:00:02.0"), GPU, 0),
            node("0001:00:01.0", None, BRIDGE, 1),
            node("0001:01:00.0", Some("0001:00:01.0"), NIC, 1),
        ])
        .expect("a tree")
    }

    #[test]
    fn gpus_are_told_from_the_console_by_their_class() {
        assert_eq!(Kind::of(GPU), Kind::Gpu);
        assert_eq!(Kind::of(0x12_0000), Kind::Gpu);
        assert_eq!(Kind::of(0x03_0000), Kind::Other);
        assert_eq!(Kind::of(0x02_0700), Kind::Nic);
        assert_eq!(Kind::of(BRIDGE), Kind::Bridge);
    }

    #[test]
    fn the_nearest_gpu_comes_first() {
        let gpus = host().gpus_by_distance(at("0000:04:00.0"));
        let gpus: Vec<_> = gpus.into_iter().map(|(gpu, _)| gpu).collect();
        assert_eq!(gpus, [at("0000:03:00.0"), at("0000:08:00.0")]);
    }

    #[test]
    fn a_loop_and_a_function_read_twice_are_refused() {
        let a = node("0000:01:00.0", Some("0000:02:00.0"), BRIDGE, 0);
        let b = node("0000:02:00.0", Some("0000:01:00.0"), BRIDGE, 0);
        assert_eq!(PciTree::new(vec![a.clone(), b]), Err(TreeError::Loop(at("0000:01:00.0"))));
        assert_eq!(PciTree::new(vec![a.clone(), a]), Err(TreeError::Twice(at("0000:01:00.0"))));
    }

    proptest! {
        #[test]
        fn any_reading_is_a_tree_or_refused_and_every_walk_in_it_ends(
            parents in proptest::collection::vec(proptest::option::of(0usize..40), 0..40)
        ) {
            let name = |index: usize| format!("0000:{index:02x}:00.0");
            let read = parents.iter().enumerate().map(|(index, parent)| {
                node(&name(index), parent.map(name).as_deref(), BRIDGE, 0)
            });
            if let Ok(tree) = PciTree::new(read.collect()) {
                for a in 0..parents.len() {
                    prop_assert!(tree.bridges(at(&name(a))).len() < 40);
                    for b in 0..parents.len() {
                        let (a, b) = (at(&name(a)), at(&name(b)));
                        prop_assert_eq!(tree.distance(a, b), tree.distance(b, a));
                    }
                }
            }
        }
    }
}
