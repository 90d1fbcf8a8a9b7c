//! The hardware line. Above [`Hardware`] nobody opens a device; below it nobody decides.
//!
//! A back end obeys or refuses; it never reinterprets. The software NIC is one back end (in
//! `lanekeeper-softnic`), which is why the same request serves a host with an SR-IOV NIC and a
//! host without one.
#![forbid(unsafe_code)]

use std::time::Duration;

use lanekeeper_model::{
    LinkCounters, ModelError, PfId, VfChange, VfCounters, VfIndex, VfSettings, VfStatus,
};
use serde::{Deserialize, Serialize};

/// What a back end reads of one PF.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PfStatus {
    /// Which PF.
    pub pf: PfId,
    /// Driver behind it, `softnic` for a software NIC.
    pub driver: String,
    /// What carries its traffic off the host, if anything does.
    pub uplink: Option<String>,
    /// Whether the uplink has a carrier.
    pub link_up: bool,
    /// VFs that exist now.
    pub num_vfs: usize,
    /// VFs that could exist.
    pub total_vfs: usize,
    /// Frames sent to the uplink.
    pub tx: LinkCounters,
    /// Frames that came from the uplink.
    pub rx: LinkCounters,
    /// Frames from the uplink that no VF was given, by reason.
    pub rx_drops: std::collections::BTreeMap<lanekeeper_model::DropReason, u64>,
}

/// Why a back end did not do what was asked. Nothing was changed when it says so.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// The request contradicts itself or is out of range.
    #[error(transparent)]
    Invalid(#[from] ModelError),
    /// There is no such PF.
    #[error("there is no PF {0}; `lanekeeper softnic show` lists those that run")]
    NoPf(PfId),
    /// The PF exists, the VF does not.
    #[error("{pf} has {num_vfs} VFs, so there is no VF {vf}")]
    NoVf {
        /// Which PF.
        pf: PfId,
        /// Which VF was asked for.
        vf: VfIndex,
        /// How many there are.
        num_vfs: usize,
    },
    /// This back end cannot do this at all.
    #[error("{driver} cannot set {what} on a VF; {instead}")]
    Unsupported {
        /// Driver that refuses.
        driver: String,
        /// What was asked.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// Two VFs of one VLAN would have the same address.
    #[error("MAC {mac} is already that of VF {holder}; two VFs of one VLAN cannot share it")]
    DuplicateMac {
        /// The address.
        mac: lanekeeper_model::MacAddr,
        /// Who has it.
        holder: VfIndex,
    },
    /// The device did not answer in time.
    #[error("{pf} did not answer within {after:?}; it is treated as failed")]
    Deadline {
        /// Which PF.
        pf: PfId,
        /// How long was waited.
        after: Duration,
    },
    /// The device's own process refused; nothing was changed.
    #[error("{pf} refused: {message}")]
    Refused {
        /// Which PF.
        pf: PfId,
        /// Its reason.
        message: String,
    },
    /// The line to the device broke.
    #[error("cannot reach {pf}: {source}")]
    Io {
        /// Which PF.
        pf: PfId,
        /// What the system said.
        source: std::io::Error,
    },
}

/// One host's NICs, as a back end reaches them.
///
/// Every call has a deadline of its own inside the back end and returns
/// [`HardwareError::Deadline`] rather than block. Every set is all or nothing and answers with what
/// was read back afterwards, so that a caller compares rather than trusts.
pub trait Hardware: Send + Sync {
    /// Every PF this back end owns.
    ///
    /// # Errors
    /// [`HardwareError::Io`] and [`HardwareError::Deadline`].
    fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError>;

    /// One VF as it is now.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`], and those of [`Hardware::pfs`].
    fn vf(&self, pf: &PfId, vf: VfIndex) -> Result<VfStatus, HardwareError>;

    /// Change one VF. Traffic of other VFs is not disturbed.
    ///
    /// # Errors
    /// [`HardwareError::Invalid`], [`HardwareError::Unsupported`],
    /// [`HardwareError::DuplicateMac`], and those of [`Hardware::vf`]; the VF is then as before.
    fn set_vf(&self, pf: &PfId, vf: VfIndex, change: &VfChange) -> Result<VfStatus, HardwareError>;

    /// Counters of one VF.
    ///
    /// # Errors
    /// Those of [`Hardware::vf`].
    fn counters(&self, pf: &PfId, vf: VfIndex) -> Result<VfCounters, HardwareError>;

    /// Bring a VF to the fixed safe state.
    ///
    /// # Errors
    /// Those of [`Hardware::set_vf`].
    fn scrub(&self, pf: &PfId, vf: VfIndex) -> Result<VfStatus, HardwareError> {
        self.set_vf(pf, vf, &VfChange::to(&VfSettings::scrubbed()))
    }
}
