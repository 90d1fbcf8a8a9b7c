//! The VFs of this host: what a port of a VM is on a VF, set and read back through
//! [`Hardware`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lanekeeper_control::keys::PfName;
use lanekeeper_control::protocol::{DesiredPort, DesiredVm};
use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{
    LinkState, MacAddr, PfId, RateLimits, SoftNicName, VfChange, VfCounters, VfIndex, VfSettings,
    VfStatus,
};
use lanekeeper_softnic::{Client, Config};
use serde::{Deserialize, Serialize};

use crate::error::NodeError;

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

/// The software NICs with a folder under one folder, looked for anew by each call: one may be started
/// at any time.
#[derive(Clone, Debug)]
pub struct SoftwareNics {
    folder: PathBuf,
}

impl SoftwareNics {
    /// Those under this folder.
    pub fn under(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn client(&self) -> Result<Client, HardwareError> {
        let what = format!("the software NICs under {}", self.folder.display());
        Client::discover(&self.folder).map_err(|source| HardwareError::Host { what, source })
    }
}

impl Hardware for SoftwareNics {
    /// Those that answer.
    fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError> {
        let client = self.client()?;
        Ok(client.names().filter_map(|name| client.pf(name).ok()).collect())
    }

    fn vf(&self, pf: &PfId, vf: VfIndex) -> Result<VfStatus, HardwareError> {
        self.client()?.vf(pf, vf)
    }

    fn set_vf(&self, pf: &PfId, vf: VfIndex, change: &VfChange) -> Result<VfStatus, HardwareError> {
        self.client()?.set_vf(pf, vf, change)
    }

    fn counters(&self, pf: &PfId, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        self.client()?.counters(pf, vf)
    }
}

/// The VFs of this host.
#[derive(Clone)]
pub(crate) struct Lanes {
    hardware: Arc<dyn Hardware>,
    /// Under which each NIC has its sockets.
    folder: PathBuf,
}

impl Lanes {
    pub(crate) fn new(hardware: Arc<dyn Hardware>, folder: &Path) -> Self {
        Self { hardware, folder: folder.to_owned() }
    }

    /// Where a VM attaches to a VF.
    pub(crate) fn socket(&self, lane: &Lane) -> Result<PathBuf, NodeError> {
        let name = nic(lane)?;
        let run_dir = Some(self.folder.join(name.as_str()));
        Ok(Config { run_dir, ..Config::new(name, 1) }.vf_socket(lane.vf))
    }

    /// Set a VF, and see that it is as it was set.
    pub(crate) fn set(&self, lane: &Lane, settings: &VfSettings) -> Result<(), NodeError> {
        self.change(lane, &VfChange::to(settings), settings)
    }

    /// Bring a VF to the safe state, and see that it is.
    pub(crate) fn scrub(&self, lane: &Lane) -> Result<(), NodeError> {
        self.set(lane, &VfSettings::scrubbed())
    }

    /// Take a VF's link down, whatever else it is set to.
    pub(crate) fn cut(&self, lane: &Lane) -> Result<(), NodeError> {
        let down = VfChange { link_state: Some(LinkState::Disable), ..VfChange::default() };
        let now = self.read(lane)?;
        self.change(lane, &down, &VfSettings { link_state: LinkState::Disable, ..now })
    }

    /// Whether a VF is set so.
    pub(crate) fn is(&self, lane: &Lane, settings: &VfSettings) -> Result<bool, NodeError> {
        Ok(self.read(lane)?.differing(settings).is_empty())
    }

    /// Scrub a VF that has another MAC than this, which may be that of the next VF that is set.
    pub(crate) fn clear_for(&self, lane: &Lane, mac: MacAddr) -> Result<(), NodeError> {
        let has = self.read(lane)?.mac;
        if has.is_zero() || has == mac { Ok(()) } else { self.scrub(lane) }
    }

    fn read(&self, lane: &Lane) -> Result<VfSettings, NodeError> {
        let read = self.hardware.vf(&PfId::Soft(nic(lane)?), lane.vf);
        Ok(read.map_err(|source| NodeError::Nic { lane: lane.clone(), source })?.settings)
    }

    fn change(&self, lane: &Lane, change: &VfChange, want: &VfSettings) -> Result<(), NodeError> {
        let failed = |source| NodeError::Nic { lane: lane.clone(), source };
        let pf = PfId::Soft(nic(lane)?);
        self.hardware.set_vf(&pf, lane.vf, change).map_err(failed)?;
        // What is there now, not what the answer to the change says.
        let fields = self.read(lane)?.differing(want);
        if fields.is_empty() {
            Ok(())
        } else {
            Err(NodeError::NotAsSet { lane: lane.clone(), fields })
        }
    }
}

fn nic(lane: &Lane) -> Result<SoftNicName, NodeError> {
    let refused = |why| NodeError::refused("pf", &lane.pf, why);
    lane.pf.as_str().parse().map_err(refused)
}
