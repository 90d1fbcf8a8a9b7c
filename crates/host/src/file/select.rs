//! Which PF an entry of the file means: everything that is given must match, and exactly one PF may
//! match. Serial numbers are no key: some boards share one.

use std::fmt;
use std::str::FromStr;

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::{Guid, MacAddr, PfAddr};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which PF. Everything that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// The address that was burnt in; the best key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub permanent_mac: Option<MacAddr>,
    /// Label of the physical slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// Node GUID of its RDMA device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub guid: Option<Guid>,
    /// PCI address, as in `0000:3b:00.0`. It may be another after the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub address: Option<PfAddr>,
    /// Interface name. It may be another after the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// PCI vendor and device id, as in `15b3:101d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub vendor_device: Option<VendorDevice>,
}

/// PCI vendor and device id, written `15b3:101d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VendorDevice {
    vendor: u16,
    device: u16,
}

impl FromStr for VendorDevice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let hex = |part: &str| (part.len() == 4).then(|| u16::from_str_radix(part, 16).ok());
        text.split_once(':')
            .and_then(|(vendor, device)| {
                Some(Self { vendor: hex(vendor)??, device: hex(device)?? })
            })
            .ok_or_else(|| format!("'{text}' is no vendor:device; write it as in 15b3:101d"))
    }
}

impl TryFrom<String> for VendorDevice {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<VendorDevice> for String {
    fn from(ids: VendorDevice) -> Self {
        ids.to_string()
    }
}

impl fmt::Display for VendorDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

/// Why a selection means no PF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum SelectError {
    /// Nothing matches.
    #[error("pf {name}: no PF matches; {}", candidates(.differ))]
    None {
        /// Our name for it.
        name: String,
        /// Each PF, and what of it differs.
        differ: Vec<(PfAddr, String)>,
    },
    /// More than one matches.
    #[error(
        "pf {name}: {} PFs match; add a key that tells them apart: {}", .matching.len(),
        candidates(.matching)
    )]
    Several {
        /// Our name for it.
        name: String,
        /// Each that matches, and what it could be told by.
        matching: Vec<(PfAddr, String)>,
    },
}

fn candidates(list: &[(PfAddr, String)]) -> String {
    if list.is_empty() {
        return "this host has no PF that could be read".to_owned();
    }
    let lines: Vec<_> = list.iter().map(|(addr, text)| format!("{addr} ({text})")).collect();
    lines.join("; ")
}

impl Select {
    /// Nothing is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What of a PF is not as given, in words; empty if it matches.
    pub fn differences(&self, pf: &PfReading) -> Vec<String> {
        let netdev = pf.netdev.as_ref().map(|netdev| netdev.name.clone());
        let ids = VendorDevice { vendor: pf.vendor, device: pf.device };
        [
            differs("permanent_mac", self.permanent_mac, pf.permanent_mac),
            differs("slot", self.slot.clone(), pf.slot.clone()),
            differs("guid", self.guid, guid_of(pf)),
            differs("address", self.address, Some(pf.addr)),
            differs("netdev", self.netdev.clone(), netdev),
            differs("vendor_device", self.vendor_device, Some(ids)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The one PF that is meant.
    ///
    /// # Errors
    /// [`SelectError`], with every candidate.
    pub fn choose<'a>(
        &self,
        name: &str,
        pfs: impl IntoIterator<Item = &'a PfReading>,
    ) -> Result<&'a PfReading, SelectError> {
        let (mut matching, mut differ) = (Vec::new(), Vec::new());
        for pf in pfs {
            let differences = self.differences(pf);
            if differences.is_empty() {
                matching.push(pf);
            } else {
                differ.push((pf.addr, differences.join(", ")));
            }
        }
        match matching.as_slice() {
            [pf] => Ok(pf),
            [] => Err(SelectError::None { name: name.to_owned(), differ }),
            several => Err(SelectError::Several {
                name: name.to_owned(),
                matching: several.iter().map(|pf| (pf.addr, keys_of(pf))).collect(),
            }),
        }
    }
}

/// The GUID that a PF is known by.
pub(crate) fn guid_of(pf: &PfReading) -> Option<Guid> {
    pf.rdma.as_ref().map(|rdma| rdma.node_guid).filter(|guid| !guid.is_zero())
}

fn differs<T: PartialEq + fmt::Display>(
    key: &str,
    wanted: Option<T>,
    found: Option<T>,
) -> Option<String> {
    let wanted = wanted?;
    match found {
        Some(found) if found == wanted => None,
        Some(found) => Some(format!("{key} is {found}, not {wanted}")),
        None => Some(format!("{key} is not known, wanted {wanted}")),
    }
}

fn keys_of(pf: &PfReading) -> String {
    let mut keys = Vec::new();
    keys.extend(pf.permanent_mac.map(|mac| format!("permanent_mac {mac}")));
    keys.extend(pf.slot.as_ref().map(|slot| format!("slot {slot}")));
    keys.extend(guid_of(pf).map(|guid| format!("guid {guid}")));
    keys.extend(pf.netdev.as_ref().map(|netdev| format!("netdev {}", netdev.name)));
    keys.join(", ")
}
