//! The device side of virtio 1.x virtqueues, split and packed, over guest memory.
//!
//! A worker takes frames a driver sends with [`Queue::pop`] and puts frames for it with
//! [`Queue::fill`], both in batches of up to [`BATCH`] with one publication each. The walk of a
//! ring reads every field once, checks it, and is bounded in length; whatever a driver writes ends
//! in a [`RingFault`] at worst. Section numbers refer to the Virtual I/O Device specification 1.2.
//!
//! # What a crash of this process leaves behind
//! A batch is published in this order: used entries, then the one store that shows them to the
//! driver (`used.idx`; packed: the flags of the batch's first used descriptor), and only then does
//! [`Queue::position`] move. A position stored after that may lag the ring by one batch, never lead
//! it. A split ring says itself how far it was used: continue at [`Position::from_used_index`]. A
//! packed ring does not; continue it with a [`Journal`].

pub(crate) mod chain;
#[cfg(test)]
mod cut;
mod gather;
#[allow(unsafe_code)]
pub(crate) mod guard;
mod journal;
#[allow(unsafe_code)]
pub(crate) mod memory;
mod packed;
mod queue;
mod split;

#[cfg(any(test, fuzzing))]
pub mod fuzz_harness;

#[cfg(test)]
mod tests;

pub use gather::Gather;
pub use journal::{JOURNAL_BYTES, Journal};
pub use memory::{GuestMemory, MAX_REGIONS, MemoryError, Region};
pub use queue::{Fill, Mixed, PopScratch, Popped, Queue};

/// Chains a worker takes from a ring at once.
pub const BATCH: usize = 32;

/// Most buffers one chain may have, and most receive buffers one frame may be spread over. A
/// 64 KiB frame from Linux has at most 19 buffers; DPDK's vhost library stops at 256 too.
pub const MAX_BUFFERS: usize = 256;

/// Largest ring (2.7 and 2.8: queue size at most 2^15).
pub const MAX_RING_SIZE: u16 = 1 << 15;

/// Format of a virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Descriptor table, available ring and used ring (2.7).
    Split,
    /// One descriptor ring for both directions (2.8).
    Packed,
}

/// Where a ring lies and what was negotiated for it. Addresses are guest addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Format.
    pub kind: RingKind,
    /// Descriptors; for a split ring a power of two.
    pub size: u16,
    /// Descriptor area.
    pub desc: u64,
    /// Driver area: available ring, or driver event suppression.
    pub avail: u64,
    /// Device area: used ring, or device event suppression.
    pub used: u64,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `VIRTIO_F_IN_ORDER` was negotiated.
    pub in_order: bool,
}

/// Where to go on in a ring.
///
/// For a split ring `next` and `used_next` are the free-running 16-bit indices of the available
/// and used rings; for a packed ring they are slots, each with its wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Next descriptor or available entry to read.
    pub next: u16,
    /// Wrap counter of `next`; only for packed rings.
    pub wrap: bool,
    /// Next place to write a used entry.
    pub used_next: u16,
    /// Wrap counter of `used_next`; only for packed rings.
    pub used_wrap: bool,
}

impl Position {
    /// Of a ring nobody used yet: index 0, wrap counters 1 (2.8.1).
    pub const START: Self = Self { next: 0, wrap: true, used_next: 0, used_wrap: true };

    /// Where a split ring goes on whose device used everything up to `used_index`, in order.
    pub const fn from_used_index(used_index: u16) -> Self {
        Self { next: used_index, wrap: true, used_next: used_index, used_wrap: true }
    }

    /// As vhost-user's `GET_VRING_BASE` wants it. Split: the available index. Packed: bits 0-14
    /// available slot, bit 15 its wrap counter, bits 16-30 used slot, bit 31 its wrap counter.
    pub const fn to_vring_base(self, kind: RingKind) -> u32 {
        match kind {
            RingKind::Split => self.next as u32,
            RingKind::Packed => {
                let next = (self.next & 0x7fff) | ((self.wrap as u16) << 15);
                let used = (self.used_next & 0x7fff) | ((self.used_wrap as u16) << 15);
                next as u32 | (used as u32) << 16
            }
        }
    }

