//! What a back end reads of a host with SR-IOV NICs: each PF with all that hangs on it, and the
//! PCIe tree around it. A reading says what is, knob by knob; `None` where the driver or the
//! kernel does not tell, which is not the same as "off".

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use lanekeeper_model::{
    EswitchMode, Guid, LinkState, MacAddr, Mbps, ModelError, Mtu, PciAddr, PfAddr, PfId,
    RateLimits, RdmaNetns, RoceSetting, VfAddr, VfIndex, VfSettings, VfStatus, VlanTag,
};
use serde::{Deserialize, Serialize};

/// One PF and everything that belongs to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PfReading {
    /// Where it is now. It may be elsewhere after the next boot.
    pub addr: PfAddr,
    /// Driver that is bound to it.
    pub driver: Option<String>,
    /// Version of the firmware, as the driver tells it.
    pub firmware: Option<String>,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// Label of the physical slot, if the platform has one.
    pub slot: Option<String>,
    /// The address that was burnt in; identity, together with slot and GUID.
    pub permanent_mac: Option<MacAddr>,
    /// Serial number of the board. Some boards share one, so it is never a key.
    pub serial: Option<String>,
    /// Its network interface, if its driver makes one and it is in our network namespace.
    pub netdev: Option<Netdev>,
    /// NUMA node that it is nearest to.
    pub numa_node: Option<u32>,
    /// How many VFs it can have.
    pub total_vfs: TotalVfs,
    /// How many VFs it has.
    pub num_vfs: u16,
    /// Whether a driver is bound to VFs as they appear.
    pub autoprobe: bool,
    /// Mode of its embedded switch; `None` where the driver has no devlink eswitch.
    pub eswitch: Option<EswitchMode>,
    /// Something is changed in the firmware that takes effect with the next reset or reboot: what.
    pub pending_reset: Option<String>,
    /// Name of the bond that it is in.
    pub bond: Option<String>,
    /// Its RDMA device.
    pub rdma: Option<RdmaDevice>,
    /// Its IOMMU group.
    pub iommu_group: Option<IommuGroup>,
    /// What of a RoCE profile its driver tells.
    pub roce: Vec<RoceSetting>,
    /// Its VFs, by number, as its `virtfnN` links name them.
    pub vfs: Vec<VfReading>,
    /// What the reader should know, in sentences.
    pub warnings: Vec<String>,
}

/// How many VFs a PF can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TotalVfs {
    /// It has no SR-IOV capability.
    Never,
    /// The device could, but its firmware does not offer it now (sriov-network-device-plugin#601).
    OffInFirmware,
    /// This many.
    UpTo(u16),
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Netdev {
    /// Name.
    pub name: String,
    /// Number; changes with each appearance.
    pub index: u32,
    /// Address.
    pub mac: MacAddr,
    /// MTU in bytes.
    pub mtu: u32,
    /// Set up by its owner.
    pub up: bool,
    /// Has a link.
    pub carrier: bool,
    /// Speed of the link.
    pub speed: Option<Mbps>,
    /// Who else manages it: `NetworkManager`, `systemd-networkd`.
    pub manager: Option<String>,
}

/// One VF.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VfReading {
    /// Its number on the PF.
    pub vf: VfIndex,
    /// Where it is, from its `virtfnN` link.
    pub addr: VfAddr,
    /// Driver that is bound to it.
    pub driver: Option<String>,
    /// Driver that alone may bind to it.
    pub driver_override: Option<String>,
    /// Its interface on this host, while a network driver is bound.
    pub netdev: Option<Netdev>,
    /// Its representor's name, in switchdev mode.
    pub representor: Option<String>,
    /// How that is set, if it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub representor_state: Option<RepresentorState>,
    /// Its RDMA device on this host.
    pub rdma: Option<RdmaDevice>,
    /// Its IOMMU group.
    pub iommu_group: Option<IommuGroup>,
    /// Process that has its VFIO group open.
    pub holder: Option<Holder>,
    /// What the PF's driver has set on it; `None` while the PF has no interface to ask.
    pub attributes: Option<VfAttributes>,
}

/// How a VF's representor is set: in switchdev mode it opens and closes the VF's link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepresentorState {
    /// Set up by its owner.
    pub up: bool,
    /// MTU in bytes.
    pub mtu: u32,
}

impl std::fmt::Display for RepresentorState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, MTU {}", if self.up { "up" } else { "down" }, self.mtu)
    }
}

/// What the kernel tells of one VF through its PF (`IFLA_VFINFO_LIST`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VfAttributes {
    /// Administrative MAC; zero for none.
    pub mac: MacAddr,
    /// Access VLAN.
    pub vlan: VlanTag,
    /// Rates; both zero for none.
    pub rate: RateLimits,
    /// Anti-spoof; `None` if the driver has no such knob (the kernel's -1).
    pub spoofchk: Option<bool>,
    /// Trust; `None` likewise.
    pub trust: Option<bool>,
    /// Administrative link state; `None` likewise.
    pub link_state: Option<LinkState>,
    /// RDMA node GUID; `None` if the driver does not tell.
    pub node_guid: Option<Guid>,
    /// RDMA port GUID; `None` likewise.
    pub port_guid: Option<Guid>,
}

