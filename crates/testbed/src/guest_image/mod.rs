//! The small guest: a kernel and an initramfs made from Debian packages.
//!
//! The packages are fetched and unpacked beside this machine's system (nothing is installed for
//! the guest's sake), the programs the guest needs are taken out of them with the libraries they
//! are linked with, and everything becomes one cpio archive. The result is cached under a hash of
//! all that went in: package versions, the guest's own scripts, and this builder's version.
//!
//! # What works in the guest
//! Measured on emulated CPUs (TCG) of a two-core machine, Debian 12 (kernel 6.1). The first figure
//! is with two guests on a bridge and a nearly idle machine, the second with four times as many
//! busy processes as cores.
//!
//! - The guest agent answers 5.5 s (10 to 20 s) after the start of QEMU, for 5 to 6 s of CPU time.
//!   192 MiB are plenty: an idle guest uses 25, its files included.
//! - A disk labelled CIDATA is obeyed before the agent answers: the host name of its `meta-data`, and of
//!   its `network-config` (version 2, one key or list item a line) each port by its MAC, with name, MTU,
//!   addresses and routes.
//! - All modules are loaded at boot. `rdma link add rxe0 type rxe netdev eth0` makes an RDMA device.
//!   Its GID 0 is the link-local address and GID 1 the first IPv4 address (`-x 1`). Its MTU follows
//!   the interface: 1024 at 1500 bytes, 4096 from 4200 on.
//! - `ib_write_bw -d rxe0 -x 1 -F -n 100 -s 65536 [SERVER]`: 10 MB/s (2 MB/s), ends in 3 s (9 s).
//!   `-D 3` in place of `-n 100` runs three seconds; `-R` connects through the RDMA CM.
//! - `ib_write_lat -d rxe0 -x 1 -F -n 100 [SERVER]` and `ib_send_lat` likewise: 5 to 8 ms typical,
//!   ends in 2 s (5 s). The slowest of a hundred takes some ten times as long: judge the median.
//! - `-F` always, since an emulated CPU does not tell its frequency. The server side ends by itself
//!   after one client; it listens on TCP 18515 once it is ready.
//! - `iperf3 -s -1 -D` and then `iperf3 -c SERVER -t 3 -J`.
//! - A forged MAC: `ip link add link eth0 name fake0 address MAC type macvlan mode bridge`; a forged
//!   tag: `ip link add link eth0 name tag0 type vlan id 200`; then an address, up, and
//!   `arping -c 2 -w 4 -I fake0 ADDRESS`.

mod archive;
mod boot_sector;
mod contents;
mod elf;
mod kept;
mod kernel;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

pub use boot_sector::boot_sector;
pub use kernel::UnpackError;

use crate::Progress;
use crate::debian::{self, Apt, Package, remove_folder};
use crate::packages::{PackageError, renew_lists};
use archive::Archive;
use contents::{COMMAND_LINE, PACKAGES, Role};
use tree::{Module, Tree};

/// Part of the hash: raise it when the builder puts other things into an image.
const BUILDER: &str = "6";

/// Why there is no guest image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A tool that every Debian machine has is not there.
    #[error("{tool} could not be run: {why}; a Debian machine with apt is needed")]
    NoTool {
        /// The tool.
        tool: &'static str,
        /// What the system said.
        why: String,
    },
    /// A tool failed.
    #[error("{tool} failed: {why}")]
    Tool {
        /// The tool.
        tool: &'static str,
        /// Its last lines.
        why: String,
    },
    /// The package lists could not be renewed.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// apt knows no such package.
    #[error("apt knows no package {0}; see that this is Debian on amd64 with the main archive")]
    NoSuchPackage(String),
    /// A program, library or module that should be in the packages is not.
    #[error("{0} is in none of the guest's packages")]
    NotInPackages(String),
    /// A kernel or module could not be unpacked.
    #[error("{what} could not be unpacked: {why}")]
    Unpack {
        /// Which file.
        what: String,
        /// Why.
        why: UnpackError,
    },
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl ImageError {
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }

    pub(crate) fn tool(tool: &'static str, error: &io::Error) -> Self {
        Self::NoTool { tool, why: error.to_string() }
    }
}

