//! The worker of one VM: it asks [`reconcile`](crate::reconcile) for the next step and does it, writing
//! down before it touches anything, again and again. A VM, a NIC or a fetch that hangs holds up nobody
//! but its own worker.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_control::protocol::{DesiredVm, Image, Power, Traffic, VmReport, VmState};
use lanekeeper_model::LinkState;
use lanekeeper_vmm::{Accel, Driver, Exit, HostFunction, Hugepages, Machine, VmError, VmSpec};

use crate::board::{Board, Booting, Boots};
use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::images::{Images, remove};
use crate::journal::{Failure, Journal, Record};
use crate::lanes::{Device, Lane, Lanes, lanes_of, settings};
use crate::reconcile::{Guest, Step, There, Vfs, next};
use crate::seat::{Orders, Seat};
use crate::seed::seed;

/// How often a VM that is as it shall be is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often its VFs are.
const LOOK_AT_VFS: Duration = Duration::from_secs(10);
/// How often it is counted what has passed them.
const COUNT: Duration = Duration::from_secs(600);
/// How long one wait for the guest is, so that other orders are seen meanwhile.
const SLICE: Duration = Duration::from_secs(1);
/// Between attempts at what did not succeed.
const AGAIN: Duration = Duration::from_millis(500);
/// Between looks whether one more VM may boot.
const QUEUE: Duration = Duration::from_millis(100);
#[cfg(test)]
mod tests;

/// Most of a serial log that is kept on the disk, in bytes: a guest may write without end.
const LONGEST_LOG: u64 = 16 << 20;

/// What all workers share.
pub(crate) struct Means<D> {
    pub(crate) config: NodeConfig,
    pub(crate) driver: D,
    pub(crate) accel: Accel,
    pub(crate) lanes: Lanes,
    pub(crate) images: Images,
    pub(crate) journal: Journal,
    pub(crate) board: Board,
    pub(crate) boots: Boots,
}

impl<D> Means<D> {
    /// Folder of a VM's sockets and logs.
    pub(crate) fn run_folder(&self, vm: &DesiredVm) -> PathBuf {
        self.config.run_folder.join(format!("vm-{}", vm.vm))
    }

    fn disk_folder(&self, vm: &DesiredVm) -> PathBuf {
        self.config.state_folder.join("disks").join(vm.vm.to_string())
    }

    fn spec(&self, vm: &DesiredVm) -> Result<VmSpec, NodeError> {
        let scalars = vm.place.scalars;
        let refused = |field, value: u64| NodeError::refused(field, value, "it is too large");
        let memory = u32::try_from(scalars.ram_mib);
        let memory = memory.map_err(|_| refused("ram_mib", scalars.ram_mib))?;
        let boot = self.images.boot(vm, &self.disk_folder(vm))?;
        let name = format!("vm-{}", vm.vm);
        let mut spec = VmSpec::new(&name, memory, boot, &self.run_folder(vm));
        spec.vcpus =
            u8::try_from(scalars.vcpus).map_err(|_| refused("vcpus", scalars.vcpus.into()))?;
        spec.accel = self.accel;
        spec.seed = Some(seed(vm)?);
        for (number, (lane, port)) in lanes_of(vm).zip(&vm.ports).enumerate() {
            match self.lanes.of(&lane)?.device(&lane, format!("vf{number}"), port)? {
                Device::Virtual(vf) => spec.vfs.push(vf),
                Device::Function(vf) => spec.functions.push(vf),
            }
        }
        for (number, gpu) in vm.place.gpus.iter().enumerate() {
            let name = format!("gpu{number}");
            spec.functions.push(HostFunction { name, address: *gpu, mac: None, slot: None });
        }
        // Nothing is attached later, and each slot takes the guest's kernel time to set up.
        spec.spare_slots = 0;
        let hugepages = if self.config.hugepages { Hugepages::WhenFree } else { Hugepages::Never };
        spec.hugepages = hugepages;
        (spec.dies_with_parent, spec.reboots) = (false, true);
        Ok(spec)
    }
}

/// The worker of one VM.
pub(crate) struct Worker<D: Driver> {
    means: Arc<Means<D>>,
    seat: Arc<Seat<D::Vm>>,
    record: Record,
    /// `None` until it is known whether one runs.
    guest: Option<Guest>,
    vfs: Vfs,
    /// [`Orders::fences`] as its VFs were set, and as it was started.
    fences_at_set: u64,
    fences_at_start: u64,
    looked_at_vfs: Instant,
    counted_at: Instant,
    boot_until: Instant,
    booting: Option<Booting>,
    trouble_since: Option<Instant>,
}

/// What comes after a step.
enum Then {
    Next,
    Wait(Duration),
    End,
}

