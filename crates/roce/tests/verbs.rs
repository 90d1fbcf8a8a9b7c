//! Each verb on a clean network: what it does, what completes on either side, and how it ends when
//! it must not be done.

mod rig;

use lanekeeper_roce::engine::{
    Access, Completion, CompletionKind, EventKind, QpState, ReceiveRequest, Remote, Status, Verb,
    WorkRequest,
};
use lanekeeper_roce::sim::{Network, Topology};
use lanekeeper_roce::wire::{PathMtu, Service};
use rig::{Choice, End, connect, end, pair, settle};

fn clean(choice: &Choice) -> (Network, End, End) {
    pair(1, &Topology::default(), choice)
}

fn pattern(network: &mut Network, end: &End) {
    let bytes = end.bytes(network);
    (0..bytes.len()).for_each(|at| bytes[at] = (at * 7 + at / 256) as u8);
}

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|done| (done.id, done.status)).collect()
}

fn state(network: &mut Network, end: &End) -> QpState {
    let now = network.now();
    network.endpoint(end.port).query(end.qpn, now).expect("a queue pair").state
}

#[test]
fn a_send_of_any_length_fills_the_peers_receive() {
    for mtu in PathMtu::ALL {
        for length in [0, 1, 255, 256, 257, 4096, 4097, 30_000] {
            let (mut network, left, right) = clean(&Choice { mtu, ..Choice::default() });
            pattern(&mut network, &left);
            right.receive(&mut network, 9, 100, 40_000);
            left.verb(&mut network, 1, Verb::SendImmediate(0xabcd), 0, length);
            settle(&mut network);
            let sent = left.bytes(&mut network)[..length as usize].to_vec();
            let got = right.bytes(&mut network)[100..][..=length as usize].to_vec();
            assert_eq!(got[..length as usize], sent, "{mtu} {length}");
            assert_eq!(got[length as usize], 0);
            let received = right.polled(&mut network);
            assert_eq!(statuses(&received), [(9, Status::Success)]);
            assert_eq!((received[0].bytes, received[0].immediate), (length, Some(0xabcd)));
            assert_eq!(statuses(&left.polled(&mut network)), [(1, Status::Success)]);
        }
    }
}

#[test]
fn a_send_with_invalidate_voids_the_peers_key() {
    let (mut network, left, right) = clean(&Choice::default());
    let endpoint = network.endpoint(1);
    let window =
        endpoint.regions.register(right.domain, 0, vec![0; 8].into(), Access::ALL).unwrap();
    right.receive(&mut network, 9, 0, 64);
    left.verb(&mut network, 1, Verb::SendInvalidate(window), 0, 8);
    settle(&mut network);
    assert_eq!(right.polled(&mut network)[0].invalidated, Some(window));
    left.verb(&mut network, 2, Verb::Write(Remote { address: 0, rkey: window }), 0, 8);
    settle(&mut network);
    assert_eq!(
        statuses(&left.polled(&mut network)),
        [(1, Status::Success), (2, Status::RemoteAccess)]
    );
}

#[test]
fn writes_and_reads_move_exactly_their_bytes() {
    for length in [0, 1, 1023, 1024, 1025, 20_000] {
        let (mut network, left, right) = clean(&Choice::default());
        pattern(&mut network, &left);
        left.verb(&mut network, 1, Verb::Write(right.remote(3)), 0, length);
        left.verb(&mut network, 2, Verb::Read(right.remote(3)), 40_000, length);
        settle(&mut network);
        let sent = left.bytes(&mut network).to_vec();
        let there = right.bytes(&mut network)[..length as usize + 4].to_vec();
        let length = length as usize;
        assert_eq!(there[3..][..length], sent[..length]);
        assert_eq!((there[2], there[3 + length]), (0, 0));
        assert_eq!(sent[40_000..][..length], sent[..length]);
        assert_eq!(
            statuses(&left.polled(&mut network)),
            [(1, Status::Success), (2, Status::Success)]
        );
        assert!(right.polled(&mut network).is_empty());
    }
}

