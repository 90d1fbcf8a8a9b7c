//! Two hosts on a cable.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use lanekeeper_roce::transport::{PacketConfig, PacketWire, UdpConfig, UdpWire, Wire, WireError};
use lanekeeper_roce::wire::{Ecn, Flow, Gid, Opcode, PathMtu, Version};
use lanekeeper_testbed::netns::{Lab, Namespace};

use super::{PATIENCE, every_opcode_arrives, headers, receive, send};

pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    root
}

pub(crate) fn gid(address: &str) -> Gid {
    address.parse::<IpAddr>().expect("an address").into()
}

pub(crate) fn udp(host: &Namespace, local: &str) -> UdpWire {
    let config = UdpConfig { mtu: 9000, ..UdpConfig::new(local.parse().expect("an address")) };
    let start = Instant::now();
    loop {
        match host.run(|| UdpWire::open(&config)).expect("enters") {
            // A socket that is closed lives on for a moment in a process that another test starts.
            Err(WireError::System { source, .. })
                if source.kind() == ErrorKind::AddrInUse && start.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            wire => return wire.expect("opens"),
        }
    }
}

pub(crate) fn packet(
    host: &Namespace,
    version: Version,
    local: &str,
    vlan: Option<u16>,
) -> PacketWire {
    let config = PacketConfig { interface: "wire0".into(), version, local: gid(local), vlan };
    host.run(|| PacketWire::open(config)).expect("enters").expect("opens")
}

/// Two hosts, 10.0.0.1 and fd00::1, 10.0.0.2 and fd00::2.
fn two_hosts(lab: &mut Lab) -> (Namespace, Namespace) {
    let (a, b) = (lab.namespace("a").expect("made"), lab.namespace("b").expect("made"));
    lab.cable((&a, "wire0"), (&b, "wire0"), 9000).expect("joined");
    for (host, number) in [(&a, 1), (&b, 2)] {
        let path = "/proc/sys/net/ipv6/conf/wire0/disable_ipv6";
        host.run(|| std::fs::write(path, "0")).expect("enters").expect("written");
        host.add_address("wire0", &format!("10.0.0.{number}/24")).expect("set");
        let address = format!("fd00::{number}/64");
        host.ip(&["address", "add", &address, "dev", "wire0", "nodad"]).expect("set");
    }
    (a, b)
}

/// A flow with something in every field.
fn flow(version: Version, source: &str, dest: &str) -> Flow {
    let flow = Flow::new(version, gid(source), gid(dest));
    Flow { dscp: 26, ecn: Ecn::Ce, hop_limit: 17, ..flow }
}

#[test]
fn udp_sockets_carry_every_opcode_and_say_how_it_came() {
    if !is_root() {
        return;
    }
    let mut lab = Lab::new("udp");
    let (a, b) = two_hosts(&mut lab);
    for (left, right) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let (mut from, mut to) = (udp(&a, left), udp(&b, right));
        let there = flow(Version::V2, left, right);
        every_opcode_arrives(&mut from, &mut to, &there);
        every_opcode_arrives(&mut to, &mut from, &flow(Version::V2, right, left));
        send(&mut from, &there, &headers(Opcode::RC_SEND_ONLY), &[b"x"]);
        let (came, ..) = receive(&mut to);
        assert_eq!(Flow { source_port: 0, ..came }, Flow { source_port: 0, ..there });
        assert!(came.source_port >= 0xc000, "{}", came.source_port);
    }
}

#[test]
fn packet_sockets_carry_every_opcode_of_both_versions_tagged_and_not() {
    if !is_root() {
        return;
    }
    let mut lab = Lab::new("packet");
    let (a, b) = two_hosts(&mut lab);
    for (version, left, right, vlan) in [
        (Version::V1, "fe80::1", "fe80::2", None),
        (Version::V1, "10.9.0.1", "10.9.0.2", Some(0x6064)),
        (Version::V2, "10.9.0.1", "10.9.0.2", None),
        (Version::V2, "10.9.0.1", "10.9.0.2", Some(0x0064)),
        (Version::V2, "fd09::1", "fd09::2", Some(0x0065)),
    ] {
        let mut from = packet(&a, version, left, vlan);
        let mut to = packet(&b, version, right, vlan);
        from.name_station(gid(right), to.mac());
        let there = flow(version, left, right);
        every_opcode_arrives(&mut from, &mut to, &there);
        // The way back was learnt.
        every_opcode_arrives(&mut to, &mut from, &flow(version, right, left));
        send(&mut from, &there, &headers(Opcode::RC_SEND_ONLY), &[b"x"]);
        assert_eq!(receive(&mut to).0, there);
    }
}

