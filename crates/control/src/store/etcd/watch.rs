//! Watches on etcd. A watch belongs to one member; when that goes, the watch goes on at the next
//! member, from the revision after the last it has told.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Error, Event, EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{sleep, timeout};

use super::{ATTEMPT, Cluster, PAUSE, revision_of};
use crate::store::{Batch, Change, Revision, Scope, StoreError, Watch};

/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Watcher {
    cluster: Arc<Cluster>,
    scope: Scope,
    /// The first revision that was not told.
    next: Revision,
    stream: Option<(usize, WatchStream)>,
    ready: VecDeque<Batch>,
}

impl Watcher {
    pub(super) fn new(cluster: Arc<Cluster>, scope: Scope, after: Revision) -> Self {
        Self { cluster, scope, next: after.next(), stream: None, ready: VecDeque::new() }
    }

    /// Open the stream at the favoured member.
    async fn open(&mut self) -> Result<(), String> {
        let member = self.cluster.favoured.load(Ordering::Relaxed);
        let (first, end) = self.cluster.bounds(&self.scope);
        let mut options = WatchOptions::new()
            .with_start_revision(self.next.get().cast_signed())
            .with_progress_notify();
        if let Some(end) = end {
            options = options.with_range(end);
        }
        let mut watch = self.cluster.members[member].watch.clone();
        let why = match timeout(ATTEMPT, watch.watch(first, Some(options))).await {
            Ok(Ok(stream)) => {
                self.stream = Some((member, stream));
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ATTEMPT.as_secs()),
        };
        self.cluster.turn_from(member);
        Err(why)
    }

    /// Take in what the member said; false if it ended the watch for a reason that another member
    /// may not have.
    fn take(&mut self, response: &WatchResponse) -> Result<bool, StoreError> {
        if response.canceled() {
            let Some(oldest) = u64::try_from(response.compact_revision()).ok().filter(|n| *n > 0)
            else {
                return Ok(false);
            };
            let asked = Revision(self.next.get() - 1);
            return Err(StoreError::Compacted { asked, oldest: Revision(oldest) });
        }
        for event in response.events() {
            self.take_event(event)?;
        }
        if response.events().is_empty() && !response.created() {
            // Told how far it came: nothing in scope was changed up to there.
            self.next = self.next.max(revision_of(response.header())?.next());
        }
        Ok(true)
    }

    fn take_event(&mut self, event: &Event) -> Result<(), StoreError> {
        let Some(kv) = event.kv() else { return Ok(()) };
        let revision = Revision(kv.mod_revision().cast_unsigned());
        let change = match event.event_type() {
            EventType::Put => Change::Put(self.cluster.entry(kv)?),
            EventType::Delete => Change::Delete(self.cluster.key(kv.key())?),
        };
        match self.ready.back_mut() {
            Some(batch) if batch.revision == revision => batch.changes.push(change),
            _ => self.ready.push_back(Batch { revision, changes: vec![change] }),
        }
        self.next = self.next.max(revision.next());
        Ok(())
    }
}

#[async_trait]
impl Watch for Watcher {
    async fn next(&mut self) -> Result<Batch, StoreError> {
        let mut pause = PAUSE;
        loop {
            if let Some(mut batch) = self.ready.pop_front() {
                batch.changes.sort_by(|a, b| a.key().cmp(b.key()));
                return Ok(batch);
            }
            let Some((member, stream)) = &mut self.stream else {
                if let Err(why) = self.open().await {
                    tracing::warn!(%why, scope = ?self.scope, "a watch on etcd is tried again");
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                continue;
            };
            let member = *member;
            let why = match stream.message().await {
                Ok(Some(response)) if self.take(&response)? => continue,
                Ok(_) => "the member ended it".to_owned(),
                Err(Error::GRpcStatus(status)) => status.message().to_owned(),
                Err(error) => error.to_string(),
            };
            tracing::info!(%why, scope = ?self.scope, "a watch on etcd goes on elsewhere");
            self.stream = None;
            self.cluster.turn_from(member);
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}
