//! One child process, from its start to its end.
//!
//! A thread of its own starts the child and waits for it: it can enter a network namespace first
//! without taking this process along, and "die with the parent" (prctl(2), PR_SET_PDEATHSIG) means
//! the parent *thread*, which here lives as long as the child does. The child is signalled through
//! a pidfd, so that a process number used again is never hit.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// What to start, and how.
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// File of the network namespace to start it in.
    pub(crate) namespace: Option<PathBuf>,
    /// Descriptors it inherits under their own numbers.
    pub(crate) inherited: Vec<Arc<OwnedFd>>,
    /// Killed by the kernel when this process ends, however it ends.
    pub(crate) dies_with_parent: bool,
    /// Takes both its output streams.
    pub(crate) output: File,
}

/// A child process. Dropping it neither ends it nor waits for it.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    pidfd: OwnedFd,
    end: Arc<End>,
}

#[derive(Debug, Default)]
struct End {
    status: Mutex<Option<ExitStatus>>,
    came: Condvar,
}

impl End {
    fn set(&self, status: ExitStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
        self.came.notify_all();
    }
}

impl Process {
    pub(crate) fn start(launch: Launch) -> io::Result<Self> {
        let end = Arc::new(End::default());
        let (report, started) = mpsc::sync_channel(1);
        let keeper_end = Arc::clone(&end);
        std::thread::Builder::new()
            .name("process".to_owned())
            .spawn(move || keep(launch, &report, &keeper_end))?;
        let (pid, pidfd) =
            started.recv().map_err(|_| io::Error::other("the starting thread ended early"))??;
        Ok(Self { pid, pidfd, end })
    }

