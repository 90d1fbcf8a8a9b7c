//! The Linux kernel as a back end: sysfs, netlink and configfs, and nothing run in a shell.
//!
//! [`Linux::new`] is the host's own kernel. [`Linux::rooted`] reads another tree of files, as a test
//! makes it or a bundle holds it, behind which no kernel answers; [`Linux::with_kernel`] puts one
//! there that a test plays.
//!
//! A call may block for as long as a driver does: the kernel works on a request while it is being
//! sent, and sysfs while it is read. Netlink answers have a time of their own, but a deadline over
//! all is for whoever calls from a thread that it can do without.

mod config_space;
mod dcb;
mod devlink;
mod ethtool;
mod generic;
mod holder;
mod link;
mod netdev;
mod netlink;
mod pci;
mod rdma;
mod reading;
pub(crate) mod refusal;
mod roce;
mod steps;
mod tap;
mod tree;
mod vf_info;
mod vf_parts;
mod watch;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lanekeeper_model::{EswitchMode, Mtu, PfAddr, PfId, RoceSetting, VfAddr, VfCounters, VfIndex};

use crate::inventory::{PciNode, PfReading, RepresentorState};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware};

use generic::Family;
pub use netlink::Protocol;
use netlink::message::Said;
use netlink::{Connection, Failure};
pub use tap::tap_queues;
use tree::Tree;
pub use watch::LinuxWatch;

/// How long a netlink answer may take, once the kernel has taken the request. It works on a request
/// before it takes the next, so the answer is there with it; ten seconds are for a host under load.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a socket to the kernel.
type Opener = dyn Fn(Protocol) -> io::Result<OwnedFd> + Send + Sync;

/// A host's Linux kernel.
#[derive(Clone)]
pub struct Linux {
    tree: Tree,
    kernel: Option<Arc<Opener>>,
    patience: Duration,
}

impl fmt::Debug for Linux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linux").field("tree", &self.tree).finish_non_exhaustive()
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl Linux {
    /// The kernel of this host, in the network namespace of the thread that calls.
    pub fn new() -> Self {
        Self::rooted(Path::new("/")).with_kernel(Protocol::open)
    }

    /// The files below `root` (`sys`, `proc`, `run`) with no kernel behind them: what only netlink
    /// tells is `None`, what only netlink sets is [`HardwareError::Unsupported`].
    pub fn rooted(root: &Path) -> Self {
        Self { tree: Tree::at(root), kernel: None, patience: PATIENCE }
    }

    /// Speak netlink over the sockets that this opens, each of which keeps the bounds of messages
    /// (as `SOCK_SEQPACKET` does).
    #[must_use]
    pub fn with_kernel(
        self,
        open: impl Fn(Protocol) -> io::Result<OwnedFd> + Send + Sync + 'static,
    ) -> Self {
        Self { kernel: Some(Arc::new(open)), ..self }
    }

    /// Wait so long for a netlink answer; ten seconds if this is not called.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// A line to the kernel.
    fn connect(&self, protocol: Protocol) -> Result<Connection, Failure> {
        let none = || Failure::Refused(Said { errno: refusal::EOPNOTSUPP, text: None });
        let open = self.kernel.as_ref().ok_or_else(none)?;
        Ok(Connection::over(open(protocol).map_err(Failure::Io)?, self.patience))
    }

    /// A generic family over such a line.
    fn family(&self, name: &str) -> Result<Family, Failure> {
        Family::find(self.connect(Protocol::Generic)?, name)
    }

    /// Where a PF's files are, if it is there.
    fn pf_folder(&self, pf: PfAddr) -> Result<PathBuf, HardwareError> {
        let folder = self.tree.device(pf);
        if folder.is_dir() { Ok(folder) } else { Err(HardwareError::NoPf(PfId::Pci(pf))) }
    }
}

impl SriovHardware for Linux {
    fn list(&self) -> Result<Vec<PfAddr>, HardwareError> {
        pci::list(&self.tree).map_err(no_bus)
    }

    fn read(&self, pf: PfAddr) -> Result<PfReading, HardwareError> {
        reading::read(self, pf)
    }

    fn pci_tree(&self) -> Result<Vec<PciNode>, HardwareError> {
        pci::nodes(&self.tree).map_err(no_bus)
    }

    fn write_num_vfs(&self, pf: PfAddr, count: u16) -> Result<(), HardwareError> {
        steps::write_num_vfs(self, pf, count)
    }

    fn write_autoprobe(&self, pf: PfAddr, on: bool) -> Result<(), HardwareError> {
        steps::write_autoprobe(self, pf, on)
    }

    fn set_up(&self, pf: PfAddr, up: bool) -> Result<(), HardwareError> {
        steps::set_up(self, pf, up)
    }

    fn set_eswitch(&self, pf: PfAddr, mode: EswitchMode) -> Result<(), HardwareError> {
        steps::set_eswitch(self, pf, mode)
    }

    fn send_vf(&self, pf: PfAddr, vf: VfIndex, message: &VfMessage) -> Result<(), HardwareError> {
        steps::send_vf(self, pf, vf, message)
    }

    fn set_vf_mtu(&self, pf: PfAddr, vf: VfIndex, mtu: Mtu) -> Result<(), HardwareError> {
        steps::set_vf_mtu(self, pf, vf, mtu)
    }

    fn set_representor(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        state: RepresentorState,
    ) -> Result<(), HardwareError> {
        steps::set_representor(self, pf, vf, state)
    }

    fn vf_counters(&self, pf: PfAddr, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        steps::vf_counters(self, pf, vf)
    }

    fn pause_frames(&self, pf: PfAddr) -> Result<Option<[u64; 8]>, HardwareError> {
        steps::pause_frames(self, pf)
    }

    fn write_driver_override(
        &self,
        pf: PfAddr,
        vf: VfAddr,
        driver: Option<&str>,
    ) -> Result<(), HardwareError> {
        steps::write_driver_override(self, pf, vf, driver)
    }

    fn unbind(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        steps::unbind(self, pf, vf)
    }

    fn probe(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        steps::probe(self, pf, vf)
    }

    fn reset(&self, pf: PfAddr, vf: VfAddr) -> Result<(), HardwareError> {
        steps::reset(self, pf, vf)
    }

    fn set_roce(&self, pf: PfAddr, setting: &RoceSetting) -> Result<(), HardwareError> {
        steps::set_roce(self, pf, setting)
    }
}

fn no_bus(source: io::Error) -> HardwareError {
    HardwareError::Host { what: "the PCI bus in sysfs".to_owned(), source }
}

#[cfg(test)]
mod tests;
