//! Generic netlink: families with names, whose numbers the kernel gives out as they register
//! (kernel document `userspace-api/netlink/intro`).

use super::netlink::attribute::{Attribute, Attributes, Builder};
use super::netlink::{Connection, Failure};

/// The controller, which knows the others (`GENL_ID_CTRL`).
const CONTROLLER: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// `struct genlmsghdr`: command, version, two reserved bytes.
const HEADER: usize = 4;
/// Version of every family used here.
const VERSION: u8 = 1;

/// A family of the running kernel.
#[derive(Debug)]
pub(crate) struct Family {
    kernel: Connection,
    number: u16,
}

impl Family {
    /// Look a family up by name. `ENOENT` if this kernel does not have it.
    pub(crate) fn find(mut kernel: Connection, name: &str) -> Result<Self, Failure> {
        let mut request = header(CTRL_CMD_GETFAMILY);
        request.text(CTRL_ATTR_FAMILY_NAME, name);
        let answer = kernel.get(CONTROLLER, request.finish())?;
        let number = body(&answer.payload).first(CTRL_ATTR_FAMILY_ID).and_then(Attribute::u16);
        // No driver and no kernel answers without it; 0 is no family, and is refused as such.
        Ok(Self { kernel, number: number.unwrap_or(0) })
    }

    /// Ask something; the answer's attributes are behind [`body`].
    pub(crate) fn get(
        &mut self,
        command: u8,
        write: impl FnOnce(&mut Builder),
    ) -> Result<Vec<u8>, Failure> {
        let mut request = header(command);
        write(&mut request);
        self.kernel.get(self.number, request.finish()).map(|answer| answer.payload)
    }

    /// Have something done.
    pub(crate) fn set(
        &mut self,
        command: u8,
        write: impl FnOnce(&mut Builder),
    ) -> Result<(), Failure> {
        let mut request = header(command);
        write(&mut request);
        self.kernel.set(self.number, request.finish()).map(drop)
    }
}

/// The attributes of an answer.
pub(crate) fn body(answer: &[u8]) -> Attributes<'_> {
    Attributes(answer.get(HEADER..).unwrap_or_default())
}

fn header(command: u8) -> Builder {
    Builder::after(&[command, VERSION, 0, 0])
}
