//! The disk of the ledger fills up at any step of a claim, a release or an apply: what cannot be noted
//! is not done, and once there is room again the next start finishes or undoes what was begun.

use std::sync::Arc;
use std::time::Duration;

use lanekeeper_host::ledger::LedgerError;
use lanekeeper_host::{HostError, HostFile, Owner, Which};
use lanekeeper_hw::chaos::{Chaos, Fault};
use lanekeeper_hw::fake::{FakePf, Personality};

use crate::rig::{Rig, entry, request, token};

struct Full {
    rig: Rig,
    file: HostFile,
}

impl Full {
    fn new() -> Self {
        let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5));
        let file = entry(&rig.fake, pf, "rail0", 2, "eswitch: switchdev");
        rig.apply(&file);
        Self { rig, file }
    }

    /// From now on no file of the ledger can be written: a folder is where it would be.
    fn fill(&self) {
        for key in self.rig.owner().ledger().keys().expect("listed") {
            std::fs::create_dir(self.rig.folder.path().join(format!("{key}.tmp"))).expect("made");
        }
    }

    fn make_room(&self) {
        for key in self.rig.owner().ledger().keys().expect("listed") {
            std::fs::remove_dir(self.rig.folder.path().join(format!("{key}.tmp")))
                .expect("removed");
        }
    }

    /// Do something that finds the disk full after `step` steps. Whether there were so many.
    fn fills_at<T: Send>(
        &self,
        step: u64,
        work: impl FnOnce(&Owner) -> Result<T, HostError> + Send,
    ) -> bool {
        let chaos = Chaos::at(self.rig.fake.clone(), step, Fault::Hang);
        let owner = self.rig.owner_over(Arc::new(chaos.clone()));
        std::thread::scope(|scope| {
            let work = scope.spawn(|| work(&owner).map(drop));
            while chaos.hanging() == 0 && !work.is_finished() {
                std::thread::sleep(Duration::from_micros(200));
            }
            let reached = chaos.hanging() > 0;
            if reached {
                self.fill();
                chaos.release();
            }
            let outcome = work.join().expect("no panic");
            if reached {
                self.make_room();
            } else {
                outcome.expect("nothing was amiss");
            }
            reached
        })
    }

    /// Ledger and devices agree after the next start, and everything can be given back.
    fn judge(&self, file: &HostFile, step: u64) {
        let owner = self.rig.owner();
        let recovered = owner.recover().expect("recovered");
        assert!(recovered.failed.is_empty(), "step {step}: {recovered:?}");
        for record in owner.records().expect("ledger") {
            assert!(!record.is_cut_short(), "step {step}: {record:?}");
            for id in record.claims.keys() {
                let which = Which::Claim(id.clone());
                owner.release(&which, &token("tenant")).expect("released");
            }
        }
        let drift = owner.check(file).expect("checked");
        assert_eq!(drift, [], "step {step}");
        let free = owner.records().expect("ledger")[0].free_vfs().count();
        assert_eq!(free, usize::from(file.pfs[0].vfs), "step {step}");
    }
}

#[test]
fn a_claim_that_finds_the_disk_full_touches_nothing() {
    let full = Full::new();
    full.fill();
    full.rig.fake.clear_log();
    let error = full.rig.owner().claim(&request("tenant")).expect_err("no room");
    assert!(matches!(error, HostError::Ledger(LedgerError::Io { .. })), "{error}");
    assert_eq!(full.rig.fake.writes(), []);
    full.make_room();
    full.rig.owner().claim(&request("tenant")).expect("claimed");
}

#[test]
fn a_disk_that_fills_up_at_any_step_of_a_claim_or_its_release_loses_no_vf() {
    for step in 0.. {
        let full = Full::new();
        if !full.fills_at(step, |owner| owner.claim(&request("tenant"))) {
            assert!(step > 8, "it ended at step {step}");
            break;
        }
        full.judge(&full.file, step);
    }
    for step in 0.. {
        let full = Full::new();
        let claim = full.rig.owner().claim(&request("tenant")).expect("claimed");
        let which = Which::Claim(claim.id);
        if !full.fills_at(step, |owner| owner.release(&which, &token("tenant"))) {
            assert!(step > 8, "it ended at step {step}");
            break;
        }
        full.judge(&full.file, step);
    }
}

#[test]
fn a_disk_that_fills_up_at_any_step_of_an_apply_leaves_the_host_as_before_or_as_wanted() {
    for step in 0.. {
        let full = Full::new();
        let mut more = full.file.clone();
        more.pfs[0].vfs = 3;
        let plan = full.rig.owner().plan(&more).expect("a plan");
        let reached = full.fills_at(step, |owner| owner.apply(&plan, None));
        full.rig.owner().recover().expect("recovered");
        let target = full.rig.owner().records().expect("ledger")[0].target.clone();
        let reached_all = target.is_some_and(|target| target.vfs == 3);
        full.judge(if reached_all { &more } else { &full.file }, step);
        if !reached {
            assert!(reached_all && step > 8, "it ended at step {step}");
            break;
        }
    }
}
