//! A back end whose every call ends in time. Reads and writes of sysfs and netlink can hang for
//! ever (openshift/sriov-network-operator#1033, spdk#3205), so each PF has a worker thread of its
//! own: a call is given to it and waited for with a deadline. A PF that missed one has failed, and
//! says so at once, until its outstanding call returns; other PFs go on meanwhile.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lanekeeper_model::{EswitchMode, Mtu, PfAddr, PfId, RoceSetting, VfAddr, VfCounters, VfIndex};

use crate::inventory::{PciNode, PfReading, RepresentorState};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware};

/// How long each kind of call may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadlines {
    /// A list of PFs, a PCIe tree, a reading, counters.
    pub read: Duration,
    /// A write that sets something.
    pub write: Duration,
    /// Unbind, probe and reset of a VF, and the mode of the embedded switch: drivers start and stop
    /// in them.
    pub bind: Duration,
    /// Making or removing VFs, whatever their number ...
    pub num_vfs: Duration,
    /// ... and this for each of them.
    pub each_vf: Duration,
}

impl Default for Deadlines {
    /// Generous: a missed deadline fails a PF.
    fn default() -> Self {
        Self {
            read: Duration::from_secs(10),
            write: Duration::from_secs(10),
            bind: Duration::from_secs(30),
            num_vfs: Duration::from_secs(30),
            each_vf: Duration::from_secs(1),
        }
    }
}

/// A back end with deadlines. See the module's text.
pub struct Guarded<H> {
    inner: Arc<H>,
    deadlines: Deadlines,
    lanes: Mutex<BTreeMap<Lane, Arc<Worker>>>,
}

/// What has a worker of its own: each PF, and each thing that is read of the host itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    List,
    Tree,
    Pf(PfAddr),
}

type Job = Box<dyn FnOnce() + Send>;

struct Worker {
    jobs: Sender<Job>,
    turn: Mutex<Turn>,
    turned: Condvar,
    /// VFs that the PF had when it was last heard of: removing them takes time as well.
    vfs: AtomicU16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Nobody's.
    Free,
    /// A caller waits for its answer.
    Taken,
    /// The caller has left, the call has not returned: what was waited.
    Overdue(Duration),
}

impl<H: SriovHardware + 'static> Guarded<H> {
    /// With the default deadlines.
    pub fn new(inner: H) -> Self {
        Self::with_deadlines(inner, Deadlines::default())
    }

    /// With these deadlines.
    pub fn with_deadlines(inner: H, deadlines: Deadlines) -> Self {
        Self { inner: Arc::new(inner), deadlines, lanes: Mutex::default() }
    }

    /// The back end below, without deadlines.
    pub fn inner(&self) -> &H {
        &self.inner
    }

    /// PFs that missed a deadline and have not returned since.
    pub fn failed(&self) -> Vec<PfAddr> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let overdue = |worker: &Worker| matches!(*worker.turn(), Turn::Overdue(_));
        lanes
            .iter()
            .filter_map(|(lane, worker)| match lane {
                Lane::Pf(pf) if overdue(worker) => Some(*pf),
                _ => None,
            })
            .collect()
    }

    fn worker(&self, lane: Lane) -> std::io::Result<Arc<Worker>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = lanes.get(&lane) {
            return Ok(Arc::clone(worker));
        }
        let worker = Arc::new(Worker::start(lane)?);
        lanes.insert(lane, Arc::clone(&worker));
        Ok(worker)
    }

    fn pf<T: Send + 'static>(
        &self,
        pf: PfAddr,
        deadline: Duration,
        call: impl FnOnce(&H) -> Result<T, HardwareError> + Send + 'static,
    ) -> Result<T, HardwareError> {
        let worker = self.worker(Lane::Pf(pf));
        let worker = worker.map_err(|source| HardwareError::Io { pf: PfId::Pci(pf), source })?;
        let inner = Arc::clone(&self.inner);
        let answer = worker
            .run(deadline, move || call(&inner))
            .unwrap_or_else(|after| Err(HardwareError::Deadline { pf: PfId::Pci(pf), after }));
        // Whoever asks for PFs that are not there must not fill the host with threads.
        if matches!(answer, Err(HardwareError::NoPf(_))) {
            self.lanes.lock().unwrap_or_else(PoisonError::into_inner).remove(&Lane::Pf(pf));
        }
        answer
    }

    fn host<T: Send + 'static>(
        &self,
        lane: Lane,
        what: &str,
        call: impl FnOnce(&H) -> Result<T, HardwareError> + Send + 'static,
    ) -> Result<T, HardwareError> {
        let error = |source| HardwareError::Host { what: what.to_owned(), source };
        let worker = self.worker(lane).map_err(error)?;
        let inner = Arc::clone(&self.inner);
        worker.run(self.deadlines.read, move || call(&inner)).unwrap_or_else(|after| {
            let late = format!("no answer within {after:?}");
            Err(error(std::io::Error::new(std::io::ErrorKind::TimedOut, late)))
        })
    }

    fn remember(&self, pf: PfAddr, vfs: u16) {
        if let Ok(worker) = self.worker(Lane::Pf(pf)) {
            worker.vfs.store(vfs, Ordering::Relaxed);
        }
    }

    fn num_vfs_deadline(&self, pf: PfAddr, count: u16) -> Duration {
        let now = self.worker(Lane::Pf(pf)).map_or(0, |worker| worker.vfs.load(Ordering::Relaxed));
        self.deadlines.num_vfs + self.deadlines.each_vf * u32::from(count.max(now))
    }
}

