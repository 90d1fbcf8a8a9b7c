//! A one-word lock between workers that poll all the time and controllers that come rarely.
//!
//! A worker takes a queue's lock some hundred thousand times a second, a controller (attach,
//! detach, a changed setting) once in a while. Under an ordinary spin lock the controller could
//! wait for ever: the worker's core owns the cache line and wins every race for it. So a
//! controller announces itself first, and as long as one is announced no worker gets in: it waits
//! for one batch at most.
//!
//! A guard that is dropped while its thread panics releases the lock like any other; there is no
//! poisoning, because what the lock guards (a ring's position) is only advanced when it is whole.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use sync::{AtomicU32, Ordering, UnsafeCell};

/// Set while somebody holds the lock.
const LOCKED: u32 = 1;
/// One waiting controller; the bits from here up count them.
const WAITING: u32 = 2;

/// Who waits, and so how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Has other queues to serve: never sleeps.
    Worker,
    /// Has time.
    Controller,
}

/// A value of which one thread at a time has the use; see the module's description for who has
/// priority.
pub(crate) struct TurnLock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a `Guard` only, and `state` lets one exist at a time, with
// Acquire on taking and Release on giving back. So sharing the lock moves the value between
// threads and no more, which is what `Send` allows.
unsafe impl<T: Send> Sync for TurnLock<T> {}
// SAFETY: owning the lock is owning the value.
unsafe impl<T: Send> Send for TurnLock<T> {}

impl<T> TurnLock<T> {
    /// A free lock around `value`.
    pub(crate) fn new(value: T) -> Self {
        Self { state: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// For a worker's own queue: take the lock if nobody holds it and no controller waits for it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // The load keeps the cache line shared while the answer is no.
        if self.state.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.state
            .compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| self.guard())
    }

    /// For a worker that delivers into a queue that others deliver into, too: wait for the lock,
    /// behind every controller.
    ///
    /// Holds are one batch long, so it spins; if the holder has lost its core, it yields.
    #[inline]
    pub(crate) fn spin_lock(&self) -> Guard<'_, T> {
        let mut turns = 0u32;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            turns = turns.saturating_add(1);
            sync::wait(turns, Patience::Worker);
        }
    }

    /// For a controller: wait for the lock, ahead of every worker.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let mut state = self.state.fetch_add(WAITING, Ordering::Relaxed) + WAITING;
        let mut turns = 0u32;
        loop {
            if state & LOCKED == 0 {
                // Take the lock and the announcement back in one step: no worker gets between.
                match self.state.compare_exchange(
                    state,
                    state - WAITING + LOCKED,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return self.guard(),
                    Err(now) => state = now,
                }
                continue;
            }
            turns = turns.saturating_add(1);
            sync::wait(turns, Patience::Controller);
            state = self.state.load(Ordering::Relaxed);
        }
    }

    /// The caller has just set `LOCKED`.
    fn guard(&self) -> Guard<'_, T> {
        Guard { lock: self, not_send: PhantomData }
    }
}

impl<T> fmt::Debug for TurnLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        f.debug_struct("TurnLock")
            .field("locked", &(state & LOCKED != 0))
            .field("controllers_waiting", &(state / WAITING))
            .finish_non_exhaustive()
    }
}

/// The use of a [`TurnLock`]'s value, until dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a TurnLock<T>,
    /// What a guard protects may be bound to the thread that took it.
    not_send: PhantomData<*const ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (`LOCKED` was clear when it was made and stays set
        // until it is dropped), and the reference borrows it.
        unsafe { &*self.lock.value.with(|value| value) }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and `&mut self` makes this the guard's only reference.
        unsafe { &mut *self.lock.value.with_mut(|value| value) }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.state.fetch_and(!LOCKED, Ordering::Release);
    }
}

