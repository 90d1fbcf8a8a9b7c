//! What the agent knows of one PF, and what is under way for it: one thing at a time.

use std::time::Duration;

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::PfAddr;

use super::Tuning;
use super::repairs::Repairs;
use super::storm::Storm;
use crate::drift::Drift;
use crate::ledger::PfRecord;
use crate::recover::RecoveryEvent;

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Look,
    Count,
    /// Because of drift, or for the other reasons that there are.
    Settle {
        repairs: bool,
    },
}

/// Whether a driver counts pause frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    Unknown,
    Yes,
    No,
}

/// A link as it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    down: Option<&'static str>,
    /// When it came back, if it was gone.
    back: Option<Duration>,
}

impl Link {
    fn see(&mut self, now: Duration, down: Option<&'static str>) {
        match (self.down, down) {
            (Some(_), None) => self.back = Some(now),
            (_, Some(_)) => self.back = None,
            (None, None) => {}
        }
        self.down = down;
    }

    /// One that is back long enough counts as never gone.
    pub(super) fn settle(&mut self, now: Duration, hold: Duration) {
        self.back = self.back.filter(|back| now < *back + hold);
    }

    fn trouble(&self) -> Option<&'static str> {
        self.down.or(self.back.and(Some("its link came back a moment ago")))
    }
}

/// One PF. Times are since the agent's start.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Pf {
    pub(super) name: String,
    /// Name of its ledger file.
    pub(super) key: Option<String>,
    pub(super) record: Option<Box<PfRecord>>,
    pub(super) reading: Option<Box<PfReading>>,
    pub(super) job: Option<Job>,
    pub(super) looked_at: Option<Duration>,
    pub(super) look_due: Option<Duration>,
    pub(super) settle_due: Option<Duration>,
    pub(super) count_due: Option<Duration>,
    /// It was not recovered since the agent's start, or since it appeared.
    pub(super) recover: bool,
    /// Its entry of the file was not applied since then.
    pub(super) apply: bool,
    /// Why its entry cannot be applied as things are.
    pub(super) refused: Option<String>,
    /// When it is seen again whether it can.
    pub(super) apply_again: Option<Duration>,
    /// Why the last apply or repair failed.
    pub(super) failure: Option<String>,
    /// What recovery found last, when it changed nothing.
    pub(super) found: Vec<RecoveryEvent>,
    /// The file's entry that may mean it waits until other PFs were looked at.
    pub(super) waits: bool,
    /// VMs need not wait for it any more.
    pub(super) started: bool,
    pub(super) drift: Vec<Drift>,
    pub(super) blocked: Vec<String>,
    pub(super) cut_short_since: Option<Duration>,
    pub(super) hung: Option<String>,
    pub(super) unreadable: Option<String>,
    pub(super) link: Link,
    pub(super) storm: Storm,
    pub(super) counts: Counts,
    pub(super) repairs: Repairs,
}

impl Pf {
    /// One that was listed and not looked at yet.
    pub(super) fn new(address: PfAddr, now: Duration) -> Self {
        Self {
            name: address.to_string(),
            key: None,
            record: None,
            reading: None,
            job: None,
            looked_at: None,
            look_due: Some(now),
            settle_due: None,
            count_due: None,
            recover: true,
            apply: true,
            refused: None,
            apply_again: None,
            failure: None,
            found: Vec::new(),
            waits: false,
            started: false,
            drift: Vec::new(),
            blocked: Vec::new(),
            cut_short_since: None,
            hung: None,
            unreadable: None,
            link: Link::default(),
            storm: Storm::default(),
            counts: Counts::Unknown,
            repairs: Repairs::default(),
        }
    }

    /// It was read.
    pub(super) fn see(&mut self, now: Duration, reading: Box<PfReading>) {
        self.hung = None;
        self.unreadable = None;
        self.link.see(now, link_trouble(&reading));
        self.reading = Some(reading);
    }

    /// Look at it by then.
    pub(super) fn look_by(&mut self, due: Duration) {
        self.look_due = Some(self.look_due.map_or(due, |before| before.min(due)));
    }

    /// Why its free VFs are not to be offered.
    pub(super) fn trouble(&self) -> Option<String> {
        let hung = self.hung.as_ref().map(|why| format!("it does not answer: {why}"));
        let unreadable = || self.unreadable.as_ref().map(|why| format!("it cannot be read: {why}"));
        let link = || self.link.trouble().map(str::to_owned);
        let storm = || {
            let priority = self.storm.priority()?;
            Some(format!("its peer pauses priority {priority} without end"))
        };
        hung.or_else(unreadable).or_else(link).or_else(storm)
    }

    pub(super) fn has_link(&self) -> bool {
        self.reading.as_ref().is_some_and(|pf| pf.netdev.as_ref().is_some_and(|dev| dev.carrier))
    }

    pub(super) fn speed_mbps(&self) -> Option<u32> {
        Some(self.reading.as_ref()?.netdev.as_ref()?.speed?.0)
    }

    pub(super) fn manager(&self) -> Option<String> {
        self.reading.as_ref()?.netdev.as_ref()?.manager.clone()
    }

    /// What is due first.
    pub(super) fn next(&self, tuning: &Tuning) -> Option<Duration> {
        let held = self.link.back.map(|back| back + tuning.link_hold);
        if self.job.is_some() {
            return held;
        }
        [self.look_due, self.settle_due, self.count_due, held].into_iter().flatten().min()
    }
}

fn link_trouble(pf: &PfReading) -> Option<&'static str> {
    match &pf.netdev {
        None => Some("it has no interface here"),
        Some(netdev) if !netdev.up => Some("its interface is down"),
        Some(netdev) if !netdev.carrier => Some("it has no link"),
        Some(_) => None,
    }
}