/// A guest that can be booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestImage {
    /// The kernel as an ELF image (PVH entry), for QEMU's `-kernel`.
    pub kernel: PathBuf,
    /// The initramfs, uncompressed.
    pub initramfs: PathBuf,
    /// The initramfs of an emulated host (see [`crate::sriov`]): a guest with the drivers of SR-IOV
    /// NICs, VFIO and KVM, which mounts every shared folder at `/shared/TAG`.
    pub host_initramfs: PathBuf,
    /// Hash of all that went in, as in the folder's name.
    pub id: String,
}

impl GuestImage {
    /// The image that was made on another machine: a folder `guest-ID` of its cache.
    ///
    /// # Errors
    /// [`ImageError::File`] for what is not there.
    pub fn made_in(folder: &Path) -> Result<Self, ImageError> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let image = files_in(folder, name.trim_start_matches("guest-").to_owned());
        for file in [&image.kernel, &image.initramfs] {
            fs::metadata(file).map_err(|error| ImageError::file(file, error))?;
        }
        Ok(image)
    }

    /// The kernel command line: quick on emulated CPUs, console on the first serial line, host
    /// name set. A panic ends the VM.
    pub fn command_line(&self, host_name: &str) -> String {
        format!("{COMMAND_LINE} hostname={host_name}")
    }
}

/// Where images are kept if nothing else is said: `$LANEKEEPER_CACHE`, or `/var/cache/lanekeeper`.
pub fn cache_folder() -> PathBuf {
    std::env::var_os("LANEKEEPER_CACHE")
        .map_or_else(|| PathBuf::from("/var/cache/lanekeeper"), PathBuf::from)
}

/// The guest image for the package versions apt knows now: from the cache, or built (under a
/// minute, of which most is fetching the kernel package).
///
/// Several processes may call this at once; one builds and the others wait. About 500 MB are used
/// in `cache` while building and 130 MB afterwards, for the packages 90 MB more. Images that nobody
/// has asked for in an hour are removed.
///
/// # Errors
/// [`ImageError`]. Package lists that are missing or too old are renewed once, which needs root.
pub fn ensure(cache: &Path, progress: Progress<'_>) -> Result<GuestImage, ImageError> {
    let packages = resolve(cache, progress)?;
    let image = image_at(cache, &packages);
    if is_complete(&image) {
        kept::mark_and_sweep(cache, &folder_of(cache, &image.id))?;
        return Ok(image);
    }
    fs::create_dir_all(cache).map_err(|error| ImageError::file(cache, error))?;
    let _lock = lock(&cache.join("guest.lock"), "builds the guest image", progress)?;
    if is_complete(&image) {
        return Ok(image);
    }
    match build(cache, &packages, progress) {
        // The mirror has newer packages than the lists: renew them, and begin again.
        Err(ImageError::Tool { tool: "apt-get download", .. }) => {
            renew_lists(progress)?;
            let packages = choose_packages()?;
            build(cache, &packages, progress)
        }
        result => result,
    }
}

fn resolve(cache: &Path, progress: Progress<'_>) -> Result<Vec<Package>, ImageError> {
    let memo = Memo::new(cache);
    if let Some(packages) = memo.recall() {
        return Ok(packages);
    }
    progress("choosing the guest's packages");
    let packages = match choose_packages() {
        Err(ImageError::NoSuchPackage(_)) => {
            renew_lists(progress)?;
            choose_packages()?
        }
        result => result?,
    };
    Memo::new(cache).keep(&packages);
    Ok(packages)
}

/// The package of the kernel that guests boot.
pub(crate) fn kernel_package(cache: &Path, progress: Progress<'_>) -> Result<Package, ImageError> {
    let mut packages = resolve(cache, progress)?.into_iter();
    let kernel = packages.find(|package| package.name.starts_with(KERNEL_PACKAGE));
    kernel.ok_or_else(|| ImageError::NotInPackages(KERNEL_PACKAGE.to_owned()))
}

/// The newest kernel of the distribution and the packages of programs, with their libraries.
fn choose_packages() -> Result<Vec<Package>, ImageError> {
    let apt = Apt::default();
    let kernel = apt.dependency("linux-image-amd64", KERNEL_PACKAGE)?;
    apt.resolve(&[PACKAGES, &[kernel.as_str()]].concat())
}

/// What was resolved last, good for as long as apt's lists do not change: asking apt takes seconds
/// on a machine that keeps no index of its lists.
struct Memo {
    path: PathBuf,
    stamp: String,
}

