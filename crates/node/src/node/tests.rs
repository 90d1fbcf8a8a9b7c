//! A whole node, with its threads, between a machine in memory and a server that says what it is told
//! to.

use std::path::PathBuf;

use lanekeeper_control::keys::FabricName;
use lanekeeper_control::protocol::{DesiredVm, Power};
use lanekeeper_model::LinkState;
use tempfile::TempDir;

use super::*;
use crate::fakes::{On, Server, World};
use crate::samples::{lane, vm};

struct Running {
    stop: Stop,
    thread: JoinHandle<Result<(), NodeError>>,
    server: Arc<Server>,
    state: PathBuf,
}

impl Running {
    fn end(self) {
        self.stop.stop();
        self.thread.join().expect("no panic").expect("runs");
        // Its process would end now, whatever its threads wait for.
        self.server.change(|_| ());
        soon("its threads have ended", || Journal::open(&self.state.join("vms")).is_ok());
    }
}

struct Rig {
    folder: TempDir,
    world: Arc<World>,
    server: Arc<Server>,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, world: Arc::default(), server: Arc::default() }
    }

    fn start(&self) -> Running {
        let mut config = NodeConfig::new(FabricName::new("lab").expect("a name"));
        let state = self.folder.path().join("state");
        config.state_folder.clone_from(&state);
        config.run_folder = self.folder.path().join("run");
        let parts = Parts {
            driver: On(Arc::clone(&self.world)),
            accel: Accel::Tcg,
            software: Arc::new(On(Arc::clone(&self.world))),
            owner: None,
            builtin: Some(World::builtin()),
            link: Arc::clone(&self.server) as Arc<dyn Link>,
        };
        let node = Node::open(config, parts).expect("opens");
        let stop = node.stop();
        let (server, thread) = (Arc::clone(&self.server), std::thread::spawn(move || node.run()));
        Running { stop, thread, server, state }
    }

    fn desire(&self, vms: &[DesiredVm]) {
        self.server.change(|said| said.desired.vms = vms.to_vec());
    }

    fn hears(&self, vm: VmId, state: &VmState) {
        self.server.hears(|reports| reports.get(&vm).is_some_and(|it| it.state == *state));
    }
}

fn fenced(id: VmId) -> DesiredVm {
    DesiredVm { fenced: true, ..vm(id) }
}

