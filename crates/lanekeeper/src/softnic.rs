//! `lanekeeper softnic`: run a software NIC, show those that run, change their VFs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use lanekeeper_hw::Hardware;
use lanekeeper_model::{
    LinkState, MacAddr, Mbps, Mtu, Pcp, PfId, SoftNicName, VfChange, VfIndex, VlanChange, VlanId,
    VlanProtocol, parse_address,
};
use lanekeeper_softnic::uplink::{UplinkConfig, obstacle};
use lanekeeper_softnic::{Config, Nic};

use crate::output::{note, print};
use crate::{Failure, values};
use ending::Ending;
use place::Where;

mod ending;
mod place;
mod roce;
mod show;

/// Run a software NIC, or look at and change those that run.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
#[command(after_help = "Run one in the foreground with --config FILE; end it with Ctrl-C or \
SIGTERM. VMs attach to the sockets vf0.sock, vf1.sock, ... in its folder (run_dir in the file, by \
default /run/lanekeeper/softnic/NAME). What `set` and `scrub` change is kept when the NIC is started \
again, until the file says something else for that VF. What the file names but the host does not \
have, an uplink or free file descriptors, is exit code 1, not 2: the file is right, and the next \
start may find it.")]
pub(crate) struct Args {
    /// Run the software NIC that this file describes (TOML).
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    config: Option<PathBuf>,
    /// Start with the settings of the file alone, and forget what was set at run time.
    #[arg(long, requires = "config")]
    fresh: bool,
    /// Only check this file and print what it means.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    check: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Show software NICs: VFs, settings, link, counters.
    Show {
        /// Only this one.
        name: Option<SoftNicName>,
        /// Only this VF of it.
        #[arg(value_parser = values::vf)]
        vf: Option<VfIndex>,
        #[command(flatten)]
        form: show::Form,
        #[command(flatten)]
        place: Where,
    },
    /// Change one VF of a running software NIC; what is not named stays as it is.
    Set(Box<Set>),
    /// Bring one VF to the fixed safe state: no MAC, no VLAN, link disabled.
    Scrub {
        /// Which software NIC.
        name: SoftNicName,
        /// Which VF.
        #[arg(value_parser = values::vf)]
        vf: VfIndex,
        #[command(flatten)]
        place: Where,
    },
}

#[derive(clap::Args)]
struct Set {
    /// Which software NIC.
    name: SoftNicName,
    /// Which VF.
    #[arg(value_parser = values::vf)]
    vf: VfIndex,
    /// Administrative MAC; 00:00:00:00:00:00 takes it away.
    #[arg(long)]
    mac: Option<MacAddr>,
    /// Access VLAN, 1..=4094; 0 takes the tag away.
    #[arg(long, value_parser = values::number(VlanId::new))]
    vlan: Option<VlanId>,
    /// Priority of the access tag, 0..=7.
    #[arg(long, value_parser = values::number(Pcp::new))]
    pcp: Option<Pcp>,
    /// Kind of access tag: 802.1Q or 802.1ad.
    #[arg(long)]
    protocol: Option<VlanProtocol>,
    /// Drop what does not come from the VF's own addresses.
    #[arg(long, value_name = "on|off", value_parser = values::switch)]
    spoofchk: Option<bool>,
    /// IP addresses the VF may speak for, comma-separated; "any" unbinds.
    #[arg(long, value_name = "IP,...|any", value_parser = addresses)]
    addresses: Option<Addresses>,
    /// The VM may use further MACs, promiscuous mode and its own VLAN tags.
    #[arg(long, value_name = "on|off", value_parser = values::switch)]
    trust: Option<bool>,
    /// auto, enable or disable.
    #[arg(long)]
    link_state: Option<LinkState>,
    /// Guaranteed rate in Mb/s; 0 for none.
    #[arg(long, value_name = "MBPS", value_parser = values::mbps)]
    min_rate: Option<Mbps>,
    /// Greatest rate in Mb/s; 0 for none.
    #[arg(long, value_name = "MBPS", value_parser = values::mbps)]
    max_rate: Option<Mbps>,
    /// Largest packet in bytes.
    #[arg(long, value_parser = values::number(Mtu::new))]
    mtu: Option<Mtu>,
    #[command(flatten)]
    place: Where,
}

/// Addresses that a VF is bound to; none unbinds it.
#[derive(Clone)]
struct Addresses(Vec<IpAddr>);

fn addresses(text: &str) -> Result<Addresses, String> {
    if text == "any" {
        return Ok(Addresses(Vec::new()));
    }
    let parsed = text.split(',').map(parse_address).collect::<Result<_, _>>();
    parsed.map(Addresses).map_err(|error| error.to_string())
}

