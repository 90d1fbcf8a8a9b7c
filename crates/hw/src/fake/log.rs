//! Every write that reached a fake host, as typed values that a test counts and compares.

use lanekeeper_model::{EswitchMode, Mtu, PfAddr, RoceSetting, VfAddr, VfIndex};

use crate::inventory::RepresentorState;
use crate::message::VfMessage;

/// One write, as it was asked for.
#[derive(Clone, PartialEq, Debug)]
pub enum Write {
    /// `sriov_numvfs`.
    NumVfs(PfAddr, u16),
    /// `sriov_drivers_autoprobe`.
    Autoprobe(PfAddr, bool),
    /// The PF's interface, up or down.
    Up(PfAddr, bool),
    /// Mode of the embedded switch.
    Eswitch(PfAddr, EswitchMode),
    /// A message for one VF.
    Vf(PfAddr, VfIndex, VfMessage),
    /// MTU of a VF's interface.
    VfMtu(PfAddr, VfIndex, Mtu),
    /// A VF's representor.
    Representor(PfAddr, VfIndex, RepresentorState),
    /// `driver_override`.
    DriverOverride(VfAddr, Option<String>),
    /// `unbind`.
    Unbind(VfAddr),
    /// `drivers_probe`.
    Probe(VfAddr),
    /// `reset`.
    Reset(VfAddr),
    /// One thing of the RoCE profile.
    Roce(PfAddr, RoceSetting),
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It has not returned yet.
    Outstanding,
    /// Done.
    Done,
    /// Refused; of a message, what comes before the refused attribute stays.
    Refused,
}

/// A write and its end.
#[derive(Clone, PartialEq, Debug)]
pub struct Written {
    /// What was asked for.
    pub write: Write,
    /// How it ended.
    pub end: End,
}
