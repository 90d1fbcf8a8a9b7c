//! What a PF needs once it was looked at: the file's entry, what was cut short, what drifted.

use std::time::Duration;

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::PfAddr;

use super::Agent;
use crate::agent::judge::judge;
use crate::agent::pf::Counts;
use crate::agent::report::Report;
use crate::agent::work::{Look, Saw};
use crate::agent::{Action, Now};
use crate::file::{HostFile, PfWanted, SelectError};
use crate::ledger::{Life, PfRecord, PfTarget};

impl Agent {
    pub(super) fn looked(&mut self, now: Now, look: Look) {
        let Look { pf: address, saw, record, steady } = look;
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        pf.job = None;
        pf.looked_at = Some(now.up);
        let reading = match saw {
            Saw::Reading(reading) => reading,
            Saw::Gone => return self.lose(address),
            Saw::Hung(why) => return self.unanswered(now.up, address, Some(why), None, record),
            Saw::Failed(why) => return self.unanswered(now.up, address, None, Some(why), record),
        };
        let before = pf.reading.take();
        pf.see(now.up, reading);
        let (key, record) = record.unzip();
        pf.key.clone_from(&key);
        pf.record = record;
        if let Some(key) = key
            && self.gone.remove(&key).is_some()
        {
            pf.recover = true;
        }
        self.rename(address);
        self.report_holders(address, before.as_deref());
        self.assess(now, address, steady);
    }

    pub(super) fn unanswered(
        &mut self,
        now: Duration,
        address: PfAddr,
        hung: Option<String>,
        unreadable: Option<String>,
        record: Option<(String, Box<PfRecord>)>,
    ) {
        let again = now + self.tuning.hung;
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        (pf.hung, pf.unreadable) = (hung, unreadable);
        pf.look_by(again);
        (pf.settle_due, pf.count_due) = (None, None);
        pf.started = true;
        if pf.key.is_none() {
            (pf.key, pf.record) = record.unzip();
        }
        self.rename(address);
    }

    /// Our name for it, as far as it is known.
    pub(super) fn rename(&mut self, address: PfAddr) {
        let Some(pf) = self.pfs.get(&address) else { return };
        let by_file = pf.reading.as_ref().and_then(|reading| self.entry_of(reading)?.ok());
        let by_file = by_file.map(|entry| entry.name.clone());
        let name = pf.record.as_ref().map(|record| record.name.clone()).or(by_file);
        let name = name.unwrap_or_else(|| address.to_string());
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        if pf.name != name {
            let counted = self.metrics.pfs.remove(&pf.name);
            self.metrics.pfs.entry(name.clone()).or_insert(counted.unwrap_or_default());
            pf.name = name;
        }
    }

    /// The file's entry that means a PF. An entry that goes by what other PFs may have too waits
    /// until all were looked at.
    pub(super) fn entry_of(&self, reading: &PfReading) -> Option<Result<&PfWanted, SelectError>> {
        let mut entries = self.file.pfs.iter();
        let entry = entries.find(|entry| entry.select.differences(reading).is_empty())?;
        let select = &entry.select;
        let is_unique =
            select.permanent_mac.is_some() || select.guid.is_some() || select.address.is_some();
        if !is_unique && !self.round_is_over() {
            return None;
        }
        let others = self.pfs.values().filter_map(|pf| pf.reading.as_deref());
        let others = others.filter(|other| other.addr != reading.addr);
        let all = others.chain(std::iter::once(reading));
        Some(select.choose(&entry.name, all).map(|_| entry))
    }

    /// Processes that held a VF with an owner and do not any more.
    pub(super) fn report_holders(&mut self, address: PfAddr, before: Option<&PfReading>) {
        let Some(pf) = self.pfs.get(&address) else { return };
        let (Some(record), Some(reading)) = (&pf.record, &pf.reading) else { return };
        let mut reports = Vec::new();
        for (claim, of) in &record.claims {
            let Some(vf) = reading.vf(of.vf).filter(|vf| vf.holder.is_none()) else { continue };
            let held = before.and_then(|pf| pf.vf(vf.vf)?.holder.clone());
            let life = record.vfs.get(&vf.vf).map(|vf| &vf.life);
            // One that was asked to give it back did what it was asked.
            if matches!(life, Some(Life::Detaching | Life::Scrubbing)) {
                continue;
            }
            // Before the agent's start only the ledger saw it.
            let attached = before.is_none() && life == Some(&Life::Attached);
            if held.is_none() && !attached {
                continue;
            }
            let (pid, command) = held.map(|holder| (holder.pid, holder.command)).unzip();
            let (pf, claim) = (pf.name.clone(), claim.clone());
            reports.push(Report::HolderGone { pf, vf: vf.vf, claim, pid, command });
        }
        let counted = self.metrics.pfs.entry(pf.name.clone()).or_default();
        counted.holders_gone += reports.len() as u64;
        self.tell_all(reports);
    }

