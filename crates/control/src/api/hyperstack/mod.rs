//! The subset of the Hyperstack API that its public clients need, under `/v1/core`, so that they work
//! unchanged. Its wire rules are kept as they are: an envelope around every answer, 200 for what was
//! created, GET for starting and stopping, times without a zone.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use super::problem::Problem;
use super::route::Routes;

pub(super) fn add(_routes: &mut Routes) {}

/// What a call is answered that was not served.
#[derive(Serialize, JsonSchema)]
pub(super) struct Refused {
    /// `false`.
    status: bool,
    /// What was wrong, with which value, and what to do.
    message: String,
    /// A word for it.
    error_reason: String,
}

/// A problem in the envelope.
pub(super) fn envelope(problem: &Problem) -> Response {
    let (status, error_reason) = match problem.status {
        401 => (401, "unauthorized"),
        403 => (403, "forbidden"),
        404 => (404, "not_found"),
        405 => (405, "not_allowed"),
        409 => (409, "already_exist"),
        429 => (429, "too_many_requests"),
        500 => (500, "server_error"),
        503 => (503, "server_error"),
        413 => (413, "bad_request"),
        _ => (400, "bad_request"),
    };
    let refused = Refused {
        status: false,
        message: problem.detail.clone(),
        error_reason: error_reason.to_owned(),
    };
    let status = axum::http::StatusCode::from_u16(status).unwrap_or_default();
    let body = serde_json::to_vec(&refused).unwrap_or_default();
    let mut response = (status, body).into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
