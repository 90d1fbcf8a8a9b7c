//! Routes: each is one line of a table that says its path, whom it is for, what it takes and what it
//! answers; and a function. Everything else is done here, once for all of them: letting callers in,
//! reading what they send, answering the same request twice the same way, entity tags, the audit trail.
//! The OpenAPI document is made of the same table, so that it cannot say otherwise.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::Instrument;

use super::access::{Permission, Who};
use super::problem::Problem;
use super::state::{From as Origin, State};
use crate::cloud::{Answered, Once};
use crate::keys;
use crate::resource::Role;
use crate::spans;
use crate::store::Revision;

/// Most bytes of a body.
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// A call that was let in, with what it carries.
pub struct Call<W, P = NoPath, Q = NoQuery, B = NoBody> {
    /// What it is served from.
    pub state: Arc<State>,
    /// Who calls.
    pub who: W,
    /// What the path says.
    pub path: P,
    /// What the query says.
    pub query: Q,
    /// The body.
    pub body: B,
    /// That it must be done once, however often it is sent.
    pub once: Option<Once>,
    /// Which revision the caller has seen, and wants to change.
    pub if_match: Option<Revision>,
    /// Where a stream of events is to go on.
    pub last_event: Option<u64>,
}

/// A path without parameters.
#[derive(Deserialize, JsonSchema)]
pub struct NoPath {}

/// No query.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

/// No body.
pub struct NoBody;

/// A body as JSON.
pub struct Json<T>(pub T);

/// Something a route can take as its body.
pub trait Input: Sized + Send + 'static {
    /// Its schema; none if there is no body.
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema>;

    /// Read it.
    ///
    /// # Errors
    /// [`Problem`] if it cannot be read.
    fn read(headers: &HeaderMap, bytes: &[u8]) -> Result<Self, Problem>;
}

impl Input for NoBody {
    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }
    fn read(_: &HeaderMap, _: &[u8]) -> Result<Self, Problem> {
        Ok(Self)
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Input for Json<T> {
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }

    fn read(headers: &HeaderMap, bytes: &[u8]) -> Result<Self, Problem> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_json = kind.is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            kind == "application/json" || kind.ends_with("+json")
        });
        if !is_json {
            let shown = kind.unwrap_or("nothing");
            let detail = format!("the content type is {shown}; send application/json");
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Problem::new(status, "media-type", "The body is not JSON", detail));
        }
        serde_json::from_slice(bytes).map(Self).map_err(|error| {
            let detail = format!("the body: {error}");
            match error.classify() {
                serde_json::error::Category::Data => Problem::invalid(detail),
                _ => Problem::bad_request(detail),
            }
        })
    }
}

/// Something a route can answer.
pub trait Output: Send + 'static {
    /// Its media type and schema; none if there is no body.
    fn describe(generator: &mut SchemaGenerator) -> Option<(&'static str, Schema)>;

    /// As a response, with the route's status.
    fn respond(self, status: StatusCode) -> Response;
}

/// An answer as JSON.
#[derive(Debug)]
pub struct Reply<T> {
    body: T,
    revision: Option<Revision>,
}

impl<T> Reply<T> {
    /// An answer.
    pub fn new(body: T) -> Self {
        Self { body, revision: None }
    }

    /// An answer with its entity tag.
    pub fn tagged(body: T, revision: Revision) -> Self {
        Self { body, revision: Some(revision) }
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Output for Reply<T> {
    fn describe(generator: &mut SchemaGenerator) -> Option<(&'static str, Schema)> {
        Some(("application/json", generator.subschema_for::<T>()))
    }

    fn respond(self, status: StatusCode) -> Response {
        let mut response = (status, axum::Json(self.body)).into_response();
        if let Some(revision) = self.revision
            && let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\""))
        {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }
}

/// An answer without a body.
#[derive(Debug)]
pub struct Nothing;

impl Output for Nothing {
    fn describe(_: &mut SchemaGenerator) -> Option<(&'static str, Schema)> {
        None
    }
    fn respond(self, status: StatusCode) -> Response {
        status.into_response()
    }
}

/// How problems are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Manner {
    /// As RFC 9457 has them.
    #[default]
    Problems,
    /// In the envelope of the Hyperstack API.
    Hyperstack,
}

