//! Hostile rings, one test a fault, and what the rings promise beyond the driver's round trips.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};

use super::cut;
use super::fuzz_harness::ring_walk;
use super::{
    BATCH, FillError, Gather, GuestMemory, JOURNAL_BYTES, Journal, MAX_BUFFERS, MemoryError,
    PopScratch, Position, Queue, Region, RingFault, RingKind, RingSpec,
};

const BASE: u64 = 0x10_0000;
const MEMORY: u64 = 0x10_0000;
const DESC: u64 = BASE;
const AVAIL: u64 = BASE + 0x8000;
const USED: u64 = BASE + 0x9000;
const TABLE: u64 = BASE + 0xa000;
const DATA: u64 = BASE + 0x2_0000;
const SIZE: u16 = 8;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL_FLAG: u16 = 1 << 7;
const USED_FLAG: u16 = 1 << 15;

fn memfd(size: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("test", flags).unwrap());
    file.set_len(size).unwrap();
    file
}

fn region(guest_addr: u64, size: u64) -> Region {
    let file = Arc::new(memfd(size));
    Region { guest_addr, size, user_addr: guest_addr + (7 << 40), mmap_offset: 0, file }
}

/// A ring whose driver is this test, writing whatever it likes.
struct Hostile {
    memory: Arc<GuestMemory>,
    spec: RingSpec,
    queue: Queue,
    scratch: PopScratch,
    next: u16,
    wrap: bool,
}

impl Hostile {
    fn new(kind: RingKind) -> Self {
        Self::with(kind, |_| {})
    }

    fn with(kind: RingKind, change: impl Fn(&mut RingSpec)) -> Self {
        let mut spec = RingSpec {
            kind,
            size: SIZE,
            desc: DESC,
            avail: AVAIL,
            used: USED,
            indirect: true,
            event_idx: false,
            in_order: false,
        };
        change(&mut spec);
        let memory = Arc::new(GuestMemory::map(vec![region(BASE, MEMORY)]).unwrap());
        let queue = Queue::new(Arc::clone(&memory), spec, Position::START).unwrap();
        Self { memory, spec, queue, scratch: PopScratch::new(), next: 0, wrap: true }
    }

    fn put(&self, addr: u64, bytes: &[u8]) {
        self.memory.write(addr, bytes).unwrap();
    }

    fn get<const N: usize>(&self, addr: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read(addr, &mut bytes).unwrap();
        bytes
    }

    /// One entry of a table; for the ring itself the lap's flags are added.
    fn entry(&self, table: u64, index: u16, addr: u64, len: u32, flags: u16, last: u16) {
        let (third, fourth) = match self.spec.kind {
            RingKind::Split => (flags, last),
            RingKind::Packed => (last, flags),
        };
        let word = u128::from(addr)
            | u128::from(len) << 64
            | u128::from(third) << 96
            | u128::from(fourth) << 112;
        self.put(table + 16 * u64::from(index), &word.to_le_bytes());
    }

    /// Offers a chain of (address, length, flags). Split: descriptors 0.. with next as it should be.
    fn offer(&mut self, chain: &[(u64, u32, u16)]) {
        for (index, (addr, len, flags)) in chain.iter().enumerate() {
            match self.spec.kind {
                RingKind::Split => {
                    let index = index as u16;
                    self.entry(DESC, index, *addr, *len, *flags, index + 1);
                }
                RingKind::Packed => {
                    let lap = if self.wrap { AVAIL_FLAG } else { USED_FLAG };
                    self.entry(DESC, self.next, *addr, *len, flags | lap, 77);
                    self.next += 1;
                    if self.next == self.spec.size {
                        (self.next, self.wrap) = (0, !self.wrap);
                    }
                }
            }
        }
        if self.spec.kind == RingKind::Split {
            self.offer_head(0);
        }
    }

