//! Two hosts with a router between them: v2 crosses it with its ICRC intact, v1 does not.

use std::time::Duration;

use lanekeeper_model::MacAddr;
use lanekeeper_roce::transport::{FRAME_CAPACITY, Wire};
use lanekeeper_roce::wire::{Flow, Opcode, Version};
use lanekeeper_testbed::netns::{Lab, Namespace};

use super::hosts::{gid, is_root, packet, udp};
use super::{every_opcode_arrives, headers, receive, send};

/// 10.1.0.1 and 10.2.0.1, each with its own way to a router; its MAC address on the first's cable too.
fn routed(lab: &mut Lab) -> (Namespace, Namespace, MacAddr) {
    let (a, b) = (lab.namespace("a").expect("made"), lab.namespace("b").expect("made"));
    let router = lab.namespace("r").expect("made");
    lab.cable((&a, "wire0"), (&router, "left0"), 9000).expect("joined");
    lab.cable((&b, "wire0"), (&router, "right0"), 9000).expect("joined");
    let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    router.run(forward).expect("enters").expect("written");
    for (host, net, port) in [(&a, "10.1.0", "left0"), (&b, "10.2.0", "right0")] {
        host.add_address("wire0", &format!("{net}.1/24")).expect("set");
        router.add_address(port, &format!("{net}.254/24")).expect("set");
        host.ip(&["route", "add", "default", "via", &format!("{net}.254")]).expect("set");
    }
    let output = router.command("cat").arg("/sys/class/net/left0/address").output().expect("runs");
    let mac = String::from_utf8_lossy(&output.stdout).trim().parse().expect("an address");
    (a, b, mac)
}

#[test]
fn v2_crosses_a_router_and_has_one_hop_less() {
    if !is_root() {
        return;
    }
    let mut lab = Lab::new("router");
    let (a, b, router) = routed(&mut lab);
    let mut from = packet(&a, Version::V2, "10.1.0.1", None);
    from.name_station(gid("10.2.0.1"), router);
    let mut to = udp(&b, "10.2.0.1");
    let there = Flow::new(Version::V2, gid("10.1.0.1"), gid("10.2.0.1"));
    every_opcode_arrives(&mut from, &mut to, &there);
    send(&mut from, &there, &headers(Opcode::RC_SEND_ONLY), &[b"x"]);
    assert_eq!(receive(&mut to).0, Flow { hop_limit: 63, ..there });
    // And back, now with the kernel's header, into the hands of one who sees all of it.
    let back = Flow::new(Version::V2, gid("10.2.0.1"), gid("10.1.0.1"));
    send(&mut to, &back, &headers(Opcode::RC_ACKNOWLEDGE), &[]);
    assert_eq!(receive(&mut from).0.hop_limit, 63);
}

#[test]
fn v1_ends_at_the_router() {
    if !is_root() {
        return;
    }
    let mut lab = Lab::new("router1");
    let (a, b, router) = routed(&mut lab);
    let mut from = packet(&a, Version::V1, "10.1.0.1", None);
    from.name_station(gid("10.2.0.1"), router);
    let mut to = packet(&b, Version::V1, "10.2.0.1", None);
    let there = Flow::new(Version::V1, gid("10.1.0.1"), gid("10.2.0.1"));
    send(&mut from, &there, &headers(Opcode::RC_SEND_ONLY), &[b"x"]);
    // What goes the same way afterwards has arrived, so this would have as well.
    let mut v2 = packet(&a, Version::V2, "10.1.0.1", None);
    v2.name_station(gid("10.2.0.1"), router);
    let mut heard = udp(&b, "10.2.0.1");
    send(&mut v2, &Flow { version: Version::V2, ..there }, &headers(Opcode::RC_SEND_ONLY), &[b"y"]);
    assert_eq!(receive(&mut heard).2, b"y");
    assert!(!to.wait(Duration::ZERO).expect("polls"));
    assert!(to.receive(&mut [0; FRAME_CAPACITY]).expect("works").is_none());
}
