//! Guest memory: mapping it, translating guest addresses, and every raw access to it.
//!
//! A guest writes to this memory at any moment, from its own CPUs, with intent to harm. So no Rust
//! reference to guest bytes is ever made: ring fields are read and written as atomics of their own
//! width ([`Window`]), frames are copied out of and into bounded raw ranges ([`Segment`]). All
//! `unsafe` of the rings is in this file; what it exports checks its bounds itself.
//!
//! A [`Segment`] carries no lifetime because it is stored in pools that live longer than a batch.
//! The rule that keeps it sound: whoever keeps segments keeps an `Arc<GuestMemory>` of the same
//! memory beside them (a `Queue`, the driver's `Buffers`) and hands them on only behind a borrow of
//! itself (`Popped`, `Fill`, `Gather`). Mappings go away only when the last of those does.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::RingFault;
use super::guard::Guarded;

/// Most regions one memory table may have: what vhost-user back ends commonly accept is 8, a VM
/// with many DIMMs wants more.
pub const MAX_REGIONS: usize = 64;

/// One region of a VM's memory as the vhost-user front end describes it (`SET_MEM_TABLE`).
#[derive(Clone, Debug)]
pub struct Region {
    /// First guest-physical address.
    pub guest_addr: u64,
    /// Bytes.
    pub size: u64,
    /// Where the front end has it mapped; ring addresses arrive in this space.
    pub user_addr: u64,
    /// Byte of `file` where the region starts.
    pub mmap_offset: u64,
    /// The memory itself (memfd, hugetlbfs or shared file); several regions may lie in one.
    pub file: Arc<File>,
}

/// Why a memory table was refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// More than [`MAX_REGIONS`] regions, or none.
    #[error("a memory table has 1 to {MAX_REGIONS} regions, this one has {0}")]
    RegionCount(usize),
    /// A region of no bytes, or one whose addresses or file offsets wrap around.
    #[error("memory region at {guest_addr:#x} has an impossible size of {size:#x} bytes")]
    RegionSize {
        /// Guest address of the region.
        guest_addr: u64,
        /// Its claimed size in bytes.
        size: u64,
    },
    /// Two regions cover the same guest address.
    #[error("memory regions overlap at guest address {0:#x}")]
    Overlap(u64),
    /// The file ends before the region does: touching the rest would raise SIGBUS.
    #[error("memory region at {guest_addr:#x} wants {wanted:#x} bytes of a file of {has:#x}")]
    FileTooShort {
        /// Guest address of the region.
        guest_addr: u64,
        /// Offset plus size, in bytes.
        wanted: u64,
        /// Size of the file in bytes.
        has: u64,
    },
    /// The kernel refused `fstat` or `mmap`.
    #[error("cannot map memory region at {guest_addr:#x}: {source}")]
    Map {
        /// Guest address of the region.
        guest_addr: u64,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The process has as many mappings as it can guard against the loss of their files.
    #[error("too many memory regions are mapped already; let VMs have fewer, or fewer VFs")]
    TooMany,
}

/// One mapped region. `base` is the host address of `guest_addr`.
struct Mapping {
    guest_addr: u64,
    size: u64,
    user_addr: u64,
    base: NonNull<u8>,
    map: NonNull<u8>,
    map_len: usize,
    /// `None` only while the mapping is made or unmapped.
    guarded: Option<Guarded>,
    identity: (u64, u64),
    sealed: bool,
}

