//! Tenants: they create VMs at a steady pace, whether those before are there or not, see by the events
//! of their organization when each is ACTIVE, delete it when its life is over, and see that it is gone.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::wire::{Trust, Wire, failed};
use crate::control::fleet::{Dice, region};
use crate::control::load::Latencies;
use crate::{BenchError, Stop};

/// Organizations.
const ORGANIZATIONS: usize = 4;
/// Environments of each. One has a network with a subnet of 253 addresses.
const ENVIRONMENTS: usize = 4;
/// Flavors, by GPUs, as many VFs each, and how many of ten VMs are of it.
const FLAVORS: [(u32, u64); 3] = [(1, 7), (2, 2), (4, 1)];
/// How long after the last deletion VMs may take to go.
const FAREWELL: Duration = Duration::from_secs(60);

/// What became of a VM.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    active: Option<Instant>,
    error: bool,
    gone: Option<Instant>,
}

type Fates = Arc<Mutex<HashMap<u64, Fate>>>;

/// An organization with its key.
struct Tenant {
    wire: Arc<Wire>,
    environments: Vec<u64>,
    fates: Fates,
}

/// All tenants.
pub struct Tenants {
    all: Vec<Tenant>,
    watches: JoinSet<()>,
    named: AtomicUsize,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From when a VM should have been asked for until it was said to be ACTIVE.
    pub active: Latencies,
    /// From the call that deletes a VM until it was said to be gone.
    pub gone: Latencies,
    /// Calls that create and delete, from when each was due.
    pub calls: Latencies,
    /// Calls that failed, or were refused.
    pub failed: usize,
    /// VMs that came to be in ERROR.
    pub errors: usize,
    /// VMs that were not ACTIVE, or not gone, when that was waited for no longer.
    pub late: usize,
    /// From the first call to the last answer.
    pub took: Duration,
}

/// How VMs come and go.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// VMs created in a minute.
    pub vms_a_minute: u64,
    /// For how long.
    pub lasts: Duration,
    /// How long each is there.
    pub life: Duration,
}

/// What the operator makes first: a region, flavors and an image.
///
/// # Errors
/// The server refused something.
pub async fn furnish(operator: &Wire) -> Result<(), BenchError> {
    let post = async |path: &str, body: Value| -> Result<Value, BenchError> {
        operator.call(Method::POST, path, Some(&body)).await
    };
    let region = json!({"name": region()?, "fabric": "east", "addresses": "10.64.0.0/12",
        "vlans": {"from": 100, "to": 1999}});
    post("/v1/regions", region).await?;
    for (gpus, _) in FLAVORS {
        let flavor = json!({"name": format!("gpu{gpus}"), "vcpus": 8 * gpus,
            "ram_mib": 65_536 * gpus, "disk_gib": 100, "gpus": {"model": "H100", "count": gpus},
            "vfs": {"count": gpus, "rate_mbps": 100_000, "rdma": "hardware"}});
        post("/v1/flavors", flavor).await?;
    }
    post("/v1/images", json!({"name": "guest", "source": "builtin"})).await?;
    Ok(())
}

fn id_of(made: &Value) -> Result<u64, BenchError> {
    made["id"].as_u64().ok_or_else(|| failed(format!("no id in {made}")))
}

