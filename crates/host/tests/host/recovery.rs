//! Recovery: reboots, hot removals, damaged ledgers, other people's hands.

use lanekeeper_host::ledger::Life;
use lanekeeper_host::{HostError, RecoveryEvent, Which};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_model::MacAddr;

use crate::rig::{Rig, each_driver, entry, request, rich, token, vf};

#[test]
fn one_step_is_told_as_one() {
    for (steps, told) in [(1, "in 1 step"), (2, "in 2 steps")] {
        let remade = RecoveryEvent::Remade { pf: "rail0".to_owned(), steps };
        assert!(remade.to_string().ends_with(told), "{remade}");
    }
}

#[test]
fn after_a_reboot_vfs_and_claims_are_as_they_were() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf);
        let file = rich(&rig.fake, pf, 4);
        rig.apply(&file);
        let claim = rig.owner().claim(&request("tenant")).expect("claimed");
        let before = rig.state(pf);
        rig.fake.reboot();
        let recovered = rig.owner().recover().expect("recovered");
        assert!(recovered.failed.is_empty(), "{driver:?}: {recovered:?}");
        assert_eq!(rig.state(pf), before, "{driver:?}");
        let again = rig.owner().claim(&request("tenant")).expect("the same");
        assert_eq!((again.id, again.settings), (claim.id, claim.settings), "{driver:?}");
        assert_eq!(rig.owner().check(&file).expect("checked"), [], "{driver:?}");
        rig.fake.clear_log();
        rig.owner().recover().expect("recovered");
        assert_eq!(rig.fake.writes(), [], "{driver:?}: a second recovery writes nothing");
    }
}

#[test]
fn a_driver_that_was_reloaded_is_repaired() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    let file = rich(&rig.fake, pf, 4);
    rig.apply(&file);
    let before = rig.state(pf);
    rig.fake.reload_driver(pf).expect("reloaded");
    rig.owner().recover().expect("recovered");
    assert_eq!(rig.state(pf), before);
}

#[test]
fn a_pf_that_went_is_known_again_at_another_address() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Mlx5), 2);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    let board = rig.fake.hot_remove(pf).expect("pulled out");
    let recovered = rig.owner().recover().expect("recovered");
    let lost = |event: &RecoveryEvent| matches!(event, RecoveryEvent::ClaimLost { .. });
    assert!(recovered.events.iter().any(lost), "{recovered:?}");
    let error = rig.owner().claim(&request("other")).expect_err("gone");
    assert!(matches!(error, HostError::PfGone { .. }), "{error}");
    let elsewhere = "0000:c1:00.0".parse().expect("an address");
    rig.fake.add_pf(board.at(elsewhere).named("other0"));
    rig.owner().recover().expect("recovered");
    let again = rig.owner().claim(&request("tenant")).expect("the same");
    assert_eq!((again.id, again.pf_address), (claim.id, elsewhere));
    assert_eq!(again.settings.mac, claim.settings.mac);
    assert_eq!(again.life, Life::Bound);
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert!(record.claims.values().all(|claim| claim.lost.is_none()));
}

#[test]
fn another_card_in_its_place_is_not_it() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 2);
    rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.hot_remove(pf).expect("pulled out");
    let other = FakePf::new(Personality::Igb).at(pf).mac(MacAddr([2, 0, 0, 0, 0, 0xee]));
    rig.fake.add_pf(other);
    rig.fake.clear_log();
    rig.owner().recover().expect("recovered");
    assert_eq!(rig.fake.writes(), [], "it is nobody's");
    assert!(matches!(rig.owner().claim(&request("next")), Err(HostError::PfGone { .. })));
}

#[test]
fn names_that_changed_places_do_not_matter() {
    let rig = Rig::new();
    let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
    let mut file = entry(&rig.fake, pfs[0], "rail0", 1, "");
    file.pfs.extend(entry(&rig.fake, pfs[1], "rail1", 2, "").pfs);
    rig.apply(&file);
    rig.fake.swap_names(pfs[0], pfs[1]).expect("swapped");
    rig.fake.reboot();
    rig.owner().recover().expect("recovered");
    assert_eq!((rig.read(pfs[0]).num_vfs, rig.read(pfs[1]).num_vfs), (1, 2));
    assert!(rig.owner().plan(&file).expect("a plan").is_empty());
}

