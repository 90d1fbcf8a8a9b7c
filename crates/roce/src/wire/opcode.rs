//! Opcodes: which transport service, which operation, and what a packet of it carries.
//!
//! One table (IBTA vol. 1, 9.2.1, table 35, and annex A17.9.3 for the CNP) is the source of
//! everything here.

use std::fmt;

use Operation::{
    Acknowledge, AtomicAcknowledge, CompareSwap, CongestionNotification, FetchAdd, ReadRequest,
    ReadResponseFirst, ReadResponseLast, ReadResponseMiddle, ReadResponseOnly, SendFirst, SendLast,
    SendLastImmediate, SendLastInvalidate, SendMiddle, SendOnly, SendOnlyImmediate,
    SendOnlyInvalidate, WriteFirst, WriteLast, WriteLastImmediate, WriteMiddle, WriteOnly,
    WriteOnlyImmediate,
};
use Service::{Congestion, Rc, Uc, Ud};

/// A transport service (IBTA vol. 1, 9.1), the upper three bits of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0x00,
    /// Unreliable connection.
    Uc = 0x20,
    /// Unreliable datagram.
    Ud = 0x60,
    /// Congestion notification; of no queue pair's service.
    Congestion = 0x80,
}

/// An operation and a packet's place in it, the lower five bits of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // The names are the standard's.
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    /// Only of [`Service::Congestion`].
    CongestionNotification = 0x81,
}

/// Extension headers that a packet carries, as bits, in the order in which they follow the BTH.
pub(super) mod carries {
    pub(in super::super) const DETH: u8 = 1;
    pub(in super::super) const RETH: u8 = 2;
    pub(in super::super) const ATOMIC: u8 = 4;
    pub(in super::super) const AETH: u8 = 8;
    pub(in super::super) const ATOMIC_ACK: u8 = 16;
    pub(in super::super) const IMMEDIATE: u8 = 32;
    pub(in super::super) const INVALIDATE: u8 = 64;
}

/// A known opcode: a service and one of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

