//! What can be set on a VF, and a change to it in which "not mentioned" differs from "none".

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{MacAddr, Mbps, ModelError, Mtu, VfIndex, VlanChange, VlanTag};

/// Administrative link state of a VF (`IFLA_VF_LINK_STATE`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Follows the uplink; on a NIC without one, up.
    #[default]
    Auto,
    /// Up whatever the uplink does, so that VFs of one host still reach each other.
    Enable,
    /// Down: nothing passes in either direction.
    Disable,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Enable => "enable",
            Self::Disable => "disable",
        })
    }
}

impl FromStr for LinkState {
    type Err = ModelError;
    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "auto" => Ok(Self::Auto),
            "enable" => Ok(Self::Enable),
            "disable" => Ok(Self::Disable),
            _ => Err(ModelError::LinkState(text.to_owned())),
        }
    }
}

/// Guaranteed and greatest rate of what a VF sends. They travel together because the kernel's
/// message carries both: setting one alone would clear the other (LP#1962844).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimits {
    /// Guaranteed rate, 0 for none.
    #[serde(default)]
    pub min: Mbps,
    /// Ceiling, 0 for none.
    #[serde(default)]
    pub max: Mbps,
}

/// Everything that is set on a VF.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VfSettings {
    /// Administrative MAC; zero when none was set.
    pub mac: MacAddr,
    /// Access VLAN.
    pub vlan: VlanTag,
    /// Drop frames whose source is not this VF's MAC (or, when bound, IP) address.
    pub spoofchk: bool,
    /// Addresses the VF may speak for in IP, ARP and ND; empty means any.
    pub addresses: Vec<IpAddr>,
    /// The VM may use further MACs, promiscuous mode and its own VLAN tags.
    pub trust: bool,
    /// Administrative link state.
    pub link_state: LinkState,
    /// Rates.
    pub rate: RateLimits,
    /// Largest packet.
    pub mtu: Mtu,
}

impl VfSettings {
    /// The fixed safe state that scrubbing brings a VF to: no MAC, no VLAN, not trusted, link
    /// disabled, so that nothing can be sent or received before it is claimed.
    pub fn scrubbed() -> Self {
        Self {
            mac: MacAddr::ZERO,
            vlan: VlanTag::default(),
            spoofchk: false,
            addresses: Vec::new(),
            trust: false,
            link_state: LinkState::Disable,
            rate: RateLimits::default(),
            mtu: Mtu::default(),
        }
    }

    /// A VF ready to be used with this address: anti-spoof on, everything else at its default.
    ///
    /// # Errors
    /// [`ModelError::NotUnicast`] if the address cannot be a station's own.
    pub fn for_mac(mac: MacAddr) -> Result<Self, ModelError> {
        Ok(Self {
            mac: mac.station()?,
            spoofchk: true,
            link_state: LinkState::Auto,
            ..Self::scrubbed()
        })
    }

    /// Whether the settings agree with each other.
    ///
    /// # Errors
    /// The first contradiction, as [`ModelError`].
    pub fn validate(&self) -> Result<(), ModelError> {
        if self.mac.is_multicast() {
            return Err(ModelError::NotUnicast(self.mac));
        }
        if self.spoofchk && self.mac.is_zero() {
            return Err(ModelError::SpoofchkWithoutMac);
        }
        if !self.addresses.is_empty() && !self.spoofchk {
            return Err(ModelError::AddressesWithoutSpoofchk);
        }
        self.vlan.validate()?;
        let RateLimits { min, max } = self.rate;
        if max.0 != 0 && min > max {
            return Err(ModelError::Rates { min, max });
        }
        Ok(())
    }

    /// Names of the settings in which `other` is not the same, in the order of the fields.
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        let compared = [
            ("mac", self.mac != other.mac),
            ("vlan", self.vlan != other.vlan),
            ("spoofchk", self.spoofchk != other.spoofchk),
            ("addresses", self.addresses != other.addresses),
            ("trust", self.trust != other.trust),
            ("link_state", self.link_state != other.link_state),
            ("min_rate", self.rate.min != other.rate.min),
            ("max_rate", self.rate.max != other.rate.max),
            ("mtu", self.mtu != other.mtu),
        ];
        compared.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }
}

/// An IP address that a VF may speak for, as users write it.
///
/// # Errors
/// [`ModelError::Address`], also for an address with a prefix length: what is bound is one station's
/// address, not a network.
pub fn parse_address(text: &str) -> Result<IpAddr, ModelError> {
    text.trim().parse().map_err(|_| ModelError::Address(text.trim().to_owned()))
}

fn addresses<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<IpAddr>>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let parsed = texts.iter().map(|text| parse_address(text)).collect::<Result<_, _>>();
    parsed.map(Some).map_err(serde::de::Error::custom)
}

/// A change to a VF: each `None` leaves that setting as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of settings")]
pub struct VfChange {
    /// New MAC; zero takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// What is new about the access tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanChange>,
    /// Anti-spoof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Bound addresses; an empty list unbinds.
    #[serde(default, deserialize_with = "addresses", skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<IpAddr>>,
    /// Trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Link state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<LinkState>,
    /// New guaranteed rate; the ceiling stays unless it is given too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<Mbps>,
    /// New ceiling; the guarantee stays unless it is given too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<Mbps>,
    /// MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
}

