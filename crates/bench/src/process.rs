//! A process under the harness's control: started in its own folder with its output kept, paused
//! and resumed between windows, ended by its own id when dropped, and killed by the kernel should
//! the harness die first.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{BenchError, Stop};

/// One thread of a running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Process it belongs to.
    pub process: u32,
    /// Its own id.
    pub id: u32,
    /// Its name, at most 15 bytes of it.
    pub name: String,
}

impl Thread {
    /// How long the thread has been on a core since it started: field 1 of `schedstat`
    /// (Linux `Documentation/scheduler/sched-stats.rst`).
    ///
    /// # Errors
    /// The thread is gone, or the kernel keeps no such statistics.
    pub fn running_time(&self) -> Result<Duration, BenchError> {
        let path = format!("/proc/{}/task/{}/schedstat", self.process, self.id);
        let text = fs::read_to_string(&path).map_err(BenchError::io(&path))?;
        let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
        nanos.map(Duration::from_nanos).ok_or(BenchError::Unexpected { what: path, got: text })
    }

    /// Whether it is stopped by a signal: state `T` in `stat` (proc(5)).
    fn stopped(&self) -> bool {
        let path = format!("/proc/{}/task/{}/stat", self.process, self.id);
        let text = fs::read_to_string(path).unwrap_or_default();
        // The name before it stands in parentheses and may hold anything.
        text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }

    /// Give the thread a real-time priority (1..=99), so that nothing of ordinary priority
    /// interrupts a window.
    ///
    /// # Errors
    /// `chrt` refused: no permission to use real-time scheduling.
    pub fn real_time(&self, priority: u8) -> Result<(), BenchError> {
        tool("chrt", ["--fifo", "--pid", &priority.to_string(), &self.id.to_string()]).map(drop)
    }
}

/// The threads of a process.
///
/// # Errors
/// The process is gone.
pub fn threads(process: u32) -> Result<Vec<Thread>, BenchError> {
    let folder = format!("/proc/{process}/task");
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(BenchError::io(&folder))? {
        let entry = entry.map_err(BenchError::io(&folder))?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A thread may end between the listing and the reading.
        if let Ok(name) = fs::read_to_string(entry.path().join("comm")) {
            found.push(Thread { process, id, name: name.trim_end().to_owned() });
        }
    }
    Ok(found)
}

/// Run a short command to its end and return what it printed.
///
/// # Errors
/// It could not be started, or it failed; the error carries what it said.
pub fn tool<S: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = S>,
) -> Result<String, BenchError> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::io(program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(BenchError::Failed {
        program: program.to_owned(),
        said: String::from_utf8_lossy(&said).trim().to_owned(),
    })
}

/// Ports that are free: all are held until each is known.
///
/// # Errors
/// There are none.
pub fn free_ports(count: usize) -> Result<Vec<u16>, BenchError> {
    let port = BenchError::io("a port on loopback");
    let held: Result<Vec<TcpListener>, _> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let ports: Result<Vec<u16>, _> =
        held.and_then(|held| held.iter().map(|one| Ok(one.local_addr()?.port())).collect());
    ports.map_err(port)
}

