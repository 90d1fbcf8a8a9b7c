//! Claims: who gets a VF, with what on it, and what is refused by name.

use std::path::Path;
use std::sync::Arc;

use lanekeeper_host::ledger::Life;
use lanekeeper_host::{
    ClaimRequest, DriverWanted, HostError, NodeState, Preflight, PreflightFacts, RdmaNeed,
};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{FakePf, Grouping, Knob, Personality, Write};
use lanekeeper_model::{Guid, LinkState, MacAddr, Mbps, Mtu};

use crate::rig::{Rig, each_driver, entry, request, token, vf};

fn plain(personality: Personality, vfs: u16) -> (Rig, lanekeeper_model::PfAddr) {
    Rig::applied(FakePf::new(personality), vfs)
}

#[test]
fn a_claim_has_all_that_a_vmm_needs() {
    for (driver, pf) in each_driver() {
        let (rig, pf) = Rig::applied(pf, 2);
        let mut asked = request("tenant");
        asked.vm.memory_bytes = Some(4 << 30);
        let claim = rig.owner().claim(&asked).expect("claimed");
        let reading = rig.read(pf).vfs.remove(0);
        assert_eq!(claim.address, reading.addr, "{driver:?}: from its link");
        assert_eq!(reading.driver.as_deref(), Some("vfio-pci"));
        assert_eq!(reading.attributes.expect("told").mac, claim.settings.mac);
        let hand_over = &claim.hand_over;
        let group = claim.iommu_group.expect("a group");
        assert_eq!(
            hand_over.device_node.as_deref(),
            Some(Path::new(&format!("/dev/vfio/{group}")))
        );
        assert!(hand_over.qemu[1].contains(&claim.address.to_string()), "{hand_over:?}");
        let xml = hand_over.libvirt_interface.as_ref().expect("XML");
        assert!(xml.contains(&claim.settings.mac.to_string()), "{xml}");
        assert_eq!(hand_over.memlock_bytes, Some(5 << 30));
        assert_eq!(claim.life, Life::Bound);
        let json = serde_json::to_string(&claim).expect("JSON");
        assert!(!json.contains("token-tenant"), "the token is nobody else's");
    }
}

#[test]
fn the_same_token_with_the_same_request_gets_the_same_claim() {
    let (rig, _) = plain(Personality::Igb, 2);
    let first = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.clear_log();
    let again = rig.owner().claim(&request("tenant")).expect("claimed");
    assert_eq!(first, again);
    assert_eq!(rig.fake.writes(), []);
}

#[test]
fn the_same_token_with_another_request_is_a_conflict_that_names_what_differs() {
    let (rig, _) = plain(Personality::Igb, 2);
    let first = rig.owner().claim(&request("tenant")).expect("claimed");
    let other = ClaimRequest { trust: Some(true), ..request("tenant") };
    let error = rig.owner().claim(&other).expect_err("a conflict");
    assert!(matches!(&error, HostError::Conflict { claim, .. } if *claim == first.id), "{error}");
    assert!(error.to_string().contains("trust"), "{error}");
}

#[test]
fn a_mac_is_drawn_once_and_kept_over_a_reboot() {
    let (rig, _) = plain(Personality::I40e, 2);
    let first = rig.owner().claim(&request("tenant")).expect("claimed");
    let mac = first.settings.mac;
    assert!(mac.is_local() && mac.is_station(), "{mac}");
    rig.fake.reboot();
    rig.owner().recover().expect("recovered");
    assert_eq!(rig.owner().claim(&request("tenant")).expect("the same").settings.mac, mac);
}

