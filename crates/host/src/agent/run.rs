//! Doing what the agent decides: each piece of work on a thread of its own, and one line on which
//! what came of it, the kernel's events, and orders from outside come in.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lanekeeper_hw::watch::{Event, Watch};

use super::work::{self, Settlement, Work};
use super::{Action, Agent, Input, Metrics, Now, Report};
use crate::error::HostError;
use crate::file::HostFile;
use crate::health::AgentSeat;
use crate::owner::Owner;

/// How long the kernel's events are waited for before it is seen whether anybody still wants them.
const WATCH: Duration = Duration::from_millis(500);
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

/// Run an agent until it is told to stop.
///
/// # Errors
/// [`HostError::Ledger`] if its file in the state folder cannot be written.
pub fn run(
    mut agent: Agent,
    owner: &Arc<Owner>,
    seat: &AgentSeat,
    watch: Box<dyn Watch>,
    inbox: Inbox,
    running: &Running,
    mut tell: impl FnMut(&Report),
) -> Result<(), HostError> {
    let Inbox { line, messages } = inbox;
    listen(watch, line.clone());
    let mut settling = 0_usize;
    let mut stop: Option<Instant> = None;
    tell(&Report::Started { version: env!("CARGO_PKG_VERSION").to_owned() });
    loop {
        let now = running.now();
        let wait = match stop {
            Some(until) => until.saturating_duration_since(Instant::now()),
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
                return Ok(());
            }
            continue;
        }
        let actions = agent.take(running.now(), input);
        *running.metrics.lock().unwrap_or_else(PoisonError::into_inner) = agent.metrics().clone();
        for action in actions {
            settling += usize::from(matches!(action, Action::Settle(_)));
            match action {
                Action::Publish(withheld) => seat.publish(&withheld)?,
                Action::Keep(memory) => memory.save(owner.ledger())?,
                Action::Tell(report) => tell(&report),
                Action::List => on_a_thread(owner, &line, "list", Input::Listed, |owner| {
                    work::list(owner).map_err(|error| error.to_string())
                }),
                Action::Look(pf) => {
                    on_a_thread(owner, &line, "look", Input::Looked, move |owner| {
                        work::look(owner, pf)
                    });
                }
                Action::Count(pf) => {
                    let counted = move |frames| Input::Counted(pf, frames);
                    on_a_thread(owner, &line, "count", counted, move |owner| {
                        work::count(owner, pf)
                    });
                }
                Action::Settle(work) => {
                    on_a_thread(owner, &line, "settle", Input::Settled, move |owner| {
                        settle(owner, *work)
                    });
                }
            }
        }
    }
}

/// Work whose fault is its own: whatever it ends with, that it ended is told.
fn settle(owner: &Owner, work: Work) -> Settlement {
    let (pf, key) = (work.pf, work.key.clone());
    let settled = catch_unwind(AssertUnwindSafe(|| work::settle(owner, work)));
    settled.unwrap_or_else(|_| {
        let failed = Some("the work itself broke off; this is a fault of lanekeeper".to_owned());
        Settlement { pf, key, failed, ..Settlement::default() }
    })
}

fn on_a_thread<T: Send + 'static>(
    owner: &Arc<Owner>,
    line: &Sender<Message>,
    name: &str,
    input: impl FnOnce(T) -> Input + Send + 'static,
    work: impl FnOnce(&Owner) -> T + Send + 'static,
) {
    let (owner, line) = (Arc::clone(owner), line.clone());
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let done = input(work(&owner));
        let _ = line.send(Message::Input(Box::new(done)));
    });
    if let Err(error) = started {
        tracing::error!(%error, "no thread for {name}");
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
