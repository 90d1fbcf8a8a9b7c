//! What [`Linux`] sends is, byte for byte, what iproute2 and ethtool send for the same intent.
//!
//! Both speak to a kernel that the test plays, so every setting can be tried without a NIC that has
//! it. What the tools sent when this was written is in `golden/recorded`; the last test asks the
//! tools of this machine anew, and with `LANEKEEPER_RECORD=1` writes that down.
#![forbid(unsafe_code)]

#[path = "golden/kernel.rs"]
mod kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use kernel::{INTERFACE, Kernel, Request, make_tree};
use lanekeeper_hw::linux::Linux;
use lanekeeper_hw::message::VfMessage;
use lanekeeper_hw::{HardwareError, SriovHardware};
use lanekeeper_model::{
    Dscp, EswitchMode, Guid, LinkState, MacAddr, Mbps, Mtu, Pcp, PfAddr, RateLimits, RdmaNetns,
    RoceSetting, VfIndex, VlanId, VlanProtocol, VlanTag,
};
use tempfile::TempDir;

/// Our own way of doing something.
type Ours = dyn Fn(&Linux) -> Result<(), HardwareError>;

/// One intent: what it is called, the command that has it, and our own way.
struct Intent {
    name: &'static str,
    command: &'static str,
    ours: Box<Ours>,
}

fn pf() -> PfAddr {
    "0000:3b:00.0".parse().expect("valid")
}

fn intent(
    name: &'static str,
    command: &'static str,
    ours: impl Fn(&Linux) -> Result<(), HardwareError> + 'static,
) -> Intent {
    Intent { name, command, ours: Box::new(ours) }
}

/// VF 1 is set to this.
fn vf(name: &'static str, command: &'static str, message: VfMessage) -> Intent {
    let vf = VfIndex::new(1).expect("valid");
    intent(name, command, move |linux| linux.send_vf(pf(), vf, &message))
}

fn roce(name: &'static str, command: &'static str, setting: RoceSetting) -> Intent {
    intent(name, command, move |linux| linux.set_roce(pf(), &setting))
}

fn pcp(value: u32) -> Pcp {
    Pcp::new(value).expect("valid")
}

fn tag(id: u32, priority: u32, protocol: VlanProtocol) -> VlanTag {
    VlanTag { id: VlanId::new(id).expect("valid"), pcp: pcp(priority), protocol }
}

fn vf_intents() -> Vec<Intent> {
    let none = VfMessage::default();
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 1]));
    let rate = Some(RateLimits { min: Mbps(100), max: Mbps(1000) });
    vec![
        vf("vf-mac", "ip link set ens1f0 vf 1 mac 02:00:00:00:00:01", VfMessage { mac, ..none }),
        vf(
            "vf-mac-zero",
            "ip link set ens1f0 vf 1 mac 00:00:00:00:00:00",
            VfMessage { mac: Some(MacAddr::ZERO), ..none },
        ),
        vf(
            "vf-vlan",
            "ip link set ens1f0 vf 1 vlan 100 qos 3 proto 802.1Q",
            VfMessage { vlan: Some(tag(100, 3, VlanProtocol::Dot1Q)), ..none },
        ),
        vf(
            "vf-vlan-8021ad",
            "ip link set ens1f0 vf 1 vlan 4094 qos 7 proto 802.1ad",
            VfMessage { vlan: Some(tag(4094, 7, VlanProtocol::Dot1Ad)), ..none },
        ),
        vf(
            "vf-vlan-none",
            "ip link set ens1f0 vf 1 vlan 0 qos 0 proto 802.1Q",
            VfMessage { vlan: Some(tag(0, 0, VlanProtocol::Dot1Q)), ..none },
        ),
        vf(
            "vf-rate",
            "ip link set ens1f0 vf 1 max_tx_rate 1000 min_tx_rate 100",
            VfMessage { rate, ..none },
        ),
        vf(
            "vf-spoofchk-on",
            "ip link set ens1f0 vf 1 spoofchk on",
            VfMessage { spoofchk: Some(true), ..none },
        ),
        vf(
            "vf-spoofchk-off",
            "ip link set ens1f0 vf 1 spoofchk off",
            VfMessage { spoofchk: Some(false), ..none },
        ),
        vf(
            "vf-trust-on",
            "ip link set ens1f0 vf 1 trust on",
            VfMessage { trust: Some(true), ..none },
        ),
        vf(
            "vf-state-auto",
            "ip link set ens1f0 vf 1 state auto",
            VfMessage { link_state: Some(LinkState::Auto), ..none },
        ),
        vf(
            "vf-state-enable",
            "ip link set ens1f0 vf 1 state enable",
            VfMessage { link_state: Some(LinkState::Enable), ..none },
        ),
        vf(
            "vf-state-disable",
            "ip link set ens1f0 vf 1 state disable",
            VfMessage { link_state: Some(LinkState::Disable), ..none },
        ),
        vf(
            "vf-node-guid",
            "ip link set ens1f0 vf 1 node_guid 00:02:c9:03:00:00:00:01",
            VfMessage { node_guid: Some(Guid(0x0002_c903_0000_0001)), ..none },
        ),
        vf(
            "vf-port-guid",
            "ip link set ens1f0 vf 1 port_guid 00:02:c9:03:00:00:00:02",
            VfMessage { port_guid: Some(Guid(0x0002_c903_0000_0002)), ..none },
        ),
        vf(
            "vf-everything",
            "ip link set ens1f0 vf 1 mac 02:00:00:00:00:01 vlan 100 qos 3 proto 802.1Q \
             max_tx_rate 1000 min_tx_rate 100 spoofchk on state disable trust off \
             node_guid 00:02:c9:03:00:00:00:01 port_guid 00:02:c9:03:00:00:00:02",
            VfMessage {
                mac,
                vlan: Some(tag(100, 3, VlanProtocol::Dot1Q)),
                rate,
                spoofchk: Some(true),
                link_state: Some(LinkState::Disable),
                trust: Some(false),
                node_guid: Some(Guid(0x0002_c903_0000_0001)),
                port_guid: Some(Guid(0x0002_c903_0000_0002)),
            },
        ),
    ]
}

