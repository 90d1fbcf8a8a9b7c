//! The base transport header, first of every packet (IBTA vol. 1, 9.2).

use super::bytes::{get, put};
use super::{Malformed, Opcode, Psn, Qpn};

/// The partition that everybody is a full member of (IBTA vol. 1, 10.9.1.2); RoCE's usual one.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// A base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools)] // As many as the wire has bits.
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver shall raise an event (SE).
    pub solicited: bool,
    /// The connection's path migration state is "migrated" (MigReq).
    pub migrated: bool,
    /// Pad bytes behind the payload, 0..=3: what was read, or, in a frame that is written, what its
    /// payload needs, whatever is said here.
    pub pad: u8,
    /// Partition.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification; set in a CNP.
    pub becn: bool,
    /// Receiver.
    pub dest: Qpn,
    /// The receiver shall acknowledge.
    pub ack_request: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header without any flag, in the default partition. Linux and NICs send "migrated" as long as
    /// no alternate path is loaded, so it is set.
    pub const fn new(opcode: Opcode, dest: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest,
            ack_request: false,
            psn,
        }
    }

    /// Read one; the reserved bits are not looked at (IBTA vol. 1, 9.2: ignored on receive).
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let b: [u8; Self::LEN] = get(bytes, 0, "the BTH")?;
        let version = b[1] & 0x0f;
        if version != 0 {
            return Err(Malformed::TransportVersion(version));
        }
        Ok(Self {
            opcode: Opcode::from_byte(b[0]).ok_or(Malformed::Opcode(b[0]))?,
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pad: (b[1] >> 4) & 3,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest: Qpn::truncate(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_request: b[8] & 0x80 != 0,
            psn: Psn::truncate(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        })
    }

    /// Write it to the start of a buffer that has room for it.
    pub(super) fn write(&self, out: &mut [u8]) {
        let bit = |set: bool, bit: u8| u8::from(set) << bit;
        let [_, d0, d1, d2] = self.dest.get().to_be_bytes();
        let [_, p0, p1, p2] = self.psn.get().to_be_bytes();
        let [k0, k1] = self.pkey.to_be_bytes();
        put(
            out,
            0,
            &[
                self.opcode.to_byte(),
                bit(self.solicited, 7) | bit(self.migrated, 6) | ((self.pad & 3) << 4),
                k0,
                k1,
                bit(self.fecn, 7) | bit(self.becn, 6),
                d0,
                d1,
                d2,
                bit(self.ack_request, 7),
                p0,
                p1,
                p2,
            ],
        );
    }
}
