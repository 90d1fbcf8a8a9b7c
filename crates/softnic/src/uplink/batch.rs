//! Batches of frames to and from an uplink: what a worker fills or reads, and what became of it.

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use super::sys::{self, Arrival, Pieces};
use super::{Kind, UplinkQueue};
use crate::ring::{BATCH, Gather};

/// A virtio-net header as it stands in memory: virtio 1.2, 5.1.6, with `num_buffers`, little-endian.
pub type NetHeader = [u8; 12];

/// Room for a tag in front of a received frame; a cache line, so that frames stay aligned.
const HEADROOM: usize = 64;

/// Longest frame an uplink hands over, in bytes: 65,535 of IP packet, Ethernet header, two tags.
const MAX_SUPER_FRAME: usize = 65_535 + 14 + 8;

/// Bytes between two places: not a multiple of 4 KiB, or all frames' heads would share a cache set.
const STRIDE: usize = 66 * 1024 + 64;

const _: () = assert!(HEADROOM + MAX_SUPER_FRAME < STRIDE);

/// Where a frame's pieces are in [`Pieces`]; the first is its header's.
#[derive(Clone, Copy, Default)]
pub(super) struct Span {
    pub(super) first: u16,
    pub(super) count: u16,
}

impl Span {
    pub(super) fn range(self) -> std::ops::Range<usize> {
        let first = usize::from(self.first);
        first..first + usize::from(self.count)
    }
}

/// Most pieces one message may have (`UIO_MAXIOV`), so most that a batch can be listed in at once.
pub(super) const MAX_PIECES: usize = 1024;

/// What a queue keeps for its send batches.
pub(super) struct Stage {
    headers: [NetHeader; BATCH],
    spans: [Span; BATCH],
    pieces: Pieces,
}

impl Stage {
    /// With room for so many pieces of frames.
    pub(super) fn new(pieces: usize) -> Self {
        Self {
            headers: [[0; 12]; BATCH],
            spans: [Span::default(); BATCH],
            pieces: Pieces::new(pieces),
        }
    }
}

/// What became of a batch. Bit i stands for the i-th frame pushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames the kernel took.
    pub taken: u32,
    /// Frames the kernel will never take: their header contradicts them, they are longer than the
    /// interface's MTU allows, or their memory is gone.
    pub refused: u32,
    /// Frames that found the interface down or gone.
    pub link_down: u32,
    /// Frames the kernel had no room for just now. They are the caller's to drop: whoever waits
    /// for room at the uplink holds up traffic between VFs.
    pub busy: u32,
    /// System calls this took.
    pub calls: u32,
}

/// How a send ends, when not well.
enum Trouble {
    /// Try again at once.
    Interrupted,
    /// No room: nor for those behind it.
    Busy,
    /// No link: nor for those behind it.
    LinkDown,
    /// This frame never; those behind it perhaps.
    Refused,
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EINTR) => Self::Interrupted,
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Self::Busy,
            // ENETDOWN and ENXIO: a packet socket whose interface is down, gone. EIO and EBADFD: a
            // TAP that is down, gone.
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EIO | libc::EBADFD) => {
                Self::LinkDown
            }
            _ => Self::Refused,
        }
    }
}

/// Frames on their way to the uplink, up to [`BATCH`]. Made by [`UplinkQueue::batch`].
///
/// Frames are only listed until [`SendBatch::send`]; `'f` is how long their bytes stay where they
/// are. A batch that is dropped unsent sends nothing.
#[must_use = "frames leave with `send`"]
pub struct SendBatch<'q, 'f> {
    queue: &'q mut UplinkQueue,
    /// Frames pushed.
    len: usize,
    /// Frames before this one were dealt with.
    next: usize,
    /// Pieces used by frames from `next` on.
    used: usize,
    /// Why frames from `next` on are not sent any more.
    ended: Option<Trouble>,
    sent: Sent,
    frames: PhantomData<Gather<'f>>,
}

impl<'q, 'f> SendBatch<'q, 'f> {
    pub(super) fn new(queue: &'q mut UplinkQueue) -> Self {
        let ended = (!queue.carrier()).then_some(Trouble::LinkDown);
        Self { queue, len: 0, next: 0, used: 0, ended, sent: Sent::default(), frames: PhantomData }
    }

