//! Where the node and the worker of one VM meet: what is desired of the VM, and the VM itself, for it to
//! be ended from outside when its worker waits for something.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lanekeeper_control::protocol::DesiredVm;

/// What is asked of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    /// What the VM shall be; `None` for no more.
    pub(crate) want: Option<DesiredVm>,
    /// A VM that may have been started elsewhere must not run here.
    pub(crate) held_back: bool,
    /// How often it was held back: then it was ended, and its VFs' links taken down, from outside.
    pub(crate) fences: u64,
    /// The agent ends; the VM runs on.
    pub(crate) stop: bool,
    /// One more with each change.
    pub(crate) number: u64,
}

/// A worker's orders and its VM.
#[derive(Debug)]
pub(crate) struct Seat<V> {
    orders: Mutex<Orders>,
    changed: Condvar,
    vm: Mutex<Option<Arc<V>>>,
}

impl<V> Seat<V> {
    pub(crate) fn new(want: Option<DesiredVm>, held_back: bool) -> Self {
        let orders = Mutex::new(Orders { want, held_back, fences: 0, stop: false, number: 0 });
        Self { orders, changed: Condvar::new(), vm: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Orders)) {
        let mut orders = self.lock();
        change(&mut orders);
        orders.number += 1;
        self.changed.notify_all();
    }

    pub(crate) fn orders(&self) -> Orders {
        self.lock().clone()
    }

    /// What the VM shall be. That it shall be no more is never taken back.
    pub(crate) fn order(&self, want: Option<&DesiredVm>, held_back: bool) {
        let orders = self.lock().clone();
        let want = want.filter(|_| orders.want.is_some());
        if orders.want.as_ref() != want || orders.held_back != held_back {
            self.change(|orders| (orders.want, orders.held_back) = (want.cloned(), held_back));
        }
    }

    pub(crate) fn hold_back(&self) {
        self.change(|orders| {
            orders.held_back = true;
            orders.fences += 1;
        });
    }

    pub(crate) fn stop(&self) {
        self.change(|orders| orders.stop = true);
    }

    /// Wait until there are other orders than those of this number, or for as long as `within`.
    pub(crate) fn wait(&self, number: u64, within: Duration) {
        let same = |orders: &mut Orders| orders.number == number;
        // What it waited for is read anew in any case.
        drop(self.changed.wait_timeout_while(self.lock(), within, same));
    }

    pub(crate) fn vm(&self) -> Option<Arc<V>> {
        self.vm.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn seat(&self, vm: Option<Arc<V>>) {
        *self.vm.lock().unwrap_or_else(PoisonError::into_inner) = vm;
    }
}
