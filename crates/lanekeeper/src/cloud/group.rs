//! `lanekeeper group`: VMs that are placed together, all or none.

use clap::Subcommand;
use lanekeeper_client::{Error, Method};
use lanekeeper_control::resource::{Group, Vm, VmStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::Session;
use super::kind::{self, Act, Which, called};
use super::table::{Column, Row, print_rows};
use super::vm::{MadeOf, failed, is_gone};
use super::wait::{Seen, Wait};
use super::{One, Run};
use crate::Failure;
use crate::output::print;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// A new group of VMs.
    Create(Box<Create>),
    /// List all.
    List,
    /// Show one, with its VMs.
    Show(One),
    /// Delete one with its VMs; with --wait until they are gone.
    Delete(Delete),
}

#[derive(clap::Args)]
pub(crate) struct Create {
    /// Name, unique in its environment; its VMs are called by it and their number.
    name: String,
    /// How many VMs.
    #[arg(long, value_name = "VMS")]
    count: u32,
    /// How many more places to hold for VMs whose host is lost.
    #[arg(long, value_name = "PLACES", default_value_t = 0)]
    spares: u32,
    /// How the VMs lie to each other: as near as can be, on the same leaves, on as many hosts as can
    /// be.
    #[arg(long, value_enum, default_value = "compact")]
    policy: Lie,
    /// Refuse what is not so, instead of taking what comes nearest.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    made_of: MadeOf,
    #[command(flatten)]
    wait: Wait,
}

/// How VMs lie to each other.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Lie {
    Compact,
    SameLeaf,
    Spread,
}

#[derive(clap::Args)]
pub(crate) struct Delete {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    wait: Wait,
}

impl Row for Group {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |group| group.id.to_string()),
        ("NAME", |group| group.name.clone()),
        ("VMS", |group| group.vms.len().to_string()),
        ("SPARES", |group| group.spares.to_string()),
        ("POLICY", |group| policy(group)),
        ("ENVIRONMENT", |group| group.environment.to_string()),
        ("REGION", |group| group.region.to_string()),
        ("CREATED", |group| group.created_at.to_string()),
    ];
}

/// As `same_leaf, strict`.
fn policy(group: &Group) -> String {
    match serde_json::to_value(group.policy) {
        Ok(Value::Object(policy)) => {
            let said = |(how, held): (&String, &Value)| {
                format!("{how}, {}", held.as_str().unwrap_or_default())
            };
            policy.iter().next().map(said).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// A group with its VMs.
#[derive(Deserialize)]
struct Whole {
    #[serde(flatten)]
    group: Group,
    members: Vec<Vm>,
}

impl Whole {
    fn seen(&self) -> Seen {
        let failed = |vm| failed(vm).map(|why| format!("has failed: VM '{}' {why}", vm.name));
        if let Some(why) = self.members.iter().find_map(failed) {
            return Seen::Failed(why);
        }
        let of = self.group.vms.len();
        let active = self.members.iter().filter(|vm| vm.status == VmStatus::Active).count();
        if self.group.complete && active == of {
            return Seen::Done;
        }
        Seen::Yet(format!("has {active} of {of} VMs ACTIVE"))
    }
}

impl Run for Command {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => create(session, &args),
            Self::List => kind::list::<Group>(session),
            Self::Show(One { which }) => show(session, &which),
            Self::Delete(args) => delete(session, &args),
        }
    }
}

fn path(id: u64) -> String {
    format!("/v1/groups/{id}")
}

fn create(session: &Session, args: &Create) -> Result<(), Failure> {
    let held = if args.strict { "strict" } else { "preferred" };
    let policy = match args.policy {
        Lie::Compact => json!({ "compact": held }),
        Lie::SameLeaf => json!({ "same_leaf": held }),
        Lie::Spread => json!({ "spread": held }),
    };
    let vm = args.made_of.body(session, &args.name)?;
    let Create { count, spares, .. } = args;
    let body = json!({ "count": count, "spares": spares, "policy": policy, "vm": vm });
    let made: Group = kind::read(&session.create("/v1/groups", &body)?)?;
    if args.wait.wait {
        let what = format!("group '{}' ({})", made.name, made.id);
        args.wait.until(&what, || Ok(session.get::<Whole>(&path(made.id))?.seen()))?;
    }
    show(session, &Which::Id(made.id))
}

fn show(session: &Session, which: &Which) -> Result<(), Failure> {
    let value = kind::find::<Group>(session, which)?;
    kind::print_it::<Group>(session, &value)?;
    let vms: Vec<Vm> = kind::read(&value["members"])?;
    if session.json || vms.is_empty() {
        return Ok(());
    }
    print("")?;
    print_rows(&vms)
}

fn delete(session: &Session, args: &Delete) -> Result<(), Failure> {
    let which = &args.one.which;
    let what = called::<Group>(which);
    let id = kind::act::<Group>(session, which, &Act { method: Method::DELETE, path: "" })?;
    if args.wait.wait {
        args.wait.until(&what, || match session.get::<Whole>(&path(id)) {
            Ok(whole) => Ok(Seen::Yet(format!("has {} VMs left", whole.members.len()))),
            Err(Error::Problem(problem)) if is_gone(&problem) => Ok(Seen::Done),
            Err(error) => Err(error),
        })?;
    }
    kind::print_deleted(session, &what, args.wait.wait)
}
