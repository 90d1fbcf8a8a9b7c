//! One commit of the embedded store in the making: each request sees what those before it in the same
//! commit did. Nothing here is known to anybody until the commit is on disk.

use std::collections::BTreeSet;
use std::time::Duration;

use redb::{ReadableTable, Table, WriteTransaction};

use super::tables::{
    COMPACTED, CURRENT, LAST_LEASE, LEASE_KEYS, LEASES, LOG, META, REVISION, VERSIONS, Version,
    disk, number,
};
use crate::keys::Key;
use crate::store::{Expect, Lease, LeaseId, Outcome, Revision, StoreError, Transaction, Write};

/// What a commit did, beside what it wrote.
#[derive(Default)]
pub(super) struct Done {
    /// Which revision changed which keys.
    pub(super) changed: Vec<(u64, Vec<String>)>,
    /// New leases.
    pub(super) granted: Vec<Lease>,
    /// Leases that have ended.
    pub(super) over: Vec<u64>,
    /// Whether anything was written at all.
    pub(super) dirty: bool,
}

pub(super) struct Session<'t> {
    meta: Table<'t, &'static str, u64>,
    current: Table<'t, &'static str, u64>,
    versions: Table<'t, (&'static str, u64), Version<'static>>,
    log: Table<'t, u64, Vec<&'static str>>,
    leases: Table<'t, u64, u64>,
    lease_keys: Table<'t, (u64, &'static str), ()>,
    revision: u64,
    done: Done,
}

