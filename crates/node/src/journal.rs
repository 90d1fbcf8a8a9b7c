//! What each VM of this host has, written down before it is touched: one file a VM, replaced whole
//! (temporary file, fsync, rename, fsync of the folder). Whoever is killed between two writes finds by
//! it, at the next start, all that may have been set, made or started for a VM.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lanekeeper_control::protocol::{DesiredVm, Traffic, VmId};
use serde::{Deserialize, Serialize};

use crate::error::NodeError;
use crate::lanes::Lane;

/// A VM of this host, and all that there may be of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// What it shall be, as it was last said.
    pub want: DesiredVm,
    /// It shall be no more. That is never taken back: part of it may be gone.
    pub leaving: bool,
    /// VFs that may be set for it.
    pub lanes: Vec<Lane>,
    /// There may be files of it: a disk, a run folder.
    pub files: bool,
    /// What the VM that may run was started as.
    pub booted: Option<DesiredVm>,
    /// Resets that were done.
    pub resets: u64,
    /// Its guest powered off.
    pub powered_off: Option<Moment>,
    /// It could not be as desired.
    pub failed: Option<Failure>,
    /// What has passed its VFs, as it was last counted.
    #[serde(default)]
    pub traffic: Traffic,
    /// Where the counters of its VFs were then.
    #[serde(default)]
    pub counted: Vec<Counted>,
}

/// Where the counters of a VF were.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Which VF.
    pub lane: Lane,
    /// What they said.
    pub at: Traffic,
}

/// What was desired when something happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// The generation.
    pub generation: u64,
    /// The resets.
    pub resets: u64,
}

/// Why a VM could not be as desired.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The generation that it could not be.
    pub generation: u64,
    /// Why, and what to do.
    pub reason: String,
}

impl Record {
    /// A VM of which there is nothing yet.
    pub fn new(want: DesiredVm) -> Self {
        Self {
            want,
            leaving: false,
            lanes: Vec::new(),
            files: false,
            booted: None,
            resets: 0,
            powered_off: None,
            failed: None,
            traffic: Traffic::default(),
            counted: Vec::new(),
        }
    }

    /// Add what has passed a VF since it was last counted. A counter that is behind where it was has
    /// begun anew.
    pub(crate) fn count(&mut self, lane: &Lane, now: Traffic) {
        let since = |was: u64, now: u64| now.checked_sub(was).unwrap_or(now);
        match self.counted.iter_mut().find(|it| it.lane == *lane) {
            Some(counted) => {
                self.traffic += Traffic {
                    sent_bytes: since(counted.at.sent_bytes, now.sent_bytes),
                    received_bytes: since(counted.at.received_bytes, now.received_bytes),
                };
                counted.at = now;
            }
            // What passed before was another's.
            None => self.counted.push(Counted { lane: lane.clone(), at: now }),
        }
    }

    /// Why it could not be as it is desired now.
    pub fn failure(&self) -> Option<&Failure> {
        self.failed.as_ref().filter(|failed| failed.generation == self.want.generation)
    }

    /// What is desired now.
    pub fn moment(&self) -> Moment {
        Moment { generation: self.want.generation, resets: self.want.resets }
    }
}

/// The journal's folder, this process's for as long as the value lives.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    _lock: File,
    /// Who has which VF, as the files say.
    holders: Mutex<BTreeMap<Lane, VmId>>,
}

impl Journal {
    /// Open the journal in a folder, which is made if it is not there. Gives back what it holds.
    ///
    /// # Errors
    /// [`NodeError::Taken`], [`NodeError::Record`], [`NodeError::File`].
    pub fn open(folder: &Path) -> Result<(Self, Vec<Record>), NodeError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(NodeError::file(folder, "make"))?;
        let path = folder.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(NodeError::file(&path, "open"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NodeError::Taken(folder.to_owned())),
            Err(TryLockError::Error(error)) => return Err(NodeError::file(&path, "lock")(error)),
        }
        let records = records(folder)?;
        let held = |record: &Record| {
            let vm = record.want.vm;
            record.lanes.iter().map(move |lane| (lane.clone(), vm)).collect::<Vec<_>>()
        };
        let holders = Mutex::new(records.iter().flat_map(held).collect());
        Ok((Self { folder: folder.to_owned(), _lock: lock, holders }, records))
    }

    /// Write a record down. When this returns it is on the disk.
    ///
    /// # Errors
    /// [`NodeError::Held`] for a VF that another VM has; [`NodeError::File`].
    pub fn save(&self, record: &Record) -> Result<(), NodeError> {
        let vm = record.want.vm;
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in &record.lanes {
            match holders.get(lane) {
                Some(holder) if *holder != vm => {
                    return Err(NodeError::Held { lane: lane.clone(), holder: *holder });
                }
                _ => {}
            }
        }
        let path = self.path(vm);
        let text = serde_json::to_vec_pretty(record)
            .map_err(|error| NodeError::file(&path, "encode")(error.into()))?;
        replace(&path, &text)?;
        holders.retain(|_, holder| *holder != vm);
        holders.extend(record.lanes.iter().map(|lane| (lane.clone(), vm)));
        Ok(())
    }

    /// Strike a VM of which nothing is left.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn forget(&self, vm: VmId) -> Result<(), NodeError> {
        let path = self.path(vm);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(NodeError::file(&path, "remove")(error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, vm: VmId) -> PathBuf {
        self.folder.join(format!("{vm}.json"))
    }
}

