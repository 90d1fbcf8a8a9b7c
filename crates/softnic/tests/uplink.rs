//! Uplinks on real interfaces: veth pairs and TAPs in network namespaces of their own. Needs root;
//! says so and passes otherwise.

#[path = "uplink/frames.rs"]
mod frames;
#[path = "uplink/hosts.rs"]
mod hosts;

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use lanekeeper_model::{Mtu, Pcp, VlanId, VlanProtocol, VlanTag};
use lanekeeper_softnic::ring::Gather;
use lanekeeper_softnic::uplink::{NetHeader, Sent, Uplink, UplinkConfig, UplinkError};

use frames::{
    NO_OFFLOAD, arp_request, echo_request, ethernet, numbered, tagged, tcp_super_frame, udp_flow,
};
use hosts::{OwnHost, Pair, is_readable, packet, tap};

const ALL: u32 = u32::MAX;

fn tags() -> [(&'static str, Vec<(u16, u16)>); 4] {
    [
        ("untagged", vec![]),
        ("802.1Q", vec![(0x8100, 0xa123)]),
        ("802.1ad", vec![(0x88a8, 0x6005)]),
        ("802.1Q in 802.1ad", vec![(0x88a8, 0x0005), (0x8100, 0x2007)]),
    ]
}

/// One frame arrived, with its bytes and its offload.
fn assert_same(arrived: &[(NetHeader, Vec<u8>)], header: &NetHeader, frame: &[u8], what: &str) {
    let [(described, bytes)] = arrived else { panic!("{what}: {} frames", arrived.len()) };
    assert!(bytes == frame, "{what}: the bytes differ");
    // hdr_len is a hint and the kernel's own; the rest must be as it was.
    assert_eq!(described[..2], header[..2], "{what}: flags and kind");
    assert_eq!(described[4..], header[4..], "{what}: segment size and checksum");
}

#[test]
fn frames_cross_both_ways_with_the_tags_they_had() {
    let Some(pair) = Pair::new("tags", 1500) else { return };
    for queues in [1, 4] {
        let (mut left, mut right) = pair.open(queues);
        for (what, tags) in tags() {
            for payload in [46, 1000, 1492] {
                let frame = tagged(&ethernet(payload), &tags);
                assert_eq!(left.send(&[(NO_OFFLOAD, &frame)]).taken, 1, "{what}");
                assert_eq!(right.receive(1), [(NO_OFFLOAD, frame.clone())], "{what}, {queues}");
                assert_eq!(right.send(&[(NO_OFFLOAD, &frame)]).taken, 1, "{what}");
                assert_eq!(left.receive(1), [(NO_OFFLOAD, frame)], "{what}, back, {queues}");
            }
        }
    }
}

#[test]
fn a_full_frame_has_room_for_one_customer_tag_and_the_mtu_check_knows_it() {
    let Some(pair) = Pair::new("full", 1500) else { return };
    let (mut left, mut right) = pair.open(1);
    let full = ethernet(1500);
    let tag = |protocol: VlanProtocol| VlanTag {
        id: VlanId::new(5).expect("valid"),
        pcp: Pcp::default(),
        protocol,
    };
    let mtu = Mtu::ETHERNET;
    let customer = tagged(&full, &[(VlanProtocol::Dot1Q.ethertype(), 5)]);
    assert!(left.uplink.check_mtu(mtu, tag(VlanProtocol::Dot1Q)).is_ok());
    assert_eq!(left.send(&[(NO_OFFLOAD, &customer)]).taken, 1);
    assert_eq!(right.receive(1), [(NO_OFFLOAD, customer)]);

    let service = tagged(&full, &[(VlanProtocol::Dot1Ad.ethertype(), 5)]);
    let error = left.uplink.check_mtu(mtu, tag(VlanProtocol::Dot1Ad)).expect_err("4 too long");
    assert!(error.to_string().contains("mtu 1504"), "{error}");
    assert_eq!(left.send(&[(NO_OFFLOAD, &service)]).refused, 1);

    let jumbo = left.uplink.check_mtu(Mtu::new(9000).expect("valid"), VlanTag::default());
    assert!(matches!(jumbo, Err(UplinkError::Mtu { uplink: 1500, needed: 9000, .. })));
}

#[test]
fn jumbo_frames_cross() {
    let Some(pair) = Pair::new("jumbo", 9202) else { return };
    let (mut left, mut right) = pair.open(1);
    for tags in [vec![], vec![(0x8100, 7)]] {
        let frame = tagged(&ethernet(9202), &tags);
        assert_eq!(left.send(&[(NO_OFFLOAD, &frame)]).taken, 1);
        assert_eq!(right.receive(1), [(NO_OFFLOAD, frame)]);
    }
}

#[test]
fn a_super_frame_crosses_in_one_piece_with_its_offload_tagged_or_not() {
    let Some(pair) = Pair::new("super", 1500) else { return };
    let (mut left, mut right) = pair.open(1);
    for (what, tags) in tags() {
        let (header, frame) = tcp_super_frame(65_000, 1448, &tags);
        assert_eq!(left.send(&[(header, &frame)]).taken, 1, "{what}");
        assert_same(&right.receive(1), &header, &frame, what);
    }
}

#[test]
fn a_super_frame_is_segmented_where_the_interface_takes_none() {
    let Some(pair) = Pair::new("segment", 1500) else { return };
    pair.left.host.ip(&["link", "set", "wire", "gso_max_size", "1500"]);
    let (mut left, mut right) = pair.open(1);
    for (what, tags) in tags() {
        let (header, frame) = tcp_super_frame(10 * 1448, 1448, &tags);
        assert_eq!(left.send(&[(header, &frame)]).taken, 1, "{what}");
        let segments = right.receive(10);
        let headers = frame.len() - 10 * 1448;
        let payload: Vec<u8> =
            segments.iter().flat_map(|(_, segment)| segment[headers..].to_vec()).collect();
        assert_eq!(payload, frame[headers..], "{what}");
        for (_, segment) in &segments {
            assert_eq!(segment[12..headers - 40], frame[12..headers - 40], "{what}: the tags");
        }
    }
}

#[test]
fn a_batch_costs_one_system_call_and_arrives_as_one_in_order() {
    let Some(pair) = Pair::new("batch", 1500) else { return };
    let (mut left, mut right) = pair.open(1);
    let frames: Vec<_> = (0..32).map(numbered).collect();
    let batch: Vec<_> = frames.iter().map(|frame| (NO_OFFLOAD, &frame[..])).collect();
    let sent = left.send(&batch);
    assert_eq!(sent, Sent { taken: ALL, calls: 1, ..Sent::default() });
    right.wait();
    right.queues[0].receive(&mut right.batch);
    let arrived: Vec<_> = right.batch.iter().map(|(_, frame)| frame.to_vec()).collect();
    assert_eq!(arrived, frames);
}

#[test]
fn a_frame_the_kernel_refuses_costs_only_itself() {
    let Some(pair) = Pair::new("refuse", 1500) else { return };
    let (mut left, mut right) = pair.open(1);
    let frames: Vec<_> = (0..32).map(numbered).collect();
    let long = ethernet(1600);
    let mut batch: Vec<_> = frames.iter().map(|frame| (NO_OFFLOAD, &frame[..])).collect();
    // A checksum that starts behind the frame's end, a frame above the MTU, one without a header.
    batch[0].0 = [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
    batch[9].1 = &long;
    batch[31].1 = &frames[31][..5];
    let bad = 1 | 1 << 9 | 1 << 31;
    let sent = left.send(&batch);
    assert_eq!((sent.taken, sent.refused, sent.busy, sent.link_down), (!bad, bad, 0, 0));
    let good = (0..32).filter(|i| bad >> i & 1 == 0).map(|i| (NO_OFFLOAD, numbered(i)));
    assert_eq!(right.receive(29), good.collect::<Vec<_>>());
}

#[test]
fn a_scattered_frame_arrives_whole() {
    let Some(pair) = Pair::new("scatter", 1500) else { return };
    let (mut left, mut right) = pair.open(1);
    let frames: Vec<_> = (0..32).map(numbered).collect();
    let mut batch = left.queues[0].batch();
    for frame in &frames {
        // Head, a rest of the old head, body: three pieces.
        let (head, body) = frame.split_at(20);
        let judged = Gather::from_slice(body).replace_head(&head[14..], 0);
        let whole = judged.replace_head(&head[..14], 0);
        assert!(batch.push(&NO_OFFLOAD, whole).is_some());
    }
    assert!(batch.push(&NO_OFFLOAD, Gather::from_slice(&frames[0])).is_none(), "33rd");
    assert_eq!(batch.send().taken, ALL);
    let wanted: Vec<_> = frames.into_iter().map(|frame| (NO_OFFLOAD, frame)).collect();
    assert_eq!(right.receive(32), wanted);
}

#[test]
fn what_leaves_by_the_interface_does_not_arrive_whoever_sends_it() {
    let Some(pair) = Pair::new("echo", 1500) else { return };
    for queues in [1, 4] {
        let (mut left, mut right) = pair.open(queues);
        let mut another = pair.left.host.open(&packet("wire"), 1).expect("opens");
        another.until(|status| status.carrier);
        for number in 0..8 {
            let frame = numbered(number);
            let sender = if number < 4 { &mut another } else { &mut left };
            assert_eq!(sender.send(&[(NO_OFFLOAD, &frame)]).taken, 1);
        }
        assert_eq!(right.receive(8).len(), 8);
        assert_eq!(left.receive_for(Duration::from_millis(100)), []);
    }
}

#[test]
fn the_interface_is_promiscuous_as_long_as_the_uplink_is_open() {
    let Some(pair) = Pair::new("promisc", 1500) else { return };
    let host = &pair.left.host;
    assert_eq!(host.promiscuity("wire"), 0);
    let end = host.open(&packet("wire"), 3).expect("opens");
    assert_eq!(host.promiscuity("wire"), 3);
    drop(end);
    assert_eq!(host.promiscuity("wire"), 0);
}

#[test]
fn flows_spread_over_the_queues_and_each_stays_on_one() {
    // Not a multiple of the queues: dealing out in turn would tear flows apart.
    const FLOWS: usize = 61;
    let Some(pair) = Pair::new("flows", 1500) else { return };
    let (mut left, mut right) = pair.open(4);
    for _ in 0..4 {
        for flow in 0..FLOWS as u16 {
            let frame = udp_flow(flow);
            assert_eq!(left.send(&[(NO_OFFLOAD, &frame)]).taken, 1);
        }
    }
    let mut queues_of = HashMap::<Vec<u8>, HashSet<usize>>::new();
    for (queue, frame) in right.receive_with_queue(4 * FLOWS) {
        queues_of.entry(frame).or_default().insert(queue);
    }
    assert_eq!(queues_of.len(), FLOWS);
    assert!(queues_of.values().all(|queues| queues.len() == 1));
    let used: HashSet<_> = queues_of.values().flatten().collect();
    assert!(used.len() > 1, "all flows on queue {used:?}");
}

#[test]
fn a_lost_carrier_is_noticed_without_asking_and_so_is_its_return() {
    let Some(pair) = Pair::new("carrier", 1500) else { return };
    let (mut left, _right) = pair.open(2);
    assert!(left.queues[0].carrier());
    assert!(!is_readable(left.uplink.fd(), Duration::ZERO), "nothing has happened yet");

    pair.right.host.ip(&["link", "set", "wire", "down"]);
    let status = left.until(|status| !status.carrier);
    assert_eq!(status.mtu, Some(1500));
    let sent = left.send(&[(NO_OFFLOAD, &numbered(0))]);
    assert_eq!(sent, Sent { link_down: 1, ..Sent::default() }, "no system call for a dead link");

    pair.right.host.ip(&["link", "set", "wire", "up"]);
    left.until(|status| status.carrier);
    assert_eq!(left.send(&[(NO_OFFLOAD, &numbered(0))]).taken, 1);
}

#[test]
fn a_changed_mtu_is_noticed() {
    let Some(pair) = Pair::new("mtu", 1500) else { return };
    let (mut left, _right) = pair.open(1);
    pair.left.host.ip(&["link", "set", "wire", "mtu", "9000"]);
    left.until(|status| status.mtu == Some(9000));
    assert_eq!(left.uplink.link().status().mtu, Some(9000));
}

#[test]
fn an_interface_taken_down_and_up_again_goes_on() {
    let Some(pair) = Pair::new("flap", 1500) else { return };
    let (mut left, mut right) = pair.open(2);
    pair.left.host.ip(&["link", "set", "wire", "down"]);
    pair.left.host.ip(&["link", "set", "wire", "up"]);
    left.until(|status| status.carrier);
    right.until(|status| status.carrier);
    let frame = numbered(0);
    for queue in 0..2 {
        assert_eq!(left.send_on(queue, &[(NO_OFFLOAD, &frame)]).taken, 1, "queue {queue}");
    }
    assert_eq!(right.receive(2).len(), 2);
    assert_eq!(right.send(&[(NO_OFFLOAD, &frame)]).taken, 1);
    assert_eq!(left.receive(1).len(), 1);
}

#[test]
fn an_interface_that_is_down_at_first_is_attached_once_it_is_up() {
    let Some(pair) = Pair::new("down", 1500) else { return };
    pair.left.host.ip(&["link", "set", "wire", "down"]);
    for queues in [1, 2] {
        let (mut left, mut right) = pair.open_as_it_is(queues);
        assert!(!left.queues[0].carrier());
        pair.left.host.ip(&["link", "set", "wire", "up"]);
        left.until(|status| status.carrier);
        right.until(|status| status.carrier);
        assert_eq!(right.send(&[(NO_OFFLOAD, &numbered(1))]).taken, 1);
        assert_eq!(left.receive(1), [(NO_OFFLOAD, numbered(1))]);
        pair.left.host.ip(&["link", "set", "wire", "down"]);
    }
}

#[test]
fn an_interface_that_goes_and_comes_back_is_found_by_the_same_queues() {
    let Some(pair) = Pair::new("gone", 1500) else { return };
    for queues in [1, 3] {
        let (mut left, mut right) = pair.open(queues);
        pair.left.host.ip(&["link", "delete", "wire"]);
        for end in [&mut left, &mut right] {
            let status = end.until(|status| status.mtu.is_none());
            assert!(!status.carrier);
            assert_eq!(end.receive_for(Duration::from_millis(20)), []);
            for queue in &end.queues {
                assert!(!is_readable(queue.fd(), Duration::ZERO), "wakes its worker for nothing");
            }
            assert_eq!(end.send(&[(NO_OFFLOAD, &numbered(0))]).link_down, 1);
        }
        // Attempts while there is nothing change nothing.
        std::thread::sleep(Duration::from_millis(1100));
        assert!(is_readable(left.uplink.fd(), Duration::ZERO), "the timer for the next attempt");
        assert_eq!(left.refresh(), None);

        pair.cable();
        for end in [&mut left, &mut right] {
            end.until(|status| status.carrier);
        }
        for queue in 0..queues {
            let frame = numbered(queue as u32);
            assert_eq!(left.send_on(queue, &[(NO_OFFLOAD, &frame)]).taken, 1);
            assert_eq!(right.receive(1), [(NO_OFFLOAD, frame)]);
        }
        // Not what is sent on other interfaces, and with the tag: as the first time.
        let frame = tagged(&ethernet(100), &[(0x88a8, 9)]);
        assert_eq!(right.send(&[(NO_OFFLOAD, &frame)]).taken, 1);
        assert_eq!(left.receive(1), [(NO_OFFLOAD, frame)]);
        left.settle();
        assert!(!is_readable(left.uplink.fd(), Duration::from_millis(1100)), "timer still runs");
    }
}

#[test]
fn frames_that_a_queue_was_too_slow_for_are_counted() {
    let Some(pair) = Pair::new("missed", 1500) else { return };
    let (mut left, mut right) = pair.open(1);
    assert_eq!(right.queues[0].missed(), 0);
    let (header, frame) = tcp_super_frame(65_000, 1448, &[]);
    let sent: u32 = (0..400).map(|_| left.send(&[(header, &frame)]).taken).sum();
    assert_eq!(sent, 400);
    let mut arrived = 0;
    while is_readable(right.queues[0].fd(), Duration::ZERO) {
        right.queues[0].receive(&mut right.batch);
        arrived += right.batch.len() as u64;
    }
    assert!(arrived < 400, "the buffer holds all of them");
    assert_eq!(right.queues[0].missed(), 400 - arrived);
    assert_eq!(right.queues[0].missed(), 0, "counted once");
}

#[test]
fn the_hosts_stack_answers_over_a_tap() {
    let Some(host) = OwnHost::new("tap") else { return };
    for (name, queues) in [("one", 1), ("four", 4)] {
        let mut end = host.open(&tap(name, Some(4000)), queues).expect("opens");
        assert!(end.queues[0].carrier(), "a TAP made here is up");
        assert_eq!(end.uplink.link().status().mtu, Some(4000));
        host.ip(&["address", "add", "10.77.0.1/24", "dev", name]);
        let (us, them) = (Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(end.send(&[(NO_OFFLOAD, &arp_request(us, them))]).taken, 1);
        let reply = end.first(|frame| frames::is_arp_reply(frame, them));
        let their_mac: [u8; 6] = reply[6..12].try_into().expect("six bytes");

        let ping = echo_request(us, them, their_mac, 3000);
        assert_eq!(end.send(&[(NO_OFFLOAD, &ping)]).taken, 1);
        end.first(|frame| frames::is_echo_reply(frame, them, us, 3000));
    }
}

#[test]
fn tags_and_super_frames_cross_a_tap_both_ways() {
    let Some(host) = OwnHost::new("tagtap") else { return };
    for (name, queues) in [("one", 1), ("three", 3)] {
        let mut tap = host.open(&tap(name, None), queues).expect("opens");
        // The other end is the interface itself, as the host sees it.
        let mut seen = host.open(&packet(name), 1).expect("opens");
        tap.until(|status| status.carrier);
        seen.until(|status| status.carrier);
        for (what, tags) in tags() {
            let small = (NO_OFFLOAD, tagged(&ethernet(100), &tags));
            let large = tcp_super_frame(65_000, 1448, &tags);
            for (header, frame) in [small, large] {
                assert_eq!(tap.send_on(queues - 1, &[(header, &frame)]).taken, 1, "{what}");
                assert_same(&seen.receive(1), &header, &frame, what);
                assert_eq!(seen.send(&[(header, &frame)]).taken, 1, "{what}");
                assert_same(&tap.receive(1), &header, &frame, what);
            }
        }
    }
}

#[test]
fn a_tap_that_is_deleted_is_made_again() {
    let Some(host) = OwnHost::new("retap") else { return };
    let mut end = host.open(&tap("lktap", None), 2).expect("opens");
    host.ip(&["link", "delete", "lktap"]);
    // Gone and back in one refresh, or in two.
    assert!(is_readable(end.uplink.fd(), Duration::from_secs(2)));
    while end.refresh().is_some() || !end.uplink.link().carrier() {}
    for queue in &end.queues {
        assert!(!is_readable(queue.fd(), Duration::ZERO), "wakes its worker for nothing");
    }
    host.ip(&["address", "add", "10.77.0.1/24", "dev", "lktap"]);
    let (us, them) = (Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 1));
    for queue in 0..2 {
        let request = arp_request(us, them);
        assert_eq!(end.send_on(queue, &[(NO_OFFLOAD, &request)]).taken, 1);
        end.first(|frame| frames::is_arp_reply(frame, them));
    }
}

#[test]
fn a_tap_whose_name_is_taken_meanwhile_waits_in_silence() {
    let Some(host) = OwnHost::new("taken") else { return };
    let mut end = host.open(&tap("lktap", None), 2).expect("opens");
    host.ip(&["link", "delete", "lktap"]);
    host.ip(&["link", "add", "lktap", "type", "veth", "peer", "name", "other"]);
    end.until(|status| !status.carrier);
    for _ in 0..2 {
        end.refresh();
        for queue in &end.queues {
            assert!(!is_readable(queue.fd(), Duration::ZERO), "wakes its worker for nothing");
        }
    }
    host.ip(&["link", "delete", "lktap"]);
    end.until(|status| status.carrier);
    assert_eq!(end.send_on(1, &[(NO_OFFLOAD, &numbered(0))]).taken, 1);
}

#[test]
fn a_tap_that_is_down_loses_its_carrier() {
    let Some(host) = OwnHost::new("downtap") else { return };
    let mut end = host.open(&tap("lktap", None), 1).expect("opens");
    host.ip(&["link", "set", "lktap", "down"]);
    end.until(|status| !status.carrier);
    assert_eq!(end.send(&[(NO_OFFLOAD, &numbered(0))]).link_down, 1);
    host.ip(&["link", "set", "lktap", "up"]);
    end.until(|status| status.carrier);
    assert_eq!(end.send(&[(NO_OFFLOAD, &numbered(0))]).taken, 1);
}

#[test]
fn a_tap_in_another_namespace_still_carries_frames() {
    let Some(pair) = Pair::new("movetap", 1500) else { return };
    let (host, other) = (&pair.left.host, &pair.right.host);
    let mut end = host.open(&tap("lktap", None), 1).expect("opens");
    host.ip(&["link", "set", "lktap", "netns", other.name()]);
    end.until(|status| status.mtu.is_none());
    assert!(end.queues[0].carrier());
    other.ip(&["address", "add", "10.77.0.1/24", "dev", "lktap"]);
    other.ip(&["link", "set", "lktap", "up"]);
    let (us, them) = (Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 1));
    assert_eq!(end.send(&[(NO_OFFLOAD, &arp_request(us, them))]).taken, 1);
    end.first(|frame| frames::is_arp_reply(frame, them));
}

#[test]
fn a_missing_interface_is_named_with_those_there_are() {
    let Some(pair) = Pair::new("missing", 1500) else { return };
    let error = pair.left.host.open(&packet("eth9"), 1).err().expect("no such interface");
    let text = error.to_string();
    assert!(text.contains("'eth9'") && text.contains("lo, ") && text.contains("wire"), "{text}");
}

#[test]
fn a_tap_name_in_use_or_of_another_kind_is_refused_with_the_reason() {
    let Some(pair) = Pair::new("busy", 1500) else { return };
    let host = &pair.left.host;
    let refusal = |config: &UplinkConfig, queues| {
        host.open(config, queues).err().expect("refused").to_string()
    };
    let _holder = host.open(&tap("lktap", None), 1).expect("opens");
    assert!(refusal(&tap("lktap", None), 1).contains("in use by another process"));
    assert!(refusal(&tap("lktap", None), 2).contains("one queue, but there are 2 workers"));
    assert!(refusal(&tap("wire", None), 1).contains("is no TAP"));
    assert!(refusal(&tap("wire", None), 2).contains("kind = \"packet\", interface = \"wire\""));
    assert!(refusal(&packet("wire"), 0).contains("1 to 256"));
    assert!(refusal(&packet("wire"), 257).contains("1 to 256"));
}

#[test]
fn a_tap_of_several_queues_has_one_owner_too() {
    let Some(host) = OwnHost::new("own") else { return };
    let busy = |queues| {
        let error = host.open(&tap("lktap", None), queues).err().expect("in use");
        assert!(matches!(error, UplinkError::TapBusy { .. }), "{error}");
    };
    let holder = host.open(&tap("lktap", None), 2).expect("opens");
    busy(2);
    busy(1);
    drop(holder);
    host.ip(&["tuntap", "add", "dev", "lktap", "mode", "tap", "multi_queue"]);
    for queues in [1, 2] {
        let holder = host.open(&tap("lktap", None), queues).expect("nobody has it");
        busy(1);
        busy(2);
        drop(holder);
    }
}

#[test]
fn a_persistent_tap_of_either_sort_can_be_used() {
    let Some(host) = OwnHost::new("ptap") else { return };
    host.ip(&["tuntap", "add", "dev", "single", "mode", "tap"]);
    host.ip(&["tuntap", "add", "dev", "multi", "mode", "tap", "multi_queue"]);
    for (tap_name, queues) in [("single", 1), ("multi", 1), ("multi", 3)] {
        let end = host.open(&tap(tap_name, None), queues).expect("opens");
        assert!(!end.queues[0].carrier(), "it was not brought up by its owner");
    }
    let error = host.open(&tap("single", None), 3).err().expect("has one queue").to_string();
    assert!(error.contains("one queue, but there are 3 workers"), "{error}");
}

#[test]
fn without_the_capability_the_error_says_which() {
    let Some(pair) = Pair::new("caps", 1500) else { return };
    let nobody = rustix::process::Uid::from_raw(65534);
    let (first, second) = pair.left.host.run(|| {
        // Of this thread only, which ends here.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        let attempt = |config| Uplink::open(config, 1).err().expect("not allowed").to_string();
        (attempt(&packet("wire")), attempt(&tap("lktap", None)))
    });
    assert!(first.contains("CAP_NET_RAW"), "{first}");
    assert!(second.contains("CAP_NET_ADMIN"), "{second}");
}

#[test]
fn no_uplink_takes_nothing_and_gives_nothing() {
    let (mut uplink, mut queues) = Uplink::open(&UplinkConfig::None, 2).expect("always");
    assert_eq!(queues.len(), 2);
    assert!(uplink.fd().is_none() && queues[0].fd().is_none());
    assert_eq!(uplink.refresh(), None);
    let frame = numbered(0);
    let mut batch = queues[1].batch();
    batch.push(&NO_OFFLOAD, Gather::from_slice(&frame));
    assert_eq!(batch.send(), Sent { link_down: 1, ..Sent::default() });
    let mut arrived = lanekeeper_softnic::uplink::ReceiveBatch::new();
    queues[0].receive(&mut arrived);
    assert!(arrived.is_empty());
    assert!(uplink.check_mtu(Mtu::new(9000).expect("valid"), VlanTag::default()).is_ok());
}
