//! VFs of every driver's NIC in memory, as VMs get them and give them back.

use std::collections::BTreeMap;
use std::time::Duration;

use lanekeeper_host::{HostFile, NodeState, Patience, PreflightFacts};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{Fake, FakePf, Personality};
use lanekeeper_model::{Mtu, PfAddr};
use tempfile::TempDir;

use super::*;
use crate::lanes::settings;
use crate::samples::port;

struct Rig {
    fake: Fake,
    pf: PfAddr,
    folder: TempDir,
}

/// VFIO's device nodes are all there and anybody's.
struct AllNodes;

impl PreflightFacts for AllNodes {
    fn node(&self, _: &Path) -> NodeState {
        NodeState::Present { mode: 0o666, owner: 0, group: 0 }
    }

    fn memlock_limit(&self) -> Option<u64> {
        None
    }

    fn numa_nodes(&self) -> Vec<u32> {
        vec![0]
    }
}

impl Rig {
    /// A host with a PF that four VFs in pool `lanes` were made of, as `nic0`.
    fn new(driver: Personality) -> Self {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(driver));
        let rig = Self { fake, pf, folder: tempfile::tempdir().expect("a folder") };
        let mac = rig.fake.read(pf).expect("read").permanent_mac.expect("a MAC");
        let text = format!(
            "version: 1\npfs:\n  - {{name: nic0, select: {{permanent_mac: '{mac}'}}, vfs: 4, mtu: 9000, \
             pools: [lanes]}}\n"
        );
        let file = HostFile::parse(&text, Path::new("host.yaml")).expect("sound");
        let owner = rig.owner();
        owner.apply(&owner.plan(&file).expect("a plan"), None).expect("applied");
        rig
    }

    fn owner(&self) -> Owner {
        let hw: Arc<dyn SriovHardware> = Arc::new(self.fake.clone());
        let owner = Owner::open(hw, &self.folder.path().join("ledger")).expect("opens");
        let quick = Patience {
            busy: Duration::from_millis(60),
            poll: Duration::from_millis(1),
            ..Patience::default()
        };
        owner.with_patience(quick).with_preflight(Arc::new(AllNodes))
    }

    /// As an agent has it that was started now.
    fn nics(&self) -> HardwareNics {
        self.nics_of(&[])
    }

    fn nics_of(&self, pools: &[String]) -> HardwareNics {
        let owner = Arc::new(self.owner());
        owner.recover().expect("recovered");
        HardwareNics::new(owner, self.folder.path(), pools).expect("opens")
    }

    fn mac_of(&self, lane: &Lane) -> MacAddr {
        let vf = self.fake.read(self.pf).expect("read").vf(lane.vf).cloned().expect("there");
        vf.attributes.expect("told").mac
    }

    /// A VMM opens the VF, and ends.
    fn open(&self, lane: &Lane) {
        self.fake.open_vf(self.pf, lane.vf, 77, "qemu").expect("opened");
    }

    fn close(&self, lane: &Lane) {
        self.fake.close_vf(self.pf, lane.vf).expect("closed");
    }
}

fn offers(nics: &HardwareNics) -> Vec<usize> {
    let offered = nics.offered().expect("read");
    offered.iter().flat_map(|pf| &pf.vfs).map(|vf| vf.get()).collect()
}

fn lane(vf: u32) -> Lane {
    crate::samples::lane(vf)
}

fn wanted(number: u8, link: LinkState) -> VfSettings {
    let mut port = port("rail0", number);
    (port.mtu, port.vlan.id) = (Mtu::ETHERNET, lanekeeper_model::VlanId::NONE);
    settings(&port, link)
}

