//! Quantities with their unit and range in the type: VLAN ids, priorities, rates, MTUs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{MAX_FRAME, ModelError};

/// A VLAN id: `0` means "no VLAN", `1..=4094` are VLANs (IEEE 802.1Q-2022, table 9-2).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(try_from = "u32", into = "u32")]
pub struct VlanId(u16);

impl VlanId {
    /// No VLAN: untagged.
    pub const NONE: Self = Self(0);

    /// A VLAN id.
    ///
    /// # Errors
    /// [`ModelError::Vlan`] from 4095 up.
    pub fn new(id: u32) -> Result<Self, ModelError> {
        if id <= 4094 { Ok(Self(id as u16)) } else { Err(ModelError::Vlan(id)) }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether this is a VLAN at all.
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u32> for VlanId {
    type Error = ModelError;
    fn try_from(id: u32) -> Result<Self, ModelError> {
        Self::new(id)
    }
}

impl From<VlanId> for u32 {
    fn from(id: VlanId) -> Self {
        u32::from(id.0)
    }
}

/// Priority code point of a VLAN tag, `0..=7` (IEEE 802.1Q-2022, 6.9.3).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(try_from = "u32", into = "u32")]
pub struct Pcp(u8);

impl Pcp {
    /// A priority.
    ///
    /// # Errors
    /// [`ModelError::Pcp`] from 8 up.
    pub fn new(pcp: u32) -> Result<Self, ModelError> {
        if pcp <= 7 { Ok(Self(pcp as u8)) } else { Err(ModelError::Pcp(pcp)) }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Pcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u32> for Pcp {
    type Error = ModelError;
    fn try_from(pcp: u32) -> Result<Self, ModelError> {
        Self::new(pcp)
    }
}

impl From<Pcp> for u32 {
    fn from(pcp: Pcp) -> Self {
        u32::from(pcp.0)
    }
}

/// Which Ethertype a VLAN tag is written with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// Customer tag, Ethertype 0x8100.
    #[default]
    #[serde(rename = "802.1Q")]
    Dot1Q,
    /// Service tag, Ethertype 0x88a8.
    #[serde(rename = "802.1ad")]
    Dot1Ad,
}

impl VlanProtocol {
    /// The tag's Ethertype.
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::Dot1Q => 0x8100,
            Self::Dot1Ad => 0x88a8,
        }
    }
}

impl fmt::Display for VlanProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dot1Q => "802.1Q",
            Self::Dot1Ad => "802.1ad",
        })
    }
}

impl FromStr for VlanProtocol {
    type Err = ModelError;
    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text.to_ascii_lowercase().as_str() {
            "802.1q" => Ok(Self::Dot1Q),
            "802.1ad" => Ok(Self::Dot1Ad),
            _ => Err(ModelError::VlanProtocol(text.to_owned())),
        }
    }
}

/// The access tag of a VF: put on what leaves by the uplink, taken off what reaches the VF.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VlanTag {
    /// VLAN, 0 for none.
    pub id: VlanId,
    /// Priority written into the tag.
    #[serde(default)]
    pub pcp: Pcp,
    /// Kind of tag.
    #[serde(default)]
    pub protocol: VlanProtocol,
}

impl VlanTag {
    /// Tag control information: PCP in bits 15..13, DEI 0, VLAN id in bits 11..0.
    pub const fn tci(self) -> u16 {
        ((self.pcp.0 as u16) << 13) | self.id.0
    }

    /// Whether the fields agree with each other: without a VLAN there is no tag that could carry a
    /// priority or be of some kind.
    ///
    /// # Errors
    /// [`ModelError::PcpWithoutVlan`] and [`ModelError::ProtocolWithoutVlan`].
    pub fn validate(self) -> Result<(), ModelError> {
        match self {
            Self { id, .. } if id.is_some() => Ok(()),
            Self { pcp, .. } if pcp != Pcp::default() => Err(ModelError::PcpWithoutVlan(pcp)),
            Self { protocol, .. } if protocol != VlanProtocol::default() => {
                Err(ModelError::ProtocolWithoutVlan(protocol))
            }
            _ => Ok(()),
        }
    }
}

/// A change to an access tag: each `None` leaves that field as it is, but for VLAN 0, which takes
/// the whole tag away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, as in { id = 100 }")]
pub struct VlanChange {
    /// New VLAN; 0 takes the tag away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<VlanId>,
    /// New priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcp: Option<Pcp>,
    /// New kind of tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<VlanProtocol>,
}

impl VlanChange {
    /// The tag after this change.
    pub fn apply_to(self, current: VlanTag) -> VlanTag {
        let base = match self.id {
            Some(VlanId::NONE) => VlanTag::default(),
            _ => current,
        };
        VlanTag {
            id: self.id.unwrap_or(base.id),
            pcp: self.pcp.unwrap_or(base.pcp),
            protocol: self.protocol.unwrap_or(base.protocol),
        }
    }
}

