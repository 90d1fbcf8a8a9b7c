//! A whole NIC, driven from user space through its VF sockets: what reaches whom, under which
//! settings, and what a hostile driver can and cannot do.

mod rig;

use std::time::{Duration, Instant};

use lanekeeper_hw::{Hardware, HardwareError};
use lanekeeper_model::{
    DropReason, LinkState, MacAddr, Mbps, Mtu, PfId, VfChange, VfSettings, VlanProtocol, VlanTag,
};
use lanekeeper_softnic::driver::{TxFrame, VfOptions};
use lanekeeper_softnic::ring::{Gather, RingKind};
use lanekeeper_softnic::uplink::{InterfaceName, UplinkConfig};
use lanekeeper_softnic::{Client, Config, Nic, NicError};
use rig::*;

#[test]
fn frames_go_from_vf_to_vf_whole_and_in_order() {
    for kind in KINDS {
        let rig = Rig::new(2);
        let (mut a, mut b) = (rig.driver(0, of_kind(kind)), rig.driver(1, of_kind(kind)));
        let sent: Vec<_> =
            (0..200).map(|n| frame(mac(1), mac(0), n, 60 + 7 * n as usize)).collect();
        send(&mut a, &sent[..100]);
        let mut received = receive(&mut b, 100);
        send(&mut a, &sent[100..]);
        received.extend(receive(&mut b, 100));
        assert!(received == sent, "{kind:?}: {} frames came", received.len());
        let bytes: usize = sent.iter().map(Vec::len).sum();
        rig.eventually("both sides are counted", || rig.counters(1).rx.frames == 200);
        assert_eq!(rig.counters(0).tx.bytes, bytes as u64);
        assert_eq!(rig.counters(1).rx.bytes, bytes as u64);
    }
}

#[test]
fn every_combination_of_ring_features_carries_frames_both_ways() {
    for kind in KINDS {
        for bits in 0..16u8 {
            let on = |bit: u8| bits & 1 << bit != 0;
            let options = VfOptions {
                kind,
                mergeable: on(0),
                event_idx: on(1),
                in_order: on(2),
                indirect: on(3),
                tx_piece: on(3).then_some(100),
                header_apart: on(0),
                ..VfOptions::default()
            };
            let rig = Rig::new(2);
            let (mut a, mut b) = (rig.driver(0, options.clone()), rig.driver(1, options.clone()));
            for round in 0..10 {
                let there: Vec<_> =
                    (0..70).map(|n| frame(mac(1), mac(0), n ^ round, 1400)).collect();
                send(&mut a, &there);
                assert!(receive(&mut b, 70) == there, "{options:?}");
                send(&mut b, &[frame(mac(0), mac(1), round, 64)]);
                assert_eq!(receive(&mut a, 1), [frame(mac(0), mac(1), round, 64)], "{options:?}");
            }
        }
    }
}

#[test]
fn a_legacy_driver_with_its_shorter_header_is_served() {
    for mergeable in [false, true] {
        let rig = Rig::new(2);
        let options = VfOptions { legacy: true, mergeable, ..VfOptions::default() };
        let (mut a, mut b) = (rig.driver(0, options), rig.plain(1));
        send(&mut a, &[frame(mac(1), mac(0), 1, 100)]);
        assert_eq!(receive(&mut b, 1), [frame(mac(1), mac(0), 1, 100)]);
        send(&mut b, &[frame(mac(0), mac(1), 2, 100)]);
        assert_eq!(receive(&mut a, 1), [frame(mac(0), mac(1), 2, 100)]);
    }
}

#[test]
fn a_jumbo_frame_is_spread_over_buffers_and_dropped_where_the_mtu_is_smaller() {
    let rig = Rig::new(3);
    let jumbo = Mtu::new(Mtu::MAX).expect("an MTU");
    for vf in [0, 1] {
        rig.set(vf, &VfChange { mtu: Some(jumbo), ..VfChange::default() });
    }
    let big = VfOptions { buffer_size: 9300, ..VfOptions::default() };
    let (mut a, mut b, mut c) = (rig.driver(0, big), rig.plain(1), rig.plain(2));
    send(&mut a, &[frame(mac(1), mac(0), 7, 9216), frame(mac(2), mac(0), 7, 9216)]);
    assert_eq!(receive(&mut b, 1), [frame(mac(1), mac(0), 7, 9216)]);
    assert!(intruders(&mut c).is_empty());
    assert_eq!(rig.counters(2).rx_dropped(DropReason::TooLong), 1);
    send(&mut c, &[frame(mac(1), mac(2), 7, 1600)]);
    rig.eventually("the sender's own MTU holds, too", || {
        rig.counters(2).tx_dropped(DropReason::TooLong) == 1
    });
}