#[test]
fn a_vm_gets_a_vf_of_any_driver_by_vfio_and_gives_it_back_scrubbed() {
    for driver in Personality::ALL {
        let rig = Rig::new(driver);
        let nics = rig.nics();
        let (lane, on) = (lane(2), wanted(5, LinkState::Auto));
        nics.set(&lane, &on).unwrap_or_else(|error| panic!("{driver:?}: {error}"));
        assert!(nics.is(&lane, &on).expect("read"), "{driver:?}");
        assert_eq!(rig.mac_of(&lane), on.mac);
        let device = nics.device(&lane, "vf0".to_owned(), &port("rail0", 5)).expect("a device");
        let Device::Function(function) = device else { panic!("{device:?}") };
        let there = rig.fake.read(rig.pf).expect("read").vf(lane.vf).cloned().expect("there");
        assert_eq!(function.address, there.addr.into());
        assert_eq!(there.driver.as_deref(), Some(VFIO));
        nics.hand_over(&lane).expect("handed over");
        rig.open(&lane);
        let error = nics.scrub(&lane).expect_err("a VM has it");
        assert!(error.may_pass() && error.to_string().contains("qemu"), "{driver:?}: {error}");
        rig.close(&lane);
        nics.scrub(&lane).expect("scrubbed");
        nics.scrub(&lane).expect("it is done already");
        assert_ne!(rig.mac_of(&lane), on.mac, "{driver:?}");
        assert_eq!(offers(&nics), [0, 1, 2, 3], "{driver:?}");
    }
}

#[test]
fn an_agent_that_was_killed_finds_its_claims_by_its_secret_and_others_are_not_offered() {
    let rig = Rig::new(Personality::Ice);
    let on = wanted(5, LinkState::Auto);
    rig.nics().set(&lane(1), &on).expect("set");
    let theirs = ClaimRequest::new("somebody-elses".parse().expect("a token"));
    let other = rig.owner().claim(&theirs).expect("claimed");
    let nics = rig.nics();
    assert!(nics.is(&lane(1), &on).expect("read"));
    let mut want = vec![0, 1, 2, 3];
    want.retain(|vf| *vf != other.vf.get());
    assert_eq!(offers(&nics), want);
    let stolen = Lane { vf: other.vf, ..lane(0) };
    let error = nics.set(&stolen, &wanted(6, LinkState::Auto)).expect_err("another's");
    assert!(!error.may_pass(), "{error}");
    nics.scrub(&stolen).expect("nothing of ours is on it");
    assert_eq!(rig.mac_of(&stolen), other.settings.mac);
}

#[test]
fn a_vf_becomes_the_next_vms_without_what_the_last_one_had() {
    let rig = Rig::new(Personality::Ixgbe);
    let nics = rig.nics();
    let (first, second) = (wanted(5, LinkState::Auto), wanted(6, LinkState::Auto));
    nics.set(&lane(0), &first).expect("set");
    nics.clear_for(&lane(0), first.mac).expect("it stays");
    assert!(nics.is(&lane(0), &first).expect("read"));
    nics.clear_for(&lane(0), second.mac).expect("cleared");
    assert!(!nics.is(&lane(0), &first).expect("read"));
    // Addresses may trade places between two VFs.
    nics.set(&lane(0), &second).expect("set");
    nics.set(&lane(1), &first).expect("set");
    assert!(nics.is(&lane(0), &second).expect("read") && nics.is(&lane(1), &first).expect("read"));
}

#[test]
fn nothing_passes_a_vf_that_is_cut_while_its_vm_does_not_end() {
    let rig = Rig::new(Personality::Ice);
    let nics = rig.nics();
    let on = wanted(5, LinkState::Auto);
    nics.set(&lane(0), &on).expect("set");
    rig.fake.clear_log();
    nics.cut(&lane(0)).expect("nobody has it open");
    assert_eq!(rig.fake.writes(), [], "no VM sends on it");
    nics.hand_over(&lane(0)).expect("handed over");
    rig.open(&lane(0));
    nics.cut(&lane(0)).expect("cut");
    let status = rig.fake.read(rig.pf).expect("read").vf(lane(0).vf).cloned().expect("there");
    assert_eq!(status.attributes.expect("told").link_state, Some(LinkState::Disable));
    assert!(!nics.is(&lane(0), &on).expect("read"));
    rig.close(&lane(0));
    nics.set(&lane(0), &on).expect("set anew");
    assert!(nics.is(&lane(0), &on).expect("read"));
    // It is the ledger's view too that no VM has it any more.
    let record = rig.owner().records().expect("read").remove(0);
    assert_eq!(record.vfs[&lane(0).vf].life, Life::Bound);
}

