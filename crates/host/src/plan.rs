//! The plan: a pure function of the host file, the readings and the ledger. It says what would be
//! written, in which order and why, what that would disturb, and what stands in the way.

use std::collections::BTreeMap;
use std::fmt;

use lanekeeper_hw::inventory::{PfReading, TotalVfs, VfReading};
use lanekeeper_model::{EswitchMode, Mtu, PfAddr, RoceSetting, VfIndex};
use serde::{Deserialize, Serialize};

use crate::drivers::{self, Driver, Order};
use crate::file::{HostFile, VF_LAG_LIMIT};
use crate::ledger::{Identity, Life, PfRecord, PfTarget};
use crate::request::ClaimId;
use crate::scrub;

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Set the PF's interface up or down.
    Up(bool),
    /// Set its MTU.
    Mtu(Mtu),
    /// Whether a driver is bound to VFs as they appear.
    Autoprobe(bool),
    /// Take every VF from its driver.
    UnbindVfs,
    /// Set the mode of its embedded switch.
    Eswitch(EswitchMode),
    /// Write `sriov_numvfs`.
    NumVfs(u16),
    /// Wait until all VFs are there.
    Await(u16),
    /// Set one thing of the RoCE profile.
    Roce(RoceSetting),
    /// Open every VF's link: in switchdev mode it is the representor's.
    OpenLinks,
    /// Bring VFs that nobody owns to the safe state, one message each.
    Scrub(Vec<VfIndex>),
    /// Bring VFs back to what their owners asked for, one message each.
    Settle(Vec<VfIndex>),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up(true) => f.write_str("set the PF up"),
            Self::Up(false) => f.write_str("set the PF down"),
            Self::Mtu(mtu) => write!(f, "set the PF's MTU to {mtu}"),
            Self::Autoprobe(true) => f.write_str("let drivers take VFs as they appear"),
            Self::Autoprobe(false) => f.write_str("keep drivers off VFs as they appear"),
            Self::UnbindVfs => f.write_str("take all VFs from their drivers"),
            Self::Eswitch(mode) => write!(f, "set the embedded switch to {mode}"),
            Self::NumVfs(count) => write!(f, "write sriov_numvfs {count}"),
            Self::Await(count) => write!(f, "wait for all {count} VFs"),
            Self::Roce(setting) => write!(f, "set {} of the RoCE profile", setting.kind()),
            Self::OpenLinks => f.write_str("leave the VFs' links to their representors"),
            Self::Scrub(vfs) => write!(f, "scrub VF {}", numbers(vfs)),
            Self::Settle(vfs) => write!(f, "set VF {} as its owner asked", numbers(vfs)),
        }
    }
}

fn numbers(vfs: &[VfIndex]) -> String {
    let vfs: Vec<_> = vfs.iter().map(ToString::to_string).collect();
    vfs.join(", ")
}

/// A step with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// Our name for the PF.
    pub pf: String,
    /// What.
    pub step: Step,
    /// Why, and why here.
    pub why: String,
    /// What it disturbs; `None` if nothing.
    pub disturbs: Option<String>,
}

