//! A guest with software RoCE on its interface, and our place on the same bridge.

use std::net::IpAddr;

use lanekeeper_model::{MacAddr, Mtu};
use lanekeeper_roce::wire::{PathMtu, Service};
use lanekeeper_testbed::netns::{Lab, Namespace};
use lanekeeper_vmm::{Driver, Host, Machine, Tap, TapPort, Vm, VmSpec};
use tempfile::TempDir;

use super::node::Fault;
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

/// One run of one of perftest's programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) tool: &'a str,
    pub(crate) arguments: &'a str,
    pub(crate) service: Service,
    pub(crate) mtu: PathMtu,
    pub(crate) fault: Fault,
}

impl<'a> Case<'a> {
    /// Of a reliable connection, several packets a message.
    pub(crate) const fn new(tool: &'a str, arguments: &'a str, fault: Fault) -> Self {
        Self { tool, arguments, service: Service::Rc, mtu: PathMtu::M1024, fault }
    }

    /// How it is called in the guest; without a server's address it is one.
    pub(crate) fn command(&self, port: u16, server: &str) -> String {
        let Self { tool, arguments, mtu, .. } = self;
        let service = format!("{:?}", self.service).to_uppercase();
        // Atomic operations exist in one service alone, so it takes no such argument.
        let service = if *tool == "ib_atomic_bw" { String::new() } else { format!("-c {service}") };
        format!("LC_ALL=C {tool} -F -d rxe0 -x 1 -m {mtu} {service} -p {port} {arguments} {server}")
    }
}