#[test]
fn no_vlan_is_vlan_zero_and_is_written() {
    let (rig, pf) = plain(Personality::Igb, 1);
    let vlan = serde_json::from_str(r#"{"id": 1925, "pcp": 5}"#).ok();
    let stale = lanekeeper_hw::message::VfMessage { vlan, ..Default::default() };
    rig.fake.send_vf(pf, vf(0), &stale).expect("somebody else");
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    assert_eq!(claim.settings.vlan, lanekeeper_model::VlanTag::default());
    assert_eq!(rig.read(pf).vfs[0].attributes.expect("told").vlan.pcp.get(), 0);
}

#[test]
fn spoofchk_is_never_on_without_a_mac() {
    let (rig, pf) = plain(Personality::Mlx5, 2);
    let zero = ClaimRequest { mac: Some(MacAddr::ZERO), ..request("zero") };
    let error = rig.owner().claim(&zero).expect_err("refused");
    assert!(error.to_string().contains("set a MAC first"), "{error}");
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    assert!(claim.settings.spoofchk);
    assert_eq!(rig.fake.silence(pf, claim.vf).expect("a VF"), None, "its traffic passes");
}

#[test]
fn both_rates_travel_together() {
    let (rig, pf) = plain(Personality::Ice, 1);
    let asked =
        ClaimRequest { min_rate: Some(Mbps(5)), max_rate: Some(Mbps(30)), ..request("tenant") };
    rig.owner().claim(&asked).expect("claimed");
    let rate = rig.read(pf).vfs[0].attributes.expect("told").rate;
    assert_eq!((rate.min, rate.max), (Mbps(5), Mbps(30)));
}

fn refused(rig: &Rig, asked: &ClaimRequest) -> HostError {
    let error = rig.owner().claim(asked).expect_err("refused");
    let record = rig.owner().records().expect("ledger").pop().expect("ours");
    assert!(record.claims.is_empty() && rig.fake.writes().is_empty(), "nothing was touched");
    error
}

#[test]
fn what_a_path_cannot_do_is_refused_with_driver_field_and_alternative() {
    let with = |change: fn(&mut ClaimRequest)| {
        let mut asked = request("tenant");
        change(&mut asked);
        asked
    };
    let tag = |asked: &mut ClaimRequest| {
        asked.vlan = serde_json::from_str(r#"{"id": 7, "protocol": "802.1ad"}"#).ok();
    };
    for (personality, asked, field, alternative) in [
        (Personality::Igb, with(tag), "vlan.protocol", "802.1Q"),
        (Personality::Igb, with(|r| r.min_rate = Some(Mbps(5))), "min_rate", "leave min_rate out"),
        (
            Personality::Igb,
            with(|r| r.link_state = Some(LinkState::Enable)),
            "link_state",
            "leave link_state out",
        ),
        (
            Personality::Ixgbe,
            with(|r| r.link_state = Some(LinkState::Enable)),
            "link_state",
            "auto or disable",
        ),
        (
            Personality::Ice,
            with(|r| r.addresses = vec!["10.0.0.1".parse().expect("an address")]),
            "addresses",
            "software NIC",
        ),
        (Personality::Ice, with(|r| r.guid = Some(Guid(7))), "guid", "set mac"),
        (Personality::Ice, with(|r| r.mtu = Mtu::new(9000).ok()), "mtu", "raise its mtu"),
        (Personality::Igb, with(|r| r.rdma = Some(RdmaNeed::Hardware)), "rdma", "rdma: software"),
    ] {
        let (rig, _) = plain(personality, 1);
        let error = refused(&rig, &asked);
        assert!(matches!(&error, HostError::NotOnThisPath { field: found, .. } if *found == field));
        let (driver, text) = (personality.rules().driver, error.to_string());
        assert!(text.contains(driver) && text.contains(alternative), "{text}");
    }
}

#[test]
fn a_rate_above_the_links_speed_is_refused_as_that_and_by_what_was_asked() {
    let (rig, _) = plain(Personality::Igb, 1);
    let asked = ClaimRequest { max_rate: Some(Mbps(5_000)), ..request("a-tenant") };
    let text = rig.owner().claim(&asked).expect_err("the link has 1000").to_string();
    assert!(text.contains("max_rate = 5000;") && text.contains("link has 1000 Mb/s"), "{text}");
    assert!(!text.contains("min_rate") && !text.contains("zero MAC"), "{text}");
}

#[test]
fn in_switchdev_mode_the_representor_is_named() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    rig.apply(&entry(&rig.fake, pf, "rail0", 2, "eswitch: switchdev"));
    rig.fake.clear_log();
    let trusted = ClaimRequest { trust: Some(true), ..request("a-tenant") };
    let checked = ClaimRequest { spoofchk: Some(true), ..request("a-tenant") };
    let tagged =
        ClaimRequest { vlan: serde_json::from_str(r#"{"id": 7}"#).ok(), ..request("a-tenant") };
    for asked in [trusted, checked, tagged] {
        let text = refused(&rig, &asked).to_string();
        assert!(text.contains("mlx5_core (switchdev)") && text.contains("representor"), "{text}");
    }
    let limited = ClaimRequest { max_rate: Some(Mbps(100)), ..request("a-tenant") };
    rig.owner().claim(&limited).expect("rates and VLAN 0 work there");
}

#[test]
fn a_knob_that_only_the_driver_knows_to_be_missing_is_named_too() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e).refusing(Knob::Trust), 1);
    let before = rig.state(pf);
    let trusted = ClaimRequest { trust: Some(true), ..request("tenant") };
    let error = rig.owner().claim(&trusted).expect_err("refused");
    assert!(matches!(error, HostError::NotOnThisPath { field: "trust", .. }), "{error}");
    assert_eq!(rig.state(pf), before, "MAC and all that came before it in the message are gone");
    rig.owner().claim(&request("tenant")).expect("the token is free, and so is the VF");
}

