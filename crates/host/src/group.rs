//! IOMMU groups: what the IOMMU cannot tell apart is given away together or not at all. A claim is
//! of one VF, so a VF that shares its group with another function than a bridge is refused.

use lanekeeper_hw::inventory::VfReading;
use lanekeeper_model::PciAddr;
use lanekeeper_topology::Kind;

use crate::error::{HostError, Preflight};
use crate::owner::Owner;

impl Owner {
    /// The number of the VF's own group.
    pub(crate) fn own_group(&self, vf: &VfReading) -> Result<u32, HostError> {
        let group = vf.iommu_group.as_ref().ok_or(Preflight::NoGroup { address: vf.addr })?;
        let own = PciAddr::from(vf.addr);
        let others: Vec<PciAddr> =
            group.members.iter().copied().filter(|member| *member != own).collect();
        if others.is_empty() {
            return Ok(group.number);
        }
        // The kernel lets bridges be in a group that is given away (vfio.c, vfio_dev_viable).
        let tree = self.hw.pci_tree()?;
        let is_bridge = |addr: &PciAddr| {
            tree.iter().any(|node| node.addr == *addr && Kind::of(node.class) == Kind::Bridge)
        };
        if others.iter().all(is_bridge) {
            return Ok(group.number);
        }
        Err(HostError::SharedGroup {
            address: vf.addr,
            group: group.number,
            members: group.members.iter().copied().collect(),
        })
    }
}
