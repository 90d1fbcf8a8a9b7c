//! The software NIC's configuration file: TOML, unknown keys are errors, and each error says the
//! line, the value and what would be right.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lanekeeper_hw::vf_range;
use lanekeeper_model::{MAX_VFS, SoftNicName, VfChange, VfIndex, VfSettings};
use serde::{Deserialize, Serialize};

use crate::cores;
use crate::uplink::UplinkConfig;

mod wording;

/// Most receive/transmit queue pairs of one VF.
pub const MAX_QUEUE_PAIRS: usize = 8;

/// Longest time an idle worker may keep polling, in microseconds: a second.
const MAX_IDLE_SPIN_US: u64 = 1_000_000;

/// Fewest looks at RoCE: one batch in so many.
const MAX_ROCE_SAMPLING: u32 = 1 << 16;

/// Longest path of a UNIX socket, in bytes (unix(7): 108 with the zero at its end).
const MAX_SOCKET_PATH: usize = 107;

/// Where software NICs keep their sockets and state unless told otherwise, one folder each.
pub const RUN_ROOT: &str = "/run/lanekeeper/softnic";

/// One software NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name on this host.
    pub name: SoftNicName,
    /// How many VFs it has, 1 to 64.
    pub vfs: usize,
    /// Queue pairs offered to each VF, 1 to 8.
    #[serde(default = "default_queue_pairs")]
    pub queue_pairs: usize,
    /// What carries traffic off the host.
    #[serde(default)]
    pub uplink: UplinkConfig,
    /// Cores to run a worker on, one each; empty means one worker that the kernel places.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// How long an idle worker keeps polling before it sleeps, in microseconds.
    #[serde(default = "default_idle_spin_us")]
    pub idle_spin_us: u64,
    /// RoCE is counted in one batch of frames of so many, 0 to 65536; 0 for never.
    #[serde(default = "default_roce_sampling")]
    pub roce_sampling: u32,
    /// Folder of the VF sockets (`vf0.sock`, ...), the control socket and the state; by default
    /// one of the NIC's name under [`RUN_ROOT`].
    #[serde(default)]
    pub run_dir: Option<PathBuf>,
    /// First settings of VFs, by number; a VF that is not named starts scrubbed (link disabled).
    #[serde(default)]
    pub vf: BTreeMap<String, VfChange>,
}

fn default_queue_pairs() -> usize {
    1
}

fn default_roce_sampling() -> u32 {
    16
}

fn default_idle_spin_us() -> u64 {
    50
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// File.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what the format allows, or a value of it is out of range or contradicts another.
    #[error("{path}: {message}")]
    Content {
        /// File.
        path: PathBuf,
        /// What is wrong, with the line.
        message: String,
    },
    /// The same of a configuration that is in no file.
    #[error("{key}: {message}")]
    Value {
        /// Key, as the file would name it: `vfs`, `vf.1.mac`.
        key: String,
        /// Which value it is, and what would be right.
        message: String,
    },
}

impl ConfigError {
    fn value(key: &str, value: &dyn std::fmt::Display, reason: &str) -> Self {
        Self::Value { key: key.to_owned(), message: format!("{value} {reason}") }
    }

    /// The same error, of a file with this text.
    fn of_file(self, path: &Path, text: &str) -> Self {
        let Self::Value { key, .. } = &self else { return self };
        let message = wording::wrong_value(text, key, &self.to_string());
        Self::Content { path: path.to_owned(), message }
    }
}

impl Config {
    /// A NIC with this many scrubbed VFs and no uplink.
    pub fn new(name: SoftNicName, vfs: usize) -> Self {
        Self {
            name,
            vfs,
            queue_pairs: default_queue_pairs(),
            uplink: UplinkConfig::default(),
            cpus: Vec::new(),
            idle_spin_us: default_idle_spin_us(),
            roce_sampling: default_roce_sampling(),
            run_dir: None,
            vf: BTreeMap::new(),
        }
    }