/// The change that brings any VF to exactly this tag.
impl From<VlanTag> for VlanChange {
    fn from(VlanTag { id, pcp, protocol }: VlanTag) -> Self {
        Self { id: Some(id), pcp: Some(pcp), protocol: Some(protocol) }
    }
}

/// A rate in megabits (10^6 bits) a second; `0` means "no limit" or "no guarantee", as in the
/// kernel's `IFLA_VF_RATE`.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
pub struct Mbps(pub u32);

impl Mbps {
    /// Bytes a second.
    pub const fn bytes_per_second(self) -> u64 {
        self.0 as u64 * 125_000
    }
}

impl fmt::Display for Mbps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Largest layer-3 packet, in bytes, `68..=9202`: with its 14-byte Ethernet header the frame
/// reaches [`MAX_FRAME`]. The lower bound is IPv4's (RFC 791).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Mtu(u16);

impl Mtu {
    /// Smallest MTU.
    pub const MIN: u32 = 68;
    /// Largest MTU.
    pub const MAX: u32 = MAX_FRAME as u32 - 14;
    /// Ethernet's own.
    pub const ETHERNET: Self = Self(1500);

    /// An MTU.
    ///
    /// # Errors
    /// [`ModelError::Mtu`] outside `68..=9202`.
    pub fn new(bytes: u32) -> Result<Self, ModelError> {
        if (Self::MIN..=Self::MAX).contains(&bytes) {
            Ok(Self(bytes as u16))
        } else {
            Err(ModelError::Mtu(bytes))
        }
    }

    /// Bytes.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Mtu {
    fn default() -> Self {
        Self::ETHERNET
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u32> for Mtu {
    type Error = ModelError;
    fn try_from(bytes: u32) -> Result<Self, ModelError> {
        Self::new(bytes)
    }
}

impl From<Mtu> for u32 {
    fn from(mtu: Mtu) -> Self {
        u32::from(mtu.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserved_vlan_is_refused() {
        assert!(VlanId::new(4094).is_ok());
        assert_eq!(VlanId::new(4095), Err(ModelError::Vlan(4095)));
    }

    #[test]
    fn a_tag_is_written_as_8021q_lays_it_out() {
        let tag = VlanTag {
            id: VlanId::new(0x123).expect("valid"),
            pcp: Pcp::new(5).expect("valid"),
            protocol: VlanProtocol::Dot1Q,
        };
        assert_eq!(tag.tci(), 0xa123);
    }

    #[test]
    fn a_change_of_vlan_keeps_priority_and_kind_unless_it_names_them() {
        let id = |id| VlanId::new(id).expect("valid");
        let pcp = |pcp| Pcp::new(pcp).expect("valid");
        let tag = VlanTag { id: id(100), pcp: pcp(3), protocol: VlanProtocol::Dot1Ad };
        let other = VlanChange { id: Some(id(200)), ..VlanChange::default() };
        assert_eq!(other.apply_to(tag), VlanTag { id: id(200), ..tag });
        let urgent = VlanChange { pcp: Some(pcp(7)), ..VlanChange::default() };
        assert_eq!(urgent.apply_to(tag), VlanTag { pcp: pcp(7), ..tag });
        let customer = VlanChange { protocol: Some(VlanProtocol::Dot1Q), ..VlanChange::default() };
        assert_eq!(customer.apply_to(tag), VlanTag { protocol: VlanProtocol::Dot1Q, ..tag });
        let whole = VlanTag { id: id(1), ..VlanTag::default() };
        assert_eq!(VlanChange::from(whole).apply_to(tag), whole);
    }

    #[test]
    fn vlan_0_takes_the_whole_tag_away_and_nothing_can_be_said_of_no_tag() {
        let pcp = Pcp::new(3).expect("valid");
        let tag =
            VlanTag { id: VlanId::new(9).expect("valid"), pcp, protocol: VlanProtocol::Dot1Ad };
        let none = VlanChange { id: Some(VlanId::NONE), ..VlanChange::default() };
        assert_eq!(none.apply_to(tag), VlanTag::default());
        assert_eq!(none.apply_to(tag).validate(), Ok(()));
        let urgent = VlanChange { pcp: Some(pcp), ..none }.apply_to(tag);
        assert_eq!(urgent.validate(), Err(ModelError::PcpWithoutVlan(pcp)));
        let service = VlanChange { protocol: Some(VlanProtocol::Dot1Ad), ..none }.apply_to(tag);
        assert_eq!(service.validate(), Err(ModelError::ProtocolWithoutVlan(VlanProtocol::Dot1Ad)));
    }

    #[test]
    fn the_largest_mtu_fills_the_largest_frame() {
        assert_eq!(Mtu::MAX as usize + 14, MAX_FRAME);
        assert!(Mtu::new(9203).is_err());
        assert!(Mtu::new(67).is_err());
    }

    #[test]
    fn an_unknown_field_in_a_tag_is_an_error() {
        let error = serde_json::from_str::<VlanTag>(r#"{"id": 5, "qos": 3}"#).expect_err("typo");
        assert!(error.to_string().contains("qos"), "{error}");
    }
}
