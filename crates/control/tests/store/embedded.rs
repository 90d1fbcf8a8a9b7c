//! What only the embedded store has: a file that is closed and opened again.

use std::time::Duration;

use lanekeeper_control::store::{Embedded, Expect, Range, Scope, Store, StoreError, Transaction};

use crate::{commit, folder, key, put, texts};

#[tokio::test]
async fn what_was_committed_is_there_when_it_is_opened_again() {
    let home = tempfile::tempdir().expect("a folder");
    let a = key("again", "a");
    let (old, last) = {
        let store = Embedded::open(home.path()).expect("a store");
        (put(&store, &a, "1").await, put(&store, &a, "2").await)
    };
    let store = Embedded::open(home.path()).expect("a store");
    let page = store.range(Range::of(a.clone())).await.expect("an answer");
    assert_eq!((page.revision, texts(&page.entries)), (last, vec![("a", "2")]));
    let page = store.range(Range { at: Some(old), ..Range::of(a.clone()) }).await;
    assert_eq!(texts(&page.expect("an answer").entries), [("a", "1")]);
    let next = Transaction::new().expect(a.clone(), Expect::At(last)).put(a.clone(), "3");
    assert_eq!(commit(&store, next).await, last.next());
    let mut watch = store.watch(Scope::Key(a), old).await.expect("a watch");
    assert_eq!(watch.next().await.expect("a batch").revision, last);
}

#[tokio::test]
async fn a_store_that_is_open_cannot_be_opened_by_another() {
    let home = tempfile::tempdir().expect("a folder");
    let store = Embedded::open(home.path()).expect("a store");
    let refusal = Embedded::open(home.path()).expect_err("it is open");
    assert!(refusal.to_string().contains("another process has it open"), "{refusal}");
    put(&store, &key("open", "a"), "1").await;
}

#[tokio::test]
async fn a_file_that_is_no_store_is_left_alone() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("store.redb");
    std::fs::write(&file, "not a database").expect("written");
    let refusal = Embedded::open(home.path()).expect_err("no store");
    assert!(matches!(refusal, StoreError::Open { .. }), "{refusal}");
    assert_eq!(std::fs::read(&file).expect("still there"), b"not a database");
}

#[tokio::test]
async fn leases_last_their_whole_time_again_after_a_restart_and_then_end() {
    let home = tempfile::tempdir().expect("a folder");
    let (short, long) =
        {
            let store = Embedded::open(home.path()).expect("a store");
            let short = store.grant(Duration::from_secs(1)).await.expect("a lease");
            let long = store.grant(Duration::from_secs(600)).await.expect("a lease");
            let under = Transaction::new()
                .put_under(short.id, key("restart", "short"), "1")
                .put_under(long.id, key("restart", "long"), "1");
            commit(&store, under).await;
            (short, long)
        };
    tokio::time::sleep(short.ttl * 2).await;
    let store = Embedded::open(home.path()).expect("a store");
    store.keep_alive(short.id).await.expect("nobody could keep it alive meanwhile");
    let page = store.range(Range::of(folder("restart"))).await.expect("an answer");
    assert_eq!(texts(&page.entries), [("long", "1"), ("short", "1")]);
    let mut watch = store.watch(Scope::Under(folder("restart")), page.revision).await.expect("one");
    let batch = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.expect("in time");
    assert_eq!(batch.expect("a batch").changes[0].key(), &key("restart", "short"));
    store.revoke(long.id).await.expect("still there");
    let next = store.grant(Duration::from_secs(600)).await.expect("a lease");
    assert!(![short.id, long.id].contains(&next.id), "an id is not used twice");
}
