//! A kernel that takes every request, answers what it must so that a tool goes on, and keeps what
//! it was asked. It has one NIC, `ens1f0`, with all that a driver can have.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use lanekeeper_hw::linux::Protocol;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    listen, recv, send, socket_with, socketpair,
};

/// The NIC's interface.
pub(crate) const INTERFACE: &str = "ens1f0";
/// Its number.
pub(crate) const INDEX: u32 = 7;

const ROUTE: u8 = Protocol::Route.number();
const GENERIC: u8 = Protocol::Generic.number();
const RDMA: u8 = Protocol::Rdma.number();

const NEWLINK: u16 = 16;
const GETLINK: u16 = 18;
const GETDCB: u16 = 78;
const SETDCB: u16 = 79;
const CONTROLLER: u16 = 16;
const DEVLINK: u16 = 32;
const ETHTOOL: u16 = 33;
const RDMA_SYS_GET: u16 = 5 << 10 | 6;

const ACK: u16 = 4;
const DUMP: u16 = 0x300;

/// A request: which part of the kernel it went to, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) protocol: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Request {
    fn u16(&self, place: usize) -> u16 {
        u16::from_ne_bytes([self.bytes[place], self.bytes[place + 1]])
    }

    fn kind(&self) -> u16 {
        self.u16(4)
    }

    fn flags(&self) -> u16 {
        self.u16(6)
    }

    fn payload(&self) -> &[u8] {
        &self.bytes[16..]
    }

    /// Whether it changes something: what a tool reads first is its own affair.
    fn writes(&self) -> bool {
        let command = self.payload().first().copied();
        match (self.protocol, self.kind()) {
            // iproute2 asks first whether there is RTM_NEWLINK at all, with nothing in it.
            (ROUTE, NEWLINK) => self.payload().iter().any(|byte| *byte != 0),
            (ROUTE, SETDCB) => true,
            (GENERIC, DEVLINK) => command == Some(30),
            (GENERIC, ETHTOOL) => command == Some(22),
            (RDMA, kind) => kind == 5 << 10 | 7,
            _ => false,
        }
    }

    /// The bytes without what is of one run only, sequence number and port; and without the version
    /// of a generic family, at which the kernel does not look: devlink(8) sends 0, devlink.h says 1.
    /// Nor does it look at padding, in which ethtool(8) leaves what was there before.
    fn normal(mut self) -> Self {
        self.bytes[8..16].fill(0);
        if self.protocol == GENERIC {
            self.bytes[17] = 0;
            let mut place = 20;
            while place + 4 <= self.bytes.len() {
                let end = place + usize::from(self.u16(place));
                place = end.next_multiple_of(4);
                self.bytes[end..place].fill(0);
            }
        }
        self
    }

    /// With a VF's attributes in the order of their numbers: the kernel has an order of its own, so
    /// that of a message says nothing, and iproute2 puts rates last.
    pub(crate) fn in_order(mut self) -> Self {
        const VF_INFO: usize = 16 + 16 + 4;
        const VFINFO_LIST: u16 = 22;
        if (self.protocol, self.kind()) != (ROUTE, NEWLINK)
            || self.bytes.len() < VF_INFO + 4
            || self.u16(34) != VFINFO_LIST
        {
            return self;
        }
        let attributes = self.bytes.split_off(VF_INFO + 4);
        let mut rest = &attributes[..];
        let mut list = Vec::new();
        while rest.len() >= 4 {
            let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]])).next_multiple_of(4);
            let (one, others) = rest.split_at(length);
            list.push((u16::from_ne_bytes([one[2], one[3]]), one));
            rest = others;
        }
        list.sort();
        self.bytes.extend(list.into_iter().flat_map(|(_, one)| one));
        self
    }
}

