//! A VF's attributes in rtnetlink's messages, both ways: `IFLA_VF_INFO` inside `IFLA_VFINFO_LIST`
//! (include/uapi/linux/if_link.h; `do_setvfinfo` and `rtnl_fill_vfinfo`, net/core/rtnetlink.c).

use lanekeeper_model::{
    Guid, LinkCounters, LinkState, MacAddr, Mbps, Pcp, RateLimits, VfCounters, VfIndex, VlanId,
    VlanProtocol, VlanTag,
};

use super::netlink::attribute::{Attribute, Attributes, Builder, u16_at, u32_at, u64_at};
use crate::inventory::VfAttributes;
use crate::message::VfMessage;

const MAC: u16 = 1;
const VLAN: u16 = 2;
const TX_RATE: u16 = 3;
const SPOOFCHK: u16 = 4;
const LINK_STATE: u16 = 5;
const RATE: u16 = 6;
const STATS: u16 = 8;
const TRUST: u16 = 9;
const NODE_GUID: u16 = 10;
const PORT_GUID: u16 = 11;
const VLAN_LIST: u16 = 12;
/// Inside `IFLA_VF_VLAN_LIST`.
const VLAN_INFO: u16 = 1;

/// Inside `IFLA_VF_STATS`.
const RX_FRAMES: u16 = 0;
const TX_FRAMES: u16 = 1;
const RX_BYTES: u16 = 2;
const TX_BYTES: u16 = 3;

/// Room for an address in `struct ifla_vf_mac` (`MAX_ADDR_LEN`).
const ADDRESS_ROOM: usize = 32;

/// Write what a message sets, in the order in which the kernel applies it.
pub(crate) fn write(vf: VfIndex, message: &VfMessage, into: &mut Builder) {
    let vf = u32::from(vf);
    if let Some(mac) = message.mac {
        let mut room = [0; ADDRESS_ROOM];
        room[..6].copy_from_slice(&mac.0);
        into.bytes(MAC, &[&vf.to_ne_bytes()[..], &room].concat());
    }
    match message.vlan {
        // The old attribute stands for the customer's tag; the list says which tag it is.
        Some(VlanTag { id, pcp, protocol: VlanProtocol::Dot1Q }) => {
            into.bytes(VLAN, &words(&[vf, id.into(), pcp.into()]));
        }
        Some(tag) => {
            into.unmarked_nest(VLAN_LIST, |list| {
                list.bytes(VLAN_INFO, &vlan_info(vf, tag));
            });
        }
        None => {}
    }
    if let Some(RateLimits { min, max }) = message.rate {
        into.bytes(RATE, &words(&[vf, min.0, max.0]));
    }
    if let Some(on) = message.spoofchk {
        into.bytes(SPOOFCHK, &words(&[vf, u32::from(on)]));
    }
    if let Some(state) = message.link_state {
        let number = match state {
            LinkState::Auto => 0,
            LinkState::Enable => 1,
            LinkState::Disable => 2,
        };
        into.bytes(LINK_STATE, &words(&[vf, number]));
    }
    if let Some(on) = message.trust {
        into.bytes(TRUST, &words(&[vf, u32::from(on)]));
    }
    for (kind, guid) in [(NODE_GUID, message.node_guid), (PORT_GUID, message.port_guid)] {
        if let Some(Guid(guid)) = guid {
            // The structure's 64-bit number begins at a multiple of eight.
            let value = [&words(&[vf, 0])[..], &guid.to_ne_bytes()].concat();
            into.bytes(kind, &value);
        }
    }
}

