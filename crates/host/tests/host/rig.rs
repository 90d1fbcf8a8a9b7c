//! A host in memory, its host file, and owners that come and go over the same state folder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lanekeeper_host::{
    ClaimRequest, HostFile, NodeState, Owner, OwnerToken, Patience, PreflightFacts,
};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::{Fake, FakePf, Personality};
use lanekeeper_hw::inventory::{PfReading, RepresentorState, VfAttributes};
use lanekeeper_model::{EswitchMode, PfAddr, RoceSetting, VfIndex};
use tempfile::TempDir;

/// Long enough for what must happen, short enough for what never does.
pub(crate) const QUICK: Patience = Patience {
    lock: Duration::from_secs(20),
    busy: Duration::from_millis(60),
    poll: Duration::from_millis(1),
    vfs: Duration::from_millis(200),
    each_vf: Duration::from_millis(1),
    read: Duration::from_secs(5),
    stragglers: Duration::from_millis(50),
};

/// VFIO's device nodes are all there and anybody's, and there are two NUMA nodes.
pub(crate) struct AllNodes;

impl PreflightFacts for AllNodes {
    fn node(&self, _: &Path) -> NodeState {
        NodeState::Present { mode: 0o666, owner: 0, group: 0 }
    }

    fn memlock_limit(&self) -> Option<u64> {
        None
    }

    fn numa_nodes(&self) -> Vec<u32> {
        vec![0, 1]
    }
}

pub(crate) struct Rig {
    pub(crate) fake: Fake,
    pub(crate) folder: TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        // Thousands of ledgers are synced to it, and none needs to outlive the test.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Self { fake: Fake::new(), folder: tempfile::tempdir_in(folder).expect("a folder") }
    }

    /// A host with one PF, and that.
    pub(crate) fn with(pf: FakePf) -> (Self, PfAddr) {
        let rig = Self::new();
        let addr = rig.fake.add_pf(pf);
        (rig, addr)
    }

    /// The same with `vfs` VFs that are ours, named `rail0`, in pool `fast`.
    pub(crate) fn applied(pf: FakePf, vfs: u16) -> (Self, PfAddr) {
        let (rig, addr) = Self::with(pf);
        rig.apply(&entry(&rig.fake, addr, "rail0", vfs, "pools: [fast]"));
        rig.fake.clear_log();
        (rig, addr)
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner_over(Arc::new(self.fake.clone()))
    }

    pub(crate) fn owner_over(&self, hw: Arc<dyn SriovHardware>) -> Owner {
        let owner = Owner::open(hw, self.folder.path()).expect("the state folder");
        owner.with_patience(QUICK).with_preflight(Arc::new(AllNodes))
    }

    pub(crate) fn apply(&self, file: &HostFile) {
        let owner = self.owner();
        let plan = owner.plan(file).expect("a plan");
        owner.apply(&plan, None).expect("applied");
    }

    pub(crate) fn read(&self, pf: PfAddr) -> PfReading {
        self.fake.read(pf).expect("a reading")
    }

    pub(crate) fn state(&self, pf: PfAddr) -> State {
        State::of(&self.read(pf))
    }
}

/// A file with one PF, selected by its MAC.
pub(crate) fn entry(fake: &Fake, pf: PfAddr, name: &str, vfs: u16, more: &str) -> HostFile {
    let mac = fake.read(pf).expect("a reading").permanent_mac.expect("a MAC");
    let text = format!(
        "version: 1\npfs:\n  - {{name: {name}, select: {{permanent_mac: '{mac}'}}, vfs: {vfs}\
         {comma}{more}}}\n",
        comma = if more.is_empty() { "" } else { ", " }
    );
    parse(&text)
}

pub(crate) fn parse(text: &str) -> HostFile {
    HostFile::parse(text, Path::new("host.yaml")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(crate) fn token(text: &str) -> OwnerToken {
    format!("token-{text}").parse().expect("a token")
}

pub(crate) fn request(of: &str) -> ClaimRequest {
    ClaimRequest::new(token(of))
}

pub(crate) fn vf(number: u32) -> VfIndex {
    VfIndex::new(number).expect("a VF number")
}

/// What of a PF a failed change must leave as it was.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct State {
    pub(crate) num_vfs: u16,
    pub(crate) autoprobe: bool,
    pub(crate) eswitch: Option<EswitchMode>,
    pub(crate) up_and_mtu: Option<(bool, u32)>,
    pub(crate) roce: Vec<RoceSetting>,
    pub(crate) vfs: Vec<VfState>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct VfState {
    pub(crate) attributes: Option<VfAttributes>,
    pub(crate) driver: Option<String>,
    pub(crate) driver_override: Option<String>,
    pub(crate) representor: Option<RepresentorState>,
}

impl State {
    pub(crate) fn of(pf: &PfReading) -> Self {
        let vfs = pf.vfs.iter().map(|vf| VfState {
            attributes: vf.attributes,
            driver: vf.driver.clone(),
            driver_override: vf.driver_override.clone(),
            representor: vf.representor_state,
        });
        Self {
            num_vfs: pf.num_vfs,
            autoprobe: pf.autoprobe,
            eswitch: pf.eswitch,
            up_and_mtu: pf.netdev.as_ref().map(|netdev| (netdev.up, netdev.mtu)),
            roce: pf.roce.clone(),
            vfs: vfs.collect(),
        }
    }
}

/// A file that changes as much as the driver has, of one PF with `vfs` VFs.
pub(crate) fn rich(fake: &Fake, pf: PfAddr, vfs: u16) -> HostFile {
    let reading = fake.read(pf).expect("a reading");
    let eswitch = match reading.eswitch {
        Some(_) => ", eswitch: switchdev",
        None => "",
    };
    let mac = reading.permanent_mac.expect("a MAC");
    parse(&format!(
        "version: 1\npfs:\n  - {{name: rail0, select: {{permanent_mac: '{mac}'}}, vfs: {vfs}, \
         mtu: 9000, roce: lossless, pools: [fast]{eswitch}}}\nroce_profiles:\n  lossless:\n    \
         trust: dscp\n    dscp_priority: {{26: 3, 48: 6}}\n    pfc: [3]\n    global_pause: false\n    \
         ecn: [3]\n    cm_dscp: 26\n    cm_ecn: true\n"
    ))
}

/// A PF of each driver.
pub(crate) fn each_driver() -> impl Iterator<Item = (Personality, FakePf)> {
    Personality::ALL.into_iter().map(|driver| (driver, FakePf::new(driver)))
}
