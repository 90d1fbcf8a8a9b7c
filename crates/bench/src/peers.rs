//! The switches that are compared, each with the same client, which drives two VFs as a guest would
//! and sends each frame on to the other VF.
//!
//! Frames keep legal addresses: what leaves a port carries that port's MAC as source and the other
//! port's as destination, so that anti-spoof and MAC learning have nothing to object to.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lanekeeper_model::MacAddr;

use crate::own_client::OwnClient;
use crate::process::{Running, Thread, tool};
use crate::softnic::{self, SoftNic};
use crate::testpmd::{Memory, Port, Ring, Setup, Testpmd};
use crate::{BenchError, Stop};

/// Addresses of the two VFs.
pub const MACS: [MacAddr; 2] = [MacAddr([0x02, 0, 0, 0, 0, 1]), MacAddr([0x02, 0, 0, 0, 0, 2])];

/// How long a switch may take to take up its VFs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A switch that can stand between the client's two ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Our software NIC with every VF policy on.
    SoftNic,
    /// testpmd with two `net_vhost` ports in `io` mode: moves frames, looks at nothing.
    TestpmdIo,
    /// OVS-DPDK with two vhost-user ports and the NORMAL action: a learning switch.
    OvsNormal,
}

impl Peer {
    /// All, in the order in which they are reported.
    pub const ALL: [Self; 3] = [Self::SoftNic, Self::TestpmdIo, Self::OvsNormal];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::SoftNic => "Lanekeeper",
            Self::TestpmdIo => "testpmd io",
            Self::OvsNormal => "OVS-DPDK NORMAL",
        }
    }
}

/// Who drives the two VFs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientKind {
    /// DPDK's testpmd: independent of us.
    Testpmd,
    /// Our own driver: as light as can be.
    Own,
}

impl ClientKind {
    /// Both, in the order in which they are reported.
    pub const ALL: [Self; 2] = [Self::Testpmd, Self::Own];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Testpmd => "DPDK's testpmd",
            Self::Own => "our own driver",
        }
    }
}

/// What all lanes of one comparison have in common.
#[derive(Clone, Debug)]
pub struct Load {
    /// Who drives the two VFs.
    pub client: ClientKind,
    /// Ring layout that the client offers.
    pub ring: Ring,
    /// Frame length in bytes, without FCS.
    pub length: usize,
    /// Descriptors in each ring.
    pub ring_size: u16,
    /// Frames in flight in each direction, in bursts of 32.
    pub bursts: u32,
    /// Core of the switch, then core of the client.
    pub cores: [usize; 2],
    /// The `lanekeeper` program.
    pub lanekeeper: PathBuf,
}

/// A client on both VFs of a switch.
pub trait Client {
    /// Send the first frames, in bursts of 32 on each VF, and go on with those that come back.
    ///
    /// # Errors
    /// The client is gone.
    fn begin(&mut self, bursts: u32) -> Result<(), BenchError>;

    /// Go on.
    ///
    /// # Errors
    /// The client is gone.
    fn resume(&self) -> Result<(), BenchError>;

    /// Stand still; it does on return.
    ///
    /// # Errors
    /// The client is gone.
    fn pause(&self) -> Result<(), BenchError>;

    /// Frames received so far on each VF.
    ///
    /// # Errors
    /// The client does not answer.
    fn received(&self) -> Result<[u64; 2], BenchError>;

    /// The thread that moves frames.
    fn worker(&self) -> &Thread;

    /// Let nothing of ordinary priority interrupt it.
    ///
    /// # Errors
    /// No permission to use real-time scheduling.
    fn prioritise(&self) -> Result<(), BenchError>;
}

impl Client for Testpmd {
    fn begin(&mut self, bursts: u32) -> Result<(), BenchError> {
        self.command(&format!("start tx_first {bursts}")).map(drop)
    }

    fn resume(&self) -> Result<(), BenchError> {
        self.process().resume()
    }

    fn pause(&self) -> Result<(), BenchError> {
        self.process().pause()
    }

    fn received(&self) -> Result<[u64; 2], BenchError> {
        Ok([self.counters(0)?.rx_frames, self.counters(1)?.rx_frames])
    }

    fn worker(&self) -> &Thread {
        Testpmd::worker(self)
    }

    fn prioritise(&self) -> Result<(), BenchError> {
        self.process().prioritise(Testpmd::worker(self))
    }
}

/// A switch that is up: its polling process and the thread in it that moves frames.
trait Switch {
    fn process(&self) -> &Running;
    fn worker(&self) -> &Thread;
    /// Whether it has taken up both VFs: what comes before may be dropped, and a frame that is
    /// dropped at the start is missing in every window.
    fn links_up(&self) -> Result<bool, BenchError>;
}

