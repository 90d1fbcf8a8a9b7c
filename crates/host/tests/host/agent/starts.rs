//! How an agent begins: after a boot, after its own death, beside another, with a NIC that comes
//! late, and with an apply that nobody confirmed.

use std::sync::Arc;
use std::time::Duration;

use lanekeeper_host::agent::Report;
use lanekeeper_host::{HostError, HostFile};
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::chaos::{Chaos, Fault, survive};
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_model::PfAddr;

use super::play::{Clock, Play};
use crate::rig::{Rig, each_driver, entry, parse, request, rich};

#[test]
fn at_its_start_it_applies_the_file_and_then_says_ready() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf);
        let file = rich(&rig.fake, pf, 4);
        let mut play = Play::new(&rig, &file);
        play.seconds(3);
        assert_eq!(play.names(), ["applied", "ready"], "{driver:?}");
        assert_eq!(rig.owner().check(&file).expect("checked"), [], "{driver:?}");
        assert_eq!(play.metric("lanekeeper_pf_vfs{pf=\"rail0\",life=\"free\"}"), Some(4.0));
    }
}

#[test]
fn after_a_reboot_vfs_and_claims_are_there_before_it_says_ready() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf);
        let file = rich(&rig.fake, pf, 4);
        let mut play = Play::new(&rig, &file);
        play.seconds(3);
        let claim = rig.owner().claim(&request("tenant")).expect("claimed");
        let before = rig.state(pf);
        rig.fake.reboot();
        let mut play = play.again(&rig, &file);
        play.pass_and(Duration::from_secs(5), |action| {
            if matches!(action, lanekeeper_host::agent::Action::Tell(Report::Ready)) {
                assert_eq!(rig.state(pf), before, "{driver:?}");
            }
        });
        assert_eq!(play.names(), ["recovered", "ready"], "{driver:?}");
        assert_eq!(rig.owner().claim(&request("tenant")).expect("the same").id, claim.id);
    }
}

#[test]
fn a_host_that_is_as_it_should_be_is_not_written_to_and_seldom_read() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    let file = rich(&rig.fake, pf, 4);
    let mut play = Play::new(&rig, &file);
    play.seconds(3);
    rig.owner().claim(&request("tenant")).expect("claimed");
    play.seconds(10);
    rig.fake.clear_log();
    (play.looks, play.told) = (0, Vec::new());
    play.seconds(600);
    assert_eq!((rig.fake.writes(), play.names()), (vec![], vec![]));
    assert!((9..=12).contains(&play.looks), "{} looks in ten minutes", play.looks);
}

#[test]
fn a_nic_that_appears_after_the_start_is_applied_when_it_does() {
    // platform9/express#255: an agent that was there before its NIC never looked again.
    let rig = Rig::new();
    let mac = "02:00:00:00:00:77".parse().expect("a MAC");
    let file = parse(
        "version: 1\npfs:\n  - {name: rail0, select: {permanent_mac: '02:00:00:00:00:77'}, vfs: 3}\n",
    );
    let mut play = Play::new(&rig, &file);
    play.seconds(100);
    assert_eq!(play.names(), ["ready"]);
    let pf = rig.fake.add_pf(FakePf::new(Personality::Igb).mac(mac));
    play.seconds(3);
    assert_eq!(rig.read(pf).num_vfs, 3);
    assert_eq!(play.names(), ["pf_appeared", "applied"]);
}

#[test]
fn vms_wait_a_while_for_a_nic_whose_driver_is_late_at_boot() {
    let rig = Rig::new();
    let pf = rig.fake.add_pf(FakePf::new(Personality::Igb));
    let file = entry(&rig.fake, pf, "rail0", 2, "");
    let board = rig.fake.hot_remove(pf).expect("removed");
    let mut play = Play::new(&rig, &file);
    play.seconds(20);
    assert!(!play.names().contains(&"ready".to_owned()));
    rig.fake.add_pf(board);
    play.seconds(3);
    assert_eq!(play.names(), ["pf_appeared", "applied", "ready"]);
}

#[test]
fn a_nic_whose_appearance_was_never_told_is_found_by_the_rescan() {
    let rig = Rig::new();
    let pf = rig.fake.add_pf(FakePf::new(Personality::Igb));
    let file = entry(&rig.fake, pf, "rail0", 2, "");
    let board = rig.fake.hot_remove(pf).expect("removed");
    let mut play = Play::new(&rig, &file);
    play.seconds(3);
    let pf = rig.fake.add_pf(board);
    play.watch = rig.fake.watch();
    play.seconds(61);
    assert_eq!(rig.read(pf).num_vfs, 2);
}

