//! Doing what the agent decides: each piece of work on a thread of its own, and one line on which
//! what came of it, the kernel's events, and orders from outside come in.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lanekeeper_hw::watch::{Event, Watch};

use super::work::{self, Look, Saw, Settlement};
use super::{Action, Agent, Input, Memory, Metrics, Now, Report};
use crate::file::HostFile;
use crate::health::{AgentSeat, Health};
use crate::owner::Owner;

/// How long the kernel's events are waited for before it is seen whether anybody still wants them.
const WATCH: Duration = Duration::from_millis(500);
/// Until what could not be written to the state folder is tried again.
const UNWRITTEN: Duration = Duration::from_secs(5);
/// How long work that is under way may take when the agent ends. What is cut short is finished or
/// undone by the next start.
const FAREWELL: Duration = Duration::from_secs(20);

/// What comes in.
enum Message {
    Input(Box<Input>),
    ReloadFailed(String),
    Stop,
}

/// Where orders to a running agent go in.
#[derive(Clone)]
pub struct Line(Sender<Message>);

/// Where they come out.
pub struct Inbox {
    line: Sender<Message>,
    messages: Receiver<Message>,
}

impl Inbox {
    /// A line and its end.
    pub fn new() -> (Line, Self) {
        let (line, messages) = mpsc::channel();
        (Line(line.clone()), Self { line, messages })
    }
}

impl Line {
    /// End, once what is under way is done.
    pub fn stop(&self) {
        // Whoever does not listen has ended.
        let _ = self.0.send(Message::Stop);
    }

    /// Apply this file from now on, or say why it cannot be read.
    pub fn reload(&self, file: Result<HostFile, String>) {
        let _ = self.0.send(match file {
            Ok(file) => Message::Input(Box::new(Input::File(Box::new(file)))),
            Err(why) => Message::ReloadFailed(why),
        });
    }
}

/// What others may see of a running agent.
pub struct Running {
    metrics: Mutex<Metrics>,
    started: Instant,
}

impl Default for Running {
    fn default() -> Self {
        Self { metrics: Mutex::default(), started: Instant::now() }
    }
}

impl Running {
    /// Its metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        metrics.render(self.started.elapsed())
    }

    fn now(&self) -> Now {
        Now { up: self.started.elapsed(), wall: SystemTime::now() }
    }
}

/// What is to be in the state folder and is not yet: its disk may be full for a while, and PFs are
/// to be looked after meanwhile.
#[derive(Default)]
struct Unwritten {
    health: Option<Health>,
    memory: Option<Memory>,
    trouble: Option<String>,
}

impl Unwritten {
    fn is_due(&self) -> bool {
        self.health.is_some() || self.memory.is_some()
    }

    /// Write it. What is amiss, if it was not said before.
    fn write(&mut self, owner: &Owner, seat: &AgentSeat) -> Option<Report> {
        let health = self.health.as_ref().map_or(Ok(()), |health| seat.publish(health));
        let memory = self.memory.as_ref().map_or(Ok(()), |memory| memory.save(owner.ledger()));
        if health.is_ok() {
            self.health = None;
        }
        if memory.is_ok() {
            self.memory = None;
        }
        let trouble = health.and(memory).err().map(|error| error.to_string());
        let is_new = trouble != self.trouble;
        self.trouble.clone_from(&trouble);
        trouble.filter(|_| is_new).map(|why| Report::Trouble { why })
    }
}

