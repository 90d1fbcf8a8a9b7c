//! Events of the Linux kernel, from the kernel itself and with no daemon between: uevents
//! (`NETLINK_KOBJECT_UEVENT`, lib/kobject_uevent.c) of PCI functions and interfaces, and link
//! notifications of rtnetlink. Where the kernel had no room for all of them (`ENOBUFS`) that is an
//! event too.

use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use lanekeeper_model::PciAddr;
use netlink_sys::{Socket, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use super::Linux;
use super::netlink::attribute::{Attributes, u32_at};
use super::netlink::message::Messages;
use super::tree::{self, Tree};
use crate::HardwareError;
use crate::watch::{Event, Kind, Watch};

/// `NETLINK_ROUTE` and `NETLINK_KOBJECT_UEVENT`.
const ROUTE: isize = 0;
const UEVENT: isize = 15;
/// `RTMGRP_LINK`, and the group in which the kernel itself speaks (udev's own is 2).
const LINKS: u32 = 1;
const KERNEL: u32 = 1;

/// Room for the uevents of 256 VFs that appear at once, several each.
const ROOM: usize = 4 << 20;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
/// `struct ifinfomsg`, and the place of the flags in it.
const LINK_HEADER: usize = 16;
const LINK_FLAGS: usize = 8;
const IFF_UP: u32 = 1;
const IFF_LOWER_UP: u32 = 1 << 16;
const IFLA_IFNAME: u16 = 3;
/// The device that an interface is of, since Linux 5.14.
const IFLA_PARENT_DEV_NAME: u16 = 56;

/// The kernel's events, in the network namespace of the thread that began to watch.
pub struct LinuxWatch {
    tree: Tree,
    uevents: Socket,
    links: Socket,
}

impl Linux {
    /// Watch this host's kernel. What happens from now on is told.
    ///
    /// # Errors
    /// What opening a netlink socket says.
    pub fn watch(&self) -> io::Result<LinuxWatch> {
        let tree = self.tree.clone();
        Ok(LinuxWatch { tree, uevents: open(UEVENT, KERNEL)?, links: open(ROUTE, LINKS)? })
    }
}

fn open(protocol: isize, groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    // Beyond the host's limit only root may; within it anybody, and what is lost is told.
    if set_socket_recv_buffer_size_force(socket.as_fd(), ROOM).is_err() {
        set_socket_recv_buffer_size(socket.as_fd(), ROOM)?;
    }
    socket.set_non_blocking(true)?;
    socket.bind(&SocketAddr::new(0, groups))?;
    Ok(socket)
}

impl Watch for LinuxWatch {
    fn wait(&mut self, within: Duration) -> Result<Vec<Event>, HardwareError> {
        let broken = |source| HardwareError::Host { what: "the kernel's events".into(), source };
        let until = Instant::now() + within;
        loop {
            let mut events = self.take().map_err(broken)?;
            events.dedup();
            let left = until.saturating_duration_since(Instant::now());
            if !events.is_empty() || left.is_zero() {
                return Ok(events);
            }
            self.sleep(left).map_err(broken)?;
        }
    }
}

impl LinuxWatch {
    /// Everything that is there now.
    fn take(&self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        drain(&self.uevents, &mut events, |datagram, events| {
            events.extend(of_uevent(datagram));
        })?;
        drain(&self.links, &mut events, |datagram, events| {
            events.extend(of_links(datagram, |interface| parent(&self.tree, interface)));
        })?;
        Ok(events)
    }

    fn sleep(&self, left: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let (uevents, links) = (self.uevents.as_fd(), self.links.as_fd());
        let mut waiting =
            [PollFd::new(&uevents, PollFlags::IN), PollFd::new(&links, PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn drain(
    socket: &Socket,
    events: &mut Vec<Event>,
    mut each: impl FnMut(&[u8], &mut Vec<Event>),
) -> io::Result<()> {
    loop {
        match socket.recv_from_full() {
            // Any process may send to a group; the kernel's port is 0.
            Ok((datagram, from)) if from.port_number() == 0 => each(&datagram, events),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                events.push(Event::lost());
            }
            Err(error) => return Err(error),
        }
    }
}

/// `ACTION@DEVPATH`, then `KEY=value` each with a zero byte after it. Only PCI functions and
/// interfaces are of interest.
fn of_uevent(datagram: &[u8]) -> Option<Event> {
    let text = String::from_utf8_lossy(datagram);
    let value = |key: &str| {
        let mut fields = text.split('\0').skip(1);
        fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
    };
    let (is_pci, is_net) = match value("SUBSYSTEM")?.as_str() {
        "pci" => (true, false),
        "net" => (false, true),
        _ => return None,
    };
    let kind = match value("ACTION")?.as_str() {
        "add" => Kind::Appeared,
        "remove" => Kind::Gone,
        "move" => Kind::Moved,
        "bind" | "unbind" if is_pci => Kind::Driver,
        _ => Kind::Changed,
    };
    let path = value("DEVPATH")?;
    let named = value("PCI_SLOT_NAME").and_then(|name| name.parse().ok());
    let function = named.or_else(|| path.rsplit('/').find_map(|part| part.parse().ok()));
    let interface = if is_net { value("INTERFACE") } else { None };
    Some(Event { kind, function, interface })
}

fn of_links(datagram: &[u8], parent: impl Fn(&str) -> Option<PciAddr>) -> Vec<Event> {
    let event = |kind: u16, payload: &[u8]| {
        let flags = u32_at(payload, LINK_FLAGS)?;
        let kind = match kind {
            RTM_NEWLINK => {
                Kind::Link { up: flags & IFF_UP != 0, carrier: flags & IFF_LOWER_UP != 0 }
            }
            RTM_DELLINK => Kind::Gone,
            _ => return None,
        };
        let told = Attributes(payload.get(LINK_HEADER..)?);
        let interface = told.first(IFLA_IFNAME)?.text();
        let device = told.first(IFLA_PARENT_DEV_NAME).and_then(|name| name.text().parse().ok());
        let function = device.or_else(|| parent(&interface));
        Some(Event { kind, function, interface: Some(interface) })
    };
    Messages(datagram).filter_map(|message| event(message.kind, message.payload)).collect()
}

/// The function that an interface is of, for kernels that do not tell it.
fn parent(tree: &Tree, interface: &str) -> Option<PciAddr> {
    tree::target(&tree.path("sys/class/net").join(interface).join("device"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::netlink::attribute::Builder;
    use crate::linux::netlink::message::Message;
    use lanekeeper_testbed::netns::Lab;
    use proptest::prelude::*;

    fn uevent(fields: &[&str]) -> Vec<u8> {
        fields.iter().flat_map(|field| [field.as_bytes(), &[0]].concat()).collect()
    }

    fn pci(text: &str) -> PciAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_uevent_of_a_vf_names_its_function() {
        let path = "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2";
        let told = uevent(&[
            &format!("bind@{path}"),
            "ACTION=bind",
            &format!("DEVPATH={path}"),
            "SUBSYSTEM=pci",
            "DRIVER=vfio-pci",
            "PCI_SLOT_NAME=0000:3b:00.2",
            "SEQNUM=4711",
        ]);
        let event = of_uevent(&told).expect("of interest");
        assert_eq!((event.kind, event.function), (Kind::Driver, Some(pci("0000:3b:00.2"))));
    }

    #[test]
    fn an_interface_that_is_renamed_names_the_function_that_it_is_of() {
        let path = "/devices/pci0000:3a/0000:3b:00.0/net/ens1np0";
        let told = uevent(&[
            &format!("move@{path}"),
            "ACTION=move",
            &format!("DEVPATH={path}"),
            "SUBSYSTEM=net",
            "INTERFACE=ens1np0",
        ]);
        let event = of_uevent(&told).expect("of interest");
        assert_eq!((event.kind, event.function), (Kind::Moved, Some(pci("0000:3b:00.0"))));
        assert_eq!(event.interface.as_deref(), Some("ens1np0"));
    }

    #[test]
    fn what_is_neither_a_function_nor_an_interface_is_passed_over() {
        let told = uevent(&["add@/x", "ACTION=add", "DEVPATH=/x", "SUBSYSTEM=block"]);
        assert_eq!(of_uevent(&told), None);
        assert_eq!(of_uevent(b"libudev\0\xfe\xed\xca\xfe"), None, "udev's own format");
    }

    fn link(kind: u16, flags: u32, parent: Option<&str>) -> Vec<u8> {
        let mut payload = Builder::after(&[0, 3, flags, 0].map(u32::to_ne_bytes).concat());
        payload.text(IFLA_IFNAME, "ens1");
        if let Some(parent) = parent {
            payload.text(IFLA_PARENT_DEV_NAME, parent);
        }
        Message { kind, flags: 0, sequence: 0, payload: payload.finish() }.encode()
    }

    #[test]
    fn a_link_that_is_lost_is_told_with_the_function_it_is_of() {
        let events = of_links(&link(RTM_NEWLINK, IFF_UP, Some("0000:3b:00.0")), |_| None);
        let lost = Kind::Link { up: true, carrier: false };
        let (interface, function) = (Some("ens1".to_owned()), Some(pci("0000:3b:00.0")));
        assert_eq!(events, [Event { kind: lost, function, interface }]);
        let old_kernel = of_links(&link(RTM_DELLINK, 0, None), |_| Some(pci("0000:3b:00.1")));
        let gone =
            Event { interface: Some("ens1".into()), ..Event::of(Kind::Gone, pci("0000:3b:00.1")) };
        assert_eq!(old_kernel, [gone]);
    }

    proptest! {
        #[test]
        fn any_datagram_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (of_uevent(&bytes), of_links(&bytes, |_| None));
        }
    }

    /// What is told of an interface within a second, until `enough`.
    fn told(watch: &mut LinuxWatch, interface: &str, enough: impl Fn(&Event) -> bool) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            let events = watch.wait(Duration::from_millis(200)).expect("the kernel tells");
            let mut of_it =
                events.iter().filter(|event| event.interface.as_deref() == Some(interface));
            if of_it.any(&enough) {
                return true;
            }
        }
        false
    }

    #[test]
    fn a_real_kernel_tells_of_links_that_go_down_and_up_and_change_names() {
        let mut lab = Lab::new("watch");
        let here = lab.namespace("here").expect("a namespace");
        let mut watch = here.run(|| Linux::new().watch()).expect("entered").expect("watched");
        here.ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"]).expect("made");
        assert!(told(&mut watch, "v0", |event| event.kind == Kind::Appeared), "its uevent");
        here.ip(&["link", "set", "v1", "up"]).expect("up");
        here.ip(&["link", "set", "v0", "up"]).expect("up");
        let up = |carrier| move |event: &Event| event.kind == Kind::Link { up: true, carrier };
        assert!(told(&mut watch, "v0", up(true)));
        here.ip(&["link", "set", "v1", "down"]).expect("down");
        assert!(told(&mut watch, "v0", up(false)), "no carrier");
        here.ip(&["link", "set", "v0", "down"]).expect("down");
        here.ip(&["link", "set", "v0", "name", "renamed"]).expect("renamed");
        assert!(told(&mut watch, "renamed", |event| event.kind == Kind::Moved));
        here.ip(&["link", "del", "renamed"]).expect("removed");
        assert!(told(&mut watch, "renamed", |event| event.kind == Kind::Gone));
        lab.tear_down().expect("removed");
    }

    #[test]
    fn events_that_were_lost_for_want_of_room_are_told_as_lost() {
        let mut lab = Lab::new("lost");
        let here = lab.namespace("small").expect("a namespace");
        let mut watch = here.run(|| Linux::new().watch()).expect("entered").expect("watched");
        let resize = |watch: &LinuxWatch, room| {
            for socket in [&watch.uevents, &watch.links] {
                set_socket_recv_buffer_size(socket.as_fd(), room).expect("resized");
            }
        };
        resize(&watch, 1);
        for number in 0..20 {
            let name = format!("v{number}");
            here.ip(&["link", "add", &name, "type", "veth"]).expect("made");
        }
        let events = watch.wait(Duration::from_secs(10)).expect("the kernel tells");
        assert!(events.contains(&Event::lost()), "{} events", events.len());
        resize(&watch, 65_536);
        here.ip(&["link", "add", "after", "type", "veth", "peer", "name", "peer"]).expect("made");
        assert!(told(&mut watch, "after", |event| event.kind != Kind::Lost), "it goes on");
        lab.tear_down().expect("removed");
    }
}