/// Something that the reader should know of a PF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// Somebody else manages the PF's interface (systemd#37257, openshift/sriov-network-operator#414).
    #[error(
        "pf {pf}: {manager} manages {netdev} too and may undo what is set; mark it unmanaged there"
    )]
    ManagedBy {
        /// Our name for the PF.
        pf: String,
        /// Its interface.
        netdev: String,
        /// Who.
        manager: String,
    },
    /// The number of VFs or the switch's mode cannot change under owners.
    #[error("pf {pf}: {change} would take VFs from their owners: {}; release them first", owners(.owned))]
    VfsOwned {
        /// Our name for the PF.
        pf: String,
        /// What was to be changed.
        change: String,
        /// VFs and their claims.
        owned: Vec<(VfIndex, ClaimId)>,
    },
    /// The same for VFs that are held by somebody the ledger does not know.
    #[error("pf {pf}: {change} would take VF {vf} from {command} (pid {pid}); end that first")]
    VfHeld {
        /// Our name for the PF.
        pf: String,
        /// What was to be changed.
        change: String,
        /// VF.
        vf: VfIndex,
        /// Process id.
        pid: u32,
        /// Process name.
        command: String,
    },
    /// A firmware change waits for a reset. It is reported, never acted on
    /// (openshift/sriov-network-operator#48).
    #[error("pf {pf}: {what} takes effect with the next reset or reboot")]
    FirmwarePending {
        /// Our name for the PF.
        pf: String,
        /// What.
        what: String,
    },
    /// Its firmware offers no VFs now (sriov-network-device-plugin#601).
    #[error(
        "pf {pf}: its firmware offers no VFs now; turn SR-IOV on there (mlxconfig SRIOV_EN=1, or \
         the card's setup menu) and restart the host"
    )]
    FirmwareOff {
        /// Our name for the PF.
        pf: String,
    },
    /// It can never have VFs.
    #[error("pf {pf}: the device has no SR-IOV; use vfs: 0, or another PF")]
    NeverCapable {
        /// Our name for the PF.
        pf: String,
    },
    /// More VFs than it can have.
    #[error("pf {pf}: vfs = {wanted}: it can have {most}; lower it, or raise the firmware's limit")]
    TooMany {
        /// Our name for the PF.
        pf: String,
        /// How many are wanted.
        wanted: u16,
        /// How many it can have.
        most: u16,
    },
    /// More VFs than a bond can share (ovs-tests).
    #[error(
        "pf {pf}: vfs = {wanted}: it is in {bond}, where VFs share ports only up to {VF_LAG_LIMIT}; lower it"
    )]
    VfLag {
        /// Our name for the PF.
        pf: String,
        /// Its bond.
        bond: String,
        /// How many are wanted.
        wanted: u16,
    },
    /// It has no interface here, so its VFs cannot be set.
    #[error(
        "pf {pf}: it has no interface in this network namespace (driver: {driver}); bind its driver, or bring it back"
    )]
    NoNetdev {
        /// Our name for the PF.
        pf: String,
        /// Its driver.
        driver: String,
    },
    /// Its driver has no embedded switch to set.
    #[error("pf {pf}: eswitch = {mode}: {driver} has no embedded switch to set; leave it out")]
    NoEswitch {
        /// Our name for the PF.
        pf: String,
        /// Mode wanted.
        mode: EswitchMode,
        /// Its driver.
        driver: String,
    },
    /// Its driver lacks something of the profile.
    #[error("pf {pf}: {driver} has no {setting} of the RoCE profile; it stays unset")]
    RoceLacks {
        /// Our name for the PF.
        pf: String,
        /// Its driver.
        driver: String,
        /// Kind of setting.
        setting: String,
    },
    /// Its driver is not in the table.
    #[error(
        "pf {pf}: nothing is known of driver {driver}; a common order is used, and what it refuses is learnt"
    )]
    UnknownDriver {
        /// Our name for the PF.
        pf: String,
        /// Its driver.
        driver: String,
    },
    /// A VF has an owner and is set otherwise, but cannot be put right while it is in use.
    #[error(
        "pf {pf}: VF {vf} has another MAC than its owner asked for, and a VM holds it; it is put right on release"
    )]
    DriftHeld {
        /// Our name for the PF.
        pf: String,
        /// VF.
        vf: VfIndex,
    },
    /// An earlier apply waits to be confirmed.
    #[error("pf {pf}: an earlier apply waits for its confirmation; confirm it or let it roll back")]
    Unconfirmed {
        /// Our name for the PF.
        pf: String,
    },
    /// No PF, or several, or one twice.
    #[error("{why}")]
    NotSelected {
        /// Our name for the PF.
        pf: String,
        /// Why, with candidates.
        why: String,
    },
    /// It cannot be read. The others go on.
    #[error("{address}: cannot be read: {why}")]
    Failed {
        /// Its address.
        address: PfAddr,
        /// Why.
        why: String,
    },
    /// Known from the ledger and no longer in the file.
    #[error("pf {pf}: it is ours and not in the file; it is left as it is until it is given back")]
    NotInFile {
        /// Our name for the PF.
        pf: String,
    },
    /// Something that the reading warns of.
    #[error("pf {pf}: {warning}")]
    Warning {
        /// Our name for the PF.
        pf: String,
        /// What.
        warning: String,
    },
}

