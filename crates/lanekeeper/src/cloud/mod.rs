//! The command line of the cloud: what `lanekeeper` does over a server's API, for tenants and for
//! operators. Each kind of resource has a sub-command; `--json` prints what the API answers.

mod connect;
mod context;
mod events;
mod fleet;
mod group;
mod kind;
mod networks;
mod offer;
mod table;
mod tenancy;
mod verify;
mod vm;
mod wait;
mod words;

use std::process::ExitCode;

use clap::Subcommand;
use lanekeeper_control::resource::Resource;

use crate::Failure;
use connect::{At, Session};
use kind::Which;
use table::Row;

/// The sub-commands that speak to a server.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Keep the servers that you work with: address, authority and API key, each under a name.
    Context(context::Args),
    /// VMs: create, list, show, start, stop, reboot, delete.
    Vm(Of<vm::Command>),
    /// Groups of VMs that are placed together, all or none.
    Group(Of<group::Command>),
    /// Cluster networks.
    Network(Of<networks::Network>),
    /// Subnets of cluster networks.
    Subnet(Of<networks::Subnet>),
    /// Flavors: what a VM can be.
    Flavor(Of<offer::Flavor>),
    /// Images: what a VM can boot.
    Image(Of<offer::Image>),
    /// Regions: hosts on one fabric.
    Region(Of<offer::Region>),
    /// Environments: projects in a region.
    Environment(Of<tenancy::Environment>),
    /// Public keys that VMs let log in.
    Keypair(Of<tenancy::Keypair>),
    /// API keys.
    Key(Of<tenancy::Key>),
    /// Organizations and their quotas.
    Organization(Of<tenancy::Organization>),
    /// Have the lanes of VMs looked at by their hosts: whether each is as it shall be and reaches the
    /// others.
    Verify(Of<verify::Command>),
    /// What has happened.
    Event(Of<events::Command>),
    /// The server's hosts, for operators; `host` is about this machine alone.
    Fleet(Of<fleet::Command>),
}

/// What is done, and where.
#[derive(clap::Args)]
#[command(
    after_help = "Names and ids are both taken; digits alone are an id. Exit codes: 0 done; 1 refused \
or failed; 2 the command line or the context is wrong."
)]
pub(crate) struct Of<C: Subcommand> {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    command: C,
}

/// Something to do at a server.
pub(crate) trait Run: Subcommand {
    /// Do it.
    fn run(self, session: &Session) -> Result<(), Failure>;
}

impl<C: Run> Of<C> {
    fn run(self) -> Result<(), Failure> {
        self.command.run(&self.at.session()?)
    }
}

/// One resource, by name or id.
#[derive(clap::Args)]
pub(crate) struct One {
    /// Its name or id.
    #[arg(value_name = "NAME")]
    which: Which,
}

/// What every kind has that can only be listed, shown and deleted beside being made.
#[derive(Subcommand)]
pub(crate) enum Common {
    /// List all.
    List,
    /// Show one.
    Show(One),
    /// Delete one.
    Delete(One),
}

impl Common {
    fn run<T: Resource + Row>(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::List => kind::list::<T>(session),
            Self::Show(One { which }) => kind::show::<T>(session, which),
            Self::Delete(One { which }) => kind::delete::<T>(session, which),
        }
    }
}

/// Run the sub-command.
///
/// # Errors
/// [`Failure::Usage`] for a context or an argument that cannot be; [`Failure::Work`] if the server
/// refuses or cannot be reached, or what was waited for failed.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    let done = match command {
        Command::Context(args) => context::run(args),
        Command::Vm(of) => of.run(),
        Command::Group(of) => of.run(),
        Command::Network(of) => of.run(),
        Command::Subnet(of) => of.run(),
        Command::Flavor(of) => of.run(),
        Command::Image(of) => of.run(),
        Command::Region(of) => of.run(),
        Command::Environment(of) => of.run(),
        Command::Keypair(of) => of.run(),
        Command::Key(of) => of.run(),
        Command::Organization(of) => of.run(),
        Command::Verify(of) => of.run(),
        Command::Event(of) => of.run(),
        Command::Fleet(of) => of.run(),
    };
    done.map(|()| ExitCode::SUCCESS)
}
