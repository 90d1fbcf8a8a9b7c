//! Where software NICs are found, and what is said of one that does not answer there.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lanekeeper_hw::HardwareError;
use lanekeeper_model::SoftNicName;
use lanekeeper_softnic::{Client, RUN_ROOT, SOCKET_NAME, folders};

use crate::Failure;

#[derive(clap::Args)]
pub(super) struct Where {
    /// Folder that holds one folder for each software NIC [default: /run/lanekeeper/softnic].
    #[arg(long, value_name = "DIR")]
    run_root: Option<PathBuf>,
    /// Folder of one software NIC, where it is not under the usual root.
    #[arg(long, value_name = "DIR", conflicts_with = "run_root")]
    pub(super) run_dir: Option<PathBuf>,
}

/// A NIC that was asked for by name, and its folder.
pub(super) struct Named {
    pub(super) client: Client,
    pub(super) dir: PathBuf,
}

impl Named {
    /// An error of the client, as the user reads it.
    pub(super) fn failed(&self, error: &HardwareError) -> Failure {
        Failure::Work(explain(error, &self.dir))
    }
}

impl Where {
    pub(super) fn root(&self) -> &Path {
        self.run_root.as_deref().unwrap_or(Path::new(RUN_ROOT))
    }

    /// Folders of all NICs.
    pub(super) fn folders(&self) -> Result<Vec<PathBuf>, Failure> {
        self.check_root()?;
        folders(self.root()).map_err(|error| {
            let hint = if error.kind() == ErrorKind::PermissionDenied { AS_ROOT } else { "" };
            Failure::Work(format!("cannot look into {}: {error}{hint}", self.root().display()))
        })
    }

    /// The NIC of this name. Whether its folder really is that NIC's, the client asks with each
    /// request.
    pub(super) fn named(&self, name: &SoftNicName) -> Result<Named, Failure> {
        let dir = if let Some(dir) = &self.run_dir {
            dir.clone()
        } else {
            self.check_root()?;
            self.root().join(name.as_str())
        };
        match std::fs::symlink_metadata(dir.join(SOCKET_NAME)) {
            Err(error) if is_absence(error.kind()) => Err(self.absent(name, &dir)),
            // Who may not look is told so when the NIC is asked.
            _ => Ok(Named { client: Client::for_run_dir(name.clone(), &dir), dir }),
        }
    }

    fn absent(&self, name: &SoftNicName, dir: &Path) -> Failure {
        if self.run_dir.is_some() {
            return Failure::Work(format!("no software NIC runs in {}", dir.display()));
        }
        let root = match &self.run_root {
            Some(root) => format!(" --run-root {}", root.display()),
            None => String::new(),
        };
        Failure::Work(format!(
            "no software NIC '{name}' runs under {}; `{} softnic show{root}` lists those that do",
            self.root().display(),
            crate::program()
        ))
    }

    /// The usual root is made by the first NIC; one that was named must be there.
    fn check_root(&self) -> Result<(), Failure> {
        match self.run_root.as_ref().map(|root| (root, root.metadata())) {
            Some((root, Ok(it))) if !it.is_dir() => {
                Err(Failure::Usage(format!("--run-root: {} is not a folder", root.display())))
            }
            Some((root, Err(error))) if is_absence(error.kind()) => {
                Err(Failure::Usage(format!("--run-root: there is no folder {}", root.display())))
            }
            _ => Ok(()),
        }
    }
}

const AS_ROOT: &str = "; run this as root";

fn is_absence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// An error of a NIC whose folder this is, with what can be done about it.
pub(super) fn explain(error: &HardwareError, dir: &Path) -> String {
    match error {
        HardwareError::Io { pf, source } => format!("{pf}: {}", silence(source, dir)),
        HardwareError::Deadline { pf, .. } => format!("{pf}: {HANGS}"),
        other => other.to_string(),
    }
}

const HANGS: &str = "does not answer in time; its process is stopped or hangs";

/// Why a NIC whose folder this is does not answer.
pub(super) fn silence(error: &std::io::Error, dir: &Path) -> String {
    let dir = dir.display();
    match error.kind() {
        ErrorKind::ConnectionRefused => format!(
            "does not answer; its process is gone (killed?): start it again, or remove {dir}"
        ),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => HANGS.to_owned(),
        ErrorKind::PermissionDenied => format!("may not be asked: {error} ({dir}){AS_ROOT}"),
        kind if is_absence(kind) => format!("no software NIC runs in {dir}"),
        _ => format!("does not answer: {error}"),
    }
}