    /// From the value of vhost-user's `SET_VRING_BASE`.
    ///
    /// For a packed ring an upper half of zero means "as the lower half": DPDK and others send 16
    /// bits only, and a stopped device has nothing in flight.
    pub const fn from_vring_base(kind: RingKind, base: u32) -> Self {
        let low = base as u16;
        match kind {
            RingKind::Split => Self::from_used_index(low),
            RingKind::Packed => {
                let high = if base >> 16 == 0 { low } else { (base >> 16) as u16 };
                Self {
                    next: low & 0x7fff,
                    wrap: low >> 15 == 1,
                    used_next: high & 0x7fff,
                    used_wrap: high >> 15 == 1,
                }
            }
        }
    }
}

/// What a driver did wrong with a ring. The queue it happened on must be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// A buffer, table or ring area is not (wholly) inside the guest's memory.
    #[error("{len} bytes at guest address {addr:#x} are not guest memory")]
    AddressOutOfRange {
        /// Guest address.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// A ring area is not aligned as 2.7 and 2.8 demand.
    #[error("guest address {addr:#x} of a ring area is not a multiple of {align}")]
    Misaligned {
        /// Guest address.
        addr: u64,
        /// Bytes.
        align: u64,
    },
    /// A ring of zero, more than 32,768, or (split) not a power of two descriptors.
    #[error("{size} is not a possible ring size")]
    BadSize {
        /// Descriptors.
        size: u16,
    },
    /// A chain has more descriptors than its ring or table.
    #[error("descriptor chain is longer than its ring")]
    Loop,
    /// A descriptor index, or a position to start from, is beyond the ring or table.
    #[error("descriptor index {index} in a ring of {size}")]
    IndexOutOfRange {
        /// Descriptor index.
        index: u16,
        /// Descriptors in the ring or table.
        size: u16,
    },
    /// A chain has more than [`MAX_BUFFERS`] buffers.
    #[error("descriptor chain has more than {MAX_BUFFERS} buffers")]
    TooManyBuffers,
    /// A device-writable buffer where the device reads, or the reverse, or a readable one after a
    /// writable one.
    #[error("buffer has the wrong direction")]
    WrongDirection,
    /// A chain of no bytes at all.
    #[error("descriptor chain has no bytes")]
    EmptyChain,
    /// An indirect table whose length is zero or no multiple of 16, one that is not in one piece of
    /// memory, or one with a next descriptor.
    #[error("indirect table of {len} bytes")]
    BadIndirect {
        /// Bytes.
        len: u32,
    },
    /// An indirect descriptor inside an indirect table.
    #[error("indirect table inside an indirect table")]
    NestedIndirect,
    /// An indirect descriptor, though the feature was not negotiated.
    #[error("indirect descriptor without the feature")]
    IndirectNotNegotiated,
    /// The available index is ahead by more than the ring has entries.
    #[error("available index jumped from {from} to {to} in a ring of {size}")]
    AvailJump {
        /// Index expected next.
        from: u16,
        /// Index found.
        to: u16,
        /// Descriptors in the ring.
        size: u16,
    },
    /// The VM's memory is no longer there.
    #[error("the VM's memory has vanished: its file was shrunk, or its file system is full")]
    MemoryLost,
    /// The descriptor that rings the driver was made blocking by the VMM, and blocks.
    #[error("the VM's notification descriptor blocks: its VMM has made it so")]
    BellBlocks,
    /// A packed chain goes on into a descriptor that was not made available.
    #[error("descriptor chain goes on into slot {index}, which is not available")]
    NotAvailable {
        /// Slot.
        index: u16,
    },
}

/// Why a frame could not be put into a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The driver has no (or not enough) receive buffers there now; none was taken.
    #[error("no receive buffer")]
    NoBuffer,
    /// The frame does not fit the next buffer and may not be spread (or over more than
    /// [`MAX_BUFFERS`]); no buffer was taken.
    #[error("receive buffer too small")]
    BufferTooSmall,
    /// The ring is broken.
    #[error(transparent)]
    Fault(#[from] RingFault),
}
