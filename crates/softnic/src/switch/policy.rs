//! The gate: may this frame enter the switch, from a VF or from the uplink, and as what?
//!
//! A VF's settings are compiled into a [`PortPolicy`] once, off the path of frames. VLANs follow
//! from the settings like this:
//!
//! | settings                | the VM's own tags                                               |
//! |-------------------------|-----------------------------------------------------------------|
//! | no VLAN, not trusted    | none allowed                                                    |
//! | no VLAN, trusted        | one 802.1Q tag chooses the VLAN (trunk); frames arrive tagged    |
//! | access VLAN, 802.1Q     | none allowed                                                    |
//! | access VLAN, 802.1ad    | 802.1Q tags are the customer's and pass untouched                |
//!
//! A priority tag (802.1Q, VLAN id 0) is no VLAN: it is taken off, except where it is a customer's.
//! No tag may stand behind one, or taking it off would bare a tag that nobody checked.

use lanekeeper_model::{DropReason, LinkState, VfSettings, VlanProtocol};

use super::head::{ETHERNET, Head, Layer3, ethernet};
use super::net_header::NetHeader;
use super::offload::{Offload, OffloadSet, PackedOffload};
use super::spoof::BoundAddresses;
use super::vlan::{TAG_LEN, Tag, VlanKey, is_tag};

/// How a VF's tags are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tagging {
    /// Untagged, in no VLAN or in an 802.1Q access VLAN.
    Access,
    /// Untagged or tagged by the customer, in an 802.1ad access VLAN.
    Customer,
    /// The VM chooses.
    Trunk,
}

/// One VF's settings, compiled for the path of frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortPolicy {
    pub(super) link_up: bool,
    spoofchk: bool,
    pub(super) trusted: bool,
    pub(super) tagging: Tagging,
    pub(super) vlan: VlanKey,
    pub(super) mtu: u16,
    pub(super) tag: Option<Tag>,
    /// `0` for none, which no source address equals.
    pub(super) mac: u64,
    /// What an untagged frame of this VF belongs to.
    untagged: Meta,
    bound: Option<Box<BoundAddresses>>,
}

impl PortPolicy {
    /// Compiles a VF's settings. `uplink_up` is `None` on a NIC without uplink.
    pub fn new(settings: &VfSettings, uplink_up: Option<bool>) -> Self {
        let mac = settings.mac.to_u64();
        let tagging = match (settings.vlan.id.is_some(), settings.vlan.protocol) {
            (true, VlanProtocol::Dot1Ad) => Tagging::Customer,
            (false, _) if settings.trust => Tagging::Trunk,
            _ => Tagging::Access,
        };
        let bound = if settings.spoofchk {
            BoundAddresses::new(&settings.addresses, mac, settings.trust).map(Box::new)
        } else {
            None
        };
        let vlan = VlanKey::new(settings.vlan.protocol, settings.vlan.id);
        let tag = Tag::of(settings.vlan);
        Self {
            link_up: match settings.link_state {
                LinkState::Auto => uplink_up.unwrap_or(true),
                LinkState::Enable => true,
                LinkState::Disable => false,
            },
            spoofchk: settings.spoofchk,
            trusted: settings.trust,
            tagging,
            vlan,
            mtu: settings.mtu.get(),
            tag,
            mac,
            untagged: Meta::new(vlan, ETHERNET as u8, 0, tag),
            bound,
        }
    }

    /// Whether frames pass at all.
    pub const fn link_up(&self) -> bool {
        self.link_up
    }

    /// Largest packet, in bytes.
    pub const fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Whether the VM may use MAC addresses beside its own, so that replies to them must find it.
    pub const fn uses_further_macs(&self) -> bool {
        self.trusted && !self.spoofchk
    }

    /// Whether frames of this VLAN may be given to the VF.
    #[inline]
    pub fn is_member(&self, vlan: VlanKey) -> bool {
        match self.tagging {
            Tagging::Access | Tagging::Customer => vlan == self.vlan,
            Tagging::Trunk => vlan.on_trunk(),
        }
    }

