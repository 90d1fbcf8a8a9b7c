//! What keeps this process alive when a VM's memory vanishes under it.
//!
//! The kernel raises SIGBUS for a page of a mapping that its file cannot give: a front end shrank a
//! file that cannot be sealed, or the file has holes and its file system is full. One VM must not
//! end a NIC that serves others. So each mapping is entered in a table; the signal's handler puts
//! empty memory of our own in place of the whole mapping and marks it lost, and the access goes on.
//! Workers look at one counter a round ([`lost_so_far`]) and stop the VFs whose memory is lost.

use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings of one process: 64 VFs with 64 regions each, and a journal for each of their rings.
const MOST: usize = 8_192;

struct Entry {
    /// First byte; 0 for a free entry, 1 for one that is being made.
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [Entry; MOST] = [const {
    Entry { start: AtomicUsize::new(0), len: AtomicUsize::new(0), lost: AtomicBool::new(false) }
}; MOST];
/// Entries from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicUsize = AtomicUsize::new(0);

/// How many mappings were lost since the process started. One that changes means: look.
#[inline]
pub(crate) fn lost_so_far() -> usize {
    LOST.load(Ordering::Relaxed)
}

/// An entry of the table, for as long as its mapping is there.
#[derive(Debug)]
pub(super) struct Guarded(usize);

impl Guarded {
    /// Enters the mapping of `len` bytes at `map`; `None` when the table is full.
    ///
    /// # Safety
    /// The range is one mapping, or part of one, that belongs to the caller, who drops this before
    /// it unmaps it.
    pub(super) unsafe fn new(map: NonNull<u8>, len: usize) -> Option<Self> {
        install_handler();
        let index = TABLE.iter().position(|entry| {
            entry.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        let entry = &TABLE[index];
        entry.lost.store(false, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.start.store(map.addr().get(), Ordering::Release);
        USED.fetch_max(index + 1, Ordering::Release);
        Some(Self(index))
    }

    /// Whether what is mapped there now is no longer the file.
    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        TABLE[self.0].start.store(0, Ordering::Release);
    }
}

/// What was to be done about SIGBUS before: Rust's own handler, or nothing.
static BEFORE: std::sync::OnceLock<libc::sigaction> = std::sync::OnceLock::new();

fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeroes is a valid sigaction: no flags, an empty mask.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut ours = before;
        // SAFETY: both point to a sigaction of our own; asking changes nothing.
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) };
        // Before the handler can run, for it reads this.
        let _ = BEFORE.set(before);
        ours.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler does only what a handler may: atomics, mmap and sigaction.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
    });
}

extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo, which for SIGBUS has the
    // address in it.
    let addr = unsafe { (*info).si_addr() } as usize;
    if replace(addr) {
        return;
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: a sigaction that the kernel gave. The access is repeated on return, and then met by
        // whoever was there before us.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}

/// Puts empty memory in place of the mapping around `addr`, if it is one of ours.
fn replace(addr: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    for entry in &TABLE[..used] {
        let start = entry.start.load(Ordering::Acquire);
        let len = entry.len.load(Ordering::Relaxed);
        if start <= 1 || addr < start || addr - start >= len {
            continue;
        }
        // Two threads may come here for one mapping; the second finds the memory there already.
        if entry.lost.swap(true, Ordering::AcqRel) {
            return true;
        }
        // SAFETY: exactly the range that a caller of `new` owns and has mapped; whoever reads or
        // writes it goes on to do so, in memory that is there.
        let map = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        LOST.fetch_add(1, Ordering::Release);
        return map != libc::MAP_FAILED;
    }
    false
}
