//! What is measured: rates, times and losses, each with its unit and the way it is written.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// A rate of payload, in bits (not bytes) a second.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Serialize)]
#[serde(transparent)]
pub struct BitRate(f64);

impl BitRate {
    /// A rate; `None` unless it is finite and not negative.
    pub fn from_bits_per_second(rate: f64) -> Option<Self> {
        (rate.is_finite() && rate >= 0.0).then_some(Self(rate))
    }

    /// Bits a second.
    pub fn bits_per_second(self) -> f64 {
        self.0
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            rate if rate >= 1e9 => (rate / 1e9, "Gb/s"),
            rate if rate >= 1e6 => (rate / 1e6, "Mb/s"),
            rate => (rate / 1e3, "kb/s"),
        };
        write!(f, "{} {unit}", three_digits(value))
    }
}

/// Time for one way or for a round trip, as the probe that measured it says.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// Least, in microseconds.
    pub min_us: f64,
    /// The middle value where the tool gives it, else the mean, in microseconds.
    pub typical_us: f64,
    /// Greatest, in microseconds.
    pub max_us: f64,
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = if self.typical_us >= 1000.0 {
            (self.typical_us / 1000.0, "ms")
        } else {
            (self.typical_us, "µs")
        };
        write!(f, "{} {unit}", three_digits(value))
    }
}

/// How much of what was sent did not arrive, or had to be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Loss {
    /// Packets lost.
    pub lost: u64,
    /// Packets sent.
    pub of: u64,
}

impl Loss {
    /// Nothing was lost, and something was sent.
    pub fn none(self) -> bool {
        self.lost == 0 && self.of > 0
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.lost, self.of) {
            (_, 0) => f.write_str("nothing sent"),
            (0, of) => write!(f, "0 of {of}"),
            #[allow(clippy::cast_precision_loss)] // a share, shown with three digits
            (lost, of) => {
                let percent = lost as f64 * 100.0 / of as f64;
                if percent < 0.01 {
                    return write!(f, "{lost} of {of} (< 0.01 %)");
                }
                write!(f, "{lost} of {of} ({} %)", three_digits(percent))
            }
        }
    }
}

/// Three significant digits, never an exponent.
fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Seconds as a shell tool takes them, never rounded down to nothing.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bits: f64) -> String {
        BitRate::from_bits_per_second(bits).expect("valid").to_string()
    }

    #[test]
    fn rates_are_written_with_the_unit_that_fits() {
        assert_eq!(rate(1_536_000_000.0), "1.54 Gb/s");
        assert_eq!(rate(181_400_000.0), "181 Mb/s");
        assert_eq!(rate(48_160_000.0), "48.2 Mb/s");
        assert_eq!(rate(900.0), "0.90 kb/s");
    }

    #[test]
    fn a_rate_that_is_no_number_is_refused() {
        for rate in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(BitRate::from_bits_per_second(rate), None);
        }
    }

    #[test]
    fn times_are_written_with_the_unit_that_fits() {
        let latency = |typical_us| Latency { min_us: 0.0, typical_us, max_us: 0.0 }.to_string();
        assert_eq!(latency(3120.0), "3.12 ms");
        assert_eq!(latency(87.4), "87.4 µs");
    }

    #[test]
    fn a_loss_says_of_how_many_and_nothing_sent_is_no_success() {
        assert_eq!(Loss { lost: 0, of: 20 }.to_string(), "0 of 20");
        assert_eq!(Loss { lost: 1, of: 8 }.to_string(), "1 of 8 (12.5 %)");
        assert_eq!(Loss { lost: 2, of: 40_000 }.to_string(), "2 of 40000 (< 0.01 %)");
        assert!(!Loss { lost: 0, of: 0 }.none());
    }

    #[test]
    fn a_fraction_of_a_second_is_one_second() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(2001)), 3);
    }
}
