//! What this host has, for the server to place VMs by: software NICs that answer, PFs and GPUs of its
//! own hardware as far as VMs may have them, with the labels that the operator gave them, and the
//! machine's CPUs, memory and disk.

mod hardware;
pub(crate) mod neighbours;

use std::fs;

use lanekeeper_control::keys::PfName;
use lanekeeper_control::placement::{
    Cable, DataPath, HostReport, Neighbour, PciPosition, Pf, Scalars,
};
use lanekeeper_hw::{Hardware, PfStatus};
use lanekeeper_model::{Mbps, PfId, VfIndex};

use crate::config::{NicLabels, NodeConfig};
use crate::error::NodeError;
use crate::lanes::HardwareNics;
use neighbours::Neighbours;

/// Look at the host.
///
/// # Errors
/// [`NodeError::File`] if the machine does not tell what it has; [`NodeError::Owner`].
pub(crate) fn inventory(
    config: &NodeConfig,
    software: &dyn Hardware,
    hardware: Option<&HardwareNics>,
    neighbours: &Neighbours,
) -> Result<HostReport, NodeError> {
    let nics = software.pfs().map_err(|error| {
        let source = std::io::Error::other(error);
        NodeError::file(&config.nic_folder, "find the software NICs under")(source)
    })?;
    let own = hardware.map(|nics| hardware::look(config, nics, neighbours));
    let own = own.transpose()?.unwrap_or_default();
    let mut pfs = own.pfs;
    for nic in nics.iter().filter_map(|status| software_nic(config, status)) {
        if pfs.iter().any(|pf| pf.name == nic.name) {
            tracing::error!(nic = %nic.name, "a PF of the host file has the same name, so that VMs \
                get no VF of the software NIC; give it another");
        } else {
            pfs.push(nic);
        }
    }
    Ok(HostReport { pod: config.pod.clone(), scalars: scalars(config)?, gpus: own.gpus, pfs })
}

fn software_nic(config: &NodeConfig, status: &PfStatus) -> Option<Pf> {
    let PfId::Soft(name) = &status.pf else { return None };
    let name = PfName::new(name.as_str()).ok()?;
    let labels = config.nics.get(&name).cloned().unwrap_or_default();
    // One without an uplink is as its operator made it.
    let cable = status.uplink.as_ref().map(|_| cable(&labels, status.link_up, None, None));
    Some(Pf {
        name,
        path: DataPath::Software,
        fabric: labels.fabric.unwrap_or_else(|| config.fabric.clone()),
        rail: labels.rail,
        leaf: labels.leaf,
        position: PciPosition::default(),
        rate: labels.rate,
        vfs: VfIndex::first(status.num_vfs).collect(),
        cable,
    })
}

fn cable(labels: &NicLabels, up: bool, speed: Option<Mbps>, neighbour: Option<Neighbour>) -> Cable {
    Cable {
        up,
        speed_mbps: speed.map(|speed| speed.0),
        neighbour,
        expected_speed_mbps: labels.speed.map(|speed| speed.0),
        expected_neighbour: labels.neighbour.clone(),
    }
}

fn scalars(config: &NodeConfig) -> Result<Scalars, NodeError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let vcpus = u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(config.vcpus_per_core);
    let total = total_ram_mib()?;
    let others = total.saturating_sub(NodeConfig::RESERVED_RAM_MIB);
    let folder = &config.state_folder;
    let disk = rustix::fs::statvfs(folder)
        .map_err(|error| NodeError::file(folder, "see how much disk there is at")(error.into()))?;
    let disk = disk.f_blocks.saturating_mul(disk.f_frsize) >> 30;
    Ok(Scalars {
        vcpus: vcpus.min(config.vcpus.unwrap_or(u32::MAX)),
        ram_mib: config.ram_mib.map_or(others, |said| said.min(total)),
        disk_gib: disk.min(config.disk_gib.unwrap_or(u64::MAX)),
    })
}

/// `MemTotal` of proc(5), meminfo.
fn total_ram_mib() -> Result<u64, NodeError> {
    let path = std::path::Path::new("/proc/meminfo");
    let text = fs::read_to_string(path).map_err(NodeError::file(path, "read"))?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map(|kib| kib >> 10).ok_or_else(|| {
        let source = std::io::Error::other("it has no line MemTotal");
        NodeError::file(path, "understand")(source)
    })
}
