//! The host file: what one host's PFs should be. YAML; an unknown key is an error that names the
//! line and the nearest known key; every other error names key, value and remedy.

mod keys;
mod roce;
mod select;

use std::path::{Path, PathBuf};

use lanekeeper_model::{EswitchMode, LinkState, Mbps, Mtu, VlanTag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use keys::nearest;
pub use roce::RoceProfile;
pub(crate) use select::guid_of;
pub use select::{Select, SelectError};

use crate::request::{DriverWanted, RdmaNeed};

/// The version of the format that this program reads.
pub const VERSION: u32 = 1;
/// Bytes of the largest host file.
const LARGEST: u64 = 1 << 20;
/// Most VFs of a PF in a bond whose VFs share both ports (VF-LAG; mlx5's firmware refuses it with
/// 65 and only warns, ovs-tests).
pub const VF_LAG_LIMIT: u16 = 64;

/// What one host's PFs should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    /// Version of this format: 1.
    pub version: u32,
    /// The PFs that are ours. Others are left alone.
    pub pfs: Vec<PfWanted>,
    /// RoCE profiles, by name.
    #[serde(default)]
    pub roce_profiles: std::collections::BTreeMap<String, RoceProfile>,
    /// What a claim gets that does not say otherwise.
    #[serde(default)]
    pub defaults: ClaimDefaults,
}

/// One PF.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PfWanted {
    /// Our own name for it: 1 to 32 of a-z, 0-9 and '-', starting with a letter. Interface names
    /// move between boots; this one does not.
    pub name: String,
    /// Which PF it is. Everything that is given must match, and exactly one PF may match.
    pub select: Select,
    /// How many VFs it should have. Changed only while no VF is owned.
    pub vfs: u16,
    /// Mode of its embedded switch; not given leaves it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<EswitchName>")]
    pub eswitch: Option<EswitchMode>,
    /// MTU of the PF in bytes, the most that a VF can use; not given leaves it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>", range(min = 68, max = 9202))]
    pub mtu: Option<Mtu>,
    /// Pools that its VFs belong to; a claim names one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// Name of its RoCE profile; not given leaves its settings as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roce: Option<String>,
}

/// What a claim gets that does not say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimDefaults {
    /// Access VLAN; not given is VLAN 0, written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VlanTagKeys>")]
    pub vlan: Option<VlanTag>,
    /// Guaranteed rate in Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>")]
    pub min_rate: Option<Mbps>,
    /// Ceiling in Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>")]
    pub max_rate: Option<Mbps>,
    /// Trust; off if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Anti-spoof; on if not given, where the driver has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Link state; auto if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LinkStateName>")]
    pub link_state: Option<LinkState>,
    /// MTU in bytes; the PF's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>", range(min = 68, max = 9202))]
    pub mtu: Option<Mtu>,
    /// RDMA need; none if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaNeed>,
    /// Driver to hand a VF over with; vfio-pci if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverWanted>,
}

/// How the schema writes [`EswitchMode`].
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase", inline)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum EswitchName {
    /// VF settings are the switch's rules.
    Legacy,
    /// Each VF has a representor on the host.
    Switchdev,
}

/// How the schema writes [`LinkState`].
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase", inline)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum LinkStateName {
    /// Follows the uplink.
    Auto,
    /// Up whatever the uplink does.
    Enable,
    /// Down.
    Disable,
}

/// How the schema writes [`VlanTag`].
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct VlanTagKeys {
    /// VLAN, 0 for none.
    #[schemars(range(max = 4094))]
    id: u32,
    /// Priority written into the tag.
    #[schemars(range(max = 7))]
    pcp: Option<u32>,
    /// `802.1Q` or `802.1ad`.
    protocol: Option<String>,
}

/// Why a host file was refused.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// File.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not what the format allows; the message has line and column.
    #[error("{path}: {message}")]
    Syntax {
        /// File.
        path: PathBuf,
        /// The parser's message.
        message: String,
    },
    /// A value is out of range or contradicts another.
    #[error("{key} = {value}: {remedy}")]
    Value {
        /// Key in the file.
        key: String,
        /// What it says there.
        value: String,
        /// What would be right.
        remedy: String,
    },
}

