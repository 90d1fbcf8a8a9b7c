//! In what a PF differs from what the ledger says it should be: what a repair would put right, and
//! what stands in its way. A pure function, like the plan that it asks.

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::VfIndex;

use crate::claim::{astray, drift};
use crate::drift::Drift;
use crate::drivers::Knob;
use crate::ledger::{Life, PfRecord};
use crate::plan::{Finding, Step, pf_steps};
use crate::scrub::one_by_one;

/// What is amiss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// What a repair would put right.
    pub(super) drift: Vec<Drift>,
    /// Some of it keeps a claim's VF from harming others, or others from its claim.
    pub(super) guards: bool,
    /// What it cannot, in words.
    pub(super) blocked: Vec<String>,
}

/// Judge a PF that was read, by its record.
pub(super) fn judge(pf: &PfReading, record: &PfRecord) -> Judgement {
    let mut judgement = Judgement::default();
    let Some(target) = &record.target else { return judgement };
    let mut guards = false;
    let mut add = |vf: Option<VfIndex>, what: String| {
        judgement.drift.push(Drift { pf: record.name.clone(), vf, what });
    };
    let (findings, steps) = pf_steps(&record.name, target, pf, record);
    for step in &steps {
        match &step.step {
            Step::Scrub(vfs) => {
                for vf in vfs {
                    add(Some(*vf), "free, and not scrubbed".to_owned());
                }
            }
            // Told below, setting by setting.
            Step::Settle(_) | Step::Await(_) => {}
            step => add(None, format!("not as applied: to {step}")),
        }
    }
    for (id, claim) in record.claims.iter().filter(|(_, claim)| claim.handed_over) {
        let Some(now) = pf.vf(claim.vf) else { continue };
        let vf = Some(claim.vf);
        // What a VM holds is put right without taking it away, or on release.
        let held = now.holder.is_some();
        let differs = drift(now, claim);
        if !(held && differs.mac.is_some()) {
            for (knob, what, _) in one_by_one(&differs) {
                guards |= matches!(knob, Knob::Mac | Knob::Vlan | Knob::Spoofchk | Knob::Trust);
                add(vf, format!("{what} is not as claim {id} asked"));
            }
        }
        for what in astray(pf, now, claim) {
            add(vf, format!("{what}: claim {id}"));
        }
        if let Some(lost) = &claim.lost {
            add(vf, format!("claim {id} is lost: {lost}"));
        }
    }
    judgement.guards = guards;
    let blockers = findings.iter().filter(|finding| finding.blocks());
    judgement.blocked.extend(blockers.map(Finding::to_string));
    judgement.blocked.extend(strangers(pf, record));
    judgement
}

/// Processes that hold VFs which are nobody's.
fn strangers(pf: &PfReading, record: &PfRecord) -> Vec<String> {
    let nobodys = pf.vfs.iter().filter(|vf| record.owner_of(vf.vf).is_none());
    let is_free = |vf: VfIndex| record.vfs.get(&vf).is_some_and(|vf| vf.life == Life::Free);
    nobodys
        .filter(|vf| is_free(vf.vf))
        .filter_map(|vf| {
            let holder = vf.holder.as_ref()?;
            let (command, pid) = (&holder.command, holder.pid);
            Some(format!("VF {} is nobody's, but {command} (pid {pid}) holds it", vf.vf))
        })
        .collect()
}
