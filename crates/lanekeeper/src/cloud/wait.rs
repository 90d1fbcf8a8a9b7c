//! `--wait`: looking until something is as it should be, with progress on standard error.

use std::io::IsTerminal;
use std::thread::sleep;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use lanekeeper_client::Error;

use crate::Failure;
use crate::output::{harmless, note};
use crate::values::seconds;

/// How long to wait before one looks again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How often the picture of progress moves.
const TICK: Duration = Duration::from_millis(120);

/// Whether to wait, and how long.
#[derive(clap::Args)]
pub(super) struct Wait {
    /// Wait until it is done, or has failed (exit code 1).
    #[arg(long)]
    pub(super) wait: bool,
    /// Seconds to wait at most.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, requires = "wait")]
    timeout: Duration,
}

/// What one sees when one looks.
pub(super) enum Seen {
    /// It is not done; how far it is.
    Yet(String),
    /// It is done.
    Done,
    /// It has failed, and why.
    Failed(String),
}

impl Wait {
    /// Look until `what` is done. A server that cannot be reached meanwhile is asked again.
    ///
    /// # Errors
    /// [`Failure::Work`] if it has failed or is not done in time; what the server refuses.
    pub(super) fn until(
        &self,
        what: &str,
        look: impl Fn() -> Result<Seen, Error>,
    ) -> Result<(), Failure> {
        let bar = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            bar.enable_steady_tick(TICK);
        }
        let ended = self.look_on(what, look, |said| match &bar {
            Some(bar) => bar.set_message(harmless(said)),
            None => note(harmless(said)),
        });
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        ended
    }

    fn look_on(
        &self,
        what: &str,
        look: impl Fn() -> Result<Seen, Error>,
        say: impl Fn(&str),
    ) -> Result<(), Failure> {
        let (began, mut pause, mut last) = (Instant::now(), PAUSE.0, String::new());
        loop {
            let now = match look() {
                Ok(Seen::Done) => return Ok(()),
                Ok(Seen::Failed(why)) => return Err(Failure::Work(format!("{what} {why}"))),
                Ok(Seen::Yet(now)) => format!("{what} {now}"),
                Err(error @ Error::Unreachable { .. }) => error.to_string(),
                Err(error) => return Err(error.into()),
            };
            if now != last {
                say(&now);
                last = now;
            }
            let left = self.timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                let limit = self.timeout.as_secs();
                let why = format!("not done within {limit} s: {last}; it goes on all the same");
                return Err(Failure::Work(why));
            }
            sleep(pause.min(left));
            pause = (pause * 3 / 2).min(PAUSE.1);
        }
    }
}