#[test]
fn a_vm_that_is_off_needs_no_link_that_goes_down() {
    let rig = Rig::new(Personality::Igb);
    let nics = rig.nics();
    let off = wanted(5, LinkState::Disable);
    nics.set(&lane(0), &off).expect("igb cannot take links down, and need not");
    assert!(nics.is(&lane(0), &off).expect("read"));
    nics.set(&lane(0), &wanted(5, LinkState::Auto)).expect("set");
}

#[test]
fn what_somebody_changed_beside_us_is_seen_and_made_anew() {
    let rig = Rig::new(Personality::I40e);
    let nics = rig.nics();
    let on = wanted(5, LinkState::Auto);
    nics.set(&lane(3), &on).expect("set");
    rig.fake.reboot();
    assert!(!nics.is(&lane(3), &on).unwrap_or(false), "nothing is as it was");
    nics.owner().recover().expect("recovered");
    nics.set(&lane(3), &on).expect("set anew");
    assert!(nics.is(&lane(3), &on).expect("read"));
}

#[test]
fn only_the_pools_that_the_operator_names_are_offered() {
    let rig = Rig::new(Personality::Ice);
    let named = |pool: &str| rig.nics_of(&[pool.to_owned()]);
    assert_eq!(offers(&named("lanes")).len(), 4);
    let none = named("others");
    assert!(offers(&none).is_empty());
    assert!(!none.has(&lane(0).pf).expect("read"));
}

#[test]
fn a_rate_that_is_floor_and_ceiling_needs_ceilings_only_while_the_link_carries_all_of_them() {
    let rig = Rig::new(Personality::Igb);
    let nics = rig.nics();
    let speed =
        rig.fake.read(rig.pf).expect("read").netdev.and_then(|it| it.speed).expect("a link");
    let with = |number, part: u32| {
        let mut wanted = wanted(number, LinkState::Auto);
        wanted.rate = RateLimits { min: Mbps(speed.0 / part), max: Mbps(speed.0 / part) };
        wanted
    };
    nics.set(&lane(0), &with(5, 2)).expect("igb has ceilings");
    assert!(nics.is(&lane(0), &with(5, 2)).expect("read"));
    nics.set(&lane(0), &with(5, 2)).expect("as it is");
    nics.set(&lane(1), &with(6, 4)).expect("three quarters are given");
    let error = nics.set(&lane(2), &with(7, 2)).expect_err("more than the link carries");
    assert!(error.to_string().contains("min_rate"), "{error}");
    nics.set(&lane(3), &wanted(8, LinkState::Auto)).expect("it asks for no rate");
    let error = nics.set(&lane(2), &with(7, 8)).expect_err("a VF has no ceiling");
    assert!(error.to_string().contains("min_rate"), "{error}");
}

#[test]
fn what_a_nic_cannot_enforce_is_refused_by_its_name() {
    let rig = Rig::new(Personality::Igb);
    let nics = rig.nics();
    let mut wanted = wanted(5, LinkState::Auto);
    wanted.rate.min = Mbps(100);
    let error = nics.set(&lane(0), &wanted).expect_err("igb has no minimum rate");
    assert!(!error.may_pass() && error.to_string().contains("min_rate"), "{error}");
    assert_eq!(offers(&nics), [0, 1, 2, 3], "it is free and scrubbed again");
}

