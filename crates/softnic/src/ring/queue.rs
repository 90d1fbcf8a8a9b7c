//! Queues as a worker uses them, whatever their format: batches out, batches in, notifications.

use std::sync::Arc;

use super::chain::{Chain, Direction, MIXED, Plain, Pool, WRITABLE};
use super::gather::Gather;
use super::journal::Journal;
use super::memory::{GuestMemory, Segment};
use super::packed::PackedRing;
use super::split::SplitRing;
use super::{BATCH, FillError, MAX_BUFFERS, Position, RingFault, RingKind, RingSpec};

/// What a ring of either format does. Used by generic code, so each format gets its own copy.
pub(super) trait Ring {
    /// A place in the driver's direction to go back to.
    type Mark: Copy;

    fn mark(&self) -> Self::Mark;
    fn rewind(&mut self, mark: Self::Mark);

    /// Takes up to a batch of readable chains; fails only when the first one is faulty.
    fn pop(&mut self, pool: &mut Pool, chains: &mut [Chain; BATCH]) -> Result<usize, RingFault>;
    /// Takes the next chain if it is plain and of at least `need` bytes; the other cases, in which
    /// nothing is taken, are for `take`.
    fn take_plain<const DIR: Direction>(&mut self, need: usize) -> Option<Plain>;
    /// Takes the next chain, whatever it is; on an error nothing is taken.
    fn take<const DIR: Direction>(&mut self, pool: &mut Pool) -> Result<Option<Chain>, RingFault>;

    /// Gives the chain `id` of `slots` descriptors back with `len` bytes written to it; visible after
    /// `publish`.
    fn put_used(&mut self, id: u16, slots: u16, len: u32);
    /// Gives the chains of one frame back, of which none may be seen without the others.
    fn put_used_together(&mut self, frame: impl Iterator<Item = UsedChain>);
    /// Gives a batch of chains back that nothing was written to.
    fn put_all_used(&mut self, chains: &[Chain]);
    fn publish(&mut self);
    /// Whether there is no room to note more used entries before a publication.
    fn must_publish(&self) -> bool {
        false
    }

    /// Prefetches what the next `frames` receive buffers need.
    fn expect(&mut self, frames: usize);

    fn position(&self) -> Position;
    fn has_work(&self) -> bool;
    fn wants_notify(&mut self) -> bool;
    fn enable_kicks(&mut self) -> bool;
    fn disable_kicks(&mut self);
    fn memory(&self) -> &Arc<GuestMemory>;
}

/// A chain that is given back.
pub(super) struct UsedChain {
    pub(super) id: u16,
    /// Descriptors of it.
    pub(super) slots: u16,
    /// Bytes that were written to it.
    pub(super) len: u32,
}

enum Format {
    Split(SplitRing),
    Packed(PackedRing),
}

/// Runs `$body` with `$ring` as the concrete ring.
macro_rules! on_ring {
    ($format:expr, $ring:ident => $body:expr) => {
        match $format {
            Format::Split($ring) => $body,
            Format::Packed($ring) => $body,
        }
    };
}

/// The device side of one virtqueue. Owns a share of the guest memory it lies in.
pub struct Queue {
    format: Format,
    kind: RingKind,
    /// Buffers of the receive frame in hand; made when first needed.
    filling: Option<Filling>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Queue")
            .field("kind", &self.kind)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

/// Receive buffers collected for one frame.
struct Filling {
    pool: Pool,
    chains: Box<[Chain; MAX_BUFFERS]>,
}

impl Queue {
    /// A queue that goes on at `at`.
    ///
    /// # Errors
    /// [`RingFault`] when the size is impossible, an area is misaligned or not in one region of the
    /// guest's memory, or the position is not in the ring.
    pub fn new(memory: Arc<GuestMemory>, spec: RingSpec, at: Position) -> Result<Self, RingFault> {
        Ok(Self::from_format(
            match spec.kind {
                RingKind::Split => Format::Split(SplitRing::new(memory, &spec, at)?),
                RingKind::Packed => Format::Packed(PackedRing::new(memory, &spec, at, None)?),
            },
            spec.kind,
        ))
    }

    /// As [`Queue::new`], and every publication is noted in `journal` for [`Queue::resume`]. A
    /// split ring needs no journal and leaves it as it is.
    ///
    /// # Errors
    /// As [`Queue::new`].
    pub fn with_journal(
        memory: Arc<GuestMemory>,
        spec: RingSpec,
        at: Position,
        journal: Journal,
    ) -> Result<Self, RingFault> {
        if spec.kind == RingKind::Split {
            return Self::new(memory, spec, at);
        }
        let ring = PackedRing::new(memory, &spec, at, Some(journal))?;
        Ok(Self::from_format(Format::Packed(ring), spec.kind))
    }

