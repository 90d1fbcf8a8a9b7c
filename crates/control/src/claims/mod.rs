//! Claims: what placement decided, written so that nothing is given twice, however many servers place
//! at once.
//!
//! One task a region and server holds the [`Index`](crate::placement::Index) and follows the store.
//! It takes the requests that wait, places them one after the other on its index, and writes all of
//! them in one transaction: for each touched host its claims, for each request its placement, for each
//! organization its usage. The transaction expects each of these keys to be as the index knew it. If
//! another server was quicker with any of them, nothing is written; the index takes up what has
//! changed, and all are placed anew. Whoever is refused by the store was overtaken by one that was
//! not, so somebody always goes on.
//!
//! A refusal is judged by what the server knows, which may be some milliseconds behind what another has
//! just released.
//!
//! Several requests in one transaction make the rate of placements a matter of the batch and not of
//! the disk or the network: the next batch gathers while this one is written.

mod view;
mod writer;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tracing::{Instrument, trace_span};

use self::writer::{Job, Writer};
use crate::keys::{HostName, OrgName, PlacementId, RegionName};
use crate::metrics::Metrics;
use crate::placement::{Closed, Index, Placement, Refusal, Request};
use crate::spans::TARGET;
use crate::store::{Store, StoreError};

/// Requests that may wait; who comes then waits to be let in.
const QUEUE: usize = 1024;

/// A request, and whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Whose quota it is taken from.
    pub organization: OrgName,
    /// What is asked for.
    pub request: Request,
}

/// A placement as it is written under its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placed {
    /// What was asked for.
    pub ask: Ask,
    /// Where it is.
    pub placement: Placement,
}

/// Why something was not claimed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClaimError {
    /// There is no room, or no quota.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The id is that of another request.
    #[error("{0} is the id of another placement; choose a new one")]
    Taken(PlacementId),
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Claims of a region, for any number of callers.
#[derive(Clone, Debug)]
pub struct Claims(mpsc::Sender<Job>);

impl Claims {
    /// Read the region and follow it from there. The task ends when the last clone is dropped.
    ///
    /// # Errors
    /// [`StoreError`]; `Foreign` if what is there cannot be read.
    pub async fn open(store: Arc<dyn Store>, region: RegionName) -> Result<Self, StoreError> {
        Self::counting(store, region, Arc::default()).await
    }

    /// The same, with how long placements take counted.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn counting(
        store: Arc<dyn Store>,
        region: RegionName,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StoreError> {
        let writer = Writer::open(store, region, metrics).await?;
        let (jobs, received) = mpsc::channel(QUEUE);
        tokio::spawn(writer.run(received));
        Ok(Self(jobs))
    }

    /// Place a request and claim what it needs, all or nothing. Asked again with the same id it gives
    /// back what was placed.
    ///
    /// # Errors
    /// [`ClaimError`]. After `Unavailable` it may be asked again; nothing is claimed twice.
    pub async fn place(&self, id: PlacementId, ask: Ask) -> Result<Placement, ClaimError> {
        let span =
            trace_span!(target: TARGET, "claim", placement = %id, organization = %ask.organization);
        self.ask(|answer| Job::Place { id, ask, answer }).instrument(span).await
    }

    /// Free what a placement has; false if there is no such placement (any more).
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn release(&self, id: PlacementId) -> Result<bool, ClaimError> {
        let span = trace_span!(target: TARGET, "release", placement = %id);
        self.ask(|answer| Job::Release { id, answer }).instrument(span).await
    }

    /// Close a host to placements, or open it again. What is placed on it stays; once this is
    /// answered, nothing more comes.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn close(&self, host: HostName, closed: Option<Closed>) -> Result<(), ClaimError> {
        self.ask(|answer| Job::Close { host, closed, answer }).await
    }

    /// Look at what is free, as this server knows it. It may be another's a moment later.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Index) -> T + Send + Sync + 'static,
    ) -> Result<T, ClaimError> {
        self.ask(|answer| {
            Job::Look(Box::new(|index| {
                // Whoever asked may have gone.
                let _ = answer.send(index.map(look));
            }))
        })
        .await
    }

    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, ClaimError>>) -> Job,
    ) -> Result<T, ClaimError> {
        let gone = || {
            let why = "its claims are no longer written; the log says why".to_owned();
            ClaimError::Store(StoreError::Unavailable(why))
        };
        let (answer, answered) = oneshot::channel();
        self.0.send(job(answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}