#[test]
fn a_secret_that_is_damaged_is_said_to_be() {
    let rig = Rig::new(Personality::Igb);
    drop(rig.nics());
    std::fs::write(rig.folder.path().join("vf-secret"), "short").expect("written");
    let error = HardwareNics::new(Arc::new(rig.owner()), rig.folder.path(), &[]);
    let error = error.err().expect("damaged").to_string();
    assert!(error.contains("vf-secret") && error.contains("not 32"), "{error}");
}

#[test]
fn the_server_is_told_of_a_pf_as_it_is_now_and_of_no_free_vf_while_it_has_no_link() {
    use crate::config::{NicLabels, NodeConfig};
    use crate::fakes::On;
    use crate::inventory::inventory;
    use lanekeeper_control::keys::FabricName;
    use lanekeeper_control::placement::{DataPath, Neighbour};
    let rig = Rig::new(Personality::Mlx5);
    let nics = rig.nics();
    nics.set(&lane(1), &wanted(5, LinkState::Auto)).expect("set");
    let expected = Neighbour { system: "leaf7".to_owned(), port: "Ethernet1/7".to_owned() };
    let labels = NicLabels {
        rail: Some(3),
        speed: Some(Mbps(7)),
        neighbour: Some(expected.clone()),
        ..NicLabels::default()
    };
    let config = NodeConfig {
        state_folder: rig.folder.path().to_owned(),
        nics: [(lane(0).pf, labels)].into(),
        ..NodeConfig::new(FabricName::new("lab").expect("a name"))
    };
    let no_software = On(Arc::default());
    let told = || {
        let report =
            inventory(&config, &no_software, Some(&nics), &BTreeMap::new()).expect("a report");
        report.pfs.into_iter().next()
    };
    let pf = told().expect("the PF");
    assert_eq!((pf.name, pf.path, pf.rail), (lane(0).pf, DataPath::SriovRdma, Some(3)));
    let speed =
        rig.fake.read(rig.pf).expect("read").netdev.and_then(|it| it.speed).expect("a link");
    assert_eq!(pf.rate, speed, "as nothing else is said");
    assert_eq!(pf.vfs.len(), 4);
    let cable = pf.cable.expect("told");
    assert_eq!(cable.expected_neighbour, Some(expected));
    assert!(cable.differences()[0].contains("and 7 are expected"), "{cable:?}");

    rig.fake.set_cable(rig.pf, false).expect("unplugged");
    let pf = told().expect("it is there");
    assert_eq!(pf.vfs, [lane(1).vf].into(), "only what a VM has");
    assert_eq!(pf.cable.expect("told").differences(), ["it has no link"]);
    rig.fake.set_cable(rig.pf, true).expect("plugged in");
    assert_eq!(told().expect("it is there").vfs.len(), 4);
    rig.fake.hot_remove(rig.pf).expect("pulled out");
    assert!(told().is_none(), "it is not there");
}

#[test]
fn a_damaged_record_leaves_out_its_own_pf_alone() {
    let rig = Rig::new(Personality::Ice);
    let nics = rig.nics();
    nics.set(&lane(0), &wanted(5, LinkState::Auto)).expect("set");
    let ledger = rig.folder.path().join("ledger");
    let mut files =
        std::fs::read_dir(&ledger).expect("listed").map(|it| it.expect("an entry").path());
    let record = files.find(|it| it.extension().is_some_and(|it| it == "json"));
    let copy = ledger.join("pf-another-00000000.json");
    std::fs::write(&copy, "{ damaged").expect("written");
    assert!(nics.has(&lane(0).pf).expect("read"));
    assert_eq!(offers(&nics), [0, 1, 2, 3]);
    std::fs::write(record.expect("a record"), "{ damaged").expect("written");
    assert!(!nics.has(&lane(0).pf).expect("read"));
    assert!(offers(&nics).is_empty());
}
