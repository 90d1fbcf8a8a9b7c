//! One leader a duty: elected, followed, and fenced off when it comes back late.

use std::sync::Arc;
use std::time::Duration;

use lanekeeper_control::keys::{DutyName, ServerName};
use lanekeeper_control::store::{
    Election, Embedded, Leadership, Outcome, Store, StoreError, Transaction,
};
use tokio::time::timeout;

use crate::key;

const TTL: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(15);

pub(crate) fn stand(store: &Arc<dyn Store>, duty: &str, server: &str) -> Election {
    let duty = DutyName::new(duty).expect("a name");
    Election::new(Arc::clone(store), &duty, ServerName::new(server).expect("a name"), TTL)
}

async fn lead(election: &Election) -> Leadership {
    timeout(SOON, election.campaign()).await.expect("in time").expect("elected")
}

fn embedded() -> (tempfile::TempDir, Arc<dyn Store>) {
    let home = tempfile::tempdir().expect("a folder");
    let store = Embedded::open(home.path()).expect("a store");
    (home, Arc::new(store))
}

#[tokio::test]
async fn a_second_server_waits_until_the_first_resigns() {
    let (_home, store) = embedded();
    let (first, second) = (stand(&store, "sweep", "s1"), stand(&store, "sweep", "s2"));
    let leading = lead(&first).await;
    assert_eq!(second.leader().await, Ok(ServerName::new("s1").ok()));
    assert!(
        timeout(TTL * 3, second.campaign()).await.is_err(),
        "the first one keeps its lease alive"
    );
    leading.resign().await.expect("resigned");
    lead(&second).await;
    assert_eq!(first.leader().await, Ok(ServerName::new("s2").ok()));
}

#[tokio::test]
async fn duties_are_led_apart() {
    let (_home, store) = embedded();
    let _one = lead(&stand(&store, "sweep", "s1")).await;
    let _other = lead(&stand(&store, "place", "s2")).await;
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_and_cannot_write_any_more() {
    let (_home, store) = embedded();
    let (first, second) = (stand(&store, "sweep", "s1"), stand(&store, "sweep", "s2"));
    let dead = lead(&first).await;
    let write = |value: &str| Transaction::new().put(key("fenced", "a"), value);
    let outcome = store.commit(dead.fence(write("in time"))).await;
    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
    let late = dead.fence(write("late"));
    // Dropped, it keeps nothing alive, as if its process had died.
    drop(dead);
    let leading = lead(&second).await;
    let outcome = store.commit(late).await.expect("an answer");
    assert!(matches!(outcome, Outcome::Conflict { .. }), "{outcome:?}");
    let outcome = store.commit(leading.fence(write("mine"))).await;
    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_leader_whose_lease_was_taken_hears_of_it() {
    let (_home, store) = embedded();
    let leading = lead(&stand(&store, "sweep", "s1")).await;
    let duty = DutyName::new("sweep").expect("a name");
    let entry = store.get(&lanekeeper_control::keys::leader(&duty)).await.expect("an answer");
    let lease = entry.and_then(|entry| entry.lease).expect("under a lease");
    assert!(timeout(TTL * 2, leading.lost()).await.is_err(), "it is kept alive");
    store.revoke(lease).await.expect("revoked");
    timeout(SOON, leading.lost()).await.expect("told in time");
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseGone(lease)));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_campaign_at_once_one_leads_at_a_time() {
    let (_home, store) = embedded();
    let leaders = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let servers: Vec<_> = (0..10)
        .map(|n| {
            let election = stand(&store, "sweep", &format!("s{n}"));
            let leaders = Arc::clone(&leaders);
            tokio::spawn(async move {
                let leading = lead(&election).await;
                assert_eq!(leaders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert_eq!(leaders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst), 1);
                leading.resign().await.expect("resigned");
            })
        })
        .collect();
    for server in servers {
        server.await.expect("each of them led once");
    }
}
