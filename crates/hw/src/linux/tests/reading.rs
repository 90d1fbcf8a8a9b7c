//! What is read of a tree of files.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use lanekeeper_model::{Dscp, Guid, Mbps, PciAddr, Pcp, RoceMode, RoceSetting, Trust};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::fixture::{Host, PF, device, pf, vf, vf_addr};
use crate::inventory::{GidKind, Holder, IommuGroup, TotalVfs};
use crate::{HardwareError, SriovHardware};

fn warnings(host: &Host) -> String {
    host.linux().read(pf()).expect("read").warnings.join("\n")
}

#[test]
fn only_nics_that_could_have_vfs_are_listed() {
    let host = Host::with_pf("mlx5_core");
    host.vf(0, "0000:3b:00.1");
    host.function("pci0000:00/0000:00:02.0", 0x03_00_00);
    host.file(&device("0000:00:02.0", "sriov_totalvfs"), "7\n");
    host.function("pci0000:00/0000:00:19.0", 0x02_00_00);
    host.function("pci0000:00/0000:00:1a.0", 0x02_00_00);
    host.drive("0000:00:1a.0", "ice");
    host.folder("sys/bus/pci/devices/no-address");
    let listed = ["0000:00:1a.0", PF].map(|address| address.parse().expect("valid"));
    assert_eq!(host.linux().list().expect("listed"), listed);
}

#[test]
fn listing_asks_no_device_so_one_that_hangs_hides_no_other() {
    let host = Host::with_pf("mlx5_core");
    // Whoever opens a pipe that nobody writes to waits for ever.
    for file in ["config", "reset_method", "phys_switch_id"] {
        let path = host.path(&device(PF, file));
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
    }
    std::fs::remove_file(host.path(&device(PF, "sriov_totalvfs"))).expect("removed");
    let total = host.path(&device(PF, "sriov_totalvfs"));
    mknodat(CWD, total, FileType::Fifo, Mode::RUSR, 0).expect("made");
    assert_eq!(host.linux().list().expect("listed"), [pf()]);
}

#[test]
fn a_host_without_a_pci_bus_says_so() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let error = super::super::Linux::rooted(folder.path()).list().expect_err("no bus");
    assert!(matches!(&error, HardwareError::Host { .. }) && error.errno() == Some(2), "{error}");
}

#[test]
fn a_pf_that_is_not_there_is_named() {
    let error = Host::new().linux().read(pf()).expect_err("none");
    assert!(matches!(error, HardwareError::NoPf(id) if id.to_string() == PF));
}

#[test]
fn vfs_are_where_their_links_say_and_not_where_arithmetic_would() {
    let host = Host::with_pf("mlx5_core");
    // Offset 0x80 and stride 2, over the end of a bus as ARI has it (att/vfd#210).
    let addresses = ["0000:3b:1f.4", "0000:3b:1f.6", "0000:3c:00.0", "0000:3c:00.2"];
    for (number, address) in (0..).zip(addresses) {
        host.vf(number, address);
    }
    let reading = host.linux().read(pf()).expect("read");
    let found: Vec<_> = reading.vfs.iter().map(|vf| (u32::from(vf.vf), vf.addr)).collect();
    let wanted: Vec<_> = (0..).zip(addresses.map(vf_addr)).collect();
    assert_eq!(found, wanted);
}

#[test]
fn two_hundred_and_fifty_six_vfs_come_in_the_order_of_their_numbers() {
    let host = Host::with_pf("mlx5_core");
    for number in 0..256 {
        let id = 0x3b80 + number;
        host.vf(number, &format!("0000:{:02x}:{:02x}.{}", id >> 8, id >> 3 & 31, id & 7));
    }
    host.file(&device(PF, "sriov_numvfs"), "256\n");
    let reading = host.linux().read(pf()).expect("read");
    let numbers: Vec<u32> = reading.vfs.iter().map(|vf| vf.vf.into()).collect();
    assert_eq!(numbers, (0..256).collect::<Vec<_>>());
}

