//! `lanekeeper softnic`: run a software NIC, show those that run, change their VFs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use comfy_table::{Table, presets};
use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{
    LinkState, MacAddr, Mbps, Mtu, Pcp, PfId, SoftNicName, VfChange, VfCounters, VfIndex, VfStatus,
    VlanChange, VlanId, VlanProtocol, VlanTag,
};
use lanekeeper_softnic::{Client, Config, Nic, RUN_ROOT};
use serde::Serialize;

use crate::Failure;

/// Run a software NIC, or look at and change those that run.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Run one in the foreground with --config FILE; end it with Ctrl-C or \
SIGTERM. VMs attach to the sockets vf0.sock, vf1.sock, ... in its folder (run_dir in the file, by \
default /run/lanekeeper/softnic/NAME).")]
pub(crate) struct Args {
    /// Run the software NIC that this file describes (TOML).
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    config: Option<PathBuf>,
    /// Only check this file and print what it means.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    check: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Args)]
struct Where {
    /// Folder that holds one folder for each software NIC.
    #[arg(long, value_name = "DIR", default_value = RUN_ROOT)]
    run_root: PathBuf,
    /// Folder of one software NIC, where it is not under the usual root.
    #[arg(long, value_name = "DIR", conflicts_with = "run_root")]
    run_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Show software NICs: VFs, settings, link, counters.
    Show {
        /// Only this one.
        name: Option<SoftNicName>,
        /// As JSON.
        #[arg(long)]
        json: bool,
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
        #[arg(value_parser = parse_vf)]
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
    #[arg(value_parser = parse_vf)]
    vf: VfIndex,
    /// Administrative MAC; 00:00:00:00:00:00 takes it away.
    #[arg(long)]
    mac: Option<MacAddr>,
    /// Access VLAN, 1..=4094; 0 for none.
    #[arg(long, value_parser = number(VlanId::new))]
    vlan: Option<VlanId>,
    /// Priority of the access tag, 0..=7.
    #[arg(long, value_parser = number(Pcp::new))]
    pcp: Option<Pcp>,
    /// Kind of access tag: 802.1Q or 802.1ad.
    #[arg(long)]
    protocol: Option<VlanProtocol>,
    /// Drop what does not come from the VF's own addresses.
    #[arg(long, value_name = "on|off", value_parser = parse_switch)]
    spoofchk: Option<bool>,
    /// IP addresses the VF may speak for, comma-separated; "any" unbinds.
    #[arg(long, value_name = "IP,...|any", value_parser = parse_addresses)]
    addresses: Option<Addresses>,
    /// The VM may use further MACs, promiscuous mode and its own VLAN tags.
    #[arg(long, value_name = "on|off", value_parser = parse_switch)]
    trust: Option<bool>,
    /// auto, enable or disable.
    #[arg(long)]
    link_state: Option<LinkState>,
    /// Guaranteed rate in Mb/s; 0 for none.
    #[arg(long, value_name = "MBPS")]
    min_rate: Option<u32>,
    /// Greatest rate in Mb/s; 0 for none.
    #[arg(long, value_name = "MBPS")]
    max_rate: Option<u32>,
    /// Largest packet in bytes.
    #[arg(long, value_parser = number(Mtu::new))]
    mtu: Option<Mtu>,
    #[command(flatten)]
    place: Where,
}

fn number<T: Clone + Send + Sync + 'static>(
    make: fn(u32) -> Result<T, lanekeeper_model::ModelError>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = text.parse::<u32>().map_err(|error| error.to_string())?;
        make(value).map_err(|error| error.to_string())
    }
}

fn parse_vf(text: &str) -> Result<VfIndex, String> {
    number(VfIndex::new)(text)
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("use on or off".to_owned()),
    }
}

#[derive(Clone)]
struct Addresses(Vec<IpAddr>);

fn parse_addresses(text: &str) -> Result<Addresses, String> {
    if text == "any" {
        return Ok(Addresses(Vec::new()));
    }
    let parse =
        |part: &str| part.trim().parse().map_err(|_| format!("'{part}' is not an IP address"));
    text.split(',').map(parse).collect::<Result<_, _>>().map(Addresses)
}

