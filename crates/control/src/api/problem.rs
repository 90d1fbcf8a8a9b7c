//! What a caller is told that was not served: `application/problem+json` (RFC 9457), with a type to
//! program against and a detail that says what to do.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cloud::CloudError;
use crate::placement::Refusal;
use crate::store::StoreError;

/// Why a call was not served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A URN that names the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The status it is answered with.
    pub status: u16,
    /// What was wrong this time, with which value, and what to do.
    pub detail: String,
}

impl Problem {
    /// A problem of a kind.
    pub fn new(status: StatusCode, kind: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:lanekeeper:problem:{kind}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
        }
    }

    /// What was sent cannot be read.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "The request cannot be read", detail)
    }

    /// What was sent is no value of its kind.
    pub fn invalid(detail: impl Into<String>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(status, "invalid", "A value is not usable", detail)
    }

    /// Nobody is known by what was shown.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "Who calls is not known", detail)
    }

    /// Who calls is known and may not.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "The key may not do this", detail)
    }

    /// There is nothing there.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is no such thing", detail)
    }

    /// The server cannot serve now.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, "unavailable", "The server cannot serve now", detail)
    }

    /// The status it is answered with.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl From<CloudError> for Problem {
    fn from(error: CloudError) -> Self {
        let detail = error.to_string();
        let conflict = |kind, title| Self::new(StatusCode::CONFLICT, kind, title, detail.clone());
        match error {
            CloudError::NotFound { .. } => Self::not_found(detail),
            CloudError::Taken { .. } => conflict("taken", "There is one already"),
            CloudError::Invalid { .. } | CloudError::Refused(Refusal::Request(_)) => {
                Self::invalid(detail)
            }
            CloudError::PathCannot { .. } => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                Self::new(status, "path-cannot", "The path of the frames cannot do this", detail)
            }
            CloudError::InUse { .. } => conflict("in-use", "Something else still needs it"),
            CloudError::State { .. } => conflict("state", "It is not in a state for that"),
            CloudError::Stale => conflict("stale", "It was changed meanwhile"),
            CloudError::Exhausted { .. } => conflict("exhausted", "A range is used up"),
            CloudError::Forbidden(_) => Self::forbidden(detail),
            CloudError::Refused(Refusal::Quota { .. }) => {
                conflict("quota", "The quota does not allow it")
            }
            CloudError::Refused(Refusal::NoRoom { .. }) => conflict("no-room", "There is no room"),
            CloudError::Store(error) => Self::from(error),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::TooLarge { .. } => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "It is too much at once",
                error.to_string(),
            ),
            StoreError::Foreign(_) | StoreError::Disk(_) | StoreError::Open { .. } => {
                tracing::error!(%error, "the store failed");
                let detail = "the store failed; the server's log says how";
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self::new(status, "store", "The store failed", detail)
            }
            error => Self::unavailable(error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::UNAUTHORIZED.as_u16() {
            // RFC 9110, 11.6.1: every 401 says how one authenticates.
            let how = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
        }
        response
    }
}