#[test]
fn vlans_are_apart_and_a_change_takes_effect_at_once_without_touching_others() {
    let rig = Rig::new(4);
    rig.set(2, &VfChange { vlan: Some(vlan(6).into()), ..VfChange::default() });
    let mut vfs: Vec<_> = (0..4).map(|vf| rig.plain(vf)).collect();
    send(&mut vfs[0], &[frame(mac(2), mac(0), 1, 64), frame(MacAddr::BROADCAST, mac(0), 2, 64)]);
    let broadcast = [frame(MacAddr::BROADCAST, mac(0), 2, 64)];
    assert_eq!(receive(&mut vfs[1], 1), broadcast);
    assert_eq!(receive(&mut vfs[3], 1), broadcast);
    assert!(intruders(&mut vfs[2]).is_empty(), "VLAN 6 hears nothing of VLAN 5");
    assert!(intruders(&mut vfs[0]).is_empty(), "nobody hears himself");
    rig.set(2, &VfChange { vlan: Some(vlan(5).into()), ..VfChange::default() });
    send(&mut vfs[0], &[frame(mac(2), mac(0), 3, 64)]);
    assert_eq!(receive(&mut vfs[2], 1), [frame(mac(2), mac(0), 3, 64)]);
    // Customer and service VLANs of one number are different lanes.
    let service = VlanTag { protocol: VlanProtocol::Dot1Ad, ..vlan(5) };
    rig.set(2, &VfChange { vlan: Some(service.into()), ..VfChange::default() });
    send(&mut vfs[0], &[frame(mac(2), mac(0), 4, 64)]);
    assert!(intruders(&mut vfs[2]).is_empty());
}

#[test]
fn a_forged_source_or_tag_is_dropped_and_counted_and_honest_frames_pass() {
    let rig = Rig::new(2);
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    let honest = frame(mac(1), mac(0), 1, 64);
    let forged_tag = tagged(&honest, 0x8100, 6);
    let own_tag = tagged(&honest, 0x8100, 5);
    send(&mut a, &[frame(mac(1), mac(9), 1, 64), forged_tag, own_tag, honest.clone()]);
    assert_eq!(receive(&mut b, 1), std::slice::from_ref(&honest));
    assert!(intruders(&mut b).is_empty());
    rig.eventually("each is counted under its reason", || {
        let counters = rig.counters(0);
        counters.tx_dropped(DropReason::SpoofedMac) == 1
            && counters.tx_dropped(DropReason::ForgedVlan) == 2
            && counters.tx.frames == 1
    });
    // A priority tag is no VLAN: it is taken off.
    send(&mut a, &[tagged(&honest, 0x8100, 0xe000)]);
    assert_eq!(receive(&mut b, 1), [honest]);
}

#[test]
fn a_trusted_vf_without_a_vlan_is_a_trunk() {
    let rig = Rig::new(3);
    rig.set(0, &VfChange { vlan: Some(vlan(0).into()), trust: Some(true), ..VfChange::default() });
    rig.set(2, &VfChange { vlan: Some(vlan(6).into()), ..VfChange::default() });
    let (mut trunk, mut five, mut six) = (rig.plain(0), rig.plain(1), rig.plain(2));
    let to_five = frame(mac(1), mac(0), 1, 64);
    let to_six = frame(mac(2), mac(0), 2, 64);
    send(&mut trunk, &[tagged(&to_five, 0x8100, 5), tagged(&to_six, 0x8100, 6)]);
    assert_eq!(receive(&mut five, 1), [to_five]);
    assert_eq!(receive(&mut six, 1), [to_six]);
    let back = frame(mac(0), mac(2), 3, 64);
    send(&mut six, std::slice::from_ref(&back));
    assert_eq!(receive(&mut trunk, 1), [tagged(&back, 0x8100, 6)]);
}