    /// Split: offers the chain that starts at `head`.
    fn offer_head(&mut self, head: u16) {
        let slot = u64::from(self.next % self.spec.size);
        self.put(AVAIL + 4 + 2 * slot, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        self.put(AVAIL + 2, &self.next.to_le_bytes());
    }

    fn fault(&mut self) -> RingFault {
        let before = self.queue.position();
        let fault = self.queue.pop(&mut self.scratch).err().expect("a fault");
        assert_eq!(self.queue.position(), before, "nothing is taken with a fault");
        fault
    }

    fn pop_lengths(&mut self) -> Vec<usize> {
        let popped = self.queue.pop(&mut self.scratch).unwrap();
        (0..popped.len()).map(|index| popped.frame(index).len()).collect()
    }
}

const KINDS: [RingKind; 2] = [RingKind::Split, RingKind::Packed];

#[test]
fn a_buffer_outside_of_memory_is_a_fault() {
    for kind in KINDS {
        for (addr, len) in [
            (0, 64),
            (BASE - 1, 64),
            (BASE + MEMORY - 63, 64),
            (BASE + MEMORY, 1),
            (u64::MAX - 10, 64),
            (u64::MAX, 1),
            (DATA, u32::MAX),
        ] {
            let mut ring = Hostile::new(kind);
            ring.offer(&[(addr, len, 0)]);
            assert_eq!(ring.fault(), RingFault::AddressOutOfRange { addr, len: u64::from(len) });
        }
    }
}

#[test]
fn the_last_byte_of_memory_is_still_a_buffer() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        ring.offer(&[(BASE + MEMORY - 64, 64, 0)]);
        assert_eq!(ring.pop_lengths(), [64]);
    }
}

#[test]
fn a_buffer_over_two_adjoining_regions_is_one_frame() {
    let regions = vec![region(BASE, MEMORY), region(BASE + MEMORY, 0x1000)];
    let memory = Arc::new(GuestMemory::map(regions).unwrap());
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        ring.memory = Arc::clone(&memory);
        ring.queue = Queue::new(Arc::clone(&memory), ring.spec, Position::START).unwrap();
        let addr = BASE + MEMORY - 3;
        memory.write(addr, b"abc").unwrap();
        memory.write(addr + 3, b"defgh").unwrap();
        ring.offer(&[(addr, 8, 0)]);
        let popped = ring.queue.pop(&mut ring.scratch).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(popped.frame(0).copy_at(0, &mut bytes), 8);
        assert_eq!(&bytes, b"abcdefgh");
    }
}

#[test]
fn a_split_chain_that_loops_is_a_fault() {
    let mut ring = Hostile::new(RingKind::Split);
    ring.entry(DESC, 0, DATA, 1, NEXT, 1);
    ring.entry(DESC, 1, DATA, 1, NEXT, 0);
    ring.offer_head(0);
    assert_eq!(ring.fault(), RingFault::Loop);
}

#[test]
fn a_packed_chain_round_the_whole_ring_and_on_is_a_fault() {
    let mut ring = Hostile::new(RingKind::Packed);
    for slot in 0..SIZE {
        ring.entry(DESC, slot, DATA, 1, NEXT | AVAIL_FLAG, 0);
    }
    assert_eq!(ring.fault(), RingFault::Loop);
}

#[test]
fn a_chain_as_long_as_its_ring_is_fine() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        let mut chain = [(DATA, 10, NEXT); SIZE as usize];
        chain[SIZE as usize - 1].2 = 0;
        ring.offer(&chain);
        assert_eq!(ring.pop_lengths(), [80]);
    }
}

#[test]
fn a_packed_chain_into_a_slot_that_is_not_available_is_a_fault() {
    let mut ring = Hostile::new(RingKind::Packed);
    ring.offer(&[(DATA, 10, NEXT), (DATA, 10, NEXT)]);
    assert_eq!(ring.fault(), RingFault::NotAvailable { index: 2 });
}

#[test]
fn a_head_or_next_beyond_the_ring_is_a_fault() {
    let mut ring = Hostile::new(RingKind::Split);
    ring.offer_head(SIZE);
    assert_eq!(ring.fault(), RingFault::IndexOutOfRange { index: SIZE, size: SIZE });
    let mut ring = Hostile::new(RingKind::Split);
    ring.entry(DESC, 0, DATA, 1, NEXT, 0xffff);
    ring.offer_head(0);
    assert_eq!(ring.fault(), RingFault::IndexOutOfRange { index: 0xffff, size: SIZE });
}

#[test]
fn an_available_index_that_jumps_is_a_fault_and_a_full_ring_is_not() {
    let mut ring = Hostile::new(RingKind::Split);
    ring.put(AVAIL + 2, &(SIZE + 1).to_le_bytes());
    assert_eq!(ring.fault(), RingFault::AvailJump { from: 0, to: SIZE + 1, size: SIZE });
    ring.put(AVAIL + 2, &u16::MAX.to_le_bytes());
    assert_eq!(ring.fault(), RingFault::AvailJump { from: 0, to: u16::MAX, size: SIZE });
    let error = ring.queue.fill().push(&[0; 12], true, &Gather::from_slice(&[0; 60]));
    let fault = RingFault::AvailJump { from: 0, to: u16::MAX, size: SIZE };
    assert_eq!(error, Err(FillError::Fault(fault)));

    let mut ring = Hostile::new(RingKind::Split);
    ring.entry(DESC, 0, DATA, 20, 0, 0);
    (0..SIZE).for_each(|_| ring.offer_head(0));
    assert_eq!(ring.pop_lengths(), [20; SIZE as usize]);
}

