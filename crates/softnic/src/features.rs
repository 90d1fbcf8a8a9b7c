//! The virtio-net features of a VF, device and driver side (virtio 1.2, 5.1.3 and 6).

/// A feature word with one bit set.
const fn bit(number: u32) -> u64 {
    1 << number
}

/// The VM may send frames without a checksum.
pub const CSUM: u64 = bit(0);
/// The VM takes frames without a checksum.
pub const GUEST_CSUM: u64 = bit(1);
/// The VM may switch its receive offloads at run time.
pub const CTRL_GUEST_OFFLOADS: u64 = bit(2);
/// The device tells its MTU.
pub const MTU: u64 = bit(3);
/// The device tells its MAC.
pub const MAC: u64 = bit(5);
/// The VM takes TCP/IPv4 super-frames.
pub const GUEST_TSO4: u64 = bit(7);
/// The VM takes TCP/IPv6 super-frames.
pub const GUEST_TSO6: u64 = bit(8);
/// The VM takes TCP super-frames with CWR set.
pub const GUEST_ECN: u64 = bit(9);
/// The VM may send TCP/IPv4 super-frames.
pub const HOST_TSO4: u64 = bit(11);
/// The VM may send TCP/IPv6 super-frames.
pub const HOST_TSO6: u64 = bit(12);
/// The VM may send TCP super-frames with CWR set.
pub const HOST_ECN: u64 = bit(13);
/// The VM takes a frame in several buffers.
pub const MRG_RXBUF: u64 = bit(15);
/// The device tells its link status.
pub const STATUS: u64 = bit(16);
/// There is a control queue.
pub const CTRL_VQ: u64 = bit(17);
/// Receive modes by control queue.
pub const CTRL_RX: u64 = bit(18);
/// VLAN filters by control queue.
pub const CTRL_VLAN: u64 = bit(19);
/// The VM can be asked to announce itself.
pub const GUEST_ANNOUNCE: u64 = bit(21);
/// More than one queue pair.
pub const MQ: u64 = bit(22);
/// MAC by control queue.
pub const CTRL_MAC_ADDR: u64 = bit(23);
/// Descriptors may point at tables of descriptors.
pub const INDIRECT_DESC: u64 = bit(28);
/// Notifications by index.
pub const EVENT_IDX: u64 = bit(29);
/// vhost-user: protocol features are negotiated.
pub const PROTOCOL_FEATURES: u64 = bit(30);
/// Virtio 1: little-endian, 12-byte header always.
pub const VERSION_1: u64 = bit(32);
/// Packed rings.
pub const RING_PACKED: u64 = bit(34);
/// Buffers are used in the order they were made available.
pub const IN_ORDER: u64 = bit(35);
/// The VM takes UDP/IPv4 super-frames.
pub const GUEST_USO4: u64 = bit(54);
/// The VM takes UDP/IPv6 super-frames.
pub const GUEST_USO6: u64 = bit(55);
/// The VM may send UDP super-frames.
pub const HOST_USO: u64 = bit(56);

/// Everything a VF offers.
pub(crate) const OFFERED: u64 = CSUM
    | GUEST_CSUM
    | CTRL_GUEST_OFFLOADS
    | MTU
    | MAC
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | STATUS
    | CTRL_VQ
    | CTRL_RX
    | CTRL_VLAN
    | GUEST_ANNOUNCE
    | MQ
    | CTRL_MAC_ADDR
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1
    | RING_PACKED
    | IN_ORDER
    | GUEST_USO4
    | GUEST_USO6
    | HOST_USO;

/// The receive offloads that a driver may switch at run time (virtio 1.2, 5.1.6.5.6).
pub(crate) const GUEST_OFFLOADS: u64 =
    GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6;

/// The super-frames that a driver may send.
pub(crate) const HOST_OFFLOADS: u64 = HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO;

/// Bytes of the header before each frame (virtio 1.2, 5.1.6): `num_buffers` is there with
/// mergeable buffers, and always since virtio 1.
pub(crate) const fn net_header_len(accepted: u64) -> usize {
    if accepted & (VERSION_1 | MRG_RXBUF) == 0 { 10 } else { 12 }
}
