//! What lies under the transport packet: IPv4 or IPv6 with UDP, or a GRH.

use super::bytes::{get, put};
use super::icrc;
use super::{Bth, Ecn, Flow, Gid, Malformed, ROCE_PORT, Version};

pub(super) const IPV4: usize = 20;
pub(super) const IPV6: usize = 40;
pub(super) const UDP: usize = 8;

pub(super) const NEXT_UDP: u8 = 17;
/// InfiniBand transport, of a GRH (IBTA vol. 1, 8.3.3).
const NEXT_IBA: u8 = 0x1b;
/// IPv4's "don't fragment", first of the word with the fragment's offset.
const DONT_FRAGMENT: u16 = 0x4000;
/// "More fragments" and the offset.
const FRAGMENT: u16 = 0x3fff;

/// Network headers and what they carry, of one packet.
#[derive(Clone, Copy)]
pub(super) struct Network<'h, 'a> {
    pub(super) flow: Flow,
    /// IP and UDP, or GRH.
    pub(super) headers: &'h [u8],
    /// BTH to ICRC.
    pub(super) packet: &'a [u8],
}

/// One whose headers and packet are of one buffer.
pub(super) type Whole<'a> = Network<'a, 'a>;

fn be16(bytes: &[u8], at: usize, what: &'static str) -> Result<u16, Malformed> {
    get(bytes, at, what).map(u16::from_be_bytes)
}

fn cut<'a>(
    bytes: &'a [u8],
    from: usize,
    to: usize,
    what: &'static str,
) -> Result<&'a [u8], Malformed> {
    let short = Malformed::Truncated { what, need: to, have: bytes.len() };
    bytes.get(from..to).ok_or(short)
}

/// Read IPv4 or IPv6, with UDP; what lies behind the packet is left alone.
#[inline]
pub(super) fn parse_ip(bytes: &[u8]) -> Result<Whole<'_>, Malformed> {
    let [first] = get(bytes, 0, "the IP header")?;
    match first >> 4 {
        4 => parse_ipv4(bytes),
        6 => parse_ipv6(bytes),
        version => Err(Malformed::IpVersion(version)),
    }
}

#[inline]
pub(super) fn parse_ipv4(bytes: &[u8]) -> Result<Whole<'_>, Malformed> {
    let header: [u8; IPV4] = get(bytes, 0, "the IPv4 header")?;
    if header[0] >> 4 != 4 {
        return Err(Malformed::IpVersion(header[0] >> 4));
    }
    let length = (header[0] & 0x0f) * 4;
    if usize::from(length) != IPV4 {
        return Err(Malformed::IpOptions(length));
    }
    let fragment = be16(&header, 6, "the IPv4 header")?;
    if fragment & FRAGMENT != 0 {
        return Err(Malformed::Fragment(fragment));
    }
    if header[9] != NEXT_UDP {
        return Err(Malformed::NextHeader(header[9]));
    }
    let (found, computed) = (be16(&header, 10, "the IPv4 header")?, ipv4_checksum(&header));
    if found != computed {
        return Err(Malformed::IpChecksum { found, computed });
    }
    let mapped = |at: usize| {
        let mut gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        gid[12..].copy_from_slice(&header[at..at + 4]);
        Gid(gid)
    };
    let total = usize::from(be16(&header, 2, "the IPv4 header")?);
    let packet = cut(bytes, 0, total, "the IPv4 packet")?;
    parse_udp(packet, IPV4, flow(Version::V2, mapped(12), mapped(16), header[1], header[8]))
}

#[inline]
pub(super) fn parse_ipv6(bytes: &[u8]) -> Result<Whole<'_>, Malformed> {
    let (flow, next, packet) = parse_ipv6_header(bytes, Version::V2)?;
    if next != NEXT_UDP {
        return Err(Malformed::NextHeader(next));
    }
    if flow.source.is_ipv4() || flow.dest.is_ipv4() {
        return Err(Malformed::MappedAddress);
    }
    parse_udp(packet, IPV6, flow)
}

/// Read a GRH, which is an IPv6 header in all but its name (IBTA vol. 1, 8.3).
#[inline]
pub(super) fn parse_grh(bytes: &[u8]) -> Result<Whole<'_>, Malformed> {
    let (flow, next, packet) = parse_ipv6_header(bytes, Version::V1)?;
    if next != NEXT_IBA {
        return Err(Malformed::NextHeader(next));
    }
    let (headers, packet) = packet.split_at(IPV6);
    Ok(Network { flow, headers, packet })
}

/// Flow, next header, and the packet from its IPv6 header to its end.
fn parse_ipv6_header(bytes: &[u8], version: Version) -> Result<(Flow, u8, &[u8]), Malformed> {
    let header: [u8; IPV6] = get(bytes, 0, "the IPv6 header or GRH")?;
    if header[0] >> 4 != 6 {
        return Err(Malformed::IpVersion(header[0] >> 4));
    }
    let class = (header[0] << 4) | (header[1] >> 4);
    let gid = |at: usize| get(&header, at, "the IPv6 header or GRH").map(Gid);
    let flow = flow(version, gid(8)?, gid(24)?, class, header[7]);
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = cut(bytes, 0, IPV6 + length, "the packet")?;
    Ok((flow, header[6], packet))
}

