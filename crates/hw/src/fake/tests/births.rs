//! VFs come and go.

use std::collections::BTreeSet;

use super::*;
use crate::inventory::TotalVfs;
use lanekeeper_model::PciAddr;

#[test]
fn vfs_are_made_from_none_and_removed_to_none_only() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 4);
        assert_eq!(refusal(fake.write_num_vfs(pf, 2)), EBUSY);
        fake.write_num_vfs(pf, 0).expect("to none");
        let reading = fake.read(pf).expect("read");
        assert_eq!((reading.num_vfs, reading.vfs.len()), (0, 0));
    }
}

#[test]
fn writing_the_number_that_is_does_nothing_and_is_counted() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 4);
    send(&fake, pf, 1, set_mac(mac(1))).expect("set");
    fake.write_num_vfs(pf, 4).expect("as it is");
    assert_eq!(attributes(&fake, pf, 1).mac, mac(1));
    assert_eq!(fake.num_vfs_writes(pf), 2);
}

#[test]
fn more_vfs_than_the_pf_has_are_refused() {
    for personality in Personality::ALL {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(personality).total_vfs(5));
        assert_eq!(refusal(fake.write_num_vfs(pf, 6)), ERANGE);
    }
}

#[test]
fn vfs_that_are_made_again_have_lost_their_settings() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 2);
        let at_birth = VfAttributes { mac: MacAddr::ZERO, ..attributes(&fake, pf, 1) };
        for message in [set_mac(mac(1)), set_vlan(7), set_trust(true), set_rate(0, 100)] {
            send(&fake, pf, 1, message).expect("set");
        }
        fake.write_num_vfs(pf, 0).expect("gone");
        fake.write_num_vfs(pf, 2).expect("back");
        let now = attributes(&fake, pf, 1);
        assert_eq!(VfAttributes { mac: MacAddr::ZERO, ..now }, at_birth);
        assert_ne!(now.mac, mac(1));
    }
}

#[test]
fn bnxt_en_makes_and_removes_nothing_while_it_is_down_and_says_that_all_is_well() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::BnxtEn).down());
    fake.write_num_vfs(pf, 4).expect("taken");
    assert_eq!(fake.read(pf).expect("read").num_vfs, 0);
    fake.set_up(pf, true).expect("up");
    fake.write_num_vfs(pf, 4).expect("made");
    fake.set_up(pf, false).expect("down");
    fake.write_num_vfs(pf, 0).expect("taken");
    assert_eq!(refusal(fake.write_num_vfs(pf, 2)), EBUSY, "the kernel asks first");
    assert_eq!(fake.read(pf).expect("read").num_vfs, 4);
}

#[test]
fn vfs_of_igb_and_ixgbe_that_are_made_while_it_is_down_are_dead_until_probed_anew() {
    for personality in [Personality::Igb, Personality::Ixgbe] {
        let (fake, pf) = with_vfs(FakePf::new(personality).down(), 2);
        send(&fake, pf, 0, set_mac(mac(1))).expect("set");
        fake.set_up(pf, true).expect("up");
        let dead = reading(&fake, pf, 0);
        assert!(!dead.netdev.as_ref().expect("bound").carrier);
        assert!(fake.silence(pf, vf(0)).expect("there").is_some());
        fake.unbind(pf, dead.addr).expect("unbound");
        fake.probe(pf, dead.addr).expect("probed");
        let netdev = reading(&fake, pf, 0).netdev.expect("bound");
        assert_eq!((netdev.mac, netdev.carrier), (mac(1), true));
        assert_eq!(fake.silence(pf, vf(0)).expect("there"), None);
    }
}

#[test]
fn other_drivers_make_living_vfs_while_they_are_down() {
    for personality in [Personality::I40e, Personality::Ice, Personality::Mlx5] {
        let (fake, pf) = with_vfs(FakePf::new(personality).down(), 2);
        fake.set_up(pf, true).expect("up");
        assert_eq!(fake.silence(pf, vf(0)).expect("there"), None);
    }
}

#[test]
fn vfs_may_appear_one_after_another_while_their_number_is_told_at_once() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).appearing_after(4), 8);
    let seen = || {
        let reading = fake.read(pf).expect("read");
        assert_eq!(reading.num_vfs, 8);
        reading.vfs.len()
    };
    assert_eq!([seen(), seen(), seen(), seen(), seen()], [2, 4, 6, 8, 8]);
}

#[test]
fn without_autoprobe_vfs_have_no_driver() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::I40e));
    fake.write_autoprobe(pf, false).expect("set");
    fake.write_num_vfs(pf, 2).expect("made");
    let vf = reading(&fake, pf, 0);
    assert_eq!((vf.driver, vf.netdev), (None, None));
    fake.probe(pf, vf.addr).expect("probed");
    assert_eq!(reading(&fake, pf, 0).driver, None, "not without an override");
}

