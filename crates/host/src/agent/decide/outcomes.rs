//! What came of work, and what follows for those who claim VFs.

use std::collections::BTreeMap;
use std::time::Duration;

use lanekeeper_model::PfAddr;

use super::Agent;
use crate::agent::pf::{Counts, Job, Pf};
use crate::agent::report::Report;
use crate::agent::work::Settlement;
use crate::agent::{Action, Now};
use crate::health::{FoughtOver, Health, Withheld};
use crate::request::ClaimId;

impl Agent {
    pub(super) fn settled(&mut self, now: Now, settlement: Settlement) {
        let did_something = settlement.did_something();
        let Some(address) = settlement.pf else { return self.settled_gone(settlement) };
        if let (Some(key), Some(target)) = (&settlement.key, settlement.rolled_back) {
            self.memory.rolled_back.insert(key.clone(), *target);
            self.actions.push(Action::Keep(self.memory.clone()));
        }
        let limits = self.tuning.repairs;
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        let repairs = pf.job.take() == Some(Job::Settle { repairs: true });
        let name = pf.name.clone();
        let counted = self.metrics.pfs.entry(name.clone()).or_default();
        let mut reports = Vec::new();
        pf.recover &= !settlement.recovered;
        if repairs && did_something {
            pf.repairs.repaired(now.up, &pf.drift, &limits);
            counted.drift_repaired += 1;
            reports.push(Report::DriftRepaired { pf: name.clone(), what: settlement.events });
        } else if did_something || settlement.events != pf.found {
            // What could not be helped is told once and not at each attempt.
            pf.found.clone_from(&settlement.events);
            counted.recoveries += u64::from(did_something);
            let (pf, what) = (name.clone(), settlement.events);
            reports.extend((!what.is_empty()).then_some(Report::Recovered { pf, what }));
        }
        if let Some(why) = settlement.refused {
            // What stands in its way may pass: a claim is released, an interface appears.
            (pf.apply, pf.apply_again) = (false, Some(now.up + self.tuning.rescan));
            if pf.refused.as_ref() != Some(&why) {
                let (pf, why) = (name.clone(), why.clone());
                reports.push(Report::NotApplied { pf, why });
            }
            pf.refused = Some(why);
        }
        if let Some(applied) = settlement.applied {
            pf.apply = false;
            pf.refused = None;
            let (pf, steps, notes) = (name.clone(), applied.steps, applied.notes);
            reports.push(Report::Applied { pf, steps, notes });
        }
        if let Some(why) = settlement.failed {
            counted.step_failures += 1;
            pf.repairs.failed(now.up, &limits);
            let again = pf.repairs.next(now.up);
            pf.look_by(again);
            pf.hung = settlement.hung.then(|| why.clone());
            pf.started = true;
            if pf.failure.as_ref() != Some(&why) {
                let (pf, why) = (name, why.clone());
                let again_in_s = again.saturating_sub(now.up).as_secs_f64();
                reports.push(Report::RepairFailed { pf, why, again_in_s });
            }
            pf.failure = Some(why);
        } else {
            pf.failure = None;
            if !did_something && (repairs || pf.cut_short_since.is_some()) {
                // Somebody else was quicker, or it is not to be put right: not at once again.
                pf.repairs.failed(now.up, &limits);
            }
            // Is it as it should be now?
            pf.look_by(now.up);
        }
        self.tell_all(reports);
    }

    pub(super) fn settled_gone(&mut self, settlement: Settlement) {
        let Some(gone) = settlement.key.as_ref().and_then(|key| self.gone.get_mut(key)) else {
            return;
        };
        let name = gone.name.clone();
        if !settlement.events.is_empty() {
            self.tell(Report::Recovered { pf: name.clone(), what: settlement.events });
        }
        if let Some(why) = settlement.failed {
            if let Some(gone) = settlement.key.and_then(|key| self.gone.get_mut(&key)) {
                gone.settled = false;
            }
            let again_in_s = self.tuning.rescan.as_secs_f64();
            self.tell(Report::RepairFailed { pf: name, why, again_in_s });
        }
    }

