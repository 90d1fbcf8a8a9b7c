//! How often somebody may call: a token bucket for each API key, and for each address that shows none.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most callers that are told apart at a time; beyond, those who have not called for longest are
/// forgotten, which gives them a full bucket.
const MOST: usize = 65_536;

/// How often.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Calls a second, in the long run.
    pub per_second: f64,
    /// Calls at once.
    pub burst: f64,
}

struct Bucket {
    level: f64,
    at: Instant,
}

/// Buckets, by caller.
pub struct Limiter<K> {
    rate: Rate,
    buckets: Mutex<HashMap<K, Bucket>>,
}

impl<K: Eq + Hash + Clone> Limiter<K> {
    /// Each caller at a rate.
    pub fn new(rate: Rate) -> Self {
        Self { rate, buckets: Mutex::default() }
    }

    /// Whether a caller may call now; if not, how long to wait.
    ///
    /// # Errors
    /// The time until the next call is let in.
    pub fn admit(&self, caller: K, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST && !buckets.contains_key(&caller) {
            let full = self.rate.burst / self.rate.per_second;
            buckets.retain(|_, bucket| now.duration_since(bucket.at).as_secs_f64() < full);
            if buckets.len() >= MOST {
                return Err(Duration::from_secs(1));
            }
        }
        let bucket = buckets.entry(caller).or_insert(Bucket { level: self.rate.burst, at: now });
        let passed = now.duration_since(bucket.at).as_secs_f64();
        bucket.level = (bucket.level + passed * self.rate.per_second).min(self.rate.burst);
        bucket.at = now;
        if bucket.level >= 1.0 {
            bucket.level -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - bucket.level) / self.rate.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_calls_too_often_waits_and_others_do_not() {
        let limiter = Limiter::new(Rate { per_second: 10.0, burst: 2.0 });
        let now = Instant::now();
        assert!(limiter.admit("a", now).is_ok() && limiter.admit("a", now).is_ok());
        let wait = limiter.admit("a", now).expect_err("the bucket is empty");
        assert!(wait <= Duration::from_millis(100) && wait > Duration::from_millis(90));
        assert!(limiter.admit("b", now).is_ok());
        assert!(limiter.admit("a", now + wait).is_ok());
    }

    #[test]
    fn no_more_is_saved_up_than_the_burst() {
        let limiter = Limiter::new(Rate { per_second: 10.0, burst: 2.0 });
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_hours(1));
        assert!(limiter.admit(1, now).is_ok());
        let let_in = (0..10).filter(|_| limiter.admit(1, later).is_ok()).count();
        assert_eq!(let_in, 2);
    }
}
