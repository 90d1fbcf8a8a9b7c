//! The driver's end of one virtqueue: offering chains, finding used ones, events. Written from the
//! specification for the other end than `ring/`, on purpose without sharing its logic: the two are
//! each other's test.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::ring::chain::{DESC_BYTES, DESC_NEXT, DESC_WRITE, passes_event};
use crate::ring::memory::{GuestMemory, Table, Window};
use crate::ring::{Position, RingFault, RingKind, RingSpec};

/// One buffer of a chain, as a descriptor says it.
#[derive(Clone, Copy, Default)]
pub(super) struct Buffer {
    pub(super) addr: u64,
    pub(super) len: u32,
    /// `DESC_WRITE` or `DESC_INDIRECT` or nothing; `DESC_NEXT` is added here.
    pub(super) flags: u16,
}

/// One used entry.
#[derive(Clone, Copy)]
pub(super) struct Used {
    pub(super) id: u16,
    pub(super) len: u32,
}

/// What the driver's end of a ring does, in either format.
pub(super) trait DriverRing {
    /// Offers one chain; `ids` has one descriptor id for each buffer, the first one names the chain.
    /// Shown to the device by `publish`.
    fn offer(&mut self, chain: &[Buffer], ids: &[u16]);
    fn publish(&mut self);
    /// The next used entry, if there is one.
    fn peek_used(&mut self) -> Option<Used>;
    /// Goes past a used entry that stood for `chains` chains of `slots` descriptors together.
    fn skip_used(&mut self, chains: u16, slots: u16);
    /// Whether the device wants a kick for what was published since the last question.
    fn wants_kick(&mut self) -> bool;
    /// Asks for an interrupt with the next used entry, or for none at all. True if there is a used
    /// entry already.
    fn set_interrupts(&mut self, wanted: bool) -> bool;
}

/// Descriptor table, available and used ring.
pub(super) struct SplitDriver {
    desc: Table<DESC_BYTES>,
    avail: Window,
    avail_entries: Table<2>,
    used: Window,
    used_entries: Table<8>,
    size: u16,
    event_idx: bool,
    avail_next: u16,
    used_next: u16,
    /// Used index as last read.
    used_index: u16,
    /// Available index at the last question whether to kick.
    asked: u16,
}

impl SplitDriver {
    fn new(memory: &Arc<GuestMemory>, spec: &RingSpec) -> Result<Self, RingFault> {
        let size = usize::from(spec.size);
        Ok(Self {
            desc: Table::new(memory, spec.desc, spec.size, 16)?,
            avail: Window::new(memory, spec.avail, 6 + 2 * size, 2)?,
            avail_entries: Table::new(memory, spec.avail + 4, spec.size, 2)?,
            used: Window::new(memory, spec.used, 6 + 8 * size, 4)?,
            used_entries: Table::new(memory, spec.used + 4, spec.size, 4)?,
            size: spec.size,
            event_idx: spec.event_idx,
            avail_next: 0,
            used_next: 0,
            used_index: 0,
            asked: 0,
        })
    }

    #[inline(always)]
    fn slot(&self, index: u16) -> u16 {
        index & (self.size - 1)
    }

    /// How far the device got, which may be further than we looked.
    pub(super) fn position(&self) -> Position {
        Position::from_used_index(self.used.load_u16(2, Acquire))
    }
}

impl DriverRing for SplitDriver {
    #[inline(always)]
    fn offer(&mut self, chain: &[Buffer], ids: &[u16]) {
        let Some(&head) = ids.first() else { return };
        for (index, (buffer, id)) in chain.iter().zip(ids).enumerate() {
            let next = ids.get(index + 1).filter(|_| index + 1 < chain.len());
            let flags = buffer.flags | if next.is_some() { DESC_NEXT } else { 0 };
            let rest = u64::from(buffer.len)
                | u64::from(flags) << 32
                | u64::from(next.copied().unwrap_or(0)) << 48;
            self.desc.store_u64::<0>(*id, buffer.addr, Relaxed);
            self.desc.store_u64::<8>(*id, rest, Relaxed);
        }
        self.avail_entries.store_u16::<0>(self.slot(self.avail_next), head, Relaxed);
        self.avail_next = self.avail_next.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.avail.store_u16(2, self.avail_next, Release);
    }

    #[inline(always)]
    fn peek_used(&mut self) -> Option<Used> {
        if self.used_index == self.used_next {
            self.used_index = self.used.load_u16(2, Acquire);
            if self.used_index == self.used_next {
                return None;
            }
        }
        let slot = self.slot(self.used_next);
        let id = self.used_entries.load_u32::<0>(slot, Relaxed) as u16;
        Some(Used { id, len: self.used_entries.load_u32::<4>(slot, Relaxed) })
    }

    #[inline(always)]
    fn skip_used(&mut self, chains: u16, _slots: u16) {
        self.used_next = self.used_next.wrapping_add(chains);
    }

    fn wants_kick(&mut self) -> bool {
        let old = std::mem::replace(&mut self.asked, self.avail_next);
        if old == self.avail_next {
            return false;
        }
        fence(SeqCst);
        if self.event_idx {
            let event = self.used.load_u16(4 + 8 * usize::from(self.size), Relaxed);
            passes_event(event, self.avail_next, old)
        } else {
            self.used.load_u16(0, Relaxed) & 1 == 0
        }
    }

    fn set_interrupts(&mut self, wanted: bool) -> bool {
        if self.event_idx {
            let event = if wanted { self.used_next } else { self.used_next.wrapping_sub(1) };
            self.avail.store_u16(4 + 2 * usize::from(self.size), event, Relaxed);
        } else {
            self.avail.store_u16(0, u16::from(!wanted), Relaxed);
        }
        fence(SeqCst);
        self.peek_used().is_some()
    }
}

