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
    /// No frame: what an array is filled with before frames are put in. It has no destination.
    pub const NOTHING: Self = Self { dst: 0, src: 0, meta: Meta(0), packed: PackedOffload::NONE };

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
    if is_tag(ethertype) || !header.is_plain() || !spoken_for {
        return judge_in_full(policy, head, frame_len, header, may_send);
    }
    if frame_len > policy.mtu as usize + ETHERNET {
        return Err(DropReason::TooLong);
    }
    Ok(Ingress { dst, src, meta: policy.untagged, packed: PackedOffload::NONE })
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
