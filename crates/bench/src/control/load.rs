//! Load: closed loops, which tell the most that something does, and an open loop, which tells what
//! those see who come when they come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use super::cloud::Cloud;
use super::fleet::{Dice, Mix};
use crate::{BenchError, Stop};

/// How often a wait looks whether it is time to end.
const LOOK: Duration = Duration::from_millis(50);

/// Something that is put under load, with a runtime of its own: when it is dropped, nothing of it goes
/// on.
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// Runs it.
    pub runtime: Runtime,
    /// It.
    pub cloud: Arc<dyn Cloud>,
    next: Arc<AtomicU64>,
}

impl Subject {
    /// Make one of a cloud that `runtime` runs.
    pub fn new(name: impl Into<String>, runtime: Runtime, cloud: Arc<dyn Cloud>) -> Self {
        Self { name: name.into(), runtime, cloud, next: Arc::default() }
    }
}

/// A runtime for one subject.
///
/// # Errors
/// No threads.
pub fn runtime() -> Result<Runtime, BenchError> {
    let made = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    made.map_err(BenchError::io("threads"))
}

/// How long things took, in order.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// The duration that so many of a thousand do not exceed; none of nothing.
    pub fn at(&self, of_thousand: usize) -> Option<Duration> {
        let last = self.0.len().checked_sub(1)?;
        Some(self.0[(last * of_thousand).div_ceil(1000)])
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Take up others.
    pub fn extend(&mut self, others: impl IntoIterator<Item = Duration>) {
        self.0.extend(others);
        self.0.sort_unstable();
    }

    /// Each, the shortest first.
    pub fn iter(&self) -> impl Iterator<Item = Duration> + '_ {
        self.0.iter().copied()
    }
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Placements, from when each was asked for (closed) or should have been (open).
    pub places: Latencies,
    /// Releases.
    pub releases: Latencies,
    /// Requests that found no room.
    pub refused: usize,
    /// From the first request to the last answer.
    pub took: Duration,
}

impl Outcome {
    /// Placements a second.
    pub fn rate(&self) -> f64 {
        self.places.count() as f64 / self.took.as_secs_f64()
    }
}

/// What one caller of a closed loop saw.
#[derive(Default)]
struct Seen {
    places: Vec<Duration>,
    releases: Vec<Duration>,
    refused: usize,
}

/// `callers` at once, each of which places a request, releases it, and begins anew, for `window` and
/// until what was begun has ended.
///
/// # Errors
/// A request failed, or it is time to end.
pub fn closed(
    subject: &Subject,
    callers: usize,
    mix: Mix,
    window: Duration,
    stop: &Stop,
) -> Result<Outcome, BenchError> {
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let (cloud, next) = (Arc::clone(&subject.cloud), Arc::clone(&subject.next));
        let (mut dice, stop) = (Dice(caller as u64), stop.clone());
        let all = async move {
            let mut seen = Seen::default();
            while begun.elapsed() < window {
                if let Some(reason) = stop.reason() {
                    return Err(reason);
                }
                let (id, ask) = (next.fetch_add(1, Ordering::Relaxed), mix.ask(&mut dice)?);
                let asked = Instant::now();
                if !cloud.place(id, ask).await? {
                    seen.refused += 1;
                    continue;
                }
                seen.places.push(asked.elapsed());
                let asked = Instant::now();
                cloud.release(id).await?;
                seen.releases.push(asked.elapsed());
            }
            Ok(seen)
        };
        running.spawn_on(all, subject.runtime.handle());
    }
    let mut outcome = Outcome::default();
    let (mut places, mut releases) = (Vec::new(), Vec::new());
    while let Some(seen) = next_ended(subject, &mut running, stop)? {
        let seen = seen?;
        places.extend(seen.places);
        releases.extend(seen.releases);
        outcome.refused += seen.refused;
    }
    outcome.took = begun.elapsed();
    outcome.places.extend(places);
    outcome.releases.extend(releases);
    Ok(outcome)
}

