//! Places in a queue pair's stream of packets. On the wire a PSN has 24 bits and wraps (IBTA 9.7.1);
//! here it is unwrapped to 64, so that comparing is comparing, and only arrival and departure know
//! about wrapping.

use std::ops::{Add, Sub};

use crate::wire::Psn;

/// An unwrapped PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seq(u64);

impl Default for Seq {
    fn default() -> Seq {
        Seq::start(Psn::ZERO)
    }
}

impl Seq {
    /// The first place of a stream that starts at `psn`. One whole turn is added, so that places
    /// before the start exist.
    pub(crate) fn start(psn: Psn) -> Seq {
        Seq(u64::from(psn.get()) + (1 << 24))
    }

    /// What goes on the wire.
    pub(crate) fn psn(self) -> Psn {
        Psn::truncate(self.0 as u32)
    }

    /// The place before this one.
    pub(crate) fn before(self) -> Seq {
        Seq(self.0 - 1)
    }

    /// The place nearest to this one that has `psn`.
    pub(crate) fn locate(self, psn: Psn) -> Seq {
        let distance = psn.distance(self.psn());
        Seq(self.0.saturating_add_signed(i64::from(distance)))
    }
}

impl Add<u64> for Seq {
    type Output = Seq;

    fn add(self, packets: u64) -> Seq {
        Seq(self.0 + packets)
    }
}

/// Packets from the other place to this one; none if it is not behind.
impl Sub for Seq {
    type Output = u64;

    fn sub(self, other: Seq) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(value: u32) -> Psn {
        Psn::new(value).unwrap()
    }

    #[test]
    fn a_psn_is_found_on_both_sides_of_the_wrap() {
        let near_end = Seq::start(psn(0xff_fffe));
        assert_eq!(near_end.locate(psn(1)), near_end + 3);
        assert_eq!((near_end + 3).psn(), psn(1));
        assert_eq!((near_end + 3).locate(psn(0xff_ffff)), near_end + 1);
        let start = Seq::start(psn(0));
        assert_eq!(start - start.locate(psn(0xff_ffff)), 1);
    }
}
