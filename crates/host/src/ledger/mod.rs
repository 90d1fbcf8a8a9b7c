//! The host's journal of what it owns: one JSON file a PF in the state folder, written before the
//! hardware is touched. A file is replaced whole (temporary file, fsync, rename, fsync of the
//! folder), so a crash leaves the old one or the new one, and has a checksum, so that a VLAN in which
//! a bit turned over is no other tenant's. A file that cannot be read is an error: it is never guessed
//! and never overwritten.

mod lock;
mod record;

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::request::hex;
pub(crate) use lock::FileLock;
pub use record::{
    ClaimRecord, Identity, Intent, Life, PfRecord, PfTarget, Unconfirmed, VfOriginal, VfRecord,
};

/// Version of the ledger's schema that this program reads and writes.
pub const VERSION: u32 = 1;

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The system refused.
    #[error("ledger {path}: cannot {doing}: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what was written.
    #[error(
        "ledger {path} is damaged ({reason}); nothing was guessed and nothing overwritten: put a \
         copy of it back, or move it away and apply the host file anew once no VM uses the PF's VFs"
    )]
    Damaged {
        /// File.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It was written by a newer program.
    #[error(
        "ledger {path} has schema version {found}, this program knows {known}; update lanekeeper"
    )]
    Newer {
        /// File.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest that is known.
        known: u32,
    },
    /// Somebody else works on the PF.
    #[error("{what} was busy for {after:?}: another lanekeeper works on it, or hangs on its PF")]
    Locked {
        /// What is locked.
        what: String,
        /// How long was waited.
        after: Duration,
    },
}

/// A PF's file by name, and its record or why it cannot be used.
pub type KeptPf = (String, Result<PfRecord, LedgerError>);

/// The state folder.
#[derive(Debug)]
pub struct Ledger {
    folder: PathBuf,
}

/// A PF's file, which nobody else can write until this is dropped.
#[derive(Debug)]
pub(crate) struct LockedPf {
    folder: PathBuf,
    key: String,
    _lock: FileLock,
}

impl Ledger {
    /// The ledger in a folder, which is made if it is missing.
    ///
    /// # Errors
    /// [`LedgerError::Io`].
    pub fn open(folder: &Path) -> Result<Self, LedgerError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(io(folder, "make the folder"))?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The state folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Names of the files, one a PF.
    ///
    /// # Errors
    /// [`LedgerError::Io`].
    pub fn keys(&self) -> Result<Vec<String>, LedgerError> {
        let mut keys = Vec::new();
        let list = std::fs::read_dir(&self.folder).map_err(io(&self.folder, "list"))?;
        for entry in list {
            let name = entry.map_err(io(&self.folder, "list"))?.file_name();
            let key = name.to_str().and_then(|name| name.strip_suffix(".json"));
            keys.extend(key.filter(|key| key.starts_with("pf-")).map(str::to_owned));
        }
        keys.sort();
        Ok(keys)
    }

    /// A PF's record as last written.
    ///
    /// # Errors
    /// [`LedgerError::Io`], [`LedgerError::Damaged`], [`LedgerError::Newer`].
    pub fn read(&self, key: &str) -> Result<PfRecord, LedgerError> {
        read(&path_of(&self.folder, key))
    }

    /// Every PF's record, or why it cannot be used.
    ///
    /// # Errors
    /// [`LedgerError::Io`] for the folder itself.
    pub fn read_all(&self) -> Result<Vec<KeptPf>, LedgerError> {
        let keys = self.keys()?;
        Ok(keys.into_iter().map(|key| (key.clone(), self.read(&key))).collect())
    }

    /// The name that a PF's file would get.
    pub fn key_for(identity: &Identity) -> String {
        identity.file_key()
    }

    pub(crate) fn lock(&self, key: &str, until: Instant) -> Result<LockedPf, LedgerError> {
        let lock = FileLock::take(&self.folder.join(format!("{key}.lock")), until)?;
        Ok(LockedPf { folder: self.folder.clone(), key: key.to_owned(), _lock: lock })
    }

    /// Hold everything else that the same token asks for.
    pub(crate) fn lock_token(&self, hash: &str, until: Instant) -> Result<FileLock, LedgerError> {
        let short = hash.get(..24).unwrap_or(hash);
        FileLock::take_and_remove(&self.folder.join(format!("token-{short}.lock")), until)
    }

    /// Hold everybody else who looks whether an address is taken, until it is in a record: the PFs'
    /// own locks do not keep one PF's claim from another's.
    pub(crate) fn lock_addresses(&self, until: Instant) -> Result<FileLock, LedgerError> {
        FileLock::take(&self.folder.join("addresses.lock"), until)
    }
}

impl LockedPf {
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The record; `None` if there is none yet.
    pub(crate) fn load(&self) -> Result<Option<PfRecord>, LedgerError> {
        let path = path_of(&self.folder, &self.key);
        match path.try_exists() {
            Ok(false) => Ok(None),
            _ => read(&path).map(Some),
        }
    }

    /// Replace the record. When this returns it is on the disk.
    pub(crate) fn save(&self, record: &PfRecord) -> Result<(), LedgerError> {
        let path = path_of(&self.folder, &self.key);
        let text = encode(record).map_err(|error| LedgerError::Io {
            path: path.clone(),
            doing: "encode",
            source: error.into(),
        })?;
        replace(&self.folder, &path, &text)
    }
}

/// Replace a file of the state folder whole. When this returns it is on the disk.
pub(crate) fn replace(folder: &Path, path: &Path, text: &[u8]) -> Result<(), LedgerError> {
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(io(&temporary, "create"))?;
    file.write_all(text).map_err(io(&temporary, "write"))?;
    file.sync_all().map_err(io(&temporary, "sync"))?;
    std::fs::rename(&temporary, path).map_err(io(path, "replace"))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io(folder, "sync"))
}

