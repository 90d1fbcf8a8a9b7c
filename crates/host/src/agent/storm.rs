//! Runaway pause: a peer that pauses a priority without end stalls every VF of the PF. It is told
//! by the growth of the pause frames that the PF was sent. A storm that comes and goes must not make
//! the PF's VFs come and go with it (sonic-buildimage#29203): what ends it is a calm that lasts, and
//! longer after each storm.

use std::time::Duration;

/// What counts as a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormLimits {
    /// Between two counts.
    pub poll: Duration,
    /// So many counts in a row over the rate that stalls the link are a storm.
    pub counts: u32,
    /// It is over after a calm as long as this, twice as long after each further storm ...
    pub calm: Duration,
    /// ... up to this.
    pub longest: Duration,
}

impl Default for StormLimits {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            counts: 3,
            calm: Duration::from_secs(10),
            longest: Duration::from_secs(600),
        }
    }
}

/// A speed to reckon with where the link's is not known, in Mb/s: the less, the sooner it is a storm.
const SPEED: u32 = 10_000;

/// Frames a second that keep a priority paused all the time: a frame pauses for at most 65,535
/// quanta of 512 bit times (IEEE 802.3-2018, 31B.2).
pub(super) fn stalling_rate(speed_mbps: Option<u32>) -> f64 {
    let speed = speed_mbps.filter(|speed| *speed > 0).unwrap_or(SPEED);
    f64::from(speed) * 1e6 / (65_535.0 * 512.0)
}

/// Pause on one PF. Times are since the agent's start.
#[derive(Debug, Default)]
pub(super) struct Storm {
    last: Option<(Duration, [u64; 8])>,
    hot: u32,
    storms: u32,
    /// While there is one: its priority, and since when it is calm.
    now: Option<(usize, Option<Duration>)>,
}

impl Storm {
    /// The priority that is paused without end, if one is.
    pub(super) fn priority(&self) -> Option<usize> {
        self.now.map(|(priority, _)| priority)
    }

    /// What was counted, at a link of this speed.
    pub(super) fn count(
        &mut self,
        now: Duration,
        frames: [u64; 8],
        speed_mbps: Option<u32>,
        limits: &StormLimits,
    ) {
        let Some((then, before)) = self.last.replace((now, frames)) else { return };
        let passed = now.saturating_sub(then).as_secs_f64();
        if passed <= 0.0 {
            return;
        }
        // A counter that went back was reset with its driver.
        let grown = |at: usize| frames[at].saturating_sub(before[at]);
        let most = (0..8).max_by_key(|at| grown(*at)).unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "frames of seconds are far below 2^52")]
        let is_hot = grown(most) as f64 / passed >= stalling_rate(speed_mbps);
        self.hot = if is_hot { self.hot + 1 } else { 0 };
        match &mut self.now {
            None if self.hot >= limits.counts => {
                self.storms += 1;
                self.now = Some((most, None));
            }
            None => {}
            Some((_, calm)) if is_hot => *calm = None,
            Some((_, calm)) => {
                let since = *calm.get_or_insert(now);
                let doublings = self.storms.saturating_sub(1).min(16);
                let wanted = limits.calm.saturating_mul(1 << doublings).min(limits.longest);
                if now.saturating_sub(since) >= wanted {
                    self.now = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StormLimits = StormLimits {
        poll: Duration::from_secs(1),
        counts: 3,
        calm: Duration::from_secs(10),
        longest: Duration::from_secs(600),
    };

    /// Seconds in which the storm stood, when each second's frames are as given.
    fn stood(frames: impl IntoIterator<Item = [u64; 8]>) -> (Vec<u64>, Storm) {
        let (mut storm, mut total, mut stood) = (Storm::default(), [0; 8], Vec::new());
        for (second, more) in (0_u64..).zip(frames) {
            for (sum, more) in total.iter_mut().zip(more) {
                *sum += more;
            }
            storm.count(Duration::from_secs(second), total, Some(100_000), &LIMITS);
            if storm.priority().is_some() {
                stood.push(second);
            }
        }
        (stood, storm)
    }

    const CALM: [u64; 8] = [0; 8];
    const BUSY: [u64; 8] = [0, 0, 0, 1_000, 0, 0, 0, 0];
    const STORM: [u64; 8] = [0, 0, 0, 5_000, 0, 0, 0, 0];

    #[test]
    fn a_pause_of_335_microseconds_keeps_100_gigabits_still_when_sent_2980_times_a_second() {
        assert!((stalling_rate(Some(100_000)) - 2_980.0).abs() < 1.0);
    }

    #[test]
    fn pause_of_a_busy_network_is_no_storm() {
        assert_eq!(stood(std::iter::repeat_n(BUSY, 100)).0, Vec::<u64>::new());
    }

    #[test]
    fn a_burst_is_no_storm() {
        assert_eq!(stood([CALM, STORM, STORM, CALM, STORM, STORM, CALM]).0, Vec::<u64>::new());
    }

    #[test]
    fn a_storm_stands_until_it_was_calm_for_long_enough() {
        let frames = std::iter::repeat_n(STORM, 10).chain(std::iter::repeat_n(CALM, 30));
        let (stood, storm) = stood(frames);
        assert_eq!((stood.first(), stood.last()), (Some(&3), Some(&19)));
        assert_eq!(storm.priority(), None);
    }

    #[test]
    fn a_storm_that_comes_and_goes_stands_without_a_break() {
        let frames = (0..200).map(|second| if second % 8 < 4 { STORM } else { CALM });
        let (stood, _) = stood(frames);
        let first = stood[0];
        assert_eq!(stood, (first..200).collect::<Vec<_>>());
    }

    #[test]
    fn a_storm_of_all_priorities_is_one() {
        let frames = (0..100).map(|second| {
            let mut frames = CALM;
            frames[second % 8] = 5_000;
            frames
        });
        let (stood, _) = stood(frames);
        assert_eq!(stood, (3..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_counter_that_began_anew_is_no_storm() {
        let mut storm = Storm::default();
        for (second, count) in [9_000_000, 0, 1, 2, 3].into_iter().enumerate() {
            let now = Duration::from_secs(second as u64);
            storm.count(now, [count; 8], None, &LIMITS);
        }
        assert_eq!(storm.priority(), None);
    }
}
