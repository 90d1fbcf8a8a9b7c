//! Proof that a lane works: probes, checks and reports.
//!
//! Every probe runs through [`Host`], so that the same proof holds for a VM reached through its
//! guest agent, a network namespace, and a machine of its own. What a tool printed is read by pure
//! functions that never panic, and a check that something must *not* be reachable counts only when
//! the same tool was first seen to reach something ([`Isolation`]).
#![forbid(unsafe_code)]

mod arping;
mod figures;
mod forgery;
mod host;
mod iperf;
mod isolation;
pub mod lane;
mod listener;
mod perftest;
mod ping;
mod rdma;
mod report;
#[cfg(test)]
mod scripted;

pub use arping::{ArpReplies, arping};
pub use figures::{BitRate, Latency, Loss};
pub use forgery::{Forged, Forgery, forge};
pub use host::{Host, HostError, Job, LocalHost, Output};
pub use iperf::{TcpServer, TcpStream, tcp_throughput};
pub use isolation::{Isolation, Reach};
pub use perftest::{
    Converged, Measured, Perftest, RdmaEndpoint, Sample, converged, rdma_connects, rdma_measure,
};
pub use ping::{Ping, PingPlan, largest_packet, ping};
pub use rdma::{Gid, RdmaPort, RxeCounters, rxe_counters, rxe_on};
pub use report::{Report, Row, Verdict};

use std::time::Duration;

/// Why a probe gave no answer. That a path does not work is no such error unless the probe cannot
/// say more than that: it is in the answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The machine, or the command on it, failed as such.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A tool ended with an error.
    #[error("{tool} on {host} failed: {why}")]
    Tool {
        /// Which tool.
        tool: &'static str,
        /// Which machine.
        host: String,
        /// Its last words.
        why: String,
    },
    /// A tool ended well and wrote something that cannot be read.
    #[error("what {tool} on {host} wrote could not be read: {why}; it wrote: {wrote}")]
    Unreadable {
        /// Which tool.
        tool: &'static str,
        /// Which machine.
        host: String,
        /// What is missing or wrong.
        why: String,
        /// The beginning of what it wrote.
        wrote: String,
    },
    /// A server did not start to listen.
    #[error("{tool} on {host} did not listen on port {port} after {after:?}: {why}")]
    NotListening {
        /// Which tool.
        tool: &'static str,
        /// Which machine.
        host: String,
        /// TCP port.
        port: u16,
        /// How long was waited.
        after: Duration,
        /// What the server said, if it ended.
        why: String,
    },
    /// The RDMA port did not become active.
    #[error(
        "RDMA device {device} on {host} is {state} after {after:?}; see that its network \
         interface is up"
    )]
    NotActive {
        /// Which machine.
        host: String,
        /// RDMA device.
        device: String,
        /// The state it is in.
        state: String,
        /// How long was waited.
        after: Duration,
    },
    /// No entry of the GID table carries this address as RoCE v2.
    #[error(
        "no RoCE v2 GID for {address} on {device} of {host}; set the address on the interface \
         below the device. The table has: {table}"
    )]
    NoGid {
        /// Which machine.
        host: String,
        /// RDMA device.
        device: String,
        /// The address looked for.
        address: std::net::IpAddr,
        /// What the table holds.
        table: String,
    },
    /// The counters that prove a check could not be read.
    #[error("counters of the software NIC could not be read: {0}")]
    Counters(#[from] lanekeeper_hw::HardwareError),
}

impl ProbeError {
    fn unreadable(tool: &'static str, host: &str, why: impl Into<String>, wrote: &str) -> Self {
        let mut beginning: String = wrote.trim().chars().take(400).collect();
        if beginning.is_empty() {
            beginning.push_str("nothing");
        }
        Self::Unreadable { tool, host: host.to_owned(), why: why.into(), wrote: beginning }
    }

    fn tool(tool: &'static str, host: &dyn Host, output: &Output) -> Self {
        let mut why = output.complaint();
        if why.is_empty() {
            why = format!("status {}", output.status);
        }
        Self::Tool { tool, host: host.name().to_owned(), why }
    }
}
