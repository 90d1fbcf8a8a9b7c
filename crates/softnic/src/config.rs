//! The software NIC's configuration file: TOML, unknown keys are errors, and each error says the
//! line, the value and what would be right.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lanekeeper_model::{MAX_VFS, SoftNicName, VfChange, VfIndex, VfSettings};
use serde::{Deserialize, Serialize};

use crate::cores;
use crate::uplink::UplinkConfig;

/// Most receive/transmit queue pairs of one VF.
pub const MAX_QUEUE_PAIRS: usize = 8;

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
    /// The text is not what the format allows; the message carries line and column.
    #[error("{path}: {message}")]
    Syntax {
        /// File.
        path: PathBuf,
        /// The parser's message with the line quoted.
        message: String,
    },
    /// A value is out of range or contradicts another.
    #[error("{key} = {value}: {reason}")]
    Value {
        /// Key in the file.
        key: String,
        /// What it says there.
        value: String,
        /// What would be right.
        reason: String,
    },
}

impl ConfigError {
    fn value(key: impl Into<String>, value: &dyn ToString, reason: impl Into<String>) -> Self {
        Self::Value { key: key.into(), value: value.to_string(), reason: reason.into() }
    }
}

/// Key names of the file, for the "did you mean" of a misspelt one.
const KEYS: &[&str] = &[
    "name",
    "vfs",
    "queue_pairs",
    "uplink",
    "cpus",
    "idle_spin_us",
    "run_dir",
    "vf",
    "mac",
    "vlan",
    "spoofchk",
    "addresses",
    "trust",
    "link_state",
    "min_rate",
    "max_rate",
    "mtu",
    "id",
    "pcp",
    "protocol",
    "kind",
    "interface",
];

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
            run_dir: None,
            vf: BTreeMap::new(),
        }
    }

    /// Read and check a file.
    ///
    /// # Errors
    /// [`ConfigError`] with the line, or the key and its value.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Parse and check text; `path` names it in errors.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            message: with_nearest_key(&error.to_string()),
        })?;
        config.validate()?;
        Ok(config)
    }

    /// Check ranges and references.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the first key that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_VFS).contains(&self.vfs) {
            return Err(ConfigError::value("vfs", &self.vfs, "use 1 to 64"));
        }
        if !(1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs) {
            return Err(ConfigError::value("queue_pairs", &self.queue_pairs, "use 1 to 8"));
        }
        for (position, &cpu) in self.cpus.iter().enumerate() {
            if self.cpus[..position].contains(&cpu) {
                return Err(ConfigError::value("cpus", &cpu, "names this core twice"));
            }
            if !cores::usable(cpu) {
                let reason = "is no core that this process may use; see `nproc --all` and taskset";
                return Err(ConfigError::value("cpus", &cpu, reason));
            }
        }
        if self.cpus.len() > MAX_QUEUE_PAIRS {
            return Err(ConfigError::value("cpus", &self.cpus.len(), "use at most 8 workers"));
        }
        if self.idle_spin_us > 1_000_000 {
            return Err(ConfigError::value("idle_spin_us", &self.idle_spin_us, "use 0 to 1000000"));
        }
        let longest = self.run_dir().join("control.sock");
        if longest.as_os_str().len() > 107 {
            return Err(ConfigError::value(
                "run_dir",
                &longest.display(),
                "is too long for a UNIX socket path (107 bytes); use a shorter folder",
            ));
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
        for (key, change) in &self.vf {
            let vf = key
                .parse::<u32>()
                .ok()
                .and_then(|number| VfIndex::new(number).ok())
                .filter(|vf| vf.get() < self.vfs)
                .ok_or_else(|| {
                    let reason = format!("is not a VF of this NIC; it has 0 to {}", self.vfs - 1);
                    ConfigError::value("vf", &key, reason)
                })?;
            settings[vf.get()] = initial(change).map_err(|error| {
                ConfigError::value(format!("vf.{key}"), &"these settings", error.to_string())
            })?;
        }
        if let Some((mac, first, second)) = duplicate_mac(&settings) {
            let reason = format!("VF {first} of the same VLAN has it already");
            return Err(ConfigError::value(format!("vf.{second}.mac"), &mac, reason));
        }
        Ok(settings)
    }
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

fn with_nearest_key(message: &str) -> String {
    let Some(unknown) = message
        .split_once("unknown field `")
        .and_then(|(_, rest)| rest.split_once('`'))
        .map(|(name, _)| name)
    else {
        return message.to_owned();
    };
    let nearest = KEYS.iter().min_by_key(|key| edit_distance(unknown, key));
    match nearest {
        Some(key) if edit_distance(unknown, key) <= 1 + key.len() / 3 => {
            format!("{}\ndid you mean `{key}`?", message.trim_end())
        }
        _ => message.to_owned(),
    }
}

fn edit_distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
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

    #[test]
    fn a_misspelt_key_is_an_error_with_its_line_and_the_nearest_name() {
        let error = parse("name = \"nic0\"\nvfs = 2\nqueue_pair = 2\n").expect_err("typo");
        let text = error.to_string();
        assert!(text.contains("line 3") && text.contains("did you mean `queue_pairs`"), "{text}");
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, wanted) in [
            ("name = \"nic0\"\nvfs = 65\n", "vfs = 65"),
            ("name = \"nic0\"\nvfs = 1\nqueue_pairs = 9\n", "queue_pairs = 9"),
            ("name = \"nic0\"\nvfs = 1\n[vf.1]\n", "vf = 1"),
            ("name = \"nic0\"\nvfs = 1\n[vf.0]\nspoofchk = true\n", "vf.0"),
            ("name = \"nic0\"\nvfs = 1\ncpus = [0, 0]\n", "cpus = 0"),
            ("name = \"nic0\"\nvfs = 1\ncpus = [900]\n", "cpus = 900"),
            ("name = \"Nic 0\"\nvfs = 1\n", "'Nic 0'"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(wanted), "{error}");
        }
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
