//! The notification point of one queue pair: a mark on arrival asks for a CNP, unless one was sent
//! in the interval before it (SIGCOMM 2015, section 3.1, "NP algorithm").

use super::Notification;
use crate::time::Time;

/// When the last CNP of a queue pair went out.
#[derive(Clone, Debug, Default)]
pub struct NotificationPoint {
    last: Option<Time>,
}

impl NotificationPoint {
    /// A packet with Congestion Experienced came in: does a CNP go out for it?
    pub fn marked(&mut self, now: Time, parameters: &Notification) -> bool {
        let due = self.last.is_none_or(|last| now >= last + parameters.interval);
        if due {
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dcqcn::Dcqcn;

    #[test]
    fn marks_of_one_interval_become_one_cnp() {
        let parameters = Dcqcn::paper().notification;
        let mut point = NotificationPoint::default();
        let cnps: Vec<u64> = (0..200)
            .filter(|&micros| point.marked(Time::from_nanos(micros * 1000), &parameters))
            .collect();
        assert_eq!(cnps, [0, 50, 100, 150]);
    }

    #[test]
    fn without_an_interval_each_mark_is_a_cnp() {
        let parameters =
            Notification { interval: std::time::Duration::ZERO, ..Dcqcn::paper().notification };
        let mut point = NotificationPoint::default();
        assert!((0..3).all(|_| point.marked(Time::ZERO, &parameters)));
    }
}