#[test]
fn capable_not_now_and_never_are_told_apart() {
    let host = Host::with_pf("mlx5_core");
    let total = || host.linux().read(pf()).expect("read").total_vfs;
    assert_eq!(total(), TotalVfs::UpTo(127));
    host.file(&device(PF, "sriov_totalvfs"), "0\n");
    assert_eq!(total(), TotalVfs::OffInFirmware);
    std::fs::remove_file(host.path(&device(PF, "sriov_totalvfs"))).expect("removed");
    // sriov-network-device-plugin#601: a ConnectX-7 with SRIOV_EN off has no capability at all.
    assert_eq!(total(), TotalVfs::OffInFirmware);
    assert!(warnings(&host).contains("SR-IOV is off in the firmware"));
    host.file(&device(PF, "vendor"), "0x8086\n");
    std::fs::remove_file(host.path(&device(PF, "driver"))).expect("removed");
    host.drive(PF, "igb");
    assert_eq!(total(), TotalVfs::Never);
    let mut config = vec![0; 4096];
    config[0x100..0x104].copy_from_slice(&0x0001_0010_u32.to_le_bytes());
    host.bytes(&device(PF, "config"), &config);
    assert_eq!(total(), TotalVfs::OffInFirmware);
}

#[test]
fn a_pf_is_read_with_all_that_hangs_on_it() {
    let host = Host::with_pf("mlx5_core");
    host.file("sys/bus/pci/slots/7-1/address", "0000:3b:00\n");
    host.file("sys/bus/pci/slots/4/address", "0000:3a:00\n");
    host.group(PF, 12);
    host.group("0000:3a:00.0", 13);
    symlink("x", host.path("sys/kernel/iommu_groups/12/devices/0000:3b:00.1")).expect("linked");
    host.file(&device(PF, "net/ens1f0np0/phys_port_name"), "p0\n");
    host.file(&device(PF, "net/ens1f0np0/bonding_slave/state"), "active\n");
    host.link(&device(PF, "net/ens1f0np0/master"), "../../../../virtual/net/bond0");
    host.file("run/NetworkManager/devices/7", "[device]\nmanaged=true\n");
    let reading = host.linux().read(pf()).expect("read");
    assert_eq!(reading.driver.as_deref(), Some("mlx5_core"));
    assert_eq!((reading.vendor, reading.device), (0x15b3, 0x101d));
    assert_eq!(reading.slot.as_deref(), Some("7-1"));
    assert_eq!(reading.numa_node, Some(1));
    assert_eq!(reading.bond.as_deref(), Some("bond0"));
    assert!(reading.autoprobe);
    let members = [PF, "0000:3b:00.1"].map(|address| address.parse().expect("valid"));
    let group = IommuGroup { number: 12, members: BTreeSet::from(members) };
    assert_eq!(reading.iommu_group, Some(group));
    assert_eq!(reading.permanent_mac, Some("b8:ce:f6:00:00:01".parse().expect("valid")));
    let netdev = reading.netdev.expect("an interface");
    assert_eq!((netdev.index, netdev.mtu, netdev.up, netdev.carrier), (7, 1500, true, true));
    assert_eq!(netdev.speed, Some(Mbps(100_000)));
    assert_eq!(netdev.manager.as_deref(), Some("NetworkManager"));
    assert!(reading.warnings.iter().any(|text| text.contains("managed by NetworkManager")));
}

#[test]
fn networkd_manages_what_it_configured_and_not_what_it_leaves_alone() {
    let host = Host::with_pf("mlx5_core");
    let manager = || host.linux().read(pf()).expect("read").netdev.expect("an interface").manager;
    host.file("run/systemd/netif/links/7", "ADMIN_STATE=unmanaged\nOPER_STATE=off\n");
    host.file("run/NetworkManager/devices/7", "[device]\nmanaged=false\n");
    assert_eq!(manager(), None);
    host.file("run/systemd/netif/links/7", "ADMIN_STATE=configured\nOPER_STATE=routable\n");
    assert_eq!(manager().as_deref(), Some("systemd-networkd"));
}

