//! The NIC itself: its VFs, their settings, the threads that serve them, and the hardware line.
//!
//! What workers need of the settings is one immutable [`SwitchTable`]. A change makes a new table
//! off the path of frames and publishes it whole; workers take it up at their next round, so a
//! change to one VF never stops another's traffic, and a frame is judged by the old settings or the
//! new ones, never by a mixture.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{
    MAX_VFS, MacAddr, PfId, RateLimits, VfChange, VfCounters, VfIndex, VfSettings, VfStatus,
};

use crate::config::{Config, ConfigError, duplicate_mac};
use crate::control::{self, SOCKET_NAME};
use crate::control_queue::Command;
use crate::descriptors;
use crate::features;
use crate::intercept::BackendLine;
use crate::journal::Journal;
use crate::port::Port;
use crate::resume::ResumeFile;
use crate::roce::{RoceReport, RoceTable};
use crate::run_dir::RunDir;
use crate::switch::{
    DuplicateMac, Learned, MAX_EXTRA_MACS, OffloadSet, PortSpec, SwitchTable, UplinkPolicy,
    VlanKey, WorkerCounters,
};
use crate::threads;
use crate::uplink::{self, LinkStatus, Uplink, UplinkError};
use crate::vhost_user;
use crate::worker::Worker;

/// How often the uplink's carrier and learned addresses are looked after.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// How long a control queue waits after a command that changed the table.
const BETWEEN_TABLES: Duration = Duration::from_millis(1);
/// Addresses learned but not yet taken up; more are learned again with their next frame.
const LEARN_QUEUE: usize = 256;

/// Why a software NIC did not start.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another process has this NIC's folder.
    #[error("software NIC '{name}' runs already and has {folder}; end it first, or {instead}")]
    Running {
        /// The NIC that runs.
        name: String,
        /// What it holds.
        folder: PathBuf,
        /// What else can be done.
        instead: &'static str,
    },
    /// The NIC's folder, or something in it, is unfit for its sockets and state.
    #[error("{path} {reason}")]
    Folder {
        /// Which file or folder.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The process may not have as many files open as front-ends can make it open.
    #[error(
        "{vfs} VFs of {pairs} queue pairs may need {needed} file descriptors, but this process may \
         have {limit}; raise its hard limit (ulimit -Hn {needed}, LimitNOFILE={needed}), or have \
         fewer VFs"
    )]
    Descriptors {
        /// VFs of the NIC.
        vfs: usize,
        /// Queue pairs of each.
        pairs: usize,
        /// Descriptors that may come to be open at once.
        needed: u64,
        /// How many may.
        limit: u64,
    },
    /// The uplink cannot be opened.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// A file, socket or thread cannot be had.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// What the system said.
        source: std::io::Error,
    },
}

pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> NicError {
    let action = action.into();
    move |source| NicError::Io { action, source }
}

/// What a VM's driver has asked for by control queue; gone when the driver is.
#[derive(Clone, PartialEq, Eq, Default)]
struct GuestFilters {
    promiscuous: bool,
    table: Vec<MacAddr>,
    address: Option<MacAddr>,
}

/// What the table of frames is made from.
#[derive(Clone)]
struct Sources {
    settings: Vec<VfSettings>,
    filters: Vec<GuestFilters>,
    /// Addresses that trusted VFs were seen to send from.
    learned: Vec<Learned>,
    uplink: Option<LinkStatus>,
}

/// What can change while the NIC runs, guarded by one lock off the path of frames.
struct State {
    sources: Sources,
    journal: Journal,
    published: Arc<Published>,
}

/// What workers go by, replaced whole.
pub(crate) struct Published {
    pub(crate) table: SwitchTable,
    /// Rates of each VF that has any.
    pub(crate) rates: [Option<RateLimits>; MAX_VFS],
    pub(crate) any_rate: bool,
}