impl<'t> Session<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, StoreError> {
        let meta = transaction.open_table(META).map_err(disk)?;
        Ok(Self {
            revision: number(&meta, REVISION)?,
            meta,
            current: transaction.open_table(CURRENT).map_err(disk)?,
            versions: transaction.open_table(VERSIONS).map_err(disk)?,
            log: transaction.open_table(LOG).map_err(disk)?,
            leases: transaction.open_table(LEASES).map_err(disk)?,
            lease_keys: transaction.open_table(LEASE_KEYS).map_err(disk)?,
            done: Done::default(),
        })
    }

    /// Ready to be committed.
    pub(super) fn close(mut self) -> Result<Done, StoreError> {
        if self.done.dirty {
            self.meta.insert(REVISION, self.revision).map_err(disk)?;
        }
        Ok(self.done)
    }

    /// One transaction. The outer error is one of the disk.
    pub(super) fn commit(
        &mut self,
        transaction: &Transaction,
    ) -> Result<Result<Outcome, StoreError>, StoreError> {
        let conflicts = self.conflicts(transaction)?;
        if !conflicts.is_empty() {
            let revision = Revision(self.revision);
            return Ok(Ok(Outcome::Conflict { revision, keys: conflicts }));
        }
        for write in transaction.writes().values() {
            if let Write::Put { lease: Some(lease), .. } = write
                && self.leases.get(lease.0).map_err(disk)?.is_none()
            {
                return Ok(Err(StoreError::LeaseGone(*lease)));
            }
        }
        self.apply(transaction.writes().iter().map(|(key, write)| (key.as_str(), write)))?;
        Ok(Ok(Outcome::Committed(Revision(self.revision))))
    }

    fn conflicts(
        &self,
        transaction: &Transaction,
    ) -> Result<Vec<(Key, Option<Revision>)>, StoreError> {
        let mut conflicts = Vec::new();
        for (key, expected) in transaction.expects() {
            let found = self.current.get(key.as_str()).map_err(disk)?;
            let found = found.map(|row| Revision(row.value()));
            let as_expected = match expected {
                Expect::Absent => found.is_none(),
                Expect::At(revision) => found == Some(*revision),
            };
            if !as_expected {
                conflicts.push((key.clone(), found));
            }
        }
        Ok(conflicts)
    }

    /// Write under the next revision; one that would change nothing is not used up.
    fn apply<'w>(
        &mut self,
        writes: impl Iterator<Item = (&'w str, &'w Write)>,
    ) -> Result<(), StoreError> {
        let revision = self.revision + 1;
        let mut changed = Vec::new();
        for (key, write) in writes {
            let before = self.before(key)?;
            if let Some((_, lease)) = before
                && lease != 0
            {
                self.lease_keys.remove((lease, key)).map_err(disk)?;
            }
            match write {
                Write::Put { value, lease } => {
                    let created = before.map_or(revision, |(created, _)| created);
                    let lease = lease.map_or(0, |lease| lease.0);
                    let version = Some((created, lease, value.as_slice()));
                    self.versions.insert((key, revision), version).map_err(disk)?;
                    self.current.insert(key, revision).map_err(disk)?;
                    if lease != 0 {
                        self.lease_keys.insert((lease, key), ()).map_err(disk)?;
                    }
                }
                Write::Delete if before.is_none() => continue,
                Write::Delete => {
                    self.versions.insert((key, revision), None).map_err(disk)?;
                    self.current.remove(key).map_err(disk)?;
                }
            }
            changed.push(key.to_owned());
        }
        if changed.is_empty() {
            return Ok(());
        }
        let keys = changed.iter().map(String::as_str).collect::<Vec<_>>();
        self.log.insert(revision, keys).map_err(disk)?;
        self.done.dirty = true;
        self.done.changed.push((revision, changed));
        self.revision = revision;
        Ok(())
    }

    /// Which revision created the key that is there now, and its lease.
    fn before(&self, key: &str) -> Result<Option<(u64, u64)>, StoreError> {
        let Some(row) = self.current.get(key).map_err(disk)? else { return Ok(None) };
        let version = self.versions.get((key, row.value())).map_err(disk)?;
        Ok(version.and_then(|row| row.value().map(|(created, lease, _)| (created, lease))))
    }

    pub(super) fn grant(&mut self, ttl: Duration) -> Result<Lease, StoreError> {
        let id = number(&self.meta, LAST_LEASE)? + 1;
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.meta.insert(LAST_LEASE, id).map_err(disk)?;
        self.leases.insert(id, millis).map_err(disk)?;
        let lease = Lease { id: LeaseId(id), ttl };
        self.done.granted.push(lease);
        self.done.dirty = true;
        Ok(lease)
    }

    /// Ends a lease with its keys; false if there is none.
    pub(super) fn end_lease(&mut self, id: u64) -> Result<bool, StoreError> {
        if self.leases.remove(id).map_err(disk)?.is_none() {
            return Ok(false);
        }
        self.done.dirty = true;
        self.done.over.push(id);
        let mut keys = Vec::new();
        for row in self.lease_keys.range((id, "")..(id + 1, "")).map_err(disk)? {
            keys.push(row.map_err(disk)?.0.value().1.to_owned());
        }
        self.apply(keys.iter().map(|key| (key.as_str(), &Write::Delete)))?;
        Ok(true)
    }

    /// Forgets up to `to`, but no more than `most` revisions; gives back how far it came.
    pub(super) fn compact(
        &mut self,
        to: Revision,
        most: u64,
    ) -> Result<Result<Revision, StoreError>, StoreError> {
        if to.get() > self.revision {
            return Ok(Err(StoreError::Future { asked: to }));
        }
        let oldest = number(&self.meta, COMPACTED)?;
        let target = to.get().min(oldest.saturating_add(most));
        if target <= oldest {
            return Ok(Ok(Revision(oldest)));
        }
        let mut keys = BTreeSet::new();
        for row in self.log.range(..=target).map_err(disk)? {
            keys.extend(row.map_err(disk)?.1.value().into_iter().map(str::to_owned));
        }
        for key in keys {
            self.forget_versions(&key, target)?;
        }
        self.log.retain_in(..=target, |_, _| false).map_err(disk)?;
        self.meta.insert(COMPACTED, target).map_err(disk)?;
        self.done.dirty = true;
        Ok(Ok(Revision(target)))
    }

    /// Of what a key was up to `target` only the last version stays, and that only if it is none of
    /// deletion.
    fn forget_versions(&mut self, key: &str, target: u64) -> Result<(), StoreError> {
        let mut versions = Vec::new();
        for row in self.versions.range((key, 0)..=(key, target)).map_err(disk)? {
            let (row_key, version) = row.map_err(disk)?;
            versions.push((row_key.value().1, version.value().is_none()));
        }
        if let Some((_, false)) = versions.last() {
            versions.pop();
        }
        for (revision, _) in versions {
            self.versions.remove((key, revision)).map_err(disk)?;
        }
        Ok(())
    }
}
