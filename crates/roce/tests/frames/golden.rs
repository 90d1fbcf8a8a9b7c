//! Frames byte for byte: what a NIC sent, and what we send.

use std::net::IpAddr;

use lanekeeper_model::MacAddr;
use lanekeeper_roce::wire::{
    Aeth, Bth, CNP_DSCP, Cover, DEFAULT_PKEY, Ecn, Flow, Frame, Gid, Headers, Link, Malformed,
    Opcode, Psn, Qpn, Reth, Syndrome, Version, congestion_notification,
};

fn gid(address: &str) -> Gid {
    Gid::from(address.parse::<IpAddr>().expect("an address"))
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.bytes().filter_map(|c| char::from(c).to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn a_congestion_notification_of_a_connectx_4_is_read() {
    // Captured by NVIDIA's engineers for scapy (its test of RoCE): source port 0, identification 0x718c.
    let frame = bytes(
        "e41d2dab2bc2 7cfe90643b32 0800
         45c2 003c 718c 4000 4011 9161 0a001101 0a001201
         0000 12b7 0028 0000
         8100 ffff 40 000118 00 000000 00000000 00000000 00000000 00000000
         82fd002a",
    );
    let read = Frame::parse_ethernet(&frame).expect("its ICRC is right");
    let mine = congestion_notification(Qpn::truncate(0x118), DEFAULT_PKEY);
    assert_eq!(read.packet.headers, mine);
    assert_eq!(read.packet.payload, &[]);
    assert_eq!((read.flow.dscp, read.flow.ecn), (CNP_DSCP, Ecn::Ect0));
    assert_eq!((read.flow.source, read.flow.dest), (gid("10.0.17.1"), gid("10.0.18.1")));
    // A UDP socket does not see the identification.
    assert_eq!(Frame::parse_datagram(&read.flow, 4791, &frame[42..]).unwrap().packet, read.packet);
}

#[test]
fn our_congestion_notification_is_that_of_the_standard() {
    let flow = Flow { dscp: CNP_DSCP, ..Flow::new(Version::V2, gid("10.0.0.2"), gid("10.0.0.1")) };
    let headers = congestion_notification(Qpn::truncate(0xd2), DEFAULT_PKEY);
    let cover = Cover::datagram(&flow, 4791, &headers, &[]).unwrap();
    assert_eq!(cover.head(), bytes("81 00 ffff 40 0000d2 00 000000"));
    assert_eq!(cover.tail()[..16], [0; 16]);
    assert_eq!(cover.tail().len(), 20);
}

#[test]
fn a_write_in_a_vlan_of_roce_v1_is_these_bytes() {
    let link = Link {
        source: MacAddr([2, 0, 0, 0, 0, 1]),
        dest: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: Some(0x6064),
    };
    let flow = Flow { dscp: 26, ..Flow::new(Version::V1, gid("fe80::1"), gid("fe80::2")) };
    let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::truncate(0x11), Psn::truncate(0xab_cdef));
    let reth = Reth { address: 0x1122_3344_5566_7788, rkey: 0xdead_beef, length: 5 };
    let headers = Headers { reth: Some(reth), ..Headers::new(Bth { ack_request: true, ..bth }) };
    let cover = Cover::ethernet(&link, &flow, &headers, &[b"hello"]).unwrap();
    let expected = "020000000002 020000000001 8100 6064 8915
        66a00000 0028 1b 40
        fe80000000000000 0000000000000001 fe80000000000000 0000000000000002
        0a 70 ffff 00 000011 80 abcdef
        1122334455667788 deadbeef 00000005";
    assert_eq!(cover.head(), bytes(expected));
    assert_eq!(cover.tail()[..3], [0; 3], "three pad bytes");
    assert_eq!(cover.tail().len(), 7);
}

#[test]
fn an_acknowledgement_on_ipv6_is_these_bytes() {
    let flow = Flow::new(Version::V2, gid("fd00::1"), gid("fd00::2"));
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::truncate(0x12), Psn::truncate(7));
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 3 };
    let headers = Headers { aeth: Some(aeth), ..Headers::new(bth) };
    let cover = Cover::ip(&flow, &headers, &[]).unwrap();
    let expected = "60200000 001c 11 40
        fd00000000000000 0000000000000001 fd00000000000000 0000000000000002
        c000 12b7 001c 0000
        11 40 ffff 00 000012 00 000007 1f000003";
    assert_eq!(cover.head(), bytes(expected));
    assert_eq!(cover.tail().len(), 4);
}

#[test]
fn a_changed_byte_is_told_with_both_crcs() {
    let flow = Flow::new(Version::V2, gid("10.0.0.1"), gid("10.0.0.2"));
    let headers = Headers::new(Bth::new(Opcode::UC_SEND_ONLY, Qpn::truncate(9), Psn::ZERO));
    let cover = Cover::ip(&flow, &headers, &[b"data"]).unwrap();
    let mut ip = [cover.head(), b"dat\0", cover.tail()].concat();
    let found = u32::from_le_bytes(cover.tail().try_into().unwrap());
    match Frame::parse_ip(&ip) {
        Err(Malformed::Icrc { found: told, computed }) => {
            assert!(told == found && computed != found);
        }
        other => panic!("{other:?}"),
    }
    let at = ip.len() - 5;
    ip[at] = b'a';
    assert_eq!(Frame::parse_ip(&ip).unwrap().packet.payload, b"data");
}
