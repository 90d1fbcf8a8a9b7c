//! An in-memory kernel with SR-IOV NICs that obey and refuse as real drivers do, for every test of
//! the rooms above. A clone is another handle to the same host, so that a test keeps it while the
//! program under test dies. What a driver does is in [`Personality::rules`], with its sources; what
//! a test can let happen is in `happenings`.

mod happenings;
mod knobs;
mod log;
mod machine;
mod moments;
mod personality;
mod pf;
mod reading;
mod refusal;
mod roce;
mod steps;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use lanekeeper_model::{EswitchMode, Mtu, PfAddr, PfId, RoceSetting, VfAddr, VfCounters, VfIndex};

pub use log::{End, Write, Written};
pub use personality::{
    EswitchRule, LinkStateRule, MaxRateRule, MinRateRule, NodeGuid, OwnMac, Personality, Rules,
    WhileDown,
};
pub use pf::{FakePf, Grouping, Knob};
pub use watch::FakeWatch;

use crate::inventory::{PciNode, PfReading, RepresentorState};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware};
use machine::{Halt, Machine};

/// A host in memory.
#[derive(Clone)]
pub struct Fake {
    host: Arc<Host>,
}

struct Host {
    machine: Mutex<Machine>,
    /// Something happened that an outstanding call may wait for.
    happened: Condvar,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A host without NICs; every VF driver and `vfio-pci` are loaded.
    pub fn new() -> Self {
        let machine = Mutex::new(Machine::new());
        Self { host: Arc::new(Host { machine, happened: Condvar::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        // A step changes nothing before it may panic, so that a poisoned state is a whole one.
        self.host.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call on a PF: waits while the PF hangs or the call itself has to wait.
    fn call<T>(
        &self,
        addr: PfAddr,
        mut body: impl FnMut(&mut Machine) -> Result<T, Halt>,
    ) -> Result<T, HardwareError> {
        let gone = || HardwareError::NoPf(PfId::Pci(addr));
        let mut machine = self.lock();
        let identity = machine.pf(addr)?.identity;
        let mut holds_lock = false;
        let answer = loop {
            let Some(pf) = machine.pfs.get(&addr).filter(|pf| pf.identity == identity) else {
                return Err(gone());
            };
            if !pf.hung && (holds_lock || !pf.locked) {
                match body(&mut machine) {
                    Ok(value) => break Ok(value),
                    Err(Halt::Refused(error)) => break Err(error),
                    Err(Halt::Waits) => {}
                    Err(Halt::WaitsLocked) => {
                        holds_lock = true;
                        machine.pf(addr)?.locked = true;
                    }
                }
            }
            let woken = self.host.happened.wait(machine);
            machine = woken.unwrap_or_else(PoisonError::into_inner);
        };
        if holds_lock {
            machine.pf(addr)?.locked = false;
            self.host.happened.notify_all();
        }
        answer
    }

    /// A call that writes, and is logged.
    fn write(
        &self,
        addr: PfAddr,
        write: &Write,
        body: impl FnMut(&mut Machine) -> Result<(), Halt>,
    ) -> Result<(), HardwareError> {
        self.lock().begin(write.clone());
        let answer = self.call(addr, body);
        self.lock().end(write, answer.is_ok());
        if answer.is_ok() {
            self.tell_of(write);
        }
        answer
    }
}

impl SriovHardware for Fake {
    fn list(&self) -> Result<Vec<PfAddr>, HardwareError> {
        Ok(self.lock().pfs.keys().copied().collect())
    }

    fn read(&self, pf: PfAddr) -> Result<PfReading, HardwareError> {
        self.call(pf, |machine| machine.read(pf))
    }

    fn pci_tree(&self) -> Result<Vec<PciNode>, HardwareError> {
        Ok(self.lock().pci_tree())
    }

    fn write_num_vfs(&self, pf: PfAddr, count: u16) -> Result<(), HardwareError> {
        self.write(pf, &Write::NumVfs(pf, count), |machine| machine.write_num_vfs(pf, count))
    }

    fn write_autoprobe(&self, pf: PfAddr, on: bool) -> Result<(), HardwareError> {
        self.write(pf, &Write::Autoprobe(pf, on), |machine| {
            machine.pf(pf)?.autoprobe = on;
            Ok(())
        })
    }

    fn set_up(&self, pf: PfAddr, up: bool) -> Result<(), HardwareError> {
        self.write(pf, &Write::Up(pf, up), |machine| machine.set_up(pf, up))
    }

    fn set_eswitch(&self, pf: PfAddr, mode: EswitchMode) -> Result<(), HardwareError> {
        self.write(pf, &Write::Eswitch(pf, mode), |machine| machine.set_eswitch(pf, mode))
    }

    fn send_vf(&self, pf: PfAddr, vf: VfIndex, message: &VfMessage) -> Result<(), HardwareError> {
        let write = Write::Vf(pf, vf, *message);
        self.write(pf, &write, |machine| machine.send_vf(pf, vf, message))
    }

    fn set_vf_mtu(&self, pf: PfAddr, vf: VfIndex, mtu: Mtu) -> Result<(), HardwareError> {
        self.write(pf, &Write::VfMtu(pf, vf, mtu), |machine| machine.set_vf_mtu(pf, vf, mtu))
    }

    fn set_representor(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        state: RepresentorState,
    ) -> Result<(), HardwareError> {
        let write = Write::Representor(pf, vf, state);
        self.write(pf, &write, |machine| machine.set_representor(pf, vf, state))
    }

    fn vf_counters(&self, pf: PfAddr, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        self.call(pf, |machine| Ok(machine.pf(pf)?.vf(vf)?.counters.clone()))
    }

    fn pause_frames(&self, pf: PfAddr) -> Result<Option<[u64; 8]>, HardwareError> {
        self.call(pf, |machine| Ok(machine.pf(pf)?.pause_frames))
    }

    fn write_driver_override(
        &self,
        pf: PfAddr,
        vf: VfAddr,
        driver: Option<&str>,
    ) -> Result<(), HardwareError> {
        let write = Write::DriverOverride(vf, driver.map(str::to_owned));
        self.write(pf, &write, |machine| machine.write_driver_override(pf, vf, driver))
    }

    fn unbind(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.write(pf, &Write::Unbind(vf), |machine| machine.unbind(pf, vf))
    }

    fn probe(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.write(pf, &Write::Probe(vf), |machine| machine.bind(pf, vf))
    }

    fn reset(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.write(pf, &Write::Reset(vf), |machine| machine.reset(pf, vf))
    }

    fn set_roce(&self, pf: PfAddr, setting: &RoceSetting) -> Result<(), HardwareError> {
        let write = Write::Roce(pf, setting.clone());
        self.write(pf, &write, |machine| machine.set_roce(pf, setting))
    }
}
