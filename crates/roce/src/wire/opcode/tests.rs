//! The table of opcodes against the standard's and Linux's.

use super::*;

#[test]
fn bytes_and_opcodes_are_one_to_one() {
    let known = (0..=255).filter_map(Opcode::from_byte).count();
    assert_eq!(known, Opcode::ALL.len());
    for &opcode in Opcode::ALL {
        assert_eq!(Opcode::from_byte(opcode.to_byte()), Some(opcode));
        assert_eq!(Opcode::new(opcode.service(), opcode.operation()), Some(opcode));
    }
}

#[test]
fn bytes_are_those_of_the_standard() {
    for (opcode, byte) in [
        (Opcode::RC_SEND_ONLY, 0x04),
        (Opcode::RC_WRITE_ONLY_IMMEDIATE, 0x0b),
        (Opcode::RC_ACKNOWLEDGE, 0x11),
        (Opcode::RC_SEND_ONLY_INVALIDATE, 0x17),
        (Opcode::UC_WRITE_ONLY_IMMEDIATE, 0x2b),
        (Opcode::UD_SEND_ONLY, 0x64),
        (Opcode::UD_SEND_ONLY_IMMEDIATE, 0x65),
        (Opcode::CNP, 0x81),
    ] {
        assert_eq!(opcode.to_byte(), byte, "{opcode}");
    }
}

#[test]
fn a_service_has_only_its_own_operations() {
    assert_eq!(Opcode::new(Service::Uc, Operation::ReadRequest), None);
    assert_eq!(Opcode::new(Service::Ud, Operation::SendFirst), None);
    assert_eq!(Opcode::new(Service::Rc, Operation::CongestionNotification), None);
    assert_eq!(Opcode::new(Service::Congestion, Operation::SendMiddle), None);
}

#[test]
fn every_packet_has_one_place_in_its_message_and_one_direction() {
    for opcode in Opcode::ALL {
        let places = [opcode.is_first(), opcode.is_middle(), opcode.is_last(), opcode.is_only()];
        assert_eq!(places.iter().filter(|&&place| place).count(), 1, "{opcode}");
        assert_eq!(opcode.is_request() ^ opcode.is_response(), *opcode != Opcode::CNP, "{opcode}");
    }
}

#[test]
fn header_lengths_are_those_that_linux_has() {
    // drivers/infiniband/sw/rxe/rxe_opcode.c, `rxe_opcode[].length`.
    for (opcode, length) in [
        (Opcode::RC_SEND_FIRST, 12),
        (Opcode::RC_SEND_ONLY_IMMEDIATE, 16),
        (Opcode::RC_WRITE_ONLY, 28),
        (Opcode::RC_WRITE_ONLY_IMMEDIATE, 32),
        (Opcode::RC_READ_RESPONSE_MIDDLE, 12),
        (Opcode::RC_READ_RESPONSE_LAST, 16),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 24),
        (Opcode::RC_FETCH_ADD, 40),
        (Opcode::UD_SEND_ONLY_IMMEDIATE, 24),
    ] {
        assert_eq!(opcode.header_len(), length, "{opcode}");
    }
}
