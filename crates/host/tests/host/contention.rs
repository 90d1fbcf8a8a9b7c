//! Many at once: processes and threads that want the same VFs, and a PF that hangs beside one that
//! does not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_host::{ClaimRequest, HostError, Patience, Released, Which};
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_hw::guarded::{Deadlines, Guarded};

use crate::rig::{QUICK, Rig, entry, request, token};

#[test]
fn of_a_hundred_claims_at_once_on_eight_vfs_exactly_eight_win() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::I40e), 8);
    // An owner each, as processes have: they share the state folder and nothing else.
    let claims: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..100)
            .map(|number| {
                let owner = rig.owner();
                scope.spawn(move || owner.claim(&request(&format!("tenant-{number}"))))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let won: Vec<_> = claims.iter().filter_map(|claim| claim.as_ref().ok()).collect();
    assert_eq!(won.len(), 8);
    let vfs: BTreeSet<_> = won.iter().map(|claim| claim.address).collect();
    assert_eq!(vfs.len(), 8, "no VF twice");
    let macs: BTreeSet<_> = won.iter().map(|claim| claim.settings.mac).collect();
    assert_eq!(macs.len(), 8);
    for error in claims.iter().filter_map(|claim| claim.as_ref().err()) {
        assert!(matches!(error, HostError::Exhausted { .. }), "{error}");
    }
}

#[test]
fn one_mac_claimed_at_once_on_two_pfs_is_given_once() {
    let rig = Rig::new();
    let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
    let mut file = entry(&rig.fake, pfs[0], "rail0", 8, "");
    file.pfs.extend(entry(&rig.fake, pfs[1], "rail1", 8, "").pfs);
    rig.apply(&file);
    for round in 0..10 {
        let mac = Some(lanekeeper_model::MacAddr([2, 0, 0, 0, 0, round]));
        let start = std::sync::Barrier::new(2);
        let given: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = ["rail0", "rail1"]
                .map(|pf| {
                    let (owner, start) = (rig.owner(), &start);
                    let (pf, of) = (Some(pf.to_owned()), format!("{pf}-{round}"));
                    let asked = ClaimRequest { pf, mac, ..request(&of) };
                    scope.spawn(move || {
                        start.wait();
                        usize::from(owner.claim(&asked).is_ok())
                    })
                })
                .into();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(given, 1, "round {round}");
    }
}

#[test]
fn one_token_at_once_many_times_gets_one_claim() {
    let rig = Rig::new();
    let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
    let mut file = entry(&rig.fake, pfs[0], "rail0", 4, "pools: [fast]");
    file.pfs.extend(entry(&rig.fake, pfs[1], "rail1", 4, "pools: [fast]").pfs);
    rig.apply(&file);
    let ids: BTreeSet<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let owner = rig.owner();
                let asked = ClaimRequest { pool: Some("fast".to_owned()), ..request("tenant") };
                scope.spawn(move || owner.claim(&asked).expect("claimed").id)
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(ids.len(), 1);
    let claims: usize =
        rig.owner().records().expect("ledger").iter().map(|record| record.claims.len()).sum();
    assert_eq!(claims, 1);
}

#[test]
fn claims_and_releases_at_once_never_leak_a_vf() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Ixgbe), 3);
    std::thread::scope(|scope| {
        for number in 0..12 {
            let owner = rig.owner();
            scope.spawn(move || {
                for _ in 0..4 {
                    let name = format!("tenant-{number}");
                    if let Ok(claim) = owner.claim(&request(&name)) {
                        owner.release(&Which::Claim(claim.id), &token(&name)).expect("released");
                    }
                }
            });
        }
    });
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert_eq!((record.claims.len(), record.free_vfs().count()), (0, 3));
    let locks = std::fs::read_dir(rig.folder.path()).expect("listed");
    let tokens = locks.filter(|entry| {
        entry.as_ref().expect("listed").file_name().to_string_lossy().starts_with("token-")
    });
    assert_eq!(tokens.count(), 0, "tokens leave no files behind");
}

