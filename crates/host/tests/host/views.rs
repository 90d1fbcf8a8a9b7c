//! One owner's VFs as any back end shows them.

use std::sync::Arc;

use lanekeeper_host::{ClaimRequest, DriverWanted, HostError, OwnedVfs};
use lanekeeper_hw::fake::{FakePf, Knob, Personality};
use lanekeeper_hw::{Hardware, HardwareError};
use lanekeeper_model::{LinkState, MacAddr, Mbps, Mtu, PfId, VfChange};

use crate::rig::{Rig, entry, request, token, vf};

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

#[test]
fn a_change_to_what_another_has_or_the_pf_cannot_is_refused() {
    let (rig, view, pf) = owned(FakePf::new(Personality::Ice));
    let PfId::Pci(addr) = &pf else { panic!("a PCI address") };
    let before = rig.state(*addr);
    let others = rig.owner().claim(&request("other-tenant")).expect("the same").settings.mac;
    let of_pf = rig.read(*addr).permanent_mac.expect("a MAC");
    for mac in [others, of_pf] {
        let change = VfChange { mac: Some(mac), ..VfChange::default() };
        let error = view.set_vf(&pf, vf(0), &change).expect_err("another's");
        assert!(error.to_string().contains("is already that of"), "{error}");
    }
    let change = VfChange { mtu: Mtu::new(9_000).ok(), ..VfChange::default() };
    let error = view.set_vf(&pf, vf(0), &change).expect_err("the PF has 1500");
    assert!(error.to_string().contains("the PF has 1500"), "{error}");
    assert_eq!(rig.state(*addr), before);
}

#[test]
fn a_change_that_the_driver_takes_without_an_effect_is_refused() {
    let (rig, view, pf) = owned(FakePf::new(Personality::Ixgbe));
    let change = VfChange { link_state: Some(LinkState::Enable), ..VfChange::default() };
    let error = view.set_vf(&pf, vf(0), &change).expect_err("ixgbe only says so");
    assert!(error.to_string().contains("link state"), "{error}");
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    let (_, claim) = record.owner_of(vf(0)).expect("owned");
    assert_eq!(claim.settings.link_state, LinkState::Auto);
}

#[test]
fn a_change_of_the_mtu_is_on_the_interface_and_the_representor() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    rig.apply(&entry(&rig.fake, pf, "rail0", 1, "mtu: 9000, eswitch: switchdev"));
    let mut asked = request("tenant");
    (asked.driver, asked.mtu) = (Some(DriverWanted::Kernel), Mtu::new(2_000).ok());
    rig.owner().claim(&asked).expect("claimed");
    let view = OwnedVfs::new(Arc::new(rig.owner()), &token("tenant"));
    let change = VfChange { mtu: Mtu::new(9_000).ok(), ..VfChange::default() };
    view.set_vf(&PfId::Pci(pf), vf(0), &change).expect("set");
    let now = rig.read(pf).vfs.remove(0);
    let mtus = (now.netdev.map(|netdev| netdev.mtu), now.representor_state.map(|state| state.mtu));
    assert_eq!(mtus, (Some(9_000), Some(9_000)));
}

#[test]
fn a_mac_or_guid_that_a_pf_or_another_vf_has_is_not_given() {
    let rig = Rig::new();
    let one = rig.fake.add_pf(FakePf::new(Personality::Mlx5).with_vf_guids());
    let other = rig.fake.add_pf(FakePf::new(Personality::Ice));
    rig.apply(&entry(&rig.fake, one, "rail0", 3, ""));
    rig.apply(&entry(&rig.fake, other, "rail1", 1, ""));
    let ask = |tenant: &str| ClaimRequest { pf: Some("rail0".to_owned()), ..request(tenant) };
    let mac = rig.read(other).permanent_mac;
    let error = rig.owner().claim(&ClaimRequest { mac, ..ask("tenant-1") }).expect_err("a PF's");
    assert!(matches!(error, HostError::DuplicateMac { .. }), "{error}");
    let guid = Some(lanekeeper_model::Guid(0x1234_5678));
    rig.owner().claim(&ClaimRequest { guid, ..ask("tenant-2") }).expect("the first");
    let of_pf = rig.read(one).rdma.map(|rdma| rdma.node_guid);
    for guid in [guid, of_pf] {
        let asked = ClaimRequest { guid, ..ask("tenant-3") };
        let error = rig.owner().claim(&asked).expect_err("another's");
        assert!(matches!(error, HostError::DuplicateGuid { .. }), "{error}");
    }
}
