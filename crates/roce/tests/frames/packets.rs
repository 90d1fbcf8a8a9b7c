//! Packets and flows of every kind, for property tests.

use std::net::{IpAddr, Ipv6Addr};

use lanekeeper_model::MacAddr;
use lanekeeper_roce::wire::{
    Aeth, AtomicEth, Bth, Cover, Deth, Ecn, Flow, Gid, Headers, Link, NakCode, Opcode, Psn, Qpn,
    Reth, Syndrome, Version, padding,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// A packet with its own payload.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn any_packet() -> impl Strategy<Value = Owned> {
    prop::sample::select(Opcode::ALL).prop_flat_map(packet_of)
}

pub(crate) fn packet_of(opcode: Opcode) -> impl Strategy<Value = Owned> {
    let most = if opcode.has_payload() { 300 } else { 0 };
    (any_headers(opcode), prop::collection::vec(any::<u8>(), 0..=most)).prop_map(
        |(mut headers, payload)| {
            headers.bth.pad = padding(payload.len());
            Owned { headers, payload }
        },
    )
}

fn any_headers(opcode: Opcode) -> impl Strategy<Value = Headers> {
    let ids = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
    (any_bth(opcode), ids, any_syndrome()).prop_map(
        move |(bth, (address, rkey, length, swap_or_add, compare), syndrome)| {
            use lanekeeper_roce::wire::Operation::{AtomicAcknowledge, CompareSwap, FetchAdd};
            let operation = opcode.operation();
            let datagram = opcode.service() == lanekeeper_roce::wire::Service::Ud;
            Headers {
                bth,
                reth: opcode.has_reth().then_some(Reth { address, rkey, length }),
                aeth: opcode.has_aeth().then_some(Aeth { syndrome, msn: length & Psn::MAX }),
                atomic: matches!(operation, CompareSwap | FetchAdd).then_some(AtomicEth {
                    address,
                    rkey,
                    swap_or_add,
                    compare,
                }),
                atomic_ack: (operation == AtomicAcknowledge).then_some(compare),
                deth: datagram.then_some(Deth { qkey: rkey, source: Qpn::truncate(length) }),
                immediate: opcode.has_immediate().then_some(length),
                invalidate: opcode.has_invalidate().then_some(rkey),
            }
        },
    )
}

fn any_bth(opcode: Opcode) -> impl Strategy<Value = Bth> {
    (any::<[bool; 5]>(), any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
        move |([solicited, migrated, fecn, becn, ack_request], pkey, dest, psn)| Bth {
            opcode,
            solicited,
            migrated,
            pad: 0,
            pkey,
            fecn,
            becn,
            dest: Qpn::truncate(dest),
            ack_request,
            psn: Psn::truncate(psn),
        },
    )
}

fn any_syndrome() -> impl Strategy<Value = Syndrome> {
    const CODES: &[NakCode] = &[
        NakCode::PsnSequence,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperational,
        NakCode::InvalidRdRequest,
    ];
    prop_oneof![
        (0u8..32).prop_map(|credits| Syndrome::Ack { credits }),
        (0u8..32).prop_map(|timer| Syndrome::RnrNak { timer }),
        prop::sample::select(CODES).prop_map(Syndrome::Nak),
    ]
}

/// RoCE v1, v2 on IPv4, and v2 on IPv6.
pub(crate) fn any_flow() -> impl Strategy<Value = Flow> {
    (0..3, any::<[[u8; 16]; 2]>(), 0u8..64, 0u8..4, any::<u8>(), any::<u16>()).prop_map(
        |(kind, [source, dest], dscp, ecn, hop_limit, source_port)| {
            let gid = |bytes: [u8; 16]| match kind {
                1 => Gid::from(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])),
                _ => Gid::from(IpAddr::from(Ipv6Addr::from(bytes))),
            };
            let version = if kind == 0 { Version::V1 } else { Version::V2 };
            Flow {
                version,
                source: gid(source),
                dest: gid(dest),
                dscp,
                ecn: Ecn::from_bits(ecn),
                hop_limit,
                source_port: if kind == 0 { 0 } else { source_port },
            }
        },
    )
}

pub(crate) fn any_link() -> impl Strategy<Value = Link> {
    (any::<[[u8; 6]; 2]>(), any::<Option<u16>>()).prop_map(|([source, dest], vlan)| Link {
        source: MacAddr(source),
        dest: MacAddr(dest),
        vlan,
    })
}

/// The whole Ethernet frame.
pub(crate) fn ethernet(link: &Link, flow: &Flow, packet: &Owned) -> Vec<u8> {
    let payload = [packet.payload.as_slice()];
    let cover = Cover::ethernet(link, flow, &packet.headers, &payload).expect("all fits together");
    let mut frame = vec![0; 2048];
    let length = cover.copy_to(&payload, &mut frame).expect("there is room");
    frame.truncate(length);
    frame
}

/// The same frames in each run: every opcode over RoCE v1, v2 on IPv4 and v2 on IPv6, tagged and not.
pub(crate) fn samples() -> Vec<(Link, Flow, Owned)> {
    let mut runner = TestRunner::deterministic();
    let mut samples = Vec::new();
    for &opcode in Opcode::ALL {
        let sample = (any_link(), any_flow(), packet_of(opcode));
        for _ in 0..9 {
            samples.push(sample.new_tree(&mut runner).expect("nothing is rejected").current());
        }
    }
    samples
}
