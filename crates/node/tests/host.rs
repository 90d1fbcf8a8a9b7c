//! A host with a software NIC, VMs that really boot, and an agent that is a process of its own: this
//! very program, told by its environment. It is killed, as only a process can be, and started again.

#[path = "../../vmm/tests/rig/mod.rs"]
#[expect(dead_code, reason = "the node makes its own specs")]
mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_control::keys::{FabricName, PfName};
use lanekeeper_control::placement::{HostReport, Scalars, VfPlace, VmPlace};
use lanekeeper_control::protocol::{
    Desired, DesiredPort, DesiredVm, Heartbeat, HeartbeatAnswer, Image, ImageFormat, PortAddress,
    Power, ProofReports, VmId, VmReport, VmReports, VmState,
};
use lanekeeper_hw::Hardware;
use lanekeeper_model::{LinkState, MacAddr, Mbps, Mtu, PfId, VfIndex, VfSettings, VlanId, VlanTag};
use lanekeeper_node::{Builtin, Link, LinkError, Node, NodeConfig, Parts, SoftwareNics};
use lanekeeper_softnic::{Config, Nic};
use lanekeeper_testbed::guest_image::boot_sector;
use lanekeeper_testbed::packages;
use lanekeeper_vmm::{AgentHost, Driver, Host};
use rig::rig;

/// Tells this program that it is the agent, and of which folder.
const AGENT: &str = "LANEKEEPER_TEST_AGENT";
/// Far more than two boots take on an idle machine.
const PATIENCE: Duration = Duration::from_secs(180);
const SHORT: Duration = Duration::from_secs(30);

/// A server that is a folder: `desired.json` is read, `reports.json` and `inventory.json` are written.
struct Folder(PathBuf);

impl Folder {
    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.0.join(name)).ok()?).ok()
    }

    fn write(&self, name: &str, value: &impl serde::Serialize) {
        let draft = self.0.join(format!("{name}.draft"));
        fs::write(&draft, serde_json::to_vec(value).expect("plain data")).expect("written");
        fs::rename(draft, self.0.join(name)).expect("renamed");
    }
}

impl Link for Folder {
    fn inventory(&self, report: &HostReport) -> Result<(), LinkError> {
        self.write("inventory.json", report);
        Ok(())
    }

    fn heartbeat(&self, _: &Heartbeat) -> Result<HeartbeatAnswer, LinkError> {
        Ok(HeartbeatAnswer { lease_seconds: 600 })
    }

    fn desired(&self, after: u64, wait: Duration) -> Result<Desired, LinkError> {
        let deadline = Instant::now() + wait;
        loop {
            let desired: Desired = self.read("desired.json").unwrap_or_default();
            if desired.revision > after || Instant::now() >= deadline {
                return Ok(desired);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn report(&self, reports: &VmReports) -> Result<(), LinkError> {
        let mut all: BTreeMap<VmId, VmReport> = self.read("reports.json").unwrap_or_default();
        all.extend(reports.vms.iter().map(|report| (report.vm, report.clone())));
        self.write("reports.json", &all);
        Ok(())
    }

    fn proofs(&self, reports: &ProofReports) -> Result<(), LinkError> {
        self.write("proofs.json", reports);
        Ok(())
    }
}

fn config(folder: &Path) -> NodeConfig {
    let mut config = NodeConfig::new(FabricName::new("lab").expect("a name"));
    config.state_folder = folder.join("state");
    config.run_folder = folder.join("run");
    config.nic_folder = folder.join("nics");
    config.vcpus_per_core = 8;
    // The machine's hugepages, if it has any, were set aside for something else.
    config.hugepages = false;
    config
}

/// What the agent's process does until it is killed, or whoever started it has ended.
fn be_the_agent(folder: &Path) {
    let image = &rig().image;
    let line = image.clone();
    let config = config(folder);
    let parts = Parts {
        driver: rig().qemu.clone(),
        accel: rig().accel,
        software: Arc::new(SoftwareNics::under(&config.nic_folder)),
        owner: None,
        builtin: Some(Builtin {
            kernel: image.kernel.clone(),
            initramfs: image.initramfs.clone(),
            command_line: Arc::new(move |name| line.command_line(name)),
        }),
        link: Arc::new(Folder(folder.to_owned())),
    };
    let node = Node::open(config, parts).expect("opens");
    let stop = node.stop();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stop.stop();
    });
    node.run().expect("runs");
}

/// The host as the test has it.
struct Site {
    folder: tempfile::TempDir,
    server: Folder,
    agent: Option<Child>,
    revision: u64,
}

impl Site {
    fn start(&mut self) {
        let program = std::env::current_exe().expect("this program has a file");
        let child = Command::new(program)
            .args(["--exact", TEST, "--nocapture"])
            .env(AGENT, self.folder.path())
            .stdin(Stdio::piped())
            .spawn();
        self.agent = Some(child.expect("starts"));
    }

