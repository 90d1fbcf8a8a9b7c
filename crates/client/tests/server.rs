//! The client against a server on loopback: what it sends, what it makes of each kind of answer, and
//! what it does when there is none.

use std::collections::HashMap;
use std::net::TcpListener as Port;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{any, get};
use lanekeeper_client::{Client, Endpoint, Error, certificate_request};
use serde_json::{Value, json};

const KEY: &str = "lk_0123456789abcdef_secret";

/// Serves on a port of its own until the test ends.
fn serve(router: Router) -> String {
    let port = Port::bind("127.0.0.1:0").expect("a port");
    port.set_nonblocking(true).expect("non-blocking");
    let address = port.local_addr().expect("its address");
    thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let port = tokio::net::TcpListener::from_std(port).expect("a port");
            axum::serve(port, router).await.expect("served");
        });
    });
    format!("http://{address}")
}

fn client(url: &str) -> Client {
    let endpoint = Endpoint { key: Some(KEY.into()), ..Endpoint::new(url) };
    Client::new(&endpoint).expect("a client")
}

/// What came, as JSON.
async fn echo(method: Method, uri: Uri, headers: HeaderMap, body: String) -> impl IntoResponse {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let seen = json!({
        "method": method.as_str(),
        "uri": uri.to_string(),
        "authorization": text("authorization"),
        "idempotency": text("idempotency-key"),
        "match": text("if-match"),
        "type": text("content-type"),
        "body": body,
    });
    ([(header::ETAG, "\"7\"")], axum::Json(seen))
}

fn problem(status: u16, kind: &'static str, body: &'static str) -> Router {
    let status = StatusCode::from_u16(status).expect("a status");
    Router::new()
        .route("/", get(move || async move { (status, [(header::CONTENT_TYPE, kind)], body) }))
}

fn refusal_of(router: Router) -> Error {
    client(&serve(router)).get::<Value>("/").expect_err("no answer")
}

#[test]
fn a_call_carries_its_key_its_headers_its_query_and_its_body() {
    let url = serve(Router::new().fallback(any(echo)));
    let client = client(&url);
    let answer = client
        .call(Method::PATCH, "/v1/vms/3")
        .query("name", "a b&c=d/ä")
        .query("all", "")
        .idempotency_key("once")
        .if_match("\"6\"")
        .json(&json!({"power": "off"}))
        .expect("JSON")
        .send::<Value>()
        .expect("an answer");
    assert_eq!((answer.status, answer.etag.as_deref()), (200, Some("\"7\"")));
    let expected = json!({
        "method": "PATCH",
        "uri": "/v1/vms/3?name=a%20b%26c%3Dd%2F%C3%A4&all=",
        "authorization": format!("Bearer {KEY}"),
        "idempotency": "once",
        "match": "\"6\"",
        "type": "application/json",
        "body": r#"{"power":"off"}"#,
    });
    assert_eq!(answer.body, expected);
    for (method, answer) in [
        ("GET", client.get::<Value>("/")),
        ("POST", client.post("/", &())),
        ("PUT", client.put("/", &())),
        ("PATCH", client.patch("/", &())),
        ("DELETE", client.delete("/")),
    ] {
        assert_eq!(answer.expect("an answer").body["method"], method);
    }
}

#[test]
fn an_answer_without_a_body_is_nothing() {
    let url = serve(Router::new().route("/", any(|| async { StatusCode::NO_CONTENT })));
    assert_eq!(client(&url).delete::<()>("/").expect("an answer").status, 204);
    assert_eq!(client(&url).get::<Option<u8>>("/").expect("an answer").body, None);
}

#[test]
fn a_problem_is_kept_with_all_its_members() {
    let body = r#"{"type":"/problems/quota","title":"Over quota","status":500,
        "detail":"8 of 8 VFs are used; release one","used":8,"of":{"vfs":8}}"#;
    let error = refusal_of(problem(409, "application/problem+json; charset=utf-8", body));
    assert_eq!(error.to_string(), "Over quota: 8 of 8 VFs are used; release one");
    let Error::Problem(problem) = error else { panic!("{error:?}") };
    assert_eq!(problem.kind, "/problems/quota");
    assert_eq!(problem.status, Some(409), "the answer's own status counts");
    assert_eq!(Value::from(problem.extra), json!({"used": 8, "of": {"vfs": 8}}));
}

#[test]
fn a_refusal_that_says_not_why_is_shown_as_it_is() {
    let error = refusal_of(problem(502, "text/html", "<h1>Bad gateway</h1>"));
    assert_eq!(error.status(), Some(502));
    assert!(
        error.to_string().contains("text/html: it begins with '<h1>Bad gateway</h1>'"),
        "{error}"
    );
    let error = refusal_of(problem(400, "application/problem+json", "{"));
    assert!(matches!(error, Error::NotJson { status: 400, .. }), "{error:?}");
}

