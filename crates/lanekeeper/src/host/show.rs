//! `lanekeeper host show`: what is, beside whose it is.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{Table, presets};
use lanekeeper_host::ledger::{Identity, PfRecord};
use lanekeeper_host::{ClaimId, FoughtOver, HostError, PfSeen, Withheld};
use lanekeeper_hw::inventory::{PfReading, RdmaDevice, TotalVfs, VfReading};
use lanekeeper_model::{PciAddr, PfAddr, VfIndex};
use lanekeeper_topology::{Distance, PciTree, PeerPath};
use serde::Serialize;

use super::Place;
use crate::Failure;

/// Everything that is shown.
#[derive(Serialize)]
struct Shown {
    pfs: Vec<ShownPf>,
    /// PFs that the ledger knows and that are not there.
    gone: Vec<Gone>,
    /// Files of the ledger that cannot be used, and why.
    damaged: Vec<String>,
}

#[derive(Serialize)]
struct ShownPf {
    address: PfAddr,
    /// Our own name for it, once it was applied.
    name: Option<String>,
    /// Why it could not be read.
    error: Option<String>,
    reading: Option<Box<PfReading>>,
    /// Why its free VFs are not offered to claims now, as the agent sees it.
    withheld: Option<ShownTrouble>,
    /// What of it the agent puts right no more, because somebody undid it each time.
    fought_over: Option<ShownFight>,
    /// What the ledger has of its VFs.
    ledger: BTreeMap<VfIndex, ShownVf>,
    gpus: Vec<ShownGpu>,
}

#[derive(Serialize)]
struct ShownTrouble {
    why: String,
    /// Seconds since 1970-01-01 UTC.
    since: u64,
}

impl From<&Withheld> for ShownTrouble {
    fn from(withheld: &Withheld) -> Self {
        Self { why: withheld.why.clone(), since: unix_s(withheld.since) }
    }
}

#[derive(Serialize)]
struct ShownFight {
    what: Vec<String>,
    /// Who else manages the PF's interface.
    manager: Option<String>,
    /// Seconds since 1970-01-01 UTC.
    since: u64,
}

impl From<&FoughtOver> for ShownFight {
    fn from(fought: &FoughtOver) -> Self {
        let (what, manager) = (fought.what.clone(), fought.manager.clone());
        Self { what, manager, since: unix_s(fought.since) }
    }
}

fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[derive(Serialize)]
struct ShownVf {
    life: String,
    claim: Option<ClaimId>,
    lost: Option<String>,
}

#[derive(Serialize)]
struct ShownGpu {
    address: PciAddr,
    distance: Distance,
    path: Option<PeerPath>,
}

#[derive(Serialize)]
struct Gone {
    name: String,
    identity: String,
    claims: Vec<ClaimId>,
}