#[test]
fn buffers_of_the_wrong_direction_are_a_fault() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        ring.offer(&[(DATA, 64, WRITE)]);
        assert_eq!(ring.fault(), RingFault::WrongDirection);

        let mut ring = Hostile::new(kind);
        ring.offer(&[(DATA, 64, 0)]);
        let result = ring.queue.fill().push(&[0; 12], true, &Gather::from_slice(&[1; 20]));
        assert_eq!(result, Err(FillError::Fault(RingFault::WrongDirection)));
        assert_eq!(ring.get(DATA), [0; 64], "nothing is written to a readable buffer");

        let mut ring = Hostile::new(kind);
        ring.offer(&[(DATA, 8, WRITE | NEXT), (DATA, 8, 0)]);
        let result = ring.queue.pop_mixed(&mut ring.scratch);
        assert_eq!(result.err(), Some(RingFault::WrongDirection));
    }
}

#[test]
fn an_indirect_table_of_a_bad_length_is_a_fault() {
    for kind in KINDS {
        for len in [0, 1, 15, 17, 40, u32::MAX] {
            let mut ring = Hostile::new(kind);
            ring.offer(&[(TABLE, len, INDIRECT)]);
            assert_eq!(ring.fault(), RingFault::BadIndirect { len });
        }
        let mut ring = Hostile::new(kind);
        ring.offer(&[(BASE + MEMORY - 16, 32, INDIRECT)]);
        let addr = BASE + MEMORY - 16;
        assert_eq!(ring.fault(), RingFault::AddressOutOfRange { addr, len: 32 });
        let mut ring = Hostile::new(kind);
        ring.offer(&[(TABLE, 16, INDIRECT | NEXT), (DATA, 1, 0)]);
        assert_eq!(ring.fault(), RingFault::BadIndirect { len: 16 });
    }
}

#[test]
fn an_indirect_table_in_an_indirect_table_is_a_fault() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        ring.entry(TABLE, 0, TABLE, 16, INDIRECT, 0);
        ring.offer(&[(TABLE, 16, INDIRECT)]);
        assert_eq!(ring.fault(), RingFault::NestedIndirect);
    }
}

#[test]
fn an_indirect_table_without_the_feature_is_a_fault() {
    for kind in KINDS {
        let mut ring = Hostile::with(kind, |spec| spec.indirect = false);
        ring.entry(TABLE, 0, DATA, 64, 0, 0);
        ring.offer(&[(TABLE, 16, INDIRECT)]);
        assert_eq!(ring.fault(), RingFault::IndirectNotNegotiated);
    }
}

#[test]
fn a_split_table_that_loops_or_points_out_of_itself_is_a_fault() {
    let mut ring = Hostile::new(RingKind::Split);
    ring.entry(TABLE, 0, DATA, 1, NEXT, 1);
    ring.entry(TABLE, 1, DATA, 1, NEXT, 0);
    ring.offer(&[(TABLE, 32, INDIRECT)]);
    assert_eq!(ring.fault(), RingFault::Loop);
    ring.entry(TABLE, 1, DATA, 1, NEXT, 2);
    assert_eq!(ring.fault(), RingFault::IndexOutOfRange { index: 2, size: 2 });
}

#[test]
fn a_chain_may_go_on_in_a_table_and_ends_there() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        ring.entry(TABLE, 0, DATA, 100, NEXT, 1);
        ring.entry(TABLE, 1, DATA, 1000, 0, 0);
        ring.offer(&[(DATA, 12, NEXT), (TABLE, 32, INDIRECT)]);
        assert_eq!(ring.pop_lengths(), [1112]);
    }
}

#[test]
fn the_write_flag_in_a_packed_table_that_is_sent_is_ignored_as_dpdk_leaves_it_set() {
    let mut ring = Hostile::new(RingKind::Packed);
    ring.entry(TABLE, 0, DATA, 12, WRITE, 0);
    ring.entry(TABLE, 1, DATA, 60, 0, 0);
    ring.offer(&[(TABLE, 32, INDIRECT)]);
    assert_eq!(ring.pop_lengths(), [72]);
}

