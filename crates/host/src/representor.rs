//! A VF's representor, which in switchdev mode opens and closes the VF's link: a claim opens it, with
//! the claim's MTU, and the scrub puts it back as it was before the claim. What stands on it in
//! between (a bridge, tc rules) is the host's switch's, which is told of the claim by whoever made it.

use lanekeeper_hw::inventory::RepresentorState;
use lanekeeper_model::VfIndex;

use crate::error::HostError;
use crate::ledger::ClaimRecord;
use crate::owner::{Session, is_refusal, read_back};

impl Session<'_> {
    /// Open a claim's VF to the embedded switch, if it has a representor.
    pub(crate) fn open_representor(&self, claim: &ClaimRecord) -> Result<(), HostError> {
        let mtu = claim.settings.mtu.into();
        self.set_representor(claim.vf, RepresentorState { up: true, mtu })
    }

    /// Put a representor back as it was before its VF's claim. Why that did not go, if it is the
    /// driver's fault.
    pub(crate) fn put_representor_back(&self, vf: VfIndex) -> Result<Option<String>, HostError> {
        let original = self.record.vfs.get(&vf).and_then(|vf| vf.original.as_ref());
        let Some(state) = original.and_then(|original| original.representor) else {
            return Ok(None);
        };
        match self.set_representor(vf, state) {
            Ok(()) => Ok(None),
            Err(error @ HostError::ReadBack { .. }) => Ok(Some(error.to_string())),
            Err(HostError::Hardware(error)) if is_refusal(&error) => {
                Ok(Some(format!("representor: {error}")))
            }
            Err(error) => Err(error),
        }
    }

    fn set_representor(&self, vf: VfIndex, wanted: RepresentorState) -> Result<(), HostError> {
        let (_, now) = self.read_vf(vf)?;
        if now.representor_state.is_none_or(|state| state == wanted) {
            return Ok(());
        }
        self.owner.patiently(|hw| hw.set_representor(self.addr, vf, wanted))?;
        let (_, now) = self.read_vf(vf)?;
        match now.representor_state {
            Some(found) if found != wanted => {
                Err(read_back(now.addr, "representor", &wanted, &found))
            }
            _ => Ok(()),
        }
    }
}
