//! `lanekeeper softnic show`: what the software NICs of this host say of themselves, as a table or as
//! JSON. Each is asked alone and all at once, so that one which is dead or hangs costs the others
//! nothing.

use std::io::ErrorKind;
use std::path::Path;

use comfy_table::{Table, presets};
use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{
    PfId, SoftNicName, VfCounters, VfIndex, VfSettings, VfStatus, VlanProtocol, VlanTag,
};
use lanekeeper_softnic::{Client, RoceReport};
use serde::Serialize;

use super::place::{Where, explain, silence};
use crate::Failure;
use crate::output::{note, print};

/// What is shown, and how.
#[derive(Clone, Copy, clap::Args)]
pub(super) struct Form {
    /// As JSON.
    #[arg(long, conflicts_with = "metrics")]
    json: bool,
    /// RoCE as well: packets, messages, what was sent again, NAKs, CNPs and ECN marks by VF, and the queue
    /// pairs that send most, with their round trips.
    #[arg(long)]
    roce: bool,
    /// Counters alone, RoCE among them, as Prometheus has them.
    #[arg(long)]
    metrics: bool,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    roce: Option<Box<RoceReport>>,
}

/// What a folder's name says that its NIC is called, written as a PF is.
#[derive(Serialize)]
struct Called {
    soft: String,
}

impl std::fmt::Display for Called {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "softnic:{}", self.soft)
    }
}

/// A NIC that has a folder but does not answer.
#[derive(Serialize)]
struct Silent {
    pf: Called,
    error: String,
    #[serde(skip)]
    forbidden: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Nic(Box<ShownNic>),
    Silent(Silent),
}

/// Show one NIC, one VF of it, or all.
pub(super) fn show(
    name: Option<&SoftNicName>,
    vf: Option<VfIndex>,
    form: Form,
    place: &Where,
) -> Result<(), Failure> {
    let Form { json, roce, metrics } = form;
    let roce = roce || metrics;
    let shown = match (name, &place.run_dir) {
        (Some(name), _) => {
            let nic = place.named(name)?;
            let read = read(&nic.client, name, vf, roce).map_err(|error| nic.failed(&error))?;
            vec![Shown::Nic(Box::new(read))]
        }
        (None, Some(dir)) => {
            let client = Client::at(dir).map_err(|error| Failure::Work(silence(&error, dir)))?;
            let read = read_first(&client, roce);
            let read = read.map_err(|error| Failure::Work(explain(&error, dir)))?;
            vec![Shown::Nic(Box::new(read))]
        }
        (None, None) => read_all(&place.folders()?, roce),
    };
    if json {
        let text = serde_json::to_string_pretty(&shown);
        print(text.map_err(|error| Failure::Work(error.to_string()))?)?;
    } else if shown.is_empty() && !metrics {
        print(format!("no software NIC runs under {}", place.root().display()))?;
    }
    if metrics {
        print(self::metrics(&shown).trim_end())?;
    }
    let json = json || metrics;
    for shown in &shown {
        match shown {
            Shown::Nic(nic) if !json => print(describe(nic))?,
            Shown::Silent(silent) if !json => print(format!("{}: {}", silent.pf, silent.error))?,
            Shown::Silent(silent) if silent.forbidden => {
                note(format!("{}: {}", silent.pf, silent.error));
            }
            _ => {}
        }
    }
    if shown.iter().any(|shown| matches!(shown, Shown::Silent(Silent { forbidden: true, .. }))) {
        let what = "not every software NIC may be asked; run this as root";
        return Err(Failure::Work(what.to_owned()));
    }
    Ok(())
}

fn read_all(folders: &[std::path::PathBuf], roce: bool) -> Vec<Shown> {
    std::thread::scope(|scope| {
        let reads: Vec<_> =
            folders.iter().map(|dir| scope.spawn(move || read_folder(dir, roce))).collect();
        // A thread that panicked has said so on standard error.
        reads.into_iter().filter_map(|read| read.join().ok()).collect()
    })
}

fn read_folder(dir: &Path, roce: bool) -> Shown {
    let read =
        Client::at(dir).map_err(|error| (error.kind(), silence(&error, dir))).and_then(|client| {
            read_first(&client, roce).map_err(|error| (ErrorKind::Other, explain(&error, dir)))
        });
    match read {
        Ok(nic) => Shown::Nic(Box::new(nic)),
        Err((kind, error)) => {
            let soft = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let forbidden = kind == ErrorKind::PermissionDenied;
            Shown::Silent(Silent { pf: Called { soft }, error, forbidden })
        }
    }
}

