//! A link and the queue before it: packets leave one after the other at a rate, arrive after a
//! delay, and are marked by how long the queue is when they join it.

use std::time::Duration;

use super::Random;
use crate::time::Time;

/// A link's rate and delay, and what its queue does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bit/s.
    pub rate: f64,
    /// From the last bit's departure to its arrival.
    pub delay: Duration,
    /// The most bytes its queue holds; what comes when it is full is lost.
    pub capacity: u64,
    /// When the queue marks.
    pub marking: Marking,
}

/// ECN marking, as RED does it (SIGCOMM 2015, section 3.1, "CP algorithm"): never up to `minimum`
/// bytes, always above `maximum`, and in between with a probability that grows up to `probability`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Kmin, in bytes.
    pub minimum: u64,
    /// Kmax, in bytes.
    pub maximum: u64,
    /// Pmax.
    pub probability: f64,
}

impl Marking {
    /// No marks.
    pub const NEVER: Marking = Marking { minimum: u64::MAX, maximum: u64::MAX, probability: 0.0 };

    /// Whether a packet that finds `queued` bytes before it is marked.
    #[allow(clippy::cast_precision_loss)]
    pub fn marks(&self, queued: u64, random: &mut Random) -> bool {
        if queued <= self.minimum {
            return false;
        }
        if queued > self.maximum {
            return true;
        }
        let share = (queued - self.minimum) as f64 / (self.maximum - self.minimum) as f64;
        random.chance(share * self.probability)
    }
}

impl Default for Link {
    /// 100 Gb/s, 1 us, 16 MB, no marks.
    fn default() -> Link {
        Link {
            rate: 100e9,
            delay: Duration::from_micros(1),
            capacity: 16 << 20,
            marking: Marking::NEVER,
        }
    }
}

/// A link in use.
#[derive(Clone, Debug)]
pub(super) struct Line {
    link: Link,
    /// When all that is queued has left, in picoseconds.
    busy_until: u64,
    deepest: u64,
}

impl Line {
    pub(super) fn new(link: Link) -> Line {
        Line { link, busy_until: 0, deepest: 0 }
    }

    /// Bytes that wait or are leaving at `now`.
    #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)]
    pub(super) fn queued(&self, now: Time) -> u64 {
        let left = self.busy_until.saturating_sub(now.nanos() * 1000);
        (left as f64 * self.link.rate / 8e12) as u64
    }

    /// A packet joins the queue: when its last bit has left and when it has arrived, and whether it
    /// is marked; none if the queue is full.
    #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)]
    pub(super) fn join(&mut self, now: Time, bytes: u64, random: &mut Random) -> Option<Passage> {
        let queued = self.queued(now);
        if queued + bytes > self.link.capacity {
            return None;
        }
        self.deepest = self.deepest.max(queued + bytes);
        let marked = self.link.marking.marks(queued, random);
        let span = (bytes as f64 * 8e12 / self.link.rate) as u64;
        self.busy_until = self.busy_until.max(now.nanos() * 1000) + span;
        let left = Time::from_nanos(self.busy_until.div_ceil(1000));
        Some(Passage { left, arrives: left + self.link.delay, marked })
    }

    /// The most bytes that ever waited.
    pub(super) fn deepest(&self) -> u64 {
        self.deepest
    }
}

/// How a packet gets over a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    pub(super) left: Time,
    pub(super) arrives: Time,
    pub(super) marked: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_start_at_the_minimum_and_are_certain_above_the_maximum() {
        let marking = Marking { minimum: 100, maximum: 200, probability: 0.5 };
        let mut random = Random::new(1);
        let mut share = |queued| (0..10_000).filter(|_| marking.marks(queued, &mut random)).count();
        assert_eq!(share(100), 0);
        assert_eq!(share(201), 10_000);
        let half = share(150);
        assert!((2_300..2_700).contains(&half), "{half}");
    }

    #[test]
    fn packets_leave_one_after_the_other_and_a_full_queue_refuses() {
        let link = Link { rate: 8e9, capacity: 2500, ..Link::default() };
        let mut line = Line::new(link);
        let mut random = Random::new(1);
        let first = line.join(Time::ZERO, 1000, &mut random).unwrap();
        let second = line.join(Time::ZERO, 1000, &mut random).unwrap();
        assert_eq!((first.left.nanos(), second.left.nanos()), (1000, 2000));
        assert_eq!(second.arrives.nanos(), 3000);
        assert!(line.join(Time::ZERO, 1000, &mut random).is_none());
        assert!(line.join(Time::from_nanos(1000), 1000, &mut random).is_some());
        assert_eq!(line.deepest(), 2000);
    }
}