/// Run the sub-command.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match (args.command, args.check, args.config) {
        (Some(Command::Show { name, vf, form, place }), ..) => {
            show::show(name.as_ref(), vf, form, &place)
        }
        (Some(Command::Set(set)), ..) => change(&set),
        (Some(Command::Scrub { name, vf, place }), ..) => scrub(name, vf, &place),
        (None, Some(file), _) => check(&file),
        (None, None, Some(file)) => serve(&file, args.fresh),
        (None, None, None) => Err(Failure::Usage("name a file with --config".to_owned())),
    }
}

fn load(file: &Path) -> Result<Config, Failure> {
    Config::load(file).map_err(|error| Failure::Usage(error.to_string()))
}

/// Print what a file means, and warn of what it needs and this host lacks now.
fn check(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    let settings = config.initial_settings().map_err(|error| Failure::Usage(error.to_string()))?;
    let uplink = match &config.uplink {
        UplinkConfig::None => "none".to_owned(),
        UplinkConfig::Tap { name, mtu } => {
            let mtu = mtu.map(|mtu| format!(" of MTU {mtu}")).unwrap_or_default();
            format!("TAP {name}{mtu}")
        }
        UplinkConfig::Packet { interface } => format!("packet sockets on {interface}"),
    };
    print(format!(
        "{} is well-formed\nsoftnic:{}: {}, uplink {uplink}, {}, sockets in {}\n{}",
        file.display(),
        config.name,
        show::vf_count(config.vfs),
        workers(&config.cpus),
        config.run_dir().display(),
        show::configured(&settings)
    ))?;
    if let Some(problem) = obstacle(&config.uplink) {
        note(format!("warning: the NIC would not start now: {problem}"));
    }
    Ok(())
}

fn workers(cpus: &[usize]) -> String {
    let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    match cpus.len() {
        0 => "1 worker on any core".to_owned(),
        1 => format!("1 worker on core {}", list.join("")),
        more => format!("{more} workers on cores {}", list.join(", ")),
    }
}

fn serve(file: &Path, fresh: bool) -> Result<(), Failure> {
    let config = load(file)?;
    // Before any thread is there, so that none misses the signal.
    let mut ending = Ending::register()
        .map_err(|error| Failure::Work(format!("cannot wait for signals: {error}")))?;
    let name = config.name.clone();
    let started = if fresh { Nic::start_fresh(config) } else { Nic::start(config) };
    let nic = started.map_err(|error| Failure::Work(error.to_string()))?;
    tracing::info!(%name, run_dir = %nic.run_dir().display(), "software NIC runs");
    ending.wait();
    tracing::info!(%name, "stopping");
    nic.stop();
    Ok(())
}

fn change(set: &Set) -> Result<(), Failure> {
    let vlan = VlanChange { id: set.vlan, pcp: set.pcp, protocol: set.protocol };
    let change = VfChange {
        mac: set.mac,
        vlan: (vlan != VlanChange::default()).then_some(vlan),
        spoofchk: set.spoofchk,
        addresses: set.addresses.clone().map(|addresses| addresses.0),
        trust: set.trust,
        link_state: set.link_state,
        min_rate: set.min_rate,
        max_rate: set.max_rate,
        mtu: set.mtu,
    };
    if change == VfChange::default() {
        return Err(Failure::Usage("nothing to change: name at least one setting".to_owned()));
    }
    let nic = set.place.named(&set.name)?;
    let pf = PfId::Soft(set.name.clone());
    let status = nic.client.set_vf(&pf, set.vf, &change).map_err(|error| nic.failed(&error))?;
    print(format!("{pf}\n{}", show::changed(&status)))
}

fn scrub(name: SoftNicName, vf: VfIndex, place: &Where) -> Result<(), Failure> {
    let nic = place.named(&name)?;
    let pf = PfId::Soft(name);
    let status = nic.client.scrub(&pf, vf).map_err(|error| nic.failed(&error))?;
    print(format!("VF {vf} of {pf} is scrubbed: link {}", status.settings.link_state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_addresses_are_listed_without_prefix_length_or_unbound_by_any() {
        let list = addresses("10.0.0.2,fd00::2").expect("valid").0;
        assert_eq!(list.len(), 2);
        assert!(addresses("any").expect("valid").0.is_empty());
        let said = addresses("10.0.0.2,10.0.0.3/24").err().expect("a network");
        assert!(said.contains("'10.0.0.3/24'") && said.contains("prefix length"), "{said}");
    }
}
