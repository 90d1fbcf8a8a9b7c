//! One host as a node of the control plane: it has the VMs that the server desires, no others, each as
//! it is desired, and says what became of them.
//!
//! [`Node`] keeps the lines to the server ([`Link`]): the lease, what is desired, what became of it,
//! what the host has. Each VM has a worker. It asks [`reconcile`] what is next, which is a pure
//! function of the VM's record in the [`journal`] and of what is there, does that one thing, and asks
//! again. What is about to be touched is in the journal first. So an agent that is killed at any
//! moment, or a host that is booted anew, goes on from its records: VMs that run are adopted, VMs that
//! should are started, and what was cut short is finished or undone.
//!
//! A VM gets its VFs through [`lanekeeper_hw::Hardware`] alone: MAC, VLAN, the addresses it may send
//! from, rates, MTU and link, read back before the VM boots. Its guest is told the same by a
//! [`seed`] that names each port by its MAC.
//!
//! A host that could not keep its lease alive ends the VMs that may be started elsewhere by then. It
//! counts from when the last sign of life that was answered was sent, so that it is done before the
//! server begins. It cannot do that while no agent runs: an agent that is started anew does it first.
#![forbid(unsafe_code)]

mod board;
mod config;
mod error;
#[cfg(test)]
mod fakes;
mod images;
mod inventory;
pub mod journal;
mod lanes;
mod lease;
mod link;
mod membership;
mod node;
mod proof;
pub mod reconcile;
#[cfg(test)]
mod samples;
mod seat;
pub mod seed;
mod worker;

pub use config::{GpuOffer, HardwareOffer, NicLabels, NodeConfig};
pub use error::NodeError;
pub use images::Builtin;
pub use lanes::{Lane, SoftwareNics, lanes_of, settings};
pub use link::{HEARTBEAT_PATIENCE, Https, Link, LinkError};
pub use membership::Membership;
pub use node::{Node, Parts, Stop};
