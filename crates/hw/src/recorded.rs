//! A host on paper: everything that was read of it, in one JSON bundle that can be sent to somebody
//! else, looked at there as if it were the host, and kept as a test.
//!
//! What a bundle never has: names of the host and its users, command lines, keys and tokens, for none
//! is read here; and IP addresses, which are replaced. MAC addresses, GUIDs and serial numbers name
//! boards, not secrets, and are what faults of identity are found by; [`Bundle::masked`] replaces
//! them too.

mod mask;

use std::collections::BTreeMap;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use lanekeeper_model::{EswitchMode, Mtu, PfAddr, PfId, RoceSetting, VfAddr, VfCounters, VfIndex};
use serde::{Deserialize, Serialize};

use crate::inventory::{PciNode, PfReading, RepresentorState};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware};

/// Number of this format. A bundle of another one is refused.
pub const FORMAT: u32 = 1;

/// Everything that was read of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// [`FORMAT`].
    pub format: u32,
    /// Where and when.
    pub facts: Facts,
    /// MAC addresses, GUIDs and serial numbers are replaced.
    pub masked: bool,
    /// Addresses of all PFs.
    pub list: Vec<PfAddr>,
    /// What each answered.
    pub pfs: BTreeMap<PfAddr, Told<PfReading>>,
    /// Counters of its VFs.
    pub counters: BTreeMap<PfAddr, BTreeMap<VfIndex, Told<VfCounters>>>,
    /// Its pause frames by priority.
    pub pause_frames: BTreeMap<PfAddr, Told<Option<[u64; 8]>>>,
    /// The PCIe tree.
    pub pci_tree: Told<Vec<PciNode>>,
}

/// What surrounds the readings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Version of the kernel.
    pub kernel: String,
    /// Version of the program that recorded.
    pub lanekeeper: String,
    /// When, in seconds since 1970-01-01 UTC.
    pub taken: u64,
}

/// An answer, or in which words there was none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told<T> {
    /// The answer.
    Answer(T),
    /// The error's text.
    Error(String),
}

impl Facts {
    /// Of this host, now.
    ///
    /// # Errors
    /// [`HardwareError::Host`] if the kernel does not tell its version.
    pub fn here() -> Result<Self, HardwareError> {
        let file = "/proc/sys/kernel/osrelease";
        let kernel = std::fs::read_to_string(file)
            .map_err(|source| HardwareError::Host { what: file.to_owned(), source })?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            kernel: kernel.trim().to_owned(),
            lanekeeper: env!("CARGO_PKG_VERSION").to_owned(),
            taken: since.map_or(0, |since| since.as_secs()),
        })
    }
}

impl<T> Told<T> {
    fn of(answer: Result<T, HardwareError>) -> Self {
        match answer {
            Ok(answer) => Self::Answer(answer),
            Err(error) => Self::Error(error.to_string()),
        }
    }
}

impl Bundle {
    /// Read everything. What cannot be read is recorded as such: it may be why the bundle is made.
    ///
    /// # Errors
    /// [`HardwareError::Host`] if not even a list of PFs can be had.
    pub fn capture(hardware: &dyn SriovHardware, facts: Facts) -> Result<Self, HardwareError> {
        let list = hardware.list()?;
        let pfs: BTreeMap<_, _> =
            list.iter().map(|pf| (*pf, Told::of(hardware.read(*pf)))).collect();
        let counters = pfs.iter().filter_map(|(pf, told)| {
            let Told::Answer(reading) = told else { return None };
            let counters = |vf| (vf, Told::of(hardware.vf_counters(*pf, vf)));
            Some((*pf, reading.vfs.iter().map(|vf| counters(vf.vf)).collect()))
        });
        let pause = |pf: &PfAddr| (*pf, Told::of(hardware.pause_frames(*pf)));
        let bundle = Self {
            format: FORMAT,
            facts,
            masked: false,
            counters: counters.collect(),
            pause_frames: list.iter().map(pause).collect(),
            list,
            pci_tree: Told::of(hardware.pci_tree()),
            pfs,
        };
        Ok(mask::without_addresses(bundle))
    }

    /// With each MAC address, GUID and serial number replaced by one that stands for it: equal ones
    /// stay equal, a vendor's stays that vendor's, and zero stays zero.
    #[must_use]
    pub fn masked(self) -> Self {
        mask::without_identities(self)
    }

    /// As text.
    ///
    /// # Errors
    /// [`HardwareError::Host`] if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<String, HardwareError> {
        serde_json::to_string_pretty(self).map_err(|error| unreadable(error.into()))
    }

    /// From text.
    ///
    /// # Errors
    /// [`HardwareError::Host`] for what is no bundle of this [`FORMAT`].
    pub fn from_json(text: &str) -> Result<Self, HardwareError> {
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let header: Header =
            serde_json::from_str(text).map_err(|error| unreadable(error.into()))?;
        if header.format != FORMAT {
            let other = format!(
                "it has format {}, this program reads format {FORMAT}; use the version of \
                 lanekeeper that recorded it",
                header.format
            );
            return Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, other)));
        }
        serde_json::from_str(text).map_err(|error| unreadable(error.into()))
    }
}

