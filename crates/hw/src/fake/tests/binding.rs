//! VFs and drivers.

use std::thread;
use std::time::Duration;

use super::*;
use lanekeeper_model::{Mtu, VfAddr};

#[test]
fn an_override_decides_which_driver_binds() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        bind_vfio(&fake, pf, 0);
        let vf = reading(&fake, pf, 0);
        assert_eq!(vf.driver.as_deref(), Some("vfio-pci"));
        assert_eq!((vf.netdev, vf.rdma), (None, None));
        fake.unbind(pf, vf.addr).expect("unbound");
        fake.write_driver_override(pf, vf.addr, None).expect("cleared");
        fake.probe(pf, vf.addr).expect("probed");
        let driver = reading(&fake, pf, 0).driver;
        assert_eq!(driver.as_deref(), Some(personality.rules().vf_driver));
    }
}

#[test]
fn a_driver_that_is_not_loaded_or_does_not_know_the_vf_is_not_bound() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 1);
    let addr = reading(&fake, pf, 0).addr;
    fake.unbind(pf, addr).expect("unbound");
    fake.set_driver_loaded("vfio-pci", false);
    for driver in ["vfio-pci", "mlx5_core", "nonsense"] {
        fake.write_driver_override(pf, addr, Some(driver)).expect("overridden");
        fake.probe(pf, addr).expect("no error");
        assert_eq!(reading(&fake, pf, 0).driver, None, "{driver}");
    }
    fake.set_driver_loaded("ice_vfio_pci", true);
    fake.write_driver_override(pf, addr, Some("ice_vfio_pci")).expect("overridden");
    fake.probe(pf, addr).expect("probed");
    assert_eq!(reading(&fake, pf, 0).driver.as_deref(), Some("ice_vfio_pci"));
}

#[test]
fn vfio_binds_nothing_without_an_iommu() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice).grouped(Grouping::Off), 1);
    bind_vfio(&fake, pf, 0);
    assert_eq!(reading(&fake, pf, 0).driver, None);
}

#[test]
fn the_driver_may_be_missing_for_a_moment_after_a_probe() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::I40e).driver_lagging(3), 1);
    let drivers: Vec<_> = (0..3).map(|_| reading(&fake, pf, 0).driver.is_some()).collect();
    assert_eq!(drivers, [false, false, true]);
}

#[test]
fn an_address_that_is_no_vf_of_the_pf_is_refused() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::I40e), 1);
    let stranger: VfAddr = "0000:01:02.3".parse().expect("valid");
    assert_eq!(refusal(fake.unbind(pf, stranger)), ENODEV);
    assert_eq!(refusal(fake.probe(pf, stranger)), ENODEV);
    assert_eq!(refusal(fake.reset(pf, stranger)), ENODEV);
    assert_eq!(refusal(fake.write_driver_override(pf, stranger, None)), ENODEV);
}

#[test]
fn only_a_vf_that_vfio_has_can_be_opened_and_by_one_process_only() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 1);
    let open = |pid| fake.open_vf(pf, vf(0), pid, "qemu").map_err(|error| error.raw_os_error());
    assert_eq!(open(1), Err(Some(ENODEV)));
    bind_vfio(&fake, pf, 0);
    assert_eq!(open(1), Ok(()));
    assert_eq!(open(2), Err(Some(EBUSY)));
    assert_eq!(reading(&fake, pf, 0).holder.expect("held").pid, 1);
    fake.close_vf(pf, vf(0)).expect("closed");
    assert_eq!(open(2), Ok(()));
}

#[test]
fn a_vf_whose_group_is_not_wholly_vfios_cannot_be_opened() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice).grouped(Grouping::Shared(2)), 2);
    bind_vfio(&fake, pf, 0);
    let open = || fake.open_vf(pf, vf(0), 1, "qemu").map_err(|error| error.raw_os_error());
    assert_eq!(open(), Err(Some(EPERM)));
    fake.unbind(pf, reading(&fake, pf, 1).addr).expect("unbound");
    assert_eq!(open(), Ok(()));

    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice).grouped(Grouping::WithPf), 1);
    bind_vfio(&fake, pf, 0);
    let error = fake.open_vf(pf, vf(0), 1, "qemu").expect_err("the PF has its driver");
    assert_eq!(error.raw_os_error(), Some(EPERM));
}

