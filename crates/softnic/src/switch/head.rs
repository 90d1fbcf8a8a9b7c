//! Reads the first bytes of a frame: Ethernet, tags, ARP, IPv4, IPv6 with its extension headers,
//! as far as the transport header. Nothing here trusts a length, and no input makes it panic.

use super::vlan::{TAG_AT, TAG_LEN, Tag, is_tag};

/// How many bytes of a frame are copied out of guest memory and judged. They hold two tags, an
/// IPv6 header, and a neighbour message with its options or the longest TCP header.
pub const HEAD: usize = 128;

/// Most tags that are read through. What hides behind more is [`Layer3::Unreadable`].
pub(super) const MAX_TAGS: usize = 3;

/// Length of an Ethernet header without tags, in bytes.
pub(super) const ETHERNET: usize = 14;

pub(super) const ICMPV6: u8 = 58;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// Whether a packet is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fragment {
    /// Not fragmented.
    Whole,
    /// The fragment that holds the transport header.
    First,
    /// A fragment without transport header.
    Later,
}

/// What is known of an IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHead {
    /// `true` for IPv6.
    pub v6: bool,
    /// Fragmented or not.
    pub fragment: Fragment,
    /// Transport protocol (the last next-header value for IPv6).
    pub protocol: u8,
    /// Where the transport header starts, in bytes from the start of the frame. `None` in later
    /// fragments, and when the extension headers do not end inside the head.
    pub transport_at: Option<u8>,
}

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer3 {
    /// ARP (Ethertype 0x0806).
    Arp,
    /// IPv4 or IPv6 with a readable header.
    Ip(IpHead),
    /// Some other protocol, or a length field (IEEE 802.3 LLC).
    Other,
    /// Cut off, malformed, or behind more tags than are read.
    Unreadable,
}

/// The parsed start of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Destination MAC, first byte highest.
    pub dst: u64,
    /// Source MAC, first byte highest.
    pub src: u64,
    /// Outermost tag.
    pub outer: Option<Tag>,
    /// Tag behind the outermost one.
    pub inner: Option<Tag>,
    /// How many tags were read, `0..=3`.
    pub tags: u8,
    /// Ethertype behind the tags.
    pub ethertype: u16,
    /// What follows it.
    pub layer3: Layer3,
}

/// The two addresses and the (outer) Ethertype, in two loads.
#[inline]
pub(super) fn ethernet(head: &[u8]) -> Option<(u64, u64, u16)> {
    let bytes: &[u8; ETHERNET] = head.first_chunk()?;
    let first = u64::from_be_bytes(*bytes.first_chunk::<8>()?);
    let last = u64::from_be_bytes(*bytes.last_chunk::<8>()?);
    Some((first >> 16, last >> 16, last as u16))
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

pub(super) fn u48_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: &[u8; 6] = bytes.get(at..)?.first_chunk()?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

pub(super) fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at..)?.first_chunk().map(|b| u128::from_be_bytes(*b))
}

impl Head {
    /// Reads the start of a frame; `None` if it is shorter than an Ethernet header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (dst, src, mut ethertype) = ethernet(bytes)?;
        let mut head = Self {
            dst,
            src,
            outer: None,
            inner: None,
            tags: 0,
            ethertype,
            layer3: Layer3::Unreadable,
        };
        while is_tag(ethertype) {
            let at = TAG_AT + head.tags as usize * TAG_LEN;
            let (Some(tci), Some(next)) = (u16_at(bytes, at + 2), u16_at(bytes, at + 4)) else {
                return Some(head);
            };
            match head.tags {
                0 => head.outer = Tag::new(ethertype, tci),
                1 => head.inner = Tag::new(ethertype, tci),
                _ => {}
            }
            if head.tags as usize == MAX_TAGS {
                return Some(head);
            }
            head.tags += 1;
            ethertype = next;
            head.ethertype = next;
        }
        head.layer3 = layer3(bytes, head.layer3_at(), ethertype);
        Some(head)
    }

    /// Where the layer-3 header starts, in bytes from the start of the frame.
    pub const fn layer3_at(&self) -> usize {
        ETHERNET + self.tags as usize * TAG_LEN
    }
}

#[inline]
fn layer3(bytes: &[u8], at: usize, ethertype: u16) -> Layer3 {
    match ethertype {
        0x0806 => Layer3::Arp,
        0x0800 => ipv4(bytes, at).map_or(Layer3::Unreadable, Layer3::Ip),
        0x86dd => ipv6(bytes, at).map_or(Layer3::Unreadable, Layer3::Ip),
        _ => Layer3::Other,
    }
}

#[inline]
fn within(bytes: &[u8], at: usize) -> Option<u8> {
    (at < bytes.len().min(HEAD)).then_some(at as u8)
}

#[inline]
fn ipv4(bytes: &[u8], at: usize) -> Option<IpHead> {
    let header: &[u8; 20] = bytes.get(at..)?.first_chunk()?;
    let length = (header[0] & 0xf) as usize * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return None;
    }
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let (offset, more) = (flags & 0x1fff, flags & 0x2000 != 0);
    let fragment = match (offset, more) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    let transport_at = if offset == 0 { within(bytes, at + length) } else { None };
    Some(IpHead { v6: false, fragment, protocol: header[9], transport_at })
}

