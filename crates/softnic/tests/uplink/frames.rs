//! Frames to send, and what is looked for in those that come.

use std::net::Ipv4Addr;

use super::NetHeader;

pub(crate) const NO_OFFLOAD: NetHeader = [0; 12];

const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];

/// A broadcast frame of a local experimental Ethertype with so many bytes of payload.
pub(crate) fn ethernet(payload: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(OUR_MAC);
    frame.extend(0x88b5u16.to_be_bytes());
    frame.extend((0..payload).map(|i| (i % 251) as u8));
    frame
}

/// One that tells which it is.
pub(crate) fn numbered(number: u32) -> Vec<u8> {
    let mut frame = ethernet(60);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

/// The frame with tags (Ethertype, control information), outermost first.
pub(crate) fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    for (ethertype, control) in tags {
        out.extend(ethertype.to_be_bytes());
        out.extend(control.to_be_bytes());
    }
    out.extend(&frame[12..]);
    out
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let total: u32 = words.sum();
    let folded = (total & 0xffff) + (total >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let checksum = !sum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(payload);
    packet
}

fn frame(to: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &OUR_MAC, &ethertype.to_be_bytes(), payload].concat()
}

/// A UDP frame of one of many flows.
pub(crate) fn udp_flow(flow: u16) -> Vec<u8> {
    let mut datagram = (40_000 + flow).to_be_bytes().to_vec();
    datagram.extend(4791u16.to_be_bytes());
    datagram.extend([0, 8 + 20, 0, 0]);
    datagram.extend([7; 20]);
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3));
    frame([0xff; 6], 0x0800, &ipv4(from, to, 17, &datagram))
}

/// A TCP frame with so many bytes of payload, to be cut into segments, and the header saying so.
pub(crate) fn tcp_super_frame(
    payload: usize,
    segment: u16,
    tags: &[(u16, u16)],
) -> (NetHeader, Vec<u8>) {
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3));
    let mut tcp = [40_000u16.to_be_bytes(), 5201u16.to_be_bytes()].concat();
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    // Where a checksum is left to others, its field holds the pseudo-header's sum.
    let mut pseudo = [from.octets(), to.octets()].concat();
    pseudo.extend([0, 6]);
    pseudo.extend((20 + payload as u16).to_be_bytes());
    tcp[16..18].copy_from_slice(&sum(&pseudo).to_be_bytes());
    tcp.extend((0..payload).map(|i| (i % 241) as u8));
    let whole = tagged(&frame([0xff; 6], 0x0800, &ipv4(from, to, 6, &tcp)), tags);

    let start = 14 + 4 * tags.len() as u16 + 20;
    let mut header = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (at, value) in [(2, start + 20), (4, segment), (6, start), (8, 16)] {
        header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    (header, whole)
}

pub(crate) fn arp_request(us: Ipv4Addr, them: Ipv4Addr) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(OUR_MAC);
    arp.extend(us.octets());
    arp.extend([0; 6]);
    arp.extend(them.octets());
    frame([0xff; 6], 0x0806, &arp)
}

pub(crate) fn echo_request(us: Ipv4Addr, them: Ipv4Addr, mac: [u8; 6], payload: usize) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    icmp.extend((0..payload).map(|i| i as u8));
    let checksum = !sum(&icmp);
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    frame(mac, 0x0800, &ipv4(us, them, 1, &icmp))
}

pub(crate) fn is_arp_reply(frame: &[u8], from: Ipv4Addr) -> bool {
    frame.len() >= 42
        && frame[..6] == OUR_MAC
        && frame[12..14] == [8, 6]
        && frame[20..22] == [0, 2]
        && frame[28..32] == from.octets()
}

pub(crate) fn is_echo_reply(frame: &[u8], from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> bool {
    frame.len() == 14 + 20 + 8 + payload
        && frame[..6] == OUR_MAC
        && frame[12..14] == [8, 0]
        && frame[26..34] == [from.octets(), to.octets()].concat()
        && frame[34..36] == [0, 0]
        && sum(&frame[34..]) == 0xffff
}
