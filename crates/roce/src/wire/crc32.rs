//! CRC-32 of Ethernet (IEEE 802.3, 3.2.9) for packets: short headers, then perhaps a long payload.
//!
//! `crc32fast` is quick on long data, but takes bytes one by one where less than 64 are left, and a
//! packet's headers are that short. So what is short is done here, eight bytes a step by eight tables.

use crc32fast::Hasher;

const POLYNOMIAL: u32 = 0xedb8_8320;

/// Bytes from which on `crc32fast` uses carry-less multiplication.
const LONG: usize = 128;
/// It takes so many at once, and single bytes at the end.
const STEP: usize = 16;

/// What a byte does to the CRC, and what it does with 1 to 7 zero bytes behind it.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (POLYNOMIAL * (value & 1));
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut behind = 1;
    while behind < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[behind - 1][byte];
            tables[behind][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    tables
};

/// A CRC on its way, before its last step, which inverts it.
#[derive(Clone, Copy)]
pub(super) struct Crc32(u32);

impl Crc32 {
    /// Go on where a CRC ended.
    pub(super) const fn after(crc: u32) -> Self {
        Self(!crc)
    }

    /// The CRC of all bytes so far.
    pub(super) const fn finish(self) -> u32 {
        !self.0
    }

    /// Take in more bytes.
    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        if bytes.len() < LONG {
            self.0 = short(self.0, bytes);
            return;
        }
        let (first, rest) = bytes.split_at(bytes.len() % STEP);
        let mut hasher = Hasher::new_with_initial(!short(self.0, first));
        hasher.update(rest);
        self.0 = !hasher.finalize();
    }
}

/// Eight bytes a step, then four, then one by one.
#[inline]
fn short(mut crc: u32, mut bytes: &[u8]) -> u32 {
    let t = &TABLES;
    while let Some((eight, rest)) = bytes.split_first_chunk::<8>() {
        let [a, b, c, d] = word(crc, [eight[0], eight[1], eight[2], eight[3]]);
        let [e, f, g, h] = [eight[4], eight[5], eight[6], eight[7]].map(usize::from);
        crc = t[7][a] ^ t[6][b] ^ t[5][c] ^ t[4][d] ^ t[3][e] ^ t[2][f] ^ t[1][g] ^ t[0][h];
        bytes = rest;
    }
    if let Some((four, rest)) = bytes.split_first_chunk::<4>() {
        let [a, b, c, d] = word(crc, *four);
        crc = t[3][a] ^ t[2][b] ^ t[1][c] ^ t[0][d];
        bytes = rest;
    }
    for byte in bytes {
        crc = (crc >> 8) ^ t[0][usize::from(crc as u8 ^ byte)];
    }
    crc
}

/// Four bytes with the CRC added, as places in a table.
#[inline]
fn word(crc: u32, bytes: [u8; 4]) -> [usize; 4] {
    (u32::from_le_bytes(bytes) ^ crc).to_le_bytes().map(usize::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn crc(pieces: &[&[u8]]) -> u32 {
        let mut crc = Crc32::after(0);
        pieces.iter().for_each(|piece| crc.update(piece));
        crc.finish()
    }

    #[test]
    fn the_check_value_is_that_of_every_table_of_crcs() {
        assert_eq!(crc(&[b"123456789"]), 0xcbf4_3926);
        assert_eq!(crc(&[b"1234", b"", b"56789"]), 0xcbf4_3926);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_have_the_crc_that_crc32fast_gives(
            bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in any::<[usize; 2]>()
        ) {
            let [first, second] = cuts.map(|cut| cut % (bytes.len() + 1));
            let (a, b) = (first.min(second), first.max(second));
            let pieces = [&bytes[..a], &bytes[a..b], &bytes[b..]];
            prop_assert_eq!(crc(&pieces), crc32fast::hash(&bytes));
        }
    }
}
