//! Who gets which VF: the owner's side of a claim. One token has one claim; free and used come from
//! the ledger alone; what a NIC cannot do is refused by name before anything is written.

use std::cmp::Reverse;
use std::time::Instant;

use lanekeeper_hw::inventory::{PfReading, VfReading};
use lanekeeper_model::VfIndex;
use lanekeeper_topology::{Distance, Strictness};

use crate::claim::{astray, drift};
use crate::error::HostError;
use crate::file::nearest;
use crate::ledger::{LedgerError, Life, PfRecord, VfOriginal};
use crate::near::Place;
use crate::owner::{Owner, Session};
use crate::request::{Claim, ClaimId, ClaimRequest, DriverWanted, hex};

/// A PF that could give a VF.
struct Candidate {
    key: String,
    record: PfRecord,
    distance: Option<Distance>,
    answered: bool,
}

impl Owner {
    /// Claim a VF. The same token with the same request gets the same claim again.
    ///
    /// # Errors
    /// [`HostError::Conflict`] for the same token with another request; [`HostError::Exhausted`],
    /// [`HostError::NotOnThisPath`], [`HostError::SharedGroup`], [`HostError::Preflight`] and
    /// others, after which no VF has changed hands; [`HostError::HalfWay`] if the way back failed
    /// too, and the VF waits for [`Owner::recover`].
    pub fn claim(&self, request: &ClaimRequest) -> Result<Claim, HostError> {
        request.check()?;
        let token = request.token.hash();
        let _one_at_a_time = self.ledger.lock_token(&token, self.lock_until())?;
        let (mut good, mut damaged) = (Vec::new(), None);
        for (key, record) in self.ledger.read_all()? {
            match record {
                Ok(record) => good.push((key, record)),
                Err(error) => damaged = Some(error),
            }
        }
        if let Some((key, _)) = good.iter().find(|(_, record)| record.claim_of(&token).is_some())
            && let Some(claim) = self.claimed_before(key, &token, request)?
        {
            return Ok(claim);
        }
        let named = request.pf.as_ref();
        let is_good = |name: &String| good.iter().any(|(_, record)| record.name == *name);
        if let Some(error) = damaged
            && !named.is_some_and(is_good)
        {
            return Err(error.into());
        }
        let candidates = self.candidates(request, good)?;
        self.first_that_can(request, &token, candidates)
    }

    /// The claim that the token has, if it has one for this request.
    fn claimed_before(
        &self,
        key: &str,
        token: &str,
        request: &ClaimRequest,
    ) -> Result<Option<Claim>, HostError> {
        // What was cut short before it was handed over is undone by the session's beginning.
        let mut session = self.session(key)?;
        let Some((id, claim)) = session.record.claim_of(token) else { return Ok(None) };
        let (id, claim) = (id.clone(), claim.clone());
        let differs = differences(&claim.request, &kept(request));
        if !differs.is_empty() {
            return Err(HostError::Conflict { claim: id, differs: differs.join(", ") });
        }
        // "Ready" is said of what is so now.
        let (pf, now) = session.read_vf(claim.vf)?;
        let as_asked = claim.lost.is_none()
            && drift(&now, &claim).is_empty()
            && astray(&pf, &now, &claim).is_empty();
        let held = now.holder.is_some() || session.life(claim.vf) == Life::Attached;
        if !as_asked && !held {
            session.make_ready(&id)?;
        }
        session.describe(&id, &request.vm).map(Some)
    }

    fn candidates(
        &self,
        request: &ClaimRequest,
        records: Vec<(String, PfRecord)>,
    ) -> Result<Vec<Candidate>, HostError> {
        let ours: Vec<_> =
            records.into_iter().filter(|(_, record)| record.target.is_some()).collect();
        let pools = |record: &PfRecord| {
            record.target.as_ref().map(|target| target.pools.clone()).unwrap_or_default()
        };
        let unknown = |kind, name: &String, known: Vec<String>| {
            let nearest = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
            HostError::Unknown { kind, name: name.clone(), nearest }
        };
        if let Some(name) = &request.pf
            && !ours.iter().any(|(_, record)| record.name == *name)
        {
            let known = ours.iter().map(|(_, record)| record.name.clone()).collect();
            return Err(unknown("pf", name, known));
        }
        if let Some(pool) = &request.pool
            && !ours.iter().any(|(_, record)| pools(record).contains(pool))
        {
            let known = ours.iter().flat_map(|(_, record)| pools(record)).collect();
            return Err(unknown("pool", pool, known));
        }
        let mut candidates: Vec<Candidate> = ours
            .into_iter()
            .filter(|(_, record)| request.pf.as_ref().is_none_or(|pf| *pf == record.name))
            .filter(|(_, record)| {
                request.pool.as_ref().is_none_or(|pool| pools(record).contains(pool))
            })
            .map(|(key, record)| Candidate { key, record, distance: None, answered: false })
            .collect();
        self.leave_out_withheld(request, &mut candidates)?;
        if candidates.len() > 1 || request.affinity.is_some() {
            self.ask(request, &mut candidates)?;
        }
        candidates.sort_by_key(|candidate| {
            let free = candidate.record.free_vfs().count();
            let distance = (candidate.distance.is_none(), candidate.distance);
            (!candidate.answered, distance, Reverse(free))
        });
        Ok(candidates)
    }