macro_rules! opcodes {
    ($($name:ident = $service:ident $operation:ident),* $(,)?) => {
        #[allow(missing_docs)] // Service and operation are said by the name.
        impl Opcode {
            $(pub const $name: Self = Self { service: $service, operation: $operation };)*
            /// All there are.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }

        /// By byte.
        const KNOWN: [Option<Opcode>; 256] = {
            let mut known = [None; 256];
            $(known[Opcode::$name.to_byte() as usize] = Some(Opcode::$name);)*
            known
        };
    };
}

opcodes! {
    RC_SEND_FIRST = Rc SendFirst,
    RC_SEND_MIDDLE = Rc SendMiddle,
    RC_SEND_LAST = Rc SendLast,
    RC_SEND_LAST_IMMEDIATE = Rc SendLastImmediate,
    RC_SEND_ONLY = Rc SendOnly,
    RC_SEND_ONLY_IMMEDIATE = Rc SendOnlyImmediate,
    RC_WRITE_FIRST = Rc WriteFirst,
    RC_WRITE_MIDDLE = Rc WriteMiddle,
    RC_WRITE_LAST = Rc WriteLast,
    RC_WRITE_LAST_IMMEDIATE = Rc WriteLastImmediate,
    RC_WRITE_ONLY = Rc WriteOnly,
    RC_WRITE_ONLY_IMMEDIATE = Rc WriteOnlyImmediate,
    RC_READ_REQUEST = Rc ReadRequest,
    RC_READ_RESPONSE_FIRST = Rc ReadResponseFirst,
    RC_READ_RESPONSE_MIDDLE = Rc ReadResponseMiddle,
    RC_READ_RESPONSE_LAST = Rc ReadResponseLast,
    RC_READ_RESPONSE_ONLY = Rc ReadResponseOnly,
    RC_ACKNOWLEDGE = Rc Acknowledge,
    RC_ATOMIC_ACKNOWLEDGE = Rc AtomicAcknowledge,
    RC_COMPARE_SWAP = Rc CompareSwap,
    RC_FETCH_ADD = Rc FetchAdd,
    RC_SEND_LAST_INVALIDATE = Rc SendLastInvalidate,
    RC_SEND_ONLY_INVALIDATE = Rc SendOnlyInvalidate,
    UC_SEND_FIRST = Uc SendFirst,
    UC_SEND_MIDDLE = Uc SendMiddle,
    UC_SEND_LAST = Uc SendLast,
    UC_SEND_LAST_IMMEDIATE = Uc SendLastImmediate,
    UC_SEND_ONLY = Uc SendOnly,
    UC_SEND_ONLY_IMMEDIATE = Uc SendOnlyImmediate,
    UC_WRITE_FIRST = Uc WriteFirst,
    UC_WRITE_MIDDLE = Uc WriteMiddle,
    UC_WRITE_LAST = Uc WriteLast,
    UC_WRITE_LAST_IMMEDIATE = Uc WriteLastImmediate,
    UC_WRITE_ONLY = Uc WriteOnly,
    UC_WRITE_ONLY_IMMEDIATE = Uc WriteOnlyImmediate,
    UD_SEND_ONLY = Ud SendOnly,
    UD_SEND_ONLY_IMMEDIATE = Ud SendOnlyImmediate,
    CNP = Congestion CongestionNotification,
}

impl Opcode {
    /// The opcode of an operation in a service, if the service has it (IBTA vol. 1, table 35).
    pub const fn new(service: Service, operation: Operation) -> Option<Self> {
        match KNOWN[(service as u8 | operation as u8) as usize] {
            Some(known)
                if known.service as u8 == service as u8
                    && known.operation as u8 == operation as u8 =>
            {
                Some(known)
            }
            _ => None,
        }
    }

    /// The opcode that a byte stands for.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        KNOWN[byte as usize]
    }

    /// As a byte.
    pub const fn to_byte(self) -> u8 {
        self.service as u8 | self.operation as u8
    }

    /// Its transport service.
    pub const fn service(self) -> Service {
        self.service
    }

    /// Its operation.
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// From requester to responder.
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self.operation, CongestionNotification)
    }

    /// From responder to requester.
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self.operation, Acknowledge | AtomicAcknowledge)
    }

    /// Of a SEND, in whatever form.
    pub const fn is_send(self) -> bool {
        matches!(
            self.operation,
            SendFirst
                | SendMiddle
                | SendLast
                | SendLastImmediate
                | SendOnly
                | SendOnlyImmediate
                | SendLastInvalidate
                | SendOnlyInvalidate
        )
    }

    /// Of an RDMA WRITE, in whatever form.
    pub const fn is_write(self) -> bool {
        matches!(
            self.operation,
            WriteFirst
                | WriteMiddle
                | WriteLast
                | WriteLastImmediate
                | WriteOnly
                | WriteOnlyImmediate
        )
    }

    /// Of the answer to an RDMA READ.
    pub const fn is_read_response(self) -> bool {
        matches!(
            self.operation,
            ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly
        )
    }

    /// A request for an atomic operation.
    pub const fn is_atomic(self) -> bool {
        matches!(self.operation, CompareSwap | FetchAdd)
    }

    /// First of several packets of a message.
    pub const fn is_first(self) -> bool {
        matches!(self.operation, SendFirst | WriteFirst | ReadResponseFirst)
    }

    /// Neither first nor last.
    pub const fn is_middle(self) -> bool {
        matches!(self.operation, SendMiddle | WriteMiddle | ReadResponseMiddle)
    }

    /// Last of several packets of a message.
    pub const fn is_last(self) -> bool {
        matches!(
            self.operation,
            SendLast
                | SendLastImmediate
                | SendLastInvalidate
                | WriteLast
                | WriteLastImmediate
                | ReadResponseLast
        )
    }

    /// A message of one packet.
    pub const fn is_only(self) -> bool {
        !self.is_first() && !self.is_middle() && !self.is_last()
    }

    /// Data of a message may follow the headers.
    pub const fn has_payload(self) -> bool {
        self.is_send() || self.is_write() || self.is_read_response()
    }

    /// The extension headers that follow the BTH, as bits of [`carries`].
    #[inline]
    pub(super) const fn extensions(self) -> u8 {
        CARRIED[self.to_byte() as usize].0
    }

    /// The same, as the standard lists it (IBTA vol. 1, table 36).
    const fn listed_extensions(self) -> u8 {
        let datagram = if matches!(self.service, Ud) { carries::DETH } else { 0 };
        datagram
            | match self.operation {
                SendLastImmediate | SendOnlyImmediate | WriteLastImmediate => carries::IMMEDIATE,
                SendLastInvalidate | SendOnlyInvalidate => carries::INVALIDATE,
                WriteFirst | WriteOnly | ReadRequest => carries::RETH,
                WriteOnlyImmediate => carries::RETH | carries::IMMEDIATE,
                ReadResponseFirst | ReadResponseLast | ReadResponseOnly | Acknowledge => {
                    carries::AETH
                }
                AtomicAcknowledge => carries::AETH | carries::ATOMIC_ACK,
                CompareSwap | FetchAdd => carries::ATOMIC,
                SendFirst
                | SendMiddle
                | SendLast
                | SendOnly
                | WriteMiddle
                | WriteLast
                | ReadResponseMiddle
                | CongestionNotification => 0,
            }
    }

    /// An immediate value follows.
    pub const fn has_immediate(self) -> bool {
        self.extensions() & carries::IMMEDIATE != 0
    }

    /// A key to invalidate follows.
    pub const fn has_invalidate(self) -> bool {
        self.extensions() & carries::INVALIDATE != 0
    }

    /// Address, key and length of remote memory follow.
    pub const fn has_reth(self) -> bool {
        self.extensions() & carries::RETH != 0
    }

    /// An acknowledgement follows.
    pub const fn has_aeth(self) -> bool {
        self.extensions() & carries::AETH != 0
    }

    /// Bytes from the BTH's start to the payload's.
    #[inline]
    pub const fn header_len(self) -> usize {
        CARRIED[self.to_byte() as usize].1 as usize
    }
}

/// Extension headers, and bytes of all headers, by opcode.
static CARRIED: [(u8, u8); 256] = {
    // In the order of `carries`.
    const SIZES: [u8; 7] = [8, 16, 28, 4, 8, 4, 4];
    let mut carried = [(0, 0); 256];
    let mut i = 0;
    while i < Opcode::ALL.len() {
        let extensions = Opcode::ALL[i].listed_extensions();
        let mut length = super::Bth::LEN as u8;
        let mut bit = 0;
        while bit < SIZES.len() {
            if extensions & (1 << bit) != 0 {
                length += SIZES[bit];
            }
            bit += 1;
        }
        carried[Opcode::ALL[i].to_byte() as usize] = (extensions, length);
        i += 1;
    }
    carried
};

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service {
            Congestion => f.write_str("CNP"),
            service => write!(f, "{service:?} {:?}", self.operation),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
