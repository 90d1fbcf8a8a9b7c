//! Wire formats: RoCE v1 (IBTA vol. 1, annex A16) and RoCE v2 (annex A17).
//!
//! [`Headers`] and [`Packet`] are the InfiniBand transport packet, from BTH to payload;
//! [`Flow`] says between whom and how it goes. Parsing borrows from the frame that was received,
//! writing fills a buffer of the caller; neither allocates.

mod bth;
mod bytes;
mod cnp;
mod flow;
mod headers;
mod malformed;
mod mtu;
mod opcode;
mod packet;
mod psn;
mod qpn;
mod timers;

pub use bth::{Bth, DEFAULT_PKEY};
pub use cnp::{CNP_DSCP, congestion_notification};
pub use flow::{Ecn, Flow, Gid, ROCE_PORT, Version};
pub use headers::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome};
pub use malformed::Malformed;
pub use mtu::PathMtu;
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Headers, MAX_HEADERS, Packet, padding};
pub use psn::Psn;
pub use qpn::Qpn;
pub use timers::{ack_timeout, credit_code, credits, rnr_code, rnr_delay};
