//! Posting work: what is refused at once, and what is queued (IBTA 11.4.1, 10.8).

use super::{QpState, QueuePair};
use crate::engine::endpoint::Context;
use crate::engine::{EngineError, ReceiveRequest, Status, Verb, WorkRequest};
use crate::wire::Service;

/// The longest message (IBTA 9.7.1: 2^31 bytes).
const MESSAGE: u64 = 1 << 31;

impl QueuePair {
    /// Queues a send request. In SQE and ERR it completes at once, as flushed (IBTA 10.3.1).
    pub(crate) fn post_send(
        &mut self,
        work: &WorkRequest,
        context: &mut Context,
    ) -> Result<(), EngineError> {
        match self.state {
            QpState::Sqe | QpState::Error => {
                self.complete_send(context, work, Status::WrFlush);
                return Ok(());
            }
            QpState::Rts => {}
            state => {
                let needed = QpState::Rts;
                return Err(EngineError::NotReady { state, what: "send", needed });
            }
        }
        self.check(work)?;
        let depth = self.settings.max_sends;
        if self.requester.queue.len() >= depth {
            return Err(EngineError::QueueFull { what: "send", depth });
        }
        let packets = self
            .path
            .as_ref()
            .map_or(1, |path| u64::from(path.mtu.packets(work.local.length() as u32)));
        let packets = if self.settings.service == Service::Ud { 1 } else { packets };
        self.requester.post(work, packets);
        Ok(())
    }

    /// Queues a receive request. In ERR it completes at once, as flushed.
    pub(crate) fn post_receive(
        &mut self,
        request: &ReceiveRequest,
        context: &mut Context,
    ) -> Result<(), EngineError> {
        match self.state {
            QpState::Reset => {
                let (state, needed) = (self.state, QpState::Init);
                return Err(EngineError::NotReady { state, what: "receive", needed });
            }
            QpState::Error => {
                self.fail_receive(context, request, Status::WrFlush);
                return Ok(());
            }
            _ => {}
        }
        let depth = self.settings.max_receives;
        if self.receives.len() >= depth {
            return Err(EngineError::QueueFull { what: "receive", depth });
        }
        self.receives.push_back(*request);
        self.announce_credits();
        Ok(())
    }

    fn check(&self, work: &WorkRequest) -> Result<(), EngineError> {
        let service = self.settings.service;
        let known = matches!(
            (service, work.verb),
            (Service::Rc, _)
                | (Service::Uc, Verb::Write(_) | Verb::WriteImmediate(..))
                | (Service::Uc | Service::Ud, Verb::Send | Verb::SendImmediate(_))
        );
        if !known {
            return Err(EngineError::Verb { verb: work.verb, service });
        }
        if work.to.is_some() != (service == Service::Ud) {
            return Err(EngineError::Addressing(service));
        }
        let length = work.local.length();
        let mtu = self.path.as_ref().map_or(0, |path| u64::from(path.mtu.bytes()));
        let most = if service == Service::Ud { mtu } else { MESSAGE };
        if length > most {
            return Err(EngineError::MessageTooLong { length, most });
        }
        if matches!(work.verb, Verb::CompareSwap { .. } | Verb::FetchAdd { .. }) && length != 8 {
            return Err(EngineError::AtomicLength(length));
        }
        Ok(())
    }
}
