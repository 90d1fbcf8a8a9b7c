//! The control plane under load: a simulated fleet in each store, claims by several callers at once,
//! 1,000 VMs a minute, servers that start anew; and OpenStack Placement with the same hosts and the same
//! claims in the same run, in turn with ours.

pub mod cloud;
pub mod etcd;
pub mod fleet;
pub mod index;
pub mod load;
pub mod peer;
pub mod report;
pub mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use lanekeeper_control::claims::Claims;
use lanekeeper_testbed::guest_image::cache_folder;

use self::etcd::Etcd;
use self::fleet::{GPUS, Mix, region};
use self::index::Answers;
use self::load::{Latencies, Outcome, Pace, Subject, closed, fill, open, runtime};
use self::peer::{Placement, Shape};
use self::server::{Place, Start, start, write_hosts};
use crate::{BenchError, Stop, machine};

/// Shares of the GPUs that are taken when placement itself is timed, in per cent.
const FULL: [u64; 3] = [50, 80, 95];

/// A peer's callers: it has two processes on two cores.
const PEER_CALLERS: [usize; 2] = [1, 2];

/// Before the first window: connections are made and modules loaded then.
const WARM_UP: Duration = Duration::from_millis(50);

/// A store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// A file in the server's directory.
    Embedded,
    /// Three members on loopback.
    Etcd,
}

impl Kind {
    /// In the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "Lanekeeper, embedded",
            Self::Etcd => "Lanekeeper, etcd",
        }
    }
}

/// What is measured, and how much of it.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Sizes of the fleet, in hosts.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000])]
    hosts: Vec<usize>,
    /// Stores.
    #[arg(long, value_delimiter = ',', default_values = ["embedded", "etcd"])]
    stores: Vec<Kind>,
    /// Callers at once, each of which places and releases in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256])]
    callers: Vec<usize>,
    /// Windows for each number of callers.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a window; one of Placement lasts at least a claim.
    #[arg(long, default_value_t = 2.0)]
    window: f64,
    /// VMs a minute of the open loop, on the largest fleet.
    #[arg(long, default_value_t = 1_000)]
    vms_a_minute: u64,
    /// Seconds of the open loop.
    #[arg(long, default_value_t = 60)]
    lasts: u64,
    /// Seconds that a VM of the open loop is there.
    #[arg(long, default_value_t = 20)]
    life: u64,
    /// Leave OpenStack Placement out, which pip would install from its index.
    #[arg(long)]
    no_peer: bool,
    /// Minutes after which it ends, done or not.
    #[arg(long, default_value_t = 30)]
    pub limit: u64,
    /// Document to put the figures into.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// One who was asked, by so many callers, on a fleet of one size.
#[derive(Clone, Debug)]
pub struct Row {
    /// Hosts.
    pub hosts: usize,
    /// Who.
    pub who: String,
    /// Callers at once.
    pub callers: usize,
    /// Placements a second, for each round.
    pub rates: Vec<f64>,
    /// How long they took, in all rounds.
    pub places: Latencies,
    /// How often Placement had to be asked again, in all rounds.
    pub again: usize,
}

/// A store with a fleet, half of whose GPUs are taken.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Hosts.
    pub hosts: usize,
    /// Which store.
    pub kind: Kind,
    /// VMs that are there.
    pub vms: u64,
    /// Bytes in the store with the hosts alone.
    pub empty: u64,
    /// And with the VMs.
    pub filled: u64,
    /// And after all load, with every revision since.
    pub after: u64,
    /// A server that starts after one that ended well.
    pub ended: Start,
    /// A server that starts after one that was killed.
    pub killed: Start,
    /// Memory of etcd's largest member, in KiB.
    pub member: Option<u64>,
}

/// The open loop on one store.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Hosts.
    pub hosts: usize,
    /// Which store.
    pub kind: Kind,
    /// What came of it.
    pub outcome: Outcome,
}