impl Memo {
    fn new(cache: &Path) -> Self {
        let mut files: Vec<String> = fs::read_dir("/var/lib/apt/lists")
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let status = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Some(format!("{name} {} {:?}\n", status.len(), status.modified().ok()))
            })
            .collect();
        files.sort();
        files.push(PACKAGES.join(" "));
        Self { path: cache.join("guest-packages"), stamp: hash(files.iter().map(String::as_bytes)) }
    }

    fn recall(&self) -> Option<Vec<Package>> {
        let text = fs::read_to_string(&self.path).ok()?;
        let mut lines = text.lines();
        if lines.next()? != self.stamp {
            return None;
        }
        lines
            .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
                [name, version, sha256] => Some(Package {
                    name: name.to_owned(),
                    version: version.to_owned(),
                    sha256: sha256.to_owned(),
                }),
                _ => None,
            })
            .collect()
    }

    fn keep(&self, packages: &[Package]) {
        let lines = packages
            .iter()
            .map(|package| format!("{} {} {}\n", package.name, package.version, package.sha256));
        let text: String = std::iter::once(format!("{}\n", self.stamp)).chain(lines).collect();
        let draft = self.path.with_extension(std::process::id().to_string());
        // It only saves time: without it apt is asked again.
        let _ = fs::create_dir_all(self.path.parent().unwrap_or(Path::new("/")))
            .and_then(|()| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &self.path));
    }
}

fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let short: [u8; 8] = std::array::from_fn(|at| digest[at]);
    format!("{:016x}", u64::from_be_bytes(short))
}

/// Hash of all inputs.
fn image_id(packages: &[Package]) -> String {
    let mut parts: Vec<String> = vec![BUILDER.to_owned()];
    for role in [Role::Guest, Role::Host] {
        parts.extend([role.programs(), role.modules(), role.libraries()].map(|it| it.join(" ")));
        parts.extend(role.scripts().iter().map(|script| format!("{script:?}")));
    }
    parts.extend(packages.iter().map(|package| format!("{package:?}")));
    hash(parts.iter().map(String::as_bytes))
}

fn image_at(cache: &Path, packages: &[Package]) -> GuestImage {
    let id = image_id(packages);
    files_in(&folder_of(cache, &id), id)
}

fn files_in(folder: &Path, id: String) -> GuestImage {
    GuestImage {
        kernel: folder.join(KERNEL_FILE),
        initramfs: folder.join(initramfs_file(Role::Guest)),
        host_initramfs: folder.join(initramfs_file(Role::Host)),
        id,
    }
}

fn folder_of(cache: &Path, id: &str) -> PathBuf {
    cache.join(format!("guest-{id}"))
}

/// How the names of packages with a kernel begin.
const KERNEL_PACKAGE: &str = "linux-image-";

const KERNEL_FILE: &str = "vmlinux";

fn initramfs_file(role: Role) -> &'static str {
    match role {
        Role::Guest => "initramfs.cpio",
        Role::Host => "host.cpio",
    }
}

/// The folder gets its name only once all files are whole.
fn is_complete(image: &GuestImage) -> bool {
    [&image.kernel, &image.initramfs, &image.host_initramfs].iter().all(|path| path.is_file())
}

/// Held until dropped; the kernel lets go of it if this process dies.
pub(crate) fn lock(path: &Path, what: &str, progress: Progress<'_>) -> Result<File, ImageError> {
    let fail = |error| ImageError::file(path, error);
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(fail)?;
    if file.try_lock().is_err() {
        progress(&format!("waiting for another process that {what}"));
        file.lock().map_err(fail)?;
    }
    Ok(file)
}

/// Build under the lock: in a folder of its own that is renamed when it is whole.
fn build(
    cache: &Path,
    packages: &[Package],
    progress: Progress<'_>,
) -> Result<GuestImage, ImageError> {
    let image = image_at(cache, packages);
    let store = cache.join("packages");
    let work = cache.join("guest-in-work");
    remove_folder(&work)?;
    for folder in [&store, &work] {
        fs::create_dir_all(folder).map_err(|error| ImageError::file(folder, error))?;
    }
    progress(&format!("fetching the guest's {} packages", packages.len()));
    Apt::default().fetch(packages, &store)?;
    progress("unpacking the guest's packages");
    let unpacked = work.join("tree");
    debian::unpack(packages, &store, &unpacked)?;
    let tree = Tree::new(unpacked.clone());
    progress("unpacking the guest's kernel");
    let finished = work.join("image");
    fs::create_dir(&finished).map_err(|error| ImageError::file(&finished, error))?;
    write(&finished.join(KERNEL_FILE), |out| out.write_all(&vmlinux(&tree)?).map_err(Failure::Io))?;
    progress("writing the guest's initramfs");
    for role in [Role::Guest, Role::Host] {
        let archive = root_file_system(&tree, role)?;
        let path = finished.join(initramfs_file(role));
        write(&path, |out| archive.write(out).map_err(Failure::Io))?;
    }
    let folder = folder_of(cache, &image.id);
    remove_folder(&folder)?;
    fs::rename(&finished, &folder).map_err(|error| ImageError::file(&folder, error))?;
    remove_folder(&work)?;
    debian::sweep(packages, &store)?;
    kept::mark_and_sweep(cache, &folder)?;
    Ok(image)
}

