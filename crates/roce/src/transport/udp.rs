//! RoCE v2 on UDP sockets: the kernel makes the IP and UDP headers.
//!
//! The ICRC covers those headers, so they must be what the codec expects, to the bit: Linux sends IPv4
//! identification 0 from a socket that is not connected and sets "don't fragment". Received datagrams of
//! others may have another (see `Frame::parse_datagram`).
//!
//! One socket receives; others, each of a source port of its own, send. So routers and NICs see several
//! flows, and a flow of the caller always leaves by the same one.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, bind, getsockname,
    sendmsg_addr, socket_with,
};

use super::{Arrival, Wire, WireError, borrowed, enlarge_buffers, gather, readable, sent, sys};
use crate::wire::{Cover, Ecn, Flow, Frame, Gid, Headers, Malformed, PathMtu, ROCE_PORT, Version};

/// First of the ports that RoCE senders take as source (as Linux and NVIDIA do, 0xC000..=0xFFFF).
const FIRST_SOURCE: u16 = 0xc000;
/// Source ports that are tried until one is free.
const TRIES: u16 = 4096;

// Numbers that the `libc` crate lacks on some targets (linux/udp.h, asm-generic/socket.h).
const UDP_NO_CHECK6_TX: i32 = 101;
const UDP_NO_CHECK6_RX: i32 = 102;

/// What a UDP wire needs to know.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The address it sends from and receives at.
    pub local: IpAddr,
    /// The port it receives at; 0 for one that is free.
    pub port: u16,
    /// The port of those it sends to.
    pub peer_port: u16,
    /// Sockets to send by, each with a source port of its own.
    pub senders: u16,
    /// Interface number, for IPv6 link-local addresses; else 0.
    pub scope: u32,
    /// MTU of the way out.
    pub mtu: u32,
}

impl UdpConfig {
    /// At RoCE's port, with four source ports, on Ethernet of the usual MTU.
    pub const fn new(local: IpAddr) -> Self {
        Self { local, port: ROCE_PORT, peer_port: ROCE_PORT, senders: 4, scope: 0, mtu: 1500 }
    }
}

/// A socket to send by, and what it was last set to.
struct Sender {
    socket: OwnedFd,
    port: u16,
    class: u8,
    hop_limit: u8,
}

/// RoCE v2 on UDP sockets.
pub struct UdpWire {
    local: Gid,
    ipv4: bool,
    port: u16,
    peer_port: u16,
    scope: u32,
    path_mtu: PathMtu,
    receiver: OwnedFd,
    senders: Vec<Sender>,
}

impl UdpWire {
    /// Open the sockets.
    ///
    /// # Errors
    /// [`WireError::NotOneAddress`], or the address is not this host's, or the port is taken.
    pub fn open(config: &UdpConfig) -> Result<Self, WireError> {
        if config.local.is_unspecified() || config.local.is_multicast() {
            return Err(WireError::NotOneAddress(config.local));
        }
        let failed = |what: &str| WireError::system(format!("{what} of {}", config.local));
        let receiver = receiver(config).map_err(failed("receive at a UDP port"))?;
        let port = local_port(&receiver).map_err(failed("ask the UDP port"))?;
        let mut senders = Vec::new();
        let mut next = FIRST_SOURCE;
        for _ in 0..config.senders.max(1) {
            let sender = sender(config, next).map_err(failed("send by a UDP port"))?;
            next = sender.port.saturating_add(1);
            senders.push(sender);
        }
        Ok(Self {
            local: config.local.into(),
            ipv4: config.local.is_ipv4(),
            port,
            peer_port: config.peer_port,
            scope: config.scope,
            path_mtu: super::path_mtu(config.mtu)?,
            receiver,
            senders,
        })
    }

    /// The port that it receives at.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Send to those who receive at this port from now on.
    pub fn set_peer_port(&mut self, port: u16) {
        self.peer_port = port;
    }

    fn check(&self, flow: &Flow) -> Result<(), WireError> {
        if flow.version == Version::V2 && flow.source == self.local {
            return Ok(());
        }
        Err(WireError::NotOurs { local: self.local, source_gid: flow.source })
    }
}