#[test]
fn what_a_udp_socket_sends_has_the_right_icrc_to_the_last_bit() {
    if !is_root() {
        return;
    }
    // The other end sees the whole IP header, and gives nothing for granted.
    let mut lab = Lab::new("exact");
    let (a, b) = two_hosts(&mut lab);
    for (left, right) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let (mut from, mut to) = (udp(&a, left), packet(&b, Version::V2, right, None));
        every_opcode_arrives(&mut from, &mut to, &flow(Version::V2, left, right));
        drop(to);
        let (mut from, mut to) = (from, udp(&b, right));
        every_opcode_arrives(&mut from, &mut to, &flow(Version::V2, left, right));
    }
}

#[test]
fn a_full_path_mtu_crosses_unfragmented_and_a_longer_packet_is_refused() {
    if !is_root() {
        return;
    }
    let mut lab = Lab::new("mtu");
    let (a, b) = two_hosts(&mut lab);
    let (mut from, mut to) = (udp(&a, "10.0.0.1"), udp(&b, "10.0.0.2"));
    assert_eq!(from.path_mtu(), PathMtu::M4096);
    let there = flow(Version::V2, "10.0.0.1", "10.0.0.2");
    let bytes: Vec<u8> = (0..4096_u32).map(|i| (i % 251) as u8).collect();
    send(&mut from, &there, &headers(Opcode::RC_WRITE_ONLY_IMMEDIATE), &[&bytes]);
    assert_eq!(receive(&mut to).2, bytes);
    let refused = from.send(&there, &headers(Opcode::RC_SEND_ONLY), &[&[0; 8999]]);
    assert!(matches!(refused, Err(WireError::TooLong { length: 8999 })));
}

#[test]
fn a_station_that_nobody_named_is_not_sent_to() {
    if !is_root() {
        return;
    }
    let mut lab = Lab::new("who");
    let (a, b) = two_hosts(&mut lab);
    let mut from = packet(&a, Version::V1, "10.9.0.1", None);
    let send_only = headers(Opcode::RC_SEND_ONLY);
    let unknown = from.send(&flow(Version::V1, "10.9.0.1", "10.9.0.2"), &send_only, &[]);
    assert!(matches!(unknown, Err(WireError::NoNeighbour(_))));
    // But a link-local GID of the usual form says it itself.
    let mac = packet(&b, Version::V1, "fe80::2", None).mac().0;
    let mut local = gid("fe80::ff:fe00:0");
    local.0[8..11].copy_from_slice(&mac[..3]);
    local.0[13..].copy_from_slice(&mac[3..]);
    local.0[8] ^= 2;
    let mut to = packet(&b, Version::V1, &local.to_string(), None);
    let there = Flow::new(Version::V1, gid("10.9.0.1"), local);
    send(&mut from, &there, &send_only, &[b"hello"]);
    assert_eq!(receive(&mut to).2, b"hello");
}

#[test]
fn frames_of_another_vlan_are_not_heard() {
    if !is_root() {
        return;
    }
    let mut lab = Lab::new("vlan");
    let (a, b) = two_hosts(&mut lab);
    let mut other = packet(&a, Version::V1, "10.9.0.1", Some(101));
    let mut ours = packet(&a, Version::V1, "10.9.0.1", Some(100));
    let mut to = packet(&b, Version::V1, "10.9.0.2", Some(100));
    let there = flow(Version::V1, "10.9.0.1", "10.9.0.2");
    for (wire, text) in [(&mut other, "not this"), (&mut ours, "this")] {
        wire.name_station(gid("10.9.0.2"), to.mac());
        send(wire, &there, &headers(Opcode::RC_SEND_ONLY), &[text.as_bytes()]);
    }
    assert_eq!(receive(&mut to).2, b"this");
}