/// What a route is, as it is written down.
#[derive(Clone, Debug)]
pub struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) role: Role,
    pub(super) status: StatusCode,
    pub(super) tag: &'static str,
    pub(super) about: &'static str,
    pub(super) changes: bool,
    pub(super) manner: Manner,
}

impl Route {
    fn new(method: Method, path: &'static str, about: &'static str) -> Self {
        let changes = method != Method::GET;
        Self {
            method,
            path,
            role: if changes { Role::Member } else { Role::Reader },
            status: StatusCode::OK,
            tag: "",
            about,
            changes,
            manner: Manner::Problems,
        }
    }

    /// Look.
    pub fn get(path: &'static str, about: &'static str) -> Self {
        Self::new(Method::GET, path, about)
    }

    /// Make, or do.
    pub fn post(path: &'static str, about: &'static str) -> Self {
        Self::new(Method::POST, path, about)
    }

    /// Replace.
    pub fn put(path: &'static str, about: &'static str) -> Self {
        Self::new(Method::PUT, path, about)
    }

    /// Change.
    pub fn patch(path: &'static str, about: &'static str) -> Self {
        Self::new(Method::PATCH, path, about)
    }

    /// Delete.
    pub fn delete(path: &'static str, about: &'static str) -> Self {
        Self::new(Method::DELETE, path, about)
    }

    /// Only for callers that may do at least this.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Answered with this status when it is done.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Although it is a GET, it changes something: that is how the Hyperstack API is.
    #[must_use]
    pub fn changing(mut self) -> Self {
        self.changes = true;
        self.role = self.role.max(Role::Member);
        self
    }

    /// How its problems are told.
    #[must_use]
    pub fn manner(mut self, manner: Manner) -> Self {
        self.manner = manner;
        self
    }
}

/// A route as the table has it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Method.
    pub method: Method,
    /// Path, with `{parameters}`.
    pub path: &'static str,
    /// Whom it is for.
    pub permission: Permission,
    /// Whether it changes anything.
    pub changes: bool,
    /// How its problems are told.
    pub manner: Manner,
    pub(super) tag: &'static str,
    pub(super) about: &'static str,
    pub(super) status: StatusCode,
    pub(super) path_schema: Schema,
    pub(super) query_schema: Schema,
    pub(super) body_schema: Option<Schema>,
    pub(super) answer: Option<(&'static str, Schema)>,
}

type Served = Pin<Box<dyn Future<Output = Response> + Send>>;

/// The table, as it is being filled.
pub struct Routes {
    pub(super) entries: Vec<Entry>,
    pub(super) generator: SchemaGenerator,
    router: axum::Router<()>,
    state: Arc<State>,
    tag: &'static str,
}

impl Routes {
    /// An empty table.
    pub fn new(state: Arc<State>) -> Self {
        Self {
            entries: Vec::new(),
            generator: super::openapi::generator(),
            router: axum::Router::new(),
            state,
            tag: "",
        }
    }

    /// What the routes that follow are about.
    pub fn about(&mut self, tag: &'static str) -> &mut Self {
        self.tag = tag;
        self
    }

