//! The owner itself: its parts, its patience, and the session in which one PF is worked on. A
//! session holds the PF's lock, has its record, and knows where it is now; whatever an earlier one
//! was cut short in is finished or undone before it begins.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lanekeeper_hw::inventory::{PfReading, VfReading};
use lanekeeper_hw::{HardwareError, SriovHardware};
use lanekeeper_model::{MacAddr, PciAddr, PfAddr, VfIndex};
use lanekeeper_topology::PciTree;
use rustix::io::Errno;

use crate::error::HostError;
use crate::file::HostFile;
use crate::handover::{HostPreflight, PreflightFacts};
use crate::ledger::{Identity, Ledger, LockedPf, PfRecord};
use crate::plan::{PfSeen, Plan, plan};

/// Looks that patience lasts at least: a machine that stood still for longer than it would wait has
/// seen nothing in that time.
const LOOKS: u32 = 10;

/// How long things are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For another `lanekeeper` that works on the same PF.
    pub lock: Duration,
    /// For a driver that is busy (`EBUSY`, `EAGAIN`), and for one that is to be bound.
    pub busy: Duration,
    /// Between two looks.
    pub poll: Duration,
    /// For the first VF to appear (sriov-network-operator#1015 waits 120 s for all) ...
    pub vfs: Duration,
    /// ... and more for each VF.
    pub each_vf: Duration,
    /// For a PF to be read, beyond what the back end itself waits.
    pub read: Duration,
    /// For further PFs to answer once one has, when any of several would do.
    pub stragglers: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            lock: Duration::from_secs(60),
            busy: Duration::from_secs(5),
            poll: Duration::from_millis(20),
            vfs: Duration::from_secs(60),
            each_vf: Duration::from_secs(1),
            read: Duration::from_secs(30),
            stragglers: Duration::from_millis(200),
        }
    }
}

/// One host's owner.
pub struct Owner {
    pub(crate) hw: Arc<dyn SriovHardware>,
    pub(crate) ledger: Ledger,
    pub(crate) patience: Patience,
    pub(crate) preflight: Arc<dyn PreflightFacts>,
    draw: Box<dyn Fn() -> u64 + Send + Sync>,
    clock: Box<dyn Fn() -> SystemTime + Send + Sync>,
}

/// One PF, locked and found.
pub(crate) struct Session<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) locked: LockedPf,
    pub(crate) record: PfRecord,
    pub(crate) addr: PfAddr,
}

impl Owner {
    /// The owner of `hw`, with its ledger in `folder` ([`crate::STATE_FOLDER`]). Nothing is read or
    /// written yet; call [`Owner::recover`] next.
    ///
    /// # Errors
    /// [`HostError::Ledger`].
    pub fn open(hw: Arc<dyn SriovHardware>, folder: &Path) -> Result<Self, HostError> {
        Ok(Self {
            hw,
            ledger: Ledger::open(folder)?,
            patience: Patience::default(),
            preflight: Arc::new(HostPreflight),
            draw: Box::new(random),
            clock: Box::new(SystemTime::now),
        })
    }

    /// With other patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// With another way to look at VFIO's device nodes.
    #[must_use]
    pub fn with_preflight(mut self, preflight: Arc<dyn PreflightFacts>) -> Self {
        self.preflight = preflight;
        self
    }

    /// With another source of the numbers that MACs and claims' names are drawn from.
    #[must_use]
    pub fn with_draw(mut self, draw: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.draw = Box::new(draw);
        self
    }

    /// With another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// The ledger, to be read.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Every PF's reading, or why it has none.
    ///
    /// # Errors
    /// [`HostError::Hardware`] if PFs cannot even be listed.
    pub fn readings(&self) -> Result<Vec<PfSeen>, HostError> {
        let pfs: BTreeSet<PfAddr> = self.hw.list()?.into_iter().collect();
        let mut seen: Vec<PfSeen> = Vec::new();
        self.read_each(pfs.iter().copied(), self.patience.read, |address, reading| {
            seen.push(PfSeen { address, reading: reading.map_err(|error| error.to_string()) });
            None
        });
        let answered: BTreeSet<PfAddr> = seen.iter().map(|seen| seen.address).collect();
        for address in pfs.difference(&answered) {
            let why = format!("it did not answer within {:?}", self.patience.read);
            seen.push(PfSeen { address: *address, reading: Err(why) });
        }
        seen.sort_by_key(|seen| seen.address);
        Ok(seen)
    }