    /// A queue that goes on where a device before this one, which may have been killed at any
    /// instruction, left it: a split ring says so itself, a packed one by its journal. A ring that
    /// was set up anew meanwhile starts from the front.
    ///
    /// Frames taken but not completed before the crash are taken again.
    ///
    /// # Errors
    /// As [`Queue::new`]; also when the journal names slots that this ring does not have.
    pub fn resume(
        memory: Arc<GuestMemory>,
        spec: RingSpec,
        journal: Journal,
    ) -> Result<Self, RingFault> {
        let format = match spec.kind {
            RingKind::Split => {
                let at = Position::from_used_index(SplitRing::used_index(&memory, &spec)?);
                Format::Split(SplitRing::new(memory, &spec, at)?)
            }
            RingKind::Packed => Format::Packed(PackedRing::resume(memory, &spec, journal)?),
        };
        Ok(Self::from_format(format, spec.kind))
    }

    fn from_format(format: Format, kind: RingKind) -> Self {
        Self { format, kind, filling: None }
    }

    /// Takes up to [`BATCH`] chains that the driver sent, none of them faulty. Where there are good
    /// chains before a faulty one, they are returned and the fault comes from the next call.
    ///
    /// # Errors
    /// [`RingFault`] when the next chain, or the ring itself, is broken; nothing is taken.
    #[inline]
    pub fn pop<'q>(&'q mut self, scratch: &'q mut PopScratch) -> Result<Popped<'q>, RingFault> {
        let PopScratch { pool, chains } = scratch;
        pool.clear();
        let count = on_ring!(&mut self.format, ring => ring.pop(pool, chains))?;
        Ok(Popped { queue: self, pool, chains: &chains[..count] })
    }

    /// Takes one chain that has a readable part and then a writable one, as a control queue has;
    /// either part may be missing.
    ///
    /// # Errors
    /// As [`Queue::pop`].
    pub fn pop_mixed<'q>(
        &'q mut self,
        scratch: &'q mut PopScratch,
    ) -> Result<Option<Mixed<'q>>, RingFault> {
        let PopScratch { pool, .. } = scratch;
        pool.clear();
        let chain = on_ring!(&mut self.format, ring => ring.take::<MIXED>(pool))?;
        Ok(chain.map(|chain| Mixed { queue: self, pool, chain, written: 0 }))
    }

    /// That many frames are about to be put in: asks for the buffers they will go to, all at once,
    /// because a line from another core takes longer than a frame. Only a hint.
    #[inline]
    pub fn expect(&mut self, frames: usize) {
        on_ring!(&mut self.format, ring => ring.expect(frames));
    }

    /// Starts a batch of frames for the driver.
    #[inline]
    pub fn fill(&mut self) -> Fill<'_> {
        Fill { queue: self, unpublished: false }
    }

    /// Where the ring is after the last publication.
    pub fn position(&self) -> Position {
        on_ring!(&self.format, ring => ring.position())
    }

    /// Format of the ring.
    pub fn kind(&self) -> RingKind {
        self.kind
    }

    /// The guest memory it lies in.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        on_ring!(&self.format, ring => ring.memory())
    }

    /// After publications: whether the driver wants an interrupt for what was published since this
    /// was last asked.
    #[inline]
    pub fn wants_notify(&mut self) -> bool {
        on_ring!(&mut self.format, ring => ring.wants_notify())
    }

    /// Asks the driver to kick when it has something. Returns true if it has already: then it may
    /// not kick for that.
    pub fn enable_kicks(&mut self) -> bool {
        on_ring!(&mut self.format, ring => ring.enable_kicks())
    }

    /// Tells the driver not to kick. A kick may come all the same.
    pub fn disable_kicks(&mut self) {
        on_ring!(&mut self.format, ring => ring.disable_kicks());
    }

    /// Whether the driver has made something available. One look at the ring, nothing is checked.
    #[inline]
    pub fn has_work(&self) -> bool {
        on_ring!(&self.format, ring => ring.has_work())
    }
}

/// Room for one batch of chains; one a worker is enough.
pub struct PopScratch {
    pool: Pool,
    chains: Box<[Chain; BATCH]>,
}

impl Default for PopScratch {
    fn default() -> Self {
        Self::new()
    }
}

