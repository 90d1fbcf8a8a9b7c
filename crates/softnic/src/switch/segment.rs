//! Cuts a super-frame into the frames it stands for, when its receiver takes none (TCP: RFC 9293
//! and the Linux kernel's `tcp_gso_segment`; UDP: `__udp_gso_segment`).
//!
//! Only headers are made; the payload stays where it is and each segment names its range of it.

use std::ops::Range;

use super::checksum::{FrameBytes, Sum};
use super::head::{TCP, UDP, u16_at, u32_at};
use super::offload::{Offload, SegmentKind};
use super::vlan::EDITED_HEAD;

/// Who computes the checksums of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentChecksum {
    /// We do, which reads the payload.
    Full,
    /// The receiver; the field is given the sum of the pseudo-header.
    Partial,
}

/// How a super-frame is cut up; [`judge_egress`](super::judge_egress) makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentPlan {
    /// The offload to cut by.
    pub offload: Offload,
    /// Where the layer-3 header starts, in bytes from the start of the frame.
    pub layer3_at: u8,
    /// Who computes the checksums.
    pub checksum: SegmentChecksum,
}

/// One segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Bytes of headers written to the caller's buffer.
    pub headers: usize,
    /// Where the payload lies in the super-frame, in bytes from its start.
    pub payload: Range<usize>,
}

impl Segment {
    /// Length of the frame, in bytes.
    pub fn frame_len(&self) -> usize {
        self.headers + self.payload.len()
    }
}

/// The segments of one super-frame, in order.
#[derive(Clone, Debug)]
pub struct Segments {
    headers: [u8; EDITED_HEAD],
    headers_len: usize,
    layer3_at: usize,
    transport_at: usize,
    kind: SegmentKind,
    checksum: SegmentChecksum,
    size: usize,
    frame_len: usize,
    next: usize,
    index: u16,
}

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

impl Segments {
    /// Starts cutting up a frame of `frame_len` bytes whose first bytes are `head`, both after the
    /// head was edited. `None` if the plan asks for no segments or the headers are not all in
    /// `head`, neither of which is so after [`Offload::check`](super::Offload::check).
    pub fn new(head: &[u8], frame_len: usize, plan: SegmentPlan) -> Option<Self> {
        let Offload::Segments { kind, transport_at, headers, size, .. } = plan.offload else {
            return None;
        };
        let layer3_at = plan.layer3_at as usize;
        let (transport_at, headers_len) = (transport_at as usize, headers as usize);
        let smallest_ip = if kind.is_v6() { 40 } else { 20 };
        let smallest_transport = if kind.is_tcp() { 20 } else { 8 };
        let whole = layer3_at + smallest_ip <= transport_at
            && transport_at + smallest_transport <= headers_len
            && headers_len <= frame_len
            && size > 0;
        let mut copy = [0; EDITED_HEAD];
        copy.get_mut(..headers_len)?.copy_from_slice(head.get(..headers_len)?);
        whole.then_some(Self {
            headers: copy,
            headers_len,
            layer3_at,
            transport_at,
            kind,
            checksum: plan.checksum,
            size: size as usize,
            frame_len,
            next: headers_len,
            index: 0,
        })
    }

    /// Writes the headers of the next segment to `out` and says where its payload is. `frame` is
    /// the super-frame; it is read only for a full checksum.
    pub fn next<F: FrameBytes + ?Sized>(
        &mut self,
        frame: &F,
        out: &mut [u8; EDITED_HEAD],
    ) -> Option<Segment> {
        if self.next >= self.frame_len {
            return None;
        }
        let payload = self.next..self.frame_len.min(self.next + self.size);
        let first = self.index == 0;
        let last = payload.end == self.frame_len;
        *out = self.headers;
        self.write_ip(out, payload.len());
        if self.kind.is_tcp() {
            self.write_tcp(out, first, last);
        } else {
            let length = self.headers_len - self.transport_at + payload.len();
            put_u16(out, self.transport_at + 4, length as u16);
        }
        self.write_checksum(out, frame, &payload);
        self.next = payload.end;
        self.index = self.index.wrapping_add(1);
        Some(Segment { headers: self.headers_len, payload })
    }

    fn write_ip(&self, out: &mut [u8; EDITED_HEAD], payload: usize) {
        let at = self.layer3_at;
        if self.kind.is_v6() {
            put_u16(out, at + 4, (self.headers_len - at - 40 + payload) as u16);
            return;
        }
        put_u16(out, at + 2, (self.headers_len - at + payload) as u16);
        let id = u16_at(out, at + 4).unwrap_or(0).wrapping_add(self.index);
        put_u16(out, at + 4, id);
        put_u16(out, at + 10, 0);
        let checksum = !Sum::default().bytes(&out[at..self.transport_at]).fold();
        put_u16(out, at + 10, checksum);
    }

