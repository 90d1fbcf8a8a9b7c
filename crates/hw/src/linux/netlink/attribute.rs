//! Attributes of netlink messages: a type, a length and a value, padded to four bytes, nested at
//! will (`struct nlattr`, include/uapi/linux/netlink.h). Numbers are in the host's byte order.

/// Length and type.
const HEADER: usize = 4;
/// Set in the type of an attribute that holds others (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;
/// Flags of a type: nested, and network byte order (`NLA_F_NET_BYTEORDER`).
const FLAGS: u16 = 0xc000;

/// `length` with its padding.
pub(crate) const fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// Attributes as they are being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Builder(Vec<u8>);

impl Builder {
    /// Begin with a family's own fixed header.
    pub(crate) fn after(header: &[u8]) -> Self {
        let mut builder = Self(header.to_vec());
        builder.pad();
        builder
    }

    /// An attribute with this value. Values are far below the format's 64 KiB.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let start = self.open(kind);
        self.0.extend_from_slice(value);
        self.close(start)
    }

    pub(crate) fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    pub(crate) fn u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Text with the zero byte that the kernel wants at its end.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let start = self.open(kind);
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self.close(start)
    }

    /// Attributes inside an attribute, marked as such: what the younger families want.
    pub(crate) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) -> &mut Self {
        self.unmarked_nest(kind | NESTED, inside)
    }

    /// The same without the mark: what rtnetlink and DCB have always been sent.
    pub(crate) fn unmarked_nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.open(kind);
        inside(self);
        self.close(start)
    }

    /// What was written.
    pub(crate) fn finish(&self) -> &[u8] {
        &self.0
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) -> &mut Self {
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.0.resize(padded(self.0.len()), 0);
    }
}

/// One attribute as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    /// Its type, without flags.
    pub(crate) kind: u16,
    /// Its value.
    pub(crate) value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The attributes that it holds.
    pub(crate) fn nested(self) -> Attributes<'a> {
        Attributes(self.value)
    }

    pub(crate) fn u8(self) -> Option<u8> {
        self.value.first().copied()
    }

    pub(crate) fn u16(self) -> Option<u16> {
        u16_at(self.value, 0)
    }

    pub(crate) fn u32(self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    pub(crate) fn u64(self) -> Option<u64> {
        u64_at(self.value, 0)
    }

    /// Text up to its zero byte; what is no UTF-8 is replaced.
    pub(crate) fn text(self) -> String {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(&self.value[..end]).into_owned()
    }
}

/// Attributes one after another. Reading ends, as the kernel's own does (`nla_ok`), at the first
/// whose length cannot be.
#[derive(Clone, Debug)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// The first of this type.
    pub(crate) fn first(&self, kind: u16) -> Option<Attribute<'a>> {
        Attributes(self.0).find(|attribute| attribute.kind == kind)
    }

    /// What is not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let length = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & !FLAGS;
        let value = self.0.get(HEADER..length)?;
        self.0 = self.0.get(padded(length)..).unwrap_or_default();
        Some(Attribute { kind, value })
    }
}

/// The number at an offset, if it is all there.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..offset + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// As [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..offset + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// As [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..offset + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut builder = Builder::after(&[1, 2, 3]);
        builder.u8(1, 7).text(2, "ens1").nest(3, |inner| {
            inner.u16(4, 0x1234).u32(5, 9).bytes(6, &[]);
        });
        let bytes = builder.finish();
        assert_eq!(bytes.len() % 4, 0);
        let read = Attributes(&bytes[4..]);
        assert_eq!(read.first(1).and_then(Attribute::u8), Some(7));
        assert_eq!(read.first(2).map(Attribute::text), Some("ens1".to_owned()));
        let nest = read.first(3).expect("written").nested();
        assert_eq!(nest.first(4).and_then(Attribute::u16), Some(0x1234));
        assert_eq!(nest.first(5).and_then(Attribute::u32), Some(9));
        assert_eq!(nest.first(6).map(|attribute| attribute.value), Some(&[][..]));
        assert_eq!(nest.first(7), None);
    }

    #[test]
    fn a_length_that_cannot_be_ends_the_reading() {
        for length in [0_u16, 3, 9] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([1, 0, 0, 0, 0, 0]);
            assert_eq!(Attributes(&bytes).count(), 0, "length {length} of 8 bytes");
        }
    }

    #[test]
    fn a_number_that_is_too_short_is_none() {
        let attribute = Attribute { kind: 1, value: &[1, 2, 3] };
        assert_eq!(attribute.u32(), None);
        assert_eq!(attribute.u64(), None);
        assert_eq!(attribute.u16(), Some(u16::from_ne_bytes([1, 2])));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut covered = 0;
            for attribute in Attributes(&bytes) {
                covered += HEADER + attribute.value.len();
                let _ = (attribute.u8(), attribute.u16(), attribute.u32(), attribute.u64());
                let _ = (attribute.text(), attribute.nested().count());
            }
            prop_assert!(covered <= bytes.len());
        }

        #[test]
        fn any_attributes_survive_the_way(
            list in proptest::collection::vec(
                (0_u16..0x3fff, proptest::collection::vec(any::<u8>(), 0..64)), 0..16)
        ) {
            let mut builder = Builder::default();
            for (kind, value) in &list {
                builder.bytes(*kind, value);
            }
            let read: Vec<_> = Attributes(builder.finish())
                .map(|attribute| (attribute.kind, attribute.value.to_vec()))
                .collect();
            prop_assert_eq!(read, list);
        }
    }
}
