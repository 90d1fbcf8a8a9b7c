//! A netdevsim device in the guest, and the files around it: it is no PCI device, so a tree of links
//! puts what the kernel has of it where a PF has the same. The files at the links' ends, and all that
//! netlink tells, are the kernel's own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lanekeeper_hw::inventory::PfReading;
use lanekeeper_hw::linux::Linux;
use lanekeeper_hw::{HardwareError, SriovHardware};
use lanekeeper_model::PfAddr;
use tempfile::TempDir;

use crate::line::{Exchange, Line};

/// A device with one port. Dropping it takes it out of the kernel.
#[derive(Debug)]
pub(crate) struct Device {
    number: u32,
    tree: TempDir,
    line: Line,
}

impl Device {
    /// One that has this many VFs.
    pub(crate) fn with_vfs(count: u16) -> Self {
        // One a process, and there may be several.
        let number = std::process::id();
        write("/sys/bus/netdevsim/new_device", &format!("{number} 1"));
        let device =
            Self { number, tree: tempfile::tempdir().expect("a folder"), line: Line::default() };
        let debug = format!("/sys/kernel/debug/netdevsim/{}", device.name());
        write(&format!("{debug}/max_vfs"), &count.to_string());
        device.make_tree(count);
        device.linux().write_num_vfs(Self::pf(), count).expect("VFs are made");
        device.line.take();
        device
    }

    /// Where it appears to be.
    pub(crate) fn pf() -> PfAddr {
        "0000:01:00.0".parse().expect("valid")
    }

    /// Name on the bus that it really is on.
    pub(crate) fn name(&self) -> String {
        format!("netdevsim{}", self.number)
    }

    /// The kernel, as our code reaches it.
    pub(crate) fn linux(&self) -> Linux {
        let (line, name) = (self.line.clone(), self.name());
        Linux::rooted(self.tree.path()).with_kernel(move |protocol| line.open(protocol, &name))
    }

    /// Everything that our code reads of it.
    pub(crate) fn read(&self) -> PfReading {
        self.linux().read(Self::pf()).expect("it is read")
    }

    /// What went to the kernel and came back since this was asked last.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.line.take()
    }

    /// `sys/bus/pci/devices` with a PF that leads to the device, and links to its VFs, of which the
    /// kernel makes no device; and the kernel's list of interfaces, where representors are.
    fn make_tree(&self, vfs: u16) {
        let class = self.tree.path().join("sys/class");
        fs::create_dir_all(&class).expect("made");
        symlink("/sys/class/net", class.join("net")).expect("linked");
        let real = Path::new("/sys/bus/netdevsim/devices").join(self.name());
        let pf = self.pci_device(&Self::pf().to_string());
        fs::create_dir_all(&pf).expect("made");
        for file in ["net", "sriov_numvfs", "driver"] {
            // A driver is known by the name of what the link leads to.
            let real = fs::canonicalize(real.join(file)).expect("the kernel has it");
            symlink(real, pf.join(file)).expect("linked");
        }
        for vf in 0..vfs {
            let [number, device, function] = [2 + vf / 256, vf / 8 % 32, vf % 8];
            let address = format!("0000:{number:02x}:{device:02x}.{function}");
            symlink(format!("../{address}"), pf.join(format!("virtfn{vf}"))).expect("linked");
        }
    }

    fn pci_device(&self, address: &str) -> PathBuf {
        self.tree.path().join("sys/bus/pci/devices").join(address)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        write("/sys/bus/netdevsim/del_device", &self.number.to_string());
    }
}

/// Why our code could not do what it was told to.
pub(crate) fn refusal(done: Result<(), HardwareError>) -> HardwareError {
    done.expect_err("refused")
}

fn write(file: &str, text: &str) {
    fs::write(file, text).unwrap_or_else(|error| panic!("{file}: {error}"));
}