#[test]
fn a_driver_without_spoofchk_or_link_state_is_used_without() {
    for knob in [Knob::Spoofchk, Knob::LinkState, Knob::Trust] {
        for refuses in [false, true] {
            let pf = FakePf::new(Personality::BnxtEn);
            let pf = if refuses { pf.refusing(knob) } else { pf.without(knob) };
            let (rig, pf) = Rig::applied(pf, 1);
            let asked = request("tenant");
            if refuses && knob == Knob::Spoofchk {
                // It tells that it is off and refuses to turn it on: asked for by default, named.
                let error = rig.owner().claim(&asked).expect_err("refused");
                assert!(error.to_string().contains("spoofchk"), "{error}");
                let off = ClaimRequest { spoofchk: Some(false), ..asked };
                rig.owner().claim(&off).expect("even 'off' is refused there, so it is not sent");
                continue;
            }
            let claim = rig.owner().claim(&asked).expect("claimed");
            assert_eq!(rig.fake.silence(pf, claim.vf).expect("a VF"), None, "{knob:?}");
        }
    }
}

#[test]
fn a_value_that_the_vf_has_is_not_sent() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::BnxtEn).refusing(Knob::Spoofchk), 1);
    let asked = ClaimRequest { spoofchk: Some(false), ..request("tenant") };
    rig.owner().claim(&asked).expect("claimed");
    let sent = rig.fake.writes().into_iter().filter_map(|write| match write {
        Write::Vf(_, _, message) => message.spoofchk,
        _ => None,
    });
    assert_eq!(sent.count(), 0);
}

#[test]
fn the_mac_is_set_before_the_driver_is_bound_and_no_driver_is_bound_then() {
    let (rig, pf) = plain(Personality::I40e, 1);
    rig.owner().claim(&request("tenant")).expect("claimed");
    let writes = rig.fake.writes();
    let message = writes.iter().position(|write| matches!(write, Write::Vf(..))).expect("one");
    let probe = writes.iter().position(|write| matches!(write, Write::Probe(_))).expect("one");
    assert!(message < probe, "{writes:?}");
    assert_eq!(rig.fake.messages(pf, vf(0)), 1);
}

