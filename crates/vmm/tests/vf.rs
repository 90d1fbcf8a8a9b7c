//! VFs of the software NIC in real VMs: there from the start, and attached and detached while the
//! VM runs.

mod rig;

use std::path::Path;
use std::time::Duration;

use lanekeeper_model::{MacAddr, Mtu, VfIndex};
use lanekeeper_softnic::{Config, Nic};
use lanekeeper_vmm::{Driver, Host, Machine, VfPort, Vm, VmError, VmSpec};
use rig::rig;

/// Far more than a boot takes on an idle machine, since tests share theirs.
const READY: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_secs(30);

fn nic(folder: &Path) -> Nic {
    let vfs =
        [0, 1, 2].map(|vf| format!("[vf.{vf}]\nmac = \"02:00:00:00:00:0{vf}\"\nmtu = 9000\n"));
    let vfs = vfs.concat();
    let run_dir = folder.join("nic");
    let text = format!("name = \"nic0\"\nvfs = 3\nrun_dir = \"{}\"\n{vfs}", run_dir.display());
    Nic::start(Config::parse(&text, Path::new("nic.toml")).expect("sound")).expect("starts")
}

fn port(nic: &Nic, name: &str, vf: u8, packed: bool) -> VfPort {
    VfPort {
        name: name.to_owned(),
        socket: nic.vf_socket(VfIndex::new(vf.into()).expect("in range")),
        mac: MacAddr([2, 0, 0, 0, 0, vf]),
        slot: None,
        queue_pairs: 1,
        packed,
        mtu: Mtu::new(9000).expect("in range"),
    }
}

fn start(name: &str, folder: &Path, vf: VfPort) -> Vm {
    let spec = VmSpec { vfs: vec![vf], ..rig::spec(name, folder) };
    Driver::start(&rig().qemu, spec).expect("starts")
}

#[test]
fn a_vf_comes_and_goes_while_another_of_the_same_vm_carries_frames() {
    let folder = tempfile::tempdir().expect("a folder");
    let nic = nic(folder.path());
    let one = start("one", folder.path(), port(&nic, "lane", 0, false));
    let two = start("two", folder.path(), port(&nic, "lane", 1, true));
    for (vm, address) in [(&one, "10.6.0.1/24"), (&two, "10.6.0.2/24")] {
        vm.wait_ready(READY).expect("gets ready");
        vm.check(&format!("ip link set eth0 up && ip address add {address} dev eth0"), SHORT)
            .expect("the VF's interface comes up");
    }
    let jumbo = "ping -c 2 -W 5 -M do -s 8900 10.6.0.2";
    one.check(jumbo, SHORT).expect("split and packed rings, jumbo frames");

    let found = "grep -l 02:00:00:00:00:02 /sys/class/net/*/address";
    // Twice: what the first leaves behind would be in the way of the second.
    for packed in [true, false] {
        assert_eq!(one.attach_vf(&port(&nic, "second", 2, packed)).expect("attaches"), 2);
        let appears = format!("until {found}; do sleep 0.1; done");
        one.check(&appears, SHORT).expect("the guest sees it");
        one.check(
            "ip link set eth1 up && ip address add 10.7.0.1/24 dev eth1 && \
             until [ $(cat /sys/class/net/eth1/carrier) = 1 ]; do sleep 0.1; done && \
             arping -c 1 -w 9 -I eth1 10.6.0.2",
            SHORT,
        )
        .expect("frames pass through it");
        one.detach("second", SHORT).expect("the guest lets go");
        one.check(&format!("! {found}"), SHORT).expect("is gone");
        one.check(jumbo, SHORT).expect("the other VF goes on");
    }
    assert!(matches!(one.detach("second", SHORT), Err(VmError::NoSuchPort { .. })));
    drop((one, two));
    nic.stop();
}

#[test]
fn a_vf_without_its_software_nic_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let nic = nic(folder.path());
    let port = port(&nic, "lane", 0, false);
    nic.stop();
    let port = VfPort { socket: folder.path().join("no.sock"), ..port };
    let spec = VmSpec { vfs: vec![port], ..rig::spec("alone", folder.path()) };
    let error = Driver::start(&rig().qemu, spec).expect_err("no socket");
    let text = error.to_string();
    assert!(text.contains("lane.socket") && text.contains("start the software NIC"), "{text}");
}