fn unreadable(source: io::Error) -> HardwareError {
    HardwareError::Host { what: "the recording".to_owned(), source }
}

/// A host as it was recorded. It can be read and not written.
#[derive(Clone, Debug)]
pub struct Recorded {
    bundle: Bundle,
}

impl Recorded {
    /// The host of this bundle.
    pub fn new(bundle: Bundle) -> Self {
        Self { bundle }
    }

    /// What was recorded.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    fn refuse<T>(&self, pf: PfAddr, what: &str) -> Result<T, HardwareError> {
        // As the host would have it: a PF that is not there comes first.
        if !self.bundle.pfs.contains_key(&pf) {
            return Err(HardwareError::NoPf(PfId::Pci(pf)));
        }
        Err(HardwareError::Unsupported {
            driver: "this is a recording and".to_owned(),
            what: format!("{what} of {pf}"),
            said: None,
            instead: "do it on the host itself, without --replay".to_owned(),
        })
    }
}

/// What was told when it was recorded.
fn replay<T: Clone>(pf: PfAddr, told: &Told<T>) -> Result<T, HardwareError> {
    match told {
        Told::Answer(answer) => Ok(answer.clone()),
        Told::Error(text) => {
            let message = format!("when it was recorded: {text}");
            Err(HardwareError::Refused { pf: PfId::Pci(pf), message })
        }
    }
}

impl SriovHardware for Recorded {
    fn list(&self) -> Result<Vec<PfAddr>, HardwareError> {
        Ok(self.bundle.list.clone())
    }

    fn read(&self, pf: PfAddr) -> Result<PfReading, HardwareError> {
        let told = self.bundle.pfs.get(&pf).ok_or(HardwareError::NoPf(PfId::Pci(pf)))?;
        replay(pf, told)
    }

    fn pci_tree(&self) -> Result<Vec<PciNode>, HardwareError> {
        match &self.bundle.pci_tree {
            Told::Answer(tree) => Ok(tree.clone()),
            Told::Error(text) => Err(HardwareError::Host {
                what: "the PCIe tree".to_owned(),
                source: io::Error::other(format!("when it was recorded: {text}")),
            }),
        }
    }

    fn write_num_vfs(&self, pf: PfAddr, _: u16) -> Result<(), HardwareError> {
        self.refuse(pf, "change the number of VFs")
    }

    fn write_autoprobe(&self, pf: PfAddr, _: bool) -> Result<(), HardwareError> {
        self.refuse(pf, "change whether drivers are probed for VFs")
    }

    fn set_up(&self, pf: PfAddr, _: bool) -> Result<(), HardwareError> {
        self.refuse(pf, "set the interface up or down")
    }

    fn set_eswitch(&self, pf: PfAddr, _: EswitchMode) -> Result<(), HardwareError> {
        self.refuse(pf, "set the embedded switch")
    }

    fn send_vf(&self, pf: PfAddr, vf: VfIndex, _: &VfMessage) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("set VF {vf}"))
    }

    fn set_vf_mtu(&self, pf: PfAddr, vf: VfIndex, _: Mtu) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("set the MTU of VF {vf}"))
    }

    fn set_representor(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        _: RepresentorState,
    ) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("set the representor of VF {vf}"))
    }

    fn vf_counters(&self, pf: PfAddr, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        let reading = self.read(pf)?;
        let counters = self.bundle.counters.get(&pf).and_then(|vfs| vfs.get(&vf));
        let none = || HardwareError::NoVf { pf: reading.id(), vf, num_vfs: reading.vfs.len() };
        replay(pf, counters.ok_or_else(none)?)
    }

    fn pause_frames(&self, pf: PfAddr) -> Result<Option<[u64; 8]>, HardwareError> {
        let told = self.bundle.pause_frames.get(&pf).ok_or(HardwareError::NoPf(PfId::Pci(pf)))?;
        replay(pf, told)
    }

    fn write_driver_override(
        &self,
        pf: PfAddr,
        vf: VfAddr,
        _: Option<&str>,
    ) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("override the driver of VF {vf}"))
    }

    fn unbind(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("unbind VF {vf}"))
    }

    fn probe(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("probe VF {vf}"))
    }

    fn reset(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("reset VF {vf}"))
    }

    fn set_roce(&self, pf: PfAddr, setting: &RoceSetting) -> Result<(), HardwareError> {
        self.refuse(pf, &format!("set {} in the RoCE profile", setting.kind()))
    }
}

#[cfg(test)]
mod tests;