impl Mapping {
    fn new(region: &Region) -> Result<Self, MemoryError> {
        let Region { guest_addr, size, user_addr, mmap_offset, .. } = *region;
        let impossible = MemoryError::RegionSize { guest_addr, size };
        let in_range = |start: u64| start.checked_add(size).is_some();
        if size == 0 || !in_range(guest_addr) || !in_range(user_addr) {
            return Err(impossible);
        }
        let Some(end) = mmap_offset.checked_add(size).filter(|end| i64::try_from(*end).is_ok())
        else {
            return Err(impossible);
        };
        let map_error =
            |source: rustix::io::Errno| MemoryError::Map { guest_addr, source: source.into() };
        // Without this seal the owner of the file can shrink it later and kill us with SIGBUS. Not
        // every kind of file has seals, so this is a best effort that `sealed()` reports.
        let _ = rustix::fs::fcntl_add_seals(&region.file, SealFlags::SHRINK);
        let sealed = rustix::fs::fcntl_get_seals(&region.file)
            .is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let stat = rustix::fs::fstat(&region.file).map_err(map_error)?;
        let has = u64::try_from(stat.st_size).unwrap_or(0);
        if end > has {
            return Err(MemoryError::FileTooShort { guest_addr, wanted: end, has });
        }
        // hugetlbfs wants offset and length in whole pages of its own size, which is st_blksize.
        let page = u64::try_from(stat.st_blksize)
            .ok()
            .filter(|size| size.is_power_of_two())
            .unwrap_or(1)
            .max(rustix::param::page_size() as u64);
        let offset = mmap_offset & !(page - 1);
        let Some(map_len) =
            (end - offset).checked_next_multiple_of(page).and_then(|len| usize::try_from(len).ok())
        else {
            return Err(impossible);
        };
        let map = map_shared(&region.file, offset, map_len).map_err(map_error)?;
        // SAFETY: `mmap_offset - offset` is below `map_len`, so the sum stays inside the mapping.
        let base = unsafe { map.add((mmap_offset - offset) as usize) };
        let identity = (stat.st_dev, stat.st_ino);
        let mut mapping = Self {
            guest_addr,
            size,
            user_addr,
            base,
            map,
            map_len,
            guarded: None,
            identity,
            sealed,
        };
        // SAFETY: mapped just now, whole; `drop` gives the guard up before it unmaps.
        mapping.guarded = unsafe { Guarded::new(map, map_len) };
        if mapping.guarded.is_none() {
            return Err(MemoryError::TooMany);
        }
        Ok(mapping)
    }
}

/// Maps `len` bytes of `file` from `offset` on, shared, readable and writable.
fn map_shared(file: &File, offset: u64, len: usize) -> rustix::io::Result<NonNull<u8>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, so no memory in use is replaced.
    let map = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file.as_fd(), offset)
    }?;
    // SAFETY: the range was mapped just now; the advice only keeps it out of core dumps.
    let _ = unsafe { rustix::mm::madvise(map, len, Advice::LinuxDontDump) };
    NonNull::new(map.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guarded = None;
        // SAFETY: exactly the range `mmap` gave, unmapped once; by the module's rule no Window or
        // Segment outlives the GuestMemory that owns this mapping.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

/// A VM's memory, mapped into this process for as long as the value lives.
pub struct GuestMemory {
    /// Sorted by guest address, not overlapping.
    mappings: Box<[Mapping]>,
}

// SAFETY: the raw pointers refer to shared mappings that any thread may touch; all access goes
// through atomics or raw copies, and the mappings are only removed by Drop, which needs ownership.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; no method of a shared GuestMemory changes the table.
unsafe impl Sync for GuestMemory {}

impl std::fmt::Debug for GuestMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let regions = self.mappings.iter().map(|it| (it.guest_addr, it.size));
        out.debug_struct("GuestMemory").field("regions", &regions.collect::<Vec<_>>()).finish()
    }
}

impl GuestMemory {
    /// Maps a memory table.
    ///
    /// # Errors
    /// [`MemoryError`] when there are no or too many regions, when one wraps around, overlaps
    /// another in guest addresses, or is longer than its file, and when the kernel refuses.
    pub fn map(mut regions: Vec<Region>) -> Result<Self, MemoryError> {
        if regions.is_empty() || regions.len() > MAX_REGIONS {
            return Err(MemoryError::RegionCount(regions.len()));
        }
        regions.sort_by_key(|region| region.guest_addr);
        let mappings = regions.iter().map(Mapping::new).collect::<Result<Box<[_]>, _>>()?;
        for pair in mappings.windows(2) {
            if pair[1].guest_addr - pair[0].guest_addr < pair[0].size {
                return Err(MemoryError::Overlap(pair[1].guest_addr));
            }
        }
        Ok(Self { mappings })
    }

    /// Device and inode of each region's file, by guest address: equal before and after a restart
    /// means "the same VM memory".
    pub fn identity(&self) -> Vec<(u64, u64)> {
        self.mappings.iter().map(|mapping| mapping.identity).collect()
    }

