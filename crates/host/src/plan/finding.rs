//! What a plan's reader should know, and what stands in its way.

use lanekeeper_model::{EswitchMode, PfAddr, VfIndex};
use serde::{Deserialize, Serialize};

use crate::file::VF_LAG_LIMIT;
use crate::request::ClaimId;

/// Something that the reader should know of a PF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// Somebody else manages the PF's interface (systemd#37257, openshift/sriov-network-operator#414).
    #[error(
        "pf {pf}: {manager} manages {netdev} too and may undo what is set; mark it unmanaged there"
    )]
    ManagedBy {
        /// Our name for the PF.
        pf: String,
        /// Its interface.
        netdev: String,
        /// Who.
        manager: String,
    },
    /// The number of VFs or the switch's mode cannot change under owners.
    #[error("pf {pf}: {change} would take VFs from their owners: {}; release them first", owners(.owned))]
    VfsOwned {
        /// Our name for the PF.
        pf: String,
        /// What was to be changed.
        change: String,
        /// VFs and their claims.
        owned: Vec<(VfIndex, ClaimId)>,
    },
    /// Owners have a larger MTU.
    #[error("pf {pf}: {change} is less than its VFs' owners were given: {}; release them first", owners(.owned))]
    MtuInUse {
        /// Our name for the PF.
        pf: String,
        /// What was to be changed.
        change: String,
        /// VFs and their claims.
        owned: Vec<(VfIndex, ClaimId)>,
    },
    /// The name is that of another PF, which is here or has claims.
    #[error(
        "pf {pf}: another PF of ours has that name ({identity}); release its claims and give it back \
         first, or use another name"
    )]
    NameTaken {
        /// Our name for both.
        pf: String,
        /// What the other is known by.
        identity: String,
    },
    /// The same for VFs that are held by somebody the ledger does not know.
    #[error("pf {pf}: {change} would take VF {vf} from {command} (pid {pid}); end that first")]
    VfHeld {
        /// Our name for the PF.
        pf: String,
        /// What was to be changed.
        change: String,
        /// VF.
        vf: VfIndex,
        /// Process id.
        pid: u32,
        /// Process name.
        command: String,
    },
    /// A firmware change waits for a reset. It is reported, never acted on
    /// (openshift/sriov-network-operator#48).
    #[error("pf {pf}: {what} takes effect with the next reset or reboot")]
    FirmwarePending {
        /// Our name for the PF.
        pf: String,
        /// What.
        what: String,
    },
    /// Its firmware offers no VFs now (sriov-network-device-plugin#601).
    #[error(
        "pf {pf}: its firmware offers no VFs now; turn SR-IOV on there (mlxconfig SRIOV_EN=1, or \
         the card's setup menu) and restart the host"
    )]
    FirmwareOff {
        /// Our name for the PF.
        pf: String,
    },
    /// It can never have VFs.
    #[error("pf {pf}: the device has no SR-IOV; use vfs: 0, or another PF")]
    NeverCapable {
        /// Our name for the PF.
        pf: String,
    },
    /// More VFs than it can have.
    #[error("pf {pf}: vfs = {wanted}: it can have {most}; lower it, or raise the firmware's limit")]
    TooMany {
        /// Our name for the PF.
        pf: String,
        /// How many are wanted.
        wanted: u16,
        /// How many it can have.
        most: u16,
    },
    /// More VFs than a bond can share (ovs-tests).
    #[error(
        "pf {pf}: vfs = {wanted}: it is in {bond}, where VFs share ports only up to {VF_LAG_LIMIT}; lower it"
    )]
    VfLag {
        /// Our name for the PF.
        pf: String,
        /// Its bond.
        bond: String,
        /// How many are wanted.
        wanted: u16,
    },
    /// It has no interface here, so its VFs cannot be set.
    #[error(
        "pf {pf}: it has no interface in this network namespace (driver: {driver}); bind its driver, or bring it back"
    )]
    NoNetdev {
        /// Our name for the PF.
        pf: String,
        /// Its driver.
        driver: String,
    },
    /// Its driver has no embedded switch to set.
    #[error("pf {pf}: eswitch = {mode}: {driver} has no embedded switch to set; leave it out")]
    NoEswitch {
        /// Our name for the PF.
        pf: String,
        /// Mode wanted.
        mode: EswitchMode,
        /// Its driver.
        driver: String,
    },
    /// Its driver lacks something of the profile.
    #[error("pf {pf}: {driver} has no {setting} of the RoCE profile; it stays unset")]
    RoceLacks {
        /// Our name for the PF.
        pf: String,
        /// Its driver.
        driver: String,
        /// Kind of setting.
        setting: String,
    },
    /// Its driver is not in the table.
    #[error(
        "pf {pf}: nothing is known of driver {driver}; a common order is used, and what it refuses is learnt"
    )]
    UnknownDriver {
        /// Our name for the PF.
        pf: String,
        /// Its driver.
        driver: String,
    },
    /// A VF has an owner and is set otherwise, but cannot be put right while it is in use.
    #[error(
        "pf {pf}: VF {vf} has another MAC than its owner asked for, and a VM holds it; it is put right on release"
    )]
    DriftHeld {
        /// Our name for the PF.
        pf: String,
        /// VF.
        vf: VfIndex,
    },
    /// An earlier apply waits to be confirmed.
    #[error("pf {pf}: an earlier apply waits for its confirmation; confirm it or let it roll back")]
    Unconfirmed {
        /// Our name for the PF.
        pf: String,
    },
    /// No PF, or several, or one twice.
    #[error("{why}")]
    NotSelected {
        /// Our name for the PF.
        pf: String,
        /// Why, with candidates.
        why: String,
    },
    /// It cannot be read. The others go on.
    #[error("{address}: cannot be read: {why}")]
    Failed {
        /// Its address.
        address: PfAddr,
        /// Why.
        why: String,
    },
    /// Known from the ledger and no longer in the file.
    #[error("pf {pf}: it is ours and not in the file; it is left as it is until it is given back")]
    NotInFile {
        /// Our name for the PF.
        pf: String,
    },
    /// Something that the reading warns of.
    #[error("pf {pf}: {warning}")]
    Warning {
        /// Our name for the PF.
        pf: String,
        /// What.
        warning: String,
    },
}

