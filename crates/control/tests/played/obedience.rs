//! What the agent of a host says that has everything as it is asked for, at once.

use lanekeeper_control::protocol::{
    Desired, DesiredVm, Power, Traffic, VmReport, VmReports, VmState,
};

/// That every VM is as is desired.
pub(crate) fn obeyed(desired: &Desired) -> VmReports {
    VmReports { vms: desired.vms.iter().map(obeyed_one).collect() }
}

fn obeyed_one(desired: &DesiredVm) -> VmReport {
    let state = match desired.power {
        Power::On => VmState::Running,
        Power::Off => VmState::Stopped,
        Power::Gone => VmState::Gone,
    };
    let DesiredVm { vm, generation, resets, .. } = *desired;
    // A byte a reset more than a thousand, so that it is told from none.
    let traffic = Traffic { sent_bytes: 1000 + resets, received_bytes: 500 };
    VmReport { vm, generation, state, resets, traffic }
}
