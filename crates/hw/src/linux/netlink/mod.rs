//! Talking to the kernel over netlink: a request goes out, its answers come in, and the last of
//! them says whether it was done. One at a time, each within its time, on a socket of its own.
//!
//! What other implementations stumble over is settled here: answers of any size (256 VFs need more
//! than 64 KiB), answers that never come, answers to somebody else's question, lists that change
//! while they are told, and the kernel's own words beside an errno.

pub(crate) mod attribute;
pub(crate) mod message;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use message::{ACK, DONE, DUMP, ERROR, Message, Messages, REQUEST, Said};

/// How often a list that changed while it was told, or of which something was lost, is asked for
/// anew.
const ATTEMPTS: u32 = 4;

/// The kernel had no room for an answer.
const LOST: i32 = Errno::NOBUFS.raw_os_error();

/// Which part of the kernel is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, VFs, DCB (`NETLINK_ROUTE`).
    Route,
    /// Families with names: devlink, ethtool (`NETLINK_GENERIC`).
    Generic,
    /// RDMA devices (`NETLINK_RDMA`).
    Rdma,
}

impl Protocol {
    /// Its number (include/uapi/linux/netlink.h).
    pub const fn number(self) -> u8 {
        match self {
            Self::Route => 0,
            Self::Generic => 16,
            Self::Rdma => 20,
        }
    }

    /// A socket to it, with the kernel's words beside each errno and without the request repeated
    /// in each acknowledgement.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the kernel has no such part.
    pub fn open(self) -> io::Result<OwnedFd> {
        let mut socket = netlink_sys::Socket::new(isize::from(self.number()))?;
        socket.bind_auto()?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        socket.as_fd().try_clone_to_owned()
    }
}

/// Why a request was not answered, or was answered with "no".
#[derive(Debug)]
pub(crate) enum Failure {
    /// The kernel says no.
    Refused(Said),
    /// It said nothing within this time.
    Silent(Duration),
    /// The socket broke.
    Io(io::Error),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl Failure {
    /// The errno behind it, if there is one.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(said) => Some(said.errno),
            Self::Io(error) => error.raw_os_error(),
            Self::Silent(_) => None,
        }
    }
}

/// An answer: its type, and what follows the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) kind: u16,
    pub(crate) payload: Vec<u8>,
}

/// A socket to the kernel.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    sequence: u32,
    patience: Duration,
}

impl Connection {
    /// Speak over this socket, and wait for each answer as long as `patience`.
    pub(crate) fn over(socket: OwnedFd, patience: Duration) -> Self {
        Self { socket, sequence: 0, patience }
    }

    /// Have one thing done. It is asked for once, whatever comes of it. Gives what came before the
    /// acknowledgement: nothing, of most.
    pub(crate) fn set(&mut self, kind: u16, payload: &[u8]) -> Result<Vec<Answer>, Failure> {
        self.once(kind, REQUEST | ACK, payload).map(|(answers, _)| answers)
    }

    /// Ask for one thing and give its only answer.
    pub(crate) fn get(&mut self, kind: u16, payload: &[u8]) -> Result<Answer, Failure> {
        let nothing = || Failure::Refused(Said { errno: message::EPROTO, text: None });
        self.ask(kind, REQUEST | ACK, payload)?.into_iter().next().ok_or_else(nothing)
    }

    /// Ask for all there are.
    pub(crate) fn dump(&mut self, kind: u16, payload: &[u8]) -> Result<Vec<Answer>, Failure> {
        self.ask(kind, REQUEST | ACK | DUMP, payload)
    }

    /// A question that may be asked again: because what is told changed meanwhile, or because
    /// something was lost for want of room (`ENOBUFS`).
    fn ask(&mut self, kind: u16, flags: u16, payload: &[u8]) -> Result<Vec<Answer>, Failure> {
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            match self.once(kind, flags, payload) {
                Ok((answers, false)) => return Ok(answers),
                Ok((_, true)) if attempts == 0 => return Err(Errno::INTR.into()),
                Err(failure) if attempts == 0 || failure.errno() != Some(LOST) => {
                    return Err(failure);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// One question with its answers, and whether what they tell changed while it was told.
    fn once(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
    ) -> Result<(Vec<Answer>, bool), Failure> {
        // Never 0: that is what the kernel gives to what nobody asked for.
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let request = Message { kind, flags, sequence: self.sequence, payload }.encode();
        retry_on_intr(|| send(&self.socket, &request, SendFlags::empty()))?;
        let deadline = Instant::now() + self.patience;
        let (mut answers, mut interrupted) = (Vec::new(), false);
        loop {
            let datagram = self.receive(deadline)?;
            // Late answers to an earlier question, and what nobody asked for, are passed over.
            for message in Messages(&datagram).filter(|got| got.sequence == self.sequence) {
                interrupted |= message.interrupted();
                match message.kind {
                    ERROR | DONE => {
                        message.verdict().map_err(Failure::Refused)?;
                        return Ok((answers, interrupted));
                    }
                    kind => answers.push(Answer { kind, payload: message.payload.to_vec() }),
                }
            }
        }
    }

    /// One datagram, whatever its size.
    fn receive(&self, deadline: Instant) -> Result<Vec<u8>, Failure> {
        loop {
            self.wait(deadline)?;
            let look = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
            let size = match retry_on_intr(|| recv(&self.socket, &mut [0_u8; 0][..], look)) {
                Ok((_, size)) => size,
                Err(Errno::AGAIN) => continue,
                Err(errno) => return Err(errno.into()),
            };
            // An empty read of a stream is its end; a netlink socket has none.
            if size == 0 {
                return Err(Errno::CONNRESET.into());
            }
            let mut datagram = vec![0; size];
            let (_, got) =
                retry_on_intr(|| recv(&self.socket, &mut datagram[..], RecvFlags::DONTWAIT))?;
            datagram.truncate(got);
            return Ok(datagram);
        }
    }

    /// Until something can be read.
    fn wait(&self, deadline: Instant) -> Result<(), Failure> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut waiting, Some(&timeout)) {
                Ok(0) => return Err(Failure::Silent(self.patience)),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