/// All records of a journal.
pub(crate) fn records(folder: &Path) -> Result<Vec<Record>, NodeError> {
    let mut records = Vec::new();
    let entries = fs::read_dir(folder).map_err(NodeError::file(folder, "list"))?;
    for entry in entries {
        let path = entry.map_err(NodeError::file(folder, "list"))?.path();
        if path.extension().is_some_and(|it| it == "json") {
            records.push(read(&path)?);
        }
    }
    Ok(records)
}

fn read(path: &Path) -> Result<Record, NodeError> {
    let text = fs::read(path).map_err(NodeError::file(path, "read"))?;
    serde_json::from_slice(&text)
        .map_err(|error| NodeError::Record { path: path.to_owned(), why: error.to_string() })
}

/// Replace a file whole; only root may read it. When this returns it is on the disk.
pub(crate) fn replace(path: &Path, text: &[u8]) -> Result<(), NodeError> {
    let draft = path.with_extension("tmp");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .map_err(NodeError::file(&draft, "create"))?;
    file.write_all(text).map_err(NodeError::file(&draft, "write"))?;
    file.sync_all().map_err(NodeError::file(&draft, "sync"))?;
    settle(&draft, path)
}

/// Give a whole file its name. When this returns it is on the disk.
pub(crate) fn settle(draft: &Path, path: &Path) -> Result<(), NodeError> {
    fs::rename(draft, path).map_err(NodeError::file(path, "replace"))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(NodeError::file(folder, "sync"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{lane, vm};

    #[test]
    fn what_was_saved_is_there_after_a_restart_and_what_was_forgotten_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (journal, none) = Journal::open(folder.path()).expect("opens");
        assert_eq!(none, []);
        let mut record = Record::new(vm(7));
        record.lanes = vec![lane(0)];
        record.failed = Some(Failure { generation: 1, reason: "because".to_owned() });
        journal.save(&record).expect("saved");
        journal.save(&Record::new(vm(8))).expect("saved");
        journal.forget(8).expect("forgotten");
        drop(journal);
        let (_journal, records) = Journal::open(folder.path()).expect("opens");
        assert_eq!(records, [record]);
    }

    #[test]
    fn what_passes_a_vf_is_counted_from_when_it_was_given_also_over_counters_that_begin_anew() {
        let at = |sent_bytes, received_bytes| Traffic { sent_bytes, received_bytes };
        let mut record = Record::new(vm(7));
        record.count(&lane(0), at(1000, 10));
        assert_eq!(record.traffic, at(0, 0), "that was another VM's");
        record.count(&lane(0), at(1500, 15));
        record.count(&lane(1), at(7, 7));
        record.count(&lane(0), at(100, 20));
        record.count(&lane(1), at(8, 9));
        assert_eq!(record.traffic, at(500 + 100 + 1, 5 + 5 + 2));
    }

    #[test]
    fn a_vf_is_written_down_for_one_vm_at_a_time_also_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let (journal, _) = Journal::open(folder.path()).expect("opens");
        let with = |id, lanes: &[Lane]| Record { lanes: lanes.to_vec(), ..Record::new(vm(id)) };
        journal.save(&with(1, &[lane(0)])).expect("free");
        drop(journal);
        let (journal, _) = Journal::open(folder.path()).expect("opens");
        let refused = journal.save(&with(2, &[lane(0)])).expect_err("held");
        assert!(matches!(refused, NodeError::Held { holder: 1, .. }), "{refused}");
        assert!(refused.may_pass());
        journal.save(&with(1, &[])).expect("let go");
        journal.save(&with(2, &[lane(0)])).expect("free again");
    }

    #[test]
    fn a_second_agent_and_a_damaged_record_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (journal, _) = Journal::open(folder.path()).expect("opens");
        assert!(matches!(Journal::open(folder.path()), Err(NodeError::Taken(_))));
        drop(journal);
        fs::write(folder.path().join("3.json"), "{").expect("written");
        let error = Journal::open(folder.path()).expect_err("damaged").to_string();
        assert!(error.contains("3.json is no record"), "{error}");
    }

    #[test]
    fn a_draft_that_was_cut_short_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (journal, _) = Journal::open(folder.path()).expect("opens");
        journal.save(&Record::new(vm(7))).expect("saved");
        drop(journal);
        fs::write(folder.path().join("7.tmp"), "{ \"want\"").expect("written");
        let (_journal, records) = Journal::open(folder.path()).expect("opens");
        assert_eq!(records, [Record::new(vm(7))]);
    }
}
