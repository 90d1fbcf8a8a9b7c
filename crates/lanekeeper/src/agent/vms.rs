//! `lanekeeper agent enrol` and `lanekeeper agent vms`: this host as one of a server's.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use lanekeeper_host::Owner;
use lanekeeper_hw::guarded::Guarded;
use lanekeeper_hw::linux::Linux;
use lanekeeper_node::{
    Builtin, HardwareOffer, Https, Membership, Node, NodeConfig, Parts, SoftwareNics,
};
use lanekeeper_testbed::guest_image::{self, GuestImage};
use lanekeeper_testbed::packages;
use lanekeeper_vmm::{Qemu, accel};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;
use crate::host::report_recovery;
use crate::output::print;
use crate::unit;

/// Become a host of a server: use up a one-time token, and keep the certificate it gives.
#[derive(clap::Args)]
pub(crate) struct Enrol {
    /// The server, as https://server.example:8443.
    server: String,
    /// The token (lke_...) that an operator has made for this host: lanekeeper fleet token. It can be
    /// given in the environment instead, where other users do not see it.
    #[arg(long, env = "LANEKEEPER_TOKEN", hide_env_values = true)]
    token: String,
    /// Certificate (PEM) of the authority that the server's is of: authority.crt of its data
    /// directory. Without, those of this machine count.
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// The file that says what this host is.
    #[arg(long, value_name = "FILE", default_value = "/etc/lanekeeper/node.toml")]
    config: PathBuf,
}

/// Have the VMs that the server desires, on this host's software NICs, as a daemon.
#[derive(clap::Args)]
#[command(
    after_help = "SIGTERM and SIGINT end it; VMs run on, and the next one takes them over, also after \
a kill."
)]
pub(crate) struct Vms {
    /// The file that says what this host is.
    #[arg(long, value_name = "FILE", default_value = "/etc/lanekeeper/node.toml")]
    config: PathBuf,
    /// Print the systemd unit, and do nothing else.
    #[arg(long)]
    print_unit: bool,
}

fn work(error: impl std::fmt::Display) -> Failure {
    Failure::Work(error.to_string())
}

fn load(path: &Path) -> Result<NodeConfig, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// The small guest.
fn guest(config: &NodeConfig, cache: &Path) -> Result<GuestImage, Failure> {
    let made = match &config.builtin_folder {
        Some(folder) => GuestImage::made_in(folder),
        None => guest_image::ensure(cache, &mut |what| tracing::info!("{what}")),
    };
    made.map_err(work)
}

/// The operator's, or Debian's, which is installed if it is not there.
fn qemu(config: &NodeConfig) -> Result<Qemu, Failure> {
    if let Some(program) = &config.qemu {
        return Qemu::at(program).map_err(work);
    }
    packages::ensure(packages::VM, &mut |what| tracing::info!("{what}")).map_err(work)?;
    Qemu::find().map_err(work)
}

/// The owner of this host's own hardware, after what was cut short is finished or undone.
fn owner(offer: &HardwareOffer) -> Result<Arc<Owner>, Failure> {
    if !rustix::process::geteuid().is_root() {
        let why = "the host's NICs and the ledger are root's: run this as root, or leave the section \
                   `hardware` out";
        return Err(Failure::Work(why.to_owned()));
    }
    let owner = Owner::open(Arc::new(Guarded::new(Linux::new())), &offer.ledger)?;
    report_recovery(&owner.recover()?);
    Ok(Arc::new(owner))
}

/// Enrol this host.
///
/// # Errors
/// [`Failure::Usage`] for a file that is wrong; [`Failure::Work`] if the server refuses.
pub(crate) fn enrol(args: &Enrol) -> Result<ExitCode, Failure> {
    let config = load(&args.config)?;
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    };
    let authority = args.authority.as_ref().map(read).transpose()?;
    let folder = &config.state_folder;
    let member = Membership::enrol(folder, &args.server, authority, &args.token).map_err(work)?;
    print(format!("this is host {} of region {} now", member.host, member.region))?;
    Ok(ExitCode::SUCCESS)
}

/// Have the desired VMs until a signal ends it.
///
/// # Errors
/// [`Failure::Usage`] for a file that is wrong; [`Failure::Work`].
pub(crate) fn run(args: &Vms) -> Result<ExitCode, Failure> {
    if args.print_unit {
        print(unit::here(unit::VMS).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = load(&args.config)?;
    let member = Membership::load(&config.state_folder).map_err(work)?.ok_or_else(|| {
        let program = crate::program();
        Failure::Work(format!("this host is none of a server's yet; first: {program} agent enrol"))
    })?;
    // Before any thread is there, so that none misses a signal.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(work)?;
    let host = member.host.clone();
    let cache = guest_image::cache_folder();
    let image = guest(&config, &cache)?;
    let qemu = qemu(&config)?;
    let accel = if let Some(accel) = config.accel {
        accel
    } else {
        let verdict = accel::choose(&qemu, &image.kernel, &cache).map_err(work)?;
        tracing::info!("{}", verdict.reason);
        verdict.accel
    };
    let builtin = Builtin {
        kernel: image.kernel.clone(),
        initramfs: image.initramfs.clone(),
        command_line: Arc::new(move |name: &str| image.command_line(name)),
    };
    let link = Https::member(&config.state_folder, member).map_err(work)?;
    let software = Arc::new(SoftwareNics::under(&config.nic_folder));
    let owner = config.hardware.as_ref().map(owner).transpose()?;
    let parts = Parts {
        driver: qemu,
        accel,
        software,
        owner,
        builtin: Some(builtin),
        link: Arc::new(link),
    };
    let node = Node::open(config, parts).map_err(work)?;
    let stop = node.stop();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            signals.forever().next();
            stop.stop();
        })
        .map_err(work)?;
    print(format!("host {host} has its VMs as the server desires"))?;
    node.run().map_err(work)?;
    Ok(ExitCode::SUCCESS)
}