#[test]
fn more_buffers_than_a_chain_may_have_are_a_fault() {
    for kind in KINDS {
        let most = MAX_BUFFERS as u16;
        let mut ring = Hostile::new(kind);
        for index in 0..=most {
            ring.entry(TABLE, index, DATA, 1, if index < most { NEXT } else { 0 }, index + 1);
        }
        ring.offer(&[(TABLE, 16 * (u32::from(most) + 1), INDIRECT)]);
        assert_eq!(ring.fault(), RingFault::TooManyBuffers);
        let mut ring = Hostile::new(kind);
        for index in 0..most {
            ring.entry(TABLE, index, DATA, 1, if index + 1 < most { NEXT } else { 0 }, index + 1);
        }
        ring.offer(&[(TABLE, 16 * u32::from(most), INDIRECT)]);
        assert_eq!(ring.pop_lengths(), [MAX_BUFFERS]);
    }
}

#[test]
fn a_batch_of_the_longest_chains_fits_the_pool_in_several_pops() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        let most = MAX_BUFFERS as u16;
        for index in 0..most {
            ring.entry(TABLE, index, DATA, 1, if index + 1 < most { NEXT } else { 0 }, index + 1);
        }
        (0..SIZE).for_each(|_| ring.offer(&[(TABLE, 16 * u32::from(most), INDIRECT)]));
        let mut taken = 0;
        while taken < usize::from(SIZE) {
            let lengths = ring.pop_lengths();
            assert!(!lengths.is_empty() && lengths.iter().all(|len| *len == MAX_BUFFERS));
            taken += lengths.len();
        }
    }
}

#[test]
fn empty_buffers_are_skipped_but_an_empty_chain_is_a_fault() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        ring.offer(&[(0, 0, NEXT), (DATA, 9, NEXT), (u64::MAX, 0, 0)]);
        assert_eq!(ring.pop_lengths(), [9]);
        let mut ring = Hostile::new(kind);
        ring.offer(&[(DATA, 0, NEXT), (DATA, 0, 0)]);
        assert_eq!(ring.fault(), RingFault::EmptyChain);
    }
}

#[test]
fn good_chains_before_a_faulty_one_are_delivered_first() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        match kind {
            RingKind::Split => {
                ring.entry(DESC, 0, DATA, 60, 0, 0);
                ring.entry(DESC, 1, 0, 60, 0, 0);
                for head in [0, 0, 1, 0] {
                    ring.offer_head(head);
                }
            }
            RingKind::Packed => {
                for addr in [DATA, DATA, 0, DATA] {
                    ring.offer(&[(addr, 60, 0)]);
                }
            }
        }
        assert_eq!(ring.pop_lengths(), [60, 60]);
        assert_eq!(ring.fault(), RingFault::AddressOutOfRange { addr: 0, len: 60 });
    }
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let ring = Hostile::new(RingKind::Split);
    let refused = |change: &dyn Fn(&mut RingSpec), at: Position| {
        let mut spec = ring.spec;
        change(&mut spec);
        Queue::new(Arc::clone(&ring.memory), spec, at).err()
    };
    let start = Position::START;
    for size in [0, 3, 7, 33_000] {
        assert_eq!(refused(&|spec| spec.size = size, start), Some(RingFault::BadSize { size }));
    }
    let packed =
        |size| move |spec: &mut RingSpec| (spec.kind, spec.size) = (RingKind::Packed, size);
    assert_eq!(refused(&packed(0), start), Some(RingFault::BadSize { size: 0 }));
    assert_eq!(refused(&packed(40_000), start), Some(RingFault::BadSize { size: 40_000 }));
    assert_eq!(refused(&packed(7), start), None);
    let outside = Position { next: 7, ..start };
    let fault = RingFault::IndexOutOfRange { index: 7, size: 7 };
    assert_eq!(refused(&packed(7), outside), Some(fault));
    let fault = |addr, align| Some(RingFault::Misaligned { addr, align });
    assert_eq!(refused(&|spec| spec.desc += 8, start), fault(DESC + 8, 16));
    assert_eq!(refused(&|spec| spec.avail += 1, start), fault(AVAIL + 1, 2));
    assert_eq!(refused(&|spec| spec.used += 2, start), fault(USED + 2, 4));
    let end = BASE + MEMORY;
    let fault = |addr, len| Some(RingFault::AddressOutOfRange { addr, len });
    assert_eq!(refused(&|spec| spec.desc = end - 16, start), fault(end - 16, 128));
    assert_eq!(refused(&|spec| spec.used = u64::MAX - 3, start), fault(u64::MAX - 3, 70));
}