#[test]
fn a_trusted_unchecked_vf_is_reached_by_the_addresses_it_sends_from() {
    let rig = Rig::new(2);
    rig.set(0, &VfChange { trust: Some(true), spoofchk: Some(false), ..VfChange::default() });
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    let further = MacAddr([2, 9, 9, 9, 9, 9]);
    send(&mut a, &[frame(mac(1), further, 1, 64)]);
    assert_eq!(receive(&mut b, 1), [frame(mac(1), further, 1, 64)]);
    let answer = frame(further, mac(1), 2, 64);
    let deadline = Instant::now() + SOON;
    loop {
        send(&mut b, std::slice::from_ref(&answer));
        let got = a.receive_all(0, 1, A_WHILE).expect("received");
        if got == std::slice::from_ref(&answer) {
            break;
        }
        assert!(Instant::now() < deadline, "the address is not learned");
    }
}

#[test]
fn bound_addresses_are_enforced_in_ip_and_arp() {
    let rig = Rig::new(2);
    let own = "10.0.0.1".parse().expect("an address");
    rig.set(0, &VfChange { addresses: Some(vec![own]), ..VfChange::default() });
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    let ipv4 = |source: [u8; 4]| {
        let mut frame = frame(mac(1), mac(0), 0, 64);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&50u16.to_be_bytes());
        frame[22..24].copy_from_slice(&[64, 17]);
        frame[26..30].copy_from_slice(&source);
        frame
    };
    send(&mut a, &[ipv4([10, 0, 0, 2]), ipv4([10, 0, 0, 1])]);
    assert_eq!(receive(&mut b, 1), [ipv4([10, 0, 0, 1])]);
    rig.eventually("the forgery is counted", || {
        rig.counters(0).tx_dropped(DropReason::SpoofedAddress) == 1
    });
}

#[test]
fn a_disabled_link_passes_nothing_either_way_and_comes_back() {
    let rig = Rig::new(2);
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    assert!(!rig.set(1, &link(LinkState::Disable)).link_up);
    send(&mut a, &[frame(mac(1), mac(0), 1, 64)]);
    send(&mut b, &[frame(mac(0), mac(1), 1, 64)]);
    assert!(intruders(&mut a).is_empty() && intruders(&mut b).is_empty());
    assert_eq!(rig.counters(1).tx_dropped(DropReason::LinkDown), 1);
    assert!(rig.set(1, &link(LinkState::Auto)).link_up);
    send(&mut a, &[frame(mac(1), mac(0), 2, 64)]);
    assert_eq!(receive(&mut b, 1), [frame(mac(1), mac(0), 2, 64)]);
}

#[test]
fn a_ceiling_holds_a_vf_back_and_drops_nothing() {
    let rig = Rig::new(2);
    rig.set(0, &VfChange { max_rate: Some(Mbps(80)), ..VfChange::default() });
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    let burst: Vec<_> = (0..32).map(|n| frame(mac(1), mac(0), n, 1500)).collect();
    // The bucket is full at first; empty it.
    let mut pushed = 0;
    let mut pump = |until: Duration| {
        let start = Instant::now();
        let mut got = 0u32;
        while start.elapsed() < until {
            let frames: Vec<_> = burst.iter().map(|frame| TxFrame::plain(frame)).collect();
            pushed += a.send(0, &frames).expect("sent") as u64;
            b.receive(0, 256, |_, frame| got += frame.len() as u32).expect("received");
            std::thread::sleep(Duration::from_micros(200));
        }
        f64::from(got) * 8.0 / start.elapsed().as_secs_f64() / 1e6
    };
    pump(Duration::from_millis(300));
    // On a loaded machine the sender itself may be slower than its ceiling, for a while.
    let mut best = 0.0f64;
    for _ in 0..20 {
        let rate = pump(Duration::from_millis(300));
        assert!(rate < 95.0, "{rate} Mb/s came through a ceiling of 80");
        best = best.max(rate);
        if best > 65.0 {
            break;
        }
    }
    assert!(best > 65.0, "only {best} Mb/s came through a ceiling of 80");
    let counters = rig.counters(0);
    assert!(counters.tx_drops.is_empty(), "{counters:?}");
    // Raised, the ring drains at once.
    rig.set(0, &VfChange { max_rate: Some(Mbps(0)), ..VfChange::default() });
    rig.eventually("what waited goes out", || {
        b.receive(0, 256, |_, _| {}).expect("received");
        rig.counters(0).tx.frames == pushed
    });
}

