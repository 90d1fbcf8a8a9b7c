//! What the operator says about a host as a node: folders, where its NICs are in the fabric, and how
//! much of the machine VMs may have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use lanekeeper_control::keys::{FabricName, GpuModel, LeafName, PfName, PodName};
use lanekeeper_control::placement::Neighbour;
use lanekeeper_model::{Mbps, PciAddr};
use lanekeeper_vmm::Accel;
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
    /// What VMs may have of the host's own hardware; nothing if it is not said.
    #[serde(default)]
    pub hardware: Option<HardwareOffer>,
    /// The QEMU that VMs run in, if another than `qemu-system-x86_64` of the path.
    #[serde(default)]
    pub qemu: Option<PathBuf>,
    /// What carries the guests' instructions out, for a host on which it need not be tried: by default
    /// a kernel is booted under KVM, and only if that succeeds KVM is used.
    #[serde(default)]
    pub accel: Option<Accel>,
    /// Folder of the small guest that images may name as `builtin`, for a host without Debian's
    /// packages at hand: `guest-ID` of another machine's cache. By default it is made on the host.
    #[serde(default)]
    pub builtin_folder: Option<PathBuf>,
    /// The pod the host stands in.
    #[serde(default)]
    pub pod: Option<PodName>,
    /// The fabric that NICs are cabled to unless [`NicLabels::fabric`] says another.
    pub fabric: FabricName,
    /// Where NICs are in the fabric, by their names: those of software NICs, and of PFs in the host
    /// file.
    #[serde(default)]
    pub nics: BTreeMap<PfName, NicLabels>,
    /// vCPUs that are given for each of the machine's cores.
    #[serde(default = "default_vcpus_per_core")]
    pub vcpus_per_core: u32,
    /// vCPUs that VMs may have in all, if less than the machine's.
    #[serde(default)]
    pub vcpus: Option<u32>,
    /// Memory in MiB that VMs may have in all; if it is not said, all but
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

/// What VMs may have of a host's own hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareOffer {
    /// Folder of the ledger that `lanekeeper host` keeps.
    #[serde(default = "default_ledger")]
    pub ledger: PathBuf,
    /// Pools of the host file whose VFs VMs may have; those of every PF if none is named.
    #[serde(default)]
    pub pools: Vec<String>,
    /// GPUs that VMs may have; none if it is not said.
    #[serde(default)]
    pub gpus: Option<GpuOffer>,
}

impl Default for HardwareOffer {
    fn default() -> Self {
        Self { ledger: default_ledger(), pools: Vec::new(), gpus: None }
    }
}

/// GPUs that VMs may have, whole, by VFIO: those that the driver vfio-pci has, with all that is in
/// their IOMMU groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuOffer {
    /// Their model, as flavors name it.
    pub model: GpuModel,
    /// Which; every one that vfio-pci has if none is named.
    #[serde(default)]
    pub addresses: Vec<PciAddr>,
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
    /// The leaf at the other end of its cable; if it is not said, the switch that lldpd hears there.
    #[serde(default)]
    pub leaf: Option<LeafName>,
    /// What it can carry; if it is not said, the speed of a PF's link.
    #[serde(default)]
    pub rate: Mbps,
    /// The speed that its link should have, in Mb/s.
    #[serde(default)]
    pub speed: Option<Mbps>,
    /// Who should be at the other end of its cable.
    #[serde(default)]
    pub neighbour: Option<Neighbour>,
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

fn default_ledger() -> PathBuf {
    lanekeeper_host::STATE_FOLDER.into()
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
            hardware: None,
            qemu: None,
            accel: None,
            builtin_folder: None,
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
    fn hardware_is_offered_by_a_section_of_its_own_which_may_be_empty() {
        let text = "fabric = \"lab\"\n[hardware]\n";
        let config: NodeConfig = toml::from_str(text).expect("sound");
        assert_eq!(config.hardware, Some(HardwareOffer::default()));
        let text = "fabric = \"lab\"\n[hardware]\npools = [\"lanes\"]\n[hardware.gpus]\n\
                    model = \"H100\"\naddresses = [\"0000:84:00.0\"]\n";
        let config: NodeConfig = toml::from_str(text).expect("sound");
        let gpus = config.hardware.and_then(|hardware| hardware.gpus).expect("said");
        assert_eq!(gpus.addresses.len(), 1);
    }

    #[test]
    fn a_key_that_is_none_is_refused_by_its_name() {
        let text = "fabric = \"lab\"\n[nics.nic0]\nrails = 1\n";
        let error = toml::from_str::<NodeConfig>(text).expect_err("a typo").to_string();
        assert!(error.contains("`rails`"), "{error}");
    }
}
