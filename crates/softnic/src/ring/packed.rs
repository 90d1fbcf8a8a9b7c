//! Packed virtqueues (2.8), device side.

use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::chain::{
    Chain, DESC_BYTES, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Direction, Plain, Pool, READABLE,
    Walk, passes_event, plain, table_entry,
};
use super::journal::{Journal, Record, UsedWord};
use super::memory::{GuestMemory, Table, Translator, Window};
use super::queue::{Ring, UsedChain};
use super::{BATCH, MAX_BUFFERS, MAX_RING_SIZE, Position, RingFault, RingSpec};

const DESC_AVAIL: u16 = 1 << 7;
const DESC_USED: u16 = 1 << 15;

/// Event suppression structure: 16 bits of slot and wrap counter, then 16 bits of flags (2.8.10).
const EVENT_BYTES: usize = 4;
const EVENT_ENABLE: u16 = 0;
const EVENT_DISABLE: u16 = 1;
const EVENT_DESC: u16 = 2;

/// A place in the ring. `slot` is always below the ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    slot: u16,
    wrap: bool,
}

impl Place {
    fn new(slot: u16, wrap: bool, size: u16) -> Result<Self, RingFault> {
        if slot >= size {
            return Err(RingFault::IndexOutOfRange { index: slot, size });
        }
        Ok(Self { slot, wrap })
    }

    /// `slots` further; `slots` is at most `size`, which a walk checks.
    #[inline(always)]
    fn advance(&mut self, slots: u16, size: u16) {
        let slot = self.slot + slots;
        if slot >= size {
            self.slot = slot - size;
            self.wrap = !self.wrap;
        } else {
            self.slot = slot;
        }
    }

    /// As the event suppression structures have it.
    fn to_event(self) -> u16 {
        self.slot | (u16::from(self.wrap) << 15)
    }
}

pub(super) struct PackedRing {
    desc: Table<DESC_BYTES>,
    driver_event: Window,
    device_event: Window,
    translator: Translator,
    size: u16,
    indirect: bool,
    event_idx: bool,
    in_order: bool,
    next: Place,
    used_next: Place,
    /// First used entry of the batch in the making, which is stored last: the driver looks for it
    /// and sees none of those behind it before.
    first: Option<UsedWord>,
    /// Entries of the batch in the making that are noted in the journal.
    noted: usize,
    journal: Option<Journal>,
    /// `used_next` at the last decision about an interrupt, if there was one.
    signalled: Option<Place>,
}

/// Length, id and flags: the half of a descriptor that both sides write, always in one piece.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    fn len(self) -> u32 {
        self.0 as u32
    }

    fn id(self) -> u16 {
        (self.0 >> 32) as u16
    }

    fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }

    fn used(id: u16, len: u32, wrap: bool) -> u64 {
        let wrap = if wrap { DESC_AVAIL | DESC_USED } else { 0 };
        let write = if len > 0 { DESC_WRITE } else { 0 };
        u64::from(len) | u64::from(id) << 32 | u64::from(wrap | write) << 48
    }

    /// 2.8.1: available if the avail flag matches the driver's wrap counter and the used flag
    /// does not.
    #[inline(always)]
    fn is_available(self, wrap: bool) -> bool {
        let wanted = if wrap { DESC_AVAIL } else { DESC_USED };
        self.flags() & (DESC_AVAIL | DESC_USED) == wanted
    }

    /// 2.8.1: used in this lap if both flags match its wrap counter. Every slot was made available
    /// in each lap before, so one that was not used in this lap differs.
    fn is_used(self, wrap: bool) -> bool {
        let wanted = if wrap { DESC_AVAIL | DESC_USED } else { 0 };
        self.flags() & (DESC_AVAIL | DESC_USED) == wanted
    }
}

impl PackedRing {
    pub(super) fn new(
        memory: Arc<GuestMemory>,
        spec: &RingSpec,
        at: Position,
        journal: Option<Journal>,
    ) -> Result<Self, RingFault> {
        let size = spec.size;
        if size == 0 || size > MAX_RING_SIZE {
            return Err(RingFault::BadSize { size });
        }
        let ring = Self {
            desc: Table::new(&memory, spec.desc, size, DESC_BYTES)?,
            driver_event: Window::new(&memory, spec.avail, EVENT_BYTES, 4)?,
            device_event: Window::new(&memory, spec.used, EVENT_BYTES, 4)?,
            translator: Translator::new(memory),
            size,
            indirect: spec.indirect,
            event_idx: spec.event_idx,
            in_order: spec.in_order,
            next: Place::new(at.next, at.wrap, size)?,
            used_next: Place::new(at.used_next, at.used_wrap, size)?,
            first: None,
            noted: 0,
            journal,
            signalled: None,
        };
        if let Some(journal) = &ring.journal {
            journal.commit(ring.position());
        }
        Ok(ring)
    }

