//! How often a PF is repaired: at once the first time, then with longer and longer pauses, and not
//! for ever. Whoever undoes one thing again and again is not to be outrun: that is reported, and
//! left, but for what guards other tenants, which is put right at a slow pace. Things that were
//! changed once each are no fight.

use std::collections::VecDeque;
use std::time::Duration;

use lanekeeper_model::VfIndex;

use crate::drift::Drift;

/// How patient repairs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairLimits {
    /// Pause after the first repair, and after the first that failed. It doubles with each more of
    /// the same thing.
    pub pause: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// What differs again within this time after its repair was undone.
    pub soon: Duration,
    /// So many repairs of one thing, each undone soon, ...
    pub most: usize,
    /// ... within this time, and the thing is fought over.
    pub within: Duration,
    /// Between two repairs of what is fought over and guards other tenants.
    pub slow: Duration,
}

impl Default for RepairLimits {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            soon: Duration::from_secs(30),
            most: 5,
            within: Duration::from_secs(600),
            slow: Duration::from_secs(60),
        }
    }
}

/// Repairs of one PF. Times are since the agent's start.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    things: Vec<Thing>,
    failures: u32,
    not_before: Duration,
    last: Duration,
}

/// One thing that was put right: a setting of a VF, or a step of the PF's.
#[derive(Debug)]
struct Thing {
    vf: Option<VfIndex>,
    what: String,
    /// Its repairs that were undone soon, and the last one.
    done: VecDeque<Duration>,
    /// It differs again since the last.
    is_back: bool,
    fought: bool,
    /// When it was last put right although it is fought over.
    tried: Option<Duration>,
}

impl Thing {
    fn is(&self, drift: &Drift) -> bool {
        self.vf == drift.vf && self.what == drift.what
    }
}

impl Repairs {
    /// When the next may begin.
    pub(super) fn next(&self, now: Duration) -> Duration {
        self.not_before.max(now)
    }

    /// When this may be put right; `None` if all of it is fought over and none of it guards others.
    pub(super) fn next_of(
        &self,
        now: Duration,
        drift: &[Drift],
        guards: bool,
        limits: &RepairLimits,
    ) -> Option<Duration> {
        let fought = |drift| self.things.iter().any(|thing| thing.is(drift) && thing.fought);
        if !drift.iter().all(fought) {
            return Some(self.next(now));
        }
        guards.then(|| self.next(now).max(self.last + limits.slow))
    }

    /// This differs now. What of it is fought over from now on, with the repairs that were undone.
    pub(super) fn found(
        &mut self,
        now: Duration,
        drift: &[Drift],
        limits: &RepairLimits,
    ) -> (Vec<Drift>, usize) {
        self.forget(now, limits);
        let (mut given_up, mut most) = (Vec::new(), 0);
        for thing in &mut self.things {
            let Some(drift) = drift.iter().find(|drift| thing.is(drift)) else {
                thing.is_back = false;
                continue;
            };
            if thing.fought {
                continue;
            }
            let is_new = !std::mem::replace(&mut thing.is_back, true);
            if is_new && thing.done.back().is_some_and(|done| *done + limits.soon < now) {
                thing.done.clear();
            }
            if thing.done.len() >= limits.most {
                thing.fought = true;
                most = most.max(thing.done.len());
                given_up.push(drift.clone());
            }
        }
        (given_up, most)
    }

    /// This was put right.
    pub(super) fn repaired(&mut self, now: Duration, drift: &[Drift], limits: &RepairLimits) {
        self.forget(now, limits);
        (self.failures, self.last) = (0, now);
        let mut most = 1;
        for drift in drift {
            let at = self.things.iter().position(|thing| thing.is(drift));
            let at = at.unwrap_or_else(|| {
                let (vf, what) = (drift.vf, drift.what.clone());
                let (done, is_back, fought, tried) = (VecDeque::new(), false, false, None);
                self.things.push(Thing { vf, what, done, is_back, fought, tried });
                self.things.len() - 1
            });
            let thing = &mut self.things[at];
            thing.is_back = false;
            if thing.fought {
                thing.tried = Some(now);
            } else {
                thing.done.push_back(now);
                most = most.max(thing.done.len());
            }
        }
        self.pause(now, most, limits);
    }

    pub(super) fn failed(&mut self, now: Duration, limits: &RepairLimits) {
        self.failures += 1;
        self.pause(now, self.failures as usize, limits);
    }

    /// Nothing is amiss. Whether a fight is over with it, and what was counted forgotten: what the
    /// agent put right itself has to stay so for a while first.
    pub(super) fn calm(&mut self, now: Duration, limits: &RepairLimits) -> bool {
        self.failures = 0;
        let stays = |thing: &Thing| thing.tried.is_none_or(|tried| tried + limits.soon <= now);
        let is_over = self.is_fought_over() && self.things.iter().all(stays);
        if is_over {
            self.things.clear();
        }
        self.things.iter_mut().for_each(|thing| thing.is_back = false);
        is_over
    }

    pub(super) fn is_fought_over(&self) -> bool {
        self.things.iter().any(|thing| thing.fought)
    }

    /// What is fought over, in words.
    pub(super) fn fought_over(&self) -> Vec<String> {
        let words = |thing: &Thing| match thing.vf {
            Some(vf) => format!("VF {vf}: {}", thing.what),
            None => thing.what.clone(),
        };
        self.things.iter().filter(|thing| thing.fought).map(words).collect()
    }