/// The next task that ends; none if there is no more.
fn next_ended<T: 'static>(
    subject: &Subject,
    running: &mut JoinSet<T>,
    stop: &Stop,
) -> Result<Option<T>, BenchError> {
    loop {
        let next = async { tokio::time::timeout(LOOK, running.join_next()).await };
        match subject.runtime.block_on(next) {
            Ok(None) => return Ok(None),
            Ok(Some(ended)) => return ended.map(Some).map_err(|error| panicked(&error)),
            Err(_) => {}
        }
        if let Some(reason) = stop.reason() {
            return Err(reason);
        }
    }
}

fn panicked(error: &tokio::task::JoinError) -> BenchError {
    BenchError::InProcess { what: "a caller", said: error.to_string() }
}

/// Place the varied mix until so many GPUs are taken, or a hundred requests in turn find no room.
/// Returns how many VMs that are.
///
/// # Errors
/// A request failed, or it is time to end.
pub fn fill(subject: &Subject, gpus: u64, stop: &Stop) -> Result<u64, BenchError> {
    let mut dice = Dice(4711);
    let (mut taken, mut vms, mut refused) = (0, 0, 0);
    while taken < gpus && refused < 100 {
        if let Some(reason) = stop.reason() {
            return Err(reason);
        }
        let mut running = JoinSet::new();
        for _ in 0..64 {
            let cloud = Arc::clone(&subject.cloud);
            let (id, ask) =
                (subject.next.fetch_add(1, Ordering::Relaxed), Mix::Varied.ask(&mut dice)?);
            let usage = ask.request.usage();
            taken += usage.gpus;
            let place = async move { (usage, cloud.place(id, ask).await) };
            running.spawn_on(place, subject.runtime.handle());
            if taken >= gpus {
                break;
            }
        }
        while let Some((usage, placed)) = next_ended(subject, &mut running, stop)? {
            if placed? {
                (vms, refused) = (vms + usage.vms, 0);
            } else {
                (taken, refused) = (taken - usage.gpus, refused + 1);
            }
        }
    }
    Ok(vms)
}

/// An open loop.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// VMs asked for in a minute.
    pub vms_a_minute: u64,
    /// For how long requests come.
    pub lasts: Duration,
    /// How long a VM is there.
    pub life: Duration,
}

/// What happens when, from the begin.
enum Event {
    Place(u64, Box<lanekeeper_control::claims::Ask>),
    Release(u64),
}

/// When the requests of the varied mix come, and when each of them is released: the gap after a request
/// grows with its VMs, and varies evenly from nothing to twice its mean.
fn plan(pace: Pace, next: &AtomicU64) -> Result<Vec<(Duration, Event)>, BenchError> {
    let (mut dice, mut at, mut events) = (Dice(42), Duration::ZERO, Vec::new());
    while at < pace.lasts {
        let (id, ask) = (next.fetch_add(1, Ordering::Relaxed), Mix::Varied.ask(&mut dice)?);
        let mean = 60_000_000 * u64::from(ask.request.vms) / pace.vms_a_minute.max(1);
        events.push((at, Event::Place(id, Box::new(ask))));
        events.push((at + pace.life, Event::Release(id)));
        at += Duration::from_micros(dice.below(2 * mean + 1));
    }
    events.sort_by_key(|(at, _)| *at);
    Ok(events)
}

/// How one request of the open loop ended.
enum Ended {
    Placed(Duration),
    Refused,
    Released(Duration),
}