    /// One more route. What it takes and answers is what its function does.
    pub fn add<W, P, Q, B, T, F, R>(&mut self, mut route: Route, serve: F) -> &mut Self
    where
        W: Who,
        P: DeserializeOwned + JsonSchema + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        B: Input,
        T: Output,
        F: Fn(Call<W, P, Q, B>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<T, Problem>> + Send + 'static,
    {
        route.tag = self.tag;
        self.entries.push(Entry {
            method: route.method.clone(),
            path: route.path,
            permission: W::permission(route.role),
            changes: route.changes,
            manner: route.manner,
            tag: route.tag,
            about: route.about,
            status: route.status,
            path_schema: P::json_schema(&mut self.generator),
            query_schema: Q::json_schema(&mut self.generator),
            body_schema: B::schema(&mut self.generator),
            answer: T::describe(&mut self.generator),
        });
        let state = Arc::clone(&self.state);
        let method = route.method.clone();
        let path = route.path;
        let route = Arc::new(route);
        let handler = move |request: Request| -> Served {
            let (state, route, serve) = (Arc::clone(&state), Arc::clone(&route), serve.clone());
            Box::pin(async move { answer(state, &route, request, serve).await })
        };
        let filter = axum::routing::MethodFilter::try_from(method)
            .unwrap_or(axum::routing::MethodFilter::GET);
        self.router =
            std::mem::take(&mut self.router).route(path, axum::routing::on(filter, handler));
        self
    }

    /// The table and the router that serves it.
    pub fn finish(self) -> (Table, axum::Router<()>) {
        (Table { entries: self.entries, generator: self.generator }, self.router)
    }
}

/// The table of all routes.
pub struct Table {
    /// The routes.
    pub entries: Vec<Entry>,
    pub(super) generator: SchemaGenerator,
}

/// A request without what only its transport needs.
struct Head {
    parts: Parts,
    from: Origin,
}

async fn answer<W, P, Q, B, T, F, R>(
    state: Arc<State>,
    route: &Route,
    request: Request,
    serve: F,
) -> Response
where
    W: Who,
    P: DeserializeOwned + Send + 'static,
    Q: DeserializeOwned + 'static,
    B: Input,
    T: Output,
    F: Fn(Call<W, P, Q, B>) -> R,
    R: Future<Output = Result<T, Problem>>,
{
    let began = std::time::Instant::now();
    let id = spans::request_id(request.headers());
    let span = spans::request(&route.method, route.path, request.uri().path(), &id);
    let mut response = async {
        let (parts, body) = request.into_parts();
        let action = format!("{} {}", parts.method, parts.uri.path());
        let head = Head { from: Origin::of(&parts.extensions), parts };
        let who = W::admit(&state, &head.parts, &head.from, route.role).await;
        let (caller, served) = match who {
            Ok(who) => {
                let caller = who.caller().cloned();
                if let Some(caller) = &caller {
                    span.record("lanekeeper.organization", caller.organization.as_str());
                }
                if let Some(agent) = &head.from.agent {
                    span.record("lanekeeper.region", agent.region.as_str());
                }
                (caller, serve_one(&state, route, head, body, who, serve).await)
            }
            Err(problem) => (None, Err(problem)),
        };
        let response = served.unwrap_or_else(|problem| tell(problem, route.manner));
        if let Some(caller) = caller.filter(|_| route.changes) {
            super::audit::record(&state, action, &caller, response.status()).await;
        }
        response
    }
    .instrument(span.clone())
    .await;
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    response.headers_mut().insert(spans::REQUEST_ID, id);
    state.metrics.served(route.method.as_str(), route.path, status, began.elapsed());
    response
}

/// A problem as the route's clients expect it.
pub(super) fn tell(problem: Problem, manner: Manner) -> Response {
    match manner {
        Manner::Problems => problem.into_response(),
        Manner::Hyperstack => super::hyperstack::envelope(&problem),
    }
}

async fn serve_one<W, P, Q, B, T, F, R>(
    state: &Arc<State>,
    route: &Route,
    head: Head,
    body: Body,
    who: W,
    serve: F,
) -> Result<Response, Problem>
where
    W: Who,
    P: DeserializeOwned + Send + 'static,
    Q: DeserializeOwned + 'static,
    B: Input,
    T: Output,
    F: Fn(Call<W, P, Q, B>) -> R,
    R: Future<Output = Result<T, Problem>>,
{
    let Head { mut parts, .. } = head;
    let path = read_path::<P>(route, &mut parts).await?;
    let Query(query) = Query::<Q>::try_from_uri(&parts.uri)
        .map_err(|error| Problem::bad_request(format!("the query: {}", error.body_text())))?;
    let bytes = axum::body::to_bytes(body, MOST_BYTES).await.map_err(|_| {
        let detail = format!("a body has at most {MOST_BYTES} bytes, and must arrive whole");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Problem::new(status, "too-large", "The body is too large", detail)
    })?;
    let once = read_once(route, &parts, who.caller(), &bytes)?;
    if let Some(once) = &once
        && let Some(response) = answered(state, once).await?
    {
        return Ok(response);
    }
    let call = Call {
        state: Arc::clone(state),
        path,
        query,
        body: B::read(&parts.headers, &bytes)?,
        once: once.clone(),
        if_match: read_tag(&parts.headers)?,
        last_event: text(&parts.headers, "last-event-id").and_then(|id| id.parse().ok()),
        who,
    };
    match serve(call).await {
        Ok(answer) => Ok(answer.respond(route.status)),
        Err(problem) => {
            // The same request may have been served a moment ago, by another server or this one.
            if let Some(once) = &once
                && let Some(response) = answered(state, once).await?
            {
                return Ok(response);
            }
            Err(problem)
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

async fn read_path<P: DeserializeOwned + Send + 'static>(
    route: &Route,
    parts: &mut Parts,
) -> Result<P, Problem> {
    if route.path.contains('{') {
        let Path(path) = Path::<P>::from_request_parts(parts, &())
            .await
            .map_err(|error| Problem::bad_request(format!("the path: {}", error.body_text())))?;
        return Ok(path);
    }
    let none = std::iter::empty::<(String, String)>();
    let none = serde::de::value::MapDeserializer::<_, serde::de::value::Error>::new(none);
    P::deserialize(none).map_err(|error| Problem::bad_request(format!("the path: {error}")))
}

fn read_tag(headers: &HeaderMap) -> Result<Option<Revision>, Problem> {
    let Some(tag) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let shown = String::from_utf8_lossy(tag.as_bytes());
    if shown.trim() == "*" {
        return Ok(None);
    }
    let number = shown.trim().strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let number = number.and_then(|number| number.parse().ok()).ok_or_else(|| {
        Problem::bad_request(format!(
            "If-Match {shown} is no entity tag; send the ETag of an answer"
        ))
    })?;
    Ok(Some(Revision::from_number(number)))
}

fn read_once(
    route: &Route,
    parts: &Parts,
    caller: Option<&super::access::Caller>,
    body: &[u8],
) -> Result<Option<Once>, Problem> {
    let (Some(key), Some(caller)) = (parts.headers.get("idempotency-key"), caller) else {
        return Ok(None);
    };
    // The official Hyperstack API has no idempotency keys, and its answers are not kept.
    if route.method != Method::POST || route.manner == Manner::Hyperstack {
        return Ok(None);
    }
    let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len())).ok_or_else(|| {
        Problem::bad_request("an Idempotency-Key has 1 to 255 visible ASCII characters")
    })?;
    let mut hash = Sha256::new();
    hash.update(parts.uri.path().as_bytes());
    hash.update([0]);
    hash.update(body);
    let fingerprint = hash.finalize().iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write;
        let _ = write!(text, "{byte:02x}");
        text
    });
    let organization = caller.organization.clone();
    Ok(Some(Once { organization, key: key.to_owned(), fingerprint }))
}

/// What a request was answered that came before with the same idempotency key.
async fn answered(state: &State, once: &Once) -> Result<Option<Response>, Problem> {
    let key = keys::once(&once.organization, &once.key);
    let Some(entry) = state.cloud.store().get(&key).await? else { return Ok(None) };
    let was: Answered = serde_json::from_slice(&entry.value)
        .map_err(|error| Problem::unavailable(format!("{key}: {error}")))?;
    if was.fingerprint != once.fingerprint {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "idempotency-key",
            "The idempotency key is another request's",
            format!(
                "another request came with the Idempotency-Key '{}'; choose a new one",
                once.key
            ),
        ));
    }
    let status = StatusCode::from_u16(was.status).unwrap_or(StatusCode::OK);
    let mut response = (status, axum::Json(was.body)).into_response();
    response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    Ok(Some(response))
}
