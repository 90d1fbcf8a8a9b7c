//! What a demo leaves on the machine while it runs, and how all of it is found and removed: by the
//! run itself, by `--down`, and by the next run after one that was killed.
//!
//! Nothing has to be remembered for that. Every process of the demo runs in one of its network
//! namespaces, whose names all begin alike, or has the demo's mark in its environment, which those that
//! it starts inherit; every interface goes with its namespace; every file is in one folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::DemoError;

/// Where iproute2 keeps a file for each namespace (ip-netns(8)).
const NAMESPACES: &str = "/run/netns";

/// The variable that a demo's processes have in their environment; its value is the site's folder.
const MARK: &str = "LANEKEEPER_DEMO";

/// Where a demo lives on this machine.
#[derive(Debug)]
pub(super) struct Site {
    folder: PathBuf,
    prefix: String,
    /// Turned to true once nothing may be made any more.
    closed: Mutex<bool>,
}

/// Who runs in a site, in a file of its folder.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
struct Owner {
    pid: i32,
    /// When that process started, in clock ticks after boot: a number that comes back for another
    /// process does not bring this with it.
    started: u64,
    /// The run is over and was left standing on purpose.
    kept: bool,
}

impl Default for Site {
    fn default() -> Self {
        Self::new("/run/lanekeeper/demo", "lkdemo")
    }
}

impl Site {
    fn new(folder: impl Into<PathBuf>, prefix: impl Into<String>) -> Self {
        Self { folder: folder.into(), prefix: prefix.into(), closed: Mutex::new(false) }
    }

    /// The folder that holds every file of the demo.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the names of the demo's namespaces begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Have a process, and those it starts, end with the demo.
    pub(super) fn mark(&self, command: &mut Command) {
        command.env(MARK, &self.folder);
    }

    /// Make the site this process's, after removing what a killed run has left. Returns whether
    /// there was something to remove.
    ///
    /// # Errors
    /// [`DemoError::Busy`] while another run lives, [`DemoError::Kept`] while one is kept up.
    pub(super) fn claim(&self) -> Result<bool, DemoError> {
        let above = self.folder.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(above).map_err(|error| DemoError::file(above, error))?;
        // Two runs that start at once meet here; nothing but this open folder holds the lock.
        let lock = File::open(above).map_err(|error| DemoError::file(above, error))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| DemoError::file(above, error.into()))?;
        match self.owner() {
            Some(owner) if owner.kept => return Err(DemoError::Kept),
            Some(owner) if start_of(owner.pid) == Some(owner.started) => {
                return Err(DemoError::Busy(owner.pid));
            }
            _ => {}
        }
        let left = self.is_there();
        if left {
            self.remove()?;
            fs::create_dir_all(above).map_err(|error| DemoError::file(above, error))?;
        }
        fs::create_dir(&self.folder).map_err(|error| DemoError::file(&self.folder, error))?;
        self.write_owner(false)?;
        Ok(left)
    }

    /// Leave everything standing for others.
    ///
    /// # Errors
    /// [`DemoError::File`].
    pub(super) fn keep(&self) -> Result<(), DemoError> {
        self.write_owner(true)
    }

    /// Whether a run is kept up here.
    pub(super) fn is_kept(&self) -> bool {
        self.owner().is_some_and(|owner| owner.kept)
    }

    /// Take down a run that is kept up, or remove what a killed one left. Returns whether there
    /// was something.
    ///
    /// # Errors
    /// [`DemoError::Busy`] while a run lives; and those of [`Self::remove`].
    pub(super) fn down(&self) -> Result<bool, DemoError> {
        match self.owner() {
            Some(Owner { pid, started, kept: false }) if start_of(pid) == Some(started) => {
                return Err(DemoError::Busy(pid));
            }
            _ => {}
        }
        let left = self.is_there();
        self.remove()?;
        Ok(left)
    }

    fn is_there(&self) -> bool {
        self.folder.exists() || !self.namespaces().is_empty() || !self.marked().is_empty()
    }

    /// Make something that has to be removed later. Refused once [`Self::close`] was called, so
    /// that nothing appears behind the back of the removal.
    ///
    /// # Errors
    /// [`DemoError::Interrupted`], and what `make` returns.
    pub(super) fn make<T>(
        &self,
        make: impl FnOnce() -> Result<T, DemoError>,
    ) -> Result<T, DemoError> {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed { Err(DemoError::Interrupted) } else { make() }
    }

    /// End the run from outside: whatever is being made fails, nothing more is made, and all of it
    /// is removed.
    ///
    /// # Errors
    /// [`DemoError::LeftBehind`].
    pub(super) fn close(&self) -> Result<(), DemoError> {
        // What is being made right now waits for a process: end that first.
        self.end_processes();
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.remove()
    }

    /// Remove every process, namespace, interface and file of the demo.
    ///
    /// # Errors
    /// [`DemoError::LeftBehind`] with what is still there.
    pub(super) fn remove(&self) -> Result<(), DemoError> {
        let mut failed = Vec::new();
        failed.extend(self.end_processes());
        for namespace in self.namespaces() {
            if let Err(why) = ip(&["netns", "delete", &namespace]) {
                failed.push(format!("namespace {namespace}: {why}"));
            }
        }
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                failed.push(format!("{}: {error}", self.folder.display()));
            }
            _ => {}
        }
        if let Some(above) = self.folder.parent() {
            // Only if nothing else of Lanekeeper is in it.
            let _ = fs::remove_dir(above);
        }
        if failed.is_empty() { Ok(()) } else { Err(DemoError::LeftBehind(failed.join("; "))) }
    }

    /// End every process in the namespaces; returns complaints about those that stay.
    fn end_processes(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let namespaces = self.namespaces();
            let within = namespaces.iter().flat_map(|namespace| processes_in(namespace));
            let pids: Vec<Pid> = within.chain(self.marked()).collect();
            if pids.is_empty() {
                return Vec::new();
            }
            if Instant::now() >= deadline {
                return pids
                    .iter()
                    .map(|pid| format!("process {}", pid.as_raw_nonzero()))
                    .collect();
            }
            for pid in pids {
                // It may have ended by itself meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processes with the demo's mark (proc(5), `/proc/PID/environ`). One that has ended and waits for
    /// its parent has no environment any more.
    fn marked(&self) -> Vec<Pid> {
        let mark = format!("{MARK}={}", self.folder.display());
        let is_marked = |pid: &Pid| {
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
            let environment = environment.unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
            .filter(is_marked)
            .collect()
    }

    fn namespaces(&self) -> Vec<String> {
        let begins = format!("{}-", self.prefix);
        fs::read_dir(NAMESPACES)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with(&begins))
            .collect()
    }

    fn owner_file(&self) -> PathBuf {
        self.folder.join("owner.json")
    }

    fn owner(&self) -> Option<Owner> {
        serde_json::from_slice(&fs::read(self.owner_file()).ok()?).ok()
    }

    fn write_owner(&self, kept: bool) -> Result<(), DemoError> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let owner = Owner { pid, started: start_of(pid).unwrap_or(0), kept };
        let text = serde_json::to_vec(&owner).map_err(|error| DemoError::plan(&error))?;
        // Whole or not at all, for whoever reads it meanwhile.
        let (draft, file) = (self.folder.join("owner.new"), self.owner_file());
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &file))
            .map_err(|error| DemoError::file(&file, error))
    }
}

