//! Everything of one PF, gathered from sysfs and netlink. A part that a driver or this kernel lacks
//! is `None`; one that could not be read though it is there is `None` with a warning; only silence
//! ends the reading.

use std::path::{Path, PathBuf};

use lanekeeper_model::{PfAddr, VfAddr, VfIndex};

use super::holder::Holders;
use super::netdev::{self, Interfaces};
use super::netlink::{Failure, Protocol};
use super::rdma;
use super::refusal::{Deed, Step};
use super::tree;
use super::{Linux, devlink, link, pci, roce};
use crate::HardwareError;
use crate::inventory::{Netdev, PfReading, RdmaDevice, RepresentorState, TotalVfs, VfReading};

/// A reading as it grows.
pub(super) struct Reader<'a> {
    pub(super) linux: &'a Linux,
    pub(super) pf: PfAddr,
    device: PathBuf,
    warnings: Vec<String>,
}

/// RDMA devices as netlink tells of them.
struct Rdma {
    told: std::collections::BTreeMap<String, rdma::Told>,
    netns: Option<lanekeeper_model::RdmaNetns>,
}

/// Read one PF.
pub(super) fn read(linux: &Linux, pf: PfAddr) -> Result<PfReading, HardwareError> {
    let device = linux.pf_folder(pf)?;
    let mut reader = Reader { linux, pf, device, warnings: Vec::new() };
    let reading = reader.read()?;
    // Removed meanwhile: what was read is of no device.
    linux.pf_folder(pf)?;
    Ok(PfReading { warnings: reader.warnings, ..reading })
}

