//! Frames that somebody made to do harm: refused by name, never a panic.

use std::net::IpAddr;

use lanekeeper_roce::wire::{
    Bth, Cover, Flow, Frame, Gid, Headers, Malformed, Opcode, Psn, Qpn, Version,
};
use proptest::prelude::*;

fn flow(source: &str, dest: &str) -> Flow {
    let gid = |text: &str| Gid::from(text.parse::<IpAddr>().expect("an address"));
    Flow::new(Version::V2, gid(source), gid(dest))
}

/// An IPv4 packet of a send, with a header that is changed and then summed again.
fn changed(change: impl Fn(&mut [u8])) -> Result<(), Malformed> {
    let flow = flow("10.0.0.1", "10.0.0.2");
    let headers = Headers::new(Bth::new(Opcode::RC_SEND_ONLY, Qpn::truncate(9), Psn::ZERO));
    let cover = Cover::ip(&flow, &headers, &[b"data"]).expect("fits");
    let mut ip = [cover.head(), b"data", cover.tail()].concat();
    change(&mut ip);
    ip[10..12].fill(0);
    let sum: u32 = ip[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    Frame::parse_ip(&ip).map(drop)
}

/// A packet without network headers around it.
fn transport(bytes: &[u8]) -> Malformed {
    Headers::parse(bytes).expect_err("it is broken")
}

#[test]
fn what_is_not_a_plain_roce_packet_is_refused_by_name() {
    assert_eq!(changed(|_| ()), Ok(()));
    assert_eq!(changed(|ip| ip[0] = 0x46), Err(Malformed::IpOptions(24)));
    assert_eq!(changed(|ip| ip[0] = 0x75), Err(Malformed::IpVersion(7)));
    assert_eq!(changed(|ip| ip[6] = 0x20), Err(Malformed::Fragment(0x2000)));
    assert_eq!(changed(|ip| ip[7] = 1), Err(Malformed::Fragment(0x4001)));
    assert_eq!(changed(|ip| ip[9] = 6), Err(Malformed::NextHeader(6)));
    assert_eq!(changed(|ip| ip[23] = 0xb8), Err(Malformed::Port(4792)));
    assert_eq!(changed(|ip| ip[25] = 27), Err(Malformed::Length { udp: 27, ip: 28 }));
    assert_eq!(
        changed(|ip| ip[3] = 0),
        Err(Malformed::Truncated { what: "the UDP header", need: 2, have: 0 })
    );
}

#[test]
fn an_ipv6_packet_does_not_pass_for_ipv4() {
    let headers = Headers::new(Bth::new(Opcode::RC_SEND_ONLY, Qpn::truncate(9), Psn::ZERO));
    let cover = Cover::ip(&flow("fd00::1", "fd00::2"), &headers, &[]).expect("fits");
    let mut ip = [cover.head(), cover.tail()].concat();
    assert!(Frame::parse_ip(&ip).is_ok());
    ip[8..24].copy_from_slice(&flow("10.0.0.1", "10.0.0.2").source.0);
    assert_eq!(Frame::parse_ip(&ip), Err(Malformed::MappedAddress));
}

#[test]
fn transport_headers_that_contradict_themselves_are_refused_by_name() {
    let bth = |opcode: u8, flags: u8| [opcode, flags, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1];
    assert_eq!(transport(&bth(0x1f, 0)), Malformed::Opcode(0x1f));
    assert_eq!(transport(&bth(0xff, 0)), Malformed::Opcode(0xff));
    assert_eq!(transport(&bth(4, 1)), Malformed::TransportVersion(1));
    assert_eq!(transport(&bth(4, 0x10)), Malformed::Pad { pad: 1, have: 0 });
    assert_eq!(transport(&[&bth(4, 0)[..], &[0; 3]].concat()), Malformed::Unaligned(3));
    assert_eq!(
        transport(&[&bth(0x11, 0)[..], &[0; 8]].concat()),
        Malformed::UnexpectedPayload { opcode: 0x11, length: 4 }
    );
    assert_eq!(
        transport(&[&bth(0x11, 0)[..], &[0x80, 0, 0, 1]].concat()),
        Malformed::Syndrome(0x80)
    );
    assert_eq!(
        transport(&[&bth(0x81, 0x10)[..], &[0; 16]].concat()),
        Malformed::Pad { pad: 1, have: 0 }
    );
    assert_eq!(
        transport(&[&bth(0x81, 0)[..], &[0; 12]].concat()),
        Malformed::Truncated { what: "the CNP", need: 16, have: 12 }
    );
    assert_eq!(
        transport(&[&bth(0x0a, 0)[..], &[0; 15]].concat()),
        Malformed::Truncated { what: "the RETH", need: 4, have: 3 }
    );
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), port: u16) {
        let _ = Frame::parse_ethernet(&bytes);
        let _ = Frame::parse_ip(&bytes);
        let _ = Frame::parse_grh(&bytes);
        let _ = Headers::parse(&bytes);
        for flow in [flow("10.0.0.1", "10.0.0.2"), flow("fd00::1", "fd00::2")] {
            let _ = Frame::parse_datagram(&flow, port, &bytes);
        }
    }

    #[test]
    fn whatever_transport_bytes_are_read_are_written_again(
        bytes in prop::collection::vec(any::<u8>(), 0..120), opcode in prop::sample::select(Opcode::ALL)
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = opcode.to_byte();
        }
        if let Ok(packet) = Headers::parse(&bytes) {
            let mut out = [0; 64];
            let length = packet.headers.write(&mut out).expect("they were read");
            let again = [&out[..length], &bytes[length..]].concat();
            prop_assert_eq!(Headers::parse(&again), Ok(packet));
        }
    }
}
