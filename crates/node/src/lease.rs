//! The host's lease: how long the server waits for a sign of life before it may start this host's VMs
//! elsewhere. Counted from when the sign was sent, by a clock that a suspended machine does not stop.
//!
//! It is in a file as well, so that an agent that was started anew knows when the last one's ran out.
//! The file is not synced: a process that is killed loses nothing of it, and a host that is booted anew
//! has no VM that could run twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::NodeError;

/// Time since the host was booted.
pub(crate) fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), nanos)
}

/// A lease, or none.
#[derive(Debug)]
pub(crate) struct Lease {
    path: PathBuf,
    boot: String,
    until: Option<Duration>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    boot: String,
    until_ms: u64,
}

impl Lease {
    /// The one that the last agent had, if the host is still up since.
    pub(crate) fn load(folder: &Path) -> Result<Self, NodeError> {
        let id = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(id).map_err(NodeError::file(id, "read"))?.trim().to_owned();
        let path = folder.join("lease");
        let kept = fs::read(&path).ok();
        let kept = kept.and_then(|text| serde_json::from_slice::<Kept>(&text).ok());
        let kept = kept.filter(|kept| kept.boot == boot);
        Ok(Self { path, boot, until: kept.map(|kept| Duration::from_millis(kept.until_ms)) })
    }

    /// A sign of life, sent at `sent`, is worth `seconds`.
    pub(crate) fn renew(&mut self, sent: Duration, seconds: u32) -> Result<(), NodeError> {
        let until = sent + Duration::from_secs(seconds.into());
        self.until = Some(until);
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        let text = serde_json::to_vec(&Kept { boot: self.boot.clone(), until_ms })
            .map_err(|error| NodeError::file(&self.path, "encode")(error.into()))?;
        let draft = self.path.with_extension("draft");
        fs::write(&draft, text).map_err(NodeError::file(&draft, "write"))?;
        fs::rename(&draft, &self.path).map_err(NodeError::file(&self.path, "replace"))
    }

    /// Whether the server must still suppose that this host's VMs run.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_when_the_sign_was_sent_and_outlives_the_agent() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut lease = Lease::load(folder.path()).expect("loads");
        assert!(!lease.holds(now()), "there is none yet");
        let sent = Duration::from_secs(100);
        lease.renew(sent, 10).expect("written");
        assert!(lease.holds(Duration::from_secs(109)) && !lease.holds(Duration::from_secs(110)));
        let again = Lease::load(folder.path()).expect("loads");
        assert!(again.holds(Duration::from_secs(109)) && !again.holds(Duration::from_secs(110)));
    }

    #[test]
    fn a_lease_of_before_the_host_was_booted_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = "{\"boot\": \"another\", \"until_ms\": 1000000000000}";
        fs::write(folder.path().join("lease"), kept).expect("written");
        assert!(!Lease::load(folder.path()).expect("loads").holds(now()));
    }
}