    /// PFs that the agent sees in trouble give no VF.
    fn leave_out_withheld(
        &self,
        request: &ClaimRequest,
        candidates: &mut Vec<Candidate>,
    ) -> Result<(), HostError> {
        let withheld = self.ledger.withheld();
        let mut why = Vec::new();
        candidates.retain(|candidate| {
            let trouble = withheld.get(&candidate.key);
            why.extend(trouble.map(|trouble| format!("pf {}: {}", trouble.pf, trouble.why)));
            trouble.is_none()
        });
        if candidates.is_empty() && !why.is_empty() {
            return Err(HostError::NotOffered { from: source(request), why });
        }
        Ok(())
    }

    /// Read all candidates side by side: how far each is, and which do not answer at once. One that
    /// hangs must not delay a claim that another can serve.
    fn ask(
        &self,
        request: &ClaimRequest,
        candidates: &mut Vec<Candidate>,
    ) -> Result<(), HostError> {
        let place = request.affinity.map(|wanted| Place::of(self, wanted.to)).transpose()?;
        let mut readings: Vec<PfReading> = Vec::new();
        let pfs: Vec<_> = candidates.iter().map(|at| at.record.last_address).collect();
        self.read_each(pfs, self.patience.read, |_, reading| {
            // Once one has answered, the others have little time left.
            let answered = reading.is_ok();
            readings.extend(reading);
            answered.then_some(self.patience.stragglers)
        });
        let mut nearest: Option<Distance> = None;
        let (mut kept, mut untold) = (Vec::new(), Vec::new());
        for mut candidate in candidates.drain(..) {
            let reading = readings.iter().find(|pf| pf.addr == candidate.record.last_address);
            candidate.answered = reading.is_some();
            let judged = match place.as_ref().zip(reading) {
                Some((place, pf)) => place.judge(pf)?,
                None => None,
            };
            if let Some((distance, _)) = judged {
                nearest = Some(nearest.map_or(distance, |nearest| nearest.min(distance)));
                candidate.distance = Some(distance);
            } else if candidate.answered && place.is_some() {
                untold.push(candidate.record.name.clone());
            }
            let strict = request.affinity.is_some_and(|to| to.strictness == Strictness::Strict);
            if !strict || judged.is_some_and(|(_, near)| near) {
                kept.push(candidate);
            }
        }
        *candidates = kept;
        match (nearest, untold.as_slice()) {
            _ if !candidates.is_empty() => Ok(()),
            (Some(nearest), _) => Err(HostError::TooFar { nearest }),
            (None, []) => Ok(()),
            (None, untold) => Err(HostError::Affinity(format!(
                "the NUMA node of pf {} is not known on this host; ask for it as preferred \
                 (without --strict)",
                untold.join(", ")
            ))),
        }
    }