impl<D: Driver> Worker<D> {
    pub(crate) fn new(means: Arc<Means<D>>, seat: Arc<Seat<D::Vm>>, record: Record) -> Self {
        let now = Instant::now();
        Self {
            means,
            seat,
            record,
            guest: None,
            vfs: Vfs::Unknown,
            fences_at_set: 0,
            fences_at_start: 0,
            looked_at_vfs: now,
            counted_at: now,
            boot_until: now,
            booting: None,
            trouble_since: None,
        }
    }

    /// Work until the VM is gone or the agent ends.
    pub(crate) fn run(mut self) {
        loop {
            let orders = self.seat.orders();
            if orders.stop {
                return;
            }
            let done = self.advance(&orders);
            let then = done.unwrap_or_else(|error| self.trouble(&error));
            match then {
                Then::Next => {}
                Then::Wait(within) => self.seat.wait(orders.number, within),
                Then::End => return,
            }
        }
    }

    fn advance(&mut self, orders: &Orders) -> Result<Then, NodeError> {
        self.take(orders)?;
        let held_back = orders.held_back && self.record.want.fenced;
        let guest = self.look(held_back)?;
        if orders.fences != self.fences_at_set {
            self.vfs = Vfs::Unknown;
        }
        let image = self.means.images.is_ready(&self.record.want, &self.disk_folder());
        let there = There { guest, vfs: self.vfs, image, held_back };
        let step = next(&self.record, there);
        tracing::debug!(vm = self.record.want.vm, ?step, "next");
        self.tell_of(&step, guest);
        self.act(&step, orders)
    }

    fn disk_folder(&self) -> PathBuf {
        self.means.disk_folder(&self.record.want)
    }

    /// Change the record, on the disk first.
    fn note(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), NodeError> {
        let mut record = self.record.clone();
        change(&mut record);
        if record != self.record {
            self.means.journal.save(&record)?;
            self.record = record;
        }
        Ok(())
    }

    fn take(&mut self, orders: &Orders) -> Result<(), NodeError> {
        match &orders.want {
            Some(want) if *want != self.record.want => {
                let leaving = self.record.leaving || want.power == Power::Gone;
                self.note(|record| (record.want, record.leaving) = (want.clone(), leaving))?;
                (self.vfs, self.trouble_since) = (Vfs::Unknown, None);
            }
            None if !self.record.leaving => {
                self.note(|record| record.leaving = true)?;
                self.trouble_since = None;
            }
            _ => {}
        }
        Ok(())
    }

    /// What became of the guest; at first, whether there is one that an earlier agent has started.
    fn look(&mut self, held_back: bool) -> Result<Guest, NodeError> {
        let Some(guest) = self.guest else { return self.find(held_back) };
        let exit = self.seat.vm().and_then(|vm| vm.exit());
        let Some(exit) = exit else { return Ok(guest) };
        if !self.was_fenced() {
            self.ended(&exit)?;
        }
        self.clear();
        Ok(Guest::Off)
    }

    /// Whether it was ended from outside since it was started, though that may be over by now.
    fn was_fenced(&self) -> bool {
        self.record.want.fenced && self.seat.orders().fences != self.fences_at_start
    }

    fn find(&mut self, held_back: bool) -> Result<Guest, NodeError> {
        let Record { want, booted, leaving, .. } = &self.record;
        let means = Arc::clone(&self.means);
        let hangs = |since: Instant| since.elapsed() >= means.config.shutdown_patience();
        let unwanted = held_back
            || *leaving
            || self.record.failure().is_some()
            || want.power == Power::Off && self.trouble_since.is_some_and(hangs);
        let vm = match booted {
            Some(booted) if !unwanted => means.driver.adopt(&means.spec(booted)?)?,
            _ => {
                means.driver.end(&means.run_folder(want))?;
                None
            }
        };
        let guest = if let Some(vm) = vm {
            self.seat.seat(Some(Arc::new(vm)));
            self.boot_until = Instant::now() + means.config.boot_patience();
            Guest::Booting
        } else {
            Guest::Off
        };
        self.guest = Some(guest);
        Ok(guest)
    }

    /// It has ended, and nobody here has ended it.
    fn ended(&mut self, exit: &Exit) -> Result<(), NodeError> {
        let moment = self.record.moment();
        self.note(|record| {
            if exit.by_guest {
                record.powered_off = Some(moment);
            } else {
                let Exit { status, last_words, .. } = exit;
                let reason = format!("the VM has ended ({status}): {last_words}");
                record.failed = Some(Failure { generation: moment.generation, reason });
            }
        })
    }

    fn clear(&mut self) {
        self.seat.seat(None);
        self.guest = Some(Guest::Off);
        self.booting = None;
    }

