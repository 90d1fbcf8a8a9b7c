//! One virtqueue of the driver with its buffers: sending, receiving, commands.

use std::sync::Arc;

use super::layout::{QueueLayout, TABLE_ENTRIES};
use super::rings::{AnyRing, Buffer, DriverRing, Used, WRITE, on_driver_ring};
use super::{DriverError, NET_HEADER, TxFrame, VfOptions};
use crate::ring::chain::{DESC_INDIRECT, DESC_NEXT};
use crate::ring::memory::{GuestMemory, Segment};
use crate::ring::{Gather, Position, RingKind, RingSpec};

/// Most pieces one frame is sent in or received from.
const MAX_PIECES: usize = TABLE_ENTRIES;

/// Which descriptor ids, and with them which buffers, are free. Out of order the last one freed is
/// taken first, since its buffer is still in the cache; in order they go round, as 2.7.9 demands.
struct Ids {
    size: u16,
    in_order: bool,
    free: Vec<u16>,
    free_count: u16,
    /// In order: next id to hand out, and oldest one that is out.
    next: u16,
    oldest: u16,
    /// Number of ids of the chain that starts with this id; 0 for one that is not out.
    chain_len: Box<[u16]>,
    /// Ring descriptors of that chain: as many, or one with an indirect table.
    slots: Box<[u16]>,
    /// Next id of the same chain.
    link: Box<[u16]>,
}

impl Ids {
    fn new(size: u16, in_order: bool) -> Self {
        Self {
            size,
            in_order,
            free: (0..size).rev().collect(),
            free_count: size,
            next: 0,
            oldest: 0,
            chain_len: vec![0; usize::from(size)].into(),
            slots: vec![0; usize::from(size)].into(),
            link: vec![0; usize::from(size)].into(),
        }
    }

    #[inline(always)]
    fn after(&self, id: u16) -> u16 {
        if id + 1 == self.size { 0 } else { id + 1 }
    }

    /// Takes as many ids as `chain` has places; false if there are not enough.
    #[inline(always)]
    fn take(&mut self, chain: &mut [u16]) -> bool {
        let count = chain.len() as u16;
        if count > self.free_count || count == 0 {
            return false;
        }
        self.free_count -= count;
        for id in chain.iter_mut() {
            *id = if self.in_order {
                let id = self.next;
                self.next = self.after(id);
                id
            } else {
                self.free.pop().unwrap_or(0)
            };
        }
        for pair in chain.windows(2) {
            self.link[usize::from(pair[0])] = pair[1];
        }
        self.chain_len[usize::from(chain[0])] = count;
        self.slots[usize::from(chain[0])] = count;
        true
    }

    /// Ids of the chain that starts with `head`, if there is one.
    #[inline(always)]
    fn chain_len(&self, head: u16) -> Option<u16> {
        self.chain_len.get(usize::from(head)).copied().filter(|len| *len > 0)
    }

    /// What a used entry that names `id` stands for, when `oldest` is the oldest chain out: number of
    /// chains, their ring descriptors, and the oldest chain after them. `None` if there is no such
    /// chain.
    #[inline(always)]
    fn covered(&self, id: u16, oldest: u16) -> Option<(u16, u16, u16)> {
        if !self.in_order {
            self.chain_len(id)?;
            return Some((1, self.slots[usize::from(id)], oldest));
        }
        let (mut chains, mut slots, mut head) = (0, 0, oldest);
        loop {
            let len = self.chain_len(head)?;
            chains += 1;
            slots += self.slots[usize::from(head)];
            let found = head == id;
            for _ in 0..len {
                head = self.after(head);
            }
            if found {
                return Some((chains, slots, head));
            }
            if head == oldest {
                return None;
            }
        }
    }

    /// Takes back the chain that starts with `head`.
    #[inline(always)]
    fn give_back(&mut self, head: u16) {
        let len = std::mem::take(&mut self.chain_len[usize::from(head)]);
        self.free_count += len;
        if self.in_order {
            for _ in 0..len {
                self.oldest = self.after(self.oldest);
            }
            return;
        }
        let mut id = head;
        for _ in 0..len {
            self.free.push(id);
            id = self.link[usize::from(id)];
        }
    }
}

/// One virtqueue of the driver.
pub(super) struct DriverQueue {
    pub(super) spec: RingSpec,
    ring: AnyRing,
    ids: Ids,
    buffers: Box<[Segment]>,
    tables: Box<[Segment]>,
    layout: QueueLayout,
    buffer_size: u32,
    tx_piece: usize,
    header_apart: bool,
    header_len: usize,
    mergeable: bool,
    /// Segments of the frame in hand.
    parts: Box<[Segment; MAX_PIECES]>,
    /// Keeps the memory of the segments mapped.
    _memory: Arc<GuestMemory>,
}

