//! What a driver does for a moment only: it refuses, because a VF is in reset, or does not tell of it.

use lanekeeper_model::{PfAddr, VfIndex};

use super::Fake;
use super::machine::Matter;
use crate::HardwareError;

impl Fake {
    /// The next `times` messages for a VF are refused with this errno, as while the VF is in reset
    /// (`EBUSY`, `EAGAIN`: sriov-cni#213).
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn refuse_messages(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        errno: i32,
        times: u32,
    ) -> Result<(), HardwareError> {
        self.with(pf, |pf| {
            pf.refusals.insert((Matter::Message, vf), (errno, times));
        })
    }

    /// The next `times` driver overrides, unbinds, probes and resets of a VF are refused with this
    /// errno, as while udev still sets its files up (`EACCES`: sriov-network-operator#108).
    ///
    /// # Errors
    /// [`HardwareError::NoPf`].
    pub fn refuse_binding(
        &self,
        pf: PfAddr,
        vf: VfIndex,
        errno: i32,
        times: u32,
    ) -> Result<(), HardwareError> {
        self.with(pf, |pf| {
            pf.refusals.insert((Matter::Binding, vf), (errno, times));
        })
    }

    /// The PF's driver tells nothing of a VF in the next `reads` readings, as while the VF is in reset
    /// (ice_sriov.c ice_get_vf_cfg: EBUSY, upon which rtnetlink.c rtnl_fill_vfinfo leaves it out).
    ///
    /// # Errors
    /// [`HardwareError::NoPf`], [`HardwareError::NoVf`].
    pub fn leave_untold(&self, pf: PfAddr, vf: VfIndex, reads: u32) -> Result<(), HardwareError> {
        self.lock().pf(pf)?.vf(vf)?.untold = reads.saturating_add(u32::from(reads > 0));
        Ok(())
    }
}
