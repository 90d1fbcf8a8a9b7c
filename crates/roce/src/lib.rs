//! RoCE, understood: RDMA over Ethernet in user space, from the bytes on the wire upwards.
//!
//! - [`wire`]: what packets and frames look like, RoCE v1 and v2, and their ICRC. Pure: no I/O, no
//!   clock, no allocation, and no input that it panics on.
//! - [`transport`]: sockets that packets go by: UDP (v2) and packet sockets (v1 and v2).
//! - [`engine`]: queue pairs: verbs on one side, packets on the other, without clock or socket.
//! - [`driver`]: a loop that joins endpoint and transport with the real clock.
//! - [`dcqcn`]: congestion control at both ends.
//! - [`sim`]: a network that never was, for tests: faults from a seed.
//!
//! Rules cite the InfiniBand Architecture Specification, volume 1 ("IBTA vol. 1"), with its annexes
//! A16 (RoCE v1) and A17 (RoCE v2), by section.
//!
//! Unsafe code is in one file, `transport/sys.rs`: system calls that take pointers.
#![deny(unsafe_code)]

pub mod dcqcn;
pub mod driver;
pub mod engine;
mod error;
pub mod sim;
pub mod time;
pub mod transport;
pub mod wire;

pub use error::RoceError;
