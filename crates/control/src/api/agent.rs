//! What agents call: see [`protocol`](crate::protocol).

use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::access::{AgentCaller, Nobody};
use super::problem::Problem;
use super::route::{Call, Json, NoBody, NoPath, NoQuery, Nothing, Reply, Route, Routes};
use crate::cloud::CloudError;
use crate::placement::HostReport;
use crate::protocol::{
    Desired, Enrol, Enrolled, Heartbeat, HeartbeatAnswer, ProofReports, VmReports,
};

/// Longest wait for a change.
const LONGEST_WAIT: u64 = 55;

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("agents")
        .add(Route::post("/v1/agent/enrol", "Enrol a host's agent with a one-time token."), enrol)
        .add(Route::post("/v1/agent/renew", "A new certificate before the old one ends."), renew)
        .add(
            Route::put("/v1/agent/inventory", "What the host has.").status(StatusCode::NO_CONTENT),
            inventory,
        )
        .add(Route::post("/v1/agent/heartbeat", "A sign of life."), heartbeat)
        .add(Route::get("/v1/agent/desired", "What the host shall have."), desired)
        .add(
            Route::put("/v1/agent/vms", "What became of VMs.").status(StatusCode::NO_CONTENT),
            reports,
        )
        .add(
            Route::put("/v1/agent/proofs", "What looks at VMs found.")
                .status(StatusCode::NO_CONTENT),
            proofs,
        );
}

/// An answer or a body of the agent's protocol: it is documented there, not in the OpenAPI document.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
struct Wire<T>(#[schemars(with = "serde_json::Value")] T);

type Answer<T> = Result<Reply<Wire<T>>, Problem>;
type AgentCall<B = NoBody, Q = NoQuery> = Call<AgentCaller, NoPath, Q, B>;

async fn enrol(call: Call<Nobody, NoPath, NoQuery, Json<Wire<Enrol>>>) -> Answer<Enrolled> {
    let Json(Wire(Enrol { token, csr })) = call.body;
    let authority = &call.state.authority;
    let (issued, region, host) = call
        .state
        .cloud
        .enrol(&token, |region, host| {
            let issued = authority.sign_agent(&csr, region, host).map_err(|error| {
                CloudError::Invalid { field: "csr", value: String::new(), why: error.to_string() }
            })?;
            let fingerprint = issued.facts.fingerprint.to_string();
            Ok((issued, fingerprint))
        })
        .await?;
    tracing::info!(%region, %host, from = %call.who.from, "a host was enrolled");
    let authority = authority.certificate_pem().to_owned();
    Ok(Reply::new(Wire(Enrolled { host, region, certificate: issued.pem, authority })))
}

/// A request for a new certificate, from who has one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Renew {
    csr: String,
}

async fn renew(call: AgentCall<Json<Wire<Renew>>>) -> Answer<Enrolled> {
    let Json(Wire(Renew { csr })) = call.body;
    let AgentCaller { region, host } = call.who;
    let authority = &call.state.authority;
    let issued = authority
        .sign_agent(&csr, &region, &host)
        .map_err(|error| Problem::invalid(format!("csr: {error}")))?;
    let fingerprint = issued.facts.fingerprint.to_string();
    call.state.cloud.settle(&region, &host, fingerprint, |transaction| transaction).await?;
    let authority = authority.certificate_pem().to_owned();
    Ok(Reply::new(Wire(Enrolled { host, region, certificate: issued.pem, authority })))
}

async fn inventory(call: AgentCall<Json<Wire<HostReport>>>) -> Result<Nothing, Problem> {
    let Json(Wire(report)) = call.body;
    let AgentCaller { region, host } = call.who;
    call.state.cloud.take_inventory(&region, &host, report).await?;
    Ok(Nothing)
}

async fn heartbeat(call: AgentCall<Json<Wire<Heartbeat>>>) -> Answer<HeartbeatAnswer> {
    let Json(Wire(Heartbeat { version, .. })) = call.body;
    let AgentCaller { region, host } = call.who;
    let lease = call.state.cloud.heartbeat(&region, &host, &version).await?;
    let lease_seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
    Ok(Reply::new(Wire(HeartbeatAnswer { lease_seconds })))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Since {
    /// The revision that the caller has; it is answered at once if not said.
    after: Option<u64>,
    /// Seconds to wait for a change.
    #[serde(default)]
    wait: u64,
}

async fn desired(call: AgentCall<NoBody, Since>) -> Answer<Desired> {
    let AgentCaller { region, host } = call.who;
    let cloud = &call.state.cloud;
    let desired = match call.query.after {
        Some(after) => {
            let wait = Duration::from_secs(call.query.wait.min(LONGEST_WAIT));
            cloud.desired_after(&region, &host, after, wait).await?
        }
        None => cloud.desired(&region, &host).await?,
    };
    Ok(Reply::new(Wire(desired)))
}

async fn reports(call: AgentCall<Json<Wire<VmReports>>>) -> Result<Nothing, Problem> {
    let Json(Wire(reports)) = call.body;
    let AgentCaller { region, host } = call.who;
    call.state.cloud.take_reports(&region, &host, reports).await?;
    Ok(Nothing)
}

async fn proofs(call: AgentCall<Json<Wire<ProofReports>>>) -> Result<Nothing, Problem> {
    let Json(Wire(reports)) = call.body;
    let AgentCaller { region, host } = call.who;
    call.state.cloud.take_proofs(&region, &host, reports).await?;
    Ok(Nothing)
}
