//! What lets a packed ring go on after this process was killed in the middle of a publication.
//!
//! A packed ring has no index that says how far it was used, and a used entry overwrites the
//! descriptor it answers: a batch half written cannot be read again. So before its first store to
//! the ring a batch's used entries, and the position after them, are written to a journal in memory
//! that outlives the process; afterwards the position is committed. One 8-byte store switches
//! between the two states, and every state in between can be finished or repeated.
//!
//! Frames that were delivered but whose batch was not in the journal yet are delivered again:
//! Ethernet allows duplicates, a ring does not allow lost descriptors.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use super::memory::{GuestMemory, MemoryError, Region, Window};
use super::{MAX_BUFFERS, Position, RingFault, RingKind};

/// Bytes of one journal in its file; a multiple of a page.
pub const JOURNAL_BYTES: u64 = 12288;

/// Marks a journal that was written at least once; the low 16 bits count pending entries.
const STATE_VALID: u32 = 0x4a4c_0000;
const STATE: usize = 0;
const AFTER: usize = 8;
const ENTRIES: usize = 64;
const ENTRY_BYTES: usize = 16;

/// A used entry on its way to the ring: where, and the half descriptor with length, id and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsedWord {
    pub(super) slot: u16,
    pub(super) word: u64,
}

/// What a journal says.
pub(super) struct Record {
    /// First used entry of a batch that may or may not be in the ring.
    pub(super) first: Option<UsedWord>,
    /// Number of the batch's other used entries.
    pub(super) noted: usize,
    /// Position once they all are.
    pub(super) after: Position,
}

/// Crash record of one ring, in a file (a memfd kept by someone else, or one in `/run`).
pub struct Journal {
    window: Window,
}

impl Journal {
    /// Used entries it has room for: a batch, plus one more frame over as many buffers as may be.
    pub(super) const ROOM: usize = 2 * MAX_BUFFERS + 64;

    /// Opens the journal at byte `offset` of a file of at least `offset` + [`JOURNAL_BYTES`].
    /// Zeroes there are an empty journal.
    ///
    /// # Errors
    /// [`MemoryError`] when the file is too short or cannot be mapped.
    pub fn open(file: File, offset: u64) -> Result<Self, MemoryError> {
        let region =
            Region { guest_addr: 0, size: JOURNAL_BYTES, user_addr: 0, mmap_offset: offset, file };
        let memory = Arc::new(GuestMemory::map(vec![region])?);
        let misplaced = |_: RingFault| MemoryError::RegionSize { guest_addr: 0, size: offset };
        let window = Window::new(&memory, 0, JOURNAL_BYTES as usize, 8).map_err(misplaced)?;
        Ok(Self { window })
    }

    /// Notes used entry `index` of a batch, not counting its first.
    #[inline(always)]
    pub(super) fn note(&self, index: usize, used: UsedWord) {
        self.put(index + 1, used);
    }

    /// Used entry `index` as noted.
    #[inline(always)]
    pub(super) fn noted(&self, index: usize) -> UsedWord {
        self.get(index + 1)
    }

    /// States that a batch goes to the ring now: its first entry, and as many noted ones.
    #[inline]
    pub(super) fn intend(&self, first: UsedWord, noted: usize, after: Position) {
        self.put(0, first);
        let base = u64::from(after.to_vring_base(RingKind::Packed));
        self.window.store_u64(AFTER, base, Relaxed);
        self.set_state(noted as u16 + 1, 0);
    }

    #[inline(always)]
    fn put(&self, place: usize, used: UsedWord) {
        let at = ENTRIES + ENTRY_BYTES * place;
        self.window.store_u64(at, used.word, Relaxed);
        self.window.store_u64(at + 8, u64::from(used.slot), Relaxed);
    }

    #[inline(always)]
    fn get(&self, place: usize) -> UsedWord {
        let at = ENTRIES + ENTRY_BYTES * place;
        let word = self.window.load_u64(at, Relaxed);
        UsedWord { slot: self.window.load_u64(at + 8, Relaxed) as u16, word }
    }

    /// Notes that everything before `at` is in the ring.
    #[inline]
    pub(super) fn commit(&self, at: Position) {
        self.set_state(0, at.to_vring_base(RingKind::Packed));
    }

    #[inline(always)]
    fn set_state(&self, pending: u16, base: u32) {
        let state = STATE_VALID | u32::from(pending);
        self.window.store_u64(STATE, u64::from(state) << 32 | u64::from(base), Release);
        // What a killed process leaves is decided by its own order of stores, so the compiler is
        // the only one to hold back: the ring's stores come after this one.
        compiler_fence(SeqCst);
    }

    /// Turns the last commit back into the statement before it, as a crash in between leaves it.
    #[cfg(test)]
    pub(super) fn restate(&self, entries: u16) {
        self.set_state(entries, 0);
    }

    /// `None` when nothing was ever written.
    pub(super) fn read(&self) -> Option<Record> {
        let state = self.window.load_u64(STATE, Acquire);
        let (base, state) = (state as u32, (state >> 32) as u32);
        if state & 0xffff_0000 != STATE_VALID {
            return None;
        }
        let count = usize::from(state as u16).min(Self::ROOM);
        let base = if count == 0 { base } else { self.window.load_u64(AFTER, Relaxed) as u32 };
        Some(Record {
            first: (count > 0).then(|| self.get(0)),
            noted: count.saturating_sub(1),
            after: position(base),
        })
    }
}

/// Unlike `Position::from_vring_base`, takes the upper half as it is: both were written here.
fn position(base: u32) -> Position {
    let (low, high) = (base as u16, (base >> 16) as u16);
    Position {
        next: low & 0x7fff,
        wrap: low >> 15 == 1,
        used_next: high & 0x7fff,
        used_wrap: high >> 15 == 1,
    }
}
