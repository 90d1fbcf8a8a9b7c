//! The hardware line. Above [`Hardware`] nobody opens a device; below it nobody decides.
//!
//! A back end obeys or refuses; it never reinterprets. The software NIC is one back end (in
//! `lanekeeper-softnic`), which is why the same request serves a host with an SR-IOV NIC and a
//! host without one.
#![forbid(unsafe_code)]

pub mod chaos;
pub mod fake;
pub mod guarded;
pub mod inventory;
pub mod linux;
pub mod message;
pub mod recorded;
pub mod watch;

use std::time::Duration;

use lanekeeper_model::{
    EswitchMode, LinkCounters, ModelError, Mtu, PfAddr, PfId, RoceSetting, VfAddr, VfChange,
    VfCounters, VfIndex, VfSettings, VfStatus,
};
use serde::{Deserialize, Serialize};

use inventory::{PciNode, PfReading, RepresentorState};
use message::VfMessage;

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

/// Which VFs a PF with this many has, in words.
pub fn vf_range(num_vfs: usize) -> String {
    match num_vfs {
        0 => "no VFs".to_owned(),
        1 => "VF 0 only".to_owned(),
        more => format!("VFs 0 to {}", more - 1),
    }
}

/// Where PFs of this kind are listed.
fn where_listed(pf: &PfId) -> &'static str {
    match pf {
        PfId::Pci(_) => "`lanekeeper host show` lists those of this host",
        PfId::Soft(_) => "`lanekeeper softnic show` lists those that run",
    }
}

