//! Memory regions: registered buffers, reached by key, address and length. Every access of every
//! packet is checked here: key, protection domain, rights, bounds (IBTA 9.7.4.1.5, 10.6.3).

use thiserror::Error;

use super::{Access, EngineError};

/// A protection domain: queue pairs reach only regions of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(pub u32);

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessFault {
    /// No region has the key, or it was invalidated.
    #[error("no valid region has the key {0:#x}: register one, and use the key it got")]
    Key(u32),
    /// The region belongs to another protection domain.
    #[error("the region of key {0:#x} is in another protection domain than the queue pair")]
    Domain(u32),
    /// The region does not allow it.
    #[error("the region of key {key:#x} allows {allowed:?}, not {needed:?}: register it with that")]
    Rights {
        /// The key used.
        key: u32,
        /// What the region allows.
        allowed: Access,
        /// What was needed.
        needed: Access,
    },
    /// It leaves the region.
    #[error("{length} bytes at {address:#x} leave the region of key {key:#x}")]
    Bounds {
        /// The key used.
        key: u32,
        /// Where the access begins.
        address: u64,
        /// How long it is.
        length: u64,
    },
}

/// All regions of an endpoint.
#[derive(Debug, Default)]
pub struct Regions {
    /// A key is a slot's number + 1 and, in its low byte, how often the slot was reused: an old key
    /// does not open a new region.
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    variant: u8,
    region: Option<Region>,
}

#[derive(Debug)]
struct Region {
    domain: Domain,
    start: u64,
    bytes: Box<[u8]>,
    access: Access,
    valid: bool,
}

impl Regions {
    /// Registers `bytes` as the addresses from `start` on; the key serves as L_Key and R_Key.
    ///
    /// # Errors
    ///
    /// When the addresses would wrap, or a remote write or atomic right comes without the local one
    /// (IBTA 10.6.3.1), or there are 2^24 - 1 regions.
    pub fn register(
        &mut self,
        domain: Domain,
        start: u64,
        bytes: Box<[u8]>,
        access: Access,
    ) -> Result<u32, EngineError> {
        if start.checked_add(bytes.len() as u64).is_none() {
            return Err(EngineError::RegionWraps { start, length: bytes.len() as u64 });
        }
        let remote = access.allows(Access::REMOTE_WRITE) || access.allows(Access::REMOTE_ATOMIC);
        if remote && !access.allows(Access::LOCAL_WRITE) {
            return Err(EngineError::RightsWithoutLocalWrite);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < (1 << 24) - 1 => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
            None => return Err(EngineError::TooManyRegions),
        };
        let slot = &mut self.slots[index as usize];
        slot.variant = slot.variant.wrapping_add(1);
        slot.region = Some(Region { domain, start, bytes, access, valid: true });
        Ok((index + 1) << 8 | u32::from(slot.variant))
    }

    /// Gives a region's bytes back; its key is void from now on.
    pub fn deregister(&mut self, key: u32) -> Option<Box<[u8]>> {
        self.region(key)?;
        let index = (key >> 8) - 1;
        self.free.push(index);
        self.slots[index as usize].region.take().map(|region| region.bytes)
    }

    /// Voids a key; the bytes stay registered (and reachable by [`Regions::bytes`]) until they are
    /// deregistered.
    ///
    /// # Errors
    ///
    /// When no valid region has the key.
    pub fn invalidate(&mut self, key: u32) -> Result<(), AccessFault> {
        let region = self.region_mut(key).filter(|region| region.valid);
        region.ok_or(AccessFault::Key(key))?.valid = false;
        Ok(())
    }

    /// As [`Regions::invalidate`], but asked for by a peer (IBTA 9.4.1.1).
    pub(crate) fn invalidate_by_peer(
        &mut self,
        domain: Domain,
        key: u32,
    ) -> Result<(), AccessFault> {
        self.check_invalidate(domain, key)?;
        self.invalidate(key)
    }

    /// Whether a peer may invalidate `key`.
    pub(crate) fn check_invalidate(&self, domain: Domain, key: u32) -> Result<(), AccessFault> {
        self.usable(domain, key, Access::REMOTE_INVALIDATE).map(|_| ())
    }

    /// A region's bytes, for their owner.
    pub fn bytes(&self, key: u32) -> Option<&[u8]> {
        self.region(key).map(|region| &*region.bytes)
    }

    /// A region's bytes, for their owner to change.
    pub fn bytes_mut(&mut self, key: u32) -> Option<&mut [u8]> {
        self.region_mut(key).map(|region| &mut *region.bytes)
    }

