//! Wire formats: RoCE v1 (IBTA vol. 1, annex A16) and RoCE v2 (annex A17).
//!
//! [`Headers`] and [`Packet`] are the InfiniBand transport packet, from BTH to payload;
//! [`Flow`] says between whom and how it goes; [`Frame`] and [`Cover`] read and write both with all
//! that is around them. Parsing borrows from what was received, writing leaves the payload where it
//! is; neither allocates.

mod bth;
mod bytes;
mod cnp;
mod cover;
mod flow;
mod frame;
#[cfg(any(test, fuzzing))]
#[allow(clippy::expect_used)] // A panic is what a fuzzer looks for.
pub mod fuzz_harness;
mod headers;
mod icrc;
mod malformed;
mod mtu;
mod network;
mod opcode;
mod packet;
mod psn;
mod qpn;
mod timers;
mod unknown_id;

pub use bth::{Bth, DEFAULT_PKEY};
pub use cnp::{CNP_DSCP, congestion_notification};
pub(crate) use cover::TYPE_ROCE_V1;
pub use cover::{Cover, Link};
pub use flow::{Ecn, Flow, Gid, ROCE_PORT, Version};
pub use frame::Frame;
pub use headers::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome};
pub use malformed::Malformed;
pub use mtu::PathMtu;
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Headers, MAX_HEADERS, Packet, padding};
pub use psn::Psn;
pub use qpn::Qpn;
pub use timers::{ack_timeout, credit_code, credits, rnr_code, rnr_delay};
