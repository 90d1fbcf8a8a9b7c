//! An uplink over a TAP interface: what VFs send to it, the host's own network stack (or a bridge)
//! receives, and the other way round (`Documentation/networking/tuntap.rst`).
//!
//! One queue a worker; offloads cross in a virtio-net header. The kernel has no call that reads or
//! writes several frames of a TAP, so each frame costs one: where speed matters, use a packet
//! uplink.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use lanekeeper_hw::linux::tap_queues;
use lanekeeper_model::Mtu;
use rustix::fs::{Mode, OFlags};

use super::batch::NetHeader;
use super::config::InterfaceName;
use super::link::Interfaces;
use super::{Opened, UplinkError, sys};

const DEVICE: &str = "/dev/net/tun";

/// What the kernel may leave to the reader. UDP segmentation is known from 6.2 on.
const OFFLOAD: u32 = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
const OFFLOAD_UDP: u32 = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// A queue of the TAP for each worker. The TAP is made and brought up if it does not exist. One that
/// somebody uses is refused, though the kernel would add us if it has several queues: he is looked
/// for before, not to disturb him, and after, since two may come at once.
pub(super) fn open(
    interfaces: &Interfaces,
    name: &InterfaceName,
    mtu: Option<Mtu>,
    queues: usize,
) -> Result<Opened, UplinkError> {
    let failed = |what, source| UplinkError::system(what, name, source);
    let existing = interfaces.index(name).map_err(|e| failed("look up", e))?;
    let in_use = |index| tap_queues(index).map_err(|e| failed("look at the queues of", e));
    if let Some(index) = existing
        && in_use(index)?.is_some_and(|in_use| in_use > 0)
    {
        return Err(UplinkError::TapBusy { name: name.clone() });
    }
    let mut files = Vec::with_capacity(queues);
    for _ in 0..queues {
        files.push(queue(name, queues)?);
    }
    let index = interfaces
        .index(name)
        .map_err(|e| failed("look up", e))?
        .ok_or_else(|| UplinkError::no_interface(name))?;
    if in_use(index)?.is_some_and(|in_use| in_use > queues) {
        return Err(UplinkError::TapBusy { name: name.clone() });
    }
    if let Some(mtu) = mtu {
        sys::set_interface_mtu(interfaces.fd(), name, mtu.get())
            .map_err(|e| failed("set the MTU of", e))?;
    }
    if existing.is_none() {
        sys::set_interface_up(interfaces.fd(), name).map_err(|e| failed("bring up", e))?;
    }
    Ok(Opened { files, header_len: size_of::<NetHeader>(), index: Some(index) })
}

/// Whether the queue's TAP still exists, in whatever network namespace.
pub(super) fn is_attached(queue: &OwnedFd) -> bool {
    sys::tap_flags(queue.as_fd()).is_ok()
}

fn queue(name: &InterfaceName, queues: usize) -> Result<OwnedFd, UplinkError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(DEVICE, flags, Mode::empty())
        .map_err(|source| UplinkError::TunDevice { device: DEVICE, source: source.into() })?;
    let tap = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let shared = tap | libc::IFF_MULTI_QUEUE;
    let attach = |flags| sys::attach_tap(file.as_fd(), name, flags);
    let attached = if queues > 1 {
        attach(shared)
    } else {
        // A TAP that somebody made beforehand may be of either sort.
        attach(tap).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => attach(shared),
            _ => Err(error),
        })
    };
    attached.map_err(|error| match error.raw_os_error() {
        // A TAP of the other sort is told from what is no TAP by being opened as that sort.
        Some(libc::EINVAL) if queues > 1 && is_tap_of_one_queue(&attach(tap)) => {
            UplinkError::TapUnfit { name: name.clone(), queues }
        }
        _ => refused(name, queues, error),
    })?;
    let failed = |source| UplinkError::system("set offloads of", name, source);
    sys::set_tap_header(file.as_fd(), size_of::<NetHeader>()).map_err(failed)?;
    sys::set_tap_offload(file.as_fd(), OFFLOAD | OFFLOAD_UDP)
        .or_else(|_| sys::set_tap_offload(file.as_fd(), OFFLOAD))
        .map_err(failed)?;
    Ok(file)
}

/// Whether attaching as such a TAP's only queue went as it goes with one: it worked, or its queue is
/// in use.
fn is_tap_of_one_queue(attached: &io::Result<()>) -> bool {
    match attached {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::EBUSY),
    }
}

fn refused(name: &InterfaceName, queues: usize, error: io::Error) -> UplinkError {
    match error.raw_os_error() {
        Some(libc::EBUSY) => UplinkError::TapBusy { name: name.clone() },
        Some(libc::EPERM | libc::EACCES) => {
            UplinkError::Permission { name: name.clone(), needs: "CAP_NET_ADMIN" }
        }
        Some(libc::EINVAL) => UplinkError::NoTap { name: name.clone() },
        Some(libc::E2BIG) => UplinkError::Queues(queues),
        _ => UplinkError::system("open the TAP", name, error),
    }
}
