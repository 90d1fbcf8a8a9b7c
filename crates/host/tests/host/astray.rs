//! What somebody does to an owned VF beside the settings that its PF tells of: its driver, its
//! representor, its MTU. It is told by `check`, and put right by a recovery.

use lanekeeper_host::{Claim, ClaimRequest, DriverWanted, HostFile};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_hw::inventory::RepresentorState;
use lanekeeper_model::{EswitchMode, Mtu, PfAddr, RoceSetting};

use crate::rig::{Rig, each_driver, entry, request};

const CLOSED: RepresentorState = RepresentorState { up: false, mtu: 1_500 };

fn host(spec: FakePf, more: &str, asked: &ClaimRequest) -> (Rig, PfAddr, HostFile, Claim) {
    let (rig, pf) = Rig::with(spec);
    let file = entry(&rig.fake, pf, "rail0", 2, more);
    rig.apply(&file);
    let claim = rig.owner().claim(asked).expect("claimed");
    assert_eq!(rig.owner().check(&file).expect("checked"), []);
    (rig, pf, file, claim)
}

/// `check` tells this of the claim, and after a recovery nothing.
fn told_and_mended(rig: &Rig, file: &HostFile, claim: &Claim, what: &str) {
    let drift = rig.owner().check(file).expect("checked");
    let told = |at: &lanekeeper_host::Drift| at.vf == Some(claim.vf) && at.what.contains(what);
    assert!(drift.iter().any(told), "{what}: {drift:?}");
    let recovered = rig.owner().recover().expect("recovered");
    assert!(recovered.failed.is_empty(), "{recovered:?}");
    assert_eq!(rig.owner().check(file).expect("checked"), [], "{what}");
}

#[test]
fn a_driver_that_somebody_took_away_is_told_and_put_back() {
    for (driver, spec) in each_driver() {
        let (rig, pf, file, claim) = host(spec, "", &request("tenant"));
        rig.fake.unbind(pf, claim.address).expect("unbound");
        told_and_mended(&rig, &file, &claim, "no driver has it, not vfio-pci");
        rig.fake.write_driver_override(pf, claim.address, None).expect("cleared");
        told_and_mended(&rig, &file, &claim, "driver_override");
        rig.fake.unbind(pf, claim.address).expect("unbound");
        let own = driver.rules().vf_driver;
        rig.fake.write_driver_override(pf, claim.address, Some(own)).expect("written");
        rig.fake.probe(pf, claim.address).expect("probed");
        told_and_mended(&rig, &file, &claim, &format!("{own} has it, not vfio-pci"));
    }
}

#[test]
fn a_claim_that_is_asked_for_again_is_as_it_was_asked_for() {
    for (driver, spec) in each_driver() {
        let (rig, pf, file, claim) = host(spec, "", &request("tenant"));
        rig.fake.unbind(pf, claim.address).expect("unbound");
        let vlan = serde_json::from_str(r#"{"id": 9}"#).ok();
        let message = lanekeeper_hw::message::VfMessage { vlan, ..Default::default() };
        rig.fake.send_vf(pf, claim.vf, &message).expect("somebody else");
        let again = rig.owner().claim(&request("tenant")).expect("the same");
        assert_eq!(again.settings, claim.settings, "{driver:?}");
        assert_eq!(again.driver.as_deref(), Some("vfio-pci"), "{driver:?}");
        assert_eq!(rig.owner().check(&file).expect("checked"), [], "{driver:?}");
    }
}

#[test]
fn a_representor_that_somebody_closed_is_told_and_opened_also_under_a_vm() {
    for driver in [Personality::Mlx5, Personality::Ice, Personality::BnxtEn] {
        let more = "eswitch: switchdev";
        let (rig, pf, file, claim) = host(FakePf::new(driver), more, &request("tenant"));
        rig.fake.set_representor(pf, claim.vf, CLOSED).expect("closed");
        told_and_mended(&rig, &file, &claim, "representor");
        rig.fake.open_vf(pf, claim.vf, 4711, "qemu").expect("opened");
        rig.fake.set_representor(pf, claim.vf, CLOSED).expect("closed");
        rig.fake.clear_log();
        told_and_mended(&rig, &file, &claim, "representor");
        assert_eq!(rig.fake.writes().len(), 1, "{driver:?}: {:?}", rig.fake.writes());
        assert_eq!(rig.fake.silence(pf, claim.vf).expect("a VF"), None, "{driver:?}");
    }
}

#[test]
fn a_switch_whose_mode_somebody_changed_silences_no_owner_where_the_file_says_no_mode() {
    for driver in [Personality::Mlx5, Personality::Ice, Personality::BnxtEn] {
        let (rig, pf, file, claim) = host(FakePf::new(driver), "", &request("tenant"));
        rig.fake.force_eswitch(pf, EswitchMode::Switchdev).expect("somebody else");
        assert!(rig.fake.silence(pf, claim.vf).expect("a VF").is_some());
        told_and_mended(&rig, &file, &claim, "representor");
        assert_eq!(rig.fake.silence(pf, claim.vf).expect("a VF"), None, "{driver:?}");
    }
}

#[test]
fn a_vf_of_the_hosts_own_keeps_its_mtu() {
    let asked = ClaimRequest { driver: Some(DriverWanted::Kernel), ..request("tenant") };
    for (_, spec) in each_driver() {
        let (rig, pf, file, claim) = host(spec, "mtu: 9000", &asked);
        rig.fake.set_vf_mtu(pf, claim.vf, Mtu::ETHERNET).expect("somebody else");
        told_and_mended(&rig, &file, &claim, "its MTU is not 9000");
    }
}

#[test]
fn a_pf_mtu_below_what_an_owner_was_given_is_told() {
    let spec = FakePf::new(Personality::Ice);
    let (rig, pf, file, claim) = host(spec, "mtu: 9000", &request("tenant"));
    rig.fake.set_roce(pf, &RoceSetting::Mtu(Mtu::ETHERNET)).expect("somebody else");
    told_and_mended(&rig, &file, &claim, "the PF's MTU is below");
}
