//! Extension headers, which follow the BTH as its opcode says (IBTA vol. 1, 9.3).

use super::bytes::{get, put};
use super::{Malformed, Psn, Qpn};

/// RDMA extended transport header: where remote memory is (IBTA vol. 1, 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

/// Acknowledge extended transport header (IBTA vol. 1, 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// Acknowledged, or why not.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, 24 bits.
    pub msn: u32,
}

/// What an acknowledgement says (IBTA vol. 1, 9.3.5, table 43).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Received.
    Ack {
        /// Credit code, five bits; see [`super::credits`].
        credits: u8,
    },
    /// Receiver not ready: no receive request was there.
    RnrNak {
        /// Timer code, five bits; see [`super::rnr_delay`].
        timer: u8,
    },
    /// Not received.
    Nak(NakCode),
}

/// Why a packet was not accepted (IBTA vol. 1, 9.3.5, table 45).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet before this one is missing.
    PsnSequence = 0,
    /// The request is against the rules.
    InvalidRequest = 1,
    /// Key, bounds or rights of the remote memory do not allow it.
    RemoteAccess = 2,
    /// The responder could not do it.
    RemoteOperational = 3,
    /// Reliable datagram's; of no use in RoCE.
    InvalidRdRequest = 4,
}

/// Request for an atomic operation (IBTA vol. 1, 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address, a multiple of eight.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// The new value of a compare-and-swap, or what a fetch-and-add adds.
    pub swap_or_add: u64,
    /// What a compare-and-swap compares with.
    pub compare: u64,
}

/// Datagram extended transport header (IBTA vol. 1, 9.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Deth {
    /// The receiving queue pair's key.
    pub qkey: u32,
    /// The sending queue pair.
    pub source: Qpn,
}

impl Syndrome {
    /// From its byte.
    pub(super) const fn from_byte(byte: u8) -> Result<Self, Malformed> {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Ok(Self::Ack { credits: value }),
            1 => Ok(Self::RnrNak { timer: value }),
            3 => match value {
                0 => Ok(Self::Nak(NakCode::PsnSequence)),
                1 => Ok(Self::Nak(NakCode::InvalidRequest)),
                2 => Ok(Self::Nak(NakCode::RemoteAccess)),
                3 => Ok(Self::Nak(NakCode::RemoteOperational)),
                4 => Ok(Self::Nak(NakCode::InvalidRdRequest)),
                _ => Err(Malformed::Syndrome(byte)),
            },
            _ => Err(Malformed::Syndrome(byte)),
        }
    }

    /// As its byte.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | (timer & 0x1f),
            Self::Nak(code) => 0x60 | code as u8,
        }
    }
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    pub(super) fn parse(bytes: &[u8], at: usize) -> Result<Self, Malformed> {
        const WHAT: &str = "the RETH";
        Ok(Self {
            address: u64::from_be_bytes(get(bytes, at, WHAT)?),
            rkey: u32::from_be_bytes(get(bytes, at + 8, WHAT)?),
            length: u32::from_be_bytes(get(bytes, at + 12, WHAT)?),
        })
    }

    pub(super) fn write(&self, out: &mut [u8], at: usize) {
        put(out, at, &self.address.to_be_bytes());
        put(out, at + 8, &self.rkey.to_be_bytes());
        put(out, at + 12, &self.length.to_be_bytes());
    }
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    pub(super) fn parse(bytes: &[u8], at: usize) -> Result<Self, Malformed> {
        let [syndrome, a, b, c] = get(bytes, at, "the AETH")?;
        Ok(Self { syndrome: Syndrome::from_byte(syndrome)?, msn: u32::from_be_bytes([0, a, b, c]) })
    }

    pub(super) fn write(self, out: &mut [u8], at: usize) {
        let [_, a, b, c] = Psn::truncate(self.msn).get().to_be_bytes();
        put(out, at, &[self.syndrome.to_byte(), a, b, c]);
    }
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    pub(super) fn parse(bytes: &[u8], at: usize) -> Result<Self, Malformed> {
        const WHAT: &str = "the AtomicETH";
        Ok(Self {
            address: u64::from_be_bytes(get(bytes, at, WHAT)?),
            rkey: u32::from_be_bytes(get(bytes, at + 8, WHAT)?),
            swap_or_add: u64::from_be_bytes(get(bytes, at + 12, WHAT)?),
            compare: u64::from_be_bytes(get(bytes, at + 20, WHAT)?),
        })
    }

    pub(super) fn write(&self, out: &mut [u8], at: usize) {
        put(out, at, &self.address.to_be_bytes());
        put(out, at + 8, &self.rkey.to_be_bytes());
        put(out, at + 12, &self.swap_or_add.to_be_bytes());
        put(out, at + 20, &self.compare.to_be_bytes());
    }
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    pub(super) fn parse(bytes: &[u8], at: usize) -> Result<Self, Malformed> {
        const WHAT: &str = "the DETH";
        let source = u32::from_be_bytes(get(bytes, at + 4, WHAT)?);
        Ok(Self { qkey: u32::from_be_bytes(get(bytes, at, WHAT)?), source: Qpn::truncate(source) })
    }

    pub(super) fn write(self, out: &mut [u8], at: usize) {
        put(out, at, &self.qkey.to_be_bytes());
        put(out, at + 4, &self.source.get().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_is_known_or_refused_and_known_ones_survive() {
        let mut known = 0;
        for byte in 0..=255 {
            match Syndrome::from_byte(byte) {
                Ok(syndrome) => {
                    assert_eq!(syndrome.to_byte(), byte);
                    known += 1;
                }
                Err(refused) => assert_eq!(refused, Malformed::Syndrome(byte)),
            }
        }
        assert_eq!(known, 32 + 32 + 5);
    }

    #[test]
    fn a_sequence_nak_is_the_byte_that_everybody_sends() {
        assert_eq!(Syndrome::Nak(NakCode::PsnSequence).to_byte(), 0x60);
        assert_eq!(Syndrome::Nak(NakCode::RemoteAccess).to_byte(), 0x62);
    }
}