/// Run the sub-command.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match (args.command, args.check, args.config) {
        (Some(Command::Show { name, json, place }), ..) => show(name.as_ref(), json, &place),
        (Some(Command::Set(set)), ..) => {
            let client = client(&set.place, Some(&set.name))?;
            change(&client, &set)
        }
        (Some(Command::Scrub { name, vf, place }), ..) => {
            let client = client(&place, Some(&name))?;
            let status = client.scrub(&PfId::Soft(name), vf).map_err(failed)?;
            println!("VF {vf} is scrubbed: link {}", status.settings.link_state);
            Ok(())
        }
        (None, Some(file), _) => check(&file),
        (None, None, Some(file)) => serve(&file),
        (None, None, None) => Err(Failure::Usage("name a file with --config".to_owned())),
    }
}

fn load(file: &Path) -> Result<Config, Failure> {
    Config::load(file).map_err(|error| Failure::Usage(error.to_string()))
}

fn check(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    println!("{} is well-formed: {} with {} VFs", file.display(), config.name, config.vfs);
    Ok(())
}

fn serve(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    // Before any thread is there, so that none misses the signal.
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
    ])
    .map_err(|error| Failure::Work(format!("cannot wait for signals: {error}")))?;
    let name = config.name.clone();
    let nic = Nic::start(config).map_err(|error| Failure::Work(error.to_string()))?;
    tracing::info!(%name, run_dir = %nic.run_dir().display(), "software NIC runs");
    signals.forever().next();
    tracing::info!(%name, "stopping");
    nic.stop();
    Ok(())
}

fn client(place: &Where, name: Option<&SoftNicName>) -> Result<Client, Failure> {
    let client = match &place.run_dir {
        Some(dir) => {
            let named = name.cloned().map_or_else(|| name_of(dir), Ok)?;
            Client::for_run_dir(named, dir)
        }
        None => Client::discover(&place.run_root).map_err(|error| {
            Failure::Work(format!("cannot look into {}: {error}", place.run_root.display()))
        })?,
    };
    match name {
        Some(name) if !client.names().any(|known| known == name) => Err(Failure::Work(format!(
            "no software NIC '{name}' under {}; `lanekeeper softnic show` lists those that run",
            place.run_root.display()
        ))),
        _ => Ok(client),
    }
}

fn name_of(dir: &Path) -> Result<SoftNicName, Failure> {
    let last = dir.file_name().unwrap_or_default().to_string_lossy();
    last.parse().map_err(|error: lanekeeper_model::ModelError| Failure::Usage(error.to_string()))
}

#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
fn failed(error: HardwareError) -> Failure {
    Failure::Work(error.to_string())
}

fn change(client: &Client, set: &Set) -> Result<(), Failure> {
    let pf = PfId::Soft(set.name.clone());
    let vlan = VlanChange { id: set.vlan, pcp: set.pcp, protocol: set.protocol };
    let change = VfChange {
        mac: set.mac,
        vlan: (vlan != VlanChange::default()).then_some(vlan),
        spoofchk: set.spoofchk,
        addresses: set.addresses.clone().map(|addresses| addresses.0),
        trust: set.trust,
        link_state: set.link_state,
        min_rate: set.min_rate.map(Mbps),
        max_rate: set.max_rate.map(Mbps),
        mtu: set.mtu,
    };
    if change == VfChange::default() {
        return Err(Failure::Usage("nothing to change: name at least one setting".to_owned()));
    }
    let status = client.set_vf(&pf, set.vf, &change).map_err(failed)?;
    println!("{}", vf_table(&[(status, VfCounters::default())], false));
    Ok(())
}

#[derive(Serialize)]
struct ShownVf {
    #[serde(flatten)]
    status: VfStatus,
    counters: VfCounters,
}

#[derive(Serialize)]
struct ShownNic {
    #[serde(flatten)]
    pf: PfStatus,
    vfs: Vec<ShownVf>,
}

