//! What every VM driver offers, whichever VMM is behind it.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use lanekeeper_verify::Host;

use crate::agent::AgentError;
use crate::qmp::QmpError;
use crate::spec::{TapPort, VfPort, VmSpec};

/// Starts VMs.
pub trait Driver {
    /// What it starts.
    type Vm: Machine;

    /// Start a VM. It has begun to boot when this returns: see [`Machine::wait_ready`].
    ///
    /// # Errors
    /// [`VmError::Invalid`] for what cannot be started, [`VmError::Exited`] when the VMM gave up
    /// at once, with its reason.
    fn start(&self, spec: VmSpec) -> Result<Self::Vm, VmError>;

    /// Take over the VM that runs in the spec's folder, whoever started it: one that was left there
    /// ([`Machine::leave`]), or that outlived a process that was killed. `None` if none runs there.
    /// The spec is the one it was started with.
    ///
    /// # Errors
    /// [`VmError::Monitor`] for one that does not answer; it runs on.
    fn adopt(&self, spec: &VmSpec) -> Result<Option<Self::Vm>, VmError>;

    /// End the VM that runs in this folder at once, whoever started it, even one whose monitor does
    /// not answer. None there is as good.
    ///
    /// # Errors
    /// [`VmError::Immortal`], [`VmError::Io`].
    fn end(&self, run_folder: &Path) -> Result<(), VmError>;
}

/// A VM that was started. Dropping it ends it at once, without the guest's consent, unless it was
/// left ([`Machine::leave`]).
///
/// As a [`Host`] it runs commands in the guest.
pub trait Machine: Host {
    /// Wait until the guest runs commands. Gives back the time from the start of the VM to then.
    ///
    /// # Errors
    /// [`VmError::NotReady`] after `within`, and [`VmError::Exited`] as soon as the VM has ended,
    /// both with the last of the serial log.
    fn wait_ready(&self, within: Duration) -> Result<Duration, VmError>;

    /// Give the running VM one more VF; gives back its slot. Afterwards the guest finds it by and
    /// by.
    ///
    /// # Errors
    /// [`VmError::Invalid`], also when no slot is left, and the VMM's refusal; what was done until
    /// then is undone.
    fn attach_vf(&self, port: &VfPort) -> Result<u8, VmError>;

    /// Give the running VM one more traditional NIC, on a tap by name; gives back its slot.
    ///
    /// # Errors
    /// As [`Machine::attach_vf`].
    fn attach_tap(&self, port: &TapPort) -> Result<u8, VmError>;

    /// Take a port away, and wait until the guest has let go of it.
    ///
    /// # Errors
    /// [`VmError::NoSuchPort`]; [`VmError::NotReleased`] if the guest does not let go in time: the
    /// port is then still attached, and the call may be repeated.
    fn detach(&self, port: &str, within: Duration) -> Result<(), VmError>;

    /// Set the carrier the guest sees on a port.
    ///
    /// # Errors
    /// [`VmError::NoSuchPort`] and the VMM's refusal.
    fn set_link(&self, port: &str, up: bool) -> Result<(), VmError>;

    /// Start the guest anew within the VM that it is, as a reset button does.
    ///
    /// # Errors
    /// The VMM's refusal.
    fn reset(&self) -> Result<(), VmError>;

    /// From now on it runs on when this handle and this process are gone. [`Driver::adopt`] takes it
    /// over again.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for a VM started with [`VmSpec::dies_with_parent`].
    fn leave(&self) -> Result<(), VmError>;

    /// Let others talk to the guest's agent, at whose line one may listen at a time. It is taken again
    /// when it is needed.
    fn hang_up(&self);

    /// Ask the guest to power off, and make it end if it does not within `within`.
    ///
    /// # Errors
    /// [`VmError::Immortal`] when even a kill did not end it.
    fn shutdown(&self, within: Duration) -> Result<Ending, VmError>;

    /// End the VM at once, as a power cut would.
    ///
    /// # Errors
    /// [`VmError::Immortal`].
    fn kill(&self) -> Result<Exit, VmError>;

