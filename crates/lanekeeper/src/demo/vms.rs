//! The VMs of the demo: each with a VF of its host's software NIC and, beside it, a traditional NIC.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::IsTerminal;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lanekeeper_model::Mtu;
use lanekeeper_testbed::guest_image::GuestImage;
use lanekeeper_testbed::netns::Namespace;
use lanekeeper_verify::{HostError, ProbeError};
use lanekeeper_vmm::agent::{Agent, AgentError, Ended};
use lanekeeper_vmm::{
    Accel, Boot, Driver, Kept, Machine, Qemu, Tap, TapPort, Verdict, VfPort, Vm, VmSpec, accel,
};
use serde::{Deserialize, Serialize};

use super::hosts::nics_folder;
use super::plan::{self, HOSTS, MTU, PlannedVm, VMS};
use super::process::tail;
use super::progress::Progress;
use super::residue::Site;
use super::{DemoError, console};

/// Enough for the guest, in MiB.
const MEMORY: u32 = 256;
/// How long the guest agent of a kept VM may take to answer.
const AGENT_PATIENCE: Duration = Duration::from_secs(20);
/// Ten times what a boot takes while another VM boots beside it.
const BOOT_PATIENCE: Duration = Duration::from_secs(120);

/// What carries the guests' instructions out on this machine.
pub(super) struct Cpus {
    qemu: Qemu,
    verdict: Verdict,
}

impl Cpus {
    /// KVM where it really runs the guest's kernel.
    ///
    /// # Errors
    /// [`DemoError::Vm`] without QEMU.
    pub(super) fn choose(image: &GuestImage, cache: &Path) -> Result<Self, DemoError> {
        let qemu = Qemu::find()?;
        let verdict = accel::choose(&qemu, &image.kernel, cache)?;
        Ok(Self { qemu, verdict })
    }