#[test]
fn memory_tables_that_lie_are_refused() {
    let map = |regions| GuestMemory::map(regions).err();
    assert!(matches!(map(vec![]), Some(MemoryError::RegionCount(0))));
    let many = (0..65).map(|index| region(index << 20, 0x1000)).collect();
    assert!(matches!(map(many), Some(MemoryError::RegionCount(65))));
    let overlap = vec![region(BASE, 0x2000), region(BASE + 0x1000, 0x2000)];
    assert!(matches!(map(overlap), Some(MemoryError::Overlap(_))));
    let long = vec![Region { size: 0x3000, ..region(BASE, 0x2000) }];
    assert!(matches!(map(long), Some(MemoryError::FileTooShort { .. })));
    let shifted = vec![Region { mmap_offset: 0x1000, ..region(BASE, 0x2000) }];
    assert!(matches!(map(shifted), Some(MemoryError::FileTooShort { .. })));
    for (guest_addr, size, mmap_offset) in
        [(BASE, 0, 0), (u64::MAX - 10, 0x1000, 0), (BASE, 0x1000, u64::MAX - 10)]
    {
        let wrapped = vec![Region { guest_addr, size, mmap_offset, ..region(BASE, 0x1000) }];
        assert!(matches!(map(wrapped), Some(MemoryError::RegionSize { .. })));
    }
}

#[test]
fn mapped_memory_cannot_be_shrunk_any_more_where_its_file_has_seals() {
    let region = region(BASE, 0x4000);
    let file = region.file.try_clone().unwrap();
    let memory = GuestMemory::map(vec![region]).unwrap();
    assert!(memory.sealed());
    assert!(file.set_len(0).is_err());
    assert!(rustix::fs::fcntl_get_seals(&file).unwrap().contains(SealFlags::SHRINK));
}

#[test]
fn user_addresses_are_found_in_their_region_only() {
    let memory = GuestMemory::map(vec![region(BASE, 0x1000), region(BASE * 8, 0x1000)]).unwrap();
    let user = 7 << 40;
    assert_eq!(memory.user_to_guest(user + BASE + 5), Some(BASE + 5));
    assert_eq!(memory.user_to_guest(user + BASE * 8 + 0xfff), Some(BASE * 8 + 0xfff));
    assert_eq!(memory.user_to_guest(user + BASE + 0x1000), None);
    assert_eq!(memory.user_to_guest(user + BASE - 1), None);
    assert_eq!(memory.identity().len(), 2);
}

#[test]
fn a_frame_that_finds_too_few_buffers_takes_none() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        match kind {
            RingKind::Split => {
                ring.entry(DESC, 0, DATA, 100, WRITE, 0);
                (0..2).for_each(|_| ring.offer_head(0));
            }
            RingKind::Packed => (0..2).for_each(|_| ring.offer(&[(DATA, 100, WRITE)])),
        }
        let mut fill = ring.queue.fill();
        let bytes = [3; 300];
        let push = |fill: &mut super::Fill<'_>, len: usize| {
            fill.push(&[0; 12], true, &Gather::from_slice(&bytes[..len]))
        };
        assert_eq!(push(&mut fill, 189), Err(FillError::NoBuffer));
        assert_eq!(push(&mut fill, 188), Ok(()));
        assert_eq!(push(&mut fill, 1), Err(FillError::NoBuffer));
    }
}

#[test]
fn a_batch_becomes_visible_at_once() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        match kind {
            RingKind::Split => {
                ring.entry(DESC, 0, DATA, 60, 0, 0);
                (0..3).for_each(|_| ring.offer_head(0));
            }
            RingKind::Packed => (0..3).for_each(|_| ring.offer(&[(DATA, 60, 0)])),
        }
        let memory = Arc::clone(&ring.memory);
        let used_index = || {
            let mut index = [0; 2];
            memory.read(USED + 2, &mut index).unwrap();
            u16::from_le_bytes(index)
        };
        let used_flags = |slot: u64| {
            let mut flags = [0; 2];
            memory.read(DESC + 16 * slot + 14, &mut flags).unwrap();
            u16::from_le_bytes(flags) & USED_FLAG != 0
        };
        let popped = ring.queue.pop(&mut ring.scratch).unwrap();
        assert_eq!((used_index(), used_flags(0)), (0, false), "nothing before it is complete");
        popped.complete();
        match kind {
            RingKind::Split => assert_eq!(used_index(), 3),
            RingKind::Packed => assert_eq!([0, 1, 2, 3].map(used_flags), [true, true, true, false]),
        }
    }
}

#[test]
fn in_order_batches_are_given_back_with_one_entry() {
    let mut ring = Hostile::with(RingKind::Packed, |spec| spec.in_order = true);
    (0..3).for_each(|_| ring.offer(&[(DATA, 60, 0)]));
    ring.pop_lengths();
    let used = [0, 1, 2].map(|slot| ring.get::<2>(DESC + 16 * slot + 14)[1] >> 7 == 1);
    assert_eq!(used, [true, false, false]);
    assert_eq!(ring.queue.position().used_next, 3);

    let mut ring = Hostile::with(RingKind::Split, |spec| spec.in_order = true);
    for head in 0..3 {
        ring.entry(DESC, head, DATA, 60, 0, 0);
        ring.offer_head(head);
    }
    ring.pop_lengths();
    assert_eq!(ring.get(USED + 2), [3, 0]);
    assert_eq!(ring.get(USED + 4), [2, 0, 0, 0], "the batch's last head, where the batch begins");
}