/// A process that runs until it is dropped.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Start `command` (program first) with its output in `folder/NAME.log` and `folder` as
    /// DPDK's run-time folder. It is killed when the calling thread ends, come what may.
    ///
    /// # Errors
    /// The log cannot be written or the program not started.
    pub fn start<S: AsRef<OsStr>>(
        name: &str,
        command: impl IntoIterator<Item = S>,
        folder: &Path,
    ) -> Result<Self, BenchError> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(BenchError::io(log.display()))?;
        let errors = file.try_clone().map_err(BenchError::io(log.display()))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .args(command)
            .env("RUNTIME_DIRECTORY", folder)
            .stdin(Stdio::piped())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(BenchError::io(name))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has printed so far.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn output(&self) -> Result<String, BenchError> {
        let bytes = fs::read(&self.log).map_err(BenchError::io(self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Where to type, if it reads anything.
    pub fn stdin(&mut self) -> Option<&mut ChildStdin> {
        self.child.stdin.as_mut()
    }

    /// Wait until `ready` answers something.
    ///
    /// # Errors
    /// The process ended, `limit` passed, the user asked to stop, or `ready` failed.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        limit: Duration,
        stop: &Stop,
        mut ready: impl FnMut(&Self) -> Result<Option<T>, BenchError>,
    ) -> Result<T, BenchError> {
        let start = Instant::now();
        loop {
            if let Some(answer) = ready(self)? {
                return Ok(answer);
            }
            let ended = self.child.try_wait().map_err(BenchError::io(&self.name))?.is_some();
            if ended || start.elapsed() > limit {
                return Err(self.not_ready(what, ended));
            }
            stop.sleep(Duration::from_millis(5))?;
        }
    }

    /// Wait until it has ended well.
    ///
    /// # Errors
    /// It failed, `limit` passed, or the user asked to stop.
    pub fn finish(mut self, limit: Duration, stop: &Stop) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            let ended = self.child.try_wait().map_err(BenchError::io(&self.name))?;
            match ended {
                Some(status) if status.success() => return Ok(()),
                None if start.elapsed() <= limit => stop.sleep(Duration::from_millis(20))?,
                _ => return Err(self.not_ready("its end", ended.is_some())),
            }
        }
    }

    fn not_ready(&self, what: &str, ended: bool) -> BenchError {
        let output = self.output().unwrap_or_default();
        let lines: Vec<_> = output.lines().collect();
        BenchError::NotReady {
            process: self.name.clone(),
            what: what.to_owned(),
            ended,
            said: lines[lines.len().saturating_sub(12)..].join("\n"),
        }
    }

    /// The thread whose name contains one of `names`, once it is there.
    ///
    /// # Errors
    /// As [`Running::wait_for`].
    pub fn thread(&mut self, names: &[&str], stop: &Stop) -> Result<Thread, BenchError> {
        let what = format!("a thread named {}", names.join(" or "));
        self.wait_for(&what, Duration::from_secs(10), stop, |process| {
            let all = threads(process.id())?;
            Ok(all.into_iter().find(|thread| names.iter().any(|name| thread.name.contains(name))))
        })
    }

    /// Give every thread of it a real-time priority, `worker` the least. The others seldom run,
    /// but must then: they answer for counters, and one of them takes the signal that pauses all.
    ///
    /// # Errors
    /// No permission to use real-time scheduling.
    pub fn prioritise(&self, worker: &Thread) -> Result<(), BenchError> {
        for thread in threads(self.id())? {
            thread.real_time(if thread.id == worker.id { 1 } else { 2 })?;
        }
        Ok(())
    }

    /// Freeze every thread of it; they stand still on return.
    ///
    /// # Errors
    /// It is gone, or does not stop within ten seconds.
    pub fn pause(&self) -> Result<(), BenchError> {
        self.signal(Signal::STOP).map_err(BenchError::io(&self.name))?;
        let start = Instant::now();
        while !threads(self.id())?.iter().all(Thread::stopped) {
            if start.elapsed() > Duration::from_secs(10) {
                let source = io::ErrorKind::TimedOut.into();
                return Err(BenchError::Io { what: format!("pausing {}", self.name), source });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Let it go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<(), BenchError> {
        self.signal(Signal::CONT).map_err(BenchError::io(&self.name))
    }

    /// End it without asking it, as a crash would.
    ///
    /// # Errors
    /// It is gone already.
    pub fn kill(&mut self) -> Result<(), BenchError> {
        self.child.kill().map_err(BenchError::io(&self.name))?;
        self.child.wait().map(drop).map_err(BenchError::io(&self.name))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(kill_process(id, signal)?)
    }
}

impl Drop for Running {
    /// Ends it at once: nothing that the harness starts has anything to put in order, and one that
    /// is frozen or polls at a real-time priority would be long about it.
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to be done about any other refusal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
