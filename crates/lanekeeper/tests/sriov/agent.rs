//! The agent on an emulated host: what the kernel tells it by itself, and what it does about it.

use crate::rig::{PF, SHORT, boot};

#[test]
fn it_hears_a_real_kernel_and_keeps_its_vfs_as_they_were_claimed() {
    let lab = boot("agent", |_| ());
    let dev = lab.pf_interface();
    lab.host_file(4, &[PF]);

    lab.start_agent();
    lab.hears("ready", "");
    assert_eq!(lab.num_vfs(), 4);

    // Somebody gives a VF a VLAN: the kernel tells, and it is taken back.
    lab.forget();
    lab.sh(&format!("ip link set {dev} vf 2 vlan 30"));
    lab.hears("drift_repaired", "nic0");
    assert!(!lab.sh(&format!("ip link show {dev}")).contains("vlan 30"));

    // No link, no VFs; and again once it has lasted.
    lab.forget();
    lab.host.set_link(0, false).expect("unplugged");
    lab.hears("pf_unavailable", "no link");
    let said = lab.refused("nobody", "claim --driver kernel");
    assert!(said.contains("it has no link"), "{said}");
    lab.host.set_link(0, true).expect("plugged in");
    lab.hears("pf_available", "nic0");
    lab.done("tenant", "claim --driver kernel");

    // It is killed, and so are its VFs, while nobody looks.
    lab.kill_agent();
    lab.sh(&format!("echo 0 >/sys/class/net/{dev}/device/sriov_numvfs"));
    lab.start_agent();
    lab.hears("ready", "");
    lab.hears("recovered", "claim_ready");
    assert_eq!(lab.num_vfs(), 4);

    // The NIC is pulled out.
    lab.forget();
    lab.host.remove_pf(0, SHORT).expect("the host lets go of the NIC");
    lab.hears("pf_gone", "nic0");
    lab.hears("recovered", "claim_lost");
    lab.sh("kill $(cat /tmp/agent.pid)");
    lab.hears("stopped", "");
}
