//! The contract, one promise a function; `ALL` lists them for a back end that
//! is not made anew for each.

use std::sync::Arc;
use std::time::Duration;

use lanekeeper_control::store::{
    Batch, Change, Expect, Outcome, Range, Revision, Scope, Store, StoreError, Transaction, Watch,
};
use tokio::time::{sleep, timeout};

use crate::{commit, folder, key, put, texts};

#[cfg(feature = "etcd")]
type Case = fn(Arc<dyn Store>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! cases {
    ($($name:ident)*) => {
        /// Every promise, with its name.
        #[cfg(feature = "etcd")]
        pub(crate) const ALL: &[(&str, Case)] =
            &[$((stringify!($name), |store| Box::pin($name(store)))),*];

        mod on_the_embedded_store {
            $(#[tokio::test]
            async fn $name() {
                let home = tempfile::tempdir().expect("a folder");
                let store = lanekeeper_control::store::Embedded::open(home.path()).expect("a store");
                super::$name(std::sync::Arc::new(store)).await;
            })*
        }
    };
}

cases! {
    a_put_is_read_back_with_its_revisions
    all_writes_of_a_transaction_share_one_revision
    a_transaction_that_expects_what_is_not_so_does_nothing_and_says_why
    absence_is_an_expectation_too
    a_delete_of_what_is_not_there_makes_no_revision
    a_key_made_anew_is_created_anew
    a_transaction_that_is_too_large_is_refused_before_anything_is_done
    a_folder_is_read_in_order_and_ends_where_it_ends
    keys_are_told_without_values_as_a_reading_would_find_them
    pages_of_an_old_revision_do_not_see_later_writes
    a_revision_that_is_not_there_yet_is_refused
    a_watch_tells_each_revision_once_and_whole
    a_watch_from_the_past_tells_the_past_and_then_the_present
    a_watch_tells_nothing_of_its_neighbours
    a_watch_that_is_dropped_while_it_waits_loses_nothing
    compaction_keeps_the_newest_state_and_says_what_is_gone
    a_watch_from_before_a_compaction_says_so
    a_watch_that_was_idle_outlives_a_compaction
    a_revoked_lease_takes_its_keys_along
    a_lease_that_nobody_keeps_alive_ends
    a_lease_that_is_kept_alive_does_not_end
    a_key_that_is_written_without_its_lease_outlives_it
    nothing_can_be_put_under_a_lease_that_has_ended
    of_many_that_count_at_once_none_is_lost
}

fn expect_conflict(outcome: Result<Outcome, StoreError>) -> Vec<(String, Option<Revision>)> {
    match outcome.expect("an answer") {
        Outcome::Conflict { keys, .. } => {
            keys.into_iter().map(|(key, at)| (key.last().to_owned(), at)).collect()
        }
        Outcome::Committed(revision) => panic!("committed as {revision}"),
    }
}

async fn next(watch: &mut Box<dyn Watch>) -> Batch {
    timeout(Duration::from_secs(20), watch.next()).await.expect("in time").expect("a batch")
}

/// What a batch did, as text: `name=value`, or `-name`.
fn told(batch: &Batch) -> Vec<String> {
    let tell = |change: &Change| match change {
        Change::Put(entry) => {
            format!("{}={}", entry.key.last(), String::from_utf8_lossy(&entry.value))
        }
        Change::Delete(key) => format!("-{}", key.last()),
    };
    batch.changes.iter().map(tell).collect()
}

async fn a_put_is_read_back_with_its_revisions(store: Arc<dyn Store>) {
    let a = key("put", "a");
    assert_eq!(store.get(&a).await, Ok(None));
    let made = put(&*store, &a, "1").await;
    assert!(made > Revision::FIRST);
    let entry = store.get(&a).await.expect("an answer").expect("there");
    assert_eq!((entry.created, entry.modified, entry.lease), (made, made, None));
    let changed = put(&*store, &a, "").await;
    assert_eq!(changed, made.next());
    let entry = store.get(&a).await.expect("an answer").expect("there");
    assert_eq!((entry.created, entry.modified), (made, changed));
    assert_eq!(entry.value, b"");
}

async fn all_writes_of_a_transaction_share_one_revision(store: Arc<dyn Store>) {
    let [a, b, c] = ["a", "b", "c"].map(|name| key("shared", name));
    put(&*store, &c, "old").await;
    let all = Transaction::new().put(a, "1").put(b, "2").delete(c);
    let revision = commit(&*store, all).await;
    let (at, entries) = store.all(folder("shared")).await.expect("an answer");
    assert_eq!(at, revision);
    assert_eq!(texts(&entries), [("a", "1"), ("b", "2")]);
    assert!(entries.iter().all(|entry| entry.modified == revision));
}

async fn a_transaction_that_expects_what_is_not_so_does_nothing_and_says_why(
    store: Arc<dyn Store>,
) {
    let [a, b, c] = ["a", "b", "c"].map(|name| key("cas", name));
    let first = put(&*store, &a, "1").await;
    let second = put(&*store, &a, "2").await;
    let of_b = put(&*store, &b, "1").await;
    let write = |expected_a, expected_b| {
        Transaction::new()
            .expect(a.clone(), Expect::At(expected_a))
            .expect(b.clone(), Expect::At(expected_b))
            .put(a.clone(), "3")
            .put(c.clone(), "3")
    };
    let conflict = expect_conflict(store.commit(write(first, of_b)).await);
    assert_eq!(conflict, [("a".to_owned(), Some(second))]);
    let (at, entries) = store.all(folder("cas")).await.expect("an answer");
    assert_eq!((at, texts(&entries)), (of_b, vec![("a", "2"), ("b", "1")]));
    commit(&*store, write(second, of_b)).await;
    let (_, entries) = store.all(folder("cas")).await.expect("an answer");
    assert_eq!(texts(&entries), [("a", "3"), ("b", "1"), ("c", "3")]);
}

async fn absence_is_an_expectation_too(store: Arc<dyn Store>) {
    let a = key("absent", "a");
    let make = || Transaction::new().expect(a.clone(), Expect::Absent).put(a.clone(), "1");
    let made = commit(&*store, make()).await;
    assert_eq!(expect_conflict(store.commit(make()).await), [("a".to_owned(), Some(made))]);
    commit(&*store, Transaction::new().expect(a.clone(), Expect::At(made)).delete(a.clone())).await;
    let late = Transaction::new().expect(a.clone(), Expect::At(made)).put(a.clone(), "2");
    assert_eq!(expect_conflict(store.commit(late).await), [("a".to_owned(), None)]);
    commit(&*store, make()).await;
}

async fn a_delete_of_what_is_not_there_makes_no_revision(store: Arc<dyn Store>) {
    let before = put(&*store, &key("nothing", "a"), "1").await;
    let nothing = Transaction::new().delete(key("nothing", "b"));
    assert_eq!(commit(&*store, nothing).await, before);
    assert_eq!(commit(&*store, Transaction::new()).await, before);
    assert_eq!(put(&*store, &key("nothing", "a"), "2").await, before.next());
}

async fn a_key_made_anew_is_created_anew(store: Arc<dyn Store>) {
    let a = key("anew", "a");
    put(&*store, &a, "1").await;
    commit(&*store, Transaction::new().delete(a.clone())).await;
    let made = put(&*store, &a, "2").await;
    let entry = store.get(&a).await.expect("an answer").expect("there");
    assert_eq!(entry.created, made);
}

async fn a_transaction_that_is_too_large_is_refused_before_anything_is_done(store: Arc<dyn Store>) {
    let many = |count: usize| {
        (0..count).fold(Transaction::new(), |transaction, n| {
            let key = key("large", &n.to_string());
            transaction.expect(key.clone(), Expect::Absent).put(key, "1")
        })
    };
    let most = Transaction::MOST_KEYS;
    let refusal = store.commit(many(most + 1)).await.expect_err("too many");
    assert_eq!(refusal, StoreError::TooLarge { what: "expectations", size: most + 1, most });
    let long = vec![b'x'; Transaction::MOST_BYTES];
    let refusal = store.commit(Transaction::new().put(key("large", "x"), long)).await;
    assert!(matches!(refusal, Err(StoreError::TooLarge { what: "bytes", .. })), "{refusal:?}");
    assert_eq!(store.all(folder("large")).await.expect("an answer").1, []);
    commit(&*store, many(most)).await;
    let long = vec![b'x'; Transaction::MOST_BYTES - 100];
    commit(&*store, Transaction::new().put(key("large", "x"), long)).await;
}

async fn a_folder_is_read_in_order_and_ends_where_it_ends(store: Arc<dyn Store>) {
    for name in ["b", "a", "a.b", "a-b", "c"] {
        put(&*store, &key("order", name), name).await;
    }
    put(&*store, &key("order2", "a"), "neighbour").await;
    put(&*store, &key("orde", "a"), "neighbour").await;
    let (_, entries) = store.all(folder("order")).await.expect("an answer");
    let names: Vec<&str> = entries.iter().map(|entry| entry.key.last()).collect();
    assert_eq!(names, ["a", "a-b", "a.b", "b", "c"]);
    let one = store.range(Range::of(key("order", "a"))).await.expect("an answer");
    assert_eq!((texts(&one.entries), one.more), (vec![("a", "a")], false));
}

async fn keys_are_told_without_values_as_a_reading_would_find_them(store: Arc<dyn Store>) {
    let names = |keys: &[lanekeeper_control::keys::Key]| -> Vec<String> {
        keys.iter().map(|key| key.last().to_owned()).collect()
    };
    for name in ["b", "a", "d", "c"] {
        put(&*store, &key("keys", name), name).await;
    }
    put(&*store, &key("keys2", "a"), "neighbour").await;
    let first = Range { limit: 3, ..Range::of(folder("keys")) };
    let page = store.keys(first.clone()).await.expect("a page");
    assert_eq!((names(&page.keys), page.more), (vec!["a".into(), "b".into(), "c".into()], true));
    commit(&*store, Transaction::new().delete(key("keys", "b"))).await;
    let next = Range { after: page.keys.last().cloned(), ..first.clone() };
    let last = store.keys(next).await.expect("a page");
    assert_eq!((names(&last.keys), last.more), (vec!["d".into()], false));
    let old = store.keys(Range { at: Some(page.revision), ..first }).await.expect("a page");
    assert_eq!((old.keys, old.more), (page.keys, true));
    assert_eq!(names(&store.every_key(folder("keys")).await.expect("read")), ["a", "c", "d"]);
    assert!(store.has(&key("keys", "a")).await.expect("read"));
    assert!(!store.has(&key("keys", "b")).await.expect("read"));
}

async fn pages_of_an_old_revision_do_not_see_later_writes(store: Arc<dyn Store>) {
    for n in 0..5 {
        put(&*store, &key("pages", &n.to_string()), "old").await;
    }
    let mut range = Range { limit: 2, ..Range::of(folder("pages")) };
    let mut read = Vec::new();
    for (page_number, more) in [(0, true), (1, true), (2, false)] {
        let page = store.range(range.clone()).await.expect("a page");
        assert_eq!(page.more, more, "page {page_number}");
        assert!(range.at.is_none_or(|at| at == page.revision));
        range.at = Some(page.revision);
        range.after = page.entries.last().map(|entry| entry.key.clone());
        read.extend(page.entries);
        for n in 0..6 {
            put(&*store, &key("pages", &n.to_string()), "new").await;
        }
        commit(&*store, Transaction::new().delete(key("pages", "4"))).await;
    }
    let old: Vec<(String, &str)> = (0..5).map(|n| (n.to_string(), "old")).collect();
    let old: Vec<(&str, &str)> = old.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(texts(&read), old);
}

async fn a_revision_that_is_not_there_yet_is_refused(store: Arc<dyn Store>) {
    let newest = put(&*store, &key("future", "a"), "1").await;
    let asked = newest.next();
    let range = Range { at: Some(asked), ..Range::of(folder("future")) };
    assert_eq!(store.range(range).await, Err(StoreError::Future { asked }));
    assert_eq!(store.compact(asked).await, Err(StoreError::Future { asked }));
}

async fn a_watch_tells_each_revision_once_and_whole(store: Arc<dyn Store>) {
    let [a, b] = ["a", "b"].map(|name| key("watch", name));
    let start = put(&*store, &a, "0").await;
    let mut watch = store.watch(Scope::Under(folder("watch")), start).await.expect("a watch");
    let one = commit(&*store, Transaction::new().put(b.clone(), "1").put(a.clone(), "1")).await;
    let two = commit(&*store, Transaction::new().put(a.clone(), "2").delete(b)).await;
    let three = put(&*store, &a, "3").await;
    for (revision, changes) in
        [(one, vec!["a=1", "b=1"]), (two, vec!["a=2", "-b"]), (three, vec!["a=3"])]
    {
        let batch = next(&mut watch).await;
        assert_eq!((batch.revision, told(&batch)), (revision, own(changes)));
    }
}

fn own(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

async fn a_watch_from_the_past_tells_the_past_and_then_the_present(store: Arc<dyn Store>) {
    let a = key("past", "a");
    let start = put(&*store, &a, "0").await;
    for n in 1..=300 {
        put(&*store, &a, &n.to_string()).await;
    }
    let mut watch = store.watch(Scope::Key(a.clone()), start).await.expect("a watch");
    for n in 1..=300 {
        assert_eq!(told(&next(&mut watch).await), [format!("a={n}")]);
    }
    put(&*store, &a, "now").await;
    assert_eq!(told(&next(&mut watch).await), ["a=now"]);
}

async fn a_watch_tells_nothing_of_its_neighbours(store: Arc<dyn Store>) {
    let start = put(&*store, &key("near", "a"), "0").await;
    let mut under = store.watch(Scope::Under(folder("near")), start).await.expect("a watch");
    let mut of_key = store.watch(Scope::Key(key("near", "a")), start).await.expect("a watch");
    put(&*store, &key("near2", "a"), "neighbour").await;
    put(&*store, &key("near", "ab"), "longer").await;
    put(&*store, &key("near", "a"), "own").await;
    assert_eq!(told(&next(&mut under).await), ["ab=longer"]);
    assert_eq!(told(&next(&mut under).await), ["a=own"]);
    assert_eq!(told(&next(&mut of_key).await), ["a=own"]);
}

async fn a_watch_that_is_dropped_while_it_waits_loses_nothing(store: Arc<dyn Store>) {
    let a = key("waits", "a");
    let start = put(&*store, &a, "0").await;
    let mut watch = store.watch(Scope::Key(a.clone()), start).await.expect("a watch");
    for n in 0..20 {
        for _ in 0..3 {
            let early = timeout(Duration::from_micros(200), watch.next()).await;
            assert!(early.is_err(), "{early:?}");
        }
        put(&*store, &a, &n.to_string()).await;
        assert_eq!(told(&next(&mut watch).await), [format!("a={n}")]);
    }
}

async fn compaction_keeps_the_newest_state_and_says_what_is_gone(store: Arc<dyn Store>) {
    let [a, b, c] = ["a", "b", "c"].map(|name| key("compact", name));
    put(&*store, &b, "kept").await;
    let old = put(&*store, &a, "1").await;
    put(&*store, &c, "gone").await;
    commit(&*store, Transaction::new().delete(c.clone())).await;
    let middle = put(&*store, &a, "2").await;
    put(&*store, &a, "3").await;
    store.compact(middle).await.expect("compacted");
    store.compact(middle).await.expect("once more is no error");
    let at = |revision| Range { at: Some(revision), ..Range::of(folder("compact")) };
    let page = store.range(at(middle)).await.expect("still there");
    assert_eq!(texts(&page.entries), [("a", "2"), ("b", "kept")]);
    let (_, entries) = store.all(folder("compact")).await.expect("an answer");
    assert_eq!(texts(&entries), [("a", "3"), ("b", "kept")]);
    let gone = store.range(at(old)).await.expect_err("compacted");
    assert!(matches!(gone, StoreError::Compacted { asked, .. } if asked == old), "{gone}");
    // What is left can be changed and compacted again.
    let last = commit(&*store, Transaction::new().delete(b).put(c, "new")).await;
    store.compact(last).await.expect("compacted");
    let (_, entries) = store.all(folder("compact")).await.expect("an answer");
    assert_eq!(texts(&entries), [("a", "3"), ("c", "new")]);
}

async fn a_watch_from_before_a_compaction_says_so(store: Arc<dyn Store>) {
    let a = key("late", "a");
    let start = put(&*store, &a, "0").await;
    for n in 1..5 {
        put(&*store, &a, &n.to_string()).await;
    }
    let last = put(&*store, &a, "5").await;
    store.compact(last).await.expect("compacted");
    let mut watch = store.watch(Scope::Key(a.clone()), start).await.expect("a watch");
    let gone = timeout(Duration::from_secs(20), watch.next()).await.expect("in time");
    let gone = gone.expect_err("compacted");
    assert!(
        matches!(gone, StoreError::Compacted { asked, oldest } if asked == start && oldest == last),
        "{gone}"
    );
    let mut watch = store.watch(Scope::Key(a.clone()), last).await.expect("a watch");
    put(&*store, &a, "6").await;
    assert_eq!(told(&next(&mut watch).await), ["a=6"]);
}

async fn a_watch_that_was_idle_outlives_a_compaction(store: Arc<dyn Store>) {
    let [a, b] = ["a", "b"].map(|name| key("idle", name));
    let start = put(&*store, &a, "0").await;
    let mut watch = store.watch(Scope::Key(a.clone()), start).await.expect("a watch");
    assert!(timeout(Duration::from_millis(200), watch.next()).await.is_err());
    for n in 0..10 {
        put(&*store, &b, &n.to_string()).await;
    }
    let last = put(&*store, &b, "last").await;
    store.compact(last).await.expect("compacted");
    put(&*store, &a, "1").await;
    assert_eq!(told(&next(&mut watch).await), ["a=1"]);
}

async fn a_revoked_lease_takes_its_keys_along(store: Arc<dyn Store>) {
    let [a, b, c] = ["a", "b", "c"].map(|name| key("revoke", name));
    let lease = store.grant(Duration::from_secs(60)).await.expect("a lease");
    let other = store.grant(Duration::from_secs(60)).await.expect("a lease");
    assert_ne!(lease.id, other.id);
    let under = Transaction::new().put_under(lease.id, a.clone(), "1").put_under(lease.id, b, "1");
    let start = commit(&*store, under.put_under(other.id, c.clone(), "1")).await;
    assert_eq!(store.get(&a).await.expect("an answer").expect("there").lease, Some(lease.id));
    let mut watch = store.watch(Scope::Under(folder("revoke")), start).await.expect("a watch");
    store.revoke(lease.id).await.expect("revoked");
    assert_eq!(told(&next(&mut watch).await), ["-a", "-b"]);
    let (_, entries) = store.all(folder("revoke")).await.expect("an answer");
    assert_eq!(texts(&entries), [("c", "1")]);
    assert_eq!(store.revoke(lease.id).await, Err(StoreError::LeaseGone(lease.id)));
    assert_eq!(store.keep_alive(lease.id).await, Err(StoreError::LeaseGone(lease.id)));
}

async fn a_lease_that_nobody_keeps_alive_ends(store: Arc<dyn Store>) {
    let a = key("ends", "a");
    let lease = store.grant(Duration::from_secs(1)).await.expect("a lease");
    assert!(lease.ttl >= Duration::from_secs(1));
    let start = commit(&*store, Transaction::new().put_under(lease.id, a.clone(), "1")).await;
    let mut watch = store.watch(Scope::Key(a.clone()), start).await.expect("a watch");
    assert_eq!(told(&next(&mut watch).await), ["-a"]);
    assert_eq!(store.keep_alive(lease.id).await, Err(StoreError::LeaseGone(lease.id)));
}

async fn a_lease_that_is_kept_alive_does_not_end(store: Arc<dyn Store>) {
    let a = key("alive", "a");
    let lease = store.grant(Duration::from_secs(2)).await.expect("a lease");
    commit(&*store, Transaction::new().put_under(lease.id, a.clone(), "1")).await;
    for _ in 0..8 {
        sleep(lease.ttl / 3).await;
        store.keep_alive(lease.id).await.expect("alive");
    }
    assert!(store.get(&a).await.expect("an answer").is_some());
}

async fn a_key_that_is_written_without_its_lease_outlives_it(store: Arc<dyn Store>) {
    let a = key("frees", "a");
    let lease = store.grant(Duration::from_secs(60)).await.expect("a lease");
    commit(&*store, Transaction::new().put_under(lease.id, a.clone(), "1")).await;
    put(&*store, &a, "2").await;
    store.revoke(lease.id).await.expect("revoked");
    let entry = store.get(&a).await.expect("an answer").expect("there");
    assert_eq!((entry.value.as_slice(), entry.lease), (b"2".as_slice(), None));
}

async fn nothing_can_be_put_under_a_lease_that_has_ended(store: Arc<dyn Store>) {
    let a = key("gone", "a");
    let lease = store.grant(Duration::from_secs(60)).await.expect("a lease");
    store.revoke(lease.id).await.expect("revoked");
    let under = Transaction::new().put(key("gone", "b"), "1").put_under(lease.id, a, "1");
    assert_eq!(store.commit(under).await, Err(StoreError::LeaseGone(lease.id)));
    assert_eq!(store.all(folder("gone")).await.expect("an answer").1, []);
}

async fn of_many_that_count_at_once_none_is_lost(store: Arc<dyn Store>) {
    let done = crate::workload::count(&store, "count", 16, 25).await;
    crate::workload::judge(&store, "count", &done).await;
    assert_eq!(done.iter().map(|worker| worker.acknowledged).sum::<u64>(), 16 * 25);
}
