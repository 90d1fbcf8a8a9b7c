//! Hosts, their NICs and VFs: for operators.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoQuery, Nothing, Reply, Route, Routes};
use super::{CREATED, DONE};
use crate::keys::{HostName, RegionName};
use crate::resource::{HostView, NicView, Role, Time, VfView};

pub(super) fn add(routes: &mut Routes) {
    let operator = |route: Route| route.role(Role::Operator);
    routes
        .about("hosts")
        .add(
            operator(Route::get("/v1/regions/{region}/hosts", "A region's hosts, in pages.")),
            hosts,
        )
        .add(operator(Route::get("/v1/regions/{region}/hosts/{host}", "One of them.")), host)
        .add(
            operator(Route::get(
                "/v1/regions/{region}/hosts/{host}/nics",
                "Its PFs and software NICs.",
            )),
            nics,
        )
        .add(
            operator(Route::get(
                "/v1/regions/{region}/hosts/{host}/vfs",
                "Its VFs, and who has them.",
            )),
            vfs,
        )
        .add(
            operator(Route::post(
                "/v1/regions/{region}/hosts/{host}/token",
                "A one-time token that enrols it.",
            ))
            .status(CREATED),
            token,
        )
        .add(
            operator(Route::put(
                "/v1/regions/{region}/hosts/{host}/drain",
                "Place no more VMs on it, or again.",
            )),
            drain,
        )
        .add(
            operator(Route::delete(
                "/v1/regions/{region}/hosts/{host}",
                "Declare it dead: what it had is free.",
            ))
            .status(DONE),
            forget,
        );
}

#[derive(Deserialize, JsonSchema)]
struct InRegion {
    /// The region, by name.
    region: RegionName,
}

#[derive(Deserialize, JsonSchema)]
struct ByName {
    /// The region, by name.
    region: RegionName,
    /// The host, by name.
    host: HostName,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HostsQuery {
    /// Only those after this one: `next` of the page before.
    after: Option<HostName>,
    /// Most in the page, 1 to 1000; 100 if not said.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
}

/// A page of hosts.
#[derive(Serialize, JsonSchema)]
struct Hosts {
    /// The hosts, by name.
    items: Vec<HostView>,
    /// Where the next page goes on; there is none if this is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<HostName>,
}

async fn hosts(call: Call<Caller, InRegion, HostsQuery>) -> Result<Reply<Hosts>, Problem> {
    let HostsQuery { after, limit } = call.query;
    let limit = limit.map_or(100, |limit| limit as usize);
    let page = call.state.cloud.hosts(&call.path.region, after.as_ref(), limit).await?;
    let next = page.hosts.last().map(|host| host.name.clone()).filter(|_| page.more);
    Ok(Reply::new(Hosts { items: page.hosts, next }))
}

async fn host(call: Call<Caller, ByName>) -> Result<Reply<HostView>, Problem> {
    let ByName { region, host } = &call.path;
    Ok(Reply::new(call.state.cloud.host_view(region, host).await?))
}

/// A list.
#[derive(Serialize, JsonSchema)]
struct All<T> {
    /// All of them.
    items: Vec<T>,
}

async fn nics(call: Call<Caller, ByName>) -> Result<Reply<All<NicView>>, Problem> {
    let ByName { region, host } = &call.path;
    Ok(Reply::new(All { items: call.state.cloud.nics(region, host).await? }))
}

async fn vfs(call: Call<Caller, ByName>) -> Result<Reply<All<VfView>>, Problem> {
    let ByName { region, host } = &call.path;
    Ok(Reply::new(All { items: call.state.cloud.vfs(region, host).await? }))
}

/// A token that enrols a host.
#[derive(Serialize, JsonSchema)]
struct NewToken {
    /// Its text, for `lanekeeper agent --enrol`. It is good once, and not shown again.
    token: String,
    /// Until when.
    expires_at: Time,
}

async fn token(call: Call<Caller, ByName>) -> Result<Reply<NewToken>, Problem> {
    let ByName { region, host } = call.path;
    let (secret, expires_at) = call.state.cloud.create_token(region, host).await?;
    Ok(Reply::new(NewToken { token: secret.reveal().to_owned(), expires_at }))
}

/// Whether to drain.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Drain {
    /// Whether no more VMs are to be placed on it.
    drain: bool,
}

async fn drain(
    call: Call<Caller, ByName, NoQuery, Json<Drain>>,
) -> Result<Reply<HostView>, Problem> {
    let Json(Drain { drain }) = call.body;
    let ByName { region, host } = &call.path;
    Ok(Reply::new(call.state.cloud.drain(region, host, drain).await?))
}

async fn forget(call: Call<Caller, ByName>) -> Result<Nothing, Problem> {
    let ByName { region, host } = &call.path;
    call.state.cloud.forget_host(region, host).await?;
    Ok(Nothing)
}