/// Why a back end did not do what was asked. Nothing was changed when it says so.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// The request contradicts itself or is out of range.
    #[error(transparent)]
    Invalid(#[from] ModelError),
    /// There is no such PF.
    #[error("there is no PF {}; {}", .0, where_listed(.0))]
    NoPf(PfId),
    /// The PF exists, the VF does not.
    #[error("{pf} has no VF {vf}; it has {}", vf_range(*num_vfs))]
    NoVf {
        /// Which PF.
        pf: PfId,
        /// Which VF was asked for.
        vf: VfIndex,
        /// How many there are.
        num_vfs: usize,
    },
    /// This back end cannot do this at all.
    #[error(
        "{driver} cannot {what}{}; {instead}",
        .said.as_ref().map(|said| format!(" ({said})")).unwrap_or_default()
    )]
    Unsupported {
        /// Driver that refuses.
        driver: String,
        /// What was asked, as in "set trust on a VF".
        what: String,
        /// Why, in the kernel's own words, if it had any (extended acknowledgement).
        said: Option<String>,
        /// What to do instead.
        instead: String,
    },
    /// The kernel, a driver or its firmware refused.
    #[error("{pf}: cannot {doing}: {source}{}", .hint.map(|hint| format!("; {hint}")).unwrap_or_default())]
    Kernel {
        /// Which PF.
        pf: PfId,
        /// What was being done, as in "set VLAN 7 on VF 3".
        doing: String,
        /// The errno, and what the kernel said beside it if it did (extended acknowledgement).
        source: std::io::Error,
        /// What the reader should do about it.
        hint: Option<&'static str>,
    },
    /// Two VFs of one VLAN would have the same address.
    #[error("MAC {mac} is already that of VF {holder}; two VFs of one VLAN cannot share it")]
    DuplicateMac {
        /// The address.
        mac: lanekeeper_model::MacAddr,
        /// Who has it.
        holder: VfIndex,
    },
    /// The PF did not answer in time, or has a call outstanding that did not.
    #[error("{pf} did not answer within {after:?}; it is treated as failed until it does")]
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
    /// Something of the host that is no PF's could not be read.
    #[error("cannot read {what}: {source}")]
    Host {
        /// What was read.
        what: String,
        /// What the system said.
        source: std::io::Error,
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

/// A host with SR-IOV NICs: [`Hardware`] for a VF's settings, and under it every single step that
/// the kernel offers. A step is one write or one read; it is done or refused, and nothing is decided
/// here. What the order of steps must be is for the room above.
///
/// Numbers and names in a reading are of now: they are looked up again by each call.
pub trait SriovHardware: Send + Sync {
    /// Addresses of all PFs that could have VFs. Reads no device, so that one that hangs does not
    /// hide the others.
    ///
    /// # Errors
    /// [`HardwareError::Host`].
    fn list(&self) -> Result<Vec<PfAddr>, HardwareError>;

    /// Everything of one PF and its VFs.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`] once it is gone, [`HardwareError::Deadline`],
    /// [`HardwareError::Kernel`].
    fn read(&self, pf: PfAddr) -> Result<PfReading, HardwareError>;

    /// The PCIe tree: every bridge, NIC and GPU.
    ///
    /// # Errors
    /// [`HardwareError::Host`].
    fn pci_tree(&self) -> Result<Vec<PciNode>, HardwareError>;

    /// Write `sriov_numvfs`, once. The kernel takes 0 to N and N to 0 only.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`]; among [`HardwareError::Kernel`] are `EBUSY` for N to M, and
    /// `ENOMEM` when the platform has no room for the VFs' registers.
    fn write_num_vfs(&self, pf: PfAddr, count: u16) -> Result<(), HardwareError>;

    /// Write `sriov_drivers_autoprobe`.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`].
    fn write_autoprobe(&self, pf: PfAddr, on: bool) -> Result<(), HardwareError>;

    /// Set the PF's interface up or down.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`].
    fn set_up(&self, pf: PfAddr, up: bool) -> Result<(), HardwareError>;

    /// Set the mode of the embedded switch.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`], and [`HardwareError::Unsupported`].
    fn set_eswitch(&self, pf: PfAddr, mode: EswitchMode) -> Result<(), HardwareError>;

    /// Send one message for one VF. What comes before a refused attribute stays set.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`], [`HardwareError::NoVf`], and
    /// [`HardwareError::Unsupported`] for a knob that the driver or its mode lacks.
    fn send_vf(&self, pf: PfAddr, vf: VfIndex, message: &VfMessage) -> Result<(), HardwareError>;

    /// Set the MTU of a VF's own interface on this host.
    ///
    /// # Errors
    /// Those of [`SriovHardware::send_vf`]; [`HardwareError::Unsupported`] while it has none.
    fn set_vf_mtu(&self, pf: PfAddr, vf: VfIndex, mtu: Mtu) -> Result<(), HardwareError>;

    /// Set a VF's representor up or down and its MTU, in one message: in switchdev mode what a VF's
    /// link does is the representor's to say.
    ///
    /// # Errors
    /// Those of [`SriovHardware::send_vf`]; [`HardwareError::Unsupported`] while it has none.
    fn set_representor(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        state: RepresentorState,
    ) -> Result<(), HardwareError>;

    /// Counters of one VF as its PF sees it.
    ///
    /// # Errors
    /// Those of [`SriovHardware::send_vf`].
    fn vf_counters(&self, pf: PfAddr, vf: VfIndex) -> Result<VfCounters, HardwareError>;

    /// Pause frames that the PF was sent since its driver started, by priority (priority flow
    /// control, IEEE 802.1Q-2018, 36). `None` from a driver that does not count them.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`].
    fn pause_frames(&self, pf: PfAddr) -> Result<Option<[u64; 8]>, HardwareError> {
        let _ = pf;
        Ok(None)
    }

    /// Say which driver alone may bind to a VF; `None` for any that knows it.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`]; `vf` must be one of `pf`'s.
    fn write_driver_override(
        &self,
        pf: PfAddr,
        vf: VfAddr,
        driver: Option<&str>,
    ) -> Result<(), HardwareError>;

    /// Take a VF from its driver; nothing to do if it has none. May take as long as the driver
    /// does: VFIO waits for whoever holds the device.
    ///
    /// # Errors
    /// Those of [`SriovHardware::write_driver_override`].
    fn unbind(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError>;

    /// Have the kernel look for a driver for a VF that has none. That none is found is no error:
    /// what was bound is read afterwards.
    ///
    /// # Errors
    /// Those of [`SriovHardware::write_driver_override`].
    fn probe(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError>;

    /// Function level reset of a VF.
    ///
    /// # Errors
    /// Those of [`SriovHardware::write_driver_override`].
    fn reset(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError>;

    /// Set one thing of the RoCE profile.
    ///
    /// # Errors
    /// Those of [`SriovHardware::read`], and [`HardwareError::Unsupported`].
    fn set_roce(&self, pf: PfAddr, setting: &RoceSetting) -> Result<(), HardwareError>;
}