#[test]
fn settings_are_refused_whole_or_taken_whole() {
    let rig = Rig::new(2);
    let before = rig.status(0).settings;
    let refuse =
        |change: VfChange| rig.hardware.set_vf(&rig.pf(), index(0), &change).expect_err("refused");
    let error = refuse(VfChange { mac: Some(mac(1)), ..VfChange::default() });
    assert!(matches!(error, HardwareError::DuplicateMac { .. }), "{error}");
    refuse(VfChange {
        mtu: Some(Mtu::new(1400).expect("valid")),
        mac: Some(MacAddr::ZERO),
        ..VfChange::default()
    });
    refuse(VfChange { min_rate: Some(Mbps(2)), max_rate: Some(Mbps(1)), ..VfChange::default() });
    assert_eq!(rig.status(0).settings, before);
    assert!(matches!(rig.hardware.vf(&rig.pf(), index(2)), Err(HardwareError::NoVf { .. })));
    let other = PfId::Soft("other".parse().expect("a name"));
    assert!(matches!(rig.hardware.vf(&other, index(0)), Err(HardwareError::NoPf(_))));
    let scrubbed = rig.hardware.scrub(&rig.pf(), index(0)).expect("scrubbed");
    assert_eq!(scrubbed.settings, VfSettings::scrubbed());
}

#[test]
fn settings_survive_a_restart_and_a_second_owner_is_refused() {
    let mut rig = Rig::new(2);
    rig.set(0, &VfChange { vlan: Some(vlan(9).into()), ..VfChange::default() });
    let error = Nic::start(rig.config.clone()).err().expect("it runs already");
    assert!(matches!(error, NicError::Running { .. }), "{error}");
    drop(rig.nic.take());
    let again = Nic::start(rig.config.clone()).expect("starts again");
    rig.hardware = again.hardware();
    rig.nic = Some(again);
    assert_eq!(rig.status(0).settings.vlan, vlan(9));
}

#[test]
fn the_control_socket_is_the_same_hardware_line() {
    let rig = Rig::new(2);
    let client = Client::for_run_dir(rig.config.name.clone(), &rig.config.run_dir());
    let change = VfChange { max_rate: Some(Mbps(7)), ..VfChange::default() };
    assert_eq!(client.set_vf(&rig.pf(), index(1), &change).expect("taken"), rig.status(1));
    assert_eq!(client.pfs().expect("answers").len(), 1);
    assert_eq!(client.counters(&rig.pf(), index(1)).expect("answers"), rig.counters(1));
    let error =
        client.set_vf(&rig.pf(), index(1), &VfChange { mac: Some(mac(0)), ..VfChange::default() });
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("already that of VF 0"), "{error}");
}