#[test]
fn rdma_by_hardware_has_a_node_guid() {
    for guids in [false, true] {
        let pf = FakePf::new(Personality::Mlx5);
        let (rig, pf) = Rig::applied(if guids { pf.with_vf_guids() } else { pf }, 2);
        let asked = ClaimRequest { rdma: Some(RdmaNeed::Hardware), ..request("tenant") };
        let claim = rig.owner().claim(&asked).expect("claimed");
        assert!(claim.guid.is_some_and(|guid| !guid.is_zero()), "{claim:?}");
        assert_eq!(rig.read(pf).vfs[0].driver.as_deref(), Some("vfio-pci"));
        let probed =
            rig.fake.writes().iter().filter(|write| matches!(write, Write::Probe(_))).count();
        assert_eq!(probed, if guids { 1 } else { 2 }, "probed anew only where it must be");
        rig.fake.clear_log();
        rig.owner().claim(&request("without-rdma")).expect("claimed");
        let writes = rig.fake.writes();
        let probed = writes.iter().filter(|write| matches!(write, Write::Probe(_))).count();
        assert_eq!(probed, 1, "who needs no GUID does not wait for one");
    }
}

#[test]
fn a_guid_that_was_asked_for_is_set_and_read_back() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Mlx5).with_vf_guids(), 1);
    let asked = ClaimRequest { guid: Some(Guid(0x77)), ..request("tenant") };
    let claim = rig.owner().claim(&asked).expect("claimed");
    assert_eq!(claim.guid, Some(Guid(0x77)));
    assert_eq!(rig.read(pf).vfs[0].attributes.expect("told").port_guid, Some(Guid(0x77)));
    assert_eq!(rig.fake.messages(pf, vf(0)), 1);
}

#[test]
fn a_vf_of_the_hosts_own_gets_its_driver_mtu_and_interface() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    rig.apply(&entry(&rig.fake, pf, "rail0", 1, "mtu: 9000"));
    let asked = ClaimRequest {
        driver: Some(DriverWanted::Kernel),
        mtu: Mtu::new(4200).ok(),
        ..request("tenant")
    };
    let claim = rig.owner().claim(&asked).expect("claimed");
    let reading = rig.read(pf).vfs.remove(0);
    assert_eq!(reading.driver.as_deref(), Some("iavf"));
    let netdev = reading.netdev.expect("an interface");
    assert_eq!((netdev.mtu, Some(netdev.name)), (4200, claim.hand_over.netdev.clone()));
    assert_eq!(netdev.mac, claim.settings.mac, "it was probed after its MAC was set");
    assert_eq!(claim.hand_over.qemu, Vec::<String>::new());
}

#[test]
fn a_driver_that_is_bound_and_makes_no_interface_is_found() {
    let (rig, pf) = plain(Personality::I40e, 1);
    rig.fake.reset_pf(pf).expect("reset");
    let asked = ClaimRequest { driver: Some(DriverWanted::Kernel), ..request("tenant") };
    let error = rig.owner().claim(&asked).expect_err("dead");
    assert!(matches!(error, HostError::Preflight(Preflight::NoNetdev { .. })), "{error}");
}

#[test]
fn a_shared_group_is_refused_with_every_member() {
    for grouping in [Grouping::Shared(2), Grouping::WithPf] {
        let (rig, pf) = Rig::applied(FakePf::new(Personality::I40e).grouped(grouping), 2);
        let error = refused(&rig, &request("tenant"));
        let HostError::SharedGroup { members, .. } = &error else { panic!("{error}") };
        let group = rig.read(pf).vfs[0].iommu_group.clone().expect("a group");
        assert_eq!(members, &group.members.into_iter().collect::<Vec<_>>());
        for member in members {
            assert!(error.to_string().contains(&member.to_string()), "{error}");
        }
    }
}

#[test]
fn without_an_iommu_a_vm_gets_nothing_and_is_told_why() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Igb).grouped(Grouping::Off), 1);
    let error = refused(&rig, &request("tenant"));
    assert!(error.to_string().contains("intel_iommu=on"), "{error}");
}

