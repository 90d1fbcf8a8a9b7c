//! Deadlines, with two PFs of which one hangs.

use std::thread;
use std::time::Instant;

use super::*;
use crate::chaos::{Chaos, Death, Fault, survive};
use crate::fake::{Fake, FakePf, Personality, Write};

/// Long enough for a fake on a busy machine, short enough to be missed in a test.
const SHORT: Duration = Duration::from_millis(400);
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);
/// What is not waited for at all is done well within this.
const AT_ONCE: Duration = Duration::from_secs(20);

fn short() -> Deadlines {
    let none = Duration::ZERO;
    Deadlines { read: SHORT, write: SHORT, bind: SHORT, num_vfs: SHORT, each_vf: none }
}

fn two_pfs() -> (Fake, PfAddr, PfAddr) {
    let fake = Fake::new();
    let one = fake.add_pf(FakePf::new(Personality::I40e));
    let other = fake.add_pf(FakePf::new(Personality::Ice));
    (fake, one, other)
}

fn is_late<T: std::fmt::Debug>(answer: Result<T, HardwareError>) -> Duration {
    match answer.expect_err("late") {
        HardwareError::Deadline { after, .. } => after,
        other => panic!("not late: {other}"),
    }
}

#[test]
fn calls_and_their_answers_pass_unchanged() {
    let (fake, one, _) = two_pfs();
    let guarded = Guarded::new(fake.clone());
    assert_eq!(guarded.list().expect("listed"), fake.list().expect("listed"));
    guarded.write_num_vfs(one, 2).expect("made");
    assert_eq!(guarded.read(one).expect("read"), fake.read(one).expect("read"));
    assert_eq!(guarded.pci_tree().expect("read"), fake.pci_tree().expect("read"));
    let error = guarded.write_num_vfs(one, 3).expect_err("refused");
    assert!(error.to_string().contains("write 3 to sriov_numvfs"), "{error}");
}

#[test]
fn a_call_that_hangs_is_given_up_at_its_deadline() {
    let (fake, one, _) = two_pfs();
    let guarded = Guarded::with_deadlines(fake.clone(), short());
    fake.hang(one).expect("there");
    let begun = Instant::now();
    assert_eq!(is_late(guarded.read(one)), SHORT);
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(guarded.failed(), [one]);
    fake.heal(one).expect("there");
}

#[test]
fn a_failed_pf_says_so_at_once_and_is_not_written_to_until_its_call_returns() {
    let (fake, one, _) = two_pfs();
    let guarded = Guarded::with_deadlines(fake.clone(), Deadlines { write: LONG, ..short() });
    fake.hang(one).expect("there");
    is_late(guarded.write_num_vfs(one, 2));
    let begun = Instant::now();
    is_late(guarded.write_autoprobe(one, false));
    assert!(begun.elapsed() < AT_ONCE, "took {:?}", begun.elapsed());
    fake.heal(one).expect("there");
    while guarded.failed() == [one] {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(guarded.read(one).expect("it is back").num_vfs, 2, "the late write was done");
    assert_eq!(fake.writes(), [Write::NumVfs(one, 2)], "and the refused one was not");
}

#[test]
fn a_pf_that_hangs_does_not_delay_another() {
    let (fake, one, other) = two_pfs();
    let patient = Deadlines { read: LONG, ..short() };
    let guarded = Arc::new(Guarded::with_deadlines(fake.clone(), patient));
    fake.hang(one).expect("there");
    let hung = thread::spawn({
        let guarded = Arc::clone(&guarded);
        move || guarded.read(one)
    });
    let begun = Instant::now();
    guarded.read(other).expect("read");
    guarded.list().expect("listed");
    assert!(begun.elapsed() < AT_ONCE, "took {:?}", begun.elapsed());
    assert!(!hung.is_finished());
    fake.heal(one).expect("there");
    hung.join().expect("no panic").expect("read");
}

#[test]
fn callers_of_one_pf_take_turns_and_all_are_served() {
    let (fake, one, _) = two_pfs();
    let guarded = Arc::new(Guarded::new(fake.clone()));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                (0..50).for_each(|_| guarded.write_autoprobe(one, true).expect("set"));
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("no panic");
    }
    assert_eq!(fake.writes().len(), 400);
}

#[test]
fn who_waits_for_a_turn_behind_a_call_that_hangs_is_told_when_that_is_given_up() {
    let (fake, one, _) = two_pfs();
    let guarded =
        Arc::new(Guarded::with_deadlines(fake.clone(), Deadlines { write: LONG, ..short() }));
    fake.hang(one).expect("there");
    let first = thread::spawn({
        let guarded = Arc::clone(&guarded);
        move || guarded.read(one)
    });
    let taken = || {
        let lanes = guarded.lanes.lock().expect("whole");
        lanes.get(&Lane::Pf(one)).is_some_and(|worker| *worker.turn() == Turn::Taken)
    };
    while !taken() {
        thread::sleep(Duration::from_millis(1));
    }
    is_late(guarded.write_autoprobe(one, false));
    is_late(first.join().expect("no panic"));
    fake.heal(one).expect("there");
    assert_eq!(fake.writes(), []);
}

