//! A back end in which something goes wrong at step k: the call is refused, hangs, comes late, or
//! the program dies before or after it. Tests run the same history once for each k.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lanekeeper_model::{EswitchMode, Mtu, PfAddr, PfId, RoceSetting, VfAddr, VfCounters, VfIndex};

use crate::inventory::{PciNode, PfReading, RepresentorState};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware};

/// What goes wrong at a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is refused with this errno, and nothing is done.
    Refuse(i32),
    /// It hangs until [`Chaos::release`], then it is done.
    Hang,
    /// It is done this much later.
    Delay(Duration),
    /// The program dies before the step is done.
    DieBefore,
    /// The program dies after the step was done, and never sees its answer.
    DieAfter,
}

/// The program has died at this step: the payload of the panic that ends a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// The step, counted from 0.
    pub step: u64,
}

/// Run what may die. A clone of the back end that was handed to it shows what is left.
///
/// # Errors
/// [`Death`] if it died. Any other panic goes on.
pub fn survive<T>(program: impl FnOnce() -> T) -> Result<T, Death> {
    catch_unwind(AssertUnwindSafe(program)).map_err(|payload| match payload.downcast::<Death>() {
        Ok(death) => *death,
        Err(panic) => resume_unwind(panic),
    })
}

/// Whether a panic's payload is a [`Death`].
pub fn is_death(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Death>()
}

/// Another back end, with faults. Every call is a step, reads too; steps are counted from 0. Once
/// dead, every call is a death: the program does not go on. A clone is another handle.
pub struct Chaos<H> {
    shared: Arc<Shared<H>>,
}

struct Shared<H> {
    inner: H,
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    steps: u64,
    plan: BTreeMap<u64, Fault>,
    hanging: usize,
    releases: u64,
    dead: Option<Death>,
}

