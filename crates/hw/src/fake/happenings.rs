//! What a test lets happen to a fake host that the program under test did not ask for, and what it
//! looks at afterwards.

use std::io;

use lanekeeper_model::{EswitchMode, MacAddr, PfAddr, VfCounters, VfIndex};
use rustix::io::Errno;

use super::machine::{Halt, Machine, Pf, is_vfio};
use super::personality::OwnMac;
use super::{End, Fake, FakePf, Write, Written, roce};
use crate::HardwareError;
use crate::inventory::{Holder, PciNode, TotalVfs};
use crate::watch::{Event, Kind};

/// Hardware comes and goes.
impl Fake {
    /// Put a PF in, at its address or a free one.
    ///
    /// # Panics
    /// If one of its functions would have an address that another has.
    pub fn add_pf(&self, pf: FakePf) -> PfAddr {
        let mut machine = self.lock();
        let addr = machine.plug(pf);
        machine.watchers.tell(&Event::of(Kind::Appeared, addr));
        addr
    }

    /// Put another function into the PCIe tree: a bridge, a GPU, a member of an IOMMU group.
    pub fn add_pci(&self, node: PciNode) {
        self.lock().extra.push(node);
    }

    /// Pull a PF out. Every call on it, outstanding ones too, answers [`HardwareError::NoPf`]. What
    /// is returned can be put in again, elsewhere too: it is the same board.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn hot_remove(&self, pf: PfAddr) -> Result<FakePf, HardwareError> {
        let mut machine = self.lock();
        machine.pf(pf)?;
        let removed = machine.pfs.remove(&pf).map(Pf::into_spec);
        self.host.happened.notify_all();
        machine.watchers.tell(&Event::of(Kind::Gone, pf));
        removed.ok_or(HardwareError::NoPf(lanekeeper_model::PfId::Pci(pf)))
    }

    /// The host boots: VFs, their settings, RoCE settings and holders are gone, groups, interfaces
    /// and RDMA devices have other numbers, the firmware's pending changes hold, and nothing hangs.
    /// PFs keep their address and name; see [`Fake::swap_names`] and [`Fake::hot_remove`].
    pub fn reboot(&self) {
        let mut machine = self.lock();
        machine.numbers.reboot();
        machine.netns = lanekeeper_model::RdmaNetns::Shared;
        let Machine { pfs, numbers, .. } = &mut *machine;
        // The order in which drivers find PFs is another at each boot.
        for pf in pfs.values_mut().rev() {
            if let Some(pending) = pf.pending.take() {
                pf.total = pending.total_vfs.unwrap_or(pf.total);
                pf.spec.total_vfs = pf.total;
                pf.spec.pending = None;
            }
            pf.restart();
            pf.up = pf.spec.up;
            pf.hung = false;
            pf.locked = false;
            pf.identity = numbers.identity();
            pf.interface = numbers.interface();
            pf.rdma = numbers.rdma();
            pf.group = pf.group.map(|_| numbers.group());
        }
        self.host.happened.notify_all();
    }

    /// Two PFs' interfaces change names, as they do when the kernel finds them in another order.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn swap_names(&self, one: PfAddr, other: PfAddr) -> Result<(), HardwareError> {
        let mut machine = self.lock();
        let first = machine.pf(one)?.name.clone();
        let second = std::mem::replace(&mut machine.pf(other)?.name, first);
        machine.pf(one)?.name = second;
        for pf in [one, other] {
            machine.watchers.tell(&Event::of(Kind::Moved, pf));
        }
        Ok(())
    }

    /// The PF's driver is unloaded and loaded: VFs and RoCE settings are gone.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn reload_driver(&self, pf: PfAddr) -> Result<(), HardwareError> {
        self.with(pf, Pf::restart)?;
        self.tell(Kind::Driver, pf);
        Ok(())
    }

    /// Bind another driver to the PF, as `vfio-pci` (ProxMenux#179), or none: there are no VFs and no
    /// interface until its own is back.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn set_pf_driver(&self, pf: PfAddr, driver: Option<&str>) -> Result<(), HardwareError> {
        self.with(pf, |pf| {
            pf.restart();
            pf.driver = driver.map(str::to_owned);
            pf.netdev_here = pf.is_driven();
        })?;
        self.tell(Kind::Driver, pf);
        Ok(())
    }

    /// The PF is reset under its VFs: they stay, and are dead until they are made anew.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn reset_pf(&self, pf: PfAddr) -> Result<(), HardwareError> {
        self.with(pf, |pf| {
            for vf in &mut pf.vfs {
                vf.orphaned = true;
            }
            pf.tell_carrier();
        })
    }

    /// Plug the cable in or out.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn set_cable(&self, pf: PfAddr, plugged: bool) -> Result<(), HardwareError> {
        self.with(pf, |pf| {
            pf.cable = plugged;
            pf.tell_carrier();
        })?;
        let up = self.lock().pf(pf)?.up;
        self.tell(Kind::Link { up, carrier: up && plugged }, pf);
        Ok(())
    }

    /// Move the PF's interface into another network namespace, or back.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn set_netdev_here(&self, pf: PfAddr, here: bool) -> Result<(), HardwareError> {
        self.with(pf, |pf| pf.netdev_here = here)?;
        self.tell(Kind::Changed, pf);
        Ok(())
    }

    /// Tell the firmware something that holds from the next reboot on.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn set_pending(
        &self,
        pf: PfAddr,
        what: &str,
        total_vfs: Option<TotalVfs>,
    ) -> Result<(), HardwareError> {
        let what = what.to_owned();
        self.with(pf, |pf| pf.pending = Some(super::pf::Pending { what, total_vfs }))
    }

    /// From now on every call on this PF hangs, reads too, until [`Fake::heal`].
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn hang(&self, pf: PfAddr) -> Result<(), HardwareError> {
        self.with(pf, |pf| pf.hung = true)
    }

    /// Calls on this PF go on, those that hang too.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn heal(&self, pf: PfAddr) -> Result<(), HardwareError> {
        self.with(pf, |pf| {
            pf.hung = false;
            pf.spec.num_vfs_hangs = false;
            pf.spec.repeats_hang = false;
        })
    }

    /// The host sets a VF's interface up, if it has one: the VF is in use.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn use_vf_netdev(&self, pf: PfAddr, vf: VfIndex) -> Result<(), HardwareError> {
        if let Some(port) = &mut self.lock().pf(pf)?.vf(vf)?.port {
            port.up = true;
        }
        Ok(())
    }

    /// A VF's interface goes away while its driver stays bound (sriov-cni#349).
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn lose_vf_netdev(&self, pf: PfAddr, vf: VfIndex) -> Result<(), HardwareError> {
        self.lock().pf(pf)?.vf(vf)?.port = None;
        Ok(())
    }

    /// Load a VF's driver, or a variant of VFIO's, or unload it (without unbinding anything).
    pub fn set_driver_loaded(&self, driver: &str, loaded: bool) {
        let mut machine = self.lock();
        if loaded {
            machine.drivers.insert(driver.to_owned());
        } else {
            machine.drivers.remove(driver);
        }
    }

    /// How many network namespaces there are; with more than one the kernel refuses to change where
    /// RDMA devices are seen.
    pub fn set_network_namespaces(&self, count: u32) {
        self.lock().namespaces = count;
    }

    /// Somebody else sets the mode of the embedded switch, whatever the driver says of it.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn force_eswitch(&self, pf: PfAddr, mode: EswitchMode) -> Result<(), HardwareError> {
        self.with(pf, |pf| pf.eswitch = mode)?;
        self.tell(Kind::Changed, pf);
        Ok(())
    }

    /// Who else manages the PF's interface, from now on.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn set_manager(&self, pf: PfAddr, manager: Option<&str>) -> Result<(), HardwareError> {
        self.with(pf, |pf| pf.spec.manager = manager.map(str::to_owned))
    }

    /// What [`crate::SriovHardware::pause_frames`] tells.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn set_pause_frames(
        &self,
        pf: PfAddr,
        frames: Option<[u64; 8]>,
    ) -> Result<(), HardwareError> {
        self.with(pf, |pf| pf.pause_frames = frames)
    }

    fn tell(&self, kind: Kind, pf: PfAddr) {
        self.lock().watchers.tell(&Event::of(kind, pf));
    }

    pub(super) fn with(
        &self,
        pf: PfAddr,
        change: impl FnOnce(&mut Pf),
    ) -> Result<(), HardwareError> {
        change(self.lock().pf(pf)?);
        self.host.happened.notify_all();
        Ok(())
    }
}

