//! The Internet checksum (RFC 1071), over bytes that may lie scattered in guest memory.

/// A frame whose bytes can be copied out piece by piece; it may lie in guest memory and change
/// meanwhile, which spoils its own checksum and nothing else.
pub trait FrameBytes {
    /// Copies bytes from `offset` on into `into` and says how many; fewer than asked at the end.
    fn copy_at(&self, offset: usize, into: &mut [u8]) -> usize;
}

impl FrameBytes for [u8] {
    fn copy_at(&self, offset: usize, into: &mut [u8]) -> usize {
        let from = self.get(offset..).unwrap_or_default();
        let length = from.len().min(into.len());
        into[..length].copy_from_slice(&from[..length]);
        length
    }
}

/// A sum in progress. Pieces are added at even distances from the start.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Adds bytes; an odd last one is padded with zero.
    #[must_use]
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        // Ones' complement addition does not care how wide the words are, so four bytes at a time
        // into 64 bits, which do not overflow below 2^32 words.
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            self.0 += u64::from(u32::from_be_bytes(*word));
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        self.0 += u64::from(u32::from_be_bytes(last));
        self
    }

    /// Adds a number.
    #[must_use]
    pub(super) fn number(self, number: u32) -> Self {
        Self(self.0 + u64::from(number))
    }

    /// Adds `length` bytes of a frame from `offset` on; stops early where the frame ends.
    #[must_use]
    pub(super) fn frame<F: FrameBytes + ?Sized>(
        mut self,
        frame: &F,
        mut offset: usize,
        mut length: usize,
    ) -> Self {
        // A multiple of 4, so that every piece but the last is added at an even distance.
        let mut piece = [0; 1024];
        while length > 0 {
            let want = length.min(piece.len());
            let got = frame.copy_at(offset, &mut piece[..want]).min(want);
            self = self.bytes(&piece[..got]);
            if got < want {
                break;
            }
            offset += got;
            length -= got;
        }
        self
    }

    /// The sum in 16 bits, not complemented: what a checksum field holds before it is finished.
    pub(super) fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// The checksum. Zero is written as 0xffff, its other representation, because in UDP zero
    /// means "no checksum" (RFC 768).
    pub(super) fn finish(self) -> u16 {
        match !self.fold() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Finishes the checksum of a frame whose sender left it to the device (virtio 1.2, 5.1.6.2).
///
/// `head` is the local copy of the first bytes of the frame; `frame` all of it, of which only what
/// lies behind `head` is read; `frame_len` its length. The checksum covers everything from `start`
/// to the end, and goes to `start + offset`, which lies in `head` after
/// [`Offload::check`](super::Offload::check).
pub fn finish_checksum<F: FrameBytes + ?Sized>(
    head: &mut [u8],
    frame: &F,
    frame_len: usize,
    start: u8,
    offset: u8,
) {
    let (start, field) = (start as usize, start as usize + offset as usize);
    let Some(covered) = head.get(start..) else { return };
    let even = covered.len() & !1;
    let tail_at = start + even;
    let mut sum = Sum::default().bytes(&covered[..even]);
    if let (Some(last), true) = (covered.get(even), frame_len > head.len()) {
        // The head ends inside a 16-bit word: its other half is the first byte behind it.
        let mut pair = [*last, 0];
        frame.copy_at(head.len(), &mut pair[1..]);
        sum = sum.bytes(&pair).frame(frame, tail_at + 2, frame_len.saturating_sub(tail_at + 2));
    } else {
        sum = sum.bytes(&covered[even..]);
        sum = sum.frame(frame, head.len(), frame_len.saturating_sub(head.len()));
    }
    if let Some(field) = head.get_mut(field..field + 2) {
        field.copy_from_slice(&sum.finish().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::Packet;
    use crate::switch::head::HEAD;
    use proptest::prelude::*;

    /// Leaves in the checksum field what a driver leaves there: the pseudo-header's sum.
    fn unfinished(packet: &Packet) -> (Vec<u8>, u8) {
        let mut bytes = packet.bytes();
        let start = packet.transport_at();
        let offset = if packet.tcp { 16 } else { 6 };
        let addresses = if packet.v6 { start - 32..start } else { start - 8..start };
        let pseudo = Sum::default()
            .bytes(&bytes[addresses])
            .number(if packet.tcp { 6 } else { 17 })
            .number((bytes.len() - start) as u32);
        bytes[start + offset..start + offset + 2].copy_from_slice(&pseudo.fold().to_be_bytes());
        (bytes, offset as u8)
    }

    proptest! {
        #[test]
        fn a_finished_checksum_is_what_another_implementation_computes(
            payload in prop::collection::vec(any::<u8>(), 0..3000),
            v6: bool,
            tcp: bool,
            cut in 0..HEAD,
        ) {
            let packet = Packet { v6, tcp, ..Packet::udp4(&payload) };
            let (frame, offset) = unfinished(&packet);
            // The head may end anywhere behind the transport header, at odd distances too.
            let head_len = frame.len().min(HEAD).min(packet.headers() + cut);
            let mut head = frame[..head_len].to_vec();
            let start = packet.transport_at() as u8;
            finish_checksum(&mut head, frame.as_slice(), frame.len(), start, offset);
            head.extend(&frame[head_len..]);
            prop_assert_eq!(head, packet.with_one_zero(packet.bytes()));
        }

        #[test]
        fn finishing_any_checksum_never_panics(
            mut head in prop::collection::vec(any::<u8>(), 0..=HEAD),
            frame in prop::collection::vec(any::<u8>(), 0..300),
            frame_len in 0..400_usize,
            start: u8,
            offset: u8,
        ) {
            finish_checksum(&mut head, frame.as_slice(), frame_len, start, offset);
        }

        #[test]
        fn a_sum_does_not_depend_on_how_the_bytes_are_cut(
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
            at in 0..2500_usize,
        ) {
            let at = (at * 2).min(bytes.len() & !1);
            let whole = Sum::default().bytes(&bytes).fold();
            let parts = Sum::default().bytes(&bytes[..at]).frame(&bytes[..], at, bytes.len() - at);
            prop_assert_eq!(parts.fold(), whole);
        }
    }

    #[test]
    fn the_example_of_rfc_1071_gives_its_sum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().bytes(&bytes).fold(), 0xddf2);
    }
}