    /// Frames pushed so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no room for another frame.
    pub fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// List a frame; answers with its bit in [`Sent`], or `None` if the batch is full.
    ///
    /// `header` must describe `frame` as it is: if a tag was put in, `csum_start` and `hdr_len`
    /// (where not zero) lie 4 bytes further on, and it is the caller who has moved them. What it
    /// says of offloads is carried out by the kernel.
    #[inline]
    pub fn push(&mut self, header: &NetHeader, frame: Gather<'f>) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let bit = 1u32 << self.len;
        if self.ended.is_none() && !self.list(header, frame) {
            // Too scattered for what is left of the list, not for a whole one.
            self.flush();
            if self.ended.is_none() && !self.list(header, frame) {
                self.sent.refused |= bit;
                self.next += 1;
            }
        }
        self.len += 1;
        Some(bit)
    }

    fn list(&mut self, header: &NetHeader, frame: Gather<'f>) -> bool {
        let stage = &mut self.queue.stage;
        let Some(pieces) = stage.pieces.free(self.used).get_mut(1..) else { return false };
        let Some(count) = frame.io_slices(pieces) else { return false };
        stage.headers[self.len] = *header;
        stage.spans[self.len] = Span { first: self.used as u16, count: count as u16 + 1 };
        self.used += count + 1;
        true
    }

    /// Hand the frames to the kernel: over packet sockets one system call for the batch, and one
    /// more for each frame the kernel refuses; over a TAP one for each frame, because the kernel
    /// has no call that writes several.
    pub fn send(mut self) -> Sent {
        self.flush();
        // Everything from `next` on shares one fate, and there is nothing there if all went well.
        let rest = mask(self.len) & !mask(self.next);
        match self.ended {
            Some(Trouble::LinkDown) => self.sent.link_down |= rest,
            _ => self.sent.busy |= rest,
        }
        self.sent
    }

    fn flush(&mut self) {
        // A packet socket reports what befell it in between (a link that was down for a moment, a
        // receive that failed) on the next call, whatever that is: such an error is not the
        // frame's, and the same frame goes well the second time.
        let mut may_be_stale = self.queue.kind == Kind::Packet;
        while self.ended.is_none() && self.next < self.len {
            self.sent.calls += 1;
            match self.send_some() {
                Ok(count) => {
                    self.sent.taken |= mask(self.next + count) & !mask(self.next);
                    self.next += count;
                }
                Err(Trouble::Interrupted) => {}
                Err(Trouble::LinkDown | Trouble::Refused) if may_be_stale => may_be_stale = false,
                Err(Trouble::Refused) => {
                    self.sent.refused |= 1 << self.next;
                    self.next += 1;
                }
                Err(end) => self.ended = Some(end),
            }
        }
        self.used = 0;
    }

    /// One system call for frames from `next` on; answers with how many were taken, at least one.
    fn send_some(&mut self) -> Result<usize, Trouble> {
        let Some(slot) = self.queue.slot.as_ref() else { return Err(Trouble::LinkDown) };
        let Stage { headers, spans, pieces } = &mut self.queue.stage;
        let (headers, spans) = (&headers[self.next..self.len], &spans[self.next..self.len]);
        // SAFETY: every span from `next` on was filled by `list` in this batch, from a frame whose
        // bytes stay in place for `'f`, which has not ended.
        let result = unsafe {
            match self.queue.kind {
                Kind::Tap => pieces.write_frame(slot.fd(), &headers[0], &spans[0]).map(|()| 1),
                Kind::Packet => pieces.send_messages(slot.fd(), headers, slot.header_len(), spans),
            }
        };
        match result? {
            0 => Err(Trouble::Busy),
            count => Ok(count),
        }
    }
}

/// The lowest `count` bits.
fn mask(count: usize) -> u32 {
    debug_assert!(count <= 32);
    ((1u64 << count) - 1) as u32
}

/// Frames that arrived: 32 places for frames of 64 KiB, used again and again. A worker keeps one.
pub struct ReceiveBatch {
    bytes: Box<[u8]>,
    headers: Box<[NetHeader; BATCH]>,
    arrivals: Box<[Arrival; BATCH]>,
    /// Place, first byte, length.
    frames: [(u8, u32, u32); BATCH],
    len: usize,
    unusable: u32,
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl ReceiveBatch {
    /// An empty batch. Its places (2 MiB) cost memory only as far as frames have filled them.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; STRIDE * BATCH].into_boxed_slice(),
            headers: Box::new([[0; 12]; BATCH]),
            arrivals: Box::new([Arrival::default(); BATCH]),
            frames: [(0, 0, 0); BATCH],
            len: 0,
            unusable: 0,
        }
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing arrived.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frames that arrived with this batch but cannot be handed on: longer than 64 KiB, or with an
    /// offload that the virtio-net header has no word for.
    pub fn unusable(&self) -> u32 {
        self.unusable
    }

