//! What a host goes through.

use std::thread;
use std::time::Duration;

use super::*;
use crate::inventory::TotalVfs;
use lanekeeper_model::{EswitchMode, PciAddr};

#[test]
fn a_removed_pf_is_not_there_and_the_same_board_may_come_back_elsewhere() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 2);
    let before = fake.read(pf).expect("read");
    let board = fake.hot_remove(pf).expect("pulled");
    assert!(matches!(fake.read(pf), Err(HardwareError::NoPf(_))));
    assert_eq!(fake.list().expect("listed"), []);
    let elsewhere = fake.add_pf(board.at("0000:c1:00.0".parse().expect("valid")));
    let after = fake.read(elsewhere).expect("read");
    assert_eq!(after.permanent_mac, before.permanent_mac);
    assert_eq!((after.slot, after.serial), (before.slot, before.serial));
    assert_eq!(after.num_vfs, 0);
}

#[test]
fn a_call_that_hangs_ends_when_the_pf_is_pulled() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::I40e), 1);
    fake.hang(pf).expect("there");
    let read = thread::spawn({
        let fake = fake.clone();
        move || fake.read(pf)
    });
    thread::sleep(Duration::from_millis(20));
    assert!(!read.is_finished());
    let board = fake.hot_remove(pf).expect("pulled");
    fake.add_pf(board);
    assert!(matches!(read.join().expect("no panic"), Err(HardwareError::NoPf(_))));
}

#[test]
fn a_pf_that_hangs_goes_on_when_it_is_healed_and_others_never_stopped() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::I40e), 1);
    let other = fake.add_pf(FakePf::new(Personality::Ice));
    fake.hang(pf).expect("there");
    let write = thread::spawn({
        let fake = fake.clone();
        move || fake.write_num_vfs(pf, 0)
    });
    fake.read(other).expect("read");
    assert_eq!(fake.list().expect("listed").len(), 2);
    assert!(!write.is_finished());
    fake.heal(pf).expect("there");
    write.join().expect("no panic").expect("removed");
}

#[test]
fn a_write_of_sriov_numvfs_may_block_and_with_it_the_pf() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::I40e).with_hanging_num_vfs());
    fake.read(pf).expect("not yet");
    let write = thread::spawn({
        let fake = fake.clone();
        move || fake.write_num_vfs(pf, 2)
    });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(fake.outstanding(), 1);
    fake.heal(pf).expect("there");
    write.join().expect("no panic").expect("made");
    assert_eq!(fake.read(pf).expect("read").num_vfs, 2);
}

#[test]
fn a_boot_loses_vfs_settings_and_numbers_and_keeps_the_board() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 2);
    bind_vfio(&fake, pf, 0);
    fake.open_vf(pf, vf(0), 1, "qemu").expect("opened");
    let mtu = lanekeeper_model::Mtu::new(9000).expect("valid");
    fake.set_roce(pf, &lanekeeper_model::RoceSetting::Mtu(mtu)).expect("set");
    let before = fake.read(pf).expect("read");
    fake.reboot();
    let after = fake.read(pf).expect("read");
    assert_eq!((after.num_vfs, after.permanent_mac), (0, before.permanent_mac));
    assert_ne!(after.roce, before.roce);
    assert_ne!(after.iommu_group, before.iommu_group);
    let index = |netdev: Option<crate::inventory::Netdev>| netdev.expect("there").index;
    assert_ne!(index(after.netdev), index(before.netdev));
    fake.write_num_vfs(pf, 2).expect("made anew: nobody holds them");
}

#[test]
fn rdma_devices_are_numbered_otherwise_after_a_boot() {
    let fake = Fake::new();
    let pfs = [0, 1].map(|_| fake.add_pf(FakePf::new(Personality::Mlx5)));
    let names = || pfs.map(|pf| fake.read(pf).expect("read").rdma.expect("a device").name);
    let before = names();
    fake.reboot();
    assert_ne!(names(), before);
}

#[test]
fn interfaces_may_change_names() {
    let fake = Fake::new();
    let one = fake.add_pf(FakePf::new(Personality::Ice).named("ens1"));
    let other = fake.add_pf(FakePf::new(Personality::Ice).named("ens2"));
    fake.swap_names(one, other).expect("there");
    let name = |pf| fake.read(pf).expect("read").netdev.expect("there").name;
    assert_eq!((name(one).as_str(), name(other).as_str()), ("ens2", "ens1"));
}

#[test]
fn a_pending_change_of_the_firmware_holds_from_the_next_boot_on() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Mlx5).off_in_firmware());
    fake.set_pending(pf, "NUM_OF_VFS 16", Some(TotalVfs::UpTo(16))).expect("there");
    let before = fake.read(pf).expect("read");
    assert_eq!(before.pending_reset.as_deref(), Some("NUM_OF_VFS 16"));
    assert_eq!(before.total_vfs, TotalVfs::OffInFirmware);
    fake.reboot();
    let after = fake.read(pf).expect("read");
    assert_eq!((after.pending_reset, after.total_vfs), (None, TotalVfs::UpTo(16)));
}

#[test]
fn a_pf_that_was_reset_leaves_its_vfs_dead_until_they_are_made_anew() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        fake.reset_pf(pf).expect("there");
        let dead = reading(&fake, pf, 0);
        assert!(!dead.netdev.expect("bound").carrier);
        fake.unbind(pf, dead.addr).expect("unbound");
        fake.probe(pf, dead.addr).expect("probed");
        let bound = reading(&fake, pf, 0);
        assert!(bound.driver.is_some() && bound.netdev.is_none(), "bound, and no interface");
        fake.write_num_vfs(pf, 0).expect("removed");
        fake.write_num_vfs(pf, 1).expect("made");
        assert_eq!(fake.silence(pf, vf(0)).expect("there"), None);
    }
}

