//! Applies: what they write, how much, and what they leave behind.

use std::time::{Duration, SystemTime};

use lanekeeper_host::ledger::Life;
use lanekeeper_host::{ClaimRequest, HostError};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{FakePf, Personality, Write};
use lanekeeper_hw::message::VfMessage;
use lanekeeper_model::{LinkState, Mbps, RateLimits, RdmaNetns, RoceSetting, VfIndex};

use crate::rig::{Rig, each_driver, entry, parse, request, rich, vf};

#[test]
fn a_second_apply_writes_nothing() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf);
        let file = rich(&rig.fake, pf, 4);
        rig.apply(&file);
        rig.fake.clear_log();
        let plan = rig.owner().plan(&file).expect("a plan");
        assert!(plan.is_empty(), "{driver:?}: {:?}", plan.steps().collect::<Vec<_>>());
        rig.owner().apply(&plan, None).expect("applied");
        assert_eq!(rig.fake.writes(), [], "{driver:?}");
        assert_eq!(rig.owner().check(&file).expect("checked"), [], "{driver:?}");
    }
}

#[test]
fn a_hundred_and_twenty_seven_vfs_get_one_message_each_for_all_settings() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Ice).total_vfs(127), 127);
    let owner = rig.owner();
    for number in 0..127 {
        let mut request = request(&format!("tenant-{number}"));
        request.vlan = serde_json::from_str(r#"{"id": 7, "pcp": 3}"#).expect("a tag");
        request.max_rate = Some(lanekeeper_model::Mbps(100));
        request.trust = Some(true);
        request.link_state = Some(LinkState::Enable);
        owner.claim(&request).expect("claimed");
    }
    for index in VfIndex::first(127) {
        assert_eq!(rig.fake.messages(pf, index), 1, "VF {index}");
    }
}

#[test]
fn fresh_vfs_are_scrubbed_with_one_message_each_at_most() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf);
        rig.apply(&entry(&rig.fake, pf, "rail0", 6, ""));
        for index in VfIndex::first(6) {
            assert!(rig.fake.messages(pf, index) <= 1, "{driver:?} VF {index}");
        }
        let record = rig.owner().records().expect("ledger").pop().expect("ours");
        assert_eq!(record.free_vfs().count(), 6, "{driver:?}");
    }
}

#[test]
fn no_empty_message_is_ever_sent() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf);
        rig.apply(&rich(&rig.fake, pf, 4));
        rig.owner().claim(&request("tenant")).expect("claimed");
        let empty = |write: &Write| matches!(write, Write::Vf(_, _, message) if message.is_empty());
        assert!(!rig.fake.writes().iter().any(empty), "{driver:?}");
    }
}

#[test]
fn vfs_that_appear_late_are_waited_for() {
    let pf = FakePf::new(Personality::Mlx5).appearing_after(20).driver_lagging(3);
    let (rig, pf) = Rig::with(pf);
    rig.apply(&entry(&rig.fake, pf, "rail0", 8, "eswitch: switchdev"));
    assert_eq!(rig.read(pf).vfs.len(), 8);
}

#[test]
fn no_room_for_vfs_says_what_to_do() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5).without_room_for_vfs());
    let owner = rig.owner();
    let plan = owner.plan(&entry(&rig.fake, pf, "rail0", 8, "")).expect("a plan");
    let before = rig.state(pf);
    let error = owner.apply(&plan, None).expect_err("no room");
    assert!(error.to_string().contains("pci=realloc"), "{error}");
    assert!(matches!(error, HostError::Reverted { .. }));
    assert_eq!(rig.state(pf), before);
}

#[test]
fn one_pf_that_fails_takes_the_others_back() {
    let rig = Rig::new();
    let good = rig.fake.add_pf(FakePf::new(Personality::Igb));
    let bad = rig.fake.add_pf(FakePf::new(Personality::Mlx5).without_room_for_vfs());
    let mut file = entry(&rig.fake, good, "rail0", 2, "");
    file.pfs.extend(entry(&rig.fake, bad, "rail1", 2, "").pfs);
    let before = (rig.state(good), rig.state(bad));
    let owner = rig.owner();
    let plan = owner.plan(&file).expect("a plan");
    owner.apply(&plan, None).expect_err("no room on one");
    assert_eq!((rig.state(good), rig.state(bad)), before);
}

#[test]
fn a_plan_that_no_longer_holds_is_refused() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    let owner = rig.owner();
    let plan = owner.plan(&entry(&rig.fake, pf, "rail0", 4, "")).expect("a plan");
    rig.fake.write_num_vfs(pf, 2).expect("somebody else");
    let error = owner.apply(&plan, None).expect_err("stale");
    assert!(matches!(error, HostError::Stale { .. }), "{error}");
    assert_eq!(rig.read(pf).num_vfs, 2);
}

