//! Access control services on the way between two functions: whether a transfer from one to the
//! other may take the short way over their common bridge, or is sent up to the root complex.
//!
//! A VM needs the redirect bits for isolation, and with them a GPU's transfer to its NIC takes the
//! long way, unless both speak ATS and the bridges let translated requests pass (nccl-tests#380:
//! 180 GB/s in a VM against 320 on bare metal).

use std::fmt;

use lanekeeper_model::PciAddr;
use serde::Serialize;

use crate::tree::PciTree;

/// ACS control register of a port (PCI Express Base 6.0, 7.7.11.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Acs(pub u16);

/// Names of the bits as lspci(8) has them.
const BITS: [&str; 7] =
    ["SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"];

impl Acs {
    const REQUEST_REDIRECT: u16 = 1 << 2;
    const COMPLETION_REDIRECT: u16 = 1 << 3;
    const DIRECT_TRANSLATED: u16 = 1 << 6;

    /// Requests between ports of this bridge are sent up.
    pub fn redirects(self) -> bool {
        self.0 & (Self::REQUEST_REDIRECT | Self::COMPLETION_REDIRECT) != 0
    }

    /// But not those that carry an address which the IOMMU has translated already.
    pub fn passes_translated(self) -> bool {
        self.0 & Self::DIRECT_TRANSLATED != 0
    }
}

impl fmt::Display for Acs {
    /// As lspci(8) prints it: each name with `+` or `-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, name) in BITS.iter().enumerate() {
            let sign = if self.0 >> bit & 1 == 1 { '+' } else { '-' };
            write!(f, "{}{name}{sign}", if bit == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Why a transfer goes over the root complex.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Detour {
    /// There is no bridge in common.
    NoCommonBridge,
    /// A bridge sends requests up, and would even if they were translated.
    Redirected {
        /// Which bridge.
        bridge: PciAddr,
    },
    /// Bridges let translated requests pass, but this function does not ask for translations.
    AtsOff {
        /// Which function.
        function: PciAddr,
    },
    /// What this bridge does could not be read (its extended configuration space needs root).
    Unknown {
        /// Which bridge.
        bridge: PciAddr,
    },
}

impl fmt::Display for Detour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommonBridge => f.write_str("they share no PCIe switch"),
            Self::Redirected { bridge } => write!(
                f,
                "bridge {bridge} redirects requests (ACS ReqRedir/CmpltRedir) and does not pass \
                 translated ones (DirectTrans-)"
            ),
            Self::AtsOff { function } => write!(
                f,
                "{function} does not use ATS, so that its requests are redirected; enable ATS in \
                 its firmware"
            ),
            Self::Unknown { bridge } => write!(f, "the ACS setting of {bridge} could not be read"),
        }
    }
}

/// The way between two functions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PeerPath {
    /// Ports on the way, with their ACS setting where it could be read.
    pub ports: Vec<(PciAddr, Option<Acs>)>,
    /// Why a transfer between the two goes over the root complex; `None` if it need not.
    pub detour: Option<Detour>,
}

impl PciTree {
    /// The way between two functions, as a transfer from either to the other finds it. `None` if
    /// one of them was not read.
    pub fn peer_path(&self, a: PciAddr, b: PciAddr) -> Option<PeerPath> {
        let functions = [self.node(a)?, self.node(b)?];
        let between = self.between(a, b);
        let ports: Vec<_> = between
            .up
            .iter()
            .chain(&between.down)
            .map(|port| (*port, self.node(*port).and_then(|node| node.acs).map(Acs)))
            .collect();
        let detour = if between.common.is_none() {
            Some(Detour::NoCommonBridge)
        } else {
            ports.iter().find_map(|(bridge, acs)| match acs {
                None => Some(Detour::Unknown { bridge: *bridge }),
                Some(acs) if !acs.redirects() => None,
                Some(acs) if !acs.passes_translated() => {
                    Some(Detour::Redirected { bridge: *bridge })
                }
                Some(_) => functions
                    .iter()
                    .find(|function| function.ats != Some(true))
                    .map(|function| Detour::AtsOff { function: function.addr }),
            })
        };
        Some(PeerPath { ports, detour })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{BRIDGE, GPU, NIC, at, node};

    /// A GPU and a NIC behind one switch whose ports have this ACS setting.
    fn switch(acs: Option<u16>, ats: bool) -> PciTree {
        let mut nodes = vec![
            node("0000:00:01.0", None, BRIDGE, 0),
            node("0000:01:00.0", Some("0000:00:01.0"), BRIDGE, 0),
            node("0000:02:00.0", Some("0000:01:00.0"), BRIDGE, 0),
            node("0000:02:01.0", Some("0000:01:00.0"), BRIDGE, 0),
            node("0000:03:00.0", Some("0000:02:00.0"), GPU, 0),
            node("0000:04:00.0", Some("0000:02:01.0"), NIC, 0),
        ];
        for node in &mut nodes {
            node.acs = acs;
            node.ats = Some(ats);
        }
        PciTree::new(nodes).expect("a tree")
    }

    fn detour(tree: &PciTree) -> Option<Detour> {
        let path = tree.peer_path(at("0000:03:00.0"), at("0000:04:00.0")).expect("both are there");
        assert_eq!(path.ports.len(), 2, "the switch's two downstream ports");
        path.detour
    }

    #[test]
    fn acs_is_printed_as_lspci_prints_it() {
        let text =
            "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+";
        assert_eq!(Acs(0x5d).to_string(), text);
    }

    #[test]
    fn without_redirection_the_short_way_is_open() {
        assert_eq!(detour(&switch(Some(0), false)), None);
    }

    #[test]
    fn redirection_takes_the_long_way_unless_translated_requests_pass() {
        let bridge = at("0000:02:00.0");
        assert_eq!(detour(&switch(Some(0x1d), true)), Some(Detour::Redirected { bridge }));
        assert_eq!(detour(&switch(Some(0x5d), true)), None);
        let function = at("0000:03:00.0");
        assert_eq!(detour(&switch(Some(0x5d), false)), Some(Detour::AtsOff { function }));
    }

    #[test]
    fn what_could_not_be_read_is_said_and_not_guessed() {
        let bridge = at("0000:02:00.0");
        assert_eq!(detour(&switch(None, true)), Some(Detour::Unknown { bridge }));
    }

    #[test]
    fn functions_of_different_root_ports_have_no_short_way() {
        let tree = crate::tree::tests::host();
        let path = tree.peer_path(at("0000:04:00.0"), at("0000:08:00.0")).expect("both are there");
        assert_eq!(path.detour, Some(Detour::NoCommonBridge));
    }
}