    fn tell(&self, state: VmState) {
        let Record { want, resets, .. } = &self.record;
        let (vm, generation, resets) = (want.vm, want.generation, *resets);
        let traffic = self.record.traffic;
        self.means.board.put(VmReport { vm, generation, state, resets, traffic });
    }

    fn tell_of(&self, step: &Step, guest: Guest) {
        match step {
            Step::Rest(state) => self.tell(state.clone()),
            Step::Prepare | Step::Boot | Step::Await => self.tell(VmState::Starting),
            Step::Claim | Step::Set(_)
                if guest == Guest::Off && self.record.want.power == Power::On =>
            {
                self.tell(VmState::Starting);
            }
            _ => {}
        }
    }

    fn act(&mut self, step: &Step, orders: &Orders) -> Result<Then, NodeError> {
        match step {
            Step::Claim => self.claim()?,
            Step::Set(link) => self.set(*link)?,
            Step::Cut => {
                (self.vfs, self.fences_at_set) = (Vfs::Unknown, orders.fences);
                for lane in &self.record.lanes {
                    self.means.lanes.of(lane)?.cut(lane)?;
                }
                self.vfs = Vfs::Cut;
            }
            Step::Prepare => self.prepare(orders.number)?,
            Step::Boot => return self.boot(),
            Step::Await => return self.wait_for_guest(),
            Step::Reset => {
                self.with_vm(Machine::reset)?;
                let resets = self.record.want.resets;
                self.note(|record| record.resets = resets)?;
                self.wait_from_now();
            }
            Step::ShutDown => {
                let patience = self.means.config.shutdown_patience();
                self.with_vm(|vm| vm.shutdown(patience).map(drop))?;
                self.clear();
            }
            Step::Kill => {
                self.with_vm(|vm| vm.kill().map(drop))?;
                self.clear();
            }
            Step::Scrub(lane) => {
                self.vfs = Vfs::Unknown;
                self.count()?;
                self.means.lanes.of(lane)?.scrub(lane)?;
                self.note(|record| {
                    record.lanes.retain(|it| it != lane);
                    record.counted.retain(|it| it.lane != *lane);
                })?;
            }
            Step::Remove => {
                remove(&self.means.run_folder(&self.record.want))?;
                remove(&self.disk_folder())?;
                self.note(|record| record.files = false)?;
            }
            Step::Rest(VmState::Gone) => return Ok(Then::End),
            Step::Rest(_) => {
                self.trouble_since = None;
                self.look_around();
                return Ok(Then::Wait(LOOK));
            }
        }
        Ok(Then::Next)
    }

    fn with_vm(&self, what: impl FnOnce(&D::Vm) -> Result<(), VmError>) -> Result<(), NodeError> {
        Ok(self.seat.vm().map_or(Ok(()), |vm| what(&vm))?)
    }

    fn claim(&mut self) -> Result<(), NodeError> {
        let want = &self.record.want;
        let (vfs, ports) = (want.place.vfs.len(), want.ports.len());
        if vfs != ports {
            let why = format!("the VM is placed on {vfs} VFs; the two must be as many");
            return Err(NodeError::refused("ports", ports, why));
        }
        let lanes: Vec<_> = lanes_of(want).collect();
        self.note(|record| record.lanes = lanes)
    }

    fn set(&mut self, link: LinkState) -> Result<(), NodeError> {
        (self.vfs, self.fences_at_set) = (Vfs::Unknown, self.seat.orders().fences);
        let want = &self.record.want;
        for (lane, port) in lanes_of(want).zip(&want.ports) {
            self.means.lanes.of(&lane)?.clear_for(&lane, port.mac)?;
        }
        for (lane, port) in lanes_of(want).zip(&want.ports) {
            self.means.lanes.of(&lane)?.set(&lane, &settings(port, link))?;
        }
        (self.vfs, self.looked_at_vfs) = (Vfs::Set(link), Instant::now());
        self.count()?;
        Ok(())
    }

    /// Count what has passed its VFs. A NIC that does not tell is counted another time.
    fn count(&mut self) -> Result<(), NodeError> {
        self.counted_at = Instant::now();
        let passed = |lane: &Lane| {
            let counters = self.means.lanes.of(lane).and_then(|nics| nics.counters(lane)).ok()?;
            let (sent_bytes, received_bytes) = (counters.tx.bytes, counters.rx.bytes);
            Some((lane.clone(), Traffic { sent_bytes, received_bytes }))
        };
        let counted: Vec<_> = self.record.lanes.iter().filter_map(passed).collect();
        self.note(|record| counted.iter().for_each(|(lane, now)| record.count(lane, *now)))
    }

    fn prepare(&mut self, number: u64) -> Result<(), NodeError> {
        self.note(|record| record.files = true)?;
        let goes_on = || self.seat.orders().number == number;
        self.means.images.prepare(&self.record.want, &self.disk_folder(), &goes_on)
    }