#[test]
fn a_second_agent_of_a_state_folder_is_refused_with_the_firsts_process() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    let mut play = Play::new(&rig, &entry(&rig.fake, pf, "rail0", 1, ""));
    play.seconds(1);
    let error = rig.owner().take_seat().expect_err("taken");
    let HostError::AgentRuns { pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*pid, Some(std::process::id()));
    assert!(error.to_string().contains("another lanekeeper agent"), "{error}");
    drop(play);
    rig.owner().take_seat().expect("free again");
}

#[test]
fn an_entry_that_means_two_pfs_is_reported_and_neither_is_touched() {
    let rig = Rig::new();
    for _ in 0..2 {
        rig.fake.add_pf(FakePf::new(Personality::Igb));
    }
    let text = "version: 1\npfs:\n  - {name: any, select: {vendor_device: '8086:10c9'}, vfs: 1}\n";
    let mut play = Play::new(&rig, &parse(text));
    play.seconds(5);
    assert_eq!(rig.fake.writes(), []);
    let refused = |report: &&Report| matches!(report, Report::NotApplied { .. });
    let told: Vec<_> = play.told.iter().filter(refused).collect();
    assert!(!told.is_empty(), "{:?}", play.told);
    assert!(play.names().contains(&"ready".to_owned()), "it holds up nobody");
}

#[test]
fn an_entry_that_means_any_of_a_kind_waits_until_all_were_looked_at() {
    let rig = Rig::new();
    let pf = rig.fake.add_pf(FakePf::new(Personality::Igb));
    let vendor = rig.read(pf);
    let text = format!(
        "version: 1\npfs:\n  - {{name: any, select: {{vendor_device: '{:04x}:{:04x}'}}, vfs: 1}}\n",
        vendor.vendor, vendor.device
    );
    let mut play = Play::new(&rig, &parse(&text));
    play.seconds(3);
    assert_eq!(play.names(), ["applied", "ready"]);
}

#[test]
fn whatever_step_it_dies_at_the_next_agent_makes_it_right() {
    let mut step = 0;
    loop {
        let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
        let file = rich(&rig.fake, pf, 2);
        let fault = if step % 2 == 0 { Fault::DieBefore } else { Fault::DieAfter };
        let chaos = Chaos::at(rig.fake.clone(), step / 2, fault);
        let died = survive(|| {
            let mut play = Play::over(&rig, &file, Arc::new(chaos.clone()), Clock::new());
            play.seconds(5);
        });
        let mut play = Play::new(&rig, &file);
        play.seconds(5);
        assert_eq!(rig.owner().check(&file).expect("checked"), [], "step {step}");
        assert!(play.names().contains(&"ready".to_owned()), "step {step}");
        if died.is_ok() {
            assert!(step > 20, "it did something: {step}");
            return;
        }
        step += 1;
    }
}

/// A host whose file has two VFs, and an apply of one with four that waits to be confirmed.
fn unconfirmed() -> (Rig, PfAddr, HostFile, HostFile, Play) {
    let (rig, pf) = Rig::with(FakePf::new(Personality::I40e));
    let [old, new] = [2, 4].map(|vfs| entry(&rig.fake, pf, "rail0", vfs, ""));
    let mut play = Play::new(&rig, &old);
    play.seconds(3);
    let plan = play.owner.plan(&new).expect("a plan");
    play.owner.apply(&plan, Some(Duration::from_secs(60))).expect("applied");
    assert_eq!(rig.read(pf).num_vfs, 4);
    play.told.clear();
    (rig, pf, old, new, play)
}

#[test]
fn an_apply_that_nobody_confirms_is_rolled_back_when_its_time_is_over() {
    let (rig, pf, _, _, mut play) = unconfirmed();
    play.seconds(55);
    assert_eq!(rig.read(pf).num_vfs, 4, "there is time left");
    play.seconds(10);
    assert_eq!(rig.read(pf).num_vfs, 2);
    assert_eq!(play.names(), ["recovered"]);
}

