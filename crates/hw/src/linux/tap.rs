//! How many queues of a TAP are in use, as rtnetlink(7) tells: the kernel adds whoever asks to a TAP
//! of several queues, and then spreads flows over all of them, so a second owner would quietly take
//! part of the first one's traffic.

use std::io;

use super::netlink::attribute::{Attribute, Attributes};
use super::netlink::{Connection, Protocol};
use super::{PATIENCE, link};

/// include/uapi/linux/if_link.h.
const IFLA_LINKINFO: u16 = 18;
/// Inside it: what the kind of interface tells (`tun_fill_info`, drivers/net/tun.c).
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;

const ENODEV: i32 = 19;

/// Queues, on and off, that files are attached to; `None` for an interface that is no TAP of several
/// queues, or is gone.
///
/// # Errors
/// What opening the socket or the kernel says; `TimedOut` if it says nothing for ten seconds.
pub fn tap_queues(index: u32) -> io::Result<Option<usize>> {
    let mut kernel = Connection::over(Protocol::Route.open()?, PATIENCE);
    match link::get(&mut kernel, index, 0) {
        Ok(answer) => Ok(queues(&link::attributes(&answer))),
        Err(failure) => match failure.errno() {
            Some(ENODEV) => Ok(None),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::ErrorKind::TimedOut.into()),
        },
    }
}

fn queues(link: &Attributes<'_>) -> Option<usize> {
    let data = link.first(IFLA_LINKINFO)?.nested().first(IFLA_INFO_DATA)?.nested();
    let count = |kind| data.first(kind).and_then(Attribute::u32);
    let off = count(IFLA_TUN_NUM_DISABLED_QUEUES).unwrap_or(0);
    Some((count(IFLA_TUN_NUM_QUEUES)? + off) as usize)
}

#[cfg(test)]
mod tests {
    use super::super::netlink::attribute::Builder;
    use super::*;

    #[test]
    fn queues_that_are_on_and_off_are_counted() {
        let mut link = Builder::default();
        link.text(3, "lktap").unmarked_nest(IFLA_LINKINFO, |info| {
            info.text(1, "tun").nest(IFLA_INFO_DATA, |data| {
                data.u8(7, 1).u32(IFLA_TUN_NUM_QUEUES, 3).u32(IFLA_TUN_NUM_DISABLED_QUEUES, 1);
            });
        });
        assert_eq!(queues(&Attributes(link.finish())), Some(4));
    }

    #[test]
    fn what_is_no_tap_of_several_queues_has_none() {
        let mut link = Builder::default();
        link.unmarked_nest(IFLA_LINKINFO, |info| {
            info.text(1, "veth");
        });
        assert_eq!(queues(&Attributes(link.finish())), None);
        assert_eq!(queues(&Attributes(&[])), None);
    }

    #[test]
    fn this_machines_loopback_and_an_interface_that_is_gone_have_none() {
        assert_eq!(tap_queues(1).expect("asked"), None);
        assert_eq!(tap_queues(u32::MAX >> 1).expect("asked"), None);
    }
}
