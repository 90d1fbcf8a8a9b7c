//! The machine a probe runs on, reached by command: what a VM driver, a namespace or a remote
//! shell implements, and the implementation for this machine.

use std::fmt;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// What a command left behind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Output {
    /// Exit status; `128 + signal` when a signal ended it, as a shell says it.
    pub status: i32,
    /// Standard output, bytes that are no UTF-8 replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

impl Output {
    /// Ended with status 0.
    pub fn success(&self) -> bool {
        self.status == 0
    }

    /// The last lines a person needs to see when the command failed: standard error, or standard
    /// output where a tool complains there.
    pub fn complaint(&self) -> String {
        let text =
            if self.stderr.trim().is_empty() { self.stdout.trim() } else { self.stderr.trim() };
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(4)..].join("; ")
    }
}

/// Why a command could not be run to its end. A command that ran and failed is no such error: its
/// [`Output`] says so.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The machine does not answer, or stopped answering.
    #[error("{host} does not answer: {why}")]
    Unreachable {
        /// Which machine.
        host: String,
        /// What the line to it said.
        why: String,
    },
    /// The command did not end in time. It has been stopped.
    #[error("'{command}' on {host} had not ended after {after:?}")]
    Deadline {
        /// Which machine.
        host: String,
        /// What was run.
        command: String,
        /// How long was waited.
        after: Duration,
    },
    /// The command ended with a status that is not 0 where only 0 will do.
    #[error("'{command}' on {host} failed with status {status}: {complaint}")]
    Failed {
        /// Which machine.
        host: String,
        /// What was run.
        command: String,
        /// Its exit status.
        status: i32,
        /// Its last words.
        complaint: String,
    },
}

/// A machine on which commands can be run as root.
///
/// Commands are POSIX shell text, run by `sh -c`. Several may run at once, from several threads.
pub trait Host: Send + Sync {
    /// What the machine is called in reports.
    fn name(&self) -> &str;

    /// Run a command to its end.
    ///
    /// # Errors
    /// [`HostError::Unreachable`], and [`HostError::Deadline`] once `within` is over; the command
    /// and its children are then stopped.
    fn run(&self, command: &str, within: Duration) -> Result<Output, HostError> {
        let mut job = self.start(command)?;
        if let Some(output) = job.wait(within)? {
            return Ok(output);
        }
        job.stop()?;
        Err(HostError::Deadline {
            host: self.name().to_owned(),
            command: command.to_owned(),
            after: within,
        })
    }

    /// Start a command that goes on in the background.
    ///
    /// # Errors
    /// [`HostError::Unreachable`].
    fn start(&self, command: &str) -> Result<Box<dyn Job + '_>, HostError>;

    /// Run a command that must succeed, and return its standard output.
    ///
    /// # Errors
    /// Those of [`Host::run`], and [`HostError::Failed`] on any status but 0.
    fn check(&self, command: &str, within: Duration) -> Result<String, HostError> {
        let output = self.run(command, within)?;
        if output.success() {
            return Ok(output.stdout);
        }
        Err(HostError::Failed {
            host: self.name().to_owned(),
            command: command.to_owned(),
            status: output.status,
            complaint: output.complaint(),
        })
    }
}

impl fmt::Debug for dyn Host + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.name())
    }
}

/// A command that runs in the background. Dropping it stops it and its children.
pub trait Job: Send {
    /// What the command left behind, once it has ended; `None` while it runs.
    ///
    /// # Errors
    /// [`HostError::Unreachable`].
    fn poll(&mut self) -> Result<Option<Output>, HostError>;

    /// End the command and its children if they still run. Calling it again changes nothing.
    ///
    /// # Errors
    /// [`HostError::Unreachable`].
    fn stop(&mut self) -> Result<Output, HostError>;

    /// Wait for the command to end by itself; `None` if it still runs after `within`.
    ///
    /// # Errors
    /// [`HostError::Unreachable`].
    fn wait(&mut self, within: Duration) -> Result<Option<Output>, HostError> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(output) = self.poll()? {
                return Ok(Some(output));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// This machine, or one network namespace of it.
#[derive(Clone, Debug)]
pub struct LocalHost {
    name: String,
    namespace: Option<String>,
}

impl LocalHost {
    /// This machine, in the namespaces of this process.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), namespace: None }
    }

    /// A network namespace that `ip netns` knows, named in reports as it is.
    pub fn in_namespace(namespace: impl Into<String>) -> Self {
        let namespace = namespace.into();
        Self { name: namespace.clone(), namespace: Some(namespace) }
    }

    fn spawn(&self, command: &str) -> Result<LocalJob, HostError> {
        let mut process = if let Some(namespace) = &self.namespace {
            let mut process = Command::new("ip");
            process.args(["netns", "exec", namespace, "sh", "-c", command]);
            process
        } else {
            let mut process = Command::new("sh");
            process.args(["-c", command]);
            process
        };
        let mut child = process
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| self.unreachable(&error))?;
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Ok(LocalJob { host: self.name.clone(), child, stdout, stderr, ended: None })
    }

