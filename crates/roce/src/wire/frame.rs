//! Reading frames: who sent what to whom, with the ICRC verified.
//!
//! A packet's end is where its IP header or GRH says, not where the frame ends: short frames are padded
//! on their way.

use lanekeeper_model::MacAddr;

use super::bytes::get;
use super::cover::{Link, TYPE_IPV4, TYPE_IPV6, TYPE_ROCE_V1, TYPE_VLAN};
use super::network::{self, Network};
use super::{Flow, Headers, Malformed, Packet, Version, icrc, unknown_id};

/// A frame that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Between whom.
    pub flow: Flow,
    /// What.
    pub packet: Packet<'a>,
    /// What Ethernet says, if it was read.
    pub link: Option<Link>,
}

impl<'a> Frame<'a> {
    /// Read an IPv4 or IPv6 packet of RoCE v2. Bytes behind it are ignored.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub fn parse_ip(bytes: &'a [u8]) -> Result<Self, Malformed> {
        verified(&network::parse_ip(bytes)?, None)
    }

    /// Read what follows Ethernet in RoCE v1: GRH and packet. Bytes behind it are ignored.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub fn parse_grh(bytes: &'a [u8]) -> Result<Self, Malformed> {
        verified(&network::parse_grh(bytes)?, None)
    }

    /// Read an Ethernet frame, tagged or not, of RoCE v1 or v2.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub fn parse_ethernet(bytes: &'a [u8]) -> Result<Self, Malformed> {
        const WHAT: &str = "the Ethernet header";
        let (dest, source) = (MacAddr(get(bytes, 0, WHAT)?), MacAddr(get(bytes, 6, WHAT)?));
        let outer = u16::from_be_bytes(get(bytes, 12, WHAT)?);
        let (vlan, ethertype, at) = if outer == TYPE_VLAN {
            let tag = u16::from_be_bytes(get(bytes, 14, "the VLAN tag")?);
            (Some(tag), u16::from_be_bytes(get(bytes, 16, "the VLAN tag")?), 18)
        } else {
            (None, outer, 14)
        };
        let link = Link { source, dest, vlan };
        let inner = bytes.get(at..).unwrap_or_default();
        let network = match ethertype {
            TYPE_ROCE_V1 => network::parse_grh(inner)?,
            TYPE_IPV4 => network::parse_ipv4(inner)?,
            TYPE_IPV6 => network::parse_ipv6(inner)?,
            other => return Err(Malformed::Ethertype(other)),
        };
        verified(&network, Some(link))
    }

    /// Read what a UDP socket bound to `port` received: BTH to ICRC. The flow is what the socket said
    /// of sender, receiver and traffic class. The IP header is gone, so an IPv4 identification other
    /// than 0 is found by way of the ICRC itself, which then is checked with 16 of its bits.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub fn parse_datagram(flow: &Flow, port: u16, bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() > network::max_packet(flow) {
            let (udp, ip) = (bytes.len(), network::max_packet(flow));
            return Err(Malformed::Length { udp, ip });
        }
        let need = super::Bth::LEN + icrc::LEN;
        if bytes.len() < need {
            return Err(Malformed::Truncated { what: "the packet", need, have: bytes.len() });
        }
        let (headers, length) = network::build(flow, port, bytes.len());
        let network = Network { flow: *flow, headers: &headers[..length], packet: bytes };
        match verified(&network, None) {
            Err(Malformed::Icrc { found, computed })
                if flow.version == Version::V2
                    && flow.dest.is_ipv4()
                    && unknown_id::solve(found ^ computed, covered(&network) - 6).is_some() =>
            {
                unverified(&network, None)
            }
            result => result,
        }
    }
}

/// Bytes that the ICRC covers, without the eight of the LRH.
fn covered(network: &Network<'_, '_>) -> usize {
    network.headers.len() + network.packet.len() - icrc::LEN
}

#[inline]
fn verified<'a>(network: &Network<'_, 'a>, link: Option<Link>) -> Result<Frame<'a>, Malformed> {
    let have = network.packet.len();
    let short = Malformed::Truncated { what: "the BTH and ICRC", need: 16, have };
    let (packet, found) = network.packet.split_last_chunk().ok_or(short)?;
    let found = u32::from_le_bytes(*found);
    let computed = icrc::of_packet(network.headers, packet).ok_or(short)?;
    if found != computed {
        return Err(Malformed::Icrc { found, computed });
    }
    let packet = Headers::parse(packet)?;
    Ok(Frame { flow: network.flow, packet, link })
}

fn unverified<'a>(network: &Network<'_, 'a>, link: Option<Link>) -> Result<Frame<'a>, Malformed> {
    let have = network.packet.len();
    let short = Malformed::Truncated { what: "the BTH and ICRC", need: 16, have };
    let (packet, _) = network.packet.split_last_chunk::<{ icrc::LEN }>().ok_or(short)?;
    Ok(Frame { flow: network.flow, packet: Headers::parse(packet)?, link })
}
