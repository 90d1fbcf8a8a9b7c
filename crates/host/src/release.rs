//! A release: a VF is nobody's again. Fenced by the owner token, so that a late release of an
//! earlier owner changes nothing (sriov-cni#219); refused while somebody holds the VF; and only a
//! VF that is scrubbed in full is free.

use std::fmt;

use lanekeeper_model::VfIndex;
use serde::{Deserialize, Serialize};

use crate::error::HostError;
use crate::ledger::{ClaimRecord, Life, PfRecord};
use crate::owner::{Owner, Session};
use crate::request::{Claim, ClaimId, OwnerToken, VmFacts};

/// What is to be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// A claim.
    Claim(ClaimId),
    /// Whatever claim a VF has.
    Vf {
        /// Our name for the PF.
        pf: String,
        /// The VF.
        vf: VfIndex,
    },
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(id) => write!(f, "claim {id}"),
            Self::Vf { pf, vf } => write!(f, "VF {vf} of pf {pf}"),
        }
    }
}

/// How a release went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "released", rename_all = "snake_case")]
pub enum Released {
    /// The VF is free and scrubbed.
    Done {
        /// The claim that it was.
        claim: ClaimId,
        /// What the reader should know.
        notes: Vec<String>,
    },
    /// Nothing was done, for there is no such claim, or the VF has been another's since.
    NoOp {
        /// Why.
        why: String,
    },
    /// The VF is nobody's, and not to be used.
    Quarantined {
        /// The claim that it was.
        claim: ClaimId,
        /// What could not be scrubbed.
        reason: String,
    },
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done { claim, .. } => write!(f, "claim {claim} is released, its VF scrubbed"),
            Self::NoOp { why } => write!(f, "nothing was done: {why}"),
            Self::Quarantined { claim, reason } => {
                write!(f, "claim {claim} is released, its VF quarantined: {reason}")
            }
        }
    }
}

/// The claim that is meant.
fn meant<'a>(record: &'a PfRecord, which: &'a Which) -> Option<(&'a ClaimId, &'a ClaimRecord)> {
    match which {
        Which::Claim(id) => record.claims.get(id).map(|claim| (id, claim)),
        Which::Vf { pf, vf } if record.name == *pf => record.owner_of(*vf),
        Which::Vf { .. } => None,
    }
}

/// The claim that is meant, if the token has it; else what is answered. A VF may have been claimed
/// anew, so that its former owner is late; a claim's name is drawn anew each time, so that a claim
/// that stands was never that of another token.
fn fenced(
    record: &PfRecord,
    which: &Which,
    token: &str,
) -> Result<ClaimId, Result<Released, HostError>> {
    let Some((id, claim)) = meant(record, which) else { return Err(Ok(no_op(which))) };
    match which {
        _ if claim.token == token => Ok(id.clone()),
        Which::Claim(id) => Err(Err(HostError::NotYours(id.clone()))),
        Which::Vf { .. } => Err(Ok(Released::NoOp {
            why: format!(
                "{which} is another owner's: it was released and claimed anew, or never yours"
            ),
        })),
    }
}

/// Nobody has what is to be released.
fn no_op(which: &Which) -> Released {
    let why = match which {
        Which::Claim(id) => {
            format!("there is no claim {id}: it was released before, or never made")
        }
        Which::Vf { .. } => format!("{which} has no owner: it was released before"),
    };
    Released::NoOp { why }
}

impl Owner {
    /// Release a claim.
    ///
    /// # Errors
    /// [`HostError::NotYours`] for a claim that stands and has another token; [`HostError::Busy`]
    /// while a process holds the VF, which stays owned. With other errors the claim stays too, and
    /// [`Owner::recover`] or another release goes on.
    pub fn release(&self, which: &Which, token: &OwnerToken) -> Result<Released, HostError> {
        let token = token.hash();
        let Some(key) = self.find(which)? else {
            return self.renamed(which, &token).map_or_else(|| Ok(no_op(which)), Err);
        };
        let mut session = match self.session(&key) {
            Ok(session) => session,
            Err(HostError::PfGone { .. }) => return self.release_lost(&key, which, &token),
            Err(error) => return Err(error),
        };
        match fenced(&session.record, which, &token) {
            Ok(id) => session.release(&id),
            Err(answer) => answer,
        }
    }

    /// That a VF was named by its PF's former name, by somebody who has one on this host.
    fn renamed(&self, which: &Which, token: &str) -> Option<HostError> {
        let Which::Vf { pf, .. } = which else { return None };
        let records: Vec<PfRecord> = self
            .ledger
            .read_all()
            .ok()?
            .into_iter()
            .filter_map(|(_, record)| record.ok())
            .collect();
        let theirs = records.iter().find(|record| record.claim_of(token).is_some())?;
        let unknown = records.iter().all(|record| record.name != *pf);
        let nearest = Some(theirs.name.clone());
        unknown.then(|| HostError::Unknown { kind: "pf", name: pf.clone(), nearest })
    }

    /// The file in which a claim, or a VF's claim, is.
    fn find(&self, which: &Which) -> Result<Option<String>, HostError> {
        let mut damaged = None;
        for (key, record) in self.ledger.read_all()? {
            match record {
                Ok(record) if meant(&record, which).is_some() => return Ok(Some(key)),
                Ok(_) => {}
                Err(error) => damaged = Some(error),
            }
        }
        damaged.map_or(Ok(None), |error| Err(error.into()))
    }

