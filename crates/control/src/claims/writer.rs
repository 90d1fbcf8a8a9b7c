//! The task that places and writes: a batch is planned on the view, written by one transaction, and
//! undone on the view if that is refused.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tracing::field::Empty;
use tracing::{Instrument, trace_span};

use super::view::View;
use super::{Ask, ClaimError, Placed};
use crate::keys::{self, HostName, Key, OrgName, PlacementId, RegionName};
use crate::metrics::Metrics;
use crate::placement::{Closed, HostClaims, Index, Placement, Usage};
use crate::spans::TARGET;
use crate::store::{Batch, Outcome, Revision, Scope, Store, StoreError, Transaction, Watch};

/// Most requests in one transaction: a host, a placement and a usage for each is within what a
/// transaction can hold.
const BATCH: usize = 40;

/// Batches of the watch that may wait to be taken up.
const BEHIND: usize = 1024;

/// Before a region that could not be read is read again.
const PAUSE: Duration = Duration::from_secs(1);

type Answer<T> = oneshot::Sender<Result<T, ClaimError>>;

/// What can be asked.
pub(super) enum Job {
    Place { id: PlacementId, ask: Ask, answer: Answer<Placement> },
    Release { id: PlacementId, answer: Answer<bool> },
    Close { host: HostName, closed: Option<Closed>, answer: Answer<()> },
    Look(Look),
}

/// Told what is free, or why that is not known.
pub(super) type Look = Box<dyn FnOnce(Result<&Index, ClaimError>) + Send + Sync>;

impl Job {
    fn fail(self, error: ClaimError) {
        // Whoever asked may have gone.
        match self {
            Self::Place { answer, .. } => drop(answer.send(Err(error))),
            Self::Release { answer, .. } => drop(answer.send(Err(error))),
            Self::Close { answer, .. } => drop(answer.send(Err(error))),
            Self::Look(look) => look(Err(error)),
        }
    }
}

/// What a job comes to if the transaction is done.
enum Reached {
    Placed(Result<Placement, ClaimError>),
    Released(bool),
    Closed,
}

pub(super) struct Writer {
    store: Arc<dyn Store>,
    region: RegionName,
    view: View,
    changes: mpsc::Receiver<Result<Batch, StoreError>>,
    metrics: Arc<Metrics>,
}

/// What a batch does to the view, and how to undo it.
#[derive(Default)]
struct Plan {
    /// Touched hosts, with their claims before.
    hosts: BTreeMap<HostName, HostClaims>,
    /// Touched placements: before.
    placements: HashMap<PlacementId, Option<Placed>>,
    /// Touched usages: before.
    usages: HashMap<OrgName, Option<Usage>>,
}

/// Follow the store by a task of its own, so that what is ready can be taken without waiting.
fn follow(mut watch: Box<dyn Watch>) -> mpsc::Receiver<Result<Batch, StoreError>> {
    let (told, changes) = mpsc::channel(BEHIND);
    tokio::spawn(async move {
        loop {
            let batch = watch.next().await;
            let over = batch.is_err();
            if told.send(batch).await.is_err() || over {
                return;
            }
        }
    });
    changes
}

