//! Carrying a plan out: all or nothing. What the PFs were is in the ledger before the first write;
//! if a step fails, or the program dies, or nobody confirms in time, that is where the way back
//! leads, whatever was reached.

use std::time::{Duration, SystemTime};

use lanekeeper_hw::inventory::{PfReading, VfReading};
use lanekeeper_hw::message::VfMessage;
use lanekeeper_hw::{HardwareError, SriovHardware};
use lanekeeper_model::{LinkState, RoceSetting, VfIndex};
use serde::Serialize;

use crate::error::HostError;
use crate::ledger::{Intent, Ledger, Life, PfRecord, PfTarget, Unconfirmed, VfRecord};
use crate::owner::{Owner, Session, is_refusal, read_back};
use crate::plan::{self, PfPlan, Plan, PlanStep, Step};
use crate::scrub;
use crate::snapshot::PfSnapshot;

/// How often a PF is brought nearer to its target before it is given up: a driver that changes one
/// thing with another (mlx5's trust with its DSCP map) needs a second look.
pub(crate) const PASSES: usize = 4;

/// What a confirmation came to, by the PFs' names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Confirmed {
    /// Those that stay as they were applied.
    pub kept: Vec<String>,
    /// Those that were rolled back before, and were not applied since.
    pub too_late: Vec<String>,
}

/// What an apply did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Applied {
    /// PFs that were changed, by our names.
    pub pfs: Vec<String>,
    /// Steps that were carried out.
    pub steps: usize,
    /// When it is rolled back unless [`Owner::confirm`] comes first.
    pub until: Option<SystemTime>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

impl Owner {
    /// Carry out a plan. With `confirm_within`, it is rolled back by [`Owner::recover`] (or by
    /// whoever works on the PF next) unless [`Owner::confirm`] comes in time: see to it that somebody
    /// calls that when [`Owner::roll_back_due`] says so.
    ///
    /// # Errors
    /// [`HostError::Refused`] and [`HostError::Stale`] before anything is written;
    /// [`HostError::Reverted`] if a step failed and all is as before; [`HostError::HalfWay`] if
    /// the way back failed too.
    pub fn apply(
        &self,
        plan: &Plan,
        confirm_within: Option<Duration>,
    ) -> Result<Applied, HostError> {
        let blockers = plan.blockers();
        if !blockers.is_empty() {
            return Err(HostError::Refused(blockers));
        }
        let mut applied = Applied::default();
        let mut work: Vec<(&PfPlan, Session)> = Vec::new();
        // In one order for everybody, so that two applies never wait for each other.
        let mut todo: Vec<&PfPlan> =
            plan.pfs.iter().filter(|pf| !pf.settled || !pf.steps.is_empty()).collect();
        todo.sort_by_key(|pf| Ledger::key_for(&pf.identity));
        for pf in todo {
            work.push((pf, self.session_for(pf)?));
        }
        for (pf, session) in &mut work {
            session.check_still(pf)?;
        }
        let within = confirm_within.map(|within| (self.now() + within, within));
        for at in 0..work.len() {
            let (pf, session) = &mut work[at];
            if let Err(failed) = session.carry_out(pf, within, &mut applied) {
                return Err(roll_back(&mut work[..=at], failed));
            }
        }
        for (pf, _) in &work {
            self.forget_namesakes(pf)?;
        }
        for (pf, session) in &mut work {
            session.record.intent = None;
            session.save()?;
            applied.pfs.push(pf.name.clone());
            if !pf.steps.is_empty() {
                applied.until = within.map(|(until, _)| until);
            }
        }
        Ok(applied)
    }

    /// A card that is gone, without claims, is forgotten when another takes over its name.
    fn forget_namesakes(&self, pf: &PfPlan) -> Result<(), HostError> {
        for (key, record) in self.ledger.read_all()? {
            let Ok(record) = record else { continue };
            let namesake = record.name == pf.name && !record.identity.is(&pf.identity);
            let gone = || matches!(self.locate(&record), Err(HostError::PfGone { .. }));
            if !namesake || record.target.is_none() || !record.claims.is_empty() || !gone() {
                continue;
            }
            let locked = self.ledger.lock(&key, self.lock_until())?;
            let Some(mut record) = locked.load()? else { continue };
            if record.claims.is_empty() {
                (record.target, record.original, record.unconfirmed) = (None, None, None);
                record.vfs.clear();
                locked.save(&record)?;
            }
        }
        Ok(())
    }

