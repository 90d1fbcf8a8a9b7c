//! Writing frames: everything around a payload, which itself stays where it is.
//!
//! A [`Cover`] has what comes before the payload (Ethernet, IP, UDP, BTH, extension headers) and behind
//! it (pad, ICRC), so that a frame goes out by one gathering system call without a copy of our own; or
//! [`Cover::copy_to`] puts the whole frame into a buffer.

use lanekeeper_model::MacAddr;

use super::icrc::{self, Icrc};
use super::packet::{MAX_HEADERS, padding};
use super::{Bth, Flow, Headers, ROCE_PORT, Version, cnp, network};
use crate::RoceError;

/// Ethertype of RoCE v1 (annex A16).
pub(crate) const TYPE_ROCE_V1: u16 = 0x8915;
pub(super) const TYPE_IPV4: u16 = 0x0800;
pub(super) const TYPE_IPV6: u16 = 0x86dd;
pub(super) const TYPE_VLAN: u16 = 0x8100;

/// Bytes of an Ethernet header with a tag.
const MAX_ETHERNET: usize = 18;
/// Most bytes before a payload.
const MAX_HEAD: usize = MAX_ETHERNET + icrc::MAX_NETWORK + MAX_HEADERS;
/// Most bytes behind a payload: a CNP's reserved bytes or a pad, and the ICRC.
const MAX_TAIL: usize = cnp::RESERVED + icrc::LEN;

/// What Ethernet says of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Link {
    /// Sender.
    pub source: MacAddr,
    /// Receiver.
    pub dest: MacAddr,
    /// Tag control information of an 802.1Q tag: PCP, DEI, VLAN.
    pub vlan: Option<u16>,
}

/// All of a frame but its payload.
#[derive(Clone)]
pub struct Cover {
    head: [u8; MAX_HEAD],
    head_len: usize,
    tail: [u8; MAX_TAIL],
    tail_len: usize,
}

impl Cover {
    /// Of an Ethernet frame.
    ///
    /// # Errors
    /// What does not fit together: flow, headers and payload.
    pub fn ethernet(
        link: &Link,
        flow: &Flow,
        headers: &Headers,
        payload: &[&[u8]],
    ) -> Result<Self, RoceError> {
        let mut cover = Self::empty();
        cover.push(&link.dest.0);
        cover.push(&link.source.0);
        if let Some(tag) = link.vlan {
            cover.push(&TYPE_VLAN.to_be_bytes());
            cover.push(&tag.to_be_bytes());
        }
        let ethertype = match flow.version {
            Version::V1 => TYPE_ROCE_V1,
            Version::V2 if flow.dest.is_ipv4() => TYPE_IPV4,
            Version::V2 => TYPE_IPV6,
        };
        cover.push(&ethertype.to_be_bytes());
        cover.fill(flow, ROCE_PORT, Parts::All, headers, payload)?;
        Ok(cover)
    }

    /// Of an IP packet, or, in RoCE v1, of what begins with a GRH.
    ///
    /// # Errors
    /// As [`Cover::ethernet`].
    pub fn ip(flow: &Flow, headers: &Headers, payload: &[&[u8]]) -> Result<Self, RoceError> {
        let mut cover = Self::empty();
        cover.fill(flow, ROCE_PORT, Parts::All, headers, payload)?;
        Ok(cover)
    }

    /// Of what a UDP socket sends to a port: IP and UDP header are the kernel's, but counted in the
    /// ICRC as [`Cover::ip`] would write them.
    ///
    /// # Errors
    /// As [`Cover::ethernet`].
    pub fn datagram(
        flow: &Flow,
        port: u16,
        headers: &Headers,
        payload: &[&[u8]],
    ) -> Result<Self, RoceError> {
        let mut cover = Self::empty();
        cover.fill(flow, port, Parts::Packet, headers, payload)?;
        Ok(cover)
    }

    /// What comes before the payload.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    /// What comes behind it.
    pub fn tail(&self) -> &[u8] {
        &self.tail[..self.tail_len]
    }

    /// Put the whole frame into a buffer; says how many bytes it is.
    ///
    /// # Errors
    /// [`RoceError::BufferTooSmall`].
    pub fn copy_to(&self, payload: &[&[u8]], out: &mut [u8]) -> Result<usize, RoceError> {
        let pieces =
            || [self.head()].into_iter().chain(payload.iter().copied()).chain([self.tail()]);
        let need = pieces().map(<[u8]>::len).sum();
        if out.len() < need {
            return Err(RoceError::BufferTooSmall { need, have: out.len() });
        }
        let mut rest = out;
        for piece in pieces() {
            let (room, behind) = rest.split_at_mut(piece.len());
            room.copy_from_slice(piece);
            rest = behind;
        }
        Ok(need)
    }

    fn empty() -> Self {
        Self { head: [0; MAX_HEAD], head_len: 0, tail: [0; MAX_TAIL], tail_len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.head[self.head_len..][..bytes.len()].copy_from_slice(bytes);
        self.head_len += bytes.len();
    }

    /// Network headers (if they are wanted), headers, and what comes behind the payload.
    #[inline]
    fn fill(
        &mut self,
        flow: &Flow,
        port: u16,
        parts: Parts,
        headers: &Headers,
        payload: &[&[u8]],
    ) -> Result<(), RoceError> {
        let opcode = headers.bth.opcode;
        let length = payload.iter().map(|piece| piece.len()).sum::<usize>();
        if length > 0 && !opcode.has_payload() {
            return Err(RoceError::PayloadNotAllowed { opcode, length });
        }
        if flow.version == Version::V2 && flow.source.is_ipv4() != flow.dest.is_ipv4() {
            return Err(RoceError::MixedFamilies);
        }
        let pad = padding(length);
        let behind = usize::from(pad) + cnp::reserved(opcode);
        let packet = headers.len() + length + behind + icrc::LEN;
        if packet > network::max_packet(flow) {
            return Err(RoceError::PayloadTooLong { length });
        }
        let (network, network_len) = network::build(flow, port, packet);
        let network = &network[..network_len];
        if matches!(parts, Parts::All) {
            self.push(network);
        }
        let headers = Headers { bth: Bth { pad, ..headers.bth }, ..*headers };
        let mut written = [0; MAX_HEADERS];
        let headers_len = headers.write(&mut written)?;
        self.push(&written[..headers_len]);
        self.finish(network, &written[..headers_len], payload, behind);
        Ok(())
    }

    /// Pad and ICRC.
    fn finish(&mut self, network: &[u8], headers: &[u8], payload: &[&[u8]], behind: usize) {
        let Some((bth, extensions)) = headers.split_first_chunk() else { return };
        let mut icrc = Icrc::start(network, *bth);
        icrc.update(extensions);
        for piece in payload {
            icrc.update(piece);
        }
        icrc.update(&self.tail[..behind]);
        self.tail[behind..][..icrc::LEN].copy_from_slice(&icrc.finish().to_le_bytes());
        self.tail_len = behind + icrc::LEN;
    }
}

/// What a cover has beside the transport packet.
#[derive(Clone, Copy)]
enum Parts {
    /// Network headers too.
    All,
    /// Nothing.
    Packet,
}
