//! Drift: what somebody else changes is put right, at once but not for ever.

use std::time::Duration;

use lanekeeper_host::agent::{Action, Report};
use lanekeeper_host::ledger::Life;
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::chaos::{Chaos, Fault, survive};
use lanekeeper_hw::fake::{Fake, FakePf, Personality};
use lanekeeper_hw::message::VfMessage;
use lanekeeper_model::{PfAddr, VlanId, VlanTag};

use super::play::Play;
use crate::rig::{Rig, each_driver, entry, request, rich, vf};

/// A host of one PF with four VFs, one of them a tenant's, and its agent.
fn kept(driver: Personality) -> (Rig, PfAddr, Play, lanekeeper_host::Claim) {
    let (rig, pf) = Rig::with(FakePf::new(driver));
    let mut play = Play::new(&rig, &entry(&rig.fake, pf, "rail0", 4, ""));
    play.seconds(3);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    play.seconds(10);
    play.told.clear();
    (rig, pf, play, claim)
}

fn trust(fake: &Fake, pf: PfAddr, number: u32) {
    let message = VfMessage { trust: Some(true), ..VfMessage::default() };
    fake.send_vf(pf, vf(number), &message).expect("sent");
}

#[test]
fn what_somebody_changes_is_repaired_within_seconds() {
    let (rig, pf, mut play, claim) = kept(Personality::I40e);
    let before = rig.state(pf);
    trust(&rig.fake, pf, 3);
    trust(&rig.fake, pf, u32::from(claim.vf));
    play.seconds(2);
    assert_eq!(rig.state(pf), before);
    assert_eq!(play.names(), ["drift_found", "drift_repaired"]);
    assert_eq!(play.metric("lanekeeper_drift_repaired_total"), Some(1.0));
    assert_eq!(play.metric("lanekeeper_drift_found_total"), Some(1.0));
    assert_eq!(play.metric("lanekeeper_pf_drift"), Some(0.0));
}

#[test]
fn a_driver_that_is_reloaded_is_brought_back_with_its_claims() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::with(pf);
        let file = rich(&rig.fake, pf, 4);
        let mut play = Play::new(&rig, &file);
        play.seconds(3);
        rig.owner().claim(&request("tenant")).expect("claimed");
        let before = rig.state(pf);
        rig.fake.reload_driver(pf).expect("reloaded");
        play.seconds(5);
        assert_eq!(rig.state(pf), before, "{driver:?}");
    }
}

#[test]
fn drift_that_nobody_told_of_is_found_by_the_rescan() {
    let (rig, pf, mut play, _) = kept(Personality::I40e);
    let before = rig.state(pf);
    trust(&rig.fake, pf, 3);
    play.watch = rig.fake.watch();
    play.seconds(61);
    assert_eq!(rig.state(pf), before);
}

#[test]
fn events_that_were_lost_have_everything_looked_at() {
    let (rig, pf, mut play, _) = kept(Personality::I40e);
    let before = rig.state(pf);
    trust(&rig.fake, pf, 3);
    play.watch.overrun(&rig.fake);
    play.seconds(2);
    assert_eq!(rig.state(pf), before);
    assert_eq!(play.names(), ["events_lost", "drift_found", "drift_repaired"]);
}

#[test]
fn a_burst_of_events_causes_a_look_a_second_at_most() {
    let (rig, pf, mut play, _) = kept(Personality::I40e);
    play.looks = 0;
    for _ in 0..100 {
        for _ in 0..100 {
            rig.fake.set_cable(pf, true).expect("told");
        }
        play.pass(Duration::from_millis(100));
    }
    assert!((9..=12).contains(&play.looks), "{} looks in ten seconds", play.looks);
}

