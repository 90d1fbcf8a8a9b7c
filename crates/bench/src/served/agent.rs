//! A simulated agent: it enrols, reports its host, keeps its lease, and has everything as it is desired
//! at once. What it does is what `lanekeeper agent vms` does, at the same pace; but for that one it holds
//! two connections of HTTP/1.1, and this one a connection of HTTP/2.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::Method;
use lanekeeper_client::certificate_request;
use lanekeeper_control::protocol::{
    Desired, DesiredVm, Enrol, Enrolled, Heartbeat, HeartbeatAnswer, Power, Traffic, VmReport,
    VmReports, VmState,
};
use secrecy::ExposeSecret;
use serde_json::Value;

use super::wire::{Identity, Trust, Wire, failed};
use crate::BenchError;
use crate::control::fleet::{host, inventory, region};

/// How long the server may hold back what is desired: as the agent has it.
const HOLD: u64 = 20;
/// After a call that failed: as the agent has it.
const AGAIN: Duration = Duration::from_secs(1);
/// A sign of life that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What all agents of a fleet saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Signs of life: how long each took, since this was last emptied.
    beats: Mutex<Vec<Duration>>,
    /// Signs of life that failed.
    pub failed: AtomicU64,
    /// Times that a host's lease had run out before it could be kept alive.
    pub lapsed: AtomicU64,
    /// Hosts that have been heard since the last [`Self::count_anew`].
    heard: Mutex<Vec<bool>>,
}

impl Seen {
    /// Take the signs of life so far away.
    pub fn beats(&self) -> Vec<Duration> {
        std::mem::take(&mut self.beats.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on it counts which of so many hosts are heard.
    pub fn count_anew(&self, hosts: usize) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = vec![false; hosts];
    }

    /// How many hosts have been heard since then.
    pub fn heard(&self) -> usize {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().filter(|heard| **heard).count()
    }

    fn beat(&self, n: usize, took: Duration) {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        if let Some(heard) = self.heard.lock().unwrap_or_else(PoisonError::into_inner).get_mut(n) {
            *heard = true;
        }
    }
}

/// An agent that was enrolled.
pub struct Agent {
    n: usize,
    wire: Wire,
    seen: Arc<Seen>,
    over: Arc<AtomicBool>,
}

/// An address of loopback for each host.
fn address(n: usize) -> Ipv4Addr {
    let [.., high, low] = (n as u32 + 1).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// Become the n-th host, with a token that an operator makes for it, and report what it has.
///
/// # Errors
/// The server refused something.
pub async fn enrol(
    n: usize,
    server: SocketAddr,
    trust: &Trust,
    operator: &Wire,
    seen: &Arc<Seen>,
    over: &Arc<AtomicBool>,
) -> Result<Agent, BenchError> {
    let path = format!("/v1/regions/{}/hosts/{}/token", region()?, host(n)?);
    let token: Value = operator.call(Method::POST, &path, None::<&Value>).await?;
    let token = token["token"].as_str().unwrap_or_default().to_owned();
    let request = certificate_request().map_err(failed)?;
    let stranger = Wire::new(server, address(n), trust.client(None)?);
    let enrol = Enrol { token, csr: request.csr_pem };
    let given: Enrolled = stranger.call(Method::POST, "/v1/agent/enrol", Some(&enrol)).await?;
    let key = request.key_pem.expose_secret();
    let identity = Identity { certificate: &given.certificate, key };
    let wire = Wire::new(server, address(n), trust.client(Some(identity))?);
    let report = inventory(n)?.report().clone();
    wire.call::<Value>(Method::PUT, "/v1/agent/inventory", Some(&report)).await?;
    Ok(Agent { n, wire, seen: Arc::clone(seen), over: Arc::clone(over) })
}

impl Agent {
    /// Work until it is over. Signs of life of a fleet's hosts are spread over their period.
    pub async fn run(self, hosts: usize) {
        tokio::join!(self.keep_alive(hosts), self.obey());
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    async fn keep_alive(&self, hosts: usize) {
        let mut lease = Duration::from_secs(15);
        tokio::time::sleep(lease / 3 * self.n as u32 / hosts.max(1) as u32).await;
        let mut last = Instant::now();
        while !self.is_over() {
            let began = Instant::now();
            let heartbeat = Heartbeat { version: "bench".to_owned(), revision: 0 };
            let call = self.wire.call::<HeartbeatAnswer>(
                Method::POST,
                "/v1/agent/heartbeat",
                Some(&heartbeat),
            );
            let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, call).await else {
                self.seen.failed.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            if last.elapsed() > lease {
                self.seen.lapsed.fetch_add(1, Ordering::Relaxed);
            }
            last = Instant::now();
            self.seen.beat(self.n, began.elapsed());
            lease = Duration::from_secs(answer.lease_seconds.into());
            tokio::time::sleep_until((began + lease / 3).into()).await;
        }
    }

    async fn obey(&self) {
        let (mut after, mut said) = (None, HashMap::new());
        while !self.is_over() {
            match self.round(after, &mut said).await {
                Ok(revision) => after = Some(revision),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Ask once what is desired, and say that it is so, as far as that was not said before.
    async fn round(
        &self,
        after: Option<u64>,
        said: &mut HashMap<u64, VmReport>,
    ) -> Result<u64, BenchError> {
        let path = after.map_or_else(
            || "/v1/agent/desired".to_owned(),
            |after| format!("/v1/agent/desired?after={after}&wait={HOLD}"),
        );
        let desired: Desired = self.wire.call(Method::GET, &path, None::<&Value>).await?;
        let reports = desired.vms.iter().map(obeyed);
        let vms: Vec<_> = reports.filter(|vm| said.get(&vm.vm) != Some(vm)).collect();
        if !vms.is_empty() {
            let reports = VmReports { vms: vms.clone() };
            self.wire.call::<Value>(Method::PUT, "/v1/agent/vms", Some(&reports)).await?;
        }
        said.extend(vms.into_iter().map(|vm| (vm.vm, vm)));
        said.retain(|id, _| desired.vms.iter().any(|vm| vm.vm == *id));
        Ok(desired.revision)
    }
}

fn obeyed(desired: &DesiredVm) -> VmReport {
    let state = match desired.power {
        Power::On => VmState::Running,
        Power::Off => VmState::Stopped,
        Power::Gone => VmState::Gone,
    };
    let DesiredVm { vm, generation, resets, .. } = *desired;
    VmReport { vm, generation, state, resets, traffic: Traffic::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_an_address_of_its_own() {
        let all: std::collections::BTreeSet<_> = (0..10_000).map(address).collect();
        assert_eq!(all.len(), 10_000);
        assert!(all.iter().all(Ipv4Addr::is_loopback));
    }
}
