//! The store's contract, on both back ends: what [`lanekeeper_control::store`] promises, one function a
//! promise. The embedded store is also killed in the middle of commits, and compared with a simple
//! model over random histories; etcd's members are killed under a workload.

mod cases;
#[cfg(feature = "etcd")]
mod cluster;
mod election;
mod embedded;
#[cfg(feature = "etcd")]
mod etcd;
mod killed;
mod model;
mod workload;

use lanekeeper_control::keys::{Key, Prefix};
use lanekeeper_control::store::{Entry, Outcome, Revision, Store, Transaction};

/// A key in the folder `/t/SPACE`; each case has a space of its own.
fn key(space: &str, name: &str) -> Key {
    Key::parse(&format!("/t/{space}/{name}")).expect("a key")
}

fn folder(space: &str) -> Prefix {
    Prefix::below(&Key::parse(&format!("/t/{space}")).expect("a key"))
}

/// Commits what cannot conflict.
async fn put(store: &dyn Store, key: &Key, value: &str) -> Revision {
    commit(store, Transaction::new().put(key.clone(), value)).await
}

async fn commit(store: &dyn Store, transaction: Transaction) -> Revision {
    match store.commit(transaction).await.expect("a store that answers") {
        Outcome::Committed(revision) => revision,
        conflict @ Outcome::Conflict { .. } => panic!("{conflict:?}"),
    }
}

fn texts(entries: &[Entry]) -> Vec<(&str, &str)> {
    entries
        .iter()
        .map(|entry| (entry.key.last(), std::str::from_utf8(&entry.value).expect("text")))
        .collect()
}