/// A station was seen where the table does not have it.
pub(crate) struct News {
    /// Behind this trusted VF; `None`: behind the uplink.
    pub(crate) vf: Option<VfIndex>,
    pub(crate) vlan: VlanKey,
    pub(crate) mac: u64,
}

/// What the threads of one NIC share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) id: PfId,
    pub(crate) ports: Vec<Port>,
    pub(crate) resume: Arc<ResumeFile>,
    /// Readable once the NIC stops.
    pub(crate) stopping: OwnedFd,
    stopped: AtomicBool,
    state: Mutex<State>,
    /// Goes up with each new table.
    table_version: AtomicU64,
    /// Goes up with each ring that comes or goes.
    rings_version: AtomicU64,
    /// One eventfd a worker, to wake it.
    pub(crate) wakes: Vec<File>,
    news: SyncSender<News>,
    listeners: Mutex<Vec<Option<BackendLine>>>,
    connections: Mutex<BTreeMap<u64, UnixStream>>,
    /// One a worker, which is its only writer.
    pub(crate) counters: Vec<WorkerCounters>,
    /// What was seen of RoCE, by whichever worker saw it.
    pub(crate) roce: Mutex<RoceTable>,
}

/// What becomes of settings that were changed at run time, when a NIC starts again.
#[derive(Clone, Copy)]
enum History {
    Kept,
    Dropped,
}

/// A software NIC that runs in this process. Dropping it stops it.
pub struct Nic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Given up last, when no thread uses what is in it any more.
    dir: RunDir,
}

impl Nic {
    /// Start a NIC with a thread for each worker. Settings that were changed at run time are kept
    /// where the configuration has not changed since.
    ///
    /// # Errors
    /// [`NicError`]; nothing is left behind.
    pub fn start(config: Config) -> Result<Self, NicError> {
        Self::start_with(config, History::Kept)
    }

    /// The same, but with the settings of the configuration alone.
    ///
    /// # Errors
    /// [`NicError`]; nothing is left behind.
    pub fn start_fresh(config: Config) -> Result<Self, NicError> {
        Self::start_with(config, History::Dropped)
    }

    fn start_with(config: Config, history: History) -> Result<Self, NicError> {
        let (mut nic, workers) = Self::prepare(config, history)?;
        let cpus = nic.shared.config.cpus.clone();
        for (number, worker) in workers.into_iter().enumerate() {
            let cpu = cpus.get(number).copied();
            nic.spawn(&format!("worker-{number}"), move || worker.run(cpu))?;
        }
        Ok(nic)
    }

    /// Start a NIC whose single worker the caller drives by [`Worker::poll`]: for measurements and
    /// tests on one core.
    ///
    /// # Errors
    /// As [`Nic::start`]; and [`NicError::Config`] when more than one worker is configured.
    pub fn start_polled(config: Config) -> Result<(Self, Worker), NicError> {
        let (nic, mut workers) = Self::prepare(config, History::Kept)?;
        match (workers.pop(), workers.is_empty()) {
            (Some(worker), true) => Ok((nic, worker)),
            _ => Err(NicError::Config(ConfigError::Value {
                key: "cpus".to_owned(),
                message: format!(
                    "{:?} are several, but a polled NIC has one worker",
                    nic.shared.config.cpus
                ),
            })),
        }
    }

    fn prepare(config: Config, history: History) -> Result<(Self, Vec<Worker>), NicError> {
        config.validate()?;
        let configured = config.initial_settings()?;
        descriptors::reserve(&config).map_err(|(needed, limit)| NicError::Descriptors {
            vfs: config.vfs,
            pairs: config.queue_pairs,
            needed,
            limit,
        })?;
        let dir = RunDir::open(&config)?;
        Self::prepare_in(dir, config, configured, history)
    }

