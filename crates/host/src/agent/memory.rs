//! What the agent must know after its next start and nobody else writes down: which targets were
//! rolled back because nobody confirmed them. The file may still have one, and to apply it at the
//! next boot would lock its author out once more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ledger::{Ledger, LedgerError, PfTarget};

/// Version of the file's format.
const VERSION: u32 = 1;

/// What is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    version: u32,
    /// Targets that were rolled back, by the name of the PF's ledger file.
    pub(super) rolled_back: BTreeMap<String, PfTarget>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { version: VERSION, rolled_back: BTreeMap::new() }
    }
}

impl Memory {
    /// What was kept in a ledger's folder; nothing if there is none, or it is of no use.
    pub fn load(ledger: &Ledger) -> Self {
        let path = ledger.folder().join("agent.json");
        let Ok(text) = std::fs::read(&path) else { return Self::default() };
        match serde_json::from_slice::<Self>(&text) {
            Ok(memory) if memory.version == VERSION => memory,
            Ok(memory) => {
                tracing::warn!("{} has version {}; it is not used", path.display(), memory.version);
                Self::default()
            }
            Err(error) => {
                tracing::warn!(%error, "{} is not used", path.display());
                Self::default()
            }
        }
    }

    /// Keep it.
    ///
    /// # Errors
    /// [`LedgerError::Io`].
    pub fn save(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        crate::ledger::replace(ledger.folder(), &ledger.folder().join("agent.json"), &text)
    }
}