#[test]
fn a_module_that_is_not_loaded_is_named() {
    let (rig, pf) = plain(Personality::Igb, 1);
    rig.fake.set_driver_loaded("vfio-pci", false);
    let before = rig.state(pf);
    let error = rig.owner().claim(&request("tenant")).expect_err("not loaded");
    assert!(error.to_string().contains("modprobe vfio-pci"), "{error}");
    assert_eq!(rig.state(pf), before);
}

#[test]
fn a_vmm_that_cannot_open_the_node_yet_is_told_how_and_has_its_claim() {
    let (rig, _) = plain(Personality::Igb, 1);
    let mut asked = request("tenant");
    asked.vm.user = Some(1000);
    let claim = rig.owner().with_preflight(Arc::new(RootsNodes)).claim(&asked).expect("claimed");
    let node = claim.hand_over.device_node.expect("a node");
    let command = format!("run: chown 1000 {}", node.display());
    assert!(claim.notes.iter().any(|note| note.ends_with(&command)), "{:?}", claim.notes);
}

struct RootsNodes;

impl PreflightFacts for RootsNodes {
    fn node(&self, _: &Path) -> NodeState {
        NodeState::Present { mode: 0o600, owner: 0, group: 0 }
    }

    fn memlock_limit(&self) -> Option<u64> {
        None
    }

    fn numa_nodes(&self) -> Vec<u32> {
        vec![0]
    }
}

struct NoNodes;

impl PreflightFacts for NoNodes {
    fn node(&self, path: &Path) -> NodeState {
        let there = NodeState::Present { mode: 0o666, owner: 0, group: 0 };
        if path.ends_with("vfio/vfio") { there } else { NodeState::Missing }
    }

    fn memlock_limit(&self) -> Option<u64> {
        Some(1 << 20)
    }

    fn numa_nodes(&self) -> Vec<u32> {
        vec![0]
    }
}

#[test]
fn a_device_node_that_is_missing_is_found_before_the_vm_starts() {
    let (rig, pf) = plain(Personality::Igb, 1);
    let before = rig.state(pf);
    let owner = rig.owner().with_preflight(Arc::new(NoNodes));
    let error = owner.claim(&request("tenant")).expect_err("no node");
    assert!(matches!(error, HostError::Preflight(Preflight::NoNode { .. })), "{error}");
    assert_eq!(rig.state(pf), before);
}

#[test]
fn a_vf_that_a_stranger_holds_is_never_given_away() {
    let (rig, pf) = plain(Personality::Igb, 2);
    let address = rig.read(pf).vfs[0].addr;
    rig.fake.write_driver_override(pf, address, Some("vfio-pci")).expect("override");
    rig.fake.probe(pf, address).expect("bound");
    rig.fake.open_vf(pf, vf(0), 77, "dpdk-testpmd").expect("opened");
    assert_eq!(rig.owner().claim(&request("a-tenant")).expect("the other").vf, vf(1));
    let error = rig.owner().claim(&request("b-tenant")).expect_err("none is left");
    assert!(error.to_string().contains("dpdk-testpmd (pid 77)"), "{error}");
}

#[test]
fn an_address_comes_from_the_link_and_crosses_buses() {
    let at = "0000:86:00.0".parse().expect("an address");
    let pf = FakePf::new(Personality::Ixgbe).at(at).routing(0x80, 2);
    let (rig, pf) = Rig::applied(pf, 5);
    for number in 0..5 {
        let claim = rig.owner().claim(&request(&format!("tenant-{number}"))).expect("claimed");
        assert_eq!(claim.address, rig.read(pf).vfs[number].addr);
    }
}

#[test]
fn a_pool_or_pf_that_does_not_exist_is_named_with_the_nearest() {
    let (rig, _) = plain(Personality::Igb, 1);
    let asked = ClaimRequest { pool: Some("fats".to_owned()), ..request("tenant") };
    let error = rig.owner().claim(&asked).expect_err("no such pool");
    assert!(error.to_string().contains("did you mean fast?"), "{error}");
    let asked = ClaimRequest { pf: Some("rail9".to_owned()), ..request("tenant") };
    let error = rig.owner().claim(&asked).expect_err("no such PF");
    assert!(error.to_string().contains("did you mean rail0?"), "{error}");
}

