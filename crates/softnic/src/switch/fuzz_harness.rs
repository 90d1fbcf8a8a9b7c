//! Any bytes through the whole switch, with what must hold whatever they are. One entry,
//! [`whole_switch`], for the fuzzer and for property tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use lanekeeper_model::{MacAddr, VfIndex, VfSettings, VlanId, VlanProtocol, VlanTag};

use super::vlan::{TAG_AT, is_tag};
use super::{
    EDITED_HEAD, Egress, HEAD, Ingress, MAX_SEGMENTS, NetHeader, OffloadSet, PortSpec, Route,
    Segments, Source, SwitchTable, Tag, UplinkPolicy, VlanKey, Work, finish_checksum, flow_hash,
    judge_egress, judge_ingress, judge_uplink, judge_uplink_egress,
};

/// The address that the VFs with bound addresses have.
const BOUND: [u8; 4] = [10, 0, 0, 1];

/// One VF of each kind, twice where frames must have somewhere to go.
fn ports() -> Vec<PortSpec> {
    let access = |id, protocol| VlanTag {
        id: VlanId::new(id).unwrap_or_default(),
        protocol,
        ..VlanTag::default()
    };
    let customer = access(5, VlanProtocol::Dot1Q);
    let service = access(5, VlanProtocol::Dot1Ad);
    let none = VlanTag::default();
    //       tag       trust  spoofchk bound
    let kinds = [
        (none, false, true, false),
        (none, false, false, false),
        (none, false, true, true),
        (customer, false, true, false),
        (customer, false, true, true),
        (customer, true, false, false),
        (service, false, true, false),
        (service, false, true, true),
        (none, true, true, false),
        (none, true, false, false),
        (none, true, true, true),
    ];
    VfIndex::first(kinds.len())
        .zip(kinds)
        .map(|(vf, (vlan, trust, spoofchk, bound))| {
            let mut settings = VfSettings::scrubbed();
            settings.mac = MacAddr([2, 0, 0, 0, 0, vf.get() as u8]);
            settings.link_state = lanekeeper_model::LinkState::Auto;
            (settings.vlan, settings.trust, settings.spoofchk) = (vlan, trust, spoofchk);
            if bound {
                settings.addresses.push(IpAddr::V4(Ipv4Addr::from(BOUND)));
                settings.addresses.push(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)));
            }
            let mut spec = PortSpec::new(vf, settings);
            spec.promiscuous = vf.get() % 2 == 1;
            spec.extra_macs.push(MacAddr([2, 0, 0, 0, 1, vf.get() as u8]));
            spec.learned.insert(VlanKey::NONE, 0x0200_0000_0200);
            spec
        })
        .collect()
}

struct World {
    specs: Vec<PortSpec>,
    table: SwitchTable,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let specs = ports();
        let uplink = UplinkPolicy { up: true, mtu: 9000, offloads: OffloadSet::ALL };
        let table = SwitchTable::build(&specs, Some(uplink)).expect("addresses differ");
        World { specs, table }
    })
}

