//! What a function's configuration space says: capabilities, and the few registers of them that are
//! told (PCI Express Base 6.0, chapters 7 and 9). The bytes are the device's, so anything may stand
//! in them: loops, ends in the middle, all ones.

/// Where extended capabilities begin (7.6); only root may read so far.
const EXTENDED: usize = 0x100;
/// All that there is.
pub(super) const SIZE: u64 = 0x1000;

/// Capability ids.
const PCI_EXPRESS: u8 = 0x10;
const ACS: u16 = 0x000d;
const ATS: u16 = 0x000f;
const SRIOV: u16 = 0x0010;

/// The bytes of a configuration space, or as many as could be read.
#[derive(Clone, Debug)]
pub(super) struct ConfigSpace(pub(super) Vec<u8>);

/// The extended capabilities are not there to be read, or lead nowhere.
struct Unreadable;

impl ConfigSpace {
    /// A function in reset, or gone, answers with all ones. A VF's ids do so always (9.3.4.1), so
    /// it is the command and status registers that tell.
    pub(super) fn answers(&self) -> bool {
        self.u32(4) != Some(u32::MAX)
    }

    /// Whether it has the SR-IOV capability; `None` if that could not be read.
    pub(super) fn has_sriov(&self) -> Option<bool> {
        self.extended(SRIOV).ok().map(|place| place.is_some())
    }

    /// Access control services: the control register. A function without them controls nothing: 0.
    pub(super) fn acs(&self) -> Option<u16> {
        self.extended(ACS).ok()?.map_or(Some(0), |place| self.u16(place + 6))
    }

    /// Whether address translation service is on; `None` for a function without it.
    pub(super) fn ats(&self) -> Option<bool> {
        Some(self.u16(self.extended(ATS).ok()?? + 6)? & 0x8000 != 0)
    }

    /// Whether relaxed ordering is on.
    pub(super) fn relaxed_ordering(&self) -> Option<bool> {
        Some(self.device_control()? & 0x10 != 0)
    }

    /// Greatest read request in bytes.
    pub(super) fn max_read_request(&self) -> Option<u16> {
        // Values 6 and 7 are reserved.
        let code = self.device_control()? >> 12 & 7;
        (code < 6).then(|| 128 << code)
    }

    fn device_control(&self) -> Option<u16> {
        self.u16(self.capability(PCI_EXPRESS)? + 8)
    }

    /// Where a capability of the first 256 bytes begins.
    fn capability(&self, id: u8) -> Option<usize> {
        // Status register, bit 4: there is a list.
        if self.u16(6)? & 0x10 == 0 || !self.answers() {
            return None;
        }
        let mut place = usize::from(*self.0.get(0x34)? & !3);
        // Each takes four bytes at least, so there are at most 48; more is a loop.
        for _ in 0..48 {
            if place < 0x40 {
                return None;
            }
            if *self.0.get(place)? == id {
                return Some(place);
            }
            place = usize::from(*self.0.get(place + 1)? & !3);
        }
        None
    }

    /// Where an extended capability begins, if there is one.
    fn extended(&self, id: u16) -> Result<Option<usize>, Unreadable> {
        let mut place = EXTENDED;
        for _ in 0..(SIZE as usize - EXTENDED) / 8 {
            let header = self.u32(place).ok_or(Unreadable)?;
            if header == u32::MAX {
                return Err(Unreadable);
            }
            if header as u16 == id {
                return Ok(Some(place));
            }
            place = (header >> 20 & !3) as usize;
            // The last one's next, and the only one of a function without any, is 0 (7.6.3).
            if place < EXTENDED {
                return Ok(None);
            }
        }
        Err(Unreadable)
    }

    fn u16(&self, place: usize) -> Option<u16> {
        self.0.get(place..place + 2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&self, place: usize) -> Option<u32> {
        self.0.get(place..place + 4)?.try_into().ok().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A port with PCI Express at 0x60 behind another capability, ACS, ATS and SR-IOV.
    fn space() -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        bytes[6] = 0x10;
        bytes[0x34] = 0x40;
        bytes[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
        bytes[0x60..0x62].copy_from_slice(&[PCI_EXPRESS, 0]);
        bytes[0x68..0x6a].copy_from_slice(&0x5010_u16.to_le_bytes());
        let mut extended = |place: usize, id: u16, next: u32, control: u16| {
            let header = u32::from(id) | 1 << 16 | next << 20;
            bytes[place..place + 4].copy_from_slice(&header.to_le_bytes());
            bytes[place + 6..place + 8].copy_from_slice(&control.to_le_bytes());
        };
        extended(0x100, 0x0001, 0x148, 0);
        extended(0x148, ACS, 0x150, 0x001d);
        extended(0x150, ATS, 0x160, 0x8000);
        extended(0x160, SRIOV, 0, 0);
        bytes
    }

    #[test]
    fn registers_are_found_through_both_lists() {
        let space = ConfigSpace(space());
        assert_eq!(space.acs(), Some(0x001d));
        assert_eq!(space.ats(), Some(true));
        assert_eq!(space.has_sriov(), Some(true));
        assert_eq!(space.relaxed_ordering(), Some(true));
        assert_eq!(space.max_read_request(), Some(4096));
        assert!(space.answers());
    }

    #[test]
    fn a_function_without_access_control_is_told_from_one_that_could_not_be_read() {
        let mut bytes = space();
        bytes[0x148..0x14a].copy_from_slice(&0x0003_u16.to_le_bytes());
        assert_eq!(ConfigSpace(bytes.clone()).acs(), Some(0));
        bytes.truncate(0x150);
        assert_eq!(ConfigSpace(bytes).acs(), None);
        let none = ConfigSpace(vec![0; SIZE as usize]);
        assert_eq!((none.acs(), none.ats(), none.has_sriov()), (Some(0), None, Some(false)));
    }

    #[test]
    fn what_only_root_may_read_is_none_for_others() {
        let mut bytes = space();
        bytes.truncate(64);
        let space = ConfigSpace(bytes);
        assert_eq!((space.acs(), space.ats(), space.has_sriov()), (None, None, None));
        assert_eq!((space.relaxed_ordering(), space.max_read_request()), (None, None));
        assert!(space.answers());
    }

    #[test]
    fn a_function_in_reset_tells_nothing() {
        let space = ConfigSpace(vec![0xff; SIZE as usize]);
        assert!(!space.answers());
        assert_eq!((space.acs(), space.max_read_request()), (None, None));
    }

    #[test]
    fn lists_that_bite_their_own_tail_end() {
        let mut bytes = space();
        bytes[0x41] = 0x40;
        bytes[0x148..0x14c].copy_from_slice(&(0x0001_u32 | 0x148 << 20).to_le_bytes());
        let space = ConfigSpace(bytes);
        assert_eq!((space.max_read_request(), space.acs()), (None, None));
    }

    proptest! {
        #[test]
        fn anything_may_stand_in_it(
            length in 0_usize..=4096,
            noise in proptest::collection::vec((0_usize..4096, any::<u8>()), 0..64),
        ) {
            let mut bytes = space();
            for (place, byte) in noise {
                bytes[place] = byte;
            }
            bytes.truncate(length);
            let space = ConfigSpace(bytes);
            let _ = (space.acs(), space.ats(), space.has_sriov(), space.answers());
            let _ = (space.relaxed_ordering(), space.max_read_request());
        }
    }
}