fn ipv6(bytes: &[u8], at: usize) -> Option<IpHead> {
    let header: &[u8; 40] = bytes.get(at..)?.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let mut head =
        IpHead { v6: true, fragment: Fragment::Whole, protocol: header[6], transport_at: None };
    let mut next_at = at + 40;
    loop {
        let length = match head.protocol {
            // Hop-by-hop, routing, destination options, mobility, HIP, shim6 (RFC 6564).
            0 | 43 | 60 | 135 | 139 | 140 => {
                bytes.get(next_at + 1).map(|units| (*units as usize + 1) * 8)
            }
            // Authentication header (RFC 4302): its unit is four bytes.
            51 => bytes.get(next_at + 1).map(|units| (*units as usize + 2) * 4),
            44 => {
                let Some(field) = u16_at(bytes, next_at + 2) else { return Some(head) };
                // An atomic fragment (RFC 6946) is whole, yet no place for a neighbour message
                // (RFC 6980), so it counts as a first fragment.
                head.fragment = if field >> 3 == 0 { Fragment::First } else { Fragment::Later };
                if head.fragment == Fragment::Later {
                    head.protocol = *bytes.get(next_at)?;
                    return Some(head);
                }
                Some(8)
            }
            _ => {
                head.transport_at = within(bytes, next_at);
                return Some(head);
            }
        };
        let (Some(length), Some(&next)) = (length, bytes.get(next_at)) else {
            return Some(head);
        };
        head.protocol = next;
        next_at += length;
    }
}

/// A hash of a frame's addresses and, where the frame has them, ports: the same for both
/// directions of a flow. Fragments are hashed by address only, so that all of a packet's go the
/// same way.
///
/// It chooses a receive queue; it is not keyed and protects nothing.
pub fn flow_hash(bytes: &[u8]) -> u32 {
    let Some(head) = Head::parse(bytes) else { return 0 };
    let at = head.layer3_at();
    let Layer3::Ip(ip) = head.layer3 else {
        return mix(unordered(head.src, head.dst), head.ethertype.into());
    };
    let addresses = if ip.v6 {
        let fold = |address: u128| (address >> 64) as u64 ^ (address as u64).rotate_left(32);
        u128_at(bytes, at + 8).zip(u128_at(bytes, at + 24)).map(|(a, b)| (fold(a), fold(b)))
    } else {
        let pair = u32_at(bytes, at + 12).zip(u32_at(bytes, at + 16));
        pair.map(|(a, b)| (u64::from(a), u64::from(b)))
    };
    let addresses = addresses.map_or(0, |(a, b)| unordered(a, b));
    let ports = match (ip.fragment, ip.transport_at) {
        (Fragment::Whole, Some(at)) if matches!(ip.protocol, TCP | UDP | 132) => {
            let pair = u16_at(bytes, at as usize).zip(u16_at(bytes, at as usize + 2));
            pair.map_or(0, |(a, b)| unordered(a.into(), b.into()))
        }
        _ => 0,
    };
    mix(addresses, ports ^ u64::from(ip.protocol))
}

/// Both numbers as one, whichever came first. Not their exclusive or: that is 0 for every flow
/// between equal ports.
fn unordered(a: u64, b: u64) -> u64 {
    a.min(b).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29) ^ a.max(b)
}

