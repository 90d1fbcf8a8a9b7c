//! What lets a packed ring go on after this process was killed in the middle of a batch.
//!
//! A packed ring has no index that says how far it was used, and a used entry overwrites the
//! descriptor it answers: a batch half written cannot be read again. So the journal, in memory that
//! outlives the process, says where the ring is:
//!
//! - *committed*: everything before a position is in the ring;
//! - *gathering*: the used entry that was kept back, the batch's first. Entries of one slot behind it
//!   go to the ring at once and are told by their flags: the driver looks for the first and sees none
//!   of them. What the ring alone does not tell, entries of several slots and entries that are
//!   nothing without each other, is noted before it goes there;
//! - *publishing*: the first entry goes to the ring now, and where the ring is then.
//!
//! One 8-byte store leads from each state to the next, and every state can be finished or repeated.
//! Frames that were delivered but not noted as used are delivered again: Ethernet allows duplicates, a
//! ring does not allow lost descriptors.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use super::memory::{GuestMemory, MemoryError, Region, Window};
use super::{MAX_BUFFERS, Position, RingFault, RingKind};

/// Bytes of one journal in its file; a multiple of a page.
pub const JOURNAL_BYTES: u64 = 12288;

/// Marks a journal that was written at least once. The low 16 bits are 0 when committed, one more
/// than the number of noted entries while gathering, and [`PUBLISHING`].
const STATE_VALID: u32 = 0x4a4d_0000;
const PUBLISHING: u16 = 0x8000;
const STATE: usize = 0;
const AFTER: usize = 8;
const ENTRIES: usize = 64;
const ENTRY_BYTES: usize = 16;

/// A used entry on its way to the ring: where, how many slots it answers, and the half descriptor
/// with length, id and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsedWord {
    pub(super) slot: u16,
    pub(super) slots: u16,
    pub(super) word: u64,
}

/// What a journal says.
pub(super) enum Record {
    /// Everything before this is in the ring.
    Committed(Position),
    /// A batch was being made.
    Gathering {
        /// Its first entry, which is not in the ring.
        first: UsedWord,
        /// How many entries behind it are noted; those may or may not be in the ring.
        noted: usize,
    },
    /// All of a batch but its first entry is in the ring, and that may be.
    Publishing {
        /// Its first entry.
        first: UsedWord,
        /// Where the ring is once that is stored.
        after: Position,
    },
}

/// Crash record of one ring, in a file (a memfd kept by someone else, or one in `/run`).
pub struct Journal {
    window: Window,
}

impl Journal {
    /// Entries it has room to note: a batch, plus one more frame over as many buffers as may be.
    pub(super) const ROOM: usize = 2 * MAX_BUFFERS + 64;

    /// Opens the journal at byte `offset` of a file of at least `offset` + [`JOURNAL_BYTES`].
    /// Zeroes there are an empty journal.
    ///
    /// # Errors
    /// [`MemoryError`] when the file is too short or cannot be mapped.
    pub fn open(file: File, offset: u64) -> Result<Self, MemoryError> {
        let region = Region {
            guest_addr: 0,
            size: JOURNAL_BYTES,
            user_addr: 0,
            mmap_offset: offset,
            file: Arc::new(file),
        };
        let memory = Arc::new(GuestMemory::map(vec![region])?);
        let misplaced = |_: RingFault| MemoryError::RegionSize { guest_addr: 0, size: offset };
        let window = Window::new(&memory, 0, JOURNAL_BYTES as usize, 8).map_err(misplaced)?;
        Ok(Self { window })
    }

    /// Notes used entry `index` of those to be noted; counts with the next [`Journal::gather`].
    #[inline(always)]
    pub(super) fn note(&self, index: usize, used: UsedWord) {
        self.put(index + 1, used);
    }

    /// Used entry `index` as noted.
    pub(super) fn noted(&self, index: usize) -> UsedWord {
        self.get(index + 1)
    }

    /// States that a batch is being made that begins with `first`.
    #[inline(always)]
    pub(super) fn begin(&self, first: UsedWord, noted: usize) {
        self.put(0, first);
        self.gather(noted);
    }

    /// States how many entries of the batch are noted.
    #[inline(always)]
    pub(super) fn gather(&self, noted: usize) {
        self.set_state(noted as u16 + 1, 0);
    }

    /// States that all of the batch is in the ring but its first entry, which goes there now.
    #[inline(always)]
    pub(super) fn publish(&self, after: Position) {
        let base = u64::from(after.to_vring_base(RingKind::Packed));
        self.window.store_u64(AFTER, base, Relaxed);
        self.set_state(PUBLISHING, 0);
    }

    /// States that everything before `at` is in the ring.
    #[inline(always)]
    pub(super) fn commit(&self, at: Position) {
        self.set_state(0, at.to_vring_base(RingKind::Packed));
    }

    #[inline(always)]
    fn put(&self, place: usize, used: UsedWord) {
        let at = ENTRIES + ENTRY_BYTES * place;
        self.window.store_u64(at, used.word, Relaxed);
        let slots = u64::from(used.slot) | u64::from(used.slots) << 16;
        self.window.store_u64(at + 8, slots, Relaxed);
    }

    fn get(&self, place: usize) -> UsedWord {
        let at = ENTRIES + ENTRY_BYTES * place;
        let word = self.window.load_u64(at, Relaxed);
        let slots = self.window.load_u64(at + 8, Relaxed);
        UsedWord { slot: slots as u16, slots: (slots >> 16) as u16, word }
    }

    #[inline(always)]
    fn set_state(&self, state: u16, base: u32) {
        let state = STATE_VALID | u32::from(state);
        self.window.store_u64(STATE, u64::from(state) << 32 | u64::from(base), Release);
        // What a killed process leaves is decided by its own order of stores, so the compiler is
        // the only one to hold back: the ring's stores come after this one.
        compiler_fence(SeqCst);
    }

    /// `None` when nothing was ever written.
    pub(super) fn read(&self) -> Option<Record> {
        let state = self.window.load_u64(STATE, Acquire);
        let (base, state) = (state as u32, (state >> 32) as u32);
        if state & 0xffff_0000 != STATE_VALID {
            return None;
        }
        Some(match state as u16 {
            0 => Record::Committed(position(base)),
            PUBLISHING => {
                let after = position(self.window.load_u64(AFTER, Relaxed) as u32);
                Record::Publishing { first: self.get(0), after }
            }
            count => {
                let noted = usize::from(count - 1).min(Self::ROOM);
                Record::Gathering { first: self.get(0), noted }
            }
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
