//! Plans: what would be done, in which order, and what stands in the way. Nothing is written.

use lanekeeper_host::{Finding, Plan, Step};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_model::{EswitchMode, PfAddr};

use crate::rig::{Rig, entry, request, rich, token, vf};

fn plan(rig: &Rig, pf: PfAddr, vfs: u16, more: &str) -> Plan {
    rig.owner().plan(&entry(&rig.fake, pf, "rail0", vfs, more)).expect("a plan")
}

fn steps(plan: &Plan) -> Vec<Step> {
    plan.steps().map(|step| step.step.clone()).collect()
}

#[test]
fn sixty_three_to_four_goes_by_way_of_zero() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ixgbe));
    rig.fake.write_num_vfs(pf, 63).expect("made");
    let steps = steps(&plan(&rig, pf, 4, ""));
    let wanted = [Step::NumVfs(0), Step::NumVfs(4), Step::Await(4)];
    assert!(steps.windows(3).any(|window| window == wanted), "{steps:?}");
}

#[test]
fn the_number_that_it_has_is_no_step() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::I40e));
    rig.fake.write_num_vfs(pf, 4).expect("made");
    rig.fake.clear_log();
    let plan = plan(&rig, pf, 4, "");
    assert!(!steps(&plan).iter().any(|step| matches!(step, Step::NumVfs(_))), "{plan:?}");
    rig.owner().apply(&plan, None).expect("applied");
    assert_eq!(rig.fake.num_vfs_writes(pf), 0);
}

#[test]
fn a_plan_writes_nothing() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    let first = plan(&rig, pf, 4, "eswitch: switchdev");
    assert_eq!(first, plan(&rig, pf, 4, "eswitch: switchdev"));
    assert!(!first.is_empty() && rig.fake.writes().is_empty());
}

fn order(personality: Personality) -> Vec<Step> {
    let (rig, pf) = Rig::with(FakePf::new(personality).down());
    let plan = plan(&rig, pf, 4, "eswitch: switchdev");
    let order = steps(&plan);
    rig.owner().apply(&plan, None).expect("the driver agrees with the order");
    assert_eq!(rig.read(pf).eswitch, Some(EswitchMode::Switchdev));
    order
}

fn place(steps: &[Step], step: &Step) -> usize {
    steps.iter().position(|found| found == step).unwrap_or_else(|| panic!("{step} in {steps:?}"))
}

#[test]
fn mlx5_gets_all_its_vfs_unbound_before_switchdev() {
    let steps = order(Personality::Mlx5);
    let at = |step| place(&steps, &step);
    assert!(at(Step::Await(4)) < at(Step::UnbindVfs));
    assert!(at(Step::UnbindVfs) < at(Step::Eswitch(EswitchMode::Switchdev)));
}

#[test]
fn ice_is_switchdev_before_it_has_vfs() {
    let steps = order(Personality::Ice);
    let at = |step| place(&steps, &step);
    assert!(at(Step::Eswitch(EswitchMode::Switchdev)) < at(Step::NumVfs(4)));
}

#[test]
fn a_pf_is_up_before_it_has_vfs() {
    for personality in [Personality::BnxtEn, Personality::Igb, Personality::Ixgbe] {
        let (rig, pf) = Rig::with(FakePf::new(personality).down());
        let plan = plan(&rig, pf, 4, "");
        let steps = steps(&plan);
        assert!(place(&steps, &Step::Up(true)) < place(&steps, &Step::NumVfs(4)));
        rig.owner().apply(&plan, None).expect("applied");
        assert_eq!(rig.read(pf).vfs.len(), 4);
    }
}

#[test]
fn every_order_also_leads_back_to_legacy() {
    for personality in [Personality::Mlx5, Personality::Ice, Personality::BnxtEn] {
        let (rig, pf) = Rig::with(FakePf::new(personality));
        for (vfs, mode) in [(4, "switchdev"), (2, "legacy"), (4, "switchdev"), (6, "switchdev")] {
            rig.apply(&entry(&rig.fake, pf, "rail0", vfs, &format!("eswitch: {mode}")));
            let reading = rig.read(pf);
            assert_eq!(reading.num_vfs, vfs, "{personality:?}");
            assert_eq!(reading.eswitch.expect("a mode").to_string(), mode, "{personality:?}");
        }
    }
}

#[test]
fn a_link_that_legacy_mode_closed_is_open_in_switchdev() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Mlx5), 2);
    rig.apply(&entry(&rig.fake, pf, "rail0", 2, "eswitch: switchdev"));
    assert_eq!(rig.fake.num_vfs_writes(pf), 0, "N == N is no write");
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    assert_eq!(rig.fake.silence(pf, claim.vf).expect("a VF"), None);
}