enum Failure {
    Io(io::Error),
    Image(ImageError),
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), Failure>,
) -> Result<(), ImageError> {
    let fail = |error| ImageError::file(path, error);
    let mut out = BufWriter::new(File::create(path).map_err(fail)?);
    fill(&mut out).map_err(|failure| match failure {
        Failure::Io(error) => fail(error),
        Failure::Image(error) => error,
    })?;
    out.into_inner().map_err(|error| fail(error.into_error()))?.sync_all().map_err(fail)
}

fn vmlinux(tree: &Tree) -> Result<Vec<u8>, ImageError> {
    let name = tree
        .list("boot")
        .into_iter()
        .find(|name| name.starts_with("vmlinuz-"))
        .ok_or_else(|| ImageError::NotInPackages("vmlinuz".to_owned()))?;
    let packed = tree.read(&format!("boot/{name}"))?;
    kernel::vmlinux(&packed).map_err(|why| ImageError::Unpack { what: name, why })
}

/// Everything in one /usr, as today's systems have it.
fn root_file_system(tree: &Tree, role: Role) -> Result<Archive, ImageError> {
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "root", "run", "sys", "tmp", "var", "usr/lib64"] {
        archive.directory(folder);
    }
    for folder in ["bin", "sbin", "lib", "lib64"] {
        archive.link(folder, &format!("usr/{folder}"));
    }
    archive.link("var/run", "../run");
    for (path, executable, text) in role.scripts() {
        let bytes = text.as_bytes().to_vec();
        if executable { archive.program(path, bytes) } else { archive.file(path, bytes) }
    }
    add_programs(&mut archive, tree, role)?;
    add_busybox(&mut archive, tree, role)?;
    add_modules(&mut archive, tree, role)?;
    Ok(archive)
}

/// The modules in the kernel's folder, with `modules.dep` as depmod(8) writes it: for each module
/// all it stands on, to be loaded from the last to the first.
fn add_modules(archive: &mut Archive, tree: &Tree, role: Role) -> Result<(), ImageError> {
    let names = role.modules();
    let modules = tree.modules(&names)?;
    let release = tree.list("lib/modules").into_iter().next();
    let release = release.ok_or_else(|| ImageError::NotInPackages("lib/modules".to_owned()))?;
    let folder = format!("usr/lib/modules/{release}");
    archive.file("etc/modules", format!("{}\n", names.join("\n")).into_bytes());
    archive.file(&format!("{folder}/modules.dep"), dependencies(&modules).into_bytes());
    for Module { name, bytes, .. } in modules {
        archive.file(&format!("{folder}/{name}.ko"), bytes);
    }
    Ok(())
}

fn dependencies(modules: &[Module]) -> String {
    let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut text = String::new();
    for module in modules {
        let mut all: BTreeSet<&str> = BTreeSet::new();
        for name in &module.needs {
            all.insert(name);
            all.extend(below.get(name.as_str()).into_iter().flatten());
        }
        text.push_str(&module.name);
        text.push_str(".ko:");
        for other in modules.iter().rev().filter(|other| all.contains(other.name.as_str())) {
            text.push(' ');
            text.push_str(&other.name);
            text.push_str(".ko");
        }
        text.push('\n');
        below.insert(&module.name, all);
    }
    text
}

