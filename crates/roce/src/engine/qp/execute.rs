//! The responder does what a packet asks (IBTA 9.4): every packet is checked for its place in its
//! message, its length, and the memory it touches, before anything changes.

use super::QueuePair;
use super::responder::{Inbound, Reply};
use crate::engine::endpoint::Context;
use crate::engine::{Access, Completion, CompletionKind, ReceiveRequest, Status};
use crate::wire::{Opcode, Operation, Packet, Reth};

/// The longest message (IBTA 9.7.1).
const MESSAGE: u32 = 1 << 31;

/// Why a request is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no receive for it (IBTA 9.7.5.2.8).
    NotReady,
    /// It is not what the standard allows at this point (9.9.3: "invalid request").
    Invalid,
    /// It is longer than its receive (9.7.4.1.6).
    TooLong,
    /// Key, bounds or rights (9.7.4.1.5).
    Access,
    /// The receive's own memory is at fault (9.9.3: "remote operational" for the peer).
    Local,
}

impl QueuePair {
    /// Does what the packet asks; the number of places it takes.
    pub(super) fn execute(
        &mut self,
        packet: &Packet,
        context: &mut Context,
    ) -> Result<u64, Refusal> {
        let opcode = packet.headers.bth.opcode;
        let between = matches!(self.responder.inbound, Inbound::Between);
        if between != (opcode.is_first() || opcode.is_only()) {
            return Err(Refusal::Invalid);
        }
        self.check_length(opcode, packet.payload.len())?;
        if opcode.is_send() {
            return self.execute_send(packet, context);
        }
        if opcode.is_write() {
            return self.execute_write(packet, context);
        }
        match opcode.operation() {
            Operation::ReadRequest => self.execute_read(packet, context),
            _ => self.execute_atomic(packet, context),
        }
    }

    /// First and middle packets are full, a last one has something in it (IBTA 9.7.4.1.6).
    fn check_length(&self, opcode: Opcode, length: usize) -> Result<(), Refusal> {
        let mtu = self.path.as_ref().map_or(0, |path| path.mtu.bytes() as usize);
        let right = if opcode.is_first() || opcode.is_middle() {
            length == mtu
        } else {
            length <= mtu && (length > 0 || !opcode.is_last())
        };
        if right { Ok(()) } else { Err(Refusal::Invalid) }
    }

    /// SEND (IBTA 9.4.1): the next receive takes it, from its first packet on.
    fn execute_send(&mut self, packet: &Packet, context: &mut Context) -> Result<u64, Refusal> {
        let (request, offset) = match self.responder.inbound {
            Inbound::Send { request, offset } => (request, offset),
            Inbound::Write { .. } => return Err(Refusal::Invalid),
            Inbound::Between => (self.receives.pop_front().ok_or(Refusal::NotReady)?, 0),
        };
        // From here on a refusal ends this receive too.
        self.responder.inbound = Inbound::Send { request, offset };
        let end = offset + packet.payload.len() as u64;
        if end > request.local.length() {
            return Err(Refusal::TooLong);
        }
        let domain = self.settings.domain;
        if let Some(key) = packet.headers.invalidate {
            context.regions.check_invalidate(domain, key).map_err(|_| Refusal::Access)?;
        }
        let local = &request.local;
        local
            .scatter(context.regions, domain, offset, packet.payload)
            .map_err(|_| Refusal::Local)?;
        if let Some(key) = packet.headers.invalidate {
            // Checked above; a receive's memory may be the very region that goes.
            context.regions.invalidate_by_peer(domain, key).map_err(|_| Refusal::Access)?;
        }
        if packet.headers.bth.opcode.is_last() || packet.headers.bth.opcode.is_only() {
            self.responder.inbound = Inbound::Between;
            self.complete_receive(&request, CompletionKind::Receive, end as u32, packet, context);
        } else {
            self.responder.inbound = Inbound::Send { request, offset: end };
        }
        Ok(1)
    }

    /// RDMA WRITE (IBTA 9.4.3), with immediate one that uses a receive up at its end.
    fn execute_write(&mut self, packet: &Packet, context: &mut Context) -> Result<u64, Refusal> {
        let (reth, offset) = match (self.responder.inbound, packet.headers.reth) {
            (Inbound::Between, Some(reth)) => (self.allowed(reth, context)?, 0),
            (Inbound::Write { reth, offset }, None) => (reth, offset),
            _ => return Err(Refusal::Invalid),
        };
        let opcode = packet.headers.bth.opcode;
        let last = opcode.is_last() || opcode.is_only();
        let length = packet.payload.len() as u64;
        let end = offset + length;
        // RETH says how long the message is; its packets must make up exactly that (9.7.4.1.6).
        let whole = u64::from(reth.length);
        if end > whole || last != (end == whole) {
            return Err(Refusal::Invalid);
        }
        let receive = match packet.headers.immediate {
            Some(_) => Some(*self.receives.front().ok_or(Refusal::NotReady)?),
            None => None,
        };
        if length > 0 {
            let address = reth.address.wrapping_add(offset);
            context
                .regions
                .write(self.settings.domain, reth.rkey, address, length, Access::REMOTE_WRITE)
                .map_err(|_| Refusal::Access)?
                .copy_from_slice(packet.payload);
        }
        self.responder.inbound =
            if last { Inbound::Between } else { Inbound::Write { reth, offset: end } };
        if let Some(request) = receive {
            self.receives.pop_front();
            self.complete_receive(
                &request,
                CompletionKind::ReceiveWrite,
                end as u32,
                packet,
                context,
            );
        } else if last {
            self.responder.completed();
        }
        Ok(1)
    }

