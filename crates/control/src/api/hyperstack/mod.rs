//! The subset of the Hyperstack API that its public clients need, under `/v1/core`, so that they work
//! unchanged. Its wire rules are kept as they are: an envelope around every answer, 200 for what was
//! created, GET for starting and stopping, times without a zone, no null where clients expect none.
//!
//! What it has no field for, the ports of a VM and what a flavor's VFs are, is in the free-form
//! `features`. What cannot be done here is refused where the official API has a route for it, with
//! what can be done instead ([`refused`](self::refused)).

mod environments;
mod fields;
mod firewalls;
mod keypairs;
mod offer;
mod refused;
mod rules;
mod show;
mod stock;
mod vms;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::access::Caller;
use super::problem::Problem;
use super::route::{Call, Manner, NoBody, NoQuery, Reply, Route, Routes};
use crate::cloud::again;
use crate::resource::Role;

pub(super) fn add(routes: &mut Routes) {
    offer::add(routes);
    stock::add(routes);
    environments::add(routes);
    keypairs::add(routes);
    vms::add(routes);
    rules::add(routes);
    firewalls::add(routes);
    refused::add(routes);
}

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

/// A problem in the envelope. The official API knows 409 only for what is there already; what is in
/// the way otherwise (a state, a quota, no room) is a bad request.
pub(super) fn envelope(problem: &Problem) -> Response {
    let taken = problem.kind.ends_with(":taken");
    let (status, error_reason) = match problem.status {
        401 => (401, "unauthorized"),
        403 => (403, "forbidden"),
        404 => (404, "not_found"),
        405 => (405, "not_allowed"),
        409 if taken => (409, "already_exist"),
        413 => (413, "bad_request"),
        429 => (429, "too_many_requests"),
        500 => (500, "server_error"),
        503 => (503, "server_error"),
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

/// The part of every answer that says that the call was served.
#[derive(Serialize, JsonSchema)]
struct Served {
    /// `true`.
    status: bool,
    /// What was done.
    message: String,
}

/// Served, with what was done.
fn served(message: impl Into<String>) -> Served {
    Served { status: true, message: message.into() }
}

/// Look.
fn get(path: &'static str, about: &'static str) -> Route {
    Route::get(path, about).manner(Manner::Hyperstack)
}

/// Make, or do.
fn post(path: &'static str, about: &'static str) -> Route {
    Route::post(path, about).manner(Manner::Hyperstack)
}

/// Change.
fn put(path: &'static str, about: &'static str) -> Route {
    Route::put(path, about).manner(Manner::Hyperstack)
}

/// Delete.
fn delete(path: &'static str, about: &'static str) -> Route {
    Route::delete(path, about).manner(Manner::Hyperstack)
}

/// One thing, by its id.
#[derive(Deserialize, JsonSchema)]
struct ById {
    /// Its id.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    id: u64,
}

/// Something by its name.
#[derive(Deserialize, JsonSchema)]
struct ByName {
    /// The name.
    name: String,
}

/// A call by a bearer of a key about one thing.
type About<Q = NoQuery, B = NoBody> = Call<Caller, ById, Q, B>;
type Answer<T> = Result<Reply<T>, Problem>;

/// Whether a name is free.
#[derive(Serialize, JsonSchema)]
struct Availability {
    #[serde(flatten)]
    served: Served,
    /// The name.
    name: String,
    /// Whether nothing has it.
    available: bool,
}

fn availability(name: String, available: bool) -> Reply<Availability> {
    let word = if available { "is available" } else { "is taken" };
    Reply::new(Availability {
        served: served(format!("The name '{name}' {word}")),
        name,
        available,
    })
}

/// Most items of a page.
const MOST: u64 = 1000;

/// Which page, where all is told if nobody asks.
#[derive(Deserialize, JsonSchema)]
struct Paged {
    /// Which page, from 1.
    #[schemars(range(min = 1))]
    page: Option<u64>,
    /// Items of a page, 1 to 1000.
    #[serde(rename = "pageSize")]
    #[schemars(range(min = 1, max = 1000))]
    page_size: Option<u64>,
    /// Only those whose name has this in it, or whose id is this.
    search: Option<String>,
}

/// One page of items.
#[expect(clippy::struct_field_names, reason = "named as on the wire")]
struct Page<T> {
    items: Vec<T>,
    /// How many there are in all.
    count: u64,
    /// Which page it is, if there are pages.
    page: Option<u64>,
    page_size: Option<u64>,
}

impl Paged {
    /// A page of what there is, oldest first.
    fn cut<T>(&self, all: Vec<T>) -> Result<Page<T>, Problem> {
        let count = all.len() as u64;
        if self.page.is_none() && self.page_size.is_none() {
            return Ok(Page { items: all, count, page: None, page_size: None });
        }
        let (page, page_size) = (self.page.unwrap_or(1), self.page_size.unwrap_or(10));
        if page == 0 {
            return Err(Problem::bad_request("page 0: pages are numbered from 1"));
        }
        if page_size == 0 || page_size > MOST {
            let detail = format!("pageSize {page_size}: a page has 1 to {MOST} items");
            return Err(Problem::bad_request(detail));
        }
        let skip = usize::try_from((page - 1).saturating_mul(page_size)).unwrap_or(usize::MAX);
        let items = all.into_iter().skip(skip).take(page_size as usize).collect();
        Ok(Page { items, count, page: Some(page), page_size: Some(page_size) })
    }

    fn finds(&self, id: u64, name: &str) -> bool {
        self.search.as_deref().is_none_or(|text| text.is_empty() || found(text, id, name))
    }
}

fn found(text: &str, id: u64, name: &str) -> bool {
    name.to_lowercase().contains(&text.to_lowercase()) || id.to_string() == text
}

/// The operator's own.
fn operators(route: Route) -> Route {
    route.role(Role::Operator)
}
