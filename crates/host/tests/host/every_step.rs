//! A fault at every single step of apply, claim, release and recovery: refused, or dead before or
//! after it. Whatever k is, the device is as before or as wanted, and recovery brings ledger and
//! device together (rules 8 and 18; sriov-cni#119, dpservice#679).

use std::sync::Arc;

use lanekeeper_host::ledger::{Life, PfRecord};
use lanekeeper_host::{Claim, HostError, Released, Which};
use lanekeeper_hw::chaos::{Chaos, Fault, survive};
use lanekeeper_hw::fake::FakePf;
use lanekeeper_model::PfAddr;

use crate::rig::{Rig, State, each_driver, entry, request, rich, token, vf};

/// `EOPNOTSUPP`, which is never worth another try.
const REFUSED: Fault = Fault::Refuse(95);
/// More steps than any operation here takes.
const ENOUGH: u64 = 400;

/// Run `operation` once for each k with `fault` there, each on a host of its own, until one ends
/// before step k. Returns how many there were.
fn at_every_step<T>(
    fault: Fault,
    host: impl Fn() -> (Rig, PfAddr),
    operation: impl Fn(&lanekeeper_host::Owner, &Rig, PfAddr) -> Result<T, HostError>,
    mut judge: impl FnMut(u64, &Rig, PfAddr, Option<Result<T, HostError>>, State),
) -> u64 {
    for k in 0..ENOUGH {
        let (rig, pf) = host();
        let before = rig.state(pf);
        let chaos = Chaos::at(rig.fake.clone(), k, fault);
        let owner = rig.owner_over(Arc::new(chaos.clone()));
        let outcome = survive(|| operation(&owner, &rig, pf)).ok();
        if chaos.steps() <= k {
            assert!(matches!(outcome, Some(Ok(_))), "without a fault it works");
            return k;
        }
        judge(k, &rig, pf, outcome, before);
    }
    panic!("it never ended");
}

/// What the ledger has of the one PF.
fn journal(rig: &Rig) -> Option<PfRecord> {
    rig.owner().records().expect("ledger").pop()
}

fn bare(pf: &FakePf) -> (Rig, PfAddr) {
    let (rig, addr) = Rig::with(pf.clone());
    // What somebody else had on it before us must come back too.
    lanekeeper_hw::SriovHardware::write_num_vfs(&rig.fake, addr, 3).expect("three VFs");
    let message = lanekeeper_hw::message::VfMessage {
        mac: Some(lanekeeper_model::MacAddr([2, 0, 0, 0, 0, 9])),
        ..Default::default()
    };
    lanekeeper_hw::SriovHardware::send_vf(&rig.fake, addr, vf(1), &message).expect("set");
    (rig, addr)
}

#[test]
fn an_apply_that_is_refused_at_any_step_leaves_the_device_as_before() {
    for (driver, pf) in each_driver() {
        let steps = at_every_step(
            REFUSED,
            || bare(&pf),
            |owner, rig, pf| {
                let plan = owner.plan(&rich(&rig.fake, pf, 4))?;
                owner.apply(&plan, None)
            },
            |k, rig, pf, outcome, before| {
                let outcome = outcome.expect("nobody died");
                if outcome.is_err() {
                    assert_eq!(rig.state(pf), before, "{driver:?}, step {k}: {outcome:?}");
                    let record = rig.owner().records().expect("ledger").pop();
                    assert!(record.is_none_or(|record| record.intent.is_none()), "{driver:?} {k}");
                }
            },
        );
        assert!(steps > 10, "{driver:?} took {steps} steps");
    }
}

#[test]
fn an_apply_that_dies_at_any_step_is_undone_by_the_next_start() {
    for (driver, pf) in each_driver() {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            at_every_step(
                fault,
                || bare(&pf),
                |owner, rig, pf| {
                    let plan = owner.plan(&rich(&rig.fake, pf, 4))?;
                    owner.apply(&plan, None)
                },
                |k, rig, pf, _, before| {
                    let intended = journal(rig).is_some_and(|record| record.intent.is_some());
                    assert!(intended || rig.state(pf) == before, "{driver:?} {k}: journal first");
                    let recovered = rig.owner().recover().expect("recovered");
                    assert!(recovered.failed.is_empty(), "{driver:?} {k}: {recovered:?}");
                    assert_eq!(rig.state(pf), before, "{driver:?}, {fault:?} at step {k}");
                },
            );
        }
    }
}

fn full(of: &str) -> lanekeeper_host::ClaimRequest {
    let mut request = request(of);
    request.vlan = Some(lanekeeper_model::VlanTag {
        id: lanekeeper_model::VlanId::new(7).expect("a VLAN"),
        ..Default::default()
    });
    request.max_rate = Some(lanekeeper_model::Mbps(500));
    request
}

#[test]
fn a_claim_that_is_refused_at_any_step_leaves_the_vf_free_and_as_before() {
    for (driver, pf) in each_driver() {
        at_every_step(
            REFUSED,
            || Rig::applied(pf.clone(), 2),
            |owner, _, _| owner.claim(&full("one-claim")),
            |k, rig, pf, outcome, before| {
                let outcome = outcome.expect("nobody died");
                if outcome.is_err() {
                    assert_eq!(rig.state(pf), before, "{driver:?}, step {k}: {outcome:?}");
                    let record = rig.owner().records().expect("ledger").pop().expect("ours");
                    assert!(record.claims.is_empty());
                    assert_eq!(record.free_vfs().count(), 2, "{driver:?} {k}: {outcome:?}");
                }
            },
        );
    }
}

