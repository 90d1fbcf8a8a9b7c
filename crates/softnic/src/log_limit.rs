//! How much of the log one VF may fill: whoever has its socket can connect, misbehave and connect
//! again thousands of times a second, and every line of that is one that hides another VF's.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one VF in each [`WINDOW`].
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// One VF's share.
#[derive(Default)]
pub(crate) struct LogLimit(Mutex<Window>);

#[derive(Default)]
struct Window {
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl LogLimit {
    /// Whether one more line may be written now; if not, it is counted.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        let mut window = self.window();
        if window.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            window.since = Some(now);
            window.said = 0;
        }
        let allowed = window.said < LINES;
        if allowed {
            window.said += 1;
        } else {
            window.left_out += 1;
        }
        allowed
    }

    /// How many lines were left out, once their window is over; says it once.
    pub(crate) fn left_out(&self, now: Instant) -> Option<u64> {
        let mut window = self.window();
        let over = window.since.is_some_and(|since| now.duration_since(since) >= WINDOW);
        (over && window.left_out > 0).then(|| std::mem::take(&mut window.left_out))
    }

    fn window(&self) -> std::sync::MutexGuard<'_, Window> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_ten_lines_a_second_and_a_number() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        let said = |second: u64| {
            let now = start + Duration::from_secs(second);
            (0..1_000).filter(|_| limit.allows(now)).count()
        };
        assert_eq!(said(0), 10);
        assert_eq!(limit.left_out(start), None, "the storm goes on");
        assert_eq!(said(1), 10);
        assert_eq!(limit.left_out(start + Duration::from_secs(2)), Some(1_980));
        assert_eq!(limit.left_out(start + Duration::from_secs(2)), None, "said already");
    }

    #[test]
    fn a_quiet_vf_says_all_it_has_to_say() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        assert!((0..100).all(|second| limit.allows(start + Duration::from_secs(second))));
        assert_eq!(limit.left_out(start + Duration::from_secs(200)), None);
    }
}
