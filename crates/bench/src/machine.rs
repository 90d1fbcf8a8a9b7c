//! The machine under the measurement: what it is, and what has to be changed on it for a while.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::{Duration, Instant};

use crate::process::{Thread, tool};
use crate::{BenchError, Stop};

const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages that were added to the system's pool, given back when dropped.
#[derive(Debug)]
pub struct HugePages {
    before: Option<u64>,
}

impl HugePages {
    /// Make sure that `mebibytes` are free in huge pages, adding to the pool only if they are not.
    ///
    /// # Errors
    /// The kernel has not that much unfragmented memory, or does not let us.
    pub fn reserve(mebibytes: u64, stop: &Stop) -> Result<Self, BenchError> {
        let wanted = (mebibytes * 1_024).div_ceil(memory_field("Hugepagesize")?);
        let free = memory_field("HugePages_Free")?;
        if free >= wanted {
            return Ok(Self { before: None });
        }
        let before = memory_field("HugePages_Total")?;
        let reserved = Self { before: Some(before) };
        // A busy machine gathers large pages in several goes.
        for _ in 0..5 {
            write_pool(before + wanted - free)?;
            if memory_field("HugePages_Free")? >= wanted {
                return Ok(reserved);
            }
            stop.sleep(Duration::from_millis(200))?;
        }
        Err(BenchError::HugePages { wanted, free: memory_field("HugePages_Free")? })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        give_back(self.before);
    }
}

fn give_back(before: Option<u64>) {
    if let Some(before) = before
        && let Err(error) = write_pool(before)
    {
        eprintln!("huge pages stay reserved: {error}; write {before} to {POOL}");
    }
}

fn write_pool(pages: u64) -> Result<(), BenchError> {
    fs::write(POOL, pages.to_string()).map_err(BenchError::io(POOL))
}

fn memory_field(name: &str) -> Result<u64, BenchError> {
    let text = read("/proc/meminfo")?;
    let field = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| BenchError::Unexpected { what: format!("{name} of meminfo"), got: text })
}

fn read(path: &str) -> Result<String, BenchError> {
    fs::read_to_string(path).map_err(BenchError::io(path))
}

/// Memory that a process has now: `VmRSS` of `/proc/PID/status` (proc(5)), in KiB.
///
/// # Errors
/// The process is gone.
pub fn resident(process: u32) -> Result<u64, BenchError> {
    let path = format!("/proc/{process}/status");
    let text = read(&path)?;
    let field = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = field.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or(BenchError::Unexpected { what: path, got: text })
}

/// How long it takes to write 4 KiB into a file in `folder` and have it on disk (`fdatasync`), in the
/// median of 101.
///
/// # Errors
/// The file cannot be written.
pub fn sync_time(folder: &Path) -> Result<Duration, BenchError> {
    let path = folder.join("sync-probe");
    let failed = || BenchError::io(path.display());
    let mut file = fs::File::create(&path).map_err(failed())?;
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        file.write_all(&[0x5a; 4_096]).map_err(failed())?;
        file.sync_data().map_err(failed())?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    fs::remove_file(&path).map_err(failed())?;
    Ok(times[times.len() / 2])
}

/// How long the harness may take to end in good order once it is time to.
const GRACE: Duration = Duration::from_secs(10);

/// See to it that the harness ends: threads at real-time priority hold both cores for most of the
/// time, and whatever goes wrong among them must not hold the machine. From a thread above them all,
/// ten seconds after it is time to end, gives back `pages`, removes `folder` and leaves; the kernel
/// then kills every process that the harness started.
///
/// # Errors
/// No permission to use real-time scheduling.
pub fn end_in_any_case(
    stop: &Stop,
    pages: &HugePages,
    folder: Option<PathBuf>,
) -> Result<(), BenchError> {
    let (stop, pages) = (stop.clone(), pages.before);
    let (started, answer) = std::sync::mpsc::channel();
    let watch = move || {
        // The other end waits for this word.
        let _ = started.send(own_thread().real_time(4));
        let reason = loop {
            std::thread::sleep(Duration::from_millis(500));
            if let Some(reason) = stop.reason() {
                break reason;
            }
        };
        std::thread::sleep(GRACE);
        eprintln!("lanekeeper-bench: {reason}; it did not end by itself and is ended");
        give_back(pages);
        if let Some(folder) = &folder {
            let _ = fs::remove_dir_all(folder);
        }
        exit(if stop.asked() { 130 } else { 1 });
    };
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(watch)
        .map_err(BenchError::io("a thread"))?;
    let gone = |_| BenchError::InProcess { what: "watch", said: "a panic".to_owned() };
    answer.recv().map_err(gone)?
}

fn own_thread() -> Thread {
    let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    Thread { process: std::process::id(), id, name: String::new() }
}

/// The calling thread above the measured ones, so that a window ends when it should although both
/// cores are taken by polling threads. Ordinary again when dropped.
#[derive(Debug)]
pub struct AboveAll(Thread);

impl AboveAll {
    /// Raise the calling thread.
    ///
    /// # Errors
    /// No permission to use real-time scheduling.
    pub fn raise() -> Result<Self, BenchError> {
        let thread = own_thread();
        thread.real_time(3)?;
        Ok(Self(thread))
    }
}

impl Drop for AboveAll {
    fn drop(&mut self) {
        let lowered = tool("chrt", ["--other", "--pid", "0", &self.0.id.to_string()]);
        if let Err(error) = lowered {
            eprintln!("the harness keeps its real-time priority: {error}");
        }
    }
}

/// What a reader of the figures must know about the machine.
///
/// # Errors
/// `/proc` cannot be read.
pub fn description() -> Result<Vec<(&'static str, String)>, BenchError> {
    let cpu = read("/proc/cpuinfo")?;
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name));
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_err(BenchError::io("cores"))?;
    let virtual_machine = cpu.contains(" hypervisor");
    Ok(vec![
        (
            "CPU",
            format!(
                "{}, family {} model {}, {} MHz",
                field("model name"),
                field("cpu family"),
                field("model\t"),
                field("cpu MHz")
            ),
        ),
        ("Cores", format!("{cores}{}", if virtual_machine { ", virtual" } else { "" })),
        ("Memory", format!("{} MiB", memory_field("MemTotal")? / 1_024)),
        ("Kernel", read("/proc/sys/kernel/osrelease")?.trim().to_owned()),
    ])
}

/// Size of a huge page, in KiB.
///
/// # Errors
/// `/proc` cannot be read.
pub fn huge_page_size() -> Result<u64, BenchError> {
    memory_field("Hugepagesize")
}

/// Version of an installed Debian package.
///
/// # Errors
/// It is not installed.
pub fn package_version(package: &str) -> Result<String, BenchError> {
    tool("dpkg-query", ["--show", "--showformat=${Version}", package])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_cpu_and_kernel() {
        let description = description().expect("/proc is there");
        for (name, value) in &description {
            assert!(!value.trim_matches([',', ' ']).is_empty(), "{name} is empty");
        }
    }

    #[test]
    fn this_process_has_some_memory() {
        assert!(resident(std::process::id()).expect("it is there") > 1_000);
    }

    #[test]
    fn a_reservation_that_is_already_met_changes_nothing() {
        let reserved = HugePages::reserve(0, &Stop::default()).expect("0 pages are always free");
        assert_eq!(reserved.before, None);
    }
}
