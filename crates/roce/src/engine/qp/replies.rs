//! The responder sends what it owes, in the order of PSNs (IBTA 9.7.5).

use super::responder::Reply;
use super::{QpState, QueuePair, Step};
use crate::engine::endpoint::{Context, Sink};
use crate::engine::sequence::Seq;
use crate::engine::{Access, EventKind, Status};
use crate::wire::{Aeth, NakCode, Operation, Syndrome, credit_code};

/// The credit code that makes no statement (IBTA 9.7.7.2).
const NO_STATEMENT: u8 = 31;

impl QueuePair {
    /// Sends the next packet that is owed.
    pub(super) fn transmit_reply(&mut self, context: &mut Context, sink: &mut impl Sink) -> Step {
        let Some(reply) = self.responder.replies.front().copied() else { return Step::Idle };
        let (operation, syndrome) = match reply {
            Reply::Ack(_) => (Operation::Acknowledge, self.credits()),
            Reply::NotReady(_) => {
                let timer = self.responder.rnr_timer;
                (Operation::Acknowledge, Syndrome::RnrNak { timer })
            }
            Reply::Nak(_, code) => (Operation::Acknowledge, Syndrome::Nak(code)),
            Reply::Atomic { .. } => (Operation::AtomicAcknowledge, self.credits()),
            Reply::Read { .. } => return self.transmit_read(context, sink),
        };
        self.responder.replies.pop_front();
        let Some((flow, mut headers)) = self.header(operation, reply.next().psn()) else {
            return Step::Idle;
        };
        headers.aeth = Some(Aeth { syndrome, msn: self.responder.msn });
        if let Reply::Atomic { value, .. } = reply {
            headers.atomic_ack = Some(value);
        }
        sink.send(&flow, &headers, &[]);
        Step::Sent
    }

    /// The next packet of a READ's answer (IBTA 9.4.4). Memory is checked again for each: it may
    /// have been invalidated since.
    fn transmit_read(&mut self, context: &mut Context, sink: &mut impl Sink) -> Step {
        if let Some(due) = self.held_back(context.now) {
            return Step::Wait(due);
        }
        let syndrome = self.credits();
        let Some(path) = self.path else { return Step::Idle };
        let Some(Reply::Read { first, reth, packets, done, .. }) =
            self.responder.replies.front_mut()
        else {
            return Step::Idle;
        };
        let (reth, packets, place) = (*reth, *packets, *done);
        let seq = *first + place;
        *done += 1;
        if *done == packets {
            self.responder.replies.pop_front();
        }
        let mtu = u64::from(path.mtu.bytes());
        let offset = place * mtu;
        let length = mtu.min(u64::from(reth.length) - offset);
        let operation = match (place == 0, place + 1 == packets) {
            (true, true) => Operation::ReadResponseOnly,
            (true, false) => Operation::ReadResponseFirst,
            (false, false) => Operation::ReadResponseMiddle,
            (false, true) => Operation::ReadResponseLast,
        };
        let address = reth.address.wrapping_add(offset);
        let domain = self.settings.domain;
        let Some((flow, mut headers)) = self.header(operation, seq.psn()) else {
            return Step::Idle;
        };
        if headers.bth.opcode.has_aeth() {
            headers.aeth = Some(Aeth { syndrome, msn: self.responder.msn });
        }
        let data = match length {
            0 => Ok(&[][..]),
            _ => context.regions.read(domain, reth.rkey, address, length, Access::REMOTE_READ),
        };
        let Ok(data) = data else {
            return self.refuse_read(seq, context, sink);
        };
        sink.send(&flow, &headers, &[data]);
        self.paced(context, length as usize);
        Step::Sent
    }

    /// The memory of a READ vanished while it was being answered (IBTA 9.9.3).
    fn refuse_read(&mut self, seq: Seq, context: &mut Context, sink: &mut impl Sink) -> Step {
        self.responder.replies.clear();
        self.responder.replies.push_back(Reply::Nak(seq, NakCode::RemoteAccess));
        if self.state != QpState::Error {
            self.event(context, EventKind::AccessViolation);
            self.enter_error(context, Status::WrFlush);
        }
        self.transmit_reply(context, sink)
    }

    /// How many receives the peer may count on: those posted, and the one its message is filling,
    /// which MSN does not count yet (IBTA 9.7.7.2).
    fn credits(&mut self) -> Syndrome {
        if !self.settings.credits {
            return Syndrome::Ack { credits: NO_STATEMENT };
        }
        let filling = matches!(self.responder.inbound, super::responder::Inbound::Send { .. });
        let posted = self.receives.len() as u32 + u32::from(filling);
        self.responder.starved = posted == 0;
        Syndrome::Ack { credits: credit_code(posted) }
    }

    /// A peer that was told of no receives hears, unasked, that there are some now (IBTA 9.7.7.2).
    pub(super) fn announce_credits(&mut self) {
        let alive = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqe);
        if alive && self.responder.starved {
            self.responder.starved = false;
            let last = self.responder.expected.before();
            self.responder.owe_ack(last);
        }
    }
}
