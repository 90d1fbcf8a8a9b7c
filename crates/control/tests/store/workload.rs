//! Workers that count on shared keys by compare-and-swap, and what must be so afterwards whatever
//! died meanwhile: each increment that was acknowledged is there, none is there twice, and no ticket
//! was given to two.

use std::collections::BTreeSet;
use std::sync::Arc;

use lanekeeper_control::store::{Expect, Outcome, Store, StoreError, Transaction};

use crate::{folder, key};

/// Keys that all workers count on.
const COUNTERS: u64 = 3;

/// What one worker knows of its own work.
pub(crate) struct Worker {
    name: usize,
    /// Increments it was told are done.
    pub(crate) acknowledged: u64,
    /// Increments it was told nothing of, and found not done by then.
    unknown: u64,
    tickets: Vec<String>,
}

/// Let `workers` count `times` each, all at once.
pub(crate) async fn count(
    store: &Arc<dyn Store>,
    space: &str,
    workers: usize,
    times: u64,
) -> Vec<Worker> {
    count_while(store, space, workers, move |n| n < times).await
}

/// Let `workers` count, all at once, each for as long as it goes on.
pub(crate) async fn count_while(
    store: &Arc<dyn Store>,
    space: &str,
    workers: usize,
    goes_on: impl Fn(u64) -> bool + Clone + Send + Sync + 'static,
) -> Vec<Worker> {
    let running: Vec<_> = (0..workers)
        .map(|name| {
            let (store, space, goes_on) = (Arc::clone(store), space.to_owned(), goes_on.clone());
            tokio::spawn(async move {
                let mut worker = Worker { name, acknowledged: 0, unknown: 0, tickets: Vec::new() };
                for n in (0..).take_while(|n| goes_on(*n)) {
                    worker.increment(&*store, &space, n).await;
                }
                worker
            })
        })
        .collect();
    let mut done = Vec::new();
    for worker in running {
        done.push(worker.await.expect("a worker that ends"));
    }
    done
}

impl Worker {
    /// Counts on, and takes the ticket with the number it counted: one transaction.
    async fn increment(&mut self, store: &dyn Store, space: &str, n: u64) {
        let counter = (self.name as u64 + n) % COUNTERS;
        let counter_key = key(space, &format!("counter-{counter}"));
        let mut tried: BTreeSet<String> = BTreeSet::new();
        loop {
            let Ok(found) = store.get(&counter_key).await else { continue };
            let (number, expected) = match &found {
                None => (0, Expect::Absent),
                Some(entry) => (
                    String::from_utf8_lossy(&entry.value).parse::<u64>().expect("a number"),
                    Expect::At(entry.modified),
                ),
            };
            let ticket = format!("ticket-{counter}-{number}");
            let take = Transaction::new()
                .expect(counter_key.clone(), expected)
                .expect(key(space, &ticket), Expect::Absent)
                .put(counter_key.clone(), (number + 1).to_string())
                .put(key(space, &ticket), self.name.to_string());
            match store.commit(take).await {
                Ok(Outcome::Committed(_)) => {
                    self.acknowledged += 1;
                    self.tickets.push(ticket);
                    break;
                }
                Ok(Outcome::Conflict { .. }) | Err(StoreError::Unavailable(_)) => {}
                Err(StoreError::Unknown(_)) => {
                    self.unknown += u64::from(tried.insert(ticket));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Nothing acknowledged is lost; nothing is there that nobody did; no ticket is missing or double.
pub(crate) async fn judge(store: &Arc<dyn Store>, space: &str, done: &[Worker]) {
    let (_, entries) = store.all(folder(space)).await.expect("an answer");
    let text = |name: &str| {
        let entry = entries.iter().find(|entry| entry.key.last() == name)?;
        Some(String::from_utf8_lossy(&entry.value).into_owned())
    };
    let mut counted = 0;
    for counter in 0..COUNTERS {
        let number =
            text(&format!("counter-{counter}")).map_or(0, |text| text.parse().expect("one"));
        for ticket in 0..number {
            assert!(text(&format!("ticket-{counter}-{ticket}")).is_some(), "{counter}: {ticket}");
        }
        counted += number;
    }
    let tickets = entries.iter().filter(|entry| entry.key.last().starts_with("ticket"));
    assert_eq!(tickets.count() as u64, counted, "as many tickets as were counted");
    for worker in done {
        for ticket in &worker.tickets {
            let owner = text(ticket);
            assert_eq!(owner.as_deref(), Some(worker.name.to_string().as_str()), "{ticket}");
        }
    }
    let acknowledged: u64 = done.iter().map(|worker| worker.acknowledged).sum();
    let unknown: u64 = done.iter().map(|worker| worker.unknown).sum();
    assert!(
        (acknowledged..=acknowledged + unknown).contains(&counted),
        "{counted} counted, {acknowledged} acknowledged, {unknown} unknown"
    );
}