    /// Keep what was applied: nothing is rolled back any more.
    ///
    /// # Errors
    /// [`HostError::Ledger`], and those of the roll-back of an apply whose time has passed.
    pub fn confirm(&self) -> Result<Confirmed, HostError> {
        let mut confirmed = Confirmed::default();
        for key in self.ledger.keys()? {
            let record = self.ledger.read(&key)?;
            if record.unconfirmed.is_some() {
                let mut session = self.session(&key)?;
                if session.record.unconfirmed.take().is_some() {
                    session.save()?;
                    confirmed.kept.push(session.name().to_owned());
                } else {
                    confirmed.too_late.push(session.name().to_owned());
                }
            } else if record.rolled_back.is_some() {
                confirmed.too_late.push(record.name);
            }
        }
        Ok(confirmed)
    }

    /// Time until [`Owner::recover`] has an apply to roll back: none for one that was cut short, the
    /// rest of its time for one that nobody has confirmed. `None` if there is neither.
    ///
    /// # Errors
    /// [`HostError::Ledger`].
    pub fn roll_back_due(&self) -> Result<Option<Duration>, HostError> {
        let mut first = None;
        for key in self.ledger.keys()? {
            let record = self.ledger.read(&key)?;
            let cut_short = matches!(record.intent, Some(Intent::Apply { .. }));
            let left = match &record.unconfirmed {
                _ if cut_short => Duration::ZERO,
                Some(waiting) => waiting.left(self.now()).unwrap_or_default(),
                None => continue,
            };
            first = Some(first.map_or(left, |first: Duration| first.min(left)));
        }
        Ok(first)
    }

    /// Give a PF back: everything is set as it was before we first touched it, and the ledger
    /// forgets it.
    ///
    /// # Errors
    /// [`HostError::Refused`] while a VF is owned; [`HostError::Unknown`]; those of the way back.
    pub fn give_back(&self, pf: &str) -> Result<(), HostError> {
        let mut session = self.session(&self.key_of(pf)?)?;
        if !session.record.claims.is_empty() {
            let owned = session.record.claims.iter();
            let owned = owned.map(|(id, claim)| (claim.vf, id.clone())).collect();
            let change = "giving it back".to_owned();
            let pf = pf.to_owned();
            return Err(HostError::Refused(vec![plan::Finding::VfsOwned { pf, change, owned }]));
        }
        let Some(original) = session.record.original.clone() else { return Ok(()) };
        session.record.intent = Some(Intent::Apply { before: original.clone() });
        session.record.target = None;
        session.record.vfs.clear();
        session.record.unconfirmed = None;
        session.save()?;
        session.restore(&original)?;
        session.record.intent = None;
        session.record.original = None;
        session.save()
    }

    /// The file of the PF that has this name.
    pub(crate) fn key_of(&self, pf: &str) -> Result<String, HostError> {
        let mut known = Vec::new();
        let (mut given_back, mut damaged) = (None, None);
        for (key, record) in self.ledger.read_all()? {
            match record {
                // A name may have been another PF's, which was given back.
                Ok(record) if record.name == pf && record.target.is_some() => return Ok(key),
                Ok(record) if record.name == pf => given_back = Some(key),
                Ok(record) => known.push(record.name),
                Err(error) => damaged = Some(error),
            }
        }
        if let Some(key) = given_back {
            return Ok(key);
        }
        if let Some(error) = damaged {
            return Err(error.into());
        }
        let nearest = crate::file::nearest(pf, known.iter().map(String::as_str));
        let nearest = nearest.map(str::to_owned);
        Err(HostError::Unknown { kind: "pf", name: pf.to_owned(), nearest })
    }

    /// The session of a planned PF; its record is made if it has none.
    fn session_for(&self, pf: &PfPlan) -> Result<Session<'_>, HostError> {
        for (key, record) in self.ledger.read_all()? {
            if record?.identity.is(&pf.identity) {
                return self.session(&key);
            }
        }
        let locked = self.ledger.lock(&Ledger::key_for(&pf.identity), self.lock_until())?;
        if locked.load()?.is_some() {
            return self.locked_session(locked);
        }
        let record = PfRecord::new(pf.identity.clone(), &pf.name, pf.address);
        let addr = self.locate(&record)?.addr;
        Ok(Session { owner: self, locked, record, addr })
    }
}

