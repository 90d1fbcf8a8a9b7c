//! The invariant CRC: over everything that nobody on the way may change (IBTA vol. 1, 7.8.1; annex
//! A17.3.3).
//!
//! CRC-32 of Ethernet over eight bytes of ones (an LRH that RoCE does not have), the IP header or GRH,
//! the UDP header, and the packet up to its pad; what routers and switches may change counts as ones:
//! traffic class, flow label, time to live, both checksums, and the BTH's congestion bits. It is sent
//! lowest byte first.

use crc32fast::Hasher;

use super::Bth;
use super::network::{IPV4, IPV6, UDP};

/// Bytes of an ICRC.
pub(super) const LEN: usize = 4;

/// CRC-32 of the eight bytes of ones that stand for the LRH.
const AFTER_LRH: u32 = 0x2144_df1c;

/// Most bytes of IP header or GRH, and UDP header.
pub(super) const MAX_NETWORK: usize = 40 + 8;

/// Bits that may change on the way: TOS, TTL, header checksum; UDP checksum.
const IPV4_CHANGES: [u8; IPV4 + UDP] =
    changes(&[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)], IPV4);
/// Traffic class and flow label, hop limit; UDP checksum.
const IPV6_CHANGES: [u8; IPV6 + UDP] = changes(CLASS_LABEL_HOPS, IPV6);
/// The same, without UDP.
const GRH_CHANGES: [u8; IPV6] = changes(CLASS_LABEL_HOPS, IPV6);
const CLASS_LABEL_HOPS: &[(usize, u8)] = &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];

/// A mask of headers from its bytes, and from where UDP is, if they have it.
const fn changes<const N: usize>(bytes: &[(usize, u8)], udp: usize) -> [u8; N] {
    let mut mask = [0; N];
    let mut i = 0;
    while i < bytes.len() {
        mask[bytes[i].0] = bytes[i].1;
        i += 1;
    }
    if N > udp {
        mask[udp + 6] = 0xff;
        mask[udp + 7] = 0xff;
    }
    mask
}

/// Bytes from which on `crc32fast` uses carry-less multiplication, several times the speed of its way
/// for less. Headers are shorter, so they wait for the payload's first bytes.
const BLOCK: usize = 128;

/// An ICRC on its way over a packet.
pub(super) struct Icrc {
    crc: Hasher,
    /// What comes first, as long as it is no whole block.
    first: [u8; BLOCK],
    /// Bytes of it; a whole block has been taken in.
    filled: usize,
}

impl Icrc {
    /// Begin with the network headers and the BTH, both as they are on the wire.
    #[inline]
    pub(super) fn start(network: &[u8], bth: [u8; Bth::LEN]) -> Self {
        let crc = Hasher::new_with_initial(AFTER_LRH);
        let mut icrc = Self { crc, first: [0; BLOCK], filled: 0 };
        // By length, so that each is copied and masked as one piece.
        if let Ok(ipv4) = <&[u8; IPV4 + UDP]>::try_from(network) {
            icrc.put_headers(ipv4, &IPV4_CHANGES, bth);
        } else if let Ok(ipv6) = <&[u8; IPV6 + UDP]>::try_from(network) {
            icrc.put_headers(ipv6, &IPV6_CHANGES, bth);
        } else if let Some(grh) = network.first_chunk::<IPV6>() {
            icrc.put_headers(grh, &GRH_CHANGES, bth);
        }
        icrc
    }

    #[inline]
    fn put_headers<const N: usize>(
        &mut self,
        network: &[u8; N],
        changes: &[u8; N],
        bth: [u8; Bth::LEN],
    ) {
        for (to, (byte, mask)) in self.first.iter_mut().zip(network.iter().zip(changes)) {
            *to = byte | mask;
        }
        self.first[N..N + Bth::LEN].copy_from_slice(&bth);
        self.first[N + 4] = 0xff;
        self.filled = N + Bth::LEN;
    }

    /// Go on with what follows the BTH.
    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        let room = &mut self.first[self.filled..];
        if room.is_empty() {
            self.crc.update(bytes);
        } else if bytes.len() < room.len() {
            room[..bytes.len()].copy_from_slice(bytes);
            self.filled += bytes.len();
        } else {
            let (now, rest) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            self.filled = BLOCK;
            self.crc.update(&self.first);
            self.crc.update(rest);
        }
    }

    /// The ICRC of all of it.
    #[inline]
    pub(super) fn finish(mut self) -> u32 {
        if self.filled < BLOCK {
            self.crc.update(&self.first[..self.filled]);
        }
        self.crc.finalize()
    }
}

/// The ICRC of a packet in one piece: network headers, and BTH to pad.
#[inline]
pub(super) fn of_packet(network: &[u8], packet: &[u8]) -> Option<u32> {
    let (bth, rest) = packet.split_first_chunk()?;
    let mut icrc = Icrc::start(network, *bth);
    icrc.update(rest);
    Some(icrc.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lrh_that_is_not_there_counts_as_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), AFTER_LRH);
        // What Linux begins with: the same, before its last step (rxe_icrc.c).
        assert_eq!(!AFTER_LRH, 0xdebb_20e3);
    }
}
