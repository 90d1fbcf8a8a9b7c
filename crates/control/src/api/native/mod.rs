//! Lanekeeper's own API.

mod compute;
mod fabric;
mod networks;
mod offer;
mod service;
mod tenancy;
mod verifications;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::access::Caller;
use super::problem::Problem;
use super::route::{Call, NoBody, NoPath, NoQuery, Reply, Route, Routes};
use crate::cloud::{Ask, CloudError, Listed, Stored};
use crate::resource::{Global, Resource, Tenant};

pub(super) fn add(routes: &mut Routes) {
    service::add(routes);
    tenancy::add(routes);
    offer::add(routes);
    fabric::add(routes);
    networks::add(routes);
    compute::add(routes);
    verifications::add(routes);
}

/// What a call that makes something is answered with when it is done.
const CREATED: StatusCode = StatusCode::CREATED;
/// What a call is answered with that has nothing to tell.
const DONE: StatusCode = StatusCode::NO_CONTENT;
/// What a call is answered with whose work goes on.
const UNDER_WAY: StatusCode = StatusCode::ACCEPTED;

/// One resource, by its id.
#[derive(Deserialize, JsonSchema)]
struct ById {
    /// Its id.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    id: u64,
}

/// Which page.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    /// Only those after this one: `next` of the page before.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    after: Option<u64>,
    /// Most in the page, 1 to 1000; 100 if not said.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
    /// Only the one of this name.
    name: Option<String>,
}

impl PageQuery {
    fn ask(&self) -> Ask {
        Ask { after: self.after, limit: self.limit.map_or(100, |limit| limit as usize) }
    }
}

/// A page.
#[derive(Serialize, JsonSchema)]
struct Page<T> {
    /// The resources, by id.
    items: Vec<T>,
    /// Where the next page goes on; there is none if this is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

impl<T: Resource> Page<T> {
    fn of(listed: Listed<T>) -> Self {
        let next = listed.items.last().map(|last| last.value.id()).filter(|_| listed.more);
        Self { items: listed.items.into_iter().map(|stored| stored.value).collect(), next }
    }

    fn of_one(found: Result<Stored<T>, CloudError>) -> Result<Self, CloudError> {
        match found {
            Ok(stored) => Ok(Self { items: vec![stored.value], next: None }),
            Err(CloudError::NotFound { .. }) => Ok(Self { items: Vec::new(), next: None }),
            Err(error) => Err(error),
        }
    }
}

async fn list<T: Tenant>(call: Call<Caller, NoPath, PageQuery>) -> Result<Reply<Page<T>>, Problem> {
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    Ok(Reply::new(match &call.query.name {
        Some(name) => Page::of_one(cloud.named(organization, name).await)?,
        None => Page::of(cloud.list(organization, call.query.ask()).await?),
    }))
}

async fn get<T: Tenant>(call: Call<Caller, ById>) -> Result<Reply<T>, Problem> {
    let stored = call.state.cloud.get::<T>(&call.who.organization, call.path.id).await?;
    Ok(Reply::tagged(stored.value, stored.revision))
}

async fn list_global<T: Global>(
    call: Call<Caller, NoPath, PageQuery>,
) -> Result<Reply<Page<T>>, Problem> {
    let cloud = &call.state.cloud;
    Ok(Reply::new(match &call.query.name {
        Some(name) => Page::of_one(cloud.named_global(name).await)?,
        None => Page::of(cloud.list_global(call.query.ask()).await?),
    }))
}

async fn get_global<T: Global>(call: Call<Caller, ById>) -> Result<Reply<T>, Problem> {
    let stored = call.state.cloud.get_global::<T>(call.path.id).await?;
    Ok(Reply::tagged(stored.value, stored.revision))
}

/// A resource of the caller's that it wants to change: refused if it has seen another state of it.
async fn own<T: Tenant, Q, B>(call: &Call<Caller, ById, Q, B>) -> Result<Stored<T>, Problem> {
    let stored = call.state.cloud.get::<T>(&call.who.organization, call.path.id).await?;
    unchanged(call, stored)
}

/// A resource of the operator's that it wants to change.
async fn offered<T: Global, Q, B>(call: &Call<Caller, ById, Q, B>) -> Result<Stored<T>, Problem> {
    let stored = call.state.cloud.get_global::<T>(call.path.id).await?;
    unchanged(call, stored)
}

fn unchanged<T, P, Q, B>(
    call: &Call<Caller, P, Q, B>,
    stored: Stored<T>,
) -> Result<Stored<T>, Problem> {
    match call.if_match {
        Some(seen) if seen != stored.revision => Err(Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "stale",
            "It was changed meanwhile",
            format!(
                "it was changed: its ETag is \"{}\", not \"{seen}\"; read it again",
                stored.revision
            ),
        )),
        _ => Ok(stored),
    }
}

/// List and get, of a tenant's kind.
fn tenant_kind<T: Tenant>(routes: &mut Routes, all: &'static str, one: &'static str) {
    routes
        .add(Route::get(all, "All of the organization's, in pages."), list::<T>)
        .add(Route::get(one, "One of them."), get::<T>);
}

/// List and get, of an operator's kind.
fn global_kind<T: Global>(routes: &mut Routes, all: &'static str, one: &'static str) {
    routes
        .add(Route::get(all, "All that are offered, in pages."), list_global::<T>)
        .add(Route::get(one, "One of them."), get_global::<T>);
}

/// A call without anything.
type Bare<W> = Call<W, NoPath, NoQuery, NoBody>;
