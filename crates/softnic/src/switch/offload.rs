//! What a frame's sender left for others to do (finish a checksum, cut a super-frame up), after
//! the sender's claim was checked against the frame.
//!
//! A checksum request is a request to write two bytes into the frame. It is therefore granted only
//! where a checksum of the parsed transport header belongs: otherwise a VM could have a receiver,
//! or this switch, overwrite the very addresses that anti-spoof has just approved.

use lanekeeper_model::{DropReason, MAX_FRAME};

use super::head::{ETHERNET, Fragment, HEAD, Head, ICMPV6, IpHead, Layer3, TCP, UDP};
use super::net_header::NetHeader;
use super::vlan::TAG_LEN;

/// Largest super-frame: an IP packet of 65,535 bytes, its Ethernet header and one tag.
pub const MAX_SUPER_FRAME: usize = 65_535 + 14 + 4;

/// Most segments that one super-frame may stand for. Full-sized TCP segments make 45 of the
/// largest super-frame; a segment size of 1, which only an attacker chooses, would make 65,000 and
/// stall the worker that cuts them.
pub const MAX_SEGMENTS: usize = 1_024;

/// Offloads that one side of a virtio device negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OffloadSet(u8);

impl OffloadSet {
    /// None at all.
    pub const NONE: Self = Self(0);
    /// Unfinished checksums.
    pub const CHECKSUM: Self = Self(1);
    /// TCP over IPv4 super-frames.
    pub const TCP4: Self = Self(2);
    /// TCP over IPv6 super-frames.
    pub const TCP6: Self = Self(4);
    /// CWR in TCP super-frames.
    pub const ECN: Self = Self(8);
    /// UDP over IPv4 super-frames.
    pub const UDP4: Self = Self(16);
    /// UDP over IPv6 super-frames.
    pub const UDP6: Self = Self(32);
    /// The sender is believed when it says that it verified a checksum: the host's kernel is,
    /// a VM is not.
    pub const VERIFIED: Self = Self(64);
    /// Everything a kernel's uplink socket can carry.
    pub const ALL: Self = Self(127);

    /// What a driver with these virtio feature bits may send (virtio 1.2, 5.1.3:
    /// `VIRTIO_NET_F_CSUM`, `HOST_TSO4`, `HOST_TSO6`, `HOST_ECN`, `HOST_USO`).
    pub const fn sent_by(features: u64) -> Self {
        let usos = Self::UDP4.0 | Self::UDP6.0;
        Self::from_bits(
            features,
            [(0, Self::CHECKSUM.0), (11, Self::TCP4.0), (12, Self::TCP6.0), (13, Self::ECN.0)],
            [(56, usos), (56, usos)],
        )
    }

    /// What a driver with these virtio feature bits takes (virtio 1.2, 5.1.3:
    /// `VIRTIO_NET_F_GUEST_CSUM`, `GUEST_TSO4`, `GUEST_TSO6`, `GUEST_ECN`, `GUEST_USO4`,
    /// `GUEST_USO6`), or with these control-queue offloads, which have the same numbers
    /// (5.1.6.5.6.1).
    pub const fn accepted_by(features: u64) -> Self {
        Self::from_bits(
            features,
            [(1, Self::CHECKSUM.0), (7, Self::TCP4.0), (8, Self::TCP6.0), (9, Self::ECN.0)],
            [(54, Self::UDP4.0), (55, Self::UDP6.0)],
        )
    }

    const fn from_bits(features: u64, tcp: [(u8, u8); 4], udp: [(u8, u8); 2]) -> Self {
        let mut set = 0;
        let all = [tcp[0], tcp[1], tcp[2], tcp[3], udp[0], udp[1]];
        let mut i = 0;
        while i < all.len() {
            if features >> all[i].0 & 1 == 1 {
                set |= all[i].1;
            }
            i += 1;
        }
        // Every segmentation offload needs the checksum one (virtio 1.2, 5.1.3.1).
        Self(if set & Self::CHECKSUM.0 == 0 { 0 } else { set })
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The set without another.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in the set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What the segments of a super-frame are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
}

impl SegmentKind {
    /// The offload that covers it.
    pub const fn offload(self) -> OffloadSet {
        match self {
            Self::Tcp4 => OffloadSet::TCP4,
            Self::Tcp6 => OffloadSet::TCP6,
            Self::Udp4 => OffloadSet::UDP4,
            Self::Udp6 => OffloadSet::UDP6,
        }
    }

