//! A cloud without a network: the router is called directly, and agents are played.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use lanekeeper_control::api::{Api, ORGANIZATION, Rate, Rates, State};
use lanekeeper_control::cloud::Cloud;
use lanekeeper_control::keys::{HostName, RegionName, ServerName};
use lanekeeper_control::lifecycle;
use lanekeeper_control::metrics::Metrics;
use lanekeeper_control::placement::HostReport;
use lanekeeper_control::resource::{ApiKeySpec, OrganizationSpec, Role};
use lanekeeper_control::store::Embedded;
use lanekeeper_control::tls::Authority;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::obedience::obeyed;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }

    pub(crate) fn detail(&self) -> &str {
        self.body["detail"].as_str().unwrap_or_default()
    }
}

pub(crate) struct Rig {
    pub(crate) cloud: Arc<Cloud>,
    pub(crate) api: Api,
    keys: BTreeMap<String, String>,
    lives: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.lives.abort();
    }
}

pub(crate) fn region() -> RegionName {
    RegionName::new("north").expect("a name")
}

pub(crate) fn host(name: &str) -> HostName {
    HostName::new(name).expect("a name")
}

impl Rig {
    /// Organizations `operators`, `acme` and `globex` with a key for each role; a region, a flavor with
    /// one VF, an image.
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Embedded::open(&folder.path().join("store")).expect("opens");
        let cloud = Arc::new(Cloud::new(Arc::new(store)));
        let authority = Arc::new(Authority::open(folder.path()).expect("an authority"));
        let metrics: Arc<Metrics> = Arc::default();
        let rate = Rate { per_second: 1e6, burst: 1e6 };
        let rates = Rates { callers: rate, strangers: rate, public: rate };
        let state = State::new(Arc::clone(&cloud), authority, Arc::clone(&metrics), rates);
        let api = Api::new(&Arc::new(state));
        let server = ServerName::new("s1").expect("a name");
        let lives = tokio::spawn(lifecycle::run(Arc::clone(&cloud), server, metrics));
        let mut keys = BTreeMap::new();
        for organization in ["operators", "acme", "globex"] {
            let name = organization.parse().expect("a name");
            let spec = OrganizationSpec { name, description: String::new() };
            let made = cloud.create_organization(spec, None).await.expect("made");
            for role in [Role::Operator, Role::Admin, Role::Member, Role::Reader] {
                let spec = ApiKeySpec { name: "test".to_owned(), role, expires_at: None };
                let key = cloud.create_key(&made.name, spec, Role::Operator).await.expect("made");
                keys.insert(format!("{organization}/{role:?}"), key.1.reveal().to_owned());
            }
        }
        let rig = Self { cloud, api, keys, lives, _folder: folder };
        rig.furnish().await;
        rig
    }

    async fn furnish(&self) {
        let region = json!({"name": "north", "fabric": "f1", "addresses": "10.64.0.0/16",
            "vlans": {"from": 100, "to": 199}});
        self.post("/v1/regions", &region).await.expect(201);
        let flavor = json!({"name": "small", "vcpus": 1, "ram_mib": 256, "disk_gib": 1,
            "vfs": {"count": 1, "rate_mbps": 1000, "rdma": "software"}});
        self.post("/v1/flavors", &flavor).await.expect(201);
        let image = json!({"name": "guest", "source": "builtin"});
        self.post("/v1/images", &image).await.expect(201);
    }

    pub(crate) fn key(&self, who: &str) -> &str {
        &self.keys[who]
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.api.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let kind = parts.headers.get("content-type").map(axum::http::HeaderValue::as_bytes);
        // A stream of events has no end.
        let endless = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
        let body = if endless { Body::empty() } else { body };
        let bytes = axum::body::to_bytes(body, 1 << 24).await.expect("a body");
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// Call as somebody: `acme/Member` and the like.
    pub(crate) async fn call(
        &self,
        who: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header("authorization", format!("Bearer {}", self.key(who)));
        let body = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        self.send(request.body(body).expect("a request")).await
    }

    /// Post as the operator.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("operators/Operator", Method::POST, path, Some(body)).await
    }

    /// Get as the operator.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("operators/Operator", Method::GET, path, None).await
    }

    /// As the operator, within another organization.
    pub(crate) async fn within(&self, organization: &str, path: &str) -> Answer {
        let key = format!("Bearer {}", self.key("operators/Operator"));
        let request = Request::get(path).header("authorization", key);
        let request = request.header(ORGANIZATION, organization).body(Body::empty());
        self.send(request.expect("a request")).await
    }

    pub(crate) async fn acme(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        self.call("acme/Member", method, path, body).await
    }

    /// An environment of acme's; gives back its id.
    pub(crate) async fn environment(&self, name: &str) -> u64 {
        let spec = json!({"name": name, "region": "north"});
        let made = self.acme(Method::POST, "/v1/environments", Some(&spec)).await.expect(201);
        made["id"].as_u64().expect("an id")
    }

    /// A host with software NICs, that is alive.
    pub(crate) async fn host(&self, name: &str, vfs: u32) {
        let report = json!({
            "pod": null,
            "scalars": {"vcpus": 64, "ram_mib": 65536, "disk_gib": 1000},
            "gpus": null,
            "pfs": [{
                "name": "nic0", "path": "software", "fabric": "f1", "rail": 0, "leaf": null,
                "position": {"numa": null, "host_bridge": null, "root_port": null, "switch": null},
                "rate": 100_000, "vfs": (0..vfs).collect::<Vec<_>>()
            }]
        });
        let report: HostReport = serde_json::from_value(report).expect("a report");
        self.cloud.take_inventory(&region(), &host(name), report).await.expect("taken");
        self.cloud.heartbeat(&region(), &host(name), "test").await.expect("alive");
    }

    /// Do as an agent does: every VM is as is desired, at once.
    pub(crate) async fn obey(&self, name: &str) {
        let desired = self.cloud.desired(&region(), &host(name)).await.expect("read");
        self.cloud.take_reports(&region(), &host(name), obeyed(&desired)).await.expect("taken");
    }

    /// Let agents obey until something is so.
    pub(crate) async fn until(&self, hosts: &[&str], what: &str, holds: impl AsyncFn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(Instant::now() < end, "never: {what}");
            for host in hosts {
                self.obey(host).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn status(&self, vm: u64) -> String {
        let answer = self.acme(Method::GET, &format!("/v1/vms/{vm}"), None).await;
        answer.body["status"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) async fn until_status(&self, hosts: &[&str], vm: u64, status: &str) {
        let what = format!("VM {vm} is '{status}'");
        self.until(hosts, &what, async || self.status(vm).await == status).await;
    }

    /// A VM of acme's; gives back its id.
    pub(crate) async fn vm(&self, environment: u64, name: &str) -> u64 {
        let spec = json!({"name": name, "environment": environment, "flavor": "small",
            "image": "guest"});
        let made = self.acme(Method::POST, "/v1/vms", Some(&spec)).await.expect(201);
        made["id"].as_u64().expect("an id")
    }
}
