//! The service itself: health, readiness, metrics, and who one is.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::super::access::{Caller, Nobody};
use super::super::problem::Problem;
use super::super::route::{Output, Reply, Route, Routes};
use super::Bare;
use crate::keys::{self, OrgName};
use crate::resource::Role;
use crate::store::Range;

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("service")
        .add(Route::get("/v1/health", "Whether the server runs."), health)
        .add(Route::get("/v1/ready", "Whether the server can serve: its store answers."), ready)
        .add(Route::get("/v1/whoami", "What the key is good for."), whoami)
        .add(
            Route::get("/v1/metrics", "What is counted, for Prometheus.").role(Role::Operator),
            metrics,
        );
}

#[derive(Serialize, JsonSchema)]
struct Health {
    /// `ok`.
    status: &'static str,
    /// The server's version.
    version: &'static str,
}

const HEALTHY: Health = Health { status: "ok", version: env!("CARGO_PKG_VERSION") };

async fn health(_: Bare<Nobody>) -> Result<Reply<Health>, Problem> {
    Ok(Reply::new(HEALTHY))
}

async fn ready(call: Bare<Nobody>) -> Result<Reply<Health>, Problem> {
    call.state.cloud.store().range(Range { limit: 1, ..Range::of(keys::quotas()) }).await?;
    Ok(Reply::new(HEALTHY))
}

#[derive(Serialize, JsonSchema)]
struct WhoAmI {
    /// The key's id.
    api_key: u64,
    /// The organization that calls with it work in.
    organization: OrgName,
    /// What it may do.
    role: Role,
}

async fn whoami(call: Bare<Caller>) -> Result<Reply<WhoAmI>, Problem> {
    let Caller { key, organization, role, .. } = call.who;
    Ok(Reply::new(WhoAmI { api_key: key, organization, role }))
}

/// Text as Prometheus reads it.
struct Exposition(String);

impl Output for Exposition {
    fn describe(_: &mut SchemaGenerator) -> Option<(&'static str, Schema)> {
        Some(("text/plain", json_schema!({"type": "string"})))
    }
    fn respond(self, status: StatusCode) -> Response {
        let mut response = (status, self.0).into_response();
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

async fn metrics(call: Bare<Caller>) -> Result<Exposition, Problem> {
    Ok(Exposition(call.state.metrics.text()))
}
