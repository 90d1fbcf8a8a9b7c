//! The QEMU driver.

mod argv;
mod folder;
mod vm;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use argv::{Platform, arguments};
pub use vm::Vm;

use crate::machine::{Driver, VmError};
use crate::spec::VmSpec;

/// QEMU's program for x86-64 guests, as found in `PATH`.
const PROGRAM: &str = "qemu-system-x86_64";

/// A QEMU release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Major.
    pub major: u16,
    /// Minor.
    pub minor: u16,
}

impl Version {
    /// Out of the first line of `--version`: `QEMU emulator version 7.2.22 (Debian ...)`.
    fn parse(text: &str) -> Option<Self> {
        let version = text.split("version ").nth(1)?;
        let mut numbers = version.split(|it: char| !it.is_ascii_digit()).map(str::parse);
        Some(Self { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// An installed QEMU.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    version: Version,
}

impl Qemu {
    /// The QEMU in `PATH`.
    ///
    /// # Errors
    /// [`VmError::NoVmm`].
    pub fn find() -> Result<Self, VmError> {
        Self::at(Path::new(PROGRAM))
    }

    /// A QEMU of one's own.
    ///
    /// # Errors
    /// [`VmError::NoVmm`].
    pub fn at(program: &Path) -> Result<Self, VmError> {
        let refuse = |why: String| VmError::NoVmm {
            program: program.display().to_string(),
            why,
            package: "qemu-system-x86",
        };
        let output = Command::new(program)
            .arg("--version")
            .output()
            .map_err(|error| refuse(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = Version::parse(&text)
            .ok_or_else(|| refuse(format!("it does not tell its version: {text}")))?;
        Ok(Self { program: program.to_owned(), version })
    }

    /// Its release.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

impl Driver for Qemu {
    type Vm = Vm;

    fn start(&self, spec: VmSpec) -> Result<Vm, VmError> {
        Vm::start(self, &spec)
    }

    fn adopt(&self, spec: &VmSpec) -> Result<Option<Vm>, VmError> {
        Vm::adopt(spec)
    }

    fn end(&self, run_folder: &Path) -> Result<(), VmError> {
        vm::end(run_folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_as_debian_and_upstream_write_it() {
        for (text, want) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\n", (7, 2)),
            ("QEMU emulator version 10.0.2\nCopyright", (10, 0)),
            ("QEMU emulator version 9.2.50-dirty", (9, 2)),
        ] {
            let version = Version::parse(text).expect(text);
            assert_eq!((version.major, version.minor), want);
        }
        assert_eq!(Version::parse("bochs 2"), None);
        assert!(Version { major: 9, minor: 2 } < Version { major: 10, minor: 0 });
    }

    #[test]
    fn a_qemu_that_is_not_there_names_the_package() {
        let error = Qemu::at(Path::new("/no/such/qemu")).expect_err("absent").to_string();
        assert!(error.contains("qemu-system-x86") && error.contains("/no/such/qemu"), "{error}");
    }
}
