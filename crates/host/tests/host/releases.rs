//! Releases: fenced by the token, refused while the VF is held, and total.

use lanekeeper_host::ledger::Life;
use lanekeeper_host::{Claim, ClaimRequest, HostError, OwnerToken, Released, Which};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{Fake, FakePf, Knob, Personality, Write};
use lanekeeper_hw::message::VfMessage;
use lanekeeper_model::{LinkState, MacAddr, Mbps, PfAddr};

use crate::rig::{Rig, each_driver, request, token, vf};

fn release(rig: &Rig, claim: &Claim, token: &OwnerToken) -> Result<Released, HostError> {
    rig.owner().release(&Which::Claim(claim.id.clone()), token)
}

fn held(personality: Personality) -> (Rig, PfAddr, Claim) {
    let (rig, pf) = Rig::applied(FakePf::new(personality), 1);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.open_vf(pf, claim.vf, 4711, "qemu").expect("a VM has it");
    (rig, pf, claim)
}

#[test]
fn a_late_release_of_an_earlier_owner_is_a_no_op() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 1);
    let first = rig.owner().claim(&request("first")).expect("claimed");
    release(&rig, &first, &token("first")).expect("released");
    let second = rig.owner().claim(&request("second")).expect("claimed");
    let state = rig.state(pf);
    rig.fake.clear_log();
    let which = Which::Vf { pf: "rail0".to_owned(), vf: vf(0) };
    for (which, why) in [
        (which, "VF 0 of pf rail0 is another owner's".to_owned()),
        (
            Which::Claim(first.id.clone()),
            format!("there is no claim {}: it was released before, or never made", first.id),
        ),
    ] {
        let late = rig.owner().release(&which, &token("first")).expect("no error");
        assert!(matches!(&late, Released::NoOp { why: said } if said.contains(&why)), "{late}");
    }
    assert_eq!((rig.state(pf), rig.fake.writes()), (state, vec![]));
    assert!(matches!(release(&rig, &second, &token("second")), Ok(Released::Done { .. })));
}

#[test]
fn a_claim_that_stands_is_not_released_with_another_token() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 1);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    let refused = |rig: &Rig| {
        let error = release(rig, &claim, &token("somebody")).expect_err("another's");
        assert!(matches!(&error, HostError::NotYours(id) if *id == claim.id), "{error}");
    };
    let state = rig.state(pf);
    rig.fake.clear_log();
    refused(&rig);
    assert_eq!((rig.state(pf), rig.fake.writes()), (state, vec![]));
    rig.fake.hot_remove(pf).expect("gone");
    refused(&rig);
    assert!(matches!(release(&rig, &claim, &token("tenant")), Ok(Released::Done { .. })));
}

#[test]
fn a_second_release_says_that_there_is_nothing_to_do() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Igb), 1);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    assert!(matches!(release(&rig, &claim, &token("tenant")), Ok(Released::Done { .. })));
    assert!(matches!(release(&rig, &claim, &token("tenant")), Ok(Released::NoOp { .. })));
}

#[test]
fn a_vf_that_is_held_stays_owned_and_its_holder_is_named() {
    let (rig, pf, claim) = held(Personality::I40e);
    let error = release(&rig, &claim, &token("tenant")).expect_err("held");
    assert!(error.to_string().contains("qemu (pid 4711)"), "{error}");
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert!(record.claims.contains_key(&claim.id));
    assert!(matches!(rig.owner().claim(&request("other")), Err(HostError::Exhausted { .. })));
    rig.fake.close_vf(pf, claim.vf).expect("it died");
    assert!(matches!(release(&rig, &claim, &token("tenant")), Ok(Released::Done { .. })));
}

#[test]
fn everything_goes_whoever_set_it() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::applied(pf, 1);
        let fresh = rig.state(pf).vfs;
        let claim = rig.owner().claim(&request("tenant")).expect("claimed");
        let max_rate = lanekeeper_model::RateLimits { min: Mbps(0), max: Mbps(500) };
        let left = VfMessage {
            vlan: serde_json::from_str(r#"{"id": 2002, "pcp": 5}"#).ok(),
            rate: Some(max_rate),
            trust: Some(true),
            ..VfMessage::default()
        };
        rig.fake.send_vf(pf, claim.vf, &left).expect("somebody else");
        if driver != Personality::Igb {
            let link_state = Some(LinkState::Disable);
            let link = VfMessage { link_state, ..VfMessage::default() };
            rig.fake.send_vf(pf, claim.vf, &link).expect("somebody else");
        }
        rig.fake.open_vf(pf, claim.vf, 1, "qemu").expect("opened");
        let guests = MacAddr([2, 9, 9, 9, 9, 9]);
        rig.fake.guest_sets_mac(pf, claim.vf, guests).expect("a guest");
        rig.fake.close_vf(pf, claim.vf).expect("closed");
        rig.fake.clear_log();
        release(&rig, &claim, &token("tenant")).expect("released");
        let mut now = rig.state(pf).vfs;
        let writes = rig.fake.writes();
        assert!(writes.iter().any(|write| matches!(write, Write::Reset(_))), "{driver:?}");
        if driver == Personality::BnxtEn {
            // Nothing but another MAC hides the guest's from who asks the PF.
            let mac = &mut now[0].attributes.as_mut().expect("told").mac;
            assert!(mac.is_local() && *mac != guests, "{mac}");
            *mac = MacAddr::ZERO;
        } else {
            assert_eq!(rig.fake.own_mac(pf, claim.vf).expect("a VF"), None, "{driver:?}");
            assert!(matches!(writes.last(), Some(Write::Reset(_))), "{driver:?}: {writes:?}");
            assert_eq!(rig.fake.messages(pf, claim.vf), 1, "{driver:?}");
        }
        assert_eq!(now, fresh, "{driver:?}");
        let record = rig.owner().records().expect("ledger").pop().expect("ours");
        assert!(record.vfs[&vf(0)].last_reset.as_ref().is_some_and(|at| at.contains("done")));
    }
}

