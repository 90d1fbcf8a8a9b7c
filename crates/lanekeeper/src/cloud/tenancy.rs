//! `lanekeeper environment`, `keypair`, `key` and `organization`: who there is, and what they may use.

use std::path::PathBuf;

use clap::Subcommand;
use lanekeeper_control::keys::{OrgName, RegionName};
use lanekeeper_control::resource::{self, ApiKey, QuotaView, Role};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connect::Session;
use super::kind::{self, Which};
use super::table::{Column, Row, maybe, print_json, print_rows, word};
use super::vm::text_of;
use super::words::{ROLES, one_of};
use super::{Common, One, Run};
use crate::Failure;
use crate::output::{note, print};

#[derive(Subcommand)]
pub(crate) enum Environment {
    /// A new environment, with a network.
    Create(NewEnvironment),
    #[command(flatten)]
    Common(Common),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewEnvironment {
    /// Name, unique in the organization.
    name: String,
    /// Region where its VMs are to be, by name.
    #[arg(long, value_name = "NAME")]
    region: RegionName,
}

impl Row for resource::Environment {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |environment| environment.id.to_string()),
        ("NAME", |environment| environment.name.clone()),
        ("REGION", |environment| environment.region.to_string()),
        ("DEFAULT NETWORK", |environment| environment.default_network.to_string()),
        ("CREATED", |environment| environment.created_at.to_string()),
    ];
}

impl Run for Environment {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => {
                kind::create_shown::<resource::Environment>(session, kind::body(&args)?)
            }
            Self::Common(common) => common.run::<resource::Environment>(session),
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum Keypair {
    /// Import a public key.
    Import(NewKeypair),
    #[command(flatten)]
    Common(Common),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewKeypair {
    /// Name, unique in the organization.
    name: String,
    /// File with the public key, as id_ed25519.pub.
    #[serde(skip)]
    file: PathBuf,
    /// The environment that it is to be of, by name or id.
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    environment: Which,
}

impl Row for resource::Keypair {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |pair| pair.id.to_string()),
        ("NAME", |pair| pair.name.clone()),
        ("ENVIRONMENT", |pair| pair.environment.to_string()),
        ("TYPE", |pair| pair.public_key.split(' ').next().unwrap_or_default().to_owned()),
        ("CREATED", |pair| pair.created_at.to_string()),
    ];
    const MORE: &'static [Column<Self>] = &[("PUBLIC KEY", |pair| pair.public_key.clone())];
}

impl Run for Keypair {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let args = match self {
            Self::Import(args) => args,
            Self::Common(common) => return common.run::<resource::Keypair>(session),
        };
        let mut body = kind::body(&args)?;
        let environment = kind::id_of::<resource::Environment>(session, &args.environment)?;
        body.insert("environment".to_owned(), environment.into());
        body.insert("public_key".to_owned(), text_of(&args.file)?.trim_end().into());
        kind::create_shown::<resource::Keypair>(session, body)
    }
}

#[derive(Subcommand)]
pub(crate) enum Key {
    /// A new API key; it is shown this once.
    Create(NewKey),
    /// List all, without their secrets.
    List,
    /// Revoke one, from now on.
    Delete(One),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewKey {
    /// What it is for, for people.
    name: String,
    /// What its bearer may do: look; change what the organization has; its API keys, too; everything.
    #[arg(long, value_parser = one_of::<Role>(ROLES))]
    role: Role,
    /// When it ends, as 2027-01-31T00:00:00Z; never if not given.
    #[arg(long = "expires", value_name = "TIME")]
    expires_at: Option<String>,
}

impl Row for ApiKey {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |key| key.id.to_string()),
        ("NAME", |key| key.name.clone()),
        ("ROLE", |key| word(&key.role)),
        ("BEGINS", |key| format!("lk_{}", key.prefix)),
        ("ORGANIZATION", |key| key.organization.to_string()),
        ("CREATED", |key| key.created_at.to_string()),
        ("EXPIRES", |key| maybe(key.expires_at.as_ref())),
    ];
}

impl Run for Key {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => create_key(session, &args),
            Self::List => kind::list::<ApiKey>(session),
            Self::Delete(One { which }) => kind::delete::<ApiKey>(session, &which),
        }
    }
}

/// Asked for once only: the server keeps no answer that has a secret in it, so that an API key whose
/// answer was lost is better revoked than made again.
fn create_key(session: &Session, args: &NewKey) -> Result<(), Failure> {
    let made: Value = session.client.post("/v1/api-keys", &kind::body(args)?)?.body;
    kind::print_it::<ApiKey>(session, &made)?;
    if session.json {
        return Ok(());
    }
    note("The API key, which is not shown again:");
    print(made["secret"].as_str().unwrap_or_default())
}

