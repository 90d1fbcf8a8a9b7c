//! The system calls of the uplinks that no safe binding offers, each behind a safe function, or an
//! unsafe one where it takes pointers from its caller.

use std::ffi::{CStr, c_int, c_short, c_uint, c_ulong};
use std::io;
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::batch::{NetHeader, Span};
use super::config::InterfaceName;
use crate::ring::BATCH;

/// Kernel constants that the `libc` crate lacks on some targets (`linux/if_packet.h`).
const SKF_AD_PKTTYPE: u32 = 0xffff_f000 + 4;

/// A call's result, a count or 0, unless it is negative.
fn check(result: c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// `setsockopt` with an option that is plain data.
fn set_option<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Set an integer option of a packet socket (packet(7)).
pub(super) fn set_packet_option(fd: BorrowedFd<'_>, name: c_int, value: u32) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, name, &value)
}

/// Read an integer option of a packet socket (packet(7)).
pub(super) fn packet_option(fd: BorrowedFd<'_>, name: c_int) -> io::Result<u32> {
    let mut value = 0u32;
    let mut len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, which has that size.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// Frames that a packet socket had no room for since this was last asked.
pub(super) fn packet_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `stats`, which has that size.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &raw mut len,
        )
    })?;
    Ok(stats.tp_drops)
}

fn packet_address(index: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Bind a packet socket to every protocol of one interface.
pub(super) fn bind_packet(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let address = packet_address(index);
    // SAFETY: pointer and length describe `address`, which the kernel only reads.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    })
    .map(drop)
}

/// The interface a packet socket is bound to; the kernel unbinds it when the interface goes.
pub(super) fn packet_binding(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut address = packet_address(0);
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `address`, which has that size.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) })?;
    Ok(u32::try_from(address.sll_ifindex).ok().filter(|&index| index != 0))
}