    fn kill(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        agent.kill().expect("killed");
        agent.wait().expect("ended");
    }

    fn desire(&mut self, vms: &[DesiredVm]) {
        self.revision += 1;
        let desired = Desired { revision: self.revision, vms: vms.to_vec(), ..Desired::default() };
        self.server.write("desired.json", &desired);
    }

    fn hears(&mut self, what: &str, hoped: impl Fn(&BTreeMap<VmId, VmReport>) -> bool) {
        let begin = Instant::now();
        loop {
            let reports = self.server.read("reports.json").unwrap_or_default();
            if hoped(&reports) {
                println!("{what} after {:?}", begin.elapsed());
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "not {what}: {reports:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The guest of a VM, while no agent has its line.
    fn guest(&self, vm: VmId) -> AgentHost {
        let line = self.folder.path().join(format!("run/vm-{vm}/agent.sock"));
        let guest = AgentHost::connect(&format!("vm-{vm}"), &line, SHORT).expect("a line");
        guest.wait_ready(SHORT).expect("answers");
        guest
    }

    fn vf(&self, number: u32) -> VfSettings {
        let nic = PfId::Soft("nic0".parse().expect("a name"));
        let nics = SoftwareNics::under(&self.folder.path().join("nics"));
        nics.vf(&nic, vf(number)).expect("answers").settings
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.agent.is_some() {
            self.kill();
        }
        for vm in [1, 2] {
            let ended = rig().qemu.end(&self.folder.path().join(format!("run/vm-{vm}")));
            ended.expect("no VM is left behind");
        }
    }
}

fn vf(number: u32) -> VfIndex {
    VfIndex::new(number).expect("in range")
}

fn vm(id: u8) -> DesiredVm {
    let pf = PfName::new("nic0").expect("a name");
    let tag = VlanTag { id: VlanId::new(100).expect("in range"), ..VlanTag::default() };
    DesiredVm {
        vm: id.into(),
        name: format!("tenant-{id}"),
        generation: 1,
        power: Power::On,
        resets: 0,
        place: VmPlace {
            vm: 0,
            gpus: Vec::new(),
            vfs: vec![VfPlace { pf, vf: vf(id.into()), rate: Mbps(0), distance: None }],
            scalars: Scalars { vcpus: 1, ram_mib: 192, disk_gib: 0 },
        },
        image: Image::Builtin,
        ports: vec![DesiredPort {
            port: id.into(),
            name: "rail0".to_owned(),
            mac: MacAddr([2, 0, 0, 0, 1, id]),
            vlan: tag,
            addresses: vec![PortAddress { address: [10, 9, 0, id].into(), prefix: 24 }],
            mtu: Mtu::new(4500).expect("in range"),
            max_rate: Mbps(0),
            min_rate: Mbps(0),
            routes: vec![lanekeeper_control::protocol::Route {
                to: PortAddress { address: [10, 8, 0, 0].into(), prefix: 16 },
                via: [10, 9, 0, 254].into(),
            }],
        }],
        public_key: None,
        user_data: None,
        fenced: true,
    }
}

const TEST: &str = "vms_are_created_reset_stopped_started_and_deleted_by_agents_that_are_killed";

#[test]
fn vms_are_created_reset_stopped_started_and_deleted_by_agents_that_are_killed() {
    if let Some(folder) = std::env::var_os(AGENT) {
        return be_the_agent(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let run_dir = folder.path().join("nics/nic0");
    let text = format!("name = \"nic0\"\nvfs = 3\nrun_dir = \"{}\"\n", run_dir.display());
    let nic = Config::parse(&text, Path::new("nic.toml")).expect("sound");
    let nic = Nic::start(nic).expect("starts");
    let server = Folder(folder.path().to_owned());
    let mut site = Site { folder, server, agent: None, revision: 0 };
    let state = |vm: VmId, state: VmState| {
        move |all: &BTreeMap<VmId, VmReport>| all.get(&vm).is_some_and(|it| it.state == state)
    };

    site.desire(&[vm(1), vm(2)]);
    site.start();
    site.hears("it boots", state(1, VmState::Starting));
    // In the middle of a boot: the next one waits for the same guest.
    std::thread::sleep(Duration::from_secs(2));
    site.kill();
    site.start();
    site.hears("the first runs", state(1, VmState::Running));
    site.hears("the second runs", state(2, VmState::Running));
    let inventory: HostReport = site.server.read("inventory.json").expect("was told");
    assert_eq!(inventory.pfs.iter().map(|pf| pf.vfs.len()).collect::<Vec<_>>(), [3]);

    site.kill();
    let guest = site.guest(1);
    assert_eq!(guest.check("hostname", SHORT).expect("runs"), "tenant-1\n");
    assert_eq!(guest.check("cat /sys/class/net/rail0/mtu", SHORT).expect("runs"), "4500\n");
    let routes = guest.check("ip route", SHORT).expect("runs");
    assert!(routes.contains("10.8.0.0/16 via 10.9.0.254 dev rail0"), "{routes}");
    guest.check("ping -c 2 -W 5 -M do -s 4400 10.9.0.2", SHORT).expect("as the seed says");
    let forged = "ip address add 10.9.0.9/24 dev rail0; ! ping -c 1 -W 2 -I 10.9.0.9 10.9.0.2";
    guest.check(forged, SHORT).expect("no other address passes");
    guest.check("touch /tmp/mark", SHORT).expect("runs");
    drop(guest);

    // What is desired changes while no agent runs.
    let second = DesiredVm { power: Power::Off, generation: 2, ..vm(2) };
    site.desire(&[vm(1), second]);
    site.start();
    site.hears("the second has stopped", state(2, VmState::Stopped));
    let off = site.vf(2);
    assert_eq!((off.mac, off.link_state), (MacAddr([2, 0, 0, 0, 1, 2]), LinkState::Disable));
    let first = DesiredVm { resets: 1, generation: 2, ..vm(1) };
    site.desire(&[first, DesiredVm { generation: 3, ..vm(2) }]);
    site.hears("the second runs again", state(2, VmState::Running));
    site.hears("the first was reset", |all| {
        all.get(&1).is_some_and(|it| it.resets == 1 && it.state == VmState::Running)
    });
    site.kill();
    let guest = site.guest(1);
    guest.check("! [ -e /tmp/mark ]", SHORT).expect("it has booted anew");
    guest.check("ping -c 2 -W 5 -M do -s 4400 10.9.0.2", SHORT).expect("all is as before");
    drop(guest);

    site.desire(&[]);
    site.start();
    for vm in [1, 2] {
        site.hears("it is gone", state(vm, VmState::Gone));
        assert_eq!(site.vf(u32::try_from(vm).expect("small")), VfSettings::scrubbed());
        assert!(!site.folder.path().join(format!("run/vm-{vm}")).exists());
    }
    drop(site);
    nic.stop();
}

#[test]
fn a_disk_image_boots_and_the_vm_keeps_its_disk_over_a_stop() {
    packages::ensure(&["qemu-utils"], &mut |step| println!("{step}")).expect("qemu-img");
    let folder = tempfile::tempdir().expect("a folder");
    let server = Folder(folder.path().to_owned());
    let mut site = Site { folder, server, agent: None, revision: 0 };
    let root = site.folder.path().to_owned();
    let mut config = config(&root);
    config.image_folder = root.join("images");
    // This guest has no agent that answers, or powers off when it is asked.
    (config.boot_seconds, config.shutdown_seconds) = (2, 1);
    let mut disk = boot_sector("booted from disk\r\n");
    disk.resize(1 << 20, 0);
    fs::create_dir(&config.image_folder).expect("made");
    fs::write(config.image_folder.join("disk.raw"), &disk).expect("written");
    let parts = Parts {
        driver: rig().qemu.clone(),
        accel: rig().accel,
        software: Arc::new(SoftwareNics::under(&config.nic_folder)),
        owner: None,
        builtin: None,
        link: Arc::new(Folder(root.clone())),
    };
    let node = Node::open(config, parts).expect("opens");
    let stop = node.stop();
    let thread = std::thread::spawn(move || node.run());

    let (file, format) = ("disk.raw".to_owned(), ImageFormat::Raw);
    let image = Image::Disk { file, format, url: None, sha256: None };
    let mut want = DesiredVm { image, ports: Vec::new(), ..vm(1) };
    want.place.vfs.clear();
    want.place.scalars.disk_gib = 1;
    let state = |state: VmState, generation| {
        move |all: &BTreeMap<VmId, VmReport>| {
            all.get(&1).is_some_and(|it| (&it.state, it.generation) == (&state, generation))
        }
    };
    let own_disk = || {
        let disks = fs::read_dir(root.join("state/disks/1")).expect("it has a disk");
        disks.flatten().map(|entry| (entry.path(), entry.ino())).collect::<Vec<_>>()
    };
    site.desire(&[want.clone()]);
    site.hears("it runs", state(VmState::Running, 1));
    let log = fs::read_to_string(root.join("run/vm-1/serial.log")).expect("a log");
    assert!(log.contains("booted from disk"), "{log}");
    let first = own_disk();
    site.desire(&[DesiredVm { power: Power::Off, generation: 2, ..want.clone() }]);
    site.hears("it has stopped", state(VmState::Stopped, 2));
    site.desire(&[DesiredVm { generation: 3, ..want }]);
    site.hears("it runs again", state(VmState::Running, 3));
    assert_eq!((own_disk(), first.len()), (first, 1));
    site.desire(&[]);
    site.hears("it is gone", state(VmState::Gone, 3));
    assert!(!root.join("state/disks/1").exists());
    assert_eq!(fs::read(root.join("images/disk.raw")).expect("stays"), disk);
    stop.stop();
    thread.join().expect("no panic").expect("runs");
}
