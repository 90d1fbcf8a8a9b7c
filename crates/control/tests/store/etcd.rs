//! The contract on etcd: a cluster of three members, then with members killed while workers count, and
//! while a leader leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lanekeeper_control::store::{Outcome, Store, Transaction};

use crate::cluster::Cluster;
use crate::{cases, election, key, put, workload};

#[tokio::test(flavor = "multi_thread")]
async fn each_promise_holds_on_three_members() {
    let cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    for (name, case) in cases::ALL {
        println!("{name}");
        case(Arc::clone(&store)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_count_is_lost_when_the_leader_and_then_a_follower_are_killed() {
    let mut cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    // They count for as long as members die.
    let enough = Arc::new(AtomicBool::new(false));
    let counting = {
        let (store, enough) = (Arc::clone(&store), Arc::clone(&enough));
        let goes_on = move |_| !enough.load(Ordering::Relaxed);
        tokio::spawn(async move { workload::count_while(&store, "deaths", 12, goes_on).await })
    };
    for kill_leader in [true, false] {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let leader = cluster.leader().await;
        let victim = if kill_leader { leader } else { (leader + 1) % 3 };
        cluster.kill(victim);
        tokio::time::sleep(Duration::from_secs(3)).await;
        cluster.run(victim);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    enough.store(true, Ordering::Relaxed);
    let done = counting.await.expect("they end");
    workload::judge(&store, "deaths", &done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_when_its_member_is_killed() {
    let mut cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    let a = key("moves", "a");
    let start = put(&*store, &a, "start").await;
    let mut watch = store.watch(a.clone().into(), start).await.expect("a watch");
    put(&*store, &a, "before").await;
    let told = watch.next().await.expect("a batch").revision;
    // The first endpoint is favoured while it answers: the watch is there.
    cluster.kill(0);
    let later = loop {
        if let Ok(Outcome::Committed(revision)) =
            store.commit(Transaction::new().put(a.clone(), "after")).await
        {
            break revision;
        }
    };
    let next = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let batch = watch.next().await.expect("a batch");
            if batch.revision == later {
                return batch;
            }
        }
    });
    assert!(next.await.expect("in time").revision > told);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leader_a_duty_while_etcds_own_leader_is_killed() {
    let mut cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    let (first, second) =
        (election::stand(&store, "sweep", "s1"), election::stand(&store, "sweep", "s2"));
    let leading = first.campaign().await.expect("elected");
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let waiting = tokio::time::timeout(Duration::from_secs(60), second.campaign());
    let fenced = leading.fence(Transaction::new().put(key("duty", "a"), "by the first"));
    drop(leading);
    let following = waiting.await.expect("in time").expect("elected");
    let late = store.commit(fenced).await.expect("an answer");
    assert!(matches!(late, Outcome::Conflict { .. }), "{late:?}");
    following.resign().await.expect("resigned");
}