    fn prepare_in(
        dir: RunDir,
        config: Config,
        configured: Vec<VfSettings>,
        history: History,
    ) -> Result<(Self, Vec<Worker>), NicError> {
        let workers = config.cpus.len().max(1);
        let (uplink, queues) = Uplink::open(&config.uplink, workers)?;
        let journal_path = dir.join("settings.json");
        let opened = match history {
            History::Kept => Journal::open(journal_path.clone(), configured),
            History::Dropped => Journal::fresh(journal_path.clone(), configured.clone())
                .map(|journal| (journal, configured)),
        };
        let (journal, settings) =
            opened.map_err(io(format!("take up {}", journal_path.display())))?;
        let resume_path = dir.join("rings");
        let resume = ResumeFile::open(&resume_path, config.vfs)
            .map_err(io(format!("make room in {}", resume_path.display())))?;
        let wakes = (0..workers).map(|_| eventfd()).collect::<std::io::Result<Vec<_>>>();
        let sources = Sources {
            filters: vec![GuestFilters::default(); config.vfs],
            learned: vec![Learned::default(); config.vfs],
            uplink: uplink.fd().map(|_| uplink.link().status()),
            settings,
        };
        let published = Arc::new(sources.publish().map_err(|duplicate| ConfigError::Value {
            key: format!("vf.{}.mac", duplicate.vf),
            message: format!("{} is that of VF {} already", duplicate.mac, duplicate.holder),
        })?);
        let (news, heard) = sync_channel(LEARN_QUEUE);
        let shared = Arc::new(Shared {
            id: PfId::Soft(config.name.clone()),
            ports: VfIndex::first(config.vfs).map(Port::new).collect(),
            resume,
            stopping: eventfd().map_err(io("make an eventfd"))?.into(),
            stopped: AtomicBool::new(false),
            state: Mutex::new(State { sources, journal, published }),
            table_version: AtomicU64::new(1),
            rings_version: AtomicU64::new(1),
            wakes: wakes.map_err(io("make an eventfd"))?,
            news,
            listeners: Mutex::new((0..config.vfs).map(|_| None).collect()),
            connections: Mutex::new(BTreeMap::new()),
            counters: (0..workers).map(|_| WorkerCounters::default()).collect(),
            roce: Mutex::default(),
            config,
        });
        let workers = queues
            .into_iter()
            .enumerate()
            .map(|(number, queue)| {
                let queue = queue.fd().is_some().then_some(queue);
                Worker::new(Arc::clone(&shared), number, queue)
            })
            .collect::<std::io::Result<Vec<_>>>()
            .map_err(io("set up a worker"))?;
        shared.warn_of_mtus(&shared.state().sources);
        let mut nic = Self { shared, threads: Vec::new(), dir };
        nic.spawn_servers(uplink, heard)?;
        nic.dir.keep();
        Ok((nic, workers))
    }

