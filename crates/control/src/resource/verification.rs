//! Verification runs: whether the lanes of some VMs work, as their hosts' agents found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, resource};
use crate::keys::{HostName, OrgName, RegionName};
use crate::protocol::{CheckVerdict, ProofCheck};

/// A verification run, as it was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// Id.
    pub id: u64,
    /// Whose it is.
    pub organization: OrgName,
    /// Where its VMs are.
    pub region: RegionName,
    /// The group that it is of, if it is of a whole one.
    pub group: Option<u64>,
    /// The VMs that are looked at.
    pub vms: Vec<Verified>,
    /// Until when their hosts may answer.
    pub deadline: Time,
    /// When it was asked for.
    pub created_at: Time,
}
resource!(Verification, "verifications", "verification run", tenant);

/// A VM of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    /// Its id.
    pub vm: u64,
    /// Its name, as it was then.
    pub name: String,
    /// Its host, as it was then.
    pub host: HostName,
    /// What is found of it is the part of this id.
    pub part: u64,
}

/// What was found of one VM of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerificationPart {
    /// Id.
    pub id: u64,
    /// Whose it is.
    pub organization: OrgName,
    /// The run.
    pub run: u64,
    /// The VM.
    pub vm: u64,
    /// Each thing that was looked at.
    pub checks: Vec<ProofCheck>,
    /// When it was told.
    pub at: Time,
}
resource!(VerificationPart, "verification-parts", "part of a verification run", tenant);

/// How many checks of one VM of a run came to what: all that the state of a run depends on, and little
/// enough to be read for a list of runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerificationSum {
    /// The part's id.
    pub id: u64,
    /// Whose it is.
    pub organization: OrgName,
    /// The run.
    pub run: u64,
    /// Checks that held.
    pub held: u32,
    /// Checks that failed.
    pub failed: u32,
}
resource!(VerificationSum, "verification-sums", "sum of a part of a verification run", tenant);

impl VerificationSum {
    /// Of a part.
    pub(crate) fn of(part: &VerificationPart) -> Self {
        let count = |verdict| part.checks.iter().filter(|check| check.verdict == verdict).count();
        let count = |verdict| u32::try_from(count(verdict)).unwrap_or(u32::MAX);
        Self {
            id: part.id,
            organization: part.organization.clone(),
            run: part.run,
            held: count(CheckVerdict::Held),
            failed: count(CheckVerdict::Failed),
        }
    }
}

/// A new verification run: of a group, or of VMs of one region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerificationSpec {
    /// The group, by id.
    #[serde(default)]
    pub group: Option<u64>,
    /// Or VMs, by id.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub vms: Vec<u64>,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum VerificationState {
    /// Hosts have still to answer.
    Running,
    /// Every VM's lanes were looked at, and are as they must be.
    Passed,
    /// Something is not as it must be.
    Failed,
    /// Nothing failed, and of a VM nothing could be looked at.
    Unproven,
    /// A host did not answer in time.
    TimedOut,
}

/// A run with what was found so far.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerificationView {
    /// It.
    #[serde(flatten)]
    pub run: Verification,
    /// How far it is.
    pub state: VerificationState,
    /// What was found, by VM, of those whose hosts have answered.
    pub parts: Vec<VerificationPart>,
}

impl VerificationView {
    /// A run and what was told of it, at a time.
    pub fn new(run: Verification, parts: Vec<VerificationPart>, now: Time) -> Self {
        let sums: Vec<_> = parts.iter().map(VerificationSum::of).collect();
        Self { parts, ..Self::without_checks(run, &sums, now) }
    }

    /// The same without what was found.
    pub(crate) fn without_checks(run: Verification, sums: &[VerificationSum], now: Time) -> Self {
        let state = state(&run, sums, now);
        Self { run, state, parts: Vec::new() }
    }
}

fn state(run: &Verification, sums: &[VerificationSum], now: Time) -> VerificationState {
    let told = run.vms.iter().all(|vm| sums.iter().any(|sum| sum.id == vm.part));
    if sums.iter().any(|sum| sum.failed > 0) {
        VerificationState::Failed
    } else if !told && now > run.deadline {
        VerificationState::TimedOut
    } else if !told {
        VerificationState::Running
    } else if sums.iter().all(|sum| sum.held > 0) {
        VerificationState::Passed
    } else {
        VerificationState::Unproven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Verification {
        let vm = |vm| Verified {
            vm,
            name: format!("w-{vm}"),
            host: HostName::new("h1").expect("a name"),
            part: vm + 10,
        };
        Verification {
            id: 1,
            organization: OrgName::new("acme").expect("a name"),
            region: RegionName::new("north").expect("a name"),
            group: None,
            vms: vec![vm(1), vm(2)],
            deadline: Time::from_second(100),
            created_at: Time::from_second(0),
        }
    }

    fn part(vm: u64, verdicts: &[CheckVerdict]) -> VerificationPart {
        let check = |verdict: &CheckVerdict| ProofCheck {
            port: "rail0".to_owned(),
            check: "MTU".to_owned(),
            verdict: *verdict,
            found: String::new(),
            remedy: None,
            round_trip_ns: None,
        };
        VerificationPart {
            id: vm + 10,
            organization: OrgName::new("acme").expect("a name"),
            run: 1,
            vm,
            checks: verdicts.iter().map(check).collect(),
            at: Time::from_second(50),
        }
    }

    #[test]
    fn a_run_passes_only_when_every_vm_was_looked_at_and_nothing_failed() {
        use CheckVerdict::{Failed, Held, Skipped};
        let at = |second, parts: &[VerificationPart]| {
            VerificationView::new(run(), parts.to_vec(), Time::from_second(second)).state
        };
        let held = |vm| part(vm, &[Held, Skipped]);
        assert_eq!(at(50, &[]), VerificationState::Running);
        assert_eq!(at(50, &[held(1)]), VerificationState::Running);
        assert_eq!(at(50, &[held(1), held(2)]), VerificationState::Passed);
        assert_eq!(at(101, &[held(1)]), VerificationState::TimedOut);
        assert_eq!(at(101, &[held(1), held(2)]), VerificationState::Passed);
        assert_eq!(at(50, &[held(1), part(2, &[Skipped])]), VerificationState::Unproven);
        assert_eq!(at(50, &[part(1, &[Held, Failed])]), VerificationState::Failed);
    }
}
