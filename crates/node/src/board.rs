//! What is to be told of each VM, and how many VMs boot at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lanekeeper_control::protocol::{VmId, VmReport};
use lanekeeper_vmm::Accel;

/// The last word of each VM.
#[derive(Debug, Default)]
pub(crate) struct Board {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    version: u64,
    reports: BTreeMap<VmId, VmReport>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, report: VmReport) {
        let mut told = self.lock();
        if told.reports.get(&report.vm) != Some(&report) {
            tracing::info!(vm = report.vm, state = ?report.state, "a VM has changed");
            told.reports.insert(report.vm, report);
            told.version += 1;
            self.changed.notify_all();
        }
    }

    pub(crate) fn strike(&self, vm: VmId) {
        self.lock().reports.remove(&vm);
    }

    /// Everything, once it is newer than `seen`, or after `within`; and what it is newer than then.
    pub(crate) fn wait(&self, seen: u64, within: Duration) -> (u64, Vec<VmReport>) {
        let same = |told: &mut Told| told.version == seen;
        let waited = self.changed.wait_timeout_while(self.lock(), within, same);
        let told = waited.unwrap_or_else(PoisonError::into_inner).0;
        (told.version, told.reports.values().cloned().collect())
    }

    /// End the wait.
    pub(crate) fn wake(&self) {
        self.lock().version += 1;
        self.changed.notify_all();
    }
}

/// Boots that may be under way at once: an emulated CPU takes a core of this machine for as long as it
/// boots, and more of them would only make each wait for the others.
#[derive(Debug)]
pub(crate) struct Boots {
    left: Arc<AtomicUsize>,
}

/// A boot that is under way.
#[derive(Debug)]
pub(crate) struct Booting {
    left: Arc<AtomicUsize>,
}

impl Boots {
    pub(crate) fn of(accel: Accel) -> Self {
        let left = match accel {
            Accel::Kvm => usize::MAX,
            Accel::Tcg => std::thread::available_parallelism().map_or(1, usize::from),
        };
        Self { left: Arc::new(AtomicUsize::new(left)) }
    }

    /// `None` while no more may boot.
    pub(crate) fn begin(&self) -> Option<Booting> {
        let fewer = |left: usize| left.checked_sub(1);
        let taken = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
        taken.ok().map(|_| Booting { left: Arc::clone(&self.left) })
    }
}

impl Drop for Booting {
    fn drop(&mut self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }
}
