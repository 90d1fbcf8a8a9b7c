//! RoCE v1 and v2 on a packet socket: every byte of the frame is ours (packet(7)).
//!
//! Nobody resolves addresses here: a station's MAC address is named by the caller, is in its link-local
//! GID, or was learnt from a frame of it whose ICRC was right.

use std::collections::HashMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::time::Duration;

use lanekeeper_model::MacAddr;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmsg, socket_with,
};

use super::{
    Arrival, Wire, WireError, borrowed, embedded_mac, enlarge_buffers, gather, path_mtu, readable,
    sent, sys,
};
use crate::wire::{
    Cover, Flow, Frame, Gid, Headers, Link, Malformed, PathMtu, ROCE_PORT, TYPE_ROCE_V1, Version,
};

/// Stations that are remembered; who comes later must be named.
const MAX_LEARNT: usize = 4096;

/// The VLAN in a tag's control information.
const VLAN_ID: u16 = 0x0fff;

/// What a packet wire needs to know.
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The interface.
    pub interface: String,
    /// Wire format.
    pub version: Version,
    /// The address it sends from and receives for; it need not be one that the kernel knows.
    pub local: Gid,
    /// Tag of what is sent (control information); only what arrives in the same VLAN is received.
    pub vlan: Option<u16>,
}

/// RoCE on a packet socket.
pub struct PacketWire {
    config: PacketConfig,
    mac: MacAddr,
    path_mtu: PathMtu,
    socket: OwnedFd,
    stations: HashMap<Gid, MacAddr>,
    /// Has RoCE's port, so that the kernel does not answer that nobody has.
    _port: Option<UdpSocket>,
}

impl PacketWire {
    /// Open the socket.
    ///
    /// # Errors
    /// No privilege, or no such interface.
    pub fn open(config: PacketConfig) -> Result<Self, WireError> {
        let failed = |what: &str| WireError::system(format!("{what} {}", config.interface));
        let socket = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| failed("open a packet socket on")(error.into()))?;
        let interface = sys::interface(borrowed(&socket), &config.interface)
            .map_err(failed("look up interface"))?;
        prepare(&socket, &config, interface.index).map_err(failed("receive RoCE on"))?;
        let path_mtu = path_mtu(interface.mtu)?;
        let mac = MacAddr(interface.mac);
        let port = hold_port(&config);
        Ok(Self { config, mac, path_mtu, socket, stations: HashMap::new(), _port: port })
    }

    /// The interface's MAC address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Say which station has an address: its own MAC address, or that of the router to it.
    pub fn name_station(&mut self, gid: Gid, mac: MacAddr) {
        self.stations.insert(gid, mac);
    }

    fn station(&self, gid: Gid) -> Result<MacAddr, WireError> {
        let known = self.stations.get(&gid).copied();
        known.or_else(|| embedded_mac(gid)).ok_or(WireError::NoNeighbour(gid))
    }

    fn learn(&mut self, frame: &Frame<'_>) {
        if let Some(link) = frame.link
            && self.stations.len() < MAX_LEARNT
        {
            self.stations.entry(frame.flow.source).or_insert(link.source);
        }
    }

    /// Whether a frame with this tag is in our VLAN. A tag of VLAN 0 is a priority alone.
    fn is_our_vlan(&self, tag: Option<u16>) -> bool {
        tag.unwrap_or(0) & VLAN_ID == self.config.vlan.unwrap_or(0) & VLAN_ID
    }
}

impl Wire for PacketWire {
    fn send(
        &mut self,
        flow: &Flow,
        headers: &Headers,
        payload: &[&[u8]],
    ) -> Result<bool, WireError> {
        if flow.version != self.config.version || flow.source != self.config.local {
            let (local, source_gid) = (self.config.local, flow.source);
            return Err(WireError::NotOurs { local, source_gid });
        }
        let dest = self.station(flow.dest)?;
        let link = Link { source: self.mac, dest, vlan: self.config.vlan };
        let cover = Cover::ethernet(&link, flow, headers, payload)?;
        let result = gather(cover.head(), payload, cover.tail(), |pieces| {
            let mut nothing = SendAncillaryBuffer::default();
            sendmsg(&self.socket, pieces, &mut nothing, SendFlags::DONTWAIT)
        });
        sent(result, payload.iter().map(|piece| piece.len()).sum())
    }

    fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<Arrival<'a>>, WireError> {
        let arrived = sys::receive(borrowed(&self.socket), buffer)
            .map_err(WireError::system("receive a packet"))?;
        let Some(arrived) = arrived.filter(|arrived| self.is_our_vlan(arrived.tag)) else {
            return Ok(None);
        };
        let have = buffer.len();
        let Some(bytes) = buffer.get(..arrived.length) else {
            let need = arrived.length;
            return Ok(Some(Err(Malformed::Truncated { what: "the frame", need, have })));
        };
        let parsed = Frame::parse_ethernet(bytes).map(|frame| {
            let link = frame.link.map(|link| Link { vlan: arrived.tag, ..link });
            Frame { link, ..frame }
        });
        match parsed {
            // Somebody else's, on an interface that hears more than its own.
            Ok(frame) if frame.flow.dest != self.config.local => Ok(None),
            Ok(frame) => {
                self.learn(&frame);
                Ok(Some(Ok(frame)))
            }
            Err(malformed) => Ok(Some(Err(malformed))),
        }
    }

    fn wait(&self, limit: Duration) -> Result<bool, WireError> {
        readable(borrowed(&self.socket), limit)
    }

    fn path_mtu(&self) -> PathMtu {
        self.path_mtu
    }

    fn local(&self) -> Gid {
        self.config.local
    }
}

/// Have a socket hear RoCE of one version and address family on one interface.
fn prepare(socket: &OwnedFd, config: &PacketConfig, index: u32) -> io::Result<()> {
    let fd = borrowed(socket);
    sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    enlarge_buffers(fd)?;
    // What the host itself sends has not arrived.
    sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    let filter = match config.version {
        Version::V1 => sys::Filter::Type(TYPE_ROCE_V1),
        Version::V2 if config.local.is_ipv4() => sys::Filter::Udp4(ROCE_PORT),
        Version::V2 => sys::Filter::Udp6(ROCE_PORT),
    };
    sys::set_filter(fd, filter)?;
    // It hears nothing before this.
    sys::bind_packet(fd, index)
}

/// Take RoCE's UDP port of our address, if the kernel has that address, and read nothing from it.
fn hold_port(config: &PacketConfig) -> Option<UdpSocket> {
    if config.version == Version::V1 {
        return None;
    }
    let socket = UdpSocket::bind((config.local.ip(), ROCE_PORT)).ok()?;
    sys::set_filter(borrowed(&socket), sys::Filter::Nothing).ok()?;
    Some(socket)
}
