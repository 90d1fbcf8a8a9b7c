//! How perftest's ends tell each other of their queue pairs: over TCP, as text of a fixed length (its
//! manual page calls it the exchange of data; the fields are LID, outstanding reads, queue pair, PSN,
//! key, address, the bytes of the GID, and the number of a shared receive queue, in hexadecimal).

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use lanekeeper_roce::wire::{Gid, Psn, Qpn};

/// Bytes of one message, with the zero at its end.
const LENGTH: usize = 108;

/// One end of a connection, as the other must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) reads: u32,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) rkey: u32,
    pub(crate) address: u64,
    pub(crate) gid: Gid,
}

impl Keys {
    fn text(&self) -> String {
        let (qpn, psn) = (self.qpn.get(), self.psn.get());
        let mut text = format!(
            "0000:{:04x}:{qpn:06x}:{psn:06x}:{:08x}:{:016x}:",
            self.reads, self.rkey, self.address
        );
        for byte in self.gid.0 {
            let _ = write!(text, "{byte:02x}:");
        }
        text + "00000000:\0"
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let fields: Vec<u64> =
            text.split(':').map_while(|field| u64::from_str_radix(field, 16).ok()).collect();
        let [_, reads, qpn, psn, rkey, address, gid @ .., _] = fields.as_slice() else {
            return None;
        };
        let gid: Vec<u8> = gid.iter().map(|&byte| byte as u8).collect();
        Some(Self {
            reads: *reads as u32,
            qpn: Qpn::truncate(*qpn as u32),
            psn: Psn::truncate(*psn as u32),
            rkey: *rkey as u32,
            address: *address,
            gid: Gid(gid.try_into().ok()?),
        })
    }
}

/// What came from the other end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Keys(Keys),
    /// What it measured, or that it is done.
    Other(Vec<u8>),
    /// It has gone.
    End,
}

/// The TCP connection beside an RDMA one.
pub(crate) struct Exchange {
    stream: TcpStream,
    waiting: Vec<u8>,
}

impl Exchange {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).expect("set");
        Self { stream, waiting: Vec::new() }
    }

    pub(crate) fn say(&mut self, keys: &Keys) {
        self.say_bytes(keys.text().as_bytes());
    }

    /// Whoever has gone need not hear it.
    pub(crate) fn say_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// What has come, if something has, without waiting for it.
    pub(crate) fn hear(&mut self) -> Option<Said> {
        let mut bytes = [0; 512];
        let ended = match self.stream.read(&mut bytes) {
            Ok(0) => true,
            Ok(count) => {
                self.waiting.extend(&bytes[..count]);
                false
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(_) => true,
        };
        if let Some(keys) = self.waiting.get(..LENGTH).and_then(Keys::parse) {
            self.waiting.drain(..LENGTH);
            return Some(Said::Keys(keys));
        }
        // Keys begin like this; the rest of them is still on its way.
        if self.waiting.starts_with(b"0000:") && !ended {
            return None;
        }
        if self.waiting.is_empty() {
            return ended.then_some(Said::End);
        }
        Some(Said::Other(std::mem::take(&mut self.waiting)))
    }
}

#[test]
fn keys_are_written_as_perftest_reads_them_and_read_as_it_writes_them() {
    let keys = Keys {
        reads: 16,
        qpn: Qpn::truncate(0x11),
        psn: Psn::truncate(0xab_cdef),
        rkey: 0x1234,
        address: 0x7f00_0000_1000,
        gid: Gid::from(std::net::IpAddr::from([10, 0, 0, 1])),
    };
    let text = keys.text();
    assert_eq!(text.len(), LENGTH);
    assert!(text.starts_with("0000:0010:000011:abcdef:00001234:00007f0000001000:00:00:"), "{text}");
    assert_eq!(Keys::parse(text.as_bytes()), Some(keys));
    assert_eq!(Keys::parse(b"done\0"), None);
}