    /// Where the transport header has its checksum, in bytes from its start.
    pub(super) const fn checksum_offset(self) -> u8 {
        if self.is_tcp() { 16 } else { 6 }
    }

    pub(super) const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6)
    }

    pub(super) const fn is_v6(self) -> bool {
        matches!(self, Self::Tcp6 | Self::Udp6)
    }
}

/// A checked offload. Offsets are in bytes from the start of the frame and lie within its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offload {
    /// Nothing to do, nothing known.
    #[default]
    None,
    /// Nothing to do: the checksum was verified by someone who is believed.
    Verified,
    /// The checksum is to be finished.
    Checksum {
        /// Where the checksummed part starts.
        start: u8,
        /// Where the checksum goes, from `start`.
        offset: u8,
    },
    /// A super-frame, to be cut into segments whose checksums are to be computed.
    Segments {
        /// What the segments are.
        kind: SegmentKind,
        /// TCP only: the first segment carries CWR.
        ecn: bool,
        /// Where the transport header starts.
        transport_at: u8,
        /// Bytes of headers, which each segment repeats.
        headers: u8,
        /// Bytes of payload in each segment but the last.
        size: u16,
    },
}

/// An [`Offload`] in one word, `0` for none; see [`HeadEdit`](super::HeadEdit) for why. From the
/// low byte up: kind, ECN, start, offset or length of the headers, 16 bits of segment size, and the
/// [`OffloadSet`] that a receiver needs to take the frame as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PackedOffload(u64);

const SEGMENT_KINDS: [SegmentKind; 4] =
    [SegmentKind::Tcp4, SegmentKind::Tcp6, SegmentKind::Udp4, SegmentKind::Udp6];

impl PackedOffload {
    pub(super) const NONE: Self = Self(0);

    #[inline]
    pub(super) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The commonest request, judged without a full parse: finish the checksum of TCP or UDP right
    /// behind an untagged IPv4 header without options or IPv6 header, unfragmented. `None` leaves
    /// it to [`Offload::check`], which never contradicts; the caller checks the length.
    #[inline]
    pub(super) fn of_common_checksum(
        header: &NetHeader,
        bytes: &[u8],
        ethertype: u16,
        offered: OffloadSet,
    ) -> Option<Self> {
        if header.gso_type != NetHeader::GSO_NONE
            || header.flags & NetHeader::NEEDS_CSUM == 0
            || !offered.has(OffloadSet::CHECKSUM)
        {
            return None;
        }
        let (start, protocol) = match ethertype {
            0x0800 => {
                let ip: &[u8; 20] = bytes.get(ETHERNET..)?.first_chunk()?;
                if ip[0] != 0x45 || u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0 {
                    return None;
                }
                (ETHERNET as u8 + 20, ip[9])
            }
            0x86dd => {
                let ip: &[u8; 40] = bytes.get(ETHERNET..)?.first_chunk()?;
                if ip[0] >> 4 != 6 {
                    return None;
                }
                (ETHERNET as u8 + 40, ip[6])
            }
            _ => return None,
        };
        let offset = match protocol {
            TCP => 16,
            UDP => 6,
            _ => return None,
        };
        let whole = bytes.len() >= start as usize + offset as usize + 2;
        let honest =
            header.csum_start == u16::from(start) && header.csum_offset == u16::from(offset);
        (whole && honest).then(|| Self::pack(Offload::Checksum { start, offset }))
    }

    #[inline]
    pub(super) fn pack(offload: Offload) -> Self {
        let (kind, ecn, start, length, size) = match offload {
            Offload::None => return Self::NONE,
            Offload::Verified => (1, false, 0, 0, 0),
            Offload::Checksum { start, offset } => (2, false, start, offset, 0),
            Offload::Segments { kind, ecn, transport_at, headers, size } => {
                (3 + kind as u8, ecn, transport_at, headers, size)
            }
        };
        let [low, high] = size.to_le_bytes();
        let needs = offload.needs().0;
        Self(u64::from_le_bytes([kind, ecn.into(), start, length, low, high, needs, 0]))
    }

