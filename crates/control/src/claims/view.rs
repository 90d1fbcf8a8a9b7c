//! What one server knows of a region: the index, placements, quotas and usage, each with the revision
//! it was read at. What it wrote itself it knows at once; what others wrote comes by a watch.

use std::collections::HashMap;

use serde::de::DeserializeOwned;

use super::Placed;
use crate::keys::{self, HostName, Key, KeyError, OrgName, PlacementId, Prefix, RegionName};
use crate::placement::{HostClaims, Index, Inventory, Quota, Usage};
use crate::store::{Change, Expect, Revision, Store, StoreError};

/// The folders of a region, and of all organizations.
struct Folders {
    hosts: Prefix,
    claims: Prefix,
    placements: Prefix,
    quotas: Prefix,
    usages: Prefix,
}

pub(super) struct View {
    folders: Folders,
    pub(super) index: Index,
    pub(super) placements: HashMap<PlacementId, Placed>,
    pub(super) quotas: HashMap<OrgName, Quota>,
    pub(super) usages: HashMap<OrgName, Usage>,
    /// The revision that each key was last changed by, and whether it is there.
    seen: HashMap<Key, (Revision, bool)>,
}

fn foreign(key: &Key, why: impl std::fmt::Display) -> StoreError {
    StoreError::Foreign(format!("{key}: {why}"))
}

/// A value as JSON; none if it was deleted.
fn read<T: DeserializeOwned>(change: &Change) -> Result<Option<T>, StoreError> {
    match change {
        Change::Delete(_) => Ok(None),
        Change::Put(entry) => {
            let value = serde_json::from_slice(&entry.value);
            value.map(Some).map_err(|error| foreign(&entry.key, error))
        }
    }
}

impl View {
    fn empty(region: &RegionName) -> Self {
        Self {
            folders: Folders {
                hosts: keys::hosts(region),
                claims: keys::claims(region),
                placements: keys::placements(region),
                quotas: keys::quotas(),
                usages: keys::usages(),
            },
            index: Index::new(),
            placements: HashMap::new(),
            quotas: HashMap::new(),
            usages: HashMap::new(),
            seen: HashMap::new(),
        }
    }

    /// Read all of it; gives back the revision to follow from.
    pub(super) async fn load(
        store: &dyn Store,
        region: &RegionName,
    ) -> Result<(Self, Revision), StoreError> {
        let mut view = Self::empty(region);
        let Folders { hosts, claims, placements, quotas, usages } = &view.folders;
        let folders = [hosts, claims, placements, quotas, usages].map(Clone::clone);
        // Each is read at a revision of its own; what happens meanwhile comes by the watch.
        let mut oldest: Option<Revision> = None;
        for folder in folders {
            let (revision, entries) = store.all(folder).await?;
            for entry in entries {
                let revision = entry.modified;
                view.take(revision, &Change::Put(entry))?;
            }
            oldest = Some(oldest.map_or(revision, |oldest| oldest.min(revision)));
        }
        Ok((view, oldest.unwrap_or(Revision::FIRST)))
    }

    /// Take up a change, unless a newer one of the same key is known.
    pub(super) fn take(&mut self, revision: Revision, change: &Change) -> Result<(), StoreError> {
        let key = change.key();
        if self.seen.get(key).is_some_and(|(seen, _)| *seen > revision) {
            return Ok(());
        }
        let Folders { hosts, claims, placements, quotas, usages } = &self.folders;
        let named = |error: KeyError| foreign(key, error);
        if hosts.holds(key) {
            let host = HostName::new(key.last()).map_err(named)?;
            self.index.set_inventory(&host, read::<Inventory>(change)?);
        } else if claims.holds(key) {
            let host = HostName::new(key.last()).map_err(named)?;
            let claims: Option<HostClaims> = read(change)?;
            self.index.set_claims(&host, claims.unwrap_or_default());
        } else if placements.holds(key) {
            let id = PlacementId::new(key.last()).map_err(named)?;
            set(&mut self.placements, id, read(change)?);
        } else if quotas.holds(key) {
            let organization = OrgName::new(key.last()).map_err(named)?;
            set(&mut self.quotas, organization, read(change)?);
        } else if usages.holds(key) {
            let organization = OrgName::new(key.last()).map_err(named)?;
            set(&mut self.usages, organization, read(change)?);
        } else {
            return Ok(());
        }
        let is_there = matches!(change, Change::Put(_));
        self.seen.insert(key.clone(), (revision, is_there));
        Ok(())
    }

    /// Take up what others wrote, as the watch tells it. What it tells of a deleted key is the last
    /// that will be heard of it.
    pub(super) fn follow(&mut self, revision: Revision, change: &Change) -> Result<(), StoreError> {
        self.take(revision, change)?;
        if self.seen.get(change.key()).is_some_and(|(seen, there)| *seen == revision && !there) {
            self.seen.remove(change.key());
        }
        Ok(())
    }

    /// Read some keys anew: those that were not as expected.
    pub(super) async fn reread(
        &mut self,
        store: &dyn Store,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<(), StoreError> {
        for key in keys {
            let page = store.range(crate::store::Range::of(key.clone())).await?;
            match page.entries.into_iter().next() {
                Some(entry) => self.take(entry.modified, &Change::Put(entry))?,
                None => self.take(page.revision, &Change::Delete(key))?,
            }
        }
        Ok(())
    }

    /// What was written by this server.
    pub(super) fn wrote(&mut self, key: Key, revision: Revision, is_there: bool) {
        self.seen.insert(key, (revision, is_there));
    }

    /// What a transaction is to expect of a key.
    pub(super) fn expect(&self, key: &Key) -> Expect {
        match self.seen.get(key) {
            Some((revision, true)) => Expect::At(*revision),
            _ => Expect::Absent,
        }
    }
}

fn set<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