    fn boot(&mut self) -> Result<Then, NodeError> {
        let Some(booting) = self.means.boots.begin() else { return Ok(Then::Wait(QUEUE)) };
        let spec = self.means.spec(&self.record.want)?;
        self.note(|record| {
            (record.files, record.booted) = (true, Some(record.want.clone()));
            (record.resets, record.powered_off) = (record.want.resets, None);
        })?;
        self.fences_at_start = self.seat.orders().fences;
        for lane in &self.record.lanes {
            self.means.lanes.of(lane)?.hand_over(lane)?;
        }
        let vm = self.means.driver.start(spec).map_err(|error| {
            // The one that was ended as it started has not failed.
            if self.was_fenced() { NodeError::Overtaken } else { error.into() }
        })?;
        vm.leave()?;
        self.seat.seat(Some(Arc::new(vm)));
        self.booting = Some(booting);
        self.wait_from_now();
        Ok(Then::Next)
    }

    fn wait_from_now(&mut self) {
        self.guest = Some(Guest::Booting);
        self.boot_until = Instant::now() + self.means.config.boot_patience();
    }

    /// One slice of the wait. That it has ended is seen by the next look.
    fn wait_for_guest(&mut self) -> Result<Then, NodeError> {
        let Some(vm) = self.seat.vm() else { return Ok(Then::Next) };
        let error = match vm.wait_ready(SLICE) {
            Ok(_) => None,
            Err(VmError::Exited { .. }) => return Ok(Then::Next),
            Err(error) if Instant::now() >= self.boot_until => Some(error),
            Err(VmError::NotReady { .. }) => return Ok(Then::Next),
            Err(_) => return Ok(Then::Wait(SLICE)),
        };
        // The host's operator may want to run a command in it.
        vm.hang_up();
        match error {
            // Another image than the small guest need not have an agent that answers.
            Some(error) if self.record.want.image == Image::Builtin => Err(error.into()),
            _ => {
                (self.guest, self.booting) = (Some(Guest::Ready), None);
                Ok(Then::Next)
            }
        }
    }

    /// What may have changed although nobody here has changed it.
    fn look_around(&mut self) {
        if self.counted_at.elapsed() >= COUNT
            && let Err(error) = self.count()
        {
            tracing::warn!(vm = self.record.want.vm, %error, "what passed its VFs is not noted");
        }
        if self.looked_at_vfs.elapsed() < LOOK_AT_VFS {
            return;
        }
        self.looked_at_vfs = Instant::now();
        let want = &self.record.want;
        if let Vfs::Set(link) = self.vfs {
            // A NIC that does not answer is looked at again.
            let same = |(lane, port)| {
                let nics = self.means.lanes.of(&lane);
                nics.and_then(|nics| nics.is(&lane, &settings(port, link))).unwrap_or(true)
            };
            if !lanes_of(want).zip(&want.ports).all(same) {
                tracing::warn!(vm = want.vm, "a VF is not as it was set; it is set again");
                self.vfs = Vfs::Unknown;
            }
        }
        if let Some(vm) = self.seat.vm() {
            trim(vm.serial_log());
        }
    }

    /// What did not succeed is tried again for as long as it may pass, and given up otherwise until
    /// something else is desired. What the host must get rid of is never given up.
    fn trouble(&mut self, error: &NodeError) -> Then {
        if matches!(error, NodeError::Overtaken) {
            return Then::Next;
        }
        let since = *self.trouble_since.get_or_insert_with(Instant::now);
        if since.elapsed() < AGAIN {
            tracing::warn!(vm = self.record.want.vm, %error, "not done");
        }
        let reason = error.to_string();
        let generation = self.record.want.generation;
        if let Some(Failure { reason, .. }) = self.record.failure() {
            self.tell(VmState::Failed { reason: reason.clone() });
        } else if self.record.leaving || self.guest.is_none() {
            self.tell(VmState::Failed { reason });
        } else if !error.may_pass() || since.elapsed() >= self.means.config.boot_patience() {
            self.booting = None;
            let failed = Some(Failure { generation, reason });
            if self.note(|record| record.failed = failed).is_ok() {
                (self.vfs, self.trouble_since) = (Vfs::Unknown, None);
                return Then::Next;
            }
        }
        Then::Wait(AGAIN)
    }
}

/// Empty a log that has grown too long. QEMU writes on where it was, so that what was before is a hole,
/// which takes no room.
fn trim(log: &Path) {
    let long = fs::metadata(log).is_ok_and(|it| it.blocks() * 512 > LONGEST_LOG);
    if long && let Ok(file) = fs::File::options().write(true).open(log) {
        let _ = file.set_len(0);
    }
}
