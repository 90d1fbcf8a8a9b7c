//! `lanekeeper agent`: the host's owner as a daemon. What it decides is in `lanekeeper_host::agent`;
//! here are its command line, its signals, and what it tells: events on standard output, one line of
//! JSON each, metrics to whoever asks, and to systemd when VMs may start.

mod dist;
mod serve;
mod vms;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, SystemTime};

use lanekeeper_host::agent::{
    Agent, Inbox, Line, Memory, Report, Running, Tuning, run as run_agent,
};
use lanekeeper_host::{HostFile, Owner, STATE_FOLDER};
use lanekeeper_hw::guarded::Guarded;
use lanekeeper_hw::linux::Linux;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;
use crate::output::print;
use crate::unit;
use serve::Listen;

/// Keep this host's NICs as the host file says: apply it before VMs start, repair what drifts, keep
/// claims away from NICs in trouble, and tell what happens.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Events go to standard output, one JSON object a line. SIGHUP reads the host file \
anew and applies it; SIGTERM ends the agent and leaves everything as it is.\nInstall it: lanekeeper \
agent --print-unit >/etc/systemd/system/lanekeeper-agent.service; lanekeeper agent \
--print-udev-rules >/etc/udev/rules.d/10-lanekeeper.rules."
)]
pub(crate) struct Args {
    /// The host file.
    #[arg(long, value_name = "FILE", default_value = "/etc/lanekeeper/host.yaml")]
    config: PathBuf,
    /// Folder of the ledger.
    #[arg(long, value_name = "DIR", default_value = STATE_FOLDER)]
    state: PathBuf,
    /// Serve metrics (GET /metrics) here: 127.0.0.1:PORT, or the path of a Unix socket.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,
    #[command(flatten)]
    shipped: Shipped,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What an agent does beside keeping NICs.
#[derive(clap::Subcommand)]
enum Role {
    Enrol(vms::Enrol),
    Vms(vms::Vms),
}

/// Files that the agent is shipped with.
#[derive(clap::Args)]
#[group(multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Shipped {
    /// Print the systemd unit.
    #[arg(long)]
    print_unit: bool,
    /// Print the udev rule that keeps network managers off VFs.
    #[arg(long)]
    print_udev_rules: bool,
    /// Print a snippet for NetworkManager's conf.d.
    #[arg(long)]
    print_networkmanager: bool,
    /// Print a .network file for systemd-networkd.
    #[arg(long)]
    print_networkd: bool,
}

impl Shipped {
    fn text(&self) -> Option<String> {
        let text = match () {
            () if self.print_unit => unit::here(unit::AGENT),
            () if self.print_udev_rules => dist::UDEV_RULES.to_owned(),
            () if self.print_networkmanager => dist::NETWORK_MANAGER.to_owned(),
            () if self.print_networkd => dist::NETWORKD.to_owned(),
            () => return None,
        };
        Some(text.trim_end().to_owned())
    }
}

/// Run until a signal ends it.
///
/// # Errors
/// [`Failure::Usage`] for a file that is wrong; [`Failure::Work`].
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.role {
        Some(Role::Enrol(enrol)) => vms::enrol(&enrol),
        Some(Role::Vms(vms)) => vms::run(&vms),
        None => keep(&args),
    }
}

fn keep(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(text) = args.shipped.text() {
        print(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = load(&args.config).map_err(Failure::Usage)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Work(
            "the host's NICs and the ledger are root's: run this as root".to_owned(),
        ));
    }
    // Before any thread is there, so that none misses a signal.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::Work(format!("cannot wait for signals: {error}")))?;
    let linux = Linux::new();
    // Before anything is read, so that no change after the reading is missed.
    let watch = linux
        .watch()
        .map_err(|error| Failure::Work(format!("cannot hear the kernel's events: {error}")))?;
    let owner = Arc::new(Owner::open(Arc::new(Guarded::new(linux)), &args.state)?);
    let seat = owner.take_seat()?;
    let running = Arc::new(Running::default());
    if let Some(listen) = &args.listen {
        let told = Arc::clone(&running);
        let at = serve::start(listen, Arc::new(move || told.metrics()))
            .map_err(|error| Failure::Work(format!("cannot listen on {listen}: {error}")))?;
        tracing::info!("metrics are on {at}");
    }
    let (line, inbox) = Inbox::new();
    heed(signals, line, args.config.clone())?;
    let agent = Agent::new(file, Memory::load(owner.ledger()), Tuning::default());
    let told = Told::start()?;
    run_agent(agent, &owner, &seat, Box::new(watch), inbox, &running, |report| told.tell(report));
    told.end();
    Ok(ExitCode::SUCCESS)
}

fn load(path: &Path) -> Result<HostFile, String> {
    HostFile::load(path).map_err(|error| error.to_string())
}

fn heed(mut signals: Signals, line: Line, config: PathBuf) -> Result<(), Failure> {
    let heed = move || {
        for signal in signals.forever() {
            match signal {
                SIGHUP => line.reload(load(&config)),
                _ => line.stop(),
            }
        }
    };
    let started = std::thread::Builder::new().name("signals".to_owned()).spawn(heed);
    started.map(drop).map_err(|error| Failure::Work(format!("cannot wait for signals: {error}")))
}

/// Events that may wait to be read.
const WAITING: usize = 10_000;
/// How long the last of them may take at the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where events go: to standard output, on a thread of its own, for a reader that stands still must
/// not keep PFs from being looked after; and to systemd what concerns it.
struct Told {
    lines: SyncSender<String>,
    all_written: Receiver<()>,
    untold: AtomicU64,
}

impl Told {
    fn start() -> Result<Self, Failure> {
        let (lines, to_write) = mpsc::sync_channel::<String>(WAITING);
        let (done, all_written) = mpsc::channel();
        let write = move || {
            for line in to_write {
                // A reader that is gone is no reason to end.
                let _ = print(line);
            }
            let _ = done.send(());
        };
        let started = std::thread::Builder::new().name("events".to_owned()).spawn(write);
        started.map_err(|error| Failure::Work(format!("cannot tell events: {error}")))?;
        Ok(Self { lines, all_written, untold: AtomicU64::new(0) })
    }

    fn tell(&self, report: &Report) {
        let untold = self.untold.load(Ordering::Relaxed);
        if untold > 0 {
            let why = format!("nobody read standard output: {untold} events were not told");
            let line = Report::Trouble { why }.to_line(SystemTime::now());
            if self.lines.try_send(line).is_ok() {
                self.untold.store(0, Ordering::Relaxed);
            }
        }
        if self.lines.try_send(report.to_line(SystemTime::now())).is_err() {
            self.untold.fetch_add(1, Ordering::Relaxed);
        }
        let state: &[NotifyState] = match report {
            Report::Ready => &[NotifyState::Ready],
            Report::Stopped => &[NotifyState::Stopping],
            _ => return,
        };
        if let Err(error) = sd_notify::notify(state) {
            tracing::warn!(%error, "systemd was not told");
        }
    }

    fn end(self) {
        drop(self.lines);
        let _ = self.all_written.recv_timeout(FAREWELL);
    }
}