impl VfChange {
    /// The change that brings any VF to exactly `settings`.
    pub fn to(settings: &VfSettings) -> Self {
        Self {
            mac: Some(settings.mac),
            vlan: Some(settings.vlan.into()),
            spoofchk: Some(settings.spoofchk),
            addresses: Some(settings.addresses.clone()),
            trust: Some(settings.trust),
            link_state: Some(settings.link_state),
            min_rate: Some(settings.rate.min),
            max_rate: Some(settings.rate.max),
            mtu: Some(settings.mtu),
        }
    }

    /// The settings after this change.
    ///
    /// # Errors
    /// [`ModelError`] if the result would contradict itself; `current` is then what still holds.
    pub fn apply_to(&self, current: &VfSettings) -> Result<VfSettings, ModelError> {
        let next = VfSettings {
            mac: self.mac.unwrap_or(current.mac),
            vlan: self.vlan.map_or(current.vlan, |change| change.apply_to(current.vlan)),
            spoofchk: self.spoofchk.unwrap_or(current.spoofchk),
            addresses: self.addresses.clone().unwrap_or_else(|| current.addresses.clone()),
            trust: self.trust.unwrap_or(current.trust),
            link_state: self.link_state.unwrap_or(current.link_state),
            rate: RateLimits {
                min: self.min_rate.unwrap_or(current.rate.min),
                max: self.max_rate.unwrap_or(current.rate.max),
            },
            mtu: self.mtu.unwrap_or(current.mtu),
        };
        next.validate()?;
        Ok(next)
    }
}

/// What a back end reads of one VF.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VfStatus {
    /// Which VF.
    pub vf: VfIndex,
    /// What is set on it.
    pub settings: VfSettings,
    /// Whether frames can pass now.
    pub link_up: bool,
    /// A driver (in a VM or in user space) has its rings attached.
    pub attached: bool,
    /// Why the VF was stopped, if it was; it passes nothing until its driver attaches anew.
    pub stopped: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac() -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 1])
    }

    #[test]
    fn a_scrubbed_vf_is_valid_and_passes_nothing() {
        let settings = VfSettings::scrubbed();
        assert_eq!(settings.validate(), Ok(()));
        assert_eq!(settings.link_state, LinkState::Disable);
    }

    #[test]
    fn changing_the_ceiling_keeps_the_guarantee() {
        let mut settings = VfSettings::for_mac(mac()).expect("valid");
        settings.rate.min = Mbps(5);
        let next = VfChange { max_rate: Some(Mbps(30)), ..VfChange::default() }
            .apply_to(&settings)
            .expect("valid");
        assert_eq!(next.rate, RateLimits { min: Mbps(5), max: Mbps(30) });
    }

    #[test]
    fn not_mentioned_leaves_the_vlan_and_zero_takes_it_away() {
        let mut settings = VfSettings::for_mac(mac()).expect("valid");
        settings.vlan.id = crate::VlanId::new(7).expect("valid");
        let kept = VfChange::default().apply_to(&settings).expect("valid");
        assert_eq!(kept.vlan.id.get(), 7);
        let gone = VfChange { vlan: Some(VlanTag::default().into()), ..VfChange::default() }
            .apply_to(&settings)
            .expect("valid");
        assert!(!gone.vlan.id.is_some());
    }

    #[test]
    fn spoofchk_without_a_mac_is_refused() {
        let change = VfChange { spoofchk: Some(true), ..VfChange::default() };
        assert_eq!(change.apply_to(&VfSettings::scrubbed()), Err(ModelError::SpoofchkWithoutMac));
    }

    #[test]
    fn a_guarantee_above_the_ceiling_is_refused() {
        let change =
            VfChange { min_rate: Some(Mbps(10)), max_rate: Some(Mbps(5)), ..VfChange::default() };
        let error = change.apply_to(&VfSettings::scrubbed()).expect_err("contradiction");
        assert!(error.to_string().contains("10 Mb/s"), "{error}");
    }

    #[test]
    fn an_unknown_setting_is_an_error_that_names_it() {
        let error = serde_json::from_str::<VfChange>(r#"{"spoof": true}"#).expect_err("typo");
        assert!(error.to_string().contains("`spoof`"), "{error}");
    }

    #[test]
    fn an_address_with_a_prefix_length_is_refused_with_the_reason() {
        let text = r#"{"addresses": ["10.0.0.2/24"]}"#;
        let error = serde_json::from_str::<VfChange>(text).expect_err("a network").to_string();
        assert!(error.contains("'10.0.0.2/24'") && error.contains("prefix length"), "{error}");
        assert_eq!(parse_address(" fd00::2 "), Ok("fd00::2".parse().expect("an address")));
    }

    #[test]
    fn settings_that_differ_are_named_one_by_one() {
        let settings = VfSettings::for_mac(mac()).expect("valid");
        assert_eq!(settings.differing(&settings), Vec::<&str>::new());
        let mut other = settings.clone();
        other.vlan.pcp = crate::Pcp::new(1).expect("valid");
        other.rate.max = Mbps(1);
        assert_eq!(settings.differing(&other), ["vlan", "max_rate"]);
    }

    #[test]
    fn a_change_to_settings_brings_any_vf_there() {
        let mut want = VfSettings::for_mac(mac()).expect("valid");
        want.rate = RateLimits { min: Mbps(1), max: Mbps(9) };
        assert_eq!(VfChange::to(&want).apply_to(&VfSettings::scrubbed()), Ok(want));
    }
}