#[test]
fn addresses_that_changed_places_do_not_matter() {
    let rig = Rig::new();
    let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
    let mut file = entry(&rig.fake, pfs[0], "rail0", 1, "");
    file.pfs.extend(entry(&rig.fake, pfs[1], "rail1", 2, "").pfs);
    rig.apply(&file);
    let [one, two] = pfs.map(|pf| rig.fake.hot_remove(pf).expect("pulled out"));
    rig.fake.add_pf(one.at(pfs[1]));
    rig.fake.add_pf(two.at(pfs[0]));
    rig.owner().recover().expect("recovered");
    assert_eq!((rig.read(pfs[0]).num_vfs, rig.read(pfs[1]).num_vfs), (2, 1));
}

#[test]
fn a_damaged_ledger_is_said_and_nothing_is_touched() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 2);
    rig.owner().claim(&request("tenant")).expect("claimed");
    let key = rig.owner().ledger().keys().expect("keys").remove(0);
    let path = rig.folder.path().join(format!("{key}.json"));
    let whole = std::fs::read(&path).expect("read");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("truncated");
    let before = (rig.state(pf), std::fs::read(&path).expect("read"));
    rig.fake.clear_log();
    let owner = rig.owner();
    let file = entry(&rig.fake, pf, "rail0", 4, "");
    for error in [
        owner.plan(&file).expect_err("damaged"),
        owner.claim(&request("next")).expect_err("damaged"),
        owner
            .release(&Which::Vf { pf: "rail0".to_owned(), vf: vf(0) }, &token("tenant"))
            .expect_err("damaged"),
        owner.recover().expect("of the others").failed.remove(0).1,
    ] {
        assert!(error.to_string().contains("damaged"), "{error}");
    }
    assert_eq!((rig.state(pf), std::fs::read(&path).expect("read")), before);
    assert_eq!(rig.fake.writes(), []);
}

#[test]
fn free_comes_from_the_ledger_and_not_from_how_a_vf_looks() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 2);
    rig.owner().claim(&request("tenant")).expect("claimed");
    let address = rig.read(pf).vfs[0].addr;
    // Somebody unbinds it and takes its MAC: it looks as free as the other.
    rig.fake.unbind(pf, address).expect("unbound");
    let message = lanekeeper_hw::message::VfMessage {
        mac: Some(MacAddr::ZERO),
        spoofchk: Some(false),
        ..Default::default()
    };
    rig.fake.send_vf(pf, vf(0), &message).expect("sent");
    assert_eq!(rig.owner().claim(&request("next")).expect("the other").vf, vf(1));
    rig.owner().recover().expect("recovered");
    let reading = rig.read(pf).vfs.remove(0);
    assert_eq!(reading.driver.as_deref(), Some("vfio-pci"), "it is its owner's again");
    assert!(!reading.attributes.expect("told").mac.is_zero());
}

#[test]
fn vfs_that_somebody_remade_under_their_owner_are_set_again() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 2);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.write_num_vfs(pf, 0).expect("removed");
    rig.fake.write_num_vfs(pf, 2).expect("made");
    let recovered = rig.owner().recover().expect("recovered");
    assert!(recovered.failed.is_empty(), "{recovered:?}");
    let attributes = rig.read(pf).vfs[claim.vf.get()].attributes.expect("told");
    assert_eq!(attributes.mac, claim.settings.mac);
}