#[test]
fn a_claim_never_makes_vfs() {
    let (rig, pf) = plain(Personality::Ixgbe, 2);
    for number in 0..4 {
        let _ = rig.owner().claim(&request(&format!("tenant-{number}")));
    }
    assert_eq!(rig.fake.num_vfs_writes(pf), 0);
    let error = rig.owner().claim(&request("one-more")).expect_err("full");
    assert!(matches!(error, HostError::Exhausted { owned: 2, .. }), "{error}");
}

#[test]
fn a_vf_whose_pf_is_configured_by_nobody_is_not_to_be_had() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    rig.fake.write_num_vfs(pf, 4).expect("somebody's");
    let error = rig.owner().claim(&request("tenant")).expect_err("not ours");
    assert!(matches!(error, HostError::Exhausted { .. }), "{error}");
}

#[test]
fn two_vfs_of_one_vlan_never_share_a_mac() {
    let (rig, _) = plain(Personality::Igb, 3);
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 9]));
    rig.owner().claim(&ClaimRequest { mac, ..request("a-tenant") }).expect("claimed");
    let error = rig.owner().claim(&ClaimRequest { mac, ..request("b-tenant") }).expect_err("taken");
    assert!(matches!(error, HostError::DuplicateMac { .. }), "{error}");
    let vlan = serde_json::from_str(r#"{"id": 7}"#).ok();
    rig.owner().claim(&ClaimRequest { mac, vlan, ..request("b-tenant") }).expect("another VLAN");
}

#[test]
fn a_busy_driver_is_asked_again() {
    let (rig, pf) = plain(Personality::I40e, 1);
    for errno in [11, 16] {
        rig.fake.refuse_messages(pf, vf(0), errno, 3).expect("busy");
        let name = format!("tenant-{errno}");
        rig.owner().claim(&request(&name)).expect("in the end");
        let which = lanekeeper_host::Which::Vf { pf: "rail0".to_owned(), vf: vf(0) };
        rig.owner().release(&which, &token(&name)).expect("released");
    }
    rig.fake.refuse_messages(pf, vf(0), 16, u32::MAX).expect("busy");
    rig.owner().claim(&request("for-ever")).expect_err("patience ends");
}

#[test]
fn a_driver_link_that_is_missing_for_a_moment_is_waited_for() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Ixgbe).driver_lagging(5), 1);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    assert_eq!(claim.driver.as_deref(), Some("vfio-pci"));
}

#[test]
fn an_unknown_field_of_a_request_is_an_error() {
    let text = r#"{"token": "token-tenant", "vlna": {"id": 7}}"#;
    let error = serde_json::from_str::<ClaimRequest>(text).expect_err("a slip");
    assert!(error.to_string().contains("vlna"), "{error}");
}

#[test]
fn a_vf_that_is_asked_for_by_its_number_is_that_one_or_none() {
    let (rig, _) = plain(Personality::Igb, 3);
    let pf = Some("rail0".to_owned());
    let numbered = |of: &str| ClaimRequest { pf: pf.clone(), vf: Some(vf(1)), ..request(of) };
    let claim = rig.owner().claim(&numbered("tenant")).expect("claimed");
    assert_eq!(claim.vf, vf(1));
    let error = rig.owner().claim(&numbered("other")).expect_err("taken");
    assert!(matches!(error, HostError::Exhausted { .. }), "{error}");
    assert!(error.to_string().contains("VF 1"), "{error}");
    let of_none = ClaimRequest { vf: Some(vf(0)), ..request("third") };
    let error = rig.owner().claim(&of_none).expect_err("of which PF?").to_string();
    assert!(error.contains("VF 0 of which PF?"), "{error}");
}
