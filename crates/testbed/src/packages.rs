//! Debian packages that the demo and the tests need on this machine: found out by name, and
//! installed with apt-get when missing and only then.

use std::process::{Command, Output};

use crate::Progress;

/// What booting VMs on emulated hosts needs.
pub const VM: &[&str] = &["qemu-system-x86", "iproute2"];

/// A browser that a test can drive: `chromedriver` comes with the second.
pub const BROWSER: &[&str] = &["chromium", "chromium-driver", "fonts-dejavu-core"];

/// What building a kernel module needs: libelf is for the kernel's own tools.
pub const KERNEL_MODULE: &[&str] = &["gcc", "libelf1", "make", "xz-utils"];

/// Seconds to wait for another apt-get to let go of the package database.
const LOCK_SECONDS: u32 = 600;

/// Why packages are not there.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// Not a Debian machine, or a broken one.
    #[error("{tool} could not be run: {error}; a Debian machine with apt is needed")]
    NoTool {
        /// The tool.
        tool: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// Only root may install.
    #[error(
        "packages {} are missing and only root may install them; run: apt-get install {}",
        .0.join(", "), .0.join(" ")
    )]
    NotRoot(Vec<String>),
    /// apt-get failed.
    #[error("apt-get {what} failed: {why}")]
    Apt {
        /// What was asked of it.
        what: String,
        /// Its last lines.
        why: String,
    },
}

/// Those of `names` that are not installed, in the given order.
///
/// # Errors
/// [`PackageError::NoTool`] without dpkg.
pub fn missing(names: &[&str]) -> Result<Vec<String>, PackageError> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status} ${Package}\n"])
        .args(names)
        .output()
        .map_err(|error| PackageError::NoTool { tool: "dpkg-query", error })?;
    Ok(not_installed(names, &String::from_utf8_lossy(&output.stdout)))
}

fn not_installed(names: &[&str], listing: &str) -> Vec<String> {
    let installed: Vec<&str> =
        listing.lines().filter_map(|line| line.strip_prefix("installed ")).collect();
    names.iter().filter(|name| !installed.contains(*name)).map(|name| (*name).to_owned()).collect()
}

/// Install those of `names` that are missing; gives back which those were.
///
/// # Errors
/// [`PackageError`]: without dpkg or apt, as a user who is not root, or when apt-get fails even
/// after its package lists were renewed.
pub fn ensure(names: &[&str], progress: Progress<'_>) -> Result<Vec<String>, PackageError> {
    let missing = missing(names)?;
    if missing.is_empty() {
        return Ok(missing);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(PackageError::NotRoot(missing));
    }
    progress(&format!("installing {}", missing.join(", ")));
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(missing.iter().map(String::as_str));
    if apt_get(&arguments).is_err() {
        // Lists that are absent (a fresh machine) or older than the mirror.
        renew_lists(progress)?;
        apt_get(&arguments)?;
    }
    Ok(missing)
}

/// Fetch the package lists anew.
pub(crate) fn renew_lists(progress: Progress<'_>) -> Result<(), PackageError> {
    progress("renewing the package lists");
    apt_get(&["update"])
}

fn apt_get(arguments: &[&str]) -> Result<(), PackageError> {
    let output = Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .arg("-o")
        .arg(format!("DPkg::Lock::Timeout={LOCK_SECONDS}"))
        .args(arguments)
        .output()
        .map_err(|error| PackageError::NoTool { tool: "apt-get", error })?;
    if output.status.success() {
        return Ok(());
    }
    Err(PackageError::Apt { what: arguments.join(" "), why: last_lines(&output) })
}

/// The last lines of standard error, or of standard output when there are none.
pub(crate) fn last_lines(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let mut said = text(&output.stderr);
    if said.is_empty() {
        said = text(&output.stdout);
    }
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(4)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dpkg_calls_installed_counts_as_there() {
        let listing = "installed iproute2\nconfig-files qemu-utils\nnot-installed busybox-static\n";
        let names = ["busybox-static", "iproute2", "qemu-utils", "never-heard-of"];
        assert_eq!(
            not_installed(&names, listing),
            ["busybox-static", "qemu-utils", "never-heard-of"]
        );
    }

    #[test]
    fn a_package_that_is_there_is_not_installed_again() {
        let installed = ensure(&["dpkg"], &mut crate::silent).expect("dpkg is always there");
        assert_eq!(installed, Vec::<String>::new());
    }

    #[test]
    fn a_package_that_does_not_exist_is_named() {
        assert_eq!(
            missing(&["dpkg", "no-such-package-at-all"]).expect("dpkg answers"),
            ["no-such-package-at-all"]
        );
    }
}