fn mix(a: u64, b: u64) -> u32 {
    let mixed = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::{IP4_A, IP4_B, IP6_A, MAC_A, MAC_B, Packet, arp, icmpv6, tagged};
    use lanekeeper_model::MacAddr;
    use proptest::prelude::*;

    fn ip(frame: &[u8]) -> IpHead {
        match Head::parse(frame).expect("long enough").layer3 {
            Layer3::Ip(ip) => ip,
            other => panic!("{other:?} is not IP"),
        }
    }

    #[test]
    fn packets_are_read_as_another_implementation_wrote_them() {
        for (v6, tcp, extension, tag) in [
            (false, false, false, None),
            (false, true, false, Some(7)),
            (true, false, true, None),
            (true, true, true, Some(4095)),
            (true, true, false, None),
        ] {
            let packet = Packet { v6, tcp, tag, extension, ..Packet::udp4(&[1, 2, 3]) };
            let bytes = packet.bytes();
            let head = Head::parse(&bytes).expect("long enough");
            assert_eq!(head.dst, MacAddr(MAC_B).to_u64());
            assert_eq!(head.src, MacAddr(MAC_A).to_u64());
            assert_eq!(head.outer.map(Tag::vid), tag);
            let ip = ip(&bytes);
            assert_eq!((ip.v6, ip.fragment), (v6, Fragment::Whole));
            assert_eq!(ip.protocol, if tcp { TCP } else { UDP });
            assert_eq!(ip.transport_at.map(usize::from), Some(packet.transport_at()));
        }
    }

    #[test]
    fn tags_are_read_from_outside_in_and_not_without_end() {
        let mut frame = Packet::udp4(&[]).bytes();
        for tags in 1..=MAX_TAGS {
            frame = tagged(&frame, 0x8100, tags as u16);
            let head = Head::parse(&frame).expect("long enough");
            assert_eq!(head.outer.map(Tag::vid), Some(tags as u16));
            assert_eq!(head.inner.map(Tag::vid), (tags > 1).then(|| tags as u16 - 1));
            assert_eq!(head.layer3_at(), 14 + 4 * tags);
            assert!(matches!(head.layer3, Layer3::Ip(_)));
        }
        let head = Head::parse(&tagged(&frame, 0x8100, 9)).expect("long enough");
        assert_eq!(head.layer3, Layer3::Unreadable);
    }

    #[test]
    fn arp_and_others_are_told_apart() {
        let layer3 = |frame: &[u8]| Head::parse(frame).expect("long enough").layer3;
        assert_eq!(layer3(&arp(1, MAC_A, IP4_A, IP4_B)), Layer3::Arp);
        let mut llc = Packet::udp4(&[]).bytes();
        llc[12..14].copy_from_slice(&[0, 40]);
        assert_eq!(layer3(&llc), Layer3::Other);
    }

    #[test]
    fn later_fragments_have_no_transport_header() {
        let mut frame = Packet::udp4(&[0; 64]).bytes();
        frame[20] = 0x20;
        assert_eq!((ip(&frame).fragment, ip(&frame).transport_at), (Fragment::First, Some(34)));
        frame[21] = 5;
        assert_eq!((ip(&frame).fragment, ip(&frame).transport_at), (Fragment::Later, None));
        let first = icmpv6(IP6_A, 44, &[17, 0, 0, 1, 0, 0, 0, 1], &[0; 32]);
        assert_eq!((ip(&first).fragment, ip(&first).protocol), (Fragment::First, UDP));
        let later = icmpv6(IP6_A, 44, &[17, 0, 0, 9, 0, 0, 0, 1], &[0; 32]);
        assert_eq!((ip(&later).fragment, ip(&later).transport_at), (Fragment::Later, None));
    }

    #[test]
    fn an_authentication_header_is_measured_in_words_of_four() {
        let mut extension = vec![UDP, 4];
        extension.resize(24, 0);
        let frame = icmpv6(IP6_A, 51, &extension, &[0; 8]);
        assert_eq!((ip(&frame).protocol, ip(&frame).transport_at), (UDP, Some(78)));
    }

    proptest! {
        #[test]
        fn both_directions_of_a_flow_hash_alike(
            macs: ([u8; 6], [u8; 6]), ips: ([u8; 16], [u8; 16]), ports: ([u8; 2], [u8; 2]),
            v6: bool, tcp: bool,
        ) {
            let write = |(dst, src): ([u8; 6], [u8; 6]), ips: ([u8; 16], [u8; 16]), ports: ([u8; 2], [u8; 2])| {
                let packet = Packet { v6, tcp, ..Packet::udp4(&[0; 8]) };
                let (mut bytes, at) = (packet.bytes(), packet.transport_at());
                bytes[..6].copy_from_slice(&dst);
                bytes[6..12].copy_from_slice(&src);
                let length = if v6 { 16 } else { 4 };
                bytes[at - 2 * length..at - length].copy_from_slice(&ips.0[..length]);
                bytes[at - length..at].copy_from_slice(&ips.1[..length]);
                bytes[at..at + 2].copy_from_slice(&ports.0);
                bytes[at + 2..at + 4].copy_from_slice(&ports.1);
                bytes
            };
            let there = write(macs, ips, ports);
            let back = write((macs.1, macs.0), (ips.1, ips.0), (ports.1, ports.0));
            prop_assert_eq!(flow_hash(&there), flow_hash(&back));
        }

        #[test]
        fn all_fragments_of_a_packet_hash_alike(ports: [u8; 4], rest: [u8; 4]) {
            let mut first = Packet::udp4(&[0; 64]).bytes();
            first[20] = 0x20;
            first[34..38].copy_from_slice(&ports);
            let mut later = first.clone();
            later[21] = 9;
            later[34..38].copy_from_slice(&rest);
            prop_assert_eq!(flow_hash(&first), flow_hash(&later));
        }

        #[test]
        fn reading_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            flow_hash(&bytes);
            if let Some(Layer3::Ip(IpHead { transport_at: Some(at), .. })) =
                Head::parse(&bytes).map(|head| head.layer3)
            {
                prop_assert!((at as usize) < bytes.len());
            }
        }
    }

    #[test]
    fn flows_spread_over_queues() {
        let mut queues = [0; 8];
        for port in 0..1_000_u16 {
            let mut frame = Packet::udp4(&[]).bytes();
            frame[34..36].copy_from_slice(&(0xc000 + port).to_be_bytes());
            queues[flow_hash(&frame) as usize % 8] += 1;
        }
        assert!(queues.iter().all(|flows| (80..180).contains(flows)), "{queues:?}");
    }
}
