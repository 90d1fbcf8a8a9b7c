//! The embedded store's process is killed in the middle of commits, again and again: all that it
//! acknowledged is there afterwards, and no transaction is there in part.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_control::store::{Embedded, Store, Transaction};

use crate::{commit, folder, key};

/// Tells the child where the store is, and which round it is.
const HOME: &str = "LANEKEEPER_TEST_STORE";
const ROUND: &str = "LANEKEEPER_TEST_ROUND";

/// Keys of one transaction.
const PARTS: [&str; 3] = ["a", "b", "c"];

fn part(transaction: &str, part: &str) -> lanekeeper_control::keys::Key {
    key("killed", &format!("{transaction}-{part}"))
}

#[test]
fn a_killed_store_has_all_it_acknowledged_and_nothing_in_part() {
    let home = tempfile::tempdir().expect("a folder");
    let mut acknowledged = Vec::new();
    for round in 0..8 {
        let before = acknowledged.len();
        run_and_kill(home.path(), round, &mut acknowledged);
        assert!(acknowledged.len() > before, "round {round} acknowledged nothing");
        check(home.path(), &acknowledged);
    }
}

fn run_and_kill(home: &Path, round: u64, acknowledged: &mut Vec<String>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["killed::the_process_that_is_killed", "--exact", "--ignored", "--nocapture"])
        .env(HOME, home)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // Each round dies after another time, from the first acknowledgement on.
    let mut ends: Option<Instant> = None;
    for line in lines.by_ref() {
        let line = line.expect("text");
        let Some(name) = line.strip_prefix("done ") else { continue };
        acknowledged.push(name.to_owned());
        let ends = *ends.get_or_insert(Instant::now() + Duration::from_millis(20 + round * 37));
        if Instant::now() >= ends {
            break;
        }
    }
    child.kill().expect("killed");
    child.wait().expect("dead");
    // What it said before it died counts too; a last line may be cut off.
    for line in lines.map_while(Result::ok) {
        let name = line.strip_prefix("done ").filter(|name| name.ends_with('.'));
        acknowledged.extend(name.map(str::to_owned));
    }
}

fn check(home: &Path, acknowledged: &[String]) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store: Arc<dyn Store> = Arc::new(Embedded::open(home).expect("it opens"));
    let (_, entries) = runtime.block_on(store.all(folder("killed"))).expect("an answer");
    let mut found: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    for entry in &entries {
        let (name, part) = entry.key.last().rsplit_once('-').expect("a part");
        found.entry(name).or_default().push((part, entry.modified.get()));
        assert_eq!(entry.value, name.as_bytes());
    }
    for (name, parts) in &found {
        let names: Vec<&str> = parts.iter().map(|(part, _)| *part).collect();
        assert_eq!(names, PARTS, "{name} is there in part");
        assert!(
            parts.iter().all(|(_, revision)| *revision == parts[0].1),
            "{name} is of one revision"
        );
    }
    for name in acknowledged {
        let name = name.trim_end_matches('.');
        assert!(found.contains_key(name), "{name} was acknowledged and is lost");
    }
}

#[test]
#[ignore = "the child of the test above"]
fn the_process_that_is_killed() {
    let (Some(home), Ok(round)) = (std::env::var_os(HOME), std::env::var(ROUND)) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Path::new(&home)).expect("a store"));
    runtime.block_on(async {
        let workers: Vec<_> = (0..16)
            .map(|worker| {
                let (store, round) = (Arc::clone(&store), round.clone());
                tokio::spawn(async move {
                    for n in 0_u64.. {
                        let name = format!("{round}.{worker}.{n}");
                        let all = PARTS.iter().fold(Transaction::new(), |transaction, piece| {
                            transaction.put(part(&name, piece), name.as_str())
                        });
                        commit(&*store, all).await;
                        println!("done {name}.");
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.expect("it runs until it is killed");
        }
    });
}