    /// Take a VF of the first candidate that can give one. One that is locked is passed over and
    /// tried again, until patience ends.
    fn first_that_can(
        &self,
        request: &ClaimRequest,
        token: &str,
        mut candidates: Vec<Candidate>,
    ) -> Result<Claim, HostError> {
        let from = source(request);
        let until = self.lock_until();
        let (mut owned, mut quarantined, mut refusal) = (0, 0, None);
        while !candidates.is_empty() {
            let mut locked_out = Vec::new();
            let mut locked = None;
            for candidate in candidates {
                let session = match self.ledger.lock(&candidate.key, Instant::now()) {
                    Ok(lock) => self.locked_session(lock),
                    Err(error @ LedgerError::Locked { .. }) => {
                        locked = Some(error);
                        locked_out.push(candidate);
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                let claim = session.and_then(|mut session| {
                    owned += session.record.claims.len();
                    let dirty = |life: &Life| matches!(life, Life::Quarantined { .. });
                    quarantined += session.record.vfs.values().filter(|vf| dirty(&vf.life)).count();
                    session.claim_one(request, token)
                });
                match claim {
                    Ok(Some(mut claim)) => {
                        claim.distance = candidate.distance;
                        claim.notes.extend(match (candidate.distance, request.affinity) {
                            (Some(distance), _) => {
                                Some(format!("it is {distance}: {}", distance.meaning()))
                            }
                            (None, Some(_)) => Some("how far it is, is not known".to_owned()),
                            (None, None) => None,
                        });
                        return Ok(claim);
                    }
                    Ok(None) => {}
                    // Others may have what this one lacks, or answer where it hangs.
                    Err(error) => refusal = Some(error),
                }
            }
            candidates = locked_out;
            if let Some(locked) = locked {
                if Instant::now() >= until {
                    return Err(locked.into());
                }
                std::thread::sleep(self.patience.poll);
            }
        }
        Err(refusal.unwrap_or(HostError::Exhausted { from, owned, quarantined }))
    }
}

/// What a claim is to come from, in words.
fn source(request: &ClaimRequest) -> String {
    match (&request.pf, &request.pool) {
        (Some(pf), _) => match request.vf {
            Some(vf) => format!("pf {pf}, which is asked for VF {vf}"),
            None => format!("pf {pf}"),
        },
        (None, Some(pool)) => format!("pool {pool}"),
        (None, None) => "this host".to_owned(),
    }
}

/// The request as the ledger keeps it: without the token.
pub(crate) fn kept(request: &ClaimRequest) -> serde_json::Value {
    let mut value = serde_json::to_value(request).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("token");
    }
    value
}

/// Names of the fields in which two kept requests differ.
fn differences(before: &serde_json::Value, now: &serde_json::Value) -> Vec<String> {
    let empty = serde_json::Map::new();
    let fields = |value: &'_ serde_json::Value| value.as_object().cloned().unwrap_or(empty.clone());
    let (before, now) = (fields(before), fields(now));
    let mut names: Vec<String> = before
        .keys()
        .chain(now.keys())
        .filter(|key| before.get(*key) != now.get(*key))
        .cloned()
        .collect();
    names.sort();
    names.dedup();
    names
}

impl Session<'_> {
    /// Claim a free VF of this PF; `None` if there is none.
    fn claim_one(
        &mut self,
        request: &ClaimRequest,
        token: &str,
    ) -> Result<Option<Claim>, HostError> {
        if let Some(waiting) = &self.record.unconfirmed {
            let left = waiting.left(self.owner.now()).unwrap_or(waiting.within);
            return Err(HostError::Unconfirmed { pf: self.name().to_owned(), left });
        }
        let pf = self.read()?;
        let Some(vf) = self.free_vf(&pf, request)? else { return Ok(None) };
        // What it has decides what it gets.
        let (pf, vf) = self.read_told(vf.vf)?;
        let addresses = self.owner.ledger.lock_addresses(self.owner.lock_until())?;
        let claim = self.resolve(request, token, &pf, &vf)?;
        let id = ClaimId(format!("c-{}", hex(&self.owner.drawn().to_be_bytes())));
        if self.record.claims.contains_key(&id) {
            return Err(HostError::Conflict { claim: id, differs: "name, drawn twice".to_owned() });
        }
        let original = VfOriginal {
            driver: vf.driver.clone(),
            driver_override: vf.driver_override.clone(),
            representor: vf.representor_state,
        };
        if let Some(record) = self.record.vfs.get_mut(&vf.vf) {
            record.life = Life::Claimed;
            record.original = Some(original);
        }
        self.record.claims.insert(id.clone(), claim);
        self.save()?;
        drop(addresses);
        let ready = self
            .make_ready(&id)
            .and_then(|()| self.describe(&id, &request.vm))
            .and_then(|claim| self.hand_over(&id).map(|()| claim));
        match ready {
            Ok(claim) => Ok(Some(claim)),
            Err(source) => match self.strike_claim(&id) {
                Ok(_) => Err(source),
                Err(way_back) => Err(HostError::HalfWay {
                    pf: self.name().to_owned(),
                    doing: format!("claim VF {}", vf.vf),
                    source: Box::new(source),
                    way_back: Box::new(way_back),
                }),
            },
        }
    }

    /// From here on the owner counts on it.
    fn hand_over(&mut self, id: &ClaimId) -> Result<(), HostError> {
        if let Some(claim) = self.record.claims.get_mut(id) {
            claim.handed_over = true;
        }
        self.save()
    }

    /// A VF that the ledger has as free and that could be given away.
    fn free_vf(
        &self,
        pf: &PfReading,
        request: &ClaimRequest,
    ) -> Result<Option<VfReading>, HostError> {
        let defaults = self.record.target.as_ref().and_then(|target| target.defaults.driver);
        let driver = request.driver.or(defaults).unwrap_or_default();
        let mut refusal = None;
        let asked = |index: &VfIndex| request.vf.is_none_or(|vf| vf == *index);
        for index in self.record.free_vfs().filter(asked) {
            let usable = match pf.vf(index) {
                None => Err(HostError::VfMissing { pf: self.name().to_owned(), vf: index }),
                Some(vf) => match &vf.holder {
                    Some(holder) => Err(HostError::HeldByStranger {
                        address: vf.addr,
                        pid: holder.pid,
                        command: holder.command.clone(),
                    }),
                    None if driver == DriverWanted::VfioPci => self.owner.own_group(vf).map(|_| vf),
                    None => Ok(vf),
                },
            };
            match usable {
                Ok(vf) => return Ok(Some(vf.clone())),
                Err(error) => refusal = Some(error),
            }
        }
        refusal.map_or(Ok(None), Err)
    }
}
