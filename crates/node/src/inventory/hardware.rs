//! PFs and GPUs of the host's own hardware. PFs are those that `lanekeeper host apply` has set up, with
//! the VFs that are free or this agent's; one that does not answer is not reported. GPUs are those that
//! vfio-pci has, with all that is in their IOMMU groups.

use lanekeeper_control::keys::{LeafName, PfName};
use lanekeeper_control::placement::{DataPath, Gpu, Gpus, Neighbour, PciPosition, Pf};
use lanekeeper_host::{PfSeen, VFIO};
use lanekeeper_hw::inventory::{PciNode, PfReading};
use lanekeeper_model::PciAddr;
use lanekeeper_topology::{Kind, PciTree};

use super::cable;
use super::neighbours::Neighbours;
use crate::config::{GpuOffer, NodeConfig};
use crate::error::NodeError;
use crate::lanes::{HardwareNics, OfferedPf};

/// What VMs can have of it.
#[derive(Default)]
pub(super) struct Own {
    pub(super) pfs: Vec<Pf>,
    pub(super) gpus: Option<Gpus>,
}

pub(super) fn look(
    config: &NodeConfig,
    nics: &HardwareNics,
    neighbours: &Neighbours,
) -> Result<Own, NodeError> {
    let failed = |error| NodeError::Owner(Box::new(error));
    let tree = nics.owner().topology().map_err(failed)?;
    let seen = nics.owner().readings().map_err(failed)?;
    let mut pfs = Vec::new();
    for offered in nics.offered()? {
        let Ok(name) = PfName::new(&offered.record.name) else {
            tracing::warn!(pf = offered.record.name, "the name is too long for the server");
            continue;
        };
        let Some(reading) = reading_of(&offered, &seen) else {
            tracing::warn!(pf = %name, "it does not answer, and is not reported");
            continue;
        };
        let netdev = reading.netdev.as_ref();
        let neighbour = netdev.and_then(|netdev| neighbours.get(&netdev.name));
        pfs.push(pf(config, name, &offered, reading, &tree, neighbour));
    }
    let wanted = config.hardware.as_ref().and_then(|hardware| hardware.gpus.as_ref());
    Ok(Own { pfs, gpus: wanted.and_then(|wanted| gpus(wanted, &tree)) })
}

fn reading_of<'a>(offered: &OfferedPf, seen: &'a [PfSeen]) -> Option<&'a PfReading> {
    let readings = seen.iter().filter_map(|pf| pf.reading.as_ref().ok());
    let is = |reading: &&PfReading| {
        lanekeeper_host::ledger::Identity::of(reading)
            .is_some_and(|identity| offered.record.identity.is(&identity))
    };
    readings.into_iter().find(is)
}

fn pf(
    config: &NodeConfig,
    name: PfName,
    offered: &OfferedPf,
    reading: &PfReading,
    tree: &PciTree,
    neighbour: Option<&Neighbour>,
) -> Pf {
    let labels = config.nics.get(&name).cloned().unwrap_or_default();
    let netdev = reading.netdev.as_ref();
    let (up, speed) = (netdev.is_some_and(|it| it.carrier), netdev.and_then(|it| it.speed));
    let cable = cable(&labels, up, speed, neighbour.cloned());
    let heard = || neighbour.and_then(|it| LeafName::new(&it.system).ok());
    Pf {
        name,
        path: if reading.rdma.is_some() { DataPath::SriovRdma } else { DataPath::Sriov },
        fabric: labels.fabric.unwrap_or_else(|| config.fabric.clone()),
        rail: labels.rail,
        leaf: labels.leaf.or_else(heard),
        position: position(tree, reading.addr.into()),
        rate: if labels.rate.0 == 0 { speed.unwrap_or_default() } else { labels.rate },
        // While it has no link no further VM gets a VF of it.
        vfs: if up { &offered.vfs } else { &offered.ours }.iter().copied().collect(),
        cable: Some(cable),
    }
}

/// The addresses of what lies above a function, as numbers.
fn position(tree: &PciTree, addr: PciAddr) -> PciPosition {
    let Some(position) = tree.position(addr) else { return PciPosition::default() };
    PciPosition {
        numa: position.numa_node,
        host_bridge: Some(number(&position.host_bridge)),
        root_port: position.root_port.map(|port| number(&port.to_string())),
        switch: position.switch.map(|switch| number(&switch.to_string())),
    }
}

/// The digits of an address as one number: domain, bus, device and function have 16, 8, 5 and 3 bits.
fn number(address: &str) -> u32 {
    let mut parts = address.split([':', '.']).map(|part| u32::from_str_radix(part, 16));
    let mut next = || parts.next().and_then(Result::ok).unwrap_or_default();
    next() << 16 | next() << 8 | next() << 3 | next()
}

fn gpus(wanted: &GpuOffer, tree: &PciTree) -> Option<Gpus> {
    for address in &wanted.addresses {
        if !tree.of_kind(Kind::Gpu).any(|gpu| gpu.addr == *address && is_free(tree, gpu)) {
            tracing::warn!(gpu = %address, "no GPU that {VFIO} has, with all of its IOMMU group; it \
                is not reported");
        }
    }
    let meant = |addr: PciAddr| wanted.addresses.is_empty() || wanted.addresses.contains(&addr);
    let list: Vec<_> = tree
        .of_kind(Kind::Gpu)
        .filter(|gpu| meant(gpu.addr) && is_free(tree, gpu))
        .map(|gpu| Gpu { addr: gpu.addr, position: position(tree, gpu.addr) })
        .collect();
    (!list.is_empty()).then(|| Gpus { model: wanted.model.clone(), list })
}