fn owners(owned: &[(VfIndex, ClaimId)]) -> String {
    let owned: Vec<_> = owned.iter().map(|(vf, claim)| format!("VF {vf} ({claim})")).collect();
    owned.join(", ")
}

impl Finding {
    /// A plan with it is not carried out.
    pub fn blocks(&self) -> bool {
        !matches!(
            self,
            Self::ManagedBy { .. }
                | Self::FirmwarePending { .. }
                | Self::RoceLacks { .. }
                | Self::UnknownDriver { .. }
                | Self::DriftHeld { .. }
                | Self::Failed { .. }
                | Self::NotInFile { .. }
                | Self::Warning { .. }
        )
    }
}

impl Finding {
    /// The host is not as the file says, or cannot be told.
    pub(crate) fn is_drift(&self) -> bool {
        self.blocks() || matches!(self, Self::DriftHeld { .. } | Self::Failed { .. })
    }

    /// Our name for the PF that it is about.
    pub fn pf(&self) -> Option<String> {
        match self {
            Self::Failed { .. } => None,
            Self::ManagedBy { pf, .. }
            | Self::VfsOwned { pf, .. }
            | Self::VfHeld { pf, .. }
            | Self::FirmwarePending { pf, .. }
            | Self::FirmwareOff { pf }
            | Self::NeverCapable { pf }
            | Self::TooMany { pf, .. }
            | Self::VfLag { pf, .. }
            | Self::NoNetdev { pf, .. }
            | Self::NoEswitch { pf, .. }
            | Self::RoceLacks { pf, .. }
            | Self::UnknownDriver { pf, .. }
            | Self::DriftHeld { pf, .. }
            | Self::Unconfirmed { pf }
            | Self::NotSelected { pf, .. }
            | Self::NotInFile { pf }
            | Self::Warning { pf, .. } => Some(pf.clone()),
        }
    }
}

/// What one PF is to become.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PfPlan {
    pub(crate) name: String,
    pub(crate) identity: Identity,
    pub(crate) address: PfAddr,
    pub(crate) target: PfTarget,
    pub(crate) steps: Vec<PlanStep>,
    /// The ledger has the target and the name already.
    pub(crate) settled: bool,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the reader should know, first things first.
    pub findings: Vec<Finding>,
    pub(crate) pfs: Vec<PfPlan>,
}

impl Plan {
    /// The steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &PlanStep> {
        self.pfs.iter().flat_map(|pf| &pf.steps)
    }

    /// Nothing is to be written to any device.
    pub fn is_empty(&self) -> bool {
        self.steps().next().is_none()
    }

    /// What stands in the way.
    pub fn blockers(&self) -> Vec<Finding> {
        self.findings.iter().filter(|finding| finding.blocks()).cloned().collect()
    }
}

/// What was read of one PF.
#[derive(Debug)]
pub struct PfSeen {
    /// Where.
    pub address: PfAddr,
    /// What, or why not.
    pub reading: Result<PfReading, String>,
}

