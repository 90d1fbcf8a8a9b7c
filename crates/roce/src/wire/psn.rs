//! Packet sequence numbers: 24 bits that wrap around.

use std::fmt;

/// A packet sequence number (IBTA vol. 1, 9.2.8 and 9.7.1).
///
/// It has no order of its own: which of two is earlier depends on the window, see
/// [`Psn::distance`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// The largest one; 0 follows it.
    pub const MAX: u32 = 0x00ff_ffff;
    /// The first one.
    pub const ZERO: Self = Self(0);

    /// The number, if it has no more than 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX { Some(Self(value)) } else { None }
    }

    /// The low 24 bits of a number.
    pub const fn truncate(value: u32) -> Self {
        Self(value & Self::MAX)
    }

    /// As a number below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The one `count` packets later.
    #[must_use]
    #[allow(clippy::should_implement_trait)] // Adds packets to a number, not two numbers.
    pub const fn add(self, count: u32) -> Self {
        Self::truncate(self.0.wrapping_add(count))
    }

    /// The one `count` packets earlier.
    #[must_use]
    pub const fn sub(self, count: u32) -> Self {
        Self::truncate(self.0.wrapping_sub(count))
    }

    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// How many packets `self` is after `other`; negative if it is before. Right within a window of
    /// 2^23 packets, which the standard keeps to for this reason (IBTA vol. 1, 9.7.1).
    pub const fn distance(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_more_than_24_bits_are_none() {
        assert_eq!(Psn::new(0x00ff_ffff).map(Psn::get), Some(Psn::MAX));
        assert_eq!(Psn::new(0x0100_0000), None);
    }

    #[test]
    fn zero_follows_the_largest() {
        assert_eq!(Psn::truncate(Psn::MAX).next(), Psn::ZERO);
        assert_eq!(Psn::ZERO.sub(1), Psn::truncate(Psn::MAX));
        assert_eq!(Psn::truncate(Psn::MAX - 1).add(5).get(), 3);
    }

    #[test]
    fn distance_has_the_sign_of_who_is_later_also_across_the_wrap() {
        let (late, early) = (Psn::truncate(3), Psn::truncate(Psn::MAX - 1));
        assert_eq!(late.distance(early), 5);
        assert_eq!(early.distance(late), -5);
        assert_eq!(late.distance(late), 0);
        assert_eq!(Psn::truncate(0x7f_ffff).distance(Psn::ZERO), 0x7f_ffff);
        assert_eq!(Psn::truncate(0x80_0000).distance(Psn::ZERO), -0x80_0000);
    }
}
