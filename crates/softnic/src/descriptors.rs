//! File descriptors: a NIC that starts has room for all that its front-ends may hand it, so that no
//! VM can take what another one needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// A notification to the driver, one to us, and one of errors (`VHOST_USER_SET_VRING_CALL`, `_KICK`
/// and `_ERR`).
const PER_RING: u64 = 3;
/// What a front-end costs beside rings and memory: listener, connection and two duplicates of it,
/// the line back and a duplicate, and those of a message that is being read
/// (`MAX_ATTACHED_FD_ENTRIES` of the `vhost` crate, 32).
const PER_VF: u64 = 6 + 32;
/// An uplink's queue with its event loop, the worker's own event loop and its bell.
const PER_WORKER: u64 = 4;
/// Standard streams, lock, state, watches of the uplink, the control socket and its connections.
const OTHERS: u64 = 64;

/// How many descriptors this NIC may come to have open.
pub(crate) fn needed(config: &Config) -> u64 {
    let rings = 2 * config.queue_pairs as u64 + 1;
    let per_vf = PER_RING * rings + crate::vhost_user::MAX_MEMORY_REGIONS + PER_VF;
    per_vf * config.vfs as u64 + PER_WORKER * config.cpus.len().max(1) as u64 + OTHERS
}

/// Raise the process's limit as far as it goes, and check that this NIC fits.
///
/// # Errors
/// What is needed and what there is, if that is less.
pub(crate) fn reserve(config: &Config) -> Result<(), (u64, u64)> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Where that is not allowed, what there is may still be enough.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    let needed = needed(config);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err((needed, limit)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vf_is_counted_with_all_that_it_may_take() {
        let mut config = Config::new("n".parse().expect("a name"), 1);
        let one = needed(&config);
        config.vfs = 64;
        let many = needed(&config);
        assert_eq!((many - one) % 63, 0);
        assert!((many - one) / 63 >= 3 * 3 + 64 + 3);
        config.queue_pairs = 8;
        assert_eq!(needed(&config) - many, 64 * 14 * 3);
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        let config = Config::new("n".parse().expect("a name"), 1);
        if let Err((needed, limit)) = reserve(&config) {
            assert!(needed > limit);
        }
        let limits = getrlimit(Resource::Nofile);
        assert_eq!(limits.current, limits.maximum);
    }
}
