//! What VMs boot: the small guest, or a disk of their own on top of an image (copy on write), so that
//! the image stays as it is and the disk survives a stop. An image is a file of the host's image
//! folder; one that is not there is fetched and counts only with the right hash.

use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lanekeeper_control::protocol::{DesiredVm, Image, ImageFormat};
use lanekeeper_vmm::{Boot, Disk, DiskFormat};
use serde_json::Value;
use sha2::{Digest, Sha256};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::error::NodeError;
use crate::journal::settle;

#[cfg(test)]
mod tests;

/// Largest image that is fetched, in bytes.
const LARGEST: u64 = 64 << 30;
/// How long a server of images may be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes read or hashed at a time.
const CHUNK: usize = 1 << 20;

/// The small guest that the agent brings ([`Image::Builtin`]).
#[derive(Clone)]
pub struct Builtin {
    /// Its kernel.
    pub kernel: PathBuf,
    /// Its initramfs.
    pub initramfs: PathBuf,
    /// The kernel's command line for a host name.
    pub command_line: Arc<dyn Fn(&str) -> String + Send + Sync>,
}

impl fmt::Debug for Builtin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builtin").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

/// The host's images.
pub(crate) struct Images {
    folder: PathBuf,
    builtin: Option<Builtin>,
    /// One is fetched at a time: two VMs of one image fetch it once.
    fetching: Mutex<()>,
}

/// An image that is a disk.
struct Wanted<'a> {
    file: &'a str,
    format: ImageFormat,
    url: Option<&'a str>,
    sha256: Option<&'a str>,
}

impl Images {
    pub(crate) fn new(folder: &Path, builtin: Option<Builtin>) -> Self {
        Self { folder: folder.to_owned(), builtin, fetching: Mutex::new(()) }
    }

    /// Whether all that a VM boots is there.
    pub(crate) fn is_ready(&self, vm: &DesiredVm, disks: &Path) -> bool {
        match vm.image {
            Image::Builtin => self.builtin.is_some(),
            Image::Disk { .. } => overlay(disks, &vm.image).is_file(),
        }
    }

    /// Have it there. `goes_on` says whether it is still wanted.
    ///
    /// # Errors
    /// [`NodeError::Refused`] for an image that cannot be had, [`NodeError::Fetch`],
    /// [`NodeError::Overtaken`], [`NodeError::File`].
    pub(crate) fn prepare(
        &self,
        vm: &DesiredVm,
        disks: &Path,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), NodeError> {
        let Image::Disk { file, format, url, sha256 } = &vm.image else {
            return self.builtin().map(drop);
        };
        let (url, sha256) = (url.as_deref(), sha256.as_deref());
        let wanted = Wanted { file, format: *format, url, sha256 };
        let base = self.have(&wanted, goes_on)?;
        let path = overlay(disks, &vm.image);
        make_overlay(&base, *format, vm.place.scalars.disk_gib, &path)
    }

    /// What a VM boots, once it is there.
    pub(crate) fn boot(&self, vm: &DesiredVm, disks: &Path) -> Result<Boot, NodeError> {
        match vm.image {
            Image::Builtin => {
                let builtin = self.builtin()?;
                Ok(Boot::Kernel {
                    kernel: builtin.kernel.clone(),
                    initramfs: Some(builtin.initramfs.clone()),
                    command_line: (builtin.command_line)(&vm.name),
                })
            }
            Image::Disk { .. } => Ok(Boot::Disk(Disk {
                image: overlay(disks, &vm.image),
                format: DiskFormat::Qcow2,
                throw_away: false,
            })),
        }
    }

    fn builtin(&self) -> Result<&Builtin, NodeError> {
        let why = "this host's agent was started without one; choose a disk image";
        self.builtin.as_ref().ok_or_else(|| NodeError::refused("image", "builtin", why))
    }

    fn have(&self, wanted: &Wanted<'_>, goes_on: &dyn Fn() -> bool) -> Result<PathBuf, NodeError> {
        let Wanted { file, url, sha256, .. } = *wanted;
        if file.is_empty() || file.starts_with('.') || file.contains(['/', '\0']) {
            let why = "use the name of a file in the image folder";
            return Err(NodeError::refused("image", file, why));
        }
        let path = self.folder.join(file);
        let _one = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        if path.is_file() {
            if let Some(want) = sha256 {
                let mut file = File::open(&path).map_err(NodeError::file(&path, "read"))?;
                let is = copy(&mut file, None, goes_on)
                    .map_err(|error| error.of(|source| NodeError::file(&path, "read")(source)))?;
                same(&path.display(), &is, want)?;
            }
        } else {
            let Some(url) = url else {
                let why = format!("it is not in {}, and no url is given", self.folder.display());
                return Err(NodeError::refused("image", file, why));
            };
            let Some(want) = sha256 else {
                return Err(NodeError::refused("image", file, "a url needs a sha256 beside it"));
            };
            self.fetch(url, want, &path, goes_on)?;
        }
        check(&path, wanted.format)?;
        Ok(path)
    }

