//! The line between our code and the kernel, as the test has it: everything goes through as it is,
//! and is noted. devlink alone is told of the simulated device where a PCI device is asked for.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lanekeeper_hw::linux::Protocol;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// `struct nlmsghdr`, and `struct genlmsghdr` behind it.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
/// `RTM_NEWLINK`: what sets a link, or a VF of it.
const NEWLINK: u16 = 16;
/// `DEVLINK_ATTR_BUS_NAME` and `DEVLINK_ATTR_DEV_NAME`.
const BUS_NAME: u16 = 1;
const DEV_NAME: u16 = 2;
/// Longer than any answer here.
const LONGEST: usize = 1 << 20;

/// One request that went over the line.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// Type of the message.
    kind: u16,
    protocol: Protocol,
    /// Bytes of the longest message in the answer.
    pub(crate) answer: usize,
}

impl Exchange {
    /// Whether it sets a link or a VF.
    pub(crate) fn sets_a_link(&self) -> bool {
        (self.protocol, self.kind) == (Protocol::Route, NEWLINK)
    }
}

/// All lines to the kernel that were opened through this.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line(Arc<Mutex<Vec<Exchange>>>);

impl Line {
    /// Opens one; `device` is what devlink calls the simulated device.
    pub(crate) fn open(&self, protocol: Protocol, device: &str) -> io::Result<OwnedFd> {
        let kernel = protocol.open()?;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (noted, device) = (self.clone(), device.to_owned());
        std::thread::spawn(move || noted.carry(protocol, &theirs, &kernel, &device));
        Ok(ours)
    }

    /// What went over it since this was asked last.
    pub(crate) fn take(&self) -> Vec<Exchange> {
        std::mem::take(&mut self.noted())
    }

    /// Carries requests and answers until our code closes its end.
    fn carry(&self, protocol: Protocol, ours: &OwnedFd, kernel: &OwnedFd, device: &str) {
        let mut buffer = vec![0; LONGEST];
        loop {
            let (_, length) = recv(ours, &mut buffer[..], RecvFlags::empty()).expect("a request");
            if length == 0 {
                return;
            }
            let mut request = buffer[..length].to_vec();
            let kind = u16_at(&request, 4);
            if protocol == Protocol::Generic {
                request = readdressed(&request, device);
            }
            send(kernel, &request, SendFlags::empty()).expect("the kernel takes it");
            // The kernel has answered by the time it has taken a request. What it said is noted
            // before it is handed on, so that whoever has the answer finds it noted.
            let answers = answers(kernel, &mut buffer);
            let longest = answers.iter().map(Vec::len).max().unwrap_or(0);
            self.noted().push(Exchange { kind, protocol, answer: longest });
            for answer in answers {
                send(ours, &answer, SendFlags::empty()).expect("our code takes it");
            }
        }
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Exchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All that the kernel has to say.
fn answers(kernel: &OwnedFd, buffer: &mut [u8]) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    loop {
        match recv(kernel, &mut buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, length)) => answers.push(buffer[..length].to_vec()),
            Err(Errno::AGAIN) => return answers,
            Err(errno) => panic!("the kernel's answer: {errno}"),
        }
    }
}

/// A request with the simulated device in the place of a PCI device, if it names one.
fn readdressed(request: &[u8], device: &str) -> Vec<u8> {
    let (head, mut rest) = request.split_at(HEADER + GENERIC_HEADER);
    let mut bytes = head.to_vec();
    let mut names_pci = false;
    while rest.len() >= 4 {
        let (length, kind) = (usize::from(u16_at(rest, 0)), u16_at(rest, 2));
        names_pci |= (kind, &rest[4..length]) == (BUS_NAME, b"pci\0");
        match kind {
            BUS_NAME if names_pci => append(&mut bytes, kind, "netdevsim"),
            DEV_NAME if names_pci => append(&mut bytes, kind, device),
            _ => bytes.extend(&rest[..length.next_multiple_of(4).min(rest.len())]),
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

fn append(bytes: &mut Vec<u8>, kind: u16, text: &str) {
    let length = (4 + text.len() + 1) as u16;
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(text.bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn u16_at(bytes: &[u8], place: usize) -> u16 {
    u16::from_ne_bytes([bytes[place], bytes[place + 1]])
}