impl DriverQueue {
    pub(super) fn new(
        memory: &Arc<GuestMemory>,
        layout: QueueLayout,
        options: &VfOptions,
    ) -> Result<Self, DriverError> {
        let size = options.size;
        let list = |first: u64, stride: u64, bytes: u64| {
            (0..u64::from(size))
                .map(|index| memory.segment(first + stride * index, bytes as usize))
                .collect::<Result<Box<[_]>, _>>()
        };
        let table_bytes = if options.indirect { 16 * TABLE_ENTRIES as u64 } else { 0 };
        let mut queue = Self {
            spec: layout.spec,
            ring: AnyRing::new(memory, &layout.spec)?,
            ids: Ids::new(size, options.in_order),
            buffers: list(layout.buffers, layout.stride, u64::from(options.buffer_size))?,
            tables: list(layout.tables, table_bytes, table_bytes)?,
            layout,
            buffer_size: options.buffer_size,
            tx_piece: options.tx_piece.unwrap_or(options.buffer_size) as usize,
            header_apart: options.header_apart,
            header_len: options.header_len(),
            mergeable: options.mergeable,
            parts: Box::new([Segment::EMPTY; MAX_PIECES]),
            _memory: Arc::clone(memory),
        };
        on_driver_ring!(&mut queue.ring, ring => ring.set_interrupts(false));
        Ok(queue)
    }

    fn buffer_addr(&self, id: u16) -> u64 {
        self.layout.buffers + self.layout.stride * u64::from(id)
    }

    /// Offers `count` receive buffers (as many as are free at most).
    pub(super) fn offer_receive_buffers(&mut self, count: u16) {
        for _ in 0..count.min(self.ids.free_count) {
            let mut id = [0];
            self.ids.take(&mut id);
            let chain =
                [Buffer { addr: self.buffer_addr(id[0]), len: self.buffer_size, flags: WRITE }];
            on_driver_ring!(&mut self.ring, ring => ring.offer(&chain, &id));
        }
        on_driver_ring!(&mut self.ring, ring => ring.publish());
    }

    /// Takes back sent chains. An entry may stand for all chains up to its own when in order.
    pub(super) fn reclaim(&mut self) -> Result<(), DriverError> {
        let Self { ring, ids, .. } = self;
        on_driver_ring!(ring, ring => {
            while let Some(used) = ring.peek_used() {
                reclaim_one(ring, ids, used)?;
            }
        });
        Ok(())
    }

