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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::{
        IP4_A, IP4_B, IP6_A, IP6_B, MAC_A, MAC_B, Packet, arp, icmpv6, neighbour, tagged,
    };
    use crate::switch::head::HEAD;
    use crate::switch::{NetHeader, OffloadSet, PortPolicy, judge_ingress};
    use lanekeeper_model::{MacAddr, VfSettings, VlanId, VlanProtocol, VlanTag};
    use proptest::prelude::*;

    const UNSPECIFIED: [u8; 16] = [0; 16];
    const LINK_LOCAL_A: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0xa];

    fn bound(addresses: &[IpAddr]) -> VfSettings {
        let settings = VfSettings::for_mac(MacAddr(MAC_A)).expect("a station's address");
        VfSettings { addresses: addresses.to_vec(), ..settings }
    }

    fn both() -> VfSettings {
        bound(&[IP4_A.into(), IP6_A.into()])
    }

    fn passes(settings: &VfSettings, frame: &[u8]) -> bool {
        let policy = PortPolicy::new(settings, None);
        let head = &frame[..frame.len().min(HEAD)];
        let header = NetHeader::default();
        match judge_ingress(&policy, head, frame.len(), &header, OffloadSet::NONE) {
            Ok(_) => true,
            Err(reason) => {
                assert_eq!(reason, DropReason::SpoofedAddress);
                false
            }
        }
    }

    #[test]
    fn ip_packets_pass_from_bound_addresses_only() {
        for tcp in [false, true] {
            for v6 in [false, true] {
                let own = Packet { v6, tcp, ..Packet::udp4(&[0; 40]) };
                assert!(passes(&both(), &own.bytes()), "{own:?}");
                let other = Packet { src4: IP4_B, src6: IP6_B, ..own };
                assert!(!passes(&both(), &other.bytes()), "{other:?}");
            }
        }
    }

    #[test]
    fn every_one_of_many_bound_addresses_may_speak() {
        let addresses = [IP4_B.into(), IP4_A.into(), IP6_B.into(), IP6_A.into()];
        for (src4, src6) in [(IP4_A, IP6_A), (IP4_B, IP6_B)] {
            for v6 in [false, true] {
                let packet = Packet { src4, src6, v6, ..Packet::udp4(&[]) };
                assert!(passes(&bound(&addresses), &packet.bytes()));
            }
        }
    }

    #[test]
    fn a_family_without_a_bound_address_is_not_spoken() {
        let v4 = bound(&[IP4_A.into()]);
        assert!(!passes(&v4, &Packet { v6: true, ..Packet::udp4(&[]) }.bytes()));
        assert!(!passes(&v4, &icmpv6(LINK_LOCAL_A, 58, &[], &neighbour(133, None, None))));
        let v6 = bound(&[IP6_A.into()]);
        assert!(!passes(&v6, &Packet::udp4(&[]).bytes()));
        assert!(!passes(&v6, &arp(1, MAC_A, IP4_A, IP4_B)));
        assert!(!passes(&v6, &dhcp([0; 4], [255; 4], 68, 67)));
    }

    fn dhcp(source: [u8; 4], destination: [u8; 4], from: u8, to: u8) -> Vec<u8> {
        let mut frame = Packet { src4: source, ..Packet::udp4(&[0; 240]) }.bytes();
        frame[30..34].copy_from_slice(&destination);
        frame[34..38].copy_from_slice(&[0, from, 0, to]);
        frame
    }

    #[test]
    fn a_dhcp_request_needs_no_address_and_nothing_else_does_without() {
        assert!(passes(&both(), &dhcp([0; 4], [255; 4], 68, 67)));
        assert!(!passes(&both(), &dhcp([0; 4], [255; 4], 67, 68)));
        assert!(!passes(&both(), &dhcp([0; 4], IP4_B, 68, 67)));
        let mut fragment = dhcp([0; 4], [255; 4], 68, 67);
        fragment[20] = 0x20;
        assert!(!passes(&both(), &fragment));
    }

    #[test]
    fn arp_speaks_for_bound_addresses_with_the_own_mac() {
        for operation in [1, 2] {
            assert!(passes(&both(), &arp(operation, MAC_A, IP4_A, IP4_B)));
            assert!(!passes(&both(), &arp(operation, MAC_A, IP4_B, IP4_A)), "somebody else's IP");
            assert!(!passes(&both(), &arp(operation, MAC_B, IP4_A, IP4_B)), "somebody else's MAC");
        }
        assert!(passes(&both(), &arp(1, MAC_A, [0; 4], IP4_A)), "a probe for the own address");
        assert!(!passes(&both(), &arp(1, MAC_A, [0; 4], IP4_B)), "a probe for another's");
        assert!(!passes(&both(), &arp(2, MAC_A, [0; 4], IP4_A)), "no answer from nowhere");
    }

    #[test]
    fn arp_of_another_shape_or_cut_off_is_refused() {
        let frame = arp(1, MAC_A, IP4_A, IP4_B);
        for at in 14..20 {
            let mut other = frame.clone();
            other[at] ^= 1;
            assert!(!passes(&both(), &other), "byte {at}");
        }
        for length in 14..frame.len() {
            assert!(!passes(&both(), &frame[..length]), "{length} bytes");
        }
    }

    #[test]
    fn the_link_local_address_of_the_own_mac_is_always_bound() {
        assert_eq!(link_local(MacAddr(MAC_A).to_u64()).to_be_bytes(), LINK_LOCAL_A);
        let echo = icmpv6(LINK_LOCAL_A, 58, &[], &[128, 0, 0, 0, 0, 0, 0, 0]);
        assert!(passes(&both(), &echo));
        let mut other = LINK_LOCAL_A;
        other[15] ^= 1;
        assert!(!passes(&both(), &icmpv6(other, 58, &[], &[128, 0, 0, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn advertisements_and_redirects_are_for_own_targets() {
        for kind in [136, 137] {
            let message = |target: [u8; 16], mac| {
                let mut message = neighbour(kind, Some(target), None);
                if kind == 137 {
                    message.extend(IP6_B);
                }
                message.extend([2, 1]);
                message.extend(mac);
                icmpv6(IP6_A, 58, &[], &message)
            };
            assert!(passes(&both(), &message(IP6_A, MAC_A)));
            assert!(passes(&both(), &message(LINK_LOCAL_A, MAC_A)));
            assert!(!passes(&both(), &message(IP6_B, MAC_A)), "{kind}: another's address");
            assert!(!passes(&both(), &message(IP6_A, MAC_B)), "{kind}: another's MAC");
        }
    }

    #[test]
    fn a_solicitation_may_ask_for_anyone_but_only_with_the_own_mac() {
        let ask = |mac| icmpv6(IP6_A, 58, &[], &neighbour(135, Some(IP6_B), Some((1, mac))));
        assert!(passes(&both(), &ask(MAC_A)));
        assert!(!passes(&both(), &ask(MAC_B)));
        let router = |mac| icmpv6(LINK_LOCAL_A, 58, &[], &neighbour(133, None, Some((1, mac))));
        assert!(passes(&both(), &router(MAC_A)));
        assert!(!passes(&both(), &router(MAC_B)));
    }

    #[test]
    fn from_nowhere_come_only_probes_for_own_addresses_and_what_precedes_them() {
        let from_nowhere = |message: &[u8]| icmpv6(UNSPECIFIED, 58, &[], message);
        assert!(passes(&both(), &from_nowhere(&neighbour(135, Some(IP6_A), None))));
        assert!(passes(&both(), &from_nowhere(&neighbour(135, Some(LINK_LOCAL_A), None))));
        assert!(!passes(&both(), &from_nowhere(&neighbour(135, Some(IP6_B), None))));
        assert!(passes(&both(), &from_nowhere(&neighbour(133, None, None))));
        assert!(!passes(&both(), &from_nowhere(&neighbour(136, Some(IP6_A), None))));
        assert!(!passes(&both(), &from_nowhere(&[128, 0, 0, 0, 0, 0, 0, 0])));
        // A multicast report, behind the hop-by-hop header that it must have.
        let alert = [58, 0, 5, 2, 0, 0, 1, 0];
        let report = icmpv6(UNSPECIFIED, 0, &alert, &[143, 0, 0, 0, 0, 0, 0, 0]);
        assert!(passes(&both(), &report));
        let udp = Packet { v6: true, src6: UNSPECIFIED, ..Packet::udp4(&[]) };
        assert!(!passes(&both(), &udp.bytes()));
    }

    #[test]
    fn only_a_trusted_vf_is_a_router() {
        let mut advertisement = neighbour(134, None, None);
        advertisement.extend([0; 8]);
        let frame = icmpv6(LINK_LOCAL_A, 58, &[], &advertisement);
        assert!(!passes(&both(), &frame));
        assert!(passes(&VfSettings { trust: true, ..both() }, &frame));
    }

    #[test]
    fn a_neighbour_message_cannot_hide() {
        let spoofed = neighbour(136, Some(IP6_B), None);
        let options = [58, 0, 1, 4, 0, 0, 0, 0];
        assert!(!passes(&both(), &icmpv6(IP6_A, 60, &options, &spoofed)), "behind options");
        let atomic = [58, 0, 0, 0, 0, 0, 0, 1];
        assert!(!passes(&both(), &icmpv6(IP6_A, 44, &atomic, &spoofed)), "in a fragment");
        let honest = neighbour(136, Some(IP6_A), None);
        assert!(!passes(&both(), &icmpv6(IP6_A, 44, &atomic, &honest)), "in any fragment");
        let mut long = vec![58, 10];
        long.resize(88, 0);
        assert!(!passes(&both(), &icmpv6(IP6_A, 60, &long, &spoofed)), "beyond the head");
        let mut padded = neighbour(136, Some(IP6_A), None);
        padded.extend([14, 8]);
        padded.resize(padded.len() + 62, 0);
        padded.extend([2, 1]);
        padded.extend(MAC_B);
        assert!(!passes(&both(), &icmpv6(IP6_A, 58, &[], &padded)), "an option beyond the head");
        let mut endless = neighbour(136, Some(IP6_A), None);
        endless.extend([2, 0, 0, 0, 0, 0, 0, 0]);
        assert!(!passes(&both(), &icmpv6(IP6_A, 58, &[], &endless)), "an option without length");
    }

    #[test]
    fn later_fragments_of_an_own_packet_pass() {
        let later = [17, 0, 0, 8, 0, 0, 0, 1];
        assert!(passes(&both(), &icmpv6(IP6_A, 44, &later, &[0; 32])));
        assert!(!passes(&both(), &icmpv6(IP6_B, 44, &later, &[0; 32])));
        let mut fragment = Packet::udp4(&[0; 64]).bytes();
        fragment[21] = 9;
        assert!(passes(&both(), &fragment));
    }

    #[test]
    fn a_spoofed_packet_cannot_hide_behind_tags() {
        let mut customer = both();
        customer.vlan = VlanTag {
            id: VlanId::new(5).expect("valid"),
            protocol: VlanProtocol::Dot1Ad,
            ..VlanTag::default()
        };
        let trunk = VfSettings { trust: true, ..both() };
        for settings in [customer, trunk] {
            for tags in 1..=5 {
                let hide =
                    |frame: Vec<u8>| (0..tags).fold(frame, |f, vid| tagged(&f, 0x8100, vid + 1));
                let own = hide(Packet::udp4(&[0; 40]).bytes());
                let other = hide(Packet { src4: IP4_B, ..Packet::udp4(&[0; 40]) }.bytes());
                assert!(!passes(&settings, &other), "behind {tags}");
                assert_eq!(passes(&settings, &own), tags <= 3, "behind {tags}");
            }
        }
    }

    #[test]
    fn what_cannot_be_checked_is_refused_while_addresses_are_bound() {
        for ethertype in [0x8847_u16, 0x8864, 0x8915, 0x0026, 0x1234] {
            let mut frame = Packet::udp4(&[0; 40]).bytes();
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            assert!(!passes(&both(), &frame), "{ethertype:04x}");
            assert!(passes(&bound(&[]), &frame), "{ethertype:04x} with nothing bound");
        }
        for v6 in [false, true] {
            let packet = Packet { v6, ..Packet::udp4(&[]) };
            for length in 14..packet.transport_at() {
                assert!(!passes(&both(), &packet.bytes()[..length]), "{length} bytes");
            }
            let mut other_version = packet.bytes();
            other_version[14] ^= 0x20;
            assert!(!passes(&both(), &other_version));
        }
    }

    proptest! {
        #[test]
        fn the_short_cut_never_allows_what_the_full_check_refuses(
            bytes in prop::collection::vec(any::<u8>(), 60..HEAD),
            v6: bool,
            spoil in prop::collection::vec((12..60_usize, any::<u8>()), 0..3),
        ) {
            let addresses = BoundAddresses::new(&both().addresses, MacAddr(MAC_A).to_u64(), false);
            let addresses = addresses.expect("some are bound");
            let mut frame = bytes;
            let packet = Packet { v6, ..Packet::udp4(&[]) }.bytes();
            frame[..42].copy_from_slice(&packet[..42]);
            for (at, value) in spoil {
                frame[at] = value;
            }
            let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
            if addresses.plainly_owns(&frame, ethertype) {
                let head = Head::parse(&frame).expect("long enough");
                prop_assert_eq!(addresses.judge(&frame, frame.len(), &head), Ok(()));
            }
        }
    }
}
