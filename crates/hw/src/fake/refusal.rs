//! How a fake host says no: as the kernel's errno, told in the words of [`HardwareError`].

use rustix::io::Errno;

use super::machine::{Halt, Pf};
use crate::HardwareError;
use crate::linux::refusal::Words;

/// Refused with an errno.
pub(super) fn errno(pf: &Pf, errno: Errno, doing: String, hint: Option<&'static str>) -> Halt {
    HardwareError::Kernel { pf: pf.id(), doing, source: errno.into(), hint }.into()
}

/// Refused with an errno and words of the driver's own beside it (`NLMSGERR_ATTR_MSG`).
pub(super) fn in_words(pf: &Pf, errno: Errno, doing: String, text: &str) -> Halt {
    let source = Words { errno: errno.raw_os_error(), text: text.to_owned() }.into();
    HardwareError::Kernel { pf: pf.id(), doing, source, hint: None }.into()
}

/// Refused because the driver, or the mode that it is in, has no such thing (`EOPNOTSUPP`,
/// `EPROTONOSUPPORT`).
pub(super) fn unsupported(driver: &str, what: String, instead: &str) -> Halt {
    let (driver, instead) = (driver.to_owned(), instead.to_owned());
    HardwareError::Unsupported { driver, what, said: None, instead }.into()
}