    /// Sends frames until one does not fit; returns how many were offered to the device.
    pub(super) fn send(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DriverError> {
        self.reclaim()?;
        let mut done = 0;
        for frame in frames {
            if !self.offer_frame(frame)? {
                break;
            }
            done += 1;
        }
        if done > 0 {
            on_driver_ring!(&mut self.ring, ring => ring.publish());
        }
        Ok(done)
    }

    #[inline(always)]
    fn offer_frame(&mut self, frame: &TxFrame<'_>) -> Result<bool, DriverError> {
        let total = self.header_len + frame.frame.len();
        let header = &frame.header[..self.header_len];
        if total <= self.tx_piece && !self.header_apart {
            let mut id = [0];
            if !self.ids.take(&mut id) {
                return Ok(false);
            }
            let buffer = self.buffers[usize::from(id[0])];
            buffer.write(0, header);
            frame.frame.deliver_to(buffer, self.header_len);
            let chain = [Buffer { addr: self.buffer_addr(id[0]), len: total as u32, flags: 0 }];
            on_driver_ring!(&mut self.ring, ring => ring.offer(&chain, &id));
            return Ok(true);
        }
        self.offer_pieces(header, &frame.frame)
    }

    /// Sends a frame in several buffers: directly chained, or by an indirect table.
    fn offer_pieces(&mut self, header: &[u8], frame: &Gather<'_>) -> Result<bool, DriverError> {
        let first = if self.header_apart { header.len() } else { self.tx_piece };
        let total = header.len() + frame.len();
        let count = 1 + (total.saturating_sub(first)).div_ceil(self.tx_piece);
        if count > MAX_PIECES || count > usize::from(self.spec.size) {
            return Err(DriverError::FrameTooLong(frame.len()));
        }
        let mut ids = [0; MAX_PIECES];
        let ids = &mut ids[..count];
        if !self.ids.take(ids) {
            return Ok(false);
        }
        let mut chain = [Buffer::default(); MAX_PIECES];
        let mut left = total;
        for (index, id) in ids.iter().enumerate() {
            let len = left.min(if index == 0 { first } else { self.tx_piece });
            left -= len;
            self.parts[index] = self.buffers[usize::from(*id)].truncate(len);
            chain[index] = Buffer { addr: self.buffer_addr(*id), len: len as u32, flags: 0 };
        }
        let parts = &self.parts[..count];
        Gather::from_slice(header).deliver(parts, 0);
        frame.deliver(parts, header.len());
        self.offer_chain(&chain[..count], ids);
        Ok(true)
    }

    fn offer_chain(&mut self, chain: &[Buffer], ids: &[u16]) {
        // In order, descriptors are used round the table without gaps (2.7.9), which ids that stand
        // for the buffers of a table would leave.
        if !self.spec.indirect || self.spec.in_order || chain.len() == 1 {
            on_driver_ring!(&mut self.ring, ring => ring.offer(chain, ids));
            return;
        }
        let head = ids[0];
        self.ids.slots[usize::from(head)] = 1;
        let table = self.tables[usize::from(head)];
        for (index, buffer) in chain.iter().enumerate() {
            let last = index + 1 == chain.len();
            let (third, fourth) = match self.spec.kind {
                RingKind::Split if last => (buffer.flags, 0),
                RingKind::Split => (buffer.flags | DESC_NEXT, index as u16 + 1),
                RingKind::Packed => (0, buffer.flags),
            };
            let entry = u128::from(buffer.addr)
                | u128::from(buffer.len) << 64
                | u128::from(third) << 96
                | u128::from(fourth) << 112;
            table.write(16 * index, &entry.to_le_bytes());
        }
        let addr = self.layout.tables + (16 * TABLE_ENTRIES) as u64 * u64::from(head);
        let one = [Buffer { addr, len: 16 * chain.len() as u32, flags: DESC_INDIRECT }];
        // Only one descriptor is used, but all ids stay taken: their buffers are.
        on_driver_ring!(&mut self.ring, ring => ring.offer(&one, &ids[..1]));
    }

    /// Writes `frame` into every buffer, for [`DriverQueue::send_prepared`].
    pub(super) fn prepare(&mut self, header: &[u8; NET_HEADER], frame: &[u8]) {
        for buffer in &self.buffers {
            buffer.write(0, &header[..self.header_len]);
            buffer.write(self.header_len, frame);
        }
    }

    /// Sends up to `count` frames of `len` bytes, each what its buffer holds.
    pub(super) fn send_prepared(&mut self, len: usize, count: usize) -> Result<usize, DriverError> {
        let total = self.header_len + len;
        if total > self.buffer_size as usize {
            return Err(DriverError::FrameTooLong(len));
        }
        self.reclaim()?;
        let mut done = 0;
        while done < count {
            let mut id = [0];
            if !self.ids.take(&mut id) {
                break;
            }
            let chain = [Buffer { addr: self.buffer_addr(id[0]), len: total as u32, flags: 0 }];
            on_driver_ring!(&mut self.ring, ring => ring.offer(&chain, &id));
            done += 1;
        }
        on_driver_ring!(&mut self.ring, ring => ring.publish());
        Ok(done)
    }

    /// Hands up to `limit` received frames to `each` and offers their buffers again.
    pub(super) fn receive(
        &mut self,
        limit: usize,
        each: &mut impl FnMut(&[u8; NET_HEADER], &Gather<'_>),
    ) -> Result<usize, DriverError> {
        let mut done = 0;
        while done < limit {
            if !self.receive_one(each)? {
                break;
            }
            done += 1;
        }
        if done > 0 {
            on_driver_ring!(&mut self.ring, ring => ring.publish());
        }
        Ok(done)
    }

    #[inline(always)]
    fn receive_one(
        &mut self,
        each: &mut impl FnMut(&[u8; NET_HEADER], &Gather<'_>),
    ) -> Result<bool, DriverError> {
        let Some((id, part)) = self.receive_buffer()? else { return Ok(false) };
        let mut header = [0; NET_HEADER];
        part.read(0, &mut header[..self.header_len]);
        let count = if self.mergeable {
            usize::from(u16::from_le_bytes([header[10], header[11]]))
        } else {
            1
        };
        if count == 0 || count > MAX_PIECES {
            return Err(DriverError::BadDevice("number of buffers of a frame"));
        }
        let mut ids = [id; MAX_PIECES];
        self.parts[0] = part.skip(self.header_len);
        let mut len = self.parts[0].len();
        for (index, taken) in ids.iter_mut().enumerate().take(count).skip(1) {
            // All buffers of a frame are published together.
            let (id, part) = self
                .receive_buffer()?
                .ok_or(DriverError::BadDevice("frame whose last buffers are missing"))?;
            *taken = id;
            self.parts[index] = part;
            len += part.len();
        }
        each(&header, &Gather::from_segments(&self.parts[..count], len));
        for id in &ids[..count] {
            self.ids.give_back(*id);
            let mut id = [0];
            self.ids.take(&mut id);
            let chain =
                [Buffer { addr: self.buffer_addr(id[0]), len: self.buffer_size, flags: WRITE }];
            on_driver_ring!(&mut self.ring, ring => ring.offer(&chain, &id));
        }
        Ok(true)
    }

    /// Takes the next used receive buffer off the ring: its id and what the device wrote.
    #[inline(always)]
    fn receive_buffer(&mut self) -> Result<Option<(u16, Segment)>, DriverError> {
        let Self { ring, ids, buffers, .. } = self;
        on_driver_ring!(ring, ring => {
            let Some(Used { id, len }) = ring.peek_used() else { return Ok(None) };
            if ids.chain_len(id) != Some(1) {
                return Err(DriverError::BadDevice("id of a used receive buffer"));
            }
            let buffer = buffers[usize::from(id)];
            if len as usize > buffer.len() {
                return Err(DriverError::BadDevice("length of a used receive buffer"));
            }
            ring.skip_used(1, 1);
            Ok(Some((id, buffer.truncate(len as usize))))
        })
    }

    /// Sends a command of the control queue: `request` readable, one byte writable.
    pub(super) fn command(&mut self, request: &[u8]) -> Result<(), DriverError> {
        self.reclaim()?;
        let mut ids = [0; 2];
        if request.len() > self.buffer_size as usize {
            return Err(DriverError::FrameTooLong(request.len()));
        }
        if !self.ids.take(&mut ids) {
            return Err(DriverError::QueueFull);
        }
        let [ask, answer] = ids.map(|id| self.buffers[usize::from(id)]);
        ask.write(0, request);
        answer.write(0, &[NO_ANSWER]);
        self.parts[0] = answer;
        let chain = [
            Buffer { addr: self.buffer_addr(ids[0]), len: request.len() as u32, flags: 0 },
            Buffer { addr: self.buffer_addr(ids[1]), len: 1, flags: WRITE },
        ];
        self.offer_chain(&chain, &ids);
        on_driver_ring!(&mut self.ring, ring => ring.publish());
        Ok(())
    }

    /// The answer to the command sent last, once it is there.
    pub(super) fn answer(&mut self) -> Result<Option<u8>, DriverError> {
        let answer = self.parts[0];
        let Self { ring, ids, .. } = self;
        on_driver_ring!(ring, ring => {
            let Some(used) = ring.peek_used() else { return Ok(None) };
            reclaim_one(ring, ids, used)?;
        });
        let mut status = [0];
        answer.read(0, &mut status);
        Ok(Some(status[0]))
    }

    pub(super) fn wants_kick(&mut self) -> bool {
        on_driver_ring!(&mut self.ring, ring => ring.wants_kick())
    }

    pub(super) fn set_interrupts(&mut self, wanted: bool) -> bool {
        on_driver_ring!(&mut self.ring, ring => ring.set_interrupts(wanted))
    }

    /// Where a device that lost its memory should go on: past all it used.
    pub(super) fn position(&self) -> Position {
        match &self.ring {
            AnyRing::Split(ring) => ring.position(),
            AnyRing::Packed(ring) => {
                let mut at = ring.used_place();
                let mut oldest = self.ids.oldest;
                while let Some((_, slots, next)) =
                    ring.used_at(at).and_then(|used| self.ids.covered(used.id, oldest))
                {
                    at.advance(slots, self.spec.size);
                    oldest = next;
                }
                at.position()
            }
        }
    }

    /// Chains' descriptors that can still be offered.
    pub(super) fn free(&self) -> u16 {
        self.ids.free_count
    }
}

/// What an answer byte holds before the device wrote it: neither VIRTIO_NET_OK (0) nor ERR (1).
const NO_ANSWER: u8 = 0xff;

/// Takes back the chains one used entry stands for.
#[inline(always)]
fn reclaim_one(ring: &mut impl DriverRing, ids: &mut Ids, used: Used) -> Result<(), DriverError> {
    let covered = ids.covered(used.id, ids.oldest);
    let (chains, slots, _) = covered.ok_or(DriverError::BadDevice("id of a used entry"))?;
    if ids.in_order {
        for _ in 0..chains {
            ids.give_back(ids.oldest);
        }
    } else {
        ids.give_back(used.id);
    }
    ring.skip_used(chains, slots);
    Ok(())
}
