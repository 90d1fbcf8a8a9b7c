//! The store: keys and values with revisions, changed by compare-and-swap transactions, watched from
//! any revision that is still kept, and bound to leases where they must not outlive somebody.
//!
//! Two back ends, one contract (`tests/conformance.rs` runs on both): [`Embedded`], a file in the
//! server's own directory, and [`etcd`](EtcdConfig), for more than one server. The semantics are
//! etcd's (its `api/etcdserverpb/rpc.proto` and "KV API guarantees"), narrowed to what is used:
//!
//! - Every transaction that changes anything gets the next [`Revision`], one for all its keys. One
//!   that changes nothing (a delete of what is not there) gets none.
//! - A transaction is done whole or not at all, and once it is acknowledged it is on disk.
//! - A range is read at one revision, however many pages it takes.
//! - A watch tells every change after a revision, once, in order, and all changes of one revision
//!   together; or it says that those revisions are compacted.
//!
//! The trait is asynchronous: its callers (an axum server on tokio) wait for disks and for peers, and
//! etcd's client is asynchronous anyway. The embedded back end has one thread that writes, and blocks
//! no executor. Futures are boxed (`async_trait`), because callers hold an `Arc<dyn Store>`; the
//! allocation is nothing beside an fsync.

mod election;
mod embedded;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod transaction;

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use election::{Election, Leadership};
pub use embedded::Embedded;
pub use error::StoreError;
#[cfg(feature = "etcd")]
pub use etcd::{Etcd, EtcdConfig};
pub use transaction::{Expect, Outcome, Transaction, Write};

use crate::keys::{Key, Prefix};

/// A state of the whole store. The first change makes revision 2, as in etcd, whose empty store is
/// revision 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Revision(u64);

impl Revision {
    /// The empty store.
    pub const FIRST: Self = Self(1);

    /// The number, as it is written to disk or sent to a client.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// A number that [`Self::get`] gave.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The one after.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease, as the store that granted it knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(u64);

impl std::fmt::Display for LeaseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A lease that was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// How long it lasts from when it was last kept alive: never less than was asked for.
    pub ttl: Duration,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where.
    pub key: Key,
    /// What.
    pub value: Vec<u8>,
    /// The revision that made the key, after it was last absent.
    pub created: Revision,
    /// The revision that last wrote it.
    pub modified: Revision,
    /// The lease it goes with.
    pub lease: Option<LeaseId>,
}

/// One key, or all below a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// This key.
    Key(Key),
    /// Every key that begins so.
    Under(Prefix),
}

impl Scope {
    /// Whether a key is in it.
    pub fn holds(&self, key: &Key) -> bool {
        match self {
            Self::Key(own) => own == key,
            Self::Under(prefix) => prefix.holds(key),
        }
    }
}

impl From<Key> for Scope {
    fn from(key: Key) -> Self {
        Self::Key(key)
    }
}

impl From<Prefix> for Scope {
    fn from(prefix: Prefix) -> Self {
        Self::Under(prefix)
    }
}

/// One page of a range read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// Which keys.
    pub scope: Scope,
    /// At which revision; `None` is the newest.
    pub at: Option<Revision>,
    /// Only keys after this one: the last of the page before.
    pub after: Option<Key>,
    /// Most entries in the page, at least 1.
    pub limit: usize,
}

impl Range {
    /// Entries in a page if nothing else is said: at 1 KB each, a quarter of the message that an etcd
    /// client takes.
    pub const PAGE: usize = 1000;

    /// The first page of a scope, at the newest revision.
    pub fn of(scope: impl Into<Scope>) -> Self {
        Self { scope: scope.into(), at: None, after: None, limit: Self::PAGE }
    }
}

/// Entries in the order of their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The revision that was read.
    pub revision: Revision,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether there are more after the last one.
    pub more: bool,
}

/// Keys in their order, without what is under them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPage {
    /// The revision that was read.
    pub revision: Revision,
    /// The keys.
    pub keys: Vec<Key>,
    /// Whether there are more after the last one.
    pub more: bool,
}

/// What became of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It was written.
    Put(Entry),
    /// It was deleted.
    Delete(Key),
}

impl Change {
    /// Which key.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete(key) => key,
        }
    }
}