#[test]
fn another_number_of_vfs_under_an_owner_is_reported_and_not_forced() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 2);
    let first = rig.owner().claim(&request("a-tenant")).expect("claimed");
    let second = rig.owner().claim(&request("b-tenant")).expect("claimed");
    rig.fake.write_num_vfs(pf, 0).expect("removed");
    rig.fake.write_num_vfs(pf, 1).expect("made");
    rig.fake.clear_log();
    let recovered = rig.owner().recover().expect("recovered");
    assert_eq!(rig.fake.num_vfs_writes(pf), 0, "{recovered:?}");
    let lost = |event: &RecoveryEvent| matches!(event, RecoveryEvent::ClaimLost { claim, .. } if *claim == second.id);
    assert!(recovered.events.iter().any(lost), "{recovered:?}");
    assert_eq!(rig.owner().claim(&request("a-tenant")).expect("still there").id, first.id);
    for (claim, name) in [(first, "a-tenant"), (second, "b-tenant")] {
        rig.owner().release(&Which::Claim(claim.id), &token(name)).expect("released");
    }
    rig.owner().recover().expect("recovered");
    assert_eq!(rig.read(pf).num_vfs, 2, "with no owner left it is made right");
}

#[test]
fn a_vm_that_still_runs_keeps_its_vf_through_a_restart_of_ours() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 2);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.open_vf(pf, claim.vf, 4711, "qemu").expect("a VM has it");
    let before = rig.state(pf);
    rig.fake.clear_log();
    rig.owner().recover().expect("recovered");
    assert_eq!((rig.state(pf), rig.fake.writes()), (before, vec![]));
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert_eq!(record.vfs[&claim.vf].life, Life::Attached);
    rig.fake.close_vf(pf, claim.vf).expect("it died");
    rig.owner().recover().expect("recovered");
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert_eq!(record.vfs[&claim.vf].life, Life::Bound, "still its owner's");
}

#[test]
fn a_quarantined_vf_that_can_be_scrubbed_now_is_free_again() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 1);
    let mut asked = request("tenant");
    asked.max_rate = Some(lanekeeper_model::Mbps(100));
    let claim = rig.owner().claim(&asked).expect("claimed");
    // igb takes no rate while it has no link, and so takes none back either.
    rig.fake.set_cable(pf, false).expect("pulled");
    let released =
        rig.owner().release(&Which::Claim(claim.id), &token("tenant")).expect("released");
    assert!(matches!(released, lanekeeper_host::Released::Quarantined { .. }), "{released}");
    rig.fake.set_cable(pf, true).expect("plugged");
    rig.owner().recover().expect("recovered");
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert_eq!(record.free_vfs().count(), 1);
}

#[test]
fn what_fails_of_a_pf_is_told_and_its_claims_with_it() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Mlx5).total_vfs(8), 4);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    let fewer = Some(lanekeeper_hw::inventory::TotalVfs::UpTo(2));
    rig.fake.set_pending(pf, "NUM_OF_VFS 8 to 2", fewer).expect("pending");
    rig.fake.reboot();
    let recovered = rig.owner().recover().expect("recovered");
    let told: Vec<String> = recovered.events.iter().map(ToString::to_string).collect();
    assert!(told.iter().any(|line| line.contains("it can have 2")), "{told:?}");
    let lost = |event: &RecoveryEvent| matches!(event, RecoveryEvent::ClaimLost { claim: lost, .. } if *lost == claim.id);
    assert!(recovered.events.iter().any(lost), "{told:?}");
    assert_eq!(rig.fake.num_vfs_writes(pf), 0);
}

#[test]
fn a_vf_that_the_host_uses_is_not_taken_from_it_by_a_recovery_either() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::I40e));
    rig.fake.write_num_vfs(pf, 2).expect("somebody's");
    rig.fake.use_vf_netdev(pf, vf(0)).expect("up");
    rig.apply(&entry(&rig.fake, pf, "rail0", 2, ""));
    rig.fake.clear_log();
    rig.owner().recover().expect("recovered");
    assert_eq!(rig.fake.writes(), []);
    let address = rig.read(pf).vfs[0].addr;
    rig.fake.unbind(pf, address).expect("the host lets it go");
    rig.owner().recover().expect("recovered");
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert_eq!(record.free_vfs().count(), 2);
}
