//! Rates of one VF: a ceiling it is held to, and a guarantee that puts it before others.
//!
//! Two token buckets. The unit of credit is the millibit, because a rate of n Mb/s earns exactly n
//! millibits each nanosecond: no rounding, so no drift, however often the clock is read.
//!
//! The ceiling drops nothing: a worker takes no frames from a VF without credit, and the VM's ring
//! fills up. Credit may go below zero by one batch, which is paid back before the next.

use lanekeeper_model::{Mbps, RateLimits};

use super::offload::MAX_SUPER_FRAME;

const MILLIBITS_PER_BYTE: i64 = 8_000;

/// Depth of a bucket at this rate, in bytes: what 1 ms earns, and at least two super-frames, so
/// that a slow VF can send one at all.
fn burst_bytes(rate: Mbps) -> i64 {
    (rate.bytes_per_second() / 1_000).max(2 * MAX_SUPER_FRAME as u64).cast_signed()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bucket {
    credit: i64,
    depth: i64,
    rate: i64,
}

impl Bucket {
    fn new(rate: Mbps) -> Option<Self> {
        let depth = burst_bytes(rate) * MILLIBITS_PER_BYTE;
        (rate.0 != 0).then_some(Self { credit: depth, depth, rate: rate.0.into() })
    }

    fn earn(&mut self, nanoseconds: u64) {
        let nanoseconds = i64::try_from(nanoseconds).unwrap_or(i64::MAX);
        let earned = self.rate.saturating_mul(nanoseconds);
        self.credit = self.credit.saturating_add(earned).min(self.depth);
    }

    fn spend(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_sub(bytes.saturating_mul(MILLIBITS_PER_BYTE));
    }
}

/// The rates of one VF. Times are nanoseconds of any clock that does not run backwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meter {
    ceiling: Option<Bucket>,
    guarantee: Option<Bucket>,
    now: u64,
}

impl Meter {
    /// A meter for these rates, with full buckets.
    pub fn new(rates: RateLimits, now: u64) -> Self {
        Self { ceiling: Bucket::new(rates.max), guarantee: Bucket::new(rates.min), now }
    }

    /// Changes the rates. Credit is kept where the bucket stays, so that setting a rate again and
    /// again is no way around it.
    pub fn set(&mut self, rates: RateLimits, now: u64) {
        self.advance(now);
        let next = Self::new(rates, now);
        let keep = |next: Option<Bucket>, old: Option<Bucket>| match (next, old) {
            (Some(next), Some(old)) => Some(Bucket { credit: old.credit.min(next.depth), ..next }),
            (next, _) => next,
        };
        self.ceiling = keep(next.ceiling, self.ceiling);
        self.guarantee = keep(next.guarantee, self.guarantee);
    }

