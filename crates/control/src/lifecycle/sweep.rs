//! Keeping the store small: answers to requests with idempotency keys, events, audit records and
//! ended usage are kept for a while, and old revisions of everything for some minutes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cloud::{Answered, Cloud};
use crate::keys::{self, DutyName, Prefix, ServerName};
use crate::resource::{AuditRecord, Event, Resource, Time};
use crate::store::{Election, Expect, Revision, StoreError, Transaction};

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(60);
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
    loop {
        if let Err(error) = sweep(cloud, &mut past).await {
            tracing::warn!(%error, "the store was not swept");
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn sweep(cloud: &Cloud, past: &mut VecDeque<(Instant, Revision)>) -> Result<(), StoreError> {
    let store = cloud.store();
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
    .await?;
    let newest = store.range(crate::store::Range::of(keys::counter("ids"))).await?.revision;
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
    let (_, entries) = store.all(below.clone()).await?;
    let over: Vec<_> = entries.into_iter().filter(|entry| is_over(&entry.value)).collect();
    for entries in over.chunks(Transaction::MOST_KEYS) {
        let mut transaction = Transaction::new();
        for entry in entries {
            let key = entry.key.clone();
            transaction = transaction.expect(key.clone(), Expect::At(entry.modified)).delete(key);
        }
        // Who was overtaken looks again the next time.
        store.commit(transaction).await?;
    }
    Ok(())
}