fn show(name: Option<&SoftNicName>, json: bool, place: &Where) -> Result<(), Failure> {
    let client = client(place, name)?;
    let names: Vec<SoftNicName> =
        client.names().filter(|known| name.is_none_or(|name| name == *known)).cloned().collect();
    let mut shown = Vec::new();
    let client: Arc<dyn Hardware> = Arc::new(client);
    for nic in names {
        match read_nic(&*client, &nic) {
            Ok(nic) => shown.push(nic),
            // A folder that a killed process left is no NIC; one that was asked for by name is.
            Err(HardwareError::Io { .. }) if name.is_none() && place.run_dir.is_none() => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if json {
        let text = serde_json::to_string_pretty(&shown)
            .map_err(|error| Failure::Work(error.to_string()))?;
        println!("{text}");
        return Ok(());
    }
    if shown.is_empty() {
        println!("no software NIC runs under {}", place.run_root.display());
    }
    for nic in &shown {
        println!("{}", describe_pf(&nic.pf));
        let rows: Vec<_> =
            nic.vfs.iter().map(|vf| (vf.status.clone(), vf.counters.clone())).collect();
        println!("{}", vf_table(&rows, true));
    }
    Ok(())
}

fn read_nic(hardware: &dyn Hardware, name: &SoftNicName) -> Result<ShownNic, HardwareError> {
    let id = PfId::Soft(name.clone());
    let pf = hardware
        .pfs()?
        .into_iter()
        .find(|pf| pf.pf == id)
        .ok_or_else(|| HardwareError::NoPf(id.clone()))?;
    let vfs = VfIndex::first(pf.num_vfs)
        .map(|vf| {
            Ok(ShownVf { status: hardware.vf(&id, vf)?, counters: hardware.counters(&id, vf)? })
        })
        .collect::<Result<_, HardwareError>>()?;
    Ok(ShownNic { pf, vfs })
}

fn describe_pf(pf: &PfStatus) -> String {
    let uplink = pf.uplink.as_deref().unwrap_or("none");
    let link = if pf.link_up { "up" } else { "down" };
    format!(
        "{}: {} VFs, uplink {uplink} ({link}), sent {} frames, received {}",
        pf.pf, pf.num_vfs, pf.tx.frames, pf.rx.frames
    )
}

fn vf_table(rows: &[(VfStatus, VfCounters)], counters: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let mut header = vec!["VF", "MAC", "VLAN", "checks", "link", "rate Mb/s", "MTU", "driver"];
    if counters {
        header.extend(["sent", "received", "dropped"]);
    }
    table.set_header(header);
    for (status, counted) in rows {
        let mut row = settings_cells(status);
        if counters {
            row.extend(counter_cells(counted));
        }
        table.add_row(row);
    }
    table
}

fn settings_cells(status: &VfStatus) -> Vec<String> {
    let settings = &status.settings;
    let mac = if settings.mac.is_zero() { "-".to_owned() } else { settings.mac.to_string() };
    let vlan = match settings.vlan {
        tag if !tag.id.is_some() => "-".to_owned(),
        VlanTag { id, pcp, protocol: VlanProtocol::Dot1Q } => format!("{id} pcp {pcp}"),
        VlanTag { id, pcp, protocol } => format!("{id} pcp {pcp} {protocol}"),
    };
    let mut checks = vec![if settings.spoofchk { "spoofchk" } else { "none" }.to_owned()];
    checks.extend(settings.addresses.iter().map(ToString::to_string));
    if settings.trust {
        checks.push("trusted".to_owned());
    }
    let link = format!("{} ({})", settings.link_state, if status.link_up { "up" } else { "down" });
    let driver = match (&status.stopped, status.attached) {
        (Some(reason), _) => format!("stopped: {reason}"),
        (None, true) => "attached".to_owned(),
        (None, false) => "-".to_owned(),
    };
    let rate = match (settings.rate.min.0, settings.rate.max.0) {
        (0, 0) => "-".to_owned(),
        (min, 0) => format!("{min}.."),
        (min, max) => format!("{min}..{max}"),
    };
    vec![
        status.vf.to_string(),
        mac,
        vlan,
        checks.join("\n"),
        link,
        rate,
        settings.mtu.to_string(),
        driver,
    ]
}

fn counter_cells(counters: &VfCounters) -> Vec<String> {
    let drops = counters
        .tx_drops
        .iter()
        .map(|(reason, count)| format!("tx {reason} {count}"))
        .chain(counters.rx_drops.iter().map(|(reason, count)| format!("rx {reason} {count}")));
    let mut drops: Vec<String> = drops.collect();
    if counters.ring_faults != 0 {
        drops.push(format!("ring faults {}", counters.ring_faults));
    }
    vec![
        format!("{} frames\n{} B", counters.tx.frames, counters.tx.bytes),
        format!("{} frames\n{} B", counters.rx.frames, counters.rx.bytes),
        if drops.is_empty() { "-".to_owned() } else { drops.join("\n") },
    ]
}
