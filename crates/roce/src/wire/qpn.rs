//! Queue pair numbers: 24 bits, some of them with a meaning of their own.

use std::fmt;

/// A queue pair number (IBTA vol. 1, 9.2.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest number; it stands for a multicast group (IBTA vol. 1, 10.5.2).
    pub const MAX: u32 = 0x00ff_ffff;
    /// Subnet management; unused in RoCE (annex A16).
    pub const QP0: Self = Self(0);
    /// General services: connection management (IBTA vol. 1, 3.9.5).
    pub const GSI: Self = Self(1);
    /// Where packets to a multicast group go to.
    pub const MULTICAST: Self = Self(Self::MAX);

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
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}
