//! The line to the server, and what it carries (`control::protocol`): by HTTPS with the host's own
//! certificate, or by whatever a test puts in its place.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use lanekeeper_client::{Client, Error};
use lanekeeper_control::placement::HostReport;
use lanekeeper_control::protocol::{Desired, Heartbeat, HeartbeatAnswer, ProofReports, VmReports};
use ureq::http::Method;

use crate::error::NodeError;
use crate::membership::Membership;

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

    /// Say what looks at VMs found.
    ///
    /// # Errors
    /// [`LinkError`].
    fn proofs(&self, reports: &ProofReports) -> Result<(), LinkError>;
}

/// How long a sign of life may take. One that came later would say less than the next.
pub const HEARTBEAT_PATIENCE: Duration = Duration::from_secs(5);

/// By HTTPS.
#[derive(Debug)]
pub struct Https {
    client: RwLock<Client>,
    membership: Option<Mutex<(PathBuf, Membership)>>,
}

impl Https {
    /// Through a client, whoever that speaks as.
    pub fn new(client: Client) -> Self {
        Self { client: RwLock::new(client), membership: None }
    }

    /// As the host that this machine was enrolled as. Its certificate is renewed in time, and kept in
    /// the state folder.
    ///
    /// # Errors
    /// [`NodeError::Server`] for a certificate, a key or an address that is none.
    pub fn member(folder: &Path, membership: Membership) -> Result<Self, NodeError> {
        let client = RwLock::new(membership.client()?);
        let membership = Some(Mutex::new((folder.to_owned(), membership)));
        Ok(Self { client, membership })
    }

    fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn renew(&self) -> Result<(), NodeError> {
        let Some(membership) = &self.membership else { return Ok(()) };
        let mut membership = membership.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, old) = &mut *membership;
        if let Some(new) = old.renewed(folder, &self.client())? {
            let client = new.client()?;
            *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
            *old = new;
            tracing::info!("the host's certificate was renewed");
        }
        Ok(())
    }
}

impl Link for Https {
    fn inventory(&self, report: &HostReport) -> Result<(), LinkError> {
        // Here, since nothing depends on how soon the server hears this.
        if let Err(error) = self.renew() {
            tracing::warn!(%error, "the host's certificate was not renewed");
        }
        self.client().put::<()>("/v1/agent/inventory", report)?;
        Ok(())
    }

    fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatAnswer, LinkError> {
        let client = self.client();
        let call = client.call(Method::POST, "/v1/agent/heartbeat");
        Ok(call.timeout(HEARTBEAT_PATIENCE).json(heartbeat)?.send()?.body)
    }

    fn desired(&self, after: u64, wait: Duration) -> Result<Desired, LinkError> {
        let path = format!("/v1/agent/desired?after={after}&wait={}", wait.as_secs());
        Ok(self.client().wait(&path, wait)?.body)
    }

    fn report(&self, reports: &VmReports) -> Result<(), LinkError> {
        self.client().put::<()>("/v1/agent/vms", reports)?;
        Ok(())
    }

    fn proofs(&self, reports: &ProofReports) -> Result<(), LinkError> {
        self.client().put::<()>("/v1/agent/proofs", reports)?;
        Ok(())
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