    /// What the VM's tags mean: the VLAN, the tag that stands for it outside, and how many bytes
    /// of tag are taken off.
    fn admit_tags(&self, head: &Head) -> Result<(VlanKey, Option<Tag>, u8), DropReason> {
        const FORGED: DropReason = DropReason::ForgedVlan;
        let own = (self.vlan, self.tag, 0);
        let Some(outer) = head.outer else {
            // A tag so cut off that it could not be read.
            return if is_tag(head.ethertype) { Err(FORGED) } else { Ok(own) };
        };
        if outer.tpid() != VlanProtocol::Dot1Q.ethertype() {
            return Err(FORGED);
        }
        if self.tagging == Tagging::Customer {
            return Ok(own);
        }
        if outer.vid() == 0 {
            let alone = head.tags == 1 && !is_tag(head.ethertype);
            return if alone { Ok((self.vlan, self.tag, TAG_LEN as u8)) } else { Err(FORGED) };
        }
        if self.tagging != Tagging::Trunk {
            return Err(FORGED);
        }
        let vlan = VlanKey::from_tag(outer).ok_or(FORGED)?;
        Ok((vlan, Some(outer), TAG_LEN as u8))
    }
}

/// The uplink's state, as frames see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UplinkPolicy {
    /// Whether it has a carrier.
    pub up: bool,
    /// Largest packet it takes, in bytes; a loopback's MTU is beyond that of a VF.
    pub mtu: u32,
    /// Offloads it takes and those it sends.
    pub offloads: OffloadSet,
}

impl UplinkPolicy {
    /// An uplink that takes Ethernet's own packets and no offload, with carrier.
    pub const PLAIN: Self = Self { up: true, mtu: 1500, offloads: OffloadSet::NONE };
}

/// A frame that was let in. Offsets are those of the frame as it came, tags included.
///
/// Four words, for the reason given at [`HeadEdit`](super::HeadEdit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingress {
    /// Destination MAC, first byte highest.
    pub dst: u64,
    /// Source MAC, first byte highest.
    pub src: u64,
    pub(super) meta: Meta,
    pub(super) packed: PackedOffload,
}

/// VLAN in bits 63..48, start of layer 3 in 47..40, bytes of tag to strip in 39..32, tag in 31..0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta(u64);

impl Meta {
    const fn new(vlan: VlanKey, layer3_at: u8, strip: u8, tag: Option<Tag>) -> Self {
        Self(
            (vlan.index() as u64) << 48
                | (layer3_at as u64) << 40
                | (strip as u64) << 32
                | Tag::bits(tag) as u64,
        )
    }
}

impl Ingress {
    /// The VLAN it belongs to.
    #[inline]
    pub const fn vlan(&self) -> VlanKey {
        VlanKey::from_bits((self.meta.0 >> 48) as u16)
    }

    /// The tag that stands for that VLAN where frames are tagged: on the wire and on a trunk.
    #[inline]
    pub const fn tag(&self) -> Option<Tag> {
        Tag::from_bits(self.meta.0 as u32)
    }

    /// Bytes at offset 12 that no receiver is given: 0 or 4.
    #[inline]
    pub const fn strip(&self) -> u8 {
        (self.meta.0 >> 32) as u8
    }

    /// Where the layer-3 header starts in the frame as it came.
    #[inline]
    pub const fn layer3_at(&self) -> u8 {
        (self.meta.0 >> 40) as u8
    }

    /// What its sender left to do.
    pub fn offload(&self) -> Offload {
        self.packed.unpack()
    }

    /// What the frame of `frame_len` bytes takes on a wire; a [`Meter`](super::Meter) is charged
    /// with it. See [`Offload::wire_bytes`].
    #[inline]
    pub fn wire_bytes(&self, frame_len: usize) -> usize {
        if self.packed.is_none() { frame_len } else { self.offload().wire_bytes(frame_len) }
    }

    /// Length of the longest packet that the frame stands for; see [`Offload::packet_len`].
    #[inline]
    pub(super) fn packet_len(&self, frame_len: usize) -> usize {
        let layer3_at = self.layer3_at() as usize;
        if self.packed.is_none() {
            frame_len.saturating_sub(layer3_at)
        } else {
            self.offload().packet_len(frame_len, layer3_at)
        }
    }

    /// Whether the destination is a group: multicast or broadcast.
    #[inline]
    pub const fn is_group(&self) -> bool {
        is_group(self.dst)
    }
}

/// Group bit of a MAC (IEEE 802-2014, 8.2.2).
const fn is_group(mac: u64) -> bool {
    mac >> 40 & 1 == 1
}