/// Waits until a write that was begun in another thread has reached the fake.
fn wait_for_outstanding(fake: &Fake) {
    while fake.outstanding() == 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn unbinding_a_held_vf_waits_for_its_holder_while_the_pf_goes_on() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 2);
    bind_vfio(&fake, pf, 0);
    fake.open_vf(pf, vf(0), 1, "qemu").expect("opened");
    let addr = reading(&fake, pf, 0).addr;
    let unbind = thread::spawn({
        let fake = fake.clone();
        move || fake.unbind(pf, addr)
    });
    wait_for_outstanding(&fake);
    send(&fake, pf, 1, set_mac(mac(1))).expect("another VF is set meanwhile");
    assert!(!unbind.is_finished());
    fake.close_vf(pf, vf(0)).expect("closed");
    unbind.join().expect("no panic").expect("unbound");
    assert_eq!(reading(&fake, pf, 0).driver, None);
}

#[test]
fn removing_vfs_of_which_one_is_held_waits_and_lets_nobody_read_the_pf() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Ice), 2);
    bind_vfio(&fake, pf, 0);
    fake.open_vf(pf, vf(0), 1, "qemu").expect("opened");
    let spawn = |call: fn(&Fake, PfAddr) -> u16| {
        let fake = fake.clone();
        thread::spawn(move || call(&fake, pf))
    };
    let remove = spawn(|fake, pf| fake.write_num_vfs(pf, 0).map_or(1, |()| 0));
    wait_for_outstanding(&fake);
    thread::sleep(Duration::from_millis(20));
    let read = spawn(|fake, pf| fake.read(pf).expect("read").num_vfs);
    thread::sleep(Duration::from_millis(20));
    assert!(!remove.is_finished() && !read.is_finished());
    fake.close_vf(pf, vf(0)).expect("closed");
    assert_eq!((remove.join().expect("removed"), read.join().expect("read")), (0, 0));
}

#[test]
fn a_reset_keeps_what_is_set_and_clears_what_a_guest_left() {
    for personality in Personality::ALL {
        let (fake, pf) = with_vfs(FakePf::new(personality), 1);
        send(&fake, pf, 0, set_mac(mac(1))).expect("set");
        send(&fake, pf, 0, set_vlan(7)).expect("set");
        fake.guest_leaves_state(pf, vf(0)).expect("there");
        let before = attributes(&fake, pf, 0);
        assert!(fake.silence(pf, vf(0)).expect("there").is_some());
        fake.reset(pf, reading(&fake, pf, 0).addr).expect("reset");
        assert_eq!(attributes(&fake, pf, 0), before);
        assert_eq!(fake.silence(pf, vf(0)).expect("there"), None);
    }
}

#[test]
fn a_vfs_mtu_is_its_interfaces_and_ends_at_the_pfs() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::Mlx5), 1);
    let mtu = |bytes| Mtu::new(bytes).expect("valid");
    assert_eq!(refusal(fake.set_vf_mtu(pf, vf(0), mtu(9000))), EINVAL);
    let profile = lanekeeper_model::RoceSetting::Mtu(mtu(9000));
    fake.set_roce(pf, &profile).expect("the PF's");
    fake.set_vf_mtu(pf, vf(0), mtu(9000)).expect("the VF's");
    assert_eq!(reading(&fake, pf, 0).netdev.expect("bound").mtu, 9000);
    bind_vfio(&fake, pf, 0);
    assert!(lacking(fake.set_vf_mtu(pf, vf(0), mtu(1500))).contains("in the VM"));
}

#[test]
fn a_step_may_be_refused_a_few_times_before_it_works() {
    let (fake, pf) = with_vfs(FakePf::new(Personality::I40e), 1);
    fake.refuse_messages(pf, vf(0), EAGAIN, 2).expect("there");
    fake.refuse_binding(pf, vf(0), EACCES, 1).expect("there");
    let addr = reading(&fake, pf, 0).addr;
    assert_eq!(refusal(send(&fake, pf, 0, set_mac(mac(1)))), EAGAIN);
    assert_eq!(refusal(send(&fake, pf, 0, set_mac(mac(1)))), EAGAIN);
    send(&fake, pf, 0, set_mac(mac(1))).expect("set");
    assert_eq!(refusal(fake.unbind(pf, addr)), EACCES);
    fake.unbind(pf, addr).expect("unbound");
}