#[test]
fn an_interface_that_is_down_has_neither_link_nor_speed() {
    let host = Host::with_pf("mlx5_core");
    host.file(&device(PF, "net/ens1f0np0/flags"), "0x1002\n");
    std::fs::remove_file(host.path(&device(PF, "net/ens1f0np0/carrier"))).expect("removed");
    host.file(&device(PF, "net/ens1f0np0/speed"), "-1\n");
    host.file(&device(PF, "numa_node"), "-1\n");
    let reading = host.linux().read(pf()).expect("read");
    assert_eq!(reading.numa_node, None);
    let netdev = reading.netdev.expect("an interface");
    assert_eq!((netdev.up, netdev.carrier, netdev.speed), (false, false, None));
}

#[test]
fn a_representor_is_not_taken_for_the_uplink_nor_for_another_hosts() {
    let host = Host::with_pf("mlx5_core");
    host.vf(0, "0000:3b:00.2");
    host.vf(5, "0000:3b:00.7");
    let name = |interface: &str, port: &str| {
        host.interface(PF, interface, 20, "02:00:00:00:00:05");
        host.file(&device(PF, &format!("net/{interface}/phys_port_name")), port);
    };
    name("a-representor", "pf0vf5");
    name("another-host", "c1pf0vf5");
    name("a-subfunction", "pf0sf5");
    name("ens1f0np0", "p0");
    let reading = host.linux().read(pf()).expect("read");
    assert_eq!(reading.netdev.as_ref().expect("the uplink").name, "ens1f0np0");
    let representor = |number| reading.vf(vf(number)).expect("there").representor.clone();
    assert_eq!(representor(5).as_deref(), Some("a-representor"));
    assert_eq!(representor(0), None);
}

