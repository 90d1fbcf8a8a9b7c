//! Tests only: a process that is killed between two of its stores to rings and journals. From then
//! on nothing that this thread stores there arrives, as if it had not run.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `work`, of whose stores only the first `stores` arrive. Whether that was all of them.
pub(super) fn after(stores: usize, work: impl FnOnce()) -> bool {
    LEFT.set(Some(stores));
    work();
    LEFT.replace(None).is_some_and(|left| left > 0)
}

/// Counts one store.
pub(super) fn allows_a_store() -> bool {
    match LEFT.get() {
        None => true,
        Some(0) => false,
        Some(left) => {
            LEFT.set(Some(left - 1));
            true
        }
    }
}
