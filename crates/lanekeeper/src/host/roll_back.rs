//! The other half of `lanekeeper host apply --timeout`: a process of its own that rolls the apply back
//! when nobody confirms it. Whoever applied may have cut off their own line, so it must not end with
//! their session, and it is there before the first write.

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use super::{Failure, Place, report_recovery};

/// Name of the hidden sub-command.
pub(super) const COMMAND: &str = "roll-back-when-due";
/// How often it is seen whether somebody has confirmed.
const LOOK: Duration = Duration::from_millis(500);

/// Start the process. It waits for this one to end.
pub(super) fn stand_by(place: &Place) -> Result<(), Failure> {
    let failed = |error| {
        Failure::Work(format!("nothing was done: what would roll it back cannot start: {error}"))
    };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["host", COMMAND, &std::process::id().to_string()]);
    if let Some(state) = &place.state {
        command.arg("--state").arg(state);
    }
    // In no job of the shell that runs this, so that the shell's end is not its own.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let streams = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    streams.spawn().map(drop).map_err(failed)
}

/// Be that process, started by process `apply`.
pub(super) fn run(place: &Place, apply: u32) -> Result<ExitCode, Failure> {
    while std::os::unix::process::parent_id() == apply {
        std::thread::sleep(LOOK);
    }
    let owner = place.owner()?;
    while let Some(left) = owner.roll_back_due()? {
        if left.is_zero() {
            report_recovery(&owner.recover()?);
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(left.min(LOOK));
    }
    Ok(ExitCode::SUCCESS)
}