/// When a process started, in clock ticks after boot (proc(5), field 22); `None` without such a
/// process.
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn processes_in(namespace: &str) -> Vec<Pid> {
    let listed = ip(&["netns", "pids", namespace]).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A site of its own for each test, in a folder of its own.
    fn site(label: &str) -> Site {
        let name = format!("lkt{}{label}", std::process::id());
        Site::new(std::env::temp_dir().join(&name).join("demo"), name)
    }

    fn as_if_killed(site: &Site) {
        let owner = Owner { pid: i32::MAX, started: 1, kept: false };
        fs::write(site.owner_file(), serde_json::to_vec(&owner).expect("text")).expect("written");
    }

    #[test]
    fn a_second_run_is_refused_while_the_first_lives() {
        let site = site("busy");
        assert!(!site.claim().expect("free"));
        assert!(matches!(site.claim(), Err(DemoError::Busy(_))));
        assert!(matches!(site.down(), Err(DemoError::Busy(_))));
        site.remove().expect("removed");
        assert!(!site.folder().exists());
    }

    #[test]
    fn what_a_killed_run_left_is_removed_with_its_processes() {
        let site = site("left");
        site.claim().expect("free");
        let namespace = format!("{}-host1", site.prefix());
        ip(&["netns", "add", &namespace]).expect("made");
        let mut left = Command::new("ip")
            .args(["netns", "exec", &namespace, "sleep", "600"])
            .spawn()
            .expect("started");
        while processes_in(&namespace).is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
        as_if_killed(&site);
        assert!(site.claim().expect("taken over"));
        assert!(!Path::new(NAMESPACES).join(&namespace).exists());
        assert!(!left.wait().expect("ended").success());
        site.remove().expect("removed");
    }

    #[test]
    fn a_process_with_the_mark_ends_with_the_demo_and_so_does_one_it_started() {
        let site = site("marked");
        site.claim().expect("free");
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sleep 600 & sleep 600"]);
        site.mark(&mut command);
        let mut marked = command.spawn().expect("started");
        while site.marked().len() < 3 {
            std::thread::sleep(Duration::from_millis(10));
        }
        as_if_killed(&site);
        // Killed, a child of this process waits to be reaped; the rest is nobody's.
        assert!(site.down().expect("taken down"));
        assert!(!marked.wait().expect("ended").success());
        assert_eq!(site.marked(), []);
    }

    #[test]
    fn a_kept_run_stays_until_it_is_taken_down() {
        let site = site("kept");
        site.claim().expect("free");
        site.keep().expect("kept");
        assert!(site.is_kept());
        assert!(matches!(site.claim(), Err(DemoError::Kept)));
        assert!(site.down().expect("taken down"));
        assert!(!site.down().expect("nothing there"));
    }

    #[test]
    fn nothing_is_made_after_the_site_is_closed() {
        let site = site("closed");
        site.claim().expect("free");
        assert_eq!(site.make(|| Ok(7)).expect("open"), 7);
        site.close().expect("removed");
        assert!(matches!(site.make(|| Ok(7)), Err(DemoError::Interrupted)));
        assert!(!site.folder().exists());
    }

    #[test]
    fn a_process_number_that_came_back_is_no_owner() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert!(start_of(own).is_some_and(|started| started > 0));
        assert_eq!(start_of(i32::MAX), None);
    }
}
