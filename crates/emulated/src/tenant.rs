//! VMs of tenants inside of an emulated host, each with a VF of the host's NIC.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lanekeeper_model::PciAddr;
use lanekeeper_testbed::qemu;
use lanekeeper_vmm::{AgentHost, Host, HostError, Job};

use crate::EmulatedError;
use crate::host::{IMAGE, QEMU, SriovHost};

/// Memory of a tenant in MiB: hugepages of the host, which halve the time of a boot.
pub(crate) const MEMORY_MIB: u32 = 256;

/// How long QEMU and the host may take for one small thing.
const SHORT: Duration = Duration::from_secs(30);

/// A tenant's VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPlan {
    /// One of the host's [`crate::HostPlan::tenants`].
    pub name: String,
    /// The VFs it starts with, by their addresses in the host. They must be bound to vfio-pci. There
    /// is room for one more to be plugged in.
    pub vfs: Vec<PciAddr>,
}

/// A tenant's VM that was started. Dropping it ends it.
pub struct Tenant<'a> {
    guest: AgentHost,
    host: &'a SriovHost,
    job: Mutex<Box<dyn Job + 'a>>,
    started: Instant,
}

impl fmt::Debug for Tenant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("guest", &self.guest).finish_non_exhaustive()
    }
}

/// Name of a tenant's line in the host.
pub(crate) fn port_name(tenant: &str) -> String {
    format!("tenant.{tenant}")
}

/// Socket in the host of the monitor (QMP) of a tenant's QEMU.
fn monitor(tenant: &str) -> String {
    format!("/run/{tenant}.qmp")
}

fn serial_log(tenant: &str) -> String {
    format!("/run/{tenant}.serial")
}

fn qemu_log(tenant: &str) -> String {
    format!("/run/{tenant}.qemu")
}

impl<'a> Tenant<'a> {
    /// Start a tenant. Its VM has begun to boot when this returns: see [`Tenant::wait_ready`].
    ///
    /// # Errors
    /// [`EmulatedError::Line`] for a name that is not in the host's plan, or if it is started
    /// already; [`EmulatedError::Command`].
    pub(crate) fn start(
        host: &'a SriovHost,
        plan: &TenantPlan,
        line: &std::path::Path,
        command_line: &str,
    ) -> Result<Self, EmulatedError> {
        // Before QEMU in the host opens the other end: a line nobody listens at reads as ended.
        let guest = AgentHost::connect(&plan.name, line, SHORT).map_err(|error| {
            EmulatedError::Line { tenant: plan.name.clone(), socket: line.to_owned(), error }
        })?;
        let started = Instant::now();
        let job = host.start(&command(plan, command_line))?;
        Ok(Self { guest, host, job: Mutex::new(job), started })
    }

    /// Wait until the guest runs commands. Gives back the time from its start to then.
    ///
    /// # Errors
    /// [`EmulatedError::Tenant`] with the last words of QEMU and of the console, as soon as the VM
    /// has ended, or after `within`.
    pub fn wait_ready(&self, within: Duration) -> Result<Duration, EmulatedError> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.guest.wait_ready(left.min(Duration::from_secs(1))).is_ok() {
                return Ok(self.started.elapsed());
            }
            let ended = self.job.lock().unwrap_or_else(PoisonError::into_inner).poll()?;
            if let Some(output) = ended {
                return Err(self.failed(format!("has ended with status {}", output.status)));
            }
            if left.is_zero() {
                return Err(self.failed(format!("was not ready after {within:?}")));
            }
        }
    }

    /// Socket in the host of the monitor (QMP) of the tenant's QEMU: for who attaches VFs there.
    pub fn monitor(&self) -> String {
        monitor(self.guest.name())
    }

    /// End the VM at once.
    ///
    /// # Errors
    /// [`EmulatedError::Command`].
    pub fn kill(&self) -> Result<(), EmulatedError> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner).stop()?;
        Ok(())
    }

    fn failed(&self, why: String) -> EmulatedError {
        let name = self.guest.name();
        let tail = |file: String| {
            let said = self.host.run(&format!("tail -n 6 {file}"), SHORT);
            said.map_or_else(|error| error.to_string(), |output| output.stdout.trim().to_owned())
        };
        EmulatedError::Tenant {
            tenant: name.to_owned(),
            why,
            qemu: tail(qemu_log(name)),
            console: tail(serial_log(name)),
        }
    }
}

impl Host for Tenant<'_> {
    fn name(&self) -> &str {
        self.guest.name()
    }

    fn start(&self, command: &str) -> Result<Box<dyn Job + '_>, HostError> {
        self.guest.start(command)
    }
}

/// The smallest PC that boots the guest: what is left out would be looked for by its kernel, and
/// each look leaves the tenant for QEMU and comes back.
fn command(plan: &TenantPlan, command_line: &str) -> String {
    let name = &plan.name;
    let memory = MEMORY_MIB;
    let mut text = format!(
        "exec /shared/{QEMU}/{program} -name guest={name},process=qemu-{name} -no-user-config -nodefaults -no-reboot \
         -display none \
         -machine q35,memory-backend=mem,hpet=off,i8042=off,smbus=off,sata=off,usb=off,vmport=off \
         -accel kvm -cpu host -smp 1 -m {memory}M \
         -object memory-backend-memfd,id=mem,size={memory}M,share=on,hugetlb=on,hugetlbsize=2M \
         -qmp unix:{monitor},server=on,wait=off \
         -serial file:{serial} -device virtio-serial-pci,id=serial \
         -chardev pipe,id=agent,path=/dev/virtio-ports/{port} \
         -device virtserialport,bus=serial.0,chardev=agent,name=org.qemu.guest_agent.0 \
         -object rng-random,id=random,filename=/dev/urandom -device virtio-rng-pci,rng=random \
         -kernel /shared/{IMAGE}/vmlinux -initrd /shared/{IMAGE}/initramfs.cpio -append '{command_line}'",
        program = qemu::PROGRAM,
        monitor = monitor(name),
        serial = serial_log(name),
        port = port_name(name),
    );
    for number in 1..=plan.vfs.len() + 1 {
        // Writing to a text never fails.
        let _ =
            write!(text, " -device pcie-root-port,id=slot{number},chassis={number},slot={number}");
    }
    for (number, vf) in (1..).zip(&plan.vfs) {
        let _ = write!(text, " -device vfio-pci,host={vf},bus=slot{number},rombar=0");
    }
    text + &format!(" >{} 2>&1 </dev/null", qemu_log(name))
}