#[test]
fn a_write_with_immediate_uses_a_receive_up() {
    let (mut network, left, right) = clean(&Choice::default());
    right.receive(&mut network, 9, 0, 0);
    left.verb(&mut network, 1, Verb::WriteImmediate(right.remote(0), 77), 0, 5000);
    settle(&mut network);
    let received = right.polled(&mut network);
    assert_eq!(received[0].kind, CompletionKind::ReceiveWrite);
    assert_eq!((received[0].bytes, received[0].immediate), (5000, Some(77)));
}

#[test]
fn atomics_give_the_old_value_and_leave_the_new_one() {
    let (mut network, left, right) = clean(&Choice::default());
    let remote = right.remote(8);
    right.bytes(&mut network)[8..16].copy_from_slice(&40_u64.to_ne_bytes());
    left.verb(&mut network, 1, Verb::FetchAdd { remote, add: 2 }, 0, 8);
    left.verb(&mut network, 2, Verb::CompareSwap { remote, compare: 42, swap: 7 }, 8, 8);
    left.verb(&mut network, 3, Verb::CompareSwap { remote, compare: 42, swap: 9 }, 16, 8);
    settle(&mut network);
    let old: Vec<u64> = left.bytes(&mut network)[..24]
        .chunks(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(old, [40, 42, 7]);
    assert_eq!(right.bytes(&mut network)[8..16], 7_u64.to_ne_bytes());
}

#[test]
fn what_the_peers_memory_does_not_allow_is_refused_and_all_behind_it_is_flushed() {
    let (mut network, left, right) = clean(&Choice::default());
    let end = right.remote(65_530);
    right.receive(&mut network, 9, 0, 64);
    left.verb(&mut network, 1, Verb::Write(right.remote(0)), 0, 8);
    left.verb(&mut network, 2, Verb::Write(end), 0, 8);
    left.verb(&mut network, 3, Verb::Send, 0, 8);
    settle(&mut network);
    assert_eq!(
        statuses(&left.polled(&mut network)),
        [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::WrFlush)]
    );
    assert_eq!(statuses(&right.polled(&mut network)), [(9, Status::WrFlush)]);
    assert_eq!(state(&mut network, &left), QpState::Error);
    assert_eq!(state(&mut network, &right), QpState::Error);
    let event = network.endpoint(1).poll_event().unwrap();
    assert_eq!((event.qpn, event.kind), (right.qpn, EventKind::AccessViolation));
    left.verb(&mut network, 4, Verb::Send, 0, 8);
    assert_eq!(statuses(&left.polled(&mut network)), [(4, Status::WrFlush)]);
}

#[test]
fn the_queue_pairs_own_rights_bind_too() {
    let verbs: [fn(Remote) -> Verb; 3] =
        [Verb::Write, Verb::Read, |remote| Verb::FetchAdd { remote, add: 1 }];
    for verb in verbs {
        let (mut network, left, right) =
            clean(&Choice { access: Access::NONE, ..Choice::default() });
        left.verb(&mut network, 1, verb(right.remote(0)), 0, 8);
        settle(&mut network);
        assert_eq!(statuses(&left.polled(&mut network)), [(1, Status::RemoteAccess)]);
    }
}

#[test]
fn a_message_longer_than_its_receive_ends_both() {
    let (mut network, left, right) = clean(&Choice::default());
    right.receive(&mut network, 9, 0, 1500);
    left.verb(&mut network, 1, Verb::Send, 0, 3000);
    settle(&mut network);
    assert_eq!(statuses(&left.polled(&mut network)), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(statuses(&right.polled(&mut network)), [(9, Status::LocalLength)]);
}

#[test]
fn a_receive_of_unregistered_memory_is_an_operational_error_for_the_peer() {
    let (mut network, left, right) = clean(&Choice::default());
    let outside = ReceiveRequest { id: 9, local: right.pieces(65_000, 2000) };
    network.endpoint(1).post_receive(right.qpn, &outside).unwrap();
    left.verb(&mut network, 1, Verb::Send, 0, 2000);
    settle(&mut network);
    assert_eq!(statuses(&left.polled(&mut network)), [(1, Status::RemoteOperation)]);
    assert_eq!(statuses(&right.polled(&mut network)), [(9, Status::LocalProtection)]);
}

#[test]
fn ones_own_unregistered_memory_fails_its_request_after_those_before_it() {
    let (mut network, left, right) = clean(&Choice::default());
    left.verb(&mut network, 1, Verb::Write(right.remote(0)), 0, 5000);
    left.verb(&mut network, 2, Verb::Write(right.remote(0)), 65_000, 5000);
    left.verb(&mut network, 3, Verb::Write(right.remote(0)), 0, 8);
    settle(&mut network);
    assert_eq!(
        statuses(&left.polled(&mut network)),
        [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WrFlush)]
    );
}

