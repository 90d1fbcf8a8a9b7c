//! An emulated host from its boot to its end, and what can be done to its hardware.

use std::path::PathBuf;
use std::time::Duration;

use lanekeeper_model::{MacAddr, PciAddr};
use lanekeeper_testbed::guest_image::{self, GuestImage};
use lanekeeper_testbed::{Progress, packages, qemu};
use lanekeeper_vmm::qmp::{QmpError, Unplugged};
use lanekeeper_vmm::{
    Accel, Boot, Driver, Exit, Host, HostError, Hugepages, Job, Kept, Machine, Qemu, Vm, VmSpec,
};
use serde_json::{Value, json};

use crate::EmulatedError;
use crate::plan::{HostPlan, Share, device};
use crate::tenant::{Tenant, TenantPlan};

/// Tags of the folders that every host with tenants sees.
pub(crate) const IMAGE: &str = "image";
pub(crate) const QEMU: &str = "qemu";

/// How long QEMU may take for one command.
const MONITOR_CALL: Duration = Duration::from_secs(20);

/// How long a small command in the host may take.
const SHORT: Duration = Duration::from_secs(30);

/// What emulated hosts are made of, fetched once: a QEMU that emulates the NIC, one that runs in the
/// host for its tenants, kernel and files.
#[derive(Clone, Debug)]
pub struct Rig {
    qemu: Qemu,
    tree: PathBuf,
    image: GuestImage,
}

impl Rig {
    /// Make all ready: minutes the first time, a moment later on.
    ///
    /// # Errors
    /// [`EmulatedError`].
    pub fn prepare(progress: Progress<'_>) -> Result<Self, EmulatedError> {
        packages::ensure(packages::VM, progress)?;
        let cache = guest_image::cache_folder();
        let image = guest_image::ensure(&cache, progress)?;
        let program = qemu::with_sriov(&cache, progress)?;
        let tree = qemu::tree(&cache, progress)?;
        Ok(Self { qemu: Qemu::at(&program)?, tree, image })
    }

    /// Start a host. It has begun to boot when this returns: see [`SriovHost::wait_ready`].
    ///
    /// # Errors
    /// [`EmulatedError::Plan`] for a plan that cannot be carried out; [`EmulatedError::Vm`].
    pub fn start(&self, plan: HostPlan) -> Result<SriovHost, EmulatedError> {
        let mut plan = plan;
        if !plan.tenants.is_empty() {
            let image = self.image.kernel.parent().unwrap_or(&self.image.kernel);
            let share = |tag: &str, folder| Share { tag: tag.to_owned(), folder };
            plan.shares.push(share(IMAGE, image.to_owned()));
            plan.shares.push(share(QEMU, self.tree.clone()));
        }
        plan.check()?;
        let options = plan.kernel_options();
        let boot = Boot::Kernel {
            kernel: self.image.kernel.clone(),
            initramfs: Some(self.image.host_initramfs.clone()),
            command_line: format!("{} {options}", self.image.command_line(&plan.name)),
        };
        let spec = VmSpec {
            // With two CPUs and two tenants the host's kernel stopped now and then.
            vcpus: 1,
            // KVM that runs in a VM of this machine would have no igb's IOMMU to test.
            accel: Accel::Tcg,
            hugepages: Hugepages::Never,
            spare_slots: 0,
            namespace: plan.namespace.clone(),
            dies_with_parent: plan.dies_with_parent,
            numa_nodes: plan.numa_nodes(),
            arguments: plan.arguments(),
            ..VmSpec::new(&plan.name, plan.memory_mib(), boot, &plan.run_folder)
        };
        let vm = self.qemu.start(spec)?;
        Ok(SriovHost { vm, plan, image: self.image.clone() })
    }
}

/// An emulated host. As a [`Host`] it runs commands, as root. Dropping it ends it, with all that
/// runs in it, as a power cut would.
#[derive(Debug)]
pub struct SriovHost {
    vm: Vm,
    plan: HostPlan,
    image: GuestImage,
}

impl SriovHost {
    /// Wait until the host runs commands; its PFs' drivers are loaded then. Gives back the time from
    /// its start to then.
    ///
    /// # Errors
    /// [`EmulatedError::Vm`], with the last of its console.
    pub fn wait_ready(&self, within: Duration) -> Result<Duration, EmulatedError> {
        Ok(self.vm.wait_ready(within)?)
    }

