//! Requests that came before, because their answer was lost or is late (IBTA 9.7.5.1.3, 9.7.4.1.7):
//! nothing is done twice, but everything is answered again.

use super::QueuePair;
use super::responder::Reply;
use crate::engine::Access;
use crate::engine::endpoint::Context;
use crate::engine::sequence::Seq;
use crate::wire::{Operation, Packet};

/// Answers that may wait besides one for each READ and atomic under way.
const SPARE: usize = 16;

impl QueuePair {
    /// Answers a request from before `expected` again.
    pub(super) fn repeat(&mut self, seq: Seq, packet: &Packet, context: &Context) {
        let opcode = packet.headers.bth.opcode;
        if opcode.is_send() || opcode.is_write() {
            let last = self.responder.expected.before();
            self.responder.owe_ack(last);
            return;
        }
        let known = self
            .responder
            .resources
            .iter()
            .find(|resource| seq >= resource.first && seq < resource.first + resource.packets);
        let Some(resource) = known.copied() else { return };
        let reply = match (opcode.operation(), resource.value) {
            (Operation::ReadRequest, None) => {
                self.read_again(seq, packet, resource.first + resource.packets, context)
            }
            (Operation::CompareSwap | Operation::FetchAdd, Some(value)) => {
                Some(Reply::Atomic { seq, value, again: true })
            }
            _ => None,
        };
        let Some(reply) = reply else { return };
        // The requester has gone back to here and will ask for what follows again: what is still
        // owed from here on would be answered twice.
        while self.responder.replies.back().is_some_and(|owed| owed.next() >= seq) {
            self.responder.replies.pop_back();
        }
        // A peer that asks for ever more pieces of one READ again has no need of all of them at once.
        if self.responder.replies.len() <= self.responder.reads + SPARE {
            self.responder.replies.push_back(reply);
        }
    }

    /// A READ of the same bytes, or of the rest of them: it must stay within the places of the first
    /// one, and within what is allowed now.
    fn read_again(&self, seq: Seq, packet: &Packet, end: Seq, context: &Context) -> Option<Reply> {
        let reth = packet.headers.reth?;
        let packets = u64::from(self.path.as_ref()?.mtu.packets(reth.length));
        if seq + packets > end || !self.access.allows(Access::REMOTE_READ) {
            return None;
        }
        if reth.length > 0 {
            let (domain, length) = (self.settings.domain, u64::from(reth.length));
            context
                .regions
                .read(domain, reth.rkey, reth.address, length, Access::REMOTE_READ)
                .ok()?;
        }
        Some(Reply::Read { first: seq, reth, packets, done: 0, again: true })
    }
}
