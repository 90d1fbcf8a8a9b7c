//! Counters of a VF and of the uplink, with one counter for each reason a frame can be dropped.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whose eyes a direction is seen with: always the VM's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the VM.
    Tx,
    /// To the VM.
    Rx,
}

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident $label:literal,)+) => {
        /// Why a frame was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ #[serde(rename = $label)] $name,)+
        }

        impl DropReason {
            /// Every reason, in the order of its number.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Name used in output and metrics.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }
        }
    };
}

drop_reasons! {
    /// Source MAC is not the VF's (anti-spoof).
    SpoofedMac "spoofed_mac",
    /// Source IP, ARP or ND address is not bound to the VF (anti-spoof).
    SpoofedAddress "spoofed_address",
    /// The VM tagged a frame itself although the tag is the administrator's.
    ForgedVlan "forged_vlan",
    /// The VF or its peer has its link down.
    LinkDown "link_down",
    /// Larger than the sender's or the receiver's MTU allows.
    TooLong "too_long",
    /// Shorter than an Ethernet header.
    TooShort "too_short",
    /// The offload header contradicts the frame.
    BadOffload "bad_offload",
    /// Above the VF's max rate.
    RateLimit "rate_limit",
    /// Nobody has this destination and there is no uplink to send it to.
    NoDestination "no_destination",
    /// The receiver had no buffer free.
    NoBuffer "no_buffer",
    /// The receiver's buffers are too small for this frame.
    BufferTooSmall "buffer_too_small",
    /// The uplink did not take the frame.
    UplinkBusy "uplink_busy",
    /// A link-local control frame that a switch must not forward (IEEE 802.1Q-2022, 8.6.3), as
    /// PFC pause is.
    Reserved "reserved_address",
    /// A source address that no station can have: multicast or zero.
    BadSource "bad_source",
    /// The kernel behind the uplink refused the frame.
    UplinkRefused "uplink_refused",
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Counters of one direction of a port, or of the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Frames that passed.
    pub frames: u64,
    /// Their bytes, Ethernet header included, FCS excluded.
    pub bytes: u64,
}

/// Counters of one VF, seen by its VM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VfCounters {
    /// Accepted from the VM.
    pub tx: LinkCounters,
    /// Given to the VM.
    pub rx: LinkCounters,
    /// Frames from the VM that went nowhere, by reason; reasons with no frame are absent.
    pub tx_drops: std::collections::BTreeMap<DropReason, u64>,
    /// Frames for the VM that it did not get, by reason.
    pub rx_drops: std::collections::BTreeMap<DropReason, u64>,
    /// How often the VF was stopped because its rings could not be trusted.
    pub ring_faults: u64,
}

impl VfCounters {
    /// Frames from the VM dropped for `reason`.
    pub fn tx_dropped(&self, reason: DropReason) -> u64 {
        self.tx_drops.get(&reason).copied().unwrap_or(0)
    }

    /// Frames for the VM dropped for `reason`.
    pub fn rx_dropped(&self, reason: DropReason) -> u64 {
        self.rx_drops.get(&reason).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_label_and_number() {
        let labels: std::collections::BTreeSet<_> =
            DropReason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(labels.len(), DropReason::ALL.len());
        for (number, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
        }
    }

    #[test]
    fn counters_are_written_with_the_labels_of_their_reasons() {
        let mut counters = VfCounters::default();
        counters.tx_drops.insert(DropReason::SpoofedMac, 3);
        let json = serde_json::to_string(&counters).expect("serialisable");
        assert!(json.contains(r#""spoofed_mac":3"#), "{json}");
    }
}