    /// Where a PF is in the host, by its permanent address.
    ///
    /// # Errors
    /// [`EmulatedError::NoPf`], [`EmulatedError::Command`].
    pub fn pf_addr(&self, mac: MacAddr) -> Result<PciAddr, EmulatedError> {
        let look = format!(
            "for i in /sys/class/net/*; do read -r a <$i/address; \
             [ $a != {mac} ] || readlink -f $i/device; done"
        );
        let found = self.vm.check(&look, SHORT)?;
        let addr = found.trim().rsplit('/').next().and_then(|name| name.parse().ok());
        addr.ok_or_else(|| EmulatedError::NoPf { host: self.plan.name.clone(), mac })
    }

    /// Unplug the cable of a PF, or plug it in. PFs are counted as in the plan.
    ///
    /// # Errors
    /// [`EmulatedError::Hardware`].
    pub fn set_link(&self, pf: usize, up: bool) -> Result<(), EmulatedError> {
        self.command("set_link", &json!({ "name": device(pf), "up": up })).map(drop)
    }

    /// Take a PF out of the running host, with all its VFs, as its kernel lets go of it.
    ///
    /// # Errors
    /// [`EmulatedError::NotReleased`] if the host does not let go within `within`;
    /// [`EmulatedError::Hardware`].
    pub fn remove_pf(&self, pf: usize, within: Duration) -> Result<(), EmulatedError> {
        let gone = self.vm.monitor().unplug(&device(pf), MONITOR_CALL, within);
        match gone.map_err(|error| self.hardware(error))? {
            Unplugged::Gone => Ok(()),
            Unplugged::Still(why) => {
                let host = self.plan.name.clone();
                Err(EmulatedError::NotReleased { host, device: device(pf), why })
            }
        }
    }

    /// Reset the host as its reset button does, and wait until it runs commands again. What ran in
    /// it is gone.
    ///
    /// # Errors
    /// [`EmulatedError::Hardware`], [`EmulatedError::NotBack`].
    pub fn reset(&self, within: Duration) -> Result<(), EmulatedError> {
        // A VM ends when its guest resets it, unless QEMU is told otherwise.
        self.command("set-action", &json!({ "reboot": "reset" }))?;
        let mark = self.vm.monitor().mark();
        self.command("system_reset", &json!({}))?;
        let reset = self
            .vm
            .monitor()
            .wait_event(mark, "RESET", MONITOR_CALL, |event| event.name == "RESET");
        reset.map_err(|error| self.hardware(error))?;
        // The firmware resets once more on its way.
        self.vm.agent().ping(within).map_err(|error| EmulatedError::NotBack {
            host: self.plan.name.clone(),
            after: within,
            error,
        })?;
        self.command("set-action", &json!({ "reboot": "shutdown" })).map(drop)
    }

    /// Let the host run on when this handle and this process are gone.
    ///
    /// # Errors
    /// [`EmulatedError::Vm`] for a host whose plan says that it dies with this process.
    pub fn keep_running(self) -> Result<Kept, EmulatedError> {
        Ok(self.vm.keep_running()?)
    }

    /// End the host at once, as a power cut would.
    ///
    /// # Errors
    /// [`EmulatedError::Vm`].
    pub fn kill(&self) -> Result<Exit, EmulatedError> {
        Ok(self.vm.kill()?)
    }

    /// Start a tenant's VM in the host. It has begun to boot when this returns: see
    /// [`Tenant::wait_ready`]. Start one after the other: two that boot at once take longer than
    /// that.
    ///
    /// # Errors
    /// [`EmulatedError::Plan`] for a name that is not in the host's plan; [`EmulatedError::Line`]
    /// for a tenant that runs already; [`EmulatedError::Command`].
    pub fn start_tenant(&self, plan: &TenantPlan) -> Result<Tenant<'_>, EmulatedError> {
        if !self.plan.tenants.contains(&plan.name) {
            return Err(EmulatedError::Plan {
                host: self.plan.name.clone(),
                field: "tenant",
                value: plan.name.clone(),
                why: format!("the host was started for {}", self.plan.tenants.join(", ")),
            });
        }
        let command_line = self.image.command_line(&plan.name);
        Tenant::start(self, plan, &self.plan.line(&plan.name), &command_line)
    }

    /// The host's VM, for what there is no method for.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    fn command(&self, command: &str, arguments: &Value) -> Result<Value, EmulatedError> {
        let done = self.vm.monitor().execute(command, arguments, MONITOR_CALL);
        done.map_err(|error| self.hardware(error))
    }

    fn hardware(&self, error: QmpError) -> EmulatedError {
        EmulatedError::Hardware { host: self.plan.name.clone(), error }
    }
}

impl Host for SriovHost {
    fn name(&self) -> &str {
        &self.plan.name
    }

    fn start(&self, command: &str) -> Result<Box<dyn Job + '_>, HostError> {
        Host::start(&self.vm, command)
    }
}
