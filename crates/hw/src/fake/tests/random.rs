//! Random histories: whatever is done to a fake host in whatever order, no step panics and what it
//! tells of itself agrees.

use std::collections::BTreeSet;

use lanekeeper_model::{EswitchMode, LinkState, PciAddr};
use proptest::prelude::*;

use super::*;
use crate::inventory::TotalVfs;

/// One thing that happens; numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    NumVfs(usize, u16),
    Autoprobe(usize, bool),
    Up(usize, bool),
    Eswitch(usize, bool),
    Message(usize, u32, VfMessage),
    Override(usize, usize, Option<&'static str>),
    Unbind(usize, usize),
    Probe(usize, usize),
    Reset(usize, usize),
    Open(usize, u32),
    Close(usize, u32),
    GuestMac(usize, u32, u8),
    Replug(usize),
    ResetPf(usize),
    Reload(usize),
    Reboot,
    Read(usize),
}

fn message() -> impl Strategy<Value = VfMessage> {
    let mac = prop::option::of(
        (0..4_u8).prop_map(|last| if last == 0 { MacAddr::ZERO } else { mac(last) }),
    );
    let vlan = prop::option::of((0..4_u32).prop_map(|id| set_vlan(id).vlan.expect("given")));
    let rate = prop::option::of(
        (0..3_u32, 0..2_000_u32)
            .prop_map(|(min, max)| RateLimits { min: Mbps(min), max: Mbps(max) }),
    );
    let link = prop::option::of(prop_oneof![
        Just(LinkState::Auto),
        Just(LinkState::Enable),
        Just(LinkState::Disable)
    ]);
    let knob = || prop::option::of(any::<bool>());
    (mac, vlan, rate, knob(), link, knob()).prop_map(
        |(mac, vlan, rate, spoofchk, link_state, trust)| VfMessage {
            mac,
            vlan,
            rate,
            spoofchk,
            link_state,
            trust,
            node_guid: None,
            port_guid: None,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let pf = || 0..6_usize;
    let driver =
        prop_oneof![Just(None), Just(Some("vfio-pci")), Just(Some("iavf")), Just(Some("nonsense"))];
    prop_oneof![
        4 => (pf(), 0..9_u16).prop_map(|(pf, count)| Step::NumVfs(pf, count)),
        1 => (pf(), any::<bool>()).prop_map(|(pf, on)| Step::Autoprobe(pf, on)),
        1 => (pf(), any::<bool>()).prop_map(|(pf, on)| Step::Up(pf, on)),
        1 => (pf(), any::<bool>()).prop_map(|(pf, on)| Step::Eswitch(pf, on)),
        4 => (pf(), 0..9_u32, message()).prop_map(|(pf, vf, sent)| Step::Message(pf, vf, sent)),
        2 => (pf(), 0..8_usize, driver).prop_map(|(pf, vf, name)| Step::Override(pf, vf, name)),
        2 => (pf(), 0..8_usize).prop_map(|(pf, vf)| Step::Unbind(pf, vf)),
        2 => (pf(), 0..8_usize).prop_map(|(pf, vf)| Step::Probe(pf, vf)),
        1 => (pf(), 0..8_usize).prop_map(|(pf, vf)| Step::Reset(pf, vf)),
        2 => (pf(), 0..9_u32).prop_map(|(pf, vf)| Step::Open(pf, vf)),
        2 => (pf(), 0..9_u32).prop_map(|(pf, vf)| Step::Close(pf, vf)),
        1 => (pf(), 0..9_u32, 1..9_u8).prop_map(|(pf, vf, mac)| Step::GuestMac(pf, vf, mac)),
        1 => pf().prop_map(Step::Replug),
        1 => pf().prop_map(Step::ResetPf),
        1 => pf().prop_map(Step::Reload),
        1 => Just(Step::Reboot),
        2 => pf().prop_map(Step::Read),
    ]
}

/// Do it unless it would wait for a holder, which nobody here would end.
fn perform(fake: &Fake, step: Step) {
    let pfs = fake.list().expect("listed");
    let at = |pf: usize| pfs[pf % pfs.len()];
    let addr = |pf: usize, index: usize| {
        let vfs = fake.read(at(pf)).expect("read").vfs;
        (!vfs.is_empty()).then(|| vfs[index % vfs.len()].clone())
    };
    match step {
        Step::NumVfs(pf, count) => {
            let vfs = fake.read(at(pf)).expect("read").vfs;
            if vfs.iter().all(|vf| vf.holder.is_none()) {
                let _ = fake.write_num_vfs(at(pf), count);
            }
        }
        Step::Autoprobe(pf, on) => drop(fake.write_autoprobe(at(pf), on)),
        Step::Up(pf, on) => drop(fake.set_up(at(pf), on)),
        Step::Eswitch(pf, on) => {
            let mode = if on { EswitchMode::Switchdev } else { EswitchMode::Legacy };
            let _ = fake.set_eswitch(at(pf), mode);
        }
        Step::Message(pf, index, message) => drop(send(fake, at(pf), index, message)),
        Step::Override(pf, index, driver) => {
            if let Some(vf) = addr(pf, index) {
                fake.write_driver_override(at(pf), vf.addr, driver).expect("a VF of it");
            }
        }
        Step::Unbind(pf, index) => {
            if let Some(vf) = addr(pf, index).filter(|vf| vf.holder.is_none()) {
                fake.unbind(at(pf), vf.addr).expect("a VF of it");
            }
        }
        Step::Probe(pf, index) => {
            if let Some(vf) = addr(pf, index) {
                fake.probe(at(pf), vf.addr).expect("a VF of it");
            }
        }
        Step::Reset(pf, index) => {
            if let Some(vf) = addr(pf, index) {
                fake.reset(at(pf), vf.addr).expect("a VF of it");
            }
        }
        Step::Open(pf, index) => drop(fake.open_vf(at(pf), vf(index), 1, "qemu")),
        Step::Close(pf, index) => drop(fake.close_vf(at(pf), vf(index))),
        Step::GuestMac(pf, index, last) => {
            let _ = fake.guest_sets_mac(at(pf), vf(index), mac(last));
        }
        Step::Replug(pf) => {
            let board = fake.hot_remove(at(pf)).expect("there");
            fake.add_pf(board);
        }
        Step::ResetPf(pf) => fake.reset_pf(at(pf)).expect("there"),
        Step::Reload(pf) => fake.reload_driver(at(pf)).expect("there"),
        Step::Reboot => fake.reboot(),
        Step::Read(pf) => drop(fake.read(at(pf)).expect("read")),
    }
}

fn check(fake: &Fake) {
    let pfs = fake.list().expect("listed");
    let mut functions = BTreeSet::new();
    let mut indices = BTreeSet::new();
    for pf in pfs {
        let reading = fake.read(pf).expect("read");
        assert!(functions.insert(PciAddr::from(pf)));
        assert_eq!(usize::from(reading.num_vfs), reading.vfs.len());
        assert!(matches!(reading.total_vfs, TotalVfs::UpTo(total) if reading.num_vfs <= total));
        let group = reading.iommu_group.as_ref().expect("an IOMMU");
        assert!(group.members.contains(&pf.into()));
        assert!(indices.insert(reading.netdev.as_ref().expect("here").index));
        for (number, vf) in reading.vfs.iter().enumerate() {
            assert_eq!(vf.vf.get(), number);
            assert!(functions.insert(vf.addr.into()), "{} twice", vf.addr);
            let group = vf.iommu_group.as_ref().expect("an IOMMU");
            assert!(group.members.contains(&vf.addr.into()));
            assert_eq!(vf.representor.is_some(), reading.eswitch == Some(EswitchMode::Switchdev));
            let vfio = vf.driver.as_deref() == Some("vfio-pci");
            assert!(vf.holder.is_none() || vfio, "held and not VFIO's");
            assert!(vf.netdev.is_none() || vf.driver.is_some() && !vfio);
            assert!(vf.rdma.is_none() || vf.netdev.is_some());
            assert!(vf.netdev.iter().all(|netdev| indices.insert(netdev.index)));
            let told = vf.attributes.expect("told");
            assert!(!told.mac.is_multicast());
            assert!(told.rate.max.0 == 0 || told.rate.min <= told.rate.max);
        }
    }
    let tree: BTreeSet<_> =
        fake.pci_tree().expect("read").into_iter().map(|node| node.addr).collect();
    assert_eq!(tree, functions);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_history_makes_a_fake_host_contradict_itself(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let fake = Fake::new();
        for personality in Personality::ALL {
            fake.add_pf(FakePf::new(personality));
        }
        for step in steps {
            perform(&fake, step);
            check(&fake);
        }
        assert_eq!(fake.outstanding(), 0);
    }
}