/// Devices that the IOMMU cannot tell apart: they are given away together or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IommuGroup {
    /// Number; changes between boots.
    pub number: u32,
    /// Every function in it, bridges too.
    pub members: BTreeSet<PciAddr>,
}

/// A process that holds a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub command: String,
}

/// An RDMA device with one port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Name; changes between boots.
    pub name: String,
    /// Node GUID; zero makes it unusable.
    pub node_guid: Guid,
    /// Whether devices are seen in every network namespace.
    pub netns: Option<RdmaNetns>,
    /// GID table: entries that are set.
    pub gids: Vec<Gid>,
}

impl RdmaDevice {
    /// The entry to use: by type and address, for tables are sparse and their order differs
    /// (nccl#1573, perftest#44).
    pub fn gid(&self, kind: GidKind, address: Ipv6Addr) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.kind == kind && gid.address == address)
    }
}

/// One entry of a GID table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gid {
    /// Place in the table.
    pub index: u32,
    /// The GID; an IPv4 address is mapped (`::ffff:10.0.0.1`).
    pub address: Ipv6Addr,
    /// Its type.
    pub kind: GidKind,
    /// The interface that it comes from.
    pub netdev: Option<String>,
}

/// Type of a GID (`gid_attrs/types`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand or RoCE v1, which the kernel names alike.
    #[serde(rename = "IB/RoCE v1")]
    IbOrRoceV1,
    /// RoCE v2.
    #[serde(rename = "RoCE v2")]
    RoceV2,
}

/// One function of the PCIe tree: a bridge, a NIC, a GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PciNode {
    /// Where it is.
    pub addr: PciAddr,
    /// Bridge above it; `None` at the root.
    pub parent: Option<PciAddr>,
    /// Class code: base class, subclass, programming interface.
    pub class: u32,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// Driver that is bound to it.
    #[serde(default)]
    pub driver: Option<String>,
    /// NUMA node that it is nearest to.
    pub numa_node: Option<u32>,
    /// Its IOMMU group's number.
    pub iommu_group: Option<u32>,
    /// Access control services of a port (PCI Express Base 6.0, 6.12): the control register, 0 for a
    /// port that has none; `None` if it could not be read.
    pub acs: Option<u16>,
    /// Address translation service is on.
    pub ats: Option<bool>,
    /// Relaxed ordering is on (device control register, bit 4).
    pub relaxed_ordering: Option<bool>,
    /// Greatest read request in bytes (device control register, bits 12 to 14).
    pub max_read_request: Option<u16>,
}

impl PfReading {
    /// As an identity in requests and errors.
    pub fn id(&self) -> PfId {
        PfId::Pci(self.addr)
    }

    /// One of its VFs.
    pub fn vf(&self, vf: VfIndex) -> Option<&VfReading> {
        self.vfs.iter().find(|reading| reading.vf == vf)
    }
}

impl VfReading {
    /// The reading in the words of a request. What a NIC does not have reads as not used: no bound
    /// addresses; a knob that is missing as off, or as following the link. The MTU is the
    /// interface's while there is one, else `pf_mtu`, the most that a VM may set.
    ///
    /// # Errors
    /// [`ModelError::Mtu`] if the device has one beyond what the model knows.
    pub fn settings(&self, pf_mtu: u32) -> Result<VfSettings, ModelError> {
        let attributes = self.attributes.unwrap_or_default();
        Ok(VfSettings {
            mac: attributes.mac,
            vlan: attributes.vlan,
            spoofchk: attributes.spoofchk.unwrap_or(false),
            addresses: Vec::new(),
            trust: attributes.trust.unwrap_or(false),
            link_state: attributes.link_state.unwrap_or_default(),
            rate: attributes.rate,
            mtu: Mtu::new(self.netdev.as_ref().map_or(pf_mtu, |netdev| netdev.mtu))?,
        })
    }

    /// As any back end tells it.
    ///
    /// # Errors
    /// As [`VfReading::settings`].
    pub fn status(&self, pf: &PfReading) -> Result<VfStatus, ModelError> {
        let netdev = pf.netdev.as_ref();
        let settings = self.settings(netdev.map_or(1_500, |netdev| netdev.mtu))?;
        let carrier = netdev.is_some_and(|netdev| netdev.carrier);
        let link_up = match settings.link_state {
            LinkState::Auto => carrier,
            LinkState::Enable => true,
            LinkState::Disable => false,
        };
        let attached = self.holder.is_some() || self.netdev.as_ref().is_some_and(|dev| dev.up);
        Ok(VfStatus { vf: self.vf, settings, link_up, attached, stopped: None })
    }
}
