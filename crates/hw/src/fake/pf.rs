//! One PF of a fake host, as a test describes it before it is put in.

use lanekeeper_model::{MacAddr, PciAddr, PfAddr};

use super::Personality;
use crate::inventory::TotalVfs;

/// How an IOMMU groups a PF and its VFs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Grouping {
    /// Each function has a group of its own.
    #[default]
    Own,
    /// This many VFs share one, as behind a bridge without ACS.
    Shared(u16),
    /// The PF and all its VFs share one.
    WithPf,
    /// The IOMMU is off: there are no groups.
    Off,
}

/// A setting of a VF that a driver may lack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Knob {
    /// Anti-spoof.
    Spoofchk,
    /// Trust.
    Trust,
    /// Administrative link state.
    LinkState,
    /// Guaranteed rate.
    MinRate,
}

/// A PF to be put into a [`super::Fake`]. What is not said is chosen: a free address, a name, a MAC
/// of the vendor's, and what the [`Personality`] has by default.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct FakePf {
    pub(super) personality: Personality,
    pub(super) addr: Option<PfAddr>,
    pub(super) netdev: Option<String>,
    pub(super) mac: Option<MacAddr>,
    pub(super) slot: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) numa: Option<u32>,
    pub(super) total_vfs: TotalVfs,
    pub(super) pending: Option<Pending>,
    pub(super) grouping: Grouping,
    pub(super) offset: Option<u16>,
    pub(super) stride: u16,
    pub(super) up: bool,
    pub(super) manager: Option<String>,
    pub(super) bond: Option<String>,
    pub(super) parent: Option<PciAddr>,
    pub(super) refuses_zero_mac: bool,
    pub(super) lacks: Vec<Knob>,
    pub(super) refuses: Vec<Knob>,
    pub(super) appear_after: u32,
    pub(super) driver_lag: u32,
    pub(super) tells_late: u32,
    pub(super) no_room: bool,
    pub(super) vf_guids: bool,
    pub(super) firmware_lldp: bool,
    pub(super) num_vfs_hangs: bool,
    pub(super) repeats_hang: bool,
}

/// A change of the firmware that waits for a reset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    pub(super) what: String,
    pub(super) total_vfs: Option<TotalVfs>,
}

impl FakePf {
    /// A PF with this driver's manners, its interface up.
    pub fn new(personality: Personality) -> Self {
        let rules = personality.rules();
        Self {
            personality,
            addr: None,
            netdev: None,
            mac: None,
            slot: None,
            serial: None,
            numa: Some(0),
            total_vfs: TotalVfs::UpTo(rules.total_vfs),
            pending: None,
            grouping: Grouping::Own,
            offset: None,
            stride: rules.stride,
            up: true,
            manager: None,
            bond: None,
            parent: None,
            refuses_zero_mac: false,
            lacks: Vec::new(),
            refuses: Vec::new(),
            appear_after: 0,
            driver_lag: 0,
            tells_late: 0,
            no_room: false,
            vf_guids: false,
            firmware_lldp: false,
            num_vfs_hangs: false,
            repeats_hang: false,
        }
    }

    /// At this address.
    #[must_use]
    pub fn at(mut self, addr: PfAddr) -> Self {
        self.addr = Some(addr);
        self
    }

    /// With this name of its interface.
    #[must_use]
    pub fn named(mut self, netdev: &str) -> Self {
        self.netdev = Some(netdev.to_owned());
        self
    }

    /// With this burnt-in MAC.
    #[must_use]
    pub fn mac(mut self, mac: MacAddr) -> Self {
        self.mac = Some(mac);
        self
    }

    /// In this slot.
    #[must_use]
    pub fn slot(mut self, slot: &str) -> Self {
        self.slot = Some(slot.to_owned());
        self
    }

    /// With this serial number.
    #[must_use]
    pub fn serial(mut self, serial: &str) -> Self {
        self.serial = Some(serial.to_owned());
        self
    }

    /// On this NUMA node; `None` where the platform does not tell.
    #[must_use]
    pub fn numa(mut self, node: Option<u32>) -> Self {
        self.numa = node;
        self
    }

    /// With this many VFs at most.
    #[must_use]
    pub fn total_vfs(mut self, total: u16) -> Self {
        self.total_vfs = TotalVfs::UpTo(total);
        self
    }

    /// Its firmware does not offer SR-IOV now (sriov-network-device-plugin#601).
    #[must_use]
    pub fn off_in_firmware(mut self) -> Self {
        self.total_vfs = TotalVfs::OffInFirmware;
        self
    }

