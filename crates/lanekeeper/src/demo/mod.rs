//! `lanekeeper demo`: two emulated hosts with a software NIC each, VMs of two tenants on their VFs,
//! and the proof that lanes work and tenants stay apart. As a cloud does it ([`cloud`]): a server, an
//! agent on each host, and VMs by the API; or without these, beside a traditional NIC ([`perform`]); or
//! on VFs of an emulated SR-IOV NIC ([`sriov`]).

mod checks;
mod cloud;
mod console;
mod guide;
mod hosts;
mod picture;
mod plan;
mod process;
mod progress;
mod residue;
mod sriov;
mod vms;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use clap::Subcommand;
use lanekeeper_emulated::EmulatedError;
use lanekeeper_hw::HardwareError;
use lanekeeper_model::ModelError;
use lanekeeper_softnic::Client;
use lanekeeper_testbed::{guest_image, netns::NetnsError, packages};
use lanekeeper_verify::{HostError, ProbeError, Report};
use lanekeeper_vmm::agent::AgentError;
use lanekeeper_vmm::{Vm, VmError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;
use crate::output::{note, print};
use hosts::NicProcess;
use picture::Picture;
use plan::VMS;
use progress::Progress;
use residue::Site;

/// Show the whole on one machine: a server, two emulated hosts with an agent and a software NIC each,
/// groups of VMs of two tenants by the API, RoCE v2 between them, and tenants kept apart.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    after_help = "Needs root, QEMU and iproute2; missing packages are installed with apt-get. \
Ends with status 0 only if every check holds. Hosts, VMs and files are gone when it ends unless \
--keep is given; a run that was killed is cleaned up by the next one, or by --down. Installed \
packages stay, and the guest's image in /var/cache/lanekeeper (LANEKEEPER_CACHE puts it elsewhere)."
)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(crate) struct Args {
    /// Leave the server with its console, hosts, NICs and VMs up, and say how to use them.
    #[arg(long)]
    keep: bool,
    /// Show the lanes alone: no server, and beside each VF a traditional NIC on a bridge to compare.
    #[arg(long, conflicts_with_all = ["down", "sriov"])]
    lanes: bool,
    /// Show it on real SR-IOV VFs instead: an emulated host with an emulated SR-IOV NIC, whose VFs
    /// go to VMs by VFIO.
    #[arg(long, conflicts_with = "down")]
    sriov: bool,
    /// Take down what --keep has left up, or a killed run has left behind, and do nothing else.
    #[arg(long, conflicts_with_all = ["keep", "json", "svg"])]
    down: bool,
    /// Print the result as JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also draw the table into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command in a VM of a demo that was kept up.
    Exec {
        /// Which VM: train-0, train-1, train-2, rival-0 or rival-1; with --lanes a1, a2, a3 or b1; with
        /// --sriov the emulated host, named host.
        vm: String,
        /// The command: one word is shell text, several are a program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Log in to a VM of a demo that was kept up, over its serial console; Ctrl-] leaves it.
    Console {
        /// Which VM: as for exec.
        vm: String,
    },
}

/// Why the demo could not be run to its end.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("a demo runs already (process {0}); wait for it, or end it with Ctrl-C there")]
    Busy(i32),
    #[error("a demo is kept up; take it down first with: {} demo --down", crate::program())]
    Kept,
    #[error("no demo is kept up; start one with: {} demo --keep", crate::program())]
    NotUp,
    #[error("interrupted")]
    Interrupted,
    #[error("the demo needs root: it makes network namespaces")]
    NotRoot,
    #[error("there is no VM '{name}'; there are {known}")]
    NoVm { name: String, known: String },
    #[error(
        "a console needs a terminal; without one run a command: {} demo exec VM COMMAND",
        crate::program()
    )]
    NoTerminal,
    #[error("the console of {0} is in use in another terminal; leave it there with Ctrl-]")]
    ConsoleInUse(String),
    #[error("the console of {vm}: {error}")]
    Console { vm: String, error: std::io::Error },
    #[error("the plan of the demo contradicts itself: {0}")]
    Plan(String),
    #[error("{path}: {error}")]
    File { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Packages(#[from] packages::PackageError),
    #[error("the guest image could not be made: {0}")]
    Image(#[from] guest_image::ImageError),
    #[error("the emulated hosts could not be made: {0}")]
    Network(#[from] NetnsError),
    #[error("the {what} {why}; the end of {log}")]
    Process { what: String, why: String, log: String },
    #[error("the API: {0}")]
    Api(#[from] lanekeeper_client::Error),
    #[error(transparent)]
    Node(#[from] lanekeeper_node::NodeError),
    #[error("VM '{vm}' of the group {why}")]
    NotActive { vm: String, why: String },
    #[error("{what} within {seconds} s")]
    Late { what: String, seconds: u64 },
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error("VM {vm} no longer answers: {why}; the end of {log}")]
    Gone { vm: String, why: String, log: String },
    #[error("VM {vm}: {error}")]
    Agent { vm: String, error: AgentError },
    #[error(transparent)]
    Emulated(#[from] EmulatedError),
    #[error(transparent)]
    Command(#[from] HostError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    #[error("not everything was removed: {0}")]
    LeftBehind(String),
}

impl DemoError {
    fn plan(error: &dyn std::error::Error) -> Self {
        Self::Plan(error.to_string())
    }

    fn file(path: &Path, error: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }
}

impl From<ModelError> for DemoError {
    fn from(error: ModelError) -> Self {
        Self::plan(&error)
    }
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        Self::Work(error.to_string())
    }
}

/// Run the sub-command. The exit status is 1 when a check does not hold.
///
/// # Errors
/// [`Failure::Work`] when a step failed.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let site = Arc::new(Site::default());
    if !rustix::process::geteuid().is_root() {
        return Err(DemoError::NotRoot.into());
    }
    match (args.command, args.down) {
        (Some(Command::Exec { vm, command }), _) => {
            let output = vms::exec(&site, &vm, &shell_text(&command))?;
            // A reader that is gone wants no more.
            let _ = std::io::stdout().write_all(&output.stdout);
            let _ = std::io::stderr().write_all(&output.stderr);
            Ok(ExitCode::from(u8::try_from(output.status).unwrap_or(1)))
        }
        (Some(Command::Console { vm }), _) => {
            let left = vms::console(&site, &vm)?;
            // The guest's last line may have no end, and the terminal has just been given back.
            let how = match left {
                console::Left::ByUser => format!("left the console of {vm}; the VM runs on"),
                console::Left::ByVm => format!("{vm} has ended"),
            };
            note(format!("\n==> {how}"));
            Ok(ExitCode::SUCCESS)
        }
        (None, true) => {
            let there_was = site.down()?;
            print(if there_was { "taken down" } else { "there was nothing to take down" })?;
            Ok(ExitCode::SUCCESS)
        }
        (None, false) => {
            let open =
                |path: PathBuf| Picture::open(&path).map_err(|error| DemoError::file(&path, error));
            let picture = args.svg.map(open).transpose()?;
            let form = Form { json: args.json, picture };
            let keep = args.keep;
            if args.sriov {
                show(&site, keep, form, sriov::STEPS, move |site, progress| {
                    sriov::perform(site, keep, progress)
                })
            } else if !args.lanes {
                show(&site, keep, form, cloud::STEPS, move |site, progress| {
                    cloud::perform(site, keep, progress)
                })
            } else {
                let steps = PREPARATIONS + checks::STEPS;
                show(&site, keep, form, steps, move |site, progress| perform(site, keep, progress))
            }
        }
    }
}

/// One word is for the shell as it is; several reach the program as they are.
fn shell_text(command: &[String]) -> String {
    match command {
        [text] => text.clone(),
        words => {
            let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
            quoted.collect::<Vec<_>>().join(" ")
        }
    }
}

/// What ends the wait for the demo.
enum News {
    Signal(i32),
    Over(std::thread::Result<Outcome>),
}

/// What a run has found, and how its VMs are reached as long as they run.
struct Done {
    report: Report,
    guide: String,
}

type Outcome = Result<Done, DemoError>;

/// Run the demo on a thread of its own, so that a signal is answered at any moment.
fn show(
    site: &Arc<Site>,
    keep: bool,
    form: Form,
    steps: usize,
    perform: impl FnOnce(&Site, &Progress) -> Outcome + Send + 'static,
) -> Result<ExitCode, Failure> {
    // Registered before anything is made.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::Work(format!("cannot wait for signals: {error}")))?;
    if site.claim()? {
        note("==> removed what a killed run had left behind");
    }
    let progress = Arc::new(Progress::new(steps));
    let (tell, news) = channel();
    let tell_signal = tell.clone();
    std::thread::spawn(move || {
        // Nobody listens any more once the demo is over.
        signals.forever().take_while(|s| tell_signal.send(News::Signal(*s)).is_ok()).for_each(drop);
    });
    let work = {
        let (site, progress) = (Arc::clone(site), Arc::clone(&progress));
        std::thread::spawn(move || perform(&site, &progress))
    };
    std::thread::spawn(move || tell.send(News::Over(work.join())));

    let news = news.recv();
    progress.finish();
    match news {
        Ok(News::Over(Ok(Ok(done)))) if keep => {
            site.keep()?;
            let presented = present(&done.report, form);
            note(done.guide.trim_end());
            presented
        }
        Ok(News::Over(Ok(outcome))) => {
            let removed = site.close();
            let done = outcome?;
            let presented = present(&done.report, form);
            removed?;
            presented
        }
        Ok(News::Over(Err(panic))) => {
            site.close()?;
            std::panic::resume_unwind(panic)
        }
        Ok(News::Signal(signal)) => {
            note("==> interrupted; cleaning up");
            site.close()?;
            // What a shell shows for a program that the signal ended.
            Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)))
        }
        Err(_) => {
            site.close()?;
            Err(DemoError::Interrupted.into())
        }
    }
}

const TITLE: &str = "Lanekeeper demo: VMs of two tenants on two hosts, a VF and a bridged NIC each";

/// How many steps come before the checks.
const PREPARATIONS: usize = 7;

fn perform(site: &Site, keep: bool, progress: &Progress) -> Outcome {
    let began = Instant::now();
    let (image, cpus) = prepare(progress)?;
    progress.step("two hosts");
    let hosts = hosts::build(site)?;
    progress.step("a software NIC for each host");
    let mut nics = Vec::new();
    for (host, namespace) in hosts.iter().enumerate() {
        let config = plan::nic_config(host, &hosts::nics_folder(site))?;
        nics.push(NicProcess::start(site, host, namespace, &config)?);
    }
    progress.step("four VMs boot");
    let vms = vms::boot(site, &hosts, &image, &cpus, keep, progress)?;
    progress.step("addresses, jumbo packets and RDMA in each VM");
    let mut nics_run = || nics.iter_mut().try_for_each(NicProcess::still_runs);
    let checked = check(site, &vms, &mut nics_run, progress);
    // A NIC that has ended is why the last check failed, so it is said first.
    nics_run()?;
    let mut done = checked.map_err(|error| vms::with_console(site, error))?;
    let report = &mut done.report;
    conclude(report, &cpus, began);
    if keep {
        let kept = vms.into_iter().map(Vm::keep_running).collect::<Result<_, _>>()?;
        vms::keep(site, kept)?;
    }
    Ok(done)
}

/// What every run with software NICs begins with: three steps.
fn prepare(progress: &Progress) -> Result<(guest_image::GuestImage, vms::Cpus), DemoError> {
    progress.step("packages of this machine");
    packages::ensure(packages::VM, &mut |what| progress.detail(what))?;
    progress.step("guest image");
    let cache = guest_image::cache_folder();
    let image = guest_image::ensure(&cache, &mut |what| progress.detail(what))?;
    progress.step("what carries guests out here");
    let cpus = vms::Cpus::choose(&image, &cache)?;
    progress.detail(cpus.reason());
    Ok((image, cpus))
}

/// What was emulated, and how it ended.
fn conclude(report: &mut Report, cpus: &vms::Cpus, began: Instant) {
    report.statements.push(format!(
        "Emulated: both hosts (network namespaces joined by veth pairs), their NICs (the software \
         NIC), {}. The figures show that it works, never how fast hardware would be. Latency of \
         ib_* is one way, of ping both ways; loss of TCP is segments sent again.",
        cpus.in_words()
    ));
    let took = began.elapsed().as_secs();
    report.statements.push(format!(
        "{} checks, {} in {took} s.",
        report.rows.len(),
        if report.holds() { "all hold" } else { "NOT all hold" }
    ));
}

fn check(
    site: &Site,
    vms: &[Vm],
    watch: &mut dyn FnMut() -> Result<(), DemoError>,
    progress: &Progress,
) -> Outcome {
    let stations = std::thread::scope(|scope| {
        let set_ups: Vec<_> = VMS
            .iter()
            .zip(vms)
            .map(|(planned, vm)| scope.spawn(move || checks::set_up(*planned, vm)))
            .collect();
        let join = |set_up: ScopedJoinHandle<'_, _>| {
            set_up.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        set_ups.into_iter().map(join).collect::<Result<Vec<_>, DemoError>>()
    })?;
    let root = hosts::nics_folder(site);
    let nics = Client::discover(&root).map_err(|error| DemoError::file(&root, error))?;
    let report = checks::run(&stations, &nics, watch, progress, TITLE.to_owned())?;
    Ok(Done { report, guide: guide::write(&stations, &crate::program(), &root)? })
}

/// In which form the result is wanted.
struct Form {
    json: bool,
    picture: Option<Picture>,
}

/// Print the result first: a picture that cannot be drawn must not cost it.
fn present(report: &Report, form: Form) -> Result<ExitCode, Failure> {
    let text = if form.json {
        report.to_json()
    } else {
        let terminal = std::io::stdout().is_terminal();
        let size = terminal.then(|| rustix::termios::tcgetwinsize(std::io::stdout()));
        let width = size.and_then(Result::ok).map(|size| size.ws_col);
        report.to_text(width.filter(|width| *width > 0), terminal)
    };
    match print(text.trim_end()) {
        // The exit code tells whether all holds, also who reads no further.
        Ok(()) | Err(Failure::Unread) => {}
        Err(lost) => return Err(lost),
    }
    if let Some(mut picture) = form.picture {
        let drawn = picture.write(&report.to_svg());
        drawn.map_err(|error| DemoError::file(picture.path(), error))?;
    }
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_verify::LocalHost;

    #[test]
    fn words_reach_a_program_in_a_vm_as_they_are() {
        let run = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            let here = LocalHost::new("here");
            let within = std::time::Duration::from_secs(5);
            lanekeeper_verify::Host::check(&here, &shell_text(&command), within).expect("runs")
        };
        assert_eq!(run(&["printf", "<%s>", "a b", "it's", "$HOME"]), "<a b><it's><$HOME>");
        assert_eq!(run(&["echo one | tr o 0"]), "0ne\n");
    }
}