    /// Read and check a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`] or [`ConfigError::Content`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text =
            read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Parse and check text; `path` names it in errors.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::Content {
            path: path.to_owned(),
            message: wording::refused(text, &error),
        })?;
        config.validate().map_err(|error| error.of_file(path, text))?;
        Ok(config)
    }

    /// Check ranges and references.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the first key that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |key, value: &dyn std::fmt::Display, reason| {
            Err(ConfigError::value(key, value, reason))
        };
        if !(1..=MAX_VFS).contains(&self.vfs) {
            return wrong("vfs", &self.vfs, "is out of range; use 1 to 64");
        }
        if !(1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs) {
            return wrong("queue_pairs", &self.queue_pairs, "is out of range; use 1 to 8");
        }
        if self.cpus.len() > MAX_QUEUE_PAIRS {
            let count = format!("{} cores", self.cpus.len());
            return wrong("cpus", &count, "are too many; use at most 8, one for each worker");
        }
        for (position, &cpu) in self.cpus.iter().enumerate() {
            if self.cpus[..position].contains(&cpu) {
                return wrong("cpus", &cpu, "is named twice; a core runs one worker");
            }
            if !cores::usable(cpu) {
                let reason = "is no core that this process may use; see `nproc --all` and taskset";
                return wrong("cpus", &cpu, reason);
            }
        }
        if self.roce_sampling > MAX_ROCE_SAMPLING {
            return wrong("roce_sampling", &self.roce_sampling, "is out of range; use 0 to 65536");
        }
        if self.idle_spin_us > MAX_IDLE_SPIN_US {
            return wrong("idle_spin_us", &self.idle_spin_us, "is out of range; use 0 to 1000000");
        }
        if let Some(dir) = self.run_dir.as_ref().filter(|dir| !dir.is_absolute()) {
            let reason = "is relative, so it would be another folder for each place that the NIC is \
                started from; write it from / on";
            return wrong("run_dir", &format!("'{}'", dir.display()), reason);
        }
        let longest = self.run_dir().join("control.sock");
        if longest.as_os_str().len() > MAX_SOCKET_PATH {
            let reason = "is too long for a UNIX socket path (107 bytes); use a shorter folder";
            return wrong("run_dir", &format!("'{}'", longest.display()), reason);
        }
        self.initial_settings().map(|_| ())
    }

    /// Folder of sockets and state.
    pub fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| Path::new(RUN_ROOT).join(self.name.as_str()))
    }

    /// Socket of one VF.
    pub fn vf_socket(&self, vf: VfIndex) -> PathBuf {
        self.run_dir().join(format!("vf{vf}.sock"))
    }

    /// Settings each VF starts with.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a VF that does not exist or settings that contradict themselves.
    pub fn initial_settings(&self) -> Result<Vec<VfSettings>, ConfigError> {
        let mut settings = vec![VfSettings::scrubbed(); self.vfs];
        for (number, change) in &self.vf {
            let key = format!("vf.{number}");
            let vf = number
                .parse::<u32>()
                .ok()
                .and_then(|number| VfIndex::new(number).ok())
                .filter(|vf| vf.get() < self.vfs)
                .ok_or_else(|| {
                    let reason = format!("is no VF of this NIC; it has {}", vf_range(self.vfs));
                    ConfigError::value(&key, number, &reason)
                })?;
            // Two ways to write one VF would be two tables for it.
            if vf.to_string() != *number {
                let reason = format!("is not how a VF is written; use [vf.{vf}]");
                return Err(ConfigError::value(&key, number, &reason));
            }
            settings[vf.get()] = initial(change)
                .map_err(|error| ConfigError::Value { key, message: error.to_string() })?;
        }
        if let Some((mac, first, second)) = duplicate_mac(&settings) {
            let reason =
                format!("is that of VF {first} already; two VFs of one VLAN cannot share it");
            return Err(ConfigError::value(&format!("vf.{second}.mac"), &mac, &reason));
        }
        Ok(settings)
    }
}