    /// The bytes that `length` at `address` mean, if the access is allowed.
    pub(crate) fn read(
        &self,
        domain: Domain,
        key: u32,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<&[u8], AccessFault> {
        let region = self.usable(domain, key, needed)?;
        let range = region.range(key, address, length)?;
        Ok(&region.bytes[range])
    }

    /// The same, to be written to.
    pub(crate) fn write(
        &mut self,
        domain: Domain,
        key: u32,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<&mut [u8], AccessFault> {
        let range = self.usable(domain, key, needed)?.range(key, address, length)?;
        let region = self.region_mut(key).ok_or(AccessFault::Key(key))?;
        Ok(&mut region.bytes[range])
    }

    fn usable(&self, domain: Domain, key: u32, needed: Access) -> Result<&Region, AccessFault> {
        let region = self.region(key).filter(|region| region.valid);
        let region = region.ok_or(AccessFault::Key(key))?;
        if region.domain != domain {
            return Err(AccessFault::Domain(key));
        }
        if !region.access.allows(needed) {
            return Err(AccessFault::Rights { key, allowed: region.access, needed });
        }
        Ok(region)
    }

    fn region(&self, key: u32) -> Option<&Region> {
        let slot = self.slots.get((key >> 8).checked_sub(1)? as usize)?;
        slot.region.as_ref().filter(|_| slot.variant == key as u8)
    }

    fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        let slot = self.slots.get_mut((key >> 8).checked_sub(1)? as usize)?;
        let variant = slot.variant;
        slot.region.as_mut().filter(|_| variant == key as u8)
    }
}

impl Region {
    fn range(
        &self,
        key: u32,
        address: u64,
        length: u64,
    ) -> Result<std::ops::Range<usize>, AccessFault> {
        let outside = AccessFault::Bounds { key, address, length };
        let from = address.checked_sub(self.start).ok_or(outside)?;
        let to = from.checked_add(length).ok_or(outside)?;
        if to > self.bytes.len() as u64 {
            return Err(outside);
        }
        Ok(from as usize..to as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: Domain = Domain(1);

    fn one(access: Access) -> (Regions, u32) {
        let mut regions = Regions::default();
        let key = regions.register(DOMAIN, 0x1000, vec![7; 100].into(), access).unwrap();
        (regions, key)
    }

    #[test]
    fn an_access_inside_with_the_right_is_given() {
        let (mut regions, key) = one(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        regions.write(DOMAIN, key, 0x1010, 4, Access::REMOTE_WRITE).unwrap().fill(9);
        assert_eq!(regions.read(DOMAIN, key, 0x100f, 6, Access::NONE).unwrap(), [7, 9, 9, 9, 9, 7]);
    }

    #[test]
    fn what_leaves_the_region_is_refused_at_both_ends_and_when_it_wraps() {
        let (regions, key) = one(Access::NONE);
        for (address, length) in
            [(0xfff, 1), (0x1000, 101), (0x1064, 1), (0x1001, u64::MAX), (u64::MAX, 2), (0, 0)]
        {
            let fault = regions.read(DOMAIN, key, address, length, Access::NONE).unwrap_err();
            assert_eq!(fault, AccessFault::Bounds { key, address, length });
        }
        assert!(regions.read(DOMAIN, key, 0x1064, 0, Access::NONE).unwrap().is_empty());
    }

    #[test]
    fn a_missing_right_and_a_foreign_domain_are_refused() {
        let (regions, key) = one(Access::REMOTE_READ);
        let needed = Access::REMOTE_ATOMIC;
        assert_eq!(
            regions.read(DOMAIN, key, 0x1000, 8, needed),
            Err(AccessFault::Rights { key, allowed: Access::REMOTE_READ, needed })
        );
        assert_eq!(
            regions.read(Domain(2), key, 0x1000, 8, Access::REMOTE_READ),
            Err(AccessFault::Domain(key))
        );
    }

    #[test]
    fn a_key_dies_with_invalidation_and_deregistration() {
        let (mut regions, key) = one(Access::REMOTE_INVALIDATE);
        regions.invalidate_by_peer(DOMAIN, key).unwrap();
        assert_eq!(regions.invalidate(key), Err(AccessFault::Key(key)));
        assert!(regions.read(DOMAIN, key, 0x1000, 1, Access::NONE).is_err());
        assert_eq!(regions.deregister(key).unwrap().len(), 100);
        let next = regions.register(DOMAIN, 0, vec![0; 1].into(), Access::NONE).unwrap();
        assert_ne!(key, next);
        assert!(regions.bytes(key).is_none() && regions.deregister(key).is_none());
    }

    #[test]
    fn a_peer_invalidates_only_what_allows_it() {
        let (mut regions, key) = one(Access::REMOTE_READ);
        assert!(regions.invalidate_by_peer(DOMAIN, key).is_err());
        assert!(regions.read(DOMAIN, key, 0x1000, 1, Access::NONE).is_ok());
    }

    #[test]
    fn remote_write_without_local_write_is_no_registration() {
        let mut regions = Regions::default();
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert!(regions.register(DOMAIN, 0, vec![0].into(), access).is_err());
        }
        assert!(regions.register(DOMAIN, u64::MAX, vec![0; 2].into(), Access::NONE).is_err());
    }

    #[test]
    fn key_zero_is_never_valid() {
        let (regions, _) = one(Access::NONE);
        assert!(regions.bytes(0).is_none() && regions.bytes(5).is_none());
    }
}
