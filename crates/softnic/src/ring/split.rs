//! Split virtqueues (2.7), device side.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::chain::{
    Chain, DESC_BYTES, DESC_INDIRECT, DESC_NEXT, Direction, Plain, Pool, READABLE, Walk,
    passes_event, plain, table_entry,
};
use super::memory::{GuestMemory, Table, Translator, Window};
use super::queue::{Ring, UsedChain};
use super::{BATCH, MAX_RING_SIZE, Position, RingFault, RingSpec};

const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
const AVAIL_ENTRY: usize = 2;
const USED_ENTRY: usize = 8;
const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;

pub(super) struct SplitRing {
    desc: Table<DESC_BYTES>,
    avail: Window,
    avail_entries: Table<AVAIL_ENTRY>,
    used: Window,
    used_entries: Table<USED_ENTRY>,
    translator: Translator,
    size: u16,
    indirect: bool,
    event_idx: bool,
    in_order: bool,
    /// Available index as last read from the ring.
    avail_index: u16,
    /// Next available entry to take.
    next: u16,
    /// Next used entry to write; ahead of the ring's used index until published.
    used_next: u16,
    /// Used index at the last decision about an interrupt, if there was one.
    signalled: Option<u16>,
}

impl SplitRing {
    pub(super) fn new(
        memory: Arc<GuestMemory>,
        spec: &RingSpec,
        at: Position,
    ) -> Result<Self, RingFault> {
        let size = spec.size;
        if !size.is_power_of_two() || size > MAX_RING_SIZE {
            return Err(RingFault::BadSize { size });
        }
        let count = usize::from(size);
        // Flags, index, and the event field at the end: 6 bytes beside the entries.
        let avail_len = 6 + AVAIL_ENTRY * count;
        let used_len = 6 + USED_ENTRY * count;
        Ok(Self {
            desc: Table::new(&memory, spec.desc, size, 16)?,
            avail: Window::new(&memory, spec.avail, avail_len, 2)?,
            avail_entries: Table::new(&memory, spec.avail.wrapping_add(ENTRIES as u64), size, 2)?,
            used: Window::new(&memory, spec.used, used_len, 4)?,
            used_entries: Table::new(&memory, spec.used.wrapping_add(ENTRIES as u64), size, 4)?,
            translator: Translator::new(memory),
            size,
            indirect: spec.indirect,
            event_idx: spec.event_idx,
            in_order: spec.in_order,
            avail_index: at.next,
            next: at.next,
            used_next: at.used_next,
            signalled: None,
        })
    }

    #[inline(always)]
    fn slot(&self, index: u16) -> u16 {
        index & (self.size - 1)
    }

    /// Entries the driver made available from `from` on. Reads the ring's index only when those
    /// known of are used up: that line travels between cores.
    #[inline(always)]
    fn available(&mut self, from: u16) -> Result<u16, RingFault> {
        if self.avail_index == from {
            self.avail_index = self.avail.load_u16(INDEX, Acquire);
        }
        let count = self.avail_index.wrapping_sub(from);
        if count > self.size {
            let to = self.avail_index;
            self.avail_index = from;
            return Err(RingFault::AvailJump { from, to, size: self.size });
        }
        Ok(count)
    }

    #[inline(always)]
    fn head(&self, index: u16) -> u16 {
        self.avail_entries.load_u16::<0>(self.slot(index), Relaxed)
    }

    /// The next `count` heads, read first so that all their descriptors are on their way before one
    /// is needed.
    #[inline(always)]
    fn next_heads(&self, count: usize) -> [u16; BATCH] {
        let mut heads = [0; BATCH];
        for (ahead, head) in heads[..count].iter_mut().enumerate() {
            *head = self.head(self.next.wrapping_add(ahead as u16));
            self.desc.prefetch_read(*head);
        }
        heads
    }

    /// Asks for the lines of used entries that the next `count` chains will be answered with.
    #[inline(always)]
    fn prefetch_used(&self, count: usize) {
        const ENTRIES_PER_LINE: usize = 64 / USED_ENTRY;
        for ahead in (0..count + ENTRIES_PER_LINE).step_by(ENTRIES_PER_LINE) {
            self.used_entries.prefetch_write(self.slot(self.used_next.wrapping_add(ahead as u16)));
        }
    }

    /// The chain at `head` if it is plain.
    #[inline(always)]
    fn plain<const DIR: Direction>(&self, head: u16) -> Option<Plain> {
        let (addr, len, flags, _) = descriptor(&self.desc, self.size, head).ok()?;
        plain::<DIR>(&self.translator, head, addr, len, flags)
    }

