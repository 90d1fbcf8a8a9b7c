//! A look at all of a region, in case something was missed: what there is is read in pages, not one by
//! one, and only what has something to be done is seen to. So a look at a fleet at rest costs a reading
//! for each thousand of its VMs and hosts, however often it is taken.

use std::collections::{BTreeSet, HashMap};

use serde::de::DeserializeOwned;

use super::host::item_of;
use super::step::{Step, Told, View, next};
use super::{Item, Owners, Work, group};
use crate::claims::ClaimError;
use crate::cloud::Stored;
use crate::keys::{self, HostName, Key, OrgName, PlacementId, Prefix};
use crate::placement::Closed;
use crate::protocol::VmReport;
use crate::resource::{Group, Resource, Vm};
use crate::store::{Entry, Range, Store, StoreError};

/// What is to be seen to, and whose VMs and groups there are.
pub(super) struct Survey {
    pub(super) items: BTreeSet<Item>,
    pub(super) owners: Owners,
}

/// What is said of a VM on a host.
type OfVm<T> = HashMap<(HostName, u64), T>;

/// Look at all. What changes meanwhile the watch tells.
pub(super) async fn look_at_all(work: &Work) -> Result<Survey, StoreError> {
    let (region, store) = (&work.region, &**work.cloud.store());
    let alive: BTreeSet<HostName> = hosts(store, keys::alive(region)).await?;
    let known = hosts(store, keys::hosts(region)).await?;
    let told: OfVm<Told> = of_vms(store, keys::all_desired(region)).await?;
    let reports: OfVm<VmReport> = of_vms(store, keys::reports(region)).await?;
    let mut owners = Owners::default();
    let mut vms: HashMap<u64, Vm> = HashMap::new();
    let mut items = BTreeSet::new();
    pages(store, keys::tenants(Vm::KIND), |entry| {
        owners.concerned(&entry.key, region);
        let vm: Vm = read(entry)?;
        if vm.region == *region {
            if has_a_step(&vm, &alive, &known, &told, &reports) {
                items.insert(Item::Vm(vm.id));
            }
            if vm.group.is_some() {
                vms.insert(vm.id, vm);
            }
        }
        Ok(())
    })
    .await?;
    pages(store, keys::tenants(Group::KIND), |entry| {
        owners.concerned(&entry.key, region);
        let group: Group = read(entry)?;
        if group.region == *region && !group::is_quiet(&group, |id| vms.get(&id), &alive) {
            items.insert(Item::Group(group.id));
        }
        Ok(())
    })
    .await?;
    items.extend(turned(work, &alive, &known).await?.into_iter().map(Item::Host));
    // Claims of what is gone.
    for key in store.every_key(keys::placements(region)).await? {
        let item = PlacementId::new(key.last()).ok().as_ref().and_then(item_of);
        items.extend(item.filter(|item| owners.of(item).is_none()));
    }
    Ok(Survey { items, owners })
}

/// Hosts that are lost and not closed, or closed and not lost.
async fn turned(
    work: &Work,
    alive: &BTreeSet<HostName>,
    known: &BTreeSet<HostName>,
) -> Result<Vec<HostName>, StoreError> {
    let claims = work.cloud.claims(&work.region).await?;
    let closed = claims.look(|index| {
        let closed = index.closed().map(|(name, closed)| (name.clone(), closed));
        closed.collect::<HashMap<_, _>>()
    });
    let closed = closed.await.map_err(|error| match error {
        ClaimError::Store(error) => error,
        other => StoreError::Unavailable(other.to_string()),
    })?;
    let is_turned = |host: &&HostName| match closed.get(*host) {
        None => !alive.contains(*host),
        Some(Closed::Lost) => alive.contains(*host),
        Some(_) => false,
    };
    Ok(known.iter().filter(is_turned).cloned().collect())
}

