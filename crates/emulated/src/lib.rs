//! Emulated hosts with SR-IOV NICs: for the demo and the tests, on a machine that has no such NIC.
//!
//! A host is a QEMU VM with an IOMMU and one or more `igb` (Intel 82576: one PF, up to seven VFs).
//! Its kernel is the distribution's own: the PF's and the VFs' drivers, VFIO and KVM are the real
//! ones, and programs built on this machine run in it unchanged from a shared folder. In the host
//! run VMs of tenants, each with a VF by VFIO, under KVM that the emulated CPU provides.
//!
//! # What the emulated NIC does, and what it does not
//! QEMU 10.0, Debian's kernels 6.1 and 6.12:
//!
//! - Enforced: port VLANs (802.1Q, seen as tags on the wire), administrative MACs, which a guest
//!   cannot change; trust gates MAC filters.
//! - Accepted without effect: spoof checking, rates. Refused: link state (`EOPNOTSUPP`), minimum
//!   rate (`EINVAL`), 802.1ad (`EPROTONOSUPPORT`).
//! - A function reset of a VF, PF down and up, and a change of MTU keep the VFs' settings. A function
//!   reset of the PF ends the VFs silently, putting it down and up does not bring them back, and VFs
//!   that are made anew have lost their settings. After PF down and up the VFs' driver takes 8 to
//!   12 s until traffic passes again.
//! - QEMU's switch ports have no ACS: behind one of them a PF and all its VFs are one IOMMU group with
//!   the port ([`SwitchPlan::acs`] says what is done about it).
//! - With the PF down each probe of a VF takes 2.4 s and ends with a random MAC: the PF goes up
//!   first. VFs that merely appear prove nothing: look at their link and their MAC.
//! - With the PF's link off ([`SriovHost::set_link`]) the VFs keep their carrier, though nothing
//!   passes any more, not even between VFs.
//! - With `sriov_drivers_autoprobe` off, even `igbvf` needs `driver_override`.
#![forbid(unsafe_code)]

mod host;
mod plan;
mod tenant;

use std::path::PathBuf;
use std::time::Duration;

use lanekeeper_model::MacAddr;
use lanekeeper_testbed::guest_image::ImageError;
use lanekeeper_testbed::packages::PackageError;
use lanekeeper_testbed::qemu::QemuError;
use lanekeeper_vmm::agent::AgentError;
use lanekeeper_vmm::qmp::QmpError;
use lanekeeper_vmm::{HostError, VmError};

pub use host::{Rig, SriovHost};
pub use plan::{Cable, HostPlan, PfPlan, Share, SwitchPlan};
pub use tenant::{Tenant, TenantPlan};

/// What can go wrong with an emulated host.
#[derive(Debug, thiserror::Error)]
pub enum EmulatedError {
    /// A plan that cannot be carried out.
    #[error("emulated host {host}: {field} '{value}' is not usable: {why}")]
    Plan {
        /// Which host.
        host: String,
        /// What of it.
        field: &'static str,
        /// As it was given.
        value: String,
        /// Why, and what would be.
        why: String,
    },
    /// Packages of this machine.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// The image of host and tenants.
    #[error("the image of the emulated host could not be made: {0}")]
    Image(#[from] ImageError),
    /// A QEMU that emulates the NIC.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// The host as a VM of this machine.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// A command in the host.
    #[error(transparent)]
    Command(#[from] HostError),
    /// QEMU refused what was asked of the host's hardware.
    #[error("emulated host {host}: {error}")]
    Hardware {
        /// Which host.
        host: String,
        /// What QEMU said.
        error: QmpError,
    },
    /// The host does not let go of a device.
    #[error("emulated host {host} has not let go of its device {device}: {why}")]
    NotReleased {
        /// Which host.
        host: String,
        /// QEMU's name of the device.
        device: String,
        /// What QEMU said.
        why: String,
    },
    /// The host does not run commands again after a reset.
    #[error("emulated host {host} was not ready {after:?} after its reset: {error}")]
    NotBack {
        /// Which host.
        host: String,
        /// How long was waited.
        after: Duration,
        /// What its agent said.
        error: AgentError,
    },
    /// No PF with that address in the host.
    #[error("emulated host {host} has no PCI function with the address {mac}")]
    NoPf {
        /// Which host.
        host: String,
        /// The PF's address.
        mac: MacAddr,
    },
    /// The line to a tenant's agent.
    #[error("tenant {tenant} cannot be reached at {}: {error}", .socket.display())]
    Line {
        /// Which tenant.
        tenant: String,
        /// This machine's end of the line.
        socket: PathBuf,
        /// What went wrong.
        error: AgentError,
    },
    /// A tenant's VM has ended, or did not begin to run commands.
    #[error("tenant {tenant} {why}; QEMU said: {qemu}; its console: {console}")]
    Tenant {
        /// Which tenant.
        tenant: String,
        /// What happened.
        why: String,
        /// The last of QEMU's own output.
        qemu: String,
        /// The last of the serial log.
        console: String,
    },
}
