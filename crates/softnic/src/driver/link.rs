//! The vhost-user session of a driver: the messages a VMM would send for it.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::layout::{DriverMemory, GUEST_BASE, USER_BASE};
use super::{DeviceConfig, DriverError, features};
use crate::ring::{Position, RingSpec};

/// How often a socket that is not there yet is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// A session with a device.
pub(super) struct Link {
    frontend: Frontend,
    /// What both sides agreed on.
    pub(super) features: u64,
    /// The device rings it when it stops serving us.
    stopped: EventFd,
    /// The device's configuration space, where it offers that.
    pub(super) config: Option<DeviceConfig>,
}

/// What a queue needs to be announced.
pub(super) struct Vring<'a> {
    pub(super) spec: &'a RingSpec,
    pub(super) at: Position,
    pub(super) kick: &'a EventFd,
    pub(super) call: &'a EventFd,
}

impl Link {
    /// Connects and negotiates. `required` features must be offered, `welcome` ones are taken if
    /// they are. Keeps trying to connect for `patience`.
    pub(super) fn connect(
        path: &Path,
        queues: usize,
        required: u64,
        welcome: u64,
        patience: Duration,
    ) -> Result<Self, DriverError> {
        let mut frontend = connect(path, queues, patience)?;
        frontend.set_owner()?;
        let offered = frontend.get_features()?;
        let missing = required & !offered;
        if missing != 0 {
            return Err(DriverError::NotOffered(missing));
        }
        let features = offered & (required | welcome | features::PROTOCOL_FEATURES);
        let mut has_config = false;
        if offered & features::PROTOCOL_FEATURES != 0 {
            let wanted = VhostUserProtocolFeatures::MQ
                | VhostUserProtocolFeatures::REPLY_ACK
                | VhostUserProtocolFeatures::CONFIG;
            let agreed = frontend.get_protocol_features()? & wanted;
            frontend.set_protocol_features(agreed)?;
            has_config = agreed.contains(VhostUserProtocolFeatures::CONFIG);
            if agreed.contains(VhostUserProtocolFeatures::REPLY_ACK) {
                frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
        }
        let config = if has_config { Some(read_config(&mut frontend)?) } else { None };
        frontend.set_features(features)?;
        let stopped = EventFd::new(EFD_NONBLOCK).map_err(DriverError::Io)?;
        Ok(Self { frontend, features, stopped, config })
    }

    /// Hands memory and queues to the device and starts it.
    pub(super) fn start(
        &mut self,
        memory: &DriverMemory,
        vrings: &[Vring<'_>],
    ) -> Result<(), DriverError> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST_BASE,
            memory_size: memory.size,
            userspace_addr: USER_BASE,
            mmap_offset: 0,
            mmap_handle: memory.file.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region])?;
        let user = |addr: u64| addr - GUEST_BASE + USER_BASE;
        for (index, Vring { spec, at, kick, call }) in vrings.iter().enumerate() {
            let addresses = VringConfigData {
                queue_max_size: spec.size,
                queue_size: spec.size,
                flags: 0,
                desc_table_addr: user(spec.desc),
                used_ring_addr: user(spec.used),
                avail_ring_addr: user(spec.avail),
                log_addr: None,
            };
            self.frontend.set_vring_num(index, spec.size)?;
            // The crate sends 16 bits only: of a packed ring that is the available half, and a
            // device takes an upper half of zero for the same again.
            self.frontend.set_vring_base(index, at.to_vring_base(spec.kind) as u16)?;
            self.frontend.set_vring_addr(index, &addresses)?;
            self.frontend.set_vring_call(index, call)?;
            self.frontend.set_vring_err(index, &self.stopped)?;
            self.frontend.set_vring_kick(index, kick)?;
        }
        if self.features & features::PROTOCOL_FEATURES != 0 {
            for index in 0..vrings.len() {
                self.frontend.set_vring_enable(index, true)?;
            }
        }
        Ok(())
    }

    /// Whether the device has said since this was last asked that it stopped serving us.
    pub(super) fn was_stopped(&self) -> bool {
        self.stopped.read().is_ok()
    }

    /// Stops a queue and asks how far the device got: the raw value of `GET_VRING_BASE`.
    pub(super) fn stop_queue(&self, index: usize) -> Result<u32, DriverError> {
        Ok(self.frontend.get_vring_base(index)?)
    }

    /// Enables or disables a queue.
    pub(super) fn enable_queue(&mut self, index: usize, enable: bool) -> Result<(), DriverError> {
        Ok(self.frontend.set_vring_enable(index, enable)?)
    }

    /// Reads the configuration space again.
    pub(super) fn read_config(&mut self) -> Result<DeviceConfig, DriverError> {
        read_config(&mut self.frontend)
    }
}

fn connect(path: &Path, queues: usize, patience: Duration) -> Result<Frontend, DriverError> {
    let deadline = Instant::now() + patience;
    loop {
        match Frontend::connect(path, queues as u64) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(RETRY),
            result => return Ok(result?),
        }
    }
}

fn read_config(frontend: &mut Frontend) -> Result<DeviceConfig, DriverError> {
    let blank = [0; DeviceConfig::BYTES];
    let flags = VhostUserConfigFlags::empty();
    let (_, bytes) = frontend.get_config(0, DeviceConfig::BYTES as u32, flags, &blank)?;
    DeviceConfig::parse(&bytes).ok_or(DriverError::BadDevice("short configuration space"))
}
