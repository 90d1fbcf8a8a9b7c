//! What can be done to resources, whichever API asks for it: the native one and the Hyperstack one
//! both come through here, and so does the command line.
//!
//! Every function takes the organization it works in, and reaches tenants' resources by keys that hold
//! it: there is no way from here to another's. Every change is one transaction (where that can hold
//! it), made of a [`Draft`], so that a crash leaves all or nothing; who was overtaken reads anew.

mod agents;
mod catalog;
mod draft;
mod error;
mod firewalls;
mod groups;
mod hosts;
mod networks;
mod read;
mod several;
mod tenancy;
mod verifications;
mod vms;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::claims::Claims;
use crate::keys::{self, RegionName};
use crate::metrics::Metrics;
use crate::store::{Expect, Outcome, Revision, Store, StoreError, Transaction};

pub use agents::{LEASE, Settled};
pub(crate) use draft::Answered;
pub use draft::{Draft, Once};
pub use error::CloudError;
pub use read::{Ask, Listed, Stored};
pub use tenancy::Key;
pub(crate) use vms::status_word;

/// Do something until nothing was changed meanwhile, for callers who have no way to say what they have
/// seen: what they ask for holds for what there is.
pub(crate) async fn again<T, F>(mut act: impl FnMut() -> F) -> Result<T, CloudError>
where
    F: Future<Output = Result<T, CloudError>>,
{
    // Who is overtaken that often is told so.
    const TRIES: u32 = 16;
    for _ in 1..TRIES {
        match act().await {
            Err(CloudError::Stale) => {}
            done => return done,
        }
    }
    act().await
}

/// Ids that a server reserves at once: few enough that those lost when it ends do not matter.
const BLOCK: u64 = 64;

/// The store, and what is asked of it.
pub struct Cloud {
    store: Arc<dyn Store>,
    ids: Mutex<Range<u64>>,
    claims: Mutex<HashMap<RegionName, Claims>>,
    metrics: Arc<Metrics>,
}

impl Cloud {
    /// On a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::counting(store, Arc::default())
    }

    /// On a store, with what is done counted.
    pub fn counting(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self { store, ids: Mutex::new(0..0), claims: Mutex::default(), metrics }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The claims of a region, followed from when they are first asked for.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn claims(&self, region: &RegionName) -> Result<Claims, StoreError> {
        let mut open = self.claims.lock().await;
        if let Some(claims) = open.get(region) {
            return Ok(claims.clone());
        }
        let claims =
            Claims::counting(Arc::clone(&self.store), region.clone(), Arc::clone(&self.metrics))
                .await?;
        open.insert(region.clone(), claims.clone());
        Ok(claims)
    }

    /// An id that nothing had yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn new_id(&self) -> Result<u64, StoreError> {
        let mut ids = self.ids.lock().await;
        if ids.is_empty() {
            *ids = self.reserve("ids", BLOCK).await?;
        }
        ids.next().ok_or_else(|| StoreError::Foreign("no ids are left".to_owned()))
    }

    /// Numbers from 1 that nobody else reserved.
    async fn reserve(&self, what: &'static str, count: u64) -> Result<Range<u64>, StoreError> {
        let key = keys::counter(what);
        loop {
            let entry = self.store.get(&key).await?;
            let first = match &entry {
                None => 1,
                Some(entry) => std::str::from_utf8(&entry.value)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .ok_or_else(|| StoreError::Foreign(format!("{key} is no number")))?,
            };
            let expected = entry.map_or(Expect::Absent, |entry| Expect::At(entry.modified));
            let end = first + count;
            let taken =
                Transaction::new().expect(key.clone(), expected).put(key.clone(), end.to_string());
            match self.store.commit(taken).await {
                Ok(Outcome::Committed(_)) => return Ok(first..end),
                // Reserved by another, or perhaps by us without our knowing: take the next ones.
                Ok(Outcome::Conflict { .. }) | Err(StoreError::Unknown(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Do what a draft says, all or nothing.
    ///
    /// # Errors
    /// [`CloudError`]: `Taken` if a name or address of it is another's by now, `Stale` if something was
    /// changed since it was read.
    pub async fn commit(&self, draft: Draft) -> Result<Revision, CloudError> {
        let (transaction, wanted) = draft.into_parts();
        transaction.check()?;
        match self.store.commit(transaction).await? {
            Outcome::Committed(revision) => Ok(revision),
            Outcome::Conflict { keys, .. } => Err(CloudError::of_conflict(&keys, &wanted)),
        }
    }
}