impl PopScratch {
    /// Buffers of a batch: 32 each on average, and always one chain of [`MAX_BUFFERS`].
    const ROOM: usize = 32 * BATCH;

    /// Allocates it.
    pub fn new() -> Self {
        Self { pool: Pool::new(Self::ROOM), chains: Box::new([Chain::default(); BATCH]) }
    }
}

/// A batch of chains taken from a ring. Goes back to the driver when completed or dropped, so that
/// no frame is ever owned twice or lost.
pub struct Popped<'q> {
    queue: &'q mut Queue,
    pool: &'q Pool,
    chains: &'q [Chain],
}

impl Popped<'_> {
    /// Chains in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.chains.len()
    }

    /// Whether there was nothing to take.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Chain `index`: virtio-net header and frame.
    ///
    /// # Panics
    /// When `index` is not below [`Popped::len`].
    #[inline]
    pub fn frame(&self, index: usize) -> Gather<'_> {
        let chain = &self.chains[index];
        Gather::from_segments(
            self.pool.range(chain.first as usize, chain.count as usize),
            chain.len,
        )
    }

    /// Bytes of chain `index`.
    ///
    /// # Panics
    /// As [`Popped::frame`].
    #[inline(always)]
    pub fn frame_len(&self, index: usize) -> usize {
        self.chains[index].len
    }

    /// Copies bytes of chain `index` from `offset` on, as [`Gather::copy_at`] does; at once where
    /// they lie in its first buffer, as nearly all headers do.
    ///
    /// # Panics
    /// As [`Popped::frame`].
    #[inline(always)]
    pub fn copy_at(&self, index: usize, offset: usize, into: &mut [u8]) -> usize {
        if let [first] = self.pool.range(self.chains[index].first as usize, 1) {
            let part = first.skip(offset);
            if part.len() >= into.len() {
                return part.read(0, into);
            }
        }
        self.copy_scattered(index, offset, into)
    }

    #[inline(never)]
    fn copy_scattered(&self, index: usize, offset: usize, into: &mut [u8]) -> usize {
        self.frame(index).copy_at(offset, into)
    }

    /// Gives all chains back to the driver and publishes that once.
    pub fn complete(self) {
        drop(self);
    }
}

impl Drop for Popped<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.chains.is_empty() {
            on_ring!(&mut self.queue.format, ring => {
                ring.put_all_used(self.chains);
                ring.publish();
            });
        }
    }
}

/// One control command. Goes back to the driver when completed or dropped.
pub struct Mixed<'q> {
    queue: &'q mut Queue,
    pool: &'q Pool,
    chain: Chain,
    written: usize,
}

impl Mixed<'_> {
    /// The readable part.
    pub fn request(&self) -> Gather<'_> {
        let Chain { first, readable, .. } = self.chain;
        let segments = self.pool.range(first as usize, readable as usize);
        Gather::from_segments(segments, segments.iter().map(|segment| segment.len()).sum())
    }

    /// Appends to the writable part; returns the bytes that fitted.
    pub fn respond(&mut self, bytes: &[u8]) -> usize {
        let Chain { first, readable, count, .. } = self.chain;
        let writable = self.pool.range((first + readable) as usize, (count - readable) as usize);
        let written = Gather::from_slice(bytes).deliver(writable, self.written);
        self.written += written;
        written
    }

    /// Gives the chain back to the driver and publishes that.
    pub fn complete(self) {
        drop(self);
    }
}

impl Drop for Mixed<'_> {
    fn drop(&mut self) {
        on_ring!(&mut self.queue.format, ring => {
            ring.put_used(self.chain.id, self.chain.slots, self.written as u32);
            ring.publish();
        });
    }
}

/// A batch of frames on their way to the driver; published together by [`Fill::publish`] or Drop.
pub struct Fill<'q> {
    queue: &'q mut Queue,
    unpublished: bool,
}