#[test]
fn what_nobody_confirms_is_rolled_back_even_after_a_crash() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    rig.fake.write_num_vfs(pf, 3).expect("somebody's");
    let before = rig.state(pf);
    let file = rich(&rig.fake, pf, 4);
    let minute = Duration::from_secs(60);
    let owner = rig.owner();
    owner.apply(&owner.plan(&file).expect("a plan"), Some(minute)).expect("applied");
    drop(owner);
    rig.owner().recover().expect("too early");
    assert_eq!(rig.read(pf).num_vfs, 4);
    let claim = rig.owner().claim(&request("tenant"));
    assert!(matches!(claim, Err(HostError::Unconfirmed { .. })), "{claim:?}");
    let text = claim.expect_err("not confirmed").to_string();
    let wait =
        text.split("wait ").nth(1).and_then(|rest| rest.strip_suffix(" s for the roll-back"));
    assert!(wait.is_some_and(|seconds| seconds.parse::<u8>().is_ok()), "{text}");
    let later = rig.owner().with_clock(move || SystemTime::now() + minute);
    assert_eq!(later.roll_back_due().expect("asked"), Some(Duration::ZERO));
    later.recover().expect("rolled back");
    assert_eq!(rig.state(pf), before);
    assert_eq!(later.roll_back_due().expect("asked"), None);
}

#[test]
fn a_confirmation_that_comes_too_late_says_so_until_the_next_apply() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    let file = rich(&rig.fake, pf, 4);
    let minute = Duration::from_secs(60);
    let apply = |owner: &lanekeeper_host::Owner| {
        owner.apply(&owner.plan(&file).expect("a plan"), Some(minute)).expect("applied");
    };
    let owner = rig.owner();
    apply(&owner);
    let later = rig.owner().with_clock(move || SystemTime::now() + minute);
    for _ in 0..2 {
        let confirmed = later.confirm().expect("asked");
        assert_eq!((confirmed.kept.len(), confirmed.too_late), (0, vec!["rail0".to_owned()]));
    }
    apply(&owner);
    let confirmed = owner.confirm().expect("confirmed");
    assert_eq!((confirmed.kept, confirmed.too_late.len()), (vec!["rail0".to_owned()], 0));
}

#[test]
fn a_rate_that_the_driver_takes_only_with_a_link_waits_for_the_link() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    rig.apply(&entry(&rig.fake, pf, "rail0", 2, ""));
    let limited = ClaimRequest { max_rate: Some(Mbps(500)), ..request("tenant") };
    let claim = rig.owner().claim(&limited).expect("claimed");
    let changed = RateLimits { min: Mbps(0), max: Mbps(100) };
    let changed = VfMessage { rate: Some(changed), ..VfMessage::default() };
    rig.fake.send_vf(pf, claim.vf, &changed).expect("somebody's");
    // As a change of MTU does for a moment.
    rig.fake.set_cable(pf, false).expect("out");
    let fake = rig.fake.clone();
    let plug = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        fake.set_cable(pf, true).expect("in");
    });
    let recovered = rig.owner().recover().expect("recovered");
    plug.join().expect("plugged");
    assert!(recovered.failed.is_empty(), "{:?}", recovered.failed);
    let told = rig.read(pf).vfs[claim.vf.get()].attributes.expect("told");
    assert_eq!(told.rate.max, Mbps(500));
}

#[test]
fn a_clock_that_goes_back_gives_an_unconfirmed_apply_no_more_time() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    let before = rig.state(pf);
    let owner = rig.owner();
    let plan = owner.plan(&rich(&rig.fake, pf, 4)).expect("a plan");
    let minute = Duration::from_secs(60);
    owner.apply(&plan, Some(minute)).expect("applied");
    // As a board without a battery begins.
    let boot = SystemTime::UNIX_EPOCH;
    let recovered = rig.owner().with_clock(move || boot).recover().expect("recovered");
    let told = format!("{:?}", recovered.events);
    assert!(told.contains("the clock went back"), "{told}");
    assert_eq!(rig.read(pf).num_vfs, 4, "it has a minute from now");
    rig.owner().with_clock(move || boot + minute).recover().expect("rolled back");
    assert_eq!(rig.state(pf), before);
}

#[test]
fn what_is_confirmed_stays() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    let owner = rig.owner();
    let plan = owner.plan(&rich(&rig.fake, pf, 4)).expect("a plan");
    owner.apply(&plan, Some(Duration::from_secs(60))).expect("applied");
    assert_eq!(owner.confirm().expect("confirmed").kept, ["rail0"]);
    let later = rig.owner().with_clock(|| SystemTime::now() + Duration::from_secs(600));
    later.recover().expect("recovered");
    assert_eq!(rig.read(pf).num_vfs, 4);
    later.claim(&request("tenant")).expect("claimed");
}

#[test]
fn what_was_before_us_is_written_once_and_given_back() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    rig.fake.write_num_vfs(pf, 2).expect("somebody's");
    let before = rig.state(pf);
    rig.apply(&rich(&rig.fake, pf, 4));
    rig.apply(&entry(&rig.fake, pf, "rail0", 8, "eswitch: legacy, mtu: 4200"));
    let original = rig.owner().records().expect("ledger").pop().expect("ours").original;
    assert_eq!(original.expect("kept").num_vfs, 2);
    let owner = rig.owner();
    owner.claim(&request("tenant")).expect("claimed");
    assert!(matches!(owner.give_back("rail0"), Err(HostError::Refused(_))), "it is owned");
    let which = lanekeeper_host::Which::Vf { pf: "rail0".to_owned(), vf: vf(0) };
    owner.release(&which, &crate::rig::token("tenant")).expect("released");
    owner.give_back("rail0").expect("given back");
    assert_eq!(rig.state(pf), before);
}