/// Guests.
impl Fake {
    /// A process opens a VF through VFIO.
    ///
    /// # Errors
    /// `ENODEV` if VFIO does not have it, `EBUSY` if another holds it, `EPERM` if another member of
    /// its IOMMU group is bound to a driver of the host.
    pub fn open_vf(&self, pf: PfAddr, vf: VfIndex, pid: u32, command: &str) -> io::Result<()> {
        let mut machine = self.lock();
        let refuse = |errno: Errno| Err(io::Error::from(errno));
        let Ok(Ok(found)) = machine.pf(pf).map(|pf| pf.vf(vf)) else { return refuse(Errno::NODEV) };
        let group = found.group;
        if !found.driver.as_deref().is_some_and(is_vfio) {
            return refuse(Errno::NODEV);
        }
        if found.holder.is_some() {
            return refuse(Errno::BUSY);
        }
        if group.is_some_and(|group| !machine.viable(group)) {
            return refuse(Errno::PERM);
        }
        if let Ok(Ok(vf)) = machine.pf(pf).map(|pf| pf.vf(vf)) {
            vf.holder = Some(Holder { pid, command: command.to_owned() });
        }
        Ok(())
    }

    /// The process lets the VF go, or dies; what its guest did to the VF stays.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn close_vf(&self, pf: PfAddr, vf: VfIndex) -> Result<(), HardwareError> {
        self.lock().pf(pf)?.vf(vf)?.holder = None;
        self.host.happened.notify_all();
        Ok(())
    }

    /// A guest gives its VF another address. Whether the NIC took it.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn guest_sets_mac(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        mac: MacAddr,
    ) -> Result<bool, HardwareError> {
        let mut machine = self.lock();
        let pf = machine.pf(pf)?;
        let rule = pf.rules().own_mac;
        let vf = pf.vf(vf)?;
        let may = rule == OwnMac::Unreported || vf.mac.is_zero() || vf.trust;
        let takes = vf.holder.is_some() && mac.is_station() && (may || vf.mac == mac);
        if takes {
            vf.own_mac = Some(mac);
        }
        Ok(takes)
    }

    /// The address that a VF's driver, a guest's above all, chose by itself and that still holds,
    /// whether or not the PF tells it.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn own_mac(&self, pf: PfAddr, vf: VfIndex) -> Result<Option<MacAddr>, HardwareError> {
        Ok(self.lock().pf(pf)?.vf(vf)?.own_mac)
    }

    /// A VF gets a VLAN trunk by other means (`echo add 0 4094 > .../trunk`); any VLAN that is written
    /// takes it away, VLAN 0 too (sriov-cni#291).
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn give_trunk(&self, pf: PfAddr, vf: VfIndex) -> Result<(), HardwareError> {
        self.lock().pf(pf)?.vf(vf)?.trunk = true;
        Ok(())
    }

    /// Whether a VF has its trunk.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn has_trunk(&self, pf: PfAddr, vf: VfIndex) -> Result<bool, HardwareError> {
        Ok(self.lock().pf(pf)?.vf(vf)?.trunk)
    }

    /// A guest works with its VF, so that it leaves state in it which only a reset clears.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn guest_leaves_state(&self, pf: PfAddr, vf: VfIndex) -> Result<(), HardwareError> {
        self.lock().pf(pf)?.vf(vf)?.guest_state = true;
        Ok(())
    }

    /// Why nothing that the VF sends would arrive now; `None` if it would.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn silence(&self, pf: PfAddr, vf: VfIndex) -> Result<Option<&'static str>, HardwareError> {
        self.lock().silence(pf, vf).map_err(|halt| match halt {
            Halt::Refused(error) => error,
            Halt::Waits | Halt::WaitsLocked => HardwareError::NoPf(lanekeeper_model::PfId::Pci(pf)),
        })
    }

    /// What [`crate::SriovHardware::vf_counters`] tells.
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn set_counters(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        counters: VfCounters,
    ) -> Result<(), HardwareError> {
        self.lock().pf(pf)?.vf(vf)?.counters = counters;
        Ok(())
    }
}

