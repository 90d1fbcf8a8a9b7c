//! A hostile guest played from any bytes, with what must hold whatever they are. One entry,
//! [`ring_walk`], for the fuzzer and for tests.
//!
//! The bytes are read as a list of steps: ways to write ring memory (from well-formed chains to raw
//! pokes, and one that changes memory while a batch is in hand), and what a worker does with a ring.

use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;

use rustix::fs::MemfdFlags;

use super::{
    BATCH, FillError, Gather, GuestMemory, JOURNAL_BYTES, Journal, PopScratch, Position, Queue,
    Region, RingKind, RingSpec,
};

/// Two regions that adjoin for the guest but not for us, and one above 4 GiB.
const REGIONS: [(u64, u64); 3] =
    [(0x1_0000, 0x1_0000), (0x2_0000, 0x4000), (0x1_0000_0000, 0x4000)];
const DESC: u64 = 0x1_0000;
const AVAIL: u64 = 0x1_2000;
const USED: u64 = 0x1_3000;
/// Indirect tables and buffers, up to where the second region ends.
const DATA: u64 = 0x1_4000;
const SIZES: [u16; 8] = [1, 2, 4, 8, 16, 64, 128, 37];
/// Steps of one run at most: enough for many laps of a small ring.
const STEPS: usize = 512;

thread_local! {
    /// Mapping takes longer than a run, so it is done once a thread.
    static GUEST: RefCell<Option<Guest>> = const { RefCell::new(None) };
}

struct Guest {
    memory: Arc<GuestMemory>,
    journal: File,
    scratch: PopScratch,
}

fn memfd(size: u64) -> File {
    let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
    let file = File::from(file);
    file.set_len(size).expect("room for a memfd");
    file
}

impl Guest {
    fn new() -> Self {
        let region = |(guest_addr, size)| Region {
            guest_addr,
            size,
            user_addr: guest_addr + 0x7000_0000_0000,
            mmap_offset: 0x3000,
            file: Arc::new(memfd(size + 0x3000)),
        };
        let memory = GuestMemory::map(REGIONS.map(region).into()).expect("a sound table");
        let (journal, scratch) = (memfd(JOURNAL_BYTES), PopScratch::new());
        Self { memory: Arc::new(memory), journal, scratch }
    }
}

/// The rest of the input; reads as zeroes past its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u64(&mut self, bytes: usize) -> u64 {
        let (head, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        head.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn u8(&mut self) -> u8 {
        self.u64(1) as u8
    }

    fn u16(&mut self) -> u16 {
        self.u64(2) as u16
    }

    /// An address: mostly somewhere sensible, at times at an edge, at times anything.
    fn address(&mut self) -> u64 {
        match self.u8() % 8 {
            0..3 => DATA + u64::from(self.u16()),
            3 => 0x2_0000 - u64::from(self.u8()),
            4 => 0x2_4000 - u64::from(self.u8()),
            5 => 0x1_0000_0000 + u64::from(self.u16()),
            6 => DESC + u64::from(self.u16()),
            _ => self.u64(8),
        }
    }

    fn length(&mut self) -> u32 {
        match self.u8() % 8 {
            0..5 => u32::from(self.u8()) * 8,
            5 => u32::from(self.u16()),
            6 => u32::MAX - u32::from(self.u8()),
            _ => self.u64(4) as u32,
        }
    }

    /// Descriptor flags; `lap` are the packed ring's two.
    fn flags(&mut self, lap: u16) -> u16 {
        match self.u8() % 16 {
            0..4 => lap,
            4..8 => lap | 2,
            8..10 => lap | 1,
            10..12 => lap | 3,
            12 => lap | 4,
            13 => lap | 5,
            14 => lap | 6,
            _ => self.u16(),
        }
    }
}

/// The driver's idea of where it is, to make steps that a device takes seriously.
struct Driver {
    spec: RingSpec,
    next: u16,
    wrap: bool,
}

impl Driver {
    fn lap(&self) -> u16 {
        if self.wrap { 1 << 7 } else { 1 << 15 }
    }