    /// Whether a receiver that accepts these offloads takes the frame as it is.
    #[inline]
    pub(super) const fn is_accepted(self, accepts: OffloadSet) -> bool {
        accepts.has(OffloadSet((self.0 >> 48) as u8))
    }

    #[inline]
    pub(super) fn unpack(self) -> Offload {
        let [kind, ecn, start, length, low, high, ..] = self.0.to_le_bytes();
        match kind {
            0 => Offload::None,
            1 => Offload::Verified,
            2 => Offload::Checksum { start, offset: length },
            kind => Offload::Segments {
                kind: SEGMENT_KINDS[(kind - 3) as usize % SEGMENT_KINDS.len()],
                ecn: ecn != 0,
                transport_at: start,
                headers: length,
                size: u16::from_le_bytes([low, high]),
            },
        }
    }
}

const fn bad<T>() -> Result<T, DropReason> {
    Err(DropReason::BadOffload)
}

impl Offload {
    /// Checks what a sender claims about its frame.
    ///
    /// `bytes` are the first [`HEAD`] bytes of a frame of `frame_len` bytes, `head` their parse,
    /// and `offered` what the sender negotiated.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] for what was not negotiated or contradicts the frame;
    /// [`DropReason::TooLong`] for a frame beyond any limit.
    pub fn check(
        header: &NetHeader,
        frame_len: usize,
        bytes: &[u8],
        head: &Head,
        offered: OffloadSet,
    ) -> Result<Self, DropReason> {
        let segmented = header.gso_type != NetHeader::GSO_NONE;
        let tags = head.tags as usize * TAG_LEN;
        let limit = if segmented { MAX_SUPER_FRAME } else { MAX_FRAME + tags };
        if frame_len > limit {
            return Err(DropReason::TooLong);
        }
        if header.flags & NetHeader::NEEDS_CSUM == 0 {
            if segmented {
                return bad();
            }
            let verified =
                header.flags & NetHeader::DATA_VALID != 0 && offered.has(OffloadSet::VERIFIED);
            return Ok(if verified { Self::Verified } else { Self::None });
        }
        if !offered.has(OffloadSet::CHECKSUM) {
            return bad();
        }
        let checksum = Self::checksum(header, frame_len, bytes, head)?;
        if segmented {
            checksum.segments(header, frame_len, bytes, head, offered)
        } else {
            Ok(checksum)
        }
    }

    fn checksum(
        header: &NetHeader,
        frame_len: usize,
        bytes: &[u8],
        head: &Head,
    ) -> Result<Self, DropReason> {
        let (start, offset) = (header.csum_start as usize, header.csum_offset as usize);
        let end = start + offset + 2;
        if end > frame_len.min(bytes.len()).min(HEAD) || start < head.layer3_at() {
            return bad();
        }
        let belongs = match head.layer3 {
            Layer3::Ip(ip) => checksum_belongs(ip, start, offset),
            // Nothing in such a frame is judged, so nothing judged can be overwritten.
            Layer3::Other => true,
            Layer3::Arp | Layer3::Unreadable => false,
        };
        if !belongs {
            return bad();
        }
        Ok(Self::Checksum { start: start as u8, offset: offset as u8 })
    }