#[test]
fn a_clock_that_goes_back_does_not_keep_an_unconfirmed_apply() {
    let (rig, pf, _, _, mut play) = unconfirmed();
    play.clock.turn_back(Duration::from_secs(3_600));
    play.seconds(60);
    assert_eq!(rig.read(pf).num_vfs, 4);
    play.seconds(65);
    assert_eq!(rig.read(pf).num_vfs, 2);
}

#[test]
fn nothing_is_repaired_while_an_apply_waits_to_be_confirmed() {
    let (rig, pf, _, _, mut play) = unconfirmed();
    rig.fake.set_up(pf, false).expect("down");
    rig.fake.clear_log();
    play.seconds(50);
    assert_eq!(rig.fake.writes(), []);
}

#[test]
fn what_was_confirmed_stays_whatever_the_agents_file_says() {
    let (rig, pf, _, _, mut play) = unconfirmed();
    play.seconds(5);
    play.owner.confirm().expect("confirmed");
    play.seconds(300);
    assert_eq!(rig.read(pf).num_vfs, 4);
}

#[test]
fn what_was_rolled_back_is_not_applied_again_by_a_boot_though_the_file_has_it() {
    let (rig, pf, _, new, play) = unconfirmed();
    // The host is cut off, and its owner turns it off and on.
    rig.fake.reboot();
    let mut play = play.again(&rig, &new);
    play.seconds(120);
    assert_eq!(rig.read(pf).num_vfs, 2, "rolled back");
    let mut play = play.again(&rig, &new);
    play.seconds(10);
    assert_eq!(rig.read(pf).num_vfs, 2);
    let refused = |report: &Report| matches!(report, Report::NotApplied { why, .. } if why.contains("nobody confirmed"));
    assert!(play.told.iter().any(refused), "{:?}", play.told);
    play.reload(&new);
    play.seconds(5);
    assert_eq!(rig.read(pf).num_vfs, 4, "its owner says so");
}

#[test]
fn a_file_that_is_read_anew_is_applied() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::I40e));
    let mut play = Play::new(&rig, &entry(&rig.fake, pf, "rail0", 2, ""));
    play.seconds(3);
    play.names();
    play.reload(&entry(&rig.fake, pf, "rail0", 5, ""));
    play.seconds(3);
    assert_eq!(rig.read(pf).num_vfs, 5);
    assert_eq!(play.names(), ["reloaded", "applied"]);
}

#[test]
fn a_file_that_the_nic_cannot_have_is_told_once_and_what_was_applied_before_is_kept() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    let mut play = Play::new(&rig, &entry(&rig.fake, pf, "rail0", 2, ""));
    play.seconds(3);
    let before = rig.state(pf);
    rig.fake.clear_log();
    play.names();
    play.reload(&entry(&rig.fake, pf, "rail0", 2, "eswitch: switchdev"));
    play.seconds(3);
    let refused = |report: &Report| matches!(report, Report::NotApplied { why, .. } if why.contains("switchdev"));
    assert!(play.told.iter().any(refused), "{:?}", play.told);
    play.seconds(600);
    assert_eq!(play.names(), ["reloaded", "not_applied"]);
    assert_eq!(rig.fake.writes(), [], "nothing is changed");
    assert_eq!(play.metric("lanekeeper_step_failures_total"), Some(0.0));
    // Drift from what was applied before is put right all the same, within seconds.
    rig.fake.set_up(pf, false).expect("down");
    play.seconds(3);
    assert_eq!(rig.state(pf), before);
    play.seconds(10);
    play.reload(&entry(&rig.fake, pf, "rail0", 2, ""));
    play.names();
    play.seconds(3);
    assert_eq!(play.names(), ["reloaded"]);
}

#[test]
fn a_file_that_would_take_vfs_from_owners_is_refused_and_applied_once_they_are_free() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::I40e));
    let mut play = Play::new(&rig, &entry(&rig.fake, pf, "rail0", 2, ""));
    play.seconds(3);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    play.seconds(3);
    play.names();
    play.reload(&entry(&rig.fake, pf, "rail0", 5, ""));
    play.seconds(30);
    assert_eq!(
        (rig.read(pf).num_vfs, play.names()),
        (2, vec!["reloaded".into(), "not_applied".into()])
    );
    let which = lanekeeper_host::Which::Claim(claim.id);
    rig.owner().release(&which, &crate::rig::token("tenant")).expect("released");
    play.seconds(121);
    assert_eq!(rig.read(pf).num_vfs, 5);
    assert_eq!(play.names(), ["applied"]);
}