impl Writer {
    pub(super) async fn open(
        store: Arc<dyn Store>,
        region: RegionName,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StoreError> {
        let (view, changes) = Self::load(&*store, &region).await?;
        Ok(Self { store, region, view, changes, metrics })
    }

    async fn load(
        store: &dyn Store,
        region: &RegionName,
    ) -> Result<(View, mpsc::Receiver<Result<Batch, StoreError>>), StoreError> {
        let (view, revision) = View::load(store, region).await?;
        let watch = store.watch(Scope::Under(keys::everything()), revision).await?;
        Ok((view, follow(watch)))
    }

    /// Until nobody can ask any more.
    pub(super) async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                tokio::select! {
                    job = jobs.recv() => match job {
                        Some(job) => waiting.push_back(job),
                        None => return,
                    },
                    batch = self.changes.recv() => {
                        // Without a watch there is none to take, and no other way than to read anew.
                        let taken = match batch {
                            Some(batch) => self.take(batch).await,
                            None => self.reload().await,
                        };
                        if let Err(error) = taken {
                            tracing::error!(%error, region = %self.region, "claims are not followed");
                            tokio::time::sleep(PAUSE).await;
                        }
                        continue;
                    }
                }
            }
            while waiting.len() < BATCH
                && let Ok(job) = jobs.try_recv()
            {
                waiting.push_back(job);
            }
            let batch: Vec<Job> = waiting.drain(..waiting.len().min(BATCH)).collect();
            self.serve(batch).await;
        }
    }

    async fn take(&mut self, batch: Result<Batch, StoreError>) -> Result<(), StoreError> {
        match batch {
            Ok(Batch { revision, changes }) => {
                changes.iter().try_for_each(|change| self.view.follow(revision, change))
            }
            Err(error) => {
                tracing::info!(%error, region = %self.region, "claims are read anew");
                self.reload().await
            }
        }
    }

    async fn reload(&mut self) -> Result<(), StoreError> {
        (self.view, self.changes) = Self::load(&*self.store, &self.region).await?;
        Ok(())
    }

    /// Do these, as many at once as a transaction holds.
    async fn serve(&mut self, batch: Vec<Job>) {
        let mut jobs = VecDeque::new();
        for job in batch {
            match job {
                Job::Look(look) => look(Ok(&self.view.index)),
                job => jobs.push_back(job),
            }
        }
        let mut at_once = jobs.len();
        while !jobs.is_empty() {
            let these = at_once.min(jobs.len());
            let region = self.region.clone();
            let span = trace_span!(target: TARGET, "claims", %region, requests = these);
            let write = self.write(jobs.make_contiguous().split_at(these).0);
            match write.instrument(span).await {
                Ok(results) => {
                    for (job, result) in jobs.drain(..these).zip(results) {
                        answer(job, result);
                    }
                }
                Err(StoreError::TooLarge { .. }) if these > 1 => at_once = these / 2,
                Err(error) => {
                    for job in jobs.drain(..these) {
                        job.fail(error.clone().into());
                    }
                }
            }
        }
    }

    /// Plan these and write them, again and again until nobody was quicker.
    async fn write(&mut self, jobs: &[Job]) -> Result<Vec<Reached>, StoreError> {
        // Another server may have placed a moment ago what is to be released here: that it is not
        // known yet must not be taken for "there is none", or it would stay claimed for ever.
        let began = Instant::now();
        let unknown = jobs.iter().filter_map(|job| match job {
            Job::Release { id, .. } if !self.view.placements.contains_key(id) => Some(id),
            _ => None,
        });
        let unknown: Vec<Key> = unknown.map(|id| keys::placement(&self.region, id)).collect();
        self.view.reread(&*self.store, unknown).await?;
        loop {
            while let Ok(batch) = self.changes.try_recv() {
                self.take(batch).await?;
            }
            let mut plan = Plan::default();
            let results: Vec<Reached> = jobs.iter().map(|job| self.plan(job, &mut plan)).collect();
            let transaction = self.transaction(&plan)?;
            if transaction.writes().is_empty() {
                return Ok(results);
            }
            let touched: Vec<Key> = transaction.writes().keys().cloned().collect();
            let stale = match transaction.check() {
                Ok(()) => self.store.commit(transaction).await,
                Err(error) => Err(error),
            };
            let stale = match stale {
                Ok(Outcome::Committed(revision)) => {
                    self.wrote(touched, revision);
                    let labels = format!("region=\"{}\"", self.region);
                    let about = "Time until a transaction of claims was planned and written.";
                    self.metrics.took("lanekeeper_claims_seconds", labels, about, began.elapsed());
                    return Ok(results);
                }
                Ok(Outcome::Conflict { keys, .. }) => {
                    keys.into_iter().map(|(key, _)| key).collect()
                }
                // It may be done: then its placements are there, and are answered as such.
                Err(StoreError::Unknown(_)) => touched,
                Err(error) => {
                    self.undo(plan);
                    return Err(error);
                }
            };
            self.undo(plan);
            self.view.reread(&*self.store, stale).await?;
        }
    }

    /// Do one job on the view.
    fn plan(&mut self, job: &Job, plan: &mut Plan) -> Reached {
        match job {
            Job::Place { id, ask, .. } => Reached::Placed(self.plan_place(id, ask, plan)),
            Job::Release { id, .. } => Reached::Released(self.plan_release(id, plan)),
            Job::Close { host, closed, .. } => {
                let mut claims = self.view.index.claims(host).cloned().unwrap_or_default();
                if claims.closed != *closed {
                    plan.hosts.entry(host.clone()).or_insert_with(|| claims.clone());
                    claims.closed = *closed;
                    self.view.index.set_claims(host, claims);
                }
                Reached::Closed
            }
            // Nothing to write: `serve` has answered it.
            Job::Look(_) => Reached::Closed,
        }
    }

    fn plan_place(
        &mut self,
        id: &PlacementId,
        ask: &Ask,
        plan: &mut Plan,
    ) -> Result<Placement, ClaimError> {
        if let Some(placed) = self.view.placements.get(id) {
            if placed.ask == *ask {
                return Ok(placed.placement.clone());
            }
            return Err(ClaimError::Taken(id.clone()));
        }
        let organization = &ask.organization;
        let used = self.view.usages.get(organization).copied().unwrap_or_default();
        let asked = ask.request.usage();
        if let Some(quota) = self.view.quotas.get(organization) {
            quota.allows(used, asked)?;
        }
        let began = Instant::now();
        let span = trace_span!(target: TARGET, "placement", placement = %id, found = Empty);
        let placement = span.in_scope(|| self.view.index.place(&ask.request));
        span.record("found", placement.is_ok());
        let labels = format!("region=\"{}\"", self.region);
        let about = "Time until a place was found, or that there is none.";
        self.metrics.took("lanekeeper_placement_seconds", labels, about, began.elapsed());
        let placement = placement?;
        self.remember(&placement, plan);
        self.view.index.add(id, &placement);
        self.set_usage(organization, used.plus(asked), plan);
        let placed = Placed { ask: ask.clone(), placement: placement.clone() };
        plan.placements.entry(id.clone()).or_insert(None);
        self.view.placements.insert(id.clone(), placed);
        Ok(placement)
    }

    fn plan_release(&mut self, id: &PlacementId, plan: &mut Plan) -> bool {
        let Some(placed) = self.view.placements.remove(id) else { return false };
        self.remember(&placed.placement, plan);
        self.view.index.remove(id, &placed.placement);
        let organization = &placed.ask.organization;
        let used = self.view.usages.get(organization).copied().unwrap_or_default();
        self.set_usage(organization, used.minus(placed.ask.request.usage()), plan);
        plan.placements.entry(id.clone()).or_insert(Some(placed));
        true
    }

    /// Keep what the hosts of a placement were before.
    fn remember(&self, placement: &Placement, plan: &mut Plan) {
        for host in placement.0.keys() {
            let before = || self.view.index.claims(host).cloned().unwrap_or_default();
            plan.hosts.entry(host.clone()).or_insert_with(before);
        }
    }

    fn set_usage(&mut self, organization: &OrgName, usage: Usage, plan: &mut Plan) {
        let before = self.view.usages.insert(organization.clone(), usage);
        plan.usages.entry(organization.clone()).or_insert(before);
    }

    fn undo(&mut self, plan: Plan) {
        for (host, before) in plan.hosts {
            self.view.index.set_claims(&host, before);
        }
        for (id, before) in plan.placements {
            match before {
                Some(placed) => self.view.placements.insert(id, placed),
                None => self.view.placements.remove(&id),
            };
        }
        for (organization, before) in plan.usages {
            match before {
                Some(usage) => self.view.usages.insert(organization, usage),
                None => self.view.usages.remove(&organization),
            };
        }
    }

    /// Everything the plan touched as it is now, expected to be as it was when it was read.
    fn transaction(&self, plan: &Plan) -> Result<Transaction, StoreError> {
        let mut transaction = Transaction::new();
        for host in plan.hosts.keys() {
            let key = keys::claims_of(&self.region, host);
            transaction = self.put(transaction, key, self.view.index.claims(host))?;
        }
        for id in plan.placements.keys() {
            let key = keys::placement(&self.region, id);
            transaction = self.put(transaction, key, self.view.placements.get(id))?;
        }
        for organization in plan.usages.keys() {
            let usage = self.view.usages.get(organization);
            transaction = self.put(transaction, keys::usage(organization), usage)?;
        }
        Ok(transaction)
    }

    fn put(
        &self,
        transaction: Transaction,
        key: Key,
        value: Option<&impl serde::Serialize>,
    ) -> Result<Transaction, StoreError> {
        let transaction = transaction.expect(key.clone(), self.view.expect(&key));
        let Some(value) = value else { return Ok(transaction.delete(key)) };
        let value = serde_json::to_vec(value);
        let value = value.map_err(|error| StoreError::Foreign(format!("{key}: {error}")))?;
        Ok(transaction.put(key, value))
    }

    fn wrote(&mut self, keys: Vec<Key>, revision: Revision) {
        let placements = keys::placements(&self.region);
        for key in keys {
            let known = PlacementId::new(key.last());
            let is_there = !placements.holds(&key)
                || known.is_ok_and(|id| self.view.placements.contains_key(&id));
            self.view.wrote(key, revision, is_there);
        }
    }
}

fn answer(job: Job, result: Reached) {
    // Whoever asked may have gone.
    match (job, result) {
        (Job::Place { answer, .. }, Reached::Placed(result)) => drop(answer.send(result)),
        (Job::Release { answer, .. }, Reached::Released(was)) => drop(answer.send(Ok(was))),
        (Job::Close { answer, .. }, Reached::Closed) => drop(answer.send(Ok(()))),
        _ => {}
    }
}
