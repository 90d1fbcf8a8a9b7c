//! What the walks of split and packed rings share: collecting the buffers of one chain into a pool
//! of segments, checking each, without allocating.

use super::memory::{Segment, Translator};
use super::{MAX_BUFFERS, RingFault};

/// Descriptor flags (2.7.5, 2.8).
pub(crate) const DESC_NEXT: u16 = 1;
pub(crate) const DESC_WRITE: u16 = 2;
pub(crate) const DESC_INDIRECT: u16 = 4;

/// Bytes of a descriptor, in a ring and in an indirect table of either kind.
pub(crate) const DESC_BYTES: usize = 16;

/// Which way the buffers of a chain must point.
pub(super) type Direction = u8;
/// All device-readable: frames the driver sends.
pub(super) const READABLE: Direction = 0;
/// All device-writable: receive buffers.
pub(super) const WRITABLE: Direction = 1;
/// Readable ones, then writable ones: control commands.
pub(super) const MIXED: Direction = 2;

/// Segments of a batch. Its room is fixed: a walk that would need more is a fault, not growth.
pub(super) struct Pool {
    segments: Box<[Segment]>,
    used: usize,
}

impl Pool {
    pub(super) fn new(room: usize) -> Self {
        Self { segments: vec![Segment::EMPTY; room].into_boxed_slice(), used: 0 }
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Whether a chain of any legal length still fits.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.segments.len() - self.used >= MAX_BUFFERS
    }

    #[inline(always)]
    pub(super) fn range(&self, first: usize, count: usize) -> &[Segment] {
        self.segments.get(first..first + count).unwrap_or(&[])
    }

    /// Adds a chain of one segment; the caller saw that there is room.
    #[inline(always)]
    pub(super) fn push_plain(&mut self, segment: Segment) {
        if let Some(slot) = self.segments.get_mut(self.used) {
            *slot = segment;
            self.used += 1;
        }
    }

    #[inline(always)]
    fn push(&mut self, segment: Segment) -> Result<(), RingFault> {
        let slot = self.segments.get_mut(self.used).ok_or(RingFault::TooManyBuffers)?;
        *slot = segment;
        self.used += 1;
        Ok(())
    }
}

/// One chain as the walk found it.
#[derive(Clone, Copy, Default)]
pub(super) struct Chain {
    /// What the used entry names: head index (split) or buffer id (packed).
    pub(super) id: u16,
    /// Ring slots it takes: 1 in the available ring, the chain's length in a packed ring.
    pub(super) slots: u16,
    /// First of its segments in the pool.
    pub(super) first: u32,
    /// Number of its segments.
    pub(super) count: u32,
    /// How many of them, from the first on, are readable; meaningful for [`MIXED`].
    pub(super) readable: u32,
    /// Bytes of all its segments.
    pub(super) len: usize,
}

impl Chain {
    /// A chain of one buffer, whose segment is the next in `pool`.
    #[inline(always)]
    pub(super) fn plain(plain: Plain, pool: &Pool) -> Self {
        let Plain { id, segment } = plain;
        Self { id, slots: 1, first: pool.len() as u32, count: 1, readable: 1, len: segment.len() }
    }
}

/// A chain of one buffer in one segment, which nearly all are: taken without a walk.
#[derive(Clone, Copy)]
pub(super) struct Plain {
    pub(super) id: u16,
    pub(super) segment: Segment,
}

/// Looks at a descriptor as a chain of its own; `None` leaves everything that is not plain, faults
/// too, to the walk.
#[inline(always)]
pub(super) fn plain<const DIR: Direction>(
    translator: &Translator,
    id: u16,
    addr: u64,
    len: u32,
    flags: u16,
) -> Option<Plain> {
    let wanted = if DIR == WRITABLE { DESC_WRITE } else { 0 };
    if flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) != wanted || len == 0 {
        return None;
    }
    Some(Plain { id, segment: translator.whole_in_hot(addr, len)? })
}

/// A chain in the making.
pub(super) struct Walk<'a, const DIR: Direction> {
    translator: &'a mut Translator,
    pool: &'a mut Pool,
    first: usize,
    buffers: usize,
    /// Readable segments; fixed once the first writable one came.
    readable: usize,
    writing: bool,
    len: usize,
}

