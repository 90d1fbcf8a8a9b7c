//! Which PFs' free VFs are not offered to claims now, and what of them the agent puts right no more,
//! and why. The agent says so in a file beside the ledger; what it says holds for as long as it runs, which its lock tells, so that what a dead
//! agent said last keeps nobody from a VF.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::HostError;
use crate::ledger::{FileLock, Ledger, LedgerError};
use crate::owner::Owner;

/// Version of the file's format.
const VERSION: u32 = 1;
/// How long a seat that is taken is waited for: whoever only looks whether it is lets go at once.
const SEAT: Duration = Duration::from_secs(1);

/// Why free VFs of a PF are not offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Withheld {
    /// Our name for the PF.
    pub pf: String,
    /// Why.
    pub why: String,
    /// Since when.
    pub since: SystemTime,
}

/// What of a PF is fought over: somebody undid its repairs, and the agent leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FoughtOver {
    /// What, in words.
    pub what: Vec<String>,
    /// Who else manages the PF's interface.
    pub manager: Option<String>,
    /// Since when.
    pub since: SystemTime,
}

/// What the agent says of the PFs that are not well, by the names of their ledger files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// PFs whose free VFs are not offered.
    pub withheld: BTreeMap<String, Withheld>,
    /// PFs of which something is fought over.
    #[serde(default)]
    pub fought_over: BTreeMap<String, FoughtOver>,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    #[serde(flatten)]
    health: Health,
}

/// The place of the one agent of a state folder, until it is dropped or its holder dies.
#[derive(Debug)]
pub struct AgentSeat {
    folder: PathBuf,
    _lock: FileLock,
}

impl AgentSeat {
    /// Say which PFs are not well.
    ///
    /// # Errors
    /// [`LedgerError::Io`].
    pub fn publish(&self, health: &Health) -> Result<(), LedgerError> {
        let kept = Kept { version: VERSION, health: health.clone() };
        let text = serde_json::to_vec_pretty(&kept).unwrap_or_default();
        crate::ledger::replace(&self.folder, &path(&self.folder), &text)
    }
}

impl Owner {
    /// Become the one agent of this state folder.
    ///
    /// # Errors
    /// [`HostError::AgentRuns`]; [`HostError::Ledger`].
    pub fn take_seat(&self) -> Result<AgentSeat, HostError> {
        let folder = self.ledger.folder();
        let lock = match FileLock::take(&lock_path(folder), Instant::now() + SEAT) {
            Ok(lock) => lock,
            Err(LedgerError::Locked { .. }) => {
                let folder = folder.to_owned();
                let text = std::fs::read_to_string(lock_path(&folder)).unwrap_or_default();
                let pid = text.trim().parse().ok();
                return Err(HostError::AgentRuns { folder, pid });
            }
            Err(error) => return Err(error.into()),
        };
        // For whoever is refused; that it is not there costs them no more than a number.
        let _ = std::fs::write(lock_path(folder), format!("{}\n", std::process::id()));
        Ok(AgentSeat { folder: folder.to_owned(), _lock: lock })
    }
}

impl Ledger {
    /// PFs whose free VFs are not offered now, by the name of the PF's file; none while no agent
    /// runs.
    pub fn withheld(&self) -> BTreeMap<String, Withheld> {
        self.health().withheld
    }

    /// What the agent says of the PFs that are not well; nothing while no agent runs.
    pub fn health(&self) -> Health {
        if !is_seat_taken(self.folder()) {
            return Health::default();
        }
        read(self.folder()).unwrap_or_default()
    }
}

fn is_seat_taken(folder: &Path) -> bool {
    let Ok(file) = File::open(lock_path(folder)) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

fn read(folder: &Path) -> Option<Health> {
    let text = std::fs::read(path(folder)).ok()?;
    match serde_json::from_slice::<Kept>(&text) {
        Ok(kept) => Some(kept.health),
        Err(error) => {
            tracing::warn!(%error, "{} cannot be used", path(folder).display());
            None
        }
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("health.json")
}

fn lock_path(folder: &Path) -> PathBuf {
    folder.join("agent.lock")
}
