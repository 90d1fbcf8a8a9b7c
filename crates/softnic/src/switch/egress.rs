//! The other gate: may this receiver have the frame, and in which form?

use lanekeeper_model::DropReason;

use super::net_header::NetHeader;
use super::offload::{Offload, OffloadSet, PackedOffload};
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
    /// Offload of the edited frame.
    packed: PackedOffload,
    form: Form,
}

/// Who does what the offload asks for. With the start of layer 3 beside it, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Form(u64);

const RECEIVER_DOES: u64 = 0;
const WE_FINISH: u64 = 1;
const WE_CUT: u64 = 2;
const WE_CUT_AND_FINISH: u64 = 3;

impl Egress {
    /// Whether the frame is delivered as it came, behind a header of zeros.
    #[inline]
    pub const fn is_plain(&self) -> bool {
        self.edit.is_none() && self.packed.is_none()
    }

    /// The virtio-net header to put before the frame, or before each of its segments.
    #[inline]
    pub fn header(&self) -> NetHeader {
        if self.packed.is_none() {
            return NetHeader::default();
        }
        match (self.form.0 & 3, self.packed.unpack()) {
            (RECEIVER_DOES, offload) => offload.header(),
            (WE_CUT, Offload::Segments { kind, transport_at, .. }) => {
                let offset = kind.checksum_offset();
                Offload::Checksum { start: transport_at, offset }.header()
            }
            _ => NetHeader::default(),
        }
    }

    /// What else is to be done.
    #[inline]
    pub fn work(&self) -> Work {
        if self.packed.is_none() {
            return Work::None;
        }
        let form = self.form.0 & 3;
        match (form, self.packed.unpack()) {
            (WE_FINISH, Offload::Checksum { start, offset }) => {
                Work::FinishChecksum { start, offset }
            }
            (WE_CUT | WE_CUT_AND_FINISH, offload) => Work::Segment(SegmentPlan {
                offload,
                layer3_at: (self.form.0 >> 8) as u8,
                checksum: if form == WE_CUT {
                    SegmentChecksum::Partial
                } else {
                    SegmentChecksum::Full
                },
            }),
            _ => Work::None,
        }
    }
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
    if !receiver.is_member(frame.vlan()) {
        return Err(DropReason::NoDestination);
    }
    if frame.packet_len(frame_len) > receiver.mtu as usize {
        return Err(DropReason::TooLong);
    }
    let insert = if receiver.tagging == Tagging::Trunk { frame.tag() } else { None };
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
    if frame.packet_len(frame_len) > uplink.mtu as usize {
        return Err(DropReason::TooLong);
    }
    Ok(form(frame, frame.tag(), uplink.offloads))
}

#[inline]
fn form(frame: &Ingress, insert: Option<Tag>, accepts: OffloadSet) -> Egress {
    let edit = HeadEdit::new(frame.strip(), insert);
    let unmoved = frame.packed.is_none() || edit.growth() == 0;
    if unmoved && frame.packed.is_accepted(accepts) {
        return Egress { edit, packed: frame.packed, form: Form(RECEIVER_DOES) };
    }
    offloaded(edit, frame, accepts)
}

/// The rest of [`form`]: the offload has moved, or the receiver cannot take it.
fn offloaded(edit: HeadEdit, frame: &Ingress, accepts: OffloadSet) -> Egress {
    let growth = edit.growth();
    let offload = frame.offload().moved(growth);
    let layer3_at = frame.layer3_at().saturating_add_signed(growth);
    let accepted = frame.packed.is_accepted(accepts);
    let (offload, form) = match offload {
        _ if accepted => (offload, RECEIVER_DOES),
        Offload::Checksum { .. } => (offload, WE_FINISH),
        Offload::Segments { .. } if accepts.has(OffloadSet::CHECKSUM) => (offload, WE_CUT),
        Offload::Segments { .. } => (offload, WE_CUT_AND_FINISH),
        // Nothing is lost but the word of whoever verified the checksum.
        Offload::None | Offload::Verified => (Offload::None, RECEIVER_DOES),
    };
    let form = Form(u64::from(layer3_at) << 8 | form);
    Egress { edit, packed: PackedOffload::pack(offload), form }
}