/// Requests of the varied mix come at `pace` whether those before are answered or not, and each is
/// released when its life is over. Latencies are from when it was due, so that one that has to wait for
/// others counts in full.
///
/// # Errors
/// A request failed, or it is time to end.
pub fn open(subject: &Subject, pace: Pace, stop: &Stop) -> Result<Outcome, BenchError> {
    let events = plan(pace, &subject.next)?;
    let begun = Instant::now();
    let mut placing: HashMap<u64, JoinHandle<Result<Ended, BenchError>>> = HashMap::new();
    let mut running = JoinSet::new();
    // A thread's own sleep is exact to some 60 µs; the runtime's timers round up to milliseconds.
    for (at, event) in events {
        let due = begun + at;
        stop.sleep(due.saturating_duration_since(Instant::now()))?;
        let cloud = Arc::clone(&subject.cloud);
        match event {
            Event::Place(id, ask) => {
                let place = async move {
                    let placed = cloud.place(id, *ask).await?;
                    Ok(if placed { Ended::Placed(due.elapsed()) } else { Ended::Refused })
                };
                placing.insert(id, subject.runtime.spawn(place));
            }
            Event::Release(id) => {
                let Some(placed) = placing.remove(&id) else { continue };
                let release = async move {
                    let placed = placed.await.map_err(|error| panicked(&error))??;
                    if matches!(placed, Ended::Refused) {
                        return Ok::<_, BenchError>([Some(placed), None]);
                    }
                    cloud.release(id).await?;
                    Ok([Some(placed), Some(Ended::Released(due.elapsed()))])
                };
                running.spawn_on(release, subject.runtime.handle());
            }
        }
    }
    let mut outcome = Outcome::default();
    let (mut places, mut releases) = (Vec::new(), Vec::new());
    while let Some(ended) = next_ended(subject, &mut running, stop)? {
        for ended in ended?.into_iter().flatten() {
            match ended {
                Ended::Placed(took) => places.push(took),
                Ended::Refused => outcome.refused += 1,
                Ended::Released(took) => releases.push(took),
            }
        }
    }
    outcome.took = begun.elapsed();
    outcome.places.extend(places);
    outcome.releases.extend(releases);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use lanekeeper_control::claims::Ask;

    use super::*;

    /// Takes its time over each request.
    struct Slow(Duration);

    #[async_trait]
    impl Cloud for Slow {
        async fn place(&self, _: u64, _: Ask) -> Result<bool, BenchError> {
            tokio::time::sleep(self.0).await;
            Ok(true)
        }

        async fn release(&self, _: u64) -> Result<(), BenchError> {
            Ok(())
        }
    }

    fn subject(takes: Duration) -> Subject {
        Subject::new("slow", runtime().expect("threads"), Arc::new(Slow(takes)))
    }

    #[test]
    fn a_closed_loop_waits_for_each_answer_before_it_asks_again() {
        let slow = subject(Duration::from_millis(20));
        let window = Duration::from_millis(200);
        let one = closed(&slow, 1, Mix::Single, window, &Stop::default()).expect("measured");
        assert!(one.places.count() <= 11, "{}", one.places.count());
        assert!(one.places.at(0).expect("some") >= Duration::from_millis(20));
        let four = closed(&slow, 4, Mix::Single, window, &Stop::default()).expect("measured");
        assert!(four.places.count() > one.places.count());
    }

    #[test]
    fn an_open_loop_asks_whether_it_is_answered_or_not() {
        let slow = subject(Duration::from_millis(300));
        let pace = Pace {
            vms_a_minute: 6000,
            lasts: Duration::from_millis(300),
            life: Duration::from_millis(1),
        };
        let outcome = open(&slow, pace, &Stop::default()).expect("measured");
        // One after the other there would be one or two.
        assert!(outcome.places.count() > 5, "{}", outcome.places.count());
        assert_eq!(outcome.places.count(), outcome.releases.count());
        // What is due to be released before it is placed has waited since then.
        assert!(outcome.releases.at(0).expect("some") >= Duration::from_millis(250));
    }

    #[test]
    fn a_plan_asks_for_as_many_vms_a_minute_as_it_should() {
        let pace = Pace {
            vms_a_minute: 1000,
            lasts: Duration::from_secs(6000),
            life: Duration::from_secs(20),
        };
        let vms: u64 = plan(pace, &AtomicU64::new(0))
            .expect("planned")
            .iter()
            .map(|(_, event)| match event {
                Event::Place(_, ask) => u64::from(ask.request.vms),
                Event::Release(_) => 0,
            })
            .sum();
        assert!((95_000..105_000).contains(&vms), "{vms}");
    }

    #[test]
    fn a_percentile_is_one_of_the_figures() {
        let mut figures = Latencies::default();
        assert_eq!(figures.at(500), None);
        figures.extend((1..=100).rev().map(Duration::from_millis));
        assert_eq!(figures.at(0), Some(Duration::from_millis(1)));
        assert_eq!(figures.at(990), Some(Duration::from_millis(100)));
        assert_eq!(figures.at(1000), Some(Duration::from_millis(100)));
    }
}