    /// Whether the file of a region could not give what was asked of it, and what is mapped in its
    /// place is empty: it was shrunk, or its file system is full.
    pub fn is_lost(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.guarded.as_ref().is_some_and(Guarded::is_lost))
    }

    /// Whether no region's file can be shrunk any more. If not, whoever owns the file can make its
    /// memory vanish; see [`GuestMemory::is_lost`].
    pub fn sealed(&self) -> bool {
        self.mappings.iter().all(|mapping| mapping.sealed)
    }

    /// The guest address of what the front end has at `user_addr` in its own address space.
    pub fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        self.mappings.iter().find_map(|mapping| {
            let offset = user_addr.checked_sub(mapping.user_addr)?;
            (offset < mapping.size).then(|| mapping.guest_addr + offset)
        })
    }

    /// Copies guest bytes at `addr` out. Not for the data path, which translates a batch at a time.
    ///
    /// # Errors
    /// [`RingFault::AddressOutOfRange`] when the range is not inside one region.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), RingFault> {
        self.segment(addr, into.len())?.read(0, into);
        Ok(())
    }

    /// Copies `bytes` to guest address `addr`. Not for the data path.
    ///
    /// # Errors
    /// [`RingFault::AddressOutOfRange`] when the range is not inside one region.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), RingFault> {
        self.segment(addr, bytes.len())?.write(0, bytes);
        Ok(())
    }

    /// Whether a scatter list entry lies inside one mapping.
    #[cfg(any(test, fuzzing))]
    pub(super) fn holds(&self, part: &libc::iovec) -> bool {
        self.mappings.iter().any(|mapping| {
            let offset = part.iov_base.addr().wrapping_sub(mapping.base.addr().get()) as u64;
            offset < mapping.size && part.iov_len as u64 <= mapping.size - offset
        })
    }

    /// The range as one segment.
    pub(crate) fn segment(&self, addr: u64, len: usize) -> Result<Segment, RingFault> {
        self.view(addr)
            .and_then(|view| view.segment(addr, len as u64))
            .ok_or(RingFault::AddressOutOfRange { addr, len: len as u64 })
    }

    fn view(&self, addr: u64) -> Option<View> {
        let after = self.mappings.partition_point(|mapping| mapping.guest_addr <= addr);
        let mapping = &self.mappings[after.checked_sub(1)?];
        (addr - mapping.guest_addr < mapping.size).then_some(View {
            guest_addr: mapping.guest_addr,
            size: mapping.size,
            base: mapping.base,
        })
    }
}

/// The part of a mapping that translation needs.
#[derive(Clone, Copy)]
struct View {
    guest_addr: u64,
    size: u64,
    base: NonNull<u8>,
}

impl View {
    #[inline(always)]
    fn segment(&self, addr: u64, len: u64) -> Option<Segment> {
        let offset = addr.wrapping_sub(self.guest_addr);
        if offset >= self.size || len > self.size - offset {
            return None;
        }
        // SAFETY: `offset` is below the size of the mapping that `base` starts.
        Some(Segment { at: unsafe { self.base.add(offset as usize) }, len: len as usize })
    }
}

/// Guest addresses to [`Segment`]s, remembering the region of the last hit: a driver's buffers
/// nearly always lie in one.
pub(super) struct Translator {
    memory: Arc<GuestMemory>,
    hot: View,
}

// SAFETY: `hot` points into `memory`, which is Send and Sync and kept alive by the Arc.
unsafe impl Send for Translator {}

impl Translator {
    pub(super) fn new(memory: Arc<GuestMemory>) -> Self {
        let hot = View { guest_addr: 0, size: 0, base: NonNull::dangling() };
        Self { memory, hot }
    }

    pub(super) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The range as one segment, if the region of the last hit holds it.
    #[inline(always)]
    pub(super) fn whole_in_hot(&self, addr: u64, len: u32) -> Option<Segment> {
        self.hot.segment(addr, u64::from(len))
    }

    /// The range as one segment, if one region holds it.
    #[inline(always)]
    pub(super) fn whole(&mut self, addr: u64, len: u32) -> Option<Segment> {
        match self.hot.segment(addr, u64::from(len)) {
            Some(segment) => Some(segment),
            None => self.whole_slow(addr, len),
        }
    }