    fn unreachable(&self, error: &std::io::Error) -> HostError {
        HostError::Unreachable { host: self.name.clone(), why: error.to_string() }
    }
}

impl Host for LocalHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, command: &str) -> Result<Box<dyn Job + '_>, HostError> {
        Ok(Box::new(self.spawn(command)?))
    }
}

/// Reads a pipe to its end on a thread of its own, so that a full pipe never holds the command up.
fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks has given what it had.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

struct LocalJob {
    host: String,
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    ended: Option<Output>,
}

impl LocalJob {
    /// Children that outlive the command would keep its pipes open for ever, so the whole group
    /// goes when the command does.
    fn end_group(&self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Already gone is what is wanted.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn finish(&mut self, status: std::process::ExitStatus) -> Output {
        self.end_group();
        let text = |pipe: Option<JoinHandle<String>>| {
            pipe.and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        let status =
            status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        let output =
            Output { status, stdout: text(self.stdout.take()), stderr: text(self.stderr.take()) };
        self.ended = Some(output.clone());
        output
    }

    fn lost(&self, error: &std::io::Error) -> HostError {
        HostError::Unreachable { host: self.host.clone(), why: error.to_string() }
    }
}

impl Job for LocalJob {
    fn poll(&mut self) -> Result<Option<Output>, HostError> {
        if self.ended.is_some() {
            return Ok(self.ended.clone());
        }
        match self.child.try_wait() {
            Ok(Some(status)) => Ok(Some(self.finish(status))),
            Ok(None) => Ok(None),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn stop(&mut self) -> Result<Output, HostError> {
        if let Some(output) = self.poll()? {
            return Ok(output);
        }
        self.end_group();
        let status = self.child.wait().map_err(|error| self.lost(&error))?;
        Ok(self.finish(status))
    }
}

impl Drop for LocalJob {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(10);

    #[test]
    fn a_command_gives_its_output_and_status() {
        let output =
            LocalHost::new("here").run("echo out; echo err >&2; exit 3", SHORT).expect("runs");
        let want = Output { status: 3, stdout: "out\n".to_owned(), stderr: "err\n".to_owned() };
        assert_eq!(output, want);
    }

    #[test]
    fn a_command_that_must_succeed_says_how_it_failed() {
        let error = LocalHost::new("here").check("echo no such thing >&2; exit 2", SHORT);
        let text = error.expect_err("fails").to_string();
        assert!(text.contains("here") && text.contains("no such thing"), "{text}");
    }

    #[test]
    fn a_command_that_does_not_end_is_stopped_with_its_children() {
        let note = std::env::temp_dir().join(format!("lane-child-{}", std::process::id()));
        let command = format!("sleep 600 & echo $! > {}; wait", note.display());
        let error = LocalHost::new("here").run(&command, Duration::from_millis(300));
        assert!(matches!(error, Err(HostError::Deadline { .. })), "{error:?}");
        let child = std::fs::read_to_string(&note).expect("the child was started");
        std::fs::remove_file(&note).expect("removable");
        let runs = || {
            let status = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            status.is_ok_and(|status| status.contains("(sleep) S"))
        };
        let deadline = Instant::now() + SHORT;
        while runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!runs(), "the child of the stopped command still runs");
    }

    #[test]
    fn more_output_than_a_pipe_holds_does_not_hold_the_command_up() {
        let output = LocalHost::new("here").check("head -c 1000000 /dev/zero", SHORT);
        assert_eq!(output.expect("ends").len(), 1_000_000);
    }

    #[test]
    fn stopping_a_job_twice_gives_what_it_wrote_both_times() {
        let host = LocalHost::new("here");
        let mut job = host.start("echo started; sleep 600").expect("starts");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(job.poll().expect("polls"), None);
        let first = job.stop().expect("stops");
        assert_eq!((first.status, first.stdout.as_str()), (137, "started\n"));
        assert_eq!(job.stop().expect("stops"), first);
    }

    #[test]
    fn a_child_that_stays_behind_does_not_hold_the_answer_back() {
        let begin = Instant::now();
        let output = LocalHost::new("here").run("sleep 600 & echo done", SHORT).expect("ends");
        assert_eq!(output.stdout, "done\n");
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}