#[test]
fn who_manages_the_pf_is_said_first() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb).managed_by("NetworkManager"));
    let plan = plan(&rig, pf, 4, "");
    assert!(matches!(plan.findings[0], Finding::ManagedBy { .. }), "{:?}", plan.findings);
    assert!(plan.findings[0].to_string().contains("NetworkManager"));
    assert!(plan.blockers().is_empty());
}

#[test]
fn a_firmware_change_that_waits_is_reported_and_never_acted_on() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    rig.fake.set_pending(pf, "NUM_OF_VFS 16 to 12", None).expect("pending");
    for _ in 0..3 {
        let plan = plan(&rig, pf, 4, "");
        assert!(
            plan.findings.iter().any(|finding| finding.to_string().contains("NUM_OF_VFS")),
            "{:?}",
            plan.findings
        );
        rig.owner().apply(&plan, None).expect("what can be done now is done");
    }
    assert_eq!(rig.fake.num_vfs_writes(pf), 1, "once, for the VFs that are wanted now");
}

#[test]
fn not_now_and_never_are_told_apart() {
    let why = |pf: FakePf| {
        let (rig, pf) = Rig::with(pf);
        plan(&rig, pf, 4, "").blockers().remove(0)
    };
    let off = why(FakePf::new(Personality::Mlx5).off_in_firmware());
    assert!(matches!(off, Finding::FirmwareOff { .. }), "{off}");
    let never = why(FakePf::new(Personality::Mlx5).without_sriov());
    assert!(matches!(never, Finding::NeverCapable { .. }), "{never}");
    let few = why(FakePf::new(Personality::Mlx5).total_vfs(2));
    assert!(few.to_string().contains("it can have 2"), "{few}");
}

#[test]
fn more_vfs_than_a_bond_can_share_are_refused() {
    let pf = FakePf::new(Personality::Mlx5).total_vfs(127).in_bond("bond0");
    let (rig, pf) = Rig::with(pf);
    assert!(plan(&rig, pf, 64, "").blockers().is_empty());
    let refusal = plan(&rig, pf, 65, "").blockers().remove(0);
    assert!(refusal.to_string().contains("bond0"), "{refusal}");
}

#[test]
fn what_a_driver_lacks_of_a_roce_profile_is_said() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    let plan = rig.owner().plan(&rich(&rig.fake, pf, 4)).expect("a plan");
    let said: Vec<String> = plan.findings.iter().map(ToString::to_string).collect();
    for kind in ["trust", "dscp_priority", "pfc", "ecn", "cm_tos"] {
        assert!(
            said.iter().any(|line| line.contains("igb has no") && line.contains(kind)),
            "{kind}"
        );
    }
    assert!(plan.blockers().is_empty());
}

#[test]
fn vfs_of_owners_and_of_strangers_stand_in_the_way_by_name() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 4);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    let refusal = plan(&rig, pf, 2, "").blockers().remove(0).to_string();
    assert!(refusal.contains(&claim.id.to_string()) && refusal.contains("VF 0"), "{refusal}");

    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    rig.fake.write_num_vfs(pf, 2).expect("made");
    let address = rig.read(pf).vfs[1].addr;
    rig.fake.write_driver_override(pf, address, Some("vfio-pci")).expect("override");
    rig.fake.unbind(pf, address).expect("unbound");
    rig.fake.probe(pf, address).expect("bound");
    rig.fake.open_vf(pf, vf(1), 4711, "qemu-system-x86").expect("opened");
    let refusal = plan(&rig, pf, 4, "").blockers().remove(0).to_string();
    assert!(refusal.contains("4711") && refusal.contains("qemu"), "{refusal}");
}

#[test]
fn a_pf_without_an_interface_here_is_said_and_not_guessed_at() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
    let file = entry(&rig.fake, pf, "rail0", 4, "");
    rig.fake.set_netdev_here(pf, false).expect("moved");
    let plan = rig.owner().plan(&file).expect("a plan");
    assert!(!plan.blockers().is_empty() && plan.is_empty());
}

#[test]
fn two_entries_that_mean_one_pf_are_refused() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    let mut file = entry(&rig.fake, pf, "rail0", 2, "");
    let mut second = file.pfs[0].clone();
    second.name = "rail1".to_owned();
    file.pfs.push(second);
    let refusal = rig.owner().plan(&file).expect("a plan").blockers().remove(0).to_string();
    assert!(refusal.contains("rail0") && refusal.contains("rail1"), "{refusal}");
}

