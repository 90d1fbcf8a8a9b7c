//! The agent: the host's owner as a daemon. It brings the host to what the ledger and the host file
//! say, keeps it there, and keeps claims away from PFs that are in trouble.
//!
//! [`Agent`] decides and does nothing: it is told what happened ([`Input`]) and says what to do
//! ([`Action`]), with the time as an argument, so that every rule is tested without one. [`run()`]
//! does it, each PF on threads of its own, so that one which is slow or hangs keeps no other waiting.
//!
//! What it repairs is what differs from the ledger, which has what the last apply reached; the file
//! is applied at its start, when it is told to read it anew, and when a PF of it appears.

mod decide;
mod judge;
mod memory;
mod metrics;
mod pf;
mod repairs;
mod report;
mod run;
mod storm;
pub mod work;

use std::time::{Duration, SystemTime};

use lanekeeper_hw::watch::Event;
use lanekeeper_model::PfAddr;

use crate::file::HostFile;
use crate::health::Health;
pub use decide::Agent;
pub use memory::Memory;
pub use metrics::Metrics;
pub use repairs::RepairLimits;
pub use report::{Report, SCHEMA};
pub use run::{Inbox, Line, Running, run};
pub use storm::StormLimits;
use work::{Listing, Look, Settlement, Work};

/// The time, by two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since the agent's start; it never goes back.
    pub up: Duration,
    /// Of day, which the ledger's own times are in.
    pub wall: SystemTime,
}

/// What the agent is told.
#[derive(Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// The kernel told something.
    Event(Event),
    /// PFs were listed, or why not.
    Listed(Result<Listing, String>),
    /// A PF was looked at.
    Looked(Look),
    /// Work was done, or failed.
    Settled(Settlement),
    /// Pause frames of a PF were counted; `None` if its driver does not count them.
    Counted(PfAddr, Result<Option<[u64; 8]>, String>),
    /// The host file is to be applied anew.
    File(Box<HostFile>),
}

/// What the agent wants done.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// List PFs.
    List,
    /// Look at a PF.
    Look(PfAddr),
    /// Count a PF's pause frames.
    Count(PfAddr),
    /// Bring a PF to what it should be.
    Settle(Box<Work>),
    /// Publish which PFs are not well.
    Publish(Health),
    /// Keep this over the next start.
    Keep(Memory),
    /// Tell it.
    Tell(Report),
}

/// How patient the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// From an event to the look that it causes, so that a burst causes one.
    pub debounce: Duration,
    /// Between two looks at one PF, however many events come.
    pub between_looks: Duration,
    /// Between two looks at everything, whatever is told or not told.
    pub rescan: Duration,
    /// How long VMs wait for a PF of the file that is not there yet: drivers take their time at boot.
    pub late_pfs: Duration,
    /// Between two looks at a PF that does not answer.
    pub hung: Duration,
    /// How long work of another process in the ledger may take before it counts as cut short.
    pub others_work: Duration,
    /// How long a link that came back must last before VFs are offered again.
    pub link_hold: Duration,
    /// Repairs.
    pub repairs: RepairLimits,
    /// Runaway pause.
    pub storm: StormLimits,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            debounce: Duration::from_millis(300),
            between_looks: Duration::from_secs(1),
            rescan: Duration::from_secs(60),
            late_pfs: Duration::from_secs(30),
            hung: Duration::from_secs(5),
            others_work: Duration::from_secs(5),
            link_hold: Duration::from_secs(5),
            repairs: RepairLimits::default(),
            storm: StormLimits::default(),
        }
    }
}