    /// Continues a ring from its journal: finishes the batch that was being published, if there
    /// was one. A ring without any used flag was set up anew meanwhile and starts from the front,
    /// as does one whose journal is empty.
    pub(super) fn resume(
        memory: Arc<GuestMemory>,
        spec: &RingSpec,
        journal: Journal,
    ) -> Result<Self, RingFault> {
        let record = journal.read();
        let mut ring = Self::new(memory, spec, Position::START, None)?;
        let touched = (0..spec.size).any(|slot| ring.word(slot, Relaxed).flags() & DESC_USED != 0);
        if let Some(record) = record.filter(|_| touched) {
            let (next, used_next) = ring.finish(&record, &journal)?;
            ring.next = next;
            ring.used_next = used_next;
        }
        journal.commit(ring.position());
        ring.journal = Some(journal);
        Ok(ring)
    }

    /// Brings the ring to the end of the batch that a record speaks of; where it is then.
    fn finish(&self, record: &Record, journal: &Journal) -> Result<(Place, Place), RingFault> {
        match *record {
            Record::Committed(at) => self.places(at),
            Record::Publishing { first, after } => {
                if self.still_available(first)? {
                    self.store(first, Release);
                }
                self.places(after)
            }
            Record::Gathering { first, noted } => {
                let start = self.place_of(first)?;
                let mut at = start;
                if self.still_available(first)? {
                    at.advance(first.slots.min(self.size), self.size);
                    self.store_gathered(&mut at, journal, noted);
                    self.store(first, Release);
                }
                Ok((at, at))
            }
        }
    }

    /// Goes over the entries behind a batch's first and stores those that are only noted, up to the
    /// last that was made.
    fn store_gathered(&self, at: &mut Place, journal: &Journal, noted: usize) {
        let mut next_noted = (0..noted).map(|index| journal.noted(index)).peekable();
        for _ in 0..self.size {
            if let Some(used) = next_noted.next_if(|used| used.slot == at.slot) {
                self.store(used, Relaxed);
                at.advance(used.slots.min(self.size), self.size);
            } else if self.word(at.slot, Relaxed).is_used(at.wrap) {
                at.advance(1, self.size);
            } else {
                return;
            }
        }
    }

    fn places(&self, at: Position) -> Result<(Place, Place), RingFault> {
        Ok((
            Place::new(at.next, at.wrap, self.size)?,
            Place::new(at.used_next, at.used_wrap, self.size)?,
        ))
    }

    /// The lap's wrap counter is the used flag that the entry sets.
    fn place_of(&self, used: UsedWord) -> Result<Place, RingFault> {
        Place::new(used.slot, Word(used.word).flags() & DESC_USED != 0, self.size)
    }

    fn still_available(&self, used: UsedWord) -> Result<bool, RingFault> {
        let Place { slot, wrap } = self.place_of(used)?;
        Ok(self.word(slot, Acquire).is_available(wrap))
    }

    #[inline(always)]
    fn word(&self, slot: u16, order: Ordering) -> Word {
        Word(self.desc.load_u64::<8>(slot, order))
    }

    #[inline(always)]
    fn store(&self, used: UsedWord, order: Ordering) {
        self.desc.store_u64::<8>(used.slot, used.word, order);
    }

    /// Where the next used entry goes, and that entry.
    #[inline(always)]
    fn next_used(&mut self, id: u16, slots: u16, len: u32) -> UsedWord {
        let Place { slot, wrap } = self.used_next;
        self.used_next.advance(slots, self.size);
        UsedWord { slot, slots, word: Word::used(id, len, wrap) }
    }

    #[inline(always)]
    fn push_used(&mut self, id: u16, slots: u16, len: u32) {
        let used = self.next_used(id, slots, len);
        if self.first.is_none() {
            self.first = Some(used);
            if let Some(journal) = &self.journal {
                journal.begin(used, 0);
            }
            return;
        }
        if slots != 1
            && let Some(journal) = &self.journal
        {
            journal.note(self.noted, used);
            self.noted += 1;
            journal.gather(self.noted);
        }
        self.store(used, Relaxed);
    }

