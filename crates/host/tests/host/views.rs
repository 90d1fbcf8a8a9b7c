//! One owner's VFs as any back end shows them.

use std::sync::Arc;

use lanekeeper_host::OwnedVfs;
use lanekeeper_hw::fake::{FakePf, Knob, Personality};
use lanekeeper_hw::{Hardware, HardwareError};
use lanekeeper_model::{MacAddr, Mbps, PfId, VfChange};

use crate::rig::{Rig, request, token, vf};

fn owned(pf: FakePf) -> (Rig, OwnedVfs, PfId) {
    let (rig, pf) = Rig::applied(pf, 2);
    rig.owner().claim(&request("tenant")).expect("claimed");
    rig.owner().claim(&request("other-tenant")).expect("claimed");
    let view = OwnedVfs::new(Arc::new(rig.owner()), &token("tenant"));
    (rig, view, PfId::Pci(pf))
}

#[test]
fn an_owner_changes_its_own_vf_and_the_ledger_knows() {
    let (rig, view, pf) = owned(FakePf::new(Personality::Ice));
    assert_eq!(view.pfs().expect("PFs").len(), 1);
    let rates =
        VfChange { min_rate: Some(Mbps(5)), max_rate: Some(Mbps(30)), ..VfChange::default() };
    view.set_vf(&pf, vf(0), &rates).expect("set");
    let only_max = VfChange { max_rate: Some(Mbps(40)), ..VfChange::default() };
    let status = view.set_vf(&pf, vf(0), &only_max).expect("set");
    assert_eq!((status.settings.rate.min, status.settings.rate.max), (Mbps(5), Mbps(40)));
    rig.fake.reboot();
    rig.owner().recover().expect("recovered");
    assert_eq!(view.vf(&pf, vf(0)).expect("read").settings.rate, status.settings.rate);
}

#[test]
fn anothers_vf_is_not_there() {
    let (rig, view, pf) = owned(FakePf::new(Personality::Ice));
    rig.fake.clear_log();
    let change = VfChange { trust: Some(true), ..VfChange::default() };
    let error = view.set_vf(&pf, vf(1), &change).expect_err("another's");
    assert!(matches!(error, HardwareError::NoVf { .. }), "{error}");
    assert!(matches!(view.counters(&pf, vf(1)), Err(HardwareError::NoVf { .. })));
    view.scrub(&pf, vf(0)).expect_err("that is a release");
    assert_eq!(rig.fake.writes(), []);
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let (rig, view, pf) = owned(FakePf::new(Personality::Ice).refusing(Knob::Trust));
    let PfId::Pci(addr) = &pf else { panic!("a PCI address") };
    let before = rig.state(*addr);
    let change = VfChange { max_rate: Some(Mbps(30)), trust: Some(true), ..VfChange::default() };
    view.set_vf(&pf, vf(0), &change).expect_err("no trust");
    assert_eq!(rig.state(*addr), before);
    let addresses = Some(vec!["10.0.0.1".parse().expect("an address")]);
    let change = VfChange { addresses, ..VfChange::default() };
    let error = view.set_vf(&pf, vf(0), &change).expect_err("addresses");
    assert!(error.to_string().contains("software NIC"), "{error}");
}

#[test]
fn a_mac_does_not_change_under_a_vm() {
    let (rig, view, pf) = owned(FakePf::new(Personality::Ice));
    let PfId::Pci(addr) = &pf else { panic!("a PCI address") };
    rig.fake.open_vf(*addr, vf(0), 7, "qemu").expect("opened");
    let change = VfChange { mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), ..VfChange::default() };
    let error = view.set_vf(&pf, vf(0), &change).expect_err("held");
    assert!(error.to_string().contains("detach it first"), "{error}");
    rig.fake.close_vf(*addr, vf(0)).expect("closed");
    let status = view.set_vf(&pf, vf(0), &change).expect("set");
    assert_eq!(status.settings.mac, MacAddr([2, 0, 0, 0, 0, 1]));
}
