//! Properties of every frame of every opcode.

use lanekeeper_roce::RoceError;
use lanekeeper_roce::wire::{
    Bth, Cover, Frame, Glimpse, Headers, Malformed, Opcode, Psn, Qpn, Reth, Version, padding,
};
use proptest::prelude::*;

use super::packets::{any_flow, any_link, any_packet, ethernet, packet_of};

/// Bits of a frame that may change on the way, as (byte, mask) behind the Ethernet header; all else is
/// covered by the ICRC or makes another frame of it.
fn may_change(ip: &[u8], version: Version) -> Vec<(usize, u8)> {
    if ip[0] >> 4 == 4 {
        // TOS, UDP checksum, BTH's congestion bits. TTL and checksum change together.
        return vec![(1, 0xff), (26, 0xff), (27, 0xff), (32, 0xff)];
    }
    let mut bits = vec![(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];
    match version {
        Version::V1 => bits.push((44, 0xff)),
        Version::V2 => bits.extend([(46, 0xff), (47, 0xff), (52, 0xff)]),
    }
    bits
}

/// Set the IPv4 header checksum right again, as a router does.
fn fix_checksum(ip: &mut [u8]) {
    if ip[0] >> 4 != 4 {
        return;
    }
    ip[10..12].fill(0);
    let sum: u32 = ip[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn every_opcode_survives_the_way_out_and_in() {
    for &opcode in Opcode::ALL {
        proptest!(ProptestConfig::with_cases(16), |(
            packet in packet_of(opcode), flow in any_flow(), link in any_link()
        )| {
            let frame = ethernet(&link, &flow, &packet);
            let read = Frame::parse_ethernet(&frame).expect("what we wrote");
            prop_assert_eq!(read.packet.headers, packet.headers);
            prop_assert_eq!(read.packet.payload, &packet.payload[..]);
            prop_assert_eq!(read.flow, flow);
            prop_assert_eq!(read.link, Some(link));
            // Who sees no more than the beginning sees the same.
            let glimpse = Glimpse::of_ethernet(&frame[..frame.len().min(128)]).expect("it is RoCE");
            prop_assert_eq!(glimpse.flow, flow);
            prop_assert_eq!(glimpse.bth, packet.headers.bth);
            prop_assert_eq!(glimpse.syndrome, packet.headers.aeth.map(|aeth| aeth.syndrome));
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_behind_the_packet_are_not_part_of_it(
        packet in any_packet(), flow in any_flow(), link in any_link(), more in 1usize..64
    ) {
        let mut frame = ethernet(&link, &flow, &packet);
        let whole = Frame::parse_ethernet(&frame).expect("what we wrote").packet.headers;
        frame.extend(vec![0; more]);
        let read = Frame::parse_ethernet(&frame).expect("the ICRC is found by length");
        prop_assert_eq!(read.packet.headers, whole);
        prop_assert_eq!(read.packet.payload, &packet.payload[..]);
    }

    #[test]
    fn a_payload_in_pieces_makes_the_same_frame(
        packet in any_packet(), flow in any_flow(), link in any_link(), cut in any::<usize>()
    ) {
        let whole = ethernet(&link, &flow, &packet);
        let (left, right) = packet.payload.split_at(cut % (packet.payload.len() + 1));
        let cover = Cover::ethernet(&link, &flow, &packet.headers, &[left, &[], right]).expect("fits");
        let gathered = [cover.head(), left, right, cover.tail()].concat();
        prop_assert_eq!(gathered, whole);
    }

    #[test]
    fn one_changed_bit_is_found_out_unless_it_may_change(
        packet in any_packet(), flow in any_flow(), link in any_link()
    ) {
        let frame = ethernet(&link, &flow, &packet);
        let at = if link.vlan.is_some() { 18 } else { 14 };
        let free = may_change(&frame[at..], flow.version);
        for byte in at..frame.len() {
            let mask = free.iter().find(|(b, _)| b + at == byte).map_or(0, |(_, mask)| *mask);
            // The checksum over them is of the header alone; with it set right, TTL is free as well.
            let mask = if frame[at] >> 4 == 4 && byte == at + 8 { 0xff } else { mask };
            if frame[at] >> 4 == 4 && (10..12).contains(&(byte - at)) {
                continue;
            }
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged[byte] ^= 1 << bit;
                fix_checksum(&mut damaged[at..]);
                let read = Frame::parse_ethernet(&damaged);
                if mask & (1 << bit) == 0 {
                    prop_assert!(read.is_err(), "byte {} bit {} of {:02x?}", byte - at, bit, damaged);
                } else {
                    let read = read.expect("it may change");
                    prop_assert_eq!(read.packet.payload, &packet.payload[..]);
                    prop_assert_eq!(read.packet.headers.bth.psn, packet.headers.bth.psn);
                }
            }
        }
    }

    #[test]
    fn a_frame_cut_anywhere_is_refused(
        packet in any_packet(), flow in any_flow(), link in any_link()
    ) {
        let frame = ethernet(&link, &flow, &packet);
        for length in 0..frame.len() {
            prop_assert!(Frame::parse_ethernet(&frame[..length]).is_err(), "{} bytes", length);
        }
    }

    #[test]
    fn a_datagram_is_the_ip_packet_without_its_header(
        packet in any_packet(), flow in any_flow()
    ) {
        prop_assume!(flow.version == Version::V2);
        let payload = [packet.payload.as_slice()];
        let ip = Cover::ip(&flow, &packet.headers, &payload).expect("fits");
        let datagram = Cover::datagram(&flow, 4791, &packet.headers, &payload).expect("fits");
        prop_assert!(ip.head().ends_with(datagram.head()));
        prop_assert_eq!(ip.tail(), datagram.tail());
        let bytes = [datagram.head(), &packet.payload, datagram.tail()].concat();
        let read = Frame::parse_datagram(&flow, 4791, &bytes).expect("what we wrote");
        prop_assert_eq!(read.packet.headers, packet.headers);
        // Another port is another packet, as the ICRC covers it.
        prop_assert!(Frame::parse_datagram(&flow, 4792, &bytes).is_err() || flow.dest.is_ipv4());
    }

    #[test]
    fn a_datagram_of_whatever_ipv4_identification_is_read(
        packet in any_packet(), flow in any_flow(), id in any::<[u8; 2]>()
    ) {
        prop_assume!(flow.version == Version::V2 && flow.dest.is_ipv4());
        let payload = [packet.payload.as_slice()];
        let cover = Cover::ip(&flow, &packet.headers, &payload).expect("fits");
        let mut ip = [cover.head(), &packet.payload, cover.tail()].concat();
        // As another sender numbers it, with the ICRC that it then computes: by the definition.
        ip[4..6].copy_from_slice(&id);
        let end = ip.len() - 4;
        let mut masked = [&[0xff; 8], &ip[..end]].concat();
        for at in [1, 8, 10, 11, 26, 27, 32] {
            masked[8 + at] = 0xff;
        }
        ip[end..].copy_from_slice(&crc32fast::hash(&masked).to_le_bytes());
        let read = Frame::parse_datagram(&flow, 4791, &ip[28..]).expect("the ICRC tells it");
        prop_assert_eq!(read.packet.payload, &packet.payload[..]);
        let last = ip.len() - 5;
        ip[last] ^= 0x40;
        let read = Frame::parse_datagram(&flow, 4791, &ip[28..]);
        let refused = matches!(read, Err(Malformed::Icrc { .. }));
        prop_assert!(refused, "{:?}", read);
    }
}

#[test]
fn padding_is_what_is_missing_to_four() {
    assert_eq!([0, 1, 2, 3, 4, 1023].map(padding), [0, 3, 2, 1, 0, 1]);
}

#[test]
fn headers_that_the_opcode_does_not_carry_are_refused_by_name() {
    let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::truncate(7), Psn::ZERO);
    let mut out = [0; 64];
    let missing = Headers::new(bth).write(&mut out).expect_err("a write says where to");
    assert!(missing.to_string().contains("a RETH") && missing.to_string().contains("give one"));
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::truncate(7), Psn::ZERO);
    let more = Headers { reth: Some(Reth::default()), ..Headers::new(bth) };
    let refused = more.write(&mut out).expect_err("a send has none").to_string();
    assert!(refused.contains("a RETH") && refused.contains("leave it out"), "{refused}");
}

#[test]
fn a_buffer_that_is_too_small_is_told_by_how_much() {
    let headers = Headers::new(Bth::new(Opcode::RC_SEND_ONLY, Qpn::truncate(7), Psn::ZERO));
    assert_eq!(headers.write(&mut [0; 11]), Err(RoceError::BufferTooSmall { need: 12, have: 11 }));
}