#[test]
fn without_a_receive_the_sender_waits_until_there_is_one() {
    let (mut network, left, right) = clean(&Choice::default());
    left.verb(&mut network, 1, Verb::Send, 0, 5000);
    for _ in 0..1000 {
        network.step();
    }
    assert!(left.polled(&mut network).is_empty());
    right.receive(&mut network, 9, 0, 5000);
    settle(&mut network);
    assert_eq!(statuses(&left.polled(&mut network)), [(1, Status::Success)]);
    let now = network.now();
    assert!(network.endpoint(0).query(left.qpn, now).unwrap().counters.rnr_naks_received > 1);
}

#[test]
fn rnr_retries_end_when_they_are_counted() {
    let (mut network, left, right) = clean(&Choice { rnr_retries: 3, ..Choice::default() });
    left.verb(&mut network, 1, Verb::Send, 0, 100);
    settle(&mut network);
    assert_eq!(statuses(&left.polled(&mut network)), [(1, Status::RnrRetryExceeded)]);
    let now = network.now();
    let counters = network.endpoint(1).query(right.qpn, now).unwrap().counters;
    assert_eq!(counters.rnr_naks_sent, 4, "the first and three retries");
}

#[test]
fn a_silent_peer_ends_in_retry_exceeded() {
    let (mut network, left, right) = clean(&Choice { retries: 2, ..Choice::default() });
    network.endpoint(1).destroy(right.qpn).unwrap();
    left.verb(&mut network, 1, Verb::Write(right.remote(0)), 0, 100);
    left.verb(&mut network, 2, Verb::Write(right.remote(0)), 0, 100);
    settle(&mut network);
    assert_eq!(
        statuses(&left.polled(&mut network)),
        [(1, Status::RetryExceeded), (2, Status::WrFlush)]
    );
    assert_eq!(network.endpoint(1).strangers(), 6, "two packets, each three times");
}

#[test]
fn more_reads_than_the_peer_takes_at_once_wait_for_each_other() {
    let (mut network, left, right) = clean(&Choice { reads: 1, ..Choice::default() });
    for id in 0..20 {
        left.verb(&mut network, id, Verb::Read(right.remote(id * 100)), id * 3000, 3000);
    }
    settle(&mut network);
    let done = left.polled(&mut network);
    assert!(done.iter().all(|done| done.status == Status::Success));
    assert_eq!(done.len(), 20);
}

#[test]
fn unsignaled_success_is_silent_and_a_fence_waits_for_reads() {
    let (mut network, left, right) = clean(&Choice::default());
    right.bytes(&mut network)[..5000].fill(5);
    left.verb(&mut network, 1, Verb::Read(right.remote(0)), 0, 5000);
    let write = Verb::Write(right.remote(10_000));
    let fenced = WorkRequest {
        fence: true,
        signaled: false,
        ..WorkRequest::new(2, write, left.pieces(0, 5000))
    };
    left.send(&mut network, &fenced);
    settle(&mut network);
    assert_eq!(statuses(&left.polled(&mut network)), [(1, Status::Success)]);
    assert!(right.bytes(&mut network)[10_000..15_000].iter().all(|byte| *byte == 5));
}

#[test]
fn uc_sends_and_writes_without_acknowledgements() {
    let (mut network, left, right) = clean(&Choice { service: Service::Uc, ..Choice::default() });
    pattern(&mut network, &left);
    right.receive(&mut network, 9, 0, 5000);
    left.verb(&mut network, 1, Verb::Send, 0, 5000);
    left.verb(&mut network, 2, Verb::Write(right.remote(10_000)), 0, 3000);
    settle(&mut network);
    assert_eq!(left.polled(&mut network).len(), 2);
    assert_eq!(right.polled(&mut network).len(), 1);
    let sent = left.bytes(&mut network)[..5000].to_vec();
    assert_eq!(right.bytes(&mut network)[..5000], sent);
    assert_eq!(right.bytes(&mut network)[10_000..13_000], sent[..3000]);
    let now = network.now();
    assert_eq!(network.endpoint(1).query(right.qpn, now).unwrap().counters.packets_sent, 0);
}

