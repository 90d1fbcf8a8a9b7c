//! What is to be done next for a VM: a pure function of what is known of it.

use serde::Deserialize;

use crate::protocol::{Power, VmReport, VmState};
use crate::resource::{Fault, FaultKind, Vm, VmStatus, Want};

/// Of what a host was told of a VM, as much as the next step depends on.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Told {
    pub(super) generation: u64,
    pub(super) power: Power,
}

/// What is known of a VM.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// It, as it is stored.
    pub(super) vm: Vm,
    /// Whether its host's agent is heard of.
    pub(super) host_alive: bool,
    /// Whether its host is known at all.
    pub(super) host_known: bool,
    /// What its host was told of it.
    pub(super) told: Option<Told>,
    /// What its host says of it.
    pub(super) report: Option<VmReport>,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing: something else must happen first.
    Wait,
    /// Place it.
    Place,
    /// Tell its host that it shall be so.
    Tell(Power),
    /// It has become something else.
    Become(Becoming),
    /// Nothing of it is left: give back what it had.
    Finish,
}

/// What a VM has become.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Becoming {
    pub(super) status: VmStatus,
    pub(super) fault: Option<Fault>,
    /// Its guest has shut itself down: it is not to be started again by itself.
    pub(super) rests: bool,
    /// In a word, and in a sentence.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

fn becomes(status: VmStatus, reason: &'static str, message: impl Into<String>) -> Step {
    let message = message.into();
    Step::Become(Becoming { status, fault: None, rests: false, reason, message })
}

fn fails(kind: FaultKind, reason: &'static str, message: String) -> Step {
    let fault = Some(Fault { kind, message: message.clone() });
    Step::Become(Becoming { status: VmStatus::Error, fault, rests: false, reason, message })
}

/// What is to be done next.
pub(super) fn next(view: &View) -> Step {
    let vm = &view.vm;
    let Some(located) = &vm.located else {
        return match (vm.want, vm.status) {
            (Want::Deleted, _) => Step::Finish,
            // A group's VMs are placed together.
            (Want::Running, VmStatus::Creating) if vm.group.is_none() => Step::Place,
            _ => Step::Wait,
        };
    };
    if vm.want == Want::Deleted && !view.host_known {
        return Step::Finish;
    }
    let power = match vm.want {
        Want::Running => Power::On,
        Want::Stopped => Power::Off,
        Want::Deleted => Power::Gone,
    };
    let told = |told: &Told| told.generation == vm.generation && told.power == power;
    if !view.told.as_ref().is_some_and(told) {
        return Step::Tell(power);
    }
    let report = view.report.as_ref().filter(|report| report.generation == vm.generation);
    if vm.want == Want::Deleted {
        let gone = report.is_some_and(|report| report.state == VmState::Gone);
        return if gone { Step::Finish } else { Step::Wait };
    }
    let lost = vm.fault.as_ref().is_some_and(|fault| fault.kind == FaultKind::HostLost);
    if !view.host_alive {
        let message = format!(
            "host {} is not heard of any more; the VM may still run there, and is as it was once the \
             host is back",
            located.host
        );
        return if lost { Step::Wait } else { fails(FaultKind::HostLost, "host-lost", message) };
    }
    match report {
        Some(report) => by_report(vm, report),
        None if vm.status == VmStatus::Creating => {
            becomes(VmStatus::Build, "placed", format!("host {} makes it", located.host))
        }
        None => Step::Wait,
    }
}

