//! The agent's decisions: what happened and what time it is go in, what to do comes out.

use std::collections::BTreeMap;
use std::time::Duration;

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_hw::watch::{Event, Kind};
use lanekeeper_model::{PciAddr, PfAddr};

use super::memory::Memory;
use super::metrics::Metrics;
use super::pf::{Counts, Job, Pf};
use super::repairs::Repairs;
use super::report::Report;
use super::work::{Listing, Work};
use super::{Action, Input, Now, Tuning};
use crate::file::{HostFile, PfWanted};
use crate::health::Health;
use crate::ledger::PfRecord;

mod needs;
mod outcomes;

/// The agent.
#[derive(Debug)]
pub struct Agent {
    file: HostFile,
    memory: Memory,
    tuning: Tuning,
    pfs: BTreeMap<PfAddr, Pf>,
    /// What the ledger knew when PFs were listed last.
    known: Vec<(String, PfRecord)>,
    /// PFs of the ledger that are not there.
    gone: BTreeMap<String, Gone>,
    damaged: Vec<String>,
    list_due: Option<Duration>,
    listing: bool,
    /// When PFs were listed last.
    listed: Option<Duration>,
    published: Option<Health>,
    ready: bool,
    /// Until when VMs wait for PFs that are not there yet.
    waits_until: Option<Duration>,
    metrics: Metrics,
    actions: Vec<Action>,
}

/// A PF of the ledger that is not there.
#[derive(Debug)]
struct Gone {
    name: String,
    identity: String,
    /// That its claims are lost is in the ledger.
    settled: bool,
}