    fn pause(&mut self, now: Duration, times: usize, limits: &RepairLimits) {
        let doublings = times.saturating_sub(1).min(20) as u32;
        self.not_before = now + limits.pause.saturating_mul(1 << doublings).min(limits.longest);
    }

    fn forget(&mut self, now: Duration, limits: &RepairLimits) {
        for thing in self.things.iter_mut().filter(|thing| !thing.fought) {
            while thing.done.front().is_some_and(|done| *done + limits.within <= now) {
                thing.done.pop_front();
            }
        }
        self.things.retain(|thing| thing.fought || !thing.done.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn amiss(what: &str) -> [Drift; 1] {
        [Drift { pf: "rail0".to_owned(), vf: None, what: what.to_owned() }]
    }

    fn gives_up(repairs: &mut Repairs, now: Duration, drift: &[Drift]) -> bool {
        !repairs.found(now, drift, &RepairLimits::default()).0.is_empty()
    }

    /// A thing that is undone a second after each of its repairs, until it is given up.
    fn fought_over(drift: &[Drift]) -> Repairs {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        for second in 0..limits.most as u64 {
            assert!(!gives_up(&mut repairs, s(second), drift));
            repairs.repaired(s(second), drift, &limits);
        }
        assert!(gives_up(&mut repairs, s(9), drift));
        repairs
    }

    #[test]
    fn the_first_repair_is_at_once_and_the_next_wait_twice_as_long_each_time() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        assert_eq!(repairs.next(s(100)), s(100));
        repairs.repaired(s(100), &amiss("MTU"), &limits);
        assert_eq!(repairs.next(s(100)), s(101));
        repairs.repaired(s(101), &amiss("MTU"), &limits);
        assert_eq!(repairs.next(s(101)), s(103));
        repairs.repaired(s(103), &amiss("MTU"), &limits);
        assert_eq!(repairs.next(s(103)), s(107));
        repairs.repaired(s(107), &amiss("VLAN"), &limits);
        assert_eq!(repairs.next(s(107)), s(108), "another thing");
    }

    #[test]
    fn failures_are_never_given_up_but_tried_ever_more_seldom() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        for _ in 0..40 {
            repairs.failed(s(0), &limits);
        }
        assert_eq!(repairs.next(s(0)), limits.longest);
        assert!(!gives_up(&mut repairs, s(0), &amiss("MTU")));
        repairs.calm(s(0), &limits);
        repairs.failed(s(0), &limits);
        assert_eq!(repairs.next(s(0)), limits.pause);
    }

    #[test]
    fn repairs_that_lie_far_apart_are_no_fight() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        for minute in 0..100 {
            assert!(!gives_up(&mut repairs, s(60 * minute), &amiss("MTU")));
            repairs.repaired(s(60 * minute + 1), &amiss("MTU"), &limits);
            repairs.calm(s(60 * minute + 2), &limits);
        }
    }

    #[test]
    fn what_waits_long_for_its_repair_was_undone_soon_all_the_same() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        for minute in 0..limits.most as u64 {
            repairs.repaired(s(60 * minute), &amiss("MTU"), &limits);
            let found = gives_up(&mut repairs, s(60 * minute + 1), &amiss("MTU"));
            assert_eq!(found, minute + 1 == limits.most as u64);
            gives_up(&mut repairs, s(60 * minute + 50), &amiss("MTU"));
        }
    }

    #[test]
    fn a_fight_is_told_once_and_ends_with_its_count_when_nothing_is_amiss() {
        let limits = RepairLimits::default();
        let mut repairs = fought_over(&amiss("MTU"));
        assert!(!gives_up(&mut repairs, s(10), &amiss("MTU")), "it was told");
        assert_eq!(repairs.next_of(s(10), &amiss("MTU"), false, &limits), None);
        assert!(repairs.calm(s(10), &limits));
        assert!(!gives_up(&mut repairs, s(11), &amiss("MTU")), "it counts anew");
    }

    #[test]
    fn what_is_fought_over_keeps_no_other_thing_from_its_repair() {
        let limits = RepairLimits::default();
        let mut repairs = fought_over(&amiss("MTU"));
        let both = [amiss("MTU"), amiss("VLAN")].concat();
        assert!(!gives_up(&mut repairs, s(40), &both));
        assert_eq!(repairs.next_of(s(40), &both, false, &limits), Some(s(40)));
    }

    #[test]
    fn what_guards_others_is_put_right_at_a_slow_pace_and_its_fight_ends_once_it_stays() {
        let limits = RepairLimits::default();
        let mut repairs = fought_over(&amiss("spoofchk"));
        let next = repairs.next_of(s(10), &amiss("spoofchk"), true, &limits);
        assert_eq!(next, Some(s(4) + limits.slow));
        repairs.repaired(s(64), &amiss("spoofchk"), &limits);
        assert!(!repairs.calm(s(65), &limits), "that is our own doing");
        let next = repairs.next_of(s(66), &amiss("spoofchk"), true, &limits);
        assert_eq!(next, Some(s(64) + limits.slow));
        assert!(repairs.calm(s(64) + limits.soon, &limits));
    }
}