/// Run an agent until it is told to stop.
pub fn run(
    mut agent: Agent,
    owner: &Arc<Owner>,
    seat: &AgentSeat,
    watch: Box<dyn Watch>,
    inbox: Inbox,
    running: &Running,
    mut tell: impl FnMut(&Report),
) {
    let Inbox { line, messages } = inbox;
    listen(watch, line.clone());
    let mut settling = 0_usize;
    let mut unwritten = Unwritten::default();
    let mut stop: Option<Instant> = None;
    tell(&Report::Started { version: env!("CARGO_PKG_VERSION").to_owned() });
    loop {
        let now = running.now();
        let wait = match stop {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None if unwritten.is_due() => agent.next().saturating_sub(now.up).min(UNWRITTEN),
            None => agent.next().saturating_sub(now.up),
        };
        let input = match messages.recv_timeout(wait) {
            Ok(Message::Input(input)) => *input,
            Ok(Message::ReloadFailed(why)) => {
                tell(&Report::ReloadFailed { why });
                continue;
            }
            Ok(Message::Stop) => {
                stop = stop.or(Some(Instant::now() + FAREWELL));
                Input::Tick
            }
            // The line's other end is ours too, so that it never ends by itself.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Input::Tick,
        };
        settling -= usize::from(matches!(input, Input::Settled(_)));
        if let Some(until) = stop {
            if settling == 0 || Instant::now() >= until {
                tell(&Report::Stopped);
                return;
            }
            continue;
        }
        let actions = agent.take(running.now(), input);
        *running.metrics.lock().unwrap_or_else(PoisonError::into_inner) = agent.metrics().clone();
        for action in actions {
            settling += usize::from(matches!(action, Action::Settle(_)));
            match action {
                Action::Publish(health) => unwritten.health = Some(health),
                Action::Keep(memory) => unwritten.memory = Some(memory),
                Action::Tell(report) => tell(&report),
                action => start(owner, &line, action),
            }
        }
        if let Some(report) = unwritten.write(owner, seat) {
            tell(&report);
        }
    }
}

/// Begin what takes its time. Whatever it ends with, that it ended is told.
fn start(owner: &Arc<Owner>, line: &Sender<Message>, action: Action) {
    match action {
        Action::List => on_a_thread(
            owner,
            line,
            |why| Input::Listed(Err(why)),
            |owner| Input::Listed(work::list(owner).map_err(|error| error.to_string())),
        ),
        Action::Look(pf) => on_a_thread(
            owner,
            line,
            move |why| {
                let saw = Saw::Failed(why);
                Input::Looked(Look { pf, saw, record: None, steady: true })
            },
            move |owner| Input::Looked(work::look(owner, pf)),
        ),
        Action::Count(pf) => on_a_thread(
            owner,
            line,
            move |why| Input::Counted(pf, Err(why)),
            move |owner| Input::Counted(pf, work::count(owner, pf)),
        ),
        Action::Settle(work) => {
            let (pf, key) = (work.pf, work.key.clone());
            on_a_thread(
                owner,
                line,
                move |why| {
                    let (key, failed) = (key.clone(), Some(why));
                    Input::Settled(Settlement { pf, key, failed, ..Settlement::default() })
                },
                |owner| Input::Settled(work::settle(owner, *work)),
            );
        }
        Action::Publish(_) | Action::Keep(_) | Action::Tell(_) => {}
    }
}

/// Do work on a thread of its own and hand in what came of it, be it that it broke off or could not
/// even begin.
fn on_a_thread(
    owner: &Arc<Owner>,
    line: &Sender<Message>,
    failed: impl Fn(String) -> Input + Clone + Send + 'static,
    work: impl FnOnce(&Owner) -> Input + Send + 'static,
) {
    let to_line = |line: &Sender<Message>, input| drop(line.send(Message::Input(Box::new(input))));
    let (on_thread, its_line, broken) = (Arc::clone(owner), line.clone(), failed.clone());
    let begun = std::thread::Builder::new().name("work".to_owned()).spawn(move || {
        let done = catch_unwind(AssertUnwindSafe(|| work(&on_thread)));
        let why = "the work itself broke off; this is a fault of lanekeeper";
        to_line(&its_line, done.unwrap_or_else(|_| broken(why.to_owned())));
    });
    if let Err(error) = begun {
        to_line(line, failed(format!("no thread for it: {error}")));
    }
}

/// Hand the kernel's events over for as long as somebody takes them. A line that broke is said to
/// have lost some, and is tried again.
fn listen(mut watch: Box<dyn Watch>, line: Sender<Message>) {
    let send = move |event: Event| line.send(Message::Input(Box::new(Input::Event(event)))).is_ok();
    let listen = move || loop {
        let told = watch.wait(WATCH);
        let events = told.unwrap_or_else(|error| {
            tracing::warn!(%error, "events are looked for anew");
            std::thread::sleep(WATCH);
            vec![Event::lost()]
        });
        if !events.into_iter().all(&send) {
            return;
        }
    };
    let started = std::thread::Builder::new().name("watch".to_owned()).spawn(listen);
    if let Err(error) = started {
        tracing::error!(%error, "no thread for the kernel's events; the host is looked at now and then");
    }
}
