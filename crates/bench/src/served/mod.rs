//! The control plane as it is served: a real server over HTTPS on a real store, simulated agents, and
//! tenants who create and delete VMs. For each size of the fleet and each store: how long a VM takes to be
//! ACTIVE, what calls and placements take, what it costs, and how long it takes until all is well again
//! after the server was killed.

pub mod agent;
pub mod report;
pub mod server;
pub mod tenant;
pub mod wire;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hyper::Method;
use tokio::task::JoinSet;

use self::agent::{Seen, enrol};
use self::server::{Server, bound, cpu};
use self::tenant::{Outcome, Pace, Tenants, furnish};
use self::wire::{Trust, Wire, failed};
use crate::control::Kind;
use crate::control::etcd::Etcd;
use crate::control::load::{Latencies, runtime};
use crate::machine::{resident, sync_time};
use crate::process::Running;
use crate::{BenchError, Stop};

/// Hosts that are enrolled at once.
const AT_ONCE: usize = 64;
/// How often a host that could not be enrolled tries again.
const TRIES: usize = 10;
/// How long the fleet is watched without VMs that come and go.
const REST: Duration = Duration::from_secs(15);
/// How long a server that was killed may take until a VM is ACTIVE, and until all hosts are heard.
const RECOVERY: Duration = Duration::from_secs(180);

/// What is measured, and how much of it.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Sizes of the fleet, in hosts.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000])]
    hosts: Vec<usize>,
    /// Stores.
    #[arg(long, value_delimiter = ',', default_values = ["embedded", "etcd"])]
    stores: Vec<Kind>,
    /// VMs that are created in a minute.
    #[arg(long, default_value_t = 1_000)]
    vms_a_minute: u64,
    /// Seconds for which VMs are created.
    #[arg(long, default_value_t = 180)]
    lasts: u64,
    /// Seconds that a VM is there.
    #[arg(long, default_value_t = 10)]
    life: u64,
    /// 100 and 300 hosts, and half a minute of VMs.
    #[arg(long)]
    quick: bool,
    /// The program to measure; by default `lanekeeper` from the folder of this one.
    #[arg(long)]
    lanekeeper: Option<PathBuf>,
    /// Minutes after which it ends, done or not.
    #[arg(long, default_value_t = 60)]
    pub limit: u64,
    /// Document to put the figures into.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// What was measured on one fleet with one store.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Hosts.
    pub hosts: usize,
    /// Which store.
    pub kind: Kind,
    /// How long it took to enrol all hosts.
    pub enrolled: Duration,
    /// At rest, and under load.
    pub at_rest: Cost,
    /// Likewise.
    pub loaded: Cost,
    /// What tenants saw.
    pub outcome: Outcome,
    /// Bounds of half and of 99 of 100 placements, in seconds, as the server counts them.
    pub placement: [Option<f64>; 2],
    /// Likewise for transactions of claims.
    pub claims: [Option<f64>; 2],
    /// Memory of the server, in KiB.
    pub memory: u64,
    /// Of etcd's largest member.
    pub member: Option<u64>,
    /// Bytes in the store's database: with the hosts, and after the load.
    pub bytes: [u64; 2],
    /// What followed a kill.
    pub recovery: Recovery,
}

/// What a time cost, in cores, and what agents saw of it.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// Cores that the server used.
    pub server: f64,
    /// That all members of etcd used.
    pub etcd: f64,
    /// That the load used: this process.
    pub load: f64,
    /// Signs of life of agents.
    pub beats: Latencies,
    /// Signs of life a second.
    pub rate: f64,
    /// Signs of life that failed.
    pub failed: u64,
    /// Leases that ran out.
    pub lapsed: u64,
}

/// From when the server was killed.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    /// It was started anew and listens.
    pub listens: Duration,
    /// It has taken a VM, and that VM is ACTIVE; none if that took longer than was waited for.
    pub vm: Option<[Duration; 2]>,
    /// All hosts have been heard again; none if that took longer than was waited for.
    pub heard: Option<Duration>,
    /// Leases that ran out meanwhile.
    pub lapsed: u64,
}

/// All processes that are looked at.
struct Processes<'p> {
    server: &'p Running,
    etcd: Option<&'p Etcd>,
    seen: &'p Seen,
}