    /// Header and bytes of frame `i`, its tags in place.
    ///
    /// # Panics
    /// When there is no frame `i`.
    #[inline]
    pub fn frame(&self, i: usize) -> (&NetHeader, &[u8]) {
        let (place, start, len) = self.frames[..self.len][i];
        let place = usize::from(place);
        let start = place * STRIDE + start as usize;
        (&self.headers[place], &self.bytes[start..start + len as usize])
    }

    /// All frames, in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = (&NetHeader, &[u8])> {
        (0..self.len).map(|i| self.frame(i))
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.unusable = 0;
    }

    /// One batch from a packet socket, in one system call, or a few if there are errors to collect.
    pub(super) fn fill_from_packet(&mut self, fd: BorrowedFd<'_>, header_len: usize) {
        // Each error costs a call, and there is one a frame at worst; the next round goes on.
        for _ in 0..4 {
            let places = self.bytes.chunks_exact_mut(STRIDE).map(|place| &mut place[HEADROOM..]);
            let result = sys::receive_messages(
                fd,
                &mut self.headers,
                header_len,
                places,
                &mut self.arrivals,
            );
            match result {
                Ok(count) => {
                    for place in 0..count {
                        self.accept(place, header_len);
                    }
                    return;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel cannot describe the frame in a virtio-net header; it is consumed.
                    Some(libc::EINVAL) => self.unusable += 1,
                    // Nothing there, or the link is down.
                    _ => return,
                },
            }
        }
    }

    /// One batch from a TAP, in one system call a frame and one more.
    pub(super) fn fill_from_tap(&mut self, fd: BorrowedFd<'_>) {
        let header_len = size_of::<NetHeader>();
        let mut place = 0;
        for _ in 0..BATCH {
            let start = place * STRIDE + HEADROOM;
            let bytes = &mut self.bytes[start..(place + 1) * STRIDE];
            match sys::read_frame(fd, &mut self.headers[place], bytes) {
                Ok(len) => {
                    // The kernel cuts what does not fit and does not say so.
                    let truncated = len > header_len + MAX_SUPER_FRAME;
                    self.arrivals[place] = Arrival { len, truncated, tag: None };
                    if self.accept(place, header_len) {
                        place += 1;
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EINVAL) => self.unusable += 1,
                    _ => return,
                },
            }
        }
    }

    /// List the frame that has arrived at `place`, if it is whole.
    fn accept(&mut self, place: usize, header_len: usize) -> bool {
        let Arrival { len, truncated, tag } = self.arrivals[place];
        let len = len.saturating_sub(header_len);
        if truncated || len < 14 {
            self.unusable += 1;
            return false;
        }
        self.headers[place][header_len..].fill(0);
        let mut start = HEADROOM;
        let mut total = len;
        if let Some((ethertype, control)) = tag {
            start -= 4;
            total += 4;
            let bytes = &mut self.bytes[place * STRIDE + start..][..16];
            put_tag(bytes, ethertype, control);
            move_header(&mut self.headers[place]);
        }
        self.frames[self.len] = (place as u8, start as u32, total as u32);
        self.len += 1;
        true
    }
}

/// Put a tag behind the addresses of a frame that starts at `bytes[4]`; it starts at `bytes[0]`
/// then.
fn put_tag(bytes: &mut [u8], ethertype: u16, control: u16) {
    bytes.copy_within(4..16, 0);
    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
    bytes[14..16].copy_from_slice(&control.to_be_bytes());
}

