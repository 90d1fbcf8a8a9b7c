//! Drift: in what a host differs from its file, and VFs from their owners' wishes. Reads only.

use std::fmt;

use lanekeeper_model::VfIndex;
use serde::{Deserialize, Serialize};

use crate::error::HostError;
use crate::file::HostFile;
use crate::ledger::{Identity, Life, PfRecord};
use crate::owner::Owner;
use crate::plan::{Step, plan};
use crate::scrub::one_by_one;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Our name for the PF.
    pub pf: String,
    /// The VF, if it is one's.
    pub vf: Option<VfIndex>,
    /// What differs, in words, with what would put it right.
    pub what: String,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vf {
            Some(vf) => write!(f, "pf {}: VF {vf}: {}", self.pf, self.what),
            None => write!(f, "pf {}: {}", self.pf, self.what),
        }
    }
}

impl Owner {
    /// In what the host differs from the file and the ledger; empty if in nothing.
    ///
    /// # Errors
    /// [`HostError::Ledger`], [`HostError::Hardware`].
    pub fn check(&self, file: &HostFile) -> Result<Vec<Drift>, HostError> {
        let (seen, records) = (self.readings()?, self.records()?);
        let plan = plan(file, &seen, &records);
        let mut drift = Vec::new();
        for finding in plan.findings.iter().filter(|finding| finding.is_drift()) {
            let pf = finding.pf().unwrap_or_default();
            drift.push(Drift { pf, vf: None, what: finding.to_string() });
        }
        for pf in &plan.pfs {
            for step in &pf.steps {
                let vfs = match &step.step {
                    Step::Scrub(vfs) | Step::Settle(vfs) => vfs.clone(),
                    step => {
                        let what = format!("not as wanted: an apply would {step}");
                        drift.push(Drift { pf: pf.name.clone(), vf: None, what });
                        continue;
                    }
                };
                let what = format!("not as wanted: an apply would {}", step.step);
                drift.extend(vfs.into_iter().map(|vf| Drift {
                    pf: pf.name.clone(),
                    vf: Some(vf),
                    what: what.clone(),
                }));
            }
            if !pf.settled && pf.steps.is_empty() {
                let what = "the file changed since the last apply".to_owned();
                drift.push(Drift { pf: pf.name.clone(), vf: None, what });
            }
        }
        for pf in seen.iter().filter_map(|pf| pf.reading.as_ref().ok()) {
            let is_it = |record: &&PfRecord| {
                Identity::of(pf).is_some_and(|identity| identity.is(&record.identity))
            };
            if let Some(record) = records.iter().find(is_it) {
                drift.extend(of_vfs(pf, record));
            }
        }
        for record in records {
            let found = seen
                .iter()
                .filter_map(|pf| pf.reading.as_ref().ok())
                .filter_map(Identity::of)
                .any(|identity| identity.is(&record.identity));
            if !found && record.target.is_some() {
                let what = format!("is gone: no PF has {}", record.identity);
                drift.push(Drift { pf: record.name, vf: None, what });
            }
        }
        Ok(drift)
    }
}

/// What an apply would not put right by itself.
fn of_vfs(pf: &lanekeeper_hw::inventory::PfReading, record: &PfRecord) -> Vec<Drift> {
    let mut drift = Vec::new();
    let mut add = |vf: VfIndex, what: String| {
        drift.push(Drift { pf: record.name.clone(), vf: Some(vf), what });
    };
    for (vf, known) in &record.vfs {
        if let Life::Quarantined { reason } = &known.life {
            add(*vf, format!("quarantined: {reason}"));
        }
        let Some(now) = pf.vf(*vf) else {
            add(*vf, "does not exist: recover makes it again".to_owned());
            continue;
        };
        let Some((id, claim)) = record.owner_of(*vf) else {
            if let Some(holder) = &now.holder {
                let (command, pid) = (&holder.command, holder.pid);
                add(*vf, format!("nobody's, but {command} (pid {pid}) holds it"));
            }
            continue;
        };
        for (_, what, _) in one_by_one(&crate::claim::drift(now, claim)) {
            add(*vf, format!("{what} is not as claim {id} asked"));
        }
        for what in crate::claim::astray(pf, now, claim) {
            add(*vf, format!("{what}: claim {id}"));
        }
        if now.attributes.is_none() {
            add(*vf, format!("its PF tells nothing of it: claim {id} cannot be judged"));
        }
        let pf_mtu = pf.netdev.as_ref().map(|netdev| netdev.mtu);
        if pf_mtu.is_some_and(|mtu| mtu < u32::from(claim.settings.mtu)) {
            add(*vf, format!("the PF's MTU is below the {} of claim {id}", claim.settings.mtu));
        }
        if let Some(lost) = &claim.lost {
            add(*vf, format!("claim {id} is lost: {lost}"));
        }
    }
    drift
}