impl Processes<'_> {
    fn cpu(&self) -> Result<[f64; 3], BenchError> {
        let members = self.etcd.map(Etcd::processes).unwrap_or_default();
        let members = members.into_iter().map(cpu).sum::<Result<f64, _>>()?;
        Ok([cpu(self.server.id())?, members, cpu(std::process::id())?])
    }

    /// What it costs while something is done.
    async fn cost<T>(
        &self,
        done: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<(Cost, T), BenchError> {
        let faults = || [&self.seen.failed, &self.seen.lapsed].map(|n| n.load(Ordering::Relaxed));
        let (began, before, before_faults) = (Instant::now(), self.cpu()?, faults());
        self.seen.beats();
        let done = done.await?;
        let (took, after, after_faults) = (began.elapsed().as_secs_f64(), self.cpu()?, faults());
        let [server, etcd, load] = [0, 1, 2].map(|n| (after[n] - before[n]) / took);
        let [failed, lapsed] = [0, 1].map(|n| after_faults[n] - before_faults[n]);
        let mut beats = Latencies::default();
        beats.extend(self.seen.beats());
        let rate = beats.count() as f64 / took;
        Ok((Cost { server, etcd, load, beats, rate, failed, lapsed }, done))
    }
}

/// Measure, and write the report.
///
/// # Errors
/// Something did not start or failed, or it is time to end.
pub fn run(options: &Options, command: &str, stop: &Stop) -> Result<(), BenchError> {
    let mut options = options.clone();
    if options.quick {
        (options.hosts, options.lasts) = (vec![100, 300], 30);
    }
    open_files()?;
    let folder = tempfile::Builder::new().prefix("lanekeeper-bench.").tempdir();
    let folder = folder.map_err(BenchError::io("temporary folder"))?;
    let sync = sync_time(folder.path())?;
    let mut versions = Vec::new();
    if options.stores.contains(&Kind::Etcd) {
        versions.push(("etcd", Etcd::version()?));
    }
    let mut figures = Vec::new();
    for &hosts in &options.hosts {
        for &kind in &options.stores {
            let own = folder.path().join(format!("{kind:?}-{hosts}"));
            figures.push(fleet(&options, hosts, kind, &own, stop)?);
            let text = report::document(&figures, &options, sync, &versions, command)?;
            match &options.report {
                // What is done is kept, whatever comes of the rest.
                Some(path) => crate::report::put("served", &text, path)?,
                None => println!("{text}"),
            }
        }
    }
    Ok(())
}

/// Each agent is a connection: let this process, and those it starts, open what they may.
fn open_files() -> Result<(), BenchError> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let raised = setrlimit(Resource::Nofile, limit).map_err(std::io::Error::from);
    raised.map_err(BenchError::io("the limit of open files"))
}

