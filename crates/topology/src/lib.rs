//! How far PCIe functions of one host are from each other, and what lies between them: which VF is
//! beside which GPU, and whether a transfer between the two can stay on the bridges that they share.
//!
//! Pure: it works on what [`lanekeeper_hw::SriovHardware::pci_tree`] read.
#![forbid(unsafe_code)]

mod acs;
mod distance;
mod position;
mod tree;

pub use acs::{Acs, Detour, PeerPath};
pub use distance::{Affinity, AffinityError, Distance, Strictness};
pub use position::Position;
pub use tree::{Kind, PciTree, TreeError};
