//! The node: its lines to the server, each on a thread of its own, and a worker for each VM.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lanekeeper_control::placement::HostReport;
use lanekeeper_control::protocol::{
    Desired, DesiredProof, Heartbeat, Power, ProofReports, Traffic, VmId, VmReport, VmReports,
    VmState,
};
use lanekeeper_host::Owner;
use lanekeeper_hw::Hardware;
use lanekeeper_vmm::{Accel, Driver, Host, Machine};

use crate::board::{Board, Boots};
use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::images::{Builtin, Images};
use crate::inventory::{inventory, neighbours};
use crate::journal::{Journal, Record};
use crate::lanes::{HardwareNics, Lanes, lanes_of};
use crate::lease::{Lease, now};
use crate::link::{Link, LinkError};
use crate::proof::prove;
use crate::seat::Seat;
use crate::worker::{Means, Worker};

#[cfg(test)]
mod tests;

/// How long the server may hold back what is desired until there is something new.
const HOLD: Duration = Duration::from_secs(20);
/// After a call that failed, on average.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked whether the lease still holds.
const WATCH: Duration = Duration::from_millis(100);
/// How often the host is looked at for what it has.
const LOOK: Duration = Duration::from_secs(5);
/// How often all is told again although nothing has changed.
const REPEAT: Duration = Duration::from_secs(60);
/// How long workers may take to put down what they do when the agent ends.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a node works with.
pub struct Parts<D> {
    /// Starts VMs.
    pub driver: D,
    /// What carries their guests' instructions out.
    pub accel: Accel,
    /// The host's software NICs, each with its sockets in a folder of its name under
    /// [`NodeConfig::nic_folder`].
    pub software: Arc<dyn Hardware>,
    /// The owner of the host's own hardware, as far as [`NodeConfig::hardware`] offers it.
    pub owner: Option<Arc<Owner>>,
    /// The small guest.
    pub builtin: Option<Builtin>,
    /// The line to the server.
    pub link: Arc<dyn Link>,
}

/// One host that has the VMs that the server desires.
pub struct Node<D: Driver> {
    inner: Arc<Inner<D>>,
    records: Vec<Record>,
}