#[test]
fn uc_goes_to_sqe_on_a_local_fault_and_comes_back() {
    use lanekeeper_roce::engine::Transition;
    let (mut network, left, right) = clean(&Choice { service: Service::Uc, ..Choice::default() });
    left.verb(&mut network, 1, Verb::Write(right.remote(0)), 65_535, 2);
    settle(&mut network);
    assert_eq!(state(&mut network, &left), QpState::Sqe);
    left.verb(&mut network, 2, Verb::Write(right.remote(0)), 0, 2);
    network.endpoint(0).modify(left.qpn, &Transition::Resume).unwrap();
    left.verb(&mut network, 3, Verb::Write(right.remote(0)), 0, 2);
    settle(&mut network);
    assert_eq!(
        statuses(&left.polled(&mut network)),
        [(1, Status::LocalProtection), (2, Status::WrFlush), (3, Status::Success)]
    );
}

#[test]
fn a_datagram_arrives_with_its_sender_if_the_key_is_right() {
    use lanekeeper_roce::engine::Address;
    let choice = Choice { service: Service::Ud, ..Choice::default() };
    let mut network = Network::new(1, &Topology::default());
    let (left, right) = (end(&mut network, 0, &choice), end(&mut network, 1, &choice));
    connect(&mut network, &left, &right, &choice);
    pattern(&mut network, &left);
    right.receive(&mut network, 9, 0, 200);
    let address = |qkey| Address { flow: Network::flow(0, 1), peer: right.qpn, qkey };
    for (id, qkey) in [(1, 0x2222), (2, 0x1111), (3, 0x8000_0000)] {
        let work = WorkRequest::datagram(id, Verb::Send, left.pieces(0, 100), address(qkey));
        left.send(&mut network, &work);
        settle(&mut network);
        let received = right.polled(&mut network);
        assert_eq!(received.is_empty(), qkey == 0x2222, "{qkey:#x}");
        if let Some(done) = received.first() {
            assert_eq!((done.status, done.bytes), (Status::Success, 140));
            assert_eq!(done.from, Some((Network::flow(0, 1), left.qpn)));
            let sent = left.bytes(&mut network)[..100].to_vec();
            assert_eq!(right.bytes(&mut network)[40..140], sent);
            assert_eq!(right.bytes(&mut network)[32..36], [10, 0, 0, 1]);
            right.receive(&mut network, 10, 0, 200);
        }
    }
    assert_eq!(left.polled(&mut network).len(), 3);
}

#[test]
fn the_engine_refuses_at_once_what_the_standard_refuses_at_once() {
    use lanekeeper_roce::engine::{Init, Transition};
    let mut network = Network::new(1, &Topology::default());
    let choice = Choice::default();
    let left = end(&mut network, 0, &choice);
    let work = WorkRequest::new(1, Verb::Send, left.pieces(0, 8));
    let endpoint = network.endpoint(0);
    assert!(endpoint.post_send(left.qpn, &work).is_err(), "INIT takes no sends");
    assert!(endpoint.modify(left.qpn, &Transition::Init(Init::default())).is_err());
    assert!(endpoint.modify(left.qpn, &Transition::Resume).is_err());
    endpoint.modify(left.qpn, &Transition::Reset).unwrap();
    let receive = ReceiveRequest { id: 1, local: left.pieces(0, 8) };
    assert!(endpoint.post_receive(left.qpn, &receive).is_err(), "RESET takes no receives");
    let (mut network, left, right) = clean(&Choice { service: Service::Uc, ..Choice::default() });
    let read = WorkRequest::new(1, Verb::Read(right.remote(0)), left.pieces(0, 8));
    assert!(network.endpoint(0).post_send(left.qpn, &read).is_err(), "UC has no READ");
}
