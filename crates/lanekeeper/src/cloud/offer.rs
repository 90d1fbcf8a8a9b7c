//! `lanekeeper flavor`, `image` and `region`: what the operator offers.

use clap::Subcommand;
use ipnet::Ipv4Net;
use lanekeeper_control::keys::{FabricName, RegionName};
use lanekeeper_control::protocol::{self, ImageFormat};
use lanekeeper_control::resource::{self, FlavorResource, ImageResource, VlanRange};
use lanekeeper_host::RdmaNeed;
use lanekeeper_topology::Distance;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connect::Session;
use super::kind;
use super::table::{Column, Row, word};
use super::words::{DISTANCES, FORMATS, RDMA, one_of};
use super::{Common, Run};
use crate::Failure;

#[derive(Subcommand)]
pub(crate) enum Flavor {
    /// A new flavor.
    Create(Box<NewFlavor>),
    #[command(flatten)]
    Common(Common),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewFlavor {
    /// Name.
    name: String,
    /// CPUs, as threads.
    #[arg(long, value_name = "THREADS")]
    vcpus: u32,
    /// Memory in MiB.
    #[arg(long = "ram", value_name = "MIB")]
    ram_mib: u64,
    /// Local disk in GiB.
    #[arg(long = "disk", value_name = "GIB", default_value_t = 0)]
    disk_gib: u64,
    /// GPUs.
    #[arg(long, value_name = "COUNT", requires = "gpu_model")]
    #[serde(skip)]
    gpus: Option<u32>,
    /// Model of the GPUs, as agents report it.
    #[arg(long, value_name = "MODEL", requires = "gpus")]
    #[serde(skip)]
    gpu_model: Option<String>,
    /// VFs.
    #[arg(long, value_name = "COUNT")]
    #[serde(skip)]
    vfs: Option<u32>,
    #[command(flatten)]
    #[serde(skip)]
    each_vf: EachVf,
    /// It is meant for RoCE between VMs.
    #[arg(long)]
    network_optimised: bool,
    /// A label; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    #[serde(skip)]
    labels: Vec<(String, String)>,
}

/// What each VF of a flavor is.
#[derive(clap::Args, Serialize)]
struct EachVf {
    /// The rate that is set aside for each VF, in Mb/s.
    #[arg(long = "vf-rate", value_name = "MBPS", requires = "vfs", default_value_t = 0)]
    rate_mbps: u32,
    /// The RDMA that the VFs are for [default: none].
    #[arg(long, requires = "vfs", value_parser = one_of::<RdmaNeed>(RDMA))]
    rdma: Option<RdmaNeed>,
    /// How far from the GPUs the VFs may be; the nearest are taken in any case [default: SYS].
    #[arg(long, requires = "vfs", value_parser = one_of::<Distance>(DISTANCES))]
    farthest: Option<Distance>,
    /// The k-th VF of each VM is to be on the same rail.
    #[arg(long, requires = "vfs")]
    rail_aligned: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("'{text}' is no NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

impl NewFlavor {
    fn body(&self) -> Result<Map<String, Value>, Failure> {
        let mut body = kind::body(self)?;
        if let (Some(count), Some(model)) = (self.gpus, &self.gpu_model) {
            body.insert("gpus".to_owned(), json!({ "model": model, "count": count }));
        }
        if let Some(count) = self.vfs {
            let mut vfs = kind::body(&self.each_vf)?;
            vfs.insert("count".to_owned(), count.into());
            body.insert("vfs".to_owned(), vfs.into());
        }
        let labels = self.labels.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        body.insert("labels".to_owned(), labels.collect::<Map<_, _>>().into());
        Ok(body)
    }
}

impl Row for FlavorResource {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |flavor| flavor.id.to_string()),
        ("NAME", |flavor| flavor.spec.name.clone()),
        ("VCPUS", |flavor| flavor.spec.vcpus.to_string()),
        ("RAM MIB", |flavor| flavor.spec.ram_mib.to_string()),
        ("DISK GIB", |flavor| flavor.spec.disk_gib.to_string()),
        ("GPUS", |flavor| {
            let gpus = flavor.spec.gpus.as_ref();
            gpus.map(|gpus| format!("{} x {}", gpus.count, gpus.model)).unwrap_or_default()
        }),
        ("VFS", |flavor| {
            let vfs = flavor.spec.vfs.as_ref();
            vfs.map(|vfs| format!("{} x {} Mb/s", vfs.count, vfs.rate_mbps)).unwrap_or_default()
        }),
    ];
    const MORE: &'static [Column<Self>] = &[
        ("RDMA", |flavor| flavor.spec.vfs.as_ref().map(|vfs| word(&vfs.rdma)).unwrap_or_default()),
        ("FARTHEST", |flavor| {
            flavor.spec.vfs.as_ref().map(|vfs| word(&vfs.farthest)).unwrap_or_default()
        }),
        ("NETWORK OPTIMISED", |flavor| {
            if flavor.spec.network_optimised { "yes" } else { "no" }.to_owned()
        }),
        ("CREATED", |flavor| flavor.created_at.to_string()),
    ];
}

