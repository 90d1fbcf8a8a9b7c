//! A guest with software RoCE on its interface, and our place on the same bridge.

use std::net::IpAddr;

use lanekeeper_model::{MacAddr, Mtu};
use lanekeeper_testbed::netns::{Lab, Namespace};
use lanekeeper_vmm::{Driver, Host, Machine, Tap, TapPort, Vm, VmSpec};
use tempfile::TempDir;

use super::{PATIENCE, rig};

/// The guest's address.
pub(crate) const GUEST: &str = "10.0.0.1";
/// Ours.
pub(crate) const OURS: &str = "10.0.0.254";

pub(crate) struct Guest {
    pub(crate) vm: Vm,
    pub(crate) host: Namespace,
    _lab: Lab,
    _folder: TempDir,
}

impl Guest {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut lab = Lab::new("rxe");
        let host = lab.namespace("host").expect("made");
        host.add_bridge("br0", 4500).expect("made");
        host.add_address("br0", &format!("{OURS}/24")).expect("set");
        host.add_tap("tap1", "br0", 4500).expect("made");
        let port = TapPort {
            name: "tap1".to_owned(),
            tap: Tap::Named("tap1".to_owned()),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            slot: None,
            mtu: Mtu::new(4500).expect("in range"),
        };
        let spec = VmSpec {
            taps: vec![port],
            namespace: Some(host.path()),
            ..rig::spec("rxe", folder.path())
        };
        let vm = Driver::start(&rig::rig().qemu, spec).expect("starts");
        vm.wait_ready(PATIENCE).expect("gets ready");
        let command = format!(
            "ip link set eth0 up && ip address add {GUEST}/24 dev eth0 && \
             rdma link add rxe0 type rxe netdev eth0 && ping -c 1 -W 60 {OURS}"
        );
        vm.check(&command, PATIENCE).expect("RDMA over the NIC");
        Self { vm, host, _lab: lab, _folder: folder }
    }

    pub(crate) fn ours() -> IpAddr {
        OURS.parse().expect("an address")
    }

    pub(crate) fn address() -> IpAddr {
        GUEST.parse().expect("an address")
    }
}

/// How one of perftest's programs is called.
pub(crate) fn perftest(tool: &str, arguments: &str) -> String {
    format!("LC_ALL=C {tool} -F -d rxe0 -x 1 -m {} {arguments}", super::MTU)
}