#[test]
fn a_vf_names_its_driver_its_interface_and_who_holds_it() {
    let host = Host::with_pf("mlx5_core");
    host.vf(0, "0000:3b:00.2");
    host.vf(1, "0000:3b:00.3");
    host.vf(2, "0000:3b:00.4");
    host.drive("0000:3b:00.2", "vfio-pci");
    host.group("0000:3b:00.2", 41);
    host.file(&device("0000:3b:00.2", "driver_override"), "vfio-pci\n");
    host.drive("0000:3b:00.3", "mlx5_vfio_pci");
    host.folder(&device("0000:3b:00.3", "vfio-dev/vfio3"));
    host.drive("0000:3b:00.4", "mlx5_core");
    host.interface("0000:3b:00.4", "ens1f0v2", 30, "02:00:00:00:00:12");
    for (pid, name, file) in [(812, "qemu", "/dev/vfio/41"), (90, "ch", "/dev/vfio/devices/vfio3")]
    {
        host.file(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        host.link(&format!("proc/{pid}/fd/9"), file);
    }
    host.link("proc/7/fd/1", "/dev/null");
    let reading = host.linux().read(pf()).expect("read");
    let held: Vec<_> = reading.vfs.iter().map(|vf| vf.holder.clone()).collect();
    let holder = |pid, command: &str| Some(Holder { pid, command: command.to_owned() });
    assert_eq!(held, [holder(812, "qemu"), holder(90, "ch"), None]);
    assert_eq!(reading.vfs[0].driver_override.as_deref(), Some("vfio-pci"));
    assert_eq!(reading.vfs[1].driver_override, None);
    assert_eq!(reading.vfs[2].netdev.as_ref().expect("an interface").name, "ens1f0v2");
}

#[test]
fn a_gid_table_is_read_with_its_gaps() {
    let host = Host::with_pf("mlx5_core");
    host.rdma(PF, "mlx5_0", "b8ce:f603:0000:0001");
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    for (place, gid, kind) in [
        (4, "fe80:0000:0000:0000:bace:f6ff:fe00:0001", "IB/RoCE v1"),
        (6, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
    ] {
        host.file(&format!("{port}/gids/{place}"), &format!("{gid}\n"));
        host.file(&format!("{port}/gid_attrs/types/{place}"), &format!("{kind}\n"));
        host.file(&format!("{port}/gid_attrs/ndevs/{place}"), "ens1f0np0\n");
    }
    let rdma = host.linux().read(pf()).expect("read").rdma.expect("a device");
    assert_eq!((rdma.name.as_str(), rdma.node_guid), ("mlx5_0", Guid(0xb8ce_f603_0000_0001)));
    assert_eq!(rdma.gids.len(), 2);
    let found = rdma.gid(GidKind::RoceV2, "::ffff:10.0.0.1".parse().expect("valid"));
    assert_eq!(found.map(|gid| gid.index), Some(6));
}

#[test]
fn software_rdma_on_the_pfs_interface_is_the_pfs() {
    let host = Host::with_pf("igb");
    host.file("sys/class/infiniband/rxe0/node_guid", "b8ce:f6ff:fe00:0001\n");
    host.file("sys/class/infiniband/rxe0/parent", "ens1f0np0\n");
    let rdma = host.linux().read(pf()).expect("read").rdma.expect("a device");
    assert_eq!(rdma.name, "rxe0");
}

#[test]
fn what_should_worry_a_reader_is_said() {
    let host = Host::with_pf("mlx5_core");
    host.vf(0, "0000:3b:00.2");
    host.drive("0000:3b:00.2", "mlx5_core");
    host.rdma("0000:3b:00.2", "mlx5_2", "0000:0000:0000:0000");
    host.bytes(&device("0000:3b:00.2", "config"), &[0xff; 64]);
    host.file(&device(PF, "sriov_numvfs"), "8\n");
    std::fs::remove_dir_all(host.path(&device(PF, "net"))).expect("removed");
    let warnings = warnings(&host);
    for expected in [
        "mlx5_core is bound but made no interface",
        "the IOMMU is off",
        "sriov_numvfs is 8 but 1 VFs are there",
        "VF 0: does not answer",
        "VF 0: mlx5_core is bound but made no interface",
        "VF 0: its RDMA device mlx5_2 has no node GUID",
    ] {
        assert!(warnings.contains(expected), "{expected:?} is not in:\n{warnings}");
    }
}

#[test]
fn a_pf_that_is_bound_to_vfio_is_said_to_be() {
    let host = Host::with_pf("vfio-pci");
    std::fs::remove_dir_all(host.path(&device(PF, "net"))).expect("removed");
    assert!(warnings(&host).contains("the PF itself is bound to vfio-pci"));
}

#[test]
fn the_profile_is_read_from_the_vendors_files_or_the_kernels() {
    let host = Host::with_pf("mlx5_core");
    host.rdma(PF, "mlx5_0", "b8ce:f603:0000:0001");
    let roce = || host.linux().read(pf()).expect("read").roce;
    let has = |setting: &RoceSetting| roce().contains(setting);
    let kinds: Vec<_> = roce().iter().map(RoceSetting::kind).collect();
    assert_eq!(kinds, ["mtu"], "nothing else is there yet");

    let kernels = format!("sys/kernel/debug/mlx5/{PF}/cc_params");
    host.file(&format!("{kernels}/np_cnp_dscp"), "48\n");
    host.file(&format!("{kernels}/np_cnp_prio"), "6\n");
    assert!(has(&RoceSetting::CnpDscp(Dscp::CNP)));
    assert!(has(&RoceSetting::CnpPriority(Pcp::new(6).expect("valid"))));

    let vendors = device(PF, "net/ens1f0np0");
    host.file(&format!("{vendors}/ecn/roce_np/cnp_dscp"), "26\n");
    host.file(&format!("{vendors}/qos/trust"), "dscp\n");
    for priority in 0..8 {
        host.file(&format!("{vendors}/ecn/roce_np/enable/{priority}"), "1\n");
        let on = if priority == 3 { "1\n" } else { "0\n" };
        host.file(&format!("{vendors}/ecn/roce_rp/enable/{priority}"), on);
    }
    assert!(has(&RoceSetting::CnpDscp(Dscp::ROCE)));
    assert!(has(&RoceSetting::Trust(Trust::Dscp)));
    assert!(has(&RoceSetting::Ecn(BTreeSet::from([Pcp::new(3).expect("valid")]))));

    let cm = "sys/kernel/config/rdma_cm/mlx5_0/ports/1";
    host.file(&format!("{cm}/default_roce_tos"), "106\n");
    host.file(&format!("{cm}/default_roce_mode"), "RoCE v2\n");
    assert!(has(&RoceSetting::CmTos(106)) && has(&RoceSetting::CmMode(RoceMode::V2)));
}

#[test]
fn looking_at_rdma_cm_leaves_nothing_behind() {
    let host = Host::with_pf("mlx5_core");
    host.rdma(PF, "mlx5_0", "b8ce:f603:0000:0001");
    host.folder("sys/kernel/config/rdma_cm");
    host.linux().read(pf()).expect("read");
    let left = std::fs::read_dir(host.path("sys/kernel/config/rdma_cm")).expect("there").count();
    assert_eq!(left, 0);
}

#[test]
fn the_tree_shows_what_hangs_below_what() {
    let host = Host::with_pf("mlx5_core");
    let mut config = vec![0; 4096];
    config[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    config[0x106..0x108].copy_from_slice(&0x001d_u16.to_le_bytes());
    host.bytes(&device("0000:3a:00.0", "config"), &config);
    host.group(PF, 12);
    let nodes = host.linux().pci_tree().expect("read");
    let at = |address: &str| {
        let address: PciAddr = address.parse().expect("valid");
        nodes.iter().find(|node| node.addr == address).expect("there")
    };
    assert_eq!(at("0000:3a:00.0").parent, None);
    assert_eq!(at("0000:3a:00.0").acs, Some(0x001d));
    assert_eq!((at("0000:3a:00.0").class, at("0000:3a:00.0").numa_node), (0x06_04_00, None));
    assert_eq!(at(PF).parent, Some("0000:3a:00.0".parse().expect("valid")));
    assert_eq!((at(PF).iommu_group, at(PF).numa_node, at(PF).acs), (Some(12), Some(1), None));
}

#[test]
fn a_device_of_which_nothing_is_left_but_its_folder_is_read_without_panic() {
    let host = Host::new();
    host.folder(&format!("sys/bus/pci/devices/{PF}"));
    let reading = host.linux().read(pf()).expect("read");
    assert_eq!((reading.driver, reading.netdev, reading.vfs.len()), (None, None, 0));
    assert_eq!(reading.total_vfs, TotalVfs::Never);
    assert_eq!(host.linux().pci_tree().expect("read"), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_stands_in_the_files_is_read_without_panic(
        contents in proptest::collection::vec(
            (0_usize..24, proptest::collection::vec(any::<u8>(), 0..40)), 1..12)
    ) {
        let host = Host::with_pf("mlx5_core");
        host.vf(0, "0000:3b:00.2");
        host.drive("0000:3b:00.2", "vfio-pci");
        host.rdma(PF, "mlx5_0", "b8ce:f603:0000:0001");
        let own = ["class", "vendor", "device", "sriov_totalvfs", "sriov_numvfs", "numa_node",
            "config", "sriov_drivers_autoprobe", "net/ens1f0np0/ifindex", "net/ens1f0np0/mtu",
            "net/ens1f0np0/address", "net/ens1f0np0/flags", "net/ens1f0np0/speed",
            "net/ens1f0np0/phys_port_name", "net/ens1f0np0/qos/trust", "virtfnx", "virtfn999999"];
        let others = ["sys/bus/pci/slots/1/address", "run/systemd/netif/links/7",
            "sys/class/infiniband/mlx5_0/node_guid", "proc/9/comm",
            "sys/class/infiniband/mlx5_0/ports/1/gids/0",
            "sys/class/infiniband/mlx5_0/ports/1/gids/x",
            "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0"];
        let paths: Vec<String> = own.iter().map(|file| device(PF, file))
            .chain(others.map(str::to_owned)).collect();
        for (place, bytes) in contents {
            host.bytes(&paths[place], &bytes);
        }
        let linux = host.linux();
        prop_assert!(linux.list().is_ok());
        prop_assert!(linux.read(pf()).is_ok());
        prop_assert!(linux.pci_tree().is_ok());
    }
}
