//! What the agent has done for one PF at a time, on a thread of that PF's own: look at it, count its
//! pause frames, and bring it to what the ledger and the file say.

use lanekeeper_hw::HardwareError;
use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::PfAddr;

use crate::apply::Applied;
use crate::error::HostError;
use crate::file::HostFile;
use crate::ledger::{Identity, Ledger, PfRecord, PfTarget};
use crate::owner::Owner;
use crate::plan::{PfSeen, plan};
use crate::recover::RecoveryEvent;

/// What was seen of a PF.
#[derive(Debug)]
pub enum Saw {
    /// It was read.
    Reading(Box<PfReading>),
    /// It is not there.
    Gone,
    /// It did not answer in time, or has a call outstanding that did not.
    Hung(String),
    /// It could not be read.
    Failed(String),
}

/// A look at one PF.
#[derive(Debug)]
pub struct Look {
    /// Where it is.
    pub pf: PfAddr,
    /// What was seen.
    pub saw: Saw,
    /// Its record and the name of its file, if the ledger knows it.
    pub record: Option<(String, Box<PfRecord>)>,
    /// The record did not change while the PF was read: both are of one moment.
    pub steady: bool,
}

/// The PFs that are there, and those that the ledger knows.
#[derive(Debug)]
pub struct Listing {
    /// Where PFs are.
    pub pfs: Vec<PfAddr>,
    /// Records by the names of their files.
    pub records: Vec<(String, PfRecord)>,
    /// Records that cannot be used, and why.
    pub damaged: Vec<String>,
}

/// What is to be done for one PF.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Where it is, if it is there.
    pub pf: Option<PfAddr>,
    /// The name of its ledger file, if it has one: it is recovered.
    pub key: Option<String>,
    /// The file with its entry alone: that is applied after it.
    pub apply: Option<HostFile>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Settlement {
    /// Where the PF is, if it is there.
    pub pf: Option<PfAddr>,
    /// The name of its ledger file.
    pub key: Option<String>,
    /// What recovery did and found.
    pub events: Vec<RecoveryEvent>,
    /// Recovery went through.
    pub recovered: bool,
    /// What the file's apply did.
    pub applied: Option<Applied>,
    /// What was rolled back because nobody confirmed it.
    pub rolled_back: Option<Box<PfTarget>>,
    /// Why the file's entry cannot be applied as things are: nothing was changed.
    pub refused: Option<String>,
    /// Why it failed.
    pub failed: Option<String>,
    /// It failed because the PF did not answer.
    pub hung: bool,
}

impl Settlement {
    /// Recovery changed something.
    pub(super) fn did_something(&self) -> bool {
        self.events.iter().any(|event| {
            !matches!(
                event,
                RecoveryEvent::Note { .. }
                    | RecoveryEvent::ClaimLost { .. }
                    | RecoveryEvent::PfGone { .. }
            )
        })
    }
}

/// What is there.
///
/// # Errors
/// [`HostError::Hardware`], [`HostError::Ledger`].
pub fn list(owner: &Owner) -> Result<Listing, HostError> {
    let pfs = owner.hw.list()?;
    let (mut records, mut damaged) = (Vec::new(), Vec::new());
    for (key, record) in owner.ledger().read_all()? {
        match record {
            Ok(record) => records.push((key, record)),
            Err(error) => damaged.push(error.to_string()),
        }
    }
    Ok(Listing { pfs, records, damaged })
}

/// Look at one PF.
pub fn look(owner: &Owner, pf: PfAddr) -> Look {
    let before = records(owner.ledger());
    let saw = match owner.hw.read(pf) {
        Ok(reading) => Saw::Reading(Box::new(reading)),
        Err(HardwareError::NoPf(_)) => Saw::Gone,
        Err(error @ HardwareError::Deadline { .. }) => Saw::Hung(error.to_string()),
        Err(error) => Saw::Failed(error.to_string()),
    };
    let identity = match &saw {
        Saw::Reading(reading) => Identity::of(reading),
        _ => None,
    };
    let is_it = |record: &PfRecord| match (&saw, &identity) {
        (Saw::Reading(_), Some(identity)) => record.identity.is(identity),
        (Saw::Reading(_), None) => false,
        // It does not say who it is: where it was last is all there is to go by.
        _ => record.last_address == pf,
    };
    let record = records(owner.ledger()).into_iter().find(|(_, record)| is_it(record));
    let steady = record.as_ref().is_none_or(|now| before.contains(now));
    Look { pf, saw, record: record.map(|(key, record)| (key, Box::new(record))), steady }
}

fn records(ledger: &Ledger) -> Vec<(String, PfRecord)> {
    let all = ledger.read_all().unwrap_or_default();
    all.into_iter().filter_map(|(key, record)| Some((key, record.ok()?))).collect()
}

/// Count the pause frames of one PF.
///
/// # Errors
/// Why it could not, in words.
pub fn count(owner: &Owner, pf: PfAddr) -> Result<Option<[u64; 8]>, String> {
    owner.hw.pause_frames(pf).map_err(|error| error.to_string())
}

/// Bring one PF to what it should be: what was cut short is finished or undone, what differs from
/// the ledger is put right, and then its entry of the file is applied. A target that was rolled
/// back just now is not applied again.
pub fn settle(owner: &Owner, work: Work) -> Settlement {
    let Work { pf, key, apply } = work;
    let mut settlement = Settlement { pf, key, ..Settlement::default() };
    if let Some(key) = settlement.key.clone() {
        let before = owner.ledger().read(&key).ok();
        let mut recovered = owner.recover_one(&key);
        settlement.events.append(&mut recovered.events);
        let rolled_back =
            settlement.events.iter().any(|event| matches!(event, RecoveryEvent::RolledBack { .. }));
        if rolled_back {
            settlement.rolled_back = before.and_then(|record| record.target).map(Box::new);
        }
        if let Some((_, error)) = recovered.failed.pop() {
            settlement.fail(&error);
            return settlement;
        }
    }
    settlement.recovered = true;
    if let (Some(pf), Some(file), None) = (pf, apply, &settlement.rolled_back) {
        match apply_alone(owner, pf, &file) {
            Ok(applied) => settlement.applied = Some(applied),
            Err(error @ HostError::Refused(_)) => settlement.refused = Some(error.to_string()),
            Err(error) => settlement.fail(&error),
        }
    }
    settlement
}

fn apply_alone(owner: &Owner, pf: PfAddr, file: &HostFile) -> Result<Applied, HostError> {
    let reading = owner.hw.read(pf)?;
    let records: Vec<PfRecord> =
        records(owner.ledger()).into_iter().map(|(_, record)| record).collect();
    let seen = [PfSeen { address: pf, reading: Ok(reading) }];
    owner.apply(&plan(file, &seen, &records), None)
}

impl Settlement {
    fn fail(&mut self, error: &HostError) {
        self.hung = is_deadline(error);
        self.failed = Some(error.to_string());
    }
}

fn is_deadline(error: &HostError) -> bool {
    match error {
        HostError::Hardware(HardwareError::Deadline { .. }) => true,
        HostError::Reverted { source, .. } => is_deadline(source),
        HostError::HalfWay { source, way_back, .. } => is_deadline(source) || is_deadline(way_back),
        _ => false,
    }
}
