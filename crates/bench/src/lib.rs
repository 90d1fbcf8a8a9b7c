//! Development only: starts what is measured and its peers side by side, puts each under the same load
//! in turn, and reports what it measured. Nothing of this is in the product.
//!
//! The software NIC stands beside DPDK's testpmd and OVS-DPDK, with an independent virtio driver that
//! circulates frames through each; the control plane ([`control`]) beside OpenStack Placement, with
//! the same hosts and the same claims; and by itself as it is served ([`served`]), with simulated agents.
//!
//! On machines whose virtual cores move about, the time a cache line takes from one core to the
//! other changes by a factor of ten within seconds, and every two-core figure with it. So: windows
//! are short, peers take turns within a round, the distance is probed around each window, windows
//! are kept apart by it, and ratios are taken within a round.
#![forbid(unsafe_code)]
// Frames are counted far below 2^52, where a float still holds each integer.
#![allow(clippy::cast_precision_loss)]

pub mod control;
pub mod core_distance;
pub mod machine;
pub mod one_core;
pub mod own_client;
pub mod peers;
pub mod process;
pub mod report;
pub mod served;
pub mod softnic;
pub mod testpmd;
pub mod two_cores;
pub mod window;

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was touched.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A command ended with an error.
    #[error("{program} failed: {said}")]
    Failed {
        /// Which command.
        program: String,
        /// What it printed.
        said: String,
    },
    /// A process did not get where it should in time.
    #[error("{process} {}: {what}; its last words:\n{said}", if *.ended { "ended instead of" } else { "did not get to" })]
    NotReady {
        /// Which process.
        process: String,
        /// What was waited for.
        what: String,
        /// Whether it has ended.
        ended: bool,
        /// The end of its output.
        said: String,
    },
    /// Something answered in a form that its documentation does not give.
    #[error("{what} is not as documented: {got}")]
    Unexpected {
        /// What was read.
        what: String,
        /// What stood there.
        got: String,
    },
    /// Not enough memory in large pages.
    #[error("{wanted} huge pages are needed and {free} are free; close something or reboot")]
    HugePages {
        /// Pages wanted free.
        wanted: u64,
        /// Pages that are free.
        free: u64,
    },
    /// A switch did not take up its VFs.
    #[error("{peer} has not taken up both VFs")]
    NoLink {
        /// Which switch.
        peer: String,
    },
    /// Frames stopped circulating.
    #[error("no frame comes back through {peer}")]
    Silent {
        /// Which switch.
        peer: String,
    },
    /// The software NIC or its driver, within this process.
    #[error("{what}: {said}")]
    InProcess {
        /// What was done.
        what: &'static str,
        /// What it said.
        said: String,
    },
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// It took longer than was allowed.
    #[error("not done within its time; allow more with --limit, or measure less")]
    TimeOver,
}

impl BenchError {
    /// Name what was touched when the system refused.
    pub fn io(what: impl Display) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.to_string(), source }
    }
}

/// Whether the measurement is to end: the user asked for it, or its time is over. Every wait looks
/// at it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    at: Option<Instant>,
}

impl Stop {
    /// Set by SIGINT, SIGTERM and SIGHUP, and once `limit` is over.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn on_signals(limit: Option<Duration>) -> Result<Self, BenchError> {
        let stop = Self { at: limit.map(|limit| Instant::now() + limit), asked: Arc::default() };
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&stop.asked))
                .map_err(BenchError::io("signal handler"))?;
        }
        Ok(stop)
    }

    /// Whether the user asked for it.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Why to end now, if it is time to.
    pub fn reason(&self) -> Option<BenchError> {
        if self.asked() {
            return Some(BenchError::Interrupted);
        }
        self.at.is_some_and(|at| Instant::now() >= at).then_some(BenchError::TimeOver)
    }

    /// Sleep, unless it is time to end.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`] and [`BenchError::TimeOver`], within 50 ms.
    pub fn sleep(&self, time: Duration) -> Result<(), BenchError> {
        let until = Instant::now() + time;
        loop {
            if let Some(reason) = self.reason() {
                return Err(reason);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_the_time_for_the_whole_is_over() {
        let stop = Stop { at: Some(Instant::now() + Duration::from_millis(20)), ..Stop::default() };
        let start = Instant::now();
        assert!(matches!(stop.sleep(Duration::from_secs(60)), Err(BenchError::TimeOver)));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
