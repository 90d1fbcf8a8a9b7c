//! The requester sends: when a packet may go, and what is in it (IBTA 9.7.3).

use super::requester::Request;
use super::{QpState, QueuePair, Step};
use crate::engine::endpoint::{Context, Sink};
use crate::engine::mr::AccessFault;
use crate::engine::sequence::Seq;
use crate::engine::{Status, Verb};
use crate::wire::{AtomicEth, Deth, Headers, Operation, Reth, Service};

/// No more places than this may be under way, or a PSN would mean two (IBTA 9.7.1).
const PLACES: u64 = 1 << 23;

impl QueuePair {
    /// Sends the next packet of a request, if there is one that may go.
    pub(super) fn transmit_request(&mut self, context: &mut Context, sink: &mut impl Sink) -> Step {
        if self.state != QpState::Rts {
            return Step::Idle;
        }
        if let Some(until) = self.requester.paused {
            if context.now < until {
                return Step::Wait(until);
            }
            self.requester.paused = None;
        }
        let Some((index, seq)) = self.next_place() else { return Step::Idle };
        if let Some(due) = self.held_back(context.now) {
            return Step::Wait(due);
        }
        let request = self.requester.queue[index];
        let again = self.requester.resend.take().is_some();
        let sent = if self.settings.service == Service::Ud {
            self.transmit_datagram(&request, context, sink)
        } else {
            self.transmit_place(&request, seq, again, context, sink)
        };
        match sent {
            Ok(()) => Step::Sent,
            Err(_) => self.refuse_own(&request, seq, context),
        }
    }

    /// What goes next: a packet that is repeated by itself, or the one under the cursor.
    fn next_place(&self) -> Option<(usize, Seq)> {
        if let Some(seq) = self.requester.resend {
            return self.requester.index_of(seq).map(|index| (index, seq));
        }
        let request = self.requester.queue.get(self.requester.index)?;
        self.may_go(request).then_some((self.requester.index, self.requester.cursor))
    }

    /// Windows: packets, READs and atomics (IBTA 9.7.3.2, 11.2.5: initiator depth), fence (10.8.3.3)
    /// and the peer's receives (9.7.7.2).
    fn may_go(&self, request: &Request) -> bool {
        let requester = &self.requester;
        let under_way = requester.cursor - requester.unacked;
        if self.settings.service != Service::Rc {
            return true;
        }
        if under_way >= u64::from(self.settings.window) {
            return false;
        }
        if request.work.fence && requester.cursor == request.first && requester.answers > 0 {
            return false;
        }
        if request.work.verb.is_answered() {
            let places = request.end() - requester.unacked;
            return requester.answers < requester.reads && (under_way == 0 || places < PLACES);
        }
        !self.is_limited(request) || under_way == 0
    }

    /// The peer has said that it has no receive for it: one packet at a time may try (IBTA 9.7.7.2,
    /// "limited").
    fn is_limited(&self, request: &Request) -> bool {
        request.work.verb.uses_receive()
            && self.requester.limit.is_some_and(|limit| request.number > limit)
    }

    fn transmit_place(
        &mut self,
        request: &Request,
        seq: Seq,
        again: bool,
        context: &mut Context,
        sink: &mut impl Sink,
    ) -> Result<(), AccessFault> {
        let Some(path) = self.path else { return Ok(()) };
        let mtu = u64::from(path.mtu.bytes());
        let place = seq - request.first;
        let (whole, offset) = (request.work.local.length(), place * mtu);
        let answered = request.work.verb.is_answered();
        let length = if answered { 0 } else { mtu.min(whole - offset) };
        if place == 0 && !answered {
            request.work.local.gather(context.regions, self.settings.domain, 0, whole)?;
        }
        let data =
            request.work.local.gather(context.regions, self.settings.domain, offset, length)?;
        let end = if answered { request.end() } else { seq + 1 };
        let last = end == request.end();
        let operation = operation(&request.work.verb, place == 0, last);
        let Some((flow, mut headers)) = self.header(operation, seq.psn()) else { return Ok(()) };
        fill(&mut headers, &request.work.verb, offset, whole);
        headers.bth.solicited = last && request.work.solicited;
        headers.bth.ack_request = self.asks(request, end, again);
        sink.send(&flow, &headers, data.slices());
        self.paced(context, length as usize);
        self.left(request, seq, end, again, context);
        Ok(())
    }

    /// Whether this packet asks for an acknowledgement: at a message's end, four times a window, and
    /// where nothing more can go without one (IBTA 9.7.5.1.2 leaves it to the requester).
    fn asks(&self, request: &Request, end: Seq, again: bool) -> bool {
        if self.settings.service != Service::Rc {
            return false;
        }
        let window = self.settings.window;
        end == request.end()
            || again
            || self.requester.unasked >= window / 4
            || end - self.requester.unacked >= u64::from(window)
            || self.is_limited(request)
    }

    /// The books after a packet left.
    fn left(&mut self, request: &Request, seq: Seq, end: Seq, again: bool, context: &mut Context) {
        if seq < self.requester.sent {
            self.counters.retransmissions += 1;
        }
        if self.settings.service != Service::Rc {
            self.requester.pass(request, end);
            self.done_unacknowledged(request, end, context);
            return;
        }
        self.requester.unasked =
            if self.asks(request, end, again) { 0 } else { self.requester.unasked + 1 };
        if !again {
            self.requester.pass(request, end);
        }
        self.requester.arm(context.now);
    }