fn by_report(vm: &Vm, report: &VmReport) -> Step {
    match (&report.state, vm.want) {
        (VmState::Starting, _) => {
            let status = match vm.status {
                VmStatus::Creating => VmStatus::Build,
                // Its host is back, and starts it again.
                VmStatus::Error => VmStatus::Starting,
                _ => return Step::Wait,
            };
            becomes(status, "starting", "its host starts it")
        }
        (VmState::Running, Want::Running) if report.resets >= vm.resets => match vm.status {
            VmStatus::Active => Step::Wait,
            _ => becomes(VmStatus::Active, "active", "it runs"),
        },
        (VmState::Stopped, Want::Running) => Step::Become(Becoming {
            status: VmStatus::Shutoff,
            fault: None,
            rests: true,
            reason: "shut-down",
            message: "its guest has shut down".to_owned(),
        }),
        (VmState::Stopped, _) => match vm.status {
            VmStatus::Shutoff => Step::Wait,
            _ => becomes(VmStatus::Shutoff, "stopped", "it is stopped"),
        },
        (VmState::Failed { reason }, _) => {
            let known = vm.fault.as_ref().is_some_and(|fault| fault.message == *reason);
            if known { Step::Wait } else { fails(FaultKind::Host, "failed", reason.clone()) }
        }
        (VmState::Gone, _) => {
            let message = "its host has nothing of it any more; delete it and make it anew";
            let known = vm.status == VmStatus::Error;
            if known { Step::Wait } else { fails(FaultKind::Host, "lost", message.to_owned()) }
        }
        (VmState::Running, _) => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{FlavorSpec, ImageSpec, Located, Time};

    fn vm(want: Want, status: VmStatus, located: bool) -> Vm {
        let place = crate::placement::VmPlace {
            vm: 0,
            gpus: Vec::new(),
            vfs: Vec::new(),
            scalars: crate::placement::Scalars::default(),
        };
        let flavor = serde_json::json!({"name": "f", "vcpus": 1, "ram_mib": 256});
        let image = serde_json::json!({"name": "i", "source": "builtin"});
        let flavor: FlavorSpec = serde_json::from_value(flavor).expect("a flavor");
        let image: ImageSpec = serde_json::from_value(image).expect("an image");
        let host = crate::keys::HostName::new("h1").expect("a name");
        Vm {
            id: 7,
            name: "v".to_owned(),
            organization: "acme".to_owned().try_into().expect("a name"),
            environment: 1,
            region: "north".to_owned().try_into().expect("a name"),
            flavor,
            flavor_id: 1,
            image,
            image_id: 1,
            keypair: None,
            public_key: None,
            user_data: None,
            ports: Vec::new(),
            security_rules: Vec::new(),
            labels: Vec::new(),
            group: None,
            status,
            want,
            generation: 3,
            resets: 0,
            located: located.then_some(Located { host, place }),
            fault: None,
            created_at: Time::from_second(0),
            changed_at: Time::from_second(0),
        }
    }

    fn view(vm: Vm, power: Option<Power>, state: Option<VmState>) -> View {
        let told = power.map(|power| Told { generation: vm.generation, power });
        let report = state.map(|state| VmReport {
            vm: vm.id,
            generation: vm.generation,
            state,
            resets: 0,
            traffic: crate::protocol::Traffic::default(),
        });
        View { vm, host_alive: true, host_known: true, told, report }
    }

    fn status_of(step: &Step) -> Option<VmStatus> {
        match step {
            Step::Become(becoming) => Some(becoming.status),
            _ => None,
        }
    }

    #[test]
    fn a_new_vm_is_placed_then_told_then_built_then_active() {
        let new = view(vm(Want::Running, VmStatus::Creating, false), None, None);
        assert_eq!(next(&new), Step::Place);
        let placed = view(vm(Want::Running, VmStatus::Creating, true), None, None);
        assert_eq!(next(&placed), Step::Tell(Power::On));
        let told = view(vm(Want::Running, VmStatus::Creating, true), Some(Power::On), None);
        assert_eq!(status_of(&next(&told)), Some(VmStatus::Build));
        let runs = vm(Want::Running, VmStatus::Build, true);
        let runs = view(runs, Some(Power::On), Some(VmState::Running));
        assert_eq!(status_of(&next(&runs)), Some(VmStatus::Active));
    }

    #[test]
    fn a_deleted_vm_is_finished_only_once_its_host_says_that_nothing_is_left() {
        let deleted = || vm(Want::Deleted, VmStatus::Deleting, true);
        assert_eq!(next(&view(deleted(), Some(Power::On), None)), Step::Tell(Power::Gone));
        assert_eq!(next(&view(deleted(), Some(Power::Gone), None)), Step::Wait);
        let running = view(deleted(), Some(Power::Gone), Some(VmState::Running));
        assert_eq!(next(&running), Step::Wait);
        let gone = view(deleted(), Some(Power::Gone), Some(VmState::Gone));
        assert_eq!(next(&gone), Step::Finish);
        // An older report is not about this.
        let mut stale = gone;
        stale.report.as_mut().expect("there").generation = 2;
        assert_eq!(next(&stale), Step::Wait);
        let mut dead = view(deleted(), Some(Power::Gone), None);
        (dead.host_alive, dead.host_known) = (false, false);
        assert_eq!(next(&dead), Step::Finish);
    }

    #[test]
    fn a_vm_whose_host_is_lost_is_in_error_and_is_active_again_when_the_host_is_back() {
        let mut lost = view(
            vm(Want::Running, VmStatus::Active, true),
            Some(Power::On),
            Some(VmState::Running),
        );
        lost.host_alive = false;
        let Step::Become(becoming) = next(&lost) else { panic!("it is in error") };
        assert_eq!(becoming.status, VmStatus::Error);
        (lost.vm.status, lost.vm.fault) = (becoming.status, becoming.fault);
        assert_eq!(next(&lost), Step::Wait);
        lost.host_alive = true;
        assert_eq!(status_of(&next(&lost)), Some(VmStatus::Active));
    }

    #[test]
    fn a_guest_that_shuts_down_is_not_started_again() {
        let down = vm(Want::Running, VmStatus::Active, true);
        let down = view(down, Some(Power::On), Some(VmState::Stopped));
        let Step::Become(becoming) = next(&down) else { panic!("it is off") };
        assert!(becoming.rests && becoming.status == VmStatus::Shutoff);
    }

    #[test]
    fn a_reset_is_over_when_the_host_has_done_it() {
        let mut reset = vm(Want::Running, VmStatus::Rebooting, true);
        reset.resets = 1;
        let mut reset = view(reset, Some(Power::On), Some(VmState::Running));
        assert_eq!(next(&reset), Step::Wait);
        reset.report.as_mut().expect("there").resets = 1;
        assert_eq!(status_of(&next(&reset)), Some(VmStatus::Active));
    }

    #[test]
    fn every_state_settles_within_a_few_steps() {
        let states = [
            None,
            Some(VmState::Starting),
            Some(VmState::Running),
            Some(VmState::Stopped),
            Some(VmState::Failed { reason: "no image".to_owned() }),
            Some(VmState::Gone),
        ];
        let statuses = [
            VmStatus::Creating,
            VmStatus::Build,
            VmStatus::Active,
            VmStatus::Stopping,
            VmStatus::Shutoff,
            VmStatus::Starting,
            VmStatus::Rebooting,
            VmStatus::Error,
        ];
        for state in states {
            for status in statuses {
                for (want, power) in [(Want::Running, Power::On), (Want::Stopped, Power::Off)] {
                    for alive in [true, false] {
                        let mut view = view(vm(want, status, true), Some(power), state.clone());
                        view.host_alive = alive;
                        let mut steps = 0;
                        while let Step::Become(becoming) = next(&view) {
                            (view.vm.status, view.vm.fault) = (becoming.status, becoming.fault);
                            if becoming.rests {
                                view.vm.want = Want::Stopped;
                                view.told.as_mut().expect("told").power = Power::Off;
                            }
                            steps += 1;
                            assert!(steps < 4, "{state:?} {status:?} {want:?} {alive}");
                        }
                    }
                }
            }
        }
    }
}