fn soon(what: &str, hoped: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !hoped() {
        assert!(Instant::now() < deadline, "not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn vms_come_stop_and_go_as_is_desired_and_what_is_gone_is_forgotten() {
    let rig = Rig::new();
    let node = rig.start();
    rig.desire(&[vm(1), vm(2)]);
    rig.hears(1, &VmState::Running);
    rig.hears(2, &VmState::Running);
    rig.desire(&[DesiredVm { power: Power::Off, generation: 2, ..vm(1) }]);
    rig.hears(1, &VmState::Stopped);
    rig.hears(2, &VmState::Gone);
    let record = rig.folder.path().join("state/vms/2.json");
    soon("the record is gone", || !record.exists());
    assert!(rig.server.said().inventory.is_some());
    node.end();
}

#[test]
fn what_shall_be_gone_is_told_to_be_also_if_it_never_was_here() {
    let rig = Rig::new();
    let node = rig.start();
    let gone = |id| DesiredVm { power: Power::Gone, generation: 2, ..vm(id) };
    rig.desire(&[vm(1)]);
    rig.hears(1, &VmState::Running);
    rig.desire(&[gone(1), gone(2)]);
    rig.hears(1, &VmState::Gone);
    rig.hears(2, &VmState::Gone);
    assert!(rig.world.running(1).is_none());
    assert_eq!(rig.server.said().reports[&1].generation, 2);
    // A server that has lost that asks for it again, when it is forgotten here.
    rig.server.change(|said| said.reports.clear());
    soon("it is told again", || {
        rig.server.change(|_| ());
        rig.server.said().reports.contains_key(&1)
    });
    node.end();
}

#[test]
fn a_host_without_its_lease_ends_what_may_run_elsewhere_and_nothing_else() {
    let rig = Rig::new();
    let node = rig.start();
    rig.desire(&[fenced(1), vm(2)]);
    rig.hears(1, &VmState::Running);
    rig.hears(2, &VmState::Running);
    let other = rig.world.running(2).expect("runs").pid;
    rig.server.change(|said| said.away = true);
    let away = Instant::now();
    soon("it is ended", || rig.world.running(1).is_none());
    // A lease, and what a busy machine takes on top.
    assert!(away.elapsed() < Duration::from_secs(4), "ended after {:?}", away.elapsed());
    let down = || rig.world.state().vfs[&lane(1).vf].link_state == LinkState::Disable;
    soon("its link is down", down);
    assert_eq!(rig.world.running(2).map(|it| it.pid), Some(other));
    std::thread::sleep(Duration::from_millis(300));
    assert!(rig.world.running(1).is_none(), "started without a word of the server");

    rig.server.change(|said| said.away = false);
    soon("it is desired here again", || rig.world.running(1).is_some());
    rig.hears(1, &VmState::Running);
    node.end();
}

#[test]
fn a_vm_that_was_fenced_for_a_moment_while_its_worker_waited_has_not_failed() {
    let rig = Rig::new();
    rig.world.state().look_takes = Duration::from_secs(3);
    let node = rig.start();
    rig.desire(&[fenced(1)]);
    soon("it was started", || rig.world.running(1).is_some());
    rig.server.change(|said| said.away = true);
    soon("it is ended", || rig.world.running(1).is_none());
    rig.server.change(|said| said.away = false);
    rig.world.state().look_takes = Duration::ZERO;
    rig.hears(1, &VmState::Running);
    assert_eq!(rig.world.state().vfs[&lane(1).vf].link_state, LinkState::Auto);
    node.end();
}

#[test]
fn a_host_that_lost_its_lease_leaves_a_vm_alone_that_is_elsewhere_by_then() {
    let rig = Rig::new();
    let node = rig.start();
    rig.desire(&[fenced(1)]);
    rig.hears(1, &VmState::Running);
    rig.server.change(|said| said.away = true);
    soon("it is ended", || rig.world.running(1).is_none());
    rig.server.change(|said| {
        said.desired.vms.clear();
        said.away = false;
    });
    rig.hears(1, &VmState::Gone);
    assert!(rig.world.running(1).is_none());
    node.end();
}

#[test]
fn an_agent_that_starts_after_the_lease_ran_out_ends_them_before_it_hears_anything() {
    let rig = Rig::new();
    let node = rig.start();
    rig.desire(&[fenced(1), vm(2)]);
    rig.hears(1, &VmState::Running);
    rig.hears(2, &VmState::Running);
    let pids = [1, 2].map(|id| rig.world.running(id).expect("runs").pid);
    node.end();
    assert!(rig.world.running(1).is_some(), "it does not end with the agent");

    // In time: both are adopted.
    let node = rig.start();
    rig.server.change(|said| said.reports.clear());
    rig.hears(1, &VmState::Running);
    assert_eq!([1, 2].map(|id| rig.world.running(id).expect("runs").pid), pids);
    node.end();

    rig.server.change(|said| said.away = true);
    std::thread::sleep(Duration::from_secs(Server::LEASE_SECONDS.into()) * 2);
    let node = rig.start();
    soon("it is ended", || rig.world.running(1).is_none());
    assert_eq!(rig.world.running(2).map(|it| it.pid), Some(pids[1]));
    node.end();
}

#[test]
fn a_vm_that_hangs_holds_up_no_other_and_is_fenced_as_it_starts() {
    let rig = Rig::new();
    rig.world.state().hangs = Some("vm-1".to_owned());
    let node = rig.start();
    rig.desire(&[fenced(1)]);
    rig.hears(1, &VmState::Starting);
    rig.desire(&[fenced(1), vm(2)]);
    rig.hears(2, &VmState::Running);
    rig.desire(&[fenced(1)]);
    rig.hears(2, &VmState::Gone);
    rig.server.change(|said| said.away = true);
    let down = || rig.world.state().vfs[&lane(1).vf].link_state == LinkState::Disable;
    soon("its link is down", down);
    // What was started all the same is ended by its worker.
    rig.world.state().hangs = None;
    soon("it was started", || rig.world.state().machines.len() == 2);
    soon("it is ended", || rig.world.running(1).is_none());
    node.end();
}

#[test]
fn what_a_verification_run_asks_is_looked_at_and_told_once() {
    use lanekeeper_control::protocol::ProofPort;
    let rig = Rig::new();
    let node = rig.start();
    rig.desire(&[vm(1)]);
    rig.hears(1, &VmState::Running);
    let proof =
        |run, vm| DesiredProof { run, vm, ports: vec![ProofPort { port: 1, peers: Vec::new() }] };
    rig.server.change(|said| said.desired.proofs = vec![proof(7, 1), proof(7, 2)]);
    soon("both are told", || rig.server.said().proofs.len() == 2);
    let said = rig.server.said().proofs.clone();
    let of = |vm| said.iter().find(|report| report.vm == vm).expect("told");
    assert!(of(1).checks.iter().any(|check| check.check == "settings of the VF"), "{said:?}");
    assert!(of(2).checks[0].found.contains("does not run"), "{said:?}");
    rig.server.change(|_| ());
    rig.hears(1, &VmState::Running);
    assert_eq!(rig.server.said().proofs.len(), 2);
    node.end();
}