    /// Earns what the time since the last call is worth. Once a round, not once a frame.
    #[inline]
    pub fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        for bucket in [&mut self.ceiling, &mut self.guarantee].into_iter().flatten() {
            bucket.earn(passed);
        }
    }

    /// Whether frames may be taken from the VF now.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.ceiling.is_none_or(|bucket| bucket.credit > 0)
    }

    /// Bytes left below the ceiling now; `u64::MAX` without one.
    pub fn allowance(&self) -> u64 {
        self.ceiling
            .map_or(u64::MAX, |bucket| (bucket.credit.max(0) / MILLIBITS_PER_BYTE).cast_unsigned())
    }

    /// How many frames to take at most so that the ceiling is overrun by less than one of
    /// `longest` bytes, even if all are that long; at most `batch`, and 0 without credit.
    pub fn frames(&self, longest: usize, batch: usize) -> usize {
        if !self.may_send() {
            return 0;
        }
        let whole = self.allowance() / (longest.max(1) as u64);
        usize::try_from(whole).unwrap_or(batch).saturating_add(1).min(batch)
    }

    /// Charges bytes that were taken from the VF; see
    /// [`Offload::wire_bytes`](super::Offload::wire_bytes) for super-frames.
    #[inline]
    pub fn spend(&mut self, bytes: u64) {
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.spend(bytes);
        }
        // What a VF sends beyond its guarantee is not held against the guarantee later.
        if let Some(guarantee) = self.guarantee.as_mut().filter(|bucket| bucket.credit > 0) {
            guarantee.spend(bytes);
        }
    }

    /// Whether the VF has sent less than it was guaranteed, so that it is served before others.
    #[inline]
    pub fn below_guarantee(&self) -> bool {
        self.guarantee.is_some_and(|bucket| bucket.credit > 0) && self.may_send()
    }

    /// Nanoseconds from the last [`Meter::advance`] until [`Meter::may_send`]; 0 if it does now.
    /// A worker that would sleep sleeps no longer than this.
    pub fn wait(&self) -> u64 {
        match self.ceiling {
            Some(bucket) if bucket.credit <= 0 => {
                (-bucket.credit / bucket.rate).cast_unsigned() + 1
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn ceiling(max: u32) -> RateLimits {
        RateLimits { min: Mbps(0), max: Mbps(max) }
    }

    fn guarantee(min: u32) -> RateLimits {
        RateLimits { min: Mbps(min), max: Mbps(0) }
    }

    proptest! {
        #[test]
        fn in_the_long_run_a_busy_vf_sends_its_rate_within_one_percent(
            rate in 1..200_000_u32,
            steps in prop::collection::vec((1..3_000_000_u64, 60..65_553_u64), 1..64),
        ) {
            let mut meter = Meter::new(ceiling(rate), 0);
            let (mut now, mut sent) = (0, 0);
            // Long enough for the first burst and the last overrun to be below 1 %.
            let burst = burst_bytes(Mbps(rate)).cast_unsigned();
            let end = SECOND.max(400 * burst * 8_000 / u64::from(rate));
            // Every wait must be below what fills the bucket, or credit is rightly lost.
            let fill = burst * 8_000 / u64::from(rate);
            let mut step = steps.iter().cycle();
            while now < end {
                let (pause, frame) = step.next().expect("endless");
                now += meter.wait().max((*pause).min(fill / 2));
                meter.advance(now);
                while meter.may_send() {
                    meter.spend(*frame);
                    sent += frame;
                }
            }
            let due = u128::from(now) * u128::from(rate) / 8_000;
            let error = u128::from(sent).abs_diff(due);
            prop_assert!(error * 100 <= due, "sent {sent}, due {due}");
        }

        #[test]
        fn no_pattern_of_arrivals_gets_more_than_the_rate_and_one_burst(
            rate in 1..100_000_u32,
            arrivals in prop::collection::vec((0..50_000_000_u64, 60..65_553_u64), 1..500),
        ) {
            let mut meter = Meter::new(ceiling(rate), 0);
            let (mut now, mut sent) = (0, 0);
            for (pause, frame) in arrivals {
                now += pause;
                meter.advance(now);
                if meter.may_send() {
                    meter.spend(frame);
                    sent += frame;
                }
                let earned = now * u64::from(rate) / 8_000;
                let burst = burst_bytes(Mbps(rate)).cast_unsigned();
                prop_assert!(sent <= earned + burst + MAX_SUPER_FRAME as u64);
            }
        }

        #[test]
        fn reading_the_clock_often_earns_as_much_as_reading_it_once(
            rate in 1..100_000_u32,
            pauses in prop::collection::vec(1..1_000_u64, 1..200),
        ) {
            let mut often = Meter::new(ceiling(rate), 0);
            often.spend(10_000_000);
            let mut once = often;
            let mut now = 0;
            for pause in pauses {
                now += pause;
                often.advance(now);
            }
            once.advance(now);
            prop_assert_eq!(often, once);
        }

        #[test]
        fn a_vf_may_send_after_the_wait_and_not_before(rate in 1..100_000_u32, debt in 1..9_000_000_u64) {
            let mut meter = Meter::new(ceiling(rate), 0);
            meter.spend(meter.allowance() + debt);
            let wait = meter.wait();
            meter.advance(wait - 1);
            prop_assert!(!meter.may_send());
            meter.advance(wait);
            prop_assert!(meter.may_send());
        }
    }

    #[test]
    fn without_a_ceiling_a_vf_may_always_send() {
        let mut meter = Meter::new(RateLimits::default(), 0);
        meter.spend(u64::MAX);
        assert!(meter.may_send());
        assert_eq!((meter.allowance(), meter.wait()), (u64::MAX, 0));
        assert_eq!(meter.frames(9_216, 32), 32);
        assert!(!meter.below_guarantee());
    }

    #[test]
    fn no_more_frames_are_taken_than_the_ceiling_allows_and_one() {
        let mut meter = Meter::new(ceiling(100), 0);
        assert_eq!(meter.frames(MAX_SUPER_FRAME, 32), 3);
        meter.spend(meter.allowance() + 1);
        assert_eq!(meter.frames(MAX_SUPER_FRAME, 32), 0);
    }

    #[test]
    fn what_was_sent_beyond_the_guarantee_is_not_held_against_it() {
        let mut meter = Meter::new(guarantee(8), 0);
        for _ in 0..1_000 {
            meter.spend(65_000);
        }
        assert!(!meter.below_guarantee());
        // 8 Mb/s are 1000 bytes a millisecond; the overrun of one frame is paid in 65 ms.
        meter.advance(70_000_000);
        assert!(meter.below_guarantee());
    }

    #[test]
    fn served_first_below_its_guarantee_a_vf_gets_the_guarantee_and_no_more() {
        let mut meter = Meter::new(guarantee(80), 0);
        let mut first = 0_u64;
        for millisecond in 0..1_000 {
            meter.advance(millisecond * 1_000_000);
            while meter.below_guarantee() {
                meter.spend(1_500);
                first += 1_500;
            }
            meter.spend(1_500);
        }
        let due = 10_000_000 + burst_bytes(Mbps(80)).cast_unsigned();
        assert!(first.abs_diff(due) < due / 100, "{first} of {due}");
    }

    #[test]
    fn setting_a_rate_again_gives_no_new_burst() {
        let mut meter = Meter::new(ceiling(10), 0);
        meter.spend(10_000_000);
        meter.set(ceiling(20), 0);
        assert!(!meter.may_send());
        meter.set(ceiling(0), 0);
        assert!(meter.may_send());
    }

    #[test]
    fn a_clock_that_stands_still_or_leaps_breaks_nothing() {
        let mut meter = Meter::new(ceiling(100_000), 5);
        meter.spend(1_000_000_000);
        meter.advance(3);
        assert!(!meter.may_send());
        meter.advance(u64::MAX);
        assert_eq!(meter.allowance(), burst_bytes(Mbps(100_000)).cast_unsigned());
    }
}
