//! What is to be done next for a VM: a pure function of its record and of what is there. It is asked
//! again after each step, so that a step that failed, a process that was killed after any of them, and
//! a desire that changed meanwhile need no rules of their own.
//!
//! What holds at every step, and is tested:
//! - a VF is in the record before it is set, and until it has been scrubbed and read back;
//! - a VM is started only with all its VFs set, and its VFs go to nobody while it runs;
//! - a VM is gone only when it has ended, its files are removed and its VFs are scrubbed.

use lanekeeper_control::protocol::{DesiredVm, Power, VmState};
use lanekeeper_model::LinkState;

use crate::journal::Record;
use crate::lanes::{Lane, lanes_of};

/// How far the VM is, beside what its record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct There {
    /// Its guest.
    pub guest: Guest,
    /// Its VFs.
    pub vfs: Vfs,
    /// What it boots is there.
    pub image: bool,
    /// It must not run for now: it may have been started elsewhere.
    pub held_back: bool,
}

/// What is known of a VM's VFs, since it was set and read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vfs {
    /// Nothing, at least of one of them.
    Unknown,
    /// The links of all are down; what else they are set to is not known.
    Cut,
    /// All are set as is desired, with this link.
    Set(LinkState),
}

/// A VM's guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guest {
    /// No VMM runs.
    Off,
    /// One runs, and the guest does not answer yet.
    Booting,
    /// It runs.
    Ready,
}

/// One thing to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Write down that the desired VFs are this VM's.
    Claim,
    /// Set all VFs as desired, with this link, and read them back.
    Set(LinkState),
    /// Take the links of all its VFs down.
    Cut,
    /// Have what it boots ready.
    Prepare,
    /// Write down what is started, and start it.
    Boot,
    /// Wait for the guest.
    Await,
    /// Reset it, and write that down.
    Reset,
    /// Have the guest power off.
    ShutDown,
    /// End it at once.
    Kill,
    /// Scrub a VF, read it back, and strike it from the record.
    Scrub(Lane),
    /// Remove its files.
    Remove,
    /// Nothing: it is as it shall be.
    Rest(VmState),
}

/// The next step.
pub fn next(record: &Record, there: There) -> Step {
    if record.leaving {
        return leave(record, there.guest);
    }
    let want = &record.want;
    if let Some(failure) = record.failure() {
        let reason = failure.reason.clone();
        return cut_off(record, there, VmState::Failed { reason });
    }
    if there.held_back {
        return cut_off(record, there, VmState::Stopped);
    }
    let off = want.power == Power::Off || record.powered_off == Some(record.moment());
    let anew = record.booted.as_ref().is_some_and(|booted| needs_boot(booted, want));
    if there.guest != Guest::Off && (off || anew) {
        return Step::ShutDown;
    }
    if let Some(lane) = record.lanes.iter().find(|lane| !lanes_of(want).any(|it| it == **lane)) {
        return Step::Scrub(lane.clone());
    }
    if lanes_of(want).any(|lane| !record.lanes.contains(&lane)) {
        return Step::Claim;
    }
    let link = if off { LinkState::Disable } else { LinkState::Auto };
    if there.vfs != Vfs::Set(link) {
        return Step::Set(link);
    }
    match there.guest {
        Guest::Off if off => Step::Rest(VmState::Stopped),
        Guest::Off if !there.image => Step::Prepare,
        Guest::Off => Step::Boot,
        Guest::Booting => Step::Await,
        Guest::Ready if record.resets < want.resets => Step::Reset,
        Guest::Ready => Step::Rest(VmState::Running),
    }
}

fn leave(record: &Record, guest: Guest) -> Step {
    match record.lanes.first() {
        _ if guest != Guest::Off => Step::Kill,
        Some(lane) => Step::Scrub(lane.clone()),
        None if record.files => Step::Remove,
        None => Step::Rest(VmState::Gone),
    }
}

/// A VM that must not run as it is: it ends at once, and nothing passes its VFs.
fn cut_off(record: &Record, there: There, state: VmState) -> Step {
    let down = [Vfs::Cut, Vfs::Set(LinkState::Disable)];
    if there.guest != Guest::Off {
        Step::Kill
    } else if !record.lanes.is_empty() && !down.contains(&there.vfs) {
        Step::Cut
    } else {
        Step::Rest(state)
    }
}