/// The addresses 01:80:C2:00:00:00 to 0F, which no bridge forwards (IEEE 802.1Q-2022, table 8-1).
/// MAC control frames, pause and PFC among them, are sent to one of these (802.3, 31B and 31D).
const fn is_reserved(mac: u64) -> bool {
    mac & !0xf == 0x0180_c200_0000
}

/// Judges a frame from a VF.
///
/// `head` are the first [`HEAD`](super::HEAD) bytes (fewer if the frame is shorter) of a frame of
/// `frame_len` bytes, `header` what stood before it, `may_send` the offloads that the driver
/// negotiated.
///
/// # Errors
/// Why the frame is dropped; it is counted at its sender.
#[inline]
pub fn judge_ingress(
    policy: &PortPolicy,
    head: &[u8],
    frame_len: usize,
    header: &NetHeader,
    may_send: OffloadSet,
) -> Result<Ingress, DropReason> {
    if !policy.link_up {
        return Err(DropReason::LinkDown);
    }
    let (dst, src, ethertype) = ethernet(head).ok_or(DropReason::TooShort)?;
    judge_addresses(dst, src)?;
    if policy.spoofchk && src != policy.mac {
        return Err(DropReason::SpoofedMac);
    }
    let spoken_for = policy.bound.as_ref().is_none_or(|bound| bound.plainly_owns(head, ethertype));
    let packed = if header.is_plain() {
        Some(PackedOffload::NONE)
    } else {
        PackedOffload::of_common_checksum(header, head, ethertype, may_send)
    };
    let Some(packed) = packed.filter(|_| spoken_for && !is_tag(ethertype)) else {
        return judge_in_full(policy, head, frame_len, header, may_send);
    };
    if frame_len > policy.mtu as usize + ETHERNET {
        return Err(DropReason::TooLong);
    }
    Ok(Ingress { dst, src, meta: policy.untagged, packed })
}

#[inline]
fn judge_addresses(dst: u64, src: u64) -> Result<(), DropReason> {
    if is_reserved(dst) {
        return Err(DropReason::Reserved);
    }
    if src == 0 || is_group(src) {
        return Err(DropReason::BadSource);
    }
    Ok(())
}

/// The rest of [`judge_ingress`] for frames with a tag or an offload, and for VFs with bound
/// addresses.
#[inline(never)]
fn judge_in_full(
    policy: &PortPolicy,
    bytes: &[u8],
    frame_len: usize,
    header: &NetHeader,
    may_send: OffloadSet,
) -> Result<Ingress, DropReason> {
    let head = Head::parse(bytes).ok_or(DropReason::TooShort)?;
    let (vlan, tag, strip) = policy.admit_tags(&head)?;
    let offload = Offload::check(header, frame_len, bytes, &head, may_send)?;
    if offload.packet_len(frame_len, head.layer3_at()) > policy.mtu as usize {
        return Err(DropReason::TooLong);
    }
    if let Some(bound) = &policy.bound {
        bound.judge(bytes, frame_len, &head)?;
    }
    let meta = Meta::new(vlan, head.layer3_at() as u8, strip, tag);
    Ok(Ingress { dst: head.dst, src: head.src, meta, packed: PackedOffload::pack(offload) })
}

