//! A machine in memory for tests: NICs, VMs and a server. What is in it stays when an agent is killed,
//! which happens at a chosen one of all the things that are done to it.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lanekeeper_control::placement::HostReport;
use lanekeeper_control::protocol::{
    Desired, Heartbeat, HeartbeatAnswer, ProofReport, ProofReports, VmId, VmReport, VmReports,
};
use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{
    LinkState, MacAddr, PfId, VfChange, VfCounters, VfIndex, VfSettings, VfStatus,
};
use lanekeeper_vmm::{
    Driver, Ending, Exit, Host, HostError, Job, Machine, TapPort, VfPort, VmError, VmSpec,
};

use crate::images::Builtin;
use crate::link::{Link, LinkError};

/// What an agent that was killed ends with.
pub(crate) struct Killed;

#[derive(Default)]
pub(crate) struct World {
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) vfs: BTreeMap<VfIndex, VfSettings>,
    pub(crate) machines: BTreeMap<PathBuf, Running>,
    /// Things done until the agent is killed.
    pub(crate) fuse: Option<u32>,
    /// The journal, to see that what is touched is in it.
    pub(crate) journal: Option<PathBuf>,
    /// How long one look whether a guest answers takes.
    pub(crate) look_takes: Duration,
    /// A VM of this name is never done with starting.
    pub(crate) hangs: Option<String>,
    next_pid: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) macs: Vec<MacAddr>,
    pub(crate) resets: u32,
    /// How it has ended; its handle still tells.
    pub(crate) exit: Option<bool>,
}

impl World {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A moment at which the agent may be killed: before and after each thing it does.
    fn moment(&self) {
        let mut state = self.state();
        match &mut state.fuse {
            Some(0) => {
                drop(state);
                // Without the hook's message: it is meant.
                std::panic::resume_unwind(Box::new(Killed));
            }
            Some(left) => *left -= 1,
            None => {}
        }
    }

    fn during<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        self.moment();
        let done = what(&mut self.state());
        self.moment();
        done
    }

    /// The VM in a run folder of this id, if it runs.
    pub(crate) fn running(&self, vm: VmId) -> Option<Running> {
        let name = format!("vm-{vm}");
        let state = self.state();
        let mut machines = state.machines.iter();
        let (_, found) = machines.find(|(folder, _)| folder.ends_with(&name))?;
        Some(found.clone()).filter(|it| it.exit.is_none())
    }

    /// It ends by itself: its guest powers off, or it crashes.
    pub(crate) fn end(&self, vm: VmId, by_guest: bool) {
        let name = format!("vm-{vm}");
        for (folder, machine) in &mut self.state().machines {
            if folder.ends_with(&name) && machine.exit.is_none() {
                machine.exit = Some(by_guest);
            }
        }
    }

    /// The host is booted anew: no VM runs, and its NICs know nothing of before.
    pub(crate) fn boot_anew(&self) {
        let mut state = self.state();
        state.machines.clear();
        state.vfs.clear();
    }

    pub(crate) fn builtin() -> Builtin {
        Builtin {
            kernel: "/kernel".into(),
            initramfs: "/initramfs".into(),
            command_line: Arc::new(str::to_owned),
        }
    }
}

impl State {
    /// Whether a VM that runs has the VF with this MAC.
    fn in_use(&self, mac: MacAddr) -> bool {
        self.machines.values().any(|it| it.exit.is_none() && it.macs.contains(&mac))
    }

    fn is_written_down(&self, vf: VfIndex) -> bool {
        let Some(folder) = &self.journal else { return true };
        let records = crate::journal::records(folder).expect("the journal is sound");
        records.iter().any(|record| record.lanes.iter().any(|lane| lane.vf == vf))
    }
}

/// NIC and driver of a world.
#[derive(Clone)]
pub(crate) struct On(pub(crate) Arc<World>);

impl Hardware for On {
    fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError> {
        Ok(Vec::new())
    }

    fn vf(&self, _: &PfId, vf: VfIndex) -> Result<VfStatus, HardwareError> {
        let settings = self.0.state().vfs.get(&vf).cloned().unwrap_or_else(VfSettings::scrubbed);
        Ok(VfStatus { vf, settings, link_up: false, attached: false, stopped: None })
    }