#[test]
fn drift_that_returns_at_once_is_fought_over_and_left_with_who_manages_the_pf() {
    let (rig, pf, mut play, _) = kept(Personality::I40e);
    rig.fake.set_manager(pf, Some("NetworkManager")).expect("managed");
    let mut undone = 0;
    trust(&rig.fake, pf, 3);
    rig.fake.clear_log();
    for _ in 0..600 {
        play.pass_and(Duration::from_secs(6), |action| {
            let repaired = matches!(action, Action::Settle(_));
            if repaired {
                undone += 1;
                trust(&rig.fake, pf, 3);
            }
        });
    }
    let fought = play.told.iter().find_map(|report| match report {
        Report::FoughtOver { repairs, manager, .. } => Some((*repairs, manager.clone())),
        _ => None,
    });
    assert_eq!(fought, Some((5, Some("NetworkManager".to_owned()))));
    assert_eq!(undone, 5, "an hour long");
    let told = play.names();
    assert_eq!(told.iter().filter(|name| *name == "fought_over").count(), 1, "{told:?}");
    assert_eq!(play.metric("lanekeeper_pf_fought_over"), Some(1.0));
    let health = play.owner.ledger().health();
    let published = health.fought_over.values().next().expect("published");
    assert_eq!(published.what, ["VF 3: free, and not scrubbed"]);
    assert_eq!(published.manager.as_deref(), Some("NetworkManager"));
    let since = play.clock.wall().duration_since(published.since).expect("it was before");
    assert!(since > Duration::from_secs(3_500), "{since:?}");
    assert!(health.withheld.is_empty(), "its free VFs are offered all the same");
    // What came later is put right all the same, with it.
    trust(&rig.fake, pf, 2);
    play.seconds(5);
    assert_eq!(play.names(), ["drift_found", "drift_repaired"]);
    trust(&rig.fake, pf, 3);
    play.seconds(5);
    assert_eq!(play.names(), ["drift_found"], "it is given up still");
    play.seconds(60);
    // Its owner ends the fight.
    play.owner.recover().expect("recovered");
    play.seconds(5);
    assert_eq!(play.names(), ["fight_over"]);
    assert!(play.owner.ledger().health().fought_over.is_empty());
    trust(&rig.fake, pf, 3);
    play.seconds(5);
    assert_eq!(play.names(), ["drift_found", "drift_repaired"], "and is repaired again");
}

#[test]
fn unrelated_changes_one_after_another_are_each_repaired_and_no_fight() {
    let (rig, pf, mut play, claim) = kept(Personality::I40e);
    let before = rig.state(pf);
    let tag = |id| VlanTag { id: VlanId::new(id).expect("a VLAN"), ..VlanTag::default() };
    let vlan = |id| VfMessage { vlan: Some(tag(id)), ..VfMessage::default() };
    let trusted = VfMessage { trust: Some(true), ..VfMessage::default() };
    let others = (0..4).filter(|number| *number != u32::from(claim.vf));
    let of_others = others.map(|number| (vf(number), vlan(40 + number)));
    let of_claim = [vlan(50), trusted].map(|message| (claim.vf, message));
    let changes: Vec<_> = of_claim.into_iter().chain(of_others).collect();
    for round in 0..3 {
        for (at, (number, message)) in changes.iter().enumerate() {
            rig.fake.send_vf(pf, *number, message).expect("sent");
            play.seconds(8);
            assert_eq!(rig.state(pf), before, "round {round}, change {at}");
            assert_eq!(play.names(), ["drift_found", "drift_repaired"], "round {round}, {at}");
        }
    }
    assert_eq!(play.metric("lanekeeper_pf_fought_over"), Some(0.0));
}

#[test]
fn what_keeps_a_claims_vf_from_others_is_put_right_once_a_minute_though_it_is_fought_over() {
    let (rig, pf, mut play, claim) = kept(Personality::I40e);
    let before = rig.state(pf);
    let mut undone = 0;
    trust(&rig.fake, pf, u32::from(claim.vf));
    play.pass_and(Duration::from_secs(3_600), |action| {
        if matches!(action, Action::Settle(_)) {
            undone += 1;
            trust(&rig.fake, pf, u32::from(claim.vf));
        }
    });
    assert!((60..=66).contains(&undone), "{undone} in an hour");
    let told = play.names();
    assert_eq!(told.iter().filter(|name| *name == "fought_over").count(), 1, "{told:?}");
    assert!(!told.contains(&"fight_over".to_owned()), "{told:?}");
    play.seconds(180);
    assert_eq!(rig.state(pf), before, "whoever undid it is gone");
    assert_eq!(play.names().last().map(String::as_str), Some("fight_over"));
    assert_eq!(play.metric("lanekeeper_pf_fought_over"), Some(0.0));
}

#[test]
fn a_repair_that_fails_is_tried_ever_more_seldom() {
    let (rig, pf, mut play, claim) = kept(Personality::I40e);
    let before = rig.state(pf);
    trust(&rig.fake, pf, u32::from(claim.vf));
    // EIO: the driver has no excuse.
    rig.fake.refuse_messages(pf, claim.vf, 5, 1_000_000).expect("refuses");
    let mut attempts = 0;
    play.pass_and(Duration::from_secs(3_600), |action| {
        attempts += usize::from(matches!(action, Action::Settle(_)));
    });
    assert!((10..=25).contains(&attempts), "{attempts} attempts in an hour");
    assert!(play.metric("lanekeeper_step_failures_total").is_some_and(|count| count >= 10.0));
    let told = play.names();
    assert!(told.len() < 10, "{told:?}");
    rig.fake.refuse_messages(pf, claim.vf, 5, 0).expect("takes them");
    play.seconds(301);
    assert_eq!(rig.state(pf), before);
}