/// The plan for a host file.
pub fn plan(file: &HostFile, seen: &[PfSeen], records: &[PfRecord]) -> Plan {
    let mut plan = Plan { findings: Vec::new(), pfs: Vec::new() };
    let readings: Vec<&PfReading> = seen.iter().filter_map(|pf| pf.reading.as_ref().ok()).collect();
    for pf in seen {
        if let Err(why) = &pf.reading {
            plan.findings.push(Finding::Failed { address: pf.address, why: why.clone() });
        }
    }
    let mut chosen: BTreeMap<PfAddr, &str> = BTreeMap::new();
    for wanted in &file.pfs {
        let not_selected = |why: String| Finding::NotSelected { pf: wanted.name.clone(), why };
        let pf = match wanted.select.choose(&wanted.name, readings.iter().copied()) {
            Ok(pf) => pf,
            // What cannot be read may be the one that is meant: it is failed, the rest go on.
            Err(error) if readings.len() < seen.len() => {
                let why = error.to_string();
                plan.findings.push(Finding::Warning { pf: wanted.name.clone(), warning: why });
                continue;
            }
            Err(error) => {
                plan.findings.push(not_selected(error.to_string()));
                continue;
            }
        };
        if let Some(other) = chosen.insert(pf.addr, &wanted.name) {
            let why =
                format!("pf {} and pf {other} both mean {}; tell them apart", wanted.name, pf.addr);
            plan.findings.push(not_selected(why));
            continue;
        }
        let Some(identity) = Identity::of(pf) else {
            let why = format!("pf {}: {}", wanted.name, crate::HostError::NoIdentity(pf.addr));
            plan.findings.push(not_selected(why));
            continue;
        };
        let twins: Vec<String> = readings
            .iter()
            .filter(|other| Identity::of(other).is_some_and(|other| other.is(&identity)))
            .map(|other| other.addr.to_string())
            .collect();
        if twins.len() > 1 {
            let why = format!(
                "pf {}: {} cannot be told apart ({identity}); give them distinct MACs or slots",
                wanted.name,
                twins.join(" and ")
            );
            plan.findings.push(not_selected(why));
            continue;
        }
        let record = records.iter().find(|record| record.identity.is(&identity));
        let profile = wanted.roce.as_ref().and_then(|name| file.roce_profiles.get(name));
        let target = PfTarget::of(wanted, profile, &file.defaults);
        let fresh = PfRecord::new(identity.clone(), &wanted.name, pf.addr);
        let record = record.unwrap_or(&fresh);
        let (findings, steps) = pf_steps(&wanted.name, &target, pf, record);
        plan.findings.extend(findings);
        let settled = record.target.as_ref() == Some(&target) && record.name == wanted.name;
        plan.pfs.push(PfPlan {
            name: wanted.name.clone(),
            identity,
            address: pf.addr,
            target,
            steps,
            settled,
        });
    }
    for record in records.iter().filter(|record| record.target.is_some()) {
        let in_file = file.pfs.iter().any(|wanted| wanted.name == record.name)
            || plan.pfs.iter().any(|pf| pf.identity.is(&record.identity));
        if !in_file {
            plan.findings.push(Finding::NotInFile { pf: record.name.clone() });
        }
    }
    // Who else manages a PF is what to know before anything else.
    plan.findings.sort_by_key(|finding| !matches!(finding, Finding::ManagedBy { .. }));
    plan
}

/// What stands in the way of a target, and the steps towards it.
pub(crate) fn pf_steps(
    name: &str,
    target: &PfTarget,
    pf: &PfReading,
    record: &PfRecord,
) -> (Vec<Finding>, Vec<PlanStep>) {
    let mut findings = findings(name, target, pf, record);
    if findings.iter().any(Finding::blocks) {
        return (findings, Vec::new());
    }
    let mut steps = Steps::towards(name, target, pf);
    let (scrub, settle) = (to_scrub(target, pf, record, &steps), to_settle(pf, record));
    let (settle, held): (Vec<_>, Vec<_>) = settle.into_iter().partition(|(_, held)| !held);
    for (vf, _) in held {
        findings.push(Finding::DriftHeld { pf: name.to_owned(), vf });
    }
    if !scrub.is_empty() {
        let why = "a VF that nobody owns passes nothing and keeps nothing of whoever had it";
        let bound = |vf: &VfReading| scrub.contains(&vf.vf) && !record.vfs.contains_key(&vf.vf);
        let takes = pf.vfs.iter().any(|vf| bound(vf) && vf.driver.is_some());
        let disturbs = takes.then_some("interfaces of these VFs on this host go away");
        steps.push(Step::Scrub(scrub.clone()), why, disturbs);
    }
    if !settle.is_empty() {
        let vfs = settle.into_iter().map(|(vf, _)| vf).collect();
        steps.push(Step::Settle(vfs), "it is not as its owner asked", None);
    }
    (findings, steps.steps)
}