    /// One PF that the ledger knows, by our name for it, as it is now.
    ///
    /// # Errors
    /// [`HostError::Unknown`], [`HostError::PfGone`], and those of reading it.
    pub fn reading(&self, pf: &str) -> Result<PfReading, HostError> {
        self.session(&self.key_of(pf)?)?.read()
    }

    /// The host's PCIe tree: GPUs, and how far they are from PFs.
    ///
    /// # Errors
    /// [`HostError::Hardware`]; [`HostError::Affinity`] if what was read is no tree.
    pub fn topology(&self) -> Result<PciTree, HostError> {
        let tree = PciTree::new(self.hw.pci_tree()?);
        tree.map_err(|error| HostError::Affinity(error.to_string()))
    }

    /// What would be done for a file.
    ///
    /// # Errors
    /// [`HostError::Ledger`], [`HostError::Hardware`].
    pub fn plan(&self, file: &HostFile) -> Result<Plan, HostError> {
        let seen = self.readings()?;
        Ok(plan(file, &seen, &self.records()?))
    }

    /// Every PF's record; a damaged one is an error.
    ///
    /// # Errors
    /// [`HostError::Ledger`].
    pub fn records(&self) -> Result<Vec<PfRecord>, HostError> {
        let all = self.ledger.read_all()?;
        Ok(all.into_iter().map(|(_, record)| record).collect::<Result<_, _>>()?)
    }

    pub(crate) fn now(&self) -> SystemTime {
        (self.clock)()
    }

    pub(crate) fn drawn(&self) -> u64 {
        (self.draw)()
    }

    /// A locally administered unicast MAC.
    pub(crate) fn drawn_mac(&self) -> MacAddr {
        let [_, _, bytes @ ..] = self.drawn().to_be_bytes();
        let mut mac = MacAddr(bytes);
        mac.0[0] = mac.0[0] & 0xfc | 0x02;
        mac
    }

    pub(crate) fn lock_until(&self) -> Instant {
        Instant::now() + self.patience.lock
    }

    /// Work on a PF that the ledger knows by this file.
    pub(crate) fn session(&self, key: &str) -> Result<Session<'_>, HostError> {
        let locked = self.ledger.lock(key, self.lock_until())?;
        self.locked_session(locked)
    }

    pub(crate) fn locked_session(&self, locked: LockedPf) -> Result<Session<'_>, HostError> {
        let mut session = self.found_session(locked)?;
        // What it had to put right first is in the log.
        session.catch_up(&mut Vec::new())?;
        Ok(session)
    }

    /// A session before anything that was cut short is put right.
    pub(crate) fn found_session(&self, locked: LockedPf) -> Result<Session<'_>, HostError> {
        let mut record = locked.load()?.ok_or_else(|| HostError::Unknown {
            kind: "pf",
            name: locked.key().to_owned(),
            nearest: None,
        })?;
        let found = self.locate(&record)?;
        let before = (record.last_address, record.identity.clone());
        record.last_address = found.addr;
        if let Some(identity) = Identity::of(&found) {
            record.identity.learn(&identity);
        }
        let session = Session { owner: self, locked, record, addr: found.addr };
        if before != (session.record.last_address, session.record.identity.clone()) {
            session.save()?;
        }
        Ok(session)
    }

    /// Look until it is as hoped, or until patience for a busy driver ends. What was seen last, either way.
    pub(crate) fn look_until<T>(
        &self,
        mut look: impl FnMut() -> Result<T, HostError>,
        as_hoped: impl Fn(&T) -> bool,
    ) -> Result<T, HostError> {
        let mut wait = self.busy_wait();
        loop {
            let seen = look()?;
            if as_hoped(&seen) || wait.is_over() {
                return Ok(seen);
            }
            std::thread::sleep(self.patience.poll);
        }
    }

    /// Patience for a driver that is busy.
    pub(crate) fn busy_wait(&self) -> Wait {
        Wait::until(Instant::now() + self.patience.busy)
    }

    /// A step until it is done, as long as the driver says that it is only busy.
    pub(crate) fn patiently<T>(
        &self,
        mut step: impl FnMut(&dyn SriovHardware) -> Result<T, HardwareError>,
    ) -> Result<T, HardwareError> {
        let mut wait = self.busy_wait();
        let mut pause = self.patience.poll;
        loop {
            match step(&*self.hw) {
                Err(error) if is_busy(&error) && !wait.is_over() => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(self.patience.busy / LOOKS);
                }
                answer => return answer,
            }
        }
    }
}