impl Worker {
    fn start(lane: Lane) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let name = match lane {
            Lane::List => "pf list".to_owned(),
            Lane::Tree => "pci tree".to_owned(),
            Lane::Pf(pf) => pf.to_string(),
        };
        // Ends once the sender is gone and its last job has returned, which may be never: nobody
        // waits for it.
        std::thread::Builder::new()
            .name(name)
            .spawn(move || queue.into_iter().for_each(|job| job()))?;
        let (turn, turned) = (Mutex::new(Turn::Free), Condvar::new());
        Ok(Self { jobs, turn, turned, vfs: AtomicU16::new(0) })
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have `call` made on the worker. `Err` with the time that was waited if it did not return in
    /// time, or an earlier one has not returned yet: then it is not made at all.
    ///
    /// A panic of `call` goes on here.
    fn run<T: Send + 'static>(
        self: &Arc<Self>,
        deadline: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Duration> {
        self.take_turn()?;
        let (answer, answered) = mpsc::sync_channel::<Result<T, Box<dyn Any + Send>>>(1);
        let worker = Arc::clone(self);
        let job = move || {
            let result = catch_unwind(AssertUnwindSafe(call));
            // First the answer, then the turn: a caller that finds its turn given back has one.
            let _ = answer.send(result);
            worker.give_back();
        };
        // The queue lives as long as its sender, which is in `self`.
        let _ = self.jobs.send(Box::new(job));
        let result = match answered.recv_timeout(deadline) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                // Under the lock the answer is there or the call has not returned.
                let mut turn = self.turn();
                let Ok(result) = answered.try_recv() else {
                    *turn = Turn::Overdue(deadline);
                    self.turned.notify_all();
                    return Err(deadline);
                };
                result
            }
        };
        result.map_err(|panic| resume_unwind(panic))
    }

    fn take_turn(&self) -> Result<(), Duration> {
        let mut turn = self.turn();
        loop {
            match *turn {
                Turn::Free => {
                    *turn = Turn::Taken;
                    return Ok(());
                }
                Turn::Overdue(after) => return Err(after),
                Turn::Taken => {
                    let woken = self.turned.wait(turn);
                    turn = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn give_back(&self) {
        *self.turn() = Turn::Free;
        self.turned.notify_all();
    }
}

impl<H: SriovHardware + 'static> SriovHardware for Guarded<H> {
    fn list(&self) -> Result<Vec<PfAddr>, HardwareError> {
        self.host(Lane::List, "the list of PFs", H::list)
    }

    fn read(&self, pf: PfAddr) -> Result<PfReading, HardwareError> {
        let reading = self.pf(pf, self.deadlines.read, move |inner| inner.read(pf))?;
        self.remember(pf, reading.num_vfs);
        Ok(reading)
    }

    fn pci_tree(&self) -> Result<Vec<PciNode>, HardwareError> {
        self.host(Lane::Tree, "the PCIe tree", H::pci_tree)
    }

    fn write_num_vfs(&self, pf: PfAddr, count: u16) -> Result<(), HardwareError> {
        let deadline = self.num_vfs_deadline(pf, count);
        self.pf(pf, deadline, move |inner| inner.write_num_vfs(pf, count))?;
        self.remember(pf, count);
        Ok(())
    }

    fn write_autoprobe(&self, pf: PfAddr, on: bool) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.write, move |inner| inner.write_autoprobe(pf, on))
    }

    fn set_up(&self, pf: PfAddr, up: bool) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.write, move |inner| inner.set_up(pf, up))
    }

    fn set_eswitch(&self, pf: PfAddr, mode: EswitchMode) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.bind, move |inner| inner.set_eswitch(pf, mode))
    }

    fn send_vf(&self, pf: PfAddr, vf: VfIndex, message: &VfMessage) -> Result<(), HardwareError> {
        let message = *message;
        self.pf(pf, self.deadlines.write, move |inner| inner.send_vf(pf, vf, &message))
    }

    fn set_vf_mtu(&self, pf: PfAddr, vf: VfIndex, mtu: Mtu) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.write, move |inner| inner.set_vf_mtu(pf, vf, mtu))
    }

    fn set_representor(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        state: RepresentorState,
    ) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.write, move |inner| inner.set_representor(pf, vf, state))
    }

    fn vf_counters(&self, pf: PfAddr, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        self.pf(pf, self.deadlines.read, move |inner| inner.vf_counters(pf, vf))
    }

    fn pause_frames(&self, pf: PfAddr) -> Result<Option<[u64; 8]>, HardwareError> {
        self.pf(pf, self.deadlines.read, move |inner| inner.pause_frames(pf))
    }

    fn write_driver_override(
        &self,
        pf: PfAddr,
        vf: VfAddr,
        driver: Option<&str>,
    ) -> Result<(), HardwareError> {
        let driver = driver.map(str::to_owned);
        let call = move |inner: &H| inner.write_driver_override(pf, vf, driver.as_deref());
        self.pf(pf, self.deadlines.write, call)
    }

    fn unbind(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.bind, move |inner| inner.unbind(pf, vf))
    }

    fn probe(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.bind, move |inner| inner.probe(pf, vf))
    }

    fn reset(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.pf(pf, self.deadlines.bind, move |inner| inner.reset(pf, vf))
    }

    fn set_roce(&self, pf: PfAddr, setting: &RoceSetting) -> Result<(), HardwareError> {
        let setting = setting.clone();
        self.pf(pf, self.deadlines.write, move |inner| inner.set_roce(pf, &setting))
    }
}

#[cfg(test)]
mod tests;