    /// What a PF needs, now that it was read.
    pub(super) fn assess(&mut self, now: Now, address: PfAddr, steady: bool) {
        let tuning = self.tuning;
        if let Some(pf) = self.pfs.get_mut(&address) {
            pf.apply |= pf.apply_again.take_if(|again| *again <= now.up).is_some();
        }
        let to_apply = self.wanted_of_file(address);
        let waits_for_others = self.waits_for_others(address);
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        pf.waits = waits_for_others;
        pf.settle_due = None;
        let Some(record) = pf.record.as_deref() else {
            match to_apply {
                Some(_) => pf.settle_due = Some(pf.repairs.next(now.up)),
                None => pf.started = !waits_for_others,
            }
            return;
        };
        if pf.counts != Counts::No && pf.count_due.is_none() {
            pf.count_due = Some(now.up);
        }
        if pf.recover {
            pf.settle_due = Some(pf.repairs.next(now.up));
            return;
        }
        if let Some(waiting) = &record.unconfirmed {
            // Its time over, whoever works on the PF rolls it back: the agent if nobody else.
            match waiting.left(now.wall).filter(|left| !left.is_zero()) {
                Some(left) => pf.look_by(now.up + left),
                None => pf.settle_due = Some(pf.repairs.next(now.up)),
            }
            pf.started = true;
            return;
        }
        if record.is_cut_short() || !steady {
            // Somebody may be at it this moment. If not, it is for us to finish.
            let since = *pf.cut_short_since.get_or_insert(now.up);
            let patience = since + tuning.others_work;
            pf.look_by((now.up + tuning.debounce).max(patience.min(now.up + tuning.between_looks)));
            if now.up >= patience {
                pf.settle_due = Some(pf.repairs.next(now.up));
            }
            return;
        }
        pf.cut_short_since = None;
        if to_apply.is_some() {
            pf.settle_due = Some(pf.repairs.next(now.up));
            return;
        }
        pf.started |= !waits_for_others;
        self.judge(now.up, address);
    }

    /// Drift, and what is done about it.
    pub(super) fn judge(&mut self, now: Duration, address: PfAddr) {
        let limits = self.tuning.repairs;
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        let (Some(reading), Some(record)) = (&pf.reading, &pf.record) else { return };
        let judgement = judge(reading, record);
        let (name, manager) = (pf.name.clone(), pf.manager());
        let counted = self.metrics.pfs.entry(name.clone()).or_default();
        let mut reports = Vec::new();
        if judgement.blocked != pf.blocked {
            pf.blocked = judgement.blocked;
            let why = pf.blocked.clone();
            reports.push(Report::Blocked { pf: name.clone(), why });
        }
        let drift = judgement.drift;
        if drift.is_empty() {
            if pf.repairs.calm(now, &limits) {
                reports.push(Report::FightOver { pf: name });
            }
        } else {
            counted.drift_found += u64::from(pf.drift.is_empty());
            if drift != pf.drift {
                let (pf, drift, manager) = (name.clone(), drift.clone(), manager.clone());
                reports.push(Report::DriftFound { pf, drift, manager });
            }
            let (given_up, repairs) = pf.repairs.found(now, &drift, &limits);
            if !given_up.is_empty() {
                let drift = given_up;
                reports.push(Report::FoughtOver { pf: name, drift, repairs, manager });
            }
            pf.settle_due = pf.repairs.next_of(now, &drift, judgement.guards, &limits);
        }
        pf.drift = drift;
        self.tell_all(reports);
    }

    /// Those that waited for others go on once all were looked at.
    pub(super) fn wake_waiting(&mut self, now: Duration) {
        if self.round_is_over() {
            for pf in self.pfs.values_mut().filter(|pf| pf.waits) {
                pf.waits = false;
                pf.look_by(now);
            }
        }
    }

    /// An entry that may mean this PF has to wait until others were looked at.
    pub(super) fn waits_for_others(&self, address: PfAddr) -> bool {
        let Some(reading) = self.pfs.get(&address).and_then(|pf| pf.reading.as_ref()) else {
            return false;
        };
        let mut entries = self.file.pfs.iter();
        let meant = entries.any(|entry| entry.select.differences(reading).is_empty());
        meant && self.entry_of(reading).is_none()
    }

    /// The file with the entry of a PF alone, if that is to be applied.
    pub(super) fn wanted_of_file(&mut self, address: PfAddr) -> Option<HostFile> {
        let pf = self.pfs.get(&address).filter(|pf| pf.apply)?;
        let entry = match self.entry_of(pf.reading.as_ref()?)? {
            Ok(entry) => entry.clone(),
            Err(error) => {
                let why = error.to_string();
                self.not_applied(address, why);
                return None;
            }
        };
        let profile = entry.roce.as_ref().and_then(|name| self.file.roce_profiles.get(name));
        let target = PfTarget::of(&entry, profile, &self.file.defaults);
        let record = pf.record.as_deref();
        if record.is_some_and(|record| {
            record.target.as_ref() == Some(&target) && record.name == entry.name
        }) {
            // The ledger has it already: whatever differs is drift.
            let key = pf.key.clone();
            self.pfs.get_mut(&address)?.apply = false;
            self.forget(key.as_ref());
            return None;
        }
        let before = pf.key.as_ref().and_then(|key| self.memory.rolled_back.get(key));
        if before == Some(&target) {
            let why = "it was rolled back because nobody confirmed it; apply and confirm it by \
                       hand, or reload the agent to have it applied after all";
            self.not_applied(address, why.to_owned());
            return None;
        }
        Some(HostFile { pfs: vec![entry], ..self.file.clone() })
    }

    pub(super) fn not_applied(&mut self, address: PfAddr, why: String) {
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        pf.apply = false;
        let pf = pf.name.clone();
        self.tell(Report::NotApplied { pf, why });
    }

    pub(super) fn forget(&mut self, key: Option<&String>) {
        if key.is_some_and(|key| self.memory.rolled_back.remove(key).is_some()) {
            self.actions.push(Action::Keep(self.memory.clone()));
        }
    }
}
