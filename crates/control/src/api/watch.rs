//! Watching: changes of an organization's resources as they happen, by server-sent events (the HTML
//! standard, 9.2). Each event's id is the revision of the store that made the change: a client that
//! reconnects with the last one (`Last-Event-ID`) misses nothing; or it is told to read anew (`reset`).

use std::convert::Infallible;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::json;

use super::access::Caller;
use super::problem::Problem;
use super::route::{Call, NoPath, Output, Route, Routes};
use crate::keys::{self, OrgName};
use crate::resource::Role;
use crate::store::{Batch, Change, Revision, Scope, StoreError, Watch};

pub(super) fn add(routes: &mut Routes) {
    routes.about("events").add(
        Route::get("/v1/watch", "Changes of what the organization has, as server-sent events."),
        watch,
    );
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct What {
    /// Kinds to watch, with commas between them, as `vms,events`; all if not said.
    kinds: Option<String>,
    /// The revision to go on after (as `Last-Event-ID`); from now on if not said.
    after: Option<u64>,
}

/// A stream of events.
struct Changes(Box<dyn FnOnce() -> Response + Send>);

impl Output for Changes {
    fn describe(_: &mut SchemaGenerator) -> Option<(&'static str, Schema)> {
        Some(("text/event-stream", json_schema!({"type": "string"})))
    }
    fn respond(self, _: StatusCode) -> Response {
        (self.0)()
    }
}

struct Watched {
    watch: Box<dyn Watch>,
    organization: OrgName,
    everything: bool,
    kinds: Option<Vec<String>>,
    ready: std::collections::VecDeque<Event>,
    over: bool,
}

async fn watch(call: Call<Caller, NoPath, What>) -> Result<Changes, Problem> {
    let Caller { organization, role, .. } = call.who;
    let store = call.state.cloud.store();
    let after = match call.last_event.or(call.query.after) {
        Some(after) => Revision::from_number(after.max(1)),
        // Any key tells the newest revision.
        None => {
            store
                .range(crate::store::Range {
                    limit: 1,
                    ..crate::store::Range::of(keys::quota(&organization))
                })
                .await?
                .revision
        }
    };
    let watch = store.watch(Scope::Under(keys::everything()), after).await?;
    let kinds = call.query.kinds.map(|kinds| kinds.split(',').map(str::to_owned).collect());
    let first = Event::default().event("ready").id(after.to_string()).data("{}");
    let watched = Watched {
        watch,
        organization,
        everything: role == Role::Operator,
        kinds,
        ready: [first].into(),
        over: false,
    };
    let stream = futures_util::stream::unfold(watched, next);
    Ok(Changes(Box::new(move || respond(stream))))
}

fn respond(stream: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(stream).keep_alive(alive).into_response()
}

async fn next(mut watched: Watched) -> Option<(Result<Event, Infallible>, Watched)> {
    loop {
        if let Some(event) = watched.ready.pop_front() {
            return Some((Ok(event), watched));
        }
        if watched.over {
            return None;
        }
        match watched.watch.next().await {
            Ok(batch) => watched.take(batch),
            Err(error) => {
                watched.over = true;
                let why = match error {
                    StoreError::Compacted { .. } => "these changes are no longer kept",
                    _ => "the store cannot be followed",
                };
                let data = json!({"detail": format!("{why}; read anew and watch from there")});
                let event = Event::default().event("reset").data(data.to_string());
                watched.ready.push_back(event);
            }
        }
    }
}

impl Watched {
    fn take(&mut self, batch: Batch) {
        for change in batch.changes {
            let Some((kind, owner, id)) = keys::resource(change.key()) else { continue };
            let visible = match &owner {
                Some(owner) => *owner == self.organization,
                // Whoever may list regions, flavors and images may watch them.
                None => self.everything || kind != "organizations",
            };
            let wanted =
                self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|one| one == kind));
            // An API key's record may be watched by who may list keys.
            let secret = matches!(kind, "api-keys" | "audit") && !self.everything;
            if !visible || !wanted || secret {
                continue;
            }
            let (event, value) = match &change {
                Change::Put(entry) => ("put", serde_json::from_slice(&entry.value).ok()),
                Change::Delete(_) => ("delete", None::<serde_json::Value>),
            };
            let data = json!({"kind": kind, "id": id, "resource": value});
            let event = Event::default().event(event).id(batch.revision.to_string());
            self.ready.push_back(event.data(data.to_string()));
        }
    }
}