#[test]
fn a_vmm_that_died_with_a_vf_is_reported_and_the_vf_stays_its_owners() {
    let (rig, pf, mut play, claim) = kept(Personality::I40e);
    rig.fake.open_vf(pf, claim.vf, 4711, "qemu").expect("opened");
    play.seconds(61);
    rig.fake.close_vf(pf, claim.vf).expect("died");
    play.seconds(61);
    let (command, pid) = (Some("qemu".to_owned()), Some(4711));
    let (name, id) = ("rail0".to_owned(), claim.id);
    let report = Report::HolderGone { pf: name, vf: claim.vf, claim: id, pid, command };
    assert_eq!(play.told.iter().filter(|told| **told == report).count(), 1, "{:?}", play.told);
    assert_eq!(play.metric("lanekeeper_holders_gone_total"), Some(1.0));
    assert_eq!(play.metric("lanekeeper_pf_claims{"), Some(1.0));
}

#[test]
fn a_vmm_that_died_while_there_was_no_agent_is_reported_by_the_next() {
    let (rig, pf, play, claim) = kept(Personality::I40e);
    rig.fake.open_vf(pf, claim.vf, 4711, "qemu").expect("opened");
    rig.owner().recover().expect("attached");
    let file = entry(&rig.fake, pf, "rail0", 4, "");
    let play = play.again(&rig, &file);
    rig.fake.close_vf(pf, claim.vf).expect("died");
    let mut play = play.again(&rig, &file);
    play.seconds(5);
    assert_eq!(play.names(), ["holder_gone", "ready"]);
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert_eq!(record.vfs[&claim.vf].life, Life::Bound);
}

#[test]
fn what_a_vm_holds_is_not_taken_from_it_by_a_repair() {
    let (rig, pf, mut play, claim) = kept(Personality::I40e);
    rig.fake.open_vf(pf, claim.vf, 4711, "qemu").expect("opened");
    trust(&rig.fake, pf, u32::from(claim.vf));
    rig.fake.clear_log();
    play.seconds(10);
    let reading = rig.read(pf);
    let now = reading.vf(claim.vf).expect("there");
    assert_eq!(now.attributes.expect("told").trust, Some(false), "settings are put right");
    assert!(now.holder.is_some());
    let unbound =
        |write: &lanekeeper_hw::fake::Write| matches!(write, lanekeeper_hw::fake::Write::Unbind(_));
    assert!(!rig.fake.writes().iter().any(unbound));
}

#[test]
fn a_stranger_with_a_free_vf_is_reported_once() {
    let (rig, pf, mut play, claim) = kept(Personality::I40e);
    let free = rig.read(pf).vfs.iter().find(|at| at.vf != claim.vf).cloned().expect("one");
    rig.fake.write_driver_override(pf, free.addr, Some("vfio-pci")).expect("overridden");
    rig.fake.probe(pf, free.addr).expect("bound");
    rig.fake.open_vf(pf, free.vf, 99, "dpdk-testpmd").expect("opened");
    play.seconds(300);
    let blocked: Vec<_> = play
        .told
        .iter()
        .filter_map(|report| match report {
            Report::Blocked { why, .. } => Some(why.join("; ")),
            _ => None,
        })
        .collect();
    assert_eq!(blocked.len(), 1, "{:?}", play.told);
    assert!(blocked[0].contains("dpdk-testpmd (pid 99)"), "{blocked:?}");
}

#[test]
fn what_another_process_was_cut_short_in_is_finished() {
    for step in 0..12 {
        let (rig, pf, mut play, _) = kept(Personality::I40e);
        let chaos = Chaos::at(rig.fake.clone(), step, Fault::DieAfter);
        let owner = rig.owner_over(std::sync::Arc::new(chaos));
        let died = survive(|| owner.claim(&request("other")).map(|_| ()));
        play.seconds(65);
        let record = rig.owner().records().expect("ledger").pop().expect("ours");
        let stray =
            |life: &Life| matches!(life, Life::Claimed | Life::Configured | Life::Scrubbing);
        assert!(!record.vfs.values().any(|vf| stray(&vf.life)), "{step}: {died:?}: {record:?}");
        let file = entry(&rig.fake, pf, "rail0", 4, "");
        assert_eq!(rig.owner().check(&file).expect("checked"), [], "{step}");
    }
}
