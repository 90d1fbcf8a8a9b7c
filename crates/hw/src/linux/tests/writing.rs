//! What is written to a tree of files, and what is refused before anything is.

use std::collections::BTreeSet;

use lanekeeper_model::{Dscp, EswitchMode, MacAddr, Mtu, Pcp, RoceMode, RoceSetting, Trust};

use super::fixture::{Host, PF, device, pf, vf, vf_addr};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware};

const VF: &str = "0000:3b:00.2";

fn host_with_vf() -> Host {
    let host = Host::with_pf("mlx5_core");
    host.vf(0, VF);
    host.file("sys/bus/pci/drivers_probe", "");
    host
}

fn refusal(result: Result<(), HardwareError>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn each_step_writes_its_one_file() {
    let host = host_with_vf();
    let linux = host.linux();
    linux.write_num_vfs(pf(), 8).expect("written");
    assert_eq!(host.text(&device(PF, "sriov_numvfs")), "8");
    linux.write_autoprobe(pf(), false).expect("written");
    assert_eq!(host.text(&device(PF, "sriov_drivers_autoprobe")), "0");
    linux.probe(pf(), vf_addr(VF)).expect("written");
    assert_eq!(host.text("sys/bus/pci/drivers_probe"), VF);
    linux.reset(pf(), vf_addr(VF)).expect("written");
    assert_eq!(host.text(&device(VF, "reset")), "1");
}

#[test]
fn an_override_is_written_and_cleared_with_an_empty_line() {
    let host = host_with_vf();
    let file = device(VF, "driver_override");
    host.linux().write_driver_override(pf(), vf_addr(VF), Some("vfio-pci")).expect("written");
    assert_eq!(host.text(&file), "vfio-pci\n");
    host.linux().write_driver_override(pf(), vf_addr(VF), None).expect("written");
    assert_eq!(host.text(&file), "\n");
}

#[test]
fn a_driver_name_that_would_clear_or_split_the_override_is_refused() {
    let host = host_with_vf();
    for name in ["", "\n", "vfio-pci\nigb", "two words"] {
        let result = host.linux().write_driver_override(pf(), vf_addr(VF), Some(name));
        assert!(refusal(result).contains("no white space"), "{name:?}");
        assert_eq!(host.text(&device(VF, "driver_override")), "(null)\n");
    }
}

#[test]
fn only_a_bound_vf_is_unbound() {
    let host = host_with_vf();
    host.linux().unbind(pf(), vf_addr(VF)).expect("nothing to do");
    host.drive(VF, "igbvf");
    host.linux().unbind(pf(), vf_addr(VF)).expect("written");
    assert_eq!(host.text("sys/bus/pci/drivers/igbvf/unbind"), VF);
}

#[test]
fn nothing_is_written_for_an_address_that_is_not_this_pfs_vf() {
    let host = host_with_vf();
    host.file(&device(PF, "driver_override"), "(null)\n");
    host.file(&device(PF, "reset"), "");
    let linux = host.linux();
    // The PF's own address, and one that is nobody's.
    for address in [PF, "0000:3b:00.5"] {
        let vf = vf_addr(address);
        for result in [
            linux.write_driver_override(pf(), vf, Some("vfio-pci")),
            linux.unbind(pf(), vf),
            linux.probe(pf(), vf),
            linux.reset(pf(), vf),
        ] {
            let error = result.expect_err("refused");
            assert_eq!(error.errno(), Some(19));
            assert!(error.to_string().contains(&format!("{address} is no VF of {PF} now")));
        }
    }
    assert_eq!(host.text(&device(PF, "driver_override")), "(null)\n");
    assert_eq!(host.text(&device(PF, "reset")), "");
    assert_eq!(host.text("sys/bus/pci/drivers_probe"), "");
    assert_eq!(host.text("sys/bus/pci/drivers/mlx5_core/unbind"), "");
}

#[test]
fn what_a_driver_has_no_file_for_is_unsupported() {
    let host = host_with_vf();
    for file in [device(PF, "sriov_numvfs"), device(VF, "reset")] {
        std::fs::remove_file(host.path(&file)).expect("removed");
    }
    let error = refusal(host.linux().write_num_vfs(pf(), 4));
    assert!(error.starts_with("mlx5_core cannot make 4 VFs; "), "{error}");
    let error = refusal(host.linux().reset(pf(), vf_addr(VF)));
    assert_eq!(error, "the kernel cannot reset 0000:3b:00.2; remove the VFs and make them anew");
}

#[test]
fn a_vf_that_is_not_there_is_refused_with_how_many_there_are() {
    let host = host_with_vf();
    let message = VfMessage { mac: Some(MacAddr::ZERO), ..VfMessage::default() };
    let error = host.linux().send_vf(pf(), vf(3), &message).expect_err("refused");
    assert!(matches!(error, HardwareError::NoVf { num_vfs: 1, .. }), "{error}");
    assert!(host.linux().set_vf_mtu(pf(), vf(3), Mtu::default()).is_err());
    assert!(host.linux().vf_counters(pf(), vf(3)).is_err());
}

#[test]
fn without_a_kernel_behind_it_nothing_is_set_by_netlink() {
    let host = host_with_vf();
    let linux = host.linux();
    let message = VfMessage { trust: Some(true), ..VfMessage::default() };
    for result in [
        linux.send_vf(pf(), vf(0), &message),
        linux.set_up(pf(), true),
        linux.set_eswitch(pf(), EswitchMode::Switchdev),
        linux.set_vf_mtu(pf(), vf(0), Mtu::default()),
        linux.set_roce(pf(), &RoceSetting::GlobalPause(false)),
    ] {
        let error = result.expect_err("refused");
        assert!(matches!(error, HardwareError::Unsupported { .. }), "{error}");
    }
}

#[test]
fn the_vendors_files_of_the_profile_are_written_where_they_differ() {
    let host = host_with_vf();
    let folder = device(PF, "net/ens1f0np0");
    host.file(&format!("{folder}/qos/trust"), "pcp\n");
    host.file(&format!("{folder}/ecn/roce_np/cnp_dscp"), "0\n");
    for priority in 0..8 {
        for point in ["np", "rp"] {
            host.file(&format!("{folder}/ecn/roce_{point}/enable/{priority}"), "1\n");
        }
    }
    let set = |setting| host.linux().set_roce(pf(), &setting).expect("written");
    set(RoceSetting::Trust(Trust::Dscp));
    set(RoceSetting::CnpDscp(Dscp::CNP));
    set(RoceSetting::Ecn(BTreeSet::from([Pcp::new(3).expect("valid")])));
    assert_eq!(host.text(&format!("{folder}/qos/trust")), "dscp");
    assert_eq!(host.text(&format!("{folder}/ecn/roce_np/cnp_dscp")), "48");
    assert_eq!(host.text(&format!("{folder}/ecn/roce_rp/enable/0")), "0");
    // What was right already has not been written again.
    assert_eq!(host.text(&format!("{folder}/ecn/roce_rp/enable/3")), "1\n");
}

#[test]
fn rdma_cm_is_set_through_its_folder_and_needs_an_rdma_device() {
    let host = host_with_vf();
    let set = |setting| host.linux().set_roce(pf(), &setting);
    assert!(refusal(set(RoceSetting::CmTos(106))).contains("cannot set cm_tos"));
    host.rdma(PF, "mlx5_0", "b8ce:f603:0000:0001");
    let folder = "sys/kernel/config/rdma_cm/mlx5_0/ports/1";
    host.file(&format!("{folder}/default_roce_tos"), "0\n");
    host.file(&format!("{folder}/default_roce_mode"), "IB/RoCE v1\n");
    set(RoceSetting::CmTos(106)).expect("written");
    set(RoceSetting::CmMode(RoceMode::V2)).expect("written");
    assert_eq!(host.text(&format!("{folder}/default_roce_tos")), "106");
    assert_eq!(host.text(&format!("{folder}/default_roce_mode")), "RoCE v2");
}
