//! `lanekeeper host`: one host's SR-IOV NICs and their VFs, with no server: show, plan, apply, check,
//! claim, release, recover.
//!
//! Exit codes: 0 done, or nothing to do; 1 refused or failed; 2 `plan` or `check` found a difference
//! (and, as everywhere, a command line that is wrong).

mod claim;
mod roll_back;
mod show;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use lanekeeper_host::file::read_text;
use lanekeeper_host::{Drift, HostError, HostFile, Owner, Plan, Recovered, STATE_FOLDER};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::guarded::Guarded;
use lanekeeper_hw::linux::Linux;
use lanekeeper_hw::recorded::{Bundle, Facts, Recorded};
use serde::Serialize;

use crate::Failure;
use crate::output::{harmless, print};
use crate::values::{seconds, vf};

/// The host file, unless another is named.
const HOST_FILE: &str = "/etc/lanekeeper/host.yaml";
/// Bytes of the largest bundle: a host with 16 PFs of 256 VFs each makes some 10 MB.
const LARGEST_BUNDLE: u64 = 256 << 20;
/// What `plan` and `check` end with when host and file differ.
const DIFFERS: u8 = 2;

/// Own the VFs of this host's SR-IOV NICs: plan and apply how the NICs should be, claim and release
/// VFs, recover after a crash.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, or nothing to do; 1 refused or failed; 2 plan or check \
found a difference, or the command line is wrong."
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Args)]
struct Place {
    /// Folder of the ledger [default: /var/lib/lanekeeper/host].
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Look at a host that `capture` recorded, not at this one: for show, plan and check.
    #[arg(long, global = true, value_name = "BUNDLE")]
    replay: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Args)]
struct File {
    /// The host file.
    #[arg(value_name = "FILE", default_value = HOST_FILE)]
    file: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// PFs and VFs as they are, who owns each VF, GPUs and how far they are.
    Show,
    /// What `apply` would do, in which order, why, and what it would disturb. Changes nothing.
    Plan(File),
    /// Make the host as the file says: all of it or nothing.
    Apply {
        #[command(flatten)]
        file: File,
        /// Roll back unless `confirm` comes within so many seconds.
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        timeout: Option<Duration>,
    },
    /// Keep what `apply --timeout` did. Ends with 1 if it was rolled back before.
    Confirm,
    /// Wait as `apply --timeout` asks; started by it alone.
    #[command(hide = true, name = roll_back::COMMAND)]
    RollBackWhenDue {
        /// Its process number.
        apply: u32,
    },
    /// In what the host differs from the file and the ledger. Changes nothing.
    Check(File),
    /// Take a VF for an owner and make it ready to be handed to a VM.
    Claim(Box<claim::ClaimArgs>),
    /// Give a VF back: it is scrubbed, and free for the next owner.
    Release(claim::ReleaseArgs),
    /// Put a claimed VF into a QEMU that runs (VFIO hot plug).
    Attach {
        #[command(flatten)]
        hand: claim::HandArgs,
        /// Root port to plug it into; the first that is free if not given.
        #[arg(long)]
        bus: Option<String>,
    },
    /// Take it out again: waits until QEMU has let go of it. It stays claimed.
    Detach {
        #[command(flatten)]
        hand: claim::HandArgs,
        /// Seconds that the guest may take.
        #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
        within: Duration,
    },
    /// Scrub a quarantined VF once more.
    Requalify {
        /// Our name for the PF.
        pf: String,
        /// Number of the VF.
        #[arg(value_parser = vf)]
        vf: lanekeeper_model::VfIndex,
    },
    /// Give a PF back: it is set as it was before the first apply, and forgotten.
    GiveBack {
        /// Our name for the PF.
        pf: String,
    },
    /// Make ledger and devices agree after a crash, a reboot or a hot removal.
    Recover,
    /// Record everything that is read of this host, to be looked at elsewhere with --replay. Names,
    /// IP addresses, tokens and keys are not in it.
    Capture {
        /// File to write; standard output if not given.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Replace MAC addresses, GUIDs and serial numbers too.
        #[arg(long)]
        mask: bool,
    },
    /// Print the JSON schema of the host file.
    Schema,
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        Self::Work(error.to_string())
    }
}

