//! The tables of the embedded store, and reading them.
//!
//! A value is stored once, under its key and the revision that wrote it; the other tables say where
//! to look. So a range at an old revision, a watch from an old revision and the newest state are all
//! read from the same rows.

use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};

use crate::keys::{Key, KeyError};
use crate::store::{
    Batch, Change, Entry, KeyPage, LeaseId, Page, Range, Revision, Scope, StoreError,
};

/// The number of this layout, and its place in [`META`].
const FORMAT: (&str, u64) = ("format", 1);
/// In [`META`]: the newest revision.
pub(super) const REVISION: &str = "revision";
/// In [`META`]: the oldest revision that can be read.
pub(super) const COMPACTED: &str = "compacted";
/// In [`META`]: the last lease id that was given out.
pub(super) const LAST_LEASE: &str = "last-lease";

/// Numbers, by name.
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Each key that is there, and the revision that last wrote it.
pub(super) const CURRENT: TableDefinition<&str, u64> = TableDefinition::new("current");
/// What a revision made of a key: created in which revision, under which lease (0: none), its value;
/// or that it was deleted.
pub(super) type Version<'a> = Option<(u64, u64, &'a [u8])>;
/// Each key in each revision that changed it.
pub(super) const VERSIONS: TableDefinition<(&str, u64), Version<'_>> =
    TableDefinition::new("versions");
/// The keys that each revision changed, in order.
pub(super) const LOG: TableDefinition<u64, Vec<&str>> = TableDefinition::new("log");
/// Leases and how long they last, in milliseconds.
pub(super) const LEASES: TableDefinition<u64, u64> = TableDefinition::new("leases");
/// Which keys go with a lease.
pub(super) const LEASE_KEYS: TableDefinition<(u64, &str), ()> = TableDefinition::new("lease-keys");

/// Any failure of the database is one of the disk: redb reports misuse by the same types, which the
/// conformance tests would meet.
pub(super) fn disk(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Disk(error.into().to_string())
}

pub(super) fn foreign(error: &KeyError) -> StoreError {
    StoreError::Foreign(error.to_string())
}

/// Make the tables if there are none; see that they are ours.
pub(super) fn prepare(database: &Database) -> Result<(), StoreError> {
    let transaction = database.begin_write().map_err(disk)?;
    make_tables(&transaction)?;
    transaction.commit().map_err(disk)
}

fn make_tables(transaction: &WriteTransaction) -> Result<(), StoreError> {
    let mut meta = transaction.open_table(META).map_err(disk)?;
    let format = meta.get(FORMAT.0).map_err(disk)?.map(|number| number.value());
    match format {
        Some(number) if number == FORMAT.1 => return Ok(()),
        Some(number) => {
            return Err(StoreError::Foreign(format!(
                "its format is {number}, this program's is {}",
                FORMAT.1
            )));
        }
        None => {}
    }
    for (name, number) in [FORMAT, (REVISION, 1), (COMPACTED, 1), (LAST_LEASE, 0)] {
        meta.insert(name, number).map_err(disk)?;
    }
    transaction.open_table(CURRENT).map_err(disk)?;
    transaction.open_table(VERSIONS).map_err(disk)?;
    transaction.open_table(LOG).map_err(disk)?;
    transaction.open_table(LEASES).map_err(disk)?;
    transaction.open_table(LEASE_KEYS).map_err(disk)?;
    Ok(())
}

/// A number of [`META`].
pub(super) fn number(
    meta: &impl ReadableTable<&'static str, u64>,
    name: &'static str,
) -> Result<u64, StoreError> {
    let row = meta.get(name).map_err(disk)?;
    row.map(|row| row.value()).ok_or_else(|| StoreError::Foreign(format!("no {name} in it")))
}

/// The newest revision and the oldest one that can be read.
fn bounds(transaction: &ReadTransaction) -> Result<(u64, u64), StoreError> {
    let meta = transaction.open_table(META).map_err(disk)?;
    Ok((number(&meta, REVISION)?, number(&meta, COMPACTED)?))
}