    fn segments(
        self,
        header: &NetHeader,
        frame_len: usize,
        bytes: &[u8],
        head: &Head,
        offered: OffloadSet,
    ) -> Result<Self, DropReason> {
        let (Self::Checksum { start, .. }, Layer3::Ip(ip)) = (self, head.layer3) else {
            return bad();
        };
        let ecn = header.gso_type & NetHeader::GSO_ECN != 0;
        let kind = match (header.gso_type & !NetHeader::GSO_ECN, ip.v6, ip.protocol) {
            (NetHeader::GSO_TCPV4, false, TCP) => SegmentKind::Tcp4,
            (NetHeader::GSO_TCPV6, true, TCP) => SegmentKind::Tcp6,
            (NetHeader::GSO_UDP_L4, false, UDP) if !ecn => SegmentKind::Udp4,
            (NetHeader::GSO_UDP_L4, true, UDP) if !ecn => SegmentKind::Udp6,
            _ => return bad(),
        };
        if !offered.has(kind.offload()) || ecn && !offered.has(OffloadSet::ECN) {
            return bad();
        }
        if ip.transport_at != Some(start) {
            return bad();
        }
        let headers = start as usize
            + match (kind.is_tcp(), bytes.get(start as usize + 12)) {
                (false, _) => 8,
                (true, Some(byte)) if byte >> 4 >= 5 => (byte >> 4) as usize * 4,
                _ => return bad(),
            };
        let size = header.gso_size as usize;
        if size == 0 || headers > bytes.len().min(HEAD) || headers >= frame_len {
            return bad();
        }
        if (frame_len - headers).div_ceil(size) > MAX_SEGMENTS {
            return bad();
        }
        Ok(Self::Segments {
            kind,
            ecn,
            transport_at: start,
            headers: headers as u8,
            size: header.gso_size,
        })
    }

    /// What a receiver must accept to take the frame as it is.
    const fn needs(self) -> OffloadSet {
        match self {
            Self::None => OffloadSet::NONE,
            Self::Verified | Self::Checksum { .. } => OffloadSet::CHECKSUM,
            Self::Segments { kind, ecn, .. } => {
                let needs = OffloadSet::CHECKSUM.with(kind.offload());
                if ecn { needs.with(OffloadSet::ECN) } else { needs }
            }
        }
    }

    /// The same offload in a frame whose head grew by `growth` bytes in front of layer 3.
    #[must_use]
    pub(super) fn moved(self, growth: i8) -> Self {
        let moved = |at: u8| at.saturating_add_signed(growth);
        match self {
            Self::None | Self::Verified => self,
            Self::Checksum { start, offset } => Self::Checksum { start: moved(start), offset },
            Self::Segments { kind, ecn, transport_at, headers, size } => Self::Segments {
                kind,
                ecn,
                transport_at: moved(transport_at),
                headers: moved(headers),
                size,
            },
        }
    }

    /// How many frames the frame stands for on a wire.
    pub fn wire_frames(self, frame_len: usize) -> usize {
        match self {
            Self::Segments { headers, size, .. } => {
                frame_len.saturating_sub(headers as usize).div_ceil(size as usize).max(1)
            }
            _ => 1,
        }
    }

    /// How many bytes the frame takes on a wire, all its segments' headers counted. This is what
    /// a rate is charged with: a super-frame must not be cheaper than its segments.
    pub fn wire_bytes(self, frame_len: usize) -> usize {
        match self {
            Self::Segments { headers, .. } => {
                frame_len + (self.wire_frames(frame_len) - 1) * headers as usize
            }
            _ => frame_len,
        }
    }

    /// Length of the longest packet (without Ethernet header and tags) that leaves by a wire,
    /// for a frame of `frame_len` bytes whose layer-3 header starts at `layer3_at`.
    #[inline]
    pub(super) fn packet_len(self, frame_len: usize, layer3_at: usize) -> usize {
        match self {
            Self::Segments { headers, size, .. } => {
                (headers as usize + size as usize).min(frame_len).saturating_sub(layer3_at)
            }
            _ => frame_len.saturating_sub(layer3_at),
        }
    }

    /// The header that tells a receiver all of this.
    #[inline]
    pub fn header(self) -> NetHeader {
        match self {
            Self::None => NetHeader::default(),
            Self::Verified => NetHeader { flags: NetHeader::DATA_VALID, ..NetHeader::default() },
            Self::Checksum { start, offset } => NetHeader {
                flags: NetHeader::NEEDS_CSUM,
                hdr_len: u16::from(start) + u16::from(offset) + 2,
                csum_start: start.into(),
                csum_offset: offset.into(),
                ..NetHeader::default()
            },
            Self::Segments { kind, ecn, transport_at, headers, size } => {
                let gso_type = match kind {
                    SegmentKind::Tcp4 => NetHeader::GSO_TCPV4,
                    SegmentKind::Tcp6 => NetHeader::GSO_TCPV6,
                    SegmentKind::Udp4 | SegmentKind::Udp6 => NetHeader::GSO_UDP_L4,
                };
                NetHeader {
                    flags: NetHeader::NEEDS_CSUM,
                    gso_type: if ecn { gso_type | NetHeader::GSO_ECN } else { gso_type },
                    hdr_len: headers.into(),
                    gso_size: size,
                    csum_start: transport_at.into(),
                    csum_offset: kind.checksum_offset().into(),
                }
            }
        }
    }
}