impl Fill<'_> {
    /// Copies a frame into the driver's next receive buffer, or (if `mergeable`) buffers.
    /// `net_header` is 12 bytes, in which the number of buffers is filled in here, or the 10 of a
    /// legacy driver.
    ///
    /// # Errors
    /// [`FillError`]; nothing is taken then.
    #[inline]
    pub fn push(
        &mut self,
        net_header: &[u8],
        mergeable: bool,
        frame: &Gather<'_>,
    ) -> Result<(), FillError> {
        let Queue { format, filling, .. } = &mut *self.queue;
        on_ring!(format, ring => {
            if ring.must_publish() {
                ring.publish();
            }
            if !push_plain(ring, net_header, frame.len(), |to, at| frame.deliver_to(to, at)) {
                push_spread(ring, filling, net_header, mergeable, frame)?;
            }
        });
        self.unpublished = true;
        Ok(())
    }

    /// As [`Fill::push`], for a frame of local bytes; the quick way for short ones.
    ///
    /// # Errors
    /// As [`Fill::push`].
    #[inline(always)]
    pub fn push_local(
        &mut self,
        net_header: &[u8],
        mergeable: bool,
        frame: &[u8],
    ) -> Result<(), FillError> {
        let put = on_ring!(&mut self.queue.format, ring => {
            !ring.must_publish()
                && push_plain(ring, net_header, frame.len(), |to, at| {
                    to.write(at, frame);
                })
        });
        if put {
            self.unpublished = true;
            return Ok(());
        }
        self.push(net_header, mergeable, &Gather::from_slice(frame))
    }

    /// Shows the frames to the driver.
    pub fn publish(self) {
        drop(self);
    }
}

impl Drop for Fill<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.unpublished {
            on_ring!(&mut self.queue.format, ring => ring.publish());
        }
    }
}

/// Bytes and position of the number of buffers in the header of a non-legacy driver (5.1.6).
const NET_HEADER: usize = 12;
const NUM_BUFFERS: usize = 10;

/// A copy of the net header with the number of buffers in it, unless it is a legacy one; and its
/// length.
#[inline(always)]
fn patched(net_header: &[u8], buffers: u16) -> ([u8; NET_HEADER], usize) {
    let mut header = [0; NET_HEADER];
    let len = net_header.len().min(NET_HEADER);
    if let Some(whole) = net_header.first_chunk::<NET_HEADER>() {
        header = *whole;
        header[NUM_BUFFERS..].copy_from_slice(&buffers.to_le_bytes());
    } else {
        header[..len].copy_from_slice(&net_header[..len]);
    }
    (header, len)
}

/// The usual case: the next buffer is in one piece and takes the whole frame, which `deliver` puts
/// there. False if it is not, or does not, or is not there.
#[inline(always)]
fn push_plain<R: Ring>(
    ring: &mut R,
    net_header: &[u8],
    frame_len: usize,
    deliver: impl FnOnce(Segment, usize),
) -> bool {
    let (header, skip) = patched(net_header, 1);
    let need = skip + frame_len;
    let Some(Plain { id, segment }) = ring.take_plain::<WRITABLE>(need) else { return false };
    if skip == NET_HEADER {
        segment.write(0, &header);
    } else {
        segment.write(0, &header[..skip]);
    }
    deliver(segment, skip);
    ring.put_used(id, 1, need as u32);
    true
}

/// Any case: as many chains of as many segments as the frame takes.
#[inline(never)]
fn push_spread<R: Ring>(
    ring: &mut R,
    filling: &mut Option<Filling>,
    net_header: &[u8],
    mergeable: bool,
    frame: &Gather<'_>,
) -> Result<(), FillError> {
    let Filling { pool, chains } = filling.get_or_insert_with(|| Filling {
        pool: Pool::new(2 * MAX_BUFFERS),
        chains: Box::new([Chain::default(); MAX_BUFFERS]),
    });
    let mark = ring.mark();
    let need = net_header.len().min(NET_HEADER) + frame.len();
    let count = collect(ring, pool, chains, need, mergeable).inspect_err(|_| ring.rewind(mark))?;
    let segments = pool.range(0, pool.len());
    let (header, skip) = patched(net_header, count as u16);
    Gather::from_slice(&header[..skip]).deliver(segments, 0);
    frame.deliver(segments, skip);
    let mut left = need;
    ring.put_used_together(chains[..count].iter().map(|chain| {
        let len = chain.len.min(left);
        left -= len;
        UsedChain { id: chain.id, slots: chain.slots, len: len as u32 }
    }));
    Ok(())
}

/// Takes chains until there is room for `need` bytes; returns how many.
fn collect<R: Ring>(
    ring: &mut R,
    pool: &mut Pool,
    chains: &mut [Chain; MAX_BUFFERS],
    need: usize,
    mergeable: bool,
) -> Result<usize, FillError> {
    pool.clear();
    let (mut room, mut count) = (0, 0);
    while room < need {
        if count == chains.len() || !pool.has_room() || (count > 0 && !mergeable) {
            return Err(FillError::BufferTooSmall);
        }
        let chain = ring.take::<WRITABLE>(pool)?.ok_or(FillError::NoBuffer)?;
        chains[count] = chain;
        room += chain.len;
        count += 1;
    }
    Ok(count)
}