impl Reader<'_> {
    fn read(&mut self) -> Result<PfReading, HardwareError> {
        let pf = self.pf;
        let device = self.device.clone();
        let driver = pci::driver(&device);
        let mut interfaces = Interfaces::of(&device);
        let netdev = interfaces
            .own()
            .and_then(|name| netdev::read(&self.linux.tree, &device.join("net"), name));
        let link = match &netdev {
            Some(netdev) => self.link(netdev.index)?,
            None => None,
        };
        let info = self
            .ask("the firmware's versions", |linux| {
                devlink::info(&mut linux.family(devlink::NAME)?, pf)
            })?
            .unwrap_or_default();
        let eswitch = self
            .ask("the eswitch mode", |linux| {
                devlink::eswitch(&mut linux.family(devlink::NAME)?, pf)
            })?
            .flatten();
        let rdma = self.rdma()?;
        let rdma_device = self.rdma_device(&device, netdev.as_ref(), &rdma);
        let told = rdma_device.as_ref().and_then(|device| rdma.told.get(&device.name));
        let firmware = info.firmware().map(str::to_owned);
        let firmware = firmware.or_else(|| told?.firmware.clone());
        let roce = roce::read(self, netdev.as_ref(), rdma_device.as_ref())?;
        if eswitch == Some(lanekeeper_model::EswitchMode::Switchdev)
            && !interfaces.has_representors()
        {
            self.find_representors(&mut interfaces);
        }
        let num_vfs = tree::value(&device.join("sriov_numvfs")).unwrap_or(0);
        let vfs = self.vfs(&interfaces, link.as_ref(), &rdma);
        let reading = PfReading {
            addr: pf,
            driver,
            firmware,
            vendor: tree::hex(&device.join("vendor")).unwrap_or(0) as u16,
            device: tree::hex(&device.join("device")).unwrap_or(0) as u16,
            slot: pci::slot(&self.linux.tree, pf),
            permanent_mac: self.permanent_mac(netdev.as_ref(), link.as_ref()),
            serial: info.serial.clone(),
            bond: netdev
                .as_ref()
                .and_then(|netdev| netdev::bond(&device.join("net").join(&netdev.name))),
            netdev,
            numa_node: pci::numa_node(&device),
            total_vfs: pci::total_vfs(&device),
            num_vfs,
            autoprobe: tree::value::<u8>(&device.join("sriov_drivers_autoprobe")) != Some(0),
            eswitch,
            pending_reset: info.pending(),
            rdma: rdma_device,
            iommu_group: pci::iommu_group(&device),
            roce,
            vfs,
            warnings: Vec::new(),
        };
        self.warn(&reading);
        Ok(reading)
    }

    /// Ask the kernel for something that a driver may lack.
    pub(super) fn ask<T>(
        &mut self,
        what: &str,
        question: impl FnOnce(&Linux) -> Result<T, Failure>,
    ) -> Result<Option<T>, HardwareError> {
        let step = Step {
            pf: self.pf,
            driver: None,
            // A family, or a device in it, that is not there is not told of: ENOENT, ENODEV.
            deed: Deed::Read,
            doing: format!("read {what}"),
            instead: "",
        };
        match question(self.linux) {
            Ok(told) => Ok(Some(told)),
            Err(failure @ Failure::Silent(_)) => Err(step.failed(failure)),
            Err(failure) if failure.errno().is_some_and(means_lacking) => Ok(None),
            Err(failure) => {
                self.warnings.push(step.failed(failure).to_string());
                Ok(None)
            }
        }
    }

    fn link(&mut self, index: u32) -> Result<Option<link::Link>, HardwareError> {
        self.ask("the VFs' settings", |linux| {
            link::read(&mut linux.connect(Protocol::Route)?, index)
        })
    }

    /// What the driver says was burnt in; without it, the address if nobody changed it
    /// (`NET_ADDR_PERM`).
    fn permanent_mac(
        &self,
        netdev: Option<&Netdev>,
        link: Option<&link::Link>,
    ) -> Option<lanekeeper_model::MacAddr> {
        let netdev = netdev?;
        let folder = self.device.join("net").join(&netdev.name);
        let own = || {
            let unchanged = tree::value::<u8>(&folder.join("addr_assign_type")) == Some(0);
            unchanged.then_some(netdev.mac)
        };
        link.and_then(|link| link.permanent_mac).or_else(own).filter(|mac| mac.is_station())
    }

    fn rdma(&mut self) -> Result<Rdma, HardwareError> {
        let told =
            self.ask("RDMA devices", |linux| rdma::devices(&mut linux.connect(Protocol::Rdma)?))?;
        let netns = self
            .ask("the RDMA netns mode", |linux| rdma::netns(&mut linux.connect(Protocol::Rdma)?))?;
        Ok(Rdma { told: told.unwrap_or_default(), netns: netns.flatten() })
    }

    /// The RDMA device of a function, or the one that software put on its interface (rdma_rxe).
    fn rdma_device(
        &self,
        device: &Path,
        netdev: Option<&Netdev>,
        rdma: &Rdma,
    ) -> Option<RdmaDevice> {
        let class = self.linux.tree.path("sys/class/infiniband");
        let own = tree::names(&device.join("infiniband")).into_iter().next();
        let soft = || {
            let parent = |name: &String| tree::text(&class.join(name).join("parent"));
            let below = &netdev?.name;
            tree::names(&class).into_iter().find(|name| parent(name).as_ref() == Some(below))
        };
        let name = own.or_else(soft)?;
        Some(rdma::read(&class.join(&name), &name, rdma.told.get(&name), rdma.netns))
    }

    fn find_representors(&self, interfaces: &mut Interfaces) {
        let folder = self.device.join("net");
        let switch =
            interfaces.own().and_then(|name| tree::text(&folder.join(name).join("phys_switch_id")));
        if let Some(switch) = switch {
            interfaces.add_of_switch(&self.linux.tree, &switch);
        }
    }

    fn vfs(
        &mut self,
        interfaces: &Interfaces,
        link: Option<&link::Link>,
        rdma: &Rdma,
    ) -> Vec<VfReading> {
        let vfs = virtual_functions(&self.device);
        let handed_over = |addr: &VfAddr| {
            pci::driver(&self.linux.tree.device(addr)).is_some_and(|driver| is_vfio(&driver))
        };
        let holders = if vfs.iter().any(|(_, addr)| handed_over(addr)) {
            Holders::look(&self.linux.tree)
        } else {
            Holders::default()
        };
        let class = self.linux.tree.path("sys/class/net");
        vfs.into_iter()
            .map(|(vf, addr)| {
                let device = self.linux.tree.device(addr);
                let netdev = vf_interface(&device)
                    .and_then(|name| netdev::read(&self.linux.tree, &device.join("net"), &name));
                let iommu_group = pci::iommu_group(&device);
                let attributes = link.and_then(|link| {
                    let told = link.vfs.iter().find(|(number, _)| *number == u32::from(vf))?;
                    Some(told.1)
                });
                VfReading {
                    vf,
                    addr,
                    driver: pci::driver(&device),
                    driver_override: tree::text(&device.join("driver_override"))
                        .filter(|driver| driver != "(null)"),
                    representor: interfaces.representor(vf).map(str::to_owned),
                    representor_state: interfaces
                        .representor(vf)
                        .and_then(|name| netdev::read(&self.linux.tree, &class, name))
                        .map(|netdev| RepresentorState { up: netdev.up, mtu: netdev.mtu }),
                    rdma: self.rdma_device(&device, netdev.as_ref(), rdma),
                    netdev,
                    holder: holders.of(&device, iommu_group.as_ref().map(|group| group.number)),
                    iommu_group,
                    attributes,
                }
            })
            .collect()
    }

    /// What the reader should know.
    fn warn(&mut self, reading: &PfReading) {
        let mut say = |text: String| self.warnings.push(text);
        match (&reading.driver, &reading.netdev) {
            (None, _) => say("no driver is bound to the PF".to_owned()),
            (Some(driver), None) if is_vfio(driver) => {
                say(format!("the PF itself is bound to {driver}, so it can have no VFs"));
            }
            (Some(driver), None) => say(format!(
                "{driver} is bound but made no interface, or it is in another network namespace"
            )),
            (Some(_), Some(netdev)) => {
                if let Some(manager) = &netdev.manager {
                    say(format!(
                        "{} is managed by {manager} too; what it sets may be undone",
                        netdev.name
                    ));
                }
            }
        }
        if reading.total_vfs == TotalVfs::OffInFirmware {
            say("SR-IOV is off in the firmware; turn it on there and reboot".to_owned());
        }
        if reading.iommu_group.is_none() && reading.total_vfs != TotalVfs::Never {
            say(
                "the IOMMU is off, so no VF can be given to a VM; turn it on in the BIOS and boot \
                 with intel_iommu=on on an Intel host"
                    .to_owned(),
            );
        }
        if usize::from(reading.num_vfs) != reading.vfs.len() {
            say(format!(
                "sriov_numvfs is {} but {} VFs are there; they may still be appearing",
                reading.num_vfs,
                reading.vfs.len()
            ));
        }
        for vf in &reading.vfs {
            self.warn_of_vf(vf);
        }
    }

    fn warn_of_vf(&mut self, vf: &VfReading) {
        let number = vf.vf;
        let mut say = |text: String| self.warnings.push(format!("VF {number}: {text}"));
        if !pci::config(&self.linux.tree.device(vf.addr)).answers() {
            say("does not answer; it is in reset or gone".to_owned());
        }
        if let Some(driver) = vf.driver.as_ref().filter(|driver| !is_vfio(driver))
            && vf.netdev.is_none()
        {
            say(format!(
                "{driver} is bound but made no interface, or it is in another network namespace"
            ));
        }
        if let Some(rdma) = vf.rdma.as_ref().filter(|rdma| rdma.node_guid.is_zero()) {
            say(format!("its RDMA device {} has no node GUID and cannot be used", rdma.name));
        }
    }
}

/// VFs by number, as the PF's `virtfnN` links name them.
pub(super) fn virtual_functions(device: &Path) -> Vec<(VfIndex, VfAddr)> {
    let mut vfs: Vec<(VfIndex, VfAddr)> = tree::names(device)
        .iter()
        .filter_map(|name| {
            let number = name.strip_prefix("virtfn")?.parse().ok()?;
            let addr = tree::target(&device.join(name))?.parse().ok()?;
            Some((VfIndex::new(number).ok()?, addr))
        })
        .collect();
    vfs.sort_unstable_by_key(|(vf, _)| *vf);
    vfs
}

/// Name of the interface that a VF's driver made.
pub(super) fn vf_interface(device: &Path) -> Option<String> {
    Interfaces::of(device).own().map(str::to_owned)
}

/// vfio-pci, and the variant drivers that are named after it (mlx5_vfio_pci).
fn is_vfio(driver: &str) -> bool {
    driver.contains("vfio")
}

/// What a kernel or driver says that has not got what was asked for: no such family or device in
/// it, not supported, no such protocol.
fn means_lacking(errno: i32) -> bool {
    matches!(errno, 2 | 19 | 93 | 95 | 524)
}