    /// It has no SR-IOV capability at all.
    #[must_use]
    pub fn without_sriov(mut self) -> Self {
        self.total_vfs = TotalVfs::Never;
        self
    }

    /// The firmware was told something that takes effect with the next reboot, and what the PF
    /// offers then.
    #[must_use]
    pub fn pending(mut self, what: &str, total_vfs: Option<TotalVfs>) -> Self {
        self.pending = Some(Pending { what: what.to_owned(), total_vfs });
        self
    }

    /// Grouped like this by the IOMMU.
    #[must_use]
    pub fn grouped(mut self, grouping: Grouping) -> Self {
        self.grouping = grouping;
        self
    }

    /// With this first VF offset and stride (PCI Express Base 6.0, 9.3.3.9 and 9.3.3.10).
    #[must_use]
    pub fn routing(mut self, offset: u16, stride: u16) -> Self {
        self.offset = Some(offset);
        self.stride = stride;
        self
    }

    /// With its interface down.
    #[must_use]
    pub fn down(mut self) -> Self {
        self.up = false;
        self
    }

    /// Managed by this as well: `NetworkManager`, `systemd-networkd`.
    #[must_use]
    pub fn managed_by(mut self, manager: &str) -> Self {
        self.manager = Some(manager.to_owned());
        self
    }

    /// In this bond.
    #[must_use]
    pub fn in_bond(mut self, bond: &str) -> Self {
        self.bond = Some(bond.to_owned());
        self
    }

    /// Below this bridge, which a test adds with [`super::Fake::add_pci`].
    #[must_use]
    pub fn below(mut self, bridge: PciAddr) -> Self {
        self.parent = Some(bridge);
        self
    }

    /// Its driver refuses to take a zero MAC back (sriov-cni#88; drivers before Linux 4.13).
    #[must_use]
    pub fn refusing_zero_mac(mut self) -> Self {
        self.refuses_zero_mac = true;
        self
    }

    /// Its driver lacks this knob: read as the kernel's -1, refused with `EOPNOTSUPP`.
    #[must_use]
    pub fn without(mut self, knob: Knob) -> Self {
        self.lacks.push(knob);
        self
    }

    /// It tells this knob and refuses to set it, even to what it is (BlueField, lxc/incus#2021).
    #[must_use]
    pub fn refusing(mut self, knob: Knob) -> Self {
        self.refuses.push(knob);
        self
    }

    /// VFs appear one after another, and all of them only after this many reads
    /// (sriov-network-operator#1015).
    #[must_use]
    pub fn appearing_after(mut self, reads: u32) -> Self {
        self.appear_after = reads;
        self
    }

    /// After a probe the driver of a VF is missing for this many reads
    /// (sriov-network-operator#1046).
    #[must_use]
    pub fn driver_lagging(mut self, reads: u32) -> Self {
        self.driver_lag = reads;
        self
    }

    /// What was set on a VF is told only after this many readings; until then what was before.
    #[must_use]
    pub fn telling_late(mut self, reads: u32) -> Self {
        self.tells_late = reads;
        self
    }

    /// The platform has no room for the VFs' registers: `ENOMEM` (sriov-network-operator#672).
    #[must_use]
    pub fn without_room_for_vfs(mut self) -> Self {
        self.no_room = true;
        self
    }

    /// Its driver sets and tells GUIDs of VFs, as IPoIB does (`ipoib_set_vf_guid`); Ethernet
    /// drivers have no such knob.
    #[must_use]
    pub fn with_vf_guids(mut self) -> Self {
        self.vf_guids = true;
        self
    }

    /// Writes of `sriov_numvfs` block, and with them all else on the PF, until
    /// [`super::Fake::heal`] (i40e, openshift/sriov-network-operator#1033).
    #[must_use]
    pub fn with_hanging_num_vfs(mut self) -> Self {
        self.num_vfs_hangs = true;
        self
    }

    /// A rate that the VF has already, sent again, hangs the PF until [`super::Fake::heal`]
    /// (ovs-tests SW#3036473).
    #[must_use]
    pub fn with_hanging_repeats(mut self) -> Self {
        self.repeats_hang = true;
        self
    }

    /// Its firmware runs LLDP, so that DCB cannot be set from here (`DCB_CAP_DCBX_LLD_MANAGED`).
    #[must_use]
    pub fn with_firmware_lldp(mut self) -> Self {
        self.firmware_lldp = true;
        self
    }
}
