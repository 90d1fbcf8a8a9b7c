//! What this host has, for the server to place VMs by: software NICs that answer, with the labels
//! that the operator gave them, and the machine's CPUs, memory and disk.

use std::fs;

use lanekeeper_control::keys::PfName;
use lanekeeper_control::placement::{DataPath, HostReport, PciPosition, Pf, Scalars};
use lanekeeper_hw::{Hardware, PfStatus};
use lanekeeper_model::{PfId, VfIndex};

use crate::config::NodeConfig;
use crate::error::NodeError;

/// Look at the host.
///
/// # Errors
/// [`NodeError::File`] if the machine does not tell what it has.
pub fn inventory(config: &NodeConfig, hardware: &dyn Hardware) -> Result<HostReport, NodeError> {
    let nics = hardware.pfs().map_err(|error| {
        let source = std::io::Error::other(error);
        NodeError::file(&config.nic_folder, "find the software NICs under")(source)
    })?;
    let pfs = nics.iter().filter_map(|status| pf(config, status)).collect();
    Ok(HostReport { pod: config.pod.clone(), scalars: scalars(config)?, gpus: None, pfs })
}

fn pf(config: &NodeConfig, status: &PfStatus) -> Option<Pf> {
    let PfId::Soft(name) = &status.pf else { return None };
    let labels = config.nics.get(name).cloned().unwrap_or_default();
    Some(Pf {
        name: PfName::new(name.as_str()).ok()?,
        path: DataPath::Software,
        fabric: labels.fabric.unwrap_or_else(|| config.fabric.clone()),
        rail: labels.rail,
        leaf: labels.leaf,
        position: PciPosition::default(),
        rate: labels.rate,
        vfs: VfIndex::first(status.num_vfs).collect(),
    })
}

fn scalars(config: &NodeConfig) -> Result<Scalars, NodeError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let vcpus = u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(config.vcpus_per_core);
    let ram = total_ram_mib()?.saturating_sub(NodeConfig::RESERVED_RAM_MIB);
    let folder = &config.state_folder;
    let disk = rustix::fs::statvfs(folder)
        .map_err(|error| NodeError::file(folder, "see how much disk there is at")(error.into()))?;
    let disk = disk.f_blocks.saturating_mul(disk.f_frsize) >> 30;
    Ok(Scalars {
        vcpus: vcpus.min(config.vcpus.unwrap_or(u32::MAX)),
        ram_mib: ram.min(config.ram_mib.unwrap_or(u64::MAX)),
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