    /// Writes one descriptor with the next place in line, and offers it.
    fn offer(&mut self, memory: &GuestMemory, input: &mut Input<'_>) {
        let (addr, len) = (input.address(), input.length());
        match self.spec.kind {
            RingKind::Split => {
                let head = input.u16() % self.spec.size.saturating_add(1);
                let flags = input.flags(0);
                let next = u16::from(input.u8());
                write_descriptor(memory, DESC, head, addr, len, [flags, next]);
                let entry = AVAIL + 4 + 2 * u64::from(self.next % self.spec.size);
                put(memory, entry, &head.to_le_bytes());
                self.next = self.next.wrapping_add(1);
                put(memory, AVAIL + 2, &self.next.to_le_bytes());
            }
            RingKind::Packed => {
                let (id, flags) = (input.u16(), input.flags(self.lap()));
                write_descriptor(memory, DESC, self.next, addr, len, [id, flags]);
                self.next += 1;
                if self.next == self.spec.size {
                    (self.next, self.wrap) = (0, !self.wrap);
                }
            }
        }
    }
}

fn put(memory: &GuestMemory, addr: u64, bytes: &[u8]) {
    // An address outside is the input's choice and does no harm here.
    let _ = memory.write(addr, bytes);
}

fn write_descriptor(
    memory: &GuestMemory,
    table: u64,
    index: u16,
    addr: u64,
    len: u32,
    [third, fourth]: [u16; 2],
) {
    let word = u128::from(addr)
        | u128::from(len) << 64
        | u128::from(third) << 96
        | u128::from(fourth) << 112;
    put(memory, table.wrapping_add(16 * u64::from(index)), &word.to_le_bytes());
}

fn spec(input: &mut Input<'_>) -> RingSpec {
    let bits = input.u8();
    let kind = if bits & 1 == 0 { RingKind::Split } else { RingKind::Packed };
    let size = SIZES[usize::from(input.u8()) % SIZES.len()];
    RingSpec {
        kind,
        // 37 is only for packed rings; a split ring of that size is refused before.
        size: if kind == RingKind::Split && size == 37 { 32 } else { size },
        desc: DESC,
        avail: AVAIL,
        used: USED,
        indirect: bits & 2 != 0,
        event_idx: bits & 4 != 0,
        in_order: bits & 8 != 0,
    }
}

/// Plays `data` as a guest and a worker on one ring.
///
/// # Panics
/// When the ring code broke one of its promises.
pub fn ring_walk(data: &[u8]) {
    GUEST.with_borrow_mut(|guest| run(guest.get_or_insert_with(Guest::new), &mut Input(data)));
}

fn run(guest: &mut Guest, input: &mut Input<'_>) {
    for (addr, size) in REGIONS {
        put(&guest.memory, addr, &vec![0; size as usize]);
    }
    let spec = spec(input);
    let Guest { memory, journal, scratch } = guest;
    let mut driver = Driver { spec, next: 0, wrap: true };
    let new_queue = || {
        let journal = Journal::open(journal.try_clone().expect("a file"), 0).expect("a journal");
        Queue::with_journal(Arc::clone(memory), spec, Position::START, journal).expect("a ring")
    };
    let mut queue = new_queue();
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        match input.u8() % 16 {
            0..5 => driver.offer(memory, input),
            5 => {
                let (table, index) = (DATA & !15, input.u16() % 64);
                let (addr, len, flags) = (input.address(), input.length(), input.flags(0));
                let next = u16::from(input.u8());
                let split = spec.kind == RingKind::Split;
                let tail = if split { [flags, next] } else { [next, flags] };
                write_descriptor(memory, table, index, addr, len, tail);
            }
            6 => {
                let (addr, value) = (input.address(), input.u64(8));
                put(memory, addr, &value.to_le_bytes());
            }
            7 => put(memory, AVAIL + 2, &input.u16().to_le_bytes()),
            8 | 9 => pop(&mut queue, memory, scratch, input),
            10 => fill(&mut queue, input),
            11 => pop_mixed(&mut queue, memory, scratch, input),
            12 => {
                queue.wants_notify();
                if input.u8() & 1 == 0 {
                    queue.enable_kicks();
                } else {
                    queue.disable_kicks();
                }
            }
            13 => check_bounded(&mut queue, scratch, spec),
            14 => {
                let journal = Journal::open(journal.try_clone().expect("a file"), 0);
                let resumed = Queue::resume(Arc::clone(memory), spec, journal.expect("a journal"));
                queue = resumed.unwrap_or_else(|_| new_queue());
            }
            _ => make_any_queue(memory, input),
        }
        let at = queue.position();
        if spec.kind == RingKind::Packed {
            assert!(at.next < spec.size && at.used_next < spec.size, "{at:?} in {spec:?}");
        }
    }
}

