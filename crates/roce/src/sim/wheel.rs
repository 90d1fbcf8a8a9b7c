//! The queue of events: what happens next, in the exact order of time, and of insertion where times
//! are equal. A timing wheel: a slot is sorted only when time comes to it; what lies beyond the
//! wheel waits in a heap. (A binary heap alone is three to ten times slower at these sizes.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

/// A slot spans 2^6 = 64 ns.
const SLOT_BITS: u32 = 6;
/// 4096 slots: 262 us ahead.
const SLOTS: usize = 4096;

/// Events by time.
#[derive(Debug)]
pub struct Wheel<T> {
    slots: Vec<Vec<Entry<T>>>,
    /// The slot that time is in, sorted latest first, so that the next event is its last.
    open: Vec<Entry<T>>,
    /// The number of the open slot since the start of time.
    slot: u64,
    /// Events in `slots`.
    near: usize,
    far: BinaryHeap<Reverse<Entry<T>>>,
    inserted: u64,
}

#[derive(Debug)]
struct Entry<T> {
    key: (Time, u64),
    event: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Wheel {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            open: Vec::new(),
            slot: 0,
            near: 0,
            far: BinaryHeap::new(),
            inserted: 0,
        }
    }
}

impl<T> Wheel<T> {
    /// Adds an event. One in the past comes next.
    pub fn insert(&mut self, at: Time, event: T) {
        let entry = Entry { key: (at, self.inserted), event };
        self.inserted += 1;
        let slot = slot_of(at);
        if slot <= self.slot {
            let place = self.open.partition_point(|other| other.key > entry.key);
            self.open.insert(place, entry);
        } else if slot - self.slot < SLOTS as u64 {
            self.slots[slot as usize % SLOTS].push(entry);
            self.near += 1;
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        if self.open.is_empty() {
            self.turn();
        }
        self.open.pop().map(|entry| (entry.key.0, entry.event))
    }

    /// How many events wait.
    pub fn len(&self) -> usize {
        self.open.len() + self.near + self.far.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens the next slot that holds something.
    fn turn(&mut self) {
        let far = self.far.peek().map(|Reverse(entry)| slot_of(entry.key.0));
        let Some(slot) = self.next_near().into_iter().chain(far).min() else { return };
        self.slot = slot;
        let bucket = &mut self.slots[slot as usize % SLOTS];
        self.near -= bucket.len();
        std::mem::swap(&mut self.open, bucket);
        while self.far.peek().is_some_and(|Reverse(entry)| slot_of(entry.key.0) <= slot) {
            self.open.extend(self.far.pop().map(|Reverse(entry)| entry));
        }
        self.open.sort_unstable_by(|left, right| right.cmp(left));
    }

    fn next_near(&self) -> Option<u64> {
        if self.near == 0 {
            return None;
        }
        (self.slot + 1..=self.slot + SLOTS as u64)
            .find(|slot| !self.slots[*slot as usize % SLOTS].is_empty())
    }
}

fn slot_of(at: Time) -> u64 {
    at.nanos() >> SLOT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    #[test]
    fn events_come_by_time_and_then_by_insertion() {
        let mut wheel = Wheel::default();
        for (at, name) in [(500, 'c'), (10, 'a'), (10, 'b'), (9_000_000, 'e'), (70_000, 'd')] {
            wheel.insert(Time::from_nanos(at), name);
        }
        let order: String = std::iter::from_fn(|| wheel.pop()).map(|(_, name)| name).collect();
        assert_eq!(order, "abcde");
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_long_history_is_the_one_a_sorted_list_gives() {
        let mut random = Random::new(5);
        let mut wheel = Wheel::default();
        let mut list = std::collections::BTreeSet::new();
        let mut now = 0;
        for step in 0..50_000_u64 {
            let span = [100, 10_000, 300_000, 20_000_000][random.below(4) as usize];
            let at = Time::from_nanos(now + random.below(span));
            wheel.insert(at, step);
            list.insert((at, step));
            if random.chance(0.7) {
                let (at, event) = wheel.pop().expect("something was inserted");
                assert_eq!(list.pop_first().expect("the same"), (at, event));
                now = at.nanos();
            }
        }
        while let Some((at, event)) = wheel.pop() {
            assert_eq!(list.pop_first().expect("the same"), (at, event));
        }
        assert!(list.is_empty());
    }
}
