//! Addresses: of stations (MAC), of functions on a PCI bus, and of software NICs.
//!
//! `PfAddr` and `VfAddr` are different types so that a PF can never be handed where a VF is meant
//! (sriov-network-operator PR#797 unbound a PF that way).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ModelError;

/// A 48-bit MAC address in transmission order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// `00:00:00:00:00:00`, which stands for "no address set" in VF settings.
    pub const ZERO: Self = Self([0; 6]);

    /// Group bit set (IEEE 802-2014, 8.2.2): multicast or broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// All bits zero.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// Locally administered bit set.
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 == 2
    }

    /// May be a station's own address: neither zero nor multicast.
    pub fn is_station(self) -> bool {
        !self.is_zero() && !self.is_multicast()
    }

    /// The address if a station may have it.
    ///
    /// # Errors
    /// [`ModelError::NotUnicast`] for zero, multicast and broadcast.
    pub fn station(self) -> Result<Self, ModelError> {
        if self.is_station() { Ok(self) } else { Err(ModelError::NotUnicast(self)) }
    }

    /// The six bytes in the low bits of a word, first byte highest; a compact lookup key.
    pub const fn to_u64(self) -> u64 {
        let b = self.0;
        u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", b[0], b[1], b[2], b[3], b[4], b[5])
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let refuse = || ModelError::Mac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(refuse)?;
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(refuse());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        if parts.next().is_some() {
            return Err(refuse());
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for MacAddr {
    type Error = ModelError;
    fn try_from(text: String) -> Result<Self, ModelError> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> Self {
        mac.to_string()
    }
}

/// Number of a VF on its PF. How many a PF has is for the PF to say; the SR-IOV capability counts
/// them in 16 bits (PCI Express Base 6.0, 9.3.3.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct VfIndex(u16);

impl VfIndex {
    /// A VF number.
    ///
    /// # Errors
    /// [`ModelError::VfIndex`] from 65535 up.
    pub fn new(index: u32) -> Result<Self, ModelError> {
        match u16::try_from(index) {
            Ok(index) if index < u16::MAX => Ok(Self(index)),
            _ => Err(ModelError::VfIndex(index)),
        }
    }

    /// As an index into a per-VF table.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Every VF number below `count`.
    pub fn first(count: usize) -> impl Iterator<Item = Self> {
        (0..u16::try_from(count).unwrap_or(u16::MAX)).map(Self)
    }
}

impl fmt::Display for VfIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u32> for VfIndex {
    type Error = ModelError;
    fn try_from(index: u32) -> Result<Self, ModelError> {
        Self::new(index)
    }
}

impl From<VfIndex> for u32 {
    fn from(vf: VfIndex) -> Self {
        u32::from(vf.0)
    }
}

/// PCI address of any function, as in `0000:3b:00.0`: a bridge, a GPU, or one whose kind does not
/// matter. What may be done to a PF or a VF only takes a [`PfAddr`] or a [`VfAddr`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddr {
    domain: u16,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for PciAddr {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let hex = |part: &str, digits: usize| {
                let well_formed =
                    part.len() == digits && part.bytes().all(|c| c.is_ascii_hexdigit());
                well_formed.then(|| u16::from_str_radix(part, 16).ok()).flatten()
            };
            let address = Self {
                domain: hex(domain, 4)?,
                bus: hex(bus, 2)? as u8,
                device: hex(device, 2)? as u8,
                function: hex(function, 1)? as u8,
            };
            (address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or_else(|| ModelError::Pci(text.to_owned()))
    }
}

impl fmt::Display for PciAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl fmt::Debug for PciAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for PciAddr {
    type Error = ModelError;
    fn try_from(text: String) -> Result<Self, ModelError> {
        text.parse()
    }
}

impl From<PciAddr> for String {
    fn from(address: PciAddr) -> Self {
        address.to_string()
    }
}

macro_rules! pci_function {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(PciAddr);

        impl FromStr for $name {
            type Err = ModelError;
            fn from_str(text: &str) -> Result<Self, ModelError> {
                text.parse().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl TryFrom<String> for $name {
            type Error = ModelError;
            fn try_from(text: String) -> Result<Self, ModelError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(address: $name) -> Self {
                address.to_string()
            }
        }

        impl From<$name> for PciAddr {
            fn from(address: $name) -> Self {
                address.0
            }
        }
    };
}

pci_function! {
    /// PCI address of a physical function, as in `0000:3b:00.0`.
    PfAddr
}

pci_function! {
    /// PCI address of a virtual function. It comes from the PF's `virtfnN` link, never from
    /// arithmetic on the PF's address (att/vfd#210).
    VfAddr
}

/// Node or port GUID of an RDMA device (EUI-64), as in `0002:c903:0000:0001`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Guid(pub u64);

impl Guid {
    /// None was set: an RDMA device with it cannot be used (openshift/sriov-network-operator#237).
    pub const ZERO: Self = Self(0);

    /// Whether it is all zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The EUI-64 that belongs to a MAC (RFC 4291, appendix A, without the inverted bit, as the
    /// kernel's drivers make it).
    pub fn from_mac(mac: MacAddr) -> Self {
        let mac = mac.to_u64();
        Self((mac >> 24) << 40 | 0xff_fe << 24 | mac & 0xff_ffff)
    }
}

impl FromStr for Guid {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        let well_formed = digits.len() == 16 && digits.bytes().all(|c| c.is_ascii_hexdigit());
        let guid = well_formed.then(|| u64::from_str_radix(&digits, 16).ok()).flatten();
        guid.map(Self).ok_or_else(|| ModelError::Guid(text.to_owned()))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quarter = |shift: u32| (self.0 >> shift) as u16;
        write!(f, "{:04x}:{:04x}:{:04x}:{:04x}", quarter(48), quarter(32), quarter(16), quarter(0))
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Guid {
    type Error = ModelError;
    fn try_from(text: String) -> Result<Self, ModelError> {
        text.parse()
    }
}

impl From<Guid> for String {
    fn from(guid: Guid) -> Self {
        guid.to_string()
    }
}

/// Name of a software NIC on this host: 1 to 32 of `a-z`, `0-9`, `-`, starting with a letter.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SoftNicName(String);

impl SoftNicName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SoftNicName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let well_formed = (1..=32).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(ModelError::SoftNicName(text.to_owned()))
        }
    }
}

impl TryFrom<String> for SoftNicName {
    type Error = ModelError;
    fn try_from(text: String) -> Result<Self, ModelError> {
        text.parse()
    }
}

impl From<SoftNicName> for String {
    fn from(name: SoftNicName) -> Self {
        name.0
    }
}

impl fmt::Display for SoftNicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which PF is meant: one on the PCI bus, or a software NIC.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PfId {
    /// A physical function.
    Pci(PfAddr),
    /// A software NIC's single PF.
    Soft(SoftNicName),
}

impl fmt::Display for PfId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => address.fmt(f),
            Self::Soft(name) => write!(f, "softnic:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mac_survives_being_written_and_read(bytes: [u8; 6]) {
            let mac = MacAddr(bytes);
            prop_assert_eq!(mac.to_string().parse::<MacAddr>(), Ok(mac));
        }

        #[test]
        fn parsing_any_text_never_panics(text in ".{0,40}") {
            let _ = text.parse::<MacAddr>();
            let _ = text.parse::<PfAddr>();
            let _ = text.parse::<SoftNicName>();
        }
    }

    #[test]
    fn a_mac_with_the_wrong_shape_is_refused_by_name() {
        for text in [
            "",
            "02:00",
            "02:00:00:00:00:0g",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
        ] {
            let error = text.parse::<MacAddr>().expect_err(text);
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }

    #[test]
    fn group_addresses_cannot_be_a_stations_own() {
        assert!(MacAddr::BROADCAST.station().is_err());
        assert!(MacAddr::ZERO.station().is_err());
        assert!(MacAddr([0x02, 0, 0, 0, 0, 1]).station().is_ok());
    }

    #[test]
    fn pci_addresses_are_read_as_the_kernel_writes_them() {
        let pf: PfAddr = "0000:3b:00.1".parse().expect("valid");
        assert_eq!(pf.to_string(), "0000:3b:00.1");
        for text in ["3b:00.1", "0000:3b:20.0", "0000:3b:00.8", "0000:3b:00", "0000:3b:00.0 "] {
            assert!(text.parse::<PfAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn vf_numbers_are_those_that_the_sriov_capability_can_count() {
        assert!(VfIndex::new(65_534).is_ok());
        assert_eq!(VfIndex::new(65_535), Err(ModelError::VfIndex(65_535)));
        assert_eq!(VfIndex::first(3).map(VfIndex::get).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_guid_is_read_with_and_without_colons() {
        let guid = Guid(0x0002_c903_0000_0001);
        assert_eq!(guid.to_string(), "0002:c903:0000:0001");
        for text in ["0002:c903:0000:0001", "0002c90300000001", "00:02:c9:03:00:00:00:01"] {
            assert_eq!(text.parse(), Ok(guid), "{text}");
        }
        assert_eq!("2c903".parse::<Guid>(), Err(ModelError::Guid("2c903".to_owned())));
        let mac = MacAddr([0x02, 0, 0, 0xaa, 0xbb, 0xcc]);
        assert_eq!(Guid::from_mac(mac).to_string(), "0200:00ff:feaa:bbcc");
    }
}