    fn walk<const DIR: Direction>(
        &mut self,
        head: u16,
        pool: &mut Pool,
    ) -> Result<Chain, RingFault> {
        let Self { desc, translator, size, indirect, .. } = self;
        let mut walk = Walk::<DIR>::new(translator, pool);
        let (mut addr, mut len, mut flags, mut next) = descriptor(desc, *size, head)?;
        let mut left = *size;
        while flags & (DESC_INDIRECT | DESC_NEXT) == DESC_NEXT {
            walk.add(addr, len, flags)?;
            left -= 1;
            if left == 0 {
                return Err(RingFault::Loop);
            }
            (addr, len, flags, next) = descriptor(desc, *size, next)?;
        }
        if flags & DESC_INDIRECT == 0 {
            walk.add(addr, len, flags)?;
        } else {
            if !*indirect {
                return Err(RingFault::IndirectNotNegotiated);
            }
            // 2.7.5.3.1: an indirect descriptor is the last of its chain.
            if flags & DESC_NEXT != 0 {
                return Err(RingFault::BadIndirect { len });
            }
            walk_table(&mut walk, addr, len)?;
        }
        walk.finish(head, 1)
    }
}

/// Address, length, flags and next of a descriptor, each read once.
#[inline(always)]
fn descriptor(
    desc: &Table<DESC_BYTES>,
    size: u16,
    index: u16,
) -> Result<(u64, u32, u16, u16), RingFault> {
    if index >= size {
        return Err(RingFault::IndexOutOfRange { index, size });
    }
    let rest = desc.load_u64::<8>(index, Relaxed);
    let addr = desc.load_u64::<0>(index, Relaxed);
    Ok((addr, rest as u32, (rest >> 32) as u16, (rest >> 48) as u16))
}

/// Walks an indirect table from its first entry along the next fields.
fn walk_table<const DIR: Direction>(
    walk: &mut Walk<'_, DIR>,
    addr: u64,
    len: u32,
) -> Result<(), RingFault> {
    let (table, size) = walk.table(addr, len)?;
    let mut index = 0;
    for _ in 0..size {
        let (addr, len, flags, next) = table_entry(table, index);
        if flags & DESC_INDIRECT != 0 {
            return Err(RingFault::NestedIndirect);
        }
        walk.add(addr, len, flags)?;
        if flags & DESC_NEXT == 0 {
            return Ok(());
        }
        if next >= size {
            return Err(RingFault::IndexOutOfRange { index: next, size });
        }
        index = next;
    }
    Err(RingFault::Loop)
}

impl Ring for SplitRing {
    type Mark = u16;

    #[inline(always)]
    fn mark(&self) -> u16 {
        self.next
    }

    #[inline(always)]
    fn rewind(&mut self, mark: u16) {
        self.next = mark;
    }

    #[inline]
    fn pop(&mut self, pool: &mut Pool, chains: &mut [Chain; BATCH]) -> Result<usize, RingFault> {
        let count = usize::from(self.available(self.next)?).min(BATCH);
        let heads = self.next_heads(count);
        self.prefetch_used(count);
        let mut done = 0;
        for (head, chain) in heads[..count].iter().zip(chains) {
            if !pool.has_room() {
                break;
            }
            if let Some(plain) = self.plain::<READABLE>(*head) {
                plain.segment.prefetch_read();
                *chain = Chain::plain(plain, pool);
                pool.push_plain(plain.segment);
            } else {
                match self.walk::<READABLE>(*head, pool) {
                    Ok(found) => *chain = found,
                    // Those before it are good; the next pop finds the fault again, alone.
                    Err(_) if done > 0 => break,
                    Err(fault) => return Err(fault),
                }
            }
            done += 1;
        }
        self.next = self.next.wrapping_add(done as u16);
        Ok(done)
    }

    #[inline]
    fn expect(&mut self, frames: usize) {
        let known = self.avail_index.wrapping_sub(self.next);
        if usize::from(known) < frames {
            self.avail_index = self.next;
        }
        // A fault is found again, and dealt with, by whoever takes the chain.
        let Ok(known) = self.available(self.next) else { return };
        let count = usize::from(known).min(frames).min(BATCH);
        let heads = self.next_heads(count);
        self.prefetch_used(count);
        for head in &heads[..count] {
            let addr = self.desc.load_u64::<0>(*head, Relaxed);
            if let Some(buffer) = self.translator.whole_in_hot(addr, 1) {
                buffer.prefetch_write();
            }
        }
    }