#[test]
fn a_vf_that_somebody_holds_is_taken_over_as_quarantined() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    rig.fake.write_num_vfs(pf, 2).expect("somebody's");
    let address = rig.read(pf).vfs[0].addr;
    rig.fake.write_driver_override(pf, address, Some("vfio-pci")).expect("override");
    rig.fake.unbind(pf, address).expect("unbound");
    rig.fake.probe(pf, address).expect("bound");
    rig.fake.open_vf(pf, vf(0), 99, "qemu").expect("opened");
    rig.apply(&entry(&rig.fake, pf, "rail0", 2, ""));
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert!(matches!(record.vfs[&vf(0)].life, Life::Quarantined { .. }), "{record:?}");
    assert_eq!(rig.owner().claim(&request("tenant")).expect("the other").vf, vf(1));
    rig.fake.close_vf(pf, vf(0)).expect("closed");
    assert_eq!(rig.owner().clear_quarantine("rail0", vf(0)).expect("cleared"), Life::Free);
}

#[test]
fn a_setting_that_changes_another_is_put_right_in_the_same_apply() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    let mac = rig.read(pf).permanent_mac.expect("a MAC");
    let file = parse(&format!(
        "version: 1\npfs:\n  - {{name: a, select: {{permanent_mac: '{mac}'}}, vfs: 1, roce: p}}\n\
         roce_profiles: {{p: {{trust: pcp, dscp_priority: {{26: 3}}, netns: exclusive}}}}\n"
    ));
    rig.apply(&file);
    let roce = rig.read(pf).roce;
    assert!(roce.contains(&RoceSetting::Trust(lanekeeper_model::Trust::Pcp)), "{roce:?}");
    assert!(roce.contains(&RoceSetting::Netns(RdmaNetns::Exclusive)), "{roce:?}");
    assert!(rig.owner().plan(&file).expect("a plan").is_empty());
}

#[test]
fn drift_is_told_and_an_apply_repairs_it() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 2);
    let file = entry(&rig.fake, pf, "rail0", 2, "pools: [fast]");
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    let vlan = serde_json::from_str(r#"{"id": 2002}"#).ok();
    let message = lanekeeper_hw::message::VfMessage { vlan, ..Default::default() };
    for index in [claim.vf, vf(1)] {
        rig.fake.send_vf(pf, index, &message).expect("somebody else");
    }
    let drift = rig.owner().check(&file).expect("checked");
    assert!(drift.iter().any(|drift| drift.vf == Some(claim.vf)), "{drift:?}");
    assert!(drift.iter().any(|drift| drift.vf == Some(vf(1))), "{drift:?}");
    rig.apply(&file);
    assert_eq!(rig.owner().check(&file).expect("checked"), []);
    for reading in rig.read(pf).vfs {
        assert_eq!(reading.attributes.expect("told").vlan.id.get(), 0);
    }
}

#[test]
fn what_a_vf_has_already_is_never_sent_again() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf.with_vf_guids().with_hanging_repeats());
        rig.apply(&rich(&rig.fake, pf, 3));
        let mut asked = request("tenant");
        asked.max_rate = Some(lanekeeper_model::Mbps(100));
        let claim = rig.owner().claim(&asked).expect("claimed");
        rig.owner().recover().expect("recovered");
        let which = lanekeeper_host::Which::Claim(claim.id);
        rig.owner().release(&which, &crate::rig::token("tenant")).expect("released");
        assert_eq!(rig.fake.repeats(), 0, "{driver:?}");
    }
}

#[test]
fn a_pf_that_vfio_has_is_left_alone() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    let file = entry(&rig.fake, pf, "rail0", 2, "");
    rig.fake.set_pf_driver(pf, Some("vfio-pci")).expect("bound");
    let owner = rig.owner();
    let plan = owner.plan(&file).expect("a plan");
    let error = owner.apply(&plan, None).expect_err("refused");
    assert!(matches!(error, HostError::Refused(_)), "{error}");
    assert_eq!(rig.fake.writes(), []);
}

#[test]
fn an_interface_of_the_hosts_own_is_not_taken_away() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::I40e));
    rig.fake.write_num_vfs(pf, 2).expect("somebody's");
    let plan = rig.owner().plan(&entry(&rig.fake, pf, "rail0", 2, "")).expect("a plan");
    let scrub = plan.steps().find(|step| step.step.to_string().contains("scrub")).expect("one");
    assert!(scrub.disturbs.is_some(), "it says that interfaces go away");
    rig.owner().apply(&plan, None).expect("applied");
    for vf in rig.read(pf).vfs {
        assert_eq!(vf.driver, None, "the host's network tools have nothing left to manage");
    }
}
