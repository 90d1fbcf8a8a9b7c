//! Anti-spoof for a VF with bound addresses: may this frame speak for the address it names?
//!
//! While addresses are bound only ARP, IPv4 and IPv6 pass, and only when all that must be checked
//! lies within the head. Any other Ethertype could carry an IP packet in a wrapping that is not
//! read here (MPLS, PPPoE, LLC/SNAP, RoCE v1's GRH), and what cannot be checked is refused.
//!
//! IPv4: the source is bound; or the frame is a DHCP request from 0.0.0.0 (RFC 2131, 4.1).
//!
//! ARP: Ethernet/IPv4, sender MAC the VF's, sender IP bound; or a probe (RFC 5227, 2.1.1) for a
//! bound address. A probe for another address is refused: it would make its owner give way.
//!
//! IPv6: the source is bound or the link-local address made from the VF's MAC (RFC 4291, appendix
//! A). That one is allowed as soon as any IPv6 address is bound, because no IPv6 host can find a
//! router or a neighbour without a link-local address (RFC 4291, 2.8) and it cannot collide with
//! another VF's, whose MAC differs. A guest that draws its link-local address at random (RFC 7217)
//! must have it bound. From `::` pass duplicate address detection for an own address, router
//! solicitations, and the multicast reports that precede both (RFC 3810, 5.2.13).
//!
//! Neighbour discovery (RFC 4861): advertisements and redirects only for own targets, link-layer
//! options only with the VF's MAC, router advertisements from trusted VFs only (RA-Guard,
//! RFC 6105), and none of it in fragments (RFC 6980).

use std::net::IpAddr;

use lanekeeper_model::DropReason;

use super::head::{
    Fragment, Head, ICMPV6, IpHead, Layer3, TCP, UDP, u16_at, u32_at, u48_at, u128_at,
};

/// The addresses a VF may speak for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BoundAddresses {
    mac: u64,
    trusted: bool,
    v4: Box<[u32]>,
    v6: Box<[u128]>,
    link_local: u128,
}

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

