//! What is wrong with something that was received: one variant a cause, with the values, so that a
//! log line or a counter says which rule a sender breaks.

/// Why bytes that were received are not a RoCE frame, or a broken one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// The frame ends before what it announces.
    #[error("{what} takes {need} bytes, but only {have} are there")]
    Truncated {
        /// The header or part that is cut.
        what: &'static str,
        /// Bytes it takes.
        need: usize,
        /// Bytes left.
        have: usize,
    },
    /// Neither RoCE v1 nor IPv4 nor IPv6.
    #[error("Ethertype {0:#06x} is not RoCE")]
    Ethertype(u16),
    /// A version that does not go with the Ethertype, or that nobody knows.
    #[error("{0} is not an IP version that RoCE goes on")]
    IpVersion(u8),
    /// IPv4 options, which RoCE v2 does not allow (annex A17.3.1.1).
    #[error("an IPv4 header of {0} bytes; RoCE v2 allows no options, so 20")]
    IpOptions(u8),
    /// A fragment: RoCE v2 is never fragmented.
    #[error("an IPv4 fragment (flags and offset {0:#06x}); RoCE packets are never fragmented")]
    Fragment(u16),
    /// An IPv4 header whose checksum is wrong.
    #[error("the IPv4 header checksum is {found:#06x}, but the header sums to {computed:#06x}")]
    IpChecksum {
        /// In the header.
        found: u16,
        /// What it should be.
        computed: u16,
    },
    /// An IPv6 packet of addresses that stand for IPv4 addresses, which never are on a wire (RFC 4291,
    /// 2.5.5.2); as GIDs they mean IPv4.
    #[error("an IPv6 packet from or to an IPv4-mapped address; send it as IPv4")]
    MappedAddress,
    /// Not UDP, or, in a GRH, not an InfiniBand transport.
    #[error("next header {0:#04x} is neither UDP nor an InfiniBand transport")]
    NextHeader(u8),
    /// UDP, but not RoCE's port.
    #[error("UDP port {0} is not RoCE's")]
    Port(u16),
    /// Lengths of IP and UDP that contradict each other.
    #[error("UDP says {udp} bytes, but IP says {ip}")]
    Length {
        /// What the UDP header says.
        udp: usize,
        /// What the IP header leaves for it.
        ip: usize,
    },
    /// The invariant CRC is wrong: somebody on the way changed the packet.
    #[error("the ICRC is {found:#010x}, but the packet has {computed:#010x}")]
    Icrc {
        /// At the packet's end.
        found: u32,
        /// What it should be.
        computed: u32,
    },
    /// An opcode that is none of RC, UC, UD and CNP.
    #[error("opcode {0:#04x} is not one that is known")]
    Opcode(u8),
    /// A transport header version other than 0 (IBTA vol. 1, 9.2.5).
    #[error("transport header version {0} is not 0")]
    TransportVersion(u8),
    /// More pad bytes than there are bytes of payload and pad.
    #[error("{pad} pad bytes, but only {have} bytes of payload and pad")]
    Pad {
        /// What the BTH says.
        pad: u8,
        /// Bytes behind the headers.
        have: usize,
    },
    /// Payload and pad that are no multiple of four bytes (IBTA vol. 1, 9.2.4).
    #[error("payload and pad of {0} bytes; it must be a multiple of four")]
    Unaligned(usize),
    /// Bytes behind the headers of a packet that has no payload.
    #[error("opcode {opcode:#04x} has no payload, but {length} bytes follow")]
    UnexpectedPayload {
        /// The packet's opcode.
        opcode: u8,
        /// Bytes behind the headers.
        length: usize,
    },
    /// An AETH syndrome that is reserved (IBTA vol. 1, 9.3.5).
    #[error("AETH syndrome {0:#04x} is reserved")]
    Syndrome(u8),
}
