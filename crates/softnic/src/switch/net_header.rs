//! The virtio-net header that stands before each frame in a ring (virtio 1.2, 5.1.6), as bytes.
//! What its numbers may be is judged in [`Offload::check`](super::Offload::check).

/// The header's fields, exactly as a driver wrote them: untrusted.
///
/// Written little-endian, as virtio 1 demands; a legacy driver writes in the guest's byte order,
/// which on every host we run on (x86-64, little-endian arm64) is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetHeader {
    /// `VIRTIO_NET_HDR_F_*`.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub gso_type: u8,
    /// Length of the headers, in bytes; a hint that is never trusted.
    pub hdr_len: u16,
    /// Payload of one segment, in bytes.
    pub gso_size: u16,
    /// Where the checksummed part starts, in bytes from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum goes, in bytes from `csum_start`.
    pub csum_offset: u16,
}

impl NetHeader {
    /// Length of the header in virtio 1, and of a legacy one with mergeable buffers, in bytes.
    pub const LEN: usize = 12;
    /// Length of a legacy header without mergeable buffers, in bytes.
    pub const LEGACY_LEN: usize = 10;
    /// The checksum at `csum_offset` is not finished.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum was verified.
    pub const DATA_VALID: u8 = 2;
    /// Not a super-frame.
    pub const GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// UDP fragmentation (UFO), which is refused.
    pub const GSO_UDP: u8 = 3;
    /// TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// UDP segmentation (USO).
    pub const GSO_UDP_L4: u8 = 5;
    /// Flag beside a TCP type: the first segment carries CWR.
    pub const GSO_ECN: u8 = 0x80;

    /// The fields of a 12-byte header. The number of buffers is not among them: the device
    /// writes it, per receiver.
    #[inline]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1, _, _] = *bytes;
        Self {
            flags,
            gso_type,
            hdr_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([s0, s1]),
            csum_offset: u16::from_le_bytes([o0, o1]),
        }
    }

    /// The fields of a 10-byte legacy header.
    #[inline]
    pub fn parse_legacy(bytes: &[u8; Self::LEGACY_LEN]) -> Self {
        let mut whole = [0; Self::LEN];
        whole[..Self::LEGACY_LEN].copy_from_slice(bytes);
        Self::parse(&whole)
    }

    /// As 12 bytes, with `num_buffers` 1 (virtio 1.2, 5.1.6.4.1). A legacy receiver is given the
    /// first [`NetHeader::LEGACY_LEN`] of them.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let [h0, h1] = self.hdr_len.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.csum_start.to_le_bytes();
        let [o0, o1] = self.csum_offset.to_le_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1, 1, 0]
    }

    /// Whether the header asks for nothing and claims nothing.
    #[inline]
    pub const fn is_plain(&self) -> bool {
        self.flags & (Self::NEEDS_CSUM | Self::DATA_VALID) == 0 && self.gso_type == Self::GSO_NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_survives_being_read_and_written(bytes: [u8; 10]) {
            let header = NetHeader::parse_legacy(&bytes);
            prop_assert_eq!(&header.to_bytes()[..10], &bytes[..]);
            prop_assert_eq!(NetHeader::parse(&header.to_bytes()), header);
        }
    }

    #[test]
    fn fields_are_where_virtio_puts_them() {
        let header = NetHeader::parse(&[1, 0x81, 54, 0, 0xb4, 5, 34, 0, 16, 0, 1, 0]);
        assert_eq!(header.flags, NetHeader::NEEDS_CSUM);
        assert_eq!(header.gso_type, NetHeader::GSO_TCPV4 | NetHeader::GSO_ECN);
        assert_eq!((header.hdr_len, header.gso_size), (54, 1460));
        assert_eq!((header.csum_start, header.csum_offset), (34, 16));
        assert!(!header.is_plain());
        assert!(NetHeader::default().is_plain());
    }
}
