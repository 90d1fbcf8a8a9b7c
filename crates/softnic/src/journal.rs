//! What was set on the VFs at run time, on disk before it takes effect, so that a software NIC
//! that is killed comes back with every VLAN and address it had.
//!
//! The configuration file gives a VF its first settings. A later change by request is written here
//! and wins, until the file itself says something else for that VF: then the file wins again. Both
//! are said when the NIC starts. A NIC that is started afresh goes by the file alone.

use std::fs::File;
use std::io::{Error, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lanekeeper_model::VfSettings;
use serde::{Deserialize, Serialize};

use crate::config::duplicate_mac;

/// Schema of the file; another one is refused rather than guessed at.
const VERSION: u32 = 1;

/// The part of the file that every schema has.
#[derive(Deserialize)]
struct Schema {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    vfs: Vec<Entry>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// What the configuration file said when `current` was written.
    configured: VfSettings,
    current: VfSettings,
}

/// Where a VF's settings come from at the start, and which of them the other source has otherwise.
#[derive(PartialEq, Debug)]
enum Origin<'e> {
    /// The configuration file; nothing else was set.
    File,
    /// The configuration file, which has changed since something else was set.
    FileAnew { dropped: Vec<&'static str> },
    /// The journal.
    Journal { current: &'e VfSettings, differing: Vec<&'static str> },
}

impl<'e> Origin<'e> {
    fn of(entry: Option<&'e Entry>, configured: &VfSettings) -> Self {
        match entry {
            Some(Entry { configured: then, current }) if current != then => {
                if then == configured {
                    Self::Journal { current, differing: configured.differing(current) }
                } else {
                    Self::FileAnew { dropped: then.differing(current) }
                }
            }
            _ => Self::File,
        }
    }
}

/// The file and what it holds.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    configured: Vec<VfSettings>,
}

impl Journal {
    /// Begin a new journal in place of an earlier one, whatever that holds.
    pub(crate) fn fresh(path: PathBuf, configured: Vec<VfSettings>) -> std::io::Result<Self> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(Self { path, configured }),
        }
    }

    /// Open the journal beside the configuration's settings; answers with the settings to begin
    /// with.
    pub(crate) fn open(
        path: PathBuf,
        configured: Vec<VfSettings>,
    ) -> std::io::Result<(Self, Vec<VfSettings>)> {
        let recorded = read(&path)?;
        let current: Vec<VfSettings> = configured
            .iter()
            .enumerate()
            .map(|(vf, configured)| match Origin::of(recorded.get(vf), configured) {
                Origin::File => configured.clone(),
                Origin::FileAnew { dropped } => {
                    let settings = dropped.join(", ");
                    tracing::info!(
                        vf,
                        settings,
                        "what was set at run time is dropped: the configuration file has changed"
                    );
                    configured.clone()
                }
                Origin::Journal { current, differing } => {
                    let settings = differing.join(", ");
                    tracing::info!(
                        vf,
                        settings,
                        "set at run time and kept, not as in the configuration file; --fresh goes \
                         by the file"
                    );
                    current.clone()
                }
            })
            .collect();
        if let Some(problem) = conflict(&configured, &current) {
            return Err(Error::new(ErrorKind::InvalidData, problem));
        }
        Ok((Self { path, configured }, current))
    }

    /// Write the settings that are about to hold. They hold after the next start if this succeeds,
    /// and those before them if it fails.
    pub(crate) fn write(&self, current: &[VfSettings]) -> std::io::Result<()> {
        let entries = self.configured.iter().zip(current);
        let record = Record {
            version: VERSION,
            vfs: entries
                .map(|(configured, current)| Entry {
                    configured: configured.clone(),
                    current: current.clone(),
                })
                .collect(),
        };
        let fresh = self.path.with_extension("new");
        let written = write_new(&fresh, &serde_json::to_vec(&record)?)
            .and_then(|()| std::fs::rename(&fresh, &self.path));
        if written.is_err() {
            // What is there of it takes room that may be short.
            let _ = std::fs::remove_file(&fresh);
        }
        written
    }
}

/// Write a file that was not there: one that is may be a link to something else.
fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Two VFs that would share an address, one by the journal and one by the configuration file. Neither
/// wins: going on without either could bring a VF back into a VLAN that it was taken out of.
fn conflict(configured: &[VfSettings], current: &[VfSettings]) -> Option<String> {
    let (mac, first, second) = duplicate_mac(current)?;
    let (kept, given) =
        if current[first] == configured[first] { (second, first) } else { (first, second) };
    Some(format!(
        "it keeps MAC {mac} for VF {kept}, set at run time, and the configuration file gives it to \
         VF {given} of the same VLAN; give VF {given} another MAC there, or start with --fresh to go \
         by the file alone"
    ))
}

impl std::fmt::Display for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