/// Judges a frame from the uplink.
///
/// `removed_tag` is a tag that the kernel has already taken out of the frame, as an `AF_PACKET`
/// socket does; the arguments otherwise are those of [`judge_ingress`].
///
/// # Errors
/// Why the frame is dropped; it is counted at the uplink.
pub fn judge_uplink(
    uplink: &UplinkPolicy,
    bytes: &[u8],
    frame_len: usize,
    header: &NetHeader,
    removed_tag: Option<Tag>,
) -> Result<Ingress, DropReason> {
    let head = Head::parse(bytes).ok_or(DropReason::TooShort)?;
    judge_addresses(head.dst, head.src)?;
    let (outer, strip, behind) = match removed_tag {
        Some(tag) => (Some(tag), 0, head.tags > 0),
        None => (head.outer, head.outer.map_or(0, |_| TAG_LEN as u8), head.tags > 1),
    };
    let tagged_behind = behind || (is_tag(head.ethertype) && head.layer3 == Layer3::Unreadable);
    let (vlan, tag) = match outer {
        None if tagged_behind => return Err(DropReason::NoDestination),
        None => (VlanKey::NONE, None),
        Some(outer) => match VlanKey::from_tag(outer) {
            // Behind a priority tag another tag would be bared by taking the first one off.
            Some(VlanKey::NONE) if tagged_behind => return Err(DropReason::NoDestination),
            Some(VlanKey::NONE) => (VlanKey::NONE, None),
            Some(vlan) => (vlan, Some(outer)),
            None => return Err(DropReason::NoDestination),
        },
    };
    let offload = Offload::check(header, frame_len, bytes, &head, uplink.offloads)?;
    let meta = Meta::new(vlan, head.layer3_at() as u8, strip, tag);
    Ok(Ingress { dst: head.dst, src: head.src, meta, packed: PackedOffload::pack(offload) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::{MAC_A, Packet, tagged};
    use crate::switch::head::HEAD;
    use lanekeeper_model::{MacAddr, Mtu, Pcp, VlanId, VlanTag};

    fn settings() -> VfSettings {
        VfSettings::for_mac(MacAddr(MAC_A)).expect("a station's address")
    }

    fn in_vlan(id: u32, protocol: VlanProtocol) -> VfSettings {
        let (id, pcp) = (VlanId::new(id).expect("valid"), Pcp::new(3).expect("valid"));
        VfSettings { vlan: VlanTag { id, pcp, protocol }, ..settings() }
    }

    fn trunk() -> VfSettings {
        VfSettings { trust: true, ..settings() }
    }

    fn judge(settings: &VfSettings, frame: &[u8]) -> Result<Ingress, DropReason> {
        let head = &frame[..frame.len().min(HEAD)];
        let policy = PortPolicy::new(settings, None);
        judge_ingress(&policy, head, frame.len(), &NetHeader::default(), OffloadSet::NONE)
    }

    fn frame() -> Vec<u8> {
        Packet::udp4(&[1; 60]).bytes()
    }

    fn key(protocol: VlanProtocol, id: u32) -> VlanKey {
        VlanKey::new(protocol, VlanId::new(id).expect("valid"))
    }

    #[test]
    fn an_untagged_frame_gets_the_access_vlan_and_its_tag() {
        for protocol in [VlanProtocol::Dot1Q, VlanProtocol::Dot1Ad] {
            let ingress = judge(&in_vlan(7, protocol), &frame()).expect("allowed");
            assert_eq!(ingress.vlan(), key(protocol, 7));
            assert_eq!(ingress.tag(), Tag::new(protocol.ethertype(), 3 << 13 | 7));
            assert_eq!((ingress.strip(), ingress.layer3_at()), (0, 14));
        }
    }

    #[test]
    fn without_trust_no_tag_is_allowed_whatever_its_kind() {
        for settings in [settings(), in_vlan(7, VlanProtocol::Dot1Q)] {
            for tpid in [0x8100, 0x88a8, 0x9100] {
                for vid in [7, 8, 4095] {
                    let verdict = judge(&settings, &tagged(&frame(), tpid, vid));
                    assert_eq!(verdict, Err(DropReason::ForgedVlan), "{tpid:x} {vid}");
                }
            }
        }
    }

    #[test]
    fn a_priority_tag_is_taken_off_and_is_not_the_vlan() {
        let frame = tagged(&frame(), 0x8100, 5 << 13);
        for (settings, vlan) in [
            (settings(), VlanKey::NONE),
            (trunk(), VlanKey::NONE),
            (in_vlan(7, VlanProtocol::Dot1Q), key(VlanProtocol::Dot1Q, 7)),
        ] {
            let ingress = judge(&settings, &frame).expect("allowed");
            assert_eq!((ingress.vlan(), ingress.strip()), (vlan, 4));
            assert_eq!(ingress.tag(), Tag::of(settings.vlan));
        }
    }

    #[test]
    fn a_tag_behind_a_priority_tag_is_not_bared() {
        for tpid in [0x8100, 0x88a8, 0x9100] {
            let frame = tagged(&tagged(&frame(), tpid, 9), 0x8100, 0);
            for settings in [settings(), trunk(), in_vlan(7, VlanProtocol::Dot1Q)] {
                assert_eq!(judge(&settings, &frame), Err(DropReason::ForgedVlan));
                // Cut off in the middle of the hidden tag.
                let cut = judge(&settings, &frame[..18]);
                assert_eq!(cut, Err(DropReason::ForgedVlan));
            }
        }
    }

    #[test]
    fn behind_a_service_vlan_customer_tags_pass_and_service_tags_do_not() {
        let settings = in_vlan(7, VlanProtocol::Dot1Ad);
        for vid in [0, 9] {
            let ingress = judge(&settings, &tagged(&frame(), 0x8100, vid)).expect("allowed");
            assert_eq!(ingress.vlan(), key(VlanProtocol::Dot1Ad, 7));
            assert_eq!((ingress.strip(), ingress.layer3_at()), (0, 18));
        }
        for tpid in [0x88a8, 0x9100] {
            let verdict = judge(&settings, &tagged(&frame(), tpid, 7));
            assert_eq!(verdict, Err(DropReason::ForgedVlan));
        }
    }

    #[test]
    fn a_trusted_vf_without_vlan_chooses_its_vlan() {
        let ingress = judge(&trunk(), &tagged(&frame(), 0x8100, 0x6009)).expect("allowed");
        assert_eq!(ingress.vlan(), key(VlanProtocol::Dot1Q, 9));
        assert_eq!(ingress.tag(), Tag::new(0x8100, 0x6009));
        assert_eq!(ingress.strip(), 4);
        for (tpid, vid) in [(0x88a8, 9), (0x9100, 9), (0x8100, 4095)] {
            let verdict = judge(&trunk(), &tagged(&frame(), tpid, vid));
            assert_eq!(verdict, Err(DropReason::ForgedVlan));
        }
    }

    #[test]
    fn a_tag_too_short_to_be_read_is_forged() {
        let frame = tagged(&frame(), 0x8100, 9);
        for length in 14..18 {
            assert_eq!(judge(&trunk(), &frame[..length]), Err(DropReason::ForgedVlan));
        }
    }

    #[test]
    fn only_the_own_mac_is_a_source_while_spoofing_is_checked() {
        let forged = Packet { src_mac: [2, 0, 0, 0, 0, 9], ..Packet::udp4(&[]) }.bytes();
        assert_eq!(judge(&settings(), &forged), Err(DropReason::SpoofedMac));
        assert_eq!(judge(&trunk(), &forged), Err(DropReason::SpoofedMac));
        let unchecked = VfSettings { spoofchk: false, ..settings() };
        assert!(judge(&unchecked, &forged).is_ok());
    }

    #[test]
    fn nobody_has_a_group_address_or_none_as_source() {
        let unchecked = VfSettings { spoofchk: false, ..settings() };
        for src_mac in [[0; 6], [0xff; 6], [3, 0, 0, 0, 0, 1]] {
            let frame = Packet { src_mac, ..Packet::udp4(&[]) }.bytes();
            assert_eq!(judge(&unchecked, &frame), Err(DropReason::BadSource));
        }
    }

    #[test]
    fn control_frames_between_bridges_stop_here() {
        for last in 0..=0xf {
            let dst_mac = [1, 0x80, 0xc2, 0, 0, last];
            let frame = Packet { dst_mac, ..Packet::udp4(&[]) }.bytes();
            assert_eq!(judge(&settings(), &frame), Err(DropReason::Reserved));
            let from_wire = judge_wire(&frame, None);
            assert_eq!(from_wire, Err(DropReason::Reserved));
        }
        let dst_mac = [1, 0x80, 0xc2, 0, 0, 0x10];
        assert!(judge(&settings(), &Packet { dst_mac, ..Packet::udp4(&[]) }.bytes()).is_ok());
    }

    #[test]
    fn the_mtu_counts_neither_ethernet_header_nor_allowed_tags() {
        let mtu = Mtu::new(200).expect("valid");
        let longest = Packet::udp4(&[0; 172]).bytes();
        let too_long = Packet::udp4(&[0; 173]).bytes();
        let plain = VfSettings { mtu, ..settings() };
        let customer = VfSettings { mtu, ..in_vlan(7, VlanProtocol::Dot1Ad) };
        let trunk = VfSettings { mtu, ..trunk() };
        for (settings, tag) in [(plain, None), (customer, Some(9)), (trunk, Some(9))] {
            let tagged =
                |frame: &[u8]| tag.map_or(frame.to_vec(), |vid| tagged(frame, 0x8100, vid));
            assert!(judge(&settings, &tagged(&longest)).is_ok());
            assert_eq!(judge(&settings, &tagged(&too_long)), Err(DropReason::TooLong));
        }
    }

    #[test]
    fn the_mtu_holds_for_each_segment_of_a_super_frame() {
        let packet = Packet::tcp4(&[0; 5_000]);
        let (frame, policy) = (packet.bytes(), PortPolicy::new(&settings(), None));
        let judge = |gso_size| {
            let header = NetHeader {
                flags: NetHeader::NEEDS_CSUM,
                gso_type: NetHeader::GSO_TCPV4,
                gso_size,
                csum_start: 34,
                csum_offset: 16,
                hdr_len: 0,
            };
            judge_ingress(&policy, &frame[..HEAD], frame.len(), &header, OffloadSet::ALL)
                .map(|_| ())
        };
        assert_eq!(judge(1_460), Ok(()));
        assert_eq!(judge(1_461), Err(DropReason::TooLong));
    }

    #[test]
    fn a_frame_shorter_than_ethernet_is_too_short() {
        for length in 0..14 {
            assert_eq!(judge(&settings(), &frame()[..length]), Err(DropReason::TooShort));
            assert_eq!(judge_wire(&frame()[..length], None), Err(DropReason::TooShort));
        }
        assert!(judge(&settings(), &frame()[..14]).is_ok());
    }

    #[test]
    fn the_link_follows_the_uplink_only_if_told_to() {
        let up = |link_state, uplink| {
            PortPolicy::new(&VfSettings { link_state, ..settings() }, uplink).link_up()
        };
        assert!(up(LinkState::Auto, None));
        assert!(up(LinkState::Auto, Some(true)));
        assert!(!up(LinkState::Auto, Some(false)));
        assert!(up(LinkState::Enable, Some(false)));
        assert!(!up(LinkState::Disable, Some(true)));
        let down = VfSettings { link_state: LinkState::Disable, ..settings() };
        assert_eq!(judge(&down, &frame()), Err(DropReason::LinkDown));
    }

    fn judge_wire(frame: &[u8], removed: Option<Tag>) -> Result<Ingress, DropReason> {
        let head = &frame[..frame.len().min(HEAD)];
        judge_uplink(&UplinkPolicy::PLAIN, head, frame.len(), &NetHeader::default(), removed)
    }

    #[test]
    fn a_tag_on_the_wire_chooses_the_vlan_and_goes() {
        for protocol in [VlanProtocol::Dot1Q, VlanProtocol::Dot1Ad] {
            let tpid = protocol.ethertype();
            let ingress = judge_wire(&tagged(&frame(), tpid, 7), None).expect("allowed");
            assert_eq!((ingress.vlan(), ingress.strip()), (key(protocol, 7), 4));
            // The same tag, which the kernel took out already.
            let ingress = judge_wire(&frame(), Tag::new(tpid, 7)).expect("allowed");
            assert_eq!((ingress.vlan(), ingress.strip()), (key(protocol, 7), 0));
            assert_eq!(ingress.tag(), Tag::new(tpid, 7));
        }
    }

    #[test]
    fn untagged_and_priority_tagged_frames_on_the_wire_have_no_vlan() {
        let plain = judge_wire(&frame(), None).expect("allowed");
        assert_eq!((plain.vlan(), plain.strip(), plain.tag()), (VlanKey::NONE, 0, None));
        let priority = judge_wire(&tagged(&frame(), 0x8100, 0xe000), None).expect("allowed");
        assert_eq!((priority.vlan(), priority.strip(), priority.tag()), (VlanKey::NONE, 4, None));
    }

    #[test]
    fn a_tag_that_no_vf_can_be_behind_reaches_nobody() {
        let hidden = tagged(&frame(), 0x8100, 9);
        for (frame, removed) in [
            (tagged(&frame(), 0x9100, 7), None),
            (tagged(&frame(), 0x8100, 4095), None),
            (tagged(&hidden, 0x8100, 0), None),
            (hidden.clone(), Tag::new(0x8100, 0)),
            (hidden[..16].to_vec(), None),
        ] {
            assert_eq!(judge_wire(&frame, removed), Err(DropReason::NoDestination));
        }
    }
}