#[test]
fn flows_are_spread_over_queue_pairs_and_each_stays_in_order() {
    let rig = Rig::with(2, |config| config.queue_pairs = 4);
    let many = VfOptions { pairs: 4, control: true, ..VfOptions::default() };
    let (mut a, mut b) = (rig.plain(0), rig.driver(1, many));
    assert_eq!(b.control(4, 0, &4u16.to_le_bytes(), SOON).expect("answered"), 0);
    let flow = |port: u16, number: u8| {
        let mut bytes = frame(mac(1), mac(0), number, 80);
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[14..34]
            .copy_from_slice(&[0x45, 0, 0, 66, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[34..36].copy_from_slice(&port.to_be_bytes());
        bytes[36..38].copy_from_slice(&4791u16.to_be_bytes());
        bytes
    };
    let sent: Vec<_> = (0..64u16).flat_map(|port| (0..2).map(move |n| flow(port, n))).collect();
    send(&mut a, &sent);
    let mut by_pair = Vec::new();
    for pair in 0..4 {
        let got = b.receive_all(pair, 128, A_WHILE).expect("received");
        for port in 0..64u16 {
            let order: Vec<u8> =
                got.iter().filter(|f| f[34..36] == port.to_be_bytes()).map(|f| f[79]).collect();
            assert!(order.is_empty() || order == [0, 1], "flow {port} came as {order:?}");
        }
        by_pair.push(got.len());
    }
    assert_eq!(by_pair.iter().sum::<usize>(), 128);
    assert!(by_pair.iter().all(|&count| count > 8), "{by_pair:?}");
    assert_eq!(b.control(4, 0, &1u16.to_le_bytes(), SOON).expect("answered"), 0);
    send(&mut a, &sent);
    assert_eq!(receive(&mut b, 128).len(), 128, "one pair now takes all");
}

#[test]
fn the_control_queue_does_what_trust_allows() {
    let rig = Rig::with(2, |_| {});
    let options = VfOptions { control: true, ..VfOptions::default() };
    let (mut a, mut b) = (rig.driver(0, options), rig.plain(1));
    let promiscuous = |driver: &mut lanekeeper_softnic::driver::VfDriver| {
        driver.control(0, 0, &[1], SOON).expect("answered")
    };
    assert_eq!(promiscuous(&mut a), 1, "not without trust");
    let stranger = MacAddr([2, 7, 7, 7, 7, 7]);
    let mut table = vec![1, 0, 0, 0];
    table.extend(stranger.0);
    table.extend([0; 4]);
    assert_eq!(a.control(1, 0, &table, SOON).expect("answered"), 1, "not without trust");
    rig.set(0, &VfChange { trust: Some(true), ..VfChange::default() });
    assert_eq!(a.control(1, 0, &table, SOON).expect("answered"), 0);
    let to_stranger = frame(stranger, mac(1), 1, 64);
    send(&mut b, std::slice::from_ref(&to_stranger));
    assert_eq!(receive(&mut a, 1), std::slice::from_ref(&to_stranger));
    assert_eq!(promiscuous(&mut a), 0);
    let to_nobody = frame(MacAddr([2, 8, 8, 8, 8, 8]), mac(1), 2, 64);
    send(&mut b, std::slice::from_ref(&to_nobody));
    assert_eq!(receive(&mut a, 1), std::slice::from_ref(&to_nobody));
    rig.set(0, &VfChange { trust: Some(false), ..VfChange::default() });
    send(&mut b, &[to_stranger, to_nobody]);
    assert!(intruders(&mut a).is_empty(), "what trust gave goes with it");
    assert_eq!(a.control(9, 9, &[1], SOON).expect("answered"), 1, "an unknown command");
}

#[test]
fn the_configuration_space_says_mac_link_and_mtu_as_they_are_now() {
    let rig = Rig::new(1);
    let mut a = rig.plain(0);
    let config = a.read_config().expect("read");
    assert_eq!((config.mac, config.status & 1, config.mtu), (mac(0).0, 1, 1500));
    rig.set(0, &VfChange { mtu: Some(Mtu::new(4200).expect("valid")), ..link(LinkState::Disable) });
    let config = a.read_config().expect("read");
    assert_eq!((config.status & 1, config.mtu), (0, 4200));
}

/// An IPv4/TCP super-frame of `payload` bytes to be cut at `size`, and its net header.
fn super_frame(payload: usize, size: u16) -> ([u8; 12], Vec<u8>) {
    let mut bytes = frame(mac(1), mac(0), 0, 14);
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    let total = (40 + payload) as u16;
    bytes.extend([0x45, 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|n| (n * 31) as u8));
    // flags NEEDS_CSUM, gso TCPv4, hdr_len, gso_size, csum_start, csum_offset
    let [size_low, size_high] = size.to_le_bytes();
    ([1, 1, 54, 0, size_low, size_high, 34, 0, 16, 0, 0, 0], bytes)
}

#[test]
fn a_super_frame_crosses_whole_where_the_receiver_takes_it() {
    let rig = Rig::new(2);
    let options = VfOptions { offloads: true, buffer_size: 4096, ..VfOptions::default() };
    let (mut a, mut b) = (rig.driver(0, options.clone()), rig.driver(1, options));
    let (header, bytes) = super_frame(60_000, 1400);
    let sent = a.send(0, &[TxFrame { header, frame: Gather::from_slice(&bytes) }]).expect("sent");
    assert_eq!(sent, 1);
    let mut got = Vec::new();
    rig.eventually("the frame comes", || {
        b.receive(0, 1, |header, frame| {
            let mut bytes = vec![0; frame.len()];
            frame.copy_at(0, &mut bytes);
            got.push((header.to_vec(), bytes));
        })
        .expect("received");
        !got.is_empty()
    });
    let (got_header, got_bytes) = &got[0];
    assert_eq!(got_header[..2], header[..2], "checksum and segmentation are still to be done");
    assert_eq!(got_header[4..10], header[4..10]);
    assert!(*got_bytes == bytes);
}

#[test]
fn a_super_frame_is_cut_for_a_receiver_that_takes_none() {
    let rig = Rig::new(2);
    let sender = VfOptions { offloads: true, buffer_size: 4096, ..VfOptions::default() };
    let (mut a, mut b) = (rig.driver(0, sender), rig.plain(1));
    let (header, bytes) = super_frame(10_000, 1400);
    a.send(0, &[TxFrame { header, frame: Gather::from_slice(&bytes) }]).expect("sent");
    let segments = receive(&mut b, 8);
    let payload: Vec<u8> = segments.iter().flat_map(|segment| segment[54..].to_vec()).collect();
    assert!(payload == bytes[54..], "the segments carry the payload in order");
    for segment in &segments {
        let pseudo: u32 = checksum_sum(&segment[26..34]) + 6 + (segment.len() as u32 - 34);
        assert_eq!(fold(pseudo + checksum_sum(&segment[34..])), 0xffff, "TCP checksum");
        assert_eq!(fold(checksum_sum(&segment[14..34])), 0xffff, "IP checksum");
    }
}

fn checksum_sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b)))
        .sum()
}

