//! The ICRC of a packet whose IPv4 identification is not known.
//!
//! A UDP socket gives a datagram without its IP header, but the ICRC covers that header's
//! identification, and Linux's `rdma_rxe` numbers its packets. A CRC is linear: from the difference
//! between what was found and what an identification of 0 would give, the identification follows, if
//! there is one at all. So such a packet is still checked, with 16 of the ICRC's 32 bits: of damaged
//! packets one in 65,536 passes, behind the checks of Ethernet and UDP. Those who want all bits use a
//! packet socket, IPv6, or send identification 0 as this crate does.

/// CRC-32's polynomial, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0.
const ONE: u32 = 1 << 31;

/// x^-(8 * 2^k), modulo the polynomial.
const BACK: [u32; 17] = {
    let mut one_byte = ONE;
    let mut bit = 0;
    while bit < 8 {
        // The way back of one step of a CRC: its highest bit says if the polynomial was added.
        let added = one_byte >> 31;
        one_byte = ((one_byte ^ (added * POLYNOMIAL)) << 1) | added;
        bit += 1;
    }
    let mut table = [one_byte; 17];
    let mut k = 1;
    while k < table.len() {
        table[k] = multiply(table[k - 1], table[k - 1]);
        k += 1;
    }
    table
};

/// The product of two polynomials, modulo CRC-32's.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b * ((a >> bit) & 1);
        b = (b >> 1) ^ (POLYNOMIAL * (b & 1));
    }
    product
}

/// The identification that explains the difference between two ICRCs, one of them for identification
/// 0, with `after` bytes covered behind the identification.
pub(super) fn solve(difference: u32, after: usize) -> Option<u16> {
    let steps = after + 2;
    let mut value = difference;
    for (k, back) in BACK.iter().enumerate() {
        if steps >> k & 1 == 1 {
            value = multiply(value, *back);
        }
    }
    // The identification's first byte is the lowest of what a CRC begins with.
    u16::try_from(value).ok().map(u16::swap_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a packet of `after` bytes behind the identification.
    fn crc(id: u16, after: usize) -> u32 {
        let mut bytes = vec![0x45, 0, 1, 2];
        bytes.extend(id.to_be_bytes());
        bytes.extend((0..after).map(|i| (i * 7) as u8));
        crc32fast::hash(&bytes)
    }

    #[test]
    fn every_identification_is_found_behind_any_length() {
        for after in [0, 1, 2, 38, 1063, 4200, 65_000] {
            for id in (0..=u16::MAX).step_by(997) {
                assert_eq!(solve(crc(id, after) ^ crc(0, after), after), Some(id), "{after}");
            }
        }
    }

    #[test]
    fn a_damaged_byte_is_explained_by_no_identification() {
        for at in 0..1063 {
            let mut bytes = vec![0u8; 1063];
            let whole = crc32fast::hash(&bytes);
            bytes[at] ^= 0x10;
            if at != 4 && at != 5 {
                assert_eq!(solve(whole ^ crc32fast::hash(&bytes), 1063 - 6), None, "byte {at}");
            }
        }
    }
}
