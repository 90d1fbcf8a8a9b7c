//! The requester receives: acknowledgements, NAKs, the answers of READs and atomics (IBTA 9.7.6).

use super::requester::Request;
use super::{QpState, QueuePair};
use crate::engine::endpoint::Context;
use crate::engine::sequence::Seq;
use crate::engine::{Status, Verb};
use crate::wire::{Aeth, NakCode, Operation, Packet, Syndrome};

impl QueuePair {
    /// Takes a response. What was never asked for is thrown away (IBTA 9.7.6.1.1, "ghost").
    pub(super) fn receive_response(&mut self, packet: &Packet, context: &mut Context) {
        let seq = self.requester.unacked.locate(packet.headers.bth.psn);
        if self.state != QpState::Rts || seq >= self.requester.sent {
            self.counters.dropped += 1;
            return;
        }
        self.counters.packets_received += 1;
        if let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = packet.headers.aeth {
            self.requester.credit(msn, credits);
        }
        if seq < self.requester.unacked {
            return;
        }
        match (packet.headers.bth.opcode.operation(), packet.headers.aeth) {
            (Operation::Acknowledge, Some(aeth)) => self.acknowledged(seq, aeth.syndrome, context),
            (Operation::AtomicAcknowledge, _) => self.atomic_answer(seq, packet, context),
            _ => self.read_answer(seq, packet, context),
        }
    }

    fn acknowledged(&mut self, seq: Seq, syndrome: Syndrome, context: &mut Context) {
        match syndrome {
            Syndrome::Ack { .. } => {
                if !self.acknowledge(seq + 1, context) {
                    self.missed(seq, context);
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                self.acknowledge(seq, context);
                self.missed(seq, context);
            }
            Syndrome::RnrNak { timer } => {
                if self.acknowledge(seq, context) {
                    self.not_ready(timer, context);
                } else {
                    self.missed(seq, context);
                }
            }
            Syndrome::Nak(code) => {
                if self.acknowledge(seq, context) {
                    self.fail_send(context, refusal(code));
                } else {
                    self.missed(seq, context);
                }
            }
        }
    }

    /// Everything before `end` is acknowledged, by whatever came: an acknowledgement covers all
    /// before it (IBTA 9.7.5.1.2, coalesced). False when a READ or atomic among it was not answered:
    /// that answer was lost, which is an implied NAK (9.7.6.1.2).
    fn acknowledge(&mut self, end: Seq, context: &mut Context) -> bool {
        while self.requester.unacked < end {
            let Some(head) = self.requester.queue.front().copied() else { break };
            if head.work.verb.is_answered() {
                return false;
            }
            self.requester.advance(head.end().min(end), context.now);
            if head.end() <= end {
                self.finish(context);
            }
        }
        true
    }

    /// The oldest request is done.
    fn finish(&mut self, context: &mut Context) {
        if let Some(request) = self.requester.pop() {
            self.complete_send(context, &request.work, Status::Success);
        }
    }

    /// The READ or atomic that a packet answers, if everything before it is settled.
    fn asker(&mut self, seq: Seq, context: &mut Context) -> Option<Request> {
        if !self.acknowledge(seq, context) {
            self.missed(seq, context);
            return None;
        }
        self.requester.queue.front().copied()
    }

    /// A packet of a READ's answer. Its place says where its bytes belong and how many they must
    /// be (IBTA 9.7.6.1.4, 9.4.4); which part of which of several requests it answers does not
    /// matter, since all of them asked for the same bytes.
    fn read_answer(&mut self, seq: Seq, packet: &Packet, context: &mut Context) {
        let Some(path) = self.path else { return };
        let Some(request) = self.asker(seq, context) else { return };
        let mtu = u64::from(path.mtu.bytes());
        let (whole, offset) = (request.work.local.length(), (seq - request.first) * mtu);
        let is_read = matches!(request.work.verb, Verb::Read(_));
        if !is_read || packet.payload.len() as u64 != mtu.min(whole - offset) {
            self.fail_send(context, Status::BadResponse);
            return;
        }
        self.take_answer(&request, seq, offset, packet.payload, context);
    }

    /// The value before an atomic operation (IBTA 9.4.5), in the host's byte order.
    fn atomic_answer(&mut self, seq: Seq, packet: &Packet, context: &mut Context) {
        let Some(request) = self.asker(seq, context) else { return };
        let is_atomic =
            matches!(request.work.verb, Verb::CompareSwap { .. } | Verb::FetchAdd { .. });
        match packet.headers.atomic_ack.filter(|_| is_atomic) {
            Some(value) => self.take_answer(&request, seq, 0, &value.to_ne_bytes(), context),
            None => self.fail_send(context, Status::BadResponse),
        }
    }

    fn take_answer(
        &mut self,
        request: &Request,
        seq: Seq,
        offset: u64,
        data: &[u8],
        context: &mut Context,
    ) {
        let domain = self.settings.domain;
        if request.work.local.scatter(context.regions, domain, offset, data).is_err() {
            self.fail_send(context, Status::LocalProtection);
            return;
        }
        self.requester.advance(seq + 1, context.now);
        if seq + 1 == request.end() {
            self.finish(context);
        }
    }
}

/// How a request ends that the peer refused (IBTA 9.9.2.3, 11.6.2).
fn refusal(code: NakCode) -> Status {
    match code {
        NakCode::RemoteAccess => Status::RemoteAccess,
        NakCode::RemoteOperational => Status::RemoteOperation,
        NakCode::PsnSequence | NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
            Status::RemoteInvalidRequest
        }
    }
}