fn findings(name: &str, target: &PfTarget, pf: &PfReading, record: &PfRecord) -> Vec<Finding> {
    let name = || name.to_owned();
    let driver = || pf.driver.clone().unwrap_or_else(|| "none".to_owned());
    let mut findings = Vec::new();
    if let Some(netdev) = &pf.netdev {
        findings.extend(netdev.manager.clone().map(|manager| Finding::ManagedBy {
            pf: name(),
            netdev: netdev.name.clone(),
            manager,
        }));
    } else {
        findings.push(Finding::NoNetdev { pf: name(), driver: driver() });
    }
    for warning in &pf.warnings {
        findings.push(Finding::Warning { pf: name(), warning: warning.clone() });
    }
    if record.unconfirmed.is_some() {
        findings.push(Finding::Unconfirmed { pf: name() });
    }
    findings
        .extend(pf.pending_reset.clone().map(|what| Finding::FirmwarePending { pf: name(), what }));
    match pf.total_vfs {
        _ if target.vfs == 0 => {}
        TotalVfs::Never => findings.push(Finding::NeverCapable { pf: name() }),
        TotalVfs::OffInFirmware => findings.push(Finding::FirmwareOff { pf: name() }),
        TotalVfs::UpTo(most) if target.vfs > most => {
            findings.push(Finding::TooMany { pf: name(), wanted: target.vfs, most });
        }
        TotalVfs::UpTo(_) => {}
    }
    if let Some(bond) = &pf.bond
        && target.vfs > VF_LAG_LIMIT
    {
        findings.push(Finding::VfLag { pf: name(), bond: bond.clone(), wanted: target.vfs });
    }
    if let Some(mode) = target.eswitch
        && pf.eswitch.is_none()
    {
        findings.push(Finding::NoEswitch { pf: name(), mode, driver: driver() });
    }
    for setting in &target.roce {
        if !pf.roce.iter().any(|has| has.kind() == setting.kind()) {
            let setting = setting.kind().to_owned();
            findings.push(Finding::RoceLacks { pf: name(), driver: driver(), setting });
        }
    }
    if pf.driver.is_some() && !drivers::of(pf).is_known() {
        findings.push(Finding::UnknownDriver { pf: name(), driver: driver() });
    }
    findings.extend(in_the_way(&name(), target, pf, record));
    findings
}

/// Owners, known and unknown, under whom the VFs would go away.
fn in_the_way(name: &str, target: &PfTarget, pf: &PfReading, record: &PfRecord) -> Vec<Finding> {
    let resize = pf.num_vfs != target.vfs;
    let mode = target.eswitch.filter(|mode| pf.eswitch != Some(*mode));
    let change = match (resize, mode) {
        (true, _) => format!("going from {} to {} VFs", pf.num_vfs, target.vfs),
        (false, Some(mode)) => format!("the switch's mode {mode}"),
        (false, None) => return Vec::new(),
    };
    let mut findings = Vec::new();
    // VFs that are gone (a reboot) are nobody's loss: making them again is what owners wait for.
    let remade = pf.num_vfs == 0 && record.target.as_ref().map(|old| old.vfs) == Some(target.vfs);
    let owned: Vec<_> = record.claims.iter().map(|(id, claim)| (claim.vf, id.clone())).collect();
    if !owned.is_empty() && !remade {
        let (pf, change) = (name.to_owned(), change.clone());
        findings.push(Finding::VfsOwned { pf, change, owned });
    }
    let held = pf.vfs.iter().filter(|vf| record.owner_of(vf.vf).is_none());
    findings.extend(held.filter_map(|vf| {
        let holder = vf.holder.as_ref()?;
        Some(Finding::VfHeld {
            pf: name.to_owned(),
            change: change.clone(),
            vf: vf.vf,
            pid: holder.pid,
            command: holder.command.clone(),
        })
    }));
    findings
}