/// Whether a VM that was started as `booted` has to be started anew to be as desired. What only the
/// guest's first look at its seed tells it (name, key, user data, addresses) waits for the next start,
/// whoever asks for that: no tenant's VM is restarted for it.
fn needs_boot(booted: &DesiredVm, want: &DesiredVm) -> bool {
    let device =
        |vm: &DesiredVm| vm.ports.iter().map(|port| (port.mac, port.mtu)).collect::<Vec<_>>();
    booted.place != want.place || booted.image != want.image || device(booted) != device(want)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Failure;
    use crate::samples::{lane, vm};

    const NOTHING: There =
        There { guest: Guest::Off, vfs: Vfs::Unknown, image: false, held_back: false };
    const RUNNING: There = There {
        guest: Guest::Ready,
        vfs: Vfs::Set(LinkState::Auto),
        image: true,
        held_back: false,
    };

    fn running() -> Record {
        let lanes = vec![lane(1)];
        Record { lanes, files: true, booted: Some(vm(1)), ..Record::new(vm(1)) }
    }

    #[test]
    fn a_vm_is_claimed_for_set_prepared_and_booted_in_this_order() {
        let mut record = Record::new(vm(1));
        let mut there = NOTHING;
        assert_eq!(next(&record, there), Step::Claim);
        record.lanes = vec![lane(1)];
        assert_eq!(next(&record, there), Step::Set(LinkState::Auto));
        there.vfs = Vfs::Set(LinkState::Auto);
        assert_eq!(next(&record, there), Step::Prepare);
        there.image = true;
        assert_eq!(next(&record, there), Step::Boot);
        there.guest = Guest::Booting;
        assert_eq!(next(&record, there), Step::Await);
        there.guest = Guest::Ready;
        assert_eq!(next(&record, there), Step::Rest(VmState::Running));
    }

    #[test]
    fn a_vm_that_leaves_ends_before_its_vfs_are_scrubbed_and_its_files_removed() {
        let mut record = Record { leaving: true, ..running() };
        let mut there = There { held_back: true, ..RUNNING };
        assert_eq!(next(&record, there), Step::Kill);
        there.guest = Guest::Off;
        assert_eq!(next(&record, there), Step::Scrub(lane(1)));
        record.lanes.clear();
        assert_eq!(next(&record, there), Step::Remove);
        record.files = false;
        assert_eq!(next(&record, there), Step::Rest(VmState::Gone));
    }

    #[test]
    fn a_reset_is_done_once_the_guest_runs_and_a_change_of_the_key_disturbs_nothing() {
        let mut record = running();
        record.want.public_key = Some("ssh-ed25519 AAAA".to_owned());
        record.want.generation = 2;
        assert_eq!(next(&record, RUNNING), Step::Rest(VmState::Running));
        record.want.resets = 1;
        assert_eq!(next(&record, There { guest: Guest::Booting, ..RUNNING }), Step::Await);
        assert_eq!(next(&record, RUNNING), Step::Reset);
    }

    #[test]
    fn a_vm_that_gets_another_vf_stops_before_it_lets_go_of_the_first() {
        let mut record = running();
        record.want.place.vfs = vm(2).place.vfs;
        assert_eq!(next(&record, RUNNING), Step::ShutDown);
        let off = There { guest: Guest::Off, vfs: Vfs::Unknown, ..RUNNING };
        assert_eq!(next(&record, off), Step::Scrub(lane(1)));
        record.lanes.clear();
        assert_eq!(next(&record, off), Step::Claim);
    }

    #[test]
    fn a_guest_that_powered_off_stays_so_until_something_new_is_desired() {
        let mut record = running();
        record.powered_off = Some(record.moment());
        let off = There { guest: Guest::Off, vfs: Vfs::Set(LinkState::Disable), ..RUNNING };
        assert_eq!(next(&record, off), Step::Rest(VmState::Stopped));
        record.want.resets += 1;
        assert_eq!(next(&record, off), Step::Set(LinkState::Auto));
    }

    #[test]
    fn one_that_failed_or_is_held_back_is_ended_and_cut_off() {
        let reason = "because".to_owned();
        let failed = Failure { generation: 1, reason: reason.clone() };
        let record = Record { failed: Some(failed), ..running() };
        assert_eq!(next(&record, RUNNING), Step::Kill);
        let off = There { guest: Guest::Off, ..RUNNING };
        assert_eq!(next(&record, off), Step::Cut);
        let cut = There { vfs: Vfs::Cut, ..off };
        assert_eq!(next(&record, cut), Step::Rest(VmState::Failed { reason }));
        let held_back = There { held_back: true, ..RUNNING };
        assert_eq!(next(&running(), held_back), Step::Kill);
        // What was only cut is not yet as one that is off shall be.
        let want = DesiredVm { power: Power::Off, ..vm(1) };
        let off = Record { want, ..running() };
        assert_eq!(next(&off, cut), Step::Set(LinkState::Disable));
    }
}
