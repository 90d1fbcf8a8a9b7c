//! The requester's memory: which requests wait, which packets are on their way, how far the peer has
//! acknowledged, and how many retries are left (IBTA 9.7.3, 9.7.6).

use std::collections::VecDeque;
use std::time::Duration;

use super::ReadyToSend;
use crate::engine::WorkRequest;
use crate::engine::sequence::Seq;
use crate::time::Time;
use crate::wire::{Psn, ack_timeout, credits};

/// A request and the places of its packets. A READ takes as many as its answer (IBTA 9.7.3.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) work: WorkRequest,
    pub(super) first: Seq,
    pub(super) packets: u64,
    /// SSN: the how manieth request it is (IBTA 9.7.7.2).
    pub(super) number: u64,
}

impl Request {
    /// The place behind its last packet.
    pub(super) fn end(&self) -> Seq {
        self.first + self.packets
    }
}

/// State of the sending half. `unacked <= cursor <= sent <= next`.
#[derive(Clone, Debug, Default)]
pub(super) struct Requester {
    pub(super) queue: VecDeque<Request>,
    /// Everything before it is acknowledged.
    pub(super) unacked: Seq,
    /// What goes out next; goes back on a retry.
    pub(super) cursor: Seq,
    /// Which of `queue` the cursor is in.
    pub(super) index: usize,
    /// Everything from here on was never sent.
    pub(super) sent: Seq,
    /// Where the next request that is posted begins.
    next: Seq,
    /// Selective mode: one packet to send again, out of turn.
    pub(super) resend: Option<Seq>,
    /// READs and atomics before the cursor, which are not answered yet.
    pub(super) answers: usize,
    /// Packets since the last one that asked for an acknowledgement.
    pub(super) unasked: u32,
    posted: u64,
    completed: u64,
    /// LSN: up to which request the peer has receives (IBTA 9.7.7.2); unknown until it says.
    pub(super) limit: Option<u64>,
    timeout: Option<Duration>,
    /// When the peer has been silent for too long.
    pub(super) deadline: Option<Time>,
    /// Until when an RNR NAK holds everything back.
    pub(super) paused: Option<Time>,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    retries: u8,
    rnr_retries: u8,
    pub(super) reads: usize,
    /// A retry from `unacked` is under way: what else says that it is missing is no news.
    pub(super) retried: bool,
}

impl Requester {
    pub(super) fn new(ready: ReadyToSend) -> Requester {
        let start = Seq::start(ready.first_psn);
        Requester {
            unacked: start,
            cursor: start,
            sent: start,
            next: start,
            timeout: ack_timeout(ready.ack_timeout),
            retries: ready.retries,
            rnr_retries: ready.rnr_retries,
            retries_left: ready.retries,
            rnr_retries_left: ready.rnr_retries,
            reads: usize::from(ready.reads),
            ..Requester::default()
        }
    }

    /// 7 means endless, for RNR retries only (IBTA 9.7.5.2.8).
    pub(super) fn endless_rnr(&self) -> bool {
        self.rnr_retries == 7
    }

    pub(super) fn post(&mut self, work: &WorkRequest, packets: u64) {
        self.posted += 1;
        let request = Request { work: *work, first: self.next, packets, number: self.posted };
        self.next = request.end();
        self.queue.push_back(request);
    }

    /// The request that holds a place that was sent.
    pub(super) fn index_of(&self, seq: Seq) -> Option<usize> {
        let index = self.queue.partition_point(|request| request.end() <= seq);
        (index < self.queue.len() && seq >= self.queue[index].first).then_some(index)
    }

    /// The cursor leaves a packet, or a READ's whole answer, behind.
    pub(super) fn pass(&mut self, request: &Request, to: Seq) {
        self.cursor = to;
        self.sent = self.sent.max(to);
        if to == request.end() {
            self.index += 1;
            if request.work.verb.is_answered() {
                self.answers += 1;
            }
        }
    }

    /// All before `to` is acknowledged: that is progress, so retries start from full again (IBTA
    /// 9.7.6.1.3), and so does the clock.
    pub(super) fn advance(&mut self, to: Seq, now: Time) {
        self.unacked = to;
        self.cursor = self.cursor.max(to);
        self.resend = self.resend.filter(|seq| *seq >= to);
        self.retries_left = self.retries;
        self.rnr_retries_left = self.rnr_retries;
        self.retried = false;
        self.deadline = None;
        if self.unacked < self.cursor {
            self.arm(now);
        }
    }

    /// The oldest request is done.
    pub(super) fn pop(&mut self) -> Option<Request> {
        let request = self.queue.pop_front()?;
        self.completed += 1;
        if self.index > 0 {
            self.index -= 1;
            if request.work.verb.is_answered() {
                self.answers -= 1;
            }
        }
        Some(request)
    }

    /// Go-back-N: all that is not acknowledged goes out again (IBTA 9.7.5.2).
    pub(super) fn rewind(&mut self) {
        self.cursor = self.unacked;
        self.index = 0;
        self.answers = 0;
        self.resend = None;
        self.deadline = None;
    }

    /// The clock runs from now on, if it does not run already.
    pub(super) fn arm(&mut self, now: Time) {
        if self.deadline.is_none() {
            self.deadline = self.timeout.map(|timeout| now + timeout);
        }
    }

    /// Takes the credits of an acknowledgement: `msn` messages are done, and receives for so many
    /// more are posted (IBTA 9.7.7.2). Only ever more, since an old acknowledgement may come late.
    pub(super) fn credit(&mut self, msn: u32, code: u8) {
        let Some(more) = credits(code) else {
            self.limit = None;
            return;
        };
        let ahead = Psn::truncate(msn).distance(Psn::truncate(self.completed as u32));
        let done = self.completed.saturating_add_signed(i64::from(ahead));
        let limit = done + u64::from(more);
        self.limit = Some(self.limit.map_or(limit, |known| known.max(limit)));
    }

    /// Nothing is on its way any more.
    pub(super) fn stop(&mut self) {
        self.unacked = self.next;
        self.sent = self.next;
        self.rewind();
        self.paused = None;
    }
}
