//! What comes in: is it for this queue pair at all (IBTA 9.6.1), and is it its turn (9.7.4, 9.8.2)?

use super::execute::Refusal;
use super::responder::{Held, Inbound, Reply};
use super::{QpState, QueuePair};
use crate::engine::endpoint::Context;
use crate::engine::sequence::Seq;
use crate::engine::{EventKind, Status};
use crate::wire::{Ecn, Flow, NakCode, Opcode, Packet, Qpn, Service};

/// Of a P_Key, the bits that say which partition; the highest says who is a full member.
const PARTITION: u16 = 0x7fff;

impl QueuePair {
    /// Takes a packet with this queue pair's number on it.
    pub(crate) fn receive(&mut self, flow: &Flow, packet: &Packet, context: &mut Context) {
        if !self.is_mine(flow, packet) {
            self.counters.dropped += 1;
            return;
        }
        if packet.headers.bth.opcode == Opcode::CNP {
            if let Some(dcqcn) = context.dcqcn {
                self.reaction.cnp(context.now, &dcqcn.reaction);
            }
            return;
        }
        self.note_mark(flow, packet, context);
        if packet.headers.bth.opcode.is_response() {
            self.receive_response(packet, context);
            return;
        }
        self.counters.packets_received += 1;
        self.note_established(context);
        match self.settings.service {
            Service::Ud => self.receive_datagram(flow, packet, context),
            Service::Uc => self.receive_unreliable(packet, context),
            _ => self.receive_reliable(packet, context),
        }
    }