/// Ends a node, from another thread.
#[derive(Clone, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// End it. VMs run on.
    pub fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Wait for the end, or for as long as `within`. Whether it has come.
    fn wait(&self, within: Duration) -> bool {
        let stop = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(stop, within, |stop| !*stop);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Inner<D: Driver> {
    means: Arc<Means<D>>,
    software: Arc<dyn Hardware>,
    hardware: Option<Arc<HardwareNics>>,
    link: Arc<dyn Link>,
    lease: Mutex<Lease>,
    vms: Mutex<Vms<D::Vm>>,
    revision: AtomicU64,
    /// What verification runs ask for, as it was last said.
    proofs: Mutex<Vec<DesiredProof>>,
    asked: Condvar,
    stop: Stop,
}

/// The workers, and whether the lease ran out since the server last said what it desires.
struct Vms<V> {
    workers: BTreeMap<VmId, (Arc<Seat<V>>, JoinHandle<()>)>,
    fenced: bool,
    /// How often the lease ran out: an answer to what was asked before that is not heeded.
    fences: u64,
    /// Shared by what ends VMs for that: none is started again before it is done.
    at_work: Arc<()>,
}

impl<D> Node<D>
where
    D: Driver + Send + Sync + 'static,
    D::Vm: 'static,
{
    /// Open a host's state. Nothing is touched yet.
    ///
    /// # Errors
    /// [`NodeError::Taken`] if another agent has it, [`NodeError::Record`], [`NodeError::File`].
    pub fn open(config: NodeConfig, parts: Parts<D>) -> Result<Self, NodeError> {
        let Parts { driver, accel, software, owner, builtin, link } = parts;
        let (journal, records) = Journal::open(&config.state_folder.join("vms"))?;
        let lease = Lease::load(&config.state_folder)?;
        let offer = config.hardware.as_ref().zip(owner);
        let hardware = offer.map(|(offer, owner)| {
            HardwareNics::new(owner, &config.state_folder, &offer.pools).map(Arc::new)
        });
        let hardware = hardware.transpose()?;
        let vms = Vms {
            workers: BTreeMap::new(),
            fenced: !lease.holds(now()),
            fences: 0,
            at_work: Arc::default(),
        };
        let means = Means {
            driver,
            accel,
            lanes: Lanes::new(Arc::clone(&software), &config.nic_folder, hardware.clone()),
            images: Images::new(&config.image_folder, builtin),
            journal,
            board: Board::default(),
            boots: Boots::of(accel),
            config,
        };
        let inner = Inner {
            means: Arc::new(means),
            software,
            hardware,
            link,
            lease: Mutex::new(lease),
            vms: Mutex::new(vms),
            revision: AtomicU64::new(0),
            proofs: Mutex::default(),
            asked: Condvar::new(),
            stop: Stop::default(),
        };
        Ok(Self { inner: Arc::new(inner), records })
    }

    /// What ends it.
    pub fn stop(&self) -> Stop {
        self.inner.stop.clone()
    }

    /// Work until [`Stop::stop`]. VMs run on then, and the next node takes them over.
    ///
    /// # Errors
    /// [`NodeError::Thread`].
    pub fn run(self) -> Result<(), NodeError> {
        let Self { inner, records } = self;
        for record in records {
            let mut vms = inner.vms();
            inner.employ(&mut vms, record)?;
        }
        let begin = |name, duty: fn(&Inner<D>)| {
            let inner = Arc::clone(&inner);
            spawn(name, move || duty(&inner))
        };
        begin("heartbeat", Inner::keep_lease)?;
        begin("fence", Inner::watch_lease)?;
        begin("desired", Inner::heed)?;
        begin("reports", Inner::report)?;
        begin("inventory", Inner::take_inventory)?;
        begin("proofs", Inner::prove)?;
        while !inner.stop.wait(REPEAT) {}
        inner.leave();
        Ok(())
    }
}

/// How long to wait after a call that failed: from three quarters of [`AGAIN`] to five, so that the
/// agents of a fleet whose server was away do not come back all at once.
fn again() -> Duration {
    let mut byte = [128];
    // Without it all wait the same, as they would without this.
    let _ = getrandom::fill(&mut byte);
    AGAIN * 3 / 4 + AGAIN / 2 * u32::from(byte[0]) / 256
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, NodeError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(NodeError::Thread)
}

impl<D> Inner<D>
where
    D: Driver + Send + Sync + 'static,
    D::Vm: 'static,
{
    fn vms(&self) -> MutexGuard<'_, Vms<D::Vm>> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Give a VM its worker.
    fn employ(&self, vms: &mut Vms<D::Vm>, record: Record) -> Result<(), NodeError> {
        let vm = record.want.vm;
        let want = (!record.leaving).then(|| record.want.clone());
        let seat = Arc::new(Seat::new(want, vms.fenced));
        let worker = Worker::new(Arc::clone(&self.means), Arc::clone(&seat), record);
        let thread = spawn(&format!("vm-{vm}"), move || worker.run())?;
        vms.workers.insert(vm, (seat, thread));
        Ok(())
    }

    fn keep_lease(&self) {
        loop {
            let sent = now();
            let heartbeat = Heartbeat {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                revision: self.revision.load(Ordering::Relaxed),
            };
            let pause = match self.link.heartbeat(&heartbeat) {
                Ok(answer) => {
                    if let Err(error) = self.lease().renew(sent, answer.lease_seconds) {
                        tracing::warn!(%error, "the next agent will not know of the lease");
                    }
                    Duration::from_secs(answer.lease_seconds.into()) / 3
                }
                Err(error) => {
                    tracing::warn!(%error, "no sign of life was taken");
                    again()
                }
            };
            if self.stop.wait(pause) {
                return;
            }
        }
    }

    fn watch_lease(&self) {
        while !self.stop.wait(WATCH) {
            let held = self.lease().holds(now());
            let mut vms = self.vms();
            if !held && !vms.fenced {
                (vms.fenced, vms.fences) = (true, vms.fences + 1);
                self.fence(&vms);
            }
        }
    }

    /// End the VMs that may be started elsewhere, and take their VFs' links down: all at once, and past
    /// their workers, which may wait for something.
    fn fence(&self, vms: &Vms<D::Vm>) {
        for (seat, _) in vms.workers.values() {
            seat.hold_back();
            let Some(want) = seat.orders().want.filter(|want| want.fenced) else { continue };
            tracing::error!(vm = want.vm, "the lease has run out; the VM is ended");
            let lanes: Vec<_> = lanes_of(&want).collect();
            let (vm, means) = (want.vm, Arc::clone(&self.means));
            let works = Arc::clone(&vms.at_work);
            let cut = move || {
                for lane in lanes {
                    if let Err(error) = means.lanes.of(&lane).and_then(|nics| nics.cut(&lane)) {
                        tracing::error!(vm, %error, "a link was not taken down");
                    }
                }
                drop(works);
            };
            let (seat, means) = (Arc::clone(seat), Arc::clone(&self.means));
            let works = Arc::clone(&vms.at_work);
            let end = move || {
                let killed = seat.vm().map_or(Ok(()), |vm| vm.kill().map(drop));
                // One that is being started is not seated yet.
                let ended = killed.and_then(|()| means.driver.end(&means.run_folder(&want)));
                if let Err(error) = ended {
                    tracing::error!(vm, %error, "the VM was not ended");
                }
                drop(works);
            };
            // Neither waits for the other: a NIC may hang, or a process in the kernel.
            for begun in [spawn("cut", cut), spawn("end", end)] {
                if let Err(error) = begun {
                    tracing::error!(vm, %error, "it is left to the VM's worker");
                }
            }
        }
    }

    fn heed(&self) {
        let mut after = 0;
        while !self.stop.wait(Duration::ZERO) {
            let (fenced, fences, done) = {
                let vms = self.vms();
                (vms.fenced, vms.fences, Arc::strong_count(&vms.at_work) == 1)
            };
            let lifted = fenced && done && self.lease().holds(now());
            let (from, hold) = if fenced { (0, Duration::ZERO) } else { (after, HOLD) };
            let pause = match self.link.desired(from, hold) {
                Ok(desired) => {
                    let mut vms = self.vms();
                    // Workers that are put to work after the end would not be told of it.
                    if self.stop.wait(Duration::ZERO) {
                        return;
                    }
                    if vms.fences == fences {
                        vms.fenced &= !lifted;
                        self.apply(&mut vms, &desired);
                        *self.proofs() = desired.proofs;
                        self.asked.notify_all();
                        after = desired.revision;
                        self.revision.store(after, Ordering::Relaxed);
                    }
                    if vms.fenced { WATCH } else { Duration::ZERO }
                }
                Err(error) => {
                    tracing::warn!(%error, "it is not known what is desired");
                    again()
                }
            };
            if self.stop.wait(pause) {
                return;
            }
        }
    }

    fn apply(&self, vms: &mut Vms<D::Vm>, desired: &Desired) {
        let fenced = vms.fenced;
        for (vm, (seat, _)) in &vms.workers {
            seat.order(desired.vms.iter().find(|want| want.vm == *vm), fenced);
        }
        for want in &desired.vms {
            if vms.workers.contains_key(&want.vm) {
                continue;
            }
            if want.power == Power::Gone {
                // It never was here, or is forgotten already.
                let (vm, generation, resets) = (want.vm, want.generation, want.resets);
                let (state, traffic) = (VmState::Gone, Traffic::default());
                self.means.board.put(VmReport { vm, generation, state, resets, traffic });
                continue;
            }
            let record = Record::new(want.clone());
            let employed = self.means.journal.save(&record).and_then(|()| self.employ(vms, record));
            if let Err(error) = employed {
                // It is desired again with the next answer.
                tracing::error!(vm = want.vm, %error, "the VM is not taken up");
            }
        }
    }

    fn report(&self) {
        let (mut seen, mut told) = (0, true);
        loop {
            let (version, vms) = self.means.board.wait(seen, if told { REPEAT } else { again() });
            if self.stop.wait(Duration::ZERO) {
                return;
            }
            let reports = VmReports { vms };
            if reports.vms.is_empty() {
                seen = version;
                continue;
            }
            told = match self.link.report(&reports) {
                Ok(()) => {
                    seen = version;
                    self.forget(&reports);
                    true
                }
                Err(error) => {
                    tracing::warn!(%error, "what became of VMs was not told");
                    if self.stop.wait(again()) {
                        return;
                    }
                    false
                }
            };
        }
    }

    /// What the server knows to be gone is nobody's business any more.
    fn forget(&self, told: &VmReports) {
        for report in told.vms.iter().filter(|report| report.state == VmState::Gone) {
            if let Err(error) = self.means.journal.forget(report.vm) {
                // It is told again, and forgotten then.
                tracing::warn!(vm = report.vm, %error, "not forgotten");
                continue;
            }
            self.means.board.strike(report.vm);
            self.vms().workers.remove(&report.vm);
        }
    }

    fn take_inventory(&self) {
        let mut told: Option<(HostReport, Instant)> = None;
        loop {
            let known = told.as_ref().filter(|(_, at)| at.elapsed() < REPEAT).map(|(it, _)| it);
            // Only the host's own hardware has cables that are asked for.
            let hardware = self.hardware.as_deref();
            let neighbours = hardware.map(|_| neighbours::look()).unwrap_or_default();
            let pause = match inventory(&self.means.config, &*self.software, hardware, &neighbours)
            {
                Ok(report) if known == Some(&report) => LOOK,
                Ok(report) => match self.link.inventory(&report) {
                    Ok(()) => {
                        told = Some((report, Instant::now()));
                        LOOK
                    }
                    Err(error) => {
                        tracing::warn!(%error, "what the host has was not told");
                        again()
                    }
                },
                Err(error) => {
                    tracing::warn!(%error, "what the host has is not known");
                    LOOK
                }
            };
            if self.stop.wait(pause) {
                return;
            }
        }
    }

    fn proofs(&self) -> MutexGuard<'_, Vec<DesiredProof>> {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at VMs, one after the other, as they are asked for. What was told is asked for no more.
    fn prove(&self) {
        while !self.stop.wait(Duration::ZERO) {
            let none = |proofs: &mut Vec<DesiredProof>| {
                proofs.is_empty() && !self.stop.wait(Duration::ZERO)
            };
            let waited = self.asked.wait_timeout_while(self.proofs(), AGAIN, none);
            let next = waited.unwrap_or_else(PoisonError::into_inner).0.first().cloned();
            let Some(proof) = next else { continue };
            let seat = self.vms().workers.get(&proof.vm).map(|(seat, _)| Arc::clone(seat));
            let vm = seat.and_then(|seat| seat.orders().want.zip(seat.vm()));
            let at = vm.as_ref().map(|(want, vm)| (want, vm.as_ref() as &dyn Host));
            let report = prove(&proof, &self.means.lanes, at);
            if let Some((_, vm)) = &vm {
                // The host's operator may want to run a command in it.
                vm.hang_up();
            }
            let told = self.link.proofs(&ProofReports { proofs: vec![report] });
            match told {
                Err(error @ LinkError::Unreachable(_)) => {
                    tracing::warn!(%error, "what was found of a VM was not told");
                    if self.stop.wait(again()) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, run = proof.run, "what was found is not taken");
                    self.proofs().retain(|it| *it != proof);
                }
                Ok(()) => self.proofs().retain(|it| *it != proof),
            }
        }
    }

    /// Let all workers put down what they do. One that waits for something hanging ends with the
    /// process; its record says what it was at.
    fn leave(&self) {
        self.means.board.wake();
        drop(self.proofs());
        self.asked.notify_all();
        let vms = std::mem::take(&mut self.vms().workers);
        for (seat, _) in vms.values() {
            seat.stop();
        }
        let deadline = Instant::now() + FAREWELL;
        for (_, thread) in vms.into_values() {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
