//! How many queues of a TAP are in use, as rtnetlink(7) tells: the kernel adds whoever asks to a TAP
//! of several queues, and then spreads flows over all of them, so a second owner would quietly take
//! part of the first one's traffic.

use std::io;

use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt,
};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr` and `struct ifinfomsg`, both of 16 bytes.
const HEADER: usize = 16;
const INFO: usize = 16;
/// `linux/if_link.h`.
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;
/// Nested and byte-order flags of an attribute's type (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// Longest description of one interface that the kernel makes is far below.
const LONGEST: usize = 64 << 10;

/// Queues, on and off, that files are attached to; `None` for an interface that is no TAP of several
/// queues, or is gone.
pub(super) fn in_use(index: u32) -> io::Result<Option<usize>> {
    let socket =
        net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // The kernel answers before `send` returns; nobody is to hang should it once not.
    sockopt::set_socket_timeout(
        &socket,
        sockopt::Timeout::Recv,
        Some(std::time::Duration::from_secs(1)),
    )?;
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    net::sendto(&socket, &request(index), SendFlags::empty(), &kernel)?;
    let mut answer = vec![0; LONGEST];
    let (_, len) = net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    Ok(queues_of(&answer[..len.min(LONGEST)]))
}

fn request(index: u32) -> [u8; HEADER + INFO] {
    let mut request = [0; HEADER + INFO];
    request[..4].copy_from_slice(&((HEADER + INFO) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[HEADER + 4..HEADER + 8].copy_from_slice(&index.to_ne_bytes());
    request
}

/// What an answer says; an error message of the kernel has nothing to say.
fn queues_of(answer: &[u8]) -> Option<usize> {
    if half(answer, 4)? != RTM_NEWLINK {
        return None;
    }
    let info = attribute(answer.get(HEADER + INFO..)?, IFLA_LINKINFO)?;
    let data = attribute(info, IFLA_INFO_DATA)?;
    let count = |kind| {
        let value = attribute(data, kind)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*value) as usize)
    };
    Some(count(IFLA_TUN_NUM_QUEUES)? + count(IFLA_TUN_NUM_DISABLED_QUEUES).unwrap_or(0))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The value of the first attribute of a type.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(half(bytes, 0)?);
        let value = bytes.get(4..len)?;
        if half(bytes, 2)? & TYPE_MASK == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + INFO];
        bytes[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn the_queues_are_found_among_other_attributes() {
        let counts = [
            wrap(7, &[1]),
            wrap(IFLA_TUN_NUM_QUEUES, &3u32.to_ne_bytes()),
            wrap(IFLA_TUN_NUM_DISABLED_QUEUES, &1u32.to_ne_bytes()),
        ]
        .concat();
        let data = wrap(IFLA_INFO_DATA | 0x8000, &counts);
        let info = [wrap(1, b"tun\0"), data].concat();
        let whole = [wrap(3, b"lktap\0"), wrap(IFLA_LINKINFO, &info)].concat();
        assert_eq!(queues_of(&answer(&whole)), Some(4));
    }

    #[test]
    fn what_is_no_tap_of_several_queues_has_none() {
        let veth = wrap(IFLA_LINKINFO, &wrap(1, b"veth\0"));
        assert_eq!(queues_of(&answer(&veth)), None);
        assert_eq!(queues_of(&answer(&[])), None);
        assert_eq!(queues_of(&[]), None);
        // An attribute that claims to be shorter than its own head ends the search.
        assert_eq!(queues_of(&answer(&[0, 0, 0, 0])), None);
    }

    #[test]
    fn the_kernel_says_nothing_of_loopback() {
        assert_eq!(in_use(1).expect("asked"), None);
    }
}
