//! What the first bytes of an Ethernet frame tell of a RoCE packet: for who watches traffic and has not
//! the whole of it. Nothing is checked that a receiver checks (the ICRC, lengths), and no input makes it
//! panic.

use super::cover::{TYPE_IPV4, TYPE_IPV6, TYPE_ROCE_V1, TYPE_VLAN};
use super::network::{IPV4, IPV6, NEXT_UDP, UDP, flow};
use super::{Aeth, Bth, Flow, Gid, ROCE_PORT, Syndrome, Version};

/// Ethertype of a service tag (IEEE 802.1Q, 802.1ad).
const TYPE_SERVICE_TAG: u16 = 0x88a8;

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
            if [TYPE_VLAN, TYPE_SERVICE_TAG].contains(&ethertype) {
                at += 4;
                ethertype = u16_at(head, at)?;
            }
        }
        let network = head.get(at + 2..)?;
        match ethertype {
            TYPE_IPV4 => Self::of_ipv4(network),
            TYPE_IPV6 => Self::of_six(network, Version::V2),
            TYPE_ROCE_V1 => Self::of_six(network, Version::V1),
            _ => None,
        }
    }

    fn of_ipv4(ip: &[u8]) -> Option<Self> {
        let fixed: &[u8; IPV4] = ip.first_chunk()?;
        let length = usize::from(fixed[0] & 0x0f) * 4;
        let later = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x1fff != 0;
        if fixed[0] >> 4 != 4 || length < IPV4 || fixed[9] != NEXT_UDP || later {
            return None;
        }
        let address = |at: usize| {
            let bytes: [u8; 4] = fixed.get(at..at + 4)?.try_into().ok()?;
            Some(Gid::from(std::net::IpAddr::from(bytes)))
        };
        let (source, dest) = (address(12)?, address(16)?);
        let (source_port, packet) = udp(ip.get(length..)?)?;
        let flow = flow(Version::V2, source, dest, fixed[1], fixed[8]);
        Self::of_packet(Flow { source_port, ..flow }, packet)
    }

    fn of_six(header: &[u8], version: Version) -> Option<Self> {
        let fixed: &[u8; IPV6] = header.first_chunk()?;
        if fixed[0] >> 4 != 6 {
            return None;
        }
        let gid = |at: usize| Some(Gid(fixed.get(at..at + 16)?.try_into().ok()?));
        let behind = header.get(IPV6..)?;
        let (source_port, packet) = match version {
            Version::V2 if fixed[6] != NEXT_UDP => return None,
            Version::V2 => udp(behind)?,
            Version::V1 => (0, behind),
        };
        let class = fixed[0] << 4 | fixed[1] >> 4;
        let flow = flow(version, gid(8)?, gid(24)?, class, fixed[7]);
        Self::of_packet(Flow { source_port, ..flow }, packet)
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
    Some((source, datagram.get(UDP..)?)).filter(|_| dest == ROCE_PORT)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