#[derive(Subcommand)]
pub(crate) enum Organization {
    /// A new organization.
    Create(NewOrganization),
    #[command(flatten)]
    Common(Common),
    /// What one may use and uses; with options, say what it may use from now on.
    Quota(Quota),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewOrganization {
    /// Name.
    name: OrgName,
    /// What it is, for people.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct Quota {
    /// Its name or id; without, the one that you work in.
    #[arg(value_name = "NAME")]
    which: Option<Which>,
    #[command(flatten)]
    limits: Limits,
}

/// Most of each; what is not named stays as it is.
#[derive(clap::Args, Serialize)]
struct Limits {
    /// Most VMs, or none for no limit.
    #[arg(long, value_name = "COUNT", value_parser = limit, requires = "which")]
    vms: Option<Limit>,
    /// Most GPUs, or none.
    #[arg(long, value_name = "COUNT", value_parser = limit, requires = "which")]
    gpus: Option<Limit>,
    /// Most VFs, or none.
    #[arg(long, value_name = "COUNT", value_parser = limit, requires = "which")]
    vfs: Option<Limit>,
    /// Most CPUs, or none.
    #[arg(long, value_name = "THREADS", value_parser = limit, requires = "which")]
    vcpus: Option<Limit>,
    /// Most memory in MiB, or none.
    #[arg(long = "ram", value_name = "MIB", value_parser = limit, requires = "which")]
    ram_mib: Option<Limit>,
    /// Most disk in GiB, or none.
    #[arg(long = "disk", value_name = "GIB", value_parser = limit, requires = "which")]
    disk_gib: Option<Limit>,
}

/// How much; nothing if there is no limit.
#[derive(Clone, Copy, Serialize)]
struct Limit {
    most: Option<u64>,
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit { most: None }),
        _ => text
            .parse()
            .map(|most| Limit { most: Some(most) })
            .map_err(|_| format!("'{text}' is neither a whole number nor none")),
    }
}

impl Row for resource::Organization {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |organization| organization.id.to_string()),
        ("NAME", |organization| organization.name.to_string()),
        ("DESCRIPTION", |organization| organization.description.clone()),
        ("CREATED", |organization| organization.created_at.to_string()),
    ];
}

/// One thing that is limited.
struct Limited {
    what: &'static str,
    used: u64,
    most: Option<u64>,
}

impl Row for Limited {
    const COLUMNS: &'static [Column<Self>] = &[
        ("WHAT", |limited| limited.what.to_owned()),
        ("USED", |limited| limited.used.to_string()),
        ("LIMIT", |limited| maybe(limited.most.as_ref())),
    ];
}

impl Run for Organization {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => {
                kind::create_shown::<resource::Organization>(session, kind::body(&args)?)
            }
            Self::Common(common) => common.run::<resource::Organization>(session),
            Self::Quota(args) => quota(session, &args),
        }
    }
}

fn quota(session: &Session, args: &Quota) -> Result<(), Failure> {
    let path = match &args.which {
        Some(which) => {
            let id = kind::id_of::<resource::Organization>(session, which)?;
            format!("/v1/organizations/{id}/quota")
        }
        None => "/v1/quota".to_owned(),
    };
    let mut now: Value = session.get(&path)?;
    let change = kind::body(&args.limits)?;
    if !change.is_empty() {
        let limits = json!(changed(&now["limits"], change));
        now = session.client.put(&path, &limits)?.body;
    }
    if session.json {
        return print_json(&now);
    }
    let QuotaView { limits, used } = kind::read(&now)?;
    print_rows(&[
        Limited { what: "VMs", used: used.vms, most: limits.vms },
        Limited { what: "GPUs", used: used.gpus, most: limits.gpus },
        Limited { what: "VFs", used: used.vfs, most: limits.vfs },
        Limited { what: "CPUs", used: used.vcpus, most: limits.vcpus },
        Limited { what: "memory, MiB", used: used.ram_mib, most: limits.ram_mib },
        Limited { what: "disk, GiB", used: used.disk_gib, most: limits.disk_gib },
    ])
}

/// The limits that there are, with those that were named in their place.
fn changed(limits: &Value, change: Map<String, Value>) -> Map<String, Value> {
    let mut limits = limits.as_object().cloned().unwrap_or_default();
    limits.extend(change.into_iter().map(|(what, limit)| (what, limit["most"].clone())));
    limits
}
