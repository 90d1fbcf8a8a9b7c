//! Workers on a machine in memory, one thread, every step known: whatever is desired in whatever order,
//! and wherever the agent is killed, it ends as is desired, and no rule is broken on the way (the
//! machine watches them).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lanekeeper_control::keys::FabricName;
use lanekeeper_control::protocol::VmId;
use lanekeeper_model::VfSettings;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::fakes::{Killed, On, World};
use crate::samples::{place, port, vm};

/// An agent without its threads: workers that take turns.
struct Agent {
    means: Arc<Means<On>>,
    workers: BTreeMap<VmId, Worker<On>>,
}

/// Far more steps than anything here takes.
const ENOUGH: usize = 200;

impl Agent {
    fn start(world: &Arc<World>, folder: &Path) -> Self {
        let mut config = NodeConfig::new(FabricName::new("lab").expect("a name"));
        config.state_folder = folder.to_owned();
        config.run_folder = folder.join("run");
        let (journal, records) = Journal::open(&folder.join("vms")).expect("opens");
        world.state().journal = Some(folder.join("vms"));
        let hardware = Arc::new(On(Arc::clone(world)));
        let means = Arc::new(Means {
            lanes: Lanes::new(hardware, folder, None),
            images: Images::new(folder, Some(World::builtin())),
            driver: On(Arc::clone(world)),
            accel: Accel::Kvm,
            boots: Boots::of(Accel::Kvm),
            board: Board::default(),
            journal,
            config,
        });
        let mut agent = Self { means, workers: BTreeMap::new() };
        for record in records {
            agent.employ(record, false);
        }
        agent
    }

    fn employ(&mut self, record: Record, held_back: bool) {
        let want = (!record.leaving).then(|| record.want.clone());
        let seat = Arc::new(Seat::new(want, held_back));
        let worker = Worker::new(Arc::clone(&self.means), seat, record);
        self.workers.insert(worker.record.want.vm, worker);
    }

    fn order(&mut self, desired: &BTreeMap<VmId, DesiredVm>, held_back: bool) {
        for (vm, worker) in &self.workers {
            worker.seat.order(desired.get(vm), held_back);
        }
        for (vm, want) in desired {
            if !self.workers.contains_key(vm) && want.power != Power::Gone {
                let record = Record::new(want.clone());
                self.means.journal.save(&record).expect("saved");
                self.employ(record, held_back);
            }
        }
    }

    /// All workers in turn until each is at rest, or the agent was killed.
    fn settle(&mut self) -> Result<(), Killed> {
        for _ in 0..ENOUGH {
            let mut at_rest = true;
            for worker in self.workers.values_mut() {
                let orders = worker.seat.orders();
                let advanced = catch_unwind(AssertUnwindSafe(|| worker.advance(&orders)));
                match advanced {
                    Ok(Ok(Then::Wait(LOOK) | Then::End)) => {}
                    Ok(Ok(_)) => at_rest = false,
                    Ok(Err(error)) => {
                        at_rest = false;
                        worker.trouble(&error);
                    }
                    Err(cause) => match cause.downcast::<Killed>() {
                        Ok(killed) => return Err(*killed),
                        Err(other) => std::panic::resume_unwind(other),
                    },
                }
            }
            if at_rest {
                return Ok(());
            }
        }
        let records: Vec<_> = self.workers.values().map(|worker| &worker.record).collect();
        panic!("never at rest: {records:#?}");
    }

    fn reported(&self, vm: VmId) -> VmState {
        let (_, reports) = self.means.board.wait(u64::MAX, Duration::ZERO);
        reports.into_iter().find(|report| report.vm == vm).expect("is reported").state
    }

    fn check(&self, world: &World, desired: &BTreeMap<VmId, DesiredVm>, held_back: bool) {
        for (vm, worker) in &self.workers {
            let record = &worker.record;
            let running = world.running(*vm);
            let Some(want) = desired.get(vm) else {
                assert_eq!(self.reported(*vm), VmState::Gone);
                assert!(running.is_none() && record.lanes.is_empty() && !record.files);
                continue;
            };
            let off = want.power == Power::Off
                || record.powered_off == Some(record.moment())
                || record.failure().is_some()
                || held_back && want.fenced;
            assert_eq!(running.is_none(), off, "{record:?}");
            let link = if off { LinkState::Disable } else { LinkState::Auto };
            let state = world.state();
            for (lane, port) in lanes_of(want).zip(&want.ports) {
                let is = state.vfs.get(&lane.vf);
                if record.failure().is_some() || held_back && want.fenced {
                    assert!(is.is_none_or(|vf| vf.link_state == LinkState::Disable));
                } else {
                    assert_eq!(is, Some(&settings(port, link)));
                }
            }
            if let Some(running) = running {
                let macs: Vec<_> = want.ports.iter().map(|port| port.mac).collect();
                assert_eq!((self.reported(*vm), running.macs), (VmState::Running, macs));
                assert!(record.resets >= want.resets);
            }
        }
        let held: Vec<_> =
            self.workers.values().flat_map(|worker| &worker.record.lanes).map(|it| it.vf).collect();
        for (vf, settings) in &world.state().vfs {
            assert!(held.contains(vf) || *settings == VfSettings::scrubbed(), "VF {vf} is leaked");
        }
    }
}

