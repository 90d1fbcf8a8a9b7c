//! What a fake host tells of itself.

use lanekeeper_model::{Guid, MacAddr, PciAddr, PfAddr};

use super::machine::{Halt, Machine, Pf, Port, Vf, bus_and_function};
use super::personality::{EswitchRule, NodeGuid};
use crate::inventory::{
    Gid, GidKind, IommuGroup, Netdev, PciNode, PfReading, RdmaDevice, VfReading,
};

impl Machine {
    /// A reading. Each brings VFs that are being made, and drivers that are being bound, one step
    /// further.
    pub(super) fn read(&mut self, addr: PfAddr) -> Result<PfReading, Halt> {
        let pf = self.pf(addr)?;
        pf.unborn = pf.unborn.saturating_sub(1);
        for vf in &mut pf.vfs {
            vf.driver_lag = vf.driver_lag.saturating_sub(1);
            vf.untold = vf.untold.saturating_sub(1);
            vf.stale = vf.stale.map(|(left, told)| (left - 1, told)).filter(|(left, _)| *left > 0);
        }
        let pf = &self.pfs[&addr];
        let rules = pf.rules();
        let netdev = pf.netdev_here.then(|| Netdev {
            name: pf.name.clone(),
            index: pf.interface,
            mac: pf.mac,
            mtu: u32::from(pf.mtu.get()),
            up: pf.up,
            carrier: pf.carrier(),
            speed: pf.carrier().then_some(rules.speed),
            manager: pf.spec.manager.clone(),
        });
        let guid = Guid::from_mac(pf.mac);
        let has_rdma = rules.node_guid != NodeGuid::None;
        let rdma = has_rdma.then(|| self.rdma(pf.rdma, guid, pf.mac, &pf.name));
        Ok(PfReading {
            addr,
            driver: pf.driver.clone(),
            firmware: Some(rules.firmware.to_owned()),
            vendor: rules.vendor,
            device: rules.device,
            slot: Some(pf.slot.clone()),
            permanent_mac: pf.netdev_here.then_some(pf.mac),
            serial: Some(pf.serial.clone()),
            netdev: netdev.filter(|_| pf.is_driven()),
            numa_node: pf.spec.numa,
            total_vfs: pf.total,
            num_vfs: pf.vfs.len() as u16,
            autoprobe: pf.autoprobe,
            eswitch: (rules.eswitch != EswitchRule::None).then_some(pf.eswitch),
            pending_reset: pf.pending.as_ref().map(|pending| pending.what.clone()),
            bond: pf.spec.bond.clone(),
            rdma: rdma.filter(|_| pf.is_driven()),
            iommu_group: pf.group.map(|number| self.group(number)),
            roce: self.roce(pf),
            vfs: pf.vfs.iter().take(pf.seen()).map(|vf| self.vf(pf, vf)).collect(),
            warnings: Vec::new(),
        })
    }

    fn vf(&self, pf: &Pf, vf: &Vf) -> VfReading {
        let driver = vf.driver.clone().filter(|_| vf.driver_lag == 0);
        let port = vf.port.as_ref().filter(|_| vf.driver_lag == 0);
        let name = format!("{}v{}", pf.name, vf.index);
        let (_, function) = bus_and_function(pf.addr);
        let netdev = |port: &Port| Netdev {
            name: name.clone(),
            index: port.interface,
            mac: port.mac,
            mtu: u32::from(port.mtu.get()),
            up: port.up,
            carrier: port.carrier,
            speed: port.carrier.then_some(pf.rules().speed),
            manager: None,
        };
        VfReading {
            vf: vf.index,
            addr: vf.addr,
            driver,
            driver_override: vf.driver_override.clone(),
            netdev: port.map(netdev),
            representor: pf.switchdev().then(|| format!("{}pf{function}vf{}", pf.name, vf.index)),
            representor_state: pf.switchdev().then_some(vf.representor),
            rdma: port.and_then(|port| {
                port.rdma.map(|(number, guid)| self.rdma(number, guid, port.mac, &name))
            }),
            iommu_group: vf.group.map(|number| self.group(number)),
            holder: vf.holder.clone(),
            attributes: (pf.netdev_here && vf.untold == 0)
                .then(|| vf.stale.map_or_else(|| pf.attributes(vf), |(_, told)| told)),
        }
    }

    fn group(&self, number: u32) -> IommuGroup {
        IommuGroup { number, members: self.members(number) }
    }

    /// A RoCE device with the GIDs of its interface's link-local address. The table is sparse: the
    /// index of an entry says nothing (nccl#1573).
    fn rdma(&self, number: u32, node_guid: Guid, mac: MacAddr, netdev: &str) -> RdmaDevice {
        let interface = Guid::from_mac(mac).0 ^ 0x0200_0000_0000_0000;
        let address = (0xfe80_u128 << 112 | u128::from(interface)).into();
        let gid = |index, kind| Gid { index, address, kind, netdev: Some(netdev.to_owned()) };
        RdmaDevice {
            name: format!("rdma{number}"),
            node_guid,
            netns: Some(self.netns),
            gids: vec![gid(number % 3, GidKind::IbOrRoceV1), gid(number % 3 + 4, GidKind::RoceV2)],
        }
    }

    pub(super) fn pci_tree(&self) -> Vec<PciNode> {
        let mut tree = self.extra.clone();
        for pf in self.pfs.values() {
            tree.push(pf.node(pf.addr.into(), pf.group, pf.driver.as_ref()));
            let vfs = pf.vfs.iter().take(pf.seen());
            tree.extend(vfs.map(|vf| pf.node(vf.addr.into(), vf.group, vf.driver.as_ref())));
        }
        tree.sort_by_key(|node| node.addr);
        tree
    }
}

impl Pf {
    fn node(&self, addr: PciAddr, iommu_group: Option<u32>, driver: Option<&String>) -> PciNode {
        let rules = self.rules();
        PciNode {
            addr,
            parent: self.spec.parent,
            class: 0x02_00_00,
            vendor: rules.vendor,
            device: rules.device,
            driver: driver.cloned(),
            numa_node: self.spec.numa,
            iommu_group,
            acs: None,
            ats: Some(false),
            relaxed_ordering: Some(true),
            max_read_request: Some(512),
        }
    }
}
