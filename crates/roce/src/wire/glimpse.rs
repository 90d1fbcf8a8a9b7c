//! What the first bytes of an Ethernet frame tell of a RoCE packet: for who watches traffic and has not
//! the whole of it. Nothing is checked that a receiver checks (the ICRC, lengths), and no input makes it
//! panic.

use super::{Aeth, Bth, Ecn, Flow, Gid, ROCE_PORT, Syndrome, Version};

/// Ethertypes: IEEE 802.1Q tag, IPv4, IPv6, RoCE v1 (annex A16).
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const V1: u16 = 0x8915;
/// IP protocol of UDP.
const UDP: u8 = 17;
/// Bytes of an IPv6 header, and of a GRH.
const SIX: usize = 40;
const UDP_LEN: usize = 8;

/// The start of a RoCE packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glimpse {
    /// Between whom, and how.
    pub flow: Flow,
    /// Base transport header.
    pub bth: Bth,
    /// What it acknowledges, of a response that says so.
    pub syndrome: Option<Syndrome>,
}

impl Glimpse {
    /// Of the first bytes of a frame, from its destination address on; `None` if it is no RoCE, or too
    /// few of them are there. 128 bytes are enough.
    #[inline]
    pub fn of_ethernet(head: &[u8]) -> Option<Self> {
        let mut at = 12;
        let mut ethertype = u16_at(head, at)?;
        for _ in 0..2 {
            if TAGS.contains(&ethertype) {
                at += 4;
                ethertype = u16_at(head, at)?;
            }
        }
        let network = head.get(at + 2..)?;
        match ethertype {
            IPV4 => Self::of_ipv4(network),
            IPV6 => Self::of_six(network, Version::V2),
            V1 => Self::of_six(network, Version::V1),
            _ => None,
        }
    }

    fn of_ipv4(ip: &[u8]) -> Option<Self> {
        let fixed: &[u8; 20] = ip.first_chunk()?;
        let length = usize::from(fixed[0] & 0x0f) * 4;
        let later = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x1fff != 0;
        if fixed[0] >> 4 != 4 || length < 20 || fixed[9] != UDP || later {
            return None;
        }
        let address = |at: usize| {
            let bytes: [u8; 4] = fixed.get(at..at + 4)?.try_into().ok()?;
            Some(Gid::from(std::net::IpAddr::from(bytes)))
        };
        let (source, dest) = (address(12)?, address(16)?);
        let (source_port, packet) = udp(ip.get(length..)?)?;
        let flow = Flow {
            version: Version::V2,
            source,
            dest,
            dscp: fixed[1] >> 2,
            ecn: Ecn::from_bits(fixed[1]),
            hop_limit: fixed[8],
            source_port,
        };
        Self::of_packet(flow, packet)
    }

    fn of_six(header: &[u8], version: Version) -> Option<Self> {
        let fixed: &[u8; SIX] = header.first_chunk()?;
        if fixed[0] >> 4 != 6 {
            return None;
        }
        let gid = |at: usize| Some(Gid(fixed.get(at..at + 16)?.try_into().ok()?));
        let behind = header.get(SIX..)?;
        let (source_port, packet) = match version {
            Version::V2 if fixed[6] != UDP => return None,
            Version::V2 => udp(behind)?,
            Version::V1 => (0, behind),
        };
        let class = fixed[0] << 4 | fixed[1] >> 4;
        let flow = Flow {
            version,
            source: gid(8)?,
            dest: gid(24)?,
            dscp: class >> 2,
            ecn: Ecn::from_bits(class),
            hop_limit: fixed[7],
            source_port,
        };
        Self::of_packet(flow, packet)
    }

    fn of_packet(flow: Flow, packet: &[u8]) -> Option<Self> {
        let bth = Bth::parse(packet).ok()?;
        let acknowledges = bth.opcode.extensions() & super::opcode::carries::AETH != 0;
        let syndrome = acknowledges.then(|| Aeth::parse(packet, Bth::LEN).ok()).flatten();
        Some(Self { flow, bth, syndrome: syndrome.map(|aeth| aeth.syndrome) })
    }
}

/// Source port, and what a datagram to RoCE's port carries.
fn udp(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (source, dest) = (u16_at(datagram, 0)?, u16_at(datagram, 2)?);
    Some((source, datagram.get(UDP_LEN..)?)).filter(|_| dest == ROCE_PORT)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