    /// For the statement on what was emulated.
    pub(super) fn in_words(&self) -> &'static str {
        match self.verdict.accel {
            Accel::Kvm => "RDMA (the kernel's rdma_rxe), but not the guests' CPUs (KVM)",
            Accel::Tcg => {
                "RDMA (the kernel's rdma_rxe) and the guests' CPUs (QEMU TCG, since KVM runs no \
                 kernel here)"
            }
        }
    }

    /// How many VMs boot at a time: an emulated CPU takes a core of this machine for as long as it
    /// boots, and more of them at once would only make each wait for the others.
    fn boots_at_once(&self) -> usize {
        match self.verdict.accel {
            Accel::Kvm => VMS.len(),
            Accel::Tcg => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Why it is KVM, or is not.
    pub(super) fn reason(&self) -> &str {
        &self.verdict.reason
    }
}

/// Start every VM and wait until all are ready.
///
/// # Errors
/// [`DemoError::Vm`] with the last words of QEMU and of the VM's console.
pub(super) fn boot(
    site: &Site,
    hosts: &[Namespace; 2],
    image: &GuestImage,
    cpus: &Cpus,
    keep: bool,
    progress: &Progress,
) -> Result<Vec<Vm>, DemoError> {
    let start = |vm: &PlannedVm| {
        let mut spec = spec(site, vm, &hosts[vm.host], image)?;
        (spec.accel, spec.dies_with_parent) = (cpus.verdict.accel, !keep);
        site.make(|| Ok(cpus.qemu.start(spec)?))
    };
    let mut vms = Vec::new();
    for wave in VMS.chunks(cpus.boots_at_once()) {
        let started: Vec<Vm> = wave.iter().map(start).collect::<Result<_, _>>()?;
        wait_ready(wave, &started, progress)?;
        vms.extend(started);
    }
    Ok(vms)
}

fn wait_ready(planned: &[PlannedVm], vms: &[Vm], progress: &Progress) -> Result<(), DemoError> {
    std::thread::scope(|scope| {
        let waits: Vec<_> = planned
            .iter()
            .zip(vms)
            .map(|(planned, vm)| {
                let line =
                    progress.task(&format!("{} boots on {}", planned.name, HOSTS[planned.host]));
                scope.spawn(move || {
                    let ready = vm.wait_ready(BOOT_PATIENCE);
                    if let Ok(took) = &ready {
                        let seconds = took.as_secs_f64();
                        line.done(&format!("{} is ready after {seconds:.1} s", planned.name));
                    }
                    ready.map(drop)
                })
            })
            .collect();
        for wait in waits {
            wait.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })
}

fn spec(
    site: &Site,
    vm: &PlannedVm,
    host: &Namespace,
    image: &GuestImage,
) -> Result<VmSpec, DemoError> {
    let boot = Boot::Kernel {
        kernel: image.kernel.clone(),
        initramfs: Some(image.initramfs.clone()),
        command_line: image.command_line(vm.name),
    };
    let nic = plan::nic_config(vm.host, &nics_folder(site))?;
    let mtu = Mtu::new(MTU.into())?;
    let mut spec = VmSpec::new(vm.name, MEMORY, boot, &folder(site, vm.name));
    spec.namespace = Some(host.path());
    // Nothing is attached later, and each slot takes the guest's kernel time to set up.
    spec.spare_slots = 0;
    spec.vfs.push(VfPort {
        name: "lane".to_owned(),
        socket: nic.vf_socket(vm.vf()?),
        mac: vm.lane_mac(),
        slot: None,
        queue_pairs: 1,
        packed: false,
        mtu,
    });
    spec.taps.push(TapPort {
        name: "bridged".to_owned(),
        tap: Tap::Named(vm.tap()),
        mac: vm.bridged_mac(),
        slot: None,
        mtu,
    });
    Ok(spec)
}

fn folder(site: &Site, vm: &str) -> PathBuf {
    site.folder().join(vm)
}

/// Adds the end of the console to an error that says that a VM no longer answers.
pub(super) fn with_console(site: &Site, error: DemoError) -> DemoError {
    match error {
        DemoError::Probe(ProbeError::Host(HostError::Unreachable { host, why })) => {
            let log = tail(&folder(site, &host).join("serial.log"));
            DemoError::Gone { vm: host, why, log }
        }
        other => other,
    }
}

/// Sockets of a VM that was kept.
#[derive(Serialize, Deserialize)]
pub(super) struct Lines {
    pub(super) agent: PathBuf,
    pub(super) console: PathBuf,
}

/// Write down how each VM that runs on is reached.
///
/// # Errors
/// [`DemoError::File`].
pub(super) fn keep(site: &Site, vms: Vec<Kept>) -> Result<(), DemoError> {
    let lines = |Kept { name, agent, console, .. }| (name, Lines { agent, console });
    keep_lines(site, &vms.into_iter().map(lines).collect())
}

/// Write down how each VM is reached, by its name.
///
/// # Errors
/// [`DemoError::File`].
pub(super) fn keep_lines(site: &Site, lines: &BTreeMap<String, Lines>) -> Result<(), DemoError> {
    let file = lines_file(site);
    let text = serde_json::to_vec(lines).map_err(|error| DemoError::plan(&error))?;
    fs::write(&file, text).map_err(|error| DemoError::file(&file, error))
}

/// How a VM that was kept is reached.
fn lines_to(site: &Site, vm: &str) -> Result<Lines, DemoError> {
    if !site.is_kept() {
        return Err(DemoError::NotUp);
    }
    let file = lines_file(site);
    let text = fs::read(&file).map_err(|error| DemoError::file(&file, error))?;
    let mut lines: BTreeMap<String, Lines> =
        serde_json::from_slice(&text).map_err(|error| DemoError::file(&file, error.into()))?;
    lines.remove(vm).ok_or_else(|| DemoError::NoVm {
        name: vm.to_owned(),
        known: lines.into_keys().collect::<Vec<_>>().join(", "),
    })
}

fn lines_file(site: &Site) -> PathBuf {
    site.folder().join("vms.json")
}

/// Join this terminal and the serial console of a VM that was kept.
///
/// # Errors
/// [`DemoError::NotUp`], [`DemoError::NoVm`], [`DemoError::NoTerminal`],
/// [`DemoError::ConsoleInUse`], [`DemoError::Console`].
pub(super) fn console(site: &Site, vm: &str) -> Result<console::Left, DemoError> {
    let lines = lines_to(site, vm)?;
    if !std::io::stdin().is_terminal() {
        return Err(DemoError::NoTerminal);
    }
    let failed = |error| DemoError::Console { vm: vm.to_owned(), error };
    // QEMU takes one connection at a time and lets the next one wait without a word.
    let lock = File::create(lines.console.with_extension("lock")).map_err(failed)?;
    lock.try_lock().map_err(|_| DemoError::ConsoleInUse(vm.to_owned()))?;
    let line = UnixStream::connect(&lines.console).map_err(failed)?;
    crate::output::note(format!("==> the console of {vm}; press Ctrl-] to leave it"));
    console::join(line).map_err(failed)
}

/// Run a command in a VM that was kept.
///
/// # Errors
/// [`DemoError::NotUp`], [`DemoError::NoVm`], [`DemoError::Agent`].
pub(super) fn exec(site: &Site, vm: &str, command: &str) -> Result<Ended, DemoError> {
    let Lines { agent, .. } = lines_to(site, vm)?;
    let run = || -> Result<Ended, AgentError> {
        let agent = Agent::connect(&agent, AGENT_PATIENCE, || false)?;
        agent.ping(AGENT_PATIENCE)?;
        let process = agent.start(command, AGENT_PATIENCE)?;
        loop {
            if let Some(ended) = agent.poll(process, AGENT_PATIENCE)? {
                return Ok(ended);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    run().map_err(|error| DemoError::Agent { vm: vm.to_owned(), error })
}