/// Everything that is measured on one fleet with one store.
fn fleet(
    options: &Options,
    hosts: usize,
    kind: Kind,
    folder: &Path,
    stop: &Stop,
) -> Result<Figure, BenchError> {
    let say = |text: &str| println!("{hosts} hosts, {}: {text}", kind.name());
    std::fs::create_dir_all(folder).map_err(BenchError::io(folder.display()))?;
    let etcd = match kind {
        Kind::Embedded => None,
        Kind::Etcd => Some(Etcd::start(&folder.join("etcd"), stop)?),
    };
    let members = etcd.as_ref().map(|etcd| etcd.members().to_vec()).unwrap_or_default();
    let program = match &options.lanekeeper {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(BenchError::io("this program"))?
            .with_file_name("lanekeeper"),
    };
    let place = Server::new(&program, &folder.join("server"), members)?;
    let database = etcd.as_ref().map_or_else(|| place.database(), Etcd::database);
    let bytes = || {
        let length = std::fs::metadata(&database).map_err(BenchError::io(database.display()));
        length.map(|length| length.len())
    };
    let mut server = place.start(stop)?;
    let (authority, key) = place.secrets()?;
    let (runtime, over) = (runtime()?, Arc::new(AtomicBool::new(false)));
    let seen = Arc::new(Seen::default());
    let trust = Trust::new(&authority)?;
    let wire = Wire::new(place.address(), Ipv4Addr::LOCALHOST, trust.client(None)?);
    let operator = Arc::new(wire.bearing(&key));

    say("enrolling");
    let began = Instant::now();
    let enrolling = Enrolling { hosts, place: &place, trust: &trust, seen: &seen, over: &over };
    let mut agents = runtime.block_on(enrolling.run(&operator, stop))?;
    let enrolled = began.elapsed();
    let tenants = runtime.block_on(Tenants::new(place.address(), &trust, &key))?;
    // One of each first: connections are made then, and what is made at the first VM.
    runtime.block_on(tenants.one(RECOVERY, stop))?;
    let with_hosts = bytes()?;

    say("at rest");
    let processes = Processes { server: &server, etcd: etcd.as_ref(), seen: &seen };
    let rest = async {
        tokio::time::sleep(REST).await;
        Ok(())
    };
    let (at_rest, ()) = runtime.block_on(processes.cost(rest))?;
    say(&format!("{} VMs a minute", options.vms_a_minute));
    let pace = Pace {
        vms_a_minute: options.vms_a_minute,
        lasts: Duration::from_secs(options.lasts),
        life: Duration::from_secs(options.life),
    };
    let (loaded, outcome) = runtime.block_on(processes.cost(tenants.load(pace, stop)))?;
    let metrics = runtime.block_on(async {
        let (status, body) = operator.ask(Method::GET, "/v1/metrics", None).await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        if status == 200 { Ok(text) } else { Err(failed(format!("/v1/metrics: {status} {text}"))) }
    })?;
    let both = |name: &str| [bound(&metrics, name, 500), bound(&metrics, name, 990)];
    let (memory, after) = (resident(server.id())?, bytes()?);
    let member = etcd.as_ref().map(Etcd::resident).transpose()?;

    say("killing the server");
    let lapsed = seen.lapsed.load(Ordering::Relaxed);
    let killed = Instant::now();
    server.kill()?;
    seen.count_anew(hosts);
    server = place.start(stop)?;
    let listens = killed.elapsed();
    // That it takes too long is a figure too.
    let vm = match runtime.block_on(tenants.one(RECOVERY, stop)) {
        Ok((taken, active)) => Some([taken - killed, active - killed]),
        Err(error @ (BenchError::Interrupted | BenchError::TimeOver)) => return Err(error),
        Err(error) => {
            say(&format!("no VM is ACTIVE: {error}"));
            None
        }
    };
    let mut heard = None;
    while heard.is_none() && killed.elapsed() < RECOVERY {
        heard = (seen.heard() == hosts).then(|| killed.elapsed());
        stop.sleep(Duration::from_millis(20))?;
    }
    let recovery =
        Recovery { listens, vm, heard, lapsed: seen.lapsed.load(Ordering::Relaxed) - lapsed };
    over.store(true, Ordering::Relaxed);
    tenants.end();
    agents.abort_all();
    drop(runtime);
    drop(server);
    Ok(Figure {
        hosts,
        kind,
        enrolled,
        at_rest,
        loaded,
        outcome,
        placement: both("lanekeeper_placement_seconds"),
        claims: both("lanekeeper_claims_seconds"),
        memory,
        member,
        bytes: [with_hosts, after],
        recovery,
    })
}

/// A fleet that is to be enrolled.
struct Enrolling<'e> {
    hosts: usize,
    place: &'e Server,
    trust: &'e Trust,
    seen: &'e Arc<Seen>,
    over: &'e Arc<AtomicBool>,
}

impl Enrolling<'_> {
    /// Enrol all hosts, some at once; each works from then on.
    async fn run(&self, operator: &Arc<Wire>, stop: &Stop) -> Result<JoinSet<()>, BenchError> {
        furnish(operator).await?;
        let mut running = JoinSet::new();
        let mut enrolling = JoinSet::new();
        for n in 0..self.hosts + AT_ONCE {
            if let Some(reason) = stop.reason() {
                return Err(reason);
            }
            if n < self.hosts {
                let (server, trust) = (self.place.address(), self.trust.clone());
                let (operator, seen) = (Arc::clone(operator), Arc::clone(self.seen));
                let over = Arc::clone(self.over);
                enrolling.spawn(async move {
                    let mut tries = 0;
                    loop {
                        match enrol(n, server, &trust, &operator, &seen, &over).await {
                            // A busy store may not have answered in time; a new token does no harm.
                            Err(_) if tries < TRIES => tries += 1,
                            done => return done,
                        }
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                });
            }
            if n >= AT_ONCE
                && let Some(agent) = enrolling.join_next().await
            {
                running.spawn(agent.map_err(failed)??.run(self.hosts));
            }
        }
        while let Some(agent) = enrolling.join_next().await {
            running.spawn(agent.map_err(failed)??.run(self.hosts));
        }
        Ok(running)
    }
}