impl Wire for UdpWire {
    fn send(
        &mut self,
        flow: &Flow,
        headers: &Headers,
        payload: &[&[u8]],
    ) -> Result<bool, WireError> {
        self.check(flow)?;
        let index = usize::from(flow.source_port) % self.senders.len();
        let sender = &mut self.senders[index];
        sender.set(flow, self.ipv4).map_err(WireError::system("set a packet's traffic class"))?;
        let flow = Flow { source_port: sender.port, ..*flow };
        let cover = Cover::datagram(&flow, self.peer_port, headers, payload)?;
        let to = match flow.dest.ip() {
            IpAddr::V4(address) => SocketAddr::V4(SocketAddrV4::new(address, self.peer_port)),
            IpAddr::V6(address) => {
                SocketAddr::V6(SocketAddrV6::new(address, self.peer_port, 0, self.scope))
            }
        };
        let result = gather(cover.head(), payload, cover.tail(), |pieces| {
            let mut nothing = SendAncillaryBuffer::default();
            sendmsg_addr(&sender.socket, &to, pieces, &mut nothing, SendFlags::DONTWAIT)
        });
        sent(result, payload.iter().map(|piece| piece.len()).sum())
    }

    fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<Arrival<'a>>, WireError> {
        let arrived = sys::receive(borrowed(&self.receiver), buffer)
            .map_err(WireError::system("receive a packet"))?;
        let Some(arrived) = arrived else { return Ok(None) };
        let Some((source, source_port)) = arrived.from else { return Ok(None) };
        let have = buffer.len();
        let Some(bytes) = buffer.get(..arrived.length) else {
            let need = arrived.length;
            return Ok(Some(Err(Malformed::Truncated { what: "the datagram", need, have })));
        };
        let flow = Flow {
            version: Version::V2,
            source: source.into(),
            dest: self.local,
            dscp: arrived.class >> 2,
            ecn: Ecn::from_bits(arrived.class),
            hop_limit: arrived.hop_limit,
            source_port,
        };
        Ok(Some(Frame::parse_datagram(&flow, self.port, bytes)))
    }

    fn wait(&self, limit: Duration) -> Result<bool, WireError> {
        readable(borrowed(&self.receiver), limit)
    }

    fn path_mtu(&self) -> PathMtu {
        self.path_mtu
    }

    fn local(&self) -> Gid {
        self.local
    }
}

impl Sender {
    /// Set what the next packet's IP header shall say, unless it is so already.
    fn set(&mut self, flow: &Flow, ipv4: bool) -> io::Result<()> {
        let (level, class, hops) = if ipv4 {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS)
        };
        if self.class != flow.traffic_class() {
            sys::set_integer(borrowed(&self.socket), level, class, flow.traffic_class().into())?;
            self.class = flow.traffic_class();
        }
        if self.hop_limit != flow.hop_limit {
            sys::set_integer(borrowed(&self.socket), level, hops, flow.hop_limit.into())?;
            self.hop_limit = flow.hop_limit;
        }
        Ok(())
    }
}

fn udp_socket(local: IpAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    enlarge_buffers(borrowed(&socket))?;
    Ok(socket)
}

fn address(config: &UdpConfig, port: u16) -> SocketAddr {
    match config.local {
        IpAddr::V4(local) => SocketAddrV4::new(local, port).into(),
        IpAddr::V6(local) => SocketAddrV6::new(local, port, 0, config.scope).into(),
    }
}

fn local_port(socket: &OwnedFd) -> io::Result<u16> {
    let name = getsockname(socket)?;
    SocketAddr::try_from(name).map(|name| name.port()).map_err(Into::into)
}

fn receiver(config: &UdpConfig) -> io::Result<OwnedFd> {
    let socket = udp_socket(config.local)?;
    let set = |level, name| sys::set_integer(borrowed(&socket), level, name, 1);
    if config.local.is_ipv4() {
        set(libc::IPPROTO_IP, libc::IP_RECVTOS)?;
        set(libc::IPPROTO_IP, libc::IP_RECVTTL)?;
    } else {
        set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)?;
        // RoCE's UDP checksum is 0, which IPv6 takes only from those it is told of (RFC 6936).
        set(libc::IPPROTO_UDP, UDP_NO_CHECK6_RX)?;
    }
    bind(&socket, &address(config, config.port))?;
    Ok(socket)
}

/// A socket that sends from the first free port at or after `from`.
fn sender(config: &UdpConfig, from: u16) -> io::Result<Sender> {
    let socket = udp_socket(config.local)?;
    let set = |level, name, value| sys::set_integer(borrowed(&socket), level, name, value);
    if config.local.is_ipv4() {
        set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
    } else {
        set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        set(libc::IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)?;
    }
    // It only sends: nobody empties its receive queue.
    sys::set_filter(borrowed(&socket), sys::Filter::Nothing)?;
    for port in (from..=u16::MAX).take(TRIES.into()) {
        match bind(&socket, &address(config, port)) {
            Ok(()) => return Ok(Sender { socket, port, class: 0, hop_limit: 0 }),
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(rustix::io::Errno::ADDRINUSE.into())
}
