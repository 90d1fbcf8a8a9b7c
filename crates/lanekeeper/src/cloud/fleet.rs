//! `lanekeeper fleet`: the hosts of a server, for operators.

use clap::Subcommand;
use lanekeeper_control::keys::{HostName, RegionName};
use lanekeeper_control::resource::{HostView, NicView, Region, VfView};
use serde_json::{Value, json};

use super::Run;
use super::connect::Session;
use super::kind;
use super::table::{Column, Row, joined, maybe, print_json, word};
use crate::Failure;
use crate::output::{note, print};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List a region's hosts.
    List {
        #[command(flatten)]
        region: InRegion,
    },
    /// Show one.
    Show(Host),
    /// Its PFs and software NICs.
    Nics(Host),
    /// Its VFs, and who has them.
    Vfs(Host),
    /// A one-time token that enrols a host; it is shown this once.
    Token(Host),
    /// Place no more VMs on it; those that are there stay.
    Drain(Host),
    /// Place VMs on it again.
    Open(Host),
    /// Declare it dead: what its VMs had is free.
    Forget(Host),
}

#[derive(clap::Args)]
pub(crate) struct InRegion {
    /// The region, by name; not needed where there is only one.
    #[arg(long, value_name = "NAME")]
    region: Option<RegionName>,
}

#[derive(clap::Args)]
pub(crate) struct Host {
    /// The host, by name.
    host: HostName,
    #[command(flatten)]
    region: InRegion,
}

impl InRegion {
    fn path(&self, session: &Session) -> Result<String, Failure> {
        if let Some(region) = &self.region {
            return Ok(format!("/v1/regions/{region}/hosts"));
        }
        let regions = kind::all(session, "/v1/regions", &[])?;
        let regions: Vec<Region> = regions.iter().map(kind::read).collect::<Result<_, _>>()?;
        match regions.as_slice() {
            [] => {
                Err(Failure::Work("there is no region; make one with 'region create'".to_owned()))
            }
            [only] => Ok(format!("/v1/regions/{}/hosts", only.name)),
            more => {
                let names: Vec<_> = more.iter().map(|region| &region.name).collect();
                let names = joined(&names);
                Err(Failure::Usage(format!("name one of the regions with --region: {names}")))
            }
        }
    }
}

impl Host {
    fn path(&self, session: &Session) -> Result<String, Failure> {
        Ok(format!("{}/{}", self.region.path(session)?, self.host))
    }
}

fn share(used: impl Into<u64>, of: impl Into<u64>) -> String {
    format!("{}/{}", used.into(), of.into())
}

impl Row for HostView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NAME", |host| host.name.to_string()),
        ("REGION", |host| host.region.to_string()),
        ("POD", |host| maybe(host.pod.as_ref())),
        ("STATE", |host| match (&host.closed, host.alive) {
            (Some(closed), _) => word(closed),
            (None, true) => "open".to_owned(),
            (None, false) => "silent".to_owned(),
        }),
        ("VMS", |host| host.vms.len().to_string()),
        ("VFS", |host| share(host.vfs_used, host.vfs)),
        ("GPUS", |host| share(host.gpus_used, host.gpus)),
        ("VCPUS", |host| share(host.used.vcpus, host.total.vcpus)),
        ("RAM MIB", |host| share(host.used.ram_mib, host.total.ram_mib)),
    ];
    const MORE: &'static [Column<Self>] = &[
        ("DISK GIB", |host| share(host.used.disk_gib, host.total.disk_gib)),
        ("GPU MODEL", |host| maybe(host.gpu_model.as_ref())),
        ("VM IDS", |host| joined(&host.vms)),
    ];
}

impl Row for NicView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NAME", |nic| nic.name.to_string()),
        ("PATH", |nic| word(&nic.path)),
        ("FABRIC", |nic| nic.fabric.to_string()),
        ("RAIL", |nic| maybe(nic.rail.as_ref())),
        ("LEAF", |nic| maybe(nic.leaf.as_ref())),
        ("RATE MB/S", |nic| share(nic.rate_used_mbps, nic.rate_mbps)),
        ("VFS", |nic| share(nic.vfs_used, nic.vfs)),
        ("NEIGHBOUR", |nic| maybe(nic.cable.as_ref().and_then(|cable| cable.neighbour.as_ref()))),
        ("NOT AS EXPECTED", |nic| nic.differs.join("; ")),
    ];
}

impl Row for VfView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NIC", |vf| vf.nic.to_string()),
        ("VF", |vf| vf.vf.to_string()),
        ("STATE", |vf| word(&vf.state)),
        ("PLACEMENT", |vf| vf.placement.clone().unwrap_or_default()),
        ("RATE MB/S", |vf| maybe(vf.rate_mbps.as_ref())),
    ];
}

impl Run for Command {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::List { region } => {
                let hosts = kind::all(session, &region.path(session)?, &[])?;
                kind::print_all::<HostView>(session, &hosts)
            }
            Self::Show(host) => {
                let value: Value = session.get(&host.path(session)?)?;
                kind::print_it::<HostView>(session, &value)
            }
            Self::Nics(host) => within::<NicView>(session, &host, "nics"),
            Self::Vfs(host) => within::<VfView>(session, &host, "vfs"),
            Self::Token(host) => token(session, &host),
            Self::Drain(host) => drain(session, &host, true),
            Self::Open(host) => drain(session, &host, false),
            Self::Forget(host) => {
                session.client.delete::<Value>(&host.path(session)?)?;
                kind::print_deleted(session, &format!("host {}", host.host), true)
            }
        }
    }
}

/// What a host has; the API gives all of it at once.
fn within<T: Row + serde::de::DeserializeOwned>(
    session: &Session,
    host: &Host,
    what: &str,
) -> Result<(), Failure> {
    let value: Value = session.get(&format!("{}/{what}", host.path(session)?))?;
    kind::print_all::<T>(session, &kind::read::<Vec<Value>>(&value["items"])?)
}

/// Asked for once only: the server keeps no answer that has a secret in it.
fn token(session: &Session, host: &Host) -> Result<(), Failure> {
    let path = format!("{}/token", host.path(session)?);
    let made: Value = session.client.post(&path, &json!({}))?.body;
    if session.json {
        return print_json(&made);
    }
    let until = made["expires_at"].as_str().unwrap_or_default();
    note(format!("It enrols host {} once, until {until}:", host.host));
    print(made["token"].as_str().unwrap_or_default())
}

fn drain(session: &Session, host: &Host, drain: bool) -> Result<(), Failure> {
    let path = format!("{}/drain", host.path(session)?);
    let now: Value = session.client.put(&path, &json!({ "drain": drain }))?.body;
    kind::print_it::<HostView>(session, &now)
}
