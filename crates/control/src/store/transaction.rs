//! A transaction: what must be so, and what to write then.

use std::collections::BTreeMap;

use super::{LeaseId, Revision, StoreError};
use crate::keys::Key;

/// What a transaction expects of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// There is no such key.
    Absent,
    /// It was last written by this revision.
    At(Revision),
}

/// What a transaction does to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Write it.
    Put {
        /// Its value.
        value: Vec<u8>,
        /// The lease it shall go with; none takes it from the lease it had.
        lease: Option<LeaseId>,
    },
    /// Delete it, if it is there.
    Delete,
}

/// Expectations and writes, each at most one a key: a later one for the same key replaces it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    expects: BTreeMap<Key, Expect>,
    writes: BTreeMap<Key, Write>,
}

/// How a transaction ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done, and on disk; the revision is its own, or the newest if it changed nothing.
    Committed(Revision),
    /// Nothing is done: these keys are not as it expected.
    Conflict {
        /// When it was judged.
        revision: Revision,
        /// Each of them, and which revision last wrote it; `None` if it is absent.
        keys: Vec<(Key, Option<Revision>)>,
    },
}

impl Transaction {
    /// Most expectations, and most writes: etcd's default (`--max-txn-ops`), so that what one back
    /// end takes the other takes too.
    pub const MOST_KEYS: usize = 128;

    /// Most bytes of keys and values: two thirds of etcd's default (`--max-request-bytes`).
    pub const MOST_BYTES: usize = 1 << 20;

    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Expect something of a key.
    #[must_use]
    pub fn expect(mut self, key: Key, expected: Expect) -> Self {
        self.expects.insert(key, expected);
        self
    }

    /// Write a key.
    #[must_use]
    pub fn put(mut self, key: Key, value: impl Into<Vec<u8>>) -> Self {
        self.writes.insert(key, Write::Put { value: value.into(), lease: None });
        self
    }

    /// Write a key that goes when the lease goes.
    #[must_use]
    pub fn put_under(mut self, lease: LeaseId, key: Key, value: impl Into<Vec<u8>>) -> Self {
        self.writes.insert(key, Write::Put { value: value.into(), lease: Some(lease) });
        self
    }

    /// Delete a key.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.writes.insert(key, Write::Delete);
        self
    }

    /// What it expects, by key.
    pub fn expects(&self) -> &BTreeMap<Key, Expect> {
        &self.expects
    }

    /// What it writes, by key.
    pub fn writes(&self) -> &BTreeMap<Key, Write> {
        &self.writes
    }

    /// Whether every store takes it.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`].
    pub fn check(&self) -> Result<(), StoreError> {
        let most = |what, size, most| {
            if size <= most { Ok(()) } else { Err(StoreError::TooLarge { what, size, most }) }
        };
        most("expectations", self.expects.len(), Self::MOST_KEYS)?;
        most("writes", self.writes.len(), Self::MOST_KEYS)?;
        let expects = self.expects.keys().map(|key| key.as_str().len());
        let writes = self.writes.iter().map(|(key, write)| {
            let value = match write {
                Write::Put { value, .. } => value.len(),
                Write::Delete => 0,
            };
            key.as_str().len() + value
        });
        most("bytes", expects.chain(writes).sum(), Self::MOST_BYTES)
    }
}
