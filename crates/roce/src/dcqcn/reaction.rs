//! The reaction point of one queue pair: the rate it may send at (SIGCOMM 2015, section 3.1, "RP
//! algorithm", equations 1 to 4).
//!
//! A flow that never met a CNP has no state here and no limit. Timers are not run: what they would
//! have done is made up for when somebody looks, so that a thousand idle queue pairs cost nothing.

use super::{Pacer, Reaction};
use crate::time::Time;

/// The rate limiter of one queue pair.
#[derive(Clone, Debug, Default)]
pub struct ReactionPoint {
    /// Only while the flow is below the line rate.
    limited: Option<Limited>,
    pacer: Pacer,
    cnps: u64,
}

#[derive(Clone, Debug)]
struct Limited {
    /// Rc.
    current: f64,
    /// Rt.
    target: f64,
    alpha: f64,
    alpha_due: Time,
    increase_due: Time,
    timer_periods: u32,
    byte_periods: u32,
    bytes: u64,
    last_cut: Time,
    /// Whether something raised the rate since the last cut that lets the next one set the target.
    raised: bool,
}

impl ReactionPoint {
    /// A CNP for this queue pair came in.
    pub fn cnp(&mut self, now: Time, parameters: &Reaction) {
        self.cnps += 1;
        self.advance(now, parameters);
        match &mut self.limited {
            Some(limited) => limited.cnp(now, parameters),
            None => self.limited = Some(Limited::first(now, parameters)),
        }
    }

    /// From when on the next packet may leave.
    pub fn due(&self) -> Time {
        if self.limited.is_some() { self.pacer.due() } else { Time::ZERO }
    }

    /// A packet of `bytes` left.
    pub fn sent(&mut self, now: Time, bytes: usize, parameters: &Reaction) {
        self.advance(now, parameters);
        if let Some(limited) = &mut self.limited {
            limited.count(bytes as u64, parameters);
            self.pacer.sent(now, bytes, limited.current);
        }
        self.rest(parameters);
    }

    /// The rate in bit/s at `now`.
    pub fn rate(&mut self, now: Time, parameters: &Reaction) -> f64 {
        self.advance(now, parameters);
        self.limited.as_ref().map_or(parameters.line_rate, |limited| limited.current)
    }

    /// How many CNPs came in.
    pub fn cnps(&self) -> u64 {
        self.cnps
    }

    /// Makes up for the timers' periods that ended until `now`.
    fn advance(&mut self, now: Time, parameters: &Reaction) {
        if let Some(limited) = &mut self.limited {
            limited.advance(now, parameters);
            self.rest(parameters);
        }
    }

    /// At the line rate there is nothing to limit: the state goes.
    fn rest(&mut self, parameters: &Reaction) {
        if self.limited.as_ref().is_some_and(|limited| limited.current >= parameters.line_rate) {
            self.limited = None;
        }
    }
}

impl Limited {
    /// What a flow's first CNP makes of it.
    fn first(now: Time, parameters: &Reaction) -> Limited {
        let mut limited = Limited {
            current: parameters.line_rate,
            target: parameters.line_rate,
            alpha: parameters.initial_alpha,
            alpha_due: now + parameters.alpha_interval,
            increase_due: now + parameters.increase_interval,
            timer_periods: 0,
            byte_periods: 0,
            bytes: 0,
            last_cut: now,
            raised: true,
        };
        match parameters.first_rate {
            Some(rate) => limited.current = rate.min(parameters.line_rate),
            None => limited.cut(now, parameters),
        }
        limited
    }

    fn cnp(&mut self, now: Time, parameters: &Reaction) {
        if now < self.last_cut + parameters.cut_interval {
            return;
        }
        self.cut(now, parameters);
    }

    /// Equation 1, and the increase starts from its first period again.
    fn cut(&mut self, now: Time, parameters: &Reaction) {
        if parameters.clamp_target || self.raised {
            self.target = self.current;
        }
        self.raised = false;
        let left = (1.0 - self.alpha * parameters.cut).max(parameters.minimum_left);
        self.current = (self.current * left).max(parameters.minimum_rate);
        self.alpha = (1.0 - parameters.gain) * self.alpha + parameters.gain;
        self.last_cut = now;
        self.alpha_due = now + parameters.alpha_interval;
        self.increase_due = now + parameters.increase_interval;
        self.timer_periods = 0;
        self.byte_periods = 0;
        self.bytes = 0;
    }

    /// Equation 2 and the increase timer, for each period that ended until `now`. Ends at the line
    /// rate, however long ago the last call was.
    fn advance(&mut self, now: Time, parameters: &Reaction) {
        while self.alpha_due <= now && self.alpha > f64::EPSILON {
            self.alpha *= 1.0 - parameters.gain;
            self.alpha_due += parameters.alpha_interval;
        }
        self.alpha_due = self.alpha_due.max(now);
        while self.increase_due <= now && self.current < parameters.line_rate {
            self.timer_periods = self.timer_periods.saturating_add(1);
            self.increase_due += parameters.increase_interval;
            self.raised |= parameters.clamp_target_after_timer;
            self.increase(parameters);
        }
    }

    fn count(&mut self, bytes: u64, parameters: &Reaction) {
        self.bytes += bytes;
        while self.bytes >= parameters.increase_bytes.max(1) {
            self.bytes -= parameters.increase_bytes.max(1);
            self.byte_periods = self.byte_periods.saturating_add(1);
            self.raised = true;
            self.increase(parameters);
        }
    }

