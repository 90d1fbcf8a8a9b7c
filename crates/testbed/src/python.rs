//! Programs of the Python package index, each in a virtual environment of its own in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Progress;
use crate::debian::remove_folder;
use crate::guest_image::{ImageError, lock};
use crate::packages::{PackageError, ensure, last_lines};

/// Why a program is not there.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Python or Node could not be installed.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// The cache could not be written.
    #[error(transparent)]
    Cache(#[from] ImageError),
    /// The installer failed.
    #[error("{what} failed: {why}")]
    Install {
        /// What was run.
        what: String,
        /// Its last lines.
        why: String,
    },
}

/// schemathesis, which calls an API with whatever its OpenAPI document allows and forbids: the program,
/// from `cache` or installed there (60 MB).
///
/// # Errors
/// [`InstallError`].
pub fn schemathesis(cache: &Path, progress: Progress<'_>) -> Result<PathBuf, InstallError> {
    let folder = once(cache, "schemathesis-1", progress, |folder, progress| {
        environment(folder, &["schemathesis==4.32.5"], progress)
    })?;
    Ok(folder.join("bin/schemathesis"))
}

/// A folder of the cache that is filled once. Several processes may call this at once; one fills it and
/// the others wait.
pub(crate) fn once(
    cache: &Path,
    name: &str,
    progress: Progress<'_>,
    fill: impl FnOnce(&Path, Progress<'_>) -> Result<(), InstallError>,
) -> Result<PathBuf, InstallError> {
    let folder = cache.join(name);
    // A virtual environment knows its own path, so it cannot be renamed once it is whole; this file
    // says that it is.
    let whole = folder.join("whole");
    fs::create_dir_all(cache).map_err(|error| ImageError::file(cache, error))?;
    let _lock = lock(&cache.join("install.lock"), "installs a program", progress)?;
    if whole.exists() {
        return Ok(folder);
    }
    remove_folder(&folder)?;
    fs::create_dir_all(&folder).map_err(|error| ImageError::file(&folder, error))?;
    fill(&folder, progress)?;
    fs::write(&whole, "").map_err(|error| ImageError::file(&whole, error))?;
    Ok(folder)
}

/// A virtual environment with these packages.
pub(crate) fn environment(
    folder: &Path,
    packages: &[&str],
    progress: Progress<'_>,
) -> Result<(), InstallError> {
    if !works("python3", &["-c", "import venv, ensurepip"]) {
        ensure(&["python3-venv"], progress)?;
    }
    progress(&format!("installing {}", packages.join(", ")));
    run(Command::new("python3").args(["-m", "venv"]).arg(folder), "python3 -m venv")?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["install", "--quiet", "--pre"]).args(packages);
    run(&mut pip, &format!("pip install {}", packages.join(" ")))
}

pub(crate) fn run(command: &mut Command, what: &str) -> Result<(), InstallError> {
    let failed = |why: String| InstallError::Install { what: what.to_owned(), why };
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(last_lines(&output))) }
}

pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    run(Command::new(program).args(arguments), program).is_ok()
}
