//! The requester tries again: after sequence errors, missed answers, RNR NAKs and timeouts, and as
//! often as its counters allow (IBTA 9.7.5.2.8, 9.7.6.1.2, 9.7.6.1.3).

use super::QueuePair;
use crate::engine::Status;
use crate::engine::endpoint::Context;
use crate::engine::sequence::Seq;
use crate::time::Time;
use crate::wire::rnr_delay;

impl QueuePair {
    /// Something was lost: a sequence NAK for `seq` says so, or an answer that was skipped. One loss
    /// makes one retry, however many packets tell of it; if that is lost too, the timeout tells.
    pub(super) fn missed(&mut self, seq: Seq, context: &mut Context) {
        self.counters.sequence_naks_received += 1;
        if self.requester.retried {
            return;
        }
        if self.requester.retries_left == 0 {
            self.fail_send(context, Status::RetryExceeded);
            return;
        }
        self.requester.retries_left -= 1;
        self.requester.retried = true;
        if self.settings.selective && seq == self.requester.unacked {
            self.requester.resend = Some(seq);
        } else {
            self.requester.rewind();
        }
    }

    /// The peer had no receive: wait as long as it says, then try from there (IBTA 9.7.5.2.8).
    pub(super) fn not_ready(&mut self, timer: u8, context: &mut Context) {
        self.counters.rnr_naks_received += 1;
        if self.requester.paused.is_some() {
            return;
        }
        if !self.requester.endless_rnr() {
            if self.requester.rnr_retries_left == 0 {
                self.fail_send(context, Status::RnrRetryExceeded);
                return;
            }
            self.requester.rnr_retries_left -= 1;
        }
        self.requester.rewind();
        self.requester.paused = Some(context.now + rnr_delay(timer));
    }

    /// When something is due without anything coming in.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.requester.deadline.into_iter().chain(self.requester.paused).min()
    }

    /// Time has come to `now`: was an acknowledgement due? (IBTA 9.7.6.1.3)
    pub(crate) fn expire(&mut self, context: &mut Context) {
        self.requester.paused = self.requester.paused.filter(|until| *until > context.now);
        if self.requester.deadline.is_none_or(|deadline| deadline > context.now) {
            return;
        }
        self.counters.timeouts += 1;
        if self.requester.retries_left == 0 {
            self.fail_send(context, Status::RetryExceeded);
            return;
        }
        self.requester.retries_left -= 1;
        self.requester.retried = false;
        self.requester.rewind();
    }
}