/// A slot with the wrap counter of its lap.
#[derive(Clone, Copy)]
pub(super) struct Place {
    slot: u16,
    wrap: bool,
}

impl Place {
    const START: Self = Self { slot: 0, wrap: true };

    pub(super) fn advance(&mut self, slots: u16, size: u16) {
        self.slot += slots;
        if self.slot >= size {
            self.slot -= size;
            self.wrap = !self.wrap;
        }
    }

    pub(super) fn position(self) -> Position {
        let Self { slot, wrap } = self;
        Position { next: slot, wrap, used_next: slot, used_wrap: wrap }
    }
}

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// The one ring of a packed virtqueue, and its two event structures.
pub(super) struct PackedDriver {
    desc: Table<DESC_BYTES>,
    driver_event: Window,
    device_event: Window,
    size: u16,
    event_idx: bool,
    avail_next: Place,
    used_next: Place,
    /// First descriptor of the batch in the making: it is shown last.
    held: Option<(u16, u64)>,
    asked: Place,
}

impl PackedDriver {
    fn new(memory: &Arc<GuestMemory>, spec: &RingSpec) -> Result<Self, RingFault> {
        Ok(Self {
            desc: Table::new(memory, spec.desc, spec.size, 16)?,
            driver_event: Window::new(memory, spec.avail, 4, 4)?,
            device_event: Window::new(memory, spec.used, 4, 4)?,
            size: spec.size,
            event_idx: spec.event_idx,
            avail_next: Place::START,
            used_next: Place::START,
            held: None,
            asked: Place::START,
        })
    }
}

impl PackedDriver {
    /// Where the next used entry is looked for.
    pub(super) fn used_place(&self) -> Place {
        self.used_next
    }

    /// The used entry at a place, if there is one.
    #[inline(always)]
    pub(super) fn used_at(&self, at: Place) -> Option<Used> {
        let word = self.desc.load_u64::<8>(at.slot, Acquire);
        let flags = (word >> 48) as u16;
        let lap = if at.wrap { AVAIL | USED } else { 0 };
        (flags & (AVAIL | USED) == lap)
            .then_some(Used { id: (word >> 32) as u16, len: word as u32 })
    }
}

impl DriverRing for PackedDriver {
    #[inline(always)]
    fn offer(&mut self, chain: &[Buffer], ids: &[u16]) {
        // Every descriptor of a chain may bear the id; the device uses that of the last (2.8.6).
        let Some(&id) = ids.first() else { return };
        for (index, buffer) in chain.iter().enumerate() {
            let slot = self.avail_next.slot;
            let more = if index + 1 < chain.len() { DESC_NEXT } else { 0 };
            let lap = if self.avail_next.wrap { AVAIL } else { USED };
            let word = u64::from(buffer.len)
                | u64::from(id) << 32
                | u64::from(buffer.flags | more | lap) << 48;
            self.desc.store_u64::<0>(slot, buffer.addr, Relaxed);
            if self.held.is_none() {
                self.held = Some((slot, word));
            } else {
                self.desc.store_u64::<8>(slot, word, Relaxed);
            }
            self.avail_next.advance(1, self.size);
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        if let Some((slot, word)) = self.held.take() {
            self.desc.store_u64::<8>(slot, word, Release);
        }
    }

    #[inline(always)]
    fn peek_used(&mut self) -> Option<Used> {
        self.used_at(self.used_next)
    }

    #[inline(always)]
    fn skip_used(&mut self, _chains: u16, slots: u16) {
        self.used_next.advance(slots, self.size);
    }

    fn wants_kick(&mut self) -> bool {
        let new = self.avail_next;
        let old = std::mem::replace(&mut self.asked, new);
        if old.slot == new.slot && old.wrap == new.wrap {
            return false;
        }
        fence(SeqCst);
        let wish = self.device_event.load_u32(0, Relaxed);
        let (event, flags) = (wish as u16, (wish >> 16) as u16);
        if flags != 2 {
            return flags == 0;
        }
        let lap = |slot: u16, wrap: bool| {
            if wrap == new.wrap { slot } else { slot.wrapping_sub(self.size) }
        };
        passes_event(lap(event & 0x7fff, event >> 15 == 1), new.slot, lap(old.slot, old.wrap))
    }

    fn set_interrupts(&mut self, wanted: bool) -> bool {
        let Place { slot, wrap } = self.used_next;
        let wish = match (wanted, self.event_idx) {
            (false, _) => 1 << 16,
            (true, false) => 0,
            (true, true) => u32::from(slot | u16::from(wrap) << 15) | 2 << 16,
        };
        self.driver_event.store_u32(0, wish, Relaxed);
        fence(SeqCst);
        self.peek_used().is_some()
    }
}

/// A ring of the format that was negotiated.
pub(super) enum AnyRing {
    Split(SplitDriver),
    Packed(PackedDriver),
}

/// Runs `$body` with `$ring` as the concrete ring, so that loops are compiled for each format.
macro_rules! on_driver_ring {
    ($any:expr, $ring:ident => $body:expr) => {
        match $any {
            $crate::driver::rings::AnyRing::Split($ring) => $body,
            $crate::driver::rings::AnyRing::Packed($ring) => $body,
        }
    };
}
pub(super) use on_driver_ring;

impl AnyRing {
    pub(super) fn new(memory: &Arc<GuestMemory>, spec: &RingSpec) -> Result<Self, RingFault> {
        Ok(match spec.kind {
            RingKind::Split => Self::Split(SplitDriver::new(memory, spec)?),
            RingKind::Packed => Self::Packed(PackedDriver::new(memory, spec)?),
        })
    }
}

/// Flag of a buffer that the device may write.
pub(super) const WRITE: u16 = DESC_WRITE;
