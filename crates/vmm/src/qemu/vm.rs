//! One QEMU process: from its start to its end.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lanekeeper_verify::{Host, HostError, Job};
use serde_json::json;
use tracing::warn;

use super::argv::{self, Interrupts, Platform, file};
use super::{Qemu, Version, folder};
use crate::agent::{Agent, AgentError};
use crate::guest::{Guest, GuestJob};
use crate::machine::{Ending, Exit, Kept, Machine, VmError};
use crate::process::{Launch, Process};
use crate::qmp::{Event, Mark, Qmp, QmpError, Unplugged};
use crate::spec::{Hugepages, Slots, Tap, TapPort, VfPort, VmSpec};

/// How long QEMU may take to open its monitor. It waits for each VF's software NIC before that.
const MONITOR_OPENS: Duration = Duration::from_secs(30);

/// How long one monitor command may take. The slowest, an attach, takes 0.1 s on an idle machine.
const MONITOR_CALL: Duration = Duration::from_secs(20);

/// How long a process may take to end once killed.
const KILL: Duration = Duration::from_secs(10);

/// How long QEMU may take to end when the monitor tells it to.
const QUIT: Duration = Duration::from_secs(3);

const HUGEPAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// A VM under QEMU.
#[derive(Debug)]
pub struct Vm {
    name: String,
    version: Version,
    interrupts: Interrupts,
    run_folder: PathBuf,
    serial_log: PathBuf,
    dies_with_parent: bool,
    process: Process,
    monitor: Qmp,
    agent: Agent,
    ports: Mutex<Ports>,
    started: Instant,
    /// From the start, or the last reset, until the guest ran commands.
    ready: Mutex<Option<Duration>>,
    left: AtomicBool,
    /// Started by another process, so that its exit status is not known.
    adopted: bool,
}

#[derive(Debug)]
struct Ports {
    slots: Slots,
    /// Those with a chardev of their own to remove.
    vfs: BTreeSet<String>,
    /// Those with nothing behind the device itself.
    functions: BTreeSet<String>,
}

impl Vm {
    pub(super) fn start(qemu: &Qemu, spec: &VmSpec) -> Result<Self, VmError> {
        let slots = spec.check()?;
        for vf in &spec.vfs {
            check_socket(&spec.name, vf)?;
        }
        let mut platform = Platform { version: qemu.version, hugepages: hugepages_fit(spec) };
        let mut running = Running::launch(qemu, spec, &slots, platform);
        if platform.hugepages && matches!(running, Err(VmError::Exited { .. })) {
            // Somebody else was quicker to take them.
            warn!(vm = spec.name, "no VM on hugepages; it gets ordinary memory");
            platform.hugepages = false;
            running = Running::launch(qemu, spec, &slots, platform);
        }
        Ok(Self::of(spec, slots, running?, qemu.version))
    }

    pub(super) fn adopt(spec: &VmSpec) -> Result<Option<Self>, VmError> {
        let folder = &spec.run_folder;
        let Some(process) = holder(&spec.name, folder)? else { return Ok(None) };
        let running = connect(&process, folder).and_then(|(monitor, agent)| {
            let version = monitor.execute("query-version", &json!({}), MONITOR_CALL)?;
            let started = Instant::now();
            Ok((Running { process, monitor, agent, started }, reported(&version)))
        });
        let (running, version) =
            running.map_err(|error| VmError::Monitor { vm: spec.name.clone(), error })?;
        let mut vm = Self::of(spec, spec.slots()?, running, version);
        (vm.adopted, vm.left) = (true, AtomicBool::new(true));
        Ok(Some(vm))
    }

    fn of(spec: &VmSpec, slots: Slots, running: Running, version: Version) -> Self {
        let Running { process, monitor, agent, started } = running;
        Self {
            name: spec.name.clone(),
            version,
            interrupts: Interrupts::of(spec.accel, version),
            serial_log: spec.run_folder.join(file::SERIAL_LOG),
            run_folder: spec.run_folder.clone(),
            dies_with_parent: spec.dies_with_parent,
            process,
            monitor,
            agent,
            ports: Mutex::new(Ports {
                slots,
                vfs: spec.vfs.iter().map(|vf| vf.name.clone()).collect(),
                functions: spec.functions.iter().map(|it| it.name.clone()).collect(),
            }),
            started,
            ready: Mutex::new(None),
            left: AtomicBool::new(false),
            adopted: false,
        }
    }

