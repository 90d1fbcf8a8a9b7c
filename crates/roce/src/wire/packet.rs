//! The transport packet: BTH, extension headers, payload and pad (IBTA vol. 1, 9.2 to 9.4), the same
//! in RoCE v1 and v2.

use super::bytes::{get, put};
use super::opcode::carries;
use super::{Aeth, AtomicEth, Bth, Deth, Malformed, Opcode, Reth};
use crate::RoceError;

/// Most bytes of headers a packet has: those of an atomic request.
pub const MAX_HEADERS: usize = Bth::LEN + AtomicEth::LEN;

/// Headers of a packet: BTH and what its opcode says follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Remote memory, of a write's first packet and of a read request.
    pub reth: Option<Reth>,
    /// Acknowledgement, of responses.
    pub aeth: Option<Aeth>,
    /// Request for an atomic operation.
    pub atomic: Option<AtomicEth>,
    /// The value before an atomic operation.
    pub atomic_ack: Option<u64>,
    /// Key and sender, of a datagram.
    pub deth: Option<Deth>,
    /// Immediate data; big endian on the wire (IBTA vol. 1, 9.3.6).
    pub immediate: Option<u32>,
    /// The key that a send invalidates (IETH, IBTA vol. 1, 9.3.7).
    pub invalidate: Option<u32>,
}

/// A packet that was received: headers, and the payload where it lies, without pad and ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Headers.
    pub headers: Headers,
    /// Payload.
    pub payload: &'a [u8],
}

/// Pad bytes behind a payload of so many bytes, up to a multiple of four (IBTA vol. 1, 9.2.4).
pub const fn padding(length: usize) -> u8 {
    (length.wrapping_neg() & 3) as u8
}

impl Headers {
    /// Headers without extensions.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            reth: None,
            aeth: None,
            atomic: None,
            atomic_ack: None,
            deth: None,
            immediate: None,
            invalidate: None,
        }
    }

    /// Read a packet: BTH to pad, without the ICRC.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Packet<'_>, Malformed> {
        let bth = Bth::parse(bytes)?;
        let mut headers = Self::new(bth);
        let carried = bth.opcode.extensions();
        if carried != 0 {
            headers.parse_extensions(carried, bytes)?;
        }
        let at = bth.opcode.header_len();
        let rest = bytes.get(at..).ok_or(Malformed::Truncated {
            what: "the headers",
            need: at,
            have: bytes.len(),
        })?;
        let payload = payload(bth, rest)?;
        Ok(Packet { headers, payload })
    }

    fn parse_extensions(&mut self, carried: u8, bytes: &[u8]) -> Result<(), Malformed> {
        let mut at = Bth::LEN;
        let mut next = |length: usize| {
            at += length;
            at - length
        };
        if carried & carries::DETH != 0 {
            self.deth = Some(Deth::parse(bytes, next(Deth::LEN))?);
        }
        if carried & carries::RETH != 0 {
            self.reth = Some(Reth::parse(bytes, next(Reth::LEN))?);
        }
        if carried & carries::ATOMIC != 0 {
            self.atomic = Some(AtomicEth::parse(bytes, next(AtomicEth::LEN))?);
        }
        if carried & carries::AETH != 0 {
            self.aeth = Some(Aeth::parse(bytes, next(Aeth::LEN))?);
        }
        if carried & carries::ATOMIC_ACK != 0 {
            self.atomic_ack = Some(u64::from_be_bytes(get(bytes, next(8), "the AtomicAckETH")?));
        }
        if carried & carries::IMMEDIATE != 0 {
            self.immediate = Some(u32::from_be_bytes(get(bytes, next(4), "immediate data")?));
        }
        if carried & carries::INVALIDATE != 0 {
            self.invalidate = Some(u32::from_be_bytes(get(bytes, next(4), "the IETH")?));
        }
        Ok(())
    }

    /// Bytes that [`Headers::write`] writes.
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_len()
    }

    /// Never: there is always a BTH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Write the headers to the start of a buffer; says how many bytes they are.
    ///
    /// # Errors
    /// [`RoceError::BufferTooSmall`], and [`RoceError::HeaderMismatch`] if not exactly those headers
    /// are there that the opcode carries.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> Result<usize, RoceError> {
        let need = self.len();
        if out.len() < need {
            return Err(RoceError::BufferTooSmall { need, have: out.len() });
        }
        self.check()?;
        self.bth.write(out);
        let mut at = Bth::LEN;
        let mut next = |length: usize| {
            at += length;
            at - length
        };
        if let Some(deth) = &self.deth {
            deth.write(out, next(Deth::LEN));
        }
        if let Some(reth) = &self.reth {
            reth.write(out, next(Reth::LEN));
        }
        if let Some(atomic) = &self.atomic {
            atomic.write(out, next(AtomicEth::LEN));
        }
        if let Some(aeth) = &self.aeth {
            aeth.write(out, next(Aeth::LEN));
        }
        if let Some(value) = self.atomic_ack {
            put(out, next(8), &value.to_be_bytes());
        }
        if let Some(immediate) = self.immediate {
            put(out, next(4), &immediate.to_be_bytes());
        }
        if let Some(rkey) = self.invalidate {
            put(out, next(4), &rkey.to_be_bytes());
        }
        Ok(at)
    }

    /// Exactly what the opcode carries must be there.
    fn check(&self) -> Result<(), RoceError> {
        let bit = |there: bool, bit: u8| if there { bit } else { 0 };
        let there = bit(self.deth.is_some(), carries::DETH)
            | bit(self.reth.is_some(), carries::RETH)
            | bit(self.atomic.is_some(), carries::ATOMIC)
            | bit(self.aeth.is_some(), carries::AETH)
            | bit(self.atomic_ack.is_some(), carries::ATOMIC_ACK)
            | bit(self.immediate.is_some(), carries::IMMEDIATE)
            | bit(self.invalidate.is_some(), carries::INVALIDATE);
        let wanted = self.bth.opcode.extensions();
        if there == wanted { Ok(()) } else { Err(mismatch(self.bth.opcode, there, wanted)) }
    }
}

