//! The responder's memory: which packet it expects, which message it is in the middle of, what it
//! owes, and what it must be able to say twice (IBTA 9.7.4, 9.7.5).

use std::collections::{BTreeMap, VecDeque};

use super::ReadyToReceive;
use crate::engine::ReceiveRequest;
use crate::engine::sequence::Seq;
use crate::wire::{Headers, NakCode, Reth};

/// The message that packets come in for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Inbound {
    /// None: the next packet begins one.
    #[default]
    Between,
    /// A SEND, `offset` bytes of it so far.
    Send { request: ReceiveRequest, offset: u64 },
    /// A WRITE.
    Write { reth: Reth, offset: u64 },
}

impl Inbound {
    pub(super) fn take(&mut self) -> Inbound {
        std::mem::take(self)
    }
}

/// Something the responder owes, in the order of PSNs (IBTA 9.7.5.1.1).
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// All up to here is received.
    Ack(Seq),
    /// No receive for this one.
    NotReady(Seq),
    /// Refused, or one before it is missing.
    Nak(Seq, NakCode),
    /// The value before an atomic; `again` if the request came before.
    Atomic { seq: Seq, value: u64, again: bool },
    /// A READ's answer, of which `done` packets have left.
    Read { first: Seq, reth: Reth, packets: u64, done: u64, again: bool },
}

impl Reply {
    /// The place of the next packet of it.
    pub(super) fn next(&self) -> Seq {
        match *self {
            Reply::Ack(seq)
            | Reply::NotReady(seq)
            | Reply::Nak(seq, _)
            | Reply::Atomic { seq, .. } => seq,
            Reply::Read { first, done, .. } => first + done,
        }
    }

    /// The answer of a READ or atomic that was asked for once. One that is given again does not
    /// count as under way: what asks for it may be a copy that the network made, long after the
    /// requester has gone on.
    pub(super) fn is_first_answer(&self) -> bool {
        matches!(self, Reply::Atomic { again: false, .. } | Reply::Read { again: false, .. })
    }
}

/// A READ or atomic that was executed, in case it is asked for again (IBTA 9.7.5.1.3, 9.4.5).
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) first: Seq,
    pub(super) packets: u64,
    /// The value before an atomic; a READ is read again.
    pub(super) value: Option<u64>,
}

/// Selective mode: a packet that came before its turn.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) headers: Headers,
    pub(super) payload: Box<[u8]>,
}

/// State of the receiving half.
#[derive(Clone, Debug, Default)]
pub(super) struct Responder {
    /// ePSN.
    pub(super) expected: Seq,
    /// Messages completed.
    pub(super) msn: u32,
    /// A NAK is out: what comes ahead of `expected` is not worth another.
    pub(super) mute: bool,
    pub(super) inbound: Inbound,
    pub(super) replies: VecDeque<Reply>,
    pub(super) resources: VecDeque<Resource>,
    /// How many resources there are.
    pub(super) reads: usize,
    pub(super) rnr_timer: u8,
    pub(super) held: BTreeMap<Seq, Held>,
    /// The last acknowledgement said that no receive is posted.
    pub(super) starved: bool,
    /// A packet has come in.
    pub(super) established: bool,
}

impl Responder {
    pub(super) fn new(ready: &ReadyToReceive) -> Responder {
        Responder {
            expected: Seq::start(ready.first_psn),
            reads: usize::from(ready.reads),
            rnr_timer: ready.rnr_timer,
            ..Responder::default()
        }
    }

    /// Owes an acknowledgement of all up to `seq`; one that still waits covers it too (IBTA
    /// 9.7.5.1.2).
    pub(super) fn owe_ack(&mut self, seq: Seq) {
        match self.replies.back_mut() {
            Some(Reply::Ack(waiting)) => *waiting = seq.max(*waiting),
            _ => self.replies.push_back(Reply::Ack(seq)),
        }
    }

    /// Owes the answer of a READ or an atomic, and remembers it as long as the requester may ask
    /// for it again: it has no more under way than there are resources.
    pub(super) fn owe_answer(&mut self, reply: Reply, packets: u64) {
        if self.resources.len() >= self.reads {
            self.resources.pop_front();
        }
        let value = if let Reply::Atomic { value, .. } = reply { Some(value) } else { None };
        self.resources.push_back(Resource { first: reply.next(), packets, value });
        self.replies.push_back(reply);
    }

    /// The message is complete (IBTA 9.7.7.1).
    pub(super) fn completed(&mut self) {
        self.msn = (self.msn + 1) & 0x00ff_ffff;
    }
}