/// All that one run has measured.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Placement by itself.
    pub answers: Vec<Answers>,
    /// Claims, ours and the peer's.
    pub rows: Vec<Row>,
    /// The open loop.
    pub opened: Vec<Opened>,
    /// Bytes, memory and starts.
    pub weights: Vec<Weight>,
    /// Versions of what stood beside.
    pub versions: Vec<(&'static str, String)>,
    /// A write of 4 KiB that is on disk.
    pub sync: Duration,
}

/// A server on a store of its own. What uses the store ends before the store.
struct Server {
    kind: Kind,
    subject: Subject,
    place: Place,
    database: PathBuf,
    vms: u64,
    empty: u64,
    filled: u64,
    etcd: Option<Etcd>,
}

fn bytes(file: &Path) -> Result<u64, BenchError> {
    Ok(std::fs::metadata(file).map_err(BenchError::io(file.display()))?.len())
}

impl Server {
    fn new(kind: Kind, hosts: usize, folder: &Path, stop: &Stop) -> Result<Self, BenchError> {
        let (etcd, place, database) = match kind {
            Kind::Embedded => (None, Place::embedded(folder), folder.join("store.redb")),
            Kind::Etcd => {
                let etcd = Etcd::start(folder, stop)?;
                let (place, database) = (etcd.place(), etcd.database());
                (Some(etcd), place, database)
            }
        };
        let runtime = runtime()?;
        let (claims, empty) = runtime.block_on(async {
            let store = place.open().await?;
            write_hosts(&*store, hosts, stop).await?;
            let empty = bytes(&database)?;
            let claims = Claims::open(store, region()?).await;
            let failed = |said| BenchError::InProcess { what: "the claims", said };
            Ok::<_, BenchError>((claims.map_err(|error| failed(error.to_string()))?, empty))
        })?;
        let subject = Subject::new(kind.name(), runtime, Arc::new(claims));
        let vms = fill(&subject, (hosts * GPUS) as u64 / 2, stop)?;
        let filled = bytes(&database)?;
        Ok(Self { kind, subject, place, database, vms, empty, filled, etcd })
    }

    /// End it, and start it anew twice.
    fn weigh(self, hosts: usize, folder: &Path, stop: &Stop) -> Result<Weight, BenchError> {
        let Self { kind, subject, place, database, vms, empty, filled, etcd } = self;
        let after = bytes(&database)?;
        drop(subject);
        let ended = start(&place, folder, stop)?;
        let killed = start(&place, folder, stop)?;
        let member = etcd.map(|etcd| etcd.resident()).transpose()?;
        Ok(Weight { hosts, kind, vms, empty, filled, after, ended, killed, member })
    }
}

/// A peer whose fleet grows from size to size.
struct Peer {
    placement: Placement,
    subject: Subject,
}

fn peers(folder: &Path, figures: &mut Figures, stop: &Stop) -> Result<Vec<Peer>, BenchError> {
    let program = peer::install(&cache_folder(), folder, stop)?;
    figures.versions.push(("OpenStack Placement", program.version.clone()));
    let mut peers = Vec::new();
    for shape in [Shape::Flat, Shape::Nested] {
        let placement =
            Placement::start(&program, shape, &folder.join(format!("{shape:?}")), stop)?;
        let cloud = Arc::new(placement.client.clone());
        peers.push(Peer { placement, subject: Subject::new(shape.name(), runtime()?, cloud) });
    }
    Ok(peers)
}