    /// One thread for each VF's socket, one for the control socket, one for housekeeping.
    fn spawn_servers(&mut self, uplink: Uplink, heard: Receiver<News>) -> Result<(), NicError> {
        for vf in VfIndex::first(self.shared.config.vfs) {
            let listener = self.dir.listen(self.shared.config.vf_socket(vf))?;
            let shared = Arc::clone(&self.shared);
            self.spawn(&format!("vf{vf}"), move || {
                vhost_user::serve(&shared, vf.get(), &listener);
            })?;
        }
        let listener = self.dir.listen(self.dir.join(SOCKET_NAME))?;
        let shared = Arc::clone(&self.shared);
        self.spawn("control", move || {
            let roce = Arc::clone(&shared);
            let roce = Arc::new(move || roce.roce_report());
            control::serve(&listener, &shared.id, &shared, &roce, || {
                vhost_user::wait_readable(&shared, &[Some(listener.as_fd())]).is_some()
            });
        })?;
        let shared = Arc::clone(&self.shared);
        self.spawn("housekeeping", move || shared.keep_house(uplink, &heard))
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), NicError> {
        let thread = threads::spawn(name, body).map_err(io(format!("start thread {name}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Folder of its sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.shared.config.run_dir()
    }

    /// Socket of one of its VFs.
    pub fn vf_socket(&self, vf: VfIndex) -> PathBuf {
        self.shared.config.vf_socket(vf)
    }

    /// The hardware line to it, within this process.
    pub fn hardware(&self) -> Arc<dyn Hardware> {
        Arc::clone(&self.shared) as Arc<dyn Hardware>
    }

    /// Which PF it is.
    pub fn id(&self) -> &PfId {
        &self.shared.id
    }

    /// Stop it: VMs keep their memory and reconnect when a NIC of this name starts again.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn eventfd() -> std::io::Result<File> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(File::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
}

impl Sources {
    /// Compile what workers go by.
    fn publish(&self) -> Result<Published, DuplicateMac> {
        let ports = self.settings.iter().zip(&self.filters).zip(&self.learned);
        let specs: Vec<PortSpec> = VfIndex::first(MAX_VFS)
            .zip(ports)
            .map(|(vf, ((settings, filters), learned))| PortSpec {
                vf,
                settings: settings.clone(),
                promiscuous: filters.promiscuous,
                extra_macs: further_macs(settings, filters),
                learned: learned.clone(),
            })
            .collect();
        let uplink = self.uplink.map(|link| UplinkPolicy {
            up: link.carrier,
            mtu: link.mtu.unwrap_or(u32::MAX),
            offloads: OffloadSet::ALL,
        });
        let mut rates = [None; MAX_VFS];
        for (rate, settings) in rates.iter_mut().zip(&self.settings) {
            *rate = (settings.rate != RateLimits::default()).then_some(settings.rate);
        }
        let any_rate = rates.iter().any(Option::is_some);
        Ok(Published { table: SwitchTable::build(&specs, uplink)?, rates, any_rate })
    }
}

/// Addresses beside its own that a VM may be reached by: only a trusted VF has any.
fn further_macs(settings: &VfSettings, filters: &GuestFilters) -> Vec<MacAddr> {
    if !settings.trust {
        return Vec::new();
    }
    let wanted = filters.table.iter().chain(&filters.address).copied();
    let mut macs: Vec<MacAddr> =
        wanted.filter(|mac| mac.is_station() && *mac != settings.mac).collect();
    macs.sort_unstable();
    macs.dedup();
    macs.truncate(MAX_EXTRA_MACS);
    macs
}

impl Shared {
    /// What was seen of RoCE.
    fn roce_report(&self) -> RoceReport {
        let table = self.roce.lock().unwrap_or_else(PoisonError::into_inner);
        table.report(self.config.roce_sampling)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What holds now.
    pub(crate) fn published(&self) -> Arc<Published> {
        Arc::clone(&self.state().published)
    }

    /// What holds now, if it is not what held at `version`.
    #[inline]
    pub(crate) fn newer_table(&self, version: &mut u64) -> Option<Arc<Published>> {
        if self.table_version.load(Ordering::Acquire) == *version {
            return None;
        }
        let state = self.state();
        *version = self.table_version.load(Ordering::Acquire);
        Some(Arc::clone(&state.published))
    }

    /// Versions of the table and of the rings.
    pub(crate) fn versions(&self) -> (u64, u64) {
        let load = |version: &AtomicU64| version.load(Ordering::Acquire);
        (load(&self.table_version), load(&self.rings_version))
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.counters.len()
    }

    /// Whether rings came or went since `version`.
    #[inline]
    pub(crate) fn rings_changed_since(&self, version: &mut u64) -> bool {
        let now = self.rings_version.load(Ordering::Acquire);
        std::mem::replace(version, now) != now
    }

    /// Rings came or went.
    pub(crate) fn rings_changed(&self) {
        self.rings_version.fetch_add(1, Ordering::Release);
        self.wake_workers();
    }

    fn wake_workers(&self) {
        for wake in &self.wakes {
            // A full counter is a wake-up that is already due.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.stopping, &1u64.to_ne_bytes());
        self.wake_workers();
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in connections.values() {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Break this connection when the NIC stops, so that nobody stays in a read from it.
    pub(crate) fn hang_up_on_stop(self: &Arc<Self>, stream: &UnixStream) -> HangUp {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        if let Ok(clone) = stream.try_clone() {
            self.connections.lock().unwrap_or_else(PoisonError::into_inner).insert(key, clone);
        }
        if self.is_stopped() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        HangUp { shared: Arc::clone(self), key }
    }

    /// Publish what `sources` amount to; nothing changes when two VFs would share an address.
    fn publish(&self, state: &mut State, sources: Sources) -> Result<(), DuplicateMac> {
        let published = Arc::new(sources.publish()?);
        let before = std::mem::replace(&mut state.published, published);
        state.sources = sources;
        self.table_version.fetch_add(1, Ordering::Release);
        self.wake_workers();
        let changed = self.ports.iter().map(|port| port.index).filter(|&vf| {
            let (old, new) = (before.table.port(vf), state.published.table.port(vf));
            old.link_up() != new.link_up() || old.mtu() != new.mtu()
        });
        self.announce(changed);
        Ok(())
    }

    /// Tell the front-ends of these VFs that link or MTU changed.
    fn announce(&self, vfs: impl Iterator<Item = VfIndex>) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for listener in vfs.filter_map(|vf| listeners[vf.get()].as_ref()) {
            listener.announce_config_change();
        }
    }

    pub(crate) fn set_config_listener(&self, port: usize, listener: Option<BackendLine>) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)[port] = listener;
    }

    /// A driver agreed on features and is about to hand its rings over.
    pub(crate) fn driver_starts(&self, port: usize, accepted: u64) {
        let controlled = features::MQ | features::CTRL_VQ;
        let pairs = u32::from(accepted & controlled == controlled);
        self.ports[port].wanted_pairs.store(pairs, Ordering::Relaxed);
        self.ports[port].guest_offloads.store(u64::MAX, Ordering::Relaxed);
        self.forget_guest_filters(port);
    }

    /// The driver is gone, and with it what it had asked for.
    pub(crate) fn forget_guest_filters(&self, port: usize) {
        let mut state = self.state();
        if state.sources.filters[port] == GuestFilters::default() {
            return;
        }
        let mut sources = state.sources.clone();
        sources.filters[port] = GuestFilters::default();
        // Only administrative addresses can be duplicates, and those stay as they are.
        let _ = self.publish(&mut state, sources);
    }

    /// Decide on a control-queue command; whether it was done.
    pub(crate) fn guest_command(&self, port: usize, command: &Command) -> bool {
        let mut state = self.state();
        let mut sources = state.sources.clone();
        let settings = &state.sources.settings[port];
        let own = |mac: &MacAddr| *mac == settings.mac;
        let trusted = settings.trust;
        let filters = &mut sources.filters[port];
        match command {
            Command::Promiscuous(on) if *on && !trusted => return false,
            Command::Promiscuous(on) => filters.promiscuous = *on,
            Command::MacTable(table) if !trusted && !table.iter().all(own) => return false,
            Command::MacTable(table) if table.len() > MAX_EXTRA_MACS => return false,
            Command::MacTable(table) => filters.table.clone_from(table),
            Command::MacAddress(mac) if own(mac) => filters.address = None,
            Command::MacAddress(mac) if !trusted || !mac.is_station() => return false,
            Command::MacAddress(mac) => filters.address = Some(*mac),
            // A trunk carries every VLAN, an access port its own: there is nothing to filter.
            Command::VlanAdd(vlan) | Command::VlanRemove(vlan) => {
                return trusted && !settings.vlan.id.is_some() || !vlan.is_some();
            }
            Command::AllMulticast(_) | Command::AnnounceAck => return true,
            Command::QueuePairs(pairs) => {
                let known = (1..=self.config.queue_pairs).contains(&usize::from(*pairs));
                if known {
                    self.ports[port].wanted_pairs.store(u32::from(*pairs), Ordering::Relaxed);
                }
                return known;
            }
            Command::GuestOffloads(set) => {
                if set & !features::GUEST_OFFLOADS != 0 {
                    return false;
                }
                self.ports[port]
                    .guest_offloads
                    .store(set | !features::GUEST_OFFLOADS, Ordering::Relaxed);
                return true;
            }
        }
        if sources.filters == state.sources.filters {
            return true;
        }
        let done = self.publish(&mut state, sources).is_ok();
        drop(state);
        // A driver may ask for a new table as fast as it can; others wait for the same lock.
        std::thread::sleep(BETWEEN_TABLES);
        done
    }

    /// `struct virtio_net_config` of one VF (virtio 1.2, 5.1.4), as far as its features go.
    pub(crate) fn config_space(&self, port: usize) -> Vec<u8> {
        let state = self.state();
        let settings = &state.sources.settings[port];
        let link_up = state.published.table.port(self.ports[port].index).link_up();
        let mut space = settings.mac.0.to_vec();
        space.extend(u16::from(link_up).to_le_bytes());
        space.extend((self.config.queue_pairs as u16).to_le_bytes());
        space.extend(settings.mtu.get().to_le_bytes());
        space
    }

    /// Workers tell what they saw; a full queue drops the news, the next such frame brings it.
    pub(crate) fn learn(&self, news: News) {
        let _ = self.news.try_send(news);
    }

    /// Watch the uplink and take up learned addresses, until the NIC stops. A VM can cause a new
    /// table by every frame it sends, so there is at most one for each turn of this loop.
    fn keep_house(&self, mut uplink: Uplink, heard: &Receiver<News>) {
        while !self.is_stopped() {
            self.wait_for_uplink(&uplink);
            self.report_left_out_lines();
            let link = uplink.refresh();
            let news: Vec<News> = heard.try_iter().take(LEARN_QUEUE).collect();
            if link.is_none() && news.is_empty() {
                continue;
            }
            let mut state = self.state();
            let mut sources = state.sources.clone();
            if let Some(link) = link {
                tracing::info!(carrier = link.carrier, mtu = link.mtu, "uplink changed");
                sources.uplink = Some(link);
                self.warn_of_mtus(&sources);
            }
            for News { vf, vlan, mac } in news {
                for (port, learned) in sources.learned.iter_mut().enumerate() {
                    if vf.is_some_and(|vf| vf.get() == port) {
                        learned.insert(vlan, mac);
                    } else {
                        learned.remove(vlan, mac);
                    }
                }
            }
            // Only administrative addresses can be duplicates, and those stay as they are.
            let _ = self.publish(&mut state, sources);
        }
    }

    /// Whether the uplink takes full-length frames of a VF with these settings.
    fn check_mtu(&self, sources: &Sources, settings: &VfSettings) -> Result<(), UplinkError> {
        let Some(link) = sources.uplink else { return Ok(()) };
        uplink::check_mtu(&self.config.uplink, link, settings.mtu, settings.vlan)
    }

    /// Say which VFs in use have frames that the uplink will not take. They are served all the same:
    /// what they send to each other fits, and the uplink may be changed after they were.
    fn warn_of_mtus(&self, sources: &Sources) {
        let in_use = |settings: &&VfSettings| !settings.mac.is_zero();
        for (vf, settings) in sources.settings.iter().enumerate().filter(|(_, s)| in_use(s)) {
            if let Err(error) = self.check_mtu(sources, settings) {
                tracing::warn!(vf, %error, "the VF's longer frames cannot leave by the uplink");
            }
        }
    }

    fn report_left_out_lines(&self) {
        let now = Instant::now();
        for port in &self.ports {
            if let Some(more) = port.log.left_out(now) {
                tracing::warn!(vf = %port.index, more, "further lines of this VF were left out");
            }
        }
    }

    fn wait_for_uplink(&self, uplink: &Uplink) {
        use rustix::event::{PollFd, PollFlags};
        let fds = [Some(self.stopping.as_fd()), uplink.fd()];
        let mut fds: Vec<PollFd<'_>> = fds
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = rustix::time::Timespec::try_from(HOUSEKEEPING).ok();
        // An interrupted wait is a short one.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }

    fn check_pf(&self, pf: &PfId) -> Result<(), HardwareError> {
        if *pf == self.id { Ok(()) } else { Err(HardwareError::NoPf(pf.clone())) }
    }

    fn check_vf(&self, pf: &PfId, vf: VfIndex) -> Result<(), HardwareError> {
        self.check_pf(pf)?;
        if vf.get() < self.ports.len() {
            Ok(())
        } else {
            Err(HardwareError::NoVf { pf: pf.clone(), vf, num_vfs: self.ports.len() })
        }
    }

    fn status(&self, state: &State, vf: VfIndex) -> VfStatus {
        let port = &self.ports[vf.get()];
        VfStatus {
            vf,
            settings: state.sources.settings[vf.get()].clone(),
            link_up: state.published.table.port(vf).link_up() && !port.is_stopped(),
            attached: port.is_attached(),
            stopped: port.stop_reason(),
        }
    }
}

/// Forgets a connection when it is over.
pub(crate) struct HangUp {
    shared: Arc<Shared>,
    key: u64,
}

impl Drop for HangUp {
    fn drop(&mut self) {
        let connections = &self.shared.connections;
        connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Hardware for Shared {
    fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError> {
        let counted = WorkerCounters::sum_uplink(&self.counters);
        let link = self.state().sources.uplink;
        Ok(vec![PfStatus {
            pf: self.id.clone(),
            driver: "softnic".to_owned(),
            uplink: self.config.uplink.interface().map(|name| name.as_str().to_owned()),
            link_up: link.is_none_or(|link| link.carrier),
            num_vfs: self.ports.len(),
            total_vfs: MAX_VFS,
            tx: counted.tx,
            rx: counted.rx,
            rx_drops: counted.rx_drops,
        }])
    }

    fn vf(&self, pf: &PfId, vf: VfIndex) -> Result<VfStatus, HardwareError> {
        self.check_vf(pf, vf)?;
        Ok(self.status(&self.state(), vf))
    }

    fn set_vf(&self, pf: &PfId, vf: VfIndex, change: &VfChange) -> Result<VfStatus, HardwareError> {
        self.check_vf(pf, vf)?;
        let mut state = self.state();
        let mut sources = state.sources.clone();
        let settings = &mut sources.settings[vf.get()];
        *settings = change.apply_to(settings)?;
        if sources.settings == state.sources.settings {
            return Ok(self.status(&state, vf));
        }
        let (old, new) = (&state.sources.settings[vf.get()], &sources.settings[vf.get()]);
        if (old.mtu, old.vlan) != (new.mtu, new.vlan) {
            self.check_mtu(&sources, new).map_err(|error| HardwareError::Refused {
                pf: pf.clone(),
                message: error.to_string(),
            })?;
        }
        if let Some((mac, first, second)) = duplicate_mac(&sources.settings) {
            let holder = if first == vf.get() { second } else { first };
            let holder = self.ports[holder].index;
            return Err(HardwareError::DuplicateMac { mac, holder });
        }
        let published = sources.publish().map_err(|duplicate| HardwareError::DuplicateMac {
            mac: duplicate.mac,
            holder: duplicate.holder,
        });
        published?;
        // Journal, then touch.
        let written = state.journal.write(&sources.settings);
        written.map_err(|error| HardwareError::Refused {
            pf: pf.clone(),
            message: format!("it cannot write the change down ({}): {error}", state.journal),
        })?;
        // It was compiled a moment ago, under this lock.
        let _ = self.publish(&mut state, sources);
        Ok(self.status(&state, vf))
    }

    fn counters(&self, pf: &PfId, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        self.check_vf(pf, vf)?;
        let port = &self.ports[vf.get()];
        let counted = WorkerCounters::sum(&self.counters, vf.get());
        Ok(VfCounters { ring_faults: port.faults(), ..counted })
    }
}
