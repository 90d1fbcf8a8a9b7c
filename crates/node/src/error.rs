//! Why the host is not as the server desires.

use std::fmt;
use std::path::{Path, PathBuf};

use lanekeeper_control::protocol::VmId;
use lanekeeper_host::HostError;
use lanekeeper_host::ledger::LedgerError;
use lanekeeper_hw::HardwareError;
use lanekeeper_vmm::VmError;

use crate::lanes::Lane;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Another agent runs on this state.
    #[error("{0} is another agent's, which runs; a host has one: end the other first")]
    Taken(PathBuf),
    /// A file or folder of the node's own.
    #[error("cannot {doing} {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A record that is none. Records are replaced whole, so that something else wrote it.
    #[error("{path} is no record of a VM: {why}; restore it, or end that VM by hand and remove it")]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A VF that is desired for one VM and is another's still.
    #[error("VF {lane} is VM {holder}'s still; it can be given when that VM has let go of it")]
    Held {
        /// Which VF.
        lane: Lane,
        /// Who has it.
        holder: VmId,
    },
    /// What is desired cannot be.
    #[error("{field} '{value}' cannot be had: {why}")]
    Refused {
        /// Of what it is.
        field: String,
        /// As it is desired.
        value: String,
        /// Why, and what to do.
        why: String,
    },
    /// A NIC does not do it.
    #[error("VF {lane}: {source}")]
    Nic {
        /// Which VF.
        lane: Lane,
        /// Its reason.
        source: HardwareError,
    },
    /// A VF is not as it was set.
    #[error("VF {lane} did not become what it was set to: {} differ", .fields.join(", "))]
    NotAsSet {
        /// Which VF.
        lane: Lane,
        /// Settings that differ.
        fields: Vec<&'static str>,
    },
    /// The host's owner of hardware does not give or take back a VF.
    #[error("VF {lane}: {source}")]
    Claim {
        /// Which VF.
        lane: Lane,
        /// Its reason.
        source: Box<HostError>,
    },
    /// A VF of the host's hardware that a VM shall have is not claimed for it.
    #[error("VF {0} is not claimed for the VM; its settings are made anew")]
    Unclaimed(Lane),
    /// The host's ledger, or its hardware as a whole.
    #[error(transparent)]
    Owner(Box<HostError>),
    /// The VMM.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// An image cannot be fetched now.
    #[error("{url} cannot be fetched: {why}")]
    Fetch {
        /// Where from.
        url: String,
        /// Why not.
        why: String,
    },
    /// The server cannot be spoken to, or does not take this host in.
    #[error(transparent)]
    Server(#[from] lanekeeper_client::Error),
    /// Something else is desired by now.
    #[error("something else is desired by now")]
    Overtaken,
    /// A thread cannot be had.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl NodeError {
    pub(crate) fn file(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, doing, source }
    }

    pub(crate) fn refused(field: &str, value: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Refused { field: field.to_owned(), value: format!("{value}"), why: format!("{why}") }
    }

    /// Whether the same may succeed a little later: a NIC that is being started, a disk that is full,
    /// a server of images that is not reached.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::File { .. }
            | Self::Fetch { .. }
            | Self::Held { .. }
            | Self::Overtaken
            | Self::Unclaimed(_) => true,
            Self::Nic { source, .. } => matches!(
                source,
                // VFs may be made again, by `lanekeeper host recover` or its agent.
                HardwareError::NoPf(_)
                    | HardwareError::NoVf { .. }
                    | HardwareError::Io { .. }
                    | HardwareError::Deadline { .. }
            ),
            Self::Vm(error) => matches!(error, VmError::Io { .. } | VmError::Immortal { .. }),
            Self::Claim { source, .. } | Self::Owner(source) => of_the_owner_may_pass(source),
            _ => false,
        }
    }
}

/// Another `lanekeeper` that works on the PF, a VMM that has not let go yet, a PF that is being brought
/// back.
fn of_the_owner_may_pass(error: &HostError) -> bool {
    match error {
        HostError::Ledger(error) => matches!(error, LedgerError::Locked { .. }),
        HostError::Hardware(error) => {
            matches!(error, HardwareError::Io { .. } | HardwareError::Deadline { .. })
        }
        HostError::Busy { .. }
        | HostError::HeldByStranger { .. }
        | HostError::PfGone { .. }
        | HostError::VfMissing { .. }
        | HostError::Untold { .. }
        | HostError::Unconfirmed { .. }
        | HostError::NotOffered { .. }
        | HostError::HalfWay { .. } => true,
        _ => false,
    }
}
