//! Frames for the tests, written by an independent implementation (`etherparse`).

use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, Ipv6RawExtHeader,
    PacketBuilder, PacketBuilderStep, SingleVlanHeader, TcpHeader, VlanHeader, VlanId,
};

pub(super) const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
pub(super) const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
pub(super) const IP4_A: [u8; 4] = [10, 0, 0, 1];
pub(super) const IP4_B: [u8; 4] = [10, 0, 0, 2];
pub(super) const IP6_A: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub(super) const IP6_B: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// A TCP or UDP packet from A to B.
#[expect(clippy::struct_excessive_bools, reason = "each is one property of the packet")]
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) src_mac: [u8; 6],
    pub(super) dst_mac: [u8; 6],
    pub(super) src4: [u8; 4],
    pub(super) src6: [u8; 16],
    pub(super) v6: bool,
    pub(super) tcp: bool,
    pub(super) tag: Option<u16>,
    /// A destination options header, IPv6 only.
    pub(super) extension: bool,
    pub(super) id: u16,
    pub(super) sequence: u32,
    pub(super) last: bool,
    pub(super) cwr: bool,
    pub(super) payload: Vec<u8>,
}

impl Packet {
    pub(super) fn udp4(payload: &[u8]) -> Self {
        Self {
            src_mac: MAC_A,
            dst_mac: MAC_B,
            src4: IP4_A,
            src6: IP6_A,
            v6: false,
            tcp: false,
            tag: None,
            extension: false,
            id: 7,
            sequence: 0xffff_f000,
            last: true,
            cwr: false,
            payload: payload.to_vec(),
        }
    }

    pub(super) fn tcp4(payload: &[u8]) -> Self {
        Self { tcp: true, ..Self::udp4(payload) }
    }

    pub(super) fn transport_at(&self) -> usize {
        let tag = if self.tag.is_some() { 4 } else { 0 };
        let ip = if !self.v6 {
            20
        } else if self.extension {
            48
        } else {
            40
        };
        14 + tag + ip
    }

    pub(super) fn headers(&self) -> usize {
        self.transport_at() + if self.tcp { 20 } else { 8 }
    }

    fn ip(&self) -> IpHeaders {
        if self.v6 {
            let options = Ipv6RawExtHeader::new_raw(IpNumber::UDP, &[0; 6]).expect("8 bytes");
            let extensions = Ipv6Extensions {
                destination_options: self.extension.then_some(options),
                ..Ipv6Extensions::default()
            };
            let header = Ipv6Header {
                hop_limit: 64,
                source: self.src6,
                destination: IP6_B,
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, extensions)
        } else {
            let mut header =
                Ipv4Header::new(0, 64, IpNumber::UDP, self.src4, IP4_B).expect("short enough");
            header.identification = self.id;
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        }
    }

    /// The frame, with every checksum in place.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2(self.src_mac, self.dst_mac);
        let ip: PacketBuilderStep<IpHeaders> = match self.tag {
            Some(vid) => ethernet
                .vlan(VlanHeader::Single(SingleVlanHeader {
                    vlan_id: VlanId::try_new(vid).expect("12 bits"),
                    ..SingleVlanHeader::default()
                }))
                .ip(self.ip()),
            None => ethernet.ip(self.ip()),
        };
        let mut bytes = Vec::new();
        if self.tcp {
            let mut tcp = TcpHeader::new(5000, 80, self.sequence, 1024);
            tcp.ack = true;
            tcp.psh = self.last;
            tcp.fin = self.last;
            tcp.cwr = self.cwr;
            ip.tcp_header(tcp).write(&mut bytes, &self.payload).expect("writes to memory");
        } else {
            ip.udp(5000, 4791).write(&mut bytes, &self.payload).expect("writes to memory");
        }
        bytes
    }

    /// The checksum in its two representations of zero counts as one.
    pub(super) fn with_one_zero(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let at = self.transport_at() + if self.tcp { 16 } else { 6 };
        if bytes[at..at + 2] == [0, 0] {
            bytes[at..at + 2].copy_from_slice(&[0xff, 0xff]);
        }
        bytes
    }
}

/// Puts a tag on a frame.
pub(super) fn tagged(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    out.extend(tpid.to_be_bytes());
    out.extend(tci.to_be_bytes());
    out.extend(&frame[12..]);
    out
}

/// An ARP frame for Ethernet and IPv4.
pub(super) fn arp(operation: u8, sender_mac: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut out = [0xff; 6].to_vec();
    out.extend(MAC_A);
    out.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    out.extend(sender_mac);
    out.extend(sender);
    out.extend([0; 6]);
    out.extend(target);
    out
}

/// An ICMPv6 frame from A's MAC; `extensions` are whole extension headers, the first of kind
/// `first`.
pub(super) fn icmpv6(source: [u8; 16], first: u8, extensions: &[u8], message: &[u8]) -> Vec<u8> {
    let mut out = MAC_B.to_vec();
    out.extend(MAC_A);
    out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    out.extend(((extensions.len() + message.len()) as u16).to_be_bytes());
    out.extend([first, 255]);
    out.extend(source);
    out.extend(IP6_B);
    out.extend(extensions);
    out.extend(message);
    out
}

/// A neighbour message with one link-layer option.
pub(super) fn neighbour(
    kind: u8,
    target: Option<[u8; 16]>,
    option: Option<(u8, [u8; 6])>,
) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    out.extend(target.iter().flatten());
    if let Some((kind, mac)) = option {
        out.extend([kind, 1]);
        out.extend(mac);
    }
    out
}
