//! Messages on a UNIX stream: bytes up to a mark, with a deadline and an upper bound, as both QMP
//! and the guest agent send them.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Why no message came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("nothing came in time")]
    Deadline,
    #[error("the other side closed the connection")]
    Closed,
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(crate) struct Wire {
    stream: UnixStream,
    /// Read and not yet handed out.
    pending: Vec<u8>,
    /// Longest message taken, in bytes.
    limit: usize,
}

impl Wire {
    pub(crate) fn new(stream: UnixStream, limit: usize) -> Self {
        Self { stream, pending: Vec::new(), limit }
    }

    /// The bytes up to `mark`, which is taken and left out. Without a deadline it waits for ever.
    pub(crate) fn read_until(
        &mut self,
        mark: u8,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, WireError> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.pending[seen..].iter().position(|byte| *byte == mark) {
                let rest = self.pending.split_off(seen + at + 1);
                let mut message = std::mem::replace(&mut self.pending, rest);
                message.pop();
                return Ok(message);
            }
            seen = self.pending.len();
            if seen > self.limit {
                return Err(WireError::TooLong(self.limit));
            }
            self.stream.set_read_timeout(deadline.map(remaining).transpose()?)?;
            let mut chunk = [0; 16_384];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(WireError::Closed),
                Ok(count) => self.pending.extend_from_slice(&chunk[..count]),
                Err(error) if is_timeout(&error) => return Err(WireError::Deadline),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(WireError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), WireError> {
        write(&mut self.stream, bytes, deadline)
    }
}

/// Writes all of `bytes`, or fails: a message cut short is never followed by another.
pub(crate) fn write(
    stream: &mut UnixStream,
    bytes: &[u8],
    deadline: Instant,
) -> Result<(), WireError> {
    stream.set_write_timeout(Some(remaining(deadline)?))?;
    stream.write_all(bytes).map_err(|error| {
        if is_timeout(&error) {
            WireError::Deadline
        } else if error.kind() == io::ErrorKind::BrokenPipe {
            WireError::Closed
        } else {
            error.into()
        }
    })
}

/// A time-out of zero would mean "for ever" to the system.
fn remaining(deadline: Instant) -> Result<Duration, WireError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(WireError::Deadline) } else { Ok(left) }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Connects once the socket is there: a program just started needs a moment to make it. `gone`
/// ends the wait when that program has ended.
pub(crate) fn connect(
    path: &Path,
    deadline: Instant,
    gone: impl Fn() -> bool,
) -> Result<UnixStream, WireError> {
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(_) if gone() => return Err(WireError::Closed),
            Err(error) if Instant::now() >= deadline => {
                return Err(match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        WireError::Deadline
                    }
                    _ => error.into(),
                });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(limit: usize) -> (Wire, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Wire::new(ours, limit), theirs)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(100)
    }

    #[test]
    fn messages_come_one_by_one_however_they_were_sent() {
        let (mut wire, mut peer) = pair(100);
        peer.write_all(b"one\ntwo\nthr").expect("sent");
        assert_eq!(wire.read_until(b'\n', Some(soon())).expect("whole"), b"one");
        assert_eq!(wire.read_until(b'\n', Some(soon())).expect("whole"), b"two");
        assert!(matches!(wire.read_until(b'\n', Some(soon())), Err(WireError::Deadline)));
        peer.write_all(b"ee\n").expect("sent");
        assert_eq!(wire.read_until(b'\n', Some(soon())).expect("whole"), b"three");
    }

    #[test]
    fn a_message_without_end_is_refused() {
        let (mut wire, mut peer) = pair(1000);
        peer.write_all(&[b'x'; 2000]).expect("sent");
        assert!(matches!(wire.read_until(b'\n', Some(soon())), Err(WireError::TooLong(1000))));
    }

    #[test]
    fn a_closed_connection_is_told_from_silence() {
        let (mut wire, peer) = pair(100);
        drop(peer);
        assert!(matches!(wire.read_until(b'\n', Some(soon())), Err(WireError::Closed)));
    }

    #[test]
    fn a_peer_that_does_not_read_cannot_hold_a_writer() {
        let (mut wire, _peer) = pair(100);
        let begin = Instant::now();
        let result = wire.write(&vec![0; 64 << 20], begin + Duration::from_millis(100));
        assert!(matches!(result, Err(WireError::Deadline)));
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}
