//! The standard's small tables: times and credits that packets and queue pairs name by a code.

use std::time::Duration;

/// Delay for each RNR NAK timer code, in units of 10 microseconds (IBTA vol. 1, 9.7.5.2.8).
const RNR_DELAYS: [u16; 32] = [
    65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Credits for each credit code of an ACK (IBTA vol. 1, 9.7.7.2.1).
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// How long a requester waits after an RNR NAK with this timer code (its low five bits).
pub fn rnr_delay(code: u8) -> Duration {
    match code & 0x1f {
        // 655.36 ms, one more than the table's type holds.
        0 => Duration::from_micros(655_360),
        code => Duration::from_micros(u64::from(RNR_DELAYS[usize::from(code)]) * 10),
    }
}

/// The shortest timer code that is no shorter than a delay; the longest there is for longer ones.
pub fn rnr_code(delay: Duration) -> u8 {
    (1..32).find(|&code| rnr_delay(code) >= delay).unwrap_or(0)
}

/// How long a requester waits for an acknowledgement: 4.096 us * 2^code, of a code of five bits; none
/// for 0, which is for ever (IBTA vol. 1, 9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        code => Some(Duration::from_nanos(4096 << code)),
    }
}

/// Receive requests that an ACK with this credit code grants; none for 31, which is no statement.
pub fn credits(code: u8) -> Option<u16> {
    CREDITS.get(usize::from(code & 0x1f)).copied()
}

/// The largest credit code that grants no more than `available` receive requests.
pub fn credit_code(available: u32) -> u8 {
    (0u8..31)
        .rev()
        .find(|&code| credits(code).is_some_and(|c| u32::from(c) <= available))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_codes_are_those_of_the_standard() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(25), Duration::from_micros(61_440));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert_eq!(rnr_delay(0xe1), rnr_delay(1), "only five bits count");
    }

    #[test]
    fn a_delay_finds_the_code_that_waits_at_least_as_long() {
        for code in 0..32 {
            assert_eq!(rnr_code(rnr_delay(code)), code);
        }
        assert_eq!(rnr_code(Duration::ZERO), 1);
        assert_eq!(rnr_code(Duration::from_micros(41)), 5);
        assert_eq!(rnr_code(Duration::from_secs(9)), 0);
    }

    #[test]
    fn an_acknowledge_timeout_doubles_with_each_code_and_zero_is_for_ever() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8_192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }

    #[test]
    fn a_credit_code_never_grants_more_than_there_is() {
        for available in 0..40_000 {
            let granted = u32::from(credits(credit_code(available)).expect("a code below 31"));
            assert!(granted <= available && (available > 32_768 || granted * 2 >= available));
        }
        assert_eq!(credits(31), None);
    }
}