    /// Asks for the lines of the next `count` descriptors. To write, because used entries go to the
    /// same lines.
    #[inline(always)]
    fn prefetch_descriptors(&self, count: usize) {
        const PER_LINE: u16 = (64 / DESC_BYTES) as u16;
        let mut place = self.next;
        for _ in 0..=count.div_ceil(usize::from(PER_LINE)) {
            self.desc.prefetch_write(place.slot);
            if PER_LINE >= self.size {
                return;
            }
            place.advance(PER_LINE, self.size);
        }
    }

    /// The chain at `next` if it is available and plain.
    #[inline(always)]
    fn plain<const DIR: Direction>(&self) -> Option<Plain> {
        let Place { slot, wrap } = self.next;
        let word = self.word(slot, Acquire);
        if !word.is_available(wrap) {
            return None;
        }
        let addr = self.desc.load_u64::<0>(slot, Relaxed);
        plain::<DIR>(&self.translator, word.id(), addr, word.len(), word.flags())
    }

    /// Walks the indirect table of a packed ring: entries in a row, no next (2.8.7).
    fn walk_table<const DIR: Direction>(
        walk: &mut Walk<'_, DIR>,
        addr: u64,
        len: u32,
    ) -> Result<(), RingFault> {
        let (table, size) = walk.table(addr, len)?;
        for index in 0..size {
            let (addr, len, _id, flags) = table_entry(table, index);
            if flags & DESC_INDIRECT != 0 {
                return Err(RingFault::NestedIndirect);
            }
            // DPDK's driver (22.11 at least) leaves the write flag set on the header entry of the
            // tables it sends; nothing is written there, so the flag is not held against it.
            let flags = if DIR == READABLE { flags & !DESC_WRITE } else { flags };
            walk.add(addr, len, flags)?;
        }
        Ok(())
    }
}

impl Ring for PackedRing {
    type Mark = Place;

    #[inline(always)]
    fn mark(&self) -> Place {
        self.next
    }

    #[inline(always)]
    fn rewind(&mut self, mark: Place) {
        self.next = mark;
    }

    #[inline]
    fn pop(&mut self, pool: &mut Pool, chains: &mut [Chain; BATCH]) -> Result<usize, RingFault> {
        let mut done = 0;
        self.prefetch_descriptors(BATCH);
        for chain in chains {
            if !pool.has_room() {
                break;
            }
            if let Some(plain) = self.plain::<READABLE>() {
                plain.segment.prefetch_read();
                *chain = Chain::plain(plain, pool);
                pool.push_plain(plain.segment);
                self.next.advance(1, self.size);
            } else {
                match self.take::<READABLE>(pool) {
                    Ok(Some(found)) => *chain = found,
                    Ok(None) => break,
                    // Those before it are good; the next pop finds the fault again, alone.
                    Err(_) if done > 0 => break,
                    Err(fault) => return Err(fault),
                }
            }
            done += 1;
        }
        Ok(done)
    }

    #[inline]
    fn expect(&mut self, frames: usize) {
        let count = frames.min(BATCH);
        self.prefetch_descriptors(count);
        let mut place = self.next;
        for _ in 0..count {
            // Only a hint: a slot that is not available yet holds an older address.
            let addr = self.desc.load_u64::<0>(place.slot, Relaxed);
            if let Some(buffer) = self.translator.whole_in_hot(addr, 1) {
                buffer.prefetch_write();
            }
            place.advance(1, self.size);
        }
    }

    #[inline(always)]
    fn take_plain<const DIR: Direction>(&mut self, need: usize) -> Option<Plain> {
        let plain = self.plain::<DIR>()?;
        if plain.segment.len() < need {
            return None;
        }
        self.next.advance(1, self.size);
        Some(plain)
    }

    #[inline(never)]
    fn take<const DIR: Direction>(&mut self, pool: &mut Pool) -> Result<Option<Chain>, RingFault> {
        let mut at = self.next;
        let mut word = self.word(at.slot, Acquire);
        if !word.is_available(at.wrap) {
            return Ok(None);
        }
        let size = self.size;
        let mut addr = self.desc.load_u64::<0>(at.slot, Relaxed);
        let mut slots = 1;
        // The walk borrows the translator only; the ring's windows stay readable beside it.
        let Self { desc, translator, .. } = self;
        let mut walk = Walk::<DIR>::new(translator, pool);
        while word.flags() & (DESC_INDIRECT | DESC_NEXT) == DESC_NEXT {
            walk.add(addr, word.len(), word.flags())?;
            if slots == size {
                return Err(RingFault::Loop);
            }
            slots += 1;
            at.advance(1, size);
            word = Word(desc.load_u64::<8>(at.slot, Relaxed));
            addr = desc.load_u64::<0>(at.slot, Relaxed);
            if !word.is_available(at.wrap) {
                return Err(RingFault::NotAvailable { index: at.slot });
            }
        }
        if word.flags() & DESC_INDIRECT == 0 {
            walk.add(addr, word.len(), word.flags())?;
        } else {
            if !self.indirect {
                return Err(RingFault::IndirectNotNegotiated);
            }
            // 2.8.19: an indirect descriptor has no next.
            if word.flags() & DESC_NEXT != 0 {
                return Err(RingFault::BadIndirect { len: word.len() });
            }
            Self::walk_table(&mut walk, addr, word.len())?;
        }
        let chain = walk.finish(word.id(), slots)?;
        at.advance(1, size);
        self.next = at;
        Ok(Some(chain))
    }

