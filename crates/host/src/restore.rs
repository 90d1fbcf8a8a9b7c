//! The way back: a PF is led to what it was before an apply, from wherever it was left.

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_hw::message::VfMessage;
use lanekeeper_model::{Mtu, VfIndex};

use crate::apply::{Applied, Failed, PASSES};
use crate::drivers;
use crate::error::HostError;
use crate::ledger::{Intent, Life};
use crate::owner::{Session, read_back};
use crate::plan::{PlanStep, Step, Steps};
use crate::snapshot::{PfSnapshot, VfSnapshot};

impl Session<'_> {
    /// Undo an apply that was cut short or failed.
    pub(crate) fn undo_apply(&mut self) -> Result<(), HostError> {
        // What this run changed in memory was never in the ledger.
        if let Some(record) = self.locked.load()? {
            self.record = record;
        }
        let Some(Intent::Apply { before }) = self.record.intent.clone() else { return Ok(()) };
        self.restore(&before)?;
        self.record.intent = None;
        let vfs = self.record.target.as_ref().map_or(0, |target| usize::from(target.vfs));
        self.record.vfs.retain(|vf, record| vf.get() < vfs || record.life != Life::Absent);
        if self.record.target.is_none() {
            self.record.original = None;
        }
        self.save()
    }

    /// Roll an apply back that nobody confirmed.
    pub(crate) fn undo_unconfirmed(&mut self) -> Result<(), HostError> {
        let Some(waiting) = self.record.unconfirmed.clone() else { return Ok(()) };
        self.record.intent = Some(Intent::Apply { before: waiting.before.clone() });
        self.save()?;
        self.restore(&waiting.before)?;
        self.record.intent = None;
        self.record.unconfirmed = None;
        self.record.rolled_back = Some(self.owner.now());
        self.record.target = waiting.target;
        let owned: Vec<VfIndex> = self.record.claims.values().map(|claim| claim.vf).collect();
        let mut vfs = waiting.vfs;
        for (vf, record) in &self.record.vfs {
            let freed = vfs.contains_key(vf) && !owned.contains(vf);
            if freed || owned.contains(vf) {
                vfs.insert(*vf, record.clone());
            }
        }
        self.record.vfs = vfs;
        if self.record.target.is_none() {
            self.record.original = None;
        }
        self.save()
    }

    /// Lead the PF to where it was, from wherever it is, and look whether it is there.
    pub(crate) fn restore(&mut self, before: &PfSnapshot) -> Result<(), HostError> {
        let mut notes = Applied::default();
        let mut trouble = None;
        for _ in 0..PASSES {
            let pf = self.read_all_told()?;
            if before.difference(&pf, &self.record).is_none() {
                return Ok(());
            }
            for step in self.steps_back(before, &pf) {
                // As much as can be is brought back, whatever else cannot.
                if let Err(Failed { source, .. }) = self.step(&step, &mut notes) {
                    trouble = Some(*source);
                }
            }
            let pf = self.read()?;
            for (vf, was) in &before.vfs {
                let theirs = self.record.owner_of(*vf).map(|(id, _)| id) != was.claim.as_ref();
                if theirs || pf.vf(*vf).is_none() {
                    continue;
                }
                if let Err(error) = self.restore_vf(*vf, was) {
                    trouble = Some(error);
                }
            }
        }
        let pf = self.read_all_told()?;
        match (before.difference(&pf, &self.record), trouble) {
            (None, _) => Ok(()),
            (Some(_), Some(error)) => Err(error),
            (Some(what), None) => Err(read_back(self.addr, "it", &"as before", &what)),
        }
    }

    /// Steps towards a snapshot, in the driver's order.
    fn steps_back(&self, before: &PfSnapshot, pf: &PfReading) -> Vec<PlanStep> {
        let mut steps = Steps::new(self.name());
        let driver = drivers::of(pf);
        let why = "the way back";
        let is_up = pf.netdev.as_ref().is_some_and(|netdev| netdev.up);
        let remakes = pf.num_vfs != before.num_vfs && before.num_vfs > 0;
        if remakes && driver.up_first.is_some() && !is_up {
            steps.push(Step::Up(true), why, None);
        }
        steps.mtu(before.mtu.and_then(|mtu| Mtu::new(mtu).ok()), pf);
        if pf.autoprobe != before.autoprobe {
            steps.push(Step::Autoprobe(before.autoprobe), why, None);
        }
        let mode = before.eswitch.filter(|mode| pf.eswitch != Some(*mode));
        steps.vfs_and_mode(before.num_vfs, mode, pf, driver);
        steps.roce(&before.roce, pf);
        let ends_up = is_up || (remakes && driver.up_first.is_some());
        if before.up.is_some_and(|up| up != ends_up) {
            steps.push(Step::Up(!ends_up), why, None);
        }
        steps.steps
    }

    fn restore_vf(&self, vf: VfIndex, was: &VfSnapshot) -> Result<(), HostError> {
        let (_, now) = self.read_vf(vf)?;
        let message = match (&was.attributes, &now.attributes) {
            (Some(was), Some(now)) => VfMessage::back_to(was, now),
            _ => VfMessage::default(),
        };
        if !message.is_empty() {
            if message.mac.is_some() {
                self.unbind(&now)?;
            }
            self.owner.patiently(|hw| hw.send_vf(self.addr, vf, &message))?;
        }
        let (_, now) = self.read_vf(vf)?;
        match &was.driver {
            Some(driver) if now.driver.as_ref() != Some(driver) => {
                self.bind(vf, driver)?;
            }
            None => self.unbind(&now)?,
            Some(_) => {}
        }
        let (_, now) = self.read_vf(vf)?;
        self.set_override(&now, was.driver_override.as_deref())?;
        if let (Some(mtu), Some(netdev)) = (was.mtu, &now.netdev)
            && mtu != netdev.mtu
            && let Ok(mtu) = Mtu::new(mtu)
        {
            self.owner.patiently(|hw| hw.set_vf_mtu(self.addr, vf, mtu))?;
        }
        Ok(())
    }
}
