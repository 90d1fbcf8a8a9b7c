//! How far two cores are apart right now: the one-way time of a cache line between them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::BenchError;

/// Above this the two cores do not share a last-level cache. Shared: 30–60 ns on a 2 GHz Zen;
/// not shared: 200 ns and more.
const NEAR_LIMIT: Duration = Duration::from_nanos(90);
const BATCHES: usize = 10;
const ROUND_TRIPS: u32 = 600;

/// Whether two cores share a cache at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    /// They share one.
    Near,
    /// They do not.
    Far,
}

impl Distance {
    /// Both, in the order in which they are reported.
    pub const ALL: [Self; 2] = [Self::Near, Self::Far];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    fn of(one_way: Duration) -> Self {
        if one_way < NEAR_LIMIT { Self::Near } else { Self::Far }
    }
}

/// Pin the calling thread to one core.
///
/// # Errors
/// There is no such core, or it is not ours to use.
pub fn pin(core: usize) -> Result<(), BenchError> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores)
        .map_err(|error| BenchError::Io { what: format!("core {core}"), source: error.into() })
}

/// Send one line to and fro between two cores and judge by the quickest batch, which an
/// interruption cannot make quicker. Takes a few milliseconds.
///
/// # Errors
/// One of the cores cannot be used.
pub fn probe(cores: [usize; 2]) -> Result<Distance, BenchError> {
    let ball = AtomicU32::new(0);
    let rounds = ROUND_TRIPS * BATCHES as u32;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(cores[1]);
            // Plays on the wrong core rather than leave the other side waiting for ever.
            for round in 0..rounds {
                wait(&ball, 2 * round + 1);
                ball.store(2 * round + 2, Ordering::Release);
            }
            pinned
        });
        let serve = scope.spawn(|| {
            let pinned = pin(cores[0]);
            let mut best = Duration::MAX;
            for batch in 0..BATCHES as u32 {
                let start = Instant::now();
                for round in batch * ROUND_TRIPS..(batch + 1) * ROUND_TRIPS {
                    ball.store(2 * round + 1, Ordering::Release);
                    wait(&ball, 2 * round + 2);
                }
                best = best.min(start.elapsed() / (2 * ROUND_TRIPS));
            }
            pinned.map(|()| best)
        });
        let gone = |_| BenchError::Unexpected { what: "probe".into(), got: "a panic".into() };
        echo.join().map_err(gone)??;
        Ok(Distance::of(serve.join().map_err(gone)??))
    })
}

fn wait(ball: &AtomicU32, value: u32) {
    while ball.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_parts_shared_from_separate_caches() {
        assert_eq!(Distance::of(Duration::from_nanos(58)), Distance::Near);
        assert_eq!(Distance::of(Duration::from_nanos(230)), Distance::Far);
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(matches!(probe([0, 1_000]), Err(BenchError::Io { .. })));
    }
}
