//! `lanekeeper network` and `lanekeeper subnet`: cluster networks and their subnets.

use std::net::Ipv4Addr;

use clap::Subcommand;
use ipnet::Ipv4Net;
use lanekeeper_control::resource::{self, Environment, Profile, RoceVersion};
use serde::Serialize;

use super::connect::Session;
use super::kind::{self, Which};
use super::table::{Column, Row, maybe, word};
use super::words::{PROFILES, ROCE_VERSIONS, one_of};
use super::{Common, One, Run};
use crate::Failure;

#[derive(Subcommand)]
pub(crate) enum Network {
    /// A new network, with its subnets.
    Create(NewNetwork),
    #[command(flatten)]
    Common(Common),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewNetwork {
    /// Name, unique in the organization.
    name: String,
    /// The environment that it is to be of, by name or id.
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    environment: Which,
    /// What its path must do: RoCE beside ordinary traffic, ordinary traffic alone, or InfiniBand
    /// [default: roce].
    #[arg(long, value_parser = one_of::<Profile>(PROFILES))]
    profile: Option<Profile>,
    /// Version of RoCE that its VMs use [default: v2].
    #[arg(long, value_name = "VERSION", value_parser = one_of::<RoceVersion>(ROCE_VERSIONS))]
    roce: Option<RoceVersion>,
    /// MTU of its ports in bytes, 1280 to 9000 [default: 4200].
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
    /// How many rails it has: a subnet is made for each [default: 1].
    #[arg(long)]
    rails: Option<u16>,
    /// Its subnets reach each other by a router of the fabric.
    #[arg(long)]
    routed: bool,
    /// The first subnet, as 192.168.7.0/24; the others follow it. From the region's addresses if not
    /// given.
    #[arg(long)]
    cidr: Option<Ipv4Net>,
}

impl Row for resource::Network {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |network| network.id.to_string()),
        ("NAME", |network| network.name.clone()),
        ("PROFILE", |network| word(&network.profile)),
        ("ROCE", |network| match network.profile {
            Profile::Roce => word(&network.roce),
            Profile::Ethernet | Profile::Infiniband => String::new(),
        }),
        ("VLAN", |network| maybe(network.vlan.as_ref())),
        ("MTU", |network| network.mtu.to_string()),
        ("ROUTED", |network| if network.routed { "yes" } else { "no" }.to_owned()),
        ("ENVIRONMENT", |network| network.environment.to_string()),
        ("REGION", |network| network.region.to_string()),
    ];
    const MORE: &'static [Column<Self>] = &[
        ("FABRIC", |network| network.fabric.to_string()),
        ("PARTITION", |network| maybe(network.partition.as_ref())),
        ("CREATED", |network| network.created_at.to_string()),
    ];
}

impl Run for Network {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let args = match self {
            Self::Create(args) => args,
            Self::Common(common) => return common.run::<resource::Network>(session),
        };
        let mut body = kind::body(&args)?;
        let environment = kind::id_of::<Environment>(session, &args.environment)?;
        body.insert("environment".to_owned(), environment.into());
        kind::create_shown::<resource::Network>(session, body)
    }
}

#[derive(Subcommand)]
pub(crate) enum Subnet {
    /// One more subnet of a network.
    Create(NewSubnet),
    /// List all.
    List,
    /// Delete one, by its id: it has no name.
    Delete(One),
}

#[derive(clap::Args, Serialize)]
pub(crate) struct NewSubnet {
    /// The network that it is to be of, by name or id.
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    network: Which,
    /// Its addresses, as 192.168.7.0/24; from the region's if not given.
    #[arg(long)]
    cidr: Option<Ipv4Net>,
    /// The router to other subnets: an address of its own, that no port gets.
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<Ipv4Addr>,
    /// The rail that it is for.
    #[arg(long)]
    rail: Option<u16>,
}

impl Row for resource::Subnet {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |subnet| subnet.id.to_string()),
        ("NETWORK", |subnet| subnet.network.to_string()),
        ("CIDR", |subnet| subnet.cidr.to_string()),
        ("GATEWAY", |subnet| maybe(subnet.gateway.as_ref())),
        ("RAIL", |subnet| maybe(subnet.rail.as_ref())),
        ("CREATED", |subnet| subnet.created_at.to_string()),
    ];
}

impl Run for Subnet {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Create(args) => {
                let mut body = kind::body(&args)?;
                let network = kind::id_of::<resource::Network>(session, &args.network)?;
                body.insert("network".to_owned(), network.into());
                kind::create_shown::<resource::Subnet>(session, body)
            }
            Self::List => kind::list::<resource::Subnet>(session),
            Self::Delete(One { which }) => kind::delete::<resource::Subnet>(session, &which),
        }
    }
}