    /// The whole of what a WRITE will touch; nothing is checked when that is nothing (IBTA
    /// 9.7.4.1.5).
    fn allowed(&self, reth: Reth, context: &Context) -> Result<Reth, Refusal> {
        if reth.length > MESSAGE {
            return Err(Refusal::Invalid);
        }
        self.check_remote(reth, Access::REMOTE_WRITE, context)?;
        Ok(reth)
    }

    fn check_remote(&self, reth: Reth, needed: Access, context: &Context) -> Result<(), Refusal> {
        if !self.access.allows(needed) {
            return Err(Refusal::Access);
        }
        if reth.length == 0 {
            return Ok(());
        }
        let (domain, length) = (self.settings.domain, u64::from(reth.length));
        let bytes = context.regions.read(domain, reth.rkey, reth.address, length, needed);
        bytes.map(|_| ()).map_err(|_| Refusal::Access)
    }

    /// RDMA READ (IBTA 9.4.4): takes as many places as its answer has packets (9.7.3.2).
    fn execute_read(&mut self, packet: &Packet, context: &Context) -> Result<u64, Refusal> {
        let reth = packet.headers.reth.filter(|reth| reth.length <= MESSAGE);
        let reth = reth.ok_or(Refusal::Invalid)?;
        self.check_resources()?;
        self.check_remote(reth, Access::REMOTE_READ, context)?;
        let packets = self.path.as_ref().map_or(1, |path| u64::from(path.mtu.packets(reth.length)));
        let first = self.responder.expected;
        self.responder.completed();
        self.responder
            .owe_answer(Reply::Read { first, reth, packets, done: 0, again: false }, packets);
        Ok(packets)
    }

    /// CMP_SWAP and FETCH_ADD (IBTA 9.4.5): on eight aligned bytes, in the host's byte order, and
    /// done once, whatever is repeated.
    fn execute_atomic(&mut self, packet: &Packet, context: &mut Context) -> Result<u64, Refusal> {
        let atomic = packet.headers.atomic.filter(|atomic| atomic.address % 8 == 0);
        let atomic = atomic.ok_or(Refusal::Invalid)?;
        self.check_resources()?;
        let needed = Access::REMOTE_ATOMIC;
        if !self.access.allows(needed) {
            return Err(Refusal::Access);
        }
        let bytes = context
            .regions
            .write(self.settings.domain, atomic.rkey, atomic.address, 8, needed)
            .map_err(|_| Refusal::Access)?;
        let mut old = [0; 8];
        old.copy_from_slice(bytes);
        let old = u64::from_ne_bytes(old);
        let new = match packet.headers.bth.opcode.operation() {
            Operation::FetchAdd => old.wrapping_add(atomic.swap_or_add),
            _ if old == atomic.compare => atomic.swap_or_add,
            _ => old,
        };
        bytes.copy_from_slice(&new.to_ne_bytes());
        self.responder.completed();
        let seq = self.responder.expected;
        self.responder.owe_answer(Reply::Atomic { seq, value: old, again: false }, 1);
        Ok(1)
    }

    /// No more READs and atomics at once than the peer was told (IBTA 9.7.4.1.8, responder
    /// resources).
    fn check_resources(&self) -> Result<(), Refusal> {
        let answers = self.responder.replies.iter().filter(|reply| reply.is_first_answer()).count();
        if answers >= self.responder.reads { Err(Refusal::Invalid) } else { Ok(()) }
    }

    fn complete_receive(
        &mut self,
        request: &ReceiveRequest,
        kind: CompletionKind,
        bytes: u32,
        packet: &Packet,
        context: &mut Context,
    ) {
        self.responder.completed();
        context.complete(
            self.settings.receive_queue,
            Completion {
                id: request.id,
                qpn: self.number,
                status: Status::Success,
                kind,
                bytes,
                immediate: packet.headers.immediate,
                invalidated: packet.headers.invalidate,
                solicited: packet.headers.bth.solicited,
                from: None,
            },
        );
    }
}
