//! What a claim asks for, and what it gets.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use lanekeeper_model::{
    Guid, LinkState, MacAddr, Mbps, ModelError, Mtu, PciAddr, PfAddr, RateLimits, VfAddr, VfIndex,
    VfSettings, VlanTag,
};
use lanekeeper_topology::{Affinity, Distance, Strictness};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::HostError;
use crate::handover::HandOver;
use crate::ledger::Life;

/// What says that a claim is whose: 8 to 128 printable characters without spaces, chosen by the
/// owner. The ledger has only its hash; it is never logged.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerToken(String);

impl OwnerToken {
    /// A token for `of`, by a secret of its owner's: the same each time (SHA-256 of both, hexadecimal).
    pub fn derived(secret: &[u8], of: &str) -> Self {
        Self(hex(&Sha256::new().chain_update(secret).chain_update(of).finalize()))
    }

    /// What the ledger knows it by (SHA-256, hexadecimal).
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.0.as_bytes()))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl FromStr for OwnerToken {
    type Err = HostError;
    fn from_str(text: &str) -> Result<Self, HostError> {
        // Which character it is would tell of the secret.
        let strange = text.bytes().position(|c| !c.is_ascii_graphic());
        match strange {
            _ if !(8..=128).contains(&text.len()) => {
                Err(HostError::Token(format!("has {}", text.len())))
            }
            Some(at) => Err(HostError::Token(format!("has another as number {}", at + 1))),
            None => Ok(Self(text.to_owned())),
        }
    }
}

impl TryFrom<String> for OwnerToken {
    type Error = HostError;
    fn try_from(text: String) -> Result<Self, HostError> {
        text.parse()
    }
}

impl From<OwnerToken> for String {
    fn from(token: OwnerToken) -> Self {
        token.0
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(secret)")
    }
}

/// Name of a claim, as in `c-5f3a9c0e12b4d687`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimId(pub String);

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether, and how, a VM is to use RDMA over the VF.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RdmaNeed {
    /// By the NIC's own RDMA engine: the VF has a node GUID when it is handed over.
    Hardware,
    /// By the VM's kernel (`rdma_rxe`): any VF will do.
    Software,
    /// Not at all.
    #[default]
    None,
}

/// Driver that a VF is handed over with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DriverWanted {
    /// For a VM.
    #[default]
    VfioPci,
    /// The VF's own network driver, for use on this host.
    Kernel,
}

/// Where a VF is to be, and whether that must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffinityWanted {
    /// Where.
    pub to: Affinity,
    /// Strict refuses what is further away; preferred takes the nearest and says how far it is.
    #[serde(default)]
    pub strictness: Strictness,
}

/// What is known of the VM, for the checks before it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmFacts {
    /// Its RAM in bytes; with it, the memory that must be lockable is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How many devices it gets by VFIO, this one included; 0 counts as 1.
    #[serde(default)]
    pub devices: u32,
    /// It has an emulated IOMMU.
    #[serde(default)]
    pub viommu: bool,
    /// User id that its VMM runs as: what it takes for it to open the VF is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

/// What a claim asks for. What is not given comes from the host file's defaults.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Whose it will be. One token, one claim.
    pub token: OwnerToken,
    /// Pool to take a VF from; neither this nor `pf` is any VF of this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// PF to take a VF from, by our own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pf: Option<String>,
    /// Number of the VF, for who knows which one it is to be; it needs `pf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<VfIndex>,
    /// MAC; if not given one is drawn, once, locally administered, and kept with the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Access VLAN with priority and protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanTag>,
    /// Guaranteed rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<Mbps>,
    /// Ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<Mbps>,
    /// Trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Anti-spoof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Link state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<LinkState>,
    /// Addresses that the VF may speak for; only the software NIC can hold a VF to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// Node and port GUID; if not given and RDMA by hardware is needed, the driver's own or the
    /// MAC's EUI-64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guid: Option<Guid>,
    /// RDMA need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaNeed>,
    /// Where the VF is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<AffinityWanted>,
    /// Driver to hand it over with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverWanted>,
    /// What is known of the VM.
    #[serde(default)]
    pub vm: VmFacts,
}

impl ClaimRequest {
    /// What contradicts itself whichever VF it would be.
    pub(crate) fn check(&self) -> Result<(), HostError> {
        if let (Some(vf), None) = (self.vf, &self.pf) {
            return Err(HostError::VfOfNoPf(vf));
        }
        let zero = MacAddr::ZERO;
        match self.mac {
            Some(mac) if mac == zero && self.spoofchk != Some(false) => {
                return Err(ModelError::SpoofchkWithoutMac.into());
            }
            Some(mac) => drop(mac.station()?),
            None => {}
        }
        let rate = RateLimits {
            min: self.min_rate.unwrap_or_default(),
            max: self.max_rate.unwrap_or_default(),
        };
        let vlan = self.vlan.unwrap_or_default();
        Ok(VfSettings { rate, vlan, ..VfSettings::scrubbed() }.validate()?)
    }

    /// Any VF, with defaults throughout.
    pub fn new(token: OwnerToken) -> Self {
        Self {
            token,
            pool: None,
            pf: None,
            vf: None,
            mac: None,
            vlan: None,
            min_rate: None,
            max_rate: None,
            trust: None,
            spoofchk: None,
            link_state: None,
            addresses: Vec::new(),
            mtu: None,
            guid: None,
            rdma: None,
            affinity: None,
            driver: None,
            vm: VmFacts::default(),
        }
    }
}

/// A VF that is somebody's, with all that its hand-over to a VM needs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// Its name.
    pub id: ClaimId,
    /// Our name for the PF.
    pub pf: String,
    /// Where the PF is now.
    pub pf_address: PfAddr,
    /// Number of the VF.
    pub vf: VfIndex,
    /// Where the VF is now.
    pub address: VfAddr,
    /// State of the VF's life.
    pub life: Life,
    /// What is set on it, as read back.
    pub settings: VfSettings,
    /// Its node GUID, if it has one.
    pub guid: Option<Guid>,
    /// Driver that is bound to it.
    pub driver: Option<String>,
    /// IOMMU group and all its members.
    pub iommu_group: Option<u32>,
    /// Members of the group.
    pub group_members: Vec<PciAddr>,
    /// NUMA node of the PF.
    pub numa_node: Option<u32>,
    /// How far it is from what affinity asked for.
    pub distance: Option<Distance>,
    /// What a VMM needs.
    pub hand_over: HandOver,
    /// What the reader should know, in sentences.
    pub notes: Vec<String>,
}