impl Agent {
    /// An agent that has seen nothing yet; a [`Input::Tick`] starts it.
    pub fn new(file: HostFile, memory: Memory, tuning: Tuning) -> Self {
        Self {
            file,
            memory,
            tuning,
            pfs: BTreeMap::new(),
            known: Vec::new(),
            gone: BTreeMap::new(),
            damaged: Vec::new(),
            list_due: Some(Duration::ZERO),
            listing: false,
            listed: None,
            published: None,
            ready: false,
            waits_until: Some(tuning.late_pfs),
            metrics: Metrics::default(),
            actions: Vec::new(),
        }
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// When a [`Input::Tick`] is due if nothing else happens, since the agent's start.
    pub fn next(&self) -> Duration {
        let of_pfs = self.pfs.values().filter_map(|pf| pf.next(&self.tuning));
        let list = self.list_due.filter(|_| !self.listing);
        of_pfs.chain(list).chain(self.waits_until).min().unwrap_or(Duration::MAX)
    }

    /// Something happened: what to do.
    pub fn take(&mut self, now: Now, input: Input) -> Vec<Action> {
        match input {
            Input::Tick => {}
            Input::Event(event) => self.event(now.up, &event),
            Input::Listed(Ok(listing)) => self.listed(now.up, listing),
            Input::Listed(Err(why)) => {
                self.listing = false;
                self.list_due = Some(now.up + self.tuning.hung);
                self.tell(Report::Trouble { why });
            }
            Input::Looked(look) => self.looked(now, look),
            Input::Settled(settlement) => self.settled(now, settlement),
            Input::Counted(pf, frames) => self.counted(now.up, pf, &frames),
            Input::File(file) => self.reload(now.up, *file),
        }
        self.find_gone();
        self.wake_waiting(now.up);
        self.start_due(now);
        self.publish(now);
        self.tell_ready(now.up);
        std::mem::take(&mut self.actions)
    }

    fn tell(&mut self, report: Report) {
        self.metrics.reports += 1;
        self.actions.push(Action::Tell(report));
    }

    fn tell_all(&mut self, reports: impl IntoIterator<Item = Report>) {
        for report in reports {
            self.tell(report);
        }
    }

    fn event(&mut self, now: Duration, event: &Event) {
        *self.metrics.events.entry(event.kind.name()).or_default() += 1;
        if event.kind == Kind::Lost {
            self.tell(Report::EventsLost);
            self.list_by(now);
            return;
        }
        let Some(address) = self.pf_of(event) else {
            // What is no PF's yet may be a PF that appeared, or one of its VFs.
            if event.function.is_some() && !matches!(event.kind, Kind::Link { .. }) {
                let rest = self.listed.map_or(Duration::ZERO, |at| at + self.tuning.between_looks);
                self.list_by(rest.max(now + self.tuning.debounce));
            }
            return;
        };
        let tuning = self.tuning;
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        let is_removed = event.kind == Kind::Gone && event.function == Some(address.into());
        let rest = pf.looked_at.map_or(Duration::ZERO, |looked| looked + tuning.between_looks);
        pf.look_by(if is_removed { now } else { rest.max(now + tuning.debounce) });
        self.metrics.pfs.entry(pf.name.clone()).or_default().events += 1;
    }

    /// The PF that an event is about: its own, or one of its VFs'.
    fn pf_of(&self, event: &Event) -> Option<PfAddr> {
        let is_its = |address: &PfAddr, reading: Option<&PfReading>| {
            let vfs = || reading.into_iter().flat_map(|pf| &pf.vfs);
            if let Some(function) = event.function {
                return function == PciAddr::from(*address)
                    || vfs().any(|vf| function == PciAddr::from(vf.addr));
            }
            let name = event.interface.as_ref();
            let own = reading.and_then(|pf| pf.netdev.as_ref());
            let of_vfs = vfs().filter_map(|vf| vf.netdev.as_ref());
            let representors = vfs().filter_map(|vf| vf.representor.as_ref());
            own.into_iter()
                .chain(of_vfs)
                .map(|netdev| &netdev.name)
                .chain(representors)
                .any(|known| Some(known) == name)
        };
        let mut pfs = self.pfs.iter();
        pfs.find(|(address, pf)| is_its(address, pf.reading.as_deref())).map(|(pf, _)| *pf)
    }

    fn list_by(&mut self, due: Duration) {
        self.list_due = Some(self.list_due.map_or(due, |before| before.min(due)));
    }

    fn listed(&mut self, now: Duration, listing: Listing) {
        self.listing = false;
        // What was asked for meanwhile is still due.
        self.list_by(now + self.tuning.rescan);
        let went: Vec<PfAddr> =
            self.pfs.keys().filter(|pf| !listing.pfs.contains(pf)).copied().collect();
        for pf in went {
            self.lose(pf);
        }
        for address in listing.pfs {
            if let Some(pf) = self.pfs.get_mut(&address) {
                pf.look_by(now);
                pf.counts = if pf.counts == Counts::No { Counts::Unknown } else { pf.counts };
                continue;
            }
            self.pfs.insert(address, Pf::new(address, now));
            if self.listed.is_some() {
                self.tell(Report::PfAppeared { pf: address.to_string(), address });
            }
        }
        self.known = listing.records;
        self.gone.retain(|key, _| self.known.iter().any(|(known, _)| known == key));
        for (key, gone) in self.gone.iter_mut().filter(|(_, gone)| !gone.settled) {
            gone.settled = true;
            let work = Work { pf: None, key: Some(key.clone()), apply: None };
            self.actions.push(Action::Settle(Box::new(work)));
        }
        if listing.damaged != self.damaged {
            self.damaged.clone_from(&listing.damaged);
            self.tell_all(listing.damaged.into_iter().map(|why| Report::Trouble { why }));
        }
        self.listed = Some(now);
    }

    /// A PF is not there any more.
    fn lose(&mut self, address: PfAddr) {
        let Some(pf) = self.pfs.remove(&address) else { return };
        match pf.key.zip(pf.record) {
            Some((key, record)) => self.lose_record(key, &record),
            None => drop(self.metrics.pfs.remove(&pf.name)),
        }
    }

    fn lose_record(&mut self, key: String, record: &PfRecord) {
        let (name, identity) = (record.name.clone(), record.identity.to_string());
        self.tell(Report::PfGone { pf: name.clone() });
        let work = Work { pf: None, key: Some(key.clone()), apply: None };
        self.actions.push(Action::Settle(Box::new(work)));
        let counted = self.metrics.pfs.entry(name.clone()).or_default();
        counted.take(Some(record));
        (counted.link, counted.offered, counted.hung) = (false, false, false);
        self.gone.insert(key, Gone { name, identity, settled: true });
    }

    /// Every PF that was listed was looked at since.
    fn round_is_over(&self) -> bool {
        self.listed.is_some() && self.pfs.values().all(|pf| pf.looked_at.is_some())
    }

    /// PFs that the ledger knows and that are nowhere.
    fn find_gone(&mut self) {
        if !self.round_is_over() {
            return;
        }
        let ours = |record: &PfRecord| record.target.is_some() || !record.claims.is_empty();
        let is_here = |key: &String| self.pfs.values().any(|pf| pf.key.as_ref() == Some(key));
        let nowhere: Vec<_> = self
            .known
            .iter()
            .filter(|(key, record)| ours(record) && !is_here(key) && !self.gone.contains_key(key))
            .cloned()
            .collect();
        for (key, record) in nowhere {
            self.lose_record(key, &record);
        }
    }

    fn reload(&mut self, now: Duration, file: HostFile) {
        self.file = file;
        self.tell(Report::Reloaded);
        if !self.memory.rolled_back.is_empty() {
            self.memory = Memory::default();
            self.actions.push(Action::Keep(self.memory.clone()));
        }
        for pf in self.pfs.values_mut() {
            pf.apply = true;
            (pf.refused, pf.apply_again) = (None, None);
            pf.failure = None;
            pf.repairs = Repairs::default();
            pf.look_by(now);
        }
    }

    /// Start what is due, one thing for each PF.
    fn start_due(&mut self, now: Now) {
        let is_due = |due: Option<Duration>| due.is_some_and(|due| due <= now.up);
        if !self.listing && is_due(self.list_due) {
            self.listing = true;
            self.list_due = None;
            self.actions.push(Action::List);
        }
        let idle: Vec<PfAddr> =
            self.pfs.iter().filter(|(_, pf)| pf.job.is_none()).map(|(pf, _)| *pf).collect();
        for address in idle {
            let Some(pf) = self.pfs.get(&address) else { continue };
            if is_due(pf.settle_due) {
                self.start_settle(address);
            } else if is_due(pf.look_due) {
                self.start(address, Job::Look, Action::Look(address));
            } else if is_due(pf.count_due) {
                self.start(address, Job::Count, Action::Count(address));
            }
        }
    }

    fn start(&mut self, address: PfAddr, job: Job, action: Action) {
        let Some(pf) = self.pfs.get_mut(&address) else { return };
        pf.job = Some(job);
        match job {
            Job::Look => pf.look_due = None,
            Job::Count => pf.count_due = None,
            Job::Settle { .. } => pf.settle_due = None,
        }
        self.actions.push(action);
    }

    fn start_settle(&mut self, address: PfAddr) {
        let Some(pf) = self.pfs.get(&address) else { return };
        let waits = pf.record.as_ref().is_some_and(|record| record.unconfirmed.is_some());
        let (key, repairs) = (pf.key.clone(), !pf.recover && !pf.drift.is_empty());
        let apply = if waits { None } else { self.wanted_of_file(address) };
        let repairs = repairs && apply.is_none() && !waits;
        let work = Work { pf: Some(address), key, apply };
        self.start(address, Job::Settle { repairs }, Action::Settle(Box::new(work)));
    }

    fn tell_ready(&mut self, now: Duration) {
        let all = self.pfs.values().all(|pf| pf.started);
        self.waits_until = self.waits_until.filter(|until| now < *until && !self.ready);
        let waits = self.waits_until.is_some() && self.misses_pfs();
        if !self.ready && all && self.round_is_over() && !waits {
            self.ready = true;
            self.tell(Report::Ready);
        }
    }

    /// The file has PFs that are not there, and those that do not answer are too few to be them.
    fn misses_pfs(&self) -> bool {
        let read = |pf: &Pf| pf.hung.is_none() && pf.unreadable.is_none();
        let silent = self.pfs.values().filter(|pf| !read(pf)).count();
        let is_there = |entry: &&PfWanted| {
            self.pfs.values().filter(|pf| read(pf)).any(|pf| {
                let reading = pf.reading.as_ref();
                reading.is_some_and(|reading| entry.select.differences(reading).is_empty())
            })
        };
        self.file.pfs.iter().filter(|entry| !is_there(entry)).count() > silent
    }
}