/// One version of a key as an entry; `None` if it is a deletion.
fn entry(key: &str, modified: u64, version: Version<'_>) -> Result<Option<Entry>, StoreError> {
    let Some((created, lease, value)) = version else { return Ok(None) };
    Ok(Some(Entry {
        key: Key::parse(key).map_err(|error| foreign(&error))?,
        value: value.to_vec(),
        created: Revision(created),
        modified: Revision(modified),
        lease: (lease != 0).then_some(LeaseId(lease)),
    }))
}

/// The first text after all that begin with `text`, which is ASCII and ends with a byte that has a
/// successor, as all keys and prefixes do.
fn after_prefix(text: &str) -> String {
    let (last, rest) = text.as_bytes().split_last().unwrap_or((&b'/', &[]));
    let mut end = String::from_utf8_lossy(rest).into_owned();
    end.push(char::from(last + 1));
    end
}

/// From which text (inclusive) to which (exclusive) the keys of a page are.
fn limits(scope: &Scope, after: Option<&Key>) -> (String, String) {
    let (first, end) = match scope {
        Scope::Key(key) => (key.as_str().to_owned(), format!("{key}\0")),
        Scope::Under(prefix) => (prefix.as_str().to_owned(), after_prefix(prefix.as_str())),
    };
    let next = after.map(|key| format!("{key}\0"));
    (next.map_or(first.clone(), |next| next.max(first)), end)
}

/// A reading, and at which revision it is; whether that is the newest.
fn read_at(
    database: &Database,
    at: Option<Revision>,
) -> Result<(ReadTransaction, u64, bool), StoreError> {
    let transaction = database.begin_read().map_err(disk)?;
    let (newest, oldest) = bounds(&transaction)?;
    let at = at.map_or(newest, Revision::get);
    if at > newest {
        return Err(StoreError::Future { asked: Revision(at) });
    }
    if at < oldest {
        return Err(StoreError::Compacted { asked: Revision(at), oldest: Revision(oldest) });
    }
    Ok((transaction, at, at == newest))
}

/// See [`crate::store::Store::range`].
pub(super) fn range(database: &Database, range: &Range) -> Result<Page, StoreError> {
    let (transaction, at, is_newest) = read_at(database, range.at)?;
    let (first, end) = limits(&range.scope, range.after.as_ref());
    let mut page = Page { revision: Revision(at), entries: Vec::new(), more: false };
    if first >= end {
        return Ok(page);
    }
    let mut found = if is_newest {
        newest_of(&transaction, &first, &end, range.limit + 1)?
    } else {
        versions_at(&transaction, (&first, &end), at, range.limit + 1)?
    };
    page.more = found.len() > range.limit;
    found.truncate(range.limit);
    page.entries = found;
    Ok(page)
}

/// See [`crate::store::Store::keys`].
pub(super) fn keys(database: &Database, range: &Range) -> Result<KeyPage, StoreError> {
    let (transaction, at, is_newest) = read_at(database, range.at)?;
    if !is_newest {
        // Which keys an old revision had is told by their versions alone.
        drop(transaction);
        let Page { revision, entries, more } = self::range(database, range)?;
        let keys = entries.into_iter().map(|entry| entry.key).collect();
        return Ok(KeyPage { revision, keys, more });
    }
    let mut page = KeyPage { revision: Revision(at), keys: Vec::new(), more: false };
    let (first, end) = limits(&range.scope, range.after.as_ref());
    if first >= end {
        return Ok(page);
    }
    let current = transaction.open_table(CURRENT).map_err(disk)?;
    for row in current.range(first.as_str()..end.as_str()).map_err(disk)? {
        if page.keys.len() == range.limit {
            page.more = true;
            break;
        }
        let key = row.map_err(disk)?.0;
        page.keys.push(Key::parse(key.value()).map_err(|error| foreign(&error))?);
    }
    Ok(page)
}