    #[cold]
    #[inline(never)]
    fn whole_slow(&mut self, addr: u64, len: u32) -> Option<Segment> {
        let view = self.memory.view(addr)?;
        self.hot = view;
        view.segment(addr, u64::from(len))
    }

    /// The part of the range that lies in the region of its first byte; the rest follows by calling
    /// again. Regions may adjoin in guest addresses and yet be mapped apart.
    #[cold]
    pub(super) fn first_part(&mut self, addr: u64, len: u32) -> Option<Segment> {
        let view = self.memory.view(addr)?;
        view.segment(addr, u64::from(len).min(view.size - (addr - view.guest_addr)))
    }
}

/// A bounded range of guest bytes. See the module's rule on lifetimes.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a segment is an address range of shared memory; which thread copies is of no matter.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    pub(crate) const EMPTY: Self = Self { at: NonNull::dangling(), len: 0 };

    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Without its first `skip` bytes (all of it when it is shorter).
    #[inline(always)]
    pub(crate) fn skip(self, skip: usize) -> Self {
        let skip = skip.min(self.len);
        // SAFETY: `skip` is at most `len`, so the result is inside or one past the same range.
        Self { at: unsafe { self.at.add(skip) }, len: self.len - skip }
    }

    /// Its first `len` bytes at most.
    #[inline(always)]
    pub(crate) fn truncate(self, len: usize) -> Self {
        Self { at: self.at, len: self.len.min(len) }
    }

    /// For the kernel's scatter lists.
    pub(super) fn io_slice(self) -> libc::iovec {
        libc::iovec { iov_base: self.at.as_ptr().cast(), iov_len: self.len }
    }

    /// Copies out from `offset` on; returns the bytes copied, fewer where the segment ends.
    #[inline(always)]
    pub(crate) fn read(self, offset: usize, into: &mut [u8]) -> usize {
        let from = self.skip(offset);
        let count = from.len.min(into.len());
        // SAFETY: `count` bytes are inside both ranges, by the two lines above.
        unsafe { copy(from.at.as_ptr(), into.as_mut_ptr(), count) };
        count
    }

    /// Copies in from `offset` on; returns the bytes copied, fewer where the segment ends.
    #[inline(always)]
    pub(crate) fn write(self, offset: usize, bytes: &[u8]) -> usize {
        let to = self.skip(offset);
        let count = to.len.min(bytes.len());
        // SAFETY: `count` bytes are inside both ranges, by the two lines above.
        unsafe { copy(bytes.as_ptr(), to.at.as_ptr(), count) };
        count
    }

    /// Copies from another segment, which may overlap this one: two VFs can share one memory.
    #[inline(always)]
    pub(crate) fn write_from(self, offset: usize, from: Segment) -> usize {
        let to = self.skip(offset);
        let count = to.len.min(from.len);
        // SAFETY: `count` bytes are inside both ranges, by the two lines above; `copy` allows
        // overlap.
        unsafe { copy(from.at.as_ptr(), to.at.as_ptr(), count) };
        count
    }

    /// Asks for the first bytes (virtio-net header and packet headers) to be read soon.
    #[inline(always)]
    pub(crate) fn prefetch_read(self) {
        prefetch::<false>(self.at.as_ptr());
        prefetch::<false>(self.at.as_ptr().wrapping_add(64));
    }

    /// Asks for the first bytes to be written soon.
    #[inline(always)]
    pub(crate) fn prefetch_write(self) {
        prefetch::<true>(self.at.as_ptr());
        prefetch::<true>(self.at.as_ptr().wrapping_add(64));
    }
}

