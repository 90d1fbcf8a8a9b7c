//! A server started on a machine for one measurement, and the wait until it listens.

use std::time::Duration;

use crate::{Host, HostError, Job, Output, ProbeError};

const PATIENCE: Duration = Duration::from_secs(15);

/// A server that runs. Dropping it stops it.
pub(crate) struct Listener<'a> {
    job: Box<dyn Job + 'a>,
}

impl Listener<'_> {
    /// End the server, if it did not end by itself, and return what it wrote.
    pub(crate) fn stop(&mut self) -> Result<Output, HostError> {
        self.job.stop()
    }
}

/// Start `command` and wait until something listens on TCP `port`, in one command on the machine
/// so that a slow line to it costs nothing.
pub(crate) fn listen<'a>(
    tool: &'static str,
    host: &'a dyn Host,
    command: &str,
    port: u16,
) -> Result<Listener<'a>, ProbeError> {
    let mut job = host.start(command)?;
    // State 0A is LISTEN; the local port is the hexadecimal after the address's colon.
    let wait = format!(
        "i=0; while [ $i -lt {} ]; do \
         grep -qiE ':{port:04x} [0-9a-f]+:0000 0a ' /proc/net/tcp /proc/net/tcp6 2>/dev/null \
         && exit 0; sleep 0.1; i=$((i + 1)); done; exit 1",
        PATIENCE.as_millis() / 100
    );
    // Under emulation the tries themselves take long, so the deadline is generous.
    if host.run(&wait, PATIENCE * 4)?.success() {
        return Ok(Listener { job });
    }
    let ended = job.stop()?;
    Err(ProbeError::NotListening {
        tool,
        host: host.name().to_owned(),
        port,
        after: PATIENCE,
        why: ended.complaint(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalHost;

    #[test]
    fn a_real_server_is_found_by_its_port() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        assert!(listen("test", &LocalHost::new("here"), "sleep 600", port).is_ok());
    }

    #[test]
    fn a_server_that_ends_at_once_says_why() {
        let host = crate::scripted::Scripted::new("a2").answer("false", 1, "", "no device").answer(
            "/proc/net/tcp",
            1,
            "",
            "",
        );
        let text = listen("test", &host, "false", 7).err().expect("ended").to_string();
        assert!(text.contains("no device"), "{text}");
    }
}
