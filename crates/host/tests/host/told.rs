//! What a PF's driver does not tell of a VF, for a moment or for good: it is waited for, and what is
//! not told is never taken to be as wanted.

use std::sync::Arc;

use lanekeeper_host::ledger::Life;
use lanekeeper_host::{ClaimRequest, HostError, Released, Which};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::chaos::{Chaos, Fault};
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_hw::message::VfMessage;

use crate::rig::{Rig, each_driver, entry, request, token, vf};

fn tagged() -> ClaimRequest {
    ClaimRequest { vlan: serde_json::from_str(r#"{"id": 7}"#).ok(), ..request("tenant") }
}

#[test]
fn a_vf_that_its_pf_does_not_tell_of_for_a_moment_is_waited_for() {
    for (driver, spec) in each_driver() {
        for readings in 1..6 {
            let (rig, pf) = Rig::applied(spec.clone(), 1);
            rig.fake.leave_untold(pf, vf(0), readings).expect("there");
            let claim = rig.owner().claim(&tagged()).expect("claimed");
            let now = rig.read(pf).vfs[0].attributes.expect("told");
            assert_eq!((now.mac, now.vlan.id.get()), (claim.settings.mac, 7), "{driver:?}");
            assert_eq!(now.spoofchk, Some(true), "{driver:?}");
            rig.fake.leave_untold(pf, vf(0), readings).expect("there");
            let which = Which::Claim(claim.id);
            let released = rig.owner().release(&which, &token("tenant")).expect("released");
            assert!(matches!(released, Released::Done { .. }), "{driver:?}: {released}");
            assert_eq!(rig.read(pf).vfs[0].attributes.expect("told").vlan.id.get(), 0);
        }
    }
}

#[test]
fn a_vf_that_its_pf_tells_nothing_of_is_not_handed_over() {
    for (driver, spec) in each_driver() {
        let (rig, pf) = Rig::applied(spec, 1);
        rig.fake.leave_untold(pf, vf(0), u32::MAX).expect("there");
        let error = rig.owner().claim(&tagged()).expect_err("nothing can be proved");
        assert!(matches!(error, HostError::Untold { .. }), "{driver:?}: {error}");
        rig.fake.leave_untold(pf, vf(0), 0).expect("there");
        rig.owner().claim(&tagged()).expect("it tells again");
    }
}

#[test]
fn a_pf_whose_interface_is_elsewhere_gives_no_vf() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Ice), 1);
    rig.fake.set_netdev_here(pf, false).expect("moved");
    rig.owner().claim(&tagged()).expect_err("nothing can be set through it");
    rig.fake.set_netdev_here(pf, true).expect("moved back");
    rig.owner().recover().expect("recovered");
    let claim = rig.owner().claim(&tagged()).expect("claimed");
    assert_eq!(rig.read(pf).vfs[0].attributes.expect("told").mac, claim.settings.mac);
}

#[test]
fn a_vf_that_is_taken_over_untold_is_not_free() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    rig.fake.write_num_vfs(pf, 2).expect("somebody's");
    let left: Option<lanekeeper_model::VlanTag> = serde_json::from_str(r#"{"id": 9}"#).ok();
    let message = VfMessage { vlan: left, ..VfMessage::default() };
    rig.fake.send_vf(pf, vf(0), &message).expect("somebody's");
    let file = entry(&rig.fake, pf, "rail0", 2, "");
    rig.fake.leave_untold(pf, vf(0), u32::MAX).expect("there");
    rig.apply(&file);
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert!(matches!(record.vfs[&vf(0)].life, Life::Quarantined { .. }));
    assert_eq!(record.vfs[&vf(1)].life, Life::Free);
    rig.fake.leave_untold(pf, vf(0), 0).expect("there");
    rig.owner().recover().expect("recovered");
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert_eq!(record.vfs[&vf(0)].life, Life::Free);
    assert_eq!(rig.read(pf).vfs[0].attributes.expect("told").vlan.id.get(), 0);
}

#[test]
fn check_says_of_which_claim_nothing_is_told() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 1);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    let file = entry(&rig.fake, pf, "rail0", 1, "pools: [fast]");
    assert_eq!(rig.owner().check(&file).expect("checked"), []);
    rig.fake.leave_untold(pf, vf(0), u32::MAX).expect("there");
    let drift = rig.owner().check(&file).expect("checked");
    assert!(drift.iter().any(|at| at.what.contains(&claim.id.0)), "{drift:?}");
}

#[test]
fn whichever_step_is_refused_once_for_being_busy_is_done_again() {
    // EINTR, EAGAIN, EBUSY.
    for errno in [4, 11, 16] {
        for (driver, spec) in each_driver() {
            let (mut step, mut steps) = (0, 1);
            while step < steps {
                let (rig, _) = Rig::applied(spec.clone(), 1);
                let chaos = Chaos::at(rig.fake.clone(), step, Fault::Refuse(errno));
                let owner = rig.owner_over(Arc::new(chaos.clone()));
                let claim = owner.claim(&tagged());
                let claim = claim.unwrap_or_else(|error| panic!("{driver:?} {step}: {error}"));
                owner.release(&Which::Claim(claim.id), &token("tenant")).expect("released");
                (step, steps) = (step + 1, chaos.steps());
            }
            assert!(step > 10, "{driver:?}: {step}");
        }
    }
}

#[test]
fn what_a_driver_tells_a_moment_late_is_waited_for_and_not_written_twice() {
    for (driver, spec) in each_driver() {
        for late in [1, 3, 9] {
            let (rig, pf) = Rig::with(spec.clone().telling_late(late));
            rig.apply(&entry(&rig.fake, pf, "rail0", 2, ""));
            let twice = |rig: &Rig| {
                let writes = rig.fake.writes();
                (1..writes.len()).any(|at| writes[..at].contains(&writes[at]))
            };
            assert!(!twice(&rig), "{driver:?} {late}: {:?}", rig.fake.writes());
            rig.fake.clear_log();
            let claim = rig.owner().claim(&tagged()).expect("claimed");
            assert!(!twice(&rig), "{driver:?} {late}: {:?}", rig.fake.writes());
            let which = Which::Claim(claim.id);
            let released = rig.owner().release(&which, &token("tenant")).expect("released");
            assert!(matches!(released, Released::Done { .. }), "{driver:?}: {released}");
        }
    }
}

#[test]
fn an_apply_that_began_with_a_vf_untold_leads_back_all_the_same() {
    for readings in [2, 4, u32::MAX] {
        let (rig, pf) = Rig::with(FakePf::new(Personality::Ice).with_firmware_lldp());
        rig.fake.write_num_vfs(pf, 2).expect("somebody's");
        let before = rig.state(pf);
        let owner = rig.owner();
        let plan = owner.plan(&crate::rig::rich(&rig.fake, pf, 3)).expect("a plan");
        rig.fake.leave_untold(pf, vf(0), readings).expect("there");
        let error = owner.apply(&plan, None).expect_err("DCB is the firmware's");
        assert!(matches!(error, HostError::Reverted { .. }), "{readings}: {error}");
        rig.fake.leave_untold(pf, vf(0), 0).expect("there");
        assert_eq!(rig.state(pf).num_vfs, before.num_vfs);
        let record = rig.owner().records().expect("ledger").pop().expect("begun");
        assert!(record.intent.is_none(), "nothing is left to undo");
    }
}