/// Show the host. A PF that does not answer is shown as such, as is a file of the ledger that cannot
/// be used, and the exit status tells.
pub(super) fn run(place: &Place) -> Result<ExitCode, Failure> {
    let owner = place.owner()?;
    let seen = owner.readings()?;
    let (mut records, mut damaged) = (Vec::new(), Vec::new());
    let health = owner.ledger().health();
    for (key, record) in owner.ledger().read_all().map_err(HostError::from)? {
        match record {
            Ok(record) => {
                let trouble = health.withheld.get(&key).map(ShownTrouble::from);
                let fight = health.fought_over.get(&key).map(ShownFight::from);
                records.push((record, trouble, fight));
            }
            Err(error) => damaged.push(error.to_string()),
        }
    }
    let tree = match owner.hardware.pci_tree() {
        Ok(nodes) => PciTree::new(nodes).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let tree = tree.unwrap_or_else(|error| {
        tracing::warn!("distances are not told: {error}");
        PciTree::default()
    });
    let all_well = seen.iter().all(|pf| pf.reading.is_ok()) && damaged.is_empty();
    let shown = Shown {
        gone: records
            .iter()
            .map(|(record, ..)| record)
            .filter(|record| !seen.iter().any(|pf| is_of(record, pf)))
            .map(gone)
            .collect(),
        pfs: seen.into_iter().map(|pf| shown(pf, &mut records, &tree)).collect(),
        damaged,
    };
    place.tell(&shown, || text(&shown))?;
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A PF of the ledger, why its free VFs are not offered if they are not, and what is fought over.
type KnownPf = (PfRecord, Option<ShownTrouble>, Option<ShownFight>);

fn identity(pf: &PfSeen) -> Option<Identity> {
    pf.reading.as_ref().ok().and_then(Identity::of)
}

/// Whether a record is of this PF. One that does not answer is known by where it was last.
fn is_of(record: &PfRecord, pf: &PfSeen) -> bool {
    identity(pf).map_or(record.last_address == pf.address, |here| record.identity.is(&here))
}

fn gone(record: &PfRecord) -> Gone {
    Gone {
        name: record.name.clone(),
        identity: record.identity.to_string(),
        claims: record.claims.keys().cloned().collect(),
    }
}

fn shown(pf: PfSeen, records: &mut [KnownPf], tree: &PciTree) -> ShownPf {
    let known = records.iter_mut().find(|(record, ..)| is_of(record, &pf));
    let (record, withheld, fought_over) = match known {
        Some((record, trouble, fight)) => (Some(&*record), trouble.take(), fight.take()),
        None => (None, None, None),
    };
    let ledger = record.map(ledger_of).unwrap_or_default();
    let at = PciAddr::from(pf.address);
    let gpus = tree.gpus_by_distance(at).into_iter().map(|(address, distance)| ShownGpu {
        address,
        distance,
        path: tree.peer_path(at, address),
    });
    let (reading, error) = match pf.reading {
        Ok(reading) => (Some(Box::new(reading)), None),
        Err(error) => (None, Some(error)),
    };
    ShownPf {
        address: pf.address,
        name: record.map(|record| record.name.clone()),
        error,
        reading,
        withheld,
        fought_over,
        ledger,
        gpus: gpus.collect(),
    }
}

fn ledger_of(record: &PfRecord) -> BTreeMap<VfIndex, ShownVf> {
    let shown = |vf: VfIndex| {
        let owner = record.owner_of(vf);
        ShownVf {
            life: record.vfs[&vf].life.to_string(),
            claim: owner.map(|(id, _)| id.clone()),
            lost: owner.and_then(|(_, claim)| claim.lost.clone()),
        }
    };
    record.vfs.keys().map(|vf| (*vf, shown(*vf))).collect()
}

fn text(shown: &Shown) -> String {
    let mut parts: Vec<String> = shown.pfs.iter().map(pf_text).collect();
    parts.extend(shown.gone.iter().map(|gone| {
        let claims: Vec<_> = gone.claims.iter().map(ToString::to_string).collect();
        format!(
            "pf {} ({}) is GONE{}",
            gone.name,
            gone.identity,
            if claims.is_empty() {
                String::new()
            } else {
                format!("; claims {}", claims.join(", "))
            }
        )
    }));
    parts.extend(shown.damaged.iter().cloned());
    if parts.is_empty() {
        parts.push("this host has no NIC with SR-IOV; `lanekeeper softnic` needs none".to_owned());
    }
    parts.join("\n\n")
}

fn pf_text(pf: &ShownPf) -> String {
    let name = pf.name.as_deref().map(|name| format!("pf {name}: ")).unwrap_or_default();
    let Some(reading) = &pf.reading else {
        let why = pf.error.as_deref().unwrap_or("no answer");
        let mut lines = vec![format!("{name}{} FAILED: {why}", pf.address)];
        lines.extend(trouble_text(pf));
        lines.extend(pf.fought_over.as_ref().map(fight_text));
        return lines.join("\n");
    };
    let mut lines = vec![format!("{name}{}", heading(reading))];
    lines.extend(details(reading).into_iter().map(|detail| format!("  {detail}")));
    lines.extend(trouble_text(pf));
    lines.extend(pf.fought_over.as_ref().map(fight_text));
    for gpu in &pf.gpus {
        lines.push(format!("  GPU {}: {}", gpu.address, gpu_text(gpu)));
    }
    lines.extend(reading.warnings.iter().map(|warning| format!("  warning: {warning}")));
    if !reading.vfs.is_empty() {
        lines.push(vf_table(reading, pf).to_string());
    }
    lines.join("\n")
}

/// What the agent sees of a PF in trouble, and whom it concerns.
fn trouble_text(pf: &ShownPf) -> Option<String> {
    let trouble = pf.withheld.as_ref()?;
    let ago = seconds_since(trouble.since);
    let claims: Vec<_> =
        pf.ledger.values().filter_map(|vf| vf.claim.as_ref()).map(ToString::to_string).collect();
    let suffer = match claims.as_slice() {
        [] => String::new(),
        claims => format!("; in use all the same: {}", claims.join(", ")),
    };
    Some(format!("  IN TROUBLE for {ago} s, no VF of it is offered: {}{suffer}", trouble.why))
}

/// What the agent leaves as it is, who may have done it, and when the agent goes on.
fn fight_text(fight: &ShownFight) -> String {
    let (ago, what) = (seconds_since(fight.since), fight.what.join("; "));
    let who = match &fight.manager {
        Some(manager) => format!("; {manager} manages its interface too"),
        None => String::new(),
    };
    format!(
        "  FOUGHT OVER for {ago} s, somebody undid each repair: {what}{who}. The agent goes on once it \
         is as it should be (end what undoes it, then `lanekeeper host recover`) or at its reload"
    )
}

fn seconds_since(unix_s: u64) -> u64 {
    self::unix_s(SystemTime::now()).saturating_sub(unix_s)
}

fn heading(pf: &PfReading) -> String {
    let driver = pf.driver.as_deref().unwrap_or("no driver");
    let vfs = match pf.total_vfs {
        TotalVfs::Never => "no SR-IOV".to_owned(),
        TotalVfs::OffInFirmware => "SR-IOV is off in the firmware".to_owned(),
        TotalVfs::UpTo(most) => format!("{} of {most} VFs", pf.num_vfs),
    };
    format!("{} {driver} [{:04x}:{:04x}], {vfs}", pf.addr, pf.vendor, pf.device)
}

/// What is known of a PF, a line for each kind of fact.
fn details(pf: &PfReading) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |facts: Vec<Option<String>>| {
        let facts: Vec<_> = facts.into_iter().flatten().collect();
        if !facts.is_empty() {
            lines.push(facts.join(", "));
        }
    };
    let netdev = pf.netdev.as_ref();
    line(vec![
        netdev.map(|dev| {
            let state = match (dev.up, dev.carrier) {
                (false, _) => "down",
                (true, false) => "no carrier",
                (true, true) => "up",
            };
            format!("{} {state}", dev.name)
        }),
        netdev.and_then(|dev| dev.speed).map(|speed| format!("{speed} Mb/s")),
        netdev.map(|dev| format!("MTU {}", dev.mtu)),
        netdev.and_then(|dev| dev.manager.as_ref()).map(|who| format!("managed by {who}")),
        pf.bond.as_ref().map(|bond| format!("in {bond}")),
        pf.eswitch.map(|mode| format!("eswitch {mode}")),
    ]);
    line(vec![
        pf.permanent_mac.map(|mac| format!("permanent MAC {mac}")),
        pf.slot.as_ref().map(|slot| format!("slot {slot}")),
        pf.firmware.as_ref().map(|version| format!("firmware {version}")),
        pf.numa_node.map(|node| format!("NUMA node {node}")),
        pf.iommu_group.as_ref().map(|group| format!("IOMMU group {}", group.number)),
    ]);
    line(vec![pf.rdma.as_ref().map(rdma_text)]);
    line(vec![pf.pending_reset.as_ref().map(|what| format!("pending: {what}"))]);
    lines
}

fn rdma_text(device: &RdmaDevice) -> String {
    format!("RDMA {}, GUID {}, {} GIDs", device.name, device.node_guid, device.gids.len())
}

fn gpu_text(gpu: &ShownGpu) -> String {
    let mut text = format!("{} ({})", gpu.distance, gpu.distance.meaning());
    if let Some(detour) = gpu.path.as_ref().and_then(|path| path.detour.as_ref()) {
        text = format!("{text}; transfers go over the root complex: {detour}");
    }
    text
}

fn vf_table(reading: &PfReading, pf: &ShownPf) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "  VF",
        "address",
        "driver",
        "MAC",
        "VLAN",
        "checks",
        "link",
        "rate Mb/s",
        "group",
        "state",
        "held by",
    ]);
    for vf in &reading.vfs {
        table.add_row(vf_row(vf, pf.ledger.get(&vf.vf), pf.withheld.is_some()));
    }
    table
}

