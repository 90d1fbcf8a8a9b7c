//! Recovery: after a crash, a reboot, a hot removal, the ledger and the devices agree again. What
//! was cut short is finished or undone; VFs that are gone are made again as the last apply had
//! them; claims are made ready again or said to be lost; free VFs are scrubbed.

use std::fmt;

use lanekeeper_model::VfIndex;
use serde::{Deserialize, Serialize};

use crate::claim::{astray, drift, is_open};
use crate::error::HostError;
use crate::ledger::{LedgerError, Life, VfRecord};
use crate::owner::{Owner, Session};
use crate::plan::PfPlan;
use crate::plan::{Finding, pf_steps, user};
use crate::request::ClaimId;

/// Something that recovery did or found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RecoveryEvent {
    /// An apply that was cut short is undone.
    ApplyUndone {
        /// Our name for the PF.
        pf: String,
    },
    /// An apply that nobody confirmed is rolled back.
    RolledBack {
        /// Our name for the PF.
        pf: String,
    },
    /// A claim that was cut short before it was handed over is undone.
    ClaimUndone {
        /// The claim.
        claim: ClaimId,
    },
    /// A release that was cut short is finished.
    ReleaseFinished {
        /// The claim.
        claim: ClaimId,
    },
    /// The PF is as the last apply had it again.
    Remade {
        /// Our name for the PF.
        pf: String,
        /// Steps that it took.
        steps: usize,
    },
    /// A claim's VF is as its owner asked again.
    ClaimReady {
        /// The claim.
        claim: ClaimId,
    },
    /// A claim's VF is not to be had. The claim stays until it is released.
    ClaimLost {
        /// The claim.
        claim: ClaimId,
        /// Why.
        why: String,
    },
    /// A PF is gone.
    PfGone {
        /// Our name for it.
        pf: String,
    },
    /// A quarantined VF could be scrubbed and is free.
    Requalified {
        /// Our name for the PF.
        pf: String,
        /// Its VF.
        vf: lanekeeper_model::VfIndex,
    },
    /// Something stands in the way, or should be known.
    Note {
        /// What.
        note: String,
    },
}

impl fmt::Display for RecoveryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApplyUndone { pf } => write!(f, "pf {pf}: an apply that was cut short is undone"),
            Self::RolledBack { pf } => write!(f, "pf {pf}: an unconfirmed apply is rolled back"),
            Self::ClaimUndone { claim } => write!(f, "claim {claim} was cut short and is undone"),
            Self::ReleaseFinished { claim } => {
                write!(f, "the release of claim {claim} is finished")
            }
            Self::Remade { pf, steps } => {
                let plural = if *steps == 1 { "" } else { "s" };
                write!(f, "pf {pf}: is as the last apply had it again, in {steps} step{plural}")
            }
            Self::ClaimReady { claim } => write!(f, "claim {claim} is ready again"),
            Self::ClaimLost { claim, why } => write!(f, "claim {claim} is lost: {why}"),
            Self::PfGone { pf } => write!(f, "pf {pf} is gone"),
            Self::Requalified { pf, vf } => {
                write!(f, "pf {pf}: VF {vf} is scrubbed and free again")
            }
            Self::Note { note } => f.write_str(note),
        }
    }
}

/// What recovery came to.
#[derive(Debug, Default)]
pub struct Recovered {
    /// What it did and found.
    pub events: Vec<RecoveryEvent>,
    /// PFs that it could not bring back, and why. The others are.
    pub failed: Vec<(String, HostError)>,
}

impl Owner {
    /// Make ledger and devices agree. To be called at every start.
    ///
    /// # Errors
    /// [`HostError::Ledger`] if the state folder cannot be read; a PF that fails is in the answer.
    pub fn recover(&self) -> Result<Recovered, HostError> {
        let mut recovered = Recovered::default();
        for key in self.ledger.keys()? {
            let mut one = self.recover_one(&key);
            recovered.events.append(&mut one.events);
            recovered.failed.append(&mut one.failed);
        }
        Ok(recovered)
    }

    /// The same for the one PF that has this file, so that another which hangs does not matter.
    pub fn recover_one(&self, key: &str) -> Recovered {
        let mut recovered = Recovered::default();
        if let Err(error) = self.recover_pf(key, &mut recovered.events) {
            let name = self.ledger.read(key).map_or_else(|_| key.to_owned(), |record| record.name);
            recovered.failed.push((name, error));
        }
        recovered
    }

    fn recover_pf(&self, key: &str, events: &mut Vec<RecoveryEvent>) -> Result<(), HostError> {
        let mut session = match self.session_with(key, events) {
            Ok(session) => session,
            Err(HostError::PfGone { .. }) => return self.lose_pf(key, events),
            Err(error) => return Err(error),
        };
        let remade = session.remake(events);
        if remade.as_ref().is_err_and(is_of_the_pf) {
            return remade;
        }
        // Claims whose VFs are there are made ready whatever else is amiss; the others are told.
        session.ready_claims(events)?;
        session.requalify_all(events)?;
        remade
    }

