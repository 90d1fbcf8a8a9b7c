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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::{MAC_A, Packet, tagged};
    use crate::switch::head::HEAD;
    use crate::switch::vlan::EDITED_HEAD;
    use crate::switch::{judge_ingress, judge_uplink};
    use lanekeeper_model::{LinkState, MacAddr, Mtu, VfSettings, VlanId, VlanProtocol, VlanTag};

    const WIRE: UplinkPolicy = UplinkPolicy { up: true, mtu: 1500, offloads: OffloadSet::ALL };

    fn settings() -> VfSettings {
        VfSettings::for_mac(MacAddr(MAC_A)).expect("a station's address")
    }

    fn in_vlan(id: u32, protocol: VlanProtocol) -> VfSettings {
        let id = VlanId::new(id).expect("valid");
        VfSettings { vlan: VlanTag { id, protocol, ..VlanTag::default() }, ..settings() }
    }

    fn trunk() -> VfSettings {
        VfSettings { trust: true, ..settings() }
    }

    fn port(settings: &VfSettings) -> PortPolicy {
        PortPolicy::new(settings, None)
    }

    fn enter(sender: &VfSettings, frame: &[u8], header: NetHeader) -> Ingress {
        let head = &frame[..frame.len().min(HEAD)];
        judge_ingress(&port(sender), head, frame.len(), &header, OffloadSet::ALL).expect("allowed")
    }

    fn as_delivered(frame: &[u8], egress: &Egress) -> Vec<u8> {
        let head = &frame[..frame.len().min(HEAD)];
        let mut edited = [0; EDITED_HEAD];
        let length = egress.edit.apply(head, &mut edited);
        [&edited[..length], &frame[head.len()..]].concat()
    }

    #[test]
    fn each_receiver_sees_the_vlan_as_its_kind_of_port_does() {
        let plain = Packet::udp4(&[0; 300]).bytes();
        let on_vlan_9 = tagged(&plain, 0x8100, 9);
        let access = in_vlan(9, VlanProtocol::Dot1Q);
        for (sender, frame) in [(&access, &plain), (&trunk(), &on_vlan_9)] {
            let ingress = enter(sender, frame, NetHeader::default());
            let to = |receiver: &VfSettings| {
                judge_egress(&port(receiver), OffloadSet::NONE, &ingress, frame.len())
                    .map(|egress| as_delivered(frame, &egress))
            };
            assert_eq!(to(&access), Ok(plain.clone()), "to an access port");
            assert_eq!(to(&trunk()), Ok(on_vlan_9.clone()), "to a trunk");
            let wire = judge_uplink_egress(&WIRE, &ingress, frame.len()).expect("allowed");
            assert_eq!(as_delivered(frame, &wire), on_vlan_9, "to the wire");
            for other in
                [settings(), in_vlan(8, VlanProtocol::Dot1Q), in_vlan(9, VlanProtocol::Dot1Ad)]
            {
                assert_eq!(to(&other), Err(DropReason::NoDestination));
            }
        }
    }

    #[test]
    fn a_service_vlan_carries_customer_tags_to_its_members_and_to_the_wire() {
        let frame = tagged(&Packet::udp4(&[0; 300]).bytes(), 0x8100, 7);
        let service = in_vlan(9, VlanProtocol::Dot1Ad);
        let ingress = enter(&service, &frame, NetHeader::default());
        let member = judge_egress(&port(&service), OffloadSet::NONE, &ingress, frame.len());
        assert_eq!(as_delivered(&frame, &member.expect("a member")), frame);
        let wire = judge_uplink_egress(&WIRE, &ingress, frame.len()).expect("allowed");
        assert_eq!(as_delivered(&frame, &wire), tagged(&frame, 0x88a8, 9));
        let trunk = judge_egress(&port(&trunk()), OffloadSet::NONE, &ingress, frame.len());
        assert_eq!(trunk, Err(DropReason::NoDestination));
    }

    #[test]
    fn what_went_to_the_wire_comes_back_from_it_as_it_was() {
        let frame = Packet::udp4(&[0; 300]).bytes();
        for vlan in [in_vlan(9, VlanProtocol::Dot1Q), in_vlan(9, VlanProtocol::Dot1Ad)] {
            let sent = enter(&vlan, &frame, NetHeader::default());
            let egress = judge_uplink_egress(&WIRE, &sent, frame.len()).expect("allowed");
            let wire = as_delivered(&frame, &egress);
            let came = judge_uplink(&WIRE, &wire[..HEAD], wire.len(), &NetHeader::default(), None)
                .expect("allowed");
            let egress = judge_egress(&port(&vlan), OffloadSet::NONE, &came, wire.len());
            assert_eq!(as_delivered(&wire, &egress.expect("a member")), frame);
        }
    }

    #[test]
    fn a_receiver_with_its_link_down_or_a_smaller_mtu_gets_nothing() {
        let frame = Packet::udp4(&[0; 1000]).bytes();
        let ingress = enter(&settings(), &frame, NetHeader::default());
        let to = |receiver: &VfSettings| {
            judge_egress(&port(receiver), OffloadSet::NONE, &ingress, frame.len()).map(|_| ())
        };
        assert_eq!(to(&settings()), Ok(()));
        let down = VfSettings { link_state: LinkState::Disable, ..settings() };
        assert_eq!(to(&down), Err(DropReason::LinkDown));
        let exact = Mtu::new(1028).expect("valid");
        assert_eq!(to(&VfSettings { mtu: exact, ..settings() }), Ok(()));
        let small = Mtu::new(1027).expect("valid");
        assert_eq!(to(&VfSettings { mtu: small, ..settings() }), Err(DropReason::TooLong));
        let wire = UplinkPolicy { mtu: 1027, ..WIRE };
        let too_long = judge_uplink_egress(&wire, &ingress, frame.len());
        assert_eq!(too_long, Err(DropReason::TooLong));
        let down = judge_uplink_egress(&UplinkPolicy { up: false, ..WIRE }, &ingress, frame.len());
        assert_eq!(down, Err(DropReason::LinkDown));
    }

    fn tso(ecn: bool) -> (Vec<u8>, NetHeader) {
        let header = NetHeader {
            flags: NetHeader::NEEDS_CSUM,
            gso_type: NetHeader::GSO_TCPV4 | if ecn { NetHeader::GSO_ECN } else { 0 },
            hdr_len: 54,
            gso_size: 1000,
            csum_start: 34,
            csum_offset: 16,
        };
        (Packet { cwr: ecn, ..Packet::tcp4(&[7; 5000]) }.bytes(), header)
    }

    #[test]
    fn a_receiver_is_given_as_much_offload_as_it_takes() {
        let (frame, header) = tso(true);
        let ingress = enter(&settings(), &frame, header);
        let to = |accepts| {
            judge_egress(&port(&settings()), accepts, &ingress, frame.len()).expect("allowed")
        };
        let all = to(OffloadSet::ALL);
        assert_eq!((all.header(), all.work()), (header, Work::None));
        let plan = |checksum| SegmentPlan { offload: ingress.offload(), layer3_at: 14, checksum };
        let no_ecn = to(OffloadSet::ALL.without(OffloadSet::ECN));
        assert_eq!(no_ecn.work(), Work::Segment(plan(SegmentChecksum::Partial)));
        assert_eq!((no_ecn.header().flags, no_ecn.header().gso_type), (NetHeader::NEEDS_CSUM, 0));
        assert_eq!((no_ecn.header().csum_start, no_ecn.header().csum_offset), (34, 16));
        let none = to(OffloadSet::NONE);
        assert_eq!(none.work(), Work::Segment(plan(SegmentChecksum::Full)));
        assert_eq!(none.header(), NetHeader::default());
    }

    #[test]
    fn an_unfinished_checksum_is_finished_for_who_cannot() {
        let frame = Packet::udp4(&[0; 100]).bytes();
        let header = NetHeader {
            flags: NetHeader::NEEDS_CSUM,
            csum_start: 34,
            csum_offset: 6,
            hdr_len: 42,
            ..NetHeader::default()
        };
        let ingress = enter(&settings(), &frame, header);
        let to = |accepts| {
            judge_egress(&port(&settings()), accepts, &ingress, frame.len()).expect("allowed")
        };
        let able = to(OffloadSet::CHECKSUM);
        assert_eq!((able.header(), able.work()), (header, Work::None));
        let unable = to(OffloadSet::NONE);
        assert_eq!(unable.header(), NetHeader::default());
        assert_eq!(unable.work(), Work::FinishChecksum { start: 34, offset: 6 });
        assert!(!unable.is_plain());
    }

    #[test]
    fn offsets_move_with_the_tag() {
        let (frame, header) = tso(false);
        let tagged_frame = tagged(&frame, 0x8100, 9);
        let moved = NetHeader { csum_start: 38, hdr_len: 58, ..header };
        let access = in_vlan(9, VlanProtocol::Dot1Q);
        let put_on = enter(&access, &frame, header);
        let wire = judge_uplink_egress(&WIRE, &put_on, frame.len()).expect("allowed");
        assert_eq!(wire.header(), moved);
        let taken_off = enter(&trunk(), &tagged_frame, moved);
        let to_access =
            judge_egress(&port(&access), OffloadSet::ALL, &taken_off, tagged_frame.len());
        assert_eq!(to_access.expect("a member").header(), header);
        let cut = judge_egress(&port(&access), OffloadSet::NONE, &taken_off, tagged_frame.len());
        let Work::Segment(plan) = cut.expect("a member").work() else { panic!("not cut") };
        assert_eq!(plan.layer3_at, 14);
        let Offload::Segments { transport_at, headers, .. } = plan.offload else {
            panic!("no segments")
        };
        assert_eq!((transport_at, headers), (34, 54));
    }

    #[test]
    fn a_verified_checksum_is_told_to_those_who_understand() {
        let frame = Packet::udp4(&[0; 100]).bytes();
        let header = NetHeader { flags: NetHeader::DATA_VALID, ..NetHeader::default() };
        let came = judge_uplink(&WIRE, &frame[..HEAD], frame.len(), &header, None);
        let came = came.expect("allowed");
        let to = |accepts| {
            judge_egress(&port(&settings()), accepts, &came, frame.len()).expect("allowed")
        };
        assert_eq!(to(OffloadSet::CHECKSUM).header(), header);
        assert!(to(OffloadSet::NONE).is_plain());
        assert_eq!(to(OffloadSet::NONE).work(), Work::None);
    }
}
