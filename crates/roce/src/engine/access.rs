//! Access rights, of a memory region and of a queue pair (IBTA 10.6.3.1, 11.2.8): both must allow
//! what a peer asks for.

use std::ops::BitOr;

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Local read, which every region has.
    pub const NONE: Access = Access(0);
    /// The engine may write to it: receives, READ data, the results of atomics.
    pub const LOCAL_WRITE: Access = Access(1);
    /// A peer may READ it.
    pub const REMOTE_READ: Access = Access(2);
    /// A peer may WRITE it.
    pub const REMOTE_WRITE: Access = Access(4);
    /// A peer may change it by atomics.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// A peer may invalidate its key by a SEND with invalidate.
    pub const REMOTE_INVALIDATE: Access = Access(16);
    /// All of it.
    pub const ALL: Access = Access(31);

    /// Whether all of `needed` is in it.
    pub const fn allows(self, needed: Access) -> bool {
        self.0 & needed.0 == needed.0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}