fn pf_intents() -> Vec<Intent> {
    let mtu = RoceSetting::Mtu(Mtu::new(9000).expect("valid"));
    vec![
        intent("up", "ip link set ens1f0 up", |linux| linux.set_up(pf(), true)),
        intent("down", "ip link set ens1f0 down", |linux| linux.set_up(pf(), false)),
        roce("mtu", "ip link set ens1f0 mtu 9000", mtu),
        intent(
            "eswitch-switchdev",
            "devlink dev eswitch set pci/0000:3b:00.0 mode switchdev",
            |linux| linux.set_eswitch(pf(), EswitchMode::Switchdev),
        ),
        intent("eswitch-legacy", "devlink dev eswitch set pci/0000:3b:00.0 mode legacy", |linux| {
            linux.set_eswitch(pf(), EswitchMode::Legacy)
        }),
    ]
}

fn roce_intents() -> Vec<Intent> {
    let map = BTreeMap::from([
        (Dscp::new(10).expect("valid"), pcp(1)),
        (Dscp::ROCE, pcp(3)),
        (Dscp::CNP, pcp(6)),
    ]);
    vec![
        roce(
            "pfc",
            "dcb pfc set dev ens1f0 prio-pfc 3:on",
            RoceSetting::Pfc(BTreeSet::from([pcp(3)])),
        ),
        roce(
            "ets",
            "dcb ets set dev ens1f0 tc-tsa all:strict 0:ets 3:ets tc-bw all:0 0:70 3:30",
            RoceSetting::Ets([70, 0, 0, 30, 0, 0, 0, 0]),
        ),
        roce(
            "buffers",
            "dcb buffer set dev ens1f0 buffer-size all:0 0:20480 3:400000",
            RoceSetting::Buffers([20_480, 0, 0, 400_000, 0, 0, 0, 0]),
        ),
        roce(
            "dscp-add",
            "dcb app add dev ens1f0 dscp-prio 26:3 48:6",
            RoceSetting::DscpPriority(map),
        ),
        roce(
            "dscp-flush",
            "dcb app flush dev ens1f0 dscp-prio",
            RoceSetting::DscpPriority(BTreeMap::new()),
        ),
        roce(
            "pause-off",
            "ethtool -A ens1f0 autoneg off rx off tx off",
            RoceSetting::GlobalPause(false),
        ),
        roce(
            "netns-exclusive",
            "rdma system set netns exclusive",
            RoceSetting::Netns(RdmaNetns::Exclusive),
        ),
        roce("netns-shared", "rdma system set netns shared", RoceSetting::Netns(RdmaNetns::Shared)),
    ]
}

fn intents() -> Vec<Intent> {
    vf_intents().into_iter().chain(pf_intents()).chain(roce_intents()).collect()
}