impl<'a, const DIR: Direction> Walk<'a, DIR> {
    #[inline(always)]
    pub(super) fn new(translator: &'a mut Translator, pool: &'a mut Pool) -> Self {
        let first = pool.len();
        Self { translator, pool, first, buffers: 0, readable: 0, writing: false, len: 0 }
    }

    /// Adds the buffer of one descriptor. Empty ones are legal and leave no segment, but count.
    #[inline(always)]
    pub(super) fn add(&mut self, addr: u64, len: u32, flags: u16) -> Result<(), RingFault> {
        let write = flags & DESC_WRITE != 0;
        let wrong = match DIR {
            READABLE => write,
            WRITABLE => !write,
            _ => self.writing && !write,
        };
        if wrong {
            return Err(RingFault::WrongDirection);
        }
        self.buffers += 1;
        if self.buffers > MAX_BUFFERS {
            return Err(RingFault::TooManyBuffers);
        }
        self.writing |= write;
        if len == 0 {
            return Ok(());
        }
        match self.translator.whole(addr, len) {
            Some(segment) => self.pool.push(segment)?,
            None => self.add_parts(addr, len)?,
        }
        self.len += len as usize;
        if !write {
            self.readable = self.pool.len() - self.first;
        }
        Ok(())
    }

    /// A buffer over two or more adjoining regions, or outside of any.
    #[cold]
    #[inline(never)]
    fn add_parts(&mut self, addr: u64, len: u32) -> Result<(), RingFault> {
        let fault = RingFault::AddressOutOfRange { addr, len: u64::from(len) };
        if addr.checked_add(u64::from(len)).is_none() {
            return Err(fault);
        }
        let (mut at, mut left) = (addr, len);
        while left > 0 {
            let part = self.translator.first_part(at, left).ok_or(fault)?;
            self.pool.push(part)?;
            at += part.len() as u64;
            left -= part.len() as u32;
        }
        Ok(())
    }

    /// The indirect table that a ring's descriptor points to, and its entries.
    pub(super) fn table(&mut self, addr: u64, len: u32) -> Result<(Segment, u16), RingFault> {
        let entries = len as usize / DESC_BYTES;
        if len == 0 || !(len as usize).is_multiple_of(DESC_BYTES) {
            return Err(RingFault::BadIndirect { len });
        }
        // A longer table cannot be walked to its end anyway, and this keeps entries in 16 bits.
        if entries > usize::from(u16::MAX) {
            return Err(RingFault::TooManyBuffers);
        }
        let fault = RingFault::AddressOutOfRange { addr, len: u64::from(len) };
        let table = self.translator.whole(addr, len).ok_or(fault)?;
        Ok((table, entries as u16))
    }

    /// Prefetches the chain's first buffer for what the device will do with it and returns the
    /// chain.
    #[inline(always)]
    pub(super) fn finish(self, id: u16, slots: u16) -> Result<Chain, RingFault> {
        let count = self.pool.len() - self.first;
        let [first, ..] = self.pool.range(self.first, count) else {
            return Err(RingFault::EmptyChain);
        };
        if DIR == WRITABLE {
            first.prefetch_write();
        } else {
            first.prefetch_read();
        }
        Ok(Chain {
            id,
            slots,
            first: self.first as u32,
            count: count as u32,
            readable: self.readable as u32,
            len: self.len,
        })
    }
}

/// One descriptor of an indirect table, read in one go: address, length, and the last two 16-bit
/// fields in their order.
#[inline(always)]
pub(super) fn table_entry(table: Segment, index: u16) -> (u64, u32, u16, u16) {
    let mut bytes = [0; DESC_BYTES];
    table.read(usize::from(index) * DESC_BYTES, &mut bytes);
    let word = u128::from_le_bytes(bytes);
    (word as u64, (word >> 64) as u32, (word >> 96) as u16, (word >> 112) as u16)
}

/// Whether moving an index from `old` to `new` passes the event the other side waits for (2.7.7.1, 2.7.10).
pub(crate) fn passes_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