/// All changes of one revision within a watch's scope, in the order of their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The revision that made them.
    pub revision: Revision,
    /// The changes, at least one.
    pub changes: Vec<Change>,
}

/// A revisioned key-value store. The module says what holds for all of them.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Do a transaction, if all it expects is so.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] before anything is done; [`StoreError::LeaseGone`] if it puts a key
    /// under a lease that has ended; [`StoreError::Unknown`] if the answer was lost, so that it may
    /// be done or not, now or a little later: to try again is safe, since the same expectation holds
    /// only if it was not done.
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError>;

    /// Read one page. At the newest revision it sees every transaction that was acknowledged before.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] or [`StoreError::Future`] if that revision is not there.
    async fn range(&self, range: Range) -> Result<Page, StoreError>;

    /// Which keys there are, as [`Self::range`] would read them: no value is read or sent.
    ///
    /// # Errors
    /// As [`Self::range`].
    async fn keys(&self, range: Range) -> Result<KeyPage, StoreError>;

    /// Watch a scope: all changes of revisions after `after`.
    ///
    /// # Errors
    /// That the revisions are compacted is said by [`Watch::next`].
    async fn watch(&self, scope: Scope, after: Revision) -> Result<Box<dyn Watch>, StoreError>;

    /// A new lease that lasts at least `ttl`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], and [`StoreError::Unknown`]: then a lease may exist that nobody
    /// knows, and ends by itself.
    async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError>;

    /// Let a lease last its whole time again, from now.
    ///
    /// # Errors
    /// [`StoreError::LeaseGone`]: it has ended, and its keys are or will soon be deleted.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// End a lease and delete its keys, in one revision.
    ///
    /// # Errors
    /// [`StoreError::LeaseGone`] if it has ended already.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Forget what was before `revision`: it can still be read, and watched after; older ones cannot.
    /// To compact to where it is already is no error.
    ///
    /// # Errors
    /// [`StoreError::Future`] if there is no such revision yet.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;
}

/// A watch: changes as they happen.
#[async_trait]
pub trait Watch: Send {
    /// The next revision that changed anything in scope; waits for it. May be dropped while it waits
    /// and called again: nothing is lost.
    ///
    /// # Errors
    /// [`StoreError::Compacted`]: read the scope anew and watch from there. After any error the watch
    /// is over.
    async fn next(&mut self) -> Result<Batch, StoreError>;
}

impl dyn Store {
    /// One key, at the newest revision.
    ///
    /// # Errors
    /// As [`Store::range`].
    pub async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let page = self.range(Range { limit: 1, ..Range::of(key.clone()) }).await?;
        Ok(page.entries.into_iter().next())
    }

    /// Whether there is such a key, at the newest revision.
    ///
    /// # Errors
    /// As [`Store::keys`].
    pub async fn has(&self, key: &Key) -> Result<bool, StoreError> {
        let page = self.keys(Range { limit: 1, ..Range::of(key.clone()) }).await?;
        Ok(!page.keys.is_empty())
    }

    /// The keys of a scope, page by page and each page as it is then: one that is made or deleted
    /// meanwhile may be among them or not.
    ///
    /// # Errors
    /// As [`Store::keys`].
    pub async fn every_key(&self, scope: impl Into<Scope>) -> Result<Vec<Key>, StoreError> {
        let mut range = Range::of(scope);
        let mut keys = Vec::new();
        loop {
            let page = self.keys(range.clone()).await?;
            keys.extend(page.keys);
            range.after = keys.last().cloned();
            if !page.more {
                return Ok(keys);
            }
        }
    }

    /// Everything in a scope and the revision it was read at, whatever is written meanwhile.
    ///
    /// # Errors
    /// As [`Store::range`]; [`StoreError::Compacted`] only if somebody compacts past the revision
    /// while its pages are read.
    pub async fn all(&self, scope: impl Into<Scope>) -> Result<(Revision, Vec<Entry>), StoreError> {
        let mut range = Range::of(scope);
        let mut entries = Vec::new();
        loop {
            let page = self.range(range.clone()).await?;
            entries.extend(page.entries);
            range.at = Some(page.revision);
            range.after = entries.last().map(|entry: &Entry| entry.key.clone());
            if !page.more {
                return Ok((page.revision, entries));
            }
        }
    }
}
