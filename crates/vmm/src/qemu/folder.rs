//! Whose a VM's run folder is. A QEMU inherits a lock on a file of its folder, and the kernel takes
//! the lock back when it ends, in whatever way. So there is never a second one in a folder, and one
//! that outlived whoever started it is found again, even if that was killed right after the fork.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::argv::{file, server};
use crate::machine::VmError;

const LOCK: &str = "lock";

/// A child of another thread has our descriptors between its fork and its exec: a lock that is held
/// for a moment means nothing.
const MOMENT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Take the folder for a VM. The lock is to be inherited by its process.
pub(super) fn take(vm: &str, folder: &Path) -> Result<File, VmError> {
    let fail = |error| VmError::Io {
        vm: vm.to_owned(),
        what: format!("locking {}", folder.display()),
        error,
    };
    let taken = fs::create_dir_all(folder).and_then(|()| try_take(folder)).map_err(fail)?;
    taken.ok_or_else(|| VmError::Invalid {
        vm: vm.to_owned(),
        field: "run_folder".to_owned(),
        value: folder.display().to_string(),
        why: "a VM runs in it; adopt that, or end it".to_owned(),
    })
}

fn try_take(folder: &Path) -> io::Result<Option<File>> {
    let path = folder.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    let deadline = Instant::now() + MOMENT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// The process that has the folder.
pub(super) fn holder(folder: &Path) -> io::Result<Option<(u32, OwnedFd)>> {
    let path = match fs::canonicalize(folder.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        path => path?,
    };
    let monitor = server("monitor", &folder.join(file::MONITOR));
    let deadline = Instant::now() + 2 * MOMENT;
    loop {
        for pid in processes()?.filter(|pid| holds(*pid, &path) && names(*pid, &monitor)) {
            let Some(pidfd) = open(pid) else { continue };
            // A number that was given away before it was opened is another process's.
            if holds(pid, &path) && names(pid, &monitor) {
                return Ok(Some((pid, pidfd)));
            }
        }
        match File::open(&path)?.try_lock() {
            Ok(()) => return Ok(None),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {}
            Err(TryLockError::WouldBlock) => {
                let problem = format!(
                    "{} is locked, but by no VM; find out by whom: fuser {0}",
                    path.display()
                );
                return Err(io::Error::other(problem));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        std::thread::sleep(PAUSE);
    }
}

fn processes() -> io::Result<impl Iterator<Item = u32>> {
    let entries = fs::read_dir("/proc")?.filter_map(Result::ok);
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

fn holds(pid: u32, path: &Path) -> bool {
    // What cannot be read is another user's, or gone.
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| target == path)
}

/// Whether a process was started with this argument: one between fork and exec was not yet.
fn names(pid: u32, argument: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|given| given == argument.as_bytes())
}

fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