/// Patience that ends with a time, and not before so many looks.
pub(crate) struct Wait {
    until: Instant,
    looks: u32,
}

impl Wait {
    fn until(until: Instant) -> Self {
        Self { until, looks: 0 }
    }

    /// After another look in vain: whether it was the last.
    pub(crate) fn is_over(&mut self) -> bool {
        self.looks += 1;
        self.looks >= LOOKS && Instant::now() >= self.until
    }
}

/// "Try again" in the kernel's words. A driver's link or file may be missing for a moment while it
/// is re-bound (sriov-network-operator#1046), and not be ours for seconds (PR#108).
fn is_busy(error: &HardwareError) -> bool {
    kernel_says(error, &[Errno::BUSY, Errno::AGAIN, Errno::INTR, Errno::ACCESS, Errno::NOENT])
}

/// The driver says that it will not, now or ever: asking for less may help.
pub(crate) fn is_refusal(error: &HardwareError) -> bool {
    if matches!(error, HardwareError::Unsupported { .. } | HardwareError::Refused { .. }) {
        return true;
    }
    let refusals = [
        Errno::INVAL,
        Errno::OPNOTSUPP,
        Errno::PROTONOSUPPORT,
        Errno::PERM,
        Errno::RANGE,
        Errno::ADDRNOTAVAIL,
        Errno::NOTTY,
    ];
    kernel_says(error, &refusals)
}

/// The driver says that it has no such thing.
pub(crate) fn is_unsupported(error: &HardwareError) -> bool {
    matches!(error, HardwareError::Unsupported { .. }) || kernel_says(error, &[Errno::OPNOTSUPP])
}

/// The kernel refused with one of these, with words of the driver's beside it or without.
pub(crate) fn kernel_says(error: &HardwareError, errnos: &[Errno]) -> bool {
    let errno = match error {
        HardwareError::Kernel { .. } => error.errno(),
        _ => None,
    };
    errno.is_some_and(|errno| errnos.iter().any(|e| e.raw_os_error() == errno))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        // Only before the kernel's pool is ready does it fail, and then only for a moment.
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags).unwrap_or(0);
    }
    u64::from_ne_bytes(bytes)
}

