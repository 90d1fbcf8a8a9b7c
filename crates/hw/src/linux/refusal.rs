//! From what the kernel says to an error that names the PF, what was being done, and what to do
//! about it.

use std::fmt;
use std::io;

use lanekeeper_model::{PfAddr, PfId};

use super::netlink::Failure;
use super::netlink::message::Said;
use crate::HardwareError;

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EROFS: i32 = 30;
const ERANGE: i32 = 34;
const EPROTONOSUPPORT: i32 = 93;
pub(super) const EOPNOTSUPP: i32 = 95;
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENOTTY: i32 = 25;
/// The kernel's own, which drivers let out by mistake (include/linux/errno.h).
const ENOTSUPP: i32 = 524;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Read,
    NumVfs,
    Eswitch,
    VfSetting,
    VfMtu,
    Driver,
    Reset,
    Roce,
    Other,
}

impl Deed {
    /// What to do about an errno.
    fn hint(self, errno: i32) -> Option<&'static str> {
        Some(match (self, errno) {
            (_, EPERM | EACCES) => {
                "run as root; in a container, with CAP_NET_ADMIN and a writable /sys"
            }
            (_, EROFS) => "sysfs is read-only here; run on the host, or mount /sys writable",
            (Self::NumVfs, ENOMEM) => {
                "the platform has no room for the VFs' registers: turn on SR-IOV and \"above 4G \
                 decoding\" in the BIOS, or boot with pci=realloc"
            }
            (Self::NumVfs, EBUSY) => {
                "VFs exist, or a VM still uses one: write 0 first, then the new number"
            }
            (Self::NumVfs, ERANGE) => "it is more than sriov_totalvfs; ask for fewer",
            (Self::NumVfs, EIO) => "the firmware did not make the VFs; the kernel log says why",
            (Self::Eswitch, EBUSY) => {
                "unbind the VFs' drivers, and remove tc rules and IPsec offloads of the PF first"
            }
            (Self::Roce, EBUSY) => {
                "somebody else manages it: for DCB stop lldpad or the firmware's LLDP agent; \
                 netns can be set only before there are network namespaces"
            }
            (Self::VfSetting | Self::Reset, EBUSY | EAGAIN) => {
                "the VF is in reset or in use; unbind its driver and try again"
            }
            (Self::VfSetting, EINVAL) => {
                "the driver does not take this value; many have no min rate, some refuse a zero MAC"
            }
            (_, EAGAIN) => "the device is busy or in reset; try again",
            (_, EBUSY) => "somebody uses it; `lanekeeper host show` names who holds a VF",
            _ => return None,
        })
    }

    /// Whether an errno says that the driver cannot do it at all.
    fn unsupported(self, errno: i32) -> bool {
        match errno {
            EOPNOTSUPP | ENOTSUPP | EPROTONOSUPPORT => true,
            // No `sriov_configure` in the driver (drivers/pci/iov.c), no such generic family, no
            // such file of the driver's.
            ENOENT => matches!(self, Self::NumVfs | Self::Eswitch | Self::Roce | Self::Reset),
            // Its driver registered no devlink device.
            ENODEV => self == Self::Eswitch,
            // No way to reset it (`pci_reset_function`).
            ENOTTY => self == Self::Reset,
            _ => false,
        }
    }
}

/// One step on one PF, as errors tell of it.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) pf: PfAddr,
    /// Driver of what is changed, or what stands in its place.
    pub(super) driver: Option<String>,
    pub(super) deed: Deed,
    /// As in "set VLAN 7 on VF 3".
    pub(super) doing: String,
    /// What to do instead if the driver cannot.
    pub(super) instead: &'static str,
}

impl Step {
    /// The error that this failure is.
    pub(super) fn failed(&self, failure: Failure) -> HardwareError {
        if failure.errno().is_some_and(|errno| self.deed.unsupported(errno)) {
            let Failure::Refused(Said { text, .. }) = failure else { return self.unsupported() };
            return self.unsupported_because(text);
        }
        let hint = failure.errno().and_then(|errno| self.deed.hint(errno));
        let source = match failure {
            Failure::Silent(after) => {
                return HardwareError::Deadline { pf: PfId::Pci(self.pf), after };
            }
            Failure::Io(error) => error,
            Failure::Refused(Said { errno, text: None }) => io::Error::from_raw_os_error(errno),
            Failure::Refused(Said { errno, text: Some(text) }) => Words { errno, text }.into(),
        };
        HardwareError::Kernel { pf: PfId::Pci(self.pf), doing: self.doing.clone(), source, hint }
    }

