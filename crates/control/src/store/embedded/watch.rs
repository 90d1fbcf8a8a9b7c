//! Watches of the embedded store. A watch reads the log itself and is only told when to look, so a
//! slow one costs no memory and holds up nobody; and it is told only of what it watches, so ten
//! thousand of them do not all wake for each commit.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use redb::Database;
use tokio::sync::Notify;

use super::tables;
use crate::store::{Batch, Revision, Scope, StoreError, Watch};

/// Revisions of the log that are read at once.
const STRIDE: usize = 256;

/// Tells one watch where to look.
#[derive(Debug, Default)]
pub(super) struct Signal {
    /// The first revision with a change in scope that the watch was not told of before; 0: none.
    pending: AtomicU64,
    wake: Notify,
}

/// All watches, by the text of the key or prefix they watch.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<HashMap<String, Vec<Weak<Signal>>>>);

impl Subscribers {
    pub(super) fn subscribe(&self, scope: &Scope) -> Arc<Signal> {
        let signal = Arc::new(Signal::default());
        let text = match scope {
            Scope::Key(key) => key.as_str(),
            Scope::Under(prefix) => prefix.as_str(),
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = all.entry(text.to_owned()).or_default();
        same.retain(|signal| signal.strong_count() > 0);
        same.push(Arc::downgrade(&signal));
        signal
    }

    /// A revision changed these keys and can be read now.
    pub(super) fn tell(&self, revision: u64, keys: &[String]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            let prefixes = key.match_indices('/').map(|(at, _)| &key[..=at]);
            for text in prefixes.chain([key.as_str()]) {
                let Some(same) = all.get_mut(text) else { continue };
                same.retain(|signal| {
                    let Some(signal) = signal.upgrade() else { return false };
                    // One that is told already looks from there on.
                    let _ = signal.pending.compare_exchange(
                        0,
                        revision,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    signal.wake.notify_one();
                    true
                });
                if same.is_empty() {
                    all.remove(text);
                }
            }
        }
    }
}

/// One watch.
pub(super) struct Watcher {
    database: Arc<Database>,
    signal: Arc<Signal>,
    scope: Scope,
    /// The first revision that was not looked at.
    next: u64,
    /// Whether the log may hold more from `next` on.
    behind: bool,
    ready: VecDeque<Batch>,
}

impl Watcher {
    /// The signal is older than this: whatever happens from now on is told, whatever happened before
    /// is in the log.
    pub(super) fn new(
        database: Arc<Database>,
        signal: Arc<Signal>,
        scope: Scope,
        after: Revision,
    ) -> Self {
        let next = after.next().get();
        Self { database, signal, scope, next, behind: true, ready: VecDeque::new() }
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        let (database, scope, next) = (Arc::clone(&self.database), self.scope.clone(), self.next);
        let read = move || tables::log(&database, &scope, next, STRIDE);
        let read = tokio::task::spawn_blocking(read).await;
        let reading = read.map_err(|error| StoreError::Disk(error.to_string()))??;
        self.behind = reading.behind;
        self.next = reading.next;
        self.ready.extend(reading.batches);
        Ok(())
    }
}

#[async_trait]
impl Watch for Watcher {
    async fn next(&mut self) -> Result<Batch, StoreError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(batch);
            }
            if self.behind {
                self.look().await?;
                continue;
            }
            self.signal.wake.notified().await;
            let pending = self.signal.pending.swap(0, Ordering::AcqRel);
            if pending != 0 {
                // Between the two nothing in scope was changed, compacted or not.
                self.next = self.next.max(pending);
                self.behind = true;
            }
        }
    }
}