/// Measure, and write the report.
///
/// # Errors
/// Something did not start or failed, or it is time to end.
pub fn run(options: &Options, command: &str, stop: &Stop) -> Result<(), BenchError> {
    let folder = tempfile::Builder::new().prefix("lanekeeper-bench.").tempdir();
    let folder = folder.map_err(BenchError::io("temporary folder"))?;
    let mut figures = Figures { sync: machine::sync_time(folder.path())?, ..Figures::default() };
    if options.stores.contains(&Kind::Etcd) {
        if cfg!(not(feature = "etcd")) {
            let said = "this program was built without it; build it with --features etcd, or leave \
                        it out with --stores embedded";
            return Err(BenchError::InProcess { what: "etcd", said: said.to_owned() });
        }
        figures.versions.push(("etcd", Etcd::version()?));
    }
    let peers =
        if options.no_peer { Vec::new() } else { peers(folder.path(), &mut figures, stop)? };
    let mut sizes = options.hosts.clone();
    sizes.sort_unstable();
    for &hosts in &sizes {
        for full in FULL {
            println!("{hosts} hosts: placement by itself, {full} % full");
            figures.answers.push(index::measure(hosts, full, stop)?);
        }
        let is_largest = Some(&hosts) == sizes.last();
        size(options, hosts, is_largest, &peers, folder.path(), &mut figures, stop)?;
    }
    let text = report::document(&figures, options, command)?;
    match &options.report {
        Some(path) => {
            crate::report::put("control", &text, path)?;
            println!("written to {}", path.display());
        }
        None => println!("{text}"),
    }
    Ok(())
}

/// Everything that is measured on a fleet of one size.
fn size(
    options: &Options,
    hosts: usize,
    is_largest: bool,
    peers: &[Peer],
    folder: &Path,
    figures: &mut Figures,
    stop: &Stop,
) -> Result<(), BenchError> {
    let mut servers = Vec::new();
    for kind in &options.stores {
        println!("{hosts} hosts: filling {}", kind.name());
        let own = folder.join(format!("{kind:?}-{hosts}"));
        servers.push(Server::new(*kind, hosts, &own, stop)?);
    }
    for Peer { placement, subject } in peers {
        println!("{hosts} hosts: filling {}", subject.name);
        placement.grow(hosts, stop)?;
    }
    figures.rows.extend(rounds(options, hosts, &servers, peers, stop)?);
    if is_largest && options.lasts > 0 {
        let pace = Pace {
            vms_a_minute: options.vms_a_minute,
            lasts: Duration::from_secs(options.lasts),
            life: Duration::from_secs(options.life),
        };
        for Server { kind, subject, .. } in &servers {
            println!("{hosts} hosts: {} VMs a minute, {}", pace.vms_a_minute, subject.name);
            let outcome = open(subject, pace, stop)?;
            figures.opened.push(Opened { hosts, kind: *kind, outcome });
        }
    }
    for server in servers {
        println!("{hosts} hosts: starting {} anew", server.subject.name);
        figures.weights.push(server.weigh(hosts, folder, stop)?);
    }
    Ok(())
}

/// Claims by each number of callers of each subject, in turn within a round.
fn rounds(
    options: &Options,
    hosts: usize,
    servers: &[Server],
    peers: &[Peer],
    stop: &Stop,
) -> Result<Vec<Row>, BenchError> {
    let own = servers
        .iter()
        .flat_map(|server| options.callers.iter().map(|callers| (&server.subject, None, *callers)));
    let others = peers.iter().flat_map(|Peer { placement, subject }| {
        PEER_CALLERS.map(|callers| (subject, Some(&placement.client), callers))
    });
    let cells: Vec<_> = own.chain(others).collect();
    let mut rows: Vec<Row> = cells
        .iter()
        .map(|(subject, _, callers)| Row {
            hosts,
            who: subject.name.clone(),
            callers: *callers,
            rates: Vec::new(),
            places: Latencies::default(),
            again: 0,
        })
        .collect();
    for round in 0..options.rounds {
        println!("{hosts} hosts: claims, round {} of {}", round + 1, options.rounds);
        for ((subject, client, callers), row) in cells.iter().zip(&mut rows) {
            if round == 0 {
                closed(subject, *callers, Mix::Single, WARM_UP, stop)?;
            }
            let before = client.map_or(0, peer::Client::asked_again);
            let window = Duration::from_secs_f64(options.window);
            let outcome = closed(subject, *callers, Mix::Single, window, stop)?;
            row.again += client.map_or(0, peer::Client::asked_again) - before;
            row.rates.push(outcome.rate());
            row.places.extend(outcome.places.iter());
            println!("  {}, {callers} at once: {:.2} a second", row.who, outcome.rate());
        }
    }
    Ok(rows)
}
