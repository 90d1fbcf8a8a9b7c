//! Traces of a server: a small collector takes what `lanekeeper server --otlp` sends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lanekeeper_client::{Client, Endpoint};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use prost::Message;
use serde_json::{Value, json};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// A span that was received: its name, its id and its parent's, and its attributes as text.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    id: Vec<u8>,
    parent: Vec<u8>,
    attributes: BTreeMap<String, String>,
}

fn spans(body: &[u8]) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(body).expect("an export");
    let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    let text = |value: Any| match value {
        Any::StringValue(text) => text,
        Any::IntValue(number) => number.to_string(),
        Any::BoolValue(value) => value.to_string(),
        other => format!("{other:?}"),
    };
    let span = |span: opentelemetry_proto::tonic::trace::v1::Span| Span {
        name: span.name,
        id: span.span_id,
        parent: span.parent_span_id,
        attributes: span
            .attributes
            .into_iter()
            .filter_map(|of| Some((of.key, text(of.value?.value?))))
            .collect(),
    };
    scopes.flat_map(|scope| scope.spans).map(span).collect()
}

/// Read one request of HTTP/1.1: its first line and its body.
fn read(stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first, body))
}

fn serve(stream: &mut TcpStream, bodies: &Sender<Vec<u8>>) {
    while let Some((first, body)) = read(stream) {
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        if bodies.send(body).is_err() || stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A collector: its address, and what it was sent.
fn collector() -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (send, bodies) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let send = send.clone();
            std::thread::spawn(move || serve(&mut stream, &send));
        }
    });
    (url, bodies)
}

/// A server that is killed when this is dropped.
struct Server {
    child: Child,
    /// Open as long as it runs: it ends when nobody reads what it says.
    _said: Lines<BufReader<ChildStdout>>,
    client: Client,
    key: String,
    _data: tempfile::TempDir,
}

impl Server {
    fn start(otlp: &str) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(env!("CARGO_BIN_EXE_lanekeeper"))
            .args(["server", "--listen", "127.0.0.1:0", "--otlp", otlp, "--data"])
            .arg(data.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let url =
            lines.find_map(|line| line.expect("text").strip_prefix("serving ").map(str::to_owned));
        let text = |name: &str| read_text(&data.path().join(name));
        let key = text("operator.key").trim().to_owned();
        let client = Client::new(&Endpoint {
            authority_pem: Some(text("authority.crt")),
            key: Some(key.clone().into()),
            ..Endpoint::new(url.expect("it serves"))
        });
        Self { child, _said: lines, client: client.expect("a client"), key, _data: data }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.client.post(path, body).expect("done").body
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Wait until a span is there that is so.
fn until(
    bodies: &Receiver<Vec<u8>>,
    all: &mut Vec<Span>,
    secret: &str,
    is_it: impl Fn(&Span) -> bool,
) -> Span {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = all.iter().find(|span| is_it(span)) {
            return found.clone();
        }
        let left = end.saturating_duration_since(Instant::now());
        let body = bodies.recv_timeout(left).unwrap_or_else(|_| panic!("never; {all:#?}"));
        let is_told = body.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!is_told, "the API key was exported");
        all.extend(spans(&body));
    }
}

#[test]
fn a_collector_gets_a_span_of_each_request_and_of_what_is_done_for_a_vm() {
    let (url, bodies) = collector();
    let server = Server::start(&url);
    let region = json!({"name": "north", "fabric": "f1", "addresses": "10.64.0.0/16",
        "vlans": {"from": 100, "to": 199}});
    server.post("/v1/regions", &region);
    let flavor = json!({"name": "small", "vcpus": 1, "ram_mib": 256,
        "vfs": {"count": 1, "rate_mbps": 100, "rdma": "software"}});
    server.post("/v1/flavors", &flavor);
    server.post("/v1/images", &json!({"name": "guest", "source": "builtin"}));
    let lab = server.post("/v1/environments", &json!({"name": "lab", "region": "north"}));
    let vm = json!({"name": "v1", "environment": lab["id"], "flavor": "small", "image": "guest"});
    let vm = server.post("/v1/vms", &vm)["id"].to_string();
    let hosts = server.client.get::<Value>("/v1/regions/north/hosts").expect("answered");
    assert_eq!(hosts.body["items"], json!([]));

    let (mut all, secret) = (Vec::new(), server.key.rsplit('_').next().expect("a part"));
    let made = until(&bodies, &mut all, secret, |span| span.name == "POST /v1/vms");
    let of = |span: &Span, name: &str| span.attributes.get(name).cloned().unwrap_or_default();
    assert_eq!(of(&made, "http.route"), "/v1/vms");
    assert_eq!(of(&made, "http.response.status_code"), "201");
    assert_eq!(of(&made, "lanekeeper.organization"), "operators");
    assert_eq!(of(&made, "lanekeeper.request_id").len(), 16);
    let listed = until(&bodies, &mut all, secret, |span| span.name.ends_with("{region}/hosts"));
    assert_eq!(of(&listed, "lanekeeper.region"), "north");

    // There is no host, which placement says.
    let seen = until(&bodies, &mut all, secret, |span| {
        let is_placed = |step: &&Span| step.name == "step" && of(step, "what") == "place";
        is_placed(&span) && of(span, "vm") == vm
    });
    let claim = until(&bodies, &mut all, secret, |span| span.name == "claim");
    assert_eq!((of(&claim, "placement"), &claim.parent), (format!("vm-{vm}"), &seen.id));
    let above = until(&bodies, &mut all, secret, |span| span.id == seen.parent);
    assert_eq!((above.name.as_str(), of(&above, "id")), ("see to vm", vm.clone()));
    let placed = until(&bodies, &mut all, secret, |span| span.name == "placement");
    assert_eq!(of(&placed, "found"), "false");
    let claims = until(&bodies, &mut all, secret, |span| span.id == placed.parent);
    assert_eq!((claims.name.as_str(), of(&claims, "region")), ("claims", "north".to_owned()));
}

#[test]
fn requests_are_answered_when_the_collector_is_silent_or_not_there() {
    // One that takes connections and says nothing; and a port where nobody listens.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url =
        |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("an address"));
    let urls = [url(&silent), url(&gone)];
    drop(gone);
    for otlp in urls {
        let server = Server::start(&otlp);
        for n in 0..300 {
            let answer = server.client.get::<Value>("/v1/health");
            let answer = answer.unwrap_or_else(|error| panic!("{n}: {error}"));
            assert_eq!(answer.body["status"], "ok");
        }
    }
}

#[test]
fn a_collector_that_is_none_is_refused_with_what_to_use() {
    let output = Command::new(env!("CARGO_BIN_EXE_lanekeeper"))
        .args(["server", "--otlp", "collector:4318"])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("http://127.0.0.1:4318"), "{said}");
}