#[test]
fn a_claim_that_dies_at_any_step_is_whole_or_undone_by_the_next_start() {
    for (driver, pf) in each_driver() {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            at_every_step(
                fault,
                || Rig::applied(pf.clone(), 2),
                |owner, _, _| owner.claim(&full("one-claim")),
                |k, rig, pf, _, before| {
                    let life = journal(rig).expect("ours").vfs[&vf(0)].life.clone();
                    let untouched = rig.fake.writes().is_empty();
                    assert!(untouched || life != Life::Free, "{driver:?} {k}: journal first");
                    let owner = rig.owner();
                    let recovered = owner.recover().expect("recovered");
                    assert!(recovered.failed.is_empty(), "{driver:?} {k}: {recovered:?}");
                    let record = owner.records().expect("ledger").pop().expect("ours");
                    if record.claims.is_empty() {
                        assert_eq!(rig.state(pf), before, "{driver:?}, {fault:?} at step {k}");
                        assert_eq!(record.free_vfs().count(), 2);
                    } else {
                        assert_eq!(record.vfs[&vf(0)].life, Life::Bound, "{driver:?} {k}");
                    }
                    // Who asks again gets one VF, not a second one.
                    let claim = owner.claim(&full("one-claim")).expect("claimed");
                    let record = owner.records().expect("ledger").pop().expect("ours");
                    assert_eq!(record.claims.len(), 1);
                    assert_eq!(claim.settings.vlan.id.get(), 7);
                },
            );
        }
    }
}

fn claimed(pf: &FakePf) -> (Rig, PfAddr) {
    let (rig, addr) = Rig::applied(pf.clone(), 2);
    rig.owner().claim(&full("one-claim")).expect("claimed");
    rig.fake.clear_log();
    (rig, addr)
}

fn release(owner: &lanekeeper_host::Owner) -> Result<Released, HostError> {
    let which = Which::Vf { pf: "rail0".to_owned(), vf: vf(0) };
    owner.release(&which, &token("one-claim"))
}

#[test]
fn a_release_that_fails_at_any_step_never_leaves_a_free_vf_dirty() {
    for (driver, pf) in each_driver() {
        for fault in [REFUSED, Fault::Refuse(5), Fault::DieBefore, Fault::DieAfter] {
            at_every_step(
                fault,
                || claimed(&pf),
                |owner, _, _| release(owner),
                |k, rig, pf, _, _| {
                    let life = journal(rig).expect("ours").vfs[&vf(0)].life.clone();
                    let untouched = rig.fake.writes().is_empty();
                    assert!(untouched || life != Life::Bound, "{driver:?} {k}: journal first");
                    let owner = rig.owner();
                    let recovered = owner.recover().expect("recovered");
                    assert!(recovered.failed.is_empty(), "{driver:?} {k}: {recovered:?}");
                    release(&owner).expect("released, or was");
                    let record = owner.records().expect("ledger").pop().expect("ours");
                    assert!(record.claims.is_empty(), "{driver:?} {fault:?} {k}");
                    assert_eq!(
                        record.free_vfs().count(),
                        2,
                        "{driver:?} {fault:?} {k}: {record:?}"
                    );
                    let fresh = Rig::applied(FakePf::new(driver), 2);
                    assert_eq!(rig.state(pf).vfs, fresh.0.state(fresh.1).vfs, "{fault:?} {k}");
                },
            );
        }
    }
}

#[test]
fn a_recovery_that_dies_at_any_step_is_finished_by_the_next() {
    for (driver, pf) in each_driver() {
        at_every_step(
            Fault::DieAfter,
            || {
                let (rig, addr) = claimed(&pf);
                rig.fake.reboot();
                (rig, addr)
            },
            |owner, _, _| owner.recover(),
            |k, rig, pf, _, _| {
                let owner = rig.owner();
                let recovered = owner.recover().expect("recovered");
                assert!(recovered.failed.is_empty(), "{driver:?} {k}: {recovered:?}");
                let claim: Claim = owner.claim(&full("one-claim")).expect("the same claim");
                assert_eq!((claim.vf, claim.life), (vf(0), Life::Bound), "{driver:?} {k}");
                assert_eq!(rig.read(pf).num_vfs, 2);
                assert_eq!(claim.settings.vlan.id.get(), 7);
            },
        );
    }
}

#[test]
fn a_rolled_back_apply_that_dies_at_any_step_is_rolled_back_by_the_next_start() {
    let pf = FakePf::new(lanekeeper_hw::fake::Personality::Ice);
    at_every_step(
        Fault::DieAfter,
        || {
            let (rig, addr) = bare(&pf);
            let owner = rig.owner();
            let plan = owner.plan(&rich(&rig.fake, addr, 4)).expect("a plan");
            owner.apply(&plan, Some(std::time::Duration::ZERO)).expect("applied");
            (rig, addr)
        },
        |owner, _, _| owner.recover(),
        |k, rig, pf, _, _| {
            rig.owner().recover().expect("recovered");
            assert_eq!(rig.read(pf).num_vfs, 3, "step {k}");
            assert_eq!(
                rig.state(pf),
                bare(&FakePf::new(lanekeeper_hw::fake::Personality::Ice)).0.state(pf)
            );
            let plan = rig.owner().plan(&entry(&rig.fake, pf, "rail0", 3, "")).expect("a plan");
            assert!(plan.blockers().is_empty());
        },
    );
}