/// Have the interface receive all frames as long as the socket lives.
pub(super) fn join_promiscuous(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Have a socket drop what the host itself sends on the interface.
pub(super) fn filter_outgoing(fd: BorrowedFd<'_>) -> io::Result<()> {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, SKF_AD_PKTTYPE),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::from(libc::PACKET_OUTGOING)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // The kernel copies the program before the call returns.
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// The pieces of frames on their way to the kernel. The pointers in it are only followed inside a
/// call that its owner vouches for.
pub(super) struct Pieces(Box<[libc::iovec]>);

// SAFETY: the pointers are data until `send_messages` or `write_frame` is called, and whoever calls
// those vouches for them anew.
unsafe impl Send for Pieces {}

impl Pieces {
    pub(super) fn new(count: usize) -> Self {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self(vec![empty; count].into_boxed_slice())
    }

    /// Those from `used` on.
    pub(super) fn free(&mut self, used: usize) -> &mut [libc::iovec] {
        self.0.get_mut(used..).unwrap_or_default()
    }

    fn put_header(&mut self, span: &Span, header: &NetHeader, len: usize) {
        self.0[usize::from(span.first)] = libc::iovec {
            iov_base: header.as_ptr().cast_mut().cast(),
            iov_len: len.min(header.len()),
        };
    }

    /// One `sendmmsg` of the messages of `spans`; answers with how many the kernel took.
    ///
    /// Each span's first piece is the place of its header: `header_len` bytes of `headers`.
    ///
    /// # Safety
    /// Every piece of every span, its first aside, points to memory that is mapped (its bytes may
    /// change meanwhile: the kernel copies, nothing else reads them).
    pub(super) unsafe fn send_messages(
        &mut self,
        fd: BorrowedFd<'_>,
        headers: &[NetHeader],
        header_len: usize,
        spans: &[Span],
    ) -> io::Result<usize> {
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        let mut count = 0;
        for ((span, header), message) in spans.iter().zip(headers).zip(&mut messages) {
            self.put_header(span, header, header_len);
            let pieces = &mut self.0[span.range()];
            let mut fresh = empty_message();
            fresh.msg_hdr.msg_iov = pieces.as_mut_ptr();
            fresh.msg_hdr.msg_iovlen = pieces.len() as _;
            message.write(fresh);
            count += 1;
        }
        // SAFETY: the first `count` messages are initialised; the headers are borrowed for the
        // call, and the caller vouches for the other pieces.
        let sent = check(unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                messages.as_mut_ptr().cast(),
                count,
                libc::MSG_DONTWAIT as _,
            )
        })?;
        Ok(sent)
    }

    /// One `writev` of one frame.
    ///
    /// # Safety
    /// As for [`Self::send_messages`].
    pub(super) unsafe fn write_frame(
        &mut self,
        fd: BorrowedFd<'_>,
        header: &NetHeader,
        span: &Span,
    ) -> io::Result<()> {
        self.put_header(span, header, header.len());
        let pieces = &self.0[span.range()];
        // SAFETY: pointer and count describe `pieces`; the header is borrowed for the call, and
        // the caller vouches for the rest.
        let written =
            unsafe { libc::writev(fd.as_raw_fd(), pieces.as_ptr(), c_int::from(span.count)) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A message without address, pieces and control data.
fn empty_message() -> libc::mmsghdr {
    // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers and zero lengths. It cannot be
    // written field by field, because its padding fields differ between targets.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// What the kernel says of one received frame.
#[derive(Clone, Copy, Default)]
pub(super) struct Arrival {
    /// Bytes of header and frame.
    pub(super) len: usize,
    /// The frame was longer than its place.
    pub(super) truncated: bool,
    /// The tag it arrived with, which the kernel has taken off: (Ethertype, control information).
    pub(super) tag: Option<(u16, u16)>,
}

/// Words of auxiliary data of a message: one `tpacket_auxdata` with its header.
const CONTROL_WORDS: usize = {
    // SAFETY: a computation on its argument.
    let bytes = unsafe { libc::CMSG_SPACE(size_of::<libc::tpacket_auxdata>() as c_uint) };
    (bytes as usize).div_ceil(size_of::<u64>())
};

/// One `recvmmsg` into `headers` and `places`; answers with how many arrived.
pub(super) fn receive_messages<'a>(
    fd: BorrowedFd<'_>,
    headers: &mut [NetHeader; BATCH],
    header_len: usize,
    places: impl Iterator<Item = &'a mut [u8]>,
    arrivals: &mut [Arrival; BATCH],
) -> io::Result<usize> {
    let mut controls = [const { [MaybeUninit::<u64>::uninit(); CONTROL_WORDS] }; BATCH];
    let mut pieces = [const { [MaybeUninit::<libc::iovec>::uninit(); 2] }; BATCH];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    let mut count = 0;
    let rows = headers.iter_mut().zip(places).zip(&mut controls).zip(&mut pieces);
    for ((((header, place), control), pieces), message) in rows.zip(&mut messages) {
        pieces[0].write(libc::iovec {
            iov_base: header.as_mut_ptr().cast(),
            iov_len: header_len.min(header.len()),
        });
        pieces[1].write(libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() });
        let mut fresh = empty_message();
        fresh.msg_hdr.msg_iov = pieces.as_mut_ptr().cast();
        fresh.msg_hdr.msg_iovlen = pieces.len() as _;
        fresh.msg_hdr.msg_control = control.as_mut_ptr().cast();
        fresh.msg_hdr.msg_controllen = size_of_val(control) as _;
        message.write(fresh);
        count += 1;
    }
    // SAFETY: the first `count` messages are initialised; their pieces describe headers, places
    // and controls that are exclusively borrowed by, or local to, this function.
    let received = check(unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            messages.as_mut_ptr().cast(),
            count,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    })?;
    for (message, arrival) in messages.iter().zip(arrivals).take(received) {
        // SAFETY: `received` is at most `count`, and those are initialised.
        let message = unsafe { message.assume_init_ref() };
        *arrival = Arrival {
            len: message.msg_len as usize,
            truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            // SAFETY: the kernel has set `msg_controllen` to what it wrote to `controls`.
            tag: unsafe { tag_of(&message.msg_hdr) },
        };
    }
    Ok(received)
}

/// The VLAN tag in a received message's auxiliary data.
///
/// # Safety
/// `message` comes from a successful receive and its control buffer is still there.
unsafe fn tag_of(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the caller vouches for the control buffer; the macro checks its length.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    // SAFETY: a computation on its argument.
    let whole = unsafe { libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as c_uint) };
    if header.cmsg_level != libc::SOL_PACKET
        || header.cmsg_type != libc::PACKET_AUXDATA
        || (header.cmsg_len as usize) < whole as usize
    {
        return None;
    }
    // SAFETY: the header says that an auxdata follows; the read does not ask for alignment.
    let aux: libc::tpacket_auxdata =
        unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
    if aux.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    // Kernels before 3.14 do not say the Ethertype; they knew one.
    let known = aux.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    Some((if known { aux.tp_vlan_tpid } else { 0x8100 }, aux.tp_vlan_tci))
}

/// One `readv` of a header and a frame; answers with the bytes of both.
pub(super) fn read_frame(
    fd: BorrowedFd<'_>,
    header: &mut NetHeader,
    place: &mut [u8],
) -> io::Result<usize> {
    let mut pieces = [io::IoSliceMut::new(header), io::IoSliceMut::new(place)];
    Ok(rustix::io::readv(fd, &mut pieces)?)
}