fn fold(mut sum: u32) -> u32 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

#[test]
fn a_hostile_ring_stops_its_vf_with_a_reason_and_nobody_else() {
    for kind in KINDS {
        let rig = Rig::new(3);
        let (mut a, mut b) = (rig.driver(0, of_kind(kind)), rig.driver(1, of_kind(kind)));
        let mut villain = rig.driver(2, of_kind(kind));
        let spec = villain.ring_spec(1).expect("a transmit ring");
        let memory = villain.guest_memory().clone();
        let poke = |at: u64, bytes: &[u8]| memory.write(at, bytes).expect("its own memory");
        // A descriptor that points outside of memory, made available.
        villain.send(0, &[TxFrame::plain(&frame(mac(1), mac(2), 1, 64))]).expect("sent");
        rig.eventually("an honest frame passes first", || rig.counters(2).tx.frames == 1);
        assert!(!villain.was_stopped());
        poke(spec.desc + 16, &(u64::MAX - 64).to_le_bytes());
        poke(spec.desc, &(u64::MAX - 64).to_le_bytes());
        if kind == RingKind::Split {
            poke(spec.avail + 2, &(0x7000u16).to_le_bytes());
        } else {
            let flags = 0x80u64 << 48 | 1 << 32 | 64;
            poke(spec.desc + 24, &flags.to_le_bytes());
        }
        villain.kick(1).expect("kicked");
        rig.eventually("the VF is stopped", || rig.status(2).stopped.is_some());
        rig.eventually("its VMM hears of it", || villain.was_stopped());
        assert_eq!(rig.counters(2).ring_faults, 1);
        assert!(!rig.status(2).link_up);
        let honest: Vec<_> = (0..50).map(|n| frame(mac(1), mac(0), n, 200)).collect();
        receive(&mut b, 1);
        send(&mut a, &honest);
        assert!(receive(&mut b, 50) == honest, "{kind:?}: the others go on");
        drop(villain);
        let mut reborn = rig.driver(2, of_kind(kind));
        assert_eq!(rig.status(2).stopped, None, "a driver that starts anew is served");
        send(&mut reborn, &[frame(mac(1), mac(2), 9, 64)]);
        assert_eq!(receive(&mut b, 1), [frame(mac(1), mac(2), 9, 64)]);
    }
}

#[test]
fn a_driver_may_reset_stop_and_reattach_while_others_talk() {
    for kind in KINDS {
        let rig = Rig::new(2);
        let (mut a, mut b) = (rig.driver(0, of_kind(kind)), rig.driver(1, of_kind(kind)));
        for round in 0..5 {
            send(&mut a, &[frame(mac(1), mac(0), round, 64)]);
            assert_eq!(receive(&mut b, 1), [frame(mac(1), mac(0), round, 64)]);
            b.reconnect().expect("reconnects");
            rig.eventually("attached again", || rig.status(1).attached);
        }
        drop(b);
        rig.eventually("detached", || !rig.status(1).attached);
        send(&mut a, &[frame(mac(1), mac(0), 1, 64)]);
        rig.eventually("frames for a VF without driver are counted", || {
            rig.counters(1).rx_dropped(DropReason::LinkDown) == 1
        });
    }
}

