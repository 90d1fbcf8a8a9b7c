//! `lanekeeper vm`: VMs on demand.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Subcommand;
use lanekeeper_client::{Error, Method};
use lanekeeper_control::resource::{Environment, Network, Port, Vm, VmStatus};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connect::Session;
use super::kind::{self, Act, Which, called};
use super::table::{Column, Row, joined, maybe, print_json, print_rows, word};
use super::wait::{Seen, Wait};
use super::{One, Run};
use crate::Failure;
use crate::output::print;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// A new VM.
    Create(Box<Create>),
    /// List all.
    List,
    /// Show one, with its ports.
    Show(One),
    /// Start one that is SHUTOFF.
    Start(Change),
    /// Stop one; what it has stays its own.
    Stop(Change),
    /// Reset one that runs.
    Reboot(Change),
    /// Delete one; with --wait until its host has said that it is gone.
    Delete(Change),
}

#[derive(clap::Args)]
pub(crate) struct Create {
    /// Name, unique in its environment; its host name within.
    name: String,
    #[command(flatten)]
    made_of: MadeOf,
    #[command(flatten)]
    wait: Wait,
}

#[derive(clap::Args)]
pub(crate) struct Change {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    wait: Wait,
}

/// What a VM is made of.
#[derive(clap::Args, Serialize)]
pub(super) struct MadeOf {
    /// The environment that it is to be in, by name or id.
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    environment: Which,
    /// Flavor, by name.
    #[arg(long, value_name = "NAME")]
    flavor: String,
    /// Image, by name.
    #[arg(long, value_name = "NAME")]
    image: String,
    /// The key pair that may log in, by name.
    #[arg(long, value_name = "NAME")]
    keypair: Option<String>,
    /// Network for its VFs, by name or id, with how many of them it gets (all that are left, if not
    /// said); may be given several times. The environment's own network if none is given.
    #[arg(long = "network", value_name = "NAME[=VFS]")]
    #[serde(skip)]
    networks: Vec<Attachment>,
    /// File with cloud-init's user data.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    user_data: Option<PathBuf>,
    /// A label; may be given several times.
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
}

/// A network, and how many VFs are to be on it.
#[derive(Clone)]
struct Attachment {
    network: Which,
    vfs: Option<u32>,
}

impl FromStr for Attachment {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (network, vfs) = match text.rsplit_once('=') {
            Some((network, count)) => match count.parse() {
                Ok(count) => (network, Some(count)),
                Err(_) => return Err(format!("'{count}' is no number of VFs")),
            },
            None => (text, None),
        };
        let Ok(network) = network.parse();
        Ok(Self { network, vfs })
    }
}

impl MadeOf {
    /// The request for a VM of this name.
    pub(super) fn body(
        &self,
        session: &Session,
        name: &str,
    ) -> Result<Map<String, Value>, Failure> {
        let mut body = kind::body(self)?;
        let environment = kind::id_of::<Environment>(session, &self.environment)?;
        let mut networks = Vec::new();
        for Attachment { network, vfs } in &self.networks {
            let network = kind::id_of::<Network>(session, network)?;
            networks.push(json!({ "network": network, "vfs": vfs }));
        }
        body.insert("name".to_owned(), name.into());
        body.insert("environment".to_owned(), environment.into());
        body.insert("networks".to_owned(), networks.into());
        if let Some(file) = &self.user_data {
            body.insert("user_data".to_owned(), text_of(file)?.into());
        }
        Ok(body)
    }
}

/// What is in a file that the command line names.
pub(super) fn text_of(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))
}

impl Row for Vm {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |vm| vm.id.to_string()),
        ("NAME", |vm| vm.name.clone()),
        ("STATUS", |vm| word(&vm.status)),
        ("FLAVOR", |vm| vm.flavor.name.clone()),
        ("IMAGE", |vm| vm.image.name.clone()),
        ("ENVIRONMENT", |vm| vm.environment.to_string()),
        ("GROUP", |vm| maybe(vm.group.map(|member| member.group).as_ref())),
        ("HOST", |vm| maybe(vm.located.as_ref().map(|located| &located.host))),
        ("CREATED", |vm| vm.created_at.to_string()),
    ];
    const MORE: &'static [Column<Self>] = &[
        ("REGION", |vm| vm.region.to_string()),
        ("KEY PAIR", |vm| maybe(vm.keypair.as_ref())),
        ("LABELS", |vm| joined(&vm.labels)),
        ("GPUS", |vm| vm.located.as_ref().map(|at| joined(&at.place.gpus)).unwrap_or_default()),
        ("SINCE", |vm| vm.changed_at.to_string()),
        ("FAULT", |vm| maybe(vm.fault.as_ref().map(|fault| &fault.message))),
    ];
}

