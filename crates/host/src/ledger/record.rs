//! What the ledger knows of one PF: who it is, what it was before us, what it should be, whose its
//! VFs are and where each stands in its life.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use lanekeeper_hw::inventory::{PfReading, RepresentorState};
use lanekeeper_model::{EswitchMode, Guid, MacAddr, Mtu, PfAddr, RoceSetting, VfIndex, VfSettings};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::drivers::Knob;
use crate::file::{ClaimDefaults, PfWanted, RoceProfile};
use crate::request::{ClaimId, DriverWanted, RdmaNeed, hex};
use crate::snapshot::PfSnapshot;

/// What a PF is known by. Names, addresses and numbers move between boots and serials repeat, so
/// it is these three together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The address that was burnt in.
    pub permanent_mac: Option<MacAddr>,
    /// Label of the physical slot.
    pub slot: Option<String>,
    /// Node GUID of its RDMA device.
    pub guid: Option<Guid>,
}

impl Identity {
    /// Of a PF as read; `None` if it has nothing that stays.
    pub fn of(pf: &PfReading) -> Option<Self> {
        let identity = Self {
            permanent_mac: pf.permanent_mac.filter(|mac| !mac.is_zero()),
            slot: pf.slot.clone(),
            guid: crate::file::guid_of(pf),
        };
        (identity.permanent_mac.is_some() || identity.guid.is_some()).then_some(identity)
    }

    /// Whether both can be one PF: something that stays is the same, and nothing contradicts. A
    /// part that is unknown on one side does not: the RDMA module may not be loaded yet.
    pub fn is(&self, other: &Self) -> bool {
        fn agree<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> Option<bool> {
            Some(a? == b?)
        }
        let mac = agree(self.permanent_mac.as_ref(), other.permanent_mac.as_ref());
        let guid = agree(self.guid.as_ref(), other.guid.as_ref());
        let slot = agree(self.slot.as_ref(), other.slot.as_ref());
        let contradicts = [mac, guid, slot].contains(&Some(false));
        !contradicts && (mac == Some(true) || guid == Some(true))
    }

    /// Take over what was not known before.
    pub fn learn(&mut self, other: &Self) {
        self.permanent_mac = self.permanent_mac.or(other.permanent_mac);
        self.guid = self.guid.or(other.guid);
        if self.slot.is_none() {
            self.slot.clone_from(&other.slot);
        }
    }

    pub(super) fn file_key(&self) -> String {
        let text = self.to_string();
        let digest = hex(&Sha256::digest(text.as_bytes())[..4]);
        let readable: String = text.chars().filter(char::is_ascii_alphanumeric).take(48).collect();
        format!("pf-{readable}-{digest}")
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.permanent_mac.map(|mac| format!("MAC {mac}")));
        parts.extend(self.slot.as_ref().map(|slot| format!("slot {slot}")));
        parts.extend(self.guid.map(|guid| format!("GUID {guid}")));
        f.write_str(&parts.join(", "))
    }
}

/// Where a VF stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// It should exist and does not.
    Absent,
    /// Nobody's, and scrubbed.
    Free,
    /// Somebody's by the ledger; the device may have been touched.
    Claimed,
    /// Its settings were written and read back.
    Configured,
    /// Its driver is bound: it can be handed over.
    Bound,
    /// A VMM has it.
    Attached,
    /// A VMM was asked to give it back.
    Detaching,
    /// It is being brought to the safe state.
    Scrubbing,
    /// Not to be used, and why.
    Quarantined {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("absent"),
            Self::Free => f.write_str("free"),
            Self::Claimed => f.write_str("claimed"),
            Self::Configured => f.write_str("configured"),
            Self::Bound => f.write_str("bound"),
            Self::Attached => f.write_str("attached"),
            Self::Detaching => f.write_str("detaching"),
            Self::Scrubbing => f.write_str("scrubbing"),
            Self::Quarantined { reason } => write!(f, "quarantined: {reason}"),
        }
    }
}

