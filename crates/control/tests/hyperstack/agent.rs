//! A host's agent without a host: whatever is asked of it is so at once.

use std::sync::Arc;
use std::time::Duration;

use lanekeeper_control::cloud::Cloud;
use lanekeeper_control::keys::{HostName, RegionName};
use lanekeeper_control::protocol::{DesiredVm, Power, VmReport, VmReports, VmState};

/// How often it looks although nothing was changed, and says that it is alive.
const LOOK: Duration = Duration::from_secs(3);

fn report(desired: &DesiredVm) -> VmReport {
    let state = match desired.power {
        Power::On => VmState::Running,
        Power::Off => VmState::Stopped,
        Power::Gone => VmState::Gone,
    };
    let DesiredVm { vm, generation, resets, .. } = *desired;
    VmReport { vm, generation, state, resets }
}

/// Do as is asked, until it is dropped.
pub(crate) async fn run(cloud: Arc<Cloud>, region: RegionName, host: HostName) {
    let mut after = 0;
    loop {
        cloud.heartbeat(&region, &host, "fake").await.expect("a sign of life");
        let desired =
            cloud.desired_after(&region, &host, after, LOOK).await.expect("what is desired");
        after = desired.revision;
        let vms = desired.vms.iter().map(report).collect();
        cloud.take_reports(&region, &host, VmReports { vms }).await.expect("a report");
    }
}
