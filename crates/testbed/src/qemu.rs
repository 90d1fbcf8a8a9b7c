//! A QEMU that emulates a NIC with SR-IOV (`igb`, since QEMU 8.0): the machine's own where it does,
//! else one that is fetched from the distribution's backports and unpacked beside the machine's
//! system, where it runs with its own C library and disturbs nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Progress;
use crate::debian::{self, Apt, Archive, remove_folder};
use crate::guest_image::{ImageError, lock};
use crate::packages::{PackageError, last_lines, renew_lists};

/// The program in `PATH`, and the one in a tree of one's own.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// Name of the unpacked tree in the cache; raise its number when trees are made in another way.
const FOLDER: &str = "qemu-1";

const PACKAGES: &[&str] = &["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];

/// Starts QEMU out of its tree, wherever that is: under its own loader, with its own libraries,
/// firmware and modules.
const LAUNCHER: &str = r#"#!/bin/sh
tree=$(dirname "$(readlink -f "$0")")
libraries=$tree/usr/lib/x86_64-linux-gnu
[ ! -d "$tree/lib/x86_64-linux-gnu" ] || libraries=$tree/lib/x86_64-linux-gnu:$libraries
for loader in "$tree/lib/x86_64-linux-gnu" "$tree/usr/lib/x86_64-linux-gnu"; do
    [ ! -e "$loader/ld-linux-x86-64.so.2" ] || break
done
export QEMU_MODULE_DIR="$tree/usr/lib/x86_64-linux-gnu/qemu"
exec "$loader/ld-linux-x86-64.so.2" --library-path "$libraries" "$tree/usr/bin/qemu-system-x86_64" \
    -L "$tree/usr/share/qemu" -L "$tree/usr/share/seabios" "$@"
"#;

/// Why there is no QEMU that emulates a NIC with SR-IOV.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// A package could not be found, fetched or unpacked.
    #[error(
        "no QEMU with an SR-IOV NIC (igb, QEMU 8.0 or newer): the machine's own has none, and one \
         could not be unpacked from {suite}: {error}"
    )]
    Unpack {
        /// Where it was looked for.
        suite: String,
        /// What went wrong.
        error: ImageError,
    },
    /// The package lists could not be renewed.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// This machine's package sources have no main archive of Debian.
    #[error(
        "no QEMU with an SR-IOV NIC (igb, QEMU 8.0 or newer): the machine's own has none, and its \
         package sources name no release of Debian whose backports could have one"
    )]
    NotDebian,
    /// It was unpacked, and has no such NIC either.
    #[error("the QEMU unpacked in {tree} does not emulate igb: {why}")]
    NoIgb {
        /// The tree.
        tree: PathBuf,
        /// What it said.
        why: String,
    },
}

/// A program that emulates a NIC with SR-IOV: the machine's own QEMU if it does, else that of
/// [`tree`].
///
/// # Errors
/// [`QemuError`].
pub fn with_sriov(cache: &Path, progress: Progress<'_>) -> Result<PathBuf, QemuError> {
    match emulates_igb(Path::new(PROGRAM)) {
        Ok(()) => Ok(PathBuf::from(PROGRAM)),
        Err(_) => Ok(tree(cache, progress)?.join(PROGRAM)),
    }
}

/// The folder of an unpacked QEMU, from `cache` or fetched (33 MB) and unpacked there (150 MB). The
/// program [`PROGRAM`] in it runs from any place where the folder can be seen, so that an emulated
/// host can run it too.
///
/// Several processes may call this at once; one unpacks and the others wait.
///
/// # Errors
/// [`QemuError`].
pub fn tree(cache: &Path, progress: Progress<'_>) -> Result<PathBuf, QemuError> {
    let finished = cache.join(FOLDER);
    if finished.is_dir() {
        return Ok(finished);
    }
    let archive = match debian::archive() {
        Ok(None) => {
            // A machine that has no lists yet does not tell whose archive its sources name.
            renew_lists(progress)?;
            debian::archive()
        }
        other => other,
    };
    let failed = |suite: &str, error| QemuError::Unpack { suite: suite.to_owned(), error };
    let archive = archive.map_err(|error| failed("this machine's package sources", error))?;
    let archive = archive.ok_or(QemuError::NotDebian)?;
    let suite = format!("{}-backports", archive.codename);
    make(cache, &archive, &suite, progress).map_err(|error| failed(&suite, error))?;
    match emulates_igb(&finished.join(PROGRAM)) {
        Ok(()) => Ok(finished),
        Err(why) => Err(QemuError::NoIgb { tree: finished, why }),
    }
}

/// Makes the tree in a folder of its own, and gives it its name once it is whole.
fn make(
    cache: &Path,
    archive: &Archive,
    suite: &str,
    progress: Progress<'_>,
) -> Result<(), ImageError> {
    fs::create_dir_all(cache).map_err(|error| ImageError::file(cache, error))?;
    let _lock = lock(&cache.join("qemu.lock"), "unpacks QEMU", progress)?;
    let finished = cache.join(FOLDER);
    if finished.is_dir() {
        return Ok(());
    }
    let work = cache.join("qemu-in-work");
    remove_folder(&work)?;
    let (store, tree) = (work.join("packages"), work.join("tree"));
    for folder in [&store, &tree] {
        fs::create_dir_all(folder).map_err(|error| ImageError::file(folder, error))?;
    }
    progress(&format!("fetching the package lists of {suite}"));
    let apt = Apt::apart(&work.join("apt"), &sources(archive, suite), suite)?;
    apt.update()?;
    let packages = apt.resolve(PACKAGES)?;
    progress(&format!("fetching QEMU: {} packages of {suite}", packages.len()));
    apt.fetch(&packages, &store)?;
    progress("unpacking QEMU");
    debian::unpack(&packages, &store, &tree)?;
    let launcher = tree.join(PROGRAM);
    fs::write(&launcher, LAUNCHER)
        .and_then(|()| fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&tree, &finished))
        .map_err(|error| ImageError::file(&finished, error))?;
    remove_folder(&work)
}

/// The machine's own source of packages, for the release and for its backports (sources.list(5)).
fn sources(archive: &Archive, suite: &str) -> String {
    let Archive { uri, codename } = archive;
    [codename.as_str(), suite].map(|suite| format!("deb {uri} {suite} main\n")).concat()
}

/// What the program says instead, if it does not.
fn emulates_igb(program: &Path) -> Result<(), String> {
    let output = Command::new(program)
        .args(["-device", "igb,help"])
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.starts_with("igb options") { Ok(()) } else { Err(last_lines(&output)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backports_come_from_where_the_release_comes_from() {
        let archive =
            Archive { uri: "http://mirror/debian/".to_owned(), codename: "bookworm".to_owned() };
        assert_eq!(
            sources(&archive, "bookworm-backports"),
            "deb http://mirror/debian/ bookworm main\n\
             deb http://mirror/debian/ bookworm-backports main\n"
        );
    }

    #[test]
    fn a_program_that_is_no_qemu_has_no_nic() {
        assert!(emulates_igb(Path::new("true")).is_err());
        assert!(emulates_igb(Path::new("/no/such/program")).is_err());
    }
}