fn newest_of(
    transaction: &ReadTransaction,
    first: &str,
    end: &str,
    most: usize,
) -> Result<Vec<Entry>, StoreError> {
    let current = transaction.open_table(CURRENT).map_err(disk)?;
    let versions = transaction.open_table(VERSIONS).map_err(disk)?;
    let mut found = Vec::new();
    for row in current.range(first..end).map_err(disk)?.take(most) {
        let (key, modified) = row.map_err(disk)?;
        let (key, modified) = (key.value(), modified.value());
        let version = versions.get((key, modified)).map_err(disk)?;
        let version = version.as_ref().and_then(redb::AccessGuard::value);
        found.extend(entry(key, modified, version)?);
    }
    Ok(found)
}

/// The last version of each key that is not newer than `at`, but for deletions.
fn versions_at(
    transaction: &ReadTransaction,
    (first, end): (&str, &str),
    at: u64,
    most: usize,
) -> Result<Vec<Entry>, StoreError> {
    let versions = transaction.open_table(VERSIONS).map_err(disk)?;
    let mut found: Vec<Entry> = Vec::new();
    let mut last: Option<(String, Option<Entry>)> = None;
    for row in versions.range((first, 0)..(end, 0)).map_err(disk)? {
        let (row_key, version) = row.map_err(disk)?;
        let (key, modified) = row_key.value();
        if modified > at {
            continue;
        }
        if last.as_ref().is_some_and(|(of, _)| of != key) {
            found.extend(last.take().and_then(|(_, entry)| entry));
            if found.len() == most {
                return Ok(found);
            }
        }
        last = Some((key.to_owned(), entry(key, modified, version.value())?));
    }
    found.extend(last.and_then(|(_, entry)| entry));
    Ok(found)
}

/// What a reading of the log found.
pub(super) struct Reading {
    /// Revisions that changed something in scope, in order.
    pub(super) batches: Vec<Batch>,
    /// The first revision that was not looked at.
    pub(super) next: u64,
    /// Whether it is there already.
    pub(super) behind: bool,
}

/// Look at up to `most` revisions from `from` for changes in `scope`.
pub(super) fn log(
    database: &Database,
    scope: &Scope,
    from: u64,
    most: usize,
) -> Result<Reading, StoreError> {
    let transaction = database.begin_read().map_err(disk)?;
    let (newest, oldest) = bounds(&transaction)?;
    if from <= oldest && oldest > Revision::FIRST.get() {
        let asked = Revision(from.saturating_sub(1));
        return Err(StoreError::Compacted { asked, oldest: Revision(oldest) });
    }
    let log = transaction.open_table(LOG).map_err(disk)?;
    let versions = transaction.open_table(VERSIONS).map_err(disk)?;
    let mut reading = Reading { batches: Vec::new(), next: from.max(newest + 1), behind: false };
    for (seen, row) in log.range(from..).map_err(disk)?.enumerate() {
        let (revision, keys) = row.map_err(disk)?;
        let revision = revision.value();
        if seen == most {
            reading.next = revision;
            reading.behind = true;
            break;
        }
        let mut changes = Vec::new();
        for text in keys.value() {
            let is_in_scope = match scope {
                Scope::Key(key) => key.as_str() == text,
                Scope::Under(prefix) => text.starts_with(prefix.as_str()),
            };
            if !is_in_scope {
                continue;
            }
            let key = Key::parse(text).map_err(|error| foreign(&error))?;
            let version = versions.get((text, revision)).map_err(disk)?;
            let version = version.as_ref().and_then(redb::AccessGuard::value);
            changes.push(entry(text, revision, version)?.map_or(Change::Delete(key), Change::Put));
        }
        if !changes.is_empty() {
            reading.batches.push(Batch { revision: Revision(revision), changes });
        }
    }
    Ok(reading)
}
