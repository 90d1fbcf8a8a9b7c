//! The audit trail: who changed something, or tried to, and what came of it.

use axum::http::StatusCode;

use super::access::Caller;
use super::state::State;
use crate::cloud::{CloudError, Draft};
use crate::resource::{AuditRecord, Time};

/// Write down what a caller did. That it cannot be written does not undo what was done; it is logged.
pub(super) async fn record(state: &State, action: String, caller: &Caller, status: StatusCode) {
    tracing::info!(
        target: "audit",
        key = caller.key, organization = %caller.organization, from = %caller.from,
        status = status.as_u16(), %action
    );
    if let Err(error) = write(state, caller, action, status).await {
        tracing::error!(%error, key = caller.key, "an audit record could not be written");
    }
}

async fn write(
    state: &State,
    caller: &Caller,
    action: String,
    status: StatusCode,
) -> Result<(), CloudError> {
    let record = AuditRecord {
        id: state.cloud.new_id().await?,
        organization: caller.organization.clone(),
        api_key: caller.key,
        role: caller.role,
        action,
        status: status.as_u16(),
        from: caller.from.to_string(),
        at: Time::now(),
    };
    let mut draft = Draft::new();
    draft.create(&record)?;
    state.cloud.commit(draft).await.map(drop)
}