#[test]
fn a_vf_may_lose_its_interface_while_its_driver_stays() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::I40e), 1);
    fake.lose_vf_netdev(pf, vf(0)).expect("there");
    let vf = reading(&fake, pf, 0);
    assert!(vf.driver.is_some() && vf.netdev.is_none());
}

#[test]
fn a_reloaded_driver_has_no_vfs_and_no_profile() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 2);
    fake.force_eswitch(pf, EswitchMode::Switchdev).expect("there");
    fake.reload_driver(pf).expect("there");
    let after = fake.read(pf).expect("read");
    assert_eq!((after.num_vfs, after.eswitch), (0, Some(EswitchMode::Legacy)));
}

#[test]
fn a_pf_without_its_driver_has_neither_an_interface_nor_vfs() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 2);
    for driver in [None, Some("vfio-pci")] {
        fake.set_pf_driver(pf, driver).expect("there");
        let reading = fake.read(pf).expect("read");
        assert_eq!(reading.driver.as_deref(), driver);
        assert_eq!((reading.netdev, reading.rdma, reading.num_vfs), (None, None, 0));
        lacking(fake.write_num_vfs(pf, 2));
    }
    fake.set_pf_driver(pf, Some("mlx5_core")).expect("there");
    fake.write_num_vfs(pf, 2).expect("its own is back");
}

#[test]
fn vfs_of_a_pf_whose_interface_is_elsewhere_tell_nothing() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 1);
    fake.set_netdev_here(pf, false).expect("there");
    assert_eq!(reading(&fake, pf, 0).attributes, None);
    assert_eq!(refusal(send(&fake, pf, 0, set_mac(mac(1)))), ENODEV);
    assert_eq!(refusal(fake.set_up(pf, true)), ENODEV);
}

#[test]
fn a_pf_is_told_as_it_was_described() {
    let fake = Fake::new();
    let bridge: PciAddr = "0000:10:00.0".parse().expect("valid");
    let described = FakePf::new(Personality::Ice)
        .named("ens9")
        .mac(mac(9))
        .slot("3-1")
        .serial("S")
        .numa(Some(1))
        .managed_by("NetworkManager")
        .in_bond("bond0")
        .below(bridge)
        .pending("firmware 4.50", None);
    let pf = fake.add_pf(described);
    let reading = fake.read(pf).expect("read");
    let netdev = reading.netdev.expect("there");
    assert_eq!((netdev.name.as_str(), netdev.mac), ("ens9", mac(9)));
    assert_eq!(netdev.manager.as_deref(), Some("NetworkManager"));
    assert_eq!(reading.permanent_mac, Some(mac(9)));
    assert_eq!((reading.slot.as_deref(), reading.serial.as_deref()), (Some("3-1"), Some("S")));
    assert_eq!((reading.numa_node, reading.bond.as_deref()), (Some(1), Some("bond0")));
    assert_eq!(reading.pending_reset.as_deref(), Some("firmware 4.50"));
    assert_eq!(fake.pci_tree().expect("read")[0].parent, Some(bridge));
}

#[test]
fn writes_are_logged_with_their_end_and_messages_counted_for_each_vf() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Igb), 2);
    fake.clear_log();
    send(&fake, pf, 0, set_mac(mac(1))).expect("set");
    send(&fake, pf, 0, set_rate(5, 0)).expect_err("no min rate");
    send(&fake, pf, 1, set_mac(mac(2))).expect("set");
    assert_eq!((fake.messages(pf, vf(0)), fake.messages(pf, vf(1))), (2, 1));
    let ends: Vec<_> = fake.log().into_iter().map(|written| written.end).collect();
    assert_eq!(ends, [End::Done, End::Refused, End::Done]);
    assert_eq!(fake.writes()[2], Write::Vf(pf, vf(1), set_mac(mac(2))));
}

#[test]
fn attributes_that_a_vf_has_already_are_counted() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 1);
    let message = VfMessage { trust: Some(false), spoofchk: Some(true), ..set_mac(mac(1)) };
    send(&fake, pf, 0, message).expect("set");
    assert_eq!(fake.repeats(), 1, "it was not trusted");
    send(&fake, pf, 0, message).expect("set");
    assert_eq!(fake.repeats(), 4);
}

#[test]
fn a_rate_that_is_sent_again_may_hang_the_pf() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5).with_hanging_repeats(), 1);
    send(&fake, pf, 0, set_rate(0, 50)).expect("another rate");
    let again = thread::spawn({
        let fake = fake.clone();
        move || send(&fake, pf, 0, set_rate(0, 50))
    });
    thread::sleep(Duration::from_millis(20));
    assert!(!again.is_finished());
    fake.heal(pf).expect("there");
    again.join().expect("no panic").expect("set");
}

#[test]
fn a_trunk_ends_with_any_vlan_that_is_written() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 1);
    fake.give_trunk(pf, vf(0)).expect("there");
    send(&fake, pf, 0, set_mac(mac(1))).expect("set");
    assert!(fake.has_trunk(pf, vf(0)).expect("there"));
    send(&fake, pf, 0, set_vlan(0)).expect("set");
    assert!(!fake.has_trunk(pf, vf(0)).expect("there"));
}

#[test]
fn counters_are_what_the_test_says() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 1);
    let mut counters = VfCounters::default();
    counters.rx.frames = 7;
    fake.set_counters(pf, vf(0), counters.clone()).expect("there");
    assert_eq!(fake.vf_counters(pf, vf(0)).expect("read"), counters);
}
