//! Spaces packets so that they leave at a rate. Counts in picoseconds: at 400 Gb/s a packet of 1 KiB
//! is 21 ns, and rounding each to a nanosecond would be some percent of rate.

use crate::time::Time;

const PICOS: u64 = 1000;

/// When the next packet may leave.
#[derive(Clone, Debug, Default)]
pub struct Pacer {
    next: u64,
    /// How long the last packet takes at its rate: what a late driver may catch up.
    span: u64,
}

impl Pacer {
    /// From when on the next packet may leave.
    pub fn due(&self) -> Time {
        Time::from_nanos(self.next.div_ceil(PICOS))
    }

    /// `bytes` left at `now`, at `rate` bit/s.
    pub fn sent(&mut self, now: Time, bytes: usize, rate: f64) {
        let now = now.nanos().saturating_mul(PICOS);
        #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)]
        let span = (bytes as f64 * 8e12 / rate) as u64;
        self.next = self.next.max(now.saturating_sub(self.span)).saturating_add(span);
        self.span = span;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_at_the_rate_however_fine() {
        let mut pacer = Pacer::default();
        let mut now = Time::from_nanos(1_000_000);
        for _ in 0..100_000 {
            now = now.max(pacer.due());
            pacer.sent(now, 1000, 333e9);
        }
        // 100,000 packets of 8,000 bit at 333 Gb/s.
        let took = now.nanos() - 1_000_000;
        assert!((2_402_000..2_402_500).contains(&took), "{took} ns");
    }

    #[test]
    fn a_rest_is_not_saved_up_for_a_burst() {
        let mut pacer = Pacer::default();
        pacer.sent(Time::ZERO, 1000, 8e9);
        let late = Time::from_nanos(1_000_000);
        pacer.sent(late, 1000, 8e9);
        pacer.sent(late, 1000, 8e9);
        assert!(pacer.due() > late);
    }
}