impl<H> Clone for Chaos<H> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<H: SriovHardware> Chaos<H> {
    /// These faults at these steps.
    pub fn new(inner: H, plan: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        let state = State { plan: plan.into_iter().collect(), ..State::default() };
        let shared = Shared { inner, state: Mutex::new(state), released: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// One fault.
    pub fn at(inner: H, step: u64, fault: Fault) -> Self {
        Self::new(inner, [(step, fault)])
    }

    /// No fault: steps are counted only.
    pub fn calm(inner: H) -> Self {
        Self::new(inner, [])
    }

    /// The back end below.
    pub fn inner(&self) -> &H {
        &self.shared.inner
    }

    /// Steps that were begun.
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Calls that hang now.
    pub fn hanging(&self) -> usize {
        self.lock().hanging
    }

    /// Let every call that hangs now go on.
    pub fn release(&self) {
        self.lock().releases += 1;
        self.shared.released.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step<T>(
        &self,
        refuse: impl FnOnce(std::io::Error) -> HardwareError,
        call: impl FnOnce(&H) -> Result<T, HardwareError>,
    ) -> Result<T, HardwareError> {
        let mut state = self.lock();
        if let Some(death) = state.dead {
            drop(state);
            resume_unwind(Box::new(death));
        }
        let step = state.steps;
        state.steps += 1;
        let fault = state.plan.get(&step).copied();
        match fault {
            Some(Fault::Refuse(errno)) => {
                return Err(refuse(std::io::Error::from_raw_os_error(errno)));
            }
            Some(Fault::Hang) => self.hang(state),
            Some(Fault::Delay(time)) => {
                drop(state);
                std::thread::sleep(time);
            }
            Some(Fault::DieBefore) => {
                drop(state);
                self.die(step);
            }
            Some(Fault::DieAfter) | None => drop(state),
        }
        let answer = call(&self.shared.inner);
        if fault == Some(Fault::DieAfter) {
            self.die(step);
        }
        answer
    }

    fn hang(&self, mut state: MutexGuard<'_, State>) {
        let since = state.releases;
        state.hanging += 1;
        while state.releases == since {
            let woken = self.shared.released.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.hanging -= 1;
    }

    /// Without the panic hook: a death is planned, and thousands of them are no news.
    fn die(&self, step: u64) -> ! {
        let death = Death { step };
        self.lock().dead = Some(death);
        resume_unwind(Box::new(death));
    }

    fn pf_step<T>(
        &self,
        pf: PfAddr,
        doing: &str,
        call: impl FnOnce(&H) -> Result<T, HardwareError>,
    ) -> Result<T, HardwareError> {
        let refuse = |source| HardwareError::Kernel {
            pf: PfId::Pci(pf),
            doing: doing.to_owned(),
            source,
            hint: None,
        };
        self.step(refuse, call)
    }

    fn host_step<T>(
        &self,
        what: &str,
        call: impl FnOnce(&H) -> Result<T, HardwareError>,
    ) -> Result<T, HardwareError> {
        self.step(|source| HardwareError::Host { what: what.to_owned(), source }, call)
    }
}

impl<H: SriovHardware> SriovHardware for Chaos<H> {
    fn list(&self) -> Result<Vec<PfAddr>, HardwareError> {
        self.host_step("the list of PFs", H::list)
    }

    fn read(&self, pf: PfAddr) -> Result<PfReading, HardwareError> {
        self.pf_step(pf, "read it", |inner| inner.read(pf))
    }

    fn pci_tree(&self) -> Result<Vec<PciNode>, HardwareError> {
        self.host_step("the PCIe tree", H::pci_tree)
    }

    fn write_num_vfs(&self, pf: PfAddr, count: u16) -> Result<(), HardwareError> {
        let doing = format!("write {count} to sriov_numvfs");
        self.pf_step(pf, &doing, |inner| inner.write_num_vfs(pf, count))
    }

    fn write_autoprobe(&self, pf: PfAddr, on: bool) -> Result<(), HardwareError> {
        let doing = format!("write {} to sriov_drivers_autoprobe", u8::from(on));
        self.pf_step(pf, &doing, |inner| inner.write_autoprobe(pf, on))
    }

    fn set_up(&self, pf: PfAddr, up: bool) -> Result<(), HardwareError> {
        let doing = if up { "set the interface up" } else { "set the interface down" };
        self.pf_step(pf, doing, |inner| inner.set_up(pf, up))
    }

    fn set_eswitch(&self, pf: PfAddr, mode: EswitchMode) -> Result<(), HardwareError> {
        let doing = format!("set the embedded switch to {mode}");
        self.pf_step(pf, &doing, |inner| inner.set_eswitch(pf, mode))
    }

    fn send_vf(&self, pf: PfAddr, vf: VfIndex, message: &VfMessage) -> Result<(), HardwareError> {
        let doing = format!("set VF {vf}");
        self.pf_step(pf, &doing, |inner| inner.send_vf(pf, vf, message))
    }

    fn set_vf_mtu(&self, pf: PfAddr, vf: VfIndex, mtu: Mtu) -> Result<(), HardwareError> {
        let doing = format!("set MTU {mtu} on VF {vf}");
        self.pf_step(pf, &doing, |inner| inner.set_vf_mtu(pf, vf, mtu))
    }

    fn set_representor(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        state: RepresentorState,
    ) -> Result<(), HardwareError> {
        let doing = format!("set the representor of VF {vf}: {state}");
        self.pf_step(pf, &doing, |inner| inner.set_representor(pf, vf, state))
    }

    fn vf_counters(&self, pf: PfAddr, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        let doing = format!("read the counters of VF {vf}");
        self.pf_step(pf, &doing, |inner| inner.vf_counters(pf, vf))
    }

    fn pause_frames(&self, pf: PfAddr) -> Result<Option<[u64; 8]>, HardwareError> {
        self.pf_step(pf, "read its pause frames", |inner| inner.pause_frames(pf))
    }

    fn write_driver_override(
        &self,
        pf: PfAddr,
        vf: VfAddr,
        driver: Option<&str>,
    ) -> Result<(), HardwareError> {
        let doing = format!("write driver_override of {vf}");
        self.pf_step(pf, &doing, |inner| inner.write_driver_override(pf, vf, driver))
    }

    fn unbind(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.pf_step(pf, &format!("unbind {vf}"), |inner| inner.unbind(pf, vf))
    }

    fn probe(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.pf_step(pf, &format!("probe {vf}"), |inner| inner.probe(pf, vf))
    }

    fn reset(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        self.pf_step(pf, &format!("reset {vf}"), |inner| inner.reset(pf, vf))
    }

    fn set_roce(&self, pf: PfAddr, setting: &RoceSetting) -> Result<(), HardwareError> {
        let doing = format!("set {} of the RoCE profile", setting.kind());
        self.pf_step(pf, &doing, |inner| inner.set_roce(pf, setting))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::fake::{Fake, FakePf, Personality, Write};

    const EIO: i32 = 5;

    fn host() -> (Fake, PfAddr) {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(Personality::I40e));
        (fake, pf)
    }

    /// Five steps, three of them writes.
    fn program(hardware: &impl SriovHardware) -> Result<u16, HardwareError> {
        let pf = hardware.list()?[0];
        hardware.write_autoprobe(pf, false)?;
        hardware.write_num_vfs(pf, 2)?;
        hardware.write_autoprobe(pf, true)?;
        hardware.read(pf).map(|reading| reading.num_vfs)
    }

    const WRITES_BEFORE: [usize; 5] = [0, 0, 1, 2, 3];
    const IS_WRITE: [bool; 5] = [false, true, true, true, false];

    #[test]
    fn without_faults_steps_are_counted_and_nothing_else() {
        let chaos = Chaos::calm(host().0);
        assert_eq!(program(&chaos).expect("nothing goes wrong"), 2);
        assert_eq!(chaos.steps(), 5);
    }

    #[test]
    fn a_refused_step_is_not_done_and_the_program_hears_of_it() {
        for k in 0..5 {
            let chaos = Chaos::at(host().0, k, Fault::Refuse(EIO));
            let error = program(&chaos).expect_err("refused");
            let source = match error {
                HardwareError::Kernel { source, .. } | HardwareError::Host { source, .. } => source,
                other => panic!("{other}"),
            };
            assert_eq!(source.raw_os_error(), Some(EIO));
            assert_eq!(chaos.inner().writes().len(), WRITES_BEFORE[k as usize]);
            assert_eq!(chaos.steps(), k + 1);
        }
    }

    #[test]
    fn death_before_a_step_leaves_it_undone_and_death_after_it_done() {
        for k in 0..5 {
            for (fault, done) in [(Fault::DieBefore, false), (Fault::DieAfter, true)] {
                let (fake, _) = host();
                let chaos = Chaos::at(fake.clone(), k, fault);
                let death = survive(|| program(&chaos)).expect_err("it dies");
                assert_eq!(death, Death { step: k });
                let k = k as usize;
                let writes = WRITES_BEFORE[k] + usize::from(done && IS_WRITE[k]);
                assert_eq!(fake.writes().len(), writes);
            }
        }
    }

    #[test]
    fn the_dead_do_nothing_more() {
        let (fake, pf) = host();
        let chaos = Chaos::at(fake.clone(), 0, Fault::DieBefore);
        survive(|| chaos.list()).expect_err("it dies");
        survive(|| chaos.write_num_vfs(pf, 1)).expect_err("it is dead");
        assert_eq!((fake.writes(), chaos.steps()), (vec![], 1));
    }

    #[test]
    fn another_panic_is_no_death() {
        let panic = catch_unwind(|| survive(|| panic!("a fault of the program")));
        assert!(!is_death(&*panic.expect_err("it goes on")));
    }

    #[test]
    fn what_survives_keeps_its_value() {
        assert_eq!(survive(|| 7), Ok(7));
    }

    #[test]
    fn a_late_step_is_done_in_the_end() {
        let (fake, pf) = host();
        let late = Duration::from_millis(30);
        let chaos = Chaos::at(fake.clone(), 0, Fault::Delay(late));
        let begun = Instant::now();
        chaos.write_num_vfs(pf, 2).expect("late");
        assert!(begun.elapsed() >= late);
        assert_eq!(fake.writes(), [Write::NumVfs(pf, 2)]);
    }

    #[test]
    fn a_step_that_hangs_goes_on_when_it_is_released_and_others_do_not_wait() {
        let (fake, pf) = host();
        let chaos = Chaos::at(fake.clone(), 0, Fault::Hang);
        let write = thread::spawn({
            let chaos = chaos.clone();
            move || chaos.write_num_vfs(pf, 2)
        });
        while chaos.hanging() == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(chaos.read(pf).expect("another step").num_vfs, 0);
        chaos.release();
        write.join().expect("no panic").expect("done");
        assert_eq!((chaos.hanging(), fake.num_vfs_writes(pf)), (0, 1));
    }
}