    /// A process that somebody else has started. How it ended is not to be known: as a killed one.
    pub(crate) fn adopt(pid: u32, pidfd: OwnedFd) -> io::Result<Self> {
        let end = Arc::new(End::default());
        let (watched, ended) = (pidfd.try_clone()?, Arc::clone(&end));
        std::thread::Builder::new().name("process".to_owned()).spawn(move || {
            // Readable once it has ended (pidfd_open(2)).
            while poll(&mut [PollFd::new(&watched, PollFlags::IN)], None) == Err(Errno::INTR) {}
            ended.set(lost());
        })?;
        Ok(Self { pid, pidfd, end })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it has.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        *self.end.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait for it to end; `None` if it still runs after `within`.
    pub(crate) fn wait(&self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        let mut status = self.end.status.lock().unwrap_or_else(PoisonError::into_inner);
        while status.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.end.came.wait_timeout(status, left);
            status = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *status
    }

    /// End it at once. One that has ended already is no error.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The thread of one child.
fn keep(launch: Launch, report: &mpsc::SyncSender<io::Result<(u32, OwnedFd)>>, end: &End) {
    let started = spawn(launch).and_then(|mut child| match open_pidfd(&child) {
        Ok(pidfd) => Ok((child, pidfd)),
        Err(error) => {
            // Without a handle nobody could end it later.
            let _ = child.kill().and_then(|()| child.wait());
            Err(error)
        }
    });
    let mut child = match started {
        Ok((child, pidfd)) => {
            // The starter waits for this; if it is gone the child still has to be waited for.
            let _ = report.send(Ok((child.id(), pidfd)));
            child
        }
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    let status = child.wait().unwrap_or_else(|_| lost());
    end.set(status);
}

/// Stands for a process whose end somebody else has collected (SIGCHLD ignored, or no child of
/// ours): killed.
fn lost() -> ExitStatus {
    use std::os::unix::process::ExitStatusExt;
    ExitStatus::from_raw(Signal::KILL.as_raw())
}

fn open_pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process number out of range"))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn spawn(launch: Launch) -> io::Result<Child> {
    if let Some(path) = &launch.namespace {
        let namespace = File::open(path)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .stdin(Stdio::null())
        .stdout(launch.output.try_clone()?)
        .stderr(launch.output)
        // Ctrl-C on the terminal is for this process, which ends the child in order.
        .process_group(0);
    prepare(&mut command, launch.inherited, launch.dies_with_parent);
    command.spawn()
}

/// What the child does between fork and exec.
#[allow(unsafe_code)]
fn prepare(command: &mut Command, inherited: Vec<Arc<OwnedFd>>, dies_with_parent: bool) {
    let parent = rustix::process::getpid();
    let in_child = move || {
        for descriptor in &inherited {
            fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        if dies_with_parent {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before that took effect.
            if getppid() != Some(parent) {
                return Err(Errno::SRCH.into());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed (signal-safety(7)).
    // The closure makes system calls through rustix, which neither allocate nor lock, and its
    // errors are plain numbers.
    unsafe { command.pre_exec(in_child) };
}

/// The number a descriptor goes by, in this process and in a child that inherits it.
pub(crate) fn number(descriptor: &OwnedFd) -> i32 {
    let borrowed: BorrowedFd<'_> = descriptor.as_fd();
    borrowed.as_raw_fd()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn launch(script: &str, output: &File) -> Launch {
        Launch {
            program: "sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            namespace: None,
            inherited: Vec::new(),
            dies_with_parent: true,
            output: output.try_clone().expect("clones"),
        }
    }

    fn text(mut output: &File) -> String {
        use std::io::{Read, Seek, SeekFrom};
        let mut text = String::new();
        output.seek(SeekFrom::Start(0)).expect("seeks");
        output.read_to_string(&mut text).expect("reads");
        text
    }

    #[test]
    fn the_exit_status_and_the_output_are_kept() {
        let output = tempfile::tempfile().expect("a file");
        let process =
            Process::start(launch("echo out; echo err >&2; exit 7", &output)).expect("starts");
        assert_eq!(process.wait(LONG).expect("ends").code(), Some(7));
        assert_eq!(text(&output), "out\nerr\n");
    }

    #[test]
    fn a_process_that_runs_has_no_status_and_dies_when_killed() {
        let output = tempfile::tempfile().expect("a file");
        let process = Process::start(launch("exec sleep 600", &output)).expect("starts");
        assert_eq!(process.wait(Duration::from_millis(50)), None);
        process.kill().expect("killed");
        assert_eq!(process.wait(LONG).expect("ends").signal(), Some(9));
        process.kill().expect("killing it again changes nothing");
    }

    #[test]
    fn the_end_of_an_adopted_process_is_noticed() {
        let output = tempfile::tempfile().expect("a file");
        let ours = Process::start(launch("exec sleep 600", &output)).expect("starts");
        let pid = Pid::from_raw(i32::try_from(ours.pid()).expect("fits")).expect("a pid");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("runs");
        let adopted = Process::adopt(ours.pid(), pidfd).expect("adopted");
        assert_eq!(adopted.wait(Duration::from_millis(50)), None);
        adopted.kill().expect("killed");
        assert_eq!(adopted.wait(LONG).expect("ends").signal(), Some(9));
        assert!(ours.wait(LONG).is_some());
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let output = tempfile::tempfile().expect("a file");
        let mut launch = launch("", &output);
        launch.program = "/no/such/program".into();
        let error = Process::start(launch).expect_err("cannot start");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_the_descriptors_meant_for_it_reach_the_child() {
        let output = tempfile::tempfile().expect("a file");
        let meant: Arc<OwnedFd> = Arc::new(tempfile::tempfile().expect("a file").into());
        let kept: OwnedFd = tempfile::tempfile().expect("a file").into();
        let script = format!(
            "[ -e /proc/self/fd/{} ] && echo meant; [ -e /proc/self/fd/{} ] || echo kept",
            number(&meant),
            number(&kept)
        );
        let mut launch = launch(&script, &output);
        launch.inherited = vec![Arc::clone(&meant)];
        Process::start(launch).expect("starts").wait(LONG).expect("ends");
        assert_eq!(text(&output), "meant\nkept\n");
    }

    #[test]
    fn the_namespace_is_the_childs_and_not_ours() {
        let mut lab = lanekeeper_testbed::netns::Lab::new("process");
        let namespace = lab.namespace("a").expect("made");
        let output = tempfile::tempfile().expect("a file");
        let mut launch = launch("readlink /proc/self/ns/net", &output);
        launch.namespace = Some(namespace.path());
        Process::start(launch).expect("starts").wait(LONG).expect("ends");
        let ours = std::fs::read_link("/proc/self/ns/net").expect("reads");
        assert_ne!(text(&output).trim(), ours.to_string_lossy());
    }
}