fn path_of(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{key}.json"))
}

fn io(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> LedgerError {
    move |source| LedgerError::Io { path: path.to_owned(), doing, source }
}

/// Key of the checksum beside the record's own.
const SUM: &str = "sha256";

fn encode(record: &PfRecord) -> serde_json::Result<Vec<u8>> {
    let mut value = serde_json::to_value(record)?;
    value[SUM] = checksum(record)?.into();
    serde_json::to_vec_pretty(&value)
}

/// Of what is said, not of how it is spaced or ordered.
fn checksum(record: &PfRecord) -> serde_json::Result<String> {
    Ok(hex(&Sha256::digest(serde_json::to_vec(record)?)))
}

fn read(path: &Path) -> Result<PfRecord, LedgerError> {
    let damaged = |reason: String| LedgerError::Damaged { path: path.to_owned(), reason };
    let text = std::fs::read(path).map_err(io(path, "read"))?;
    let mut value: Value =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let version = value.get("version").and_then(Value::as_u64);
    if let Some(found) = version.filter(|version| *version > u64::from(VERSION)) {
        return Err(LedgerError::Newer { path: path.to_owned(), found, known: VERSION });
    }
    let sum = value.as_object_mut().and_then(|fields| fields.remove(SUM));
    let record: PfRecord =
        serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
    let of_content = checksum(&record).map_err(|error| damaged(error.to_string()))?;
    if sum.is_none_or(|sum| sum != of_content) {
        return Err(damaged(format!("its {SUM} is not that of its content")));
    }
    record.contradiction().map_or(Ok(record), |reason| Err(damaged(reason)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_model::MacAddr;

    fn record() -> PfRecord {
        let identity = Identity {
            permanent_mac: Some(MacAddr([0, 1, 2, 3, 4, 5])),
            slot: Some("3/1".to_owned()),
            guid: None,
        };
        PfRecord::new(identity, "rail0", "0000:3b:00.0".parse().expect("valid"))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn a_record_survives_being_written_and_read() {
        let folder = tempfile::tempdir().expect("folder");
        let ledger = Ledger::open(folder.path()).expect("open");
        let key = Ledger::key_for(&record().identity);
        let locked = ledger.lock(&key, soon()).expect("lock");
        assert!(locked.load().expect("none yet").is_none());
        locked.save(&record()).expect("save");
        assert_eq!(ledger.read(&key).expect("read"), record());
        assert_eq!(ledger.keys().expect("keys"), [key]);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_is_left_as_it_is() {
        let folder = tempfile::tempdir().expect("folder");
        let ledger = Ledger::open(folder.path()).expect("open");
        let key = Ledger::key_for(&record().identity);
        let locked = ledger.lock(&key, soon()).expect("lock");
        locked.save(&record()).expect("save");
        let path = path_of(folder.path(), &key);
        let whole = std::fs::read(&path).expect("read");
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("truncate");
            let error = locked.load().expect_err("damaged");
            assert!(matches!(error, LedgerError::Damaged { .. }), "{length}: {error}");
            assert_eq!(std::fs::read(&path).expect("read"), whole[..length]);
        }
    }

    #[test]
    fn a_bit_that_turned_over_anywhere_is_found() {
        let folder = tempfile::tempdir().expect("folder");
        let ledger = Ledger::open(folder.path()).expect("open");
        let locked = ledger.lock("pf-a", soon()).expect("lock");
        locked.save(&record()).expect("save");
        let path = path_of(folder.path(), "pf-a");
        let whole = std::fs::read(&path).expect("read");
        for at in 0..whole.len() * 8 {
            let mut turned = whole.clone();
            turned[at / 8] ^= 1 << (at % 8);
            std::fs::write(&path, &turned).expect("written");
            // What only moved a space says the same.
            let read = ledger.read("pf-a");
            let harmless = read.as_ref().is_ok_and(|read| *read == record());
            let found =
                matches!(read, Err(LedgerError::Damaged { .. } | LedgerError::Newer { .. }));
            assert!(found || harmless, "bit {at}: {read:?}");
        }
    }

    #[test]
    fn a_newer_schema_is_refused_with_a_word() {
        let folder = tempfile::tempdir().expect("folder");
        let ledger = Ledger::open(folder.path()).expect("open");
        let path = path_of(folder.path(), "pf-new");
        std::fs::write(&path, r#"{"version": 2, "something": "new"}"#).expect("write");
        let error = ledger.read("pf-new").expect_err("newer");
        assert!(error.to_string().contains("update lanekeeper"), "{error}");
    }

    #[test]
    fn who_finds_a_pf_locked_waits_and_then_says_so() {
        let folder = tempfile::tempdir().expect("folder");
        let ledger = Ledger::open(folder.path()).expect("open");
        let held = ledger.lock("pf-a", soon()).expect("lock");
        let error = ledger.lock("pf-a", soon()).expect_err("locked");
        assert!(matches!(error, LedgerError::Locked { .. }), "{error}");
        assert!(ledger.lock("pf-b", soon()).is_ok(), "another PF's is not");
        drop(held);
        assert!(ledger.lock("pf-a", soon()).is_ok());
    }

    #[test]
    fn a_tokens_lock_leaves_no_file() {
        let folder = tempfile::tempdir().expect("folder");
        let ledger = Ledger::open(folder.path()).expect("open");
        drop(ledger.lock_token("abc", soon()).expect("lock"));
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
    }
}
