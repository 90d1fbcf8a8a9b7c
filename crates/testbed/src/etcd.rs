//! etcd for the tests: Debian's server, fetched and unpacked beside the machine's own system. Installed
//! it would start a server of its own and leave it running.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Progress;
use crate::debian::{self, Apt, remove_folder};
use crate::guest_image::{ImageError, lock};
use crate::packages::{PackageError, renew_lists};

/// Name of the unpacked tree in the cache; raise its number when trees are made in another way.
const FOLDER: &str = "etcd-1";
const PACKAGE: &str = "etcd-server";
const PROGRAM: &str = "usr/bin/etcd";

/// Why there is no etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// It could not be fetched or unpacked.
    #[error("Debian's {PACKAGE} could not be unpacked: {0}")]
    Unpack(#[from] ImageError),
    /// The package lists could not be renewed.
    #[error(transparent)]
    Packages(#[from] PackageError),
}

/// The program `etcd`, from `cache` or fetched (8 MB) and unpacked there (30 MB).
///
/// Several processes may call this at once; one unpacks and the others wait.
///
/// # Errors
/// [`EtcdError`]. Package lists that are missing or too old are renewed once, which needs root.
pub fn program(cache: &Path, progress: Progress<'_>) -> Result<PathBuf, EtcdError> {
    let finished = cache.join(FOLDER);
    let program = finished.join(PROGRAM);
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(cache).map_err(|error| ImageError::file(cache, error))?;
    let _lock = lock(&cache.join("etcd.lock"), "unpacks etcd", progress)?;
    if program.exists() {
        return Ok(program);
    }
    if make(cache, &finished, progress).is_err() {
        // Lists that are absent, or older than the mirror.
        renew_lists(progress)?;
        make(cache, &finished, progress)?;
    }
    Ok(program)
}

/// Makes the tree in a folder of its own, and gives it its name once it is whole. The C library is
/// the machine's: the package is of the machine's own release.
fn make(cache: &Path, finished: &Path, progress: Progress<'_>) -> Result<(), ImageError> {
    let work = cache.join("etcd-in-work");
    remove_folder(&work)?;
    let (store, tree) = (work.join("packages"), work.join("tree"));
    for folder in [&store, &tree] {
        fs::create_dir_all(folder).map_err(|error| ImageError::file(folder, error))?;
    }
    progress("fetching etcd");
    let apt = Apt::default();
    let mut packages = apt.resolve(&[PACKAGE])?;
    packages.retain(|package| package.name == PACKAGE);
    apt.fetch(&packages, &store)?;
    debian::unpack(&packages, &store, &tree)?;
    fs::rename(&tree, finished).map_err(|error| ImageError::file(finished, error))?;
    remove_folder(&work)
}
