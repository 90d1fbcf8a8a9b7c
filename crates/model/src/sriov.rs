//! What is said of a NIC with SR-IOV beyond one VF's settings: its embedded switch's mode, and the
//! RoCE profile that is set on a PF for all its VFs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{ModelError, Mtu, Pcp};

/// How a NIC's embedded switch is run (kernel document `networking/devlink/devlink-eswitch-attr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EswitchMode {
    /// VF settings are the switch's rules.
    Legacy,
    /// Each VF has a representor on the host, and the host's rules are the switch's.
    Switchdev,
}

impl fmt::Display for EswitchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::Switchdev => "switchdev",
        })
    }
}

/// Differentiated services code point (RFC 2474), `0..=63`. Not the ToS byte: ECN is the two bits
/// below it, and a field of its own wherever it matters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Dscp(u8);

impl Dscp {
    /// What NVIDIA's and others' guides give RoCE.
    pub const ROCE: Self = Self(26);
    /// What they give congestion notification packets.
    pub const CNP: Self = Self(48);

    /// A code point.
    ///
    /// # Errors
    /// [`ModelError::Dscp`] from 64 up.
    pub fn new(value: u32) -> Result<Self, ModelError> {
        if value < 64 { Ok(Self(value as u8)) } else { Err(ModelError::Dscp(value)) }
    }

    /// The code point.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The ToS byte with this code point, ECN-capable (ECT(0), RFC 3168) or not.
    pub const fn tos(self, ecn_capable: bool) -> u8 {
        self.0 << 2 | if ecn_capable { 0b10 } else { 0 }
    }
}

impl TryFrom<u32> for Dscp {
    type Error = ModelError;
    fn try_from(value: u32) -> Result<Self, ModelError> {
        Self::new(value)
    }
}

impl From<Dscp> for u32 {
    fn from(dscp: Dscp) -> Self {
        u32::from(dscp.0)
    }
}

impl FromStr for Dscp {
    type Err = ModelError;
    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::new(text.parse().unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a port goes by when it gives a received packet a priority.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// The VLAN tag's PCP.
    Pcp,
    /// The IP header's DSCP.
    Dscp,
}

/// The type of GID that RDMA-CM connects with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum RoceMode {
    /// Ethertype 0x8915, one L2 domain.
    #[serde(rename = "v1")]
    V1,
    /// UDP port 4791, routable.
    #[serde(rename = "v2")]
    V2,
}

/// Whether RDMA devices are seen in every network namespace or in one (`rdma-system(8)`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaNetns {
    /// In every one.
    Shared,
    /// In the one that it was put into.
    Exclusive,
}

/// One thing that a RoCE profile sets on a PF. A PF's reading has one of each kind that its driver
/// can tell; a kind that is missing there is one that the driver lacks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoceSetting {
    /// What received packets get their priority from.
    Trust(Trust),
    /// Priority of each code point that has one of its own (DCB APP table, selector 5).
    DscpPriority(BTreeMap<Dscp, Pcp>),
    /// Priorities that are paused rather than dropped (IEEE 802.1Qbb).
    Pfc(BTreeSet<Pcp>),
    /// Share of the link of each traffic class in per cent (IEEE 802.1Qaz ETS); all zero for
    /// strict priority.
    Ets([u8; 8]),
    /// Bytes of each receive buffer.
    Buffers([u32; 8]),
    /// Link-level pause (IEEE 802.3 annex 31B) in both directions.
    GlobalPause(bool),
    /// Priorities in which congestion is notified (DCQCN reaction and notification point).
    Ecn(BTreeSet<Pcp>),
    /// Code point of congestion notification packets.
    CnpDscp(Dscp),
    /// Priority of congestion notification packets.
    CnpPriority(Pcp),
    /// ToS byte of connections made by RDMA-CM.
    CmTos(u8),
    /// GID type of connections made by RDMA-CM.
    CmMode(RoceMode),
    /// Where RDMA devices are seen.
    Netns(RdmaNetns),
    /// The PF's MTU.
    Mtu(Mtu),
}

impl RoceSetting {
    /// Its kind, as the profile's file names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Trust(_) => "trust",
            Self::DscpPriority(_) => "dscp_priority",
            Self::Pfc(_) => "pfc",
            Self::Ets(_) => "ets",
            Self::Buffers(_) => "buffers",
            Self::GlobalPause(_) => "global_pause",
            Self::Ecn(_) => "ecn",
            Self::CnpDscp(_) => "cnp_dscp",
            Self::CnpPriority(_) => "cnp_priority",
            Self::CmTos(_) => "cm_tos",
            Self::CmMode(_) => "cm_mode",
            Self::Netns(_) => "netns",
            Self::Mtu(_) => "mtu",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dscp_and_ecn_are_two_fields_of_the_tos_byte() {
        assert_eq!(Dscp::ROCE.tos(false), 104);
        assert_eq!(Dscp::ROCE.tos(true), 106);
        assert_eq!(Dscp::new(64), Err(ModelError::Dscp(64)));
    }
}