impl Run for Flavor {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => kind::create_shown::<FlavorResource>(session, args.body()?),
            Self::Common(common) => common.run::<FlavorResource>(session),
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum Image {
    /// A new image.
    Create(Box<NewImage>),
    #[command(flatten)]
    Common(Common),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewImage {
    /// Name.
    name: String,
    /// The small guest that Lanekeeper builds itself.
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    #[serde(skip)]
    builtin: bool,
    /// A disk with a boot loader: a file's name in the hosts' image folder.
    #[arg(long, requires = "format")]
    #[serde(skip)]
    file: Option<String>,
    /// The disk's format.
    #[arg(long, requires = "file", value_parser = one_of::<ImageFormat>(FORMATS))]
    #[serde(skip)]
    format: Option<ImageFormat>,
    /// Where a host gets the disk from if it does not have it.
    #[arg(long, requires_all = ["file", "sha256"])]
    #[serde(skip)]
    url: Option<String>,
    /// What the disk must be: the SHA-256 of it, in hexadecimal digits.
    #[arg(long, value_name = "DIGITS", requires = "file")]
    #[serde(skip)]
    sha256: Option<String>,
    /// Its operating system, as debian.
    #[arg(long)]
    os: Option<String>,
    /// The operating system's version.
    #[arg(long, value_name = "VERSION")]
    #[serde(rename = "version")]
    os_version: Option<String>,
    /// What it is, for people.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

impl NewImage {
    fn source(self) -> protocol::Image {
        let Self { file, format, url, sha256, .. } = self;
        match file.zip(format) {
            Some((file, format)) => protocol::Image::Disk { file, format, url, sha256 },
            None => protocol::Image::Builtin,
        }
    }
}

impl Row for ImageResource {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |image| image.id.to_string()),
        ("NAME", |image| image.spec.name.clone()),
        ("OS", |image| format!("{} {}", image.spec.os, image.spec.version).trim().to_owned()),
        ("SOURCE", |image| match &image.spec.source {
            protocol::Image::Builtin => "built in".to_owned(),
            protocol::Image::Disk { file, .. } => file.clone(),
        }),
        ("CREATED", |image| image.created_at.to_string()),
    ];
    const MORE: &'static [Column<Self>] =
        &[("DESCRIPTION", |image| image.spec.description.clone())];
}

impl Run for Image {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => {
                let mut body = kind::body(&*args)?;
                body.insert("source".to_owned(), json!(args.source()));
                kind::create_shown::<ImageResource>(session, body)
            }
            Self::Common(common) => common.run::<ImageResource>(session),
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum Region {
    /// A new region.
    Create(NewRegion),
    #[command(flatten)]
    Common(Common),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewRegion {
    /// Name.
    name: RegionName,
    /// The fabric that networks are on: that which agents report.
    #[arg(long, value_name = "NAME")]
    fabric: FabricName,
    /// VLANs for networks, as 100-999.
    #[arg(long, value_name = "FROM-TO", value_parser = vlans)]
    vlans: VlanRange,
    /// Addresses for subnets, as 10.64.0.0/12.
    #[arg(long, value_name = "CIDR")]
    addresses: Ipv4Net,
    /// What it is, for people.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// The country it is in, for people.
    #[arg(long, value_name = "TEXT")]
    country: Option<String>,
}

fn vlans(text: &str) -> Result<VlanRange, String> {
    let both = text.split_once('-').map(|(from, to)| (from.parse(), to.parse()));
    match both {
        Some((Ok(from), Ok(to))) => Ok(VlanRange { from, to }),
        _ => Err(format!("'{text}' is no range of VLANs, as 100-999")),
    }
}

impl Row for resource::Region {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |region| region.id.to_string()),
        ("NAME", |region| region.name.to_string()),
        ("FABRIC", |region| region.fabric.to_string()),
        ("VLANS", |region| format!("{}-{}", region.vlans.from, region.vlans.to)),
        ("ADDRESSES", |region| region.addresses.to_string()),
        ("COUNTRY", |region| region.country.clone()),
        ("DESCRIPTION", |region| region.description.clone()),
    ];
}

impl Run for Region {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => {
                kind::create_shown::<resource::Region>(session, kind::body(&args)?)
            }
            Self::Common(common) => common.run::<resource::Region>(session),
        }
    }
}
