//! What the agent has to say: one event a line, in JSON whose names stay as they are.

use std::time::{SystemTime, UNIX_EPOCH};

use lanekeeper_model::{PfAddr, VfIndex};
use serde::{Deserialize, Serialize};

use crate::drift::Drift;
use crate::recover::RecoveryEvent;
use crate::request::ClaimId;

/// Version of the events' schema. Fields may be added within it.
pub const SCHEMA: u32 = 1;

/// One event. `pf` is our name for a PF, or its address while it has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Report {
    /// The agent began.
    Started {
        /// Its version.
        version: String,
    },
    /// Every PF that answers is as it should be, or was reported: VMs may start.
    Ready,
    /// The agent ends.
    Stopped,
    /// The host file was read anew.
    Reloaded,
    /// It could not be; the last one holds.
    ReloadFailed {
        /// Why.
        why: String,
    },
    /// A PF's entry of the file was applied.
    Applied {
        /// The PF.
        pf: String,
        /// Steps that it took.
        steps: usize,
        /// What the reader should know.
        notes: Vec<String>,
    },
    /// A PF's entry of the file is not applied: nothing of the PF was changed, and what was applied
    /// before holds. Whether what stood in its way is gone is looked at every minute.
    NotApplied {
        /// The PF.
        pf: String,
        /// Why.
        why: String,
    },
    /// What was cut short, or waited to be confirmed, was finished or undone.
    Recovered {
        /// The PF.
        pf: String,
        /// What was done and found.
        what: Vec<RecoveryEvent>,
    },
    /// A PF is not as it should be.
    DriftFound {
        /// The PF.
        pf: String,
        /// In what.
        drift: Vec<Drift>,
        /// Who else manages the PF's interface.
        manager: Option<String>,
    },
    /// It is again.
    DriftRepaired {
        /// The PF.
        pf: String,
        /// What was done.
        what: Vec<RecoveryEvent>,
    },
    /// A PF could not be brought to what it should be. It is tried again.
    RepairFailed {
        /// The PF.
        pf: String,
        /// Why.
        why: String,
        /// When it is tried again, in seconds from now.
        again_in_s: f64,
    },
    /// Something about a PF cannot be put right by the agent.
    Blocked {
        /// The PF.
        pf: String,
        /// What, in words.
        why: Vec<String>,
    },
    /// What is repaired is undone soon each time: the agent leaves it until nothing is amiss, and puts
    /// right at a slow pace only what keeps a claim's VF and others apart.
    FoughtOver {
        /// The PF.
        pf: String,
        /// What returns each time.
        drift: Vec<Drift>,
        /// Repairs that were undone.
        repairs: usize,
        /// Who else manages the PF's interface.
        manager: Option<String>,
    },
    /// Nothing is amiss any more with a PF that was fought over.
    FightOver {
        /// The PF.
        pf: String,
    },
    /// Free VFs of a PF are not offered to claims, and the claims that are there suffer from it.
    PfUnavailable {
        /// The PF.
        pf: String,
        /// Why.
        why: String,
        /// The claims that are there: nothing is taken from their owners.
        claims: Vec<ClaimId>,
    },
    /// They are again.
    PfAvailable {
        /// The PF.
        pf: String,
    },
    /// A PF came.
    PfAppeared {
        /// The PF.
        pf: String,
        /// Where.
        address: PfAddr,
    },
    /// A PF went.
    PfGone {
        /// The PF.
        pf: String,
    },
    /// A process that held a VF let it go or died, and the VF has an owner still.
    HolderGone {
        /// The PF.
        pf: String,
        /// The VF.
        vf: VfIndex,
        /// Its claim: to be released, or handed over again.
        claim: ClaimId,
        /// Process id, if it was seen.
        pid: Option<u32>,
        /// Process name, if it was seen.
        command: Option<String>,
    },
    /// The kernel had no room for its events: everything is looked at.
    EventsLost,
    /// PFs cannot be listed, the kernel's events not read, or the state folder not be used.
    Trouble {
        /// What.
        why: String,
    },
}

impl Report {
    /// As a line of JSON, with the schema's version and the time in milliseconds since 1970.
    pub fn to_line(&self, at: SystemTime) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            schema: u32,
            unix_ms: u64,
            #[serde(flatten)]
            report: &'a Report,
        }
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        serde_json::to_string(&Line { schema: SCHEMA, unix_ms, report: self }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_line_has_the_schema_the_time_the_event_and_its_fields() {
        let report = Report::PfUnavailable {
            pf: "rail0".into(),
            why: "its link is\ndown".into(),
            claims: vec![ClaimId("c-1".into())],
        };
        let line = report.to_line(UNIX_EPOCH + Duration::from_millis(1_500));
        assert_eq!(
            line,
            r#"{"schema":1,"unix_ms":1500,"event":"pf_unavailable","pf":"rail0","why":"its link is\ndown","claims":["c-1"]}"#
        );
        let line = Report::Ready.to_line(UNIX_EPOCH);
        assert_eq!(line, r#"{"schema":1,"unix_ms":0,"event":"ready"}"#);
    }
}
