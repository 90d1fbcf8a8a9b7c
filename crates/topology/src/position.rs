//! Where a function is, by itself: for who compares functions without having the tree.

use lanekeeper_model::PciAddr;

use crate::distance::root_bus;
use crate::tree::PciTree;

/// What lies above a function, each by its address, which is the same for all functions below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// NUMA node; none on a platform without.
    pub numa_node: Option<u32>,
    /// Domain and root bus of its host bridge, as in `0000:80`.
    pub host_bridge: String,
    /// The port on the root bus; none for a function that is on the root bus itself.
    pub root_port: Option<PciAddr>,
    /// The switch that it is in or directly behind, by its upstream port; the root port where there is
    /// no switch.
    pub switch: Option<PciAddr>,
}

impl PciTree {
    /// Where a function is; `None` if it was not read.
    pub fn position(&self, addr: PciAddr) -> Option<Position> {
        let node = self.node(addr)?;
        let bridges = self.bridges(addr);
        let root_port = bridges.last().copied();
        Some(Position {
            numa_node: node.numa_node,
            host_bridge: root_bus(root_port.unwrap_or(addr)),
            root_port,
            // Right above it is a port of the switch, which has its upstream port in common with
            // the switch's other ports.
            switch: bridges.get(1).or(bridges.first()).copied(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{BRIDGE, GPU, NIC, at, node};

    #[test]
    fn functions_behind_one_switch_share_it_and_those_of_another_do_not() {
        let tree = PciTree::new(vec![
            node("0000:80:01.0", None, BRIDGE, 1),
            node("0000:81:00.0", Some("0000:80:01.0"), BRIDGE, 1),
            node("0000:82:00.0", Some("0000:81:00.0"), BRIDGE, 1),
            node("0000:82:01.0", Some("0000:81:00.0"), BRIDGE, 1),
            node("0000:83:00.0", Some("0000:82:00.0"), NIC, 1),
            node("0000:84:00.0", Some("0000:82:01.0"), GPU, 1),
            node("0000:00:01.0", None, BRIDGE, 0),
            node("0000:01:00.0", Some("0000:00:01.0"), NIC, 0),
            node("0000:00:05.0", None, NIC, 0),
        ])
        .expect("a tree");
        let of = |addr| tree.position(at(addr)).expect("read");
        let (nic, gpu) = (of("0000:83:00.0"), of("0000:84:00.0"));
        assert_eq!(nic, gpu);
        assert_eq!(nic.switch, Some(at("0000:81:00.0")));
        assert_eq!(nic.root_port, Some(at("0000:80:01.0")));
        assert_eq!(nic.host_bridge, "0000:80");
        let alone = of("0000:01:00.0");
        assert_eq!((alone.switch, alone.root_port), (alone.root_port, Some(at("0000:00:01.0"))));
        let on_root = of("0000:00:05.0");
        assert_eq!((on_root.root_port, on_root.switch), (None, None));
        assert_eq!(on_root.host_bridge, alone.host_bridge);
        assert_eq!(tree.position(at("0000:99:00.0")), None);
    }
}
