//! netdevsim, the kernel's own simulated NIC, for the guest's kernel: devlink, VFs without number,
//! and no hardware. Distributions do not build it, so it is made here out of tree, from the source of
//! the very kernel that guests boot. All packages are fetched and unpacked beside this machine's
//! system; of the machine's own only [`crate::packages::KERNEL_MODULE`] is used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Progress;
use crate::debian::{self, Apt, Package, remove_folder, run};
use crate::guest_image::{self, ImageError, lock};
use crate::packages;

/// The modules, in the order in which they are loaded. psample is in the kernel's own package too:
/// to compile its one file is cheaper than to unpack that.
pub const MODULES: [&str; 2] = ["psample.ko", "netdevsim.ko"];

/// Where the modules' sources are in the kernel's.
const SOURCES: [&str; 2] = ["net/psample", "drivers/net/netdevsim"];

/// What folders of modules in the cache are called, before the version.
const FOLDER: &str = "netdevsim-1-";

/// What make has to be told beside the folders: to build both as modules, with whatever compiler
/// this machine has and without debugging information.
const OPTIONS: [&str; 4] = ["CC=gcc", "CONFIG_PSAMPLE=m", "CONFIG_NETDEVSIM=m", "KCFLAGS=-g0"];

/// The folder with [`MODULES`] for the kernel of [`guest_image::ensure`]: from `cache`, or built
/// there: a minute on two cores, half of it to unpack the kernel's source. 155 MB are fetched; about
/// 400 MB are used in `cache` while building, 0.3 MB afterwards.
///
/// Several processes may call this at once; one builds and the others wait.
///
/// # Errors
/// [`ImageError`], also if apt has no source in the version of the kernel's package.
pub fn ensure(cache: &Path, progress: Progress<'_>) -> Result<PathBuf, ImageError> {
    let kernel = guest_image::kernel_package(cache, progress)?;
    let finished = cache.join(format!("{FOLDER}{}", kernel.version.replace(['/', ':'], "-")));
    if finished.is_dir() {
        return Ok(finished);
    }
    fs::create_dir_all(cache).map_err(|error| ImageError::file(cache, error))?;
    let _lock = lock(&cache.join("netdevsim.lock"), "builds netdevsim", progress)?;
    if finished.is_dir() {
        return Ok(finished);
    }
    let work = cache.join("netdevsim-in-work");
    remove_folder(&work)?;
    let modules = build(&kernel, &work, progress)?;
    sweep(cache)?;
    fs::rename(&modules, &finished).map_err(|error| ImageError::file(&finished, error))?;
    remove_folder(&work)?;
    Ok(finished)
}

/// Builds in `work`; gives back the folder there that has the modules and nothing else.
fn build(kernel: &Package, work: &Path, progress: Progress<'_>) -> Result<PathBuf, ImageError> {
    let [store, tree, source, modules] =
        ["packages", "tree", "source", "modules"].map(|name| work.join(name));
    for folder in [&store, &tree, &source, &modules] {
        fs::create_dir_all(folder).map_err(|error| ImageError::file(folder, error))?;
    }
    packages::ensure(packages::KERNEL_MODULE, progress)?;
    progress("fetching the source of the guest's kernel");
    let apt = Apt::default();
    let names = Names::of(kernel, &apt)?;
    let mut parts = apt.resolve(&names.all())?;
    // The kernel's tools run with this machine's libraries.
    parts.retain(|package| names.all().contains(&package.name.as_str()));
    if let Some(odd) = parts.iter().find(|package| package.version != kernel.version) {
        let wanted = format!("{} in version {}", odd.name, kernel.version);
        return Err(ImageError::NoSuchPackage(wanted));
    }
    apt.fetch(&parts, &store)?;
    progress("unpacking the source of the guest's kernel");
    debian::unpack(&parts, &store, &tree)?;
    take_sources(&tree.join("usr/src").join(&names.source), &source)?;
    progress("building netdevsim");
    make(&tree.join("usr/src"), &names, &source)?;
    for (module, folder) in MODULES.iter().zip(SOURCES) {
        let kept = modules.join(module);
        fs::rename(source.join(folder).join(module), &kept)
            .map_err(|error| ImageError::file(&kept, error))?;
    }
    Ok(modules)
}

