//! The VFs of this host: what a port of a VM is on a VF. A VF is a software NIC's, or the host's own
//! hardware's; both are set, read back, handed over and scrubbed by the same calls.

mod hardware;
mod software;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use lanekeeper_control::keys::PfName;
use lanekeeper_control::protocol::{DesiredPort, DesiredVm};
use lanekeeper_hw::Hardware;
use lanekeeper_model::{LinkState, MacAddr, RateLimits, VfCounters, VfIndex, VfSettings, VfStatus};
use lanekeeper_vmm::{HostFunction, VfPort};
use serde::{Deserialize, Serialize};

use crate::error::NodeError;

pub(crate) use hardware::{HardwareNics, OfferedPf};
pub use software::SoftwareNics;

/// A VF of this host.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// Its PF.
    pub pf: PfName,
    /// Which of its VFs.
    pub vf: VfIndex,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pf, self.vf)
    }
}

/// The VFs that a VM shall have, in the order of its ports.
pub fn lanes_of(vm: &DesiredVm) -> impl Iterator<Item = Lane> + '_ {
    vm.place.vfs.iter().map(|place| Lane { pf: place.pf.clone(), vf: place.vf })
}

/// What a VF is set to for a port. Its MAC and addresses are the only ones that may send.
pub fn settings(port: &DesiredPort, link_state: LinkState) -> VfSettings {
    VfSettings {
        mac: port.mac,
        vlan: port.vlan,
        spoofchk: true,
        addresses: port.addresses.iter().map(|it| it.address).collect(),
        trust: false,
        link_state,
        rate: RateLimits { min: port.min_rate, max: port.max_rate },
        mtu: port.mtu,
    }
}

/// What a VM gets a VF as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// A device whose rings a software NIC works.
    Virtual(VfPort),
    /// The VF itself.
    Function(HostFunction),
}

/// VFs of one kind.
pub(crate) trait Nics {
    /// Set a VF, and see that it is as it was set.
    fn set(&self, lane: &Lane, settings: &VfSettings) -> Result<(), NodeError>;

    /// Bring a VF to the safe state, see that it is, and let go of it.
    fn scrub(&self, lane: &Lane) -> Result<(), NodeError>;

    /// See to it that nothing passes a VF, whatever else it is set to.
    fn cut(&self, lane: &Lane) -> Result<(), NodeError>;

    /// Whether a VF is set so.
    fn is(&self, lane: &Lane, settings: &VfSettings) -> Result<bool, NodeError>;

    /// Scrub a VF that has another MAC than this, which may be that of the next VF that is set.
    fn clear_for(&self, lane: &Lane, mac: MacAddr) -> Result<(), NodeError>;

    /// What a VM gets a VF as, that is set, under this name.
    fn device(&self, lane: &Lane, name: String, port: &DesiredPort) -> Result<Device, NodeError>;

    /// How a VF is.
    fn status(&self, lane: &Lane) -> Result<VfStatus, NodeError>;

    /// What passed a VF, and what it held back.
    fn counters(&self, lane: &Lane) -> Result<VfCounters, NodeError>;

    /// A VM is about to be started with it.
    fn hand_over(&self, lane: &Lane) -> Result<(), NodeError>;
}

/// The VFs of this host.
#[derive(Clone)]
pub(crate) struct Lanes {
    software: software::Software,
    hardware: Option<Arc<HardwareNics>>,
}

impl Lanes {
    /// `software` NICs, each with its sockets in a folder of its name under `folder`; and the host's own
    /// hardware, if VMs may have any of it.
    pub(crate) fn new(
        software: Arc<dyn Hardware>,
        folder: &Path,
        hardware: Option<Arc<HardwareNics>>,
    ) -> Self {
        Self { software: software::Software::new(software, folder), hardware }
    }

    /// Those that a VF is of.
    pub(crate) fn of(&self, lane: &Lane) -> Result<&dyn Nics, NodeError> {
        match &self.hardware {
            Some(hardware) if hardware.has(&lane.pf)? => Ok(hardware.as_ref()),
            _ => Ok(&self.software),
        }
    }
}
