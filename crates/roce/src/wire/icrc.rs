//! The invariant CRC: over everything that nobody on the way may change (IBTA vol. 1, 7.8.1; annex
//! A17.3.3).
//!
//! CRC-32 of Ethernet over eight bytes of ones (an LRH that RoCE does not have), the IP header or GRH,
//! the UDP header, and the packet up to its pad; what routers and switches may change counts as ones:
//! traffic class, flow label, time to live, both checksums, and the BTH's congestion bits. It is sent
//! lowest byte first.

use super::Bth;
use super::crc32::Crc32;

/// Bytes of an ICRC.
pub(super) const LEN: usize = 4;

/// CRC-32 of the eight bytes of ones that stand for the LRH.
const AFTER_LRH: u32 = 0x2144_df1c;

/// Most bytes of IP header or GRH, and UDP header.
pub(super) const MAX_NETWORK: usize = 40 + 8;

/// An ICRC on its way over a packet.
#[derive(Clone, Copy)]
pub(super) struct Icrc(Crc32);

impl Icrc {
    /// Begin with the network headers (IP and UDP, or GRH, which a version nibble tells apart) and the
    /// BTH, both as they are on the wire.
    #[inline]
    pub(super) fn start(network: &[u8], bth: [u8; Bth::LEN]) -> Self {
        let mut block = [0xff; MAX_NETWORK + Bth::LEN];
        let end = network.len().min(MAX_NETWORK);
        block[..end].copy_from_slice(&network[..end]);
        if block[0] >> 4 == 4 {
            // TOS, TTL, header checksum.
            block[1] = 0xff;
            block[8] = 0xff;
            block[10..12].fill(0xff);
            block[26..28].fill(0xff);
        } else {
            // Traffic class and flow label, hop limit.
            block[0] |= 0x0f;
            block[1..4].fill(0xff);
            block[7] = 0xff;
            block[46..48].fill(0xff);
        }
        block[end..end + Bth::LEN].copy_from_slice(&bth);
        block[end + 4] = 0xff;
        let mut crc = Crc32::after(AFTER_LRH);
        crc.update(&block[..end + Bth::LEN]);
        Self(crc)
    }

    /// Go on with what follows the BTH.
    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The ICRC of all of it.
    #[inline]
    pub(super) fn finish(self) -> u32 {
        self.0.finish()
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
