//! What the fuzz target does with its input, here so that the same runs as an ordinary test.
//!
//! No fuzzer guesses a CRC. So the input is taken once as it is, and once as headers whose ICRC (and IPv4
//! checksum) are set right first.

use super::network::{self, Network};
use super::{Cover, Frame, Headers, icrc};

/// Read a frame; what was read is written, and must be read again as the same.
pub fn any_frame(data: &[u8]) {
    let _ = Frame::parse_ethernet(data);
    let _ = super::Glimpse::of_ethernet(data);
    if let Ok(frame) = Frame::parse_ip(data) {
        written_again(&frame);
    }
    let mut sealed = [0; 2048];
    let length = data.len().min(sealed.len());
    sealed[..length].copy_from_slice(&data[..length]);
    let sealed = &mut sealed[..length];
    seal(sealed);
    for frame in [Frame::parse_ip(sealed), Frame::parse_grh(sealed)].into_iter().flatten() {
        written_again(&frame);
        let datagram = Frame::parse_datagram(&frame.flow, super::ROCE_PORT, data);
        if let Ok(datagram) = datagram {
            written_again(&datagram);
        }
    }
    if let Ok(packet) = Headers::parse(data) {
        let mut out = [0; super::MAX_HEADERS];
        let length = packet.headers.write(&mut out).expect("what was read can be written");
        let again = [&out[..length], &data[length..]].concat();
        assert_eq!(Headers::parse(&again), Ok(packet));
    }
}

/// Set checksum and ICRC right, where the bytes are a packet in all else.
fn seal(bytes: &mut [u8]) {
    if let Some(header) = bytes.first_chunk_mut::<{ network::IPV4 }>()
        && header[0] >> 4 == 4
    {
        let checksum = network::ipv4_checksum(header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    let parsed = [network::parse_ip(bytes), network::parse_grh(bytes)].into_iter().flatten().next();
    let Some(Network { headers, packet, .. }) = parsed else { return };
    let end = headers.len() + packet.len();
    let covered = packet.split_last_chunk::<{ icrc::LEN }>().map(|(covered, _)| covered);
    if let Some(crc) = covered.and_then(|covered| icrc::of_packet(headers, covered)) {
        bytes[end - icrc::LEN..end].copy_from_slice(&crc.to_le_bytes());
    }
}

fn written_again(frame: &Frame<'_>) {
    let payload = [frame.packet.payload];
    let cover = Cover::ip(&frame.flow, &frame.packet.headers, &payload).expect("it was read");
    let mut out = [0; 4096];
    let length = cover.copy_to(&payload, &mut out).expect("not longer than what was read");
    let again = match frame.flow.version {
        super::Version::V1 => Frame::parse_grh(&out[..length]),
        super::Version::V2 => Frame::parse_ip(&out[..length]),
    };
    let again = again.expect("what we wrote");
    assert_eq!((again.flow, again.packet), (frame.flow, frame.packet));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Bth, Flow, Gid, Opcode, Psn, Qpn, Version};
    use super::*;

    proptest! {
        #[test]
        fn any_packet_with_any_bytes_changed_is_read_or_refused(
            opcode in prop::sample::select(Opcode::ALL), version in 0..3,
            changes in prop::collection::vec((0usize..120, any::<u8>()), 0..4),
            rest in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let gid = |last| match version {
                0 => Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]),
                _ => Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
            };
            let version = if version == 2 { Version::V1 } else { Version::V2 };
            let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::truncate(7), Psn::ZERO);
            let flow = Flow::new(version, gid(1), gid(2));
            let cover = Cover::ip(&flow, &Headers::new(bth), &[&rest]).expect("fits");
            let mut bytes = [cover.head(), &rest, cover.tail()].concat();
            let at = cover.head().len() - Bth::LEN;
            bytes[at] = opcode.to_byte();
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            any_frame(&bytes);
        }
    }
}