fn read(path: &Path) -> std::io::Result<Vec<Entry>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let unreadable = |reason: String| {
        let instead = "remove it to begin with the configuration file's settings";
        Error::new(ErrorKind::InvalidData, format!("it {reason}; {instead}"))
    };
    let damaged = |error| unreadable(format!("is damaged: {error}"));
    // First, since another schema may have any other content.
    let Schema { version } = serde_json::from_slice(&text).map_err(damaged)?;
    if version != VERSION {
        return Err(unreadable(format!("has schema {version}, this program knows {VERSION}")));
    }
    let record: Record = serde_json::from_slice(&text).map_err(damaged)?;
    Ok(record.vfs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_model::{MacAddr, Mbps};

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lk-journal-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    fn settings(last: u8) -> VfSettings {
        VfSettings::for_mac(MacAddr([2, 0, 0, 0, 0, last])).expect("valid")
    }

    #[test]
    fn a_change_survives_a_restart() {
        let path = scratch("survives");
        let (journal, mut current) = Journal::open(path.clone(), vec![settings(1)]).expect("new");
        current[0].rate.max = Mbps(7);
        journal.write(&current).expect("written");
        let (_, again) = Journal::open(path.clone(), vec![settings(1)]).expect("read");
        assert_eq!(again, current);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_configuration_that_changed_wins_over_an_older_request() {
        let path = scratch("wins");
        let (journal, mut current) =
            Journal::open(path.clone(), vec![settings(1), settings(2)]).expect("new");
        current[0].rate.max = Mbps(7);
        current[1].rate.max = Mbps(8);
        journal.write(&current).expect("written");
        let (_, again) = Journal::open(path.clone(), vec![settings(9), settings(2)]).expect("read");
        assert_eq!(again, vec![settings(9), current[1].clone()]);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn what_differs_from_the_file_is_named_whichever_of_the_two_wins() {
        let mut current = settings(1);
        current.rate.max = Mbps(7);
        let entry = Entry { configured: settings(1), current: current.clone() };
        let differing = vec!["max_rate"];
        assert_eq!(
            Origin::of(Some(&entry), &settings(1)),
            Origin::Journal { current: &current, differing: differing.clone() }
        );
        assert_eq!(Origin::of(Some(&entry), &settings(2)), Origin::FileAnew { dropped: differing });
        let same = Entry { configured: settings(1), current: settings(1) };
        assert_eq!(Origin::of(Some(&same), &settings(2)), Origin::File);
        assert_eq!(Origin::of(None, &settings(1)), Origin::File);
    }

    #[test]
    fn a_fresh_journal_forgets_even_what_cannot_be_read() {
        let path = scratch("fresh");
        std::fs::write(&path, "{\"version\":1,").expect("written");
        let journal = Journal::fresh(path.clone(), vec![settings(1)]).expect("new");
        let (_, current) = Journal::open(path.clone(), vec![settings(1)]).expect("none there");
        assert_eq!(current, [settings(1)]);
        journal.write(&[settings(2)]).expect("written");
        let (_, current) = Journal::open(path.clone(), vec![settings(1)]).expect("read");
        assert_eq!(current, [settings(2)]);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_damaged_file_is_refused_and_named() {
        let path = scratch("damaged");
        std::fs::write(&path, "{\"version\":1,").expect("written");
        let error = Journal::open(path.clone(), vec![]).expect_err("damaged").to_string();
        assert!(error.contains("is damaged") && error.contains("remove it"), "{error}");
        for newer in ["[]", "{\"0\":1}", "[],\"extra\":{}"] {
            let text = format!("{{\"version\":9,\"vfs\":{newer}}}");
            std::fs::write(&path, text).expect("written");
            let error = Journal::open(path.clone(), vec![]).expect_err("newer").to_string();
            assert!(error.contains("has schema 9, this program knows 1"), "{error}");
        }
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_mac_that_the_file_has_given_to_another_vf_is_refused_with_both_and_a_way_out() {
        let path = scratch("conflict");
        let (journal, mut current) =
            Journal::open(path.clone(), vec![settings(1), settings(2)]).expect("new");
        current[0].mac = settings(7).mac;
        journal.write(&current).expect("written");
        let configured = vec![settings(1), settings(7)];
        let error = Journal::open(path.clone(), configured).expect_err("a conflict").to_string();
        assert!(error.contains("keeps MAC 02:00:00:00:00:07 for VF 0"), "{error}");
        assert!(error.contains("gives it to VF 1") && error.contains("--fresh"), "{error}");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_link_in_the_place_of_the_new_file_is_not_followed() {
        let path = scratch("link");
        let victim = path.with_extension("victim");
        std::fs::write(&victim, "precious").expect("written");
        let fresh = path.with_extension("new");
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&victim, &fresh).expect("linked");
        let (journal, current) = Journal::open(path.clone(), vec![settings(1)]).expect("new");
        journal.write(&current).expect("written");
        assert_eq!(std::fs::read_to_string(&victim).expect("there"), "precious");
        for file in [path, victim] {
            assert!(!std::fs::symlink_metadata(&file).expect("there").is_symlink());
            std::fs::remove_file(file).expect("removed");
        }
    }

    #[test]
    fn a_write_that_fails_leaves_what_was_there() {
        let path = scratch("fails");
        let fresh = path.with_extension("new");
        let (journal, mut current) = Journal::open(path.clone(), vec![settings(1)]).expect("new");
        journal.write(&current).expect("written");
        std::fs::create_dir(&fresh).expect("in the way");
        current[0].rate.max = Mbps(7);
        assert!(journal.write(&current).is_err());
        std::fs::remove_dir(&fresh).expect("removed");
        let (_, again) = Journal::open(path.clone(), vec![settings(1)]).expect("read");
        assert_eq!(again, [settings(1)]);
        std::fs::remove_file(path).expect("removed");
    }
}
