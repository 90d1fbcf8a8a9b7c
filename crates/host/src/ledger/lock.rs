//! Locks between processes and threads: `flock` on a file of its own, with a deadline. The kernel
//! lets go of it when its holder dies.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{LedgerError, io};

/// How long to wait before looking again; `flock` itself knows no deadline.
const POLL: Duration = Duration::from_millis(3);

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
    remove: Option<PathBuf>,
}

impl FileLock {
    pub(crate) fn take(path: &Path, until: Instant) -> Result<Self, LedgerError> {
        let started = Instant::now();
        loop {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
                .map_err(io(path, "open the lock"))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // A file that was removed between opening and locking is nobody's lock.
                Ok(()) if still_there(&file, path) => {
                    return Ok(Self { _file: file, remove: None });
                }
                Ok(()) | Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(io(path, "lock")(errno.into())),
            }
            if Instant::now() >= until {
                let what = path.display().to_string();
                return Err(LedgerError::Locked { what, after: started.elapsed() });
            }
            std::thread::sleep(POLL);
        }
    }

    /// As [`FileLock::take`]; the file goes with the lock.
    pub(crate) fn take_and_remove(path: &Path, until: Instant) -> Result<Self, LedgerError> {
        let mut lock = Self::take(path, until)?;
        lock.remove = Some(path.to_owned());
        Ok(lock)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if let Some(path) = &self.remove {
            // Left behind it is a file of no bytes, which the next holder takes.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn still_there(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