fn to_scrub(target: &PfTarget, pf: &PfReading, record: &PfRecord, steps: &Steps) -> Vec<VfIndex> {
    if steps.makes_vfs() {
        let all = VfIndex::first(usize::from(target.vfs));
        return all.filter(|vf| record.owner_of(*vf).is_none()).collect();
    }
    let nobodys = |vf: &&VfReading| {
        let known = record.vfs.get(&vf.vf).map(|vf| &vf.life);
        match known {
            _ if record.owner_of(vf.vf).is_some() || vf.holder.is_some() => false,
            Some(Life::Quarantined { .. }) => false,
            // One that the host itself uses is not taken away from it.
            None | Some(Life::Absent) => user(vf).is_none(),
            Some(_) => true,
        }
    };
    let mode = target.eswitch.or(pf.eswitch);
    let vfs = pf.vfs.iter().filter(nobodys);
    let to_scrub = |vf: &&VfReading| {
        let is_new = !record.vfs.contains_key(&vf.vf) && vf.driver.is_some();
        is_new || !scrub::is_scrubbed(pf, vf, record, mode)
    };
    vfs.filter(to_scrub).map(|vf| vf.vf).collect()
}

/// Who uses a VF that is not in the ledger: a process, or the host by an interface that is up.
pub(crate) fn user(vf: &VfReading) -> Option<String> {
    let process =
        vf.holder.as_ref().map(|holder| format!("{} (pid {})", holder.command, holder.pid));
    let interface = vf.netdev.as_ref().filter(|netdev| netdev.up);
    process.or_else(|| interface.map(|netdev| format!("interface {}, which is up,", netdev.name)))
}

/// VFs that are not as their owners asked, and whether somebody holds them.
fn to_settle(pf: &PfReading, record: &PfRecord) -> Vec<(VfIndex, bool)> {
    let mut drifted = Vec::new();
    for claim in record.claims.values() {
        let Some(vf) = pf.vf(claim.vf) else { continue };
        let ready = record
            .vfs
            .get(&claim.vf)
            .is_some_and(|vf| matches!(vf.life, Life::Bound | Life::Attached | Life::Detaching));
        let message = crate::claim::drift(vf, claim);
        if ready && !message.is_empty() {
            drifted.push((claim.vf, message.mac.is_some() && vf.holder.is_some()));
        }
    }
    drifted
}

/// Steps in the order that a driver wants.
pub(crate) struct Steps {
    pf: String,
    pub(crate) steps: Vec<PlanStep>,
}

impl Steps {
    /// None yet.
    pub(crate) fn new(name: &str) -> Self {
        Self { pf: name.to_owned(), steps: Vec::new() }
    }

    /// From what is to the target, VFs' own settings aside.
    pub(crate) fn towards(name: &str, target: &PfTarget, pf: &PfReading) -> Self {
        let mut steps = Self::new(name);
        let driver = drivers::of(pf);
        if pf.netdev.as_ref().is_some_and(|netdev| !netdev.up) {
            let why = driver.up_first.unwrap_or("VFs of a PF that is down pass nothing");
            steps.push(Step::Up(true), why, None);
        }
        steps.mtu(target.mtu, pf);
        if pf.autoprobe && target.vfs > 0 {
            let why = "the host's network tools would take VFs that are to be claimed";
            steps.push(Step::Autoprobe(false), why, None);
        }
        let mode = target.eswitch.filter(|mode| pf.eswitch.is_some_and(|now| now != *mode));
        steps.vfs_and_mode(target.vfs, mode, pf, driver);
        steps.roce(&target.roce, pf);
        steps
    }

    pub(crate) fn mtu(&mut self, mtu: Option<Mtu>, pf: &PfReading) {
        let now = pf.netdev.as_ref().map(|netdev| netdev.mtu);
        if let Some(mtu) = mtu
            && now.is_some_and(|now| now != u32::from(mtu))
        {
            let disturbs = "the PF's link may go down for a moment";
            self.push(Step::Mtu(mtu), "it is the most that a VF can use", Some(disturbs));
        }
    }