/// What happens to the agent and its VMs.
#[derive(Clone, Debug)]
enum Happening {
    Desire { vm: VmId, power: Power, vfs: Vec<u64>, reset: bool, fenced: bool },
    Leave(VmId),
    HoldBack(bool),
    Ends { vm: VmId, by_guest: bool },
    AgentAnew,
    HostAnew,
}

/// Three VMs; each has two VFs that may be its own.
fn happening() -> impl Strategy<Value = Happening> {
    let vm = 1..4_u64;
    let power = prop_oneof![Just(Power::On), Just(Power::On), Just(Power::Off)];
    prop_oneof![
        6 => (vm.clone(), power, 0..4_u8, any::<bool>(), any::<bool>()).prop_map(
            |(vm, power, which, reset, fenced)| {
                let vfs = match which {
                    0 => vec![2 * vm],
                    1 => vec![2 * vm + 1],
                    2 => vec![2 * vm, 2 * vm + 1],
                    _ => vec![2 * vm + 1, 2 * vm],
                };
                Happening::Desire { vm, power, vfs, reset, fenced }
            }
        ),
        2 => vm.clone().prop_map(Happening::Leave),
        1 => any::<bool>().prop_map(Happening::HoldBack),
        1 => (vm, any::<bool>()).prop_map(|(vm, by_guest)| Happening::Ends { vm, by_guest }),
        1 => Just(Happening::AgentAnew),
        1 => Just(Happening::HostAnew),
    ]
}

#[derive(Default)]
struct Wished {
    desired: BTreeMap<VmId, DesiredVm>,
    /// VMs that were there once come no more.
    left: Vec<VmId>,
    held_back: bool,
}

impl Wished {
    fn take(&mut self, happening: &Happening, world: &World) {
        match happening {
            Happening::Desire { vm: id, .. } if self.left.contains(id) => {}
            Happening::Desire { vm: id, power, vfs, reset, fenced } => {
                let old = self.desired.get(id);
                let (generation, resets) = old.map_or((0, 0), |it| (it.generation, it.resets));
                let mut want = vm(*id);
                want.generation = generation + 1;
                want.resets = resets + u64::from(*reset);
                (want.power, want.fenced) = (*power, *fenced);
                want.place.vfs = vfs.iter().map(|vf| place(*vf)).collect();
                // A port keeps its MAC, whichever VF it is on.
                let number = u8::try_from(10 * id).expect("small");
                let ports = [port("rail0", number), port("rail1", number + 1)];
                want.ports = ports.into_iter().take(vfs.len()).collect();
                self.desired.insert(*id, want);
            }
            Happening::Leave(id) => {
                if self.desired.remove(id).is_some() {
                    self.left.push(*id);
                }
            }
            Happening::HoldBack(held_back) => self.held_back = *held_back,
            Happening::Ends { vm, by_guest } => world.end(*vm, *by_guest),
            Happening::AgentAnew | Happening::HostAnew => {}
        }
    }
}

/// Let it all happen, the agent killed at the given one of all moments; how many there were.
fn play(happenings: &[Happening], killed_at: Option<u32>) -> u32 {
    const UNREACHED: u32 = 1_000_000;
    // In memory: what is synced need not get to a disk here.
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let world = Arc::new(World::default());
    let mut wished = Wished::default();
    world.state().fuse = Some(killed_at.unwrap_or(UNREACHED));
    let mut agent = Agent::start(&world, folder.path());
    for happening in happenings {
        wished.take(happening, &world);
        let pids = || [1, 2, 3].map(|vm| world.running(vm).map(|it| it.pid));
        let before = matches!(happening, Happening::AgentAnew).then(pids);
        let host_anew = matches!(happening, Happening::HostAnew);
        if before.is_some() || host_anew {
            drop(agent);
            if host_anew {
                world.boot_anew();
            }
            agent = Agent::start(&world, folder.path());
        }
        agent.order(&wished.desired, wished.held_back);
        if agent.settle().is_err() {
            drop(agent);
            world.state().fuse = None;
            agent = Agent::start(&world, folder.path());
            agent.order(&wished.desired, wished.held_back);
            assert!(agent.settle().is_ok(), "it is killed once");
        }
        agent.check(&world, &wished.desired, wished.held_back);
        assert!(before.is_none_or(|before| before == pids()), "a VM did not outlive an agent");
    }
    let left = world.state().fuse.unwrap_or_default();
    UNREACHED.saturating_sub(left)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_desired_and_wherever_the_agent_is_killed_it_ends_as_is_desired(
        happenings in prop::collection::vec(happening(), 1..12),
        killed_at in any::<Index>(),
    ) {
        let moments = play(&happenings, None);
        if moments > 0 {
            play(&happenings, Some(u32::try_from(killed_at.index(moments as usize)).expect("small")));
        }
    }
}

