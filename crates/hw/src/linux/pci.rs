//! The PCI bus as sysfs shows it: which functions are PFs, what a function is and where it hangs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lanekeeper_model::{PciAddr, PfAddr};

use super::config_space::{self, ConfigSpace};
use super::tree::{self, Tree};
use crate::inventory::{IommuGroup, PciNode, TotalVfs};

/// Base class of network controllers (PCI Code and ID Assignment, 1.3).
const NETWORK: u32 = 0x02;
/// Mellanox and NVIDIA: each NIC of theirs that a current kernel drives has SR-IOV.
const MELLANOX: u32 = 0x15b3;
/// Drivers of which every device has SR-IOV.
const ALWAYS_SRIOV: [&str; 2] = ["i40e", "ice"];

/// Every PF that has VFs or could have them, told from what the kernel keeps and without asking a
/// device.
pub(super) fn list(tree: &Tree) -> io::Result<Vec<PfAddr>> {
    let folder = tree.path("sys/bus/pci/devices");
    let mut pfs = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let name = entry?.file_name();
        let Some(pf) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let device = folder.join(&name);
        if is_nic(&device) && !is_vf(&device) && (has_total(&device) || is_of_sriov_kind(&device)) {
            pfs.push(pf);
        }
    }
    pfs.sort_unstable();
    Ok(pfs)
}

fn is_nic(device: &Path) -> bool {
    tree::hex(&device.join("class")).is_some_and(|class| class >> 16 == NETWORK)
}

fn is_vf(device: &Path) -> bool {
    fs::symlink_metadata(device.join("physfn")).is_ok()
}

fn has_total(device: &Path) -> bool {
    fs::symlink_metadata(device.join("sriov_totalvfs")).is_ok()
}

/// Firmware that has SR-IOV turned off hides the capability altogether
/// (sriov-network-device-plugin#601), so what the device is has to tell.
fn is_of_sriov_kind(device: &Path) -> bool {
    let driver = tree::target(&device.join("driver"));
    tree::hex(&device.join("vendor")) == Some(MELLANOX)
        || driver.is_some_and(|driver| ALWAYS_SRIOV.contains(&driver.as_str()))
}

/// How many VFs a PF can have. None at all, of a device with the capability, is the firmware's or
/// the driver's choice of today.
pub(super) fn total_vfs(device: &Path) -> TotalVfs {
    match tree::value(&device.join("sriov_totalvfs")) {
        Some(total) if total > 0 => TotalVfs::UpTo(total),
        Some(_) => TotalVfs::OffInFirmware,
        None if config(device).has_sriov() == Some(true) => TotalVfs::OffInFirmware,
        None if is_of_sriov_kind(device) => TotalVfs::OffInFirmware,
        None => TotalVfs::Never,
    }
}

/// A function's configuration space, as far as it may be read.
pub(super) fn config(device: &Path) -> ConfigSpace {
    ConfigSpace(tree::bytes(&device.join("config"), config_space::SIZE).unwrap_or_default())
}

/// NUMA node; the kernel writes -1 for none.
pub(super) fn numa_node(device: &Path) -> Option<u32> {
    tree::value(&device.join("numa_node"))
}

/// Driver that is bound.
pub(super) fn driver(device: &Path) -> Option<String> {
    tree::target(&device.join("driver"))
}

/// IOMMU group with every function in it.
pub(super) fn iommu_group(device: &Path) -> Option<IommuGroup> {
    let number = iommu_group_number(device)?;
    let members: BTreeSet<PciAddr> = tree::names(&device.join("iommu_group/devices"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    Some(IommuGroup { number, members })
}

fn iommu_group_number(device: &Path) -> Option<u32> {
    tree::target(&device.join("iommu_group"))?.parse().ok()
}

/// Label of the physical slot: slots have the address of a device without its function.
pub(super) fn slot(tree: &Tree, pf: PfAddr) -> Option<String> {
    let address = pf.to_string();
    let (device, _) = address.rsplit_once('.')?;
    let slots = tree.path("sys/bus/pci/slots");
    tree::names(&slots)
        .into_iter()
        .find(|slot| tree::text(&slots.join(slot).join("address")).as_deref() == Some(device))
}

/// Every function of the bus.
pub(super) fn nodes(tree: &Tree) -> io::Result<Vec<PciNode>> {
    let folder = tree.path("sys/bus/pci/devices");
    let mut nodes = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let name = entry?.file_name();
        let Some(addr) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        nodes.extend(node(&folder.join(name), addr));
    }
    nodes.sort_unstable_by_key(|node| node.addr);
    Ok(nodes)
}

/// One function; `None` if it went while it was read.
fn node(device: &Path, addr: PciAddr) -> Option<PciNode> {
    let config = config(device);
    Some(PciNode {
        addr,
        parent: parent(device),
        class: tree::hex(&device.join("class"))?,
        vendor: tree::hex(&device.join("vendor"))? as u16,
        device: tree::hex(&device.join("device"))? as u16,
        driver: driver(device),
        numa_node: numa_node(device),
        iommu_group: iommu_group_number(device),
        acs: config.acs(),
        ats: config.ats(),
        relaxed_ordering: config.relaxed_ordering(),
        max_read_request: config.max_read_request(),
    })
}

/// The bridge above: the bus's link shows the whole path to the function.
fn parent(device: &Path) -> Option<PciAddr> {
    let path: PathBuf = fs::read_link(device).ok()?;
    path.parent()?.file_name()?.to_str()?.parse().ok()
}