    fn set_vf(&self, pf: &PfId, vf: VfIndex, change: &VfChange) -> Result<VfStatus, HardwareError> {
        let before = self.vf(pf, vf)?.settings;
        let settings = change.apply_to(&before)?;
        let same = |other: &VfSettings| !settings.mac.is_zero() && other.mac == settings.mac;
        let holder =
            self.0.state().vfs.iter().find(|(at, it)| **at != vf && same(it)).map(|it| *it.0);
        if let Some(holder) = holder {
            return Err(HardwareError::DuplicateMac { mac: settings.mac, holder });
        }
        self.0.during(|state| {
            assert!(state.is_written_down(vf), "VF {vf} is set, and in no record");
            let taken = settings.mac != before.mac && state.in_use(before.mac);
            assert!(!taken, "VF {vf} becomes another's, and its VM runs");
            state.vfs.insert(vf, settings);
        });
        self.vf(pf, vf)
    }

    fn counters(&self, _: &PfId, _: VfIndex) -> Result<VfCounters, HardwareError> {
        Ok(VfCounters::default())
    }
}

impl Driver for On {
    type Vm = FakeVm;

    fn start(&self, spec: VmSpec) -> Result<FakeVm, VmError> {
        let macs: Vec<_> = spec.vfs.iter().map(|vf| vf.mac).collect();
        self.0.during(|state| {
            for mac in &macs {
                let set = state.vfs.values().find(|vf| vf.mac == *mac).expect("its VF is set");
                assert!(set.link_state == LinkState::Auto && set.spoofchk, "{set:?}");
            }
        });
        while self.0.state().hangs.as_ref() == Some(&spec.name) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = self.0.during(|state| {
            let old = state.machines.get(&spec.run_folder);
            assert!(old.is_none_or(|it| it.exit.is_some()), "two VMs in {:?}", spec.run_folder);
            state.next_pid += 1;
            let pid = state.next_pid;
            let running = Running { pid, macs: macs.clone(), resets: 0, exit: None };
            state.machines.insert(spec.run_folder.clone(), running);
            pid
        });
        Ok(FakeVm { world: Arc::clone(&self.0), folder: spec.run_folder, pid })
    }

    fn adopt(&self, spec: &VmSpec) -> Result<Option<FakeVm>, VmError> {
        let state = self.0.state();
        let found = state.machines.get(&spec.run_folder).filter(|it| it.exit.is_none());
        let vm = |it: &Running| {
            let (world, folder) = (Arc::clone(&self.0), spec.run_folder.clone());
            FakeVm { world, folder, pid: it.pid }
        };
        Ok(found.map(vm))
    }

    fn end(&self, run_folder: &Path) -> Result<(), VmError> {
        self.0.during(|state| {
            if let Some(machine) = state.machines.get_mut(run_folder) {
                machine.exit.get_or_insert(false);
            }
        });
        Ok(())
    }
}

/// A VM of a world. It runs on when it is dropped.
pub(crate) struct FakeVm {
    world: Arc<World>,
    folder: PathBuf,
    pid: u32,
}

impl FakeVm {
    fn with<T>(&self, what: impl FnOnce(&mut Running) -> T) -> T {
        self.world
            .during(|state| what(state.machines.get_mut(&self.folder).expect("it was started")))
    }

    fn unsupported(&self) -> VmError {
        VmError::NoSuchPort { vm: self.folder.display().to_string(), port: "any".to_owned() }
    }
}

impl Machine for FakeVm {
    fn wait_ready(&self, _: Duration) -> Result<Duration, VmError> {
        let takes = self.world.state().look_takes;
        std::thread::sleep(takes);
        match self.exit() {
            None => Ok(Duration::ZERO),
            Some(exit) => Err(VmError::Exited {
                vm: self.folder.display().to_string(),
                status: exit.status,
                last_words: exit.last_words,
            }),
        }
    }

    fn attach_vf(&self, _: &VfPort) -> Result<u8, VmError> {
        Err(self.unsupported())
    }

    fn attach_tap(&self, _: &TapPort) -> Result<u8, VmError> {
        Err(self.unsupported())
    }

    fn detach(&self, _: &str, _: Duration) -> Result<(), VmError> {
        Err(self.unsupported())
    }

    fn set_link(&self, _: &str, _: bool) -> Result<(), VmError> {
        Err(self.unsupported())
    }

    fn reset(&self) -> Result<(), VmError> {
        self.with(|vm| vm.resets += 1);
        Ok(())
    }