    fn session_with(
        &self,
        key: &str,
        events: &mut Vec<RecoveryEvent>,
    ) -> Result<Session<'_>, HostError> {
        let locked = self.ledger.lock(key, self.lock_until())?;
        let mut session = self.found_session(locked)?;
        session.catch_up(events)?;
        Ok(session)
    }

    fn lose_pf(&self, key: &str, events: &mut Vec<RecoveryEvent>) -> Result<(), HostError> {
        let locked = self.ledger.lock(key, self.lock_until())?;
        let Some(mut record) = locked.load()? else { return Ok(()) };
        if record.target.is_none() && record.claims.is_empty() {
            return Ok(());
        }
        events.push(RecoveryEvent::PfGone { pf: record.name.clone() });
        // What was cut short is over with the VF: nobody counts on it, and its token is free.
        for (id, claim) in std::mem::take(&mut record.claims) {
            let life = record.vfs.get(&claim.vf).map(|vf| &vf.life);
            let over = if life == Some(&Life::Scrubbing) {
                RecoveryEvent::ReleaseFinished { claim: id }
            } else if claim.handed_over {
                record.claims.insert(id, claim);
                continue;
            } else {
                RecoveryEvent::ClaimUndone { claim: id }
            };
            record.vfs.insert(claim.vf, VfRecord::absent());
            events.push(over);
        }
        for (id, claim) in &mut record.claims {
            let why = claim.lost.get_or_insert_with(|| "its PF is gone".to_owned()).clone();
            events.push(RecoveryEvent::ClaimLost { claim: id.clone(), why });
        }
        Ok(locked.save(&record)?)
    }
}

/// What concerns the whole PF, so that nothing more can be done on it now.
fn is_of_the_pf(error: &HostError) -> bool {
    use lanekeeper_hw::HardwareError as Hw;
    matches!(
        error,
        HostError::Hardware(Hw::Deadline { .. } | Hw::NoPf(_) | Hw::Io { .. })
            | HostError::PfGone { .. }
            | HostError::Ledger(LedgerError::Io { .. })
    )
}

