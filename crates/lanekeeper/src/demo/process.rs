//! Processes of this very program that a demo starts: NICs, a server, agents; each with a log of its own.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::DemoError;
use super::residue::Site;

/// Which of its words are in its log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Standard output and standard error.
    All,
    /// Standard error alone.
    Complaints,
}

/// A process, and its log.
pub(super) struct Process {
    what: String,
    child: Child,
    log: PathBuf,
}

/// This program.
///
/// # Errors
/// [`DemoError::File`].
pub(super) fn program() -> Result<PathBuf, DemoError> {
    std::env::current_exe().map_err(|error| DemoError::file(Path::new("self"), error))
}

impl Process {
    /// Start a command. `what` it is goes into errors, after "the".
    ///
    /// # Errors
    /// [`DemoError::File`], [`DemoError::Interrupted`].
    pub(super) fn start(
        site: &Site,
        what: &str,
        log: PathBuf,
        heard: Heard,
        mut command: Command,
    ) -> Result<Self, DemoError> {
        let output = File::create(&log).map_err(|error| DemoError::file(&log, error))?;
        command.stdout(match heard {
            Heard::All => {
                Stdio::from(output.try_clone().map_err(|error| DemoError::file(&log, error))?)
            }
            Heard::Complaints => Stdio::null(),
        });
        let child = site.make(|| {
            command
                .stdin(Stdio::null())
                .stderr(output)
                // A Ctrl-C on the terminal is for the demo, which then ends this itself.
                .process_group(0)
                .spawn()
                .map_err(|error| DemoError::file(Path::new(command.get_program()), error))
        })?;
        Ok(Self { what: what.to_owned(), child, log })
    }

    /// # Errors
    /// [`DemoError::Process`] when it has ended.
    pub(super) fn still_runs(&mut self) -> Result<(), DemoError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failed(format!("ended: {status}"))),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    /// That something is wrong with it, and the end of its log.
    pub(super) fn failed(&self, why: String) -> DemoError {
        DemoError::Process { what: self.what.clone(), why, log: tail(&self.log) }
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }
}

/// The last lines of a log, for an error.
pub(super) fn tail(log: &Path) -> String {
    const LINES: usize = 15;
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n  ");
    if last.is_empty() {
        format!("{} is empty", log.display())
    } else {
        format!("{}:\n  {last}", log.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_shown_and_a_missing_one_is_said() {
        let log = std::env::temp_dir().join(format!("lane-log-{}", std::process::id()));
        let lines: Vec<String> = (0..40).map(|line| format!("line {line}\n\n")).collect();
        fs::write(&log, lines.concat()).expect("written");
        let shown = tail(&log);
        assert!(shown.contains("line 39") && !shown.contains("line 20"), "{shown}");
        fs::remove_file(&log).expect("removed");
        assert!(tail(&log).ends_with("is empty"));
    }
}
