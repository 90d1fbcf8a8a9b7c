//! A cloud with the API in front of it, called without a network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use lanekeeper_control::api::{Api, Rate, Rates, State};
use lanekeeper_control::cloud::Cloud;
use lanekeeper_control::keys::ServerName;
use lanekeeper_control::lifecycle;
use lanekeeper_control::metrics::Metrics;
use lanekeeper_control::resource::Role;
use lanekeeper_control::store::Embedded;
use lanekeeper_control::tls::Authority;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::{agent, world};

pub(crate) const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGAKhUI8fcdFMscKvyM0cf+hmgo8XjD4fbvmEz8MZ/rc me@there";

/// The API of a small cloud, and a key of a member of `acme`.
pub(crate) struct Rig {
    pub(crate) cloud: Arc<Cloud>,
    api: Api,
    pub(crate) key: String,
    tasks: JoinSet<()>,
    _folder: tempfile::TempDir,
}

/// What a call was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) kind: String,
    pub(crate) body: Value,
}

impl Answer {
    /// The body of a call that was served.
    #[track_caller]
    pub(crate) fn served(self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        assert_eq!(self.body["status"], true, "{}", self.body);
        assert!(self.body["message"].is_string(), "{}", self.body);
        self.body
    }

    /// The message of a call that was not.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, reason: &str) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        assert_eq!(self.kind, "application/json");
        assert_eq!(self.body["status"], false, "{}", self.body);
        assert_eq!(self.body["error_reason"], reason, "{}", self.body);
        self.body["message"].as_str().expect("a message").to_owned()
    }
}

impl Rig {
    /// Nobody serves its host.
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Embedded::open(&folder.path().join("store")).expect("a store");
        let cloud = Arc::new(Cloud::new(Arc::new(store)));
        let authority = Arc::new(Authority::open(folder.path()).expect("an authority"));
        let rates = Rates { callers: Rate { per_second: 1e6, burst: 1e6 }, ..Rates::default() };
        let state = State::new(Arc::clone(&cloud), authority, Arc::default(), rates);
        world::furnish(&cloud).await;
        let key = world::key(&cloud, "acme", Role::Member).await;
        let api = Api::new(&Arc::new(state));
        Self { cloud, api, key, tasks: JoinSet::new(), _folder: folder }
    }

    /// Its host does what it is asked.
    pub(crate) async fn alive() -> Self {
        let mut rig = Self::new().await;
        let name = ServerName::new("server").expect("a name");
        let (cloud, metrics) = (Arc::clone(&rig.cloud), Arc::new(Metrics::default()));
        rig.tasks.spawn(lifecycle::run(cloud, name, metrics));
        rig.tasks.spawn(agent::run(Arc::clone(&rig.cloud), world::region(), world::host()));
        rig
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let served: Response<Body> =
            self.api.router.clone().oneshot(request).await.expect("infallible");
        let status = served.status();
        let kind = served.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        let bytes = axum::body::to_bytes(served.into_body(), 1 << 20).await.expect("a body");
        Answer { status, kind, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
    }

    /// Call as the bearer of a key.
    pub(crate) async fn call_as(
        &self,
        key: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(format!("/v1{path}"))
            .header("api_key", key)
            .header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        self.send(request.body(body).expect("a request")).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call_as(&self.key, "GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call_as(&self.key, "POST", path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call_as(&self.key, "DELETE", path, None).await
    }

    /// An environment and a key in it, both of this name; gives back the environment.
    pub(crate) async fn environment(&self, name: &str) -> Value {
        let body = json!({"name": name, "region": world::REGION});
        let made = self.post("/core/environments", body).await.served();
        let body = json!({"name": name, "environment_name": name, "public_key": PUBLIC_KEY});
        self.post("/core/keypairs", body).await.served();
        made["environment"].clone()
    }

    /// VMs of an environment made by [`Rig::environment`].
    pub(crate) async fn vms(&self, name: &str, environment: &str, count: u32) -> Vec<Value> {
        let made = self.post("/core/virtual-machines", vm(name, environment, count)).await.served();
        made["instances"].as_array().expect("VMs").clone()
    }

    pub(crate) async fn vm(&self, id: u64) -> Value {
        self.get(&format!("/core/virtual-machines/{id}")).await.served()["instance"].clone()
    }

    /// Wait until a VM has come to a status; every status it had on the way is one that is published.
    pub(crate) async fn until(&self, id: u64, status: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let seen = self.vm(id).await["status"].clone();
            let published = [
                "CREATING",
                "BUILD",
                "ACTIVE",
                "STOPPING",
                "SHUTOFF",
                "STARTING",
                "REBOOTING",
                "DELETING",
            ];
            assert!(published.iter().any(|word| seen == *word), "{seen}");
            if seen == status {
                return;
            }
            assert!(Instant::now() < end, "VM {id} is {seen} instead of {status}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What a client sends for new VMs.
pub(crate) fn vm(name: &str, environment: &str, count: u32) -> Value {
    json!({
        "name": name,
        "environment_name": environment,
        "flavor_name": world::FLAVOR,
        "image_name": world::IMAGE,
        "key_name": environment,
        "count": count,
        // The Python SDK sends these unasked.
        "enable_port_randomization": true,
        "enhanced_monitoring_enabled": false,
    })
}

pub(crate) fn id(of: &Value) -> u64 {
    of["id"].as_u64().expect("ids are integers")
}