#[test]
fn a_pf_that_hangs_does_not_delay_another_pfs_claim() {
    for pool in [None, Some("fast".to_owned())] {
        let rig = Rig::new();
        let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
        let mut file = entry(&rig.fake, pfs[0], "good", 4, "pools: [fast]");
        file.pfs.extend(entry(&rig.fake, pfs[1], "bad", 8, "pools: [fast]").pfs);
        rig.apply(&file);
        rig.fake.hang(pfs[1]).expect("hangs");
        // Somebody is stuck on it, with its lock in hand.
        let deadlines = Deadlines { read: Duration::from_secs(4), ..Deadlines::default() };
        let stuck = rig.owner_over(Arc::new(Guarded::with_deadlines(rig.fake.clone(), deadlines)));
        let thread = std::thread::spawn(move || {
            let asked = ClaimRequest { pf: Some("bad".to_owned()), ..request("stuck") };
            stuck.claim(&asked)
        });
        std::thread::sleep(Duration::from_millis(100));
        let guarded = Guarded::with_deadlines(rig.fake.clone(), deadlines);
        let owner = rig.owner_over(Arc::new(guarded));
        let pf = pool.is_none().then(|| "good".to_owned());
        let begun = Instant::now();
        let claim = owner.claim(&ClaimRequest { pool, pf, ..request("tenant") }).expect("claimed");
        assert_eq!(claim.pf, "good");
        assert!(begun.elapsed() < Duration::from_secs(1), "it took {:?}", begun.elapsed());
        let error = thread.join().expect("no panic").expect_err("a deadline");
        assert!(error.to_string().contains("did not answer within"), "{error}");
        rig.fake.heal(pfs[1]).expect("healed");
    }
}

#[test]
fn a_claim_that_hung_half_way_is_undone_once_the_pf_answers() {
    use lanekeeper_hw::chaos::{Chaos, Fault};
    // The first steps are those of choosing a VF, and leave nothing behind.
    for k in 0.. {
        let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 2);
        let before = rig.state(pf);
        let chaos = Chaos::at(rig.fake.clone(), k, Fault::Hang);
        let short = Duration::from_millis(30);
        let deadlines =
            Deadlines { read: short, write: short, bind: short, ..Deadlines::default() };
        let owner = rig.owner_over(Arc::new(Guarded::with_deadlines(chaos.clone(), deadlines)));
        if owner.claim(&request("tenant")).is_ok() {
            assert!(k > 8, "it ended at step {k}");
            return;
        }
        chaos.release();
        while chaos.hanging() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The worker's turn ends just after its call does, and a loaded machine is slower than that.
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let recovered = owner.recover().expect("recovered");
            if recovered.failed.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "step {k}: {recovered:?}");
        }
        assert_eq!(rig.state(pf), before, "step {k}");
        assert_eq!(owner.records().expect("ledger")[0].free_vfs().count(), 2, "step {k}");
    }
}

#[test]
fn a_release_while_a_recovery_hangs_is_told_so_and_goes_through_after_it() {
    use lanekeeper_host::ledger::LedgerError;
    use lanekeeper_hw::chaos::{Chaos, Fault};
    for k in 0.. {
        let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 2);
        let claim = rig.owner().claim(&request("tenant")).expect("claimed");
        rig.fake.set_up(pf, false).expect("somebody");
        let chaos = Chaos::at(rig.fake.clone(), k, Fault::Hang);
        let recovering = rig.owner_over(Arc::new(chaos.clone()));
        let which = Which::Claim(claim.id);
        let ended = std::thread::scope(|scope| {
            let recovery = scope.spawn(|| recovering.recover().expect("recovered"));
            while chaos.hanging() == 0 && !recovery.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let hangs = chaos.hanging() > 0;
            if hangs {
                let hasty = Patience { lock: Duration::from_millis(20), ..QUICK };
                let answer = rig.owner().with_patience(hasty).release(&which, &token("tenant"));
                let locked = matches!(&answer, Err(HostError::Ledger(LedgerError::Locked { .. })));
                assert!(locked, "step {k}: {answer:?}");
                chaos.release();
            }
            let recovered = recovery.join().expect("ended");
            assert!(recovered.failed.is_empty(), "step {k}: {recovered:?}");
            !hangs
        });
        let released = rig.owner().release(&which, &token("tenant")).expect("released");
        assert!(matches!(released, Released::Done { .. }), "step {k}: {released}");
        assert_eq!(rig.owner().records().expect("ledger")[0].free_vfs().count(), 2, "step {k}");
        if ended {
            assert!(k > 3, "it ended at step {k}");
            return;
        }
    }
}
