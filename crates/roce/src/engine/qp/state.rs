//! The states of a queue pair and the ways between them (IBTA 10.3.1), and what happens to requests
//! when it falls into an error state: each completes, in order, as flushed (IBTA 10.3.1.6, 10.8.2.4).

use super::requester::Requester;
use super::responder::{Inbound, Responder};
use super::{Path, QpState, QueuePair, ReadyToReceive, ReadyToSend, Transition};
use crate::dcqcn::{NotificationPoint, ReactionPoint};
use crate::engine::endpoint::Context;
use crate::engine::{EngineError, Status};
use crate::wire::Service;

impl QueuePair {
    /// Goes to another state.
    ///
    /// # Errors
    ///
    /// When the standard has no such way, or an attribute is out of range.
    pub(crate) fn modify(
        &mut self,
        transition: &Transition,
        context: &mut Context,
    ) -> Result<(), EngineError> {
        match (self.state, transition) {
            (_, Transition::Reset) => self.reset(),
            (_, Transition::Error) => self.enter_error(context, Status::WrFlush),
            (QpState::Reset, Transition::Init(init)) => {
                self.access = init.access;
                self.qkey = init.qkey;
                self.pkey = init.pkey;
                self.state = QpState::Init;
            }
            (QpState::Init, Transition::Rtr(ready)) => self.ready_to_receive(ready)?,
            (QpState::Rtr, Transition::Rts(ready)) => self.ready_to_send(*ready)?,
            (QpState::Sqe, Transition::Resume) => self.state = QpState::Rts,
            (from, _) => return Err(EngineError::Transition { from, to: transition.to() }),
        }
        Ok(())
    }

    fn ready_to_receive(&mut self, ready: &ReadyToReceive) -> Result<(), EngineError> {
        within("the RNR timer code", ready.rnr_timer, 31)?;
        self.path = Some(Path { flow: ready.flow, peer: ready.peer, mtu: ready.mtu });
        self.responder = Responder::new(ready);
        self.state = QpState::Rtr;
        Ok(())
    }

    fn ready_to_send(&mut self, ready: ReadyToSend) -> Result<(), EngineError> {
        within("the timeout code", ready.ack_timeout, 31)?;
        within("the retry count", ready.retries, 7)?;
        within("the RNR retry count", ready.rnr_retries, 7)?;
        self.requester = Requester::new(ready);
        self.state = QpState::Rts;
        Ok(())
    }

    /// Everything is as after creation, but for the counters; nothing completes (IBTA 10.3.1.1).
    fn reset(&mut self) {
        self.state = QpState::Reset;
        self.path = None;
        self.receives.clear();
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.reaction = ReactionPoint::default();
        self.notification = NotificationPoint::default();
        self.cnp = None;
    }

    /// The oldest send request failed. On RC that is the end of the connection; on UC and UD only
    /// of the send queue (IBTA 10.3.1.5).
    pub(super) fn fail_send(&mut self, context: &mut Context, status: Status) {
        if self.settings.service == Service::Rc {
            self.responder.replies.clear();
            self.enter_error(context, status);
        } else {
            self.flush_sends(context, status);
            self.state = QpState::Sqe;
        }
    }

    /// To ERR: the oldest send request ends with `first`, all else is flushed. What the responder
    /// still owes stays, because a last NAK may be among it.
    pub(super) fn enter_error(&mut self, context: &mut Context, first: Status) {
        self.state = QpState::Error;
        self.flush_sends(context, first);
        self.flush_receives(context, Status::WrFlush);
    }

    fn flush_sends(&mut self, context: &mut Context, first: Status) {
        let mut status = first;
        while let Some(request) = self.requester.queue.pop_front() {
            self.complete_send(context, &request.work, status);
            status = Status::WrFlush;
        }
        self.requester.stop();
    }

    /// The receive that a message was filling ends with `current`, those that wait are flushed.
    pub(super) fn flush_receives(&mut self, context: &mut Context, current: Status) {
        if let Inbound::Send { request, .. } = self.responder.inbound.take() {
            self.fail_receive(context, &request, current);
        }
        while let Some(request) = self.receives.pop_front() {
            self.fail_receive(context, &request, Status::WrFlush);
        }
        self.responder.held.clear();
    }
}

fn within(name: &'static str, value: u8, most: u8) -> Result<(), EngineError> {
    if value <= most {
        return Ok(());
    }
    Err(EngineError::Attribute { name, value: value.into(), most: most.into() })
}
