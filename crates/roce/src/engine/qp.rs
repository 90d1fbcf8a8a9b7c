//! One queue pair: its state, its queues, and its two halves, the requester and the responder.

mod attributes;
mod consumer;
mod datagram;
mod execute;
mod inbound;
mod outbound;
mod replay;
mod replies;
mod requester;
mod responder;
mod responses;
mod retry;
mod state;

use std::collections::VecDeque;

pub use attributes::{
    Counters, Init, QpInfo, QpSettings, QpState, ReadyToReceive, ReadyToSend, Transition,
};

use super::endpoint::Context;
use super::{
    Access, Completion, CompletionKind, Event, EventKind, ReceiveRequest, Sink, Status, WorkRequest,
};
use crate::dcqcn::{NotificationPoint, ReactionPoint};
use crate::time::Time;
use crate::wire::{
    Bth, Flow, Headers, Opcode, Operation, PathMtu, Psn, Qpn, congestion_notification,
};
use requester::Requester;
use responder::Responder;

/// What came of asking for something to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A packet went out; there may be more.
    Sent,
    /// Nothing, until something comes in or is posted.
    Idle,
    /// Nothing before that moment.
    Wait(Time),
}

impl Step {
    /// When asking again makes sense, if both came to nothing.
    fn or(self, other: Step) -> Step {
        match (self, other) {
            (Step::Sent, _) | (_, Step::Sent) => Step::Sent,
            (Step::Wait(left), Step::Wait(right)) => Step::Wait(left.min(right)),
            (Step::Wait(at), Step::Idle) | (Step::Idle, Step::Wait(at)) => Step::Wait(at),
            (Step::Idle, Step::Idle) => Step::Idle,
        }
    }
}

/// Where a connected queue pair's packets go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    flow: Flow,
    peer: Qpn,
    mtu: PathMtu,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    number: Qpn,
    settings: QpSettings,
    state: QpState,
    /// What peers may do, of what regions allow.
    access: Access,
    qkey: u32,
    pkey: u16,
    path: Option<Path>,
    receives: VecDeque<ReceiveRequest>,
    requester: Requester,
    responder: Responder,
    reaction: ReactionPoint,
    notification: NotificationPoint,
    /// A CNP that is to go out, and where to.
    cnp: Option<(Flow, Qpn)>,
    counters: Counters,
}

impl QueuePair {
    /// A queue pair in RESET.
    pub(crate) fn new(number: Qpn, settings: QpSettings) -> QueuePair {
        QueuePair {
            number,
            state: QpState::Reset,
            access: Access::NONE,
            qkey: 0,
            pkey: crate::wire::DEFAULT_PKEY,
            path: None,
            receives: VecDeque::new(),
            requester: Requester::default(),
            responder: Responder::default(),
            reaction: ReactionPoint::default(),
            notification: NotificationPoint::default(),
            cnp: None,
            counters: Counters::default(),
            settings,
        }
    }

    /// What to send next: a CNP, then what the responder owes, then what the requester wants.
    pub(crate) fn transmit(&mut self, context: &mut Context, sink: &mut impl Sink) -> Step {
        if let Some((flow, peer)) = self.cnp.take() {
            let headers = congestion_notification(peer, self.pkey);
            self.counters.cnps_sent += 1;
            sink.send(&flow, &headers, &[]);
            return Step::Sent;
        }
        let replies = self.transmit_reply(context, sink);
        if replies == Step::Sent {
            return Step::Sent;
        }
        replies.or(self.transmit_request(context, sink))
    }

    /// The number it has on the wire.
    pub(crate) fn number(&self) -> Qpn {
        self.number
    }

    /// A snapshot for whoever looks.
    pub(crate) fn info(&mut self, context: &Context) -> QpInfo {
        let rate = context.dcqcn.map(|dcqcn| self.reaction.rate(context.now, &dcqcn.reaction));
        QpInfo {
            state: self.state,
            sends: self.requester.queue.len(),
            receives: self.receives.len(),
            rate,
            counters: Counters { cnps_received: self.reaction.cnps(), ..self.counters },
        }
    }

    /// A header for a packet to the connected peer; `None` before there is one.
    fn header(&self, operation: Operation, psn: Psn) -> Option<(Flow, Headers)> {
        let path = self.path.as_ref()?;
        let opcode = Opcode::new(self.settings.service, operation)?;
        let bth = Bth { pkey: self.pkey, ..Bth::new(opcode, path.peer, psn) };
        Some((path.flow, Headers::new(bth)))
    }

    /// Counts a data packet that left against the rate DCQCN allows.
    fn paced(&mut self, context: &Context, bytes: usize) {
        self.counters.packets_sent += 1;
        self.counters.bytes_sent += bytes as u64;
        if let Some(dcqcn) = context.dcqcn {
            self.reaction.sent(context.now, bytes + context.overhead, &dcqcn.reaction);
        }
    }

    /// Whether DCQCN holds data back at this moment, and until when.
    fn held_back(&self, now: Time) -> Option<Time> {
        Some(self.reaction.due()).filter(|due| *due > now)
    }

    fn complete_send(&self, context: &mut Context, request: &WorkRequest, status: Status) {
        if status == Status::Success && !request.signaled && !self.settings.signal_all {
            return;
        }
        context.complete(
            self.settings.send_queue,
            Completion {
                id: request.id,
                qpn: self.number,
                status,
                kind: request.verb.kind(),
                bytes: request.local.length() as u32,
                immediate: None,
                invalidated: None,
                solicited: false,
                from: None,
            },
        );
    }

    /// Completes a receive that came to nothing.
    fn fail_receive(&self, context: &mut Context, request: &ReceiveRequest, status: Status) {
        context.complete(
            self.settings.receive_queue,
            Completion {
                id: request.id,
                qpn: self.number,
                status,
                kind: CompletionKind::Receive,
                bytes: 0,
                immediate: None,
                invalidated: None,
                solicited: false,
                from: None,
            },
        );
    }

    fn event(&self, context: &mut Context, kind: EventKind) {
        context.events.push_back(Event { qpn: self.number, kind });
    }
}