/// `struct ifla_vf_vlan_info`: the protocol in network byte order, then two bytes of padding.
fn vlan_info(vf: u32, tag: VlanTag) -> Vec<u8> {
    let mut value = words(&[vf, tag.id.into(), tag.pcp.into()]);
    value.extend(tag.protocol.ethertype().to_be_bytes());
    value.extend([0; 2]);
    value
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// One VF as the kernel tells of it: `None` unless it says which VF it is.
pub(crate) fn read(info: &Attributes<'_>) -> Option<(u32, VfAttributes)> {
    let mac = info.first(MAC)?;
    let vf = mac.u32()?;
    let mut told = VfAttributes { mac: address(mac)?, ..VfAttributes::default() };
    // The list tells the protocol too, and is there since Linux 4.9.
    let listed = info.first(VLAN_LIST).and_then(|list| list.nested().first(VLAN_INFO));
    if let Some(vlan) = listed.or_else(|| info.first(VLAN)) {
        told.vlan = vlan_tag(vlan.value);
    }
    if let Some(rate) = info.first(RATE) {
        told.rate = RateLimits { min: Mbps(second(rate)?), max: Mbps(u32_at(rate.value, 8)?) };
    } else if let Some(max) = info.first(TX_RATE) {
        told.rate.max = Mbps(second(max)?);
    }
    told.spoofchk = info.first(SPOOFCHK).and_then(knob);
    told.trust = info.first(TRUST).and_then(knob);
    told.link_state = info.first(LINK_STATE).and_then(second).and_then(|state| match state {
        0 => Some(LinkState::Auto),
        1 => Some(LinkState::Enable),
        2 => Some(LinkState::Disable),
        _ => None,
    });
    let guid = |kind| info.first(kind).and_then(|guid| u64_at(guid.value, 8)).map(Guid);
    told.node_guid = guid(NODE_GUID);
    told.port_guid = guid(PORT_GUID);
    Some((vf, told))
}

/// What a VF's driver's counters say, if the kernel was asked for them. "Received" is what the VM
/// received. The kernel counts drops without telling why, so none of our reasons is given.
pub(crate) fn read_counters(info: &Attributes<'_>) -> Option<(u32, VfCounters)> {
    let vf = info.first(MAC)?.u32()?;
    let stats = info.first(STATS)?.nested();
    let count = |kind| stats.first(kind).and_then(Attribute::u64).unwrap_or(0);
    let counters = VfCounters {
        tx: LinkCounters { frames: count(TX_FRAMES), bytes: count(TX_BYTES) },
        rx: LinkCounters { frames: count(RX_FRAMES), bytes: count(RX_BYTES) },
        ..VfCounters::default()
    };
    Some((vf, counters))
}

/// The word behind the VF's number.
fn second(attribute: Attribute<'_>) -> Option<u32> {
    u32_at(attribute.value, 4)
}

/// A switch that the driver may lack: the kernel then tells -1.
fn knob(attribute: Attribute<'_>) -> Option<bool> {
    match second(attribute)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn address(attribute: Attribute<'_>) -> Option<MacAddr> {
    attribute.value.get(4..10)?.try_into().ok().map(MacAddr)
}

/// A tag that no request could have set (VLAN 4095) reads as none.
fn vlan_tag(value: &[u8]) -> VlanTag {
    let id = u32_at(value, 4).and_then(|id| VlanId::new(id).ok()).unwrap_or_default();
    let pcp = u32_at(value, 8).and_then(|pcp| Pcp::new(pcp).ok()).unwrap_or_default();
    let protocol = match u16_at(value, 12).map(u16::from_be) {
        Some(0x88a8) => VlanProtocol::Dot1Ad,
        _ => VlanProtocol::Dot1Q,
    };
    VlanTag { id, pcp, protocol }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> VfMessage {
        VfMessage {
            mac: Some(MacAddr([2, 0, 0, 0, 0, 7])),
            vlan: Some(VlanTag {
                id: VlanId::new(100).expect("valid"),
                pcp: Pcp::new(5).expect("valid"),
                protocol: VlanProtocol::Dot1Ad,
            }),
            rate: Some(RateLimits { min: Mbps(5), max: Mbps(30) }),
            spoofchk: Some(true),
            link_state: Some(LinkState::Disable),
            trust: Some(false),
            node_guid: Some(Guid(0x0002_c903_0000_0001)),
            port_guid: Some(Guid(0x0002_c903_0000_0002)),
        }
    }

    fn written(message: &VfMessage) -> Vec<u8> {
        let mut builder = Builder::default();
        write(VfIndex::new(3).expect("valid"), message, &mut builder);
        builder.finish().to_vec()
    }

    #[test]
    fn everything_that_can_be_set_is_read_back_as_it_was_set() {
        let (vf, told) = read(&Attributes(&written(&all()))).expect("a VF");
        assert_eq!(vf, 3);
        assert_eq!(VfMessage::back_to(&told, &VfAttributes::default()), all());
    }

    #[test]
    fn attributes_stand_in_the_order_in_which_the_kernel_applies_them() {
        let kinds: Vec<u16> = Attributes(&written(&all())).map(|entry| entry.kind).collect();
        let order =
            [MAC, VLAN_LIST, RATE, SPOOFCHK, LINK_STATE, TRUST, NODE_GUID, PORT_GUID].to_vec();
        assert_eq!(kinds, order);
    }

    #[test]
    fn minus_one_is_a_knob_that_the_driver_lacks() {
        let mut builder = Builder::default();
        builder.bytes(MAC, &[0; 36]);
        builder.bytes(SPOOFCHK, &words(&[0, u32::MAX]));
        builder.bytes(TRUST, &words(&[0, 0]));
        let (_, told) = read(&Attributes(builder.finish())).expect("a VF");
        assert_eq!((told.spoofchk, told.trust), (None, Some(false)));
    }

    #[test]
    fn an_old_kernels_vlan_and_rate_are_understood() {
        let mut builder = Builder::default();
        builder.bytes(MAC, &[0; 36]);
        builder.bytes(VLAN, &words(&[0, 7, 2])).bytes(TX_RATE, &words(&[0, 1000]));
        let (_, told) = read(&Attributes(builder.finish())).expect("a VF");
        assert_eq!((told.vlan.id.get(), told.vlan.pcp.get()), (7, 2));
        assert_eq!(told.rate, RateLimits { min: Mbps(0), max: Mbps(1000) });
    }

    #[test]
    fn a_vf_that_does_not_say_which_it_is_is_passed_over() {
        let mut builder = Builder::default();
        builder.bytes(TRUST, &words(&[0, 1]));
        assert_eq!(read(&Attributes(builder.finish())), None);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(
            list in proptest::collection::vec(
                (0_u16..14, proptest::collection::vec(any::<u8>(), 0..48)), 0..12)
        ) {
            let mut builder = Builder::default();
            builder.bytes(MAC, &[0; 36]);
            for (kind, value) in &list {
                builder.bytes(*kind, value);
            }
            let _ = (read(&Attributes(builder.finish())), read_counters(&Attributes(builder.finish())));
        }
    }
}