    #[inline(always)]
    fn put_used(&mut self, id: u16, slots: u16, len: u32) {
        self.push_used(id, slots, len);
    }

    #[inline]
    fn put_all_used(&mut self, chains: &[Chain]) {
        let Some(last) = chains.last() else { return };
        if !self.in_order {
            for chain in chains {
                self.push_used(chain.id, chain.slots, 0);
            }
            return;
        }
        // 2.8.8: one entry naming the batch's last buffer; the driver skips the rest.
        let slots = chains.iter().map(|chain| chain.slots).sum();
        self.push_used(last.id, slots, 0);
    }

    fn put_used_together(&mut self, frame: impl Iterator<Item = UsedChain>) {
        let begins = self.first.is_none();
        let noted_before = self.noted;
        for chain in frame {
            let used = self.next_used(chain.id, chain.slots, chain.len);
            if self.first.is_none() {
                self.first = Some(used);
            } else if let Some(journal) = &self.journal {
                journal.note(self.noted, used);
                self.noted += 1;
            } else {
                self.store(used, Relaxed);
            }
        }
        let Some(journal) = &self.journal else { return };
        match self.first.filter(|_| begins) {
            Some(first) => journal.begin(first, self.noted),
            None => journal.gather(self.noted),
        }
        for index in noted_before..self.noted {
            self.store(journal.noted(index), Relaxed);
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        let Some(first) = self.first.take() else { return };
        if let Some(journal) = &self.journal {
            journal.publish(self.position());
        }
        self.store(first, Release);
        if let Some(journal) = &self.journal {
            journal.commit(self.position());
        }
        self.noted = 0;
    }

    #[inline(always)]
    fn must_publish(&self) -> bool {
        self.noted + MAX_BUFFERS > Journal::ROOM
    }

    fn position(&self) -> Position {
        Position {
            next: self.next.slot,
            wrap: self.next.wrap,
            used_next: self.used_next.slot,
            used_wrap: self.used_next.wrap,
        }
    }

    fn has_work(&self) -> bool {
        self.word(self.next.slot, Acquire).is_available(self.next.wrap)
    }

    fn wants_notify(&mut self) -> bool {
        let new = self.used_next;
        let old = self.signalled.replace(new);
        if old == Some(new) {
            return false;
        }
        // The used flags must be visible before the driver's wish is read, or both could miss.
        fence(SeqCst);
        let wish = self.driver_event.load_u32(0, Relaxed);
        let (event, flags) = (wish as u16, (wish >> 16) as u16);
        if flags != EVENT_DESC || !self.event_idx {
            return flags != EVENT_DISABLE;
        }
        let Some(old) = old else { return true };
        // All three in the lap of `new`: slots of the lap before are `size` lower.
        let lap = |slot: u16, same: bool| if same { slot } else { slot.wrapping_sub(self.size) };
        let event = lap(event & 0x7fff, (event >> 15 == 1) == new.wrap);
        passes_event(event, new.slot, lap(old.slot, old.wrap == new.wrap))
    }

    fn enable_kicks(&mut self) -> bool {
        let wish = if self.event_idx {
            u32::from(self.next.to_event()) | u32::from(EVENT_DESC) << 16
        } else {
            u32::from(EVENT_ENABLE) << 16
        };
        self.device_event.store_u32(0, wish, Relaxed);
        // The wish must be visible before the ring is looked at for the last time.
        fence(SeqCst);
        self.has_work()
    }

    fn disable_kicks(&mut self) {
        self.device_event.store_u32(0, u32::from(EVENT_DISABLE) << 16, Relaxed);
    }

    fn memory(&self) -> &Arc<GuestMemory> {
        self.translator.memory()
    }
}