    fn leave(&self) -> Result<(), VmError> {
        Ok(())
    }

    fn hang_up(&self) {}

    fn shutdown(&self, _: Duration) -> Result<Ending, VmError> {
        self.with(|vm| *vm.exit.get_or_insert(true));
        Ok(Ending::ByGuest)
    }

    fn kill(&self) -> Result<Exit, VmError> {
        self.with(|vm| *vm.exit.get_or_insert(false));
        Ok(Exit { status: ExitStatus::from_raw(9), by_guest: false, last_words: String::new() })
    }

    fn exit(&self) -> Option<Exit> {
        let state = self.world.state();
        let machine = state.machines.get(&self.folder).filter(|it| it.pid == self.pid);
        let by_guest = machine.map_or(Some(false), |it| it.exit)?;
        let status = ExitStatus::from_raw(if by_guest { 0 } else { 9 });
        Some(Exit { status, by_guest, last_words: "bye".to_owned() })
    }

    fn wait_for_exit(&self, _: Duration) -> Option<Exit> {
        self.exit()
    }

    fn serial_log(&self) -> &Path {
        Path::new("/dev/null")
    }

    fn pid(&self) -> u32 {
        self.pid
    }
}

impl Host for FakeVm {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn start(&self, _: &str) -> Result<Box<dyn Job + '_>, HostError> {
        Err(HostError::Unreachable { host: "fake".to_owned(), why: "it is none".to_owned() })
    }
}

/// A server that says what it is told to.
#[derive(Default)]
pub(crate) struct Server {
    said: Mutex<Said>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Said {
    pub(crate) desired: Desired,
    /// It does not answer.
    pub(crate) away: bool,
    pub(crate) reports: BTreeMap<VmId, VmReport>,
    pub(crate) inventory: Option<HostReport>,
    pub(crate) proofs: Vec<ProofReport>,
}

impl Server {
    pub(crate) const LEASE_SECONDS: u32 = 1;

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Said)) {
        let mut said = self.said();
        change(&mut said);
        said.desired.revision += 1;
        self.changed.notify_all();
    }

    /// Wait until the reports are as hoped, for up to ten seconds.
    pub(crate) fn hears(&self, hoped: impl Fn(&BTreeMap<VmId, VmReport>) -> bool) {
        let not_yet = |said: &mut Said| !hoped(&said.reports);
        let within = Duration::from_secs(10);
        let waited = self.changed.wait_timeout_while(self.said(), within, not_yet);
        let (said, timeout) = waited.expect("no thread panics");
        assert!(!timeout.timed_out(), "not heard: {:?}", said.reports);
    }

    fn answer<T>(&self, what: impl FnOnce(&mut Said) -> T) -> Result<T, LinkError> {
        let mut said = self.said();
        if said.away {
            return Err(LinkError::Unreachable("it is away".to_owned()));
        }
        let answer = what(&mut said);
        self.changed.notify_all();
        Ok(answer)
    }
}

impl Link for Server {
    fn inventory(&self, report: &HostReport) -> Result<(), LinkError> {
        self.answer(|said| said.inventory = Some(report.clone()))
    }

    fn heartbeat(&self, _: &Heartbeat) -> Result<HeartbeatAnswer, LinkError> {
        self.answer(|_| HeartbeatAnswer { lease_seconds: Self::LEASE_SECONDS })
    }

    fn desired(&self, after: u64, wait: Duration) -> Result<Desired, LinkError> {
        let old = |said: &mut Said| said.desired.revision <= after && !said.away;
        drop(self.changed.wait_timeout_while(self.said(), wait, old));
        self.answer(|said| said.desired.clone())
    }

    fn report(&self, reports: &VmReports) -> Result<(), LinkError> {
        self.answer(|said| {
            said.reports.extend(reports.vms.iter().map(|report| (report.vm, report.clone())));
        })
    }

    fn proofs(&self, reports: &ProofReports) -> Result<(), LinkError> {
        self.answer(|said| {
            // It asks no more for what it was told.
            let told = |run, vm| reports.proofs.iter().any(|it| (it.run, it.vm) == (run, vm));
            said.desired.proofs.retain(|proof| !told(proof.run, proof.vm));
            said.desired.revision += 1;
            said.proofs.extend(reports.proofs.iter().cloned());
        })
    }
}
