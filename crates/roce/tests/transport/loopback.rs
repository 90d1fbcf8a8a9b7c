//! What needs neither root nor a network.

use std::net::IpAddr;

use lanekeeper_roce::RoceError;
use lanekeeper_roce::transport::{UdpConfig, UdpWire, Wire, WireError};
use lanekeeper_roce::wire::{Flow, Gid, Opcode, PathMtu, Version};

use super::{every_opcode_arrives, headers};

/// Two wires on the same address that send to each other.
fn pair(local: &str) -> Option<(UdpWire, UdpWire, Flow)> {
    let local: IpAddr = local.parse().expect("an address");
    let config = UdpConfig { port: 0, ..UdpConfig::new(local) };
    let mut left = match UdpWire::open(&config) {
        Err(WireError::System { source, .. })
            if source.kind() == std::io::ErrorKind::AddrNotAvailable && local.is_ipv6() =>
        {
            eprintln!("skipped: no IPv6 here");
            return None;
        }
        wire => wire.expect("opens"),
    };
    let right = UdpWire::open(&UdpConfig { peer_port: left.port(), ..config }).expect("opens");
    left.set_peer_port(right.port());
    Some((left, right, Flow::new(Version::V2, local.into(), local.into())))
}

#[test]
fn every_opcode_goes_both_ways_over_ipv4() {
    let (mut left, mut right, flow) = pair("127.0.0.1").expect("there is IPv4");
    every_opcode_arrives(&mut left, &mut right, &flow);
    every_opcode_arrives(&mut right, &mut left, &flow);
}

#[test]
fn every_opcode_goes_both_ways_over_ipv6() {
    if let Some((mut left, mut right, flow)) = pair("::1") {
        every_opcode_arrives(&mut left, &mut right, &flow);
        every_opcode_arrives(&mut right, &mut left, &flow);
    }
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_reason() {
    let (mut wire, _other, flow) = pair("127.0.0.1").expect("there is IPv4");
    let acknowledge = headers(Opcode::RC_ACKNOWLEDGE);
    let refused = wire.send(&flow, &acknowledge, &[b"data"]);
    assert!(matches!(refused, Err(WireError::Packet(RoceError::PayloadNotAllowed { .. }))));
    let stranger = Flow { source: Gid([9; 16]), ..flow };
    assert!(matches!(wire.send(&stranger, &acknowledge, &[]), Err(WireError::NotOurs { .. })));
    let v1 = Flow { version: Version::V1, ..flow };
    assert!(matches!(wire.send(&v1, &acknowledge, &[]), Err(WireError::NotOurs { .. })));
    let any = UdpWire::open(&UdpConfig::new([0, 0, 0, 0].into())).err().expect("not one address");
    assert!(any.to_string().contains("0.0.0.0 is not one address"), "{any}");
}

#[test]
fn the_path_mtu_follows_the_mtu_of_the_way_out() {
    let local = IpAddr::from([127, 0, 0, 1]);
    let open = |mtu| UdpWire::open(&UdpConfig { port: 0, mtu, ..UdpConfig::new(local) });
    assert_eq!(open(1500).expect("opens").path_mtu(), PathMtu::M1024);
    assert_eq!(open(9000).expect("opens").path_mtu(), PathMtu::M4096);
    assert!(matches!(open(300), Err(WireError::Mtu(300))));
}