/// Runs one frame through the switch: byte 0 says from where, 1 what sender and receivers
/// negotiated, 2 and 3 how much longer the frame is than the bytes given, 4 to 15 are its
/// virtio-net header, and the rest is the frame. Says to how many receivers it was delivered.
///
/// # Panics
/// If something that must hold does not.
pub fn whole_switch(data: &[u8]) -> usize {
    let Some((control, rest)) = data.split_first_chunk::<4>() else { return 0 };
    let Some((header, frame)) = rest.split_first_chunk::<{ NetHeader::LEN }>() else { return 0 };
    let [from, offloads, more @ ..] = *control;
    let header = NetHeader::parse(header);
    let accepts = OffloadSet::accepted_by(u64::from(offloads) << 1)
        .with(OffloadSet::sent_by(u64::from(offloads) << 10 | u64::from(offloads & 1)));
    let frame_len = frame.len() + u16::from_le_bytes(more) as usize;
    // Only a frame that fills the head can be longer than it.
    let frame_len = if frame.len() < HEAD { frame.len() } else { frame_len };
    let head = &frame[..frame.len().min(HEAD)];
    flow_hash(head);

    let World { specs, table } = world();
    let sender = from as usize % (specs.len() + 2);
    let (source, verdict) = if let Some(spec) = specs.get(sender) {
        let may_send = if offloads & 0x80 == 0 { OffloadSet::ALL } else { accepts };
        let verdict = judge_ingress(table.port(spec.vf), head, frame_len, &header, may_send);
        (Source::Vf(spec.vf), verdict)
    } else {
        let removed = (sender > specs.len()).then(|| Tag::new(0x8100, 5)).flatten();
        let uplink = table.uplink().expect("the table has one");
        (Source::Uplink, judge_uplink(uplink, head, frame_len, &header, removed))
    };
    let Ok(ingress) = verdict else { return 0 };
    assert!(frame_len >= 14 && head.len() >= 14);
    if let Some(spec) = specs.get(sender) {
        check_ingress(spec, head, &ingress);
        table.should_learn(spec.vf, &ingress);
    }
    assert!(ingress.wire_bytes(frame_len) >= frame_len);
    let Ok(route) = table.route(source, &ingress) else { return 0 };
    check_route(source, &ingress, route);
    let (vfs, uplink) = match route {
        Route::Vf(vf) => (1 << vf, false),
        Route::Group { vfs, uplink } => (vfs, uplink),
    };
    let mut delivered = 0;
    for vf in (0..64).filter(|vf| vfs >> vf & 1 == 1) {
        let receiver = table.port_at(vf);
        assert!(receiver.is_member(ingress.vlan()), "VF {vf} is not in {:?}", ingress.vlan());
        if let Ok(egress) = judge_egress(receiver, accepts, &ingress, frame_len) {
            deliver(head, frame, frame_len, &egress, receiver.mtu().into());
            delivered += 1;
        }
    }
    if let (true, Some(policy)) = (uplink, table.uplink())
        && let Ok(egress) = judge_uplink_egress(policy, &ingress, frame_len)
    {
        let sent = deliver(head, frame, frame_len, &egress, policy.mtu as usize);
        let outer = u16::from_be_bytes([sent[TAG_AT], sent[TAG_AT + 1]]);
        match ingress.tag() {
            Some(tag) => assert_eq!(sent[TAG_AT..TAG_AT + 4], tag.to_bytes()),
            None => assert!(!is_tag(outer), "a tag nobody checked is on the wire"),
        }
        delivered += 1;
    }
    delivered
}

/// What holds for every frame that was let in from this VF.
fn check_ingress(spec: &PortSpec, head: &[u8], ingress: &Ingress) {
    let settings = &spec.settings;
    let own = VlanKey::new(settings.vlan.protocol, settings.vlan.id);
    let trunk = settings.trust && !settings.vlan.id.is_some();
    if trunk {
        assert!(ingress.vlan().on_trunk());
    } else {
        assert_eq!(ingress.vlan(), own, "another VF's VLAN");
        assert_eq!(ingress.tag(), Tag::of(settings.vlan));
    }
    if settings.spoofchk {
        assert_eq!(ingress.src, settings.mac.to_u64());
    }
    let layer3 = ingress.layer3_at() as usize;
    let is_ipv4 = head.get(layer3 - 2..layer3) == Some(&[8, 0]);
    if is_ipv4 && !settings.addresses.is_empty() {
        let source = &head[layer3 + 12..layer3 + 16];
        assert!(source == BOUND || source == [0; 4], "somebody else's address");
    }
}

fn check_route(source: Source, ingress: &Ingress, route: Route) {
    match (source, route) {
        (Source::Vf(from), Route::Vf(to)) => assert_ne!(from.get(), to),
        (Source::Uplink, Route::Vf(_)) => {}
        (Source::Vf(from), Route::Group { vfs, .. }) => assert_eq!(vfs >> from.get() & 1, 0),
        (Source::Uplink, Route::Group { vfs, uplink }) => assert!(vfs != 0 && !uplink),
    }
    if ingress.is_group() {
        assert!(matches!(route, Route::Group { .. }));
    }
}

