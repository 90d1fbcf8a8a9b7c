//! One measuring window, and what is allowed to count.

use std::time::{Duration, Instant};

use crate::core_distance::{Distance, probe};
use crate::peers::Lane;
use crate::{BenchError, Stop};

/// Frames flow this long before counting starts: caches and branch predictors are warm then.
const WARM_UP: Duration = Duration::from_millis(50);
/// A window in which a measured thread had its core for less than this share is not one. What a
/// thread waited (`schedstat`'s other field) is not known before it runs again, so this counts.
const LEAST_RUNNING: f64 = 0.92;

/// What one window gave.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Window {
    /// Frames per second that crossed the switch.
    pub rate: f64,
    /// Distance of the cores before and after, `None` if it changed.
    pub distance: Option<Distance>,
    /// Share of the window in which the measured threads had their cores, the lesser of the two.
    pub running: f64,
}

impl Window {
    /// Whether it counts, and at which distance.
    pub fn counts(&self) -> Option<Distance> {
        self.distance.filter(|_| self.running >= LEAST_RUNNING)
    }
}

/// Let frames flow through one lane for `length` and count them. All lanes are paused before and
/// after.
///
/// # Errors
/// A process is gone, no frame came through, or the user asked to stop.
pub fn measure(
    lane: &Lane,
    cores: [usize; 2],
    length: Duration,
    stop: &Stop,
) -> Result<Window, BenchError> {
    let before = probe(cores)?;
    lane.resume()?;
    stop.sleep(WARM_UP)?;
    let start = Instant::now();
    let first = lane.received()?;
    let ran = lane.running_times()?;
    stop.sleep(length)?;
    let frames = lane.received()?.saturating_sub(first);
    let time = start.elapsed();
    let runs = lane.running_times()?;
    lane.pause()?;
    let after = probe(cores)?;
    let running = ran
        .iter()
        .zip(&runs)
        .map(|(before, after)| after.saturating_sub(*before).as_secs_f64() / time.as_secs_f64())
        .fold(1.0, f64::min);
    if frames == 0 && running >= LEAST_RUNNING {
        return Err(BenchError::Silent { peer: lane.name().to_owned() });
    }
    Ok(Window {
        rate: frames as f64 / time.as_secs_f64(),
        distance: (before == after).then_some(before),
        running,
    })
}

/// Median and range of some figures.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
    /// How many.
    pub count: usize,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, least, most, count: sorted.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of(&[4.0, 1.0, 2.0, 8.0]).expect("not empty");
        assert_eq!(spread, Spread { median: 3.0, least: 1.0, most: 8.0, count: 4 });
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_window_counts_only_if_the_cores_stayed_and_the_threads_ran() {
        let good = Window { rate: 1.0, distance: Some(Distance::Far), running: 0.99 };
        assert_eq!(good.counts(), Some(Distance::Far));
        assert_eq!(Window { distance: None, ..good }.counts(), None);
        assert_eq!(Window { running: 0.8, ..good }.counts(), None);
    }
}
