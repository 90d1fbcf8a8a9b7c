//! What a VMM needs to take a VF over, and the checks before it tries: device node, permissions,
//! memory that must be lockable.

use std::fmt::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use lanekeeper_model::{PciAddr, VfAddr};
use serde::{Deserialize, Serialize};

use crate::error::Preflight;
use crate::ledger::ClaimRecord;
use crate::request::{ClaimId, DriverWanted, VmFacts};

/// What VFIO needs beside the VM's RAM: the address space of its devices.
const BESIDE_RAM: u64 = 1 << 30;

/// What a VMM needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HandOver {
    /// VFIO's device node of the group; `None` for a VF that stays with the host's own driver.
    pub device_node: Option<PathBuf>,
    /// Arguments for QEMU.
    pub qemu: Vec<String>,
    /// libvirt `<hostdev>` element.
    pub libvirt_hostdev: Option<String>,
    /// libvirt `<interface>` element, for who wants the VF among the domain's interfaces.
    pub libvirt_interface: Option<String>,
    /// Its interface on this host, with the host's own driver.
    pub netdev: Option<String>,
    /// Its RDMA device on this host, likewise.
    pub rdma_device: Option<String>,
    /// Bytes that the VMM must be allowed to lock (`RLIMIT_MEMLOCK`), if the VM's RAM was told.
    pub memlock_bytes: Option<u64>,
}

/// A device node as found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// There is none.
    Missing,
    /// There is.
    Present {
        /// Permission bits.
        mode: u32,
        /// User id.
        owner: u32,
        /// Group id.
        group: u32,
    },
}

/// What is looked at of the host beside its NICs, so that no back end has it.
pub trait PreflightFacts: Send + Sync {
    /// A device node.
    fn node(&self, path: &Path) -> NodeState;
    /// What this process may lock, in bytes (`RLIMIT_MEMLOCK`); `None` for any.
    fn memlock_limit(&self) -> Option<u64>;
    /// Numbers of the host's NUMA nodes, in order; a kernel without any is one node, 0.
    fn numa_nodes(&self) -> Vec<u32>;
}

/// This host's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostPreflight;

impl PreflightFacts for HostPreflight {
    fn node(&self, path: &Path) -> NodeState {
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_char_device() => NodeState::Present {
                mode: found.mode() & 0o777,
                owner: found.uid(),
                group: found.gid(),
            },
            _ => NodeState::Missing,
        }
    }

    fn memlock_limit(&self) -> Option<u64> {
        rustix::process::getrlimit(rustix::process::Resource::Memlock).current
    }

    /// Documentation/ABI/stable/sysfs-devices-node.
    fn numa_nodes(&self) -> Vec<u32> {
        let listed = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix("node")?.parse().ok();
        let mut nodes: Vec<u32> =
            listed.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
        if nodes.is_empty() {
            nodes.push(0);
        }
        nodes.sort_unstable();
        nodes
    }
}

/// Bytes that a VMM locks: all of the VM's RAM and 1 GiB beside it, and with an emulated IOMMU that
/// for each of its devices, since each then has an address space of its own (kubevirt#15952).
pub fn memlock_needed(vm: &VmFacts) -> Option<u64> {
    let spaces = if vm.viommu { u64::from(vm.devices.max(1)) } else { 1 };
    Some(vm.memory_bytes?.saturating_add(BESIDE_RAM).saturating_mul(spaces))
}

/// The device node of a group.
pub(crate) fn check_node(facts: &dyn PreflightFacts, group: u32) -> Result<PathBuf, Preflight> {
    if facts.node(Path::new("/dev/vfio/vfio")) == NodeState::Missing {
        return Err(Preflight::NoContainer);
    }
    let node = PathBuf::from(format!("/dev/vfio/{group}"));
    match facts.node(&node) {
        NodeState::Missing => Err(Preflight::NoNode { node }),
        NodeState::Present { .. } => Ok(node),
    }
}

