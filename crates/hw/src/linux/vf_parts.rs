//! A VF's message taken apart, to say what it sets and which part of it was refused. The kernel
//! names none: it applies the parts in order and stops at the first refusal, so the first that does
//! not hold afterwards is the one.

use lanekeeper_model::{RateLimits, VfIndex};

use crate::inventory::VfAttributes;
use crate::message::VfMessage;

/// One attribute of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// As in "VLAN 7".
    pub(super) what: String,
    /// What to do if the driver cannot.
    pub(super) instead: &'static str,
    /// Whether the VF has it.
    holds: bool,
}

/// The parts of a message, in the kernel's order, against what a VF has.
pub(super) fn parts(message: &VfMessage, has: &VfAttributes) -> Vec<Part> {
    let on = |on: bool| if on { "on" } else { "off" };
    let mut parts = Vec::new();
    let mut add = |what: String, instead, holds| parts.push(Part { what, instead, holds });
    if let Some(mac) = message.mac {
        let instead = "unbind the VF first; a driver that takes no zero MAC back takes a locally \
                       administered one";
        add(format!("MAC {mac}"), instead, has.mac == mac);
    }
    if let Some(tag) = message.vlan {
        let instead = "use 802.1Q; in switchdev mode set the VLAN by rules on the representor";
        let what = format!("VLAN {} (PCP {}, {})", tag.id, tag.pcp, tag.protocol);
        add(what, instead, has.vlan == tag);
    }
    if let Some(rate) = message.rate {
        let RateLimits { min, max } = rate;
        let instead = "set no min rate; some drivers have a max rate only";
        add(format!("rates {min} to {max} Mb/s"), instead, has.rate == rate);
    }
    if let Some(wanted) = message.spoofchk {
        let instead = "leave it as it is; in switchdev mode filter on the representor";
        add(format!("spoofchk={}", on(wanted)), instead, has.spoofchk == Some(wanted));
    }
    if let Some(state) = message.link_state {
        let instead = "leave it auto; in switchdev mode set the representor down";
        add(format!("link state={state}"), instead, has.link_state == Some(state));
    }
    if let Some(wanted) = message.trust {
        let instead = "leave it off; in switchdev mode a VF cannot be trusted";
        add(format!("trust={}", on(wanted)), instead, has.trust == Some(wanted));
    }
    let instead = "set a MAC and bind the VF's driver anew: it makes a GUID from it";
    for (name, wanted, told) in [
        ("node GUID", message.node_guid, has.node_guid),
        ("port GUID", message.port_guid, has.port_guid),
    ] {
        if let Some(guid) = wanted {
            add(format!("{name} {guid}"), instead, told == Some(guid));
        }
    }
    parts
}

/// What was being done: the part that was refused, or all if that cannot be told.
pub(super) fn doing(vf: VfIndex, parts: &[Part]) -> (String, &'static str) {
    if let Some(part) = parts.iter().find(|part| !part.holds) {
        return (format!("set {} on VF {vf}", part.what), part.instead);
    }
    let all: Vec<&str> = parts.iter().map(|part| part.what.as_str()).collect();
    (format!("set {} on VF {vf}", all.join(", ")), "set them one by one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_model::MacAddr;

    #[test]
    fn the_first_part_that_does_not_hold_is_the_refused_one() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let message = VfMessage {
            mac: Some(mac),
            spoofchk: Some(true),
            trust: Some(true),
            ..VfMessage::default()
        };
        let has = VfAttributes { mac, spoofchk: None, ..VfAttributes::default() };
        let vf = VfIndex::new(3).expect("valid");
        assert_eq!(doing(vf, &parts(&message, &has)).0, "set spoofchk=on on VF 3");
        let has = VfAttributes { spoofchk: Some(true), trust: Some(true), ..has };
        let all = "set MAC 02:00:00:00:00:01, spoofchk=on, trust=on on VF 3";
        assert_eq!(doing(vf, &parts(&message, &has)).0, all);
    }
}