/// Names of the packages that a module is built of.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    /// What is of this architecture and configuration.
    headers: String,
    /// What all have.
    common: String,
    /// The programs that a build runs.
    kbuild: String,
    /// The kernel's source.
    source: String,
}

impl Names {
    fn of(kernel: &Package, apt: &Apt) -> Result<Self, ImageError> {
        let (headers, source) = headers_and_source(&kernel.name)
            .ok_or_else(|| ImageError::NoSuchPackage(kernel.name.clone()))?;
        Ok(Self {
            common: apt.dependency(&headers, "linux-headers-")?,
            kbuild: apt.dependency(&headers, "linux-kbuild-")?,
            headers,
            source,
        })
    }

    fn all(&self) -> [&str; 4] {
        [&self.headers, &self.common, &self.kbuild, &self.source]
    }
}

/// For `linux-image-6.1.0-57-amd64`: `linux-headers-6.1.0-57-amd64` and `linux-source-6.1`.
fn headers_and_source(image: &str) -> Option<(String, String)> {
    let release = image.strip_prefix("linux-image-")?;
    let mut numbers = release.split('.');
    let (major, minor) = (numbers.next()?, numbers.next()?);
    Some((format!("linux-headers-{release}"), format!("linux-source-{major}.{minor}")))
}

/// Takes the modules' folders, and no others, out of the archive in the source's package.
fn take_sources(package: &Path, into: &Path) -> Result<(), ImageError> {
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    let mut command = Command::new("tar");
    command
        .arg("-xJf")
        .arg(package.with_file_name(format!("{name}.tar.xz")))
        .arg("-C")
        .arg(into)
        .arg("--strip-components=1")
        .args(SOURCES.map(|folder| format!("{name}/{folder}")));
    run(command, "tar").map(drop)
}

fn make(headers: &Path, names: &Names, source: &Path) -> Result<(), ImageError> {
    let file = source.join("Kbuild");
    let folders = SOURCES.map(|folder| format!("obj-m += {folder}/\n")).concat();
    fs::write(&file, folders).map_err(|error| ImageError::file(&file, error))?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut command = Command::new("make");
    command
        .arg(format!("-j{processors}"))
        .arg("-C")
        .arg(headers.join(&names.headers))
        // The package's own Makefile is a line that includes this one from where it is installed.
        .arg("-f")
        .arg(headers.join(&names.common).join("Makefile"))
        .arg(format!("M={}", source.display()))
        .args(OPTIONS)
        .arg("modules");
    run(command, "make").map(drop)
}

/// Removes the modules of kernels that guests boot no more.
fn sweep(cache: &Path) -> Result<(), ImageError> {
    let listing = fs::read_dir(cache).map_err(|error| ImageError::file(cache, error))?;
    for entry in listing.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(FOLDER) {
            remove_folder(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_source_are_those_of_the_kernels_package() {
        let (headers, source) = headers_and_source("linux-image-6.1.0-57-amd64").expect("a kernel");
        assert_eq!(headers, "linux-headers-6.1.0-57-amd64");
        assert_eq!(source, "linux-source-6.1");
        let (headers, source) = headers_and_source("linux-image-6.12.95+deb13-amd64").expect("too");
        assert_eq!(headers, "linux-headers-6.12.95+deb13-amd64");
        assert_eq!(source, "linux-source-6.12");
        assert_eq!(headers_and_source("linux-doc"), None);
    }

    #[test]
    fn only_modules_of_other_kernels_are_swept() {
        let cache = tempfile::tempdir().expect("a folder");
        for name in ["netdevsim-1-6.1.190-1", "netdevsim-in-work", "guest-00"] {
            fs::create_dir(cache.path().join(name)).expect("makes");
        }
        sweep(cache.path()).expect("sweeps");
        let left = |name: &str| cache.path().join(name).exists();
        assert!(!left("netdevsim-1-6.1.190-1") && left("netdevsim-in-work") && left("guest-00"));
    }
}