impl BoundAddresses {
    /// `None` when nothing is bound: then any address may be used.
    pub(super) fn new(addresses: &[IpAddr], mac: u64, trusted: bool) -> Option<Self> {
        if addresses.is_empty() {
            return None;
        }
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                IpAddr::V4(address) => v4.push(address.to_bits()),
                IpAddr::V6(address) => v6.push(address.to_bits()),
            }
        }
        v4.sort_unstable();
        v6.sort_unstable();
        Some(Self { mac, trusted, v4: v4.into(), v6: v6.into(), link_local: link_local(mac) })
    }

    /// Whether this is an untagged TCP or UDP packet from the first bound address of its family,
    /// which nearly every packet is. Anything else is for [`BoundAddresses::judge`] to say.
    #[inline]
    pub(super) fn plainly_owns(&self, bytes: &[u8], ethertype: u16) -> bool {
        match ethertype {
            0x0800 => bytes.get(14..34).is_some_and(|ip| {
                (0x45..=0x4f).contains(&ip[0]) && u32_at(ip, 12) == self.v4.first().copied()
            }),
            0x86dd => bytes.get(14..54).is_some_and(|ip| {
                ip[0] >> 4 == 6
                    && matches!(ip[6], TCP | UDP)
                    && u128_at(ip, 8) == self.v6.first().copied()
            }),
            _ => false,
        }
    }

    pub(super) fn judge(
        &self,
        bytes: &[u8],
        frame_len: usize,
        head: &Head,
    ) -> Result<(), DropReason> {
        let at = head.layer3_at();
        let allowed = match head.layer3 {
            Layer3::Arp => self.arp(bytes, at),
            Layer3::Ip(ip) if ip.v6 => self.ipv6(bytes, frame_len, at, ip),
            Layer3::Ip(ip) => self.ipv4(bytes, at, ip),
            Layer3::Other | Layer3::Unreadable => None,
        };
        if allowed == Some(true) { Ok(()) } else { Err(DropReason::SpoofedAddress) }
    }

    fn owns_v4(&self, address: u32) -> bool {
        self.v4.binary_search(&address).is_ok()
    }

    fn owns_v6(&self, address: u128) -> bool {
        self.v6.binary_search(&address).is_ok()
            || (!self.v6.is_empty() && address == self.link_local)
    }

    fn arp(&self, bytes: &[u8], at: usize) -> Option<bool> {
        const REQUEST: u16 = 1;
        // Hardware type Ethernet, protocol type IPv4, lengths 6 and 4 (RFC 826).
        if bytes.get(at..at + 6)? != [0, 1, 8, 0, 6, 4] || u48_at(bytes, at + 8)? != self.mac {
            return Some(false);
        }
        let (sender, target) = (u32_at(bytes, at + 14)?, u32_at(bytes, at + 24)?);
        let probe = sender == 0 && u16_at(bytes, at + 6)? == REQUEST && self.owns_v4(target);
        Some(probe || self.owns_v4(sender))
    }

    fn ipv4(&self, bytes: &[u8], at: usize, ip: IpHead) -> Option<bool> {
        let source = u32_at(bytes, at + 12)?;
        if source != 0 || self.v4.is_empty() {
            return Some(self.owns_v4(source));
        }
        let (Some(udp), Fragment::Whole, UDP) = (ip.transport_at, ip.fragment, ip.protocol) else {
            return Some(false);
        };
        let broadcast = u32_at(bytes, at + 16)? == u32::MAX;
        // Source port 68, destination port 67.
        Some(broadcast && u32_at(bytes, udp as usize)? == 0x0044_0043)
    }

    fn ipv6(&self, bytes: &[u8], frame_len: usize, at: usize, ip: IpHead) -> Option<bool> {
        let source = u128_at(bytes, at + 8)?;
        let unspecified = source == 0 && !self.v6.is_empty();
        if !unspecified && !self.owns_v6(source) {
            return Some(false);
        }
        let Some(transport_at) = ip.transport_at else {
            // The rest of a packet whose first fragment was judged; or a chain of extension
            // headers that does not end within the head.
            return Some(!unspecified && ip.fragment == Fragment::Later);
        };
        if ip.protocol != ICMPV6 {
            return Some(!unspecified);
        }
        let message = transport_at as usize;
        let kind = *bytes.get(message)?;
        let neighbour = (ROUTER_SOLICITATION..=REDIRECT).contains(&kind);
        if neighbour && ip.fragment != Fragment::Whole {
            return Some(false);
        }
        if !neighbour {
            // 131, 132, 143: multicast listener report, done, report version 2.
            return Some(!unspecified || matches!(kind, 131 | 132 | 143));
        }
        let target = || u128_at(bytes, message + 8);
        let (allowed, options_at) = match kind {
            ROUTER_SOLICITATION => (true, message + 8),
            ROUTER_ADVERTISEMENT => return Some(self.trusted && !unspecified),
            NEIGHBOUR_SOLICITATION => (!unspecified || self.owns_v6(target()?), message + 24),
            NEIGHBOUR_ADVERTISEMENT => (!unspecified && self.owns_v6(target()?), message + 24),
            _ => (!unspecified && self.owns_v6(target()?), message + 40),
        };
        let packet_end = at + 40 + u16_at(bytes, at + 4)? as usize;
        let options = bytes.get(options_at..packet_end.min(frame_len))?;
        Some(allowed && self.link_layer_options(options))
    }

    /// Whether every source or target link-layer option (RFC 4861, 4.6.1) names the VF's MAC.
    fn link_layer_options(&self, mut options: &[u8]) -> bool {
        while let [kind, units, ..] = *options {
            let Some((option, rest)) = options.split_at_checked(units as usize * 8) else {
                return false;
            };
            if units == 0 || (matches!(kind, 1 | 2) && u48_at(option, 2) != Some(self.mac)) {
                return false;
            }
            options = rest;
        }
        options.is_empty()
    }
}

/// `fe80::/64` with the modified EUI-64 of a MAC (RFC 4291, appendix A).
fn link_local(mac: u64) -> u128 {
    let (vendor, device) = (mac >> 24 ^ 0x02_0000, mac & 0xff_ffff);
    0xfe80 << 112 | u128::from(vendor << 40 | 0xff_fe00_0000 | device)
}