fn owners(owned: &[(VfIndex, ClaimId)]) -> String {
    let owned: Vec<_> = owned.iter().map(|(vf, claim)| format!("VF {vf} ({claim})")).collect();
    owned.join(", ")
}

impl Finding {
    /// A plan with it is not carried out.
    pub fn blocks(&self) -> bool {
        !matches!(
            self,
            Self::ManagedBy { .. }
                | Self::FirmwarePending { .. }
                | Self::RoceLacks { .. }
                | Self::UnknownDriver { .. }
                | Self::DriftHeld { .. }
                | Self::Failed { .. }
                | Self::NotInFile { .. }
                | Self::Warning { .. }
        )
    }
}

impl Finding {
    /// The host is not as the file says, or cannot be told.
    pub(crate) fn is_drift(&self) -> bool {
        self.blocks() || matches!(self, Self::DriftHeld { .. } | Self::Failed { .. })
    }

    /// Our name for the PF that it is about.
    pub fn pf(&self) -> Option<String> {
        match self {
            Self::Failed { .. } => None,
            Self::ManagedBy { pf, .. }
            | Self::VfsOwned { pf, .. }
            | Self::MtuInUse { pf, .. }
            | Self::NameTaken { pf, .. }
            | Self::VfHeld { pf, .. }
            | Self::FirmwarePending { pf, .. }
            | Self::FirmwareOff { pf }
            | Self::NeverCapable { pf }
            | Self::TooMany { pf, .. }
            | Self::VfLag { pf, .. }
            | Self::NoNetdev { pf, .. }
            | Self::NoEswitch { pf, .. }
            | Self::RoceLacks { pf, .. }
            | Self::UnknownDriver { pf, .. }
            | Self::DriftHeld { pf, .. }
            | Self::Unconfirmed { pf }
            | Self::NotSelected { pf, .. }
            | Self::NotInFile { pf }
            | Self::Warning { pf, .. } => Some(pf.clone()),
        }
    }
}
