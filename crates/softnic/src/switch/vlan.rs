//! VLAN tags as bytes and as lookup keys, and the edit that takes one tag off a frame's head or
//! puts one on.

use std::num::NonZeroU32;

use lanekeeper_model::{VlanId, VlanProtocol, VlanTag};

use super::head::HEAD;

/// Bytes of one tag.
pub(super) const TAG_LEN: usize = 4;

/// Where a tag sits in a frame: behind the two MAC addresses.
pub(super) const TAG_AT: usize = 12;

/// Room that the head of a frame needs after one tag was put on.
pub const EDITED_HEAD: usize = HEAD + TAG_LEN;

/// Ethertypes that announce a tag: 802.1Q, 802.1ad, and the one used before 802.1ad existed.
pub(super) const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

/// The four bytes of a VLAN tag: TPID, then TCI (IEEE 802.1Q-2022, 9.4 to 9.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(NonZeroU32);

impl Tag {
    /// A tag from its Ethertype and its tag control information; `None` if the Ethertype is not
    /// that of a tag.
    pub const fn new(tpid: u16, tci: u16) -> Option<Self> {
        if !is_tag(tpid) {
            return None;
        }
        match NonZeroU32::new((tpid as u32) << 16 | tci as u32) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The tag that an access VLAN stands for; `None` for "no VLAN".
    pub const fn of(tag: VlanTag) -> Option<Self> {
        if tag.id.is_some() { Self::new(tag.protocol.ethertype(), tag.tci()) } else { None }
    }

    /// Ethertype of the tag.
    pub const fn tpid(self) -> u16 {
        (self.0.get() >> 16) as u16
    }

    /// Tag control information: PCP, DEI, VLAN id.
    pub const fn tci(self) -> u16 {
        self.0.get() as u16
    }

    /// VLAN id, `0` for a tag that carries a priority only.
    pub const fn vid(self) -> u16 {
        self.tci() & 0xfff
    }

    pub(super) const fn bits(tag: Option<Self>) -> u32 {
        match tag {
            Some(tag) => tag.0.get(),
            None => 0,
        }
    }

    pub(super) const fn from_bits(bits: u32) -> Option<Self> {
        match NonZeroU32::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// As it stands in a frame.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.get().to_be_bytes()
    }
}

/// An isolated address space: no VLAN, one customer VLAN or one service VLAN.
///
/// 802.1Q and 802.1ad ids are numbered independently, so VLAN 5 of one kind is not VLAN 5 of the
/// other: bit 12 is the kind, bits 11..0 the id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct VlanKey(u16);

impl VlanKey {
    /// Untagged.
    pub const NONE: Self = Self(0);

    /// How many values [`VlanKey::index`] has.
    pub const SPACE: usize = 0x2000;

    const SERVICE: u16 = 0x1000;

    /// The key of a VLAN; [`VlanKey::NONE`] for id 0 of either kind.
    pub const fn new(protocol: VlanProtocol, id: VlanId) -> Self {
        match protocol {
            _ if !id.is_some() => Self::NONE,
            VlanProtocol::Dot1Q => Self(id.get()),
            VlanProtocol::Dot1Ad => Self(id.get() | Self::SERVICE),
        }
    }

    /// The key that a tag on the wire selects. `None` for id 4095, which is reserved, and for the
    /// obsolete Ethertype 0x9100, which no VF can be a member of.
    pub const fn from_tag(tag: Tag) -> Option<Self> {
        match (tag.tpid(), tag.vid()) {
            (0x9100, _) | (_, 0xfff) => None,
            (_, 0) => Some(Self::NONE),
            (0x8100, id) => Some(Self(id)),
            (_, id) => Some(Self(id | Self::SERVICE)),
        }
    }

    pub(super) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// As an index below [`VlanKey::SPACE`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether a trunk (which speaks 802.1Q only) is part of it: untagged or a customer VLAN.
    pub const fn on_trunk(self) -> bool {
        self.0 & Self::SERVICE == 0
    }

    /// VLAN id, `0` for untagged.
    pub const fn vid(self) -> u16 {
        self.0 & 0xfff
    }
}

/// What is done to the head of a frame, at offset 12, before it is delivered.
///
/// One word: a struct would be stored in parts and loaded whole, which stalls the core for longer
/// than the rest of a judgement takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeadEdit(u64);

impl HeadEdit {
    /// The head stays as it is.
    pub const NONE: Self = Self(0);

