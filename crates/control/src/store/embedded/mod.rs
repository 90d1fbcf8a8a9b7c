//! The embedded store: one redb file in the server's data directory.
//!
//! redb is copy-on-write B-trees with checksums: what was committed last is what a reopened file
//! holds, whenever the process or the machine died. One thread writes ([`writer`]); transactions that
//! wait while it syncs go into its next commit together, so many of them cost one fsync. Readers see
//! a snapshot and wait for nobody.

mod session;
mod tables;
mod watch;
mod writer;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use redb::{Database, DatabaseError};
use tokio::sync::oneshot;

use self::watch::{Subscribers, Watcher};
use self::writer::{Request, Writer};
use super::{
    KeyPage, Lease, LeaseId, Outcome, Page, Range, Revision, Scope, Store, StoreError, Transaction,
    Watch,
};

/// Name of the file in the directory.
const FILE: &str = "store.redb";

/// Revisions that one step of a compaction forgets: more would hold up those who wait to commit.
const COMPACTION_STEP: u64 = 1000;

/// A store in a directory of one server.
#[derive(Debug)]
pub struct Embedded {
    database: Arc<Database>,
    subscribers: Arc<Subscribers>,
    requests: Option<mpsc::Sender<Request>>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl Embedded {
    /// Open the store in `directory`, or make one there. All leases last their whole time again from
    /// now, since nobody could keep them alive while the store was closed.
    ///
    /// # Errors
    /// [`StoreError::Open`], also if another process has it open; [`StoreError::Foreign`] if it is
    /// none of ours.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let failed = |why: String| StoreError::Open { path: path.clone(), why };
        std::fs::create_dir_all(directory).map_err(|error| failed(error.to_string()))?;
        let database = Database::create(&path).map_err(|error| {
            failed(match error {
                DatabaseError::DatabaseAlreadyOpen => {
                    "another process has it open; stop that server first".to_owned()
                }
                other => other.to_string(),
            })
        })?;
        // The file's own name in the directory has to outlast a power cut too.
        std::fs::File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| failed(error.to_string()))?;
        tables::prepare(&database)?;
        let database = Arc::new(database);
        let subscribers = Arc::new(Subscribers::default());
        let (requests, received) = mpsc::channel();
        let writer = Writer::new(Arc::clone(&database), Arc::clone(&subscribers))?;
        let writer = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run(&received))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { database, subscribers, requests: Some(requests), writer: Some(writer) })
    }

    /// Hand a request to the writer and wait for its answer.
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Request + Send,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let gone = || StoreError::Disk("its writer gave no answer; the log says why".to_owned());
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        requests.send(request(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

/// The writer finishes what it was given; then the file is closed, unless a watch still reads it.
impl Drop for Embedded {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has told its callers so.
            let _ = writer.join();
        }
    }
}

#[async_trait]
impl Store for Embedded {
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        transaction.check()?;
        self.ask(|answer| Request::Commit(transaction, answer)).await
    }

    async fn range(&self, range: Range) -> Result<Page, StoreError> {
        let database = Arc::clone(&self.database);
        // Pages that are not in memory are read from disk, for which no executor should wait.
        let read = tokio::task::spawn_blocking(move || tables::range(&database, &range));
        read.await.map_err(|error| StoreError::Disk(error.to_string()))?
    }

    async fn keys(&self, range: Range) -> Result<KeyPage, StoreError> {
        let database = Arc::clone(&self.database);
        let read = tokio::task::spawn_blocking(move || tables::keys(&database, &range));
        read.await.map_err(|error| StoreError::Disk(error.to_string()))?
    }

    async fn watch(&self, scope: Scope, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let signal = self.subscribers.subscribe(&scope);
        Ok(Box::new(Watcher::new(Arc::clone(&self.database), signal, scope, after)))
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        self.ask(|answer| Request::Grant(ttl, answer)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ask(|answer| Request::KeepAlive(lease, answer)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ask(|answer| Request::Revoke(lease, answer)).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        loop {
            let step = |answer| Request::Compact { to: revision, most: COMPACTION_STEP, answer };
            if self.ask(step).await? >= revision {
                return Ok(());
            }
        }
    }
}