#[test]
fn a_guests_own_mac_is_not_the_next_tenants() {
    for personality in [Personality::Mlx5, Personality::Ice] {
        let (rig, pf) = Rig::applied(FakePf::new(personality), 1);
        let trusted = ClaimRequest { trust: Some(true), ..request("tenant") };
        let claim = rig.owner().claim(&trusted).expect("claimed");
        rig.fake.open_vf(pf, claim.vf, 1, "qemu").expect("opened");
        let mine = MacAddr([2, 9, 9, 9, 9, 9]);
        assert!(rig.fake.guest_sets_mac(pf, claim.vf, mine).expect("a guest"));
        rig.owner().recover().expect("a trusted VM's own MAC is no drift");
        rig.fake.close_vf(pf, claim.vf).expect("closed");
        release(&rig, &claim, &token("tenant")).expect("released");
        assert_eq!(rig.fake.own_mac(pf, claim.vf).expect("a VF"), None);
    }
}

#[test]
fn a_driver_that_takes_no_zero_mac_back_gets_a_local_one_and_the_report_says_so() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::applied(pf.refusing_zero_mac(), 1);
        let claim = rig.owner().claim(&request("tenant")).expect("claimed");
        let Ok(Released::Done { notes, .. }) = release(&rig, &claim, &token("tenant")) else {
            panic!("{driver:?}: not released")
        };
        let mac = rig.read(pf).vfs[0].attributes.expect("told").mac;
        assert!(mac.is_local() && mac != claim.settings.mac, "{driver:?}: {mac}");
        assert!(notes.iter().any(|note| note.contains(&mac.to_string())), "{notes:?}");
        let again = rig.owner().claim(&request("next")).expect("claimed");
        release(&rig, &again, &token("next")).expect("released");
        assert_eq!(rig.read(pf).vfs[0].attributes.expect("told").mac, mac, "drawn once");
        let file = crate::rig::entry(&rig.fake, pf, "rail0", 1, "pools: [fast]");
        assert_eq!(rig.owner().check(&file).expect("checked"), [], "and no drift");
    }
}

#[test]
fn what_cannot_be_scrubbed_is_quarantined_with_the_reason() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 2);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.refuse_messages(pf, claim.vf, 22, u32::MAX).expect("refuses");
    let released = release(&rig, &claim, &token("tenant")).expect("released");
    let Released::Quarantined { reason, .. } = released else { panic!("{released}") };
    assert!(reason.contains("MAC"), "{reason}");
    assert_eq!(rig.owner().claim(&request("next")).expect("the other").vf, vf(1));
    assert!(matches!(rig.owner().claim(&request("third")), Err(HostError::Exhausted { .. })));
    rig.fake.refuse_messages(pf, claim.vf, 22, 0).expect("heals");
    assert_eq!(rig.owner().clear_quarantine("rail0", claim.vf).expect("scrubbed"), Life::Free);
}

#[test]
fn trust_that_cannot_be_taken_back_is_not_given_to_the_next() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Mlx5), 1);
    let asked = ClaimRequest { trust: Some(true), ..request("tenant") };
    let claim = rig.owner().claim(&asked).expect("claimed");
    rig.fake.force_eswitch(pf, lanekeeper_model::EswitchMode::Switchdev).expect("somebody else");
    let released = release(&rig, &claim, &token("tenant")).expect("released");
    assert!(matches!(&released, Released::Quarantined { reason, .. } if reason.contains("trust")));
}

#[test]
fn the_driver_that_a_vf_had_is_given_back() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e), 1);
    let address = rig.read(pf).vfs[0].addr;
    rig.fake.write_driver_override(pf, address, Some("iavf")).expect("override");
    rig.fake.probe(pf, address).expect("bound");
    rig.fake.write_driver_override(pf, address, None).expect("cleared");
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    assert_eq!(claim.driver.as_deref(), Some("vfio-pci"));
    release(&rig, &claim, &token("tenant")).expect("released");
    let reading = rig.read(pf).vfs.remove(0);
    assert_eq!((reading.driver.as_deref(), reading.driver_override), (Some("iavf"), None));
}