    /// Equations 3 and 4: fast recovery, additive increase, hyper increase.
    fn increase(&mut self, parameters: &Reaction) {
        let periods = parameters.recovery_periods;
        if self.timer_periods.min(self.byte_periods) > periods {
            self.target += parameters.hyper;
        } else if self.timer_periods.max(self.byte_periods) > periods {
            self.target += parameters.additive;
        }
        self.target = self.target.min(parameters.line_rate);
        self.current = f64::midpoint(self.current, self.target);
        // Half of the way again and again never arrives.
        if self.current > parameters.line_rate * 0.9999 {
            self.current = parameters.line_rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dcqcn::Dcqcn;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < right * 1e-9
    }

    #[test]
    fn a_flow_without_cnps_is_not_limited() {
        let parameters = Dcqcn::paper().reaction;
        let mut point = ReactionPoint::default();
        point.sent(at(1), 1000, &parameters);
        assert_eq!(point.due(), Time::ZERO);
        assert!(close(point.rate(at(1), &parameters), 40e9));
    }

    #[test]
    fn the_first_cnp_halves_the_rate_and_fast_recovery_brings_it_back() {
        let parameters = Dcqcn::paper().reaction;
        let mut point = ReactionPoint::default();
        point.cnp(at(0), &parameters);
        assert!(close(point.rate(at(54), &parameters), 20e9));
        assert!(close(point.rate(at(55), &parameters), 30e9));
        assert!(close(point.rate(at(110), &parameters), 35e9));
        assert!(close(point.rate(at(275), &parameters), 39.375e9));
    }

    #[test]
    fn cnps_closer_than_the_cut_interval_count_once() {
        let parameters = Dcqcn::paper().reaction;
        let mut point = ReactionPoint::default();
        (0..50).for_each(|micros| point.cnp(at(micros), &parameters));
        assert!(close(point.rate(at(50), &parameters), 20e9));
        point.cnp(at(50), &parameters);
        assert!(close(point.rate(at(50), &parameters), 10e9));
        assert_eq!(point.cnps(), 51);
    }

    #[test]
    fn no_cut_goes_below_the_minimum_and_no_increase_above_the_line() {
        let parameters = Dcqcn::paper().reaction;
        let mut point = ReactionPoint::default();
        (0..1000).for_each(|cut| point.cnp(at(cut * 50), &parameters));
        assert!(close(point.rate(at(50_000), &parameters), parameters.minimum_rate));
        let hour = Time::from_nanos(3_600_000_000_000);
        assert!(close(point.rate(hour, &parameters), 40e9));
        assert_eq!(point.due(), Time::ZERO, "the limiter rests at the line rate");
    }

    #[test]
    fn after_fast_recovery_the_target_grows_by_the_additive_step() {
        let mut parameters = Dcqcn::paper().reaction;
        parameters.line_rate = 400e9;
        parameters.first_rate = Some(10e9);
        let mut point = ReactionPoint::default();
        point.cnp(at(0), &parameters);
        point.cnp(at(50), &parameters);
        // The second CNP made 10 Gb/s the target; after five periods the sixth adds to it.
        let before = point.rate(at(50 + 5 * 55), &parameters);
        let after = point.rate(at(50 + 6 * 55), &parameters);
        assert!(close(after, f64::midpoint(before, 10e9 + parameters.additive)));
    }

    #[test]
    fn timer_and_bytes_together_are_a_hyper_increase() {
        let parameters = Reaction {
            increase_bytes: 1000,
            first_rate: Some(1e9),
            clamp_target: true,
            ..Dcqcn::paper().reaction
        };
        let mut point = ReactionPoint::default();
        point.cnp(at(0), &parameters);
        point.cnp(at(50), &parameters);
        for _ in 0..6 {
            point.sent(at(50 + 5 * 55), 1000, &parameters);
        }
        let before = point.rate(at(50 + 5 * 55), &parameters);
        let after = point.rate(at(50 + 6 * 55), &parameters);
        let target = 1e9 + parameters.additive + parameters.hyper;
        assert!(close(after, f64::midpoint(before, target)), "{before} {after}");
    }

    #[test]
    fn without_clamping_the_target_survives_cuts_that_no_increase_parts() {
        let parameters = Reaction {
            clamp_target: false,
            cut_interval: Duration::from_micros(4),
            ..Dcqcn::paper().reaction
        };
        let mut point = ReactionPoint::default();
        point.cnp(at(0), &parameters);
        point.cnp(at(4), &parameters);
        assert!(close(point.rate(at(4), &parameters), 10e9));
        assert!(close(point.rate(at(4 + 55), &parameters), f64::midpoint(10e9, 40e9)));
    }

    #[test]
    fn a_vendors_cut_leaves_at_least_half() {
        let parameters = Reaction { cut: 1.0, ..Dcqcn::nvidia(400e9).reaction };
        let mut point = ReactionPoint::default();
        point.cnp(at(0), &parameters);
        assert!(close(point.rate(at(0), &parameters), 200e9));
    }

    #[test]
    fn a_limited_flow_is_spaced_at_its_rate() {
        let parameters = Reaction { first_rate: Some(1e9), ..Dcqcn::paper().reaction };
        let mut point = ReactionPoint::default();
        point.cnp(at(0), &parameters);
        point.sent(at(0), 1000, &parameters);
        assert_eq!(point.due(), at(8));
    }
}
