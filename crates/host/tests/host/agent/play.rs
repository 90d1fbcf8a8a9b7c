//! An agent over a host in memory and a clock that a test sets: what it wants done is done at once,
//! and time passes only when there is nothing to do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lanekeeper_host::agent::{Action, Agent, Input, Memory, Now, Report, Tuning, work};
use lanekeeper_host::{AgentSeat, HostFile, Owner};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::fake::FakeWatch;
use lanekeeper_hw::watch::Watch as _;

use crate::rig::Rig;

/// More than any test needs, and far less than an agent that never rests would take.
const MOST_ACTIONS: usize = 20_000;

#[derive(Clone)]
pub(crate) struct Clock {
    up: Arc<Mutex<Duration>>,
    base: Arc<Mutex<SystemTime>>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let base = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        Self { up: Arc::default(), base: Arc::new(Mutex::new(base)) }
    }

    pub(crate) fn up(&self) -> Duration {
        *self.up.lock().expect("a clock")
    }

    pub(crate) fn wall(&self) -> SystemTime {
        *self.base.lock().expect("a clock") + self.up()
    }

    /// Somebody sets the time of day back.
    pub(crate) fn turn_back(&self, time: Duration) {
        *self.base.lock().expect("a clock") -= time;
    }

    fn set(&self, up: Duration) {
        *self.up.lock().expect("a clock") = up;
    }
}

pub(crate) struct Play {
    pub(crate) clock: Clock,
    pub(crate) owner: Owner,
    pub(crate) told: Vec<Report>,
    pub(crate) looks: usize,
    pub(crate) watch: FakeWatch,
    pending: Vec<Input>,
    agent: Agent,
    seat: AgentSeat,
    started: Duration,
}

impl Play {
    /// An agent with this file, not started yet.
    pub(crate) fn new(rig: &Rig, file: &HostFile) -> Self {
        Self::over(rig, file, Arc::new(rig.fake.clone()), Clock::new())
    }

    /// The next agent of the same host, at the same time.
    pub(crate) fn again(self, rig: &Rig, file: &HostFile) -> Self {
        let clock = self.clock.clone();
        drop(self);
        Self::over(rig, file, Arc::new(rig.fake.clone()), clock)
    }

    pub(crate) fn over(
        rig: &Rig,
        file: &HostFile,
        hw: Arc<dyn SriovHardware>,
        clock: Clock,
    ) -> Self {
        let wall = clock.clone();
        let owner = rig.owner_over(hw).with_clock(move || wall.wall());
        let seat = owner.take_seat().expect("the only agent");
        let memory = Memory::load(owner.ledger());
        Self {
            agent: Agent::new(file.clone(), memory, Tuning::default()),
            watch: rig.fake.watch(),
            started: clock.up(),
            told: Vec::new(),
            looks: 0,
            pending: Vec::new(),
            clock,
            owner,
            seat,
        }
    }

    /// Let this much time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.pass_and(time, |_| {});
    }

    /// The same, with something that happens after each thing that was done.
    pub(crate) fn pass_and(&mut self, time: Duration, mut each: impl FnMut(&Action)) {
        let until = self.clock.up() + time;
        let mut left = MOST_ACTIONS;
        loop {
            let mut inputs = VecDeque::from([Input::Tick]);
            inputs.extend(self.pending.drain(..));
            self.take_events(&mut inputs);
            while let Some(input) = inputs.pop_front() {
                let now = Now { up: self.up(), wall: self.clock.wall() };
                for action in self.agent.take(now, input) {
                    left = left.checked_sub(1).expect("the agent never rests");
                    inputs.extend(self.act(&action));
                    each(&action);
                }
                self.take_events(&mut inputs);
            }
            let next = self.agent.next().saturating_add(self.started);
            if next > until {
                self.clock.set(until);
                return;
            }
            self.clock.set(next.max(self.clock.up() + Duration::from_millis(1)));
        }
    }

    pub(crate) fn seconds(&mut self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    pub(crate) fn reload(&mut self, file: &HostFile) {
        self.pending.push(Input::File(Box::new(file.clone())));
    }

    /// Names of what was told since the last call.
    pub(crate) fn names(&mut self) -> Vec<String> {
        let name = |report: &Report| {
            let line = report.to_line(SystemTime::UNIX_EPOCH);
            let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
            value["event"].as_str().expect("a name").to_owned()
        };
        self.told.drain(..).map(|report| name(&report)).collect()
    }

    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.agent.metrics().render(self.up());
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Since this agent's start.
    fn up(&self) -> Duration {
        self.clock.up().saturating_sub(self.started)
    }

    fn take_events(&mut self, inputs: &mut VecDeque<Input>) {
        let events = self.watch.wait(Duration::ZERO).expect("a fake tells");
        inputs.extend(events.into_iter().map(Input::Event));
    }

    fn act(&mut self, action: &Action) -> Option<Input> {
        match action {
            Action::List => {
                Some(Input::Listed(work::list(&self.owner).map_err(|error| error.to_string())))
            }
            Action::Look(pf) => {
                self.looks += 1;
                Some(Input::Looked(work::look(&self.owner, *pf)))
            }
            Action::Count(pf) => Some(Input::Counted(*pf, work::count(&self.owner, *pf))),
            Action::Settle(work) => {
                Some(Input::Settled(work::settle(&self.owner, (**work).clone())))
            }
            Action::Publish(health) => {
                self.seat.publish(health).expect("published");
                None
            }
            Action::Keep(memory) => {
                memory.save(self.owner.ledger()).expect("kept");
                None
            }
            Action::Tell(report) => {
                self.told.push(report.clone());
                None
            }
        }
    }
}
