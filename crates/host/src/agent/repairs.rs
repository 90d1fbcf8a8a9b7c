//! How often a PF is repaired: at once the first time, then with longer and longer pauses, and not
//! for ever. Whoever undoes what is repaired again and again is not to be outrun: that is reported,
//! and left.

use std::collections::VecDeque;
use std::time::Duration;

/// How patient repairs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairLimits {
    /// Pause after the first repair, and after the first that failed. It doubles with each more.
    pub pause: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// So many repairs ...
    pub most: usize,
    /// ... within this time, and what returns then is fought over.
    pub within: Duration,
}

impl Default for RepairLimits {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            most: 5,
            within: Duration::from_secs(600),
        }
    }
}

/// Repairs of one PF. Times are since the agent's start.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    done: VecDeque<Duration>,
    failures: u32,
    not_before: Duration,
    fought: bool,
}

impl Repairs {
    /// When the next may begin; `None` while it is fought over.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        (!self.fought).then_some(self.not_before.max(now))
    }

    /// Whether what returned now has been repaired too often. True once for each fight.
    pub(super) fn gives_up(&mut self, now: Duration, limits: &RepairLimits) -> bool {
        self.forget(now, limits);
        let too_often = self.done.len() >= limits.most;
        too_often && !std::mem::replace(&mut self.fought, true)
    }

    pub(super) fn repaired(&mut self, now: Duration, limits: &RepairLimits) {
        self.forget(now, limits);
        self.failures = 0;
        self.done.push_back(now);
        self.pause(now, self.done.len(), limits);
    }

    pub(super) fn failed(&mut self, now: Duration, limits: &RepairLimits) {
        self.failures += 1;
        self.pause(now, self.failures as usize, limits);
    }

    /// Nothing is amiss. Whether a fight is over with it.
    pub(super) fn calm(&mut self) -> bool {
        self.failures = 0;
        std::mem::take(&mut self.fought)
    }

    pub(super) fn is_fought_over(&self) -> bool {
        self.fought
    }

    /// Repairs that still count.
    pub(super) fn count(&self) -> usize {
        self.done.len()
    }

    fn pause(&mut self, now: Duration, times: usize, limits: &RepairLimits) {
        let doublings = times.saturating_sub(1).min(20) as u32;
        self.not_before = now + limits.pause.saturating_mul(1 << doublings).min(limits.longest);
    }

    fn forget(&mut self, now: Duration, limits: &RepairLimits) {
        while self.done.front().is_some_and(|done| *done + limits.within <= now) {
            self.done.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_repair_is_at_once_and_the_next_wait_twice_as_long_each_time() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        assert_eq!(repairs.next(s(100)), Some(s(100)));
        repairs.repaired(s(100), &limits);
        assert_eq!(repairs.next(s(100)), Some(s(101)));
        repairs.repaired(s(101), &limits);
        assert_eq!(repairs.next(s(101)), Some(s(103)));
        repairs.repaired(s(103), &limits);
        assert_eq!(repairs.next(s(103)), Some(s(107)));
    }

    #[test]
    fn failures_are_never_given_up_but_tried_ever_more_seldom() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        for _ in 0..40 {
            repairs.failed(s(0), &limits);
        }
        assert_eq!(repairs.next(s(0)), Some(limits.longest));
        assert!(!repairs.gives_up(s(0), &limits));
        repairs.calm();
        repairs.failed(s(0), &limits);
        assert_eq!(repairs.next(s(0)), Some(limits.pause));
    }

    #[test]
    fn repairs_that_lie_far_apart_are_no_fight() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        for hour in 0..100 {
            repairs.repaired(s(3_600 * hour), &limits);
            assert!(!repairs.gives_up(s(3_600 * hour + 1), &limits));
        }
    }

    #[test]
    fn a_fight_is_told_once_and_ends_when_nothing_is_amiss() {
        let (limits, mut repairs) = (RepairLimits::default(), Repairs::default());
        for second in 0..limits.most as u64 {
            assert!(!repairs.gives_up(s(second), &limits));
            repairs.repaired(s(second), &limits);
        }
        assert!(repairs.gives_up(s(9), &limits));
        assert!(!repairs.gives_up(s(10), &limits), "it was told");
        assert_eq!(repairs.next(s(10)), None);
        assert!(repairs.calm());
        assert!(repairs.gives_up(s(11), &limits), "the same again is told at once");
    }
}