    fn write_tcp(&self, out: &mut [u8; EDITED_HEAD], first: bool, last: bool) {
        let at = self.transport_at;
        let sent = (self.next - self.headers_len) as u32;
        let sequence = u32_at(out, at + 4).unwrap_or(0).wrapping_add(sent);
        out[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
        if !first {
            out[at + 13] &= !CWR;
        }
        if !last {
            out[at + 13] &= !(FIN | PSH);
        }
    }

    fn write_checksum<F: FrameBytes + ?Sized>(
        &self,
        out: &mut [u8; EDITED_HEAD],
        frame: &F,
        payload: &Range<usize>,
    ) {
        let (l3, l4) = (self.layer3_at, self.transport_at);
        let addresses =
            if self.kind.is_v6() { &out[l3 + 8..l3 + 40] } else { &out[l3 + 12..l3 + 20] };
        let protocol = if self.kind.is_tcp() { TCP } else { UDP };
        let length = self.headers_len - l4 + payload.len();
        let pseudo = Sum::default().bytes(addresses).number(protocol.into()).number(length as u32);
        let field = l4 + self.kind.checksum_offset() as usize;
        put_u16(out, field, 0);
        let value = match self.checksum {
            SegmentChecksum::Partial => pseudo.fold(),
            SegmentChecksum::Full => pseudo
                .bytes(&out[l4..self.headers_len])
                .frame(frame, payload.start, payload.len())
                .finish(),
        };
        put_u16(out, field, value);
    }
}

fn put_u16(out: &mut [u8; EDITED_HEAD], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::Packet;
    use crate::switch::head::{HEAD, Head};
    use crate::switch::net_header::NetHeader;
    use crate::switch::offload::OffloadSet;
    use proptest::prelude::*;

    /// What a driver would say of this super-frame.
    fn header(packet: &Packet, size: u16) -> NetHeader {
        let gso_type = match (packet.tcp, packet.v6) {
            (true, false) => NetHeader::GSO_TCPV4,
            (true, true) => NetHeader::GSO_TCPV6,
            (false, _) => NetHeader::GSO_UDP_L4,
        };
        NetHeader {
            flags: NetHeader::NEEDS_CSUM,
            gso_type: if packet.cwr { gso_type | NetHeader::GSO_ECN } else { gso_type },
            hdr_len: 0,
            gso_size: size,
            csum_start: packet.transport_at() as u16,
            csum_offset: if packet.tcp { 16 } else { 6 },
        }
    }

    fn plan(packet: &Packet, frame: &[u8], size: u16, checksum: SegmentChecksum) -> SegmentPlan {
        let bytes = &frame[..frame.len().min(HEAD)];
        let head = Head::parse(bytes).expect("long enough");
        let header = header(packet, size);
        let offload = Offload::check(&header, frame.len(), bytes, &head, OffloadSet::ALL);
        let offload = offload.expect("an honest header");
        SegmentPlan { offload, layer3_at: head.layer3_at() as u8, checksum }
    }

    fn cut(frame: &[u8], plan: SegmentPlan) -> Vec<Vec<u8>> {
        let head = &frame[..frame.len().min(HEAD)];
        let mut segments = Segments::new(head, frame.len(), plan).expect("a checked plan");
        let mut out = [0; EDITED_HEAD];
        let mut frames = Vec::new();
        while let Some(segment) = segments.next(frame, &mut out) {
            let mut bytes = out[..segment.headers].to_vec();
            bytes.extend(&frame[segment.payload.clone()]);
            assert_eq!(bytes.len(), segment.frame_len());
            frames.push(bytes);
        }
        frames
    }

    fn packets() -> impl Strategy<Value = Packet> {
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        (prop::collection::vec(any::<u8>(), 1..6000), flags, any::<Option<u16>>(), any::<u16>())
            .prop_map(|(payload, (v6, tcp, extension, last, cwr), tag, id)| Packet {
                v6,
                tcp,
                extension,
                id,
                last: last && tcp,
                cwr: cwr && tcp,
                tag: tag.map(|tag| tag & 0xfff),
                ..Packet::udp4(&payload)
            })
    }

    proptest! {
        #[test]
        fn every_segment_is_the_packet_that_its_sender_would_have_sent(
            packet in packets(),
            size in 100..2000_u16,
        ) {
            let frame = packet.bytes();
            let plan = plan(&packet, &frame, size, SegmentChecksum::Full);
            let expected: Vec<Vec<u8>> = packet
                .payload
                .chunks(size as usize)
                .enumerate()
                .map(|(index, payload)| {
                    let sent = index as u32 * u32::from(size);
                    let segment = Packet {
                        id: packet.id.wrapping_add(index as u16),
                        sequence: packet.sequence.wrapping_add(sent),
                        last: packet.last && (sent as usize + payload.len()) == packet.payload.len(),
                        cwr: packet.cwr && index == 0,
                        payload: payload.to_vec(),
                        ..packet.clone()
                    };
                    segment.with_one_zero(segment.bytes())
                })
                .collect();
            prop_assert_eq!(plan.offload.wire_frames(frame.len()), expected.len());
            let wire: usize = expected.iter().map(Vec::len).sum();
            prop_assert_eq!(plan.offload.wire_bytes(frame.len()), wire);
            prop_assert_eq!(cut(&frame, plan), expected);
        }

        #[test]
        fn a_segment_left_to_its_receiver_is_right_once_finished(
            packet in packets(),
            size in 100..2000_u16,
        ) {
            let frame = packet.bytes();
            let full = cut(&frame, plan(&packet, &frame, size, SegmentChecksum::Full));
            let partial = cut(&frame, plan(&packet, &frame, size, SegmentChecksum::Partial));
            let start = packet.transport_at() as u8;
            let offset = if packet.tcp { 16 } else { 6 };
            for (mut segment, expected) in partial.into_iter().zip(full) {
                let (frame, len) = (segment.clone(), segment.len());
                crate::switch::finish_checksum(&mut segment, frame.as_slice(), len, start, offset);
                prop_assert_eq!(segment, expected);
            }
        }
    }

    #[test]
    fn a_frame_without_segments_is_not_cut() {
        let plan = SegmentPlan {
            offload: Offload::Checksum { start: 34, offset: 16 },
            layer3_at: 14,
            checksum: SegmentChecksum::Full,
        };
        assert!(Segments::new(&[0; HEAD], 1000, plan).is_none());
    }
}
