//! Which PFs give VFs: not one without a link, that is gone, that hangs, or that its peer pauses
//! without end; and again once that is over.

use std::sync::Arc;
use std::time::Duration;

use lanekeeper_host::HostError;
use lanekeeper_host::agent::Report;
use lanekeeper_host::ledger::Life;
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_hw::guarded::{Deadlines, Guarded};
use lanekeeper_model::PfAddr;

use super::play::{Clock, Play};
use crate::rig::{Rig, entry, request};

/// Two PFs of one pool, with two VFs each, and their agent.
fn two() -> (Rig, [PfAddr; 2], Play) {
    let rig = Rig::new();
    let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
    let mut file = entry(&rig.fake, pfs[0], "rail0", 2, "pools: [fast]");
    file.pfs.extend(entry(&rig.fake, pfs[1], "rail1", 2, "pools: [fast]").pfs);
    let mut play = Play::new(&rig, &file);
    play.seconds(3);
    play.told.clear();
    (rig, pfs, play)
}

fn refusal(rig: &Rig, pf: &str) -> String {
    let mut asked = request("refused");
    asked.pf = Some(pf.to_owned());
    let error = rig.owner().claim(&asked).expect_err("not offered");
    assert!(matches!(error, HostError::NotOffered { .. }), "{error}");
    error.to_string()
}

fn give(rig: &Rig, of: &str) -> String {
    let mut asked = request(of);
    asked.pool = Some("fast".to_owned());
    rig.owner().claim(&asked).expect("claimed").pf
}

#[test]
fn a_pf_without_a_link_gives_no_vf_until_the_link_has_lasted() {
    let (rig, pfs, mut play) = two();
    rig.fake.set_cable(pfs[0], false).expect("pulled");
    play.seconds(2);
    assert!(refusal(&rig, "rail0").contains("it has no link"));
    assert_eq!(give(&rig, "a-tenant"), "rail1");
    assert_eq!(give(&rig, "b-tenant"), "rail1");
    let error = {
        let mut asked = request("c-tenant");
        asked.pool = Some("fast".to_owned());
        rig.owner().claim(&asked).expect_err("none left that may")
    };
    assert!(matches!(error, HostError::Exhausted { .. }), "{error}");
    rig.fake.set_cable(pfs[0], true).expect("plugged");
    play.seconds(3);
    assert!(refusal(&rig, "rail0").contains("came back a moment ago"));
    play.seconds(4);
    assert_eq!(give(&rig, "c-tenant"), "rail0");
    let told = play.names();
    assert_eq!(told.iter().filter(|name| *name == "pf_available").count(), 1, "{told:?}");
}

#[test]
fn a_link_that_flaps_does_not_have_its_vfs_come_and_go() {
    let (rig, pfs, mut play) = two();
    for _ in 0..30 {
        for plugged in [false, true] {
            rig.fake.set_cable(pfs[0], plugged).expect("told");
            play.pass(Duration::from_millis(1_500));
        }
    }
    assert!(!play.names().contains(&"pf_available".to_owned()));
}

#[test]
fn a_claim_that_is_there_already_is_not_refused_for_want_of_a_link() {
    let (rig, pfs, mut play) = two();
    let mut asked = request("tenant");
    asked.pf = Some("rail0".to_owned());
    let claim = rig.owner().claim(&asked).expect("claimed");
    rig.fake.set_cable(pfs[0], false).expect("pulled");
    play.seconds(2);
    assert_eq!(rig.owner().claim(&asked).expect("the same").id, claim.id);
}

#[test]
fn a_pf_that_is_set_down_is_set_up_again() {
    let (rig, pfs, mut play) = two();
    rig.fake.set_up(pfs[0], false).expect("down");
    play.seconds(15);
    assert!(rig.read(pfs[0]).netdev.expect("there").up);
    let told = play.names();
    assert_eq!(told.first().map(String::as_str), Some("drift_found"), "{told:?}");
    assert_eq!(give(&rig, "tenant"), "rail0");
}

#[test]
fn a_pf_that_is_pulled_out_is_unavailable_and_its_claims_are_lost_until_it_is_back() {
    let (rig, pfs, mut play) = two();
    let mut asked = request("tenant");
    asked.pf = Some("rail0".to_owned());
    let claim = rig.owner().claim(&asked).expect("claimed");
    play.seconds(2);
    play.told.clear();
    let board = rig.fake.hot_remove(pfs[0]).expect("pulled");
    play.seconds(1);
    assert!(refusal(&rig, "rail0").contains("it is gone"));
    assert_eq!(play.names(), ["pf_gone", "pf_unavailable", "recovered"]);
    assert_eq!(play.metric("lanekeeper_pf_claims_lost{pf=\"rail0\"}"), Some(0.0));
    let records = rig.owner().records().expect("ledger");
    let record = records.iter().find(|record| record.name == "rail0").expect("kept");
    assert!(record.claims[&claim.id].lost.is_some());
    let elsewhere = "0000:c1:00.0".parse().expect("an address");
    rig.fake.add_pf(board.at(elsewhere).named("other0"));
    play.seconds(10);
    let again = rig.owner().claim(&asked).expect("the same");
    assert_eq!((again.id, again.pf_address, again.life), (claim.id, elsewhere, Life::Bound));
    assert_eq!(rig.read(elsewhere).num_vfs, 2);
    let told = play.names();
    assert_eq!(told, ["pf_appeared", "pf_available", "recovered"]);
}

