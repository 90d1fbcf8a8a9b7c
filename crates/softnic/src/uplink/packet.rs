//! An uplink over packet sockets on an existing interface: one raw socket a worker, offloads in a
//! virtio-net header, tags put back from the auxiliary data (packet(7)).
//!
//! Frames a software NIC sends leave through the interface's queueing discipline. (A socket may
//! pass it by, `PACKET_QDISC_BYPASS`, but then the kernel drops what it would have to segment.)

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::batch::NetHeader;
use super::config::InterfaceName;
use super::link::Interfaces;
use super::{Opened, UplinkError, sys};

/// Bytes of frames (with the kernel's own overhead) that may wait for a worker: 100 super-frames,
/// or 10,000 small frames, which is what arrives in a few milliseconds at 1 Mframe/s.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Bytes of frames that may wait for the interface.
const SEND_BUFFER: usize = 4 << 20;

/// The header as it is everywhere else in the software NIC.
const HEADER: usize = size_of::<NetHeader>();
/// The header without `num_buffers`, which is all that kernels before 6.6 know here
/// (`PACKET_VNET_HDR_SZ` is newer).
const SHORT_HEADER: usize = 10;

/// A socket for each queue, bound to the interface if that is up. (The kernel distributes over
/// sockets of an interface only while it is up.)
pub(super) fn open(
    interfaces: &Interfaces,
    name: &InterfaceName,
    queues: usize,
) -> Result<Opened, UplinkError> {
    let index = interfaces
        .index(name)
        .map_err(|source| UplinkError::system("look up the interface", name, source))?
        .ok_or_else(|| UplinkError::no_interface(name))?;
    let failed = |source| match source {
        error if is_permission(&error) => {
            UplinkError::Permission { name: name.clone(), needs: "CAP_NET_RAW" }
        }
        error if error.raw_os_error() == Some(libc::ENODEV) => UplinkError::no_interface(name),
        error => UplinkError::system("open a packet socket on", name, error),
    };
    let header_len = if socket(HEADER).is_ok() { HEADER } else { SHORT_HEADER };
    let files =
        (0..queues).map(|_| socket(header_len)).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let attached = interfaces.is_up(name);
    if attached {
        attach(&files, index).map_err(failed)?;
    }
    Ok(Opened { files, header_len, index: attached.then_some(index) })
}

/// Whether a socket is still bound to this interface.
pub(super) fn is_attached(socket: &OwnedFd, index: u32) -> bool {
    sys::packet_binding(socket.as_fd()).is_ok_and(|bound| bound == Some(index))
}

fn is_permission(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

/// A socket that receives nothing yet, with headers of this length.
fn socket(header_len: usize) -> io::Result<OwnedFd> {
    // Without a protocol it stays deaf until it is bound; with one it would hear all interfaces.
    let socket = net::socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    let fd = socket.as_fd();
    if header_len == SHORT_HEADER {
        sys::set_packet_option(fd, libc::PACKET_VNET_HDR, 1)?;
    } else {
        sys::set_packet_option(fd, libc::PACKET_VNET_HDR_SZ, header_len as u32)?;
    }
    sys::set_packet_option(fd, libc::PACKET_AUXDATA, 1)?;
    // What the host itself sends on the interface has not arrived there. The option keeps the
    // kernel from making a copy of each such frame for us; for sockets in a fanout group it has no
    // effect, and the group's own flag is newer (6.2) than kernels in use, so there is a filter.
    sys::set_packet_option(fd, libc::PACKET_IGNORE_OUTGOING, 1)?;
    sys::filter_outgoing(fd)?;
    // Beyond the system's limit with CAP_NET_ADMIN, else up to it.
    if sockopt::set_socket_recv_buffer_size_force(fd, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, RECEIVE_BUFFER)?;
    }
    if sockopt::set_socket_send_buffer_size_force(fd, SEND_BUFFER).is_err() {
        sockopt::set_socket_send_buffer_size(fd, SEND_BUFFER)?;
    }
    Ok(socket)
}

fn attach(sockets: &[OwnedFd], index: u32) -> io::Result<()> {
    let mut group = None;
    for socket in sockets {
        let fd = socket.as_fd();
        sys::bind_packet(fd, index)?;
        sys::join_promiscuous(fd, index)?;
        if sockets.len() == 1 {
            break;
        }
        // All frames of a flow to one worker, or they would overtake each other.
        let mode = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        // The kernel finds the first a group number that nobody else has.
        let (number, unique) = match group {
            None => (0, libc::PACKET_FANOUT_FLAG_UNIQUEID),
            Some(number) => (number, 0),
        };
        let value = number | ((mode | unique) << 16);
        sys::set_packet_option(fd, libc::PACKET_FANOUT, value)?;
        if group.is_none() {
            let joined = sys::packet_option(fd, libc::PACKET_FANOUT)?;
            group = Some(joined & 0xffff);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lanekeeper_testbed::netns::{Lab, Namespace};

    use super::super::batch::{MAX_PIECES, Stage};
    use super::super::{Kind, Link, LinkStatus, ReceiveBatch, Slot, UplinkQueue};
    use super::*;
    use crate::ring::Gather;

    /// A queue as it is on a kernel that knows short headers only.
    fn old_queue(host: &Namespace) -> UplinkQueue {
        let open = || -> io::Result<Slot> {
            let index = Interfaces::open()?.index(&InterfaceName::new("wire").expect("valid"))?;
            let sockets = [socket(SHORT_HEADER)?];
            attach(&sockets, index.expect("an interface"))?;
            let [socket] = sockets;
            let slot = Slot::new(socket, SHORT_HEADER)?;
            slot.listen()?;
            Ok(slot)
        };
        let slot = host.run(open).expect("enters").expect("a socket");
        let link = Link::default();
        link.set(LinkStatus { carrier: true, mtu: None });
        let stage = Stage::new(MAX_PIECES);
        UplinkQueue { slot: Some(Arc::new(slot)), kind: Kind::Packet, link, stage }
    }

    #[test]
    fn frames_and_offloads_cross_in_the_short_header_of_older_kernels() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return;
        }
        let mut lab = Lab::new("short");
        let hosts = ["l", "r"].map(|label| lab.namespace(label).expect("made"));
        lab.cable((&hosts[0], "wire"), (&hosts[1], "wire"), 1500).expect("joined");
        let [mut left, mut right] = [&hosts[0], &hosts[1]].map(old_queue);

        // A TCP checksum to finish; the tag travels beside the frame and is put back.
        let mut frame = vec![0xff; 12];
        frame.extend([0x81, 0, 0, 7, 8, 0, 0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6]);
        frame.resize(18 + 40 + 100, 0x55);
        let header = [1, 0, 0, 0, 0, 0, 38, 0, 16, 0, 0, 0];
        let mut batch = left.batch();
        batch.push(&header, Gather::from_slice(&frame)).expect("room");
        assert_eq!(batch.send().taken, 1);

        let ready = right.fd().expect("a socket");
        let mut fds =
            [rustix::event::PollFd::from_borrowed_fd(ready, rustix::event::PollFlags::IN)];
        let patience = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&patience)), Ok(1));
        let mut arrived = ReceiveBatch::new();
        right.receive(&mut arrived);
        assert_eq!(arrived.iter().collect::<Vec<_>>(), [(&header, &frame[..])]);
    }
}
