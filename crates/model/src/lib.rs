//! The nouns of Lanekeeper: addresses, units, VF settings and counters, each with its validation.
//!
//! Nothing here performs I/O. A value that exists is a valid value: constructors and
//! deserialisation refuse anything outside the documented range, so the rooms above never check
//! the same thing twice.
#![forbid(unsafe_code)]

mod address;
mod counters;
mod sriov;
mod units;
mod vf;

pub use address::{Guid, MacAddr, PciAddr, PfAddr, PfId, SoftNicName, VfAddr, VfIndex};
pub use counters::{Direction, DropReason, LinkCounters, VfCounters};
pub use sriov::{Dscp, EswitchMode, RdmaNetns, RoceMode, RoceSetting, Trust};
pub use units::{Mbps, Mtu, Pcp, VlanChange, VlanId, VlanProtocol, VlanTag};
pub use vf::{LinkState, RateLimits, VfChange, VfSettings, VfStatus, parse_address};

/// Most VFs one PF of the software NIC can carry.
pub const MAX_VFS: usize = 64;

/// Largest Ethernet frame (header included, FCS excluded, offloaded super-frames aside), in bytes.
pub const MAX_FRAME: usize = 9_216;

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Text that is not a MAC address.
    #[error("'{0}' is not a MAC address; write six hexadecimal bytes, as in 02:00:00:00:00:01")]
    Mac(String),
    /// A multicast, broadcast or zero address where a station's own address is wanted.
    #[error("{0} cannot be a station's MAC address; use a unicast, non-zero one")]
    NotUnicast(MacAddr),
    /// VLAN id out of range (IEEE 802.1Q-2022, 9.6: 4095 is reserved).
    #[error("VLAN {0} is out of range; use 1..=4094, or 0 for no VLAN")]
    Vlan(u32),
    /// Priority code point out of range (IEEE 802.1Q-2022, 6.9.3).
    #[error("PCP {0} is out of range; use 0..=7")]
    Pcp(u32),
    /// Code point out of range (RFC 2474: six bits).
    #[error("DSCP {0} is out of range; use 0..=63 (a ToS byte is four times that)")]
    Dscp(u32),
    /// A VLAN protocol that is neither of the two.
    #[error("'{0}' is not a VLAN protocol; use 802.1Q or 802.1ad")]
    VlanProtocol(String),
    /// MTU out of range.
    #[error("MTU {0} is out of range; use {min}..={max}", min = Mtu::MIN, max = Mtu::MAX)]
    Mtu(u32),
    /// VF number beyond what one PF carries.
    #[error("VF {0} cannot exist; no PF has more than 65535 VFs")]
    VfIndex(u32),
    /// Text that is not a GUID.
    #[error("'{0}' is not a GUID; write sixteen hexadecimal digits, as in 0002:c903:0000:0001")]
    Guid(String),
    /// Text that is not a PCI address.
    #[error("'{0}' is not a PCI address; write domain:bus:device.function, as in 0000:3b:00.0")]
    Pci(String),
    /// Text that is not a software NIC's name.
    #[error(
        "'{0}' is not a software NIC name; use 1 to 32 of a-z, 0-9 and '-', starting with a letter"
    )]
    SoftNicName(String),
    /// A link state that is none of the three.
    #[error("'{0}' is not a link state; use auto, enable or disable")]
    LinkState(String),
    /// Rates that contradict each other.
    #[error("min rate {min} Mb/s is above max rate {max} Mb/s; lower the one or raise the other")]
    Rates {
        /// Guaranteed rate.
        min: Mbps,
        /// Ceiling.
        max: Mbps,
    },
    /// Anti-spoof was asked for a VF without an address to compare with
    /// (sriov-cni#114: all traffic of such a VF is dropped by hardware).
    #[error("spoofchk is on but the VF has no MAC; set a MAC first, or turn spoofchk off")]
    SpoofchkWithoutMac,
    /// Addresses were bound to a VF that is not checked.
    #[error(
        "addresses are bound to the VF but spoofchk is off, so nothing would check them; turn spoofchk on"
    )]
    AddressesWithoutSpoofchk,
    /// A tag with a priority but no VLAN and no meaning.
    #[error("PCP {0} needs a VLAN; set vlan to 1..=4094, or pcp to 0")]
    PcpWithoutVlan(Pcp),
    /// A kind of tag, but no tag.
    #[error("VLAN protocol {0} needs a VLAN; set vlan to 1..=4094, or protocol to 802.1Q")]
    ProtocolWithoutVlan(VlanProtocol),
    /// Text that is not one IP address.
    #[error(
        "'{0}' is not an IP address; write it alone, without a prefix length, as in 10.0.0.2 or fd00::2"
    )]
    Address(String),
}
