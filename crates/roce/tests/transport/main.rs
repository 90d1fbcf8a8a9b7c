//! Packets through real sockets: out by one wire and in by another, between network namespaces, with all
//! that they say.

mod hosts;
mod loopback;
mod routed;

use std::time::{Duration, Instant};

use lanekeeper_roce::transport::{FRAME_CAPACITY, Wire};
use lanekeeper_roce::wire::{
    Aeth, AtomicEth, Bth, Deth, Flow, Headers, Opcode, Operation, Psn, Qpn, Reth, Service, Syndrome,
};

/// How long a packet may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// Headers that an opcode carries, with some value in each.
fn headers(opcode: Opcode) -> Headers {
    let bth = Bth::new(opcode, Qpn::truncate(0x11), Psn::truncate(0xab_cdef));
    let operation = opcode.operation();
    let atomic = matches!(operation, Operation::CompareSwap | Operation::FetchAdd);
    let syndrome = Syndrome::RnrNak { timer: 12 };
    Headers {
        bth: Bth { ack_request: true, ..bth },
        reth: opcode.has_reth().then_some(Reth { address: 1 << 40, rkey: 2, length: 3 }),
        aeth: opcode.has_aeth().then_some(Aeth { syndrome, msn: 9 }),
        atomic: atomic.then_some(AtomicEth { address: 8, rkey: 2, swap_or_add: 5, compare: 6 }),
        atomic_ack: (operation == Operation::AtomicAcknowledge).then_some(7),
        deth: (opcode.service() == Service::Ud)
            .then_some(Deth { qkey: 0x1234, source: Qpn::truncate(5) }),
        immediate: opcode.has_immediate().then_some(0xdead),
        invalidate: opcode.has_invalidate().then_some(0xbeef),
    }
}

/// Send one packet, as soon as there is room.
fn send(wire: &mut impl Wire, flow: &Flow, headers: &Headers, payload: &[&[u8]]) {
    let start = Instant::now();
    while !wire.send(flow, headers, payload).expect("it can be sent") {
        assert!(start.elapsed() < PATIENCE, "no room to send");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The next packet that arrives: flow, headers and payload.
fn receive(wire: &mut impl Wire) -> (Flow, Headers, Vec<u8>) {
    let start = Instant::now();
    let mut buffer = [0; FRAME_CAPACITY];
    loop {
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
        if let Some(frame) = wire.receive(&mut buffer).expect("the socket works") {
            let frame = frame.expect("a whole frame");
            return (frame.flow, frame.packet.headers, frame.packet.payload.to_vec());
        }
        wire.wait(Duration::from_millis(100)).expect("polls");
    }
}

/// Send a packet of every opcode and see each arrive, as it was sent.
fn every_opcode_arrives(from: &mut impl Wire, to: &mut impl Wire, flow: &Flow) {
    for &opcode in Opcode::ALL {
        let mut headers = headers(opcode);
        let payload: &[u8] = if opcode.has_payload() { b"some data" } else { b"" };
        send(from, flow, &headers, &[&payload[..payload.len() / 2], &payload[payload.len() / 2..]]);
        headers.bth.pad = if opcode.has_payload() { 3 } else { 0 };
        let (_, theirs, bytes) = receive(to);
        assert_eq!((theirs, &bytes[..]), (headers, payload), "{opcode}");
    }
}