#[test]
fn vf_addresses_follow_offset_and_stride_and_cross_a_bus() {
    let fake = Fake::new();
    let at = "0000:86:00.0".parse().expect("valid");
    let pf = fake.add_pf(FakePf::new(Personality::Igb).at(at).routing(0x80, 2));
    fake.write_num_vfs(pf, 7).expect("made");
    assert_eq!(reading(&fake, pf, 0).addr.to_string(), "0000:86:10.0");
    assert_eq!(reading(&fake, pf, 6).addr.to_string(), "0000:86:11.4");
    let at = "0000:3b:00.0".parse().expect("valid");
    let wide = FakePf::new(Personality::Mlx5).at(at).total_vfs(300).routing(2, 1);
    let pf = fake.add_pf(wide);
    fake.write_num_vfs(pf, 300).expect("made");
    assert_eq!(reading(&fake, pf, 5).addr.to_string(), "0000:3b:00.7");
    assert_eq!(reading(&fake, pf, 6).addr.to_string(), "0000:3b:01.0");
    assert_eq!(reading(&fake, pf, 299).addr.to_string(), "0000:3c:05.5");
}

#[test]
fn ports_of_one_board_have_vfs_of_their_own() {
    for personality in Personality::ALL {
        let fake = Fake::new();
        let ports = ["0000:3b:00.0", "0000:3b:00.1"]
            .map(|at| fake.add_pf(FakePf::new(personality).at(at.parse().expect("valid"))));
        let mut addresses = BTreeSet::new();
        for pf in ports {
            let TotalVfs::UpTo(total) = fake.read(pf).expect("read").total_vfs else {
                panic!("it has VFs");
            };
            fake.write_num_vfs(pf, total).expect("made");
            for vf in fake.read(pf).expect("read").vfs {
                assert!(addresses.insert(vf.addr), "{} twice", vf.addr);
            }
        }
    }
}

#[test]
#[should_panic(expected = "a VF would be where")]
fn a_pf_that_would_lie_on_anothers_vfs_cannot_be_put_in() {
    let fake = Fake::new();
    let first = FakePf::new(Personality::Mlx5).at("0000:3b:00.0".parse().expect("valid"));
    fake.add_pf(first.routing(8, 1));
    fake.add_pf(FakePf::new(Personality::Mlx5).at("0000:3b:01.0".parse().expect("valid")));
}

#[test]
fn groups_hold_what_the_iommu_cannot_tell_apart() {
    let members = |grouping| {
        let (fake, pf) = with_vfs(FakePf::new(Personality::Ice).grouped(grouping), 4);
        let group = reading(&fake, pf, 1).iommu_group;
        (pf, group.map(|group| group.members))
    };
    assert_eq!(members(Grouping::Off).1, None);
    assert_eq!(members(Grouping::Own).1.expect("a group").len(), 1);
    assert_eq!(members(Grouping::Shared(2)).1.expect("a group").len(), 2);
    let (pf, all) = members(Grouping::WithPf);
    let all = all.expect("a group");
    assert_eq!(all.len(), 5);
    assert!(all.contains(&PciAddr::from(pf)));
}

#[test]
fn another_function_may_be_in_a_vfs_group() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 1);
    let number = reading(&fake, pf, 0).iommu_group.expect("a group").number;
    let mut bridge = fake.pci_tree().expect("read")[0].clone();
    bridge.addr = "0000:00:01.0".parse().expect("valid");
    bridge.iommu_group = Some(number);
    fake.add_pci(bridge.clone());
    let members = reading(&fake, pf, 0).iommu_group.expect("a group").members;
    assert!(members.contains(&bridge.addr), "{members:?}");
    assert_eq!(fake.pci_tree().expect("read").len(), 3);
}

#[test]
fn a_pf_without_the_capability_says_whether_that_is_for_now_or_for_ever() {
    let fake = Fake::new();
    let off = fake.add_pf(FakePf::new(Personality::Mlx5).off_in_firmware());
    let never = fake.add_pf(FakePf::new(Personality::Mlx5).without_sriov());
    assert_eq!(fake.read(off).expect("read").total_vfs, TotalVfs::OffInFirmware);
    assert_eq!(fake.read(never).expect("read").total_vfs, TotalVfs::Never);
    assert!(lacking(fake.write_num_vfs(off, 1)).contains("firmware"));
}

#[test]
fn no_room_for_registers_is_enomem() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Ice).without_room_for_vfs());
    assert_eq!(refusal(fake.write_num_vfs(pf, 4)), ENOMEM);
    assert_eq!(fake.read(pf).expect("read").num_vfs, 0);
}