fn checksum_belongs(ip: IpHead, start: usize, offset: usize) -> bool {
    let (Some(transport_at), Fragment::Whole) = (ip.transport_at, ip.fragment) else {
        return false;
    };
    let transport_at = transport_at as usize;
    match ip.protocol {
        TCP => start == transport_at && offset == 16,
        ICMPV6 => start == transport_at && offset == 2,
        UDP if start == transport_at => offset == 6,
        // Behind the header: the checksum of a packet inside a tunnel.
        UDP => start >= transport_at + 8,
        _ => start >= transport_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::{self, IP6_A, IP6_B, Packet};
    use proptest::prelude::*;

    fn check(header: &NetHeader, frame: &[u8], offered: OffloadSet) -> Result<Offload, DropReason> {
        let bytes = &frame[..frame.len().min(HEAD)];
        let head = Head::parse(bytes).expect("long enough");
        Offload::check(header, frame.len(), bytes, &head, offered)
    }

    fn honest(packet: &Packet, gso_type: u8) -> NetHeader {
        NetHeader {
            flags: NetHeader::NEEDS_CSUM,
            gso_type,
            hdr_len: 9_999,
            gso_size: if gso_type == 0 { 0 } else { 500 },
            csum_start: packet.transport_at() as u16,
            csum_offset: if packet.tcp { 16 } else { 6 },
        }
    }

    #[test]
    fn the_length_of_the_headers_is_found_and_not_believed() {
        let packet = Packet::tcp4(&[0; 2_000]);
        let offload =
            check(&honest(&packet, NetHeader::GSO_TCPV4), &packet.bytes(), OffloadSet::ALL);
        let offload = offload.expect("honest but for the hint");
        assert_eq!(offload.header().hdr_len, 54);
        assert_eq!(offload.wire_frames(2_054), 4);
        assert_eq!(offload.wire_bytes(2_054), 2_000 + 4 * 54);
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let tcp = Packet::tcp4(&[0; 2_000]);
        let udp = Packet::udp4(&[0; 2_000]);
        let tso = honest(&tcp, NetHeader::GSO_TCPV4);
        let uso = honest(&udp, NetHeader::GSO_UDP_L4);
        let cases = [
            ("no checksum", &tcp, NetHeader { flags: 0, ..tso }),
            ("segments of nothing", &tcp, NetHeader { gso_size: 0, ..tso }),
            ("too many segments", &tcp, NetHeader { gso_size: 1, ..tso }),
            ("IPv4 as IPv6", &tcp, NetHeader { gso_type: NetHeader::GSO_TCPV6, ..tso }),
            ("TCP as UDP", &tcp, NetHeader { gso_type: NetHeader::GSO_UDP_L4, ..tso }),
            ("UFO", &udp, NetHeader { gso_type: NetHeader::GSO_UDP, ..uso }),
            ("unknown type", &udp, NetHeader { gso_type: 9, ..uso }),
            ("CWR in UDP", &udp, NetHeader { gso_type: NetHeader::GSO_UDP_L4 | 0x80, ..uso }),
            ("CWR alone", &tcp, NetHeader { gso_type: NetHeader::GSO_ECN, ..tso }),
            ("start beyond the frame", &tcp, NetHeader { csum_start: 60_000, ..tso }),
            ("start before IP", &tcp, NetHeader { csum_start: 13, ..tso }),
            ("offset beyond the frame", &tcp, NetHeader { csum_offset: u16::MAX, ..tso }),
            ("start inside IP", &tcp, NetHeader { csum_start: 14, csum_offset: 12, ..tso }),
            ("offset of the ports", &tcp, NetHeader { csum_offset: 0, ..tso }),
            ("UDP's offset in TCP", &tcp, NetHeader { csum_offset: 6, ..tso }),
        ];
        for (name, packet, header) in cases {
            let verdict = check(&header, &packet.bytes(), OffloadSet::ALL);
            assert_eq!(verdict, Err(DropReason::BadOffload), "{name}");
        }
    }

    #[test]
    fn a_tcp_header_longer_than_the_frame_or_shorter_than_tcp_is_refused() {
        let packet = Packet::tcp4(&[0; 30]);
        let header = NetHeader { gso_size: 10, ..honest(&packet, NetHeader::GSO_TCPV4) };
        assert!(check(&header, &packet.bytes(), OffloadSet::ALL).is_ok());
        for data_offset in [0x00, 0x40, 0xf0] {
            let mut bytes = packet.bytes();
            bytes[34 + 12] = data_offset;
            assert_eq!(check(&header, &bytes, OffloadSet::ALL), Err(DropReason::BadOffload));
        }
    }

    #[test]
    fn what_was_not_negotiated_is_refused() {
        let tcp = Packet::tcp4(&[0; 2_000]);
        let tso = honest(&tcp, NetHeader::GSO_TCPV4 | NetHeader::GSO_ECN);
        assert!(check(&tso, &tcp.bytes(), OffloadSet::ALL).is_ok());
        for missing in [OffloadSet::CHECKSUM, OffloadSet::TCP4, OffloadSet::ECN] {
            let verdict = check(&tso, &tcp.bytes(), OffloadSet::ALL.without(missing));
            assert_eq!(verdict, Err(DropReason::BadOffload), "without {missing:?}");
        }
    }

    #[test]
    fn a_fragment_cannot_have_an_unfinished_checksum() {
        let packet = Packet::udp4(&[0; 100]);
        let mut bytes = packet.bytes();
        bytes[20] = 0x20;
        assert_eq!(
            check(&honest(&packet, 0), &bytes, OffloadSet::ALL),
            Err(DropReason::BadOffload)
        );
    }

    #[test]
    fn a_checksum_inside_a_udp_tunnel_is_granted() {
        let packet = Packet::udp4(&[0; 90]);
        let header = NetHeader { csum_start: 84, ..honest(&packet, 0) };
        let verdict = check(&header, &packet.bytes(), OffloadSet::ALL);
        assert_eq!(verdict, Ok(Offload::Checksum { start: 84, offset: 6 }));
    }

    #[test]
    fn only_the_host_is_believed_to_have_verified_a_checksum() {
        let packet = Packet::udp4(&[0; 90]);
        let header = NetHeader { flags: NetHeader::DATA_VALID, ..NetHeader::default() };
        let vm = OffloadSet::sent_by(u64::MAX);
        assert_eq!(check(&header, &packet.bytes(), vm), Ok(Offload::None));
        assert_eq!(check(&header, &packet.bytes(), OffloadSet::ALL), Ok(Offload::Verified));
    }

    #[test]
    fn frames_beyond_any_limit_are_too_long() {
        let packet = Packet::tcp4(&[]);
        let bytes = packet.bytes();
        let head = Head::parse(&bytes).expect("long enough");
        let check = |header: &NetHeader, len| {
            Offload::check(header, len, &bytes, &head, OffloadSet::ALL).map(|_| ())
        };
        assert_eq!(check(&NetHeader::default(), MAX_FRAME), Ok(()));
        assert_eq!(check(&NetHeader::default(), MAX_FRAME + 1), Err(DropReason::TooLong));
        let tso = honest(&packet, NetHeader::GSO_TCPV4);
        assert_eq!(check(&tso, MAX_SUPER_FRAME), Ok(()));
        assert_eq!(check(&tso, MAX_SUPER_FRAME + 1), Err(DropReason::TooLong));
    }

    #[test]
    fn feature_bits_are_those_of_virtio() {
        let all = |bits: &[u32]| bits.iter().fold(0, |set, bit| set | 1 << bit);
        let driver = OffloadSet::sent_by(all(&[0, 11, 12, 13, 56]));
        assert_eq!(driver, OffloadSet::ALL.without(OffloadSet::VERIFIED));
        let guest = OffloadSet::accepted_by(all(&[1, 7, 8, 9, 54, 55]));
        assert_eq!(guest, OffloadSet::ALL.without(OffloadSet::VERIFIED));
        assert_eq!(OffloadSet::accepted_by(all(&[7, 8])), OffloadSet::NONE);
        assert!(!OffloadSet::sent_by(all(&[0, 11])).has(OffloadSet::TCP6));
    }

    proptest! {
        #[test]
        fn no_checksum_request_reaches_an_address_that_was_judged(
            bytes: [u8; 12],
            v6: bool,
            tcp: bool,
            extension: bool,
        ) {
            let packet = Packet { v6, tcp, extension, ..Packet::udp4(&[0; 90]) };
            // Offsets small enough to be near the headers.
            let mut header = NetHeader::parse(&bytes);
            (header.flags, header.gso_type) = (NetHeader::NEEDS_CSUM, 0);
            (header.csum_start, header.csum_offset) = (header.csum_start % 128, header.csum_offset % 32);
            match check(&header, &packet.bytes(), OffloadSet::ALL) {
                Ok(Offload::Checksum { start, offset }) => {
                    prop_assert!(start as usize >= packet.transport_at());
                    prop_assert!((start + offset) as usize >= packet.transport_at() + 6);
                }
                other => prop_assert_eq!(other, Err(DropReason::BadOffload)),
            }
        }

        #[test]
        fn no_checksum_request_reaches_the_target_of_a_neighbour_message(start in 0..128_u16, offset in 0..64_u16) {
            let message = frames::neighbour(136, Some(IP6_A), Some((2, frames::MAC_A)));
            let frame = frames::icmpv6(IP6_B, 58, &[], &message);
            let header = NetHeader {
                flags: NetHeader::NEEDS_CSUM,
                csum_start: start,
                csum_offset: offset,
                ..NetHeader::default()
            };
            let granted = check(&header, &frame, OffloadSet::ALL).is_ok();
            prop_assert_eq!(granted, (start, offset) == (54, 2));
        }

        #[test]
        fn the_short_cut_never_contradicts_the_full_check(
            v6: bool, tcp: bool, extension: bool, checksum: bool,
            start in prop::sample::select(vec![34_u16, 54, 62]),
            offset in prop::sample::select(vec![6_u16, 16]),
            spoil in prop::collection::vec((12..60_usize, any::<u8>()), 0..2),
            length in 14..120_usize,
        ) {
            let packet = Packet { v6, tcp, extension, ..Packet::udp4(&[0; 50]) };
            let mut frame = packet.bytes();
            for (at, value) in spoil {
                frame[at] = value;
            }
            frame.truncate(length);
            let header = NetHeader {
                flags: NetHeader::NEEDS_CSUM,
                csum_start: start,
                csum_offset: offset,
                ..NetHeader::default()
            };
            let offered = if checksum { OffloadSet::CHECKSUM } else { OffloadSet::NONE };
            let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
            let short = PackedOffload::of_common_checksum(&header, &frame, ethertype, offered);
            if let Some(short) = short {
                prop_assert_eq!(Ok(short.unpack()), check(&header, &frame, offered));
            } else if packet.bytes().starts_with(&frame)
                && checksum
                && !(v6 && extension)
                && start as usize == packet.transport_at()
            {
                prop_assert!(check(&header, &frame, offered).is_err(), "the short cut was missed");
            }
        }

        #[test]
        fn packing_an_offload_and_unpacking_it_is_identity(
            choice in 0..7_u8, ecn: bool, start: u8, length: u8, size: u16,
        ) {
            let offload = match choice {
                0 => Offload::None,
                1 => Offload::Verified,
                2 => Offload::Checksum { start, offset: length },
                choice => Offload::Segments {
                    kind: SEGMENT_KINDS[choice as usize - 3],
                    ecn,
                    transport_at: start,
                    headers: length,
                    size,
                },
            };
            let packed = PackedOffload::pack(offload);
            prop_assert_eq!(packed.unpack(), offload);
            prop_assert_eq!(packed.is_none(), offload == Offload::None);
            prop_assert!(packed.is_accepted(OffloadSet::ALL));
            prop_assert_eq!(packed.is_accepted(OffloadSet::NONE), offload == Offload::None);
        }
    }
}
