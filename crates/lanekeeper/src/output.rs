//! What a command has to say to standard output and standard error, also where nobody reads any more
//! (`| head`): a reader that has gone has seen what it wanted, and is no reason to fail, let alone to
//! panic.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use crate::Failure;

/// Write this and a line's end to standard output.
///
/// # Errors
/// [`Failure::Unread`] when the reader is gone; [`Failure::Work`] when what is written is lost, as on
/// a disk that is full.
pub(crate) fn print(text: impl Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::Unread),
        Err(error) => Err(Failure::Work(format!("cannot write to standard output: {error}"))),
    }
}

/// Text that others had a part in, as it may go to a terminal: a process's or an interface's name, and
/// a recording most of all, may have characters in it that command one.
pub(crate) fn harmless(text: &str) -> String {
    let harmless = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    text.chars().map(harmless).collect()
}

/// Write this and a line's end to standard error, if anybody reads it.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Nanoseconds in microseconds: a round trip between two VMs is seldom more than some of these.
pub(crate) fn micros(ns: u64) -> String {
    format!("{}.{} µs", ns / 1000, ns % 1000 / 100)
}