/// An `ifreq` for this interface with nothing else in it.
fn request_for(name: &InterfaceName) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq`: an empty name and a union of plain data.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    // The name is at most 15 bytes (`InterfaceName`), so the terminating zero stays.
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_str().bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request
}

/// An `ioctl` that reads and writes an `ifreq`.
fn interface_ioctl(
    fd: BorrowedFd<'_>,
    command: c_ulong,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: every command that this file passes takes a pointer to an `ifreq`, reads it and
    // writes into it at most.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), command as _, std::ptr::from_mut(request)) })
        .map(drop)
}

/// An interface's flags (`IFF_UP`, `IFF_RUNNING`, ...); netdevice(7).
pub(super) fn interface_flags(fd: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<c_int> {
    let mut request = request_for(name);
    interface_ioctl(fd, libc::SIOCGIFFLAGS as _, &mut request)?;
    // SAFETY: SIOCGIFFLAGS fills this member.
    Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Bring an interface up.
pub(super) fn set_interface_up(fd: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<()> {
    let flags = interface_flags(fd, name)? | libc::IFF_UP;
    let mut request = request_for(name);
    request.ifr_ifru.ifru_flags = flags as c_short;
    interface_ioctl(fd, libc::SIOCSIFFLAGS as _, &mut request)
}

/// An interface's MTU, in bytes.
pub(super) fn interface_mtu(fd: BorrowedFd<'_>, name: &InterfaceName) -> io::Result<u32> {
    let mut request = request_for(name);
    interface_ioctl(fd, libc::SIOCGIFMTU as _, &mut request)?;
    // SAFETY: SIOCGIFMTU fills this member.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.unsigned_abs())
}

/// Change an interface's MTU.
pub(super) fn set_interface_mtu(
    fd: BorrowedFd<'_>,
    name: &InterfaceName,
    mtu: u16,
) -> io::Result<()> {
    let mut request = request_for(name);
    request.ifr_ifru.ifru_mtu = c_int::from(mtu);
    interface_ioctl(fd, libc::SIOCSIFMTU as _, &mut request)
}

/// Names of the interfaces of this network namespace.
pub(super) fn interface_names() -> io::Result<Vec<String>> {
    // SAFETY: no arguments; a null result is an error.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    let mut entry = list;
    // SAFETY: the list ends with an entry whose name is null, and each name is a C string.
    while let Some(name) = unsafe { (*entry).if_name.as_ref() } {
        // SAFETY: as above.
        names.push(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        // SAFETY: the end is not reached yet.
        entry = unsafe { entry.add(1) };
    }
    // SAFETY: the list comes from `if_nameindex` and is not used any more.
    unsafe { libc::if_freenameindex(list) };
    Ok(names)
}

/// Make `fd`, an open `/dev/net/tun`, a queue of the TAP of this name; the TAP is made if it does
/// not exist.
pub(super) fn attach_tap(fd: BorrowedFd<'_>, name: &InterfaceName, flags: c_int) -> io::Result<()> {
    let mut request = request_for(name);
    request.ifr_ifru.ifru_flags = flags as c_short;
    interface_ioctl(fd, libc::TUNSETIFF as _, &mut request)
}

/// Flags of the TAP that `fd` is a queue of; an error once the TAP is gone.
pub(super) fn tap_flags(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    interface_ioctl(fd, libc::TUNGETIFF as _, &mut request)?;
    // SAFETY: TUNGETIFF fills this member.
    Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Give a TAP queue's frames a virtio-net header of this many bytes, little-endian.
pub(super) fn set_tap_header(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    for (command, value) in [(libc::TUNSETVNETHDRSZ, len as u32), (libc::TUNSETVNETLE, 1)] {
        // SAFETY: both commands read an `int` through the pointer.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), command as _, &raw const value) })?;
    }
    Ok(())
}

/// Say what the kernel may leave to the reader of a TAP (`TUN_F_*`).
pub(super) fn set_tap_offload(fd: BorrowedFd<'_>, offload: c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, c_ulong::from(offload)) })
        .map(drop)
}

/// Let the number of `place` stand for the file of `with` from now on. Calls that others have under
/// way on `place` finish on the file it stood for before.
pub(super) fn replace_file(place: &OwnedFd, with: &OwnedFd) -> io::Result<()> {
    // SAFETY: both are open and stay so; `place` keeps its number and its owner. Whoever shares it
    // expects to find a socket or TAP queue of this uplink behind it, not a certain one.
    check(unsafe { libc::dup3(with.as_raw_fd(), place.as_fd().as_raw_fd(), libc::O_CLOEXEC) })
        .map(drop)
}