/// A step that failed, and why.
pub(crate) struct Failed {
    doing: String,
    pub(crate) source: Box<HostError>,
}

/// Lead every PF that was touched back, the last one first.
fn roll_back(work: &mut [(&PfPlan, Session)], failed: Failed) -> HostError {
    let pf = work.last().map(|(pf, _)| pf.name.clone()).unwrap_or_default();
    let Failed { doing, source } = failed;
    let mut way_back = Ok(());
    for (_, session) in work.iter_mut().rev() {
        way_back = way_back.and(session.undo_apply());
    }
    match way_back {
        Ok(()) => HostError::Reverted { pf, doing, source },
        Err(error) => HostError::HalfWay { pf, doing, source, way_back: Box::new(error) },
    }
}

impl Session<'_> {
    /// Carry out what is planned for this PF alone.
    pub(crate) fn apply_alone(&mut self, planned: &PfPlan) -> Result<Applied, HostError> {
        let mut applied = Applied::default();
        if let Err(Failed { doing, source }) = self.carry_out(planned, None, &mut applied) {
            let pf = planned.name.clone();
            return Err(match self.undo_apply() {
                Ok(()) => HostError::Reverted { pf, doing, source },
                Err(error) => HostError::HalfWay { pf, doing, source, way_back: Box::new(error) },
            });
        }
        self.record.intent = None;
        self.save()?;
        Ok(applied)
    }

    /// The plan holds for what is there now.
    fn check_still(&self, planned: &PfPlan) -> Result<(), HostError> {
        let stale = |what: &str| HostError::Stale { pf: planned.name.clone(), what: what.into() };
        let pf = self.read()?;
        let (findings, steps) = plan::pf_steps(&planned.name, &planned.target, &pf, &self.record);
        let blockers: Vec<_> = findings.into_iter().filter(plan::Finding::blocks).collect();
        if !blockers.is_empty() {
            return Err(HostError::Refused(blockers));
        }
        if steps == planned.steps { Ok(()) } else { Err(stale("its state changed")) }
    }

    fn carry_out(
        &mut self,
        planned: &PfPlan,
        confirm: Option<(SystemTime, Duration)>,
        applied: &mut Applied,
    ) -> Result<(), Failed> {
        let failed = |doing: &str| {
            let doing = doing.to_owned();
            move |source| Failed { doing, source: Box::new(source) }
        };
        let pf = self.read_all_told().map_err(failed("read it"))?;
        let before = PfSnapshot::of(&pf, &self.record);
        let (old_target, old_vfs) = (self.record.target.clone(), self.record.vfs.clone());
        if !planned.steps.is_empty() {
            self.record.original.get_or_insert_with(|| before.clone());
            self.record.intent = Some(Intent::Apply { before: before.clone() });
            self.save().map_err(failed("write the ledger"))?;
        }
        for step in &planned.steps {
            self.step(step, applied)?;
        }
        let pf = self.converge(planned, applied)?;
        self.adopt(&pf, &planned.target, applied);
        self.record.name.clone_from(&planned.name);
        self.record.target = Some(planned.target.clone());
        self.record.rolled_back = None;
        if let Some((until, within)) = confirm
            && !planned.steps.is_empty()
        {
            let (target, vfs) = (old_target, old_vfs);
            self.record.unconfirmed = Some(Unconfirmed { until, within, before, target, vfs });
        }
        Ok(())
    }

    /// Look again: what one step changed beside its own is put right, and what does not stay as it
    /// was set is an error.
    fn converge(&mut self, planned: &PfPlan, applied: &mut Applied) -> Result<PfReading, Failed> {
        let look = |source| Failed { doing: "read it back".to_owned(), source: Box::new(source) };
        let mut done = planned.steps.clone();
        for _ in 0..PASSES {
            let (pf, steps) = self.look_again(planned, &done).map_err(look)?;
            let Some(first) = steps.first() else { return Ok(pf) };
            tracing::debug!(pf = planned.name, step = %first.step, "not yet as wanted");
            for step in &steps {
                self.step(step, applied)?;
            }
            done = steps;
        }
        let pf = self.read().map_err(look)?;
        let (_, steps) = plan::pf_steps(&planned.name, &planned.target, &pf, &self.record);
        match steps.first() {
            None => Ok(pf),
            Some(step) => Err(Failed {
                doing: step.step.to_string(),
                source: Box::new(read_back(self.addr, "it", &step.step, &"as before")),
            }),
        }
    }

    /// The PF, and what is left to do. What was just done and is not seen yet is waited for: a driver
    /// may tell of it a moment later.
    fn look_again(
        &self,
        planned: &PfPlan,
        done: &[PlanStep],
    ) -> Result<(PfReading, Vec<PlanStep>), HostError> {
        let look = || {
            let pf = self.read()?;
            let (_, steps) = plan::pf_steps(&planned.name, &planned.target, &pf, &self.record);
            Ok((pf, steps))
        };
        let is_new = |left: &PlanStep| !done.iter().any(|done| done.step == left.step);
        self.owner.look_until(look, |(_, steps)| steps.iter().all(is_new))
    }

    /// VFs become the ledger's.
    fn adopt(&mut self, pf: &PfReading, target: &PfTarget, applied: &mut Applied) {
        self.record.vfs.retain(|vf, _| vf.get() < usize::from(target.vfs));
        for vf in &pf.vfs {
            let known = self.record.vfs.get(&vf.vf);
            if known.is_some_and(|known| known.life != Life::Absent) {
                continue;
            }
            let mut record =
                VfRecord { parked_mac: known.and_then(|vf| vf.parked_mac), ..VfRecord::free() };
            if let Some(user) = plan::user(vf) {
                let reason = format!("{user} used it when it was taken over");
                applied.notes.push(format!("VF {} is quarantined: {reason}", vf.vf));
                record.life = Life::Quarantined { reason };
            }
            self.record.vfs.insert(vf.vf, record);
        }
    }

    pub(crate) fn step(&mut self, step: &PlanStep, applied: &mut Applied) -> Result<(), Failed> {
        let done = self.do_step(&step.step, applied);
        done.map_err(|source| Failed { doing: step.step.to_string(), source: Box::new(source) })?;
        applied.steps += 1;
        Ok(())
    }

    fn do_step(&mut self, step: &Step, applied: &mut Applied) -> Result<(), HostError> {
        let write =
            |write: &dyn Fn(&dyn SriovHardware) -> Result<(), lanekeeper_hw::HardwareError>| {
                self.owner.patiently(write).map_err(HostError::from)
            };
        let pf = self.addr;
        match step {
            Step::Up(up) => write(&|hw| hw.set_up(pf, *up)),
            Step::Mtu(mtu) => write(&|hw| hw.set_roce(pf, &RoceSetting::Mtu(*mtu))),
            Step::Autoprobe(on) => write(&|hw| hw.write_autoprobe(pf, *on)),
            Step::Eswitch(mode) => write(&|hw| hw.set_eswitch(pf, *mode)),
            Step::NumVfs(count) => {
                self.nobody_holds()?;
                write(&|hw| hw.write_num_vfs(pf, *count))
            }
            Step::Roce(setting) => write(&|hw| hw.set_roce(pf, setting)),
            Step::Await(count) => self.wait_for_vfs(*count).map(|_| ()),
            Step::UnbindVfs => self.unbind_vfs(),
            Step::OpenLinks => self.open_links(),
            Step::Scrub(vfs) => self.scrub_step(vfs, applied),
            Step::Settle(vfs) => self.settle_step(vfs),
        }
    }

    /// Removing a VF that a process holds would hang, with the PF's lock held (spdk#3205).
    fn nobody_holds(&self) -> Result<(), HostError> {
        let pf = self.read()?;
        let held = pf.vfs.iter().find_map(|vf| Some((vf, vf.holder.as_ref()?)));
        let Some((vf, holder)) = held else { return Ok(()) };
        let (pid, command) = (holder.pid, holder.command.clone());
        Err(HostError::HeldByStranger { address: vf.addr, pid, command })
    }

    fn unbind_vfs(&self) -> Result<(), HostError> {
        let pf = self.read()?;
        pf.vfs.iter().try_for_each(|vf| self.unbind(vf))
    }

    /// In switchdev mode a VF's link is its representor's to open; what legacy mode closed stays
    /// closed there and cannot be opened.
    fn open_links(&self) -> Result<(), HostError> {
        for vf in self.read()?.vfs {
            let state = vf.attributes.and_then(|attributes| attributes.link_state);
            if state.is_some_and(|state| state != LinkState::Auto) {
                let link_state = Some(LinkState::Auto);
                let message = VfMessage { link_state, ..VfMessage::default() };
                self.owner.patiently(|hw| hw.send_vf(self.addr, vf.vf, &message))?;
            }
        }
        Ok(())
    }

    /// One reading, one message a VF, and another look.
    fn scrub_step(&mut self, vfs: &[VfIndex], applied: &mut Applied) -> Result<(), HostError> {
        let pf = self.read()?;
        let mut silent = false;
        for vf in pf.vfs.iter().filter(|vf| vfs.contains(&vf.vf)) {
            let is_new = !self.record.vfs.contains_key(&vf.vf);
            self.record.vfs.entry(vf.vf).or_insert_with(VfRecord::absent);
            // A VF that was somebody's is taken from its driver: the host's network tools would
            // go on with it (openshift/sriov-network-operator#414).
            if is_new {
                self.set_override(vf, None)?;
                self.unbind(vf)?;
            }
            // One that the driver never tells of is waited for, the others then are not.
            let told = match vf.attributes {
                None if silent => Err(HostError::Untold { address: vf.addr }),
                _ => self.read_told(vf.vf),
            };
            silent |= told.is_err();
            let scrubbed = match told {
                Ok((_, vf)) => self.scrub_attributes(&pf, &vf)?,
                Err(error @ HostError::Untold { .. }) => Err(error.to_string()),
                Err(error) => return Err(error),
            };
            self.note_scrub(vf.vf, scrubbed, applied);
        }
        let pf = self.read()?;
        for vf in pf.vfs.iter().filter(|vf| vfs.contains(&vf.vf)) {
            if !scrub::keeps_a_mac(&pf, vf, &self.record) {
                continue;
            }
            let parked = self.park_mac(vf.vf)?.map(|note| vec![note]);
            self.note_scrub(vf.vf, parked, applied);
        }
        Ok(())
    }

    fn note_scrub(
        &mut self,
        vf: VfIndex,
        scrubbed: Result<Vec<String>, String>,
        applied: &mut Applied,
    ) {
        match scrubbed {
            Ok(notes) => applied.notes.extend(notes),
            Err(reason) => {
                applied.notes.push(format!("VF {vf} is quarantined: {reason}"));
                if let Some(record) = self.record.vfs.get_mut(&vf) {
                    record.life = Life::Quarantined { reason };
                }
            }
        }
    }

    fn settle_step(&self, vfs: &[VfIndex]) -> Result<(), HostError> {
        let pf = self.read()?;
        pf.vfs.iter().filter(|vf| vfs.contains(&vf.vf)).try_for_each(|vf| self.settle(vf))
    }

    /// Bring a VF's attributes to what its owner asked for, in one message; a MAC with no driver
    /// bound, so that the driver takes it up.
    pub(crate) fn settle(&self, vf: &VfReading) -> Result<(), HostError> {
        let Some((_, claim)) = self.record.owner_of(vf.vf) else { return Ok(()) };
        let message = crate::claim::drift(vf, claim);
        if message.is_empty() {
            return Ok(());
        }
        let rebind = vf.driver.as_ref().filter(|_| message.mac.is_some());
        if rebind.is_some() {
            self.unbind(vf)?;
        }
        self.send_settings(vf.vf, &message)?;
        if let Some(driver) = rebind {
            self.bind(vf.vf, driver)?;
        }
        Ok(())
    }

    /// Send a VF what its owner asked for. Drivers that measure a rate by the link's speed take none
    /// without a link (igb_main.c igb_ndo_set_vf_bw), and a change of MTU takes it away for a second or
    /// two: then it is waited for.
    pub(crate) fn send_settings(
        &self,
        vf: VfIndex,
        message: &VfMessage,
    ) -> Result<(), HardwareError> {
        let mut wait = self.owner.busy_wait();
        loop {
            let sent = self.owner.patiently(|hw| hw.send_vf(self.addr, vf, message));
            match sent {
                Err(error)
                    if message.rate.is_some()
                        && is_refusal(&error)
                        && !wait.is_over()
                        && self.waits_for_link() =>
                {
                    std::thread::sleep(self.owner.patience.poll);
                }
                answer => return answer,
            }
        }
    }

    fn waits_for_link(&self) -> bool {
        let netdev = self.read().ok().and_then(|pf| pf.netdev);
        netdev.is_some_and(|netdev| netdev.up && !netdev.carrier)
    }
}