/// Between whom and how, by an IP header or GRH.
pub(super) fn flow(version: Version, source: Gid, dest: Gid, class: u8, hop_limit: u8) -> Flow {
    let (dscp, ecn) = (class >> 2, Ecn::from_bits(class));
    Flow { version, source, dest, dscp, ecn, hop_limit, source_port: 0 }
}

/// Read the UDP header behind an IP header of `at` bytes.
fn parse_udp(packet: &[u8], at: usize, mut flow: Flow) -> Result<Whole<'_>, Malformed> {
    const WHAT: &str = "the UDP header";
    let port = be16(packet, at + 2, WHAT)?;
    if port != ROCE_PORT {
        return Err(Malformed::Port(port));
    }
    let udp = usize::from(be16(packet, at + 4, WHAT)?);
    if udp != packet.len() - at {
        return Err(Malformed::Length { udp, ip: packet.len() - at });
    }
    flow.source_port = be16(packet, at, WHAT)?;
    let inner = cut(packet, at + UDP, packet.len(), WHAT)?;
    Ok(Network { flow, headers: &packet[..at + UDP], packet: inner })
}

/// Largest packet, BTH to ICRC, that the network headers of a flow can say the length of.
pub(super) fn max_packet(flow: &Flow) -> usize {
    usize::from(u16::MAX)
        - match flow.version {
            Version::V1 => 0,
            Version::V2 if flow.dest.is_ipv4() => IPV4 + UDP,
            Version::V2 => UDP,
        }
}

/// Network headers that are to be written: of a flow, to a UDP port, around `packet` bytes from BTH to
/// ICRC. They are exact to the bit for what Linux sends from a socket that is not connected and does
/// not fragment, which matters as the ICRC covers them: IPv4 identification 0 (RFC 6864 has no use for
/// another), no flow label; the UDP checksum is 0, as the ICRC does what it would (RFC 6936).
pub(super) fn build(flow: &Flow, port: u16, packet: usize) -> ([u8; icrc::MAX_NETWORK], usize) {
    let mut out = [0; icrc::MAX_NETWORK];
    debug_assert!(packet <= max_packet(flow) && packet >= Bth::LEN + icrc::LEN);
    match flow.version {
        Version::V1 => {
            build_ipv6(flow, NEXT_IBA, packet, &mut out);
            (out, IPV6)
        }
        Version::V2 if flow.dest.is_ipv4() => {
            build_ipv4(flow, packet + UDP, &mut out);
            build_udp(flow, port, packet, &mut out[IPV4..]);
            (out, IPV4 + UDP)
        }
        Version::V2 => {
            build_ipv6(flow, NEXT_UDP, packet + UDP, &mut out);
            build_udp(flow, port, packet, &mut out[IPV6..]);
            (out, IPV6 + UDP)
        }
    }
}

fn build_ipv4(flow: &Flow, length: usize, out: &mut [u8]) {
    let mut header = [0; IPV4];
    header[0] = 0x45;
    header[1] = flow.traffic_class();
    put(&mut header, 2, &((IPV4 + length) as u16).to_be_bytes());
    put(&mut header, 6, &DONT_FRAGMENT.to_be_bytes());
    header[8] = flow.hop_limit;
    header[9] = NEXT_UDP;
    put(&mut header, 12, &flow.source.0[12..]);
    put(&mut header, 16, &flow.dest.0[12..]);
    let checksum = ipv4_checksum(&header);
    put(&mut header, 10, &checksum.to_be_bytes());
    put(out, 0, &header);
}

fn build_ipv6(flow: &Flow, next: u8, length: usize, out: &mut [u8]) {
    let class = flow.traffic_class();
    let [l0, l1] = (length as u16).to_be_bytes();
    put(out, 0, &[0x60 | (class >> 4), class << 4, 0, 0, l0, l1, next, flow.hop_limit]);
    put(out, 8, &flow.source.0);
    put(out, 24, &flow.dest.0);
}

fn build_udp(flow: &Flow, port: u16, packet: usize, out: &mut [u8]) {
    put(out, 0, &flow.source_port.to_be_bytes());
    put(out, 2, &port.to_be_bytes());
    put(out, 4, &((UDP + packet) as u16).to_be_bytes());
    put(out, 6, &[0, 0]);
}

/// The checksum of an IPv4 header, whatever it has in the checksum's place (RFC 791, 3.1).
pub(super) fn ipv4_checksum(header: &[u8; IPV4]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum::<u32>() - u32::from(u16::from_be_bytes([header[10], header[11]]));
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_header_is_the_one_that_is_widely_quoted() {
        // A header whose checksum is widely quoted: UDP, 192.168.0.1 to 192.168.0.199.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(ipv4_checksum(&header), 0xb861);
    }
}