    pub(crate) fn roce(&mut self, wanted: &[RoceSetting], pf: &PfReading) {
        for setting in wanted {
            let has = pf.roce.iter().find(|has| has.kind() == setting.kind());
            if has.is_some_and(|has| has != setting) {
                let disturbs = "RoCE traffic of the PF and its VFs, for a moment";
                self.push(Step::Roce(setting.clone()), "the RoCE profile", Some(disturbs));
            }
        }
    }

    /// The number of VFs and the mode of the switch, in the driver's order.
    pub(crate) fn vfs_and_mode(
        &mut self,
        count: u16,
        mode: Option<EswitchMode>,
        pf: &PfReading,
        driver: &Driver,
    ) {
        let resize = pf.num_vfs != count;
        let Some(mode) = mode else {
            if !resize {
                return;
            }
            // mlx5 makes and removes VFs in legacy mode.
            if driver.order == Order::VfsFirst && pf.eswitch == Some(EswitchMode::Switchdev) {
                self.unbind(pf.num_vfs);
                self.eswitch(EswitchMode::Legacy, "mlx5 makes and removes VFs in legacy mode");
                self.resize(pf.num_vfs, count);
                self.unbind(count);
                self.eswitch(EswitchMode::Switchdev, "mlx5 takes the mode once all VFs are there");
                return;
            }
            self.resize(pf.num_vfs, count);
            return;
        };
        match driver.order {
            Order::VfsFirst if mode == EswitchMode::Switchdev => {
                if resize {
                    self.resize(pf.num_vfs, count);
                } else if count > 0 {
                    let why = "what legacy mode closed cannot be opened in switchdev mode";
                    self.push(Step::OpenLinks, why, None);
                }
                self.unbind(count);
                self.eswitch(mode, "mlx5 takes it once all VFs are there and none is bound");
            }
            Order::VfsFirst => {
                self.unbind(pf.num_vfs);
                self.eswitch(mode, "mlx5 makes and removes VFs in legacy mode");
                if resize {
                    self.resize(pf.num_vfs, count);
                }
            }
            Order::EswitchFirst => {
                if pf.num_vfs > 0 {
                    self.num_vfs(0, "the driver changes its mode only without VFs");
                }
                self.eswitch(mode, "before there are VFs");
                if count > 0 {
                    self.num_vfs(count, "as the file says");
                }
            }
            Order::Whenever | Order::NoEswitch => {
                self.eswitch(mode, "as the file says");
                if resize {
                    self.resize(pf.num_vfs, count);
                }
            }
        }
    }

    fn unbind(&mut self, count: u16) {
        if count > 0 {
            let why = "the mode changes only while no VF is bound";
            self.push(Step::UnbindVfs, why, Some("VFs that are used on this host"));
        }
    }

    fn eswitch(&mut self, mode: EswitchMode, why: &str) {
        self.push(Step::Eswitch(mode), why, Some("all traffic of the PF, for a moment"));
    }

    fn resize(&mut self, now: u16, count: u16) {
        if now > 0 {
            self.num_vfs(0, "the kernel goes from one number to another only by way of 0");
        }
        if count > 0 {
            self.num_vfs(count, "as the file says");
        }
    }

    fn num_vfs(&mut self, count: u16, why: &str) {
        let disturbs = (count == 0).then_some("every VF goes away");
        self.push(Step::NumVfs(count), why, disturbs);
        if count > 0 {
            self.push(Step::Await(count), "VFs appear one by one after the write", None);
        }
    }

    pub(crate) fn push(&mut self, step: Step, why: &str, disturbs: Option<&str>) {
        self.steps.push(PlanStep {
            pf: self.pf.clone(),
            step,
            why: why.to_owned(),
            disturbs: disturbs.map(str::to_owned),
        });
    }

    fn makes_vfs(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.step, Step::NumVfs(count) if count > 0))
    }
}
