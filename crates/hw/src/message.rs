//! The one message that sets a VF: what it must carry to bring the VF from what was read to what is
//! wanted, and nothing else.
//!
//! The kernel applies the attributes of a message one after another, in the order of the fields
//! here, and keeps those before the first refusal (`do_setvfinfo`, net/core/rtnetlink.c).

use lanekeeper_model::{Guid, LinkState, MacAddr, RateLimits, VfSettings, VlanTag};
use serde::{Deserialize, Serialize};

use crate::inventory::VfAttributes;

/// Attributes of one VF to be set: `None` is not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VfMessage {
    /// `IFLA_VF_MAC`.
    pub mac: Option<MacAddr>,
    /// `IFLA_VF_VLAN`, or for 802.1ad `IFLA_VF_VLAN_LIST`; VLAN 0 takes the tag away.
    pub vlan: Option<VlanTag>,
    /// `IFLA_VF_RATE`: both rates, because the message has no way to leave one as it is
    /// (LP#1962844).
    pub rate: Option<RateLimits>,
    /// `IFLA_VF_SPOOFCHK`.
    pub spoofchk: Option<bool>,
    /// `IFLA_VF_LINK_STATE`.
    pub link_state: Option<LinkState>,
    /// `IFLA_VF_TRUST`.
    pub trust: Option<bool>,
    /// `IFLA_VF_IB_NODE_GUID`.
    pub node_guid: Option<Guid>,
    /// `IFLA_VF_IB_PORT_GUID`.
    pub port_guid: Option<Guid>,
}

impl VfMessage {
    /// What brings a VF from `current` to `wanted`. A value that the VF has is not sent: some
    /// firmware refuses even "spoofchk off" (lxc/incus#2021). A knob that the driver lacks is sent
    /// only if something other than its absence is wanted, and then the driver refuses it.
    pub fn between(current: &VfAttributes, wanted: &VfSettings) -> Self {
        Self {
            mac: changed(wanted.mac, current.mac),
            vlan: changed(wanted.vlan, current.vlan),
            rate: changed(wanted.rate, current.rate),
            spoofchk: changed(wanted.spoofchk, current.spoofchk.unwrap_or(false)),
            link_state: changed(wanted.link_state, current.link_state.unwrap_or_default()),
            trust: changed(wanted.trust, current.trust.unwrap_or(false)),
            node_guid: None,
            port_guid: None,
        }
    }

    /// What brings a VF from `current` back to `before`.
    pub fn back_to(before: &VfAttributes, current: &VfAttributes) -> Self {
        let knob = |before: Option<bool>, now| before.and_then(|before| changed(Some(before), now));
        Self {
            mac: changed(before.mac, current.mac),
            vlan: changed(before.vlan, current.vlan),
            rate: changed(before.rate, current.rate),
            spoofchk: knob(before.spoofchk, current.spoofchk).flatten(),
            link_state: before.link_state.filter(|state| current.link_state != Some(*state)),
            trust: knob(before.trust, current.trust).flatten(),
            node_guid: before.node_guid.filter(|guid| current.node_guid != Some(*guid)),
            port_guid: before.port_guid.filter(|guid| current.port_guid != Some(*guid)),
        }
    }

    /// Nothing to set: such a message is never sent, for some drivers refuse it (systemd#37275).
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn changed<T: PartialEq + Copy>(wanted: T, current: T) -> Option<T> {
    (wanted != current).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_model::Mbps;

    fn settings() -> VfSettings {
        VfSettings::for_mac(MacAddr([2, 0, 0, 0, 0, 1])).expect("valid")
    }

    #[test]
    fn what_the_vf_has_already_is_not_sent() {
        let wanted = settings();
        let mut current = VfAttributes { mac: wanted.mac, ..VfAttributes::default() };
        let message = VfMessage::between(&current, &wanted);
        assert_eq!(message, VfMessage { spoofchk: Some(true), ..VfMessage::default() });
        current.spoofchk = Some(true);
        assert!(VfMessage::between(&current, &wanted).is_empty());
    }

    #[test]
    fn a_knob_that_the_driver_lacks_is_left_alone_when_off_is_wanted() {
        let wanted = VfSettings { spoofchk: false, ..settings() };
        let current = VfAttributes { mac: wanted.mac, ..VfAttributes::default() };
        assert!(VfMessage::between(&current, &wanted).is_empty());
    }

    #[test]
    fn one_rate_travels_with_the_other() {
        let mut wanted = settings();
        wanted.rate = RateLimits { min: Mbps(5), max: Mbps(30) };
        let rate = RateLimits { min: Mbps(5), max: Mbps(0) };
        let current = VfAttributes { rate, ..VfAttributes::default() };
        assert_eq!(VfMessage::between(&current, &wanted).rate, Some(wanted.rate));
    }

    #[test]
    fn the_way_back_undoes_what_was_set_and_no_more() {
        let before = VfAttributes {
            spoofchk: Some(true),
            link_state: Some(LinkState::Disable),
            ..VfAttributes::default()
        };
        let after = VfAttributes { mac: MacAddr([2, 0, 0, 0, 0, 1]), trust: None, ..before };
        let undo = VfMessage { mac: Some(MacAddr::ZERO), ..VfMessage::default() };
        assert_eq!(VfMessage::back_to(&before, &after), undo);
        assert!(VfMessage::back_to(&before, &before).is_empty());
    }
}
