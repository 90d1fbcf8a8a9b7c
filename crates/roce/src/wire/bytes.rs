//! Fields out of bytes and into them, without a way to reach beyond either's end.

use super::Malformed;

/// `N` bytes from `at` on.
pub(super) fn get<const N: usize>(
    bytes: &[u8],
    at: usize,
    what: &'static str,
) -> Result<[u8; N], Malformed> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().ok_or(Malformed::Truncated {
        what,
        need: N,
        have: bytes.len().saturating_sub(at),
    })
}

/// Write `value` at `at`. The caller has checked that there is room; what has none is cut.
pub(super) fn put(out: &mut [u8], at: usize, value: &[u8]) {
    debug_assert!(at + value.len() <= out.len(), "room was checked before");
    if let Some(room) = out.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}