impl Session<'_> {
    /// Finish or undo what an earlier session of this PF was cut short in. The lock is ours, so
    /// whatever is under way in the ledger has nobody who works on it.
    pub(crate) fn catch_up(&mut self, events: &mut Vec<RecoveryEvent>) -> Result<(), HostError> {
        let pf = self.name().to_owned();
        if self.record.intent.is_some() {
            self.undo_apply()?;
            events.push(RecoveryEvent::ApplyUndone { pf });
        }
        self.heed_time(events)?;
        let under_way: Vec<_> =
            self.record.claims.iter().map(|(id, claim)| (id.clone(), claim.clone())).collect();
        for (id, claim) in under_way {
            let outcome = if self.life(claim.vf) == Life::Scrubbing {
                let finished = RecoveryEvent::ReleaseFinished { claim: id.clone() };
                self.finish_release(&id).map(|_| events.push(finished))
            } else if claim.handed_over {
                Ok(())
            } else {
                self.strike_claim(&id)
                    .map(|_| events.push(RecoveryEvent::ClaimUndone { claim: id }))
            };
            self.tolerate(outcome, events)?;
        }
        Ok(())
    }

    /// Roll back what nobody confirmed in time.
    fn heed_time(&mut self, events: &mut Vec<RecoveryEvent>) -> Result<(), HostError> {
        let pf = self.name().to_owned();
        let now = self.owner.now();
        let Some(waiting) = &mut self.record.unconfirmed else { return Ok(()) };
        match waiting.left(now) {
            Some(left) if left.is_zero() => {
                self.undo_unconfirmed()?;
                events.push(RecoveryEvent::RolledBack { pf });
            }
            Some(_) => {}
            // Or it would wait for as long as the clock went back: for ever, on a board whose clock
            // begins in 1970.
            None => {
                waiting.until = now + waiting.within;
                let within = waiting.within;
                self.save()?;
                let note = format!(
                    "pf {pf}: the clock went back: the unconfirmed apply is rolled back in {within:?}"
                );
                events.push(RecoveryEvent::Note { note });
            }
        }
        Ok(())
    }

    /// One VF's trouble is its own; the PF's ends the session.
    fn tolerate(
        &self,
        outcome: Result<(), HostError>,
        events: &mut Vec<RecoveryEvent>,
    ) -> Result<(), HostError> {
        match outcome {
            Err(error) if is_of_the_pf(&error) => Err(error),
            Err(error) => {
                tracing::warn!(pf = self.name(), %error, "left as it is");
                events.push(RecoveryEvent::Note { note: error.to_string() });
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Bring the PF to what the last apply reached.
    fn remake(&mut self, events: &mut Vec<RecoveryEvent>) -> Result<(), HostError> {
        let Some(target) = self.record.target.clone() else { return Ok(()) };
        if self.record.unconfirmed.is_some() {
            return Ok(());
        }
        let pf = self.read()?;
        let (findings, steps) = pf_steps(self.name(), &target, &pf, &self.record);
        let blockers: Vec<&Finding> = findings.iter().filter(|finding| finding.blocks()).collect();
        if !blockers.is_empty() {
            events.extend(
                blockers.into_iter().map(|why| RecoveryEvent::Note { note: why.to_string() }),
            );
            return Ok(());
        }
        for (vf, record) in &mut self.record.vfs {
            if pf.vf(*vf).is_none() && record.life == Life::Free {
                record.life = Life::Absent;
            }
        }
        let some_absent = self.record.vfs.values().any(|vf| vf.life == Life::Absent);
        if steps.is_empty() && !some_absent {
            return Ok(());
        }
        let planned = PfPlan {
            name: self.name().to_owned(),
            identity: self.record.identity.clone(),
            address: self.addr,
            target,
            steps,
            settled: false,
        };
        let applied = self.apply_alone(&planned)?;
        events.extend(applied.notes.into_iter().map(|note| RecoveryEvent::Note { note }));
        if applied.steps > 0 {
            let pf = planned.name;
            events.push(RecoveryEvent::Remade { pf, steps: applied.steps });
        }
        Ok(())
    }

    /// Make the VFs of claims ready again that are not, and see who holds them.
    fn ready_claims(&mut self, events: &mut Vec<RecoveryEvent>) -> Result<(), HostError> {
        let claims: Vec<_> =
            self.record.claims.iter().map(|(id, claim)| (id.clone(), claim.clone())).collect();
        for (id, claim) in claims.into_iter().filter(|(_, claim)| claim.handed_over) {
            let pf = self.read()?;
            let Some(now) = pf.vf(claim.vf) else {
                let why = format!("VF {} does not exist", claim.vf);
                self.lose_claim(&id, why, events)?;
                continue;
            };
            let untold = now.attributes.is_none() && pf.netdev.is_some();
            let as_asked =
                !untold && drift(now, &claim).is_empty() && astray(&pf, now, &claim).is_empty();
            let life = self.life(claim.vf);
            if now.holder.is_some() {
                // A VM has it: what differs is put right once it is released.
                if !matches!(life, Life::Attached | Life::Detaching) {
                    self.set_life(claim.vf, Life::Attached)?;
                }
                // Its representor is the host's, and none of the VM's business.
                if !is_open(now, &claim) {
                    let opened = self.open_representor(&claim);
                    let ready = RecoveryEvent::ClaimReady { claim: id.clone() };
                    self.tolerate(opened.map(|()| events.push(ready)), events)?;
                }
                self.found(&id)?;
            } else if as_asked && matches!(life, Life::Bound | Life::Attached | Life::Detaching) {
                self.set_life(claim.vf, Life::Bound)?;
                self.found(&id)?;
            } else {
                match self.make_ready(&id) {
                    Ok(()) => events.push(RecoveryEvent::ClaimReady { claim: id }),
                    Err(error) if is_of_the_pf(&error) => return Err(error),
                    Err(error) => self.lose_claim(&id, error.to_string(), events)?,
                }
            }
        }
        Ok(())
    }

    fn lose_claim(
        &mut self,
        id: &ClaimId,
        why: String,
        events: &mut Vec<RecoveryEvent>,
    ) -> Result<(), HostError> {
        if let Some(claim) = self.record.claims.get_mut(id) {
            claim.lost = Some(why.clone());
        }
        events.push(RecoveryEvent::ClaimLost { claim: id.clone(), why });
        self.save()
    }

    fn found(&mut self, id: &ClaimId) -> Result<(), HostError> {
        let lost = self.record.claims.get_mut(id).and_then(|claim| claim.lost.take());
        if lost.is_some() { self.save() } else { Ok(()) }
    }

    /// A VF that was taken over while the host used it, and that the host still uses. One that a claim
    /// left dirty has what it had before that in its record.
    fn is_hosts_own(&self, vf: VfIndex) -> Result<bool, HostError> {
        let had = self.record.vfs.get(&vf).is_some_and(|record| record.original.is_some());
        let quarantined = matches!(self.life(vf), Life::Quarantined { .. });
        Ok(quarantined && !had && self.read()?.vf(vf).is_some_and(|now| user(now).is_some()))
    }

    fn requalify_all(&mut self, events: &mut Vec<RecoveryEvent>) -> Result<(), HostError> {
        let vfs: Vec<_> = self.record.vfs.keys().copied().collect();
        for vf in vfs {
            if self.is_hosts_own(vf)? {
                continue;
            }
            let outcome = match self.requalify(vf) {
                Ok(true) => {
                    events.push(RecoveryEvent::Requalified { pf: self.name().to_owned(), vf });
                    Ok(())
                }
                Ok(false) | Err(HostError::VfMissing { .. }) => Ok(()),
                Err(error) => Err(error),
            };
            self.tolerate(outcome, events)?;
        }
        Ok(())
    }
}