#[test]
fn a_pf_that_hangs_is_failed_and_the_others_are_planned() {
    use lanekeeper_hw::guarded::{Deadlines, Guarded};
    use std::time::Duration;
    let rig = Rig::new();
    let (good, bad) = (
        rig.fake.add_pf(FakePf::new(Personality::Igb)),
        rig.fake.add_pf(FakePf::new(Personality::Igb)),
    );
    let file = entry(&rig.fake, good, "rail0", 2, "");
    rig.fake.hang(bad).expect("hangs");
    let deadlines = Deadlines { read: Duration::from_millis(50), ..Deadlines::default() };
    let guarded = Guarded::with_deadlines(rig.fake.clone(), deadlines);
    let owner = rig.owner_over(std::sync::Arc::new(guarded));
    let plan = owner.plan(&file).expect("a plan");
    assert!(plan.findings.iter().any(|finding| matches!(finding, Finding::Failed { .. })));
    owner.apply(&plan, None).expect("the good one is applied");
    assert_eq!(rig.read(good).num_vfs, 2);
    rig.fake.heal(bad).expect("healed");
}

#[test]
fn an_mtu_that_owners_were_given_is_not_taken_from_them() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Ice));
    rig.apply(&entry(&rig.fake, pf, "rail0", 2, "mtu: 9000"));
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    let lower = plan(&rig, pf, 2, "mtu: 1500");
    let error = rig.owner().apply(&lower, None).expect_err("refused");
    assert!(error.to_string().contains(&claim.id.0), "{error}");
    assert_eq!(rig.read(pf).netdev.expect("here").mtu, 9_000);
    let which = lanekeeper_host::Which::Claim(claim.id);
    rig.owner().release(&which, &token("tenant")).expect("released");
    rig.owner().apply(&plan(&rig, pf, 2, "mtu: 1500"), None).expect("nobody needs more");
}

#[test]
fn a_name_is_not_two_pfs_of_ours() {
    let rig = Rig::new();
    let [one, other] = [1, 2].map(|_| rig.fake.add_pf(FakePf::new(Personality::Ice)));
    rig.apply(&entry(&rig.fake, one, "rail0", 2, ""));
    let moved = plan(&rig, other, 2, "");
    let error = rig.owner().apply(&moved, None).expect_err("refused");
    assert!(error.to_string().contains("another PF of ours has that name"), "{error}");
    rig.owner().give_back("rail0").expect("given back");
    rig.owner().apply(&plan(&rig, other, 2, ""), None).expect("applied");
    rig.owner().give_back("rail0").expect("the one that has the name now");
    assert_eq!((rig.read(one).num_vfs, rig.read(other).num_vfs), (0, 0));
}

#[test]
fn a_card_in_the_place_of_one_that_died_has_its_name() {
    let (rig, dead) = Rig::applied(FakePf::new(Personality::Mlx5), 2);
    let claim = rig.owner().claim(&request("tenant")).expect("claimed");
    rig.fake.hot_remove(dead).expect("it died");
    let new = rig.fake.add_pf(FakePf::new(Personality::Mlx5));
    let error = rig.owner().apply(&plan(&rig, new, 2, ""), None).expect_err("a claim is left");
    assert!(error.to_string().contains("release its claims"), "{error}");
    let which = lanekeeper_host::Which::Claim(claim.id);
    rig.owner().release(&which, &token("tenant")).expect("released");
    rig.owner().apply(&plan(&rig, new, 2, ""), None).expect("applied");
    let mut asked = request("next");
    asked.pf = Some("rail0".to_owned());
    assert_eq!(rig.owner().claim(&asked).expect("claimed").pf_address, new);
    let recovered = rig.owner().recover().expect("recovered");
    assert!(recovered.events.is_empty(), "the dead one is forgotten: {recovered:?}");
}

#[test]
fn names_change_places_in_one_apply_with_the_claims() {
    let rig = Rig::new();
    let [one, other] = [1, 2].map(|_| rig.fake.add_pf(FakePf::new(Personality::Ice)));
    let file = |first: PfAddr, second: PfAddr| {
        let mac = |pf| rig.read(pf).permanent_mac.expect("a MAC");
        let (first, second) = (mac(first), mac(second));
        crate::rig::parse(&format!(
            "version: 1\npfs:\n  - {{name: rail0, select: {{permanent_mac: '{first}'}}, vfs: 1}}\n  \
             - {{name: rail1, select: {{permanent_mac: '{second}'}}, vfs: 1}}\n"
        ))
    };
    rig.apply(&file(one, other));
    rig.owner().claim(&request("tenant-1")).expect("claimed");
    rig.owner().claim(&request("tenant-2")).expect("claimed");
    rig.apply(&file(other, one));
    let claim = rig.owner().claim(&request("tenant-1")).expect("the same");
    assert_eq!(claim.pf == "rail0", claim.pf_address == other);
}
