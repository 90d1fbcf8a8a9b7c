//! The embedded switch: which frames a VF may send, where they go, and what the receiver is given.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no lock and, on the path
//! of a frame, no allocation. A worker copies the first [`HEAD`] bytes of a frame and its
//! virtio-net header out of guest memory once, and only that copy is judged and delivered, so a VM
//! that rewrites a header while it is being read gains nothing.
//!
//! The path of one frame: [`NetHeader::parse`], [`judge_ingress`] (or [`judge_uplink`]),
//! [`SwitchTable::route`], then [`judge_egress`] (or [`judge_uplink_egress`]) for each receiver,
//! which says how the head is edited and whether the receiver needs [`finish_checksum`] or
//! [`Segments`] first.
#![forbid(unsafe_code)]

mod checksum;
mod counters;
mod egress;
mod fdb;
mod head;
mod meter;
mod net_header;
mod offload;
mod policy;
mod segment;
mod spoof;
mod table;
mod vlan;

#[cfg(test)]
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz_harness;

pub use checksum::{FrameBytes, finish_checksum};
pub use counters::{Drops, PortTally, WorkerCounters};
pub use egress::{Egress, Work, judge_egress, judge_uplink_egress};
pub use fdb::{Fdb, FdbBuilder, Occupied};
pub use head::{Fragment, HEAD, Head, IpHead, Layer3, flow_hash};
pub use meter::Meter;
pub use net_header::NetHeader;
pub use offload::{MAX_SEGMENTS, MAX_SUPER_FRAME, Offload, OffloadSet, SegmentKind};
pub use policy::{Ingress, PortPolicy, UplinkPolicy, judge_ingress, judge_uplink};
pub use segment::{Segment, SegmentChecksum, SegmentPlan, Segments};
pub use table::{
    DuplicateMac, Learned, MAX_EXTRA_MACS, MAX_LEARNED_MACS, PortSpec, Route, Source, SwitchTable,
};
pub use vlan::{EDITED_HEAD, HeadEdit, Tag, VlanKey};
