//! The state of an uplink's interface: how it is read, how changes are noticed, how it is shared.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, netdevice, netlink};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::config::InterfaceName;
use super::sys;

/// `RTMGRP_LINK` of rtnetlink(7): links that come, go or change.
const GROUP_LINK: u32 = 1;

/// What is known of the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// It is there, up, and has a carrier.
    pub carrier: bool,
    /// Its MTU, in bytes; `None` while it is not there.
    pub mtu: Option<u32>,
}

/// The last known state, shared with the workers.
#[derive(Clone, Debug, Default)]
pub struct Link(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    carrier: AtomicBool,
    /// 0 while unknown.
    mtu: AtomicU32,
}

impl Link {
    /// Whether frames can leave.
    #[inline]
    pub fn carrier(&self) -> bool {
        self.0.carrier.load(Ordering::Relaxed)
    }

    /// Both values.
    pub fn status(&self) -> LinkStatus {
        let mtu = self.0.mtu.load(Ordering::Relaxed);
        LinkStatus { carrier: self.carrier(), mtu: (mtu != 0).then_some(mtu) }
    }

    pub(super) fn set(&self, status: LinkStatus) {
        self.0.mtu.store(status.mtu.unwrap_or(0), Ordering::Relaxed);
        self.0.carrier.store(status.carrier, Ordering::Relaxed);
    }
}

/// Notices changes of interfaces without asking for them.
pub(super) struct Watch {
    /// Becomes readable with every change of any interface of the namespace. What it says is not
    /// read: the state is asked for afresh, so a message lost to a full buffer does no harm.
    changes: OwnedFd,
    /// Runs while the interface is missing.
    retry: OwnedFd,
    /// Readable when one of the two is.
    events: OwnedFd,
}

impl Watch {
    pub(super) fn open() -> io::Result<Self> {
        let changes = net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )?;
        net::bind(&changes, &netlink::SocketAddrNetlink::new(0, GROUP_LINK))?;
        let retry = rustix::time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for source in [&changes, &retry] {
            epoll::add(&events, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { changes, retry, events })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Forget what made it readable.
    pub(super) fn drain(&self) {
        let mut message = [0u8; 64];
        // ENOBUFS says that messages were lost, once.
        while let Ok(_) | Err(Errno::INTR | Errno::NOBUFS) =
            rustix::io::read(&self.changes, &mut message)
        {}
        // Nothing to read is what it should say most of the time.
        let _ = rustix::io::read(&self.retry, &mut message);
    }

    /// Wake up every second, or stop doing so.
    pub(super) fn set_retry(&self, on: bool) -> io::Result<()> {
        let second = Timespec { tv_sec: i64::from(on), tv_nsec: 0 };
        let every = Itimerspec { it_interval: second, it_value: second };
        rustix::time::timerfd_settime(&self.retry, TimerfdTimerFlags::empty(), &every)?;
        Ok(())
    }
}

/// Asks the kernel about interfaces of the network namespace it was made in.
pub(super) struct Interfaces(OwnedFd);

impl Interfaces {
    pub(super) fn open() -> io::Result<Self> {
        let socket =
            net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self(socket))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Index of the interface of this name, if there is one.
    pub(super) fn index(&self, name: &InterfaceName) -> io::Result<Option<u32>> {
        match netdevice::name_to_index(&self.0, name.as_str()) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// State of the interface with this index, whatever its name is by now; `None` if it is not in
    /// this namespace (any more).
    pub(super) fn status(&self, index: u32) -> Option<LinkStatus> {
        let name = netdevice::index_to_name(&self.0, index).ok()?;
        let name = InterfaceName::new(name).ok()?;
        let flags = sys::interface_flags(self.fd(), &name).ok()?;
        let mtu = sys::interface_mtu(self.fd(), &name).ok();
        let both = libc::IFF_UP | libc::IFF_RUNNING;
        Some(LinkStatus { carrier: flags & both == both, mtu })
    }

    /// Whether the interface is up, administratively.
    pub(super) fn is_up(&self, name: &InterfaceName) -> bool {
        sys::interface_flags(self.fd(), name).is_ok_and(|flags| flags & libc::IFF_UP != 0)
    }
}