/// Does what `egress` says and gives the edited head. A checksum changes its own two bytes only,
/// and segments carry each byte of the payload once.
fn deliver(head: &[u8], frame: &[u8], frame_len: usize, egress: &Egress, mtu: usize) -> Vec<u8> {
    let mut edited = [0; EDITED_HEAD];
    let edited_head_len = egress.edit.apply(head, &mut edited);
    let len = frame_len.saturating_add_signed(egress.edit.growth().into());
    let whole = [&edited[..edited_head_len], &frame[head.len()..]].concat();
    egress.header().to_bytes();
    match egress.work() {
        Work::None => {}
        Work::FinishChecksum { start, offset } => {
            let before = edited;
            let finished = &mut edited[..edited_head_len];
            finish_checksum(finished, whole.as_slice(), len, start, offset);
            let field = start as usize + offset as usize;
            assert!(start >= 14, "a checksum over the Ethernet header");
            assert_eq!(edited[..field], before[..field]);
            assert_eq!(edited[field + 2..], before[field + 2..]);
        }
        Work::Segment(plan) => {
            let head = &edited[..edited_head_len];
            let mut segments = Segments::new(head, len, plan).expect("a plan that was checked");
            let (mut out, mut count, mut next) = ([0; EDITED_HEAD], 0, None);
            while let Some(segment) = segments.next(whole.as_slice(), &mut out) {
                assert_eq!(next.unwrap_or(segment.headers), segment.payload.start);
                assert!(segment.frame_len() <= mtu + plan.layer3_at as usize);
                assert_eq!(out[..TAG_AT], head[..TAG_AT]);
                next = Some(segment.payload.end);
                count += 1;
            }
            assert_eq!(next, Some(len));
            assert!((1..=MAX_SEGMENTS).contains(&count));
        }
    }
    edited[..edited_head_len].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::{self, Packet};
    use proptest::prelude::*;

    /// Inputs that get further than random bytes do: a frame from some VF to some VF as an honest
    /// driver would send it, and then up to two lies.
    fn nearly_honest() -> impl Strategy<Value = Vec<u8>> {
        let packet = (any::<[bool; 4]>(), 0..13_u8, 0..12_u8, 0..1_400_usize);
        let tag = prop::option::weighted(
            0.3,
            (prop::sample::select(vec![0x8100, 0x88a8, 0x9100]), 0..7_u16),
        );
        let offload = (0..3_u8, 20..1_400_u16, any::<u8>());
        let lies = prop::collection::vec((0..120_usize, any::<u8>()), 0..3);
        (packet, tag, offload, lies).prop_map(|(packet, tag, offload, lies)| {
            let mut data = honest(packet, tag, offload);
            for (at, value) in lies {
                if let Some(byte) = data.get_mut(at) {
                    *byte = value;
                }
            }
            data
        })
    }

    fn honest(
        ([v6, tcp, extension, cwr], from, to, payload): ([bool; 4], u8, u8, usize),
        tag: Option<(u16, u16)>,
        (offload, size, negotiated): (u8, u16, u8),
    ) -> Vec<u8> {
        let packet = Packet {
            v6,
            tcp,
            extension,
            cwr,
            src_mac: [2, 0, 0, 0, 0, from],
            dst_mac: if to == 11 { [0xff; 6] } else { [2, 0, 0, 0, 0, to] },
            ..Packet::udp4(&vec![0x5a; payload])
        };
        let (frame, moved) = match tag {
            Some((tpid, tci)) => (frames::tagged(&packet.bytes(), tpid, tci), 4),
            None => (packet.bytes(), 0),
        };
        let mut header = NetHeader::default();
        if offload > 0 {
            header.flags = NetHeader::NEEDS_CSUM;
            header.csum_start = packet.transport_at() as u16 + moved;
            header.csum_offset = if tcp { 16 } else { 6 };
        }
        if offload > 1 {
            header.gso_size = size;
            header.gso_type = match (tcp, v6) {
                (true, false) => NetHeader::GSO_TCPV4,
                (true, true) => NetHeader::GSO_TCPV6,
                (false, _) => NetHeader::GSO_UDP_L4,
            };
        }
        // The sender may send anything; what the receivers take differs.
        let mut data = vec![from, negotiated & 0x7f, 0, 0];
        data.extend(header.to_bytes());
        data.extend(frame);
        data
    }

    #[test]
    fn an_honest_super_frame_is_delivered_whatever_its_receiver_takes() {
        for negotiated in 0..0x80 {
            let data =
                honest(([false, true, false, false], 0, 1, 1_400), None, (2, 100, negotiated));
            assert_eq!(whole_switch(&data), 1);
            let data =
                honest(([true, true, true, false], 0, 11, 1_400), None, (2, 100, negotiated));
            assert_eq!(whole_switch(&data), 6, "five VFs without VLAN and the uplink");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(4_000)))]

        #[test]
        fn no_bytes_make_the_switch_panic_or_leak(data in prop::collection::vec(any::<u8>(), 0..400)) {
            whole_switch(&data);
        }

        #[test]
        fn no_nearly_honest_frame_makes_the_switch_panic_or_leak(data in nearly_honest()) {
            whole_switch(&data);
        }
    }
}
