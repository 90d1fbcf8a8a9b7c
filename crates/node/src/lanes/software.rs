//! VFs of software NICs, set and read back through [`Hardware`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lanekeeper_control::protocol::DesiredPort;
use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{
    LinkState, MacAddr, PfId, SoftNicName, VfChange, VfCounters, VfIndex, VfSettings, VfStatus,
};
use lanekeeper_softnic::{Client, Config};
use lanekeeper_vmm::VfPort;

use super::{Device, Lane, Nics};
use crate::error::NodeError;

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

/// Software NICs as VMs' VFs.
#[derive(Clone)]
pub(super) struct Software {
    nics: Arc<dyn Hardware>,
    /// Under which each has its sockets.
    folder: PathBuf,
}

impl Software {
    pub(super) fn new(nics: Arc<dyn Hardware>, folder: &Path) -> Self {
        Self { nics, folder: folder.to_owned() }
    }

    fn socket(&self, lane: &Lane) -> Result<PathBuf, NodeError> {
        let name = nic(lane)?;
        let run_dir = Some(self.folder.join(name.as_str()));
        Ok(Config { run_dir, ..Config::new(name, 1) }.vf_socket(lane.vf))
    }

    fn read(&self, lane: &Lane) -> Result<VfSettings, NodeError> {
        Ok(self.status(lane)?.settings)
    }

    fn change(&self, lane: &Lane, change: &VfChange, want: &VfSettings) -> Result<(), NodeError> {
        let failed = |source| NodeError::Nic { lane: lane.clone(), source };
        let pf = PfId::Soft(nic(lane)?);
        self.nics.set_vf(&pf, lane.vf, change).map_err(failed)?;
        // What is there now, not what the answer to the change says.
        let fields = self.read(lane)?.differing(want);
        if fields.is_empty() {
            Ok(())
        } else {
            Err(NodeError::NotAsSet { lane: lane.clone(), fields })
        }
    }
}

impl Nics for Software {
    fn set(&self, lane: &Lane, settings: &VfSettings) -> Result<(), NodeError> {
        self.change(lane, &VfChange::to(settings), settings)
    }

    fn scrub(&self, lane: &Lane) -> Result<(), NodeError> {
        self.set(lane, &VfSettings::scrubbed())
    }

    /// Its link is taken down.
    fn cut(&self, lane: &Lane) -> Result<(), NodeError> {
        let down = VfChange { link_state: Some(LinkState::Disable), ..VfChange::default() };
        let now = self.read(lane)?;
        self.change(lane, &down, &VfSettings { link_state: LinkState::Disable, ..now })
    }

    fn is(&self, lane: &Lane, settings: &VfSettings) -> Result<bool, NodeError> {
        Ok(self.read(lane)?.differing(settings).is_empty())
    }

    fn clear_for(&self, lane: &Lane, mac: MacAddr) -> Result<(), NodeError> {
        let has = self.read(lane)?.mac;
        if has.is_zero() || has == mac { Ok(()) } else { self.scrub(lane) }
    }

    fn device(&self, lane: &Lane, name: String, port: &DesiredPort) -> Result<Device, NodeError> {
        Ok(Device::Virtual(VfPort {
            name,
            socket: self.socket(lane)?,
            mac: port.mac,
            slot: None,
            queue_pairs: 1,
            packed: false,
            mtu: port.mtu,
        }))
    }

    fn status(&self, lane: &Lane) -> Result<VfStatus, NodeError> {
        let read = self.nics.vf(&PfId::Soft(nic(lane)?), lane.vf);
        read.map_err(|source| NodeError::Nic { lane: lane.clone(), source })
    }

    fn counters(&self, lane: &Lane) -> Result<VfCounters, NodeError> {
        let read = self.nics.counters(&PfId::Soft(nic(lane)?), lane.vf);
        read.map_err(|source| NodeError::Nic { lane: lane.clone(), source })
    }

    /// It is a VM's when its VMM connects.
    fn hand_over(&self, _: &Lane) -> Result<(), NodeError> {
        Ok(())
    }
}

fn nic(lane: &Lane) -> Result<SoftNicName, NodeError> {
    let refused = |why| NodeError::refused("pf", &lane.pf, why);
    lane.pf.as_str().parse().map_err(refused)
}
