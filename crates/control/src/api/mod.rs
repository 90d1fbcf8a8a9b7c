//! The API: routes under `/v1`, each a line of a table ([`route`]), served over HTTPS.
//!
//! - [`access`] lets callers in: the one place that decides who may do what.
//! - [`native`](self::native) is Lanekeeper's own API, [`hyperstack`](self::hyperstack) the subset of
//!   the Hyperstack API under `/v1/core`, [`agent`](self::agent) what agents call.
//! - [`openapi`](self::openapi) describes it all, from the same table.

pub mod access;
mod agent;
mod audit;
mod hyperstack;
pub mod limit;
mod native;
mod openapi;
mod problem;
pub mod route;
pub mod state;
mod unread;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

pub use access::{ORGANIZATION, Permission};
pub use limit::Rate;
pub use problem::Problem;
pub use route::Entry;
pub use state::{Rates, State};
pub(crate) use unread::finish_body;

/// The API: what serves it, and what it is.
pub struct Api {
    /// Serves it.
    pub router: Router<()>,
    /// Every route there is: what the role matrix is tried on.
    pub routes: Vec<Entry>,
    /// The OpenAPI document.
    pub document: Arc<Value>,
}

impl Api {
    /// All routes, on a state.
    pub fn new(state: &Arc<State>) -> Self {
        let mut routes = route::Routes::new(Arc::clone(state));
        native::add(&mut routes);
        hyperstack::add(&mut routes);
        agent::add(&mut routes);
        watch::add(&mut routes);
        let (mut table, router) = routes.finish();
        let document = Arc::new(openapi::document(&mut table));
        let served = Arc::clone(&document);
        let router = router
            .route(
                "/v1/openapi.json",
                axum::routing::get(async move || axum::Json((*served).clone())),
            )
            .fallback(no_route)
            .method_not_allowed_fallback(no_method);
        Self { router, routes: table.entries, document }
    }
}

async fn no_route(request: Request) -> Response {
    let path = request.uri().path();
    let detail = format!("there is nothing at {path}; /v1/openapi.json tells what there is");
    route::tell(Problem::not_found(detail), manner_of(path))
}

async fn no_method(method: Method, request: Request) -> Response {
    let path = request.uri().path();
    let detail = format!("{method} is not served at {path}; /v1/openapi.json tells what is");
    let status = StatusCode::METHOD_NOT_ALLOWED;
    let problem = Problem::new(status, "method", "This method is not served here", detail);
    route::tell(problem, manner_of(path)).into_response()
}

fn manner_of(path: &str) -> route::Manner {
    if path.starts_with("/v1/core/") || path == "/v1/core" {
        route::Manner::Hyperstack
    } else {
        route::Manner::Problems
    }
}

/// Headers that every answer carries: nothing of it is kept by caches, nor shown within another page.
pub(crate) async fn guard_headers(request: Request, next: axum::middleware::Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let all = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in all {
        headers.insert(name, axum::http::HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(axum::http::HeaderValue::from_static("no-store"));
    response
}