    /// Takes `remove` bytes out, 0 or 4, and puts a tag in.
    #[inline]
    pub const fn new(remove: u8, insert: Option<Tag>) -> Self {
        Self((remove as u64) << 32 | Tag::bits(insert) as u64)
    }

    /// Bytes taken out.
    #[inline]
    pub const fn remove(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// Tag put in.
    #[inline]
    pub const fn insert(self) -> Option<Tag> {
        Tag::from_bits(self.0 as u32)
    }

    /// Whether the head stays as it is.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// How much longer the frame becomes, in bytes; negative if shorter.
    #[inline]
    pub const fn growth(self) -> i8 {
        let inserted = if self.insert().is_some() { TAG_LEN as i8 } else { 0 };
        inserted.saturating_sub_unsigned(self.remove())
    }

    /// Writes the edited head to `out` and says how long it is. The caller then delivers it in
    /// place of the first `head.len()` bytes of the frame.
    ///
    /// `head` holds at most [`HEAD`] bytes, further ones are not looked at; one too short to be
    /// edited is copied as it is.
    pub fn apply(self, head: &[u8], out: &mut [u8; EDITED_HEAD]) -> usize {
        let head = &head[..head.len().min(HEAD)];
        let Some((macs, rest)) = head.split_at_checked(TAG_AT) else {
            out[..head.len()].copy_from_slice(head);
            return head.len();
        };
        let rest = rest.get(self.remove() as usize..).unwrap_or_default();
        out[..TAG_AT].copy_from_slice(macs);
        let mut at = TAG_AT;
        if let Some(tag) = self.insert() {
            out[at..at + TAG_LEN].copy_from_slice(&tag.to_bytes());
            at += TAG_LEN;
        }
        out[at..at + rest.len()].copy_from_slice(rest);
        at + rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vlan(id: u32) -> VlanId {
        VlanId::new(id).expect("valid")
    }

    #[test]
    fn customer_and_service_vlans_of_the_same_number_are_different() {
        let customer = VlanKey::new(VlanProtocol::Dot1Q, vlan(5));
        let service = VlanKey::new(VlanProtocol::Dot1Ad, vlan(5));
        assert_ne!(customer, service);
        assert!(customer.on_trunk());
        assert!(!service.on_trunk());
        assert!(service.index() < VlanKey::SPACE);
    }

    #[test]
    fn the_tag_of_an_access_vlan_selects_that_vlan_on_the_wire() {
        for protocol in [VlanProtocol::Dot1Q, VlanProtocol::Dot1Ad] {
            let access = VlanTag { id: vlan(77), protocol, ..VlanTag::default() };
            let tag = Tag::of(access).expect("a VLAN has a tag");
            assert_eq!(VlanKey::from_tag(tag), Some(VlanKey::new(protocol, vlan(77))));
        }
    }

    #[test]
    fn reserved_and_obsolete_tags_select_no_vlan() {
        let tag = |tpid, tci| Tag::new(tpid, tci).expect("a tag");
        assert_eq!(VlanKey::from_tag(tag(0x8100, 0xfff)), None);
        assert_eq!(VlanKey::from_tag(tag(0x9100, 5)), None);
        assert_eq!(VlanKey::from_tag(tag(0x8100, 0xe000)), Some(VlanKey::NONE));
        assert_eq!(Tag::new(0x0800, 5), None);
    }

    proptest! {
        #[test]
        fn putting_a_tag_on_and_taking_it_off_is_identity(
            head in prop::collection::vec(any::<u8>(), 14..=HEAD - TAG_LEN),
            tci: u16,
        ) {
            let tag = Tag::new(0x8100, tci);
            let (mut tagged, mut plain) = ([0; EDITED_HEAD], [0; EDITED_HEAD]);
            let on = HeadEdit::new(0, tag);
            let length = on.apply(&head, &mut tagged);
            prop_assert_eq!(length, head.len().saturating_add_signed(on.growth().into()));
            let off = HeadEdit::new(4, None);
            let length = off.apply(&tagged[..length], &mut plain);
            prop_assert_eq!(&plain[..length], &head[..]);
        }

        #[test]
        fn editing_any_head_never_panics(
            head in prop::collection::vec(any::<u8>(), 0..300),
            remove in prop::sample::select(vec![0_u8, 4]),
            tci: Option<u16>,
        ) {
            let insert = tci.and_then(|tci| Tag::new(0x88a8, tci));
            let mut out = [0; EDITED_HEAD];
            let length = HeadEdit::new(remove, insert).apply(&head, &mut out);
            prop_assert!(length <= EDITED_HEAD);
        }
    }
}
