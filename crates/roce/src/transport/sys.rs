//! The system calls of the transports that no safe binding offers, each behind a safe function.

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A call's result, a count or 0, unless it is negative.
fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// `setsockopt` with an option that is plain data.
fn set_option<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result as isize).map(drop)
}

/// Set an option that is an integer.
pub(super) fn set_integer(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    set_option(fd, level, name, &value)
}

/// Which packets a socket gets.
#[derive(Clone, Copy)]
pub(super) enum Filter {
    /// None at all.
    Nothing,
    /// Ethernet frames of this type.
    Type(u16),
    /// Ethernet frames of IPv4 without options and UDP to this port.
    Udp4(u16),
    /// Ethernet frames of IPv6 and UDP to this port.
    Udp6(u16),
}

/// Have a socket get only some packets (the kernel's Documentation/networking/filter.rst).
pub(super) fn set_filter(fd: BorrowedFd<'_>, filter: Filter) -> io::Result<()> {
    let op = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let give = |bytes| op(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
    // Two instructions: what is not `value` at `at` is passed over, to the end of the program.
    let want = |width, at: u32, value: u32, left: u8| {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        [op(libc::BPF_LD | width | libc::BPF_ABS, 0, 0, at), op(equal, 0, left, value)]
    };
    let udp = |ethertype: u16, protocol: u32, dest: u32, port: u16| {
        let mut program = Vec::new();
        program.extend(want(libc::BPF_H, 12, ethertype.into(), 5));
        program.extend(want(libc::BPF_B, protocol, libc::IPPROTO_UDP as u32, 3));
        program.extend(want(libc::BPF_H, dest, port.into(), 1));
        program
    };
    // Ethernet's header has 14 bytes: a tag has been taken off.
    let mut program = match filter {
        Filter::Nothing => vec![],
        Filter::Type(ethertype) => want(libc::BPF_H, 12, ethertype.into(), 1).to_vec(),
        Filter::Udp4(port) => udp(libc::ETH_P_IP as u16, 14 + 9, 14 + 20 + 2, port),
        Filter::Udp6(port) => udp(libc::ETH_P_IPV6 as u16, 14 + 6, 14 + 40 + 2, port),
    };
    if !program.is_empty() {
        program.push(give(u32::MAX));
    }
    program.push(give(0));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // The kernel copies the program before the call returns.
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Bind a packet socket to every protocol of one interface. (To those of one protocol the kernel does
/// not say which tag a frame had.)
pub(super) fn bind_packet(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: pointer and length describe `address`, which the kernel only reads.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    check(result as isize).map(drop)
}

/// What is known of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) mtu: u32,
    pub(super) mac: [u8; 6],
}

/// Look an interface up by name (netdevice(7)).
pub(super) fn interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<Interface> {
    // SAFETY: all-zero bytes are a valid `ifreq`: an empty name and a union of plain data.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let mut ask = |command: libc::c_ulong| {
        // SAFETY: each command asked here takes a pointer to an `ifreq`, and writes into it at most.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), command as _, &raw mut request) };
        check(result as isize).map(|_| request.ifr_ifru)
    };
    // SAFETY: SIOCGIFINDEX fills this member.
    let index = unsafe { ask(libc::SIOCGIFINDEX as _)?.ifru_ifindex }.unsigned_abs();
    // SAFETY: SIOCGIFMTU fills this member.
    let mtu = unsafe { ask(libc::SIOCGIFMTU as _)?.ifru_mtu }.unsigned_abs();
    // SAFETY: SIOCGIFHWADDR fills this member.
    let address = unsafe { ask(libc::SIOCGIFHWADDR as _)?.ifru_hwaddr }.sa_data;
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address) {
        *to = from.to_ne_bytes()[0];
    }
    Ok(Interface { index, mtu, mac })
}

/// What the kernel says of a message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    /// Bytes of it, also those that had no room.
    pub(super) length: usize,
    /// Sender's address and port, of UDP.
    pub(super) from: Option<(IpAddr, u16)>,
    /// TOS or traffic class.
    pub(super) class: u8,
    /// TTL or hop limit.
    pub(super) hop_limit: u8,
    /// The tag that was taken off: control information.
    pub(super) tag: Option<u16>,
}

/// Words for control data: several times what is asked for.
const CONTROL_WORDS: usize = 32;

/// Receive one message, if there is one.
pub(super) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Arrived>> {
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`, which is plain data.
    let mut name: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid `msghdr`: null pointers and zero lengths. It cannot be written
    // field by field, because its padding fields differ between targets.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of_val(&name) as libc::socklen_t;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: all of the message's pointers are to exclusively borrowed or local memory of the lengths
    // that it says.
    let result = check(unsafe {
        libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT | libc::MSG_TRUNC)
    });
    let length = match result {
        Ok(length) => length,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut arrived = Arrived { length, from: sender(&name), ..Arrived::default() };
    // SAFETY: the kernel has set `msg_controllen` to what it wrote to `control`.
    unsafe { read_control(&message, &mut arrived) };
    Ok(Some(arrived))
}

/// The UDP sender that a socket address names.
fn sender(name: &libc::sockaddr_storage) -> Option<(IpAddr, u16)> {
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: this family's address is a `sockaddr_in`, which a storage has room and alignment for.
            let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some((address.into(), u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, of a `sockaddr_in6`.
            let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            Some((Ipv6Addr::from(name.sin6_addr.s6_addr).into(), u16::from_be(name.sin6_port)))
        }
        _ => None,
    }
}

/// Read what control data says.
///
/// # Safety
/// `message` comes from a successful receive and its control buffer is still there.
unsafe fn read_control(message: &libc::msghdr, arrived: &mut Arrived) {
    // SAFETY: the caller vouches for the control buffer; the macro checks its length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header within the control buffer.
    while let Some(header) = unsafe { next.as_ref() } {
        // SAFETY: a header's data lies within the control buffer, for `cmsg_len` bytes.
        match (header.cmsg_level, header.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // SAFETY: as above; ip(7): one byte.
                arrived.class = unsafe { data::<u8>(header) }.unwrap_or_default();
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                // SAFETY: as above; ip(7) and RFC 3542, 6.3: an integer.
                arrived.hop_limit = low_byte(unsafe { data::<c_int>(header) });
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: as above; RFC 3542, 6.5: an integer.
                arrived.class = low_byte(unsafe { data::<c_int>(header) });
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: as above; packet(7): this structure.
                arrived.tag = unsafe { data::<libc::tpacket_auxdata>(header) }
                    .filter(|aux| aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0)
                    .map(|aux| aux.tp_vlan_tci);
            }
            _ => {}
        }
        // SAFETY: `header` is one of this message.
        next = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// Of an integer that stands for a byte.
fn low_byte(value: Option<c_int>) -> u8 {
    value.map_or(0, |value| value.cast_unsigned() as u8)
}

/// Control data as a `T`, if there is as much.
///
/// # Safety
/// `header` is in a control buffer that has the bytes its length says; any bytes are a valid `T`.
unsafe fn data<T: Copy>(header: &libc::cmsghdr) -> Option<T> {
    // SAFETY: a computation on its argument.
    let whole = unsafe { libc::CMSG_LEN(size_of::<T>() as c_uint) } as usize;
    #[allow(clippy::unnecessary_cast)] // Of another type on other targets.
    let there = header.cmsg_len as usize;
    if there < whole {
        return None;
    }
    // SAFETY: the length was checked; the read does not ask for alignment.
    Some(unsafe { libc::CMSG_DATA(header).cast::<T>().read_unaligned() })
}