#[test]
fn a_batch_dropped_without_completing_is_given_back_all_the_same() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        ring.offer(&[(DATA, 60, 0)]);
        drop(ring.queue.pop(&mut ring.scratch).unwrap());
        assert!(ring.pop_lengths().is_empty());
        assert_eq!(ring.queue.position().used_next, 1);
    }
}

#[test]
fn vring_bases_are_read_as_vhost_user_writes_them() {
    let at = Position { next: 5, wrap: true, used_next: 3, used_wrap: false };
    assert_eq!(at.to_vring_base(RingKind::Packed), 0x0003_8005);
    assert_eq!(Position::from_vring_base(RingKind::Packed, 0x0003_8005), at);
    let both = Position { next: 5, wrap: true, used_next: 5, used_wrap: true };
    assert_eq!(Position::from_vring_base(RingKind::Packed, 0x8005), both);
    assert_eq!(Position::from_vring_base(RingKind::Packed, 0x8000_8000), Position::START);
    assert_eq!(Position::from_vring_base(RingKind::Split, 0xffff).next, 0xffff);
    assert_eq!(Position::from_used_index(9).to_vring_base(RingKind::Split), 9);
}

/// What the driver of a packed ring is given back from the front on: ids, with how many slots each
/// of its chains has.
fn given_back(ring: &Hostile, slots_of: impl Fn(u16) -> u16) -> Vec<(u16, u32)> {
    let mut found = Vec::new();
    let mut slot = 0;
    while slot < SIZE {
        let entry = ring.get::<16>(DESC + 16 * u64::from(slot));
        let flags = u16::from_le_bytes([entry[14], entry[15]]);
        if flags & (AVAIL_FLAG | USED_FLAG) != AVAIL_FLAG | USED_FLAG {
            break;
        }
        let len = u32::from_le_bytes([entry[8], entry[9], entry[10], entry[11]]);
        found.push((u16::from_le_bytes([entry[12], entry[13]]), len));
        slot += slots_of(slot);
    }
    found
}

/// Sends five chains, the third over three slots, with the process killed after each number of
/// stores: whatever it left, all chains come back once, in order.
#[test]
fn a_batch_of_sent_chains_killed_at_any_store_comes_back_whole_and_once() {
    let slots_of = |slot| if slot == 2 { 3 } else { 1 };
    for stores in 0.. {
        let file = memfd(JOURNAL_BYTES);
        let journal = || Journal::open(file.try_clone().unwrap(), 0).unwrap();
        let mut ring = Hostile::new(RingKind::Packed);
        let (memory, spec) = (Arc::clone(&ring.memory), ring.spec);
        ring.queue =
            Queue::with_journal(Arc::clone(&memory), spec, Position::START, journal()).unwrap();
        (0..2).for_each(|_| ring.offer(&[(DATA, 60, 0)]));
        ring.offer(&[(DATA, 12, NEXT), (DATA, 20, NEXT), (DATA, 30, 0)]);
        (0..2).for_each(|_| ring.offer(&[(DATA, 60, 0)]));
        let Hostile { queue, scratch, .. } = &mut ring;
        let all = cut::after(stores, || queue.pop(scratch).unwrap().complete());
        ring.queue = Queue::resume(Arc::clone(&memory), spec, journal()).unwrap();
        let done = given_back(&ring, slots_of).len();
        let left = ring.pop_lengths().len();
        assert_eq!(done + left, 5, "after {stores} stores");
        assert_eq!(given_back(&ring, slots_of), [(77, 0); 5], "after {stores} stores");
        assert_eq!(ring.queue.position().next, 7);
        if all {
            assert!(stores > 8, "each entry and each statement was cut off once");
            return;
        }
    }
}

