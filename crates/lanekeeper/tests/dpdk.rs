//! An independent virtio driver on our VFs: DPDK's testpmd drives two VFs of `lanekeeper softnic`.
//! Frames pass, what we counted is what it counted, and VLAN and anti-spoof hold against it.

use std::path::Path;
use std::time::{Duration, Instant};

use lanekeeper_bench::peers::{ClientKind, Load, MACS};
use lanekeeper_bench::softnic::{self, NAME, SoftNic};
use lanekeeper_bench::testpmd::{Memory, Port, PortCounters, Ring, Setup, Testpmd};
use lanekeeper_bench::{Stop, process::tool};
use lanekeeper_model::MacAddr;
use serde_json::Value;
use tempfile::TempDir;

const LANEKEEPER: &str = env!("CARGO_BIN_EXE_lanekeeper");
/// Frames a port sends at the start: four bursts of 32.
const BURSTS: u32 = 4;
const SENT: u64 = 128;
const FORGED: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x99]);
const SOON: Duration = Duration::from_secs(20);

/// A software NIC with two VFs of one VLAN, and a testpmd on both.
struct Rig {
    // A driver leaves before its device, and the folder goes last.
    testpmd: Testpmd,
    nic: SoftNic,
    folder: TempDir,
}

impl Rig {
    fn new(ring: Ring) -> Self {
        Self::with_macs(ring, MACS)
    }

    /// The testpmd's ports send from `macs`; the VFs' own are [`MACS`].
    fn with_macs(ring: Ring, macs: [MacAddr; 2]) -> Self {
        let stop = Stop::default();
        let folder = tempfile::Builder::new().prefix("lk-dpdk.").tempdir().expect("a folder");
        let cores = std::thread::available_parallelism().expect("cores").get();
        let load = Load {
            client: ClientKind::Testpmd,
            ring,
            length: 64,
            ring_size: 256,
            bursts: BURSTS,
            cores: [0, cores - 1],
            lanekeeper: LANEKEEPER.into(),
        };
        let mut config = softnic::config(&load, folder.path()).expect("a configuration");
        config.cpus.clear();
        let nic = SoftNic::start(Path::new(LANEKEEPER), &config, folder.path(), &stop)
            .expect("the software NIC starts");
        let ports = [0, 1].map(|port| Port::VirtioUser {
            socket: folder.path().join(format!("vf{port}.sock")),
            mac: macs[port],
            ring,
        });
        let setup = Setup {
            name: "testpmd".to_owned(),
            core: cores - 1,
            others: (0..cores).collect(),
            memory: Memory::Ordinary,
            ports: ports.to_vec(),
            ring_size: load.ring_size,
            forward: "rxonly".to_owned(),
            peers: vec![MACS[1], MACS[0]],
        };
        let testpmd = Testpmd::start(&setup, folder.path(), &stop)
            .expect("testpmd starts; `./x test` installs it");
        let rig = Self { testpmd, nic, folder };
        rig.eventually("both VFs are attached and up", || {
            rig.vfs().iter().all(|vf| vf["attached"] == true && vf["link_up"] == true)
        });
        rig
    }

    fn vfs(&self) -> Vec<Value> {
        self.nic.vfs().expect("the NIC answers")
    }

    fn ports(&self) -> [PortCounters; 2] {
        [0, 1].map(|port| self.testpmd.counters(port).expect("testpmd answers"))
    }

    /// Each port sends [`SENT`] frames to the other VF's address, then listens.
    fn send(&mut self) {
        self.command("set fwd rxonly");
        self.command(&format!("start tx_first {BURSTS}"));
    }

    fn command(&mut self, line: &str) -> String {
        self.testpmd.command(line).expect("testpmd obeys")
    }

    /// Change a VF as an administrator would, while traffic may run.
    fn set(&self, vf: usize, setting: [&str; 2]) {
        let (vf, folder) = (vf.to_string(), self.folder.path().display().to_string());
        let place = ["softnic", "set", NAME, &vf, "--run-dir", &folder];
        tool(LANEKEEPER, [&place[..], &setting].concat()).expect("the change is taken");
    }

    fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(
                start.elapsed() < SOON,
                "{what}: not within {SOON:?}; {:?}; {:?}",
                self.ports(),
                self.vfs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn dropped(&self, vf: usize, reason: &str) -> u64 {
        self.vfs()[vf]["counters"]["tx_drops"][reason].as_u64().unwrap_or(0)
    }
}

/// One direction of a VF's counters.
fn counted(vf: &Value, direction: &str) -> (u64, u64) {
    let counters = &vf["counters"][direction];
    (counters["frames"].as_u64().expect("frames"), counters["bytes"].as_u64().expect("bytes"))
}

fn frames_circulate_and_both_sides_count_the_same(ring: Ring) {
    let mut rig = Rig::new(ring);
    rig.command("set fwd mac");
    rig.command(&format!("start tx_first {BURSTS}"));
    rig.eventually("thousands of frames pass", || {
        rig.ports().iter().all(|port| port.rx_frames > 10_000)
    });
    rig.command("stop");
    // What is still in the rings.
    rig.command("set fwd rxonly");
    rig.command("start");
    rig.eventually("every frame that was sent arrives", || {
        let [first, second] = rig.ports();
        first.tx_frames == second.rx_frames && second.tx_frames == first.rx_frames
    });
    let vfs = rig.vfs();
    for (vf, port) in vfs.iter().zip(rig.ports()) {
        assert_eq!(counted(vf, "tx"), (port.tx_frames, port.tx_bytes));
        assert_eq!(counted(vf, "rx"), (port.rx_frames, port.rx_bytes));
        assert_eq!(vf["counters"]["tx_drops"], serde_json::json!({}));
        assert_eq!(vf["counters"]["ring_faults"], 0);
    }
}

#[test]
fn frames_circulate_over_split_rings_and_both_sides_count_the_same() {
    frames_circulate_and_both_sides_count_the_same(Ring::Split);
}

#[test]
fn frames_circulate_over_packed_rings_and_both_sides_count_the_same() {
    frames_circulate_and_both_sides_count_the_same(Ring::Packed);
}

#[test]
fn a_vf_that_is_moved_to_another_vlan_is_out_of_reach_until_it_is_moved_back() {
    for ring in Ring::ALL {
        let mut rig = Rig::new(ring);
        rig.set(1, ["--vlan", "6"]);
        rig.send();
        rig.eventually("every frame is dropped for want of a destination", || {
            [0, 1].iter().all(|vf| rig.dropped(*vf, "no_destination") == SENT)
        });
        assert_eq!(rig.ports().map(|port| port.rx_frames), [0, 0], "{}", ring.name());

        rig.command("stop");
        rig.set(1, ["--vlan", "5"]);
        rig.send();
        rig.eventually("the same frames pass in one VLAN", || {
            rig.ports().map(|port| port.rx_frames) == [SENT, SENT]
        });
    }
}

#[test]
fn frames_from_a_mac_that_is_not_the_vfs_own_are_dropped_until_spoofchk_is_off() {
    for ring in Ring::ALL {
        let mut rig = Rig::with_macs(ring, [FORGED, MACS[1]]);
        rig.send();
        rig.eventually("every forged frame is dropped as such", || {
            rig.dropped(0, "spoofed_mac") == SENT
        });
        rig.eventually("honest frames to the forger arrive", || {
            rig.ports().map(|port| port.rx_frames) == [SENT, 0]
        });

        rig.command("stop");
        // Addresses are checked together with the MAC: without the one there is not the other.
        rig.set(0, ["--addresses", "any"]);
        rig.set(0, ["--spoofchk", "off"]);
        rig.send();
        rig.eventually("the same frames pass with spoofchk off", || {
            rig.ports().map(|port| port.rx_frames) == [2 * SENT, SENT]
        });
    }
}

#[test]
fn frames_of_9000_bytes_arrive_whole_over_merged_buffers() {
    for ring in Ring::ALL {
        let mut rig = Rig::new(ring);
        for vf in [0, 1] {
            rig.set(vf, ["--mtu", "9000"]);
        }
        rig.testpmd.set_frame_length(9_000).expect("testpmd obeys");
        rig.command("set fwd rxonly");
        // Five buffers each, so that all fit into the receiver's ring.
        rig.command("start tx_first 1");
        rig.eventually("each frame arrives", || {
            rig.ports().map(|port| (port.rx_frames, port.rx_bytes)) == [(32, 288_000); 2]
        });
    }
}
