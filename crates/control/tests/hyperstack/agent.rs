//! A host's agent without a host: whatever is asked of it is so at once.

use std::sync::Arc;
use std::time::Duration;

use lanekeeper_control::cloud::Cloud;
use lanekeeper_control::keys::{HostName, RegionName};

use crate::obedience::obeyed;

/// How often it looks although nothing was changed, and says that it is alive.
const LOOK: Duration = Duration::from_secs(3);

/// Do as is asked, until it is dropped.
pub(crate) async fn run(cloud: Arc<Cloud>, region: RegionName, host: HostName) {
    let mut after = 0;
    loop {
        cloud.heartbeat(&region, &host, "fake").await.expect("a sign of life");
        let desired =
            cloud.desired_after(&region, &host, after, LOOK).await.expect("what is desired");
        after = desired.revision;
        cloud.take_reports(&region, &host, obeyed(&desired)).await.expect("a report");
    }
}
