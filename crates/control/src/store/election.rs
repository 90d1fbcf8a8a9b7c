//! One leader a duty, by lease: who makes the duty's key under a lease of its own leads until the lease
//! ends. Several servers on one store divide what only one may do at a time (IPAM sweeps, re-placement
//! of what a lost host carried); one that dies is followed when its lease has run out.
//!
//! A leader that was stopped for longer than its lease does not know that it was followed. So what a
//! leader writes goes through [`Leadership::fence`]: the store refuses it once another leads.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Change, Expect, LeaseId, Outcome, Revision, Scope, Store, StoreError, Transaction};
use crate::keys::{self, DutyName, Key, ServerName};

/// A duty that somebody is to lead, as one server sees it.
pub struct Election {
    store: Arc<dyn Store>,
    key: Key,
    server: ServerName,
    ttl: Duration,
}

impl Election {
    /// Take part in the election for `duty`. A leader that dies is followed after `ttl` (and what the
    /// store adds: see [`super::Lease::ttl`]).
    pub fn new(store: Arc<dyn Store>, duty: &DutyName, server: ServerName, ttl: Duration) -> Self {
        Self { store, key: keys::leader(duty), server, ttl }
    }

    /// Wait until this server leads.
    ///
    /// # Errors
    /// Those of the store; then to try again is safe.
    pub async fn campaign(&self) -> Result<Leadership, StoreError> {
        loop {
            let asked = Instant::now();
            let lease = self.store.grant(self.ttl).await?;
            let stand = Transaction::new().expect(self.key.clone(), Expect::Absent).put_under(
                lease.id,
                self.key.clone(),
                self.server.as_str(),
            );
            match self.store.commit(stand).await {
                Ok(Outcome::Committed(revision)) => {
                    return Ok(self.lead(lease, revision, asked));
                }
                Ok(Outcome::Conflict { revision, .. }) => {
                    self.give_up(lease.id).await;
                    self.wait_for_vacancy(revision).await?;
                }
                Err(error) => {
                    // If it was done all the same, this undoes it.
                    self.give_up(lease.id).await;
                    return Err(error);
                }
            }
        }
    }

    /// Who leads now.
    ///
    /// # Errors
    /// As [`Store::range`].
    pub async fn leader(&self) -> Result<Option<ServerName>, StoreError> {
        let Some(entry) = self.store.get(&self.key).await? else { return Ok(None) };
        let name = String::from_utf8_lossy(&entry.value).into_owned();
        let name = ServerName::try_from(name);
        name.map(Some).map_err(|error| StoreError::Foreign(error.to_string()))
    }

    async fn give_up(&self, lease: LeaseId) {
        if let Err(error) = self.store.revoke(lease).await {
            tracing::debug!(%error, %lease, "a lease is left to end by itself");
        }
    }

    async fn wait_for_vacancy(&self, after: Revision) -> Result<(), StoreError> {
        let mut watch = self.store.watch(Scope::Key(self.key.clone()), after).await?;
        loop {
            match watch.next().await {
                Ok(batch) if matches!(batch.changes.last(), Some(Change::Delete(_))) => {
                    return Ok(());
                }
                Ok(_) => {}
                // What happened meanwhile is not known: look again.
                Err(StoreError::Compacted { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn lead(&self, lease: super::Lease, revision: Revision, asked: Instant) -> Leadership {
        let (lost, is_lost) = watch::channel(false);
        let store = Arc::clone(&self.store);
        let keeper = tokio::spawn(async move {
            keep(store.as_ref(), lease, asked).await;
            // Nobody may care any more.
            let _ = lost.send(true);
        });
        let store = Arc::clone(&self.store);
        Leadership { store, key: self.key.clone(), lease: lease.id, revision, is_lost, keeper }
    }
}

/// Keep a lease alive until it has ended, or may have: its time counts from when it was last asked
/// for, not from when the answer came.
async fn keep(store: &dyn Store, lease: super::Lease, mut alive_since: Instant) {
    loop {
        sleep(lease.ttl / 3).await;
        let asked = Instant::now();
        let ends = alive_since + lease.ttl;
        match tokio::time::timeout_at(ends, store.keep_alive(lease.id)).await {
            Ok(Ok(())) => alive_since = asked,
            Ok(Err(StoreError::LeaseGone(_))) | Err(_) => return,
            Ok(Err(error)) => tracing::warn!(%error, "a leader's lease could not be kept alive"),
        }
    }
}

/// This server leads; until it is lost, given up, or dropped (then its lease runs out).
pub struct Leadership {
    store: Arc<dyn Store>,
    key: Key,
    lease: LeaseId,
    revision: Revision,
    is_lost: watch::Receiver<bool>,
    keeper: tokio::task::JoinHandle<()>,
}

impl Leadership {
    /// The same transaction, but refused with a conflict on the duty's key if somebody else leads.
    #[must_use]
    pub fn fence(&self, transaction: Transaction) -> Transaction {
        transaction.expect(self.key.clone(), Expect::At(self.revision))
    }

    /// Wait until it is lost: stop the duty then.
    pub async fn lost(&self) {
        // The sender goes only after it has said so.
        let _ = self.is_lost.clone().wait_for(|lost| *lost).await;
    }

    /// Stop leading, so that another need not wait.
    ///
    /// # Errors
    /// As [`Store::revoke`], but that the lease has ended already is no error.
    pub async fn resign(self) -> Result<(), StoreError> {
        self.keeper.abort();
        match self.store.revoke(self.lease).await {
            Err(StoreError::LeaseGone(_)) => Ok(()),
            other => other,
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}
