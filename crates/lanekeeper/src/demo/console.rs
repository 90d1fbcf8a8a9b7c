//! A person's terminal on the serial console of a VM, until Ctrl-] is pressed.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Ctrl-], as telnet and virsh have it: nothing in a shell needs it.
const LEAVE: u8 = 0x1d;
/// What busybox's `askfirst` waits for, and what makes a shell show its prompt again.
const ENTER: &[u8] = b"\r";

/// Why a console was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// Ctrl-] was pressed, or the terminal is gone.
    ByUser,
    /// The VM has ended.
    ByVm,
}

/// Join this process's terminal and a console.
///
/// # Errors
/// When the terminal or the console fails.
pub(super) fn join(mut console: UnixStream) -> io::Result<Left> {
    let terminal = io::stdin();
    let _raw = Raw::set(&terminal)?;
    console.write_all(ENTER)?;
    relay(&terminal, &mut io::stdout(), &mut console)
}

/// A terminal whose keys reach the reader one by one and untouched, until this is dropped.
struct Raw<T: AsFd> {
    terminal: T,
    before: Termios,
}

impl<T: AsFd> Raw<T> {
    fn set(terminal: T) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Flush, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl<T: AsFd> Drop for Raw<T> {
    fn drop(&mut self) {
        // A terminal that is gone needs no repair.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}

fn relay(keys: impl AsFd, screen: &mut impl Write, console: &mut UnixStream) -> io::Result<Left> {
    let mut buffer = [0; 4096];
    loop {
        let ready = {
            let mut wait = [
                PollFd::new(&keys, PollFlags::IN),
                PollFd::from_borrowed_fd(console.as_fd(), PollFlags::IN),
            ];
            match poll(&mut wait, None) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            wait.map(|one| !one.revents().is_empty())
        };
        if ready[1] {
            match console.read(&mut buffer)? {
                0 => return Ok(Left::ByVm),
                length => screen.write_all(&buffer[..length]).and_then(|()| screen.flush())?,
            }
        }
        if ready[0] {
            let length = rustix::io::read(&keys, &mut buffer)?;
            let typed = &buffer[..length];
            let leave = typed.iter().position(|key| *key == LEAVE);
            console.write_all(&typed[..leave.unwrap_or(length)])?;
            if leave.is_some() || length == 0 {
                return Ok(Left::ByUser);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_before_the_leaving_one_reach_the_vm_and_none_after_it() {
        let (keys, mut person) = UnixStream::pair().expect("a pair");
        let (mut console, mut vm) = UnixStream::pair().expect("a pair");
        person.write_all(b"ls\r\x1dsecret").expect("typed");
        let left = relay(&keys, &mut io::sink(), &mut console).expect("relays");
        assert_eq!(left, Left::ByUser);
        drop(console);
        let mut got = String::new();
        vm.read_to_string(&mut got).expect("reads");
        assert_eq!(got, "ls\r");
    }

    #[test]
    fn what_the_vm_says_is_shown_until_it_ends() {
        let (keys, _person) = UnixStream::pair().expect("a pair");
        let (mut console, mut vm) = UnixStream::pair().expect("a pair");
        vm.write_all(b"# power off").expect("said");
        drop(vm);
        let mut screen = Vec::new();
        let left = relay(&keys, &mut screen, &mut console).expect("relays");
        assert_eq!((left, screen.as_slice()), (Left::ByVm, b"# power off".as_slice()));
    }

    #[test]
    fn what_is_no_terminal_is_refused() {
        let (keys, _person) = UnixStream::pair().expect("a pair");
        assert!(Raw::set(&keys).is_err());
    }
}