/// The primitives: the real ones, or loom's, which try every order of events.
mod sync {
    #[cfg(loom)]
    pub(super) use loom::{
        cell::UnsafeCell,
        sync::atomic::{AtomicU32, Ordering},
    };
    #[cfg(not(loom))]
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};

    use super::Patience;

    /// Let time pass before the lock is looked at again for the `turns`-th time.
    #[cfg(not(loom))]
    pub(super) fn wait(turns: u32, patience: Patience) {
        /// Turns anybody spins before giving the core away.
        const SPINS: u32 = 64;
        /// Turns a controller yields before it sleeps: the holder may not be running.
        const YIELDS: u32 = 64;
        /// A sleep of a controller that waits longer than a batch takes.
        const NAP: std::time::Duration = std::time::Duration::from_micros(50);
        if turns <= SPINS {
            std::hint::spin_loop();
        } else if turns <= SPINS + YIELDS || patience == Patience::Worker {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }

    /// Under loom to wait is to let the others run. After a few turns more of the same shows
    /// nothing new, and there would be no end of it.
    #[cfg(loom)]
    pub(super) fn wait(turns: u32, _: Patience) {
        if turns > 2 {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }

    /// `std`'s cell with the access methods of loom's.
    #[cfg(not(loom))]
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(super) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
            access(self.0.get())
        }

        #[inline]
        pub(super) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            access(self.0.get())
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::TurnLock;

    #[test]
    fn a_held_lock_is_refused_and_a_dropped_one_given() {
        let lock = TurnLock::new(1);
        let mut guard = lock.try_lock().expect("free");
        *guard += 1;
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(*lock.spin_lock(), 2);
    }

    #[test]
    fn a_panic_under_the_lock_gives_it_back() {
        let lock = TurnLock::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.try_lock().expect("free");
            panic!("in the middle of a batch");
        }));
        assert!(result.is_err());
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_worker_is_refused_while_a_controller_waits() {
        let lock = TurnLock::new(0);
        let held = lock.try_lock().expect("free");
        thread::scope(|scope| {
            let controller = scope.spawn(|| *lock.lock() = 7);
            while !format!("{lock:?}").contains("controllers_waiting: 1") {
                thread::yield_now();
            }
            drop(held);
            // From here on a worker that gets in must find that the controller has been before it.
            loop {
                if let Some(guard) = lock.try_lock() {
                    assert_eq!(*guard, 7);
                    break;
                }
            }
            controller.join().expect("controller");
        });
    }

    /// One worker's life; answers with the turns it got.
    fn hammer(lock: &TurnLock<(u64, u64)>, stop: &AtomicBool, waits: bool) -> u64 {
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            let guard = if waits { Some(lock.spin_lock()) } else { lock.try_lock() };
            if let Some(mut guard) = guard {
                guard.0 += 1;
                std::hint::black_box(&mut guard.0);
                guard.1 += 1;
                done += 1;
            }
        }
        done
    }

    #[test]
    fn a_controller_gets_in_while_two_workers_never_stop_asking() {
        const TURNS: usize = 200;
        let lock = TurnLock::new((0u64, 0u64));
        let stop = AtomicBool::new(false);
        let (lock, stop) = (&lock, &stop);
        let (answer, answers) = mpsc::channel();
        thread::scope(|scope| {
            let workers = [false, true].map(|waits| scope.spawn(move || hammer(lock, stop, waits)));
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let guard = lock.lock();
                    let whole = guard.0 == guard.1;
                    drop(guard);
                    answer.send(whole).expect("listener");
                }
            });
            // A starved controller shows as a time-out here, not as a test that hangs.
            let turns: Vec<_> = (0..TURNS)
                .map_while(|_| answers.recv_timeout(Duration::from_secs(10)).ok())
                .collect();
            stop.store(true, Ordering::Relaxed);
            let done: u64 = workers.map(|worker| worker.join().expect("worker")).iter().sum();
            assert_eq!(turns, vec![true; TURNS], "starved, or saw a batch half done");
            assert_eq!(lock.lock().0, done, "a turn was lost");
        });
    }
}

#[cfg(all(test, loom))]
mod loom {
    use loom::sync::Arc;
    use loom::thread;

    use super::TurnLock;

    /// A lock around two halves that only a broken lock lets differ.
    fn model(threads: &'static [fn(&TurnLock<(u32, u32)>)]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let lock = Arc::new(TurnLock::new((0, 0)));
            let running: Vec<_> = threads
                .iter()
                .map(|&act| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || act(&lock))
                })
                .collect();
            for thread in running {
                thread.join().expect("thread");
            }
            let end = lock.try_lock().expect("nobody holds or awaits it any more");
            assert_eq!(end.0, end.1);
        });
    }

    fn turn(value: &mut (u32, u32)) {
        assert_eq!(value.0, value.1);
        value.0 += 1;
        value.1 += 1;
    }

    fn worker(lock: &TurnLock<(u32, u32)>) {
        if let Some(mut guard) = lock.try_lock() {
            turn(&mut guard);
        }
    }

    fn deliverer(lock: &TurnLock<(u32, u32)>) {
        turn(&mut lock.spin_lock());
    }

    fn controller(lock: &TurnLock<(u32, u32)>) {
        turn(&mut lock.lock());
    }

    #[test]
    fn a_worker_and_a_controller_exclude_each_other() {
        model(&[worker, controller]);
    }

    #[test]
    fn two_controllers_and_a_worker_exclude_each_other() {
        model(&[controller, controller, worker]);
    }

    #[test]
    fn two_deliverers_and_a_controller_exclude_each_other() {
        model(&[deliverer, controller, deliverer]);
    }

    #[test]
    fn no_worker_passes_a_controller_that_waits() {
        loom::model(|| {
            let lock = Arc::new(TurnLock::new(0));
            let held = lock.try_lock().expect("free");
            let controller = thread::spawn({
                let lock = Arc::clone(&lock);
                move || *lock.lock() = 1
            });
            while lock.state.load(super::Ordering::Relaxed) < super::WAITING {
                thread::yield_now();
            }
            drop(held);
            if let Some(guard) = lock.try_lock() {
                assert_eq!(*guard, 1);
            }
            controller.join().expect("controller");
        });
    }
}
