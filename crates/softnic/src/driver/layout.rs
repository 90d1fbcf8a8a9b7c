//! Where a VF driver puts things in its memory: one memfd, one region, queue after queue.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};

use super::{DriverError, VfOptions};
use crate::ring::{GuestMemory, Region, RingKind, RingSpec};

/// Guest address of the region. Not 0, and not equal to its user address: a back end that takes one
/// for the other is found out.
pub(super) const GUEST_BASE: u64 = 0x4000_0000;
/// User address of the region, in which vhost-user gives ring addresses.
pub(super) const USER_BASE: u64 = 0x7a00_0000_0000;

/// Entries of an indirect table: a 64 KiB frame in 2 KiB pieces, and its header.
pub(super) const TABLE_ENTRIES: usize = 48;
const HUGE_PAGE: u64 = 2 << 20;
const PAGE: u64 = 4096;
const LINE: u64 = 64;

/// Guest addresses of one queue's parts.
#[derive(Clone, Copy)]
pub(super) struct QueueLayout {
    pub(super) spec: RingSpec,
    /// First of `size` buffers, and the distance from one to the next.
    pub(super) buffers: u64,
    pub(super) stride: u64,
    /// First of `size` indirect tables of [`TABLE_ENTRIES`].
    pub(super) tables: u64,
}

/// The driver's memory.
pub(super) struct DriverMemory {
    pub(super) file: Arc<File>,
    pub(super) size: u64,
    pub(super) mapped: Arc<GuestMemory>,
    pub(super) queues: Vec<QueueLayout>,
}

impl DriverMemory {
    pub(super) fn new(options: &VfOptions) -> Result<Self, DriverError> {
        let mut top = GUEST_BASE;
        let queues = (0..options.queues()).map(|_| place_queue(options, &mut top)).collect();
        let page = if options.hugepages { HUGE_PAGE } else { PAGE };
        let size = (top - GUEST_BASE).next_multiple_of(page);
        let huge = if options.hugepages {
            MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB
        } else {
            MemfdFlags::empty()
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
        let file = File::from(rustix::fs::memfd_create("vf-driver", flags).map_err(io)?);
        file.set_len(size).map_err(DriverError::Io)?;
        let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK);
        let file = Arc::new(file);
        let region = Self::region_of(&file, size);
        let mapped = Arc::new(GuestMemory::map(vec![region])?);
        Ok(Self { file, size, mapped, queues })
    }

    pub(super) fn region(&self) -> Region {
        Self::region_of(&self.file, self.size)
    }

    fn region_of(file: &Arc<File>, size: u64) -> Region {
        let file = Arc::clone(file);
        Region { guest_addr: GUEST_BASE, size, user_addr: USER_BASE, mmap_offset: 0, file }
    }
}

fn io(error: rustix::io::Errno) -> DriverError {
    DriverError::Io(error.into())
}

/// Takes room for one queue at `top`. Areas that different sides write are kept 128 bytes apart: a
/// pair of cache lines is fetched together.
fn place_queue(options: &VfOptions, top: &mut u64) -> QueueLayout {
    let size = u64::from(options.size);
    let mut take = |bytes: u64, align: u64| {
        let at = top.next_multiple_of(align);
        *top = at + bytes;
        at
    };
    let (avail_bytes, used_bytes) = match options.kind {
        RingKind::Split => (6 + 2 * size, 6 + 8 * size),
        RingKind::Packed => (4, 4),
    };
    let desc = take(16 * size, PAGE);
    let avail = take(avail_bytes, 128);
    let used = take(used_bytes, 128);
    let tables = take(if options.indirect { 16 * TABLE_ENTRIES as u64 * size } else { 0 }, 128);
    // An odd number of cache lines apart, lest the heads of all buffers share a few cache sets.
    let stride = LINE * (u64::from(options.buffer_size).div_ceil(LINE) | 1);
    let buffers = take(stride * size, PAGE);
    let spec = RingSpec {
        kind: options.kind,
        size: options.size,
        desc,
        avail,
        used,
        indirect: options.indirect,
        event_idx: options.event_idx,
        in_order: options.in_order,
    };
    QueueLayout { spec, buffers, stride, tables }
}
