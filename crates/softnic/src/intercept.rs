//! Messages of a front end that are taken before the `vhost` crate sees them: one that it refuses
//! though QEMU sends it, and one whose descriptor it keeps to itself.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketType,
    sockopt,
};

/// Request numbers of the vhost-user protocol (QEMU `docs/interop/vhost-user.rst`).
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
const BACKEND_CONFIG_CHANGE: u32 = 2;

const NEED_REPLY: u32 = 1 << 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
/// Request, flags and bytes of what follows, 32 bits each, in the host's order.
const HEADER: usize = 12;

/// A message that is not for the crate.
pub(crate) enum Intercepted {
    /// `VHOST_USER_SET_VRING_ENABLE`. QEMU enables the rings of a network device while it makes the
    /// device, before it sends `SET_FEATURES`; the crate takes that for a breach of protocol.
    RingEnable {
        /// Which ring.
        index: u32,
        /// Whether it is to be served.
        enable: bool,
    },
    /// `VHOST_USER_SET_BACKEND_REQ_FD`: a line on which we may ask the front end for something. The
    /// crate (0.18) cannot send the one request that we have.
    BackendLine(BackendLine),
}

/// A message that was taken, and the answer that it may want.
pub(crate) struct Taken {
    pub(crate) message: Intercepted,
    request: u32,
    wants_reply: bool,
}

impl Taken {
    /// Answers, if the front end wants that.
    pub(crate) fn answer(&self, mut socket: &UnixStream, done: bool) {
        if self.wants_reply {
            let header = [self.request, VERSION | REPLY, 8].map(u32::to_ne_bytes).concat();
            let reply = [header, u64::from(!done).to_ne_bytes().to_vec()].concat();
            // A front end that is gone is noticed by the next read.
            let _ = socket.write_all(&reply);
        }
    }
}

/// Takes the next message from the socket if it is one of those; any other is left where it is.
/// Enabling rings is taken only `before_features`, a line only if that was negotiated.
pub(crate) fn take(
    mut socket: &UnixStream,
    before_features: bool,
    line_negotiated: bool,
) -> Option<Taken> {
    let mut bytes = [0; HEADER + 8];
    let (_, there) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::PEEK).ok()?;
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[4 * at + byte]));
    let [request, flags, size, index, value] = std::array::from_fn(word);
    let message = match (request, size) {
        (SET_VRING_ENABLE, 8) if before_features && there == bytes.len() && value <= 1 => {
            socket.read_exact(&mut bytes).ok()?;
            Intercepted::RingEnable { index, enable: value == 1 }
        }
        (SET_BACKEND_REQ_FD, 0) if line_negotiated && there >= HEADER => {
            Intercepted::BackendLine(BackendLine::receive(socket)?)
        }
        _ => return None,
    };
    Some(Taken { message, request, wants_reply: flags & NEED_REPLY != 0 })
}

/// A line to the front end. Nothing is ever read from it: our request wants no answer.
#[derive(Debug)]
pub(crate) struct BackendLine(OwnedFd);

impl BackendLine {
    /// Takes a message of only a header, and the descriptor with it, from the socket.
    fn receive(socket: &UnixStream) -> Option<Self> {
        let mut header = [0; HEADER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut header)];
        rustix::net::recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
        let mut files = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let line = files.next()?.next()?;
        let is_stream = sockopt::socket_domain(&line) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&line) == Ok(SocketType::STREAM);
        is_stream.then_some(Self(line))
    }

    /// Tells the front end that the configuration space is another now. Never waits: a front end
    /// that does not read its line misses it.
    pub(crate) fn announce_config_change(&self) {
        let message = [BACKEND_CONFIG_CHANGE, VERSION, 0].map(u32::to_ne_bytes).concat();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(error) = rustix::net::send(self.0.as_fd(), &message, flags) {
            tracing::debug!(%error, "the front end did not take the configuration change");
        }
    }

    /// The same line for another owner.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}