    /// How the VM ended; `None` while it runs.
    fn exit(&self) -> Option<Exit>;

    /// Wait for the VM to end; `None` if it still runs after `within`.
    fn wait_for_exit(&self, within: Duration) -> Option<Exit>;

    /// The guest's serial console from the start, in a file that stays.
    fn serial_log(&self) -> &Path;

    /// Process number of the VMM.
    fn pid(&self) -> u32;
}

/// How a VM was brought to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest powered off when asked.
    ByGuest,
    /// The guest did not; the VMM ended in order when asked.
    ByMonitor,
    /// Neither did; the process was killed.
    ByKill,
}

/// How a VM ended.
#[derive(Clone, Debug)]
pub struct Exit {
    /// Exit status of the VMM. That of an adopted VM, which is nobody's to know, is 0 if its guest
    /// powered off, and else that of a process that was killed.
    pub status: ExitStatus,
    /// Its guest powered off, asked or not.
    pub by_guest: bool,
    /// The last of what the VMM wrote about itself, and of the serial log.
    pub last_words: String,
}

/// A VM left running on purpose: what is needed to find it again.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// Process number of the VMM.
    pub pid: u32,
    /// Socket of the serial console, with a shell on it: one connection at a time.
    pub console: PathBuf,
    /// Socket of the guest agent: one connection at a time.
    pub agent: PathBuf,
    /// The serial log.
    pub serial_log: PathBuf,
}

/// What can go wrong with a VM.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// A VM that cannot be started, or a port that cannot be attached.
    #[error("VM {vm}: {field} '{value}' is not usable: {why}")]
    Invalid {
        /// Which VM.
        vm: String,
        /// What of it.
        field: String,
        /// As it was given.
        value: String,
        /// Why, and what would be.
        why: String,
    },
    /// The VMM is not there.
    #[error("{program} could not be run: {why}; install the package {package}")]
    NoVmm {
        /// The program.
        program: String,
        /// What the system said.
        why: String,
        /// Debian's package.
        package: &'static str,
    },
    /// A file or process of this machine.
    #[error("VM {vm}: {what}: {error}")]
    Io {
        /// Which VM.
        vm: String,
        /// What was done.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The VM has ended.
    #[error("VM {vm} has ended ({status}): {last_words}")]
    Exited {
        /// Which VM.
        vm: String,
        /// Exit status of the VMM.
        status: ExitStatus,
        /// The last of what the VMM wrote, and of the serial log.
        last_words: String,
    },
    /// The guest does not run commands yet.
    #[error("VM {vm} was not ready after {after:?}; its console says: {last_words}")]
    NotReady {
        /// Which VM.
        vm: String,
        /// How long was waited.
        after: Duration,
        /// The last of the serial log.
        last_words: String,
    },
    /// No port of that name.
    #[error("VM {vm} has no port {port}")]
    NoSuchPort {
        /// Which VM.
        vm: String,
        /// Which port.
        port: String,
    },
    /// The guest still holds a port.
    #[error("VM {vm}: the guest did not let go of port {port} within {after:?}: {why}")]
    NotReleased {
        /// Which VM.
        vm: String,
        /// Which port.
        port: String,
        /// How long was waited.
        after: Duration,
        /// What the VMM says.
        why: String,
    },
    /// A killed process that does not end: it hangs in the kernel.
    #[error("VM {vm}: process {pid} was killed and had not ended after {after:?}")]
    Immortal {
        /// Which VM.
        vm: String,
        /// Its process.
        pid: u32,
        /// How long was waited.
        after: Duration,
    },
    /// The monitor.
    #[error("VM {vm}: {error}")]
    Monitor {
        /// Which VM.
        vm: String,
        /// What went wrong.
        error: QmpError,
    },
    /// The guest agent.
    #[error("VM {vm}: {error}")]
    Agent {
        /// Which VM.
        vm: String,
        /// What went wrong.
        error: AgentError,
    },
}