#[test]
fn an_answer_that_is_not_what_was_asked_for_is_an_error() {
    let url = serve(Router::new().fallback(any(echo)));
    let error = client(&url).get::<Vec<u8>>("/").expect_err("an object is no list");
    assert!(matches!(error, Error::NotJson { status: 200, .. }), "{error:?}");
}

#[test]
fn a_redirect_is_not_followed() {
    let seen = serve(Router::new().fallback(any(echo)));
    let error = refusal_of(
        Router::new()
            .route("/", get(move || async move { Redirect::temporary(&format!("{seen}/stolen")) })),
    );
    assert_eq!(error.status(), Some(307));
    assert!(error.to_string().contains("/stolen"), "{error}");
}

#[test]
fn a_call_ends_at_its_timeout_and_a_long_poll_may_take_as_long_as_it_holds() {
    let late = || async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        axum::Json(1)
    };
    let url = serve(Router::new().route("/", get(late)));
    let client = client(&url);
    let begun = Instant::now();
    let limit = Duration::from_millis(200);
    let error = client.call(Method::GET, "/").timeout(limit).send::<u8>().expect_err("too late");
    assert!(begun.elapsed() < Duration::from_millis(590), "{:?}", begun.elapsed());
    assert_eq!(error.to_string(), format!("{url}/: no answer within 200ms"));
    assert_eq!(client.wait::<u8>("/", limit).expect("an answer").body, 1);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let port = Port::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", port.local_addr().expect("its address"));
    drop(port);
    let error = client(&url).get::<()>("/v1/vms").expect_err("nobody");
    assert!(
        matches!(&error, Error::Unreachable { url: called, .. } if *called == format!("{url}/v1/vms"))
    );
    assert!(error.to_string().to_lowercase().contains("refused"), "{error}");
}

#[test]
fn plain_http_goes_to_this_machine_only_unless_that_is_asked_for() {
    let refused = |url: &str| Client::new(&Endpoint::new(url)).is_err();
    for url in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://far.example"] {
        assert!(!refused(url), "{url}");
    }
    for url in [
        "http://far.example",
        "http://127.0.0.1.far.example",
        "http://localhost@far.example",
        "https://user:word@far.example",
        "https://far.example?x=1",
        "ftp://far.example",
        "far.example",
        "/v1",
        "",
    ] {
        assert!(refused(url), "{url}");
    }
    let endpoint = Endpoint { plain_anywhere: true, ..Endpoint::new("http://far.example") };
    assert!(Client::new(&endpoint).is_ok());
}

#[test]
fn no_secret_is_in_what_debug_shows() {
    let endpoint = Endpoint { key: Some(KEY.into()), ..Endpoint::new("http://127.0.0.1:1") };
    let client = Client::new(&endpoint).expect("a client");
    let call = client.call(Method::POST, "/").json(KEY).expect("JSON");
    let request = certificate_request().expect("a request");
    let shown = format!("{endpoint:?} {client:?} {call:?} {:?} {request:?}", client.events("/"));
    assert!(!shown.contains(KEY) && !shown.contains("PRIVATE KEY"), "{shown}");
}

#[test]
fn events_go_on_after_the_last_one_when_the_connection_breaks() {
    static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
    let parts = HashMap::from([
        ("", "retry: 20\n\nid: 1\ndata: one\n\nid: 2\ndata: cut"),
        ("1", "id: 2\nevent: vm\ndata: two\n\n"),
    ]);
    let events = move |headers: HeaderMap| async move {
        let after = headers.get("last-event-id").map_or("", |id| id.to_str().expect("text"));
        match (CONNECTIONS.fetch_add(1, Ordering::Relaxed), parts.get(after)) {
            // One that fails on the way is tried again.
            (1, _) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            (_, Some(part)) => {
                ([(header::CONTENT_TYPE, "text/event-stream")], *part).into_response()
            }
            (_, None) => StatusCode::NO_CONTENT.into_response(),
        }
    };
    let url = serve(Router::new().route("/events", get(events)));
    let mut events = client(&url).events("/events");
    let mut next = || events.next().map(|event| event.map(|event| (event.kind, event.data)));
    assert_eq!(next().expect("more").expect("an event"), ("message".into(), "one".into()));
    assert_eq!(next().expect("more").expect_err("unavailable").status(), Some(503));
    assert_eq!(next().expect("more").expect("an event"), ("vm".into(), "two".into()));
    assert!(next().is_none(), "the server has said that there are no more");
    assert_eq!(CONNECTIONS.load(Ordering::Relaxed), 4);
}

#[test]
fn events_end_at_a_refusal_that_will_not_go_away() {
    let url = serve(problem(403, "application/problem+json", r#"{"title":"Not yours"}"#));
    let mut events = client(&url).events("/");
    assert_eq!(events.next().expect("an error").expect_err("refused").to_string(), "Not yours");
    assert!(events.next().is_none());
    let mut events = client(&serve(Router::new().fallback(any(echo)))).events("/");
    let error = events.next().expect("an error").expect_err("no stream");
    assert!(error.to_string().contains("not a stream of events"), "{error}");
    assert!(events.next().is_none());
}
