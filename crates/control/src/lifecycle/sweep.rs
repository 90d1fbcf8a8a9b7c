//! Keeping the store small: answers to requests with idempotency keys, events, audit records and
//! ended usage are kept for a while, and old revisions of everything for some minutes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cloud::{Answered, Cloud};
use crate::keys::{self, DutyName, Prefix, ServerName};
use crate::resource::{AuditRecord, Event, Resource, Time};
use crate::store::{Election, Expect, Range, Revision, StoreError, Transaction};

/// How often old revisions are let go.
const EVERY: Duration = Duration::from_secs(60);
/// How often it is looked for what was kept long enough: all of it is read for that.
const LOOK: Duration = Duration::from_secs(3600);
/// How long a watch may be behind.
const REVISIONS: Duration = Duration::from_secs(600);
/// How long the same request with the same idempotency key is answered the same, in seconds.
const ANSWERS: i64 = 24 * 3600;
/// How long events and audit records are kept, in seconds.
const RECORDS: i64 = 90 * 24 * 3600;

pub(super) async fn run(cloud: Arc<Cloud>, server: ServerName) {
    let Ok(duty) = DutyName::new("sweep") else { return };
    let election = Election::new(Arc::clone(cloud.store()), &duty, server, super::LEADER_LEASE);
    loop {
        if let Ok(leadership) = election.campaign().await {
            tokio::select! {
                () = leadership.lost() => {}
                () = lead(&cloud) => {}
            }
        }
        tokio::time::sleep(super::AGAIN).await;
    }
}

async fn lead(cloud: &Cloud) {
    let mut past = VecDeque::new();
    let mut looked: Option<Instant> = None;
    loop {
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            match forget_old(cloud).await {
                Ok(()) => looked = Some(Instant::now()),
                Err(error) => tracing::warn!(%error, "old records were not deleted"),
            }
        }
        if let Err(error) = compact(cloud, &mut past).await {
            tracing::warn!(%error, "old revisions were not let go");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Delete answers, events and audit records that were kept long enough.
async fn forget_old(cloud: &Cloud) -> Result<(), StoreError> {
    let now = Time::now().second();
    delete_if(cloud, &keys::answers(), |value| {
        serde_json::from_slice::<Answered>(value).is_ok_and(|a| a.at.second() + ANSWERS < now)
    })
    .await?;
    let is_old = |at: Time| at.second() + RECORDS < now;
    delete_if(cloud, &keys::tenants(Event::KIND), |value| {
        serde_json::from_slice::<Event>(value).is_ok_and(|event| is_old(event.at))
    })
    .await?;
    delete_if(cloud, &keys::tenants(AuditRecord::KIND), |value| {
        serde_json::from_slice::<AuditRecord>(value).is_ok_and(|record| is_old(record.at))
    })
    .await
}

/// Let go of revisions that no watch can be behind by.
async fn compact(
    cloud: &Cloud,
    past: &mut VecDeque<(Instant, Revision)>,
) -> Result<(), StoreError> {
    let store = cloud.store();
    let newest = store.range(Range::of(keys::counter("ids"))).await?.revision;
    past.push_back((Instant::now(), newest));
    while let Some((at, revision)) = past.front().copied()
        && at.elapsed() > REVISIONS
    {
        past.pop_front();
        store.compact(revision).await?;
    }
    Ok(())
}

async fn delete_if(
    cloud: &Cloud,
    below: &Prefix,
    is_over: impl Fn(&[u8]) -> bool,
) -> Result<(), StoreError> {
    let store = cloud.store();
    // Page by page, each as it is then: there may be millions.
    let mut range = Range::of(below.clone());
    loop {
        let page = store.range(range.clone()).await?;
        let over: Vec<_> = page.entries.iter().filter(|entry| is_over(&entry.value)).collect();
        for entries in over.chunks(Transaction::MOST_KEYS) {
            let mut transaction = Transaction::new();
            for entry in entries {
                let (key, at) = (entry.key.clone(), Expect::At(entry.modified));
                transaction = transaction.expect(key.clone(), at).delete(key);
            }
            // Who was overtaken looks again the next time.
            store.commit(transaction).await?;
        }
        range.after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::OrgName;
    use crate::store::{Embedded, Store};

    #[tokio::test]
    async fn what_is_over_goes_from_every_page_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let store: Arc<dyn Store> = Arc::new(Embedded::open(folder.path()).expect("a store"));
        let acme = OrgName::new("acme").expect("a name");
        let all: Vec<usize> = (0..2 * Range::PAGE + 7).collect();
        for some in all.chunks(Transaction::MOST_KEYS) {
            let transaction = some.iter().fold(Transaction::new(), |transaction, number| {
                let value = if number % 10 == 0 { "kept" } else { "over" };
                transaction.put(keys::once(&acme, &number.to_string()), value)
            });
            store.commit(transaction).await.expect("written");
        }
        let cloud = Cloud::new(Arc::clone(&store));
        delete_if(&cloud, &keys::answers(), |value| value == b"over").await.expect("swept");
        let (_, left) = store.all(keys::answers()).await.expect("read");
        assert_eq!(left.len(), all.len().div_ceil(10));
        assert!(left.iter().all(|entry| entry.value == b"kept"));
    }
}