    /// Let the VM run on when this handle and this process are gone.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for a VM started with [`VmSpec::dies_with_parent`].
    pub fn keep_running(self) -> Result<Kept, VmError> {
        self.leave()?;
        Ok(Kept {
            name: self.name.clone(),
            pid: self.process.pid(),
            console: self.run_folder.join(file::CONSOLE),
            agent: self.run_folder.join(file::AGENT),
            serial_log: self.serial_log.clone(),
        })
    }

    /// The guest agent, for files in the guest.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The monitor, for what [`Machine`] has no method for.
    pub fn monitor(&self) -> &Qmp {
        &self.monitor
    }

    fn ready(&self) -> MutexGuard<'_, Option<Duration>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, command: &str, arguments: &serde_json::Value) -> Result<(), VmError> {
        self.monitor
            .execute(command, arguments, MONITOR_CALL)
            .map(|_| ())
            .map_err(|error| self.monitor_error(error))
    }

    fn monitor_error(&self, error: QmpError) -> VmError {
        match self.exit() {
            Some(exit) => self.exited(exit),
            None => VmError::Monitor { vm: self.name.clone(), error },
        }
    }

    fn exited(&self, exit: Exit) -> VmError {
        VmError::Exited { vm: self.name.clone(), status: exit.status, last_words: exit.last_words }
    }

    fn exit_of(&self, status: ExitStatus) -> Exit {
        // QEMU says so before it ends (qapi/run-state.json, SHUTDOWN).
        let off = |event: &Event| event.name == "SHUTDOWN" && event.data["guest"] == json!(true);
        let by_guest = self.monitor.wait_event(Mark::START, "SHUTDOWN", QUIT, off).is_ok();
        let status = if self.adopted && by_guest { ExitStatus::default() } else { status };
        Exit { status, by_guest, last_words: last_words(&self.run_folder) }
    }

    /// Removes something by identifier. Gone already is as good: QEMU removes the chardev of a
    /// vhost-user netdev together with it (net/vhost-user.c, net_vhost_user_cleanup).
    fn undo(&self, command: &str, id: &str) -> Result<(), VmError> {
        match self.command(command, &json!({ "id": id })) {
            Err(VmError::Monitor { error: QmpError::Refused { reason, .. }, .. })
                if reason.contains("not found") =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Runs the steps in order; when one fails, undoes those before it in reverse.
    fn attach(&self, port: &str, steps: &[Step]) -> Result<(), VmError> {
        for (at, step) in steps.iter().enumerate() {
            let Err(error) = self.command(step.command, &step.arguments) else { continue };
            for (command, id) in steps[..at].iter().rev().filter_map(|done| done.undo.as_ref()) {
                if let Err(error) = self.undo(command, id) {
                    warn!(vm = self.name, port, %error, "a failed attach was not undone whole");
                }
            }
            self.ports().slots.release(port);
            return Err(error);
        }
        Ok(())
    }
}

/// A QEMU that has opened its monitor.
struct Running {
    process: Process,
    monitor: Qmp,
    agent: Agent,
    started: Instant,
}

impl Running {
    fn launch(
        qemu: &Qemu,
        spec: &VmSpec,
        slots: &Slots,
        platform: Platform,
    ) -> Result<Self, VmError> {
        let folder = &spec.run_folder;
        let fail = |what: &str, error| VmError::Io {
            vm: spec.name.clone(),
            what: format!("{what} {}", folder.display()),
            error,
        };
        let taps = spec.taps.iter().filter_map(|tap| match &tap.tap {
            Tap::Open(descriptor) => Some(Arc::clone(descriptor)),
            Tap::Named(_) => None,
        });
        let lock = folder::take(&spec.name, folder)?;
        let launch = Launch {
            program: qemu.program.clone(),
            arguments: argv::build(spec, slots, platform),
            namespace: spec.namespace.clone(),
            inherited: taps.chain([Arc::new(lock.into())]).collect(),
            dies_with_parent: spec.dies_with_parent,
            output: prepare_folder(spec).map_err(|error| fail("preparing", error))?,
        };
        let started = Instant::now();
        let process = Process::start(launch).map_err(|error| fail("starting QEMU in", error))?;
        match connect(&process, folder) {
            Ok((monitor, agent)) => Ok(Self { process, monitor, agent, started }),
            Err(error) => {
                // Its own reason, if it gave up, is better than "no connection".
                let ended = process.wait(Duration::from_secs(1));
                if let Err(error) = process.kill() {
                    warn!(vm = spec.name, %error, "QEMU did not start well and was not killed");
                }
                process.wait(KILL);
                remove_sockets(folder);
                let vm = spec.name.clone();
                Err(match ended {
                    Some(status) => VmError::Exited { vm, status, last_words: last_words(folder) },
                    None => VmError::Monitor { vm, error },
                })
            }
        }
    }
}

/// One step of an attach.
struct Step {
    command: &'static str,
    arguments: serde_json::Value,
    /// The command that undoes it, and the identifier that command takes.
    undo: Option<(&'static str, String)>,
}

impl Step {
    fn netdev(port: &str, arguments: serde_json::Value) -> Self {
        let undo = Some(("netdev_del", argv::backend_id(port)));
        Self { command: "netdev_add", arguments, undo }
    }

    fn device(arguments: serde_json::Value) -> Self {
        Self { command: "device_add", arguments, undo: None }
    }
}

fn connect(process: &Process, folder: &Path) -> Result<(Qmp, Agent), QmpError> {
    let gone = || process.status().is_some();
    let monitor = Qmp::connect(&folder.join(file::MONITOR), MONITOR_OPENS, gone)?;
    // QEMU has made all its sockets by the time its monitor answers.
    let agent = Agent::connect(&folder.join(file::AGENT), MONITOR_CALL, gone)
        .map_err(|error| QmpError::Broken(error.to_string()))?;
    Ok((monitor, agent))
}

/// End whatever VM runs in a folder, also one that has not yet opened its monitor.
pub(super) fn end(run_folder: &Path) -> Result<(), VmError> {
    let vm = run_folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(process) = holder(&vm, run_folder)? else { return Ok(()) };
    let pid = process.pid();
    process.kill().map_err(|error| VmError::Io {
        vm: vm.clone(),
        what: format!("killing process {pid}"),
        error,
    })?;
    process.wait(KILL).map(drop).ok_or(VmError::Immortal { vm, pid, after: KILL })
}

/// The process that runs in a folder.
fn holder(vm: &str, run_folder: &Path) -> Result<Option<Process>, VmError> {
    let fail = |error| VmError::Io {
        vm: vm.to_owned(),
        what: format!("looking for the process in {}", run_folder.display()),
        error,
    };
    let holder = folder::holder(run_folder).map_err(fail)?;
    holder.map(|(pid, pidfd)| Process::adopt(pid, pidfd)).transpose().map_err(fail)
}

/// What a QEMU that runs says of its version (qapi/control.json, `query-version`).
fn reported(answer: &serde_json::Value) -> Version {
    let number = |key: &str| {
        let number = answer["qemu"][key].as_u64().and_then(|it| u16::try_from(it).ok());
        number.unwrap_or_default()
    };
    Version { major: number("major"), minor: number("minor") }
}

/// QEMU would wait for a socket that is not there, and hold everything else up meanwhile.
fn check_socket(vm: &str, vf: &VfPort) -> Result<(), VmError> {
    if fs::metadata(&vf.socket).is_ok_and(|status| status.file_type().is_socket()) {
        return Ok(());
    }
    Err(VmError::Invalid {
        vm: vm.to_owned(),
        field: format!("{}.socket", vf.name),
        value: vf.socket.display().to_string(),
        why: "there is no such socket; start the software NIC first".to_owned(),
    })
}

/// Makes the run folder and what has to be in it; gives back the file for QEMU's own output.
fn prepare_folder(spec: &VmSpec) -> io::Result<File> {
    fs::create_dir_all(&spec.run_folder)?;
    remove_sockets(&spec.run_folder);
    if let Some(seed) = &spec.seed {
        fs::write(spec.run_folder.join(file::SEED), seed.image()?)?;
    }
    File::create(spec.run_folder.join(file::QEMU_LOG))
}

fn remove_sockets(folder: &Path) {
    for name in [file::MONITOR, file::AGENT, file::CONSOLE] {
        // Not there is what is wanted; one that cannot be removed makes QEMU say so.
        let _ = fs::remove_file(folder.join(name));
    }
}

fn hugepages_fit(spec: &VmSpec) -> bool {
    let count = |name: &str| {
        let text = fs::read_to_string(Path::new(HUGEPAGES).join(name)).ok()?;
        text.trim().parse::<u32>().ok()
    };
    // Of the free ones some are promised to others (hugetlbpage.rst, HugePages_Rsvd).
    let left = || Some(count("free_hugepages")?.saturating_sub(count("resv_hugepages")?));
    spec.hugepages == Hugepages::WhenFree
        && spec.memory_mib.is_multiple_of(2)
        && left().is_some_and(|left| left >= spec.memory_mib / 2)
}

/// The last lines of QEMU's own output and of the serial log.
fn last_words(folder: &Path) -> String {
    let parts = [
        ("QEMU", last_lines(&folder.join(file::QEMU_LOG), 4)),
        ("console", last_lines(&folder.join(file::SERIAL_LOG), 6)),
    ];
    let said = parts.iter().filter(|(_, text)| !text.is_empty());
    let said: Vec<String> = said.map(|(who, text)| format!("{who}: {text}")).collect();
    if said.is_empty() { "it said nothing".to_owned() } else { said.join(" | ") }
}

/// The last lines of a log that a guest has written: whatever is no plain text is left out.
fn last_lines(path: &Path, count: usize) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(8192)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines = text.lines().map(|line| line.replace(|it: char| it.is_control(), ""));
    let lines: Vec<String> = lines.filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    // A kernel that panics says why, and then lists the whole call chain.
    let why = lines.iter().rfind(|line| line.contains("Kernel panic"));
    why.filter(|line| !last.contains(line))
        .into_iter()
        .chain(last)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ")
}

impl Machine for Vm {
    fn wait_ready(&self, within: Duration) -> Result<Duration, VmError> {
        if let Some(ready) = *self.ready() {
            return Ok(ready);
        }
        match self.agent.ping(within) {
            Ok(()) => Ok(*self.ready().get_or_insert_with(|| self.started.elapsed())),
            Err(AgentError::Deadline { .. }) => Err(VmError::NotReady {
                vm: self.name.clone(),
                after: within,
                last_words: last_words(&self.run_folder),
            }),
            Err(error) => match self.wait_for_exit(Duration::from_secs(1)) {
                Some(exit) => Err(self.exited(exit)),
                None => Err(VmError::Agent { vm: self.name.clone(), error }),
            },
        }
    }

    fn attach_vf(&self, port: &VfPort) -> Result<u8, VmError> {
        port.check(&self.name)?;
        check_socket(&self.name, port)?;
        let name = &port.name;
        let slot = self.ports().slots.take_present(&self.name, name, port.slot, port.mac)?;
        let chardev = Step {
            command: "chardev-add",
            arguments: argv::vf_chardev_monitor(name, &port.socket, self.version),
            undo: Some(("chardev-remove", argv::chardev_id(name))),
        };
        let netdev = Step::netdev(name, argv::vf_netdev(port).monitor());
        let device = argv::vf_device(port, Some(slot), self.interrupts);
        let device = Step::device(device.monitor());
        self.attach(name, &[chardev, netdev, device])?;
        self.ports().vfs.insert(name.clone());
        Ok(slot)
    }

    fn attach_tap(&self, port: &TapPort) -> Result<u8, VmError> {
        port.check(&self.name)?;
        if matches!(port.tap, Tap::Open(_)) {
            return Err(VmError::Invalid {
                vm: self.name.clone(),
                field: format!("{}.tap", port.name),
                value: "an open descriptor".to_owned(),
                why: "a running VM takes a tap by name only".to_owned(),
            });
        }
        let name = &port.name;
        let slot = self.ports().slots.take_present(&self.name, name, port.slot, port.mac)?;
        let netdev = Step::netdev(name, argv::tap_netdev(port).monitor());
        let device = Step::device(argv::tap_device(port, Some(slot)).monitor());
        self.attach(name, &[netdev, device])?;
        Ok(slot)
    }

    fn detach(&self, port: &str, within: Duration) -> Result<(), VmError> {
        if self.ports().slots.of(port).is_none() {
            return Err(VmError::NoSuchPort { vm: self.name.clone(), port: port.to_owned() });
        }
        let id = argv::device_id(port);
        let unplugged = self.monitor.unplug(&id, MONITOR_CALL, within);
        if let Unplugged::Still(why) = unplugged.map_err(|error| self.monitor_error(error))? {
            return Err(VmError::NotReleased {
                vm: self.name.clone(),
                port: port.to_owned(),
                after: within,
                why,
            });
        }
        if !self.ports().functions.remove(port) {
            self.command("netdev_del", &json!({ "id": argv::backend_id(port) }))?;
        }
        if self.ports().vfs.remove(port) {
            self.undo("chardev-remove", &argv::chardev_id(port))?;
        }
        self.ports().slots.release(port);
        Ok(())
    }

    fn set_link(&self, port: &str, up: bool) -> Result<(), VmError> {
        if self.ports().slots.of(port).is_none() {
            return Err(VmError::NoSuchPort { vm: self.name.clone(), port: port.to_owned() });
        }
        self.command("set_link", &json!({ "name": argv::device_id(port), "up": up }))
    }

    fn reset(&self) -> Result<(), VmError> {
        let mark = self.monitor.mark();
        self.command("system_reset", &json!({}))?;
        // The command answers before it is done.
        self.monitor
            .wait_event(mark, "RESET", MONITOR_CALL, |event| event.name == "RESET")
            .map_err(|error| self.monitor_error(error))?;
        *self.ready() = None;
        Ok(())
    }

    fn leave(&self) -> Result<(), VmError> {
        if self.dies_with_parent {
            return Err(VmError::Invalid {
                vm: self.name.clone(),
                field: "dies_with_parent".to_owned(),
                value: "true".to_owned(),
                why: "a VM that shall be left running must be started without".to_owned(),
            });
        }
        self.left.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn hang_up(&self) {
        self.agent.hang_up();
    }

    fn shutdown(&self, within: Duration) -> Result<Ending, VmError> {
        let deadline = Instant::now() + within;
        let left = || deadline.saturating_duration_since(Instant::now());
        // Each that fails only leaves the rest to the next, stronger one.
        if self.agent.power_off(within.min(Duration::from_secs(2))).is_ok()
            && self.process.wait(left() / 2).is_some()
        {
            return Ok(Ending::ByGuest);
        }
        let _ = self.monitor.execute("system_powerdown", &json!({}), QUIT);
        if self.process.wait(left()).is_some() {
            return Ok(Ending::ByGuest);
        }
        let _ = self.monitor.execute("quit", &json!({}), QUIT);
        if self.process.wait(QUIT).is_some() {
            return Ok(Ending::ByMonitor);
        }
        self.kill().map(|_| Ending::ByKill)
    }

    fn kill(&self) -> Result<Exit, VmError> {
        self.process.kill().map_err(|error| VmError::Io {
            vm: self.name.clone(),
            what: format!("killing process {}", self.process.pid()),
            error,
        })?;
        self.wait_for_exit(KILL).ok_or_else(|| VmError::Immortal {
            vm: self.name.clone(),
            pid: self.process.pid(),
            after: KILL,
        })
    }

    fn exit(&self) -> Option<Exit> {
        self.process.status().map(|status| self.exit_of(status))
    }

    fn wait_for_exit(&self, within: Duration) -> Option<Exit> {
        self.process.wait(within).map(|status| self.exit_of(status))
    }

    fn serial_log(&self) -> &Path {
        &self.serial_log
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Host for Vm {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, command: &str) -> Result<Box<dyn Job + '_>, HostError> {
        Ok(Box::new(GuestJob::begin(self, command)?))
    }
}

impl Guest for Vm {
    fn agent(&self) -> &Agent {
        &self.agent
    }

    fn unreachable(&self, error: &AgentError) -> HostError {
        // A line that breaks is the first sign of an end, ahead of the exit status.
        let patience = if matches!(error, AgentError::Broken(_)) { QUIT } else { Duration::ZERO };
        let why = match self.process.wait(patience) {
            Some(status) => {
                let exit = self.exit_of(status);
                format!("the VM has ended ({status}): {}", exit.last_words)
            }
            None => error.to_string(),
        };
        HostError::Unreachable { host: self.name.clone(), why }
    }

    fn has_ended(&self) -> bool {
        self.exit().is_some()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.kill() {
            warn!(vm = self.name, %error, "a VM was not ended");
        }
        remove_sockets(&self.run_folder);
    }
}
