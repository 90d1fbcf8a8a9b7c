//! The life of VMs: what tenants want is placed, told to hosts, and followed until it is so.
//!
//! One server a region does this at a time (a lease says which). It holds no state that matters: every
//! step reads what is in the store, decides by a pure function ([`step`]) and writes one transaction,
//! which the store refuses once another server leads. So it may end at any moment, and the next one
//! goes on from what is there. What wakes it is a watch of the store; and now and then it looks at all
//! ([`survey`]), in case something was missed.

mod desired;
mod group;
mod host;
mod orphan;
mod queue;
#[cfg(test)]
mod reads;
mod step;
mod survey;
mod sweep;
mod vm;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::{Instrument, Span, trace_span};

use self::queue::Queue;
use crate::cloud::{Cloud, CloudError, Draft};
use crate::keys::{self, DutyName, HostName, Key, OrgName, RegionName, ServerName};
use crate::metrics::Metrics;
use crate::resource::{Group, Region, Resource, Vm};
use crate::spans::TARGET;
use crate::store::{Election, Leadership, Scope, StoreError};

/// A leader that is gone is followed after this long.
const LEADER_LEASE: Duration = Duration::from_secs(5);
/// How many things are seen to at once.
const AT_ONCE: usize = 64;
/// How often all is looked at, whatever the watch has told.
const LOOK_AT_ALL: Duration = Duration::from_secs(30);
/// How often regions are looked for.
const LOOK_FOR_REGIONS: Duration = Duration::from_secs(2);
/// After something failed it is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);
/// After a host's lease has run out, for so long nothing of it is started elsewhere: its agent stops
/// its VMs at the end of the lease as it counts it, and takes a moment for it.
const FENCE: Duration = Duration::from_secs(5);

/// Something to see to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Item {
    Host(HostName),
    Group(u64),
    Vm(u64),
}