/// Receives four frames, the second over three buffers, with the process killed after each number
/// of stores: the driver is given whole frames only, and every buffer can be used afterwards.
#[test]
fn a_batch_of_received_frames_killed_at_any_store_is_whole_frames_only() {
    let header = [0; 12];
    let lengths = [50_usize, 250, 60, 70];
    let bytes = [0x5a; 250];
    for stores in 0.. {
        let file = memfd(JOURNAL_BYTES);
        let journal = || Journal::open(file.try_clone().unwrap(), 0).unwrap();
        let mut ring = Hostile::new(RingKind::Packed);
        let (memory, spec) = (Arc::clone(&ring.memory), ring.spec);
        ring.queue =
            Queue::with_journal(Arc::clone(&memory), spec, Position::START, journal()).unwrap();
        (0..8).for_each(|_| ring.offer(&[(DATA, 100, WRITE)]));
        let all = cut::after(stores, || {
            let mut fill = ring.queue.fill();
            for len in lengths {
                fill.push(&header, true, &Gather::from_slice(&bytes[..len])).unwrap();
            }
        });
        ring.queue = Queue::resume(Arc::clone(&memory), spec, journal()).unwrap();
        let used: Vec<u32> = given_back(&ring, |_| 1).into_iter().map(|(_, len)| len).collect();
        let whole: [&[u32]; 5] =
            [&[], &[62], &[62, 100, 100, 62], &[62, 100, 100, 62, 72], &[62, 100, 100, 62, 72, 82]];
        assert!(whole.contains(&used.as_slice()), "after {stores} stores: {used:?}");
        // Those that are left take frames as ever.
        let left = 8 - used.len();
        let mut fill = ring.queue.fill();
        for _ in 0..left {
            fill.push(&header, true, &Gather::from_slice(&bytes[..10])).unwrap();
        }
        let full = fill.push(&header, true, &Gather::from_slice(&bytes[..10]));
        assert!(matches!(full, Err(FillError::NoBuffer)), "after {stores} stores");
        drop(fill);
        assert_eq!(given_back(&ring, |_| 1).len(), 8);
        if all {
            assert_eq!(used.len(), 6);
            return;
        }
    }
}

#[test]
fn a_packed_ring_set_up_anew_after_the_crash_starts_from_the_front() {
    let file = memfd(JOURNAL_BYTES);
    let journal = || Journal::open(file.try_clone().unwrap(), 0).unwrap();
    let mut ring = Hostile::new(RingKind::Packed);
    let (memory, spec) = (Arc::clone(&ring.memory), ring.spec);
    ring.queue =
        Queue::with_journal(Arc::clone(&memory), spec, Position::START, journal()).unwrap();
    ring.offer(&[(DATA, 60, 0)]);
    assert_eq!(ring.pop_lengths(), [60]);
    let resumed = Queue::resume(Arc::clone(&memory), spec, journal()).unwrap();
    assert_eq!(resumed.position().next, 1);
    ring.put(DESC, &[0; 16 * SIZE as usize]);
    let resumed = Queue::resume(memory, spec, journal()).unwrap();
    assert_eq!(resumed.position(), Position::START);
}

#[test]
fn replaced_heads_and_cut_tails_read_as_one_frame() {
    let whole = Gather::from_slice(b"0123456789");
    let read = |frame: Gather<'_>| {
        let mut bytes = vec![0; frame.len()];
        assert_eq!(frame.copy_at(0, &mut bytes), bytes.len());
        String::from_utf8(bytes).unwrap()
    };
    let once = whole.replace_head(b"abc", 2);
    assert_eq!(read(once), "abc23456789");
    assert_eq!(read(once.replace_head(b"X", 1)), "Xbc23456789");
    assert_eq!(read(once.replace_head(b"X", 5)), "X456789");
    assert_eq!(read(once.truncate(4)), "abc2");
    assert_eq!(read(once.truncate(2).replace_head(b"YZ", 9)), "YZ");
    let mut tail = [0; 9];
    assert_eq!(once.copy_at(9, &mut tail), 2);
    assert_eq!(&tail[..2], b"89");
    assert_eq!(once.copy_at(11, &mut tail), 0);
}

/// Bytes from a simple generator, so that the same test runs the same way every time.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// One write of a guest that scribbles: a whole descriptor, an index or some flags that could be
/// meant, or garbage anywhere in the ring.
fn scribble(memory: &GuestMemory, kind: RingKind, random: u64) {
    let pick = |shift: u32, below: u64| (random >> shift) % below;
    let (slot, small) = (pick(8, u64::from(SIZE)), pick(24, 16));
    let write = |addr, bytes: &[u8]| memory.write(addr, bytes).unwrap();
    let lap = [AVAIL_FLAG, USED_FLAG][pick(40, 2) as usize];
    match random % 8 {
        0..4 => {
            let flags = [0, WRITE][pick(32, 2) as usize];
            let (third, fourth) = match kind {
                RingKind::Split => (flags, 0),
                RingKind::Packed => (0, flags | lap),
            };
            let word =
                u128::from(DATA) | 200 << 64 | u128::from(third) << 96 | u128::from(fourth) << 112;
            write(DESC + 16 * slot, &word.to_le_bytes());
        }
        4 => write(AVAIL + 2, &(small as u16).to_le_bytes()),
        5 => write(AVAIL + 4 + 2 * slot, &(slot as u16).to_le_bytes()),
        6 => write(DESC + 16 * slot + 14, &(small as u16 | lap).to_le_bytes()),
        _ => write([DESC, AVAIL][pick(36, 2) as usize] + pick(8, 22), &[pick(48, 256) as u8; 2]),
    }
}