/// The only NIC that a client knows.
fn read_first(client: &Client, roce: bool) -> Result<ShownNic, HardwareError> {
    let names: Vec<&SoftNicName> = client.names().collect();
    read(client, names[0], None, roce)
}

fn read(
    client: &Client,
    name: &SoftNicName,
    only: Option<VfIndex>,
    roce: bool,
) -> Result<ShownNic, HardwareError> {
    let id = PfId::Soft(name.clone());
    let pf = client.pf(name)?;
    let read =
        |vf| Ok(ShownVf { status: client.vf(&id, vf)?, counters: client.counters(&id, vf)? });
    let vfs = match only {
        Some(vf) => vec![read(vf)?],
        None => VfIndex::first(pf.num_vfs).map(read).collect::<Result<_, HardwareError>>()?,
    };
    let roce = roce.then(|| client.roce(name)).transpose()?.map(Box::new);
    Ok(ShownNic { pf, vfs, roce })
}

fn describe(ShownNic { pf, vfs, roce }: &ShownNic) -> String {
    let uplink = pf.uplink.as_deref().unwrap_or("none");
    let link = if pf.link_up { "up" } else { "down" };
    let mut table = table(&["link", "driver", "sent", "received", "dropped"]);
    for ShownVf { status, counters } in vfs {
        table.add_row(
            [cells(status.vf, &status.settings), state_cells(status), counter_cells(counters)]
                .concat(),
        );
    }
    format!(
        "{}: {}, uplink {uplink} ({link}), sent {} frames, received {}\n{table}",
        pf.pf,
        vf_count(pf.num_vfs),
        pf.tx.frames,
        pf.rx.frames
    ) + &roce.as_ref().map(|roce| format!("\n{}", super::roce::describe(roce))).unwrap_or_default()
}

/// All counters of the NICs that answer.
fn metrics(shown: &[Shown]) -> String {
    let mut metrics = super::roce::Metrics::default();
    for shown in shown {
        let Shown::Nic(nic) = shown else { continue };
        let ShownNic { pf, vfs, roce } = nic.as_ref();
        let PfId::Soft(name) = &pf.pf else { continue };
        for ShownVf { status, counters } in vfs {
            metrics.vf(name.as_str(), &status.vf.to_string(), counters);
        }
        if let Some(roce) = roce {
            metrics.roce(name.as_str(), roce);
        }
    }
    metrics.render()
}

/// How many VFs, in words.
pub(super) fn vf_count(count: usize) -> String {
    if count == 1 { "1 VF".to_owned() } else { format!("{count} VFs") }
}

/// The table of one VF as it is after a change.
pub(super) fn changed(status: &VfStatus) -> Table {
    let mut table = table(&["link", "driver"]);
    table.add_row([cells(status.vf, &status.settings), state_cells(status)].concat());
    table
}

/// The table of VFs as a file has them, before any NIC runs.
pub(super) fn configured(settings: &[VfSettings]) -> Table {
    let mut table = table(&["link"]);
    for (vf, settings) in VfIndex::first(settings.len()).zip(settings) {
        table.add_row([cells(vf, settings), vec![settings.link_state.to_string()]].concat());
    }
    table
}

fn table(further: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let settings = ["VF", "MAC", "VLAN", "checks", "rate Mb/s", "MTU"];
    table.set_header(settings.iter().chain(further));
    table
}

fn cells(vf: VfIndex, settings: &VfSettings) -> Vec<String> {
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
    let rate = match (settings.rate.min.0, settings.rate.max.0) {
        (0, 0) => "-".to_owned(),
        (min, 0) => format!("{min}.."),
        (min, max) => format!("{min}..{max}"),
    };
    vec![vf.to_string(), mac, vlan, checks.join("\n"), rate, settings.mtu.to_string()]
}

fn state_cells(status: &VfStatus) -> Vec<String> {
    let up = if status.link_up { "up" } else { "down" };
    let driver = match (&status.stopped, status.attached) {
        (Some(reason), _) => format!("stopped: {reason}"),
        (None, true) => "attached".to_owned(),
        (None, false) => "-".to_owned(),
    };
    vec![format!("{} ({up})", status.settings.link_state), driver]
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
