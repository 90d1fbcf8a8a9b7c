//! Why a store did not do what it was asked, with what that means for the caller.

use std::path::PathBuf;

use super::{LeaseId, Revision};

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The revision is no longer kept.
    #[error("revision {asked} is compacted, {oldest} is the oldest kept; read anew from there")]
    Compacted {
        /// What was asked for.
        asked: Revision,
        /// What there is.
        oldest: Revision,
    },
    /// The revision is not there yet.
    #[error("revision {asked} is not there yet; ask for one that the store gave out")]
    Future {
        /// What was asked for.
        asked: Revision,
    },
    /// The lease has ended, or never was.
    #[error("lease {0} has ended; ask for a new one")]
    LeaseGone(LeaseId),
    /// More than one transaction may be.
    #[error("a transaction of {size} {what} is too large; the most is {most}: divide it")]
    TooLarge {
        /// Of what there is too much.
        what: &'static str,
        /// How much.
        size: usize,
        /// How much may be.
        most: usize,
    },
    /// It may have been done or not, and may still be done.
    #[error(
        "the store did not answer, so it may have been done or not: {0}; read before you go on"
    )]
    Unknown(String),
    /// It was not done.
    #[error("the store cannot be reached: {0}; try again later")]
    Unavailable(String),
    /// What is in it was not written by this program.
    #[error("the store holds what Lanekeeper did not write: {0}; give it a store of its own")]
    Foreign(String),
    /// The embedded store cannot be opened.
    #[error("{path} cannot be opened: {why}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system or the database said.
        why: String,
    },
    /// The embedded store's disk failed; nothing more is written until it is opened again.
    #[error("the store's disk failed: {0}; see to the disk and start again")]
    Disk(String),
}
