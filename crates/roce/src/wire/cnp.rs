//! Congestion notification packets (annex A17.9.3): what a receiver sends to the sender of a packet
//! that was marked on its way.

use super::{Bth, Headers, Opcode, Psn, Qpn};

/// Reserved bytes behind a CNP's BTH, all zero.
pub(super) const RESERVED: usize = 16;

/// DSCP that NICs send CNPs with, if they are not told otherwise: class selector 6.
pub const CNP_DSCP: u8 = 48;

/// A notification for a queue pair of the sender: BECN set, PSN 0, no other flag.
pub const fn congestion_notification(dest: Qpn, pkey: u16) -> Headers {
    let bth = Bth::new(Opcode::CNP, dest, Psn::ZERO);
    Headers::new(Bth { becn: true, migrated: false, pkey, ..bth })
}

/// Bytes between the headers and the ICRC that are no payload.
pub(super) const fn reserved(opcode: Opcode) -> usize {
    if opcode.to_byte() == Opcode::CNP.to_byte() { RESERVED } else { 0 }
}