/// Have a net header describe a frame that a tag was put into.
fn move_header(header: &mut NetHeader) {
    const NEEDS_CSUM: u8 = 1;
    let [flags, gso_type, ..] = *header;
    let mut add_tag = |at: usize| {
        let value = u16::from_le_bytes([header[at], header[at + 1]]).wrapping_add(4);
        header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    };
    if gso_type != 0 {
        add_tag(2);
    }
    if flags & NEEDS_CSUM != 0 {
        add_tag(6);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;

    use super::super::{Link, LinkStatus, Slot};
    use super::*;

    #[test]
    fn a_tag_is_put_behind_the_addresses() {
        let mut bytes: Vec<u8> = (0..20).collect();
        put_tag(&mut bytes[..16], 0x88a8, 0xa123);
        let wanted =
            [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0x88, 0xa8, 0xa1, 0x23, 16, 17, 18, 19];
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn a_header_moves_with_its_frame_where_it_points_into_it() {
        let mut plain = [0; 12];
        move_header(&mut plain);
        assert_eq!(plain, [0; 12]);
        let mut tcp = [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0];
        move_header(&mut tcp);
        assert_eq!(tcp, [1, 1, 58, 0, 0xb4, 5, 38, 0, 16, 0, 0, 0]);
    }

    /// A queue whose kernel is a socket that the test reads.
    fn queue_to_a_reader(pieces: usize) -> (UplinkQueue, UnixDatagram) {
        let (near, far) = UnixDatagram::pair().expect("sockets");
        let slot = Slot::new(near.into(), 12).expect("a slot");
        let link = Link::default();
        link.set(LinkStatus { carrier: true, mtu: None });
        let kind = Kind::Packet;
        let stage = Stage::new(pieces);
        (UplinkQueue { slot: Some(Arc::new(slot)), kind, link, stage }, far)
    }

    fn read(reader: &UnixDatagram) -> Vec<u8> {
        reader.set_nonblocking(true).expect("set");
        let mut bytes = vec![0; 4096];
        let len = reader.recv(&mut bytes).expect("a frame");
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn a_batch_in_more_pieces_than_there_is_room_for_is_sent_in_parts() {
        let (mut queue, reader) = queue_to_a_reader(12);
        let mut batch = queue.batch();
        for number in 0..5 {
            let bytes = Gather::from_slice(b"body").replace_head(b"rest", 0);
            batch.push(&[number; 12], bytes.replace_head(b"head", 0)).expect("room");
        }
        // Four pieces each: three frames, then two.
        assert_eq!(batch.send(), Sent { taken: 0b1_1111, calls: 2, ..Sent::default() });
        for number in 0..5 {
            assert_eq!(read(&reader), [&[number; 12][..], b"headrestbody"].concat());
        }
    }

    #[test]
    fn a_frame_in_more_pieces_than_any_message_may_have_is_refused_alone() {
        let (mut queue, reader) = queue_to_a_reader(3);
        let two = Gather::from_slice(b"body").replace_head(b"head", 0);
        let mut batch = queue.batch();
        for frame in [two, two.replace_head(b"more", 0), two] {
            batch.push(&[1; 12], frame).expect("room");
        }
        let sent = batch.send();
        assert_eq!((sent.taken, sent.refused), (0b101, 0b010));
        for _ in 0..2 {
            assert_eq!(read(&reader), [&[1; 12][..], b"headbody"].concat());
        }
    }

    #[test]
    fn what_finds_no_room_is_busy_and_the_next_batch_goes_on() {
        let (mut queue, reader) = queue_to_a_reader(MAX_PIECES);
        let frame = Gather::from_slice(b"frame");
        let mut taken = 0;
        let busy = loop {
            let mut batch = queue.batch();
            while batch.push(&[0; 12], frame).is_some() {}
            let sent = batch.send();
            assert_eq!(sent.taken ^ sent.busy, u32::MAX, "each is one or the other");
            taken += sent.taken.count_ones();
            if sent.busy != 0 {
                break sent.busy;
            }
        };
        assert_eq!(busy, u32::MAX << busy.trailing_zeros(), "in order");
        for _ in 0..taken {
            read(&reader);
        }
        let mut batch = queue.batch();
        batch.push(&[0; 12], frame).expect("room");
        assert_eq!(batch.send().taken, 1);
    }

    #[test]
    fn a_batch_that_is_dropped_sends_nothing() {
        let (mut queue, reader) = queue_to_a_reader(MAX_PIECES);
        queue.batch().push(&[0; 12], Gather::from_slice(b"lost"));
        let mut batch = queue.batch();
        batch.push(&[2; 12], Gather::from_slice(b"sent"));
        assert_eq!(batch.send().taken, 1);
        assert_eq!(read(&reader), [&[2; 12][..], b"sent"].concat());
    }

    #[test]
    fn masks_cover_none_to_all() {
        assert_eq!([mask(0), mask(1), mask(31), mask(32)], [0, 1, u32::MAX >> 1, u32::MAX]);
    }
}
