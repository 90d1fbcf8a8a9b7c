//! The plan: a pure function of the host file, the readings and the ledger. It says what would be
//! written, in which order and why, what that would disturb, and what stands in the way.

mod finding;
mod steps;

use std::collections::BTreeMap;

use lanekeeper_hw::inventory::{PfReading, TotalVfs, VfReading};
use lanekeeper_model::{PfAddr, VfIndex};
use serde::{Deserialize, Serialize};

pub use finding::Finding;
pub use steps::Step;
pub(crate) use steps::Steps;

use crate::drivers;
use crate::file::{HostFile, VF_LAG_LIMIT};
use crate::ledger::{Identity, Life, PfRecord, PfTarget};
use crate::scrub;

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
    for pf in &plan.pfs {
        let others = records.iter().filter(|other| {
            let planned = plan.pfs.iter().any(|pf| pf.identity.is(&other.identity));
            other.name == pf.name && other.target.is_some() && !planned
        });
        for other in others {
            let here =
                readings.iter().any(|pf| Identity::of(pf).is_some_and(|pf| pf.is(&other.identity)));
            if here || !other.claims.is_empty() {
                let (pf, identity) = (pf.name.clone(), other.identity.to_string());
                plan.findings.push(Finding::NameTaken { pf, identity });
            }
        }
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
    findings.extend(mtu_in_use(&name(), target, record));
    findings
}

/// Claims that a smaller MTU would take theirs from.
fn mtu_in_use(name: &str, target: &PfTarget, record: &PfRecord) -> Option<Finding> {
    let mtu = target.mtu?;
    let is_new = record.target.as_ref().is_none_or(|old| old.mtu != target.mtu);
    let larger = record.claims.iter().filter(|(_, claim)| claim.settings.mtu > mtu);
    let owned: Vec<_> = larger.map(|(id, claim)| (claim.vf, id.clone())).collect();
    let change = format!("an MTU of {mtu}");
    (is_new && !owned.is_empty()).then(|| Finding::MtuInUse { pf: name.to_owned(), change, owned })
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
