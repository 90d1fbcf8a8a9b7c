//! What goes on, for the person who waits: bars on a terminal, plain lines elsewhere. All of it on
//! standard error, so that standard output has the result alone.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::output::note;

/// The whole run's bar, under which single tasks have lines of their own.
pub(super) struct Progress {
    bars: Option<(MultiProgress, ProgressBar)>,
    began: Instant,
}

impl Progress {
    /// `steps` is how many calls of [`Self::step`] there will be.
    pub(super) fn new(steps: usize) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let bar = all.add(ProgressBar::new(steps as u64));
            bar.set_style(style("{elapsed:>4} [{bar:30.cyan}] {pos}/{len} {msg}"));
            bar.enable_steady_tick(TICK);
            (all, bar)
        });
        Self { bars, began: Instant::now() }
    }

    /// The next step begins.
    pub(super) fn step(&self, what: &str) {
        match &self.bars {
            Some((_, bar)) => {
                bar.inc(1);
                bar.set_message(what.to_owned());
            }
            None => note(format!("==> {:>3} s  {what}", self.began.elapsed().as_secs())),
        }
    }

    /// More of the present step.
    pub(super) fn detail(&self, what: &str) {
        match &self.bars {
            Some((_, bar)) => bar.set_message(what.to_owned()),
            None => note(format!("           {what}")),
        }
    }

    /// A task that runs beside others.
    pub(super) fn task(&self, what: &str) -> Task {
        let bar = self.bars.as_ref().map(|(all, whole)| {
            let bar = all.insert_before(whole, ProgressBar::new_spinner());
            bar.set_style(style("     {spinner} {msg}"));
            bar.set_message(what.to_owned());
            bar.enable_steady_tick(TICK);
            bar
        });
        Task { bar }
    }

    /// Take the bars away.
    pub(super) fn finish(&self) {
        if let Some((all, bar)) = &self.bars {
            bar.finish_and_clear();
            // A terminal that is gone shows nothing anyway.
            let _ = all.clear();
        }
    }
}

const TICK: Duration = Duration::from_millis(120);

fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file and a test reads each of them.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// One line of a task that runs beside others.
pub(super) struct Task {
    bar: Option<ProgressBar>,
}

impl Task {
    /// It is done; `how` stays readable.
    pub(super) fn done(self, how: &str) {
        match self.bar {
            Some(bar) => bar.finish_with_message(how.to_owned()),
            None => note(format!("           {how}")),
        }
    }
}