/// What a VF had before a claim touched it. Written once, kept until it is given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VfOriginal {
    /// Driver that was bound.
    pub driver: Option<String>,
    /// Driver that alone could bind.
    pub driver_override: Option<String>,
    /// How its representor was set.
    pub representor: Option<RepresentorState>,
}

/// One VF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VfRecord {
    /// Where it stands.
    pub life: Life,
    /// What it had before the claim that it has now, or that left it dirty.
    pub original: Option<VfOriginal>,
    /// Address that a scrubbed VF keeps because its driver takes no zero one back.
    pub parked_mac: Option<MacAddr>,
    /// How its last function reset went.
    pub last_reset: Option<String>,
}

impl VfRecord {
    pub(crate) fn absent() -> Self {
        Self { life: Life::Absent, ..Self::free() }
    }

    pub(crate) fn free() -> Self {
        Self { life: Life::Free, original: None, parked_mac: None, last_reset: None }
    }
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRecord {
    /// Hash of the owner token.
    pub token: String,
    /// The request without its token, to compare a second one with.
    pub request: serde_json::Value,
    /// Which VF.
    pub vf: VfIndex,
    /// Settings wanted, with the MAC that was given or drawn.
    pub settings: VfSettings,
    /// GUID wanted.
    pub guid: Option<Guid>,
    /// RDMA need.
    pub rdma: RdmaNeed,
    /// Driver to hand over with.
    pub driver: DriverWanted,
    /// It was ready once, so its owner counts on it: it is made ready again, never undone.
    pub handed_over: bool,
    /// Why the VF is not to be had now, as after a hot removal.
    pub lost: Option<String>,
}

/// What an apply reached, so that it can be reached again without the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PfTarget {
    /// How many VFs.
    pub vfs: u16,
    /// Mode of the embedded switch.
    pub eswitch: Option<EswitchMode>,
    /// MTU.
    pub mtu: Option<Mtu>,
    /// RoCE settings, in the order to make them.
    pub roce: Vec<RoceSetting>,
    /// Pools.
    pub pools: Vec<String>,
    /// What a claim gets that does not say otherwise.
    pub defaults: ClaimDefaults,
}

impl PfTarget {
    /// What an entry of the file comes to.
    pub fn of(pf: &PfWanted, profile: Option<&RoceProfile>, defaults: &ClaimDefaults) -> Self {
        let mut roce = profile.map(RoceProfile::settings).unwrap_or_default();
        let of_profile = profile.and_then(|profile| profile.mtu);
        roce.retain(|setting| !matches!(setting, RoceSetting::Mtu(_)));
        Self {
            vfs: pf.vfs,
            eswitch: pf.eswitch,
            mtu: pf.mtu.or(of_profile),
            roce,
            pools: pf.pools.clone(),
            defaults: defaults.clone(),
        }
    }
}

/// What is being done to a PF as a whole. A VF's own is told by its [`Life`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// It is being changed; what it was is what the way back leads to.
    Apply {
        /// The PF before the first write.
        before: PfSnapshot,
    },
}

/// An apply that is rolled back unless it is confirmed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unconfirmed {
    /// When it is rolled back.
    pub until: SystemTime,
    /// How long it had when that was written: a clock that went back gives it no more.
    pub within: Duration,
    /// The PF before it.
    pub before: PfSnapshot,
    /// The target before it.
    pub target: Option<PfTarget>,
    /// The VFs' records before it.
    pub vfs: BTreeMap<VfIndex, VfRecord>,
}

impl Unconfirmed {
    /// Time until it is rolled back; `None` if the clock went back since that was written.
    pub fn left(&self, now: SystemTime) -> Option<Duration> {
        let left = self.until.duration_since(now).unwrap_or_default();
        (left <= self.within).then_some(left)
    }
}

