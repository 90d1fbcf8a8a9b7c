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