    /// State, service, partition (IBTA 9.6.1.1.3) and, when connected, the sender's address (9.6.1.5).
    /// All else is thrown away without a word.
    fn is_mine(&self, flow: &Flow, packet: &Packet) -> bool {
        let bth = &packet.headers.bth;
        let alive = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqe);
        let service = bth.opcode.service();
        let known = service == self.settings.service || service == Service::Congestion;
        let connected = self.settings.service != Service::Ud;
        let from_peer = self
            .path
            .as_ref()
            .is_some_and(|path| path.flow.dest == flow.source && path.flow.version == flow.version);
        alive && known && bth.pkey & PARTITION == self.pkey & PARTITION && (!connected || from_peer)
    }

    /// A mark on data asks for a CNP to where it came from (IBTA A17.9).
    fn note_mark(&mut self, flow: &Flow, packet: &Packet, context: &Context) {
        if flow.ecn != Ecn::Ce || packet.headers.bth.opcode == Opcode::RC_ACKNOWLEDGE {
            return;
        }
        self.counters.marked += 1;
        let Some(dcqcn) = context.dcqcn else { return };
        let peer = self.sender(packet);
        let Some(peer) = peer else { return };
        if self.notification.marked(context.now, &dcqcn.notification) {
            let dscp = dcqcn.notification.dscp;
            self.cnp = Some((Flow { dscp, ecn: Ecn::NotCapable, ..flow.reversed() }, peer));
        }
    }

    fn sender(&self, packet: &Packet) -> Option<Qpn> {
        match packet.headers.deth {
            Some(deth) => Some(deth.source),
            None => self.path.as_ref().map(|path| path.peer),
        }
    }

    fn note_established(&mut self, context: &mut Context) {
        if self.state == QpState::Rtr && !self.responder.established {
            self.event(context, EventKind::Established);
        }
        self.responder.established = true;
    }

    /// RC: in turn, ahead of its turn, or seen before (IBTA 9.7.4.1.2).
    fn receive_reliable(&mut self, packet: &Packet, context: &mut Context) {
        let seq = self.responder.expected.locate(packet.headers.bth.psn);
        if seq < self.responder.expected {
            self.counters.duplicates += 1;
            self.repeat(seq, packet, context);
        } else if seq > self.responder.expected {
            self.counters.out_of_sequence += 1;
            self.ahead(seq, packet);
        } else if self.accept(packet, context) {
            self.drain_held(context);
        }
    }

    /// Some before it are missing: one NAK says so, until the missing one is here (IBTA 9.7.5.2.1).
    fn ahead(&mut self, seq: Seq, packet: &Packet) {
        if self.settings.selective
            && seq - self.responder.expected < u64::from(self.settings.window)
        {
            let held = Held { headers: packet.headers, payload: packet.payload.into() };
            self.responder.held.insert(seq, held);
        }
        self.nak_missing();
    }

    fn nak_missing(&mut self) {
        if !self.responder.mute {
            self.responder.mute = true;
            let missing = self.responder.expected;
            self.responder.replies.push_back(Reply::Nak(missing, NakCode::PsnSequence));
        }
    }

    /// Selective mode: what was held has its turn now, up to the next gap, which gets its own NAK.
    fn drain_held(&mut self, context: &mut Context) {
        while let Some((&seq, _)) = self.responder.held.first_key_value() {
            if seq > self.responder.expected {
                self.nak_missing();
                return;
            }
            let Some((_, held)) = self.responder.held.pop_first() else { return };
            let packet = Packet { headers: held.headers, payload: &held.payload };
            if seq == self.responder.expected && !self.accept(&packet, context) {
                return;
            }
        }
    }

    /// The packet whose turn it is: executed and acknowledged, or refused.
    fn accept(&mut self, packet: &Packet, context: &mut Context) -> bool {
        match self.execute(packet, context) {
            Ok(places) => {
                let last = self.responder.expected + (places - 1);
                self.responder.expected = last + 1;
                self.responder.mute = false;
                let bth = &packet.headers.bth;
                if bth.ack_request && (bth.opcode.is_send() || bth.opcode.is_write()) {
                    self.responder.owe_ack(last);
                }
                true
            }
            Err(refusal) => {
                self.refuse(refusal, context);
                false
            }
        }
    }

    /// RNR waits for a receive; all else is the end of the connection (IBTA 9.7.5.2, 9.9.3).
    fn refuse(&mut self, refusal: Refusal, context: &mut Context) {
        let seq = self.responder.expected;
        self.responder.mute = true;
        let (code, status, event) = match refusal {
            Refusal::NotReady => {
                self.counters.rnr_naks_sent += 1;
                self.responder.replies.push_back(Reply::NotReady(seq));
                return;
            }
            Refusal::Invalid => {
                (NakCode::InvalidRequest, Status::WrFlush, EventKind::InvalidRequest)
            }
            Refusal::TooLong => {
                (NakCode::InvalidRequest, Status::LocalLength, EventKind::InvalidRequest)
            }
            Refusal::Access => (NakCode::RemoteAccess, Status::WrFlush, EventKind::AccessViolation),
            Refusal::Local => {
                (NakCode::RemoteOperational, Status::LocalProtection, EventKind::Catastrophic)
            }
        };
        self.responder.replies.push_back(Reply::Nak(seq, code));
        self.event(context, event);
        self.flush_receives(context, status);
        self.enter_error(context, Status::WrFlush);
    }

    /// UC: a message of which a packet is missing is dropped as a whole, without a word, and the next
    /// one begins with a first or only packet (IBTA 9.8.2.2). What comes late or twice is dropped too.
    fn receive_unreliable(&mut self, packet: &Packet, context: &mut Context) {
        let seq = self.responder.expected.locate(packet.headers.bth.psn);
        if seq < self.responder.expected {
            self.counters.duplicates += 1;
            return;
        }
        if seq > self.responder.expected {
            self.counters.out_of_sequence += 1;
            self.abort_inbound();
        }
        self.responder.expected = seq + 1;
        let opcode = packet.headers.bth.opcode;
        if opcode.is_first() || opcode.is_only() {
            self.abort_inbound();
        }
        if let Err(refusal) = self.execute(packet, context) {
            self.counters.dropped += 1;
            self.drop_message(refusal, context);
        }
    }

    /// A receive that a broken message had begun to fill waits for the next one.
    fn abort_inbound(&mut self) {
        if let Inbound::Send { request, .. } = self.responder.inbound.take() {
            self.receives.push_front(request);
        }
    }

    /// UC has nobody to tell: the receive at fault completes, all else is silent (IBTA 9.9.3, the
    /// classes for unreliable service).
    fn drop_message(&mut self, refusal: Refusal, context: &mut Context) {
        let status = match refusal {
            Refusal::TooLong => Status::LocalLength,
            Refusal::Local => Status::LocalProtection,
            Refusal::NotReady | Refusal::Invalid | Refusal::Access => {
                self.abort_inbound();
                return;
            }
        };
        if let Inbound::Send { request, .. } = self.responder.inbound.take() {
            self.fail_receive(context, &request, status);
        }
    }
}