#[test]
fn a_front_end_that_breaks_the_protocol_is_hung_up_on_and_the_next_is_served() {
    use std::io::{Read, Write};
    let rig = Rig::new(2);
    let mut a = rig.plain(0);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        &[1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f],
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(rig.config.vf_socket(index(1)))
            .expect("connects");
        stream.set_read_timeout(Some(SOON)).expect("set");
        stream.write_all(garbage).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let mut b = rig.plain(1);
    send(&mut a, &[frame(mac(1), mac(0), 1, 64)]);
    assert_eq!(receive(&mut b, 1), [frame(mac(1), mac(0), 1, 64)]);
}

#[test]
fn several_workers_share_the_vfs_and_every_frame_arrives_once() {
    let rig = Rig::with(4, |config| config.cpus = vec![0, 1]);
    let mut vfs: Vec<_> = (0..4).map(|vf| rig.plain(vf)).collect();
    for round in 0..40u8 {
        for from in 0..4u32 {
            let frames: Vec<_> = (0..4u32)
                .filter(|to| *to != from)
                .flat_map(|to| (0..10).map(move |n| frame(mac(to), mac(from), round ^ n, 90)))
                .collect();
            send(&mut vfs[from as usize], &frames);
        }
        for vf in &mut vfs {
            assert_eq!(receive(vf, 30).len(), 30, "round {round}");
        }
    }
    for vf in &mut vfs {
        assert!(intruders(vf).is_empty());
    }
}

#[test]
fn a_nic_without_room_for_its_sockets_says_so_and_leaves_nothing() {
    let mut config = Config::new("nowhere".parse().expect("a name"), 1);
    config.run_dir = Some("/proc/lk-cannot-be".into());
    let error = Nic::start(config).err().expect("refused").to_string();
    assert!(error.contains("/proc/lk-cannot-be"), "{error}");
}

#[test]
fn a_nic_without_its_uplink_leaves_no_folder_unless_there_was_one() {
    let above = std::env::temp_dir().join(format!("lk-uplink-{}", std::process::id()));
    let mut config = Config::new("nouplink".parse().expect("a name"), 1);
    let interface = InterfaceName::new("lk-is-not-here").expect("a name");
    config.uplink = UplinkConfig::Packet { interface };
    config.run_dir = Some(above.join("nic"));
    assert!(matches!(Nic::start(config.clone()), Err(NicError::Uplink(_))));
    assert!(!above.join("nic").exists());
    config.run_dir = Some(above.clone());
    assert!(Nic::start(config).is_err());
    assert!(above.exists());
    std::fs::remove_dir_all(&above).expect("was there before");
}

/// An RDMA WRITE of RoCE v1 that wants an acknowledgement, as a NIC sends it: GRH, BTH, RETH.
fn roce_write(psn: u8) -> Vec<u8> {
    let mut frame = vec![0; 14 + 40 + 12 + 16 + 64 + 4];
    frame[..6].copy_from_slice(&mac(1).0);
    frame[6..12].copy_from_slice(&mac(0).0);
    // Annex A16: the Ethertype; then a GRH, which is laid out as an IPv6 header.
    frame[12..14].copy_from_slice(&[0x89, 0x15]);
    frame[14] = 0x60;
    frame[14 + 6..14 + 8].copy_from_slice(&[0x1b, 64]);
    frame[14 + 8 + 15] = 1;
    frame[14 + 24 + 15] = 2;
    // RC RDMA WRITE ONLY to queue pair 17.
    let bth = 14 + 40;
    frame[bth] = 0x0a;
    frame[bth + 2..bth + 4].fill(0xff);
    frame[bth + 7] = 17;
    frame[bth + 8] = 0x80;
    frame[bth + 11] = psn;
    frame
}

#[test]
fn roce_is_told_by_vf_and_queue_pair_through_the_control_socket() {
    let rig = Rig::with(2, |config| config.roce_sampling = 1);
    let (mut a, mut b) = (rig.driver(0, VfOptions::default()), rig.driver(1, VfOptions::default()));
    send(&mut a, &[roce_write(0), roce_write(1), roce_write(0), frame(mac(1), mac(0), 7, 100)]);
    assert_eq!(receive(&mut b, 4).len(), 4);
    let name = &rig.config.name;
    let report = Client::for_run_dir(name.clone(), &rig.dir).roce(name).expect("told");
    let (vf, seen) = report.vfs.first_key_value().expect("VF 0 has sent");
    assert_eq!((vf.get(), seen.packets, seen.messages, seen.retransmitted), (0, 3, 3, 1));
    let [pair] = report.pairs.as_slice() else { panic!("{report:?}") };
    assert_eq!((pair.qp, pair.version), (17, 1));
}
