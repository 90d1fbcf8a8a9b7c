//! Ways of packets into the network and out of it.
//!
//! - [`UdpWire`]: RoCE v2 on a UDP socket; needs no privilege.
//! - [`PacketWire`]: RoCE v1 and v2 on a packet socket, Ethernet header and all; needs `CAP_NET_RAW`.
//!
//! A [`Wire`] neither queues nor repeats: what has no room now, its caller offers again.

mod packet;
#[allow(unsafe_code)]
mod sys;
mod udp;

pub use packet::{PacketConfig, PacketWire};
pub use udp::{UdpConfig, UdpWire};

use std::io;
use std::time::Duration;

use lanekeeper_model::MacAddr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};

use crate::RoceError;
use crate::wire::{Flow, Frame, Gid, Headers, Malformed, PathMtu};

/// A buffer of this size takes every frame of the largest path MTU.
pub const FRAME_CAPACITY: usize = 4096 + 256;

/// Bytes that may wait for us, or for the network, in a socket; as far as the system allows.
const SOCKET_BUFFER: usize = 8 << 20;

/// Why a packet could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// What shall be sent makes no packet.
    #[error(transparent)]
    Packet(#[from] RoceError),
    /// A packet socket without the privilege for it.
    #[error("a packet socket needs CAP_NET_RAW; run as root, or use a UDP socket")]
    Permission,
    /// An address that stands for all of the host's: the ICRC covers the one that is used.
    #[error("{0} is not one address; name the one that packets come from")]
    NotOneAddress(std::net::IpAddr),
    /// A flow that this wire does not carry.
    #[error(
        "a wire of {local} does not send from {source_gid}; use one of that address and version"
    )]
    NotOurs {
        /// Whose wire it is.
        local: Gid,
        /// The flow's source.
        source_gid: Gid,
    },
    /// Nobody has said which station has this address.
    #[error("no station is known that has {0}; name it, or let it send first")]
    NoNeighbour(Gid),
    /// An interface whose MTU leaves no room for RoCE.
    #[error("an MTU of {0} bytes has no room for RoCE; set it to 512 at least")]
    Mtu(u32),
    /// A packet that is longer than the way out allows.
    #[error(
        "a packet with {length} bytes of payload is longer than the MTU; split at the path MTU"
    )]
    TooLong {
        /// Bytes of payload.
        length: usize,
    },
}

impl WireError {
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Permission,
            _ => Self::System { what: what.into(), source },
        }
    }
}

/// What was received: a frame, or why it is none.
pub type Arrival<'a> = Result<Frame<'a>, Malformed>;

/// A way of packets into the network and out of it.
pub trait Wire {
    /// Send one packet; `false` if there is no room now.
    ///
    /// # Errors
    /// It can never be sent, or the system refuses.
    fn send(
        &mut self,
        flow: &Flow,
        headers: &Headers,
        payload: &[&[u8]],
    ) -> Result<bool, WireError>;

    /// Take one that has arrived, if one has, into a buffer of [`FRAME_CAPACITY`] bytes.
    ///
    /// # Errors
    /// The system refuses. What is wrong with a frame is not an error of the wire.
    fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<Arrival<'a>>, WireError>;

    /// Sleep until something has arrived, or `limit` is over; whether something has.
    ///
    /// # Errors
    /// The system refuses.
    fn wait(&self, limit: Duration) -> Result<bool, WireError>;

    /// Largest payload that leaves by this wire in one packet.
    fn path_mtu(&self) -> PathMtu;

    /// The address it sends from and receives for.
    fn local(&self) -> Gid;
}

/// The path MTU of an interface's MTU.
fn path_mtu(mtu: u32) -> Result<PathMtu, WireError> {
    PathMtu::for_ethernet_mtu(mtu).ok_or(WireError::Mtu(mtu))
}

/// Wait until a socket has something to read.
fn readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool, WireError> {
    let limit = Timespec::try_from(limit).ok();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut fds, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(WireError::system("wait for packets")(error.into())),
    }
}

/// Room for what waits, beyond the system's limit with `CAP_NET_ADMIN`, else up to it.
fn enlarge_buffers(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(fd, SOCKET_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER)?;
    }
    Ok(sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER)?)
}

/// What a send's result means: sent, no room now, or an error.
fn sent(result: rustix::io::Result<usize>, length: usize) -> Result<bool, WireError> {
    use rustix::io::Errno;
    match result {
        Ok(_) => Ok(true),
        // No room in the socket, or in the interface's queue.
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(false),
        Err(Errno::MSGSIZE) => Err(WireError::TooLong { length }),
        Err(error) => Err(WireError::system("send a packet")(error.into())),
    }
}

/// The pieces of a frame for one gathering call: cover and payload, at most so many of it.
const MAX_PIECES: usize = 16;

/// Call `send` with head, payload and tail as one list of pieces. A payload of more pieces than that
/// is copied together first.
fn gather<T>(
    head: &[u8],
    payload: &[&[u8]],
    tail: &[u8],
    send: impl FnOnce(&[io::IoSlice<'_>]) -> T,
) -> T {
    let mut pieces = [io::IoSlice::new(&[]); MAX_PIECES + 2];
    let joined;
    let mut count = 0;
    let mut push = |piece| {
        pieces[count] = io::IoSlice::new(piece);
        count += 1;
    };
    push(head);
    if payload.len() <= MAX_PIECES {
        for piece in payload {
            push(piece);
        }
    } else {
        joined = payload.concat();
        push(&joined);
    }
    push(tail);
    send(&pieces[..count])
}

/// A MAC address that an IPv6 link-local GID was made of (RFC 4291, appendix A: modified EUI-64), as
/// RoCE v1's first GID of a port always is (annex A16.5.1).
fn embedded_mac(gid: Gid) -> Option<MacAddr> {
    let (prefix, id) = gid.0.split_at(8);
    let is_made_of_one = prefix == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] && id[3..5] == [0xff, 0xfe];
    is_made_of_one.then(|| MacAddr([id[0] ^ 2, id[1], id[2], id[5], id[6], id[7]]))
}

fn borrowed<T: AsFd>(socket: &T) -> BorrowedFd<'_> {
    socket.as_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_gid_tells_its_station() {
        let gid = Gid::from("fe80::aa:bbff:fecc:1".parse::<std::net::IpAddr>().unwrap());
        assert_eq!(embedded_mac(gid), Some(MacAddr([2, 0xaa, 0xbb, 0xcc, 0, 1])));
        assert_eq!(embedded_mac(Gid([0xfe; 16])), None);
    }

    #[test]
    fn many_pieces_go_out_in_order() {
        let bytes: Vec<u8> = (0..40).collect();
        for step in [1, 2, 7, 40] {
            let payload: Vec<&[u8]> = bytes.chunks(step).collect();
            let all = gather(&[200], &payload, &[201], |pieces| {
                pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>()
            });
            assert_eq!(all, [&[200], &bytes[..], &[201]].concat());
        }
    }
}
