//! The other gate: may this receiver have the frame, and in which form?

use lanekeeper_model::DropReason;

use super::net_header::NetHeader;
use super::offload::{Offload, OffloadSet};
use super::policy::{Ingress, PortPolicy, Tagging, UplinkPolicy};
use super::segment::{SegmentChecksum, SegmentPlan};
use super::vlan::{HeadEdit, Tag};

/// What is left to do before the receiver can take the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Nothing; the header says what the receiver may do itself.
    None,
    /// [`finish_checksum`](super::finish_checksum) with these arguments.
    FinishChecksum {
        /// Where the checksummed part starts, in bytes.
        start: u8,
        /// Where the checksum goes, in bytes from `start`.
        offset: u8,
    },
    /// Cut it up with [`Segments`](super::Segments). The header is then that of each segment.
    Segment(SegmentPlan),
}

/// The form in which a receiver is given a frame.
///
/// The edit comes first: header and work are about the edited frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Egress {
    /// What is done to the head.
    pub edit: HeadEdit,
    /// The virtio-net header to put before the frame.
    pub header: NetHeader,
    /// What else is done.
    pub work: Work,
}

/// Judges a frame for a VF, which takes the offloads in `accepts`.
///
/// # Errors
/// Why this VF does not get the frame; it is counted at the receiver.
#[inline]
pub fn judge_egress(
    receiver: &PortPolicy,
    accepts: OffloadSet,
    frame: &Ingress,
    frame_len: usize,
) -> Result<Egress, DropReason> {
    if !receiver.link_up {
        return Err(DropReason::LinkDown);
    }
    // The table routes inside the VLAN already. A wrong table must still not leak.
    if !receiver.is_member(frame.vlan) {
        return Err(DropReason::NoDestination);
    }
    if frame.offload.packet_len(frame_len, frame.layer3_at as usize) > receiver.mtu as usize {
        return Err(DropReason::TooLong);
    }
    let insert = if receiver.tagging == Tagging::Trunk { frame.tag } else { None };
    Ok(form(frame, insert, accepts))
}

/// Judges a frame for the uplink.
///
/// # Errors
/// Why the uplink does not get the frame; it is counted at the sender.
#[inline]
pub fn judge_uplink_egress(
    uplink: &UplinkPolicy,
    frame: &Ingress,
    frame_len: usize,
) -> Result<Egress, DropReason> {
    if !uplink.up {
        return Err(DropReason::LinkDown);
    }
    if frame.offload.packet_len(frame_len, frame.layer3_at as usize) > uplink.mtu as usize {
        return Err(DropReason::TooLong);
    }
    Ok(form(frame, frame.tag, uplink.offloads))
}

#[inline]
fn form(frame: &Ingress, insert: Option<Tag>, accepts: OffloadSet) -> Egress {
    let edit = HeadEdit { remove: frame.strip, insert };
    if frame.offload == Offload::None {
        return Egress { edit, header: NetHeader::default(), work: Work::None };
    }
    offloaded(edit, frame, accepts)
}

fn offloaded(edit: HeadEdit, frame: &Ingress, accepts: OffloadSet) -> Egress {
    let growth = edit.growth();
    let offload = frame.offload.moved(growth);
    let taken = Egress { edit, header: offload.header(), work: Work::None };
    let checksums = accepts.has(OffloadSet::CHECKSUM);
    let plain = NetHeader::default();
    match offload {
        Offload::Verified | Offload::Checksum { .. } if checksums => taken,
        Offload::None | Offload::Verified => Egress { header: plain, ..taken },
        Offload::Checksum { start, offset } => {
            Egress { edit, header: plain, work: Work::FinishChecksum { start, offset } }
        }
        Offload::Segments { kind, ecn, transport_at, .. } => {
            let needs = if ecn { kind.offload().with(OffloadSet::ECN) } else { kind.offload() };
            if checksums && accepts.has(needs) {
                return taken;
            }
            let partial = Offload::Checksum { start: transport_at, offset: kind.checksum_offset() };
            let (checksum, header) = if checksums {
                (SegmentChecksum::Partial, partial.header())
            } else {
                (SegmentChecksum::Full, plain)
            };
            let layer3_at = frame.layer3_at.saturating_add_signed(growth);
            let plan = SegmentPlan { offload, layer3_at, checksum };
            Egress { edit, header, work: Work::Segment(plan) }
        }
    }
}