impl Session<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.record.name
    }

    pub(crate) fn save(&self) -> Result<(), HostError> {
        Ok(self.locked.save(&self.record)?)
    }

    /// The PF as it is, if it is still the one that was found.
    pub(crate) fn read(&self) -> Result<PfReading, HostError> {
        let reading = self.owner.patiently(|hw| hw.read(self.addr))?;
        let same = Identity::of(&reading).is_some_and(|found| found.is(&self.record.identity));
        if same { Ok(reading) } else { Err(self.gone()) }
    }

    pub(crate) fn gone(&self) -> HostError {
        HostError::PfGone { pf: self.name().to_owned(), identity: self.record.identity.to_string() }
    }

    /// The PF and one of its VFs.
    pub(crate) fn read_vf(&self, vf: VfIndex) -> Result<(PfReading, VfReading), HostError> {
        let pf = self.read()?;
        let reading = pf.vf(vf).cloned();
        let missing = || HostError::VfMissing { pf: self.name().to_owned(), vf };
        reading.map(|vf| (pf, vf)).ok_or_else(missing)
    }

    /// The PF once its driver tells of every VF, or as it is when patience ends.
    pub(crate) fn read_all_told(&self) -> Result<PfReading, HostError> {
        self.owner.look_until(
            || self.read(),
            |pf| pf.netdev.is_none() || pf.vfs.iter().all(|vf| vf.attributes.is_some()),
        )
    }

    /// The PF and one of its VFs, once the PF's driver tells of it: while a VF is in reset it is left out
    /// (ice_sriov.c ice_get_vf_cfg, rtnetlink.c rtnl_fill_vfinfo), and what is not told is not as
    /// wanted.
    pub(crate) fn read_told(&self, vf: VfIndex) -> Result<(PfReading, VfReading), HostError> {
        let (pf, now) = self.owner.look_until(
            || self.read_vf(vf),
            |(pf, now)| pf.netdev.is_none() || now.attributes.is_some(),
        )?;
        if now.attributes.is_none() {
            return Err(HostError::Untold { address: now.addr });
        }
        Ok((pf, now))
    }

    /// Take a VF from its driver, if it has one and nobody holds it: VFIO would wait for them.
    pub(crate) fn unbind(&self, vf: &VfReading) -> Result<(), HostError> {
        if let Some(holder) = &vf.holder {
            return Err(HostError::HeldByStranger {
                address: vf.addr,
                pid: holder.pid,
                command: holder.command.clone(),
            });
        }
        if vf.driver.is_some() {
            self.owner.patiently(|hw| hw.unbind(self.addr, vf.addr))?;
        }
        Ok(())
    }

    pub(crate) fn set_override(
        &self,
        vf: &VfReading,
        driver: Option<&str>,
    ) -> Result<(), HostError> {
        if vf.driver_override.as_deref() == driver {
            return Ok(());
        }
        let write = |hw: &dyn SriovHardware| hw.write_driver_override(self.addr, vf.addr, driver);
        Ok(self.owner.patiently(write)?)
    }

    /// Have `driver`, and no other, bound to a VF. What is bound in the end is for the caller to
    /// judge. `driver_override` only: `new_id` binds strangers (nasty#601).
    pub(crate) fn bind(&self, vf: VfIndex, driver: &str) -> Result<VfReading, HostError> {
        let (_, now) = self.read_vf(vf)?;
        if now.driver.as_deref() == Some(driver) {
            self.set_override(&now, Some(driver))?;
        } else {
            self.unbind(&now)?;
            self.set_override(&now, Some(driver))?;
            self.owner.patiently(|hw| hw.probe(self.addr, now.addr))?;
        }
        self.wait_for_driver(vf, driver)
    }

    /// The VF once `driver` is seen on it, or as it is when patience ends: the link of a driver may
    /// be missing for a moment (sriov-network-operator#1046).
    fn wait_for_driver(&self, vf: VfIndex, driver: &str) -> Result<VfReading, HostError> {
        let seen = self
            .owner
            .look_until(|| self.read_vf(vf), |(_, now)| now.driver.as_deref() == Some(driver));
        seen.map(|(_, now)| now)
    }

    /// Wait until all VFs are there, with patience that grows with their number.
    pub(crate) fn wait_for_vfs(&self, count: u16) -> Result<PfReading, HostError> {
        let patience = self.owner.patience;
        let after = patience.vfs + patience.each_vf * u32::from(count);
        let mut wait = Wait::until(Instant::now() + after);
        let mut taken = Wait::until(Instant::now() + patience.busy);
        loop {
            let pf = self.read()?;
            let found = pf.vfs.len();
            if found == usize::from(count) && pf.num_vfs == count {
                return Ok(pf);
            }
            // A number that the driver did not take (bnxt_en that is down) will hardly come.
            let not_taken = taken.is_over() && pf.num_vfs != count;
            if wait.is_over() || not_taken {
                return Err(HostError::VfsMissing { pf: self.addr, wanted: count, found, after });
            }
            std::thread::sleep(patience.poll);
        }
    }
}

/// What was written is not what is there.
pub(crate) fn read_back(
    address: impl Into<PciAddr>,
    what: &'static str,
    wanted: &dyn ToString,
    found: &dyn ToString,
) -> HostError {
    let (wanted, found) = (wanted.to_string(), found.to_string());
    HostError::ReadBack { address: address.into(), what, wanted, found }
}