impl Switch for Testpmd {
    fn process(&self) -> &Running {
        Testpmd::process(self)
    }

    fn worker(&self) -> &Thread {
        Testpmd::worker(self)
    }

    fn links_up(&self) -> Result<bool, BenchError> {
        Ok(self.link_up(0)? && self.link_up(1)?)
    }
}

impl Switch for SoftNic {
    fn process(&self) -> &Running {
        SoftNic::process(self)
    }

    fn worker(&self) -> &Thread {
        SoftNic::worker(self)
    }

    fn links_up(&self) -> Result<bool, BenchError> {
        Ok(self.vfs()?.iter().all(|vf| vf["attached"] == true && vf["link_up"] == true))
    }
}

struct Ovs {
    daemon: Running,
    worker: Thread,
    // After the daemon, which takes leave of it.
    _database: Running,
    remote: String,
}

impl Ovs {
    fn ctl(remote: &str, args: &[&str]) -> Result<String, BenchError> {
        let remote = format!("--db={remote}");
        tool("ovs-vsctl", [&[remote.as_str(), "--timeout=20"], args].concat())
    }
}

impl Switch for Ovs {
    fn process(&self) -> &Running {
        &self.daemon
    }

    fn worker(&self) -> &Thread {
        &self.worker
    }

    fn links_up(&self) -> Result<bool, BenchError> {
        let ports = ["vf0.sock", "vf1.sock"];
        let states =
            ports.map(|port| Self::ctl(&self.remote, &["get", "interface", port, "link_state"]));
        for state in states {
            if state?.trim() != "up" {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// One switch and the client that circulates frames through it.
pub struct Lane {
    peer: Peer,
    // Before the switch: a driver leaves before its device.
    client: Box<dyn Client>,
    switch: Box<dyn Switch>,
}

impl Lane {
    /// Start both in a folder of their own under `folder`, see that frames circulate, and freeze
    /// them with their threads at real-time priority.
    ///
    /// # Errors
    /// One of them did not come up, or no frame came back.
    pub fn start(peer: Peer, load: &Load, folder: &Path, stop: &Stop) -> Result<Self, BenchError> {
        let folder = folder.join(peer.name().replace(' ', "-"));
        fs::create_dir_all(&folder).map_err(BenchError::io(folder.display()))?;
        let sockets = [folder.join("vf0.sock"), folder.join("vf1.sock")];
        let switch: Box<dyn Switch> = match peer {
            Peer::SoftNic => {
                let config = softnic::config(load, &folder)?;
                Box::new(SoftNic::start(&load.lanekeeper, &config, &folder, stop)?)
            }
            Peer::TestpmdIo => Box::new(testpmd_io(load, &sockets, &folder, stop)?),
            Peer::OvsNormal => Box::new(ovs_normal(load, &folder, stop)?),
        };
        let mut client: Box<dyn Client> = match load.client {
            ClientKind::Testpmd => Box::new(testpmd_client(load, &sockets, &folder, stop)?),
            ClientKind::Own => Box::new(OwnClient::start(&sockets, load, stop)?),
        };
        let start = Instant::now();
        while !switch.links_up()? {
            if start.elapsed() > PATIENCE {
                return Err(BenchError::NoLink { peer: peer.name().to_owned() });
            }
            stop.sleep(Duration::from_millis(100))?;
        }
        client.begin(load.bursts)?;
        let lane = Self { peer, client, switch };
        lane.await_frames(stop)?;
        lane.pause()?;
        lane.give_priority()?;
        Ok(lane)
    }

    /// Name of the switch.
    pub fn name(&self) -> &'static str {
        self.peer.name()
    }

    /// Which switch it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Let frames flow.
    ///
    /// # Errors
    /// A process is gone.
    pub fn resume(&self) -> Result<(), BenchError> {
        self.switch.process().resume()?;
        self.client.resume()
    }

    /// Freeze frames where they are.
    ///
    /// # Errors
    /// A process is gone.
    pub fn pause(&self) -> Result<(), BenchError> {
        self.client.pause()?;
        self.switch.process().pause()
    }

    /// Frames that have come back to the client so far, both directions together.
    ///
    /// # Errors
    /// The client does not answer.
    pub fn received(&self) -> Result<u64, BenchError> {
        Ok(self.client.received()?.iter().sum())
    }

    /// How long the switching and the client's thread have been running on their cores.
    ///
    /// # Errors
    /// A thread is gone.
    pub fn running_times(&self) -> Result<[Duration; 2], BenchError> {
        Ok([self.switch.worker().running_time()?, self.client.worker().running_time()?])
    }

    fn await_frames(&self, stop: &Stop) -> Result<(), BenchError> {
        for _ in 0..100 {
            let first = self.client.received()?;
            stop.sleep(Duration::from_millis(50))?;
            let second = self.client.received()?;
            if first.iter().zip(&second).all(|(first, second)| first < second) {
                return Ok(());
            }
        }
        Err(BenchError::Silent { peer: self.name().to_owned() })
    }

    fn give_priority(&self) -> Result<(), BenchError> {
        self.switch.process().prioritise(self.switch.worker())?;
        self.client.prioritise()
    }
}

fn testpmd_client(
    load: &Load,
    sockets: &[PathBuf; 2],
    folder: &Path,
    stop: &Stop,
) -> Result<Testpmd, BenchError> {
    let ports = [0, 1].map(|port: usize| Port::VirtioUser {
        socket: sockets[port].clone(),
        mac: MACS[port],
        ring: load.ring,
    });
    let setup = Setup {
        name: "client".to_owned(),
        core: load.cores[1],
        others: load.cores.to_vec(),
        memory: Memory::Huge,
        ports: ports.to_vec(),
        ring_size: load.ring_size,
        forward: "mac".to_owned(),
        peers: vec![MACS[1], MACS[0]],
    };
    let mut client = Testpmd::start(&setup, folder, stop)?;
    client.set_frame_length(load.length)?;
    Ok(client)
}

fn testpmd_io(
    load: &Load,
    sockets: &[PathBuf; 2],
    folder: &Path,
    stop: &Stop,
) -> Result<Testpmd, BenchError> {
    let setup = Setup {
        name: "switch".to_owned(),
        core: load.cores[0],
        others: load.cores.to_vec(),
        memory: Memory::Huge,
        ports: sockets.iter().map(|socket| Port::Vhost { socket: socket.clone() }).collect(),
        ring_size: load.ring_size,
        forward: "io".to_owned(),
        peers: Vec::new(),
    };
    let mut switch = Testpmd::start(&setup, folder, stop)?;
    switch.command("start")?;
    Ok(switch)
}

fn ovs_normal(load: &Load, folder: &Path, stop: &Stop) -> Result<Ovs, BenchError> {
    let file = |name: &str| folder.join(name).display().to_string();
    let (database, socket) = (file("conf.db"), file("db.sock"));
    // Its own network namespace: OVS makes an interface for each bridge.
    let run = ["env".to_owned(), format!("OVS_RUNDIR={}", folder.display())];
    let alone = ["unshare", "--net", "--"].map(str::to_owned);
    tool("ovsdb-tool", ["create", &database, "/usr/share/openvswitch/vswitch.ovsschema"])?;
    let server = ["ovsdb-server".to_owned(), database, format!("--remote=punix:{socket}")];
    let mut database = Running::start("ovsdb", run.iter().chain(&server), folder)?;
    database.wait_for("its socket", Duration::from_secs(10), stop, |_| {
        Ok(Path::new(&socket).exists().then_some(()))
    })?;
    let remote = format!("unix:{socket}");
    let vsctl = |args: &[&str]| Ovs::ctl(&remote, args);
    let mask = format!("other_config:pmd-cpu-mask={:#x}", 1_u64 << load.cores[0]);
    let cores = load.cores.iter().fold(0, |mask, core| mask | (1_u64 << core));
    vsctl(&["--no-wait", "init"])?;
    vsctl(&[
        "--no-wait",
        "set",
        "Open_vSwitch",
        ".",
        "other_config:dpdk-init=true",
        // A pool a port, sized by its rings. The shared one takes as much as it is let, and with
        // 9000-byte buffers leaves nothing for the rings.
        "other_config:per-port-memory=true",
        "other_config:dpdk-socket-mem=256",
        "other_config:dpdk-socket-limit=1024",
        &format!("other_config:dpdk-lcore-mask={cores:#x}"),
        &mask,
        "other_config:dpdk-extra=--no-pci --iova-mode=va --in-memory --file-prefix=ovs",
    ])?;
    let program = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk".to_owned();
    let pid_file = "--pidfile".to_owned();
    let daemon = [program, remote.clone(), pid_file];
    let mut daemon = Running::start("vswitchd", alone.iter().chain(&run).chain(&daemon), folder)?;
    vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
    let mtu = format!("mtu_request={}", load.length.saturating_sub(14).max(1_500));
    for port in ["vf0.sock", "vf1.sock"] {
        let kind = "type=dpdkvhostuser";
        vsctl(&["add-port", "br0", port, "--", "set", "interface", port, kind, &mtu])?;
    }
    let worker = daemon.thread(&["pmd"], stop)?;
    Ok(Ovs { daemon, worker, _database: database, remote })
}
