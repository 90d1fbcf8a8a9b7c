//! System calls that should not block, and how they are ended when they do.
//!
//! The descriptors that a front end hands over stay its own as well: it can turn off `O_NONBLOCK`,
//! which belongs to both ends, and fill an eventfd's counter, and whoever rings it then waits for
//! ever. So a call on such a descriptor is watched. Another thread looks every 20 ms and interrupts one
//! that takes longer than that; the call returns `EINTR`, and whose it was is stopped.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

/// How often the watch looks.
const TICK: Duration = Duration::from_millis(20);
/// Has no meaning to a process unless it asks for it, and is ignored by default.
const SIGNAL: libc::c_int = libc::SIGURG;

/// Counts the looks of the watch; begins with 1, for 0 means "in no call".
static NOW: AtomicU64 = AtomicU64::new(1);
static THREADS: Mutex<Vec<Arc<Watched>>> = Mutex::new(Vec::new());

/// A descriptor blocks although it was set not to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocks;

/// Ring an eventfd.
///
/// # Errors
/// [`Blocks`].
pub(crate) fn ring(mut bell: &File) -> Result<(), Blocks> {
    // A full counter (EAGAIN) is a bell that already rings; a closed one has no listener.
    interruptible(|| bell.write(&1u64.to_ne_bytes()))
}

/// Take what an eventfd has counted, if anything.
///
/// # Errors
/// [`Blocks`].
pub(crate) fn silence(mut bell: &File) -> Result<(), Blocks> {
    interruptible(|| bell.read(&mut [0; 8]))
}

fn interruptible(call: impl FnOnce() -> std::io::Result<usize>) -> Result<(), Blocks> {
    let interrupted = |result: std::io::Result<usize>| {
        result.is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted)
    };
    let blocks = ENTRY.with(|entry| {
        entry.0.since.store(NOW.load(Ordering::Relaxed), Ordering::Release);
        let result = call();
        entry.0.since.store(0, Ordering::Release);
        interrupted(result)
    });
    if blocks { Err(Blocks) } else { Ok(()) }
}

struct Watched {
    /// The look of the watch before which the call began; 0 outside of calls.
    since: AtomicU64,
    thread: libc::pthread_t,
}

/// The calling thread in the list, for as long as it lives.
struct Entry(Arc<Watched>);

thread_local! {
    static ENTRY: Entry = Entry::new();
}

impl Entry {
    fn new() -> Self {
        start_watch();
        // SAFETY: takes nothing and cannot fail.
        let thread = unsafe { libc::pthread_self() };
        let watched = Arc::new(Watched { since: AtomicU64::new(0), thread });
        threads().push(Arc::clone(&watched));
        Self(watched)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        threads().retain(|watched| !Arc::ptr_eq(watched, &self.0));
    }
}

fn threads() -> std::sync::MutexGuard<'static, Vec<Arc<Watched>>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start_watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeroes is a valid sigaction: no flags, so that calls are not restarted.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        // SAFETY: the handler does nothing at all.
        unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) };
        let watch = std::thread::Builder::new().name("watch".to_owned()).spawn(|| {
            loop {
                std::thread::sleep(TICK);
                look();
            }
        });
        if let Err(error) = watch {
            tracing::error!(%error, "no thread to watch for descriptors that block");
        }
    });
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Interrupts calls that began before the look before this one.
fn look() {
    let now = NOW.fetch_add(1, Ordering::Relaxed);
    for watched in threads().iter() {
        let since = watched.since.load(Ordering::Acquire);
        if since != 0 && since < now {
            // SAFETY: the thread is alive: it takes itself off the list, which is locked, before it
            // ends. A signal that comes after the call has ended interrupts nothing.
            unsafe { libc::pthread_kill(watched.thread, SIGNAL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::Instant;

    #[test]
    fn a_bell_that_blocks_is_let_go_of_and_one_that_does_not_rings() {
        let bell = File::from(eventfd(0, EventfdFlags::empty()).expect("an eventfd"));
        assert_eq!(ring(&bell), Ok(()));
        assert_eq!(silence(&bell), Ok(()));
        let start = Instant::now();
        assert_eq!(silence(&bell), Err(Blocks), "empty, and blocking");
        (&bell).write_all(&(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        assert_eq!(ring(&bell), Err(Blocks), "full, and blocking");
        assert!(start.elapsed() < Duration::from_secs(5));
        let bell = File::from(eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
        (&bell).write_all(&(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        assert_eq!(ring(&bell), Ok(()), "it rings already");
    }
}
