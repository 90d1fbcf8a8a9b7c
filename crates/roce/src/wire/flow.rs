//! Between whom and how a packet goes: what Ethernet's type, the IP header or GRH, and UDP say.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The UDP port of RoCE v2 (annex A17.3.1.2).
pub const ROCE_PORT: u16 = 4791;

/// Which of the two wire formats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Version {
    /// Ethertype 0x8915 and a GRH; inside one L2 domain only (annex A16).
    V1,
    /// UDP on IPv4 or IPv6 (annex A17).
    V2,
}

/// A global identifier: of a RoCE port, always an IPv6 address, or an IPv4 address mapped into one
/// (annex A17.3.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address, of a GID that maps one.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether it maps an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.0.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
    }

    /// As the IP address that RoCE v2 sends it as.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Explicit congestion notification, two bits of the IP header (RFC 3168, 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ecn {
    /// The sender does not take part.
    #[default]
    NotCapable,
    /// Takes part.
    Ect1,
    /// Takes part; the one that RoCE senders use.
    Ect0,
    /// Congestion was met on the way.
    Ce,
}

impl Ecn {
    /// From the low two bits of a traffic class.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotCapable,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// As the low two bits of a traffic class.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// Between whom and how one packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Wire format.
    pub version: Version,
    /// Sender.
    pub source: Gid,
    /// Receiver.
    pub dest: Gid,
    /// Differentiated services code point, six bits (v1: of the GRH's traffic class).
    pub dscp: u8,
    /// Congestion bits.
    pub ecn: Ecn,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// UDP source port (v2), what routers spread flows by; 0 in v1.
    pub source_port: u16,
}

impl Flow {
    /// A flow with what is usual: DSCP 0, ECN-capable, 64 hops, the lowest port that RoCE senders
    /// take.
    pub const fn new(version: Version, source: Gid, dest: Gid) -> Self {
        let source_port = match version {
            Version::V1 => 0,
            Version::V2 => 0xc000,
        };
        Self { version, source, dest, dscp: 0, ecn: Ecn::Ect0, hop_limit: 64, source_port }
    }

    /// The way back: source and destination exchanged.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { source: self.dest, dest: self.source, ..self }
    }

    /// The byte that IPv4 calls TOS, IPv6 and GRH traffic class.
    pub const fn traffic_class(&self) -> u8 {
        (self.dscp << 2) | self.ecn.bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_mapped_and_found_again() {
        let gid = Gid::from(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert!(gid.is_ipv4());
        assert_eq!(gid.ip(), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn an_ipv6_address_is_no_ipv4_address() {
        let address: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from(address).ipv4(), None);
        assert!(!Gid::from(address).is_ipv4());
        assert_eq!(Gid::from(address).ip(), address);
    }

    #[test]
    fn congestion_bits_survive_both_ways() {
        for bits in 0..4 {
            assert_eq!(Ecn::from_bits(bits).bits(), bits);
        }
        assert_eq!(Ecn::Ect0.bits(), 2, "RFC 3168, figure 1");
    }
}