/// Leads all regions that this server is elected for, until it is dropped.
///
/// # Errors
/// None; what fails is logged and tried again.
pub async fn run(cloud: Arc<Cloud>, server: ServerName, metrics: Arc<Metrics>) {
    let mut led: HashSet<RegionName> = HashSet::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(sweep::run(Arc::clone(&cloud), server.clone()));
    loop {
        match cloud.all_global::<Region>().await {
            Ok(regions) => {
                for region in regions {
                    let name = region.value.name;
                    if led.insert(name.clone()) {
                        let (cloud, metrics) = (Arc::clone(&cloud), Arc::clone(&metrics));
                        tasks.spawn(take_part(cloud, server.clone(), name, metrics));
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the regions cannot be read"),
        }
        tokio::time::sleep(LOOK_FOR_REGIONS).await;
    }
}

/// Stand for the leadership of a region, lead it, and stand again when it is lost.
async fn take_part(
    cloud: Arc<Cloud>,
    server: ServerName,
    region: RegionName,
    metrics: Arc<Metrics>,
) {
    let duty = DutyName::new(&format!("lifecycle-{region}"));
    let Ok(duty) = duty else { return };
    let election = Election::new(Arc::clone(cloud.store()), &duty, server, LEADER_LEASE);
    loop {
        match election.campaign().await {
            Ok(leadership) => {
                tracing::info!(%region, "this server leads the region");
                let leadership = Arc::new(leadership);
                let work = Work {
                    cloud: Arc::clone(&cloud),
                    region: region.clone(),
                    leadership: Arc::clone(&leadership),
                    metrics: Arc::clone(&metrics),
                };
                tokio::select! {
                    () = leadership.lost() => tracing::info!(%region, "another server leads now"),
                    result = lead(work) => {
                        if let Err(error) = result {
                            tracing::warn!(%error, %region, "the region is read anew");
                        }
                    }
                }
            }
            Err(error) => tracing::warn!(%error, %region, "the election failed"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What a leader works with.
#[derive(Clone)]
struct Work {
    cloud: Arc<Cloud>,
    region: RegionName,
    leadership: Arc<Leadership>,
    metrics: Arc<Metrics>,
}

impl Work {
    /// Write, as long as this server leads.
    async fn commit(&self, mut draft: Draft) -> Result<(), CloudError> {
        draft.raw(|transaction| self.leadership.fence(transaction));
        self.cloud.commit(draft).await.map(drop)
    }
}

/// Whose VMs and groups there are: what a key without an organization is of.
#[derive(Default)]
struct Owners {
    vms: HashMap<u64, OrgName>,
    groups: HashMap<u64, OrgName>,
}

/// See to everything until the store cannot be followed.
async fn lead(work: Work) -> Result<(), StoreError> {
    let mut known = survey::Known::default();
    let store = Arc::clone(work.cloud.store());
    // The watch begins before the first look, so that nothing is missed between them.
    let newest = store.range(crate::store::Range::of(keys::counter("ids"))).await?.revision;
    let mut watch = store.watch(Scope::Under(keys::everything()), newest).await?;
    let (wake, mut woken) = mpsc::unbounded_channel::<Item>();
    // What was changed goes before what is only looked at now and then.
    let (mut ready, mut routine) = (Queue::default(), Queue::default());
    let mut busy: HashSet<Item> = HashSet::new();
    let mut tasks: JoinSet<(Item, Result<Vec<Item>, CloudError>)> = JoinSet::new();
    let mut look = tokio::time::interval(LOOK_AT_ALL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut surveys: JoinSet<Result<survey::Survey, StoreError>> = JoinSet::new();
    // Before the first survey nobody knows whose a VM is that its host reports.
    let mut is_surveyed = false;
    loop {
        while is_surveyed
            && tasks.len() < AT_ONCE
            && let Some(item) = ready.take(&busy).or_else(|| routine.take(&busy))
        {
            busy.insert(item.clone());
            let (work, wake) = (work.clone(), wake.clone());
            let owner = known.of(&item);
            let span = span_of(&item, owner.as_ref(), &work.region);
            let seen = async move {
                let done = see_to(&work, &item, owner, &wake).await;
                (item, done)
            };
            tasks.spawn(seen.instrument(span));
        }
        tokio::select! {
            batch = watch.next() => {
                for change in batch?.changes {
                    ready.extend(known.concerned(change.key(), &work.region));
                }
            }
            Some(done) = tasks.join_next() => {
                let Ok((item, done)) = done else { continue };
                busy.remove(&item);
                match done {
                    Ok(next) => ready.extend(next),
                    // What was changed meanwhile is looked at again at once; all else a little later.
                    Err(CloudError::Stale) => ready.push(item),
                    Err(error) => {
                        tracing::warn!(%error, ?item, region = %work.region, "it is tried again");
                        later(&wake, item, AGAIN);
                    }
                }
            }
            Some(item) = woken.recv() => ready.push(item),
            _ = look.tick(), if surveys.is_empty() => {
                known.begin();
                let work = work.clone();
                surveys.spawn(async move { survey::look_at_all(&work).await });
            }
            Some(done) = surveys.join_next() => {
                let Ok(done) = done else { continue };
                let survey::Survey { items, owners } = done?;
                known.found(owners);
                routine.extend(items);
                is_surveyed = true;
            }
        }
    }
}

/// Wake the leader for something, after a while.
fn later(wake: &mpsc::UnboundedSender<Item>, item: Item, after: Duration) {
    let wake = wake.clone();
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        // Nobody leads here any more, then.
        let _ = wake.send(item);
    });
}

fn span_of(item: &Item, owner: Option<&OrgName>, region: &RegionName) -> Span {
    let organization = owner.map(OrgName::as_str);
    match item {
        Item::Host(host) => trace_span!(target: TARGET, "see to host", %host, %region),
        Item::Group(id) => trace_span!(target: TARGET, "see to group", id, organization, %region),
        Item::Vm(id) => trace_span!(target: TARGET, "see to vm", id, organization, %region),
    }
}

async fn see_to(
    work: &Work,
    item: &Item,
    owner: Option<OrgName>,
    wake: &mpsc::UnboundedSender<Item>,
) -> Result<Vec<Item>, CloudError> {
    match (item, owner) {
        (Item::Host(name), _) => host::see_to(work, name).await,
        (Item::Group(id), Some(owner)) => group::see_to(work, &owner, *id, wake).await,
        (Item::Vm(id), Some(owner)) => vm::see_to(work, &owner, *id).await,
        // Nobody's: it is gone.
        (_, None) => orphan::give_back(work, item).await.map(|()| Vec::new()),
    }
}

impl Owners {
    fn of(&self, item: &Item) -> Option<OrgName> {
        match item {
            Item::Host(_) => None,
            Item::Group(id) => self.groups.get(id).cloned(),
            Item::Vm(id) => self.vms.get(id).cloned(),
        }
    }

    /// What a changed key gives reason to see to.
    fn concerned(&mut self, key: &Key, region: &RegionName) -> Option<Item> {
        if let Some((kind, Some(owner), id)) = keys::resource(key) {
            return if kind == Vm::KIND {
                self.vms.insert(id, owner);
                Some(Item::Vm(id))
            } else if kind == Group::KIND {
                self.groups.insert(id, owner);
                Some(Item::Group(id))
            } else {
                None
            };
        }
        if keys::reports(region).holds(key) {
            return keys::reported(key).map(|(_, vm)| Item::Vm(vm));
        }
        let of_host = keys::alive(region).holds(key) || keys::hosts(region).holds(key);
        of_host.then(|| HostName::new(key.last()).ok().map(Item::Host)).flatten()
    }
}
