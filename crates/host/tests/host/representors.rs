//! In switchdev mode a VF's link is its representor's: who opens it, and who closes it again.

use lanekeeper_host::{ClaimRequest, Which};
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::fake::{FakePf, Personality, Write};
use lanekeeper_hw::inventory::RepresentorState;
use lanekeeper_model::{Mtu, PfAddr};

use crate::rig::{Rig, entry, request, token, vf};

const CLOSED: RepresentorState = RepresentorState { up: false, mtu: 1_500 };
const DRIVERS: [Personality; 2] = [Personality::Mlx5, Personality::Ice];

fn switchdev(driver: Personality) -> (Rig, PfAddr) {
    let (rig, pf) = Rig::with(FakePf::new(driver));
    rig.apply(&entry(&rig.fake, pf, "rail0", 2, "eswitch: switchdev, mtu: 9000"));
    (rig, pf)
}

fn state(rig: &Rig, pf: PfAddr) -> RepresentorState {
    rig.read(pf).vfs[0].representor_state.expect("switchdev")
}

#[test]
fn a_claim_opens_it_with_its_mtu_and_the_scrub_puts_it_back() {
    for driver in DRIVERS {
        let (rig, pf) = switchdev(driver);
        assert_eq!(state(&rig, pf), CLOSED, "{driver:?}");
        assert!(rig.fake.silence(pf, vf(0)).expect("a VF").is_some(), "{driver:?}: it is closed");
        let asked = ClaimRequest { mtu: Mtu::new(4_000).ok(), ..request("tenant") };
        let claim = rig.owner().claim(&asked).expect("claimed");
        assert_eq!(claim.vf, vf(0));
        assert_eq!(state(&rig, pf), RepresentorState { up: true, mtu: 4_000 }, "{driver:?}");
        assert_eq!(rig.fake.silence(pf, vf(0)).expect("a VF"), None, "{driver:?}");
        rig.owner().release(&Which::Claim(claim.id), &token("tenant")).expect("released");
        assert_eq!(state(&rig, pf), CLOSED, "{driver:?}");
    }
}

#[test]
fn one_that_was_open_before_the_claim_is_open_after_it_whatever_was_done_between() {
    for driver in DRIVERS {
        let (rig, pf) = switchdev(driver);
        let before = RepresentorState { up: true, mtu: 9_000 };
        rig.fake.set_representor(pf, vf(0), before).expect("the switch's owner");
        let claim = rig.owner().claim(&request("tenant")).expect("claimed");
        let other = RepresentorState { up: false, mtu: 1_280 };
        rig.fake.set_representor(pf, vf(0), other).expect("somebody");
        rig.owner().release(&Which::Claim(claim.id), &token("tenant")).expect("released");
        assert_eq!(state(&rig, pf), before, "{driver:?}");
    }
}

#[test]
fn one_that_is_as_wanted_is_not_written() {
    let (rig, pf) = switchdev(Personality::Mlx5);
    let open = RepresentorState { up: true, mtu: 9_000 };
    rig.fake.set_representor(pf, vf(0), open).expect("the switch's owner");
    rig.fake.clear_log();
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.owner().release(&Which::Claim(claim.id), &token("tenant")).expect("released");
    let written = rig.fake.writes();
    assert!(!written.iter().any(|write| matches!(write, Write::Representor(..))), "{written:?}");
}

#[test]
fn in_legacy_mode_there_is_none_to_set() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Mlx5), 2);
    let error = rig.fake.set_representor(pf, vf(0), CLOSED).expect_err("none there");
    assert!(error.to_string().contains("switchdev"), "{error}");
    rig.owner().claim(&request("tenant")).expect("claimed");
}
