//! What the operator says about a host as a node: folders, where its NICs are in the fabric, and how
//! much of the machine VMs may have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use lanekeeper_control::keys::{FabricName, LeafName, PodName};
use lanekeeper_model::{Mbps, SoftNicName};
use serde::{Deserialize, Serialize};

/// A host as a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Folder of the journal and of the VMs' disks.
    #[serde(default = "default_state_folder")]
    pub state_folder: PathBuf,
    /// Folder of the VMs' sockets and logs. Its path has at most 70 bytes.
    #[serde(default = "default_run_folder")]
    pub run_folder: PathBuf,
    /// Folder of disk images.
    #[serde(default = "default_image_folder")]
    pub image_folder: PathBuf,
    /// Folder under which each software NIC has its own.
    #[serde(default = "default_nic_folder")]
    pub nic_folder: PathBuf,
    /// The pod the host stands in.
    #[serde(default)]
    pub pod: Option<PodName>,
    /// The fabric that NICs are cabled to unless [`NicLabels::fabric`] says another.
    pub fabric: FabricName,
    /// Where NICs are in the fabric, by their names.
    #[serde(default)]
    pub nics: BTreeMap<SoftNicName, NicLabels>,
    /// vCPUs that are given for each of the machine's cores.
    #[serde(default = "default_vcpus_per_core")]
    pub vcpus_per_core: u32,
    /// vCPUs that VMs may have in all, if less than the machine's.
    #[serde(default)]
    pub vcpus: Option<u32>,
    /// Memory in MiB that VMs may have in all, if less than the machine's without
    /// [`NodeConfig::RESERVED_RAM_MIB`].
    #[serde(default)]
    pub ram_mib: Option<u64>,
    /// Disk in GiB that VMs may have in all, if less than the state folder's file system has.
    #[serde(default)]
    pub disk_gib: Option<u64>,
    /// Whether VMs' memory comes from the host's hugepages as far as there are any.
    #[serde(default = "default_hugepages")]
    pub hugepages: bool,
    /// Seconds that a VM may take until its guest answers.
    #[serde(default = "default_boot_seconds")]
    pub boot_seconds: u64,
    /// Seconds that a guest has to power off when its VM is stopped.
    #[serde(default = "default_shutdown_seconds")]
    pub shutdown_seconds: u64,
}

/// Where a NIC is in the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicLabels {
    /// Its fabric, if another than the host's.
    #[serde(default)]
    pub fabric: Option<FabricName>,
    /// Its rail.
    #[serde(default)]
    pub rail: Option<u16>,
    /// The leaf at the other end of its cable.
    #[serde(default)]
    pub leaf: Option<LeafName>,
    /// What it can carry.
    #[serde(default)]
    pub rate: Mbps,
}

fn default_state_folder() -> PathBuf {
    "/var/lib/lanekeeper/node".into()
}

fn default_run_folder() -> PathBuf {
    "/run/lanekeeper/node".into()
}

fn default_image_folder() -> PathBuf {
    "/var/lib/lanekeeper/images".into()
}

fn default_nic_folder() -> PathBuf {
    lanekeeper_softnic::RUN_ROOT.into()
}

fn default_vcpus_per_core() -> u32 {
    1
}

fn default_hugepages() -> bool {
    true
}

fn default_boot_seconds() -> u64 {
    180
}

fn default_shutdown_seconds() -> u64 {
    60
}

impl NodeConfig {
    /// Memory that is the host's own, in MiB.
    pub const RESERVED_RAM_MIB: u64 = 1024;

    /// A host whose NICs are cabled to this fabric, and all else as it is by default.
    pub fn new(fabric: FabricName) -> Self {
        Self {
            state_folder: default_state_folder(),
            run_folder: default_run_folder(),
            image_folder: default_image_folder(),
            nic_folder: default_nic_folder(),
            pod: None,
            fabric,
            nics: BTreeMap::new(),
            vcpus_per_core: default_vcpus_per_core(),
            vcpus: None,
            ram_mib: None,
            disk_gib: None,
            hugepages: default_hugepages(),
            boot_seconds: default_boot_seconds(),
            shutdown_seconds: default_shutdown_seconds(),
        }
    }

    pub(crate) fn boot_patience(&self) -> Duration {
        Duration::from_secs(self.boot_seconds)
    }

    pub(crate) fn shutdown_patience(&self) -> Duration {
        Duration::from_secs(self.shutdown_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_nothing_but_the_fabric_is_a_host_with_all_else_by_default() {
        let config: NodeConfig = toml::from_str("fabric = \"lab\"").expect("sound");
        assert_eq!(config, NodeConfig::new(FabricName::new("lab").expect("a name")));
    }

    #[test]
    fn a_key_that_is_none_is_refused_by_its_name() {
        let text = "fabric = \"lab\"\n[nics.nic0]\nrails = 1\n";
        let error = toml::from_str::<NodeConfig>(text).expect_err("a typo").to_string();
        assert!(error.contains("`rails`"), "{error}");
    }
}