    /// UC and UD: sent is done (IBTA 9.8.1).
    fn done_unacknowledged(&mut self, request: &Request, end: Seq, context: &mut Context) {
        self.requester.unacked = end;
        if end == request.end() {
            self.requester.pop();
            self.complete_send(context, &request.work, Status::Success);
        }
    }

    /// A datagram: one packet, to wherever its request says (IBTA 9.8.3). A Q_Key with its highest
    /// bit set stands for the queue pair's own (10.2.5).
    fn transmit_datagram(
        &mut self,
        request: &Request,
        context: &mut Context,
        sink: &mut impl Sink,
    ) -> Result<(), AccessFault> {
        let Some(to) = request.work.to else { return Ok(()) };
        let whole = request.work.local.length();
        let data = request.work.local.gather(context.regions, self.settings.domain, 0, whole)?;
        let operation = operation(&request.work.verb, true, true);
        let Some((_, mut headers)) = self.header(operation, request.first.psn()) else {
            return Ok(());
        };
        fill(&mut headers, &request.work.verb, 0, whole);
        let qkey = if to.qkey >> 31 == 1 { self.qkey } else { to.qkey };
        headers.bth.dest = to.peer;
        headers.bth.solicited = request.work.solicited;
        headers.deth = Some(Deth { qkey, source: self.number });
        sink.send(&to.flow, &headers, data.slices());
        self.paced(context, whole as usize);
        self.left(request, request.first, request.end(), false, context);
        Ok(())
    }

    /// One's own memory was not as the request said. Requests before it still have their chance; in
    /// the middle of a message there is nothing to wait for.
    fn refuse_own(&mut self, request: &Request, seq: Seq, context: &mut Context) -> Step {
        if seq == request.first && self.requester.unacked < seq {
            return Step::Idle;
        }
        while self.requester.queue.front().is_some_and(|head| head.number < request.number) {
            if let Some(head) = self.requester.pop() {
                self.complete_send(context, &head.work, Status::WrFlush);
            }
        }
        self.fail_send(context, Status::LocalProtection);
        Step::Idle
    }
}

/// The operation of a packet by its place in its message (IBTA 9.2.1, 9.7.3).
fn operation(verb: &Verb, first: bool, last: bool) -> Operation {
    use Operation as Op;
    match (verb, first, last) {
        (Verb::Read(_), ..) => Op::ReadRequest,
        (Verb::CompareSwap { .. }, ..) => Op::CompareSwap,
        (Verb::FetchAdd { .. }, ..) => Op::FetchAdd,
        (Verb::Write(_) | Verb::WriteImmediate(..), true, false) => Op::WriteFirst,
        (Verb::Write(_) | Verb::WriteImmediate(..), false, false) => Op::WriteMiddle,
        (Verb::Write(_), true, true) => Op::WriteOnly,
        (Verb::Write(_), false, true) => Op::WriteLast,
        (Verb::WriteImmediate(..), true, true) => Op::WriteOnlyImmediate,
        (Verb::WriteImmediate(..), false, true) => Op::WriteLastImmediate,
        (_, true, false) => Op::SendFirst,
        (_, false, false) => Op::SendMiddle,
        (Verb::SendImmediate(_), true, true) => Op::SendOnlyImmediate,
        (Verb::SendImmediate(_), false, true) => Op::SendLastImmediate,
        (Verb::SendInvalidate(_), true, true) => Op::SendOnlyInvalidate,
        (Verb::SendInvalidate(_), false, true) => Op::SendLastInvalidate,
        (Verb::Send, true, true) => Op::SendOnly,
        (Verb::Send, false, true) => Op::SendLast,
    }
}

/// The extension headers of a packet, as its opcode says (IBTA 9.3). A READ from the middle on asks
/// for the rest only (9.7.3.2).
fn fill(headers: &mut Headers, verb: &Verb, offset: u64, whole: u64) {
    let opcode = headers.bth.opcode;
    match *verb {
        Verb::Write(remote) | Verb::WriteImmediate(remote, _) if opcode.has_reth() => {
            headers.reth =
                Some(Reth { address: remote.address, rkey: remote.rkey, length: whole as u32 });
        }
        Verb::Read(remote) => {
            let address = remote.address.wrapping_add(offset);
            let length = (whole - offset) as u32;
            headers.reth = Some(Reth { address, rkey: remote.rkey, length });
        }
        Verb::CompareSwap { remote, compare, swap } => {
            let (address, rkey) = (remote.address, remote.rkey);
            headers.atomic = Some(AtomicEth { address, rkey, swap_or_add: swap, compare });
        }
        Verb::FetchAdd { remote, add } => {
            let (address, rkey) = (remote.address, remote.rkey);
            headers.atomic = Some(AtomicEth { address, rkey, swap_or_add: add, compare: 0 });
        }
        _ => {}
    }
    match *verb {
        Verb::SendImmediate(value) | Verb::WriteImmediate(_, value) if opcode.has_immediate() => {
            headers.immediate = Some(value);
        }
        Verb::SendInvalidate(rkey) if opcode.has_invalidate() => headers.invalidate = Some(rkey),
        _ => {}
    }
}