#[test]
fn a_release_works_with_the_pf_gone() {
    let (rig, pf, claim) = held(Personality::I40e);
    rig.fake.hot_remove(pf).expect("pulled out");
    let released = release(&rig, &claim, &token("tenant")).expect("released");
    assert!(matches!(&released, Released::Done { notes, .. } if notes[0].contains("gone")));
    let late = release(&rig, &claim, &token("tenant")).expect("no error");
    assert!(matches!(late, Released::NoOp { .. }));
}

#[test]
fn one_release_is_of_one_vf() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Ixgbe), 3);
    let claims: Vec<_> = (0..3)
        .map(|number| rig.owner().claim(&request(&format!("tenant-{number}"))).expect("claimed"))
        .collect();
    let before = rig.state(pf);
    release(&rig, &claims[1], &token("tenant-1")).expect("released");
    let after = rig.state(pf);
    assert_eq!((&before.vfs[0], &before.vfs[2]), (&after.vfs[0], &after.vfs[2]));
    assert_eq!(rig.owner().records().expect("ledger")[0].claims.len(), 2);
}

#[test]
fn a_knob_that_the_driver_turns_out_to_lack_is_learnt_once() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e).without(Knob::LinkState), 1);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.clear_log();
    release(&rig, &claim, &token("tenant")).expect("released");
    assert_eq!(rig.fake.messages(pf, vf(0)), 1, "it is not tried again");
}

#[test]
fn attaching_and_detaching_are_the_owners_to_say() {
    let (rig, _, claim) = held(Personality::Igb);
    let owner = rig.owner();
    assert!(matches!(owner.attached(&claim.id, &token("other")), Err(HostError::NotYours(_))));
    owner.attached(&claim.id, &token("tenant")).expect("attached");
    owner.detaching(&claim.id, &token("tenant")).expect("detaching");
    let record = owner.records().expect("ledger").pop().expect("ours");
    assert_eq!(record.vfs[&claim.vf].life, Life::Detaching);
    owner.recover().expect("recovered");
    let record = owner.records().expect("ledger").pop().expect("ours");
    assert!(record.claims.contains_key(&claim.id), "owned until it is released");
}

#[test]
fn whatever_the_kernel_says_of_a_scrub_the_vf_is_quarantined_and_given_back_once_it_is_clean() {
    // EIO, EBUSY, EEXIST, EINVAL, ENOSPC.
    for errno in [5, 16, 17, 22, 28] {
        for (driver, spec) in each_driver() {
            let (rig, pf) = Rig::applied(spec, 1);
            let address = rig.read(pf).vfs[0].addr;
            let own = driver.rules().vf_driver;
            rig.fake.write_driver_override(pf, address, Some(own)).expect("written");
            rig.fake.probe(pf, address).expect("somebody's");
            let fails = [Fake::refuse_messages, Fake::refuse_binding];
            for (round, fails) in fails.into_iter().enumerate() {
                let tenant = format!("tenant-{round}");
                let claim = rig.owner().claim(&request(&tenant)).expect("claimed");
                fails(&rig.fake, pf, claim.vf, errno, u32::MAX).expect("fails");
                let released = release(&rig, &claim, &token(&tenant)).expect("released");
                let quarantined = matches!(released, Released::Quarantined { .. });
                assert!(quarantined, "{driver:?} {errno}: {released}");
                fails(&rig.fake, pf, claim.vf, errno, 0).expect("heals");
                rig.owner().recover().expect("recovered");
                let record = rig.owner().records().expect("ledger").pop().expect("ours");
                assert_eq!(record.vfs[&vf(0)].life, Life::Free, "{driver:?} {errno}");
                let given_back = rig.read(pf).vfs[0].driver.clone();
                assert_eq!(given_back.as_deref(), Some(own), "{driver:?} {errno}");
            }
        }
    }
}

#[test]
fn a_release_by_a_former_name_of_the_pf_does_not_pass_for_done() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Ice), 1);
    rig.owner().claim(&request("tenant")).expect("claimed");
    rig.apply(&crate::rig::entry(&rig.fake, pf, "uplink", 1, "pools: [fast]"));
    let which = |name: &str| Which::Vf { pf: name.to_owned(), vf: vf(0) };
    let error = rig.owner().release(&which("rail0"), &token("tenant")).expect_err("renamed");
    assert!(error.to_string().contains("did you mean uplink"), "{error}");
    let of_others = rig.owner().release(&which("rail0"), &token("somebody")).expect("no error");
    assert!(matches!(of_others, Released::NoOp { .. }), "{of_others}");
    let released = rig.owner().release(&which("uplink"), &token("tenant")).expect("released");
    assert!(matches!(released, Released::Done { .. }), "{released}");
}