/// The text of a regular file. Another one, a FIFO or a terminal, may have no end.
fn read(path: &Path) -> std::io::Result<String> {
    // Without the flag, opening a FIFO waits for somebody to write to it.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        let problem = "it is no regular file; name the file that holds the configuration";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, problem));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// A VF that the file names and gives a MAC is meant to be used: anti-spoof and link are on
/// unless the file says otherwise.
fn initial(change: &VfChange) -> Result<VfSettings, lanekeeper_model::ModelError> {
    let base = match change.mac {
        Some(mac) if !mac.is_zero() => VfSettings::for_mac(mac)?,
        _ => VfSettings::scrubbed(),
    };
    change.apply_to(&base)
}

/// Two VFs of one VLAN with the same address, if there are any.
pub(crate) fn duplicate_mac(
    settings: &[VfSettings],
) -> Option<(lanekeeper_model::MacAddr, usize, usize)> {
    let mut seen = BTreeMap::new();
    for (index, vf) in settings.iter().enumerate().filter(|(_, vf)| !vf.mac.is_zero()) {
        let lane = (vf.mac, vf.vlan.id, vf.vlan.protocol.ethertype());
        if let Some(first) = seen.insert(lane, index) {
            return Some((vf.mac, first, index));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("nic.toml"))
    }

    #[test]
    fn a_small_file_is_enough() {
        let config = parse("name = \"nic0\"\nvfs = 2\n").expect("valid");
        assert_eq!(config.run_dir(), Path::new("/run/lanekeeper/softnic/nic0"));
        assert_eq!(config.initial_settings().expect("valid"), vec![VfSettings::scrubbed(); 2]);
    }

    #[test]
    fn a_named_vf_with_a_mac_is_checked_and_up() {
        let config = parse(
            "name = \"nic0\"\nvfs = 2\n[vf.1]\nmac = \"02:00:00:00:00:01\"\nvlan = { id = 7 }\n",
        );
        let settings = config.and_then(|c| c.initial_settings()).expect("valid");
        assert!(settings[1].spoofchk);
        assert_eq!(settings[1].vlan.id.get(), 7);
        assert_eq!(settings[0], VfSettings::scrubbed());
    }

    /// What is said of a NIC `nic0` with this further text.
    fn said(text: &str) -> String {
        let text = format!("name = \"nic0\"\n{text}");
        parse(&text).expect_err(&text).to_string()
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let scratch = tempfile::tempdir().expect("a folder");
        let fifo = scratch.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("coreutils");
        assert!(made.success());
        for path in [fifo.as_path(), Path::new("/dev/zero")] {
            let error = Config::load(path).expect_err("no file").to_string();
            assert!(error.contains("no regular file"), "{error}");
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
        assert!(Config::load(scratch.path()).is_err());
    }

    #[test]
    fn a_misspelt_key_is_an_error_with_its_line_and_the_nearest_name_known_there() {
        let text = said("vfs = 2\nqueue_pair = 2\n");
        assert!(text.starts_with("nic.toml: line 3: unknown key `queue_pair`"), "{text}");
        assert!(text.contains("did you mean `queue_pairs`?\n    queue_pair = 2"), "{text}");
        // `mtu` is a key of the file, but not of a packet uplink.
        let text = said("vfs = 2\n[uplink]\nkind = \"packet\"\nmtus = 2\n");
        assert!(
            text.contains("line 5: unknown key `mtus`, here can be `kind`, `interface`\n"),
            "{text}"
        );
        let text = said("vfs = 2\n[uplink]\nkind = \"tap\"\nmtus = 2\n");
        assert!(text.contains("`kind`, `name`, `mtu`; did you mean `mtu`?"), "{text}");
    }

    #[test]
    fn a_vf_written_without_its_dot_is_told_how_to_write_it() {
        for wrong in ["vf0", "vf_0", "vfs0", "vf12"] {
            let text = said(&format!("vfs = 2\n[{wrong}]\nmtu = 9000\n"));
            assert!(text.contains("line 3") && text.contains("as in `[vf.0]`"), "{text}");
        }
        let text = said("[vfs.0]\nmtu = 9000\n");
        assert!(text.contains("line 2") && text.contains("as in `[vf.0]`"), "{text}");
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_line() {
        for (text, wanted) in [
            ("vfs = 65\n", "line 2: vfs: 65 is out of range; use 1 to 64\n    vfs = 65"),
            ("vfs = 0\n", "line 2: vfs: 0 is"),
            ("vfs = 1\nqueue_pairs = 9\n", "line 3: queue_pairs: 9 is"),
            ("vfs = 1\nidle_spin_us = 1000001\n", "line 3: idle_spin_us: 1000001 is"),
            ("vfs = 1\nroce_sampling = 65537\n", "line 3: roce_sampling: 65537 is"),
            ("vfs = 1\n[vf.1]\n", "line 3: vf.1: 1 is no VF of this NIC; it has VF 0 only"),
            ("vfs = 3\n[vf.00]\n", "line 3: vf.00: 00 is not how a VF is written; use [vf.0]"),
            ("vfs = 3\n[vf.\"+1\"]\n", "+1 is not how a VF is written; use [vf.1]"),
            ("vfs = 3\n[vf.x]\n", "line 3: vf.x: x is no VF of this NIC; it has VFs 0 to 2"),
            ("vfs = 1\n\n[vf.0]\nspoofchk = true\n", "line 4: vf.0: spoofchk is on but"),
            ("vfs = 1\n[vf.0]\nvlan = { pcp = 3 }\n", "line 3: vf.0: PCP 3 needs a VLAN"),
            ("vfs = 1\ncpus = [0, 0]\n", "line 3: cpus: 0 is named twice"),
            ("vfs = 1\ncpus = [900]\n", "line 3: cpus: 900 is no core"),
            ("vfs = 1\ncpus = [1,2,3,4,5,6,7,8,9]\n", "line 3: cpus: 9 cores are too many"),
            ("vfs = 1\nrun_dir = \"here\"\n", "line 3: run_dir: 'here' is relative"),
        ] {
            let error = said(text);
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_refused_in_words_of_the_file() {
        for (text, wanted) in [
            ("vfs = \"x\"\n", "expected a whole number"),
            ("vfs = -1\n", "`-1`, expected a whole number, 0 or more"),
            ("vfs = 2.5\n", "expected a whole number"),
            ("vfs = 1\ncpus = 0\n", "expected a list"),
            ("vfs = 1\ncpus = [\"0\"]\n", "expected a whole number"),
            ("vfs = 1\nidle_spin_us = -5\n", "expected a whole number"),
            ("vfs = 1\nrun_dir = 5\n", "expected a path"),
            ("vfs = 1\nvf = 5\n", "expected a table"),
            ("vfs = 1\nuplink = \"tap\"\n", "expected a table, as in { kind ="),
            ("vfs = 1\nvf.0 = 5\n", "expected a table of settings"),
            ("vfs = 1\n[vf.0]\nvlan = 100\n", "expected a table, as in { id = 100 }"),
            ("vfs = 1\n[vf.0]\nvlan = { id = -1 }\n", "expected a whole number"),
            ("vfs = 1\n[vf.0]\nvlan = { id = 5000 }\n", "VLAN 5000 is out of range"),
            ("vfs = 1\n[vf.0]\nspoofchk = \"on\"\n", "expected true or false"),
            ("vfs = 1\n[vf.0]\nmax_rate = \"10G\"\n", "expected a whole number"),
            ("vfs = 1\n[vf.0]\nmac = 5\n", "expected a string"),
            ("vfs = 1\n[vf.0]\nmtu = \"9k\"\n", "expected a whole number"),
            (
                "vfs = 1\n[vf.0]\nlink_state = \"up\"\n",
                "unknown value `up`, expected one of `auto`",
            ),
            ("vfs = 1\n[vf.0]\naddresses = \"10.0.0.2\"\n", "expected a list"),
            ("vfs = 1\n[vf.0]\naddresses = [\"10.0.0.2/24\"]\n", "without a prefix length"),
        ] {
            let error = said(text);
            let line = 1 + text.lines().count();
            assert!(error.contains(wanted) && error.contains(&format!("line {line}: ")), "{error}");
            let leaks = ["usize", "u32", "u64", "struct", "sequence", "boolean", "map", "field"];
            assert!(!leaks.iter().any(|leak| error.contains(leak)), "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(said(""), "nic.toml: `vfs` is missing");
        let text = said("vfs = 1\n[uplink]\ninterface = \"eth1\"\n");
        assert!(text.contains("line 3: `kind` is missing"), "{text}");
        let text = said("vfs = 1\n[uplink]\nkind = \"packet\"\n");
        assert!(text.contains("line 3") && text.contains("`interface` is missing"), "{text}");
        assert!(
            parse("vfs = 1\nname = \"Nic 0\"\n")
                .expect_err("a name")
                .to_string()
                .contains("'Nic 0'")
        );
    }

    #[test]
    fn two_vfs_of_one_vlan_cannot_share_a_mac_but_of_two_vlans_they_can() {
        let file = |vlan: u32| {
            format!(
                "name = \"nic0\"\nvfs = 2\n[vf.0]\nmac = \"02:00:00:00:00:01\"\nvlan = {{ id = 5 }}\n[vf.1]\nmac = \"02:00:00:00:00:01\"\nvlan = {{ id = {vlan} }}\n"
            )
        };
        assert!(parse(&file(5)).expect_err("same lane").to_string().contains("vf.1.mac"));
        assert!(parse(&file(6)).is_ok());
    }

    #[test]
    fn a_folder_too_long_for_a_socket_is_refused() {
        let text = format!("name = \"nic0\"\nvfs = 1\nrun_dir = \"/tmp/{}\"\n", "x".repeat(110));
        assert!(parse(&text).expect_err("too long").to_string().contains("107 bytes"));
    }
}