impl HostFile {
    /// Read and check a file.
    ///
    /// # Errors
    /// [`FileError`] with the line, or the key and its value.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        let text = read_text(path, LARGEST)
            .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Parse and check text; `path` names it in errors.
    ///
    /// # Errors
    /// As [`HostFile::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, FileError> {
        let file: Self = serde_saphyr::from_str(text).map_err(|error| FileError::Syntax {
            path: path.to_owned(),
            message: keys::in_our_words(&error.to_string()),
        })?;
        file.validate()?;
        Ok(file)
    }

    /// The published JSON schema of the file.
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(HostFile).to_value()
    }

    /// Check ranges and references.
    ///
    /// # Errors
    /// [`FileError::Value`] with the first key that is wrong.
    pub fn validate(&self) -> Result<(), FileError> {
        if self.version != VERSION {
            let remedy = if self.version > VERSION {
                format!("is newer than this program, which reads {VERSION}; update lanekeeper")
            } else {
                format!("write version: {VERSION}")
            };
            return Err(value("version", &self.version, remedy));
        }
        for (position, pf) in self.pfs.iter().enumerate() {
            let key = |field: &str| format!("pfs[{position}].{field}");
            named(&pf.name, &key("name"))?;
            if self.pfs[..position].iter().any(|other| other.name == pf.name) {
                return Err(value(&key("name"), &pf.name, "names two PFs; rename one"));
            }
            if pf.select.is_empty() {
                let remedy = "give at least one of permanent_mac, slot, guid, address, netdev, \
                              vendor_device; `lanekeeper host show` lists them";
                return Err(value(&key("select"), &"{}", remedy));
            }
            for pool in &pf.pools {
                named(pool, &key("pools"))?;
            }
            if let Some(profile) = &pf.roce {
                let wanted = self.roce_profiles.get(profile).ok_or_else(|| {
                    let known: Vec<_> = self.roce_profiles.keys().map(String::as_str).collect();
                    let remedy = match known.as_slice() {
                        [] => "there are no profiles; add it under roce_profiles".to_owned(),
                        known => format!("no such profile; use one of {}", known.join(", ")),
                    };
                    value(&key("roce"), profile, remedy)
                })?;
                if let (Some(mtu), Some(other)) = (pf.mtu, wanted.mtu)
                    && mtu != other
                {
                    let remedy = format!("profile {profile} says {other}; give one of the two");
                    return Err(value(&key("mtu"), &mtu, remedy));
                }
            }
        }
        for (name, profile) in &self.roce_profiles {
            named(name, "roce_profiles")?;
            profile.validate(&format!("roce_profiles.{name}"))?;
        }
        self.defaults.validate()
    }
}

impl ClaimDefaults {
    fn validate(&self) -> Result<(), FileError> {
        if let (Some(min), Some(max)) = (self.min_rate, self.max_rate)
            && max.0 != 0
            && min > max
        {
            let remedy = format!("is above max_rate {max}; lower the one or raise the other");
            return Err(value("defaults.min_rate", &min, remedy));
        }
        if let Some(vlan) = self.vlan
            && !vlan.id.is_some()
            && vlan.pcp.get() != 0
        {
            let remedy = "needs a VLAN; set vlan.id to 1..=4094, or pcp to 0";
            return Err(value("defaults.vlan.pcp", &vlan.pcp, remedy));
        }
        Ok(())
    }
}

/// A text file's content, if it has no more than so many bytes: a device or a wrong file must not
/// fill the memory.
///
/// # Errors
/// What the system says; a word of its own for a file that is larger or no text.
pub fn read_text(path: &Path, most: u64) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read as _};
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let larger = format!("it has more than {most} bytes; is it the right file?");
        return Err(Error::new(ErrorKind::FileTooLarge, larger));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("it is no UTF-8 text (byte {at})"))
    })
}

pub(crate) fn value(
    key: &str,
    value: &dyn std::fmt::Display,
    remedy: impl Into<String>,
) -> FileError {
    FileError::Value { key: key.to_owned(), value: value.to_string(), remedy: remedy.into() }
}

fn named(name: &str, key: &str) -> Result<(), FileError> {
    let well_formed = (1..=32).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
    if well_formed {
        return Ok(());
    }
    let remedy = "use 1 to 32 of a-z, 0-9 and '-', starting with a letter";
    Err(value(key, &format!("'{name}'"), remedy))
}