/// Whether something is to be done for a VM by itself.
fn has_a_step(
    vm: &Vm,
    alive: &BTreeSet<HostName>,
    known: &BTreeSet<HostName>,
    told: &OfVm<Told>,
    reports: &OfVm<VmReport>,
) -> bool {
    let at = vm.located.as_ref().map(|located| (located.host.clone(), vm.id));
    let on = |hosts: &BTreeSet<HostName>| at.as_ref().is_none_or(|(host, _)| hosts.contains(host));
    let view = View {
        vm: vm.clone(),
        host_alive: on(alive),
        host_known: on(known),
        told: at.as_ref().and_then(|at| told.get(at)).copied(),
        report: at.as_ref().and_then(|at| reports.get(at)).cloned(),
    };
    next(&view) != Step::Wait
}

async fn hosts(store: &dyn Store, below: Prefix) -> Result<BTreeSet<HostName>, StoreError> {
    let keys = store.every_key(below).await?;
    keys.iter().map(|key| HostName::new(key.last()).map_err(|error| foreign(key, error))).collect()
}

async fn of_vms<T: DeserializeOwned>(
    store: &dyn Store,
    below: Prefix,
) -> Result<OfVm<T>, StoreError> {
    let mut all = HashMap::new();
    pages(store, below, |entry| {
        if let Some(of) = keys::reported(&entry.key) {
            all.insert(of, read(entry)?);
        }
        Ok(())
    })
    .await?;
    Ok(all)
}

fn foreign(key: &Key, why: impl std::fmt::Display) -> StoreError {
    StoreError::Foreign(format!("{key}: {why}"))
}

fn read<T: DeserializeOwned>(entry: Entry) -> Result<T, StoreError> {
    Stored::<T>::read(entry).map(|stored| stored.value)
}

/// Page by page, each as it is then.
async fn pages(
    store: &dyn Store,
    below: Prefix,
    mut take: impl FnMut(Entry) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut range = Range::of(below);
    loop {
        let page = store.range(range.clone()).await?;
        range.after = page.entries.last().map(|entry| entry.key.clone());
        page.entries.into_iter().try_for_each(&mut take)?;
        if !page.more {
            return Ok(());
        }
    }
}

/// Whose VMs and groups there are by what the watch has told and the last survey found.
#[derive(Default)]
pub(super) struct Known {
    owners: Owners,
    /// What the watch has told since the survey that is under way began.
    since: Owners,
}

impl Known {
    /// A survey begins.
    pub(super) fn begin(&mut self) {
        let Owners { vms, groups } = std::mem::take(&mut self.since);
        self.owners.vms.extend(vms);
        self.owners.groups.extend(groups);
    }

    /// What it found is all there is, with what was told since it began.
    pub(super) fn found(&mut self, owners: Owners) {
        self.owners = owners;
    }

    /// What a changed key gives reason to see to.
    pub(super) fn concerned(&mut self, key: &Key, region: &keys::RegionName) -> Option<Item> {
        self.since.concerned(key, region)
    }

    /// Whose something is, if it is anybody's.
    pub(super) fn of(&self, item: &Item) -> Option<OrgName> {
        self.since.of(item).or_else(|| self.owners.of(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_of_while_a_survey_is_under_way_stays_known_and_who_is_gone_does_not() {
        let (acme, region) = (OrgName::new("acme"), keys::RegionName::new("north"));
        let (acme, region) = (acme.expect("a name"), region.expect("a name"));
        let key = |id| keys::tenant_one(Vm::KIND, &acme, id);
        let is_known = |known: &Known, id| known.of(&Item::Vm(id)).is_some();
        let mut known = Known::default();
        known.begin();
        assert_eq!(known.concerned(&key(1), &region), Some(Item::Vm(1)));
        // It was made after its page was read.
        known.found(Owners::default());
        assert!(is_known(&known, 1));
        known.begin();
        assert!(is_known(&known, 1), "until the next survey is over");
        known.concerned(&key(2), &region);
        known.found(Owners::default());
        assert!(!is_known(&known, 1) && is_known(&known, 2));
    }
}
