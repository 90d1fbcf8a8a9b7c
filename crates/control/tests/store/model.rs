//! The embedded store beside the simplest store there can be: a list of states, one a revision. Random
//! histories of transactions, leases, compactions and restarts; after each step both say the same, of
//! the present, of each revision that is kept, and to a watch from each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lanekeeper_control::store::{
    Change, Embedded, Expect, LeaseId, Outcome, Range, Revision, Scope, Store, StoreError,
    Transaction,
};
use proptest::prelude::*;

use crate::{folder, key};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Step {
    /// Expect these to be as they are (or, if wrong, as they are not), and write those.
    Commit {
        expects: Vec<(usize, bool)>,
        writes: Vec<(usize, Doing)>,
    },
    Grant,
    Revoke(usize),
    /// Compact to so many revisions before the newest.
    Compact(u64),
    Reopen,
}

#[derive(Clone, Debug)]
enum Doing {
    Put(u8),
    PutUnder(u8, usize),
    Delete,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let doing = prop_oneof![
        4 => any::<u8>().prop_map(Doing::Put),
        2 => (any::<u8>(), 0..4_usize).prop_map(|(value, lease)| Doing::PutUnder(value, lease)),
        2 => Just(Doing::Delete),
    ];
    let expects = prop::collection::vec((0..NAMES.len(), prop::bool::weighted(0.1)), 0..3);
    let writes = prop::collection::vec((0..NAMES.len(), doing), 0..4);
    let step = prop_oneof![
        12 => (expects, writes).prop_map(|(expects, writes)| Step::Commit { expects, writes }),
        1 => Just(Step::Grant),
        1 => (0..4_usize).prop_map(Step::Revoke),
        1 => (0..6_u64).prop_map(Step::Compact),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

/// Value, created, modified, lease.
type State = BTreeMap<usize, (u8, u64, u64, Option<usize>)>;

/// State number n is that of revision n + 1.
struct Model {
    states: Vec<State>,
    oldest: u64,
    leases: BTreeSet<usize>,
}

impl Model {
    fn newest(&self) -> &State {
        self.states.last().expect("never empty")
    }

    fn revision(&self) -> u64 {
        self.states.len() as u64
    }

    fn write(&mut self, writes: &BTreeMap<usize, Doing>) {
        let next = self.revision() + 1;
        let mut state = self.newest().clone();
        let mut changed = false;
        for (name, doing) in writes {
            let created = state.get(name).map_or(next, |(_, created, ..)| *created);
            let (value, lease) = match doing {
                Doing::Put(value) => (*value, None),
                Doing::PutUnder(value, lease) => (*value, Some(*lease)),
                Doing::Delete => {
                    changed |= state.remove(name).is_some();
                    continue;
                }
            };
            state.insert(*name, (value, created, next, lease));
            changed = true;
        }
        if changed {
            self.states.push(state);
        }
    }

    fn revoke(&mut self, lease: usize) -> bool {
        let keys = self.newest().iter().filter(|(_, (.., under))| *under == Some(lease));
        let keys: BTreeMap<usize, Doing> = keys.map(|(name, _)| (*name, Doing::Delete)).collect();
        self.write(&keys);
        self.leases.remove(&lease)
    }

    /// What a revision changed: each name, and whether it is there after it.
    fn changes(&self, revision: u64) -> Vec<(usize, bool)> {
        let (before, after) =
            (&self.states[revision as usize - 2], &self.states[revision as usize - 1]);
        (0..NAMES.len())
            .filter(|name| before.get(name) != after.get(name))
            .map(|name| (name, after.contains_key(&name)))
            .collect()
    }
}

struct Both {
    home: tempfile::TempDir,
    store: Option<Embedded>,
    model: Model,
    /// The store's leases, in the order they were granted.
    leases: Vec<LeaseId>,
}

impl Both {
    fn store(&self) -> &Embedded {
        self.store.as_ref().expect("open")
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Commit { expects, writes } => self.commit(&expects, writes).await,
            Step::Grant => {
                let lease = self.store().grant(Duration::from_secs(600)).await.expect("a lease");
                self.model.leases.insert(self.leases.len());
                self.leases.push(lease.id);
            }
            Step::Revoke(lease) => {
                let Some(id) = self.leases.get(lease) else { return };
                let expected = self.model.revoke(lease);
                assert_eq!(self.store().revoke(*id).await.is_ok(), expected);
            }
            Step::Compact(back) => {
                let to = self.model.revision().saturating_sub(back).max(1);
                self.store().compact(Revision::from_number(to)).await.expect("compacted");
                self.model.oldest = self.model.oldest.max(to);
            }
            Step::Reopen => {
                self.store = None;
                self.store = Some(Embedded::open(self.home.path()).expect("it opens again"));
            }
        }
    }

    async fn commit(&mut self, expects: &[(usize, bool)], writes: Vec<(usize, Doing)>) {
        let writes: BTreeMap<usize, Doing> = writes.into_iter().collect();
        // A lease that was never granted cannot even be named.
        let named = |doing: &Doing| match doing {
            Doing::PutUnder(_, lease) => *lease < self.leases.len(),
            _ => true,
        };
        if !writes.values().all(named) {
            return;
        }
        let expects: BTreeMap<usize, bool> = expects.iter().copied().collect();
        let mut transaction = Transaction::new();
        for (name, wrong) in &expects {
            let there = self.model.newest().get(name).map(|(_, _, modified, _)| *modified);
            let expect = match (there, wrong) {
                (None, false) | (Some(_), true) => Expect::Absent,
                (Some(modified), false) => Expect::At(Revision::from_number(modified)),
                (None, true) => Expect::At(Revision::from_number(self.model.revision())),
            };
            transaction = transaction.expect(key("model", NAMES[*name]), expect);
        }
        for (name, doing) in &writes {
            let key = key("model", NAMES[*name]);
            transaction = match doing {
                Doing::Put(value) => transaction.put(key, [*value]),
                Doing::PutUnder(value, lease) => {
                    transaction.put_under(self.leases[*lease], key, [*value])
                }
                Doing::Delete => transaction.delete(key),
            };
        }
        let ended = |doing: &Doing| match doing {
            Doing::PutUnder(_, lease) => !self.model.leases.contains(lease),
            _ => false,
        };
        let outcome = self.store().commit(transaction).await;
        if expects.values().any(|wrong| *wrong) {
            assert!(matches!(outcome, Ok(Outcome::Conflict { .. })), "{outcome:?}");
        } else if writes.values().any(ended) {
            assert!(matches!(outcome, Err(StoreError::LeaseGone(_))), "{outcome:?}");
        } else {
            self.model.write(&writes);
            let revision = Revision::from_number(self.model.revision());
            assert_eq!(outcome, Ok(Outcome::Committed(revision)));
        }
    }

    async fn compare(&self) {
        for number in 1..=self.model.revision() {
            let at = Revision::from_number(number);
            let page =
                self.store().range(Range { at: Some(at), ..Range::of(folder("model")) }).await;
            if number < self.model.oldest {
                let oldest = Revision::from_number(self.model.oldest);
                assert_eq!(page, Err(StoreError::Compacted { asked: at, oldest }));
                continue;
            }
            let found = page.expect("a page").entries.into_iter().map(|entry| {
                let name = NAMES.iter().position(|name| entry.key.last() == *name);
                let lease =
                    entry.lease.and_then(|id| self.leases.iter().position(|own| *own == id));
                let created = entry.created.get();
                (name.expect("one of ours"), (entry.value[0], created, entry.modified.get(), lease))
            });
            assert_eq!(found.collect::<State>(), self.model.states[number as usize - 1], "{at}");
        }
        let oldest = self.model.oldest;
        let scope = Scope::Under(folder("model"));
        let mut watch =
            self.store().watch(scope, Revision::from_number(oldest)).await.expect("a watch");
        for number in oldest + 1..=self.model.revision() {
            let batch = watch.next().await.expect("a batch");
            let changes = batch.changes.iter().map(|change| {
                let name = NAMES.iter().position(|name| change.key().last() == *name);
                (name.expect("one of ours"), matches!(change, Change::Put(_)))
            });
            assert_eq!(batch.revision.get(), number);
            assert_eq!(changes.collect::<Vec<_>>(), self.model.changes(number));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_histories_are_those_of_the_simplest_store(history in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let home = tempfile::tempdir().expect("a folder");
            let store = Some(Embedded::open(home.path()).expect("a store"));
            let model =
                Model { states: vec![State::new()], oldest: 1, leases: BTreeSet::new() };
            let mut both = Both { home, store, model, leases: Vec::new() };
            for step in history {
                both.step(step).await;
            }
            both.compare().await;
        });
    }
}