impl Row for Port {
    const COLUMNS: &'static [Column<Self>] = &[
        ("PORT", |port| port.name.clone()),
        ("MAC", |port| port.mac.to_string()),
        ("ADDRESS", |port| format!("{}/{}", port.address, port.prefix)),
        ("NETWORK", |port| port.network.to_string()),
        ("SUBNET", |port| port.subnet.to_string()),
    ];
}

/// What is to become of a VM.
#[derive(Clone, Copy)]
enum Goal {
    Is(VmStatus),
    Gone,
}

/// Why a VM is in error, if it is.
pub(super) fn failed(vm: &Vm) -> Option<String> {
    let why = || vm.fault.as_ref().map_or("the server does not say why", |fault| &fault.message);
    (vm.status == VmStatus::Error).then(|| format!("is in ERROR: {}", why()))
}

impl Goal {
    fn seen(self, vm: &Vm) -> Seen {
        match (self, failed(vm)) {
            (Self::Is(wanted), _) if vm.status == wanted => Seen::Done,
            (Self::Is(_), Some(why)) => Seen::Failed(why),
            _ => Seen::Yet(format!("is {}", word(&vm.status))),
        }
    }

    fn wait(self, session: &Session, wait: &Wait, id: u64, what: &str) -> Result<(), Failure> {
        if !wait.wait {
            return Ok(());
        }
        wait.until(what, || match session.get(&format!("/v1/vms/{id}")) {
            Ok(vm) => Ok(self.seen(&vm)),
            Err(Error::Problem(problem)) if is_gone(&problem) && matches!(self, Self::Gone) => {
                Ok(Seen::Done)
            }
            Err(error) => Err(error),
        })
    }
}

/// Whether the server says that there is no such thing.
pub(super) fn is_gone(problem: &lanekeeper_client::Problem) -> bool {
    problem.status == Some(404)
}

impl Run for Command {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let post = |path| Act { method: Method::POST, path };
        match self {
            Self::Create(args) => create(session, &args),
            Self::List => kind::list::<Vm>(session),
            Self::Show(One { which }) => show(session, &which),
            Self::Start(args) => change(session, &args, &post("/start"), VmStatus::Active),
            Self::Stop(args) => change(session, &args, &post("/stop"), VmStatus::Shutoff),
            Self::Reboot(args) => change(session, &args, &post("/reboot"), VmStatus::Active),
            Self::Delete(args) => delete(session, &args),
        }
    }
}

fn create(session: &Session, args: &Create) -> Result<(), Failure> {
    let made: Vm =
        kind::read(&kind::create::<Vm>(session, args.made_of.body(session, &args.name)?)?)?;
    let what = format!("VM '{}' ({})", made.name, made.id);
    Goal::Is(VmStatus::Active).wait(session, &args.wait, made.id, &what)?;
    show(session, &Which::Id(made.id))
}

fn show(session: &Session, which: &Which) -> Result<(), Failure> {
    let value = kind::find::<Vm>(session, which)?;
    kind::print_it::<Vm>(session, &value)?;
    let ports: Vec<Port> = kind::read(&value["interfaces"])?;
    if session.json || ports.is_empty() {
        return Ok(());
    }
    print("")?;
    print_rows(&ports)
}

fn change(session: &Session, args: &Change, act: &Act, wanted: VmStatus) -> Result<(), Failure> {
    let which = &args.one.which;
    let id = kind::act::<Vm>(session, which, act)?;
    Goal::Is(wanted).wait(session, &args.wait, id, &called::<Vm>(which))?;
    let now: Value = session.get(&format!("/v1/vms/{id}"))?;
    if session.json {
        return print_json(&now);
    }
    let now: Vm = kind::read(&now)?;
    print(format!("{} is {}", called::<Vm>(which), word(&now.status)))
}

fn delete(session: &Session, args: &Change) -> Result<(), Failure> {
    let which = &args.one.which;
    let what = called::<Vm>(which);
    let id = kind::act::<Vm>(session, which, &Act { method: Method::DELETE, path: "" })?;
    Goal::Gone.wait(session, &args.wait, id, &what)?;
    kind::print_deleted(session, &what, args.wait.wait)
}