/// The programs, the RDMA provider of rdma_rxe, and every library any of them is linked with.
fn add_programs(archive: &mut Archive, tree: &Tree, role: Role) -> Result<(), ImageError> {
    let mut needed: Vec<String> = role.libraries().into_iter().map(str::to_owned).collect();
    for name in role.programs() {
        let bytes = tree.program(name)?;
        needed.extend(elf::needed_libraries(&bytes));
        archive.program(&format!("usr/bin/{name}"), bytes);
    }
    // libibverbs loads its providers by name: the one for rdma_rxe, as the .driver file says.
    let providers = "usr/lib/x86_64-linux-gnu/libibverbs";
    for name in tree.list(providers).into_iter().filter(|name| name.starts_with("librxe-")) {
        let bytes = tree.read(&format!("{providers}/{name}"))?;
        needed.extend(elf::needed_libraries(&bytes));
        archive.program(&format!("{providers}/{name}"), bytes);
    }
    archive.file("etc/libibverbs.d/rxe.driver", tree.read("etc/libibverbs.d/rxe.driver")?);
    while let Some(name) = needed.pop() {
        let path = format!("usr/lib/x86_64-linux-gnu/{name}");
        if archive.contains(&path) {
            continue;
        }
        let bytes = tree.library(&name)?;
        needed.extend(elf::needed_libraries(&bytes));
        archive.program(&path, bytes);
    }
    // The loader's path is written into every program (System V ABI, AMD64 supplement).
    archive.link("usr/lib64/ld-linux-x86-64.so.2", "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
    let loader = tree.library("ld-linux-x86-64.so.2")?;
    archive.program("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", loader);
    Ok(())
}

/// busybox, with a link for each of its commands that no program of its own has taken. Its shell is
/// left out: Debian's build prefers busybox's own commands to programs of the same name whatever
/// PATH says (FEATURE_SH_STANDALONE), so that `ip` and `ping` would not be iproute2's and iputils'.
fn add_busybox(archive: &mut Archive, tree: &Tree, role: Role) -> Result<(), ImageError> {
    let path = "bin/busybox";
    let programs = role.programs();
    let program = tree.locate(path).map_err(|error| ImageError::file(Path::new(path), error))?;
    let output = Command::new(&program)
        .arg("--list-full")
        .output()
        .map_err(|error| ImageError::file(&program, error))?;
    for command in String::from_utf8_lossy(&output.stdout).lines() {
        let name = command.rsplit('/').next().unwrap_or(command);
        if !["busybox", "sh", "ash"].contains(&name) && !programs.contains(&name) {
            let folder = if command.contains("sbin/") { "sbin" } else { "bin" };
            archive.link(&format!("usr/{folder}/{name}"), "/usr/bin/busybox");
        }
    }
    archive.program("usr/bin/busybox", tree.read(path)?);
    archive.link("usr/bin/sh", "dash");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(version: &str) -> Package {
        Package { name: "iperf3".into(), version: version.into(), sha256: "00".into() }
    }

    #[test]
    fn a_new_package_version_gives_another_image() {
        assert_eq!(image_id(&[package("1")]), image_id(&[package("1")]));
        assert_ne!(image_id(&[package("1")]), image_id(&[package("2")]));
    }

    #[test]
    fn a_hash_tells_where_one_part_ends_and_the_next_begins() {
        assert_ne!(hash([&b"ab"[..], b"c"]), hash([&b"a"[..], b"bc"]));
    }

    #[test]
    fn what_was_resolved_is_recalled_until_the_lists_change() {
        let cache = tempfile::tempdir().expect("a folder");
        let packages = vec![package("1"), package("1:2+b3")];
        let mut memo = Memo::new(cache.path());
        assert_eq!(memo.recall(), None);
        memo.keep(&packages);
        assert_eq!(memo.recall(), Some(packages));
        memo.stamp = "other lists".to_owned();
        assert_eq!(memo.recall(), None);
    }

    #[test]
    fn each_module_names_all_below_it_and_the_first_to_load_last() {
        let module = |name: &str, needs: &[&str]| Module {
            name: name.to_owned(),
            needs: needs.iter().map(|name| (*name).to_owned()).collect(),
            bytes: Vec::new(),
        };
        let modules = [module("a", &[]), module("b", &["a"]), module("c", &["b"])];
        assert_eq!(dependencies(&modules), "a.ko:\nb.ko: a.ko\nc.ko: b.ko a.ko\n");
    }

    #[test]
    fn the_host_name_is_on_the_command_line_once() {
        let image = image_at(Path::new("/nowhere"), &[]);
        let line = image.command_line("a1");
        assert!(line.ends_with(" hostname=a1") && !line.contains("  "), "{line}");
    }
}
