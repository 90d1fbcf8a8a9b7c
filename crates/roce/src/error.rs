//! What can go wrong in this crate, but for what is wrong with a packet that was received
//! ([`Malformed`]).

use crate::wire::{Malformed, Opcode};

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoceError {
    /// A packet that was received is not one.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The caller's buffer cannot hold what shall be written.
    #[error("the buffer has {have} bytes but the packet takes {need}; give a larger one")]
    BufferTooSmall {
        /// Bytes that are needed.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// An opcode and the headers given beside it do not agree.
    #[error("a packet of {opcode} carries {header} exactly if its opcode says so; {what}")]
    HeaderMismatch {
        /// The packet's opcode.
        opcode: Opcode,
        /// The header in question.
        header: &'static str,
        /// What to do: give it, or leave it out.
        what: &'static str,
    },
    /// Payload on a packet that has none.
    #[error("a packet of {opcode} has no payload, but {length} bytes were given; give none")]
    PayloadNotAllowed {
        /// The packet's opcode.
        opcode: Opcode,
        /// Bytes of payload given.
        length: usize,
    },
    /// More payload than one IP packet or GRH can say the length of.
    #[error("{length} bytes of payload do not fit into one packet; split at the path MTU")]
    PayloadTooLong {
        /// Bytes of payload given.
        length: usize,
    },
    /// Source and destination of different address families.
    #[error("a flow goes from IPv4 to IPv4 or from IPv6 to IPv6; its two GIDs are one of each")]
    MixedFamilies,
}
