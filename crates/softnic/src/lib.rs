//! The software NIC: a process that behaves as an SR-IOV NIC with an embedded switch.
//!
//! One PF with an uplink and up to 64 VFs. Each VF is a vhost-user socket: the VM's virtio-net
//! driver and this process share the rings, and neither the VMM nor the host's kernel touches a
//! frame on its way from VF to VF.
//!
//! - [`ring`]: virtqueues, device side; what a hostile VM meets first.
//! - [`switch`]: pure decisions: which frames pass, where to, in which form.
//! - [`uplink`]: TAP and packet sockets.
//! - [`Nic`]: the whole, with its hardware line; [`Client`]: the same line to a NIC of another
//!   process.
//! - [`driver`]: a VF's driver in user space, for programs that want a VF without a VM.
//!
//! Unsafe code is in six files, each allowed by name: the guest's memory (`ring/memory.rs`) and what
//! is done when it vanishes (`ring/guard.rs`), system calls that take pointers (`uplink/sys.rs`,
//! `uplink/batch.rs`) or can block (`watched.rs`), and the lock of rings (`turn_lock.rs`).
#![deny(unsafe_code)]

pub mod driver;
pub mod features;
pub mod ring;
pub mod switch;
pub mod uplink;

mod config;
mod control;
#[cfg(not(any(test, fuzzing)))]
mod control_queue;
#[cfg(any(test, fuzzing))]
pub mod control_queue;
mod cores;
mod descriptors;
mod intercept;
mod journal;
mod log_limit;
mod nic;
mod port;
mod resume;
mod roce;
mod run_dir;
mod threads;
#[allow(unsafe_code)]
mod turn_lock;
mod vhost_user;
#[allow(unsafe_code)]
mod watched;
mod worker;

pub use config::{Config, ConfigError, MAX_QUEUE_PAIRS, RUN_ROOT};
pub use control::{Client, Request, SOCKET_NAME, folders, respond};
pub use nic::{Nic, NicError};
pub use roce::{RoceCounters, RocePair, RoceReport};
pub use worker::Worker;