/// What was asked of the host.
impl Fake {
    /// Every write since the start or [`Fake::clear_log`], with its end.
    pub fn log(&self) -> Vec<Written> {
        self.lock().log.clone()
    }

    /// Every write, refused ones too.
    pub fn writes(&self) -> Vec<Write> {
        self.lock().log.iter().map(|entry| entry.write.clone()).collect()
    }

    /// Forget what was written.
    pub fn clear_log(&self) {
        self.lock().log.clear();
    }

    /// Messages that were sent for one VF.
    pub fn messages(&self, pf: PfAddr, vf: VfIndex) -> usize {
        self.count(|write| matches!(write, Write::Vf(at, index, _) if (*at, *index) == (pf, vf)))
    }

    /// Writes of `sriov_numvfs` of one PF.
    pub fn num_vfs_writes(&self, pf: PfAddr) -> usize {
        self.count(|write| matches!(write, Write::NumVfs(at, _) if *at == pf))
    }

    /// Attributes that were sent though the VF had them already: each is a write too many.
    pub fn repeats(&self) -> usize {
        self.lock().repeats
    }

    /// Writes that have not returned.
    pub fn outstanding(&self) -> usize {
        self.lock().log.iter().filter(|entry| entry.end == End::Outstanding).count()
    }

    fn count(&self, is_meant: impl Fn(&Write) -> bool) -> usize {
        self.lock().log.iter().filter(|entry| is_meant(&entry.write)).count()
    }
}

impl Machine {
    /// drivers/vfio/vfio_iommu_type1.c and group.c: every member is VFIO's or nobody's.
    fn viable(&self, group: u32) -> bool {
        let mut functions = self.pfs.values().flat_map(|pf| {
            let vfs = pf.vfs.iter().map(|vf| (vf.group, vf.driver.as_deref()));
            vfs.chain(std::iter::once((pf.group, pf.driver.as_deref())))
        });
        functions.all(|(of, driver)| of != Some(group) || driver.is_none_or(is_vfio))
    }
}

impl Pf {
    /// As after its driver was loaded.
    fn restart(&mut self) {
        self.vfs.clear();
        self.unborn = 0;
        self.autoprobe = true;
        self.eswitch = EswitchMode::Legacy;
        self.mtu = lanekeeper_model::Mtu::ETHERNET;
        self.roce = roce::defaults(self.spec.personality);
        self.refusals.clear();
    }

    /// The board, to be put in again.
    fn into_spec(self) -> FakePf {
        FakePf {
            addr: Some(self.addr),
            netdev: Some(self.name),
            mac: Some(self.mac),
            serial: Some(self.serial),
            slot: Some(self.slot),
            total_vfs: self.total,
            pending: self.pending,
            ..self.spec
        }
    }
}