/// Run the sub-command.
///
/// # Errors
/// [`Failure::Work`].
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let Args { place, command } = args;
    match command {
        Command::Schema => {
            print_json(&HostFile::schema())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Show => show::run(&place),
        Command::Plan(file) => plan(&place, &file),
        Command::Apply { file, timeout } => apply(&place, &file, timeout),
        Command::Confirm => confirm(&place),
        Command::RollBackWhenDue { apply } => roll_back::run(&place, apply),
        Command::Check(file) => check(&place, &file),
        Command::Claim(args) => claim::claim(&place, *args),
        Command::Release(args) => claim::release(&place, &args),
        Command::Attach { hand, bus } => claim::attach(&place, &hand, bus.as_deref()),
        Command::Detach { hand, within } => claim::detach(&place, &hand, within),
        Command::Requalify { pf, vf } => {
            let life = place.ready_owner()?.clear_quarantine(&pf, vf)?;
            place.tell(&life, || format!("VF {vf} of pf {pf} is {life}"))?;
            Ok(if life == lanekeeper_host::ledger::Life::Free {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Command::GiveBack { pf } => {
            place.ready_owner()?.give_back(&pf)?;
            place.tell(&pf, || format!("pf {pf} is as it was before the first apply"))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Recover => recover(&place),
        Command::Capture { file, mask } => capture(&place, file.as_deref(), mask),
    }
}

impl Place {
    /// The NICs that are meant: this host's, or recorded ones.
    fn hardware(&self) -> Result<Arc<dyn SriovHardware>, Failure> {
        let Some(file) = &self.replay else { return Ok(Arc::new(Guarded::new(Linux::new()))) };
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::Work(format!("cannot replay {}: {error}", file.display()))
        };
        let text = read_text(file, LARGEST_BUNDLE).map_err(|error| wrong(&error))?;
        let bundle = Bundle::from_json(&text).map_err(|error| wrong(&error))?;
        Ok(Arc::new(Recorded::new(bundle)))
    }

    /// The owner, and the folder that a replay's empty ledger is in until it is dropped.
    fn owner(&self) -> Result<Opened, Failure> {
        if self.replay.is_none() && !rustix::process::geteuid().is_root() {
            return Err(Failure::Work(
                "the host's NICs and the ledger are root's: run this as root".to_owned(),
            ));
        }
        let hardware = self.hardware()?;
        let empty = match (&self.replay, &self.state) {
            (Some(_), None) => Some(tempfile::tempdir().map_err(|error| {
                Failure::Work(format!("no folder for the ledger of a replay: {error}"))
            })?),
            _ => None,
        };
        let folder = match (&empty, &self.state) {
            (Some(empty), _) => empty.path(),
            (None, Some(state)) => state,
            (None, None) => Path::new(STATE_FOLDER),
        };
        let owner = Owner::open(Arc::clone(&hardware), folder)?;
        Ok(Opened { owner, hardware, _ledger: empty })
    }

    /// The owner, after what was cut short is finished or undone.
    fn ready_owner(&self) -> Result<Opened, Failure> {
        if self.replay.is_some() {
            return Err(Failure::Usage(
                "a recorded host can be looked at only: show, plan, check".to_owned(),
            ));
        }
        let owner = self.owner()?;
        report_recovery(&owner.recover()?);
        Ok(owner)
    }

    /// Print a result as asked.
    fn tell(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { print_json(value) } else { print(harmless(&text())) }
    }
}

/// An owner that is open.
struct Opened {
    owner: Owner,
    /// What it owns, for what the owner does not read.
    hardware: Arc<dyn SriovHardware>,
    _ledger: Option<tempfile::TempDir>,
}

impl std::ops::Deref for Opened {
    type Target = Owner;
    fn deref(&self) -> &Owner {
        &self.owner
    }
}

/// Recovery at the start of another command is told of on standard error, so that what the command
/// prints stays its own.
pub(crate) fn report_recovery(recovered: &Recovered) {
    for event in &recovered.events {
        tracing::info!("{event}");
    }
    for (pf, why) in &recovered.failed {
        tracing::warn!(%pf, "{why}");
    }
}

fn load(file: &Path) -> Result<HostFile, Failure> {
    HostFile::load(file).map_err(|error| Failure::Work(error.to_string()))
}

fn plan(place: &Place, file: &File) -> Result<ExitCode, Failure> {
    let file = load(&file.file)?;
    let plan = place.owner()?.plan(&file)?;
    place.tell(&plan, || plan_text(&plan))?;
    Ok(match (plan.blockers().is_empty(), plan.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(DIFFERS),
    })
}

/// The findings, then the steps of each PF in their order.
fn plan_text(plan: &Plan) -> String {
    let mut lines: Vec<String> = Vec::new();
    for finding in &plan.findings {
        let sign = if finding.blocks() { "stop" } else { "note" };
        lines.push(format!("{sign}: {finding}"));
    }
    let mut pf = None;
    for (number, step) in plan.steps().enumerate() {
        if pf != Some(&step.pf) {
            lines.push(format!("pf {}:", step.pf));
            pf = Some(&step.pf);
        }
        lines.push(format!("  {:>2}. {}", number + 1, step.step));
        lines.push(format!("      because {}", step.why));
        if let Some(disturbs) = &step.disturbs {
            lines.push(format!("      disturbs: {disturbs}"));
        }
    }
    if plan.is_empty() && plan.blockers().is_empty() {
        lines.push("nothing to do: the host is as the file says".to_owned());
    }
    lines.join("\n")
}

fn apply(place: &Place, file: &File, timeout: Option<Duration>) -> Result<ExitCode, Failure> {
    let file = load(&file.file)?;
    let owner = place.ready_owner()?;
    let plan = owner.plan(&file)?;
    // That nobody reads it is no reason to leave the host as it is.
    let told = if place.json { Ok(()) } else { print(harmless(&plan_text(&plan))) };
    if timeout.is_some() && !plan.is_empty() {
        roll_back::stand_by(place)?;
    }
    let applied = owner.apply(&plan, timeout)?;
    told?;
    place.tell(&applied, || {
        let mut lines = applied.notes.clone();
        let plural = if applied.steps == 1 { "" } else { "s" };
        lines.push(match (applied.steps, timeout) {
            (0, _) => "done: nothing was written".to_owned(),
            (steps, None) => format!("done: {steps} step{plural}"),
            (steps, Some(time)) => format!(
                "done: {steps} step{plural}; rolled back in {} s unless you run: {} host confirm",
                time.as_secs(),
                crate::program()
            ),
        });
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn confirm(place: &Place) -> Result<ExitCode, Failure> {
    let confirmed = place.owner()?.confirm()?;
    place.tell(&confirmed, || {
        let mut lines = Vec::new();
        if !confirmed.kept.is_empty() {
            lines.push(format!("confirmed: {}", confirmed.kept.join(", ")));
        }
        if !confirmed.too_late.is_empty() {
            lines.push(format!(
                "too late: {} was rolled back when its time was over; apply again",
                confirmed.too_late.join(", ")
            ));
        }
        if lines.is_empty() {
            lines.push("nothing waits to be confirmed".to_owned());
        }
        lines.join("\n")
    })?;
    Ok(if confirmed.too_late.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(place: &Place, file: &File) -> Result<ExitCode, Failure> {
    let file = load(&file.file)?;
    let drift = place.owner()?.check(&file)?;
    place.tell(&drift, || match drift.as_slice() {
        [] => "the host is as the file and the ledger say".to_owned(),
        drift => drift.iter().map(Drift::to_string).collect::<Vec<_>>().join("\n"),
    })?;
    Ok(if drift.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

fn recover(place: &Place) -> Result<ExitCode, Failure> {
    #[derive(Serialize)]
    struct Told<'a> {
        events: &'a [lanekeeper_host::RecoveryEvent],
        failed: Vec<(&'a str, String)>,
    }
    let recovered = place.owner()?.recover()?;
    let failed: Vec<_> =
        recovered.failed.iter().map(|(pf, why)| (pf.as_str(), why.to_string())).collect();
    let told = Told { events: &recovered.events, failed };
    place.tell(&told, || {
        let mut lines: Vec<_> = told.events.iter().map(ToString::to_string).collect();
        lines.extend(told.failed.iter().map(|(pf, why)| format!("pf {pf}: FAILED: {why}")));
        if lines.is_empty() {
            lines.push("nothing to recover: ledger and devices agree".to_owned());
        }
        lines.join("\n")
    })?;
    Ok(if told.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn capture(place: &Place, file: Option<&Path>, mask: bool) -> Result<ExitCode, Failure> {
    let failed = |error: lanekeeper_hw::HardwareError| Failure::Work(error.to_string());
    let hardware = place.hardware()?;
    let facts = Facts::here().map_err(failed)?;
    let bundle = Bundle::capture(hardware.as_ref(), facts).map_err(failed)?;
    let bundle = if mask { bundle.masked() } else { bundle };
    let text = bundle.to_json().map_err(failed)?;
    match file {
        None => print(&text)?,
        Some(file) => std::fs::write(file, text + "\n")
            .map_err(|error| Failure::Work(format!("cannot write {}: {error}", file.display())))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::Work(format!("cannot be told as JSON: {error}")))?;
    print(text)
}