/// vfio-pci has it, and nothing else that the IOMMU cannot tell from it has another driver
/// (Documentation/driver-api/vfio.rst: a group is viable when all its devices are bound to VFIO or to
/// no driver; bridges aside).
fn is_free(tree: &PciTree, gpu: &PciNode) -> bool {
    let Some(group) = gpu.iommu_group else { return false };
    let mut others = [Kind::Nic, Kind::Gpu, Kind::Other]
        .into_iter()
        .flat_map(|kind| tree.of_kind(kind))
        .filter(|node| node.iommu_group == Some(group) && node.addr != gpu.addr);
    gpu.driver.as_deref() == Some(VFIO)
        && others.all(|node| node.driver.as_deref().is_none_or(|driver| driver == VFIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_control::keys::GpuModel;
    use lanekeeper_topology::Distance;
    use proptest::prelude::*;

    fn at(text: &str) -> PciAddr {
        text.parse().expect("an address")
    }

    fn function(addr: &str, parent: Option<&str>, class: u32, numa: u32) -> PciNode {
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

    /// Two sockets; on each a root port with a switch that a NIC and a GPU are behind, another switch
    /// behind a port of that one with a GPU, and a NIC that is alone behind a root port.
    fn server() -> Vec<PciNode> {
        let mut all = Vec::new();
        for (numa, root) in [(0, 0x00_u32), (1, 0x80)] {
            let bus = |number: u32| root + number;
            let mut add = |bus: u32, device: u32, parent: Option<(u32, u32)>, class: u32| {
                let text = |(bus, device): (u32, u32)| format!("0000:{bus:02x}:{device:02x}.0");
                let parent = parent.map(text);
                all.push(function(&text((bus, device)), parent.as_deref(), class, numa));
            };
            let (bridge, nic, gpu) = (0x06_0400, 0x02_0000, 0x03_0200);
            add(bus(0), 1, None, bridge);
            add(bus(1), 0, Some((bus(0), 1)), bridge);
            for port in 0..3 {
                add(bus(2), port, Some((bus(1), 0)), bridge);
            }
            add(bus(3), 0, Some((bus(2), 0)), nic);
            add(bus(4), 0, Some((bus(2), 1)), gpu);
            add(bus(5), 0, Some((bus(2), 2)), bridge);
            add(bus(6), 0, Some((bus(5), 0)), bridge);
            add(bus(7), 0, Some((bus(6), 0)), gpu);
            add(bus(0), 2, None, bridge);
            add(bus(8), 0, Some((bus(0), 2)), nic);
            add(bus(0), 3, None, nic);
        }
        all
    }

    proptest! {
        #[test]
        fn two_positions_are_as_far_apart_as_the_tree_says(a in 0..26usize, b in 0..26usize) {
            let nodes = server();
            let devices: Vec<_> =
                nodes.iter().filter(|it| Kind::of(it.class) != Kind::Bridge).map(|it| it.addr).collect();
            let (a, b) = (devices[a % devices.len()], devices[b % devices.len()]);
            let tree = PciTree::new(nodes).expect("a tree");
            prop_assume!(a != b);
            let by_tree = tree.distance(a, b).expect("both are read");
            prop_assert_eq!(position(&tree, a).distance(position(&tree, b)), by_tree, "{} {}", a, b);
        }
    }

    #[test]
    fn the_nic_and_the_gpu_of_one_switch_are_beside_each_other() {
        let tree = PciTree::new(server()).expect("a tree");
        let of = |addr| position(&tree, at(addr));
        assert_eq!(of("0000:83:00.0").distance(of("0000:84:00.0")), Distance::Pix);
        assert_eq!(of("0000:83:00.0").distance(of("0000:87:00.0")), Distance::Pxb);
        assert_eq!(of("0000:83:00.0").distance(of("0000:04:00.0")), Distance::Sys);
    }

    #[test]
    fn a_gpu_is_given_only_with_all_that_the_iommu_cannot_tell_from_it() {
        let model = GpuModel::new("H100").expect("a name");
        let offer = |addresses: &[&str]| GpuOffer {
            model: model.clone(),
            addresses: addresses.iter().map(|text| at(text)).collect(),
        };
        let with = |of_gpu: Option<&str>, of_audio: Option<&str>| {
            let own = |driver: Option<&str>, mut node: PciNode| {
                (node.driver, node.iommu_group) = (driver.map(str::to_owned), Some(7));
                node
            };
            PciTree::new(vec![
                own(of_gpu, function("0000:04:00.0", None, 0x03_0200, 0)),
                own(of_audio, function("0000:04:00.1", None, 0x04_0300, 0)),
                own(Some("pcieport"), function("0000:00:01.0", None, 0x06_0400, 0)),
            ])
            .expect("a tree")
        };
        let count = |tree: &PciTree| gpus(&offer(&[]), tree).map_or(0, |gpus| gpus.list.len());
        assert_eq!(count(&with(Some(VFIO), None)), 1);
        assert_eq!(count(&with(Some(VFIO), Some(VFIO))), 1);
        assert_eq!(count(&with(Some(VFIO), Some("snd_hda_intel"))), 0);
        assert_eq!(count(&with(Some("nvidia"), Some(VFIO))), 0);
        assert_eq!(count(&with(None, None)), 0);
        let named = |address| gpus(&offer(&[address]), &with(Some(VFIO), None));
        assert!(named("0000:04:00.0").is_some());
        assert!(named("0000:05:00.0").is_none());
    }
}