impl Tenants {
    /// Make them, and follow what becomes of their VMs.
    ///
    /// # Errors
    /// The server refused something.
    pub async fn new(
        server: SocketAddr,
        trust: &Trust,
        operator_key: &str,
    ) -> Result<Self, BenchError> {
        let (mut all, mut watches) = (Vec::new(), JoinSet::new());
        for n in 0..ORGANIZATIONS {
            let name = format!("tenant{n}");
            let wire = || -> Result<Wire, BenchError> {
                Ok(Wire::new(server, Ipv4Addr::LOCALHOST, trust.client(None)?))
            };
            let operator = wire()?.bearing(operator_key);
            let body = json!({"name": name});
            operator.call::<Value>(Method::POST, "/v1/organizations", Some(&body)).await?;
            let within = wire()?.bearing(operator_key).within(&name);
            let body = json!({"name": "bench", "role": "member"});
            let key: Value = within.call(Method::POST, "/v1/api-keys", Some(&body)).await?;
            let key = key["secret"].as_str().unwrap_or_default();
            let wire = Arc::new(wire()?.bearing(key));
            let mut environments = Vec::new();
            for n in 0..ENVIRONMENTS {
                let body = json!({"name": format!("lab{n}"), "region": region()?});
                let made = wire.call(Method::POST, "/v1/environments", Some(&body)).await?;
                environments.push(id_of(&made)?);
            }
            let fates = Fates::default();
            let response = wire.open(Method::GET, "/v1/watch?kinds=vms", None).await?;
            let following = Arc::clone(&fates);
            watches.spawn(async move {
                let (mut body, mut rest) = (response.into_body(), Vec::new());
                while let Some(Ok(frame)) = body.frame().await {
                    if let Ok(data) = frame.into_data() {
                        rest.extend_from_slice(&data);
                        take_events(&mut rest, &following);
                    }
                }
            });
            all.push(Tenant { wire, environments, fates });
        }
        Ok(Self { all, watches, named: AtomicUsize::new(0) })
    }

    fn draw(&self, dice: &mut Dice) -> (&Tenant, Value) {
        let n = self.named.fetch_add(1, Ordering::Relaxed);
        let tenant = &self.all[n % self.all.len()];
        let environment = tenant.environments[n / self.all.len() % tenant.environments.len()];
        let mut drawn = dice.below(FLAVORS.iter().map(|(_, of_ten)| of_ten).sum());
        let gpus = FLAVORS.iter().find_map(|(gpus, of_ten)| {
            let is_it = drawn < *of_ten;
            drawn = drawn.saturating_sub(*of_ten);
            is_it.then_some(*gpus)
        });
        let flavor = format!("gpu{}", gpus.unwrap_or(1));
        let body = json!({"name": format!("vm{n}"), "environment": environment, "flavor": flavor,
            "image": "guest"});
        (tenant, body)
    }

    /// Let VMs come and go.
    ///
    /// # Errors
    /// It is time to end.
    pub async fn load(&self, pace: Pace, stop: &Stop) -> Result<Outcome, BenchError> {
        let (mut dice, began) = (Dice(42), Instant::now());
        let mut lives = JoinSet::new();
        let gap = Duration::from_micros(60_000_000 / pace.vms_a_minute.max(1));
        let mut due = began;
        while due < began + pace.lasts {
            tokio::time::sleep_until(due.into()).await;
            if let Some(reason) = stop.reason() {
                return Err(reason);
            }
            let (tenant, body) = self.draw(&mut dice);
            let (wire, fates) = (Arc::clone(&tenant.wire), Arc::clone(&tenant.fates));
            lives.spawn(async move { live(&wire, &fates, &body, due, pace.life).await });
            due += gap;
        }
        let mut outcome = Outcome::default();
        let (mut active, mut gone, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(life) = lives.join_next().await {
            let life = life.map_err(failed)?;
            outcome.failed += life.failed;
            outcome.errors += usize::from(life.fate.error);
            let is_late = life.failed == 0
                && ((life.fate.active.is_none() && !life.fate.error) || life.fate.gone.is_none());
            outcome.late += usize::from(is_late);
            let since = |from: Instant| move |at: Instant| at.saturating_duration_since(from);
            active.extend(life.fate.active.map(since(life.due)));
            gone.extend(life.deleted.and_then(|from| life.fate.gone.map(since(from))));
            calls.extend(life.calls);
        }
        outcome.took = began.elapsed();
        outcome.active.extend(active);
        outcome.gone.extend(gone);
        outcome.calls.extend(calls);
        Ok(outcome)
    }

    /// Create a VM as soon as the server takes it, and wait until it is ACTIVE; when each was so.
    ///
    /// # Errors
    /// It is not within `limit`, or it is time to end.
    pub async fn one(
        &self,
        limit: Duration,
        stop: &Stop,
    ) -> Result<(Instant, Instant), BenchError> {
        const LOOK: Duration = Duration::from_millis(20);
        let ends = Instant::now() + limit;
        let (tenant, body) = self.draw(&mut Dice(1));
        let mut made: Option<(u64, Instant)> = None;
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(reason) = stop.reason() {
                return Err(reason);
            }
            let is_over = Instant::now() > ends;
            let asked: Result<Value, BenchError> = match made {
                None => tenant.wire.call(Method::POST, "/v1/vms", Some(&body)).await,
                Some((id, _)) => {
                    let path = format!("/v1/vms/{id}");
                    tenant.wire.call(Method::GET, &path, None::<&Value>).await
                }
            };
            match (asked, made) {
                (Ok(vm), Some((_, at))) if vm["status"] == "ACTIVE" => {
                    return Ok((at, Instant::now()));
                }
                (Ok(vm), None) => made = Some((id_of(&vm)?, Instant::now())),
                (Err(error), _) if is_over => return Err(error),
                (Ok(vm), _) if is_over => return Err(failed(format!("not ACTIVE: {vm}"))),
                _ => {}
            }
        }
    }

