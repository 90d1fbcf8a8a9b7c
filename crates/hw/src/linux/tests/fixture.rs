//! A host's sysfs, procfs and `/run` in a folder: links as the kernel makes them, contents as a
//! test wants them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lanekeeper_model::{PfAddr, VfAddr, VfIndex};
use tempfile::TempDir;

use super::super::Linux;

/// The PF that most tests have.
pub(super) const PF: &str = "0000:3b:00.0";

/// A host made of files.
pub(super) struct Host(TempDir);

impl Host {
    pub(super) fn new() -> Self {
        let host = Self(TempDir::new().expect("a folder"));
        host.folder("sys/bus/pci/devices");
        host
    }

    /// With one PF of a ConnectX behind a port, driven by `driver`, without VFs.
    pub(super) fn with_pf(driver: &str) -> Self {
        let host = Self::new();
        host.function("pci0000:3a/0000:3a:00.0", 0x06_04_00);
        host.function(&format!("pci0000:3a/0000:3a:00.0/{PF}"), 0x02_00_00);
        host.file(&device(PF, "vendor"), "0x15b3\n");
        host.file(&device(PF, "device"), "0x101d\n");
        host.file(&device(PF, "sriov_totalvfs"), "127\n");
        host.file(&device(PF, "sriov_numvfs"), "0\n");
        host.file(&device(PF, "sriov_drivers_autoprobe"), "1\n");
        host.file(&device(PF, "numa_node"), "1\n");
        host.drive(PF, driver);
        host.interface(PF, "ens1f0np0", 7, "b8:ce:f6:00:00:01");
        host
    }

    /// A function at the end of a path of bridges.
    pub(super) fn function(&self, path: &str, class: u32) {
        let address = path.rsplit('/').next().expect("a path");
        self.folder(&format!("sys/devices/{path}"));
        let bus = format!("sys/bus/pci/devices/{address}");
        self.link(&bus, &format!("../../../devices/{path}"));
        self.file(&format!("{bus}/class"), &format!("0x{class:06x}\n"));
        self.file(&format!("{bus}/vendor"), "0x8086\n");
        self.file(&format!("{bus}/device"), "0x1234\n");
    }

    /// A VF of the PF.
    pub(super) fn vf(&self, number: u32, address: &str) {
        self.function(&format!("pci0000:3a/0000:3a:00.0/{address}"), 0x02_00_00);
        self.link(&device(PF, &format!("virtfn{number}")), &format!("../{address}"));
        self.link(&device(address, "physfn"), &format!("../{PF}"));
        self.file(&device(address, "driver_override"), "(null)\n");
        self.file(&device(address, "reset"), "");
    }

    /// A driver is bound to a function.
    pub(super) fn drive(&self, address: &str, driver: &str) {
        let folder = format!("sys/bus/pci/drivers/{driver}");
        self.folder(&folder);
        self.file(&format!("{folder}/unbind"), "");
        let link = self.path(&device(address, "driver"));
        symlink(self.path(&folder), link).expect("linked");
    }

    /// A function's interface: up, with a link, at 100 Gb/s.
    pub(super) fn interface(&self, address: &str, name: &str, index: u32, mac: &str) {
        let folder = device(address, &format!("net/{name}"));
        self.folder(&folder);
        for (file, text) in [
            ("ifindex", index.to_string()),
            ("address", mac.to_owned()),
            ("mtu", "1500".to_owned()),
            ("flags", "0x1003".to_owned()),
            ("carrier", "1".to_owned()),
            ("speed", "100000".to_owned()),
            ("addr_assign_type", "0".to_owned()),
        ] {
            self.file(&format!("{folder}/{file}"), &(text + "\n"));
        }
    }

    /// A function is in an IOMMU group.
    pub(super) fn group(&self, address: &str, number: u32) {
        let folder = format!("sys/kernel/iommu_groups/{number}");
        self.folder(&format!("{folder}/devices/{address}"));
        symlink(self.path(&folder), self.path(&device(address, "iommu_group"))).expect("linked");
    }

    /// An RDMA device of a function, with a table of eight entries, all empty.
    pub(super) fn rdma(&self, address: &str, name: &str, guid: &str) {
        self.folder(&device(address, &format!("infiniband/{name}")));
        let folder = format!("sys/class/infiniband/{name}");
        self.file(&format!("{folder}/node_guid"), &format!("{guid}\n"));
        for place in 0..8 {
            self.file(&format!("{folder}/ports/1/gids/{place}"), &["0000"; 8].join(":"));
        }
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        self.bytes(path, text.as_bytes());
    }

    pub(super) fn bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, bytes).expect("written");
    }

    pub(super) fn folder(&self, path: &str) {
        fs::create_dir_all(self.path(path)).expect("made");
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        symlink(target, path).expect("linked");
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(super) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("there")
    }

    pub(super) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn linux(&self) -> Linux {
        Linux::rooted(self.root())
    }
}

/// A file of a function.
pub(super) fn device(address: &str, file: &str) -> String {
    format!("sys/bus/pci/devices/{address}/{file}")
}

pub(super) fn pf() -> PfAddr {
    PF.parse().expect("valid")
}

pub(super) fn vf_addr(address: &str) -> VfAddr {
    address.parse().expect("valid")
}

pub(super) fn vf(number: u32) -> VfIndex {
    VfIndex::new(number).expect("valid")
}