/// Takes a batch, lets the guest write into it, and looks at every byte.
fn pop(queue: &mut Queue, memory: &GuestMemory, scratch: &mut PopScratch, input: &mut Input<'_>) {
    let Ok(popped) = queue.pop(scratch) else { return };
    assert!(popped.len() <= BATCH);
    put(memory, input.address(), &input.u64(8).to_le_bytes());
    for index in 0..popped.len() {
        check_gather(&popped.frame(index), memory);
        let head = [0; 60];
        let replaced = popped.frame(index);
        check_gather(&replaced.replace_head(&head, usize::from(input.u8())), memory);
    }
    if input.u8() & 1 == 0 {
        popped.complete();
    }
}

fn check_gather(frame: &Gather<'_>, memory: &GuestMemory) {
    let mut bytes = [0; 4096];
    for offset in [0, 14, 4095, frame.len()] {
        let copied = frame.copy_at(offset, &mut bytes);
        assert_eq!(copied, frame.len().saturating_sub(offset).min(bytes.len()));
    }
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut list = [none; 600];
    let count = frame.io_slices(&mut list).expect("no more pieces than a chain may have");
    assert_eq!(list[..count].iter().map(|part| part.iov_len).sum::<usize>(), frame.len());
    // All but a local head must be inside the mappings.
    let outside = list[..count].iter().filter(|part| !memory.holds(part)).count();
    assert!(outside <= 1, "{outside} pieces outside of guest memory");
}

fn fill(queue: &mut Queue, input: &mut Input<'_>) {
    let lengths = [0, 1, 60, 1500, 9000, 65_550];
    let bytes = vec![0xee; 65_550];
    let mergeable = input.u8() & 1 == 0;
    let header = if input.u8() & 1 == 0 { &[0; 12][..] } else { &[0; 10][..] };
    let before = queue.position();
    let mut fill = queue.fill();
    let mut pushed = 0;
    for _ in 0..input.u8() % 40 {
        let len = lengths[usize::from(input.u8()) % lengths.len()];
        match fill.push(header, mergeable, &Gather::from_slice(&bytes[..len])) {
            Ok(()) => pushed += 1,
            Err(FillError::NoBuffer | FillError::BufferTooSmall | FillError::Fault(_)) => break,
        }
    }
    fill.publish();
    assert!(pushed > 0 || queue.position() == before, "buffers taken for no frame");
}

fn pop_mixed(
    queue: &mut Queue,
    memory: &GuestMemory,
    scratch: &mut PopScratch,
    input: &mut Input<'_>,
) {
    let Ok(Some(mut command)) = queue.pop_mixed(scratch) else { return };
    put(memory, input.address(), &input.u64(8).to_le_bytes());
    check_gather(&command.request(), memory);
    let response = [7; 100];
    assert!(command.respond(&response[..usize::from(input.u8() % 101)]) <= 100);
    assert!(command.respond(&response) <= 100);
}

/// A driver that stands still gives no more than a ring of chains, and the ring of chains that was
/// seen available before it last moved: no ring spins for ever.
fn check_bounded(queue: &mut Queue, scratch: &mut PopScratch, spec: RingSpec) {
    let mut taken = 0;
    while let Ok(popped) = queue.pop(scratch) {
        if popped.is_empty() {
            return;
        }
        taken += popped.len();
        assert!(taken <= 2 * usize::from(spec.size), "{taken} chains in {spec:?}");
    }
}

/// Any ring that a front end could name, at any position: refused or sound.
fn make_any_queue(memory: &Arc<GuestMemory>, input: &mut Input<'_>) {
    let (desc, avail, used) = (input.address(), input.address(), input.address());
    let mut any = spec(input);
    (any.desc, any.avail, any.used, any.size) = (desc, avail, used, input.u16());
    let at = Position::from_vring_base(any.kind, input.u64(4) as u32);
    if let Ok(mut queue) = Queue::new(Arc::clone(memory), any, at) {
        let mut scratch = PopScratch::new();
        for _ in 0..4 {
            pop(&mut queue, memory, &mut scratch, input);
            fill(&mut queue, input);
        }
    }
}
