//! KVM or emulation, decided by trying: `/dev/kvm` that opens, and even a VM that it makes, say
//! nothing on a host that is itself a VM of some kinds (MSRs that are missing, instructions that
//! cannot be emulated, or silence). Only a kernel that really booted counts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::VmError;
use crate::process::{Launch, Process};
use crate::qemu::Qemu;

/// What carries a guest's instructions out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The host's CPU.
    Kvm,
    /// QEMU's emulation: a hundred times slower, and it always works.
    Tcg,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What to use.
    pub accel: Accel,
    /// Why, in words for the user.
    pub reason: String,
}

/// How long the probe's kernel may take: it takes under 2 s where KVM works at all.
const LIMIT: Duration = Duration::from_secs(8);

/// What a kernel without a root file system says when it has come to the end of its boot.
const BOOTED: &str = "Unable to mount root fs";

/// The name of the remembered verdict in the cache folder.
const MEMO: &str = "accel.json";

#[derive(Serialize, Deserialize)]
struct Memo {
    /// What the verdict depends on.
    key: String,
    verdict: Verdict,
}

/// KVM if a kernel is seen to boot under it within 8 seconds, emulation otherwise.
///
/// The verdict is remembered in `cache` until the host is booted anew or QEMU or the kernel
/// changes. The kernel should be the one the VMs boot; for VMs that boot from a disk any other
/// will do.
///
/// # Errors
/// [`VmError::Io`] when the cache folder cannot be used, or QEMU cannot be started at all.
pub fn choose(qemu: &Qemu, kernel: &Path, cache: &Path) -> Result<Verdict, VmError> {
    let key = key(qemu, kernel).map_err(|error| io(kernel, error))?;
    let memo = cache.join(MEMO);
    if let Some(verdict) = recall(&memo, &key) {
        return Ok(verdict);
    }
    fs::create_dir_all(cache).map_err(|error| io(cache, error))?;
    let verdict = match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => probe(qemu, kernel, cache)?,
        Err(error) => tcg(format!("/dev/kvm cannot be used: {error}")),
    };
    let draft = cache.join(format!("{MEMO}.{}", std::process::id()));
    let text = serde_json::to_string(&Memo { key, verdict: verdict.clone() })
        .map_err(|error| io(&memo, error.into()))?;
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, &memo))
        .map_err(|error| io(&memo, error))?;
    Ok(verdict)
}

fn recall(memo: &Path, key: &str) -> Option<Verdict> {
    let memo: Memo = serde_json::from_str(&fs::read_to_string(memo).ok()?).ok()?;
    (memo.key == key).then_some(memo.verdict)
}

fn key(qemu: &Qemu, kernel: &Path) -> std::io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let status = fs::metadata(kernel)?;
    let changed = status.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(format!(
        "{} {} {} {} {} {changed:?}",
        boot.trim(),
        qemu.program().display(),
        qemu.version(),
        kernel.display(),
        status.len()
    ))
}

fn probe(qemu: &Qemu, kernel: &Path, cache: &Path) -> Result<Verdict, VmError> {
    let stem = cache.join(format!("accel-{}", std::process::id()));
    let (serial, log) = (stem.with_extension("serial"), stem.with_extension("log"));
    let result = boot(qemu, kernel, &serial, &log);
    for path in [&serial, &log] {
        // The verdict holds what mattered in them.
        let _ = fs::remove_file(path);
    }
    result
}

fn boot(qemu: &Qemu, kernel: &Path, serial: &Path, log: &Path) -> Result<Verdict, VmError> {
    let launch = Launch {
        program: qemu.program().to_owned(),
        arguments: probe_arguments(kernel, serial),
        namespace: None,
        inherited: Vec::new(),
        dies_with_parent: true,
        output: File::create(log).map_err(|error| io(log, error))?,
    };
    let begin = Instant::now();
    let process = Process::start(launch).map_err(|error| io(qemu.program(), error))?;
    let console = || fs::read(serial).unwrap_or_default();
    let booted = || String::from_utf8_lossy(&console()).contains(BOOTED);
    let ended = loop {
        if booted() {
            break None;
        }
        match process.wait(Duration::from_millis(50)) {
            Some(status) => break Some(status),
            None if begin.elapsed() >= LIMIT => break None,
            None => {}
        }
    };
    let booted = booted();
    process.kill().map_err(|error| io(log, error))?;
    process.wait(Duration::from_secs(5));
    if booted {
        let reason = format!("a kernel booted under KVM in {:.1} s", begin.elapsed().as_secs_f32());
        return Ok(Verdict { accel: Accel::Kvm, reason });
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("QEMU said nothing");
    Ok(tcg(match ended {
        Some(status) => format!("/dev/kvm opens but runs no kernel ({status}): {said}"),
        None => format!(
            "/dev/kvm opens but no kernel booted within {LIMIT:?}, only {} bytes of console: {said}",
            console().len()
        ),
    }))
}

fn tcg(reason: String) -> Verdict {
    Verdict { accel: Accel::Tcg, reason }
}

/// No initramfs: the kernel panics for want of a root file system, which is far enough.
fn probe_arguments(kernel: &Path, serial: &Path) -> Vec<String> {
    let kernel = kernel.to_string_lossy().into_owned();
    let serial = format!("file:{}", serial.to_string_lossy().replace(',', ",,"));
    [
        "-no-user-config",
        "-nodefaults",
        "-no-reboot",
        "-display",
        "none",
        "-machine",
        "q35",
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-m",
        "256M",
        "-serial",
        &serial,
        "-kernel",
        &kernel,
        "-append",
        "console=ttyS0 panic=-1",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn io(path: &Path, error: std::io::Error) -> VmError {
    VmError::Io { vm: "of the KVM probe".to_owned(), what: path.display().to_string(), error }
}

/// The newest kernel of this machine itself, for VMs that bring none.
pub fn host_kernel() -> Option<PathBuf> {
    let kernels = fs::read_dir("/boot").ok()?.filter_map(Result::ok);
    kernels
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"))
        .max_by_key(|entry| entry.metadata().and_then(|status| status.modified()).ok())
        .map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_recalled_for_the_same_key_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(MEMO);
        assert_eq!(recall(&path, "one"), None);
        let verdict = tcg("because".to_owned());
        let memo = Memo { key: "one".to_owned(), verdict: verdict.clone() };
        fs::write(&path, serde_json::to_string(&memo).expect("plain data")).expect("writes");
        assert_eq!(recall(&path, "one"), Some(verdict));
        assert_eq!(recall(&path, "two"), None);
    }

    #[test]
    fn a_damaged_memory_is_as_good_as_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(MEMO);
        fs::write(&path, "{\"key\": \"one\"").expect("writes");
        assert_eq!(recall(&path, "one"), None);
    }
}