/// What we write to the kernel for an intent.
fn ours(intent: &Intent) -> Vec<Request> {
    let folder = TempDir::new().expect("a folder");
    make_tree(folder.path()).expect("made");
    let kernel = Kernel::default();
    let opened = kernel.clone();
    let linux = Linux::rooted(folder.path()).with_kernel(move |protocol| opened.open(protocol));
    (intent.ours)(&linux).unwrap_or_else(|error| panic!("{}: {error}", intent.name));
    kernel.take_writes()
}

fn recording(intent: &Intent) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/recorded")
        .join(format!("{}.hex", intent.name))
}

/// Compare what is sent, whatever the order of a VF's attributes.
fn assert_same(ours: Vec<Request>, theirs: Vec<Request>, command: &str) {
    let text = |requests: Vec<Request>| {
        text(&requests.into_iter().map(Request::in_order).collect::<Vec<_>>())
    };
    assert_eq!(text(ours), text(theirs), "{command}");
}

/// A line for each message: the protocol's number, then header, then the rest in words.
fn text(requests: &[Request]) -> String {
    let mut text = String::new();
    for request in requests {
        write!(text, "{:02}", request.protocol).expect("a string");
        for (place, byte) in request.bytes.iter().enumerate() {
            let gap = if place % 4 == 0 { " " } else { "" };
            write!(text, "{gap}{byte:02x}").expect("a string");
        }
        text.push('\n');
    }
    text
}

/// The way back.
fn parse(text: &str) -> Vec<Request> {
    let bytes = |line: &str| {
        let digits: Vec<char> = line.chars().filter(char::is_ascii_hexdigit).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
        digits.chunks(2).map(byte).collect::<Result<Vec<u8>, _>>().expect("hexadecimal")
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (protocol, message) = line.split_once(' ').expect("a protocol before a message");
            Request { protocol: protocol.parse().expect("a number"), bytes: bytes(message) }
        })
        .collect()
}

#[test]
fn every_write_is_what_the_tools_were_recorded_to_send() {
    for intent in intents() {
        let recorded = std::fs::read_to_string(recording(&intent)).expect("recorded");
        assert!(recorded.contains(intent.command), "{} is of another command", intent.name);
        assert_same(ours(&intent), parse(&recorded), intent.command);
    }
}

#[test]
fn a_vf_is_set_with_one_message() {
    for intent in vf_intents() {
        assert_eq!(ours(&intent).len(), 1, "{}", intent.name);
    }
}

#[test]
fn every_write_is_what_the_tools_of_this_machine_send() {
    let packages = ["iproute2", "ethtool"];
    if let Err(error) =
        lanekeeper_testbed::packages::ensure(&packages, &mut lanekeeper_testbed::silent)
    {
        // Without root what was recorded must do.
        assert!(!rustix::process::geteuid().is_root(), "{error}");
        return eprintln!("not compared: {error}");
    }
    let tools = Tools::new();
    for intent in intents() {
        let theirs = tools.run(&intent);
        if std::env::var_os("LANEKEEPER_RECORD").is_some() {
            let head = format!("# {}\n# {}\n", tools.version, intent.command);
            std::fs::write(recording(&intent), head + &text(&theirs)).expect("written");
        }
        assert_same(ours(&intent), theirs, intent.command);
    }
}

/// The machine's tools, with our kernel behind their sockets.
struct Tools {
    folder: TempDir,
    kernel: Kernel,
    version: String,
}

impl Tools {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/preload.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(folder.path().join("preload.so"))
            .arg(source)
            .arg("-ldl")
            .output()
            .expect("cc, which Rust links with too");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let kernel = Kernel::default();
        kernel.listen(folder.path().join("kernel")).expect("listens");
        let version = Command::new("ip").arg("-V").output().expect("installed").stdout;
        let version = String::from_utf8_lossy(&version).trim().to_owned();
        Self { folder, kernel, version }
    }

    fn run(&self, intent: &Intent) -> Vec<Request> {
        let mut words = intent.command.split_whitespace();
        let output = Command::new(words.next().expect("a tool"))
            .args(words)
            .env("LD_PRELOAD", self.folder.path().join("preload.so"))
            .env("FAKE_KERNEL", self.folder.path().join("kernel"))
            .output()
            .expect("installed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", intent.command);
        assert!(
            intent.command.contains(INTERFACE)
                || intent.command.contains(&pf().to_string())
                || intent.command.starts_with("rdma system")
        );
        self.kernel.take_writes()
    }
}