#[test]
fn an_agent_that_is_killed_at_any_moment_of_a_vms_life_loses_nothing() {
    let desire = |power, vfs: &[u64], reset| Happening::Desire {
        vm: 1,
        power,
        vfs: vfs.to_vec(),
        reset,
        fenced: true,
    };
    let life = [
        desire(Power::On, &[2, 3], false),
        desire(Power::On, &[2, 3], true),
        Happening::HoldBack(true),
        Happening::HoldBack(false),
        desire(Power::On, &[3], false),
        Happening::HostAnew,
        desire(Power::On, &[2, 3], false),
        desire(Power::On, &[3, 2], false),
        desire(Power::Off, &[3], false),
        desire(Power::On, &[3], false),
        Happening::Leave(1),
    ];
    let moments = play(&life, None);
    assert!(moments > 30, "only {moments} moments");
    for killed_at in 0..moments {
        play(&life, Some(killed_at));
    }
}

#[test]
fn a_vm_that_failed_once_and_runs_now_outlives_the_next_agent() {
    let desire =
        || Happening::Desire { vm: 1, power: Power::On, vfs: vec![2], reset: false, fenced: false };
    let crash = Happening::Ends { vm: 1, by_guest: false };
    play(&[desire(), crash, desire(), Happening::AgentAnew], None);
}

#[test]
fn what_cannot_be_is_told_with_the_reason_and_tried_again_when_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = Arc::new(World::default());
    let mut agent = Agent::start(&world, folder.path());
    let mut want = vm(1);
    want.name = "no host name".to_owned();
    agent.order(&BTreeMap::from([(1, want.clone())]), false);
    assert!(agent.settle().is_ok());
    let VmState::Failed { reason } = agent.reported(1) else { panic!("it has not failed") };
    assert!(reason.contains("'no host name'"), "{reason}");
    assert!(world.running(1).is_none());
    (want.name, want.generation) = ("a-name".to_owned(), 2);
    agent.order(&BTreeMap::from([(1, want)]), false);
    assert!(agent.settle().is_ok());
    assert_eq!(agent.reported(1), VmState::Running);
}

#[test]
fn a_vm_that_crashes_has_failed_and_one_that_powers_off_has_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = Arc::new(World::default());
    let mut agent = Agent::start(&world, folder.path());
    let mut wanted = BTreeMap::from([(1, vm(1)), (2, vm(2))]);
    agent.order(&wanted, false);
    assert!(agent.settle().is_ok());
    world.end(1, false);
    world.end(2, true);
    assert!(agent.settle().is_ok());
    assert!(matches!(agent.reported(1), VmState::Failed { reason } if reason.contains("bye")));
    assert_eq!(agent.reported(2), VmState::Stopped);
    for want in wanted.values_mut() {
        want.resets = 1;
        want.generation = 2;
    }
    agent.order(&wanted, false);
    assert!(agent.settle().is_ok());
    assert_eq!((agent.reported(1), agent.reported(2)), (VmState::Running, VmState::Running));
}

#[test]
fn a_vf_that_somebody_else_has_changed_is_set_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = Arc::new(World::default());
    let mut agent = Agent::start(&world, folder.path());
    let wanted = BTreeMap::from([(1, vm(1))]);
    agent.order(&wanted, false);
    assert!(agent.settle().is_ok());
    for settings in world.state().vfs.values_mut() {
        settings.spoofchk = false;
        settings.addresses.clear();
    }
    for worker in agent.workers.values_mut() {
        worker.looked_at_vfs = Instant::now().checked_sub(LOOK_AT_VFS).expect("long ago");
    }
    // It is seen at rest, and mended by what follows.
    assert!(agent.settle().is_ok() && agent.settle().is_ok());
    agent.check(&world, &wanted, false);
}

#[test]
fn a_serial_log_that_grows_without_end_is_emptied() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("serial.log");
    fs::write(&log, vec![b'x'; 1 << 20]).expect("written");
    trim(&log);
    assert_eq!(fs::metadata(&log).expect("there").len(), 1 << 20);
    fs::write(&log, vec![b'x'; 17 << 20]).expect("written");
    trim(&log);
    assert_eq!(fs::metadata(&log).expect("there").len(), 0);
}
