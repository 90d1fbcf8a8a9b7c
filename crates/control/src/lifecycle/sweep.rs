//! Keeping the store small: answers to requests with idempotency keys, events, audit records and
//! ended usage are kept for a while, and old revisions of everything for some minutes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cloud::Cloud;
use crate::keys::{self, DutyName, Key, ServerName};
use crate::resource::{AuditRecord, Event, Resource, Time};
use crate::store::{Election, Expect, Range, Revision, Store, StoreError, Transaction};

/// How often old revisions are let go.
const EVERY: Duration = Duration::from_secs(60);
/// How often it is looked for what was kept long enough.
const LOOK: Duration = Duration::from_secs(3600);
/// How long a watch may be behind.
const REVISIONS: Duration = Duration::from_secs(600);
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
            match forget_old(cloud, Time::now().second()).await {
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

/// Delete answers, events and audit records that were kept long enough. What was not is not read.
async fn forget_old(cloud: &Cloud, now: i64) -> Result<(), StoreError> {
    let store = &**cloud.store();
    forget_answers(store, now).await?;
    let is_old = |at: Time| at.second() + RECORDS < now;
    forget_records(store, Event::KIND, |value| {
        serde_json::from_slice::<Event>(value).is_ok_and(|event| is_old(event.at))
    })
    .await?;
    forget_records(store, AuditRecord::KIND, |value| {
        serde_json::from_slice::<AuditRecord>(value).is_ok_and(|record| is_old(record.at))
    })
    .await
}

/// Delete the answers whose time has come: their ends are in the order of time.
async fn forget_answers(store: &dyn Store, now: i64) -> Result<(), StoreError> {
    let now = u64::try_from(now).unwrap_or_default();
    // An answer and its end are two keys.
    let mut range = Range { limit: Transaction::MOST_KEYS / 2, ..Range::of(keys::ends()) };
    loop {
        let page = store.keys(range.clone()).await?;
        let ending = |key: &Key| keys::ending(key).filter(|(second, _)| *second <= now);
        let over: Vec<(Key, Key)> =
            page.keys.iter().map_while(|end| Some((end.clone(), ending(end)?.1))).collect();
        let is_all = over.len() < page.keys.len() || !page.more;
        range.after = page.keys.last().cloned();
        if !over.is_empty() {
            let transaction = over
                .into_iter()
                .fold(Transaction::new(), |all, (end, answer)| all.delete(end).delete(answer));
            store.commit(transaction).await?;
        }
        if is_all {
            return Ok(());
        }
    }
}

/// Delete an organization's oldest records, then the next one's: ids grow with time, so that where a
/// page has none that is over, none after it is. (A server may use an id some time after it reserved
/// it: then what is younger waits for the next time.)
async fn forget_records(
    store: &dyn Store,
    kind: &'static str,
    is_over: impl Fn(&[u8]) -> bool,
) -> Result<(), StoreError> {
    let mut range = Range { limit: Transaction::MOST_KEYS, ..Range::of(keys::tenants(kind)) };
    loop {
        let page = store.range(range.clone()).await?;
        let Some(last) = page.entries.last() else { return Ok(()) };
        range.after = Some(last.key.clone());
        let over = page.entries.iter().filter(|entry| is_over(&entry.value));
        let transaction = over.fold(Transaction::new(), |transaction, entry| {
            let (key, at) = (entry.key.clone(), Expect::At(entry.modified));
            transaction.expect(key.clone(), at).delete(key)
        });
        if transaction.writes().is_empty() {
            // On to the next organization.
            range.after = keys::resource(&last.key)
                .and_then(|(_, owner, _)| Some(keys::last_of_tenant(kind, &owner?)));
        } else {
            // Who was overtaken looks again the next time.
            store.commit(transaction).await?;
        }
        if !page.more {
            return Ok(());
        }
    }
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

#[cfg(test)]
mod tests {
    use super::super::reads::Counting;
    use super::*;
    use crate::cloud::{Draft, Once};
    use crate::keys::{OrgName, Prefix};
    use crate::resource::Severity;

    const DAY: i64 = 24 * 3600;

    fn organization(name: &str) -> OrgName {
        OrgName::new(name).expect("a name")
    }

    fn event(owner: &str, id: u64, at: i64) -> Event {
        Event {
            id,
            organization: organization(owner),
            kind: "vms".to_owned(),
            resource: 1,
            reason: "test".to_owned(),
            message: String::new(),
            severity: Severity::Info,
            at: Time::from_second(at),
        }
    }

    async fn write(cloud: &Cloud, events: Vec<Event>) {
        for some in events.chunks(Transaction::MOST_KEYS) {
            let mut draft = Draft::new();
            for event in some {
                draft.create(event).expect("drafted");
            }
            cloud.commit(draft).await.expect("written");
        }
    }

    async fn left(store: &Counting, below: Prefix) -> usize {
        let store: &dyn Store = store;
        store.every_key(below).await.expect("read").len()
    }

    #[tokio::test]
    async fn records_go_after_their_time_and_those_that_stay_are_hardly_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Counting::open(folder.path());
        let cloud = Cloud::new(Arc::clone(&store) as Arc<dyn Store>);
        let now = 1000 * DAY;
        for owner in ["acme", "globex", "initech"] {
            // Three hundred are over, of which one was written under a late id; two thousand are not.
            let at = |id| if id < 300 || id == 305 { now - 91 * DAY } else { now - DAY };
            write(&cloud, (0..2300).map(|id| event(owner, id, at(id))).collect()).await;
        }
        store.since();
        forget_old(&cloud, now).await.expect("swept");
        let (reads, values) = store.since();
        assert_eq!(left(&store, keys::tenants(Event::KIND)).await, 3 * 1999);
        assert!(reads <= 3 * 4 + 3 && values <= 3 * (300 + 2 * 128), "{reads} {values}");
        store.since();
        forget_old(&cloud, now).await.expect("swept");
        let (reads, values) = store.since();
        assert!(reads <= 3 + 3 && values <= 3 * 128, "{reads} {values}");
    }

    #[tokio::test]
    async fn answers_go_after_a_day_and_those_that_stay_are_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Counting::open(folder.path());
        let cloud = Cloud::new(Arc::clone(&store) as Arc<dyn Store>);
        for n in 0..300 {
            let (organization, key) = (organization("acme"), format!("key-{n}"));
            let once = Once { organization, key, fingerprint: String::new() };
            let mut draft = Draft::new();
            draft.answer_once(Some(&once), 201, &n).expect("drafted");
            cloud.commit(draft).await.expect("written");
        }
        let both = async || {
            let answers = Prefix::below(&Key::parse("/v1/once").expect("a key"));
            (left(&store, answers).await, left(&store, keys::ends()).await)
        };
        let now = Time::now().second();
        store.since();
        forget_old(&cloud, now).await.expect("swept");
        assert_eq!(store.since(), (3, 0), "one look at each kind");
        assert_eq!(both().await, (300, 300));
        forget_old(&cloud, now + 2 * DAY).await.expect("swept");
        assert_eq!(both().await, (0, 0));
    }
}