#[test]
fn a_guest_that_scribbles_while_its_rings_are_read_causes_faults_at_most() {
    for kind in KINDS {
        let mut ring = Hostile::new(kind);
        let stop = AtomicBool::new(false);
        let memory = Arc::clone(&ring.memory);
        let mut faults = 0;
        let mut next_reset = 16;
        let mut frames = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut next = noise(42);
                while !stop.load(Ordering::Relaxed) {
                    scribble(&memory, kind, next());
                }
            });
            let start = Instant::now();
            let bytes = [9; 100];
            // Long enough to meet in many ways; longer only where the other thread gets no time.
            let met = |faults, frames: usize| faults > 100 && frames > 100;
            while start.elapsed() < Duration::from_millis(300)
                || (!met(faults, frames) && start.elapsed() < Duration::from_secs(30))
            {
                match ring.queue.pop(&mut ring.scratch) {
                    Ok(popped) => frames += popped.len(),
                    Err(_) => faults += 1,
                }
                let mut fill = ring.queue.fill();
                match fill.push(&[0; 12], true, &Gather::from_slice(&bytes)) {
                    Err(FillError::Fault(_)) => faults += 1,
                    Ok(()) => frames += 1,
                    Err(FillError::NoBuffer | FillError::BufferTooSmall) => {}
                }
                drop(fill);
                // A stopped queue is set up again, as the driver's reset would have it.
                if faults >= next_reset {
                    next_reset = faults + 16;
                    let at = Position::START;
                    ring.queue = Queue::new(Arc::clone(&ring.memory), ring.spec, at).unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(faults > 100, "{kind:?}: the scribbling reached little: {faults}");
        assert!(frames > 100, "{kind:?}: the scribbling left little whole: {frames}");
    }
}

#[test]
fn many_random_guests_break_no_promise() {
    let mut next = noise(7);
    for _ in 0..3000 {
        let len = 16 + next() as usize % 600;
        let bytes = (0..len).map(|_| next() as u8).collect::<Vec<_>>();
        ring_walk(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn no_input_of_the_fuzzer_breaks_a_promise(
        data in prop::collection::vec(any::<u8>(), 0..800),
    ) {
        ring_walk(&data);
    }

    #[test]
    fn a_frame_is_the_same_however_its_buffers_are_cut(
        packed: bool,
        indirect: bool,
        cuts in prop::collection::vec(1_u32..300, 1..=8),
        offset in 0_usize..400,
        head in prop::collection::vec(any::<u8>(), 0..100),
        skip in 0_usize..200,
    ) {
        let kind = if packed { RingKind::Packed } else { RingKind::Split };
        let mut ring = Hostile::new(kind);
        let total: u32 = cuts.iter().sum();
        let bytes = (0..total).map(|at| (at * 7 + at / 256) as u8).collect::<Vec<_>>();
        // Pieces lie in reverse order in memory and apart from each other.
        let mut chain = Vec::new();
        let mut at = 0;
        for (index, len) in cuts.iter().enumerate() {
            let addr = DATA + 0x1000 * (20 - index as u64) + index as u64;
            ring.put(addr, &bytes[at as usize..(at + len) as usize]);
            at += len;
            chain.push((addr, *len, if at < total { NEXT } else { 0 }));
        }
        if indirect {
            for (index, (addr, len, flags)) in chain.iter().enumerate() {
                ring.entry(TABLE, index as u16, *addr, *len, *flags, index as u16 + 1);
            }
            chain = vec![(TABLE, 16 * cuts.len() as u32, INDIRECT)];
        }
        ring.offer(&chain);
        let popped = ring.queue.pop(&mut ring.scratch).unwrap();
        prop_assert!(popped.len() == 1 && popped.len() <= BATCH);
        let frame = popped.frame(0);
        let read = |frame: &Gather<'_>, offset: usize| {
            let mut into = vec![0; frame.len().saturating_sub(offset)];
            assert_eq!(frame.copy_at(offset, &mut into), into.len());
            into
        };
        prop_assert_eq!(read(&frame, offset), &bytes[offset.min(bytes.len())..]);
        let expected = [&head, &bytes[skip.min(bytes.len())..]].concat();
        prop_assert_eq!(read(&frame.replace_head(&head, skip), 0), expected);
    }
}