/// One PF.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PfRecord {
    /// Version of the schema.
    pub version: u32,
    /// Which PF.
    pub identity: Identity,
    /// Our own name for it.
    pub name: String,
    /// Where it was last; only a hint.
    pub last_address: PfAddr,
    /// What it should be; `None` until an apply succeeded.
    pub target: Option<PfTarget>,
    /// What it was before we touched it. Written once.
    pub original: Option<PfSnapshot>,
    /// Its VFs.
    pub vfs: BTreeMap<VfIndex, VfRecord>,
    /// Its claims.
    pub claims: BTreeMap<ClaimId, ClaimRecord>,
    /// What is being done.
    pub intent: Option<Intent>,
    /// What waits to be confirmed.
    pub unconfirmed: Option<Unconfirmed>,
    /// When the last apply was rolled back, if nobody confirmed it in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<SystemTime>,
    /// Knobs that its driver turned out not to have.
    pub lacks: BTreeSet<Knob>,
}

impl PfRecord {
    /// A PF that nothing was done to yet.
    pub fn new(identity: Identity, name: &str, address: PfAddr) -> Self {
        Self {
            version: super::VERSION,
            identity,
            name: name.to_owned(),
            last_address: address,
            target: None,
            original: None,
            vfs: BTreeMap::new(),
            claims: BTreeMap::new(),
            intent: None,
            unconfirmed: None,
            rolled_back: None,
            lacks: BTreeSet::new(),
        }
    }

    /// Whose a VF is.
    pub fn owner_of(&self, vf: VfIndex) -> Option<(&ClaimId, &ClaimRecord)> {
        self.claims.iter().find(|(_, claim)| claim.vf == vf)
    }

    /// The claim that a token has.
    pub fn claim_of(&self, token: &str) -> Option<(&ClaimId, &ClaimRecord)> {
        self.claims.iter().find(|(_, claim)| claim.token == token)
    }

    /// VFs that nobody has.
    pub fn free_vfs(&self) -> impl Iterator<Item = VfIndex> {
        self.vfs
            .iter()
            .filter(|(vf, record)| record.life == Life::Free && self.owner_of(**vf).is_none())
            .map(|(vf, _)| *vf)
    }

    /// Work on it was cut short.
    pub fn is_cut_short(&self) -> bool {
        let mid_life =
            |vf: &VfRecord| matches!(vf.life, Life::Claimed | Life::Configured | Life::Scrubbing);
        self.intent.is_some() || self.vfs.values().any(mid_life)
    }

    /// What no record that we wrote can have.
    pub(super) fn contradiction(&self) -> Option<String> {
        let mut seen = BTreeSet::new();
        for (id, claim) in &self.claims {
            if !seen.insert(claim.vf) {
                return Some(format!("VF {} has two owners", claim.vf));
            }
            match self.vfs.get(&claim.vf) {
                None => return Some(format!("claim {id} is of VF {}, not listed", claim.vf)),
                Some(vf) if vf.life == Life::Free => {
                    return Some(format!("VF {} is free and has claim {id}", claim.vf));
                }
                Some(_) => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(mac: Option<u8>, slot: Option<&str>, guid: Option<u64>) -> Identity {
        Identity {
            permanent_mac: mac.map(|last| MacAddr([0, 0, 0, 0, 0, last])),
            slot: slot.map(str::to_owned),
            guid: guid.map(Guid),
        }
    }

    #[test]
    fn a_part_that_is_not_known_yet_does_not_make_another_pf() {
        let without_rdma = identity(Some(1), Some("3"), None);
        assert!(without_rdma.is(&identity(Some(1), Some("3"), Some(7))));
        assert!(!without_rdma.is(&identity(Some(1), Some("4"), None)), "a twin in another slot");
        assert!(!without_rdma.is(&identity(Some(2), Some("3"), None)), "another card in its slot");
        assert!(!without_rdma.is(&identity(None, Some("3"), None)), "a slot alone is no identity");
    }

    #[test]
    fn pfs_with_one_mac_in_two_slots_have_two_files() {
        let keys = ["3/1", "3_1", "31"].map(|slot| identity(Some(1), Some(slot), None).file_key());
        assert_eq!(BTreeSet::from(keys.clone()).len(), 3, "{keys:?}");
    }
}