    /// End following.
    pub fn end(mut self) {
        self.watches.abort_all();
    }
}

/// One VM's life as its tenant saw it.
struct Life {
    due: Instant,
    deleted: Option<Instant>,
    calls: Vec<Duration>,
    failed: usize,
    fate: Fate,
}

async fn live(wire: &Wire, fates: &Fates, body: &Value, due: Instant, life: Duration) -> Life {
    let mut lived =
        Life { due, deleted: None, calls: Vec::new(), failed: 1, fate: Fate::default() };
    let made: Result<Value, _> = wire.call(Method::POST, "/v1/vms", Some(body)).await;
    lived.calls.push(due.elapsed());
    let Ok(id) = made.and_then(|made| id_of(&made)) else { return lived };
    let end = due + life;
    tokio::time::sleep_until(end.into()).await;
    let path = format!("/v1/vms/{id}");
    let deleted = Instant::now();
    let done = wire.call::<Value>(Method::DELETE, &path, None::<&Value>).await;
    lived.calls.push(end.elapsed());
    if done.is_err() {
        return lived;
    }
    (lived.deleted, lived.failed) = (Some(deleted), 0);
    let is_gone = || {
        let fates = fates.lock().unwrap_or_else(PoisonError::into_inner);
        fates.get(&id).copied().unwrap_or_default()
    };
    while deleted.elapsed() < FAREWELL && is_gone().gone.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lived.fate = is_gone();
    lived
}

/// Take the whole events away from the begin of a stream, and note what they say.
fn take_events(rest: &mut Vec<u8>, fates: &Fates) {
    let now = Instant::now();
    while let Some(end) = rest.windows(2).position(|two| two == b"\n\n") {
        let event: Vec<u8> = rest.drain(..end + 2).collect();
        let text = String::from_utf8_lossy(&event);
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let data = field("data:").and_then(|data| serde_json::from_str::<Value>(data.trim()).ok());
        let Some(data) = data else { continue };
        let Some(id) = data["id"].as_u64() else { continue };
        let mut fates = fates.lock().unwrap_or_else(PoisonError::into_inner);
        let fate = fates.entry(id).or_default();
        if field("event:").map(str::trim) == Some("delete") {
            fate.gone = Some(now);
        } else if data["resource"]["status"] == "ACTIVE" {
            fate.active.get_or_insert(now);
        } else if data["resource"]["status"] == "ERROR" {
            fate.error = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_taken_when_it_is_whole() {
        let fates = Fates::default();
        let mut rest = b"event: put\nid: 4\ndata: {\"id\":7,\"resource\":{\"status\":".to_vec();
        take_events(&mut rest, &fates);
        assert!(fates.lock().expect("whole").is_empty());
        rest.extend_from_slice(b"\"ACTIVE\"}}\n\nevent: delete\ndata: {\"id\":8}\n\n: keep");
        take_events(&mut rest, &fates);
        let fates = fates.lock().expect("whole");
        assert!(fates[&7].active.is_some() && fates[&7].gone.is_none());
        assert!(fates[&8].gone.is_some());
        assert_eq!(rest, b": keep");
    }
}