    pub(super) fn counted(
        &mut self,
        now: Duration,
        address: PfAddr,
        frames: &Result<Option<[u64; 8]>, String>,
    ) {
        let (tuning, Some(pf)) = (self.tuning, self.pfs.get_mut(&address)) else { return };
        pf.job = None;
        pf.count_due = Some(now + tuning.storm.poll);
        match frames {
            Ok(Some(frames)) => {
                pf.counts = Counts::Yes;
                let speed = pf.speed_mbps();
                pf.storm.count(now, *frames, speed, &tuning.storm);
                let counted = self.metrics.pfs.entry(pf.name.clone()).or_default();
                counted.pause_frames = Some(*frames);
            }
            Ok(None) => (pf.counts, pf.count_due) = (Counts::No, None),
            // What is the matter a look tells.
            Err(_) => {
                pf.count_due = None;
                pf.look_by(now);
            }
        }
    }

    /// Say which PFs are not well, and count.
    pub(super) fn publish(&mut self, now: Now) {
        let hold = self.tuning.link_hold;
        self.pfs.values_mut().for_each(|pf| pf.link.settle(now.up, hold));
        for pf in self.pfs.values().filter(|pf| pf.looked_at.is_some()) {
            let counted = self.metrics.pfs.entry(pf.name.clone()).or_default();
            counted.take(pf.record.as_deref());
            counted.link = pf.has_link();
            counted.hung = pf.hung.is_some();
            counted.offered = pf.trouble().is_none();
            counted.fought_over = pf.repairs.is_fought_over();
            counted.drift = pf.drift.len() as u64;
            let answered = pf.hung.is_none() && pf.unreadable.is_none();
            counted.read_at = if answered { pf.looked_at } else { counted.read_at };
        }
        if !self.round_is_over() {
            return;
        }
        let mut withheld = BTreeMap::new();
        for pf in self.pfs.values() {
            if let (Some(key), Some(why)) = (&pf.key, pf.trouble()) {
                withheld.insert(key.clone(), (pf.name.clone(), why));
            }
        }
        for (key, gone) in &self.gone {
            let why = format!("it is gone: no PF of this host has {}", gone.identity);
            withheld.insert(key.clone(), (gone.name.clone(), why));
        }
        let before = self.published.take();
        let known = before.clone().unwrap_or_default();
        let fought_over = self.fought_over(now, &known.fought_over);
        let withheld = self.tell_changes(now, withheld, known.withheld);
        let health = Health { withheld, fought_over };
        if before.as_ref() != Some(&health) {
            self.actions.push(Action::Publish(health.clone()));
        }
        self.published = Some(health);
    }

    fn fought_over(
        &self,
        now: Now,
        before: &BTreeMap<String, FoughtOver>,
    ) -> BTreeMap<String, FoughtOver> {
        let fought = self.pfs.values().filter(|pf| pf.repairs.is_fought_over());
        let of = |pf: &Pf| {
            let key = pf.key.clone()?;
            let since = before.get(&key).map_or(now.wall, |before| before.since);
            let (what, manager) = (pf.repairs.fought_over(), pf.manager());
            Some((key, FoughtOver { what, manager, since }))
        };
        fought.filter_map(of).collect()
    }

    /// Claims of the PF that has this ledger file.
    fn claims_of(&self, key: &String) -> Vec<ClaimId> {
        let here = self.pfs.values().find(|pf| pf.key.as_ref() == Some(key));
        let known = || self.known.iter().find(|(known, _)| known == key).map(|(_, record)| record);
        let record = here.and_then(|pf| pf.record.as_deref()).or_else(known);
        record.map(|record| record.claims.keys().cloned().collect()).unwrap_or_default()
    }

    /// Tell what became of the PFs whose free VFs are not offered; with since when, for others.
    fn tell_changes(
        &mut self,
        now: Now,
        withheld: BTreeMap<String, (String, String)>,
        before: BTreeMap<String, Withheld>,
    ) -> BTreeMap<String, Withheld> {
        let mut published = BTreeMap::new();
        for (key, (pf, why)) in withheld {
            let same = before.get(&key).filter(|before| before.why == why && before.pf == pf);
            let kept = same.cloned().unwrap_or_else(|| {
                let since = before.get(&key).map_or(now.wall, |before| before.since);
                Withheld { pf: pf.clone(), why: why.clone(), since }
            });
            if same.is_none() {
                let claims = self.claims_of(&key);
                self.tell(Report::PfUnavailable { pf, why, claims });
            }
            published.insert(key, kept);
        }
        for (key, before) in before {
            if !published.contains_key(&key) {
                self.tell(Report::PfAvailable { pf: before.pf });
            }
        }
        published
    }
}
