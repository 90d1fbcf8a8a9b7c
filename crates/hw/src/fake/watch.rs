//! Events of a fake host: what its kernel would tell of what happens to it. They wait until they
//! are taken, for each that watches, and as in the kernel some may be lost.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::{Fake, Write};
use crate::HardwareError;
use crate::watch::{Event, Kind, Watch};

/// A line to a fake host's events.
pub struct FakeWatch {
    events: Receiver<Event>,
}

/// Everybody who watches.
#[derive(Default)]
pub(super) struct Watchers(Vec<Sender<Event>>);

impl Watchers {
    pub(super) fn tell(&mut self, event: &Event) {
        self.0.retain(|watcher| watcher.send(event.clone()).is_ok());
    }
}

impl Fake {
    /// Watch the host. What happens from now on is told.
    pub fn watch(&self) -> FakeWatch {
        let (watcher, events) = mpsc::channel();
        self.lock().watchers.0.push(watcher);
        FakeWatch { events }
    }

    /// What the kernel tells of a write that it carried out.
    pub(super) fn tell_of(&self, write: &Write) {
        let event = match write {
            Write::NumVfs(pf, _)
            | Write::Eswitch(pf, _)
            | Write::Vf(pf, ..)
            | Write::Representor(pf, ..) => Event::of(Kind::Changed, *pf),
            Write::Up(pf, up) => {
                let carrier = *up && self.lock().pf(*pf).is_ok_and(|pf| pf.carrier());
                Event::of(Kind::Link { up: *up, carrier }, *pf)
            }
            Write::Unbind(vf) | Write::Probe(vf) => Event::of(Kind::Driver, *vf),
            // sysfs files and settings of DCB tell nobody.
            Write::Autoprobe(..)
            | Write::DriverOverride(..)
            | Write::Reset(_)
            | Write::VfMtu(..)
            | Write::Roce(..) => return,
        };
        self.lock().watchers.tell(&event);
    }
}

impl Watch for FakeWatch {
    fn wait(&mut self, within: Duration) -> Result<Vec<Event>, HardwareError> {
        match self.events.recv_timeout(within) {
            Ok(first) => Ok(std::iter::once(first).chain(self.events.try_iter()).collect()),
            Err(RecvTimeoutError::Timeout) => Ok(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(within);
                Ok(Vec::new())
            }
        }
    }
}

impl FakeWatch {
    /// Nobody took what was told, and the kernel had no more room: only that is left.
    pub fn overrun(&self, fake: &Fake) {
        self.events.try_iter().for_each(drop);
        fake.lock().watchers.tell(&Event::lost());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SriovHardware as _;
    use crate::fake::{FakePf, Personality};

    fn told(watch: &mut FakeWatch) -> Vec<Kind> {
        let events = watch.wait(Duration::ZERO).expect("a fake tells");
        events.iter().map(|event| event.kind).collect()
    }

    #[test]
    fn what_happens_to_a_host_is_told_to_each_that_watches() {
        let fake = Fake::new();
        let mut watches = [fake.watch(), fake.watch()];
        let pf = fake.add_pf(FakePf::new(Personality::I40e));
        fake.set_cable(pf, false).expect("pulled");
        fake.reload_driver(pf).expect("reloaded");
        let board = fake.hot_remove(pf).expect("removed");
        fake.add_pf(board);
        let lost = Kind::Link { up: true, carrier: false };
        for watch in &mut watches {
            let kinds = told(watch);
            assert_eq!(
                kinds,
                [Kind::Appeared, lost, Kind::Driver, Kind::Gone, Kind::Appeared],
                "in their order, once each"
            );
            assert_eq!(told(watch), []);
        }
    }

    #[test]
    fn a_change_by_somebody_else_is_told_and_a_refused_one_is_not() {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(Personality::I40e));
        let mut watch = fake.watch();
        fake.write_num_vfs(pf, 2).expect("made");
        fake.write_num_vfs(pf, 3).expect_err("not from one number to another");
        assert_eq!(told(&mut watch), [Kind::Changed]);
    }

    #[test]
    fn after_an_overrun_only_that_is_told() {
        let fake = Fake::new();
        let mut watch = fake.watch();
        fake.add_pf(FakePf::new(Personality::I40e));
        watch.overrun(&fake);
        assert_eq!(told(&mut watch), [Kind::Lost]);
    }

    #[test]
    fn whoever_watches_no_more_is_forgotten() {
        let fake = Fake::new();
        drop(fake.watch());
        fake.add_pf(FakePf::new(Personality::I40e));
        assert!(fake.lock().watchers.0.is_empty());
    }
}