    fn fetch(
        &self,
        url: &str,
        sha256: &str,
        path: &Path,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), NodeError> {
        if !url.starts_with("https://") && !url.starts_with("http://") {
            return Err(NodeError::refused("url", url, "use https:// or http://"));
        }
        fs::create_dir_all(&self.folder).map_err(NodeError::file(&self.folder, "make"))?;
        let failed = |why: String| NodeError::Fetch { url: url.to_owned(), why };
        let mut response = agent().get(url).call().map_err(|error| failed(error.to_string()))?;
        let draft = self.folder.join(".fetched");
        let mut file = File::create(&draft).map_err(NodeError::file(&draft, "create"))?;
        let mut body = response.body_mut().as_reader().take(LARGEST + 1);
        let is = copy(&mut body, Some(&mut file), goes_on)
            .map_err(|error| error.of(|source| failed(source.to_string())))?;
        if body.limit() == 0 {
            return Err(NodeError::refused("url", url, "it is larger than 64 GiB"));
        }
        same(&url, &is, sha256)?;
        file.sync_all().map_err(NodeError::file(&draft, "sync"))?;
        settle(&draft, path)
    }
}

/// Redirects are followed: what comes is known by its hash.
fn agent() -> Agent {
    let roots = rustls_native_certs::load_native_certs().certs;
    let roots: Vec<_> = roots.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .timeout_connect(Some(SILENCE))
        .timeout_recv_response(Some(SILENCE));
    config.build().new_agent()
}

/// Why a copy ended early.
enum Cut {
    Overtaken,
    Failed(std::io::Error),
}

impl Cut {
    fn of(self, failed: impl FnOnce(std::io::Error) -> NodeError) -> NodeError {
        match self {
            Self::Overtaken => NodeError::Overtaken,
            Self::Failed(error) => failed(error),
        }
    }
}

/// The hash of all that is read, which is written elsewhere on the way if that is asked.
fn copy(
    from: &mut dyn Read,
    mut to: Option<&mut File>,
    goes_on: &dyn Fn() -> bool,
) -> Result<String, Cut> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        if !goes_on() {
            return Err(Cut::Overtaken);
        }
        let count = from.read(&mut chunk).map_err(Cut::Failed)?;
        if count == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&chunk[..count]);
        if let Some(to) = &mut to {
            to.write_all(&chunk[..count]).map_err(Cut::Failed)?;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn same(what: &dyn fmt::Display, is: &str, want: &str) -> Result<(), NodeError> {
    if is.eq_ignore_ascii_case(want) {
        return Ok(());
    }
    let why = format!("{what} has {is}; correct the image's hash, or the file");
    Err(NodeError::refused("sha256", want, why))
}

/// A VM's own disk, on top of one image: with another image it is another.
fn overlay(disks: &Path, image: &Image) -> PathBuf {
    let digest = Sha256::digest(format!("{image:?}"));
    disks.join(format!("disk-{}.qcow2", hex(&digest[..8])))
}

/// An image's header may name other files of this host as parts of it (qcow2: backing file, data file);
/// a tenant's must not.
fn check(path: &Path, format: ImageFormat) -> Result<(), NodeError> {
    let info = info(path, format)?;
    let data = &info["format-specific"]["data"]["data-file"];
    for named in [&info["backing-filename"], data] {
        if let Some(named) = named.as_str() {
            let why = format!("it stands on another file, {named}; flatten it: qemu-img convert");
            return Err(NodeError::refused("image", path.display(), why));
        }
    }
    Ok(())
}

fn info(path: &Path, format: ImageFormat) -> Result<Value, NodeError> {
    let path = path.to_string_lossy();
    let text = qemu_img(&["info", "--output=json", "-f", name(format), &path])?;
    serde_json::from_str(&text).map_err(|error| NodeError::refused("image", path, error))
}

/// The VM's own disk: whole once it has its name.
fn make_overlay(
    base: &Path,
    format: ImageFormat,
    disk_gib: u64,
    path: &Path,
) -> Result<(), NodeError> {
    let needed = info(base, format)?["virtual-size"].as_u64().unwrap_or_default();
    let size = if disk_gib == 0 { needed } else { disk_gib << 30 };
    if size < needed {
        let why = format!("the image's disk has {} GiB", needed.div_ceil(1 << 30));
        return Err(NodeError::refused("disk_gib", disk_gib, why));
    }
    let disks = path.parent().unwrap_or(Path::new("/"));
    // One of another image, or one that was not finished.
    remove(disks)?;
    fs::create_dir_all(disks).map_err(NodeError::file(disks, "make"))?;
    let draft = disks.join("disk.draft");
    let (base, made) = (base.to_string_lossy(), draft.to_string_lossy());
    let size = size.to_string();
    qemu_img(&["create", "-q", "-f", "qcow2", "-F", name(format), "-b", &base, &made, &size])?;
    settle(&draft, path)
}

/// Remove a folder with all in it; one that is not there is as good.
pub(crate) fn remove(folder: &Path) -> Result<(), NodeError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(NodeError::file(folder, "remove")(error))
        }
        _ => Ok(()),
    }
}

fn name(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Qcow2 => "qcow2",
        ImageFormat::Raw => "raw",
    }
}

fn qemu_img(arguments: &[&str]) -> Result<String, NodeError> {
    let why = "it cannot be run; install the package qemu-utils";
    let output = Command::new("qemu-img").args(arguments).output();
    let output = output
        .map_err(|error| NodeError::refused("image", "qemu-img", format!("{why} ({error})")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NodeError::refused("image", arguments.join(" "), said))
}
