//! What was set on the VFs at run time, on disk before it takes effect, so that a software NIC
//! that is killed comes back with every VLAN and address it had.
//!
//! The configuration file gives a VF its first settings. A later change by request is written here
//! and wins, until the file itself says something else for that VF: then the file wins again. Both
//! are said when the NIC starts. A NIC that is started afresh goes by the file alone.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use lanekeeper_model::VfSettings;
use serde::{Deserialize, Serialize};

/// Schema of the file; another one is refused rather than guessed at.
const VERSION: u32 = 1;

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
        let current = configured
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
        Ok((Self { path, configured }, current))
    }

    /// Write the settings that are about to hold.
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
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(&record)?)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.path)
    }
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
        std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!(
                "{} {reason}; remove it to begin with the configuration file's settings",
                path.display()
            ),
        )
    };
    let record: Record = serde_json::from_slice(&text)
        .map_err(|error| unreadable(format!("is damaged: {error}")))?;
    if record.version != VERSION {
        return Err(unreadable(format!(
            "has schema {}, this program knows {VERSION}",
            record.version
        )));
    }
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
        std::fs::write(&path, "{\"version\":9,\"vfs\":[]}").expect("written");
        let error = Journal::open(path.clone(), vec![]).expect_err("newer").to_string();
        assert!(error.contains("schema 9"), "{error}");
        std::fs::remove_file(path).expect("removed");
    }
}
