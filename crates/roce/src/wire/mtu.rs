//! Path MTU: the largest payload of one packet.

use std::fmt;

/// Bytes around the payload that an Ethernet MTU must have room for: the IPv6 header or GRH (40), UDP
/// (8), BTH (12), the largest extension header that comes with payload (16 of RETH and 4 of immediate
/// data), and the ICRC (4). Linux's `rdma_rxe` counts 80 (`RXE_MAX_HDR_LENGTH`).
const OVERHEAD: u32 = 40 + 8 + 12 + 20 + 4;

/// Payload of a first or middle packet, and the most of any (IBTA vol. 1, 9.7.2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PathMtu {
    /// 256 bytes.
    M256,
    /// 512 bytes.
    M512,
    /// 1024 bytes, what fits an Ethernet MTU of 1500.
    #[default]
    M1024,
    /// 2048 bytes.
    M2048,
    /// 4096 bytes, for jumbo frames.
    M4096,
}

impl PathMtu {
    /// All, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The path MTU of so many bytes, if there is one.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::M256),
            512 => Some(Self::M512),
            1024 => Some(Self::M1024),
            2048 => Some(Self::M2048),
            4096 => Some(Self::M4096),
            _ => None,
        }
    }

    /// The largest that fits the MTU of an Ethernet interface; none if not even 256 bytes do.
    pub fn for_ethernet_mtu(mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|path| path.bytes() + OVERHEAD <= mtu)
    }

    /// Packets of a message of so many bytes; an empty message takes one (IBTA vol. 1, 9.7.2).
    pub const fn packets(self, length: u32) -> u32 {
        if length == 0 { 1 } else { length.div_ceil(self.bytes()) }
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_mtu_gives_the_path_mtu_that_linux_gives() {
        assert_eq!(PathMtu::for_ethernet_mtu(1500), Some(PathMtu::M1024));
        assert_eq!(PathMtu::for_ethernet_mtu(4200), Some(PathMtu::M4096));
        assert_eq!(PathMtu::for_ethernet_mtu(9000), Some(PathMtu::M4096));
        assert_eq!(PathMtu::for_ethernet_mtu(4100), Some(PathMtu::M2048));
        assert_eq!(PathMtu::for_ethernet_mtu(300), None);
    }

    #[test]
    fn an_empty_message_takes_one_packet() {
        assert_eq!(PathMtu::M256.packets(0), 1);
        assert_eq!(PathMtu::M256.packets(256), 1);
        assert_eq!(PathMtu::M256.packets(257), 2);
        assert_eq!(PathMtu::M4096.packets(u32::MAX), 1 << 20);
    }

    #[test]
    fn bytes_name_their_path_mtu() {
        for path in PathMtu::ALL {
            assert_eq!(PathMtu::from_bytes(path.bytes()), Some(path));
        }
        assert_eq!(PathMtu::from_bytes(1500), None);
    }
}