    /// The driver cannot do it.
    pub(super) fn unsupported(&self) -> HardwareError {
        self.unsupported_because(None)
    }

    fn unsupported_because(&self, said: Option<String>) -> HardwareError {
        let driver = self.driver.clone().unwrap_or_else(|| format!("{} without a driver", self.pf));
        let (what, instead) = (self.doing.clone(), self.instead.to_owned());
        HardwareError::Unsupported { driver, what, said, instead }
    }
}

/// An errno with the kernel's own words.
#[derive(Debug)]
pub(crate) struct Words {
    pub(crate) errno: i32,
    pub(crate) text: String,
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", io::Error::from_raw_os_error(self.errno), self.text)
    }
}

impl std::error::Error for Words {}

impl From<Words> for io::Error {
    fn from(words: Words) -> Self {
        let kind = io::Error::from_raw_os_error(words.errno).kind();
        Self::new(kind, words)
    }
}

impl HardwareError {
    /// The errno behind a refusal of the kernel, with or without words of its own beside it.
    pub fn errno(&self) -> Option<i32> {
        let (Self::Kernel { source, .. } | Self::Host { source, .. } | Self::Io { source, .. }) =
            self
        else {
            return None;
        };
        let words = || source.get_ref()?.downcast_ref::<Words>();
        source.raw_os_error().or_else(|| Some(words()?.errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn step(deed: Deed) -> Step {
        Step {
            pf: "0000:3b:00.0".parse().expect("valid"),
            driver: Some("mlx5_core".to_owned()),
            deed,
            doing: "set trust on VF 3".to_owned(),
            instead: "leave it off",
        }
    }

    fn refused(errno: i32, text: Option<&str>) -> Failure {
        Failure::Refused(Said { errno, text: text.map(str::to_owned) })
    }

    #[test]
    fn what_a_driver_cannot_do_names_the_driver_and_the_knob() {
        for errno in [EOPNOTSUPP, ENOTSUPP, EPROTONOSUPPORT] {
            let error = step(Deed::VfSetting).failed(refused(errno, None)).to_string();
            assert_eq!(error, "mlx5_core cannot set trust on VF 3; leave it off");
        }
        let error = step(Deed::VfSetting).failed(refused(EOPNOTSUPP, Some("Not in this mode")));
        let wanted = "mlx5_core cannot set trust on VF 3 (Not in this mode); leave it off";
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn a_device_that_devlink_does_not_know_has_no_eswitch() {
        let error = step(Deed::Eswitch).failed(refused(ENODEV, None));
        assert!(matches!(error, HardwareError::Unsupported { .. }), "{error}");
        let error = step(Deed::VfSetting).failed(refused(ENODEV, None));
        assert_eq!(error.errno(), Some(ENODEV));
    }

    #[test]
    fn the_kernels_words_stand_beside_the_errno_which_stays_readable() {
        let error = step(Deed::Eswitch).failed(refused(EBUSY, Some("VFs are bound")));
        assert_eq!(error.errno(), Some(EBUSY));
        let text = error.to_string();
        assert!(text.contains("(os error 16): VFs are bound; unbind"), "{text}");
        assert_eq!(step(Deed::Other).failed(refused(22, None)).errno(), Some(22));
    }

    #[test]
    fn no_room_for_registers_hints_at_the_bios_and_the_kernels_option() {
        let error = step(Deed::NumVfs).failed(Failure::Io(io::Error::from_raw_os_error(ENOMEM)));
        assert!(error.to_string().contains("pci=realloc"), "{error}");
    }

    #[test]
    fn silence_is_a_deadline() {
        let after = Duration::from_secs(5);
        let error = step(Deed::Read).failed(Failure::Silent(after));
        assert!(matches!(error, HardwareError::Deadline { after: told, .. } if told == after));
    }
}
