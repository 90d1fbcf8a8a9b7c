//! A VF as the workers see it: its rings, each behind a [`TurnLock`], and its counters.
//!
//! The rings come and go with the VM's driver; the port itself lives as long as the NIC. Whoever
//! holds a ring's lock may touch guest memory through it, and nobody else: attaching, detaching and
//! re-mapping take the same lock, so memory is never unmapped under a copy.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lanekeeper_model::VfIndex;

use crate::config::MAX_QUEUE_PAIRS;
use crate::log_limit::LogLimit;
use crate::resume::ResumeSlot;
use crate::ring::{Queue, RingFault};
use crate::turn_lock::TurnLock;
use crate::watched::{self, Blocks};

/// How long a VF whose bell blocked stays stopped.
const PENALTY: Duration = Duration::from_secs(5);

/// One attached ring.
pub(crate) struct PortQueue {
    pub(crate) queue: Queue,
    pub(crate) resume: ResumeSlot,
    /// Feature bits that the driver accepted.
    pub(crate) features: u64,
    /// Bytes of the net header before each frame.
    pub(crate) header_len: usize,
    /// Interrupts the driver.
    pub(crate) call: Option<Arc<File>>,
    /// Wakes us.
    pub(crate) kick: Option<Arc<File>>,
}

impl PortQueue {
    /// Interrupt the driver if it wants to hear of what was published.
    ///
    /// # Errors
    /// [`RingFault::BellBlocks`]: the VF is to be stopped.
    #[inline]
    pub(crate) fn notify(&mut self) -> Result<(), RingFault> {
        if self.queue.wants_notify() { self.ring_bell() } else { Ok(()) }
    }

    /// Interrupt the driver whether it asked for that or not.
    ///
    /// # Errors
    /// As [`PortQueue::notify`].
    #[cold]
    pub(crate) fn ring_bell(&mut self) -> Result<(), RingFault> {
        match &self.call {
            Some(call) => watched::ring(call).map_err(|Blocks| RingFault::BellBlocks),
            None => Ok(()),
        }
    }
}

/// One VF.
pub(crate) struct Port {
    pub(crate) index: VfIndex,
    /// Rings the VM sends on.
    pub(crate) tx: [TurnLock<Option<PortQueue>>; MAX_QUEUE_PAIRS],
    /// Rings the VM receives on.
    pub(crate) rx: [TurnLock<Option<PortQueue>>; MAX_QUEUE_PAIRS],
    /// Bit i: `tx[i]` is attached. What workers look at before they try a lock.
    tx_attached: AtomicU32,
    rx_attached: AtomicU32,
    /// Receive queues the driver uses, as the control queue last said; 0 means all attached.
    pub(crate) wanted_pairs: AtomicU32,
    stopped: AtomicBool,
    /// Why it was stopped, and when.
    stop: Mutex<Option<(RingFault, Instant)>>,
    faults: AtomicU64,
    /// What the VMM wants rung when the VF is stopped: an eventfd for each vhost-user ring index
    /// (`VHOST_USER_SET_VRING_ERR`).
    error_bells: Mutex<BTreeMap<u8, File>>,
    /// Receive offloads that the driver has left on, as feature bits.
    pub(crate) guest_offloads: AtomicU64,
    /// What its front-ends may still cause to be said.
    pub(crate) log: LogLimit,
}

/// Which of a pair's two rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The VM receives on it; vhost-user index 2i.
    Rx,
    /// The VM sends on it; vhost-user index 2i + 1.
    Tx,
}

impl Port {
    pub(crate) fn new(index: VfIndex) -> Self {
        Self {
            index,
            tx: std::array::from_fn(|_| TurnLock::new(None)),
            rx: std::array::from_fn(|_| TurnLock::new(None)),
            tx_attached: AtomicU32::new(0),
            rx_attached: AtomicU32::new(0),
            wanted_pairs: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            stop: Mutex::new(None),
            faults: AtomicU64::new(0),
            error_bells: Mutex::default(),
            guest_offloads: AtomicU64::new(u64::MAX),
            log: LogLimit::default(),
        }
    }

    /// Put a ring in place, or take it away with `None`; answers with what was there.
    pub(crate) fn swap(
        &self,
        pair: usize,
        side: Side,
        ring: Option<PortQueue>,
    ) -> Option<PortQueue> {
        let (locks, attached) = match side {
            Side::Rx => (&self.rx, &self.rx_attached),
            Side::Tx => (&self.tx, &self.tx_attached),
        };
        let bit = 1u32 << pair;
        if ring.is_some() {
            attached.fetch_or(bit, Ordering::Release);
        } else {
            attached.fetch_and(!bit, Ordering::Release);
        }
        std::mem::replace(&mut *locks[pair].lock(), ring)
    }

    /// Bit i: the VM's driver has attached `tx[i]`.
    #[inline]
    pub(crate) fn tx_attached(&self) -> u32 {
        self.tx_attached.load(Ordering::Acquire)
    }

    /// Receive rings to spread flows over, from ring 0 on.
    #[inline]
    pub(crate) fn rx_pairs(&self) -> usize {
        let attached = self.rx_attached.load(Ordering::Relaxed).trailing_ones();
        let wanted = self.wanted_pairs.load(Ordering::Relaxed);
        if wanted == 0 { attached as usize } else { attached.min(wanted) as usize }
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.rx_attached.load(Ordering::Relaxed) | self.tx_attached.load(Ordering::Relaxed) != 0
    }

    /// The VF passes nothing until its driver starts anew.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Stop the VF: its rings cannot be trusted. Every other VF goes on.
    #[cold]
    pub(crate) fn stop(&self, fault: RingFault) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            if fault == RingFault::MemoryLost {
                // Empty memory makes a faulty ring: this is why, the other was what came of it.
                self.set_reason(fault);
            }
            return;
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        if self.log.allows(Instant::now()) {
            tracing::warn!(vf = %self.index, %fault, "VF stopped: its rings cannot be trusted");
        }
        self.set_reason(fault);
        for bell in self.error_bells().values() {
            // It is stopped already.
            let _ = watched::ring(bell);
        }
    }

    fn set_reason(&self, fault: RingFault) {
        let now = Instant::now();
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = Some((fault, now));
    }

    /// Have `bell` rung for ring `index` when the VF is stopped, or with `None` nothing.
    pub(crate) fn set_error_bell(&self, index: u8, bell: Option<File>) {
        match bell {
            Some(bell) => self.error_bells().insert(index, bell),
            None => self.error_bells().remove(&index),
        };
    }

    /// Nobody is there to hear of a stop.
    pub(crate) fn forget_error_bells(&self) {
        self.error_bells().clear();
    }

    fn error_bells(&self) -> MutexGuard<'_, BTreeMap<u8, File>> {
        self.error_bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver starts anew. Whether it may: a VF whose bell held a worker up stays stopped for
    /// [`PENALTY`], lest its VMM do it again and again.
    pub(crate) fn clear_stop(&self) -> bool {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if stop.as_ref().is_some_and(|(fault, since)| {
            *fault == RingFault::BellBlocks && since.elapsed() < PENALTY
        }) {
            return false;
        }
        *stop = None;
        self.stopped.store(false, Ordering::Release);
        true
    }

    pub(crate) fn stop_reason(&self) -> Option<String> {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        stop.as_ref().map(|(fault, _)| fault.to_string())
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}
