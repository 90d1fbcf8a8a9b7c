//! Commands in a guest, through its agent: for the VMs of this process, and for guests that somebody
//! else has started.

use std::path::Path;
use std::time::{Duration, Instant};

use lanekeeper_verify::{Host, HostError, Job, Output};

use crate::agent::{Agent, AgentError, Ended, GuestPid};

/// How long one exchange with the agent may take; it takes milliseconds, but an emulated CPU can be
/// without the host's for seconds.
const AGENT_CALL: Duration = Duration::from_secs(20);

/// Times between looks at a command in the guest: it begins short and grows.
const POLL_FIRST: Duration = Duration::from_millis(4);
const POLL_LAST: Duration = Duration::from_millis(100);

/// A guest that has an agent.
pub(crate) trait Guest: Host {
    fn agent(&self) -> &Agent;

    /// What an agent without an answer means here.
    fn unreachable(&self, error: &AgentError) -> HostError;

    /// Nothing can run in it any more.
    fn has_ended(&self) -> bool;
}

/// A guest that somebody else has started, known by the socket of its agent alone: a VM within a
/// VM, or one that was left running. Dropping it leaves the guest as it is.
#[derive(Debug)]
pub struct AgentHost {
    name: String,
    agent: Agent,
}

impl AgentHost {
    /// Connect to the socket of the agent's line, at which one may listen at a time. The guest need
    /// not run yet.
    ///
    /// # Errors
    /// [`AgentError::Deadline`], [`AgentError::Broken`].
    pub fn connect(name: &str, socket: &Path, within: Duration) -> Result<Self, AgentError> {
        let agent = Agent::connect(socket, within, || false)?;
        Ok(Self { name: name.to_owned(), agent })
    }

    /// Wait until the guest runs commands.
    ///
    /// # Errors
    /// As [`Agent::ping`].
    pub fn wait_ready(&self, within: Duration) -> Result<(), AgentError> {
        self.agent.ping(within)
    }
}

impl Host for AgentHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, command: &str) -> Result<Box<dyn Job + '_>, HostError> {
        Ok(Box::new(GuestJob::begin(self, command)?))
    }
}

impl Guest for AgentHost {
    fn agent(&self) -> &Agent {
        &self.agent
    }

    fn unreachable(&self, error: &AgentError) -> HostError {
        HostError::Unreachable { host: self.name.clone(), why: error.to_string() }
    }

    fn has_ended(&self) -> bool {
        false
    }
}

/// A command in a guest.
pub(crate) struct GuestJob<'a> {
    guest: &'a dyn Guest,
    pid: GuestPid,
    ended: Option<Output>,
}

impl<'a> GuestJob<'a> {
    pub(crate) fn begin(guest: &'a dyn Guest, command: &str) -> Result<Self, HostError> {
        let started = guest.agent().start(command, AGENT_CALL);
        let pid = started.map_err(|error| guest.unreachable(&error))?;
        Ok(Self { guest, pid, ended: None })
    }
}

impl Job for GuestJob<'_> {
    fn poll(&mut self) -> Result<Option<Output>, HostError> {
        if self.ended.is_none() {
            let ended = self.guest.agent().poll(self.pid, AGENT_CALL);
            self.ended = ended.map_err(|error| self.guest.unreachable(&error))?.map(output);
        }
        Ok(self.ended.clone())
    }

    fn stop(&mut self) -> Result<Output, HostError> {
        if let Some(output) = self.poll()? {
            return Ok(output);
        }
        let stopped = self.guest.agent().stop(self.pid, AGENT_CALL);
        stopped.map_err(|error| self.guest.unreachable(&error))?;
        self.wait(AGENT_CALL)?.ok_or_else(|| HostError::Unreachable {
            host: self.guest.name().to_owned(),
            why: format!("a command that was killed had not ended after {AGENT_CALL:?}"),
        })
    }

    fn wait(&mut self, within: Duration) -> Result<Option<Output>, HostError> {
        let deadline = Instant::now() + within;
        let mut pause = POLL_FIRST;
        loop {
            if let Some(output) = self.poll()? {
                return Ok(Some(output));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 3 / 2).min(POLL_LAST);
        }
    }
}

impl Drop for GuestJob<'_> {
    fn drop(&mut self) {
        if self.ended.is_none() && !self.guest.has_ended() {
            // Nobody is left to be told.
            let _ = self.stop();
        }
    }
}

fn output(ended: Ended) -> Output {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Output { status: ended.status, stdout: text(ended.stdout), stderr: text(ended.stderr) }
}