/// What is to be done before the VMM's user can open a device node. The node exists only while
/// vfio-pci has the VF, so that nobody could have done it before the claim.
pub(crate) fn node_note(facts: &dyn PreflightFacts, node: &Path, vm: &VmFacts) -> Option<String> {
    let user = vm.user?;
    let NodeState::Present { mode, owner, group } = facts.node(node) else { return None };
    // A group's members are not known here: its bits count as granted.
    let may = user == 0
        || (owner == user && mode & 0o600 == 0o600)
        || mode & 0o060 == 0o060
        || mode & 0o006 == 0o006;
    let node = node.display();
    (!may).then(|| {
        format!(
            "{node} has mode {mode:o}, owner {owner}:{group}, so user {user} cannot open it; before \
             the VM starts, run: chown {user} {node}"
        )
    })
}

impl HandOver {
    /// For a VF whose driver is bound.
    pub(crate) fn of(
        id: &ClaimId,
        claim: &ClaimRecord,
        address: VfAddr,
        device_node: Option<PathBuf>,
        vm: &VmFacts,
    ) -> Self {
        let vfio = claim.driver == DriverWanted::VfioPci;
        let qemu = || vec!["-device".to_owned(), format!("vfio-pci,host={address},id={id}")];
        Self {
            device_node,
            qemu: if vfio { qemu() } else { Vec::new() },
            libvirt_hostdev: vfio.then(|| hostdev(address)),
            libvirt_interface: vfio.then(|| interface(claim, address)),
            netdev: None,
            rdma_device: None,
            memlock_bytes: memlock_needed(vm).filter(|_| vfio),
        }
    }
}

/// libvirt's four attributes of a PCI address.
fn source_address(address: VfAddr) -> String {
    let text = PciAddr::from(address).to_string();
    let mut parts = text.split([':', '.']);
    let mut out = String::new();
    for name in ["domain", "bus", "slot", "function"] {
        let part = parts.next().unwrap_or("0");
        // Writing to a string does not fail.
        let _ = write!(out, " {name}='0x{part}'");
    }
    out
}

fn hostdev(address: VfAddr) -> String {
    format!(
        "<hostdev mode='subsystem' type='pci' managed='no'><source><address{}/></source></hostdev>",
        source_address(address)
    )
}

fn interface(claim: &ClaimRecord, address: VfAddr) -> String {
    let settings = &claim.settings;
    let vlan = match settings.vlan.id.get() {
        0 => String::new(),
        id => format!("<vlan><tag id='{id}'/></vlan>"),
    };
    format!(
        "<interface type='hostdev' managed='no'><mac address='{}'/><source><address type='pci'{}/>\
         </source>{vlan}</interface>",
        settings.mac,
        source_address(address)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_a_viommu_every_device_locks_all_of_the_ram() {
        let vm = VmFacts { memory_bytes: Some(4 << 30), devices: 3, ..VmFacts::default() };
        assert_eq!(memlock_needed(&vm), Some(5 << 30));
        assert_eq!(memlock_needed(&VmFacts { viommu: true, ..vm }), Some(15 << 30));
        assert_eq!(memlock_needed(&VmFacts::default()), None);
    }

    struct Node(NodeState);

    impl PreflightFacts for Node {
        fn node(&self, path: &Path) -> NodeState {
            let container = NodeState::Present { mode: 0o666, owner: 0, group: 0 };
            if path.ends_with("vfio") { container } else { self.0 }
        }
        fn memlock_limit(&self) -> Option<u64> {
            None
        }
        fn numa_nodes(&self) -> Vec<u32> {
            vec![0]
        }
    }

    #[test]
    fn what_lets_the_vmm_open_its_node_is_told_before_it_tries() {
        let node = Node(NodeState::Present { mode: 0o600, owner: 0, group: 0 });
        let of = |user| VmFacts { user, ..VmFacts::default() };
        let path = check_node(&node, 7).expect("it is there");
        assert_eq!(node_note(&node, &path, &of(None)), None);
        assert_eq!(node_note(&node, &path, &of(Some(0))), None);
        let note = node_note(&node, &path, &of(Some(107))).expect("not its node");
        assert!(note.contains("run: chown 107 /dev/vfio/7"), "{note}");
        let missing = check_node(&Node(NodeState::Missing), 7).expect_err("missing");
        assert!(missing.to_string().contains("/dev/vfio/7"), "{missing}");
    }

    #[test]
    fn libvirt_gets_the_address_in_four_parts() {
        let address = "0000:86:01.3".parse().expect("valid");
        assert!(hostdev(address).contains("bus='0x86' slot='0x01' function='0x3'"));
    }
}