#[test]
fn a_pf_that_is_gone_when_the_agent_starts_is_unavailable() {
    let (rig, pfs, play) = two();
    let files = ["rail0", "rail1"].map(|name| {
        let pf = pfs[usize::from(name == "rail1")];
        entry(&rig.fake, pf, name, 2, "pools: [fast]")
    });
    let mut file = files[0].clone();
    file.pfs.extend(files[1].pfs.clone());
    rig.fake.hot_remove(pfs[0]).expect("pulled");
    let mut play = play.again(&rig, &file);
    play.seconds(3);
    assert!(refusal(&rig, "rail0").contains("it is gone"));
    play.seconds(30);
    assert!(play.names().contains(&"ready".to_owned()), "it holds VMs up no longer");
}

#[test]
fn a_pf_that_hangs_is_unavailable_until_it_answers_and_others_go_on() {
    let rig = Rig::new();
    let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
    let mut file = entry(&rig.fake, pfs[0], "rail0", 2, "pools: [fast]");
    file.pfs.extend(entry(&rig.fake, pfs[1], "rail1", 2, "pools: [fast]").pfs);
    let short = Duration::from_millis(100);
    let deadlines =
        Deadlines { read: short, write: short, bind: short, num_vfs: short, each_vf: short };
    let guarded = Guarded::with_deadlines(rig.fake.clone(), deadlines);
    let mut play = Play::over(&rig, &file, Arc::new(guarded), Clock::new());
    play.seconds(3);
    play.told.clear();
    rig.fake.hang(pfs[0]).expect("hangs");
    rig.fake.set_cable(pfs[0], true).expect("told of");
    play.seconds(2);
    assert!(refusal(&rig, "rail0").contains("does not answer"));
    assert_eq!(play.metric("lanekeeper_pf_hung{pf=\"rail0\"}"), Some(1.0));
    assert_eq!(give(&rig, "tenant"), "rail1");
    play.seconds(30);
    assert!(play.metric("lanekeeper_pf_last_reading_age_seconds{pf=\"rail0\"}") > Some(29.0));
    assert!(play.metric("lanekeeper_pf_last_reading_age_seconds{pf=\"rail1\"}") < Some(62.0));
    rig.fake.heal(pfs[0]).expect("answers");
    // The outstanding call returns on a thread of its own.
    std::thread::sleep(Duration::from_millis(300));
    play.seconds(10);
    assert_eq!(play.metric("lanekeeper_pf_hung{pf=\"rail0\"}"), Some(0.0));
    assert_eq!(play.names(), ["pf_unavailable", "pf_available"]);
}

#[test]
fn a_pf_that_its_peer_pauses_without_end_is_unavailable_until_it_was_calm() {
    let (rig, pfs, mut play) = two();
    let mut asked = request("in-use");
    asked.pf = Some("rail0".to_owned());
    let suffers = rig.owner().claim(&asked).expect("claimed").id;
    rig.fake.set_pause_frames(pfs[0], Some([0; 8])).expect("counted");
    play.seconds(61);
    let mut frames = [0; 8];
    for _ in 0..10 {
        frames[3] += 1_000_000;
        rig.fake.set_pause_frames(pfs[0], Some(frames)).expect("counted");
        play.seconds(1);
    }
    assert!(refusal(&rig, "rail0").contains("pauses priority 3 without end"));
    assert_eq!(give(&rig, "tenant"), "rail1");
    let counted = "lanekeeper_pf_pause_frames_total{pf=\"rail0\",priority=\"3\"}";
    assert_eq!(play.metric(counted), Some(10_000_000.0));
    let told = play.told.iter().find_map(|report| match report {
        Report::PfUnavailable { claims, .. } => Some(claims.clone()),
        _ => None,
    });
    assert_eq!(told, Some(vec![suffers]), "whose VMs it stalls is told");
    play.seconds(15);
    assert_eq!(play.names(), ["pf_unavailable", "pf_available"]);
}

#[test]
fn what_an_agent_said_that_is_dead_keeps_nobody_from_a_vf() {
    let (rig, pfs, mut play) = two();
    rig.fake.set_cable(pfs[0], false).expect("pulled");
    play.seconds(2);
    refusal(&rig, "rail0");
    drop(play);
    let mut asked = request("tenant");
    asked.pf = Some("rail0".to_owned());
    rig.owner().claim(&asked).expect("claimed");
}

#[test]
fn since_when_a_pf_is_unavailable_is_kept_while_it_is() {
    let (rig, pfs, mut play) = two();
    rig.fake.set_cable(pfs[0], false).expect("pulled");
    play.seconds(2);
    let since = |play: &Play| play.owner.ledger().withheld().values().next().expect("one").since;
    let first = since(&play);
    rig.fake.set_cable(pfs[1], false).expect("pulled");
    play.seconds(100);
    assert_eq!(play.owner.ledger().withheld().len(), 2);
    assert_eq!(since(&play), first);
    let told = |report: &&Report| matches!(report, Report::PfUnavailable { .. });
    assert_eq!(play.told.iter().filter(told).count(), 2);
}