#[test]
fn making_and_removing_vfs_may_take_longer_the_more_there_are() {
    let (fake, one, _) = two_pfs();
    let slow = Deadlines { num_vfs: SHORT, each_vf: SHORT, ..short() };
    let late = SHORT * 3;
    let plan = [(0, Fault::Delay(late)), (1, Fault::Delay(late)), (2, Fault::Delay(late))];
    let guarded = Guarded::with_deadlines(Chaos::new(fake, plan), slow);
    guarded.write_num_vfs(one, 8).expect("in time for eight");
    guarded.write_num_vfs(one, 0).expect("in time to remove eight");
    is_late(guarded.write_num_vfs(one, 1));
}

#[test]
fn a_list_that_hangs_is_an_error_and_delays_no_pf() {
    let (fake, one, _) = two_pfs();
    let chaos = Chaos::at(fake, 0, Fault::Hang);
    let guarded = Guarded::with_deadlines(chaos.clone(), short());
    let error = guarded.list().expect_err("late");
    assert!(error.to_string().contains("the list of PFs"), "{error}");
    guarded.pci_tree().expect("another thing");
    guarded.read(one).expect("a PF");
    chaos.release();
}

#[test]
fn a_death_below_is_the_callers_death() {
    for fault in [Fault::DieBefore, Fault::DieAfter] {
        let (fake, one, _) = two_pfs();
        let guarded = Guarded::new(Chaos::at(fake, 1, fault));
        guarded.read(one).expect("step 0");
        let died = survive(|| guarded.write_num_vfs(one, 2)).expect_err("step 1");
        assert_eq!(died, Death { step: 1 });
        survive(|| guarded.read(one)).expect_err("and stays dead");
    }
}

#[test]
fn dropping_it_does_not_wait_for_a_call_that_hangs() {
    let (fake, one, _) = two_pfs();
    let guarded = Guarded::with_deadlines(fake.clone(), short());
    fake.hang(one).expect("there");
    is_late(guarded.read(one));
    let begun = Instant::now();
    drop(guarded);
    assert!(begun.elapsed() < AT_ONCE);
    fake.heal(one).expect("there");
}

#[test]
fn unbinding_a_held_vf_fails_the_pf_until_its_holder_goes() {
    let (fake, one, _) = two_pfs();
    let guarded = Guarded::with_deadlines(fake.clone(), short());
    guarded.write_num_vfs(one, 1).expect("made");
    let vf = guarded.read(one).expect("read").vfs[0].clone();
    guarded.write_driver_override(one, vf.addr, Some("vfio-pci")).expect("overridden");
    guarded.unbind(one, vf.addr).expect("unbound");
    guarded.probe(one, vf.addr).expect("probed");
    fake.open_vf(one, vf.vf, 7, "qemu").expect("opened");
    is_late(guarded.unbind(one, vf.addr));
    fake.close_vf(one, vf.vf).expect("closed");
    while guarded.failed() == [one] {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(guarded.read(one).expect("read").vfs[0].driver, None);
}

#[test]
fn a_pf_that_is_not_there_keeps_no_worker() {
    let (fake, one, other) = two_pfs();
    let guarded = Guarded::new(fake.clone());
    guarded.read(one).expect("read");
    guarded.read(other).expect("read");
    fake.hot_remove(one).expect("pulled");
    assert!(matches!(guarded.read(one), Err(HardwareError::NoPf(_))));
    assert_eq!(guarded.lanes.lock().expect("whole").len(), 1);
}

#[test]
fn calls_that_return_just_about_their_deadline_lose_no_turn() {
    let (fake, one, _) = two_pfs();
    let deadline = Duration::from_millis(2);
    let just = |step: u64| Duration::from_micros(1_600 + step * 4);
    let chaos = Chaos::new(fake, (0..200).map(|step| (step, Fault::Delay(just(step)))));
    let tight = Deadlines { write: deadline, ..short() };
    let guarded = Arc::new(Guarded::with_deadlines(chaos.clone(), tight));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                (0..100).filter(|_| guarded.write_autoprobe(one, true).is_ok()).count() as u64
            })
        })
        .collect();
    let in_time: u64 = callers.into_iter().map(|caller| caller.join().expect("no panic")).sum();
    assert!(in_time <= chaos.steps(), "an answer without a call");
    while guarded.failed() == [one] {
        thread::sleep(Duration::from_millis(1));
    }
    guarded.read(one).expect("the turn is free again");
}