    /// The PF is gone, and its VFs with it: there is nothing to scrub.
    fn release_lost(&self, key: &str, which: &Which, token: &str) -> Result<Released, HostError> {
        let locked = self.ledger.lock(key, self.lock_until())?;
        let Some(mut record) = locked.load()? else { return Ok(no_op(which)) };
        let id = match fenced(&record, which, token) {
            Ok(id) => id,
            Err(answer) => return answer,
        };
        if let Some(claim) = record.claims.remove(&id)
            && let Some(vf) = record.vfs.get_mut(&claim.vf)
        {
            (vf.life, vf.original) = (Life::Absent, None);
        }
        locked.save(&record)?;
        let notes = vec!["the PF is gone, and the VF with it: nothing was scrubbed".to_owned()];
        Ok(Released::Done { claim: id, notes })
    }

    /// A VMM has taken the VF of a claim.
    ///
    /// # Errors
    /// [`HostError::NotYours`], and those of finding the PF.
    pub fn attached(&self, id: &ClaimId, token: &OwnerToken) -> Result<(), HostError> {
        self.move_on(id, token, Life::Attached)
    }

    /// A VMM was asked to give the VF of a claim back. It stays owned until it is released.
    ///
    /// # Errors
    /// As [`Owner::attached`].
    pub fn detaching(&self, id: &ClaimId, token: &OwnerToken) -> Result<(), HostError> {
        self.move_on(id, token, Life::Detaching)
    }

    /// The VMM has given the VF of a claim back: it can be handed over again, or released.
    ///
    /// # Errors
    /// As [`Owner::attached`].
    pub fn detached(&self, id: &ClaimId, token: &OwnerToken) -> Result<(), HostError> {
        self.move_on(id, token, Life::Bound)
    }

    /// A claim as it is now.
    ///
    /// # Errors
    /// As [`Owner::attached`], and those of reading the PF.
    pub fn claim_of(&self, id: &ClaimId, token: &OwnerToken) -> Result<Claim, HostError> {
        let (session, _) = self.theirs(id, token)?;
        session.describe(id, &VmFacts::default())
    }

    fn theirs(
        &self,
        id: &ClaimId,
        token: &OwnerToken,
    ) -> Result<(Session<'_>, VfIndex), HostError> {
        let not_yours = || HostError::NotYours(id.clone());
        let key = self.find(&Which::Claim(id.clone()))?.ok_or_else(not_yours)?;
        let session = self.session(&key)?;
        let claim = session.claim(id)?;
        if claim.token != token.hash() {
            return Err(not_yours());
        }
        let vf = claim.vf;
        Ok((session, vf))
    }

    fn move_on(&self, id: &ClaimId, token: &OwnerToken, life: Life) -> Result<(), HostError> {
        let (mut session, vf) = self.theirs(id, token)?;
        session.set_life(vf, life)
    }

    /// Scrub a quarantined VF once more, so that it is free again if it can be.
    ///
    /// # Errors
    /// [`HostError::Unknown`], and those of a scrub. That it is still dirty is in the answer.
    pub fn clear_quarantine(&self, pf: &str, vf: VfIndex) -> Result<Life, HostError> {
        let mut session = self.session(&self.key_of(pf)?)?;
        session.requalify(vf)?;
        Ok(session.life(vf))
    }
}

impl Session<'_> {
    /// Release a claim that is the caller's.
    pub(crate) fn release(&mut self, id: &ClaimId) -> Result<Released, HostError> {
        let claim = self.claim(id)?;
        if let Ok((_, now)) = self.read_vf(claim.vf)
            && let Some(holder) = now.holder
        {
            return Err(HostError::Busy {
                claim: id.clone(),
                address: now.addr,
                pid: holder.pid,
                command: holder.command,
            });
        }
        self.set_life(claim.vf, Life::Scrubbing)?;
        self.finish_release(id)
    }

    /// Scrub the VF of a claim that is on its way out, and strike the claim.
    pub(crate) fn finish_release(&mut self, id: &ClaimId) -> Result<Released, HostError> {
        let vf = self.claim(id)?.vf;
        let notes = self.strike_claim(id)?;
        Ok(match self.life(vf) {
            Life::Quarantined { reason } => Released::Quarantined { claim: id.clone(), reason },
            _ => Released::Done { claim: id.clone(), notes },
        })
    }

    /// Scrub a quarantined VF that nobody owns or holds. Whether it is free now.
    pub(crate) fn requalify(&mut self, vf: VfIndex) -> Result<bool, HostError> {
        let quarantined = matches!(self.life(vf), Life::Quarantined { .. });
        if !quarantined || self.record.owner_of(vf).is_some() {
            return Ok(false);
        }
        let (_, now) = self.read_vf(vf)?;
        if now.holder.is_some() {
            return Ok(false);
        }
        let scrubbed = self.scrub(vf)?;
        self.put_back(vf, scrubbed)?;
        self.save()?;
        Ok(self.life(vf) == Life::Free)
    }
}