/// `memmove` between raw ranges; short ones, which most frames and all headers are, without a call.
///
/// # Safety
/// Both ranges are mapped for `count` bytes, `to` for writing. Either may be changed by a guest
/// meanwhile: the bytes copied are then any mix, which is all that the caller may assume.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    type Wide = [u8; 16];
    type Word = [u8; 8];
    // SAFETY: the caller's contract. Each arm copies the first and the last part of the range,
    // which together cover it and overlap in the middle; everything is loaded before anything is
    // stored, so ranges may overlap as well.
    unsafe {
        match count {
            0..8 => copy_few(from, to, count),
            8..=16 => {
                let parts = [from.cast::<Word>(), from.add(count - 8).cast::<Word>()];
                let [first, last] = parts.map(|part| part.read_unaligned());
                to.cast::<Word>().write_unaligned(first);
                to.add(count - 8).cast::<Word>().write_unaligned(last);
            }
            17..=32 => {
                let parts = [from, from.add(count - 16)];
                let [first, last] = parts.map(|part| part.cast::<Wide>().read_unaligned());
                to.cast::<Wide>().write_unaligned(first);
                to.add(count - 16).cast::<Wide>().write_unaligned(last);
            }
            33..=64 => {
                type Half = [Wide; 2];
                let parts = [from, from.add(count - 32)];
                let [first, last] = parts.map(|part| part.cast::<Half>().read_unaligned());
                to.cast::<Half>().write_unaligned(first);
                to.add(count - 32).cast::<Half>().write_unaligned(last);
            }
            65..=128 => {
                type Half = [Wide; 4];
                let parts = [from, from.add(count - 64)];
                let [first, last] = parts.map(|part| part.cast::<Half>().read_unaligned());
                to.cast::<Half>().write_unaligned(first);
                to.add(count - 64).cast::<Half>().write_unaligned(last);
            }
            _ => std::ptr::copy(from, to, count),
        }
    }
}

/// Fewer than eight bytes, one by one: tails of headers.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_few(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy(from, to, count) }
}

