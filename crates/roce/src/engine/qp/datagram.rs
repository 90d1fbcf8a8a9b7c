//! UD: a datagram comes in (IBTA 9.8.3). Who has the Q_Key may send; what fits no receive, or comes
//! when there is none, is gone.

use super::QueuePair;
use crate::engine::endpoint::Context;
use crate::engine::{Completion, CompletionKind, ReceiveRequest, Status};
use crate::wire::{Flow, Packet, Qpn};

/// Bytes of addresses before a datagram's own (IBTA 11.4.1.2).
const PREFIX: u64 = 40;

impl QueuePair {
    /// Q_Key (IBTA 9.6.1.3), length, receive.
    pub(super) fn receive_datagram(&mut self, flow: &Flow, packet: &Packet, context: &mut Context) {
        let deth = packet.headers.deth.filter(|deth| deth.qkey == self.qkey);
        let mtu = self.path.as_ref().map_or(0, |path| path.mtu.bytes() as usize);
        let fits = packet.payload.len() <= mtu;
        let (Some(deth), true) = (deth, fits && !self.receives.is_empty()) else {
            self.counters.dropped += 1;
            return;
        };
        let Some(request) = self.receives.pop_front() else { return };
        let whole = PREFIX + packet.payload.len() as u64;
        let status = if whole > request.local.length() {
            Status::LocalLength
        } else {
            self.deliver(&request, flow, packet, context)
        };
        self.complete_datagram(
            &request,
            status,
            whole as u32,
            (*flow, deth.source),
            packet,
            context,
        );
    }

    fn deliver(
        &self,
        request: &ReceiveRequest,
        flow: &Flow,
        packet: &Packet,
        context: &mut Context,
    ) -> Status {
        let domain = self.settings.domain;
        let prefix = prefix(flow, packet.payload.len());
        let written = request
            .local
            .scatter(context.regions, domain, 0, &prefix)
            .and_then(|()| request.local.scatter(context.regions, domain, PREFIX, packet.payload));
        if written.is_ok() { Status::Success } else { Status::LocalProtection }
    }

    fn complete_datagram(
        &mut self,
        request: &ReceiveRequest,
        status: Status,
        bytes: u32,
        from: (Flow, Qpn),
        packet: &Packet,
        context: &mut Context,
    ) {
        context.complete(
            self.settings.receive_queue,
            Completion {
                id: request.id,
                qpn: self.number,
                status,
                kind: CompletionKind::Receive,
                bytes,
                immediate: packet.headers.immediate,
                invalidated: None,
                solicited: packet.headers.bth.solicited,
                from: Some(from),
            },
        );
    }
}

/// The addresses as a GRH has them (IBTA 8.3); of IPv4 its header, in the last 20 bytes (A17.4.5.2).
fn prefix(flow: &Flow, length: usize) -> [u8; PREFIX as usize] {
    let mut bytes = [0; PREFIX as usize];
    if let (Some(source), Some(dest)) = (flow.source.ipv4(), flow.dest.ipv4()) {
        bytes[20] = 0x45;
        bytes[21] = flow.traffic_class();
        bytes[22..24].copy_from_slice(&((20 + 8 + length) as u16).to_be_bytes());
        bytes[28] = flow.hop_limit;
        bytes[29] = 17;
        bytes[32..36].copy_from_slice(&source.octets());
        bytes[36..40].copy_from_slice(&dest.octets());
    } else {
        bytes[0] = 0x60 | flow.traffic_class() >> 4;
        bytes[1] = flow.traffic_class() << 4;
        bytes[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        bytes[6] = 0x1b;
        bytes[7] = flow.hop_limit;
        bytes[8..24].copy_from_slice(&flow.source.0);
        bytes[24..40].copy_from_slice(&flow.dest.0);
    }
    bytes
}
