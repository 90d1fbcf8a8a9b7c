//! The line to the server, and what it carries (`control::protocol`): by HTTPS with the host's own
//! certificate, or by whatever a test puts in its place.

use std::time::Duration;

use lanekeeper_client::{Client, Error};
use lanekeeper_control::placement::HostReport;
use lanekeeper_control::protocol::{Desired, Heartbeat, HeartbeatAnswer, VmReports};
use ureq::http::Method;

/// Why the server was told nothing, or told nothing.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No server was reached, or it did not answer as one.
    #[error("no server answers: {0}")]
    Unreachable(String),
    /// It refuses: this host's certificate, or what was said.
    #[error("the server refuses: {0}")]
    Refused(String),
}

/// A line to the server.
pub trait Link: Send + Sync {
    /// Say what the host has.
    ///
    /// # Errors
    /// [`LinkError`], as for each of these.
    fn inventory(&self, report: &HostReport) -> Result<(), LinkError>;

    /// Keep the host's lease alive. It must give up within [`HEARTBEAT_PATIENCE`].
    ///
    /// # Errors
    /// [`LinkError`].
    fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatAnswer, LinkError>;

    /// What the host shall have, once it is newer than revision `after`, or after `wait`.
    ///
    /// # Errors
    /// [`LinkError`].
    fn desired(&self, after: u64, wait: Duration) -> Result<Desired, LinkError>;

    /// Say what became of VMs.
    ///
    /// # Errors
    /// [`LinkError`].
    fn report(&self, reports: &VmReports) -> Result<(), LinkError>;
}

/// How long a sign of life may take. One that came later would say less than the next.
pub const HEARTBEAT_PATIENCE: Duration = Duration::from_secs(5);

/// By HTTPS.
#[derive(Clone, Debug)]
pub struct Https {
    client: Client,
}

impl Https {
    /// Through a client that has the host's certificate as its identity.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl Link for Https {
    fn inventory(&self, report: &HostReport) -> Result<(), LinkError> {
        Ok(self.client.put("/v1/agent/inventory", report)?.body)
    }

    fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatAnswer, LinkError> {
        let call = self.client.call(Method::POST, "/v1/agent/heartbeat");
        Ok(call.timeout(HEARTBEAT_PATIENCE).json(heartbeat)?.send()?.body)
    }

    fn desired(&self, after: u64, wait: Duration) -> Result<Desired, LinkError> {
        let path = format!("/v1/agent/desired?after={after}&wait={}", wait.as_secs());
        Ok(self.client.wait(&path, wait)?.body)
    }

    fn report(&self, reports: &VmReports) -> Result<(), LinkError> {
        Ok(self.client.put("/v1/agent/vms", reports)?.body)
    }
}

impl From<Error> for LinkError {
    fn from(error: Error) -> Self {
        match error {
            Error::Problem(problem) => Self::Refused(problem.to_string()),
            other => Self::Unreachable(other.to_string()),
        }
    }
}
