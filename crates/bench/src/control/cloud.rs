//! Who is asked to place: one line between the load and what it is put on, so that one generator
//! drives the claims in this process, a server behind HTTP, and a peer.

use async_trait::async_trait;
use lanekeeper_control::claims::{Ask, ClaimError, Claims};
use lanekeeper_control::keys::PlacementId;

use crate::BenchError;

/// Something that places VMs and frees what they had.
#[async_trait]
pub trait Cloud: Send + Sync + 'static {
    /// Place a request under a new id, and claim what it needs. False if there is no room.
    ///
    /// # Errors
    /// It was neither placed nor refused.
    async fn place(&self, id: u64, ask: Ask) -> Result<bool, BenchError>;

    /// Free what was placed under an id.
    ///
    /// # Errors
    /// It was not freed.
    async fn release(&self, id: u64) -> Result<(), BenchError>;
}

fn placement_id(id: u64) -> Result<PlacementId, BenchError> {
    let wrong = |error: lanekeeper_control::keys::KeyError| BenchError::InProcess {
        what: "the id of a placement",
        said: error.to_string(),
    };
    PlacementId::new(&format!("p{id}")).map_err(wrong)
}

fn failed(error: &ClaimError) -> BenchError {
    BenchError::InProcess { what: "a claim", said: error.to_string() }
}

/// Without HTTP: the claims of a server that is this process.
#[async_trait]
impl Cloud for Claims {
    async fn place(&self, id: u64, ask: Ask) -> Result<bool, BenchError> {
        match Claims::place(self, placement_id(id)?, ask).await {
            Ok(_) => Ok(true),
            Err(ClaimError::Refused(_)) => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn release(&self, id: u64) -> Result<(), BenchError> {
        let unknown = || BenchError::InProcess { what: "a release", said: format!("no p{id}") };
        match Claims::release(self, placement_id(id)?).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(unknown()),
            Err(error) => Err(failed(&error)),
        }
    }
}