    #[inline(always)]
    fn take_plain<const DIR: Direction>(&mut self, need: usize) -> Option<Plain> {
        if !matches!(self.available(self.next), Ok(1..)) {
            return None;
        }
        let plain = self.plain::<DIR>(self.head(self.next))?;
        if plain.segment.len() < need {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(plain)
    }

    #[inline(never)]
    fn take<const DIR: Direction>(&mut self, pool: &mut Pool) -> Result<Option<Chain>, RingFault> {
        if self.available(self.next)? == 0 {
            return Ok(None);
        }
        let chain = self.walk::<DIR>(self.head(self.next), pool)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(chain))
    }

    #[inline(always)]
    fn put_used(&mut self, id: u16, _slots: u16, len: u32) {
        self.write_used(self.used_next, id, len);
        self.used_next = self.used_next.wrapping_add(1);
    }

    fn put_used_together(&mut self, frame: impl Iterator<Item = UsedChain>) {
        for chain in frame {
            self.put_used(chain.id, chain.slots, chain.len);
        }
    }

    #[inline]
    fn put_all_used(&mut self, chains: &[Chain]) {
        let Some((last, rest)) = chains.split_last() else { return };
        if !self.in_order {
            for chain in chains {
                self.put_used(chain.id, chain.slots, 0);
            }
            return;
        }
        // 2.7.9: one entry naming the batch's last buffer will do. Drivers look for it where the
        // batch begins; it is also put where the batch ends, for one that reads backwards from the
        // used index.
        if !rest.is_empty() {
            self.write_used(self.used_next, last.id, 0);
            self.used_next = self.used_next.wrapping_add(rest.len() as u16);
        }
        self.put_used(last.id, last.slots, 0);
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.used.store_u16(INDEX, self.used_next, Release);
    }

    fn position(&self) -> Position {
        Position { next: self.next, used_next: self.used_next, ..Position::START }
    }

    fn has_work(&self) -> bool {
        self.avail.load_u16(INDEX, Acquire) != self.next
    }

    fn wants_notify(&mut self) -> bool {
        let old = self.signalled.replace(self.used_next);
        if old == Some(self.used_next) {
            return false;
        }
        // The used index must be visible before the driver's wish is read, or both could miss.
        fence(SeqCst);
        if !self.event_idx {
            return self.avail.load_u16(FLAGS, Relaxed) & AVAIL_NO_INTERRUPT == 0;
        }
        let event = self.avail.load_u16(ENTRIES + AVAIL_ENTRY * self.entries(), Relaxed);
        old.is_none_or(|old| passes_event(event, self.used_next, old))
    }

    fn enable_kicks(&mut self) -> bool {
        if self.event_idx {
            self.set_avail_event(self.next);
        } else {
            self.used.store_u16(FLAGS, 0, Relaxed);
        }
        // The wish must be visible before the ring is looked at for the last time.
        fence(SeqCst);
        self.has_work()
    }

    fn disable_kicks(&mut self) {
        if self.event_idx {
            // An event just passed comes round again after 65,535 chains; that kick is harmless.
            self.set_avail_event(self.next.wrapping_sub(1));
        } else {
            self.used.store_u16(FLAGS, USED_NO_NOTIFY, Relaxed);
        }
    }

    fn memory(&self) -> &Arc<GuestMemory> {
        self.translator.memory()
    }
}

impl SplitRing {
    fn entries(&self) -> usize {
        usize::from(self.size)
    }

    #[inline(always)]
    fn write_used(&self, index: u16, id: u16, len: u32) {
        let slot = self.slot(index);
        self.used_entries.store_u32::<0>(slot, u32::from(id), Relaxed);
        self.used_entries.store_u32::<4>(slot, len, Relaxed);
    }

    fn set_avail_event(&self, index: u16) {
        self.used.store_u16(ENTRIES + USED_ENTRY * self.entries(), index, Relaxed);
    }

    /// The used index as the ring has it: how far a device before this one got.
    pub(super) fn used_index(memory: &GuestMemory, spec: &RingSpec) -> Result<u16, RingFault> {
        let mut index = [0; 2];
        memory.read(spec.used.wrapping_add(INDEX as u64), &mut index)?;
        Ok(u16::from_le_bytes(index))
    }
}
