//! `kill -9` of a software NIC under traffic: its VFs come back within two seconds, with their
//! settings, at the very descriptor where they stopped; and of a driver: nobody else notices.

mod nic_process;

use std::time::{Duration, Instant};

use lanekeeper_hw::Hardware;
use lanekeeper_model::{DropReason, VfChange, VfIndex, VlanId, VlanTag};
use lanekeeper_softnic::driver::{TxFrame, VfDriver, VfOptions};
use lanekeeper_softnic::ring::RingKind;
use nic_process::{Process, SOON};

/// What the software NIC promises after it was killed and started again.
const RESUMED_WITHIN: Duration = Duration::from_secs(2);

fn frame(to: u8, from: u8, number: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.resize(200, 0xa5);
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("four bytes"))
}

fn options(kind: RingKind) -> VfOptions {
    VfOptions { kind, patience: SOON, ..VfOptions::default() }
}

/// Send numbered frames from `a` to `b` until `until` says so; answers with the numbers received.
fn talk(
    a: &mut VfDriver,
    b: &mut VfDriver,
    next: &mut u32,
    mut until: impl FnMut(&[u32]) -> bool,
) -> Vec<u32> {
    let mut received = Vec::new();
    while !until(&received) {
        let frames: Vec<_> = (*next..*next + 8).map(|n| frame(1, 0, n)).collect();
        let frames: Vec<_> = frames.iter().map(|frame| TxFrame::plain(frame)).collect();
        *next += a.send(0, &frames).expect("sent") as u32;
        for frame in b.receive_all(0, 64, Duration::from_millis(1)).expect("received") {
            received.push(number(&frame));
        }
    }
    received
}

#[test]
fn a_killed_nic_comes_back_and_traffic_goes_on_where_it_stopped() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let mut nic = Process::start(if kind == RingKind::Split { "split" } else { "packed" }, 2);
        let mut a = VfDriver::connect(&nic.socket(0), options(kind)).expect("connects");
        let mut b = VfDriver::connect(&nic.socket(1), options(kind)).expect("connects");
        let mut next = 0;
        let mut all = Vec::new();
        let deadline = Instant::now() + SOON;
        all.extend(talk(&mut a, &mut b, &mut next, |got| {
            got.len() > 2_000 || Instant::now() > deadline
        }));
        for _ in 0..5 {
            let killed = nic.kill_and_start_again();
            a.reconnect().expect("reconnects");
            b.reconnect().expect("reconnects");
            let before = next;
            let got = talk(&mut a, &mut b, &mut next, |got| {
                got.iter().any(|&number| number >= before) || killed.elapsed() > SOON
            });
            assert!(
                killed.elapsed() < RESUMED_WITHIN,
                "{kind:?}: traffic resumed only after {:?}",
                killed.elapsed()
            );
            all.extend(got);
        }
        let last = next;
        let deadline = Instant::now() + SOON;
        all.extend(talk(&mut a, &mut b, &mut next, |got| {
            got.last().is_some_and(|&number| number >= last) || Instant::now() > deadline
        }));
        // Ethernet allows a frame twice after a crash, but none may be lost that was taken while
        // the receiver had room, and none may be out of order.
        let mut seen: Vec<u32> = all.clone();
        seen.sort_unstable();
        seen.dedup();
        let lost = seen.last().expect("frames came") + 1 - seen.len() as u32;
        let twice = all.len() - seen.len();
        assert!(lost <= 5 * 32, "{kind:?}: {lost} frames lost in five restarts");
        assert!(twice <= 5 * 64, "{kind:?}: {twice} frames came twice in five restarts");
    }
}

#[test]
fn what_was_set_before_the_kill_holds_after_it() {
    let mut nic = Process::start("settings", 2);
    let vf = VfIndex::new(1).expect("a VF");
    let vlan = VlanTag { id: VlanId::new(77).expect("a VLAN"), ..VlanTag::default() };
    let change = VfChange { vlan: Some(vlan.into()), ..VfChange::default() };
    nic.client().set_vf(&nic.name(), vf, &change).expect("taken");
    nic.kill_and_start_again();
    nic.wait_until_it_answers();
    let status = nic.client().vf(&nic.name(), vf).expect("answers");
    assert_eq!(status.settings.vlan, vlan);
    // And it is enforced: VF 0 of VLAN 5 does not reach it.
    let mut a = VfDriver::connect(&nic.socket(0), options(RingKind::Split)).expect("connects");
    let mut b = VfDriver::connect(&nic.socket(1), options(RingKind::Split)).expect("connects");
    a.send(0, &[TxFrame::plain(&frame(1, 0, 1))]).expect("sent");
    let got = b.receive_all(0, 1, Duration::from_millis(200)).expect("received");
    assert!(got.is_empty());
    let counters =
        nic.client().counters(&nic.name(), VfIndex::new(0).expect("a VF")).expect("answers");
    assert_eq!(counters.tx_dropped(DropReason::NoDestination), 1);
}

#[test]
fn a_killed_driver_costs_the_others_nothing() {
    let nic = Process::start("drivers", 3);
    let mut a = VfDriver::connect(&nic.socket(0), options(RingKind::Split)).expect("connects");
    let mut b = VfDriver::connect(&nic.socket(1), options(RingKind::Packed)).expect("connects");
    let mut next = 0;
    let mut received = Vec::new();
    for _ in 0..20 {
        let mut victim =
            VfDriver::connect(&nic.socket(2), options(RingKind::Split)).expect("connects");
        victim.send(0, &[TxFrame::plain(&frame(1, 2, u32::MAX))]).expect("sent");
        let deadline = Instant::now() + SOON;
        received.extend(talk(&mut a, &mut b, &mut next, |got| {
            got.len() > 50 || Instant::now() > deadline
        }));
        // As the kernel does for a VM that was killed: connection and memory go at once.
        drop(victim);
    }
    let end = next;
    let deadline = Instant::now() + SOON;
    received.extend(talk(&mut a, &mut b, &mut next, |got| {
        got.contains(&end) || Instant::now() > deadline
    }));
    let mut of_a: Vec<u32> = received.into_iter().filter(|&number| number != u32::MAX).collect();
    of_a.retain(|&number| number <= end);
    assert!(of_a.iter().copied().eq(0..=end), "every frame came once and in order");
}