fn vf_row(vf: &VfReading, ledger: Option<&ShownVf>, in_trouble: bool) -> Vec<String> {
    let unknown = || "?".to_owned();
    let none = || "-".to_owned();
    let attributes = vf.attributes;
    let of = |text: fn(&lanekeeper_hw::inventory::VfAttributes) -> String| {
        attributes.as_ref().map_or_else(unknown, text)
    };
    let state = ledger.map_or_else(
        || "not ours".to_owned(),
        |vf| match (&vf.claim, &vf.lost) {
            (Some(claim), Some(lost)) => format!("{claim} LOST: {lost}"),
            (Some(claim), None) if in_trouble => format!("{} {claim}, in trouble", vf.life),
            (Some(claim), None) => format!("{} {claim}", vf.life),
            (None, _) if in_trouble && vf.life == "free" => "free, not offered".to_owned(),
            (None, _) => vf.life.clone(),
        },
    );
    vec![
        format!("  {}", vf.vf),
        vf.addr.to_string(),
        vf.driver.clone().unwrap_or_else(none),
        of(|it| if it.mac.is_zero() { "-".to_owned() } else { it.mac.to_string() }),
        of(|it| match (it.vlan.id.is_some(), it.vlan.pcp.get()) {
            (false, _) => "-".to_owned(),
            (true, 0) => it.vlan.id.to_string(),
            (true, pcp) => format!("{} pcp {pcp}", it.vlan.id),
        }),
        of(|it| {
            let knob = |name: &str, state: Option<bool>| match state {
                None => format!("no {name}"),
                Some(true) => format!("{name} on"),
                Some(false) => format!("{name} off"),
            };
            format!("{}, {}", knob("spoofchk", it.spoofchk), knob("trust", it.trust))
        }),
        of(|it| it.link_state.map_or_else(|| "auto".to_owned(), |state| state.to_string())),
        of(|it| match (it.rate.min.0, it.rate.max.0) {
            (0, 0) => "-".to_owned(),
            (min, max) => format!("{min}..{max}"),
        }),
        vf.iommu_group.as_ref().map_or_else(none, |group| group.number.to_string()),
        state,
        vf.holder
            .as_ref()
            .map_or_else(none, |holder| format!("{} ({})", holder.command, holder.pid)),
    ]
}