/// The kernel. What it was asked is kept in order.
#[derive(Clone, Default)]
pub(crate) struct Kernel {
    asked: Arc<Mutex<Vec<Request>>>,
    served: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Kernel {
    /// Open a socket to it.
    pub(crate) fn open(&self, protocol: Protocol) -> io::Result<OwnedFd> {
        let (theirs, ours) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        self.begin(ours, Some(protocol.number()));
        Ok(theirs)
    }

    /// Listen for programs with the preloaded library, at this path.
    pub(crate) fn listen(&self, path: PathBuf) -> io::Result<()> {
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        listen(&listener, 16)?;
        let kernel = self.clone();
        std::thread::spawn(move || {
            while let Ok(socket) = accept(&listener) {
                kernel.begin(socket, None);
            }
        });
        Ok(())
    }

    /// Serve a socket until its other end goes; without a protocol, it says which first.
    fn begin(&self, socket: OwnedFd, protocol: Option<u8>) {
        let kernel = self.clone();
        let thread = std::thread::spawn(move || {
            let mut number = [0];
            let told = || recv(&socket, &mut number[..], RecvFlags::empty()).map(|_| number[0]);
            if let Ok(protocol) = protocol.map_or_else(told, Ok) {
                kernel.serve(&socket, protocol);
            }
        });
        self.served.lock().expect("no thread panics").push(thread);
    }

    /// What was written since this was asked last, without what is of one run only.
    /// Whoever wrote has closed its sockets: a tool may go before its last request is looked at.
    pub(crate) fn take_writes(&self) -> Vec<Request> {
        let served = std::mem::take(&mut *self.served.lock().expect("no thread panics"));
        for thread in served {
            thread.join().expect("no thread panics");
        }
        let asked = std::mem::take(&mut *self.asked.lock().expect("no thread panics"));
        asked.into_iter().filter(Request::writes).map(Request::normal).collect()
    }

    fn serve(&self, socket: &OwnedFd, protocol: u8) {
        let mut bytes = vec![0; 65_536];
        loop {
            let size = match recv(socket, &mut bytes[..], RecvFlags::empty()) {
                Ok((_, size)) => size,
                // It went without having read all answers; its requests are still here.
                Err(Errno::CONNRESET) => continue,
                Err(_) => return,
            };
            if size < 16 {
                return;
            }
            let request = Request { protocol, bytes: bytes[..size].to_vec() };
            self.asked.lock().expect("no thread panics").push(request.clone());
            for answer in answers(&request) {
                // That nobody is there any more ends the loop at the next look.
                let _ = send(socket, &answer, SendFlags::NOSIGNAL);
            }
        }
    }
}

fn answers(request: &Request) -> Vec<Vec<u8>> {
    if request.flags() & DUMP == DUMP {
        return vec![message(request, 3, 2, &[0; 4])];
    }
    let told = match (request.protocol, request.kind()) {
        (ROUTE, GETLINK) => Some(link()),
        (ROUTE, GETDCB) => Some(dcb()),
        (ROUTE, SETDCB) => Some([vec![0, 20, 0, 0], attribute(13, &[0])].concat()),
        (GENERIC, CONTROLLER) => Some(family(request.payload())),
        (GENERIC, ETHTOOL) if request.payload()[0] == 21 => Some(pause()),
        (RDMA, RDMA_SYS_GET) => Some(attribute(66, &[1])),
        _ => None,
    };
    let kind = if request.kind() == GETLINK { NEWLINK } else { request.kind() };
    let mut answers: Vec<Vec<u8>> =
        told.iter().map(|payload| message(request, kind, 0, payload)).collect();
    if request.flags() & ACK != 0 || told.is_none() {
        let mut acknowledged = vec![0; 4];
        acknowledged.extend_from_slice(&request.bytes[..16]);
        answers.push(message(request, 2, 0x100, &acknowledged));
    }
    answers
}

fn link() -> Vec<u8> {
    let mut header = [0; 16];
    header[2..4].copy_from_slice(&1_u16.to_ne_bytes());
    header[4..8].copy_from_slice(&INDEX.to_ne_bytes());
    let name = [INTERFACE.as_bytes(), &[0]].concat();
    let mtu = attribute(4, &1500_u32.to_ne_bytes());
    [header.to_vec(), attribute(3, &name), mtu, attribute(1, &[2, 0, 0, 0, 0, 9])].concat()
}

/// A driver with all of DCB: classes of strict priority, no priority paused, one entry of DSCP 10.
fn dcb() -> Vec<u8> {
    let mut ets = [0; 59];
    ets[1] = 8;
    for priority in 0..8 {
        ets[27 + priority] = priority as u8;
    }
    let mut pfc = [0; 136];
    pfc[0] = 8;
    pfc[4..6].copy_from_slice(&7_u16.to_ne_bytes());
    let mut buffer = [0; 44];
    buffer[8..12].copy_from_slice(&262_016_u32.to_ne_bytes());
    buffer[40..44].copy_from_slice(&1_048_576_u32.to_ne_bytes());
    let table = attribute(1, &[5, 1, 10, 0]);
    let ieee =
        [attribute(1, &ets), attribute(2, &pfc), attribute(3, &table), attribute(10, &buffer)]
            .concat();
    [vec![0, 21, 0, 0], attribute(1, b"ens1f0\0"), attribute(13, &ieee)].concat()
}

fn pause() -> Vec<u8> {
    let on = [attribute(2, &[0]), attribute(3, &[1]), attribute(4, &[1])].concat();
    let header = attribute(1, &attribute(2, b"ens1f0\0"));
    [vec![21, 1, 0, 0], header, on].concat()
}

/// A family's number, by its name.
fn family(question: &[u8]) -> Vec<u8> {
    let asks = |name: &[u8]| question.windows(name.len()).any(|window| window == name);
    let (number, name, commands) = if asks(b"devlink\0") {
        (DEVLINK, &b"devlink\0"[..], [29_u32, 30])
    } else {
        (ETHTOOL, &b"ethtool\0"[..], [21, 22])
    };
    // Each command with what may be done with it: ethtool sends none that is not listed.
    let operations: Vec<u8> = (1_u16..)
        .zip(commands)
        .flat_map(|(place, command)| {
            let operation =
                [attribute(1, &command.to_ne_bytes()), attribute(2, &0xe_u32.to_ne_bytes())];
            attribute(place, &operation.concat())
        })
        .collect();
    [
        vec![1, 2, 0, 0],
        attribute(1, &number.to_ne_bytes()),
        attribute(2, name),
        attribute(3, &1_u32.to_ne_bytes()),
        // Greatest number of an attribute: without it devlink gives up.
        attribute(5, &200_u32.to_ne_bytes()),
        attribute(6, &operations),
    ]
    .concat()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn message(request: &Request, kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((16 + payload.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(&request.bytes[8..16]);
    bytes.extend(payload);
    bytes
}

/// The NIC in sysfs: one PF with four VFs and an RDMA device.
pub(crate) fn make_tree(root: &Path) -> io::Result<()> {
    let devices = root.join("sys/bus/pci/devices");
    let pf = devices.join("0000:3b:00.0");
    let net = pf.join("net").join(INTERFACE);
    std::fs::create_dir_all(&net)?;
    let files = [
        ("ifindex", INDEX.to_string()),
        ("address", "02:00:00:00:00:09".to_owned()),
        ("mtu", "1500".to_owned()),
        ("flags", "0x1003".to_owned()),
    ];
    for (name, text) in files {
        std::fs::write(net.join(name), text)?;
    }
    for vf in 0..4 {
        let address = format!("0000:3b:01.{vf}");
        std::fs::create_dir_all(devices.join(&address))?;
        std::os::unix::fs::symlink(format!("../{address}"), pf.join(format!("virtfn{vf}")))?;
    }
    Ok(())
}
