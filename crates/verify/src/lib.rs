//! Proof that a lane works: probes, checks and reports.
//!
//! Every probe runs through [`Host`], so that the same proof holds for a VM reached through its
//! guest agent, a network namespace, and a machine of its own.
#![forbid(unsafe_code)]

mod host;

pub use host::{Host, HostError, Job, LocalHost, Output};
