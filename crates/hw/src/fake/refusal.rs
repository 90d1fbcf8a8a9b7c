//! How a fake host says no: as the kernel's errno, told in the words of [`HardwareError`].

use rustix::io::Errno;

use super::machine::{Halt, Pf};
use crate::HardwareError;

/// Refused with an errno.
pub(super) fn errno(pf: &Pf, errno: Errno, doing: String, hint: Option<&'static str>) -> Halt {
    HardwareError::Kernel { pf: pf.id(), doing, source: errno.into(), hint }.into()
}

/// Refused because the driver, or the mode that it is in, has no such thing (`EOPNOTSUPP`,
/// `EPROTONOSUPPORT`).
pub(super) fn unsupported(driver: &str, what: String, instead: &str) -> Halt {
    let (driver, instead) = (driver.to_owned(), instead.to_owned());
    HardwareError::Unsupported { driver, what, said: None, instead }.into()
}