#[cold]
fn mismatch(opcode: Opcode, there: u8, wanted: u8) -> RoceError {
    const NAMES: [&str; 7] = [
        "a DETH",
        "a RETH",
        "an AtomicETH",
        "an AETH",
        "an AtomicAckETH",
        "immediate data",
        "an IETH",
    ];
    let first = (there ^ wanted).trailing_zeros() as usize;
    let what = if wanted & !there & (1 << first) != 0 { "give one" } else { "leave it out" };
    RoceError::HeaderMismatch { opcode, header: NAMES.get(first).unwrap_or(&"a header"), what }
}

/// What lies between headers and pad.
fn payload(bth: Bth, rest: &[u8]) -> Result<&[u8], Malformed> {
    if !rest.len().is_multiple_of(4) {
        return Err(Malformed::Unaligned(rest.len()));
    }
    let end = rest
        .len()
        .checked_sub(usize::from(bth.pad))
        .ok_or(Malformed::Pad { pad: bth.pad, have: rest.len() })?;
    let payload = rest.get(..end).unwrap_or_default();
    // A CNP's sixteen reserved bytes are no payload, and nobody looks at them; there is nothing that
    // would be padded (annex A17.9.3).
    if bth.opcode == Opcode::CNP {
        if bth.pad != 0 {
            return Err(Malformed::Pad { pad: bth.pad, have: 0 });
        }
        return match payload.len() {
            super::cnp::RESERVED.. => Ok(&[]),
            have => Err(Malformed::Truncated { what: "the CNP", need: super::cnp::RESERVED, have }),
        };
    }
    if !bth.opcode.has_payload() && !rest.is_empty() {
        let (opcode, length) = (bth.opcode.to_byte(), rest.len());
        return Err(Malformed::UnexpectedPayload { opcode, length });
    }
    Ok(payload)
}