#[inline(always)]
fn prefetch<const WRITE: bool>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    if WRITE {
        // The intrinsic with a hint to write compiles to a plain prefetch unless the target is
        // newer than the baseline; older processors take this instruction as none at all.
        // SAFETY: a prefetch changes nothing the program can see and never faults, at any address.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        }
    } else {
        // SAFETY: as above.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A ring area (or any small structure shared with the guest): fields read and written as
/// little-endian atomics of their own width, so that each is read once and never torn.
///
/// An offset beyond the window or off its natural alignment cannot come from a guest, only from a
/// mistake in the ring code; such a read gives 0 and such a write does nothing.
pub(crate) struct Window {
    at: NonNull<u8>,
    len: usize,
    /// Keeps the mapping alive.
    _memory: Arc<GuestMemory>,
}

// SAFETY: the pointer is into `_memory`, which is Send and Sync; all access is atomic.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

macro_rules! window_access {
    ($load:ident, $store:ident, $int:ty, $atomic:ty) => {
        #[inline(always)]
        pub(crate) fn $load(&self, offset: usize, order: Ordering) -> $int {
            self.at::<$atomic>(offset).map_or(0, |field| <$int>::from_le(field.load(order)))
        }

        #[inline(always)]
        pub(crate) fn $store(&self, offset: usize, value: $int, order: Ordering) {
            #[cfg(test)]
            if !super::cut::allows_a_store() {
                return;
            }
            if let Some(field) = self.at::<$atomic>(offset) {
                field.store(value.to_le(), order);
            }
        }
    };
}

impl Window {
    /// The `len` bytes at `addr`, which must lie in one region and be aligned to `align` bytes, in
    /// guest addresses and where they are mapped.
    pub(crate) fn new(
        memory: &Arc<GuestMemory>,
        addr: u64,
        len: usize,
        align: usize,
    ) -> Result<Self, RingFault> {
        let segment = memory.segment(addr, len)?;
        if !addr.is_multiple_of(align as u64) || !segment.at.addr().get().is_multiple_of(align) {
            return Err(RingFault::Misaligned { addr, align: align as u64 });
        }
        Ok(Self { at: segment.at, len, _memory: Arc::clone(memory) })
    }

    /// The field at `offset`, if it is inside and aligned.
    #[inline(always)]
    fn at<Atomic>(&self, offset: usize) -> Option<&Atomic> {
        // The window's start has the alignment of its ring area (2, 4 or 16), which may be less
        // than the field's: so the address itself is checked.
        let at = self.at.as_ptr().wrapping_add(offset);
        let inside = offset < self.len && self.len - offset >= size_of::<Atomic>();
        if !inside || !at.addr().is_multiple_of(align_of::<Atomic>()) {
            return None;
        }
        // SAFETY: inside the mapping and aligned, as checked; integer atomics are valid for any
        // bytes and may be shared with whoever else writes them.
        Some(unsafe { &*at.cast::<Atomic>() })
    }

    window_access!(load_u16, store_u16, u16, AtomicU16);
    window_access!(load_u32, store_u32, u32, AtomicU32);
    window_access!(load_u64, store_u64, u64, AtomicU64);
}

/// Part of a ring area that is an array: like a [`Window`] whose offsets are an index times `STRIDE`
/// plus a constant, so that one comparison is all the check an access needs. An index beyond it
/// reads as 0 and writes nothing, as with a window.
pub(crate) struct Table<const STRIDE: usize> {
    at: NonNull<u8>,
    count: usize,
    /// Keeps the mapping alive.
    _memory: Arc<GuestMemory>,
}

// SAFETY: as for Window.
unsafe impl<const STRIDE: usize> Send for Table<STRIDE> {}
// SAFETY: as for Window.
unsafe impl<const STRIDE: usize> Sync for Table<STRIDE> {}

macro_rules! table_access {
    ($load:ident, $store:ident, $int:ty, $atomic:ty) => {
        #[inline(always)]
        pub(crate) fn $load<const OFFSET: usize>(&self, index: u16, order: Ordering) -> $int {
            self.field::<$atomic, OFFSET>(index)
                .map_or(0, |field| <$int>::from_le(field.load(order)))
        }

        #[inline(always)]
        pub(crate) fn $store<const OFFSET: usize>(&self, index: u16, value: $int, order: Ordering) {
            #[cfg(test)]
            if !super::cut::allows_a_store() {
                return;
            }
            if let Some(field) = self.field::<$atomic, OFFSET>(index) {
                field.store(value.to_le(), order);
            }
        }
    };
}

impl<const STRIDE: usize> Table<STRIDE> {
    /// The `count` entries from `addr` on, which must lie in one region and be aligned to `align`
    /// bytes, in guest addresses and where they are mapped.
    pub(crate) fn new(
        memory: &Arc<GuestMemory>,
        addr: u64,
        count: u16,
        align: usize,
    ) -> Result<Self, RingFault> {
        let count = usize::from(count);
        let segment = memory.segment(addr, STRIDE * count)?;
        // What `field` counts on, whatever the caller asks for.
        let align = align.max(if STRIDE.is_multiple_of(16) { 16 } else { STRIDE.min(4) });
        if !addr.is_multiple_of(align as u64) || !segment.at.addr().get().is_multiple_of(align) {
            return Err(RingFault::Misaligned { addr, align: align as u64 });
        }
        Ok(Self { at: segment.at, count, _memory: Arc::clone(memory) })
    }

    #[inline(always)]
    fn field<Atomic, const OFFSET: usize>(&self, index: u16) -> Option<&Atomic> {
        const {
            let align = align_of::<Atomic>();
            assert!(OFFSET + size_of::<Atomic>() <= STRIDE, "field inside its entry");
            assert!(STRIDE.is_multiple_of(align) && OFFSET.is_multiple_of(align), "field aligned");
            assert!(align <= 4 || STRIDE.is_multiple_of(16), "start aligned, as new() sees to");
        }
        if usize::from(index) >= self.count {
            return None;
        }
        // SAFETY: inside the mapping by the check above and the first assertion; aligned by the
        // alignment that `new` demands and the other two. Integer atomics are valid for any bytes
        // and may be shared with whoever else writes them.
        Some(unsafe { self.at.add(usize::from(index) * STRIDE + OFFSET).cast::<Atomic>().as_ref() })
    }

    table_access!(load_u16, store_u16, u16, AtomicU16);
    table_access!(load_u32, store_u32, u32, AtomicU32);
    table_access!(load_u64, store_u64, u64, AtomicU64);

    #[inline(always)]
    pub(crate) fn prefetch_write(&self, index: u16) {
        prefetch::<true>(self.at.as_ptr().wrapping_add(usize::from(index) * STRIDE));
    }

    #[inline(always)]
    pub(crate) fn prefetch_read(&self, index: u16) {
        prefetch::<false>(self.at.as_ptr().wrapping_add(usize::from(index) * STRIDE));
    }
}
