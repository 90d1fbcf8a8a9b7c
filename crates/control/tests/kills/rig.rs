//! Three members of etcd, two servers, four hosts, and a tenant who asks for two hundred VMs.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lanekeeper_client::{Client, Endpoint, Error, Method};
use lanekeeper_control::keys;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::agent::Agent;
use crate::cluster::Cluster;
use crate::server::Process;

/// How many VMs are asked for at once.
pub(crate) const VMS: usize = 200;
pub(crate) const HOSTS: usize = 4;
/// VFs of each host.
pub(crate) const VFS: usize = 64;
/// How long anything may take until it is so.
const PATIENCE: Duration = Duration::from_secs(180);
/// After a call that failed, and before one looks again.
const AGAIN: Duration = Duration::from_millis(200);
/// What stays although VMs are gone: what happened, what was used and answered, who leads and lives,
/// which numbers were ever given, and each host's and organization's account, which is looked at by itself.
const STAYS: [&str; 10] = [
    "/v1/claims/",
    "/v1/usage/",
    "/v1/tenant/events/",
    "/v1/tenant/audit/",
    "/v1/tenant/usage-records/",
    "/v1/once/",
    "/v1/ends/",
    "/v1/counters/",
    "/v1/leaders/",
    "/v1/alive/",
];

pub(crate) fn id(value: &Value) -> u64 {
    value["id"].as_u64().expect("an id")
}

pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) agents: Vec<Agent>,
    servers: Vec<Process>,
    operator: Caller,
    member: Caller,
    environment: u64,
    answered: Arc<AtomicUsize>,
    _home: tempfile::TempDir,
}

/// Somebody who asks one server, and when that does not answer another, for as long as it takes.
#[derive(Clone)]
struct Caller(Vec<Client>);

impl Caller {
    fn new(servers: &[Process], authority: &str, key: &str) -> Self {
        let client = |server: &Process| {
            Client::new(&Endpoint {
                authority_pem: Some(authority.to_owned()),
                key: Some(key.to_owned().into()),
                ..Endpoint::new(&server.url)
            })
        };
        Self(servers.iter().map(|server| client(server).expect("a client")).collect())
    }

    fn within(&self, organization: &str) -> Self {
        let within = |client: &Client| client.clone().within(organization).expect("a name");
        Self(self.0.iter().map(within).collect())
    }

    fn call<T: DeserializeOwned>(
        &self,
        first: usize,
        what: impl Fn(&Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let end = Instant::now() + PATIENCE;
        for at in first.. {
            match what(&self.0[at % self.0.len()]) {
                Ok(answer) => return Ok(answer),
                Err(error @ Error::Problem(_)) if error.status().is_some_and(|it| it < 500) => {
                    return Err(error);
                }
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(AGAIN);
        }
        unreachable!("there is no last number")
    }

    fn post(&self, first: usize, path: &str, body: &Value, key: &str) -> Value {
        let post = |client: &Client| {
            let call = client.call(Method::POST, path).idempotency_key(key);
            Ok(call.json(body)?.send::<Value>()?.body)
        };
        self.call(first, post).unwrap_or_else(|error| panic!("POST {path} {body}: {error}"))
    }

    /// All of a list, over its pages.
    fn all(&self, path: &str) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("{path}?limit=1000&after={after}");
            let get = |client: &Client| Ok(client.get::<Value>(&path)?.body);
            let page = self.call(0, get).expect("a list");
            all.extend(page["items"].as_array().expect("items").iter().cloned());
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => return all,
            }
        }
    }
}

/// Blocking work, beside the rest.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

fn inventory() -> Value {
    json!({
        "pod": null,
        "scalars": { "vcpus": 256, "ram_mib": 1_048_576, "disk_gib": 1000 },
        "gpus": null,
        "pfs": [{
            "name": "nic0", "path": "software", "fabric": "f1", "rail": 0, "leaf": null,
            "position": { "numa": null, "host_bridge": null, "root_port": null, "switch": null },
            "rate": 100_000, "vfs": (0..VFS).collect::<Vec<_>>()
        }]
    })
}

impl Rig {
    pub(crate) async fn start() -> Self {
        let cluster = Cluster::start().await;
        let etcd = cluster.clients();
        // On this thread, which lives as long as the test: servers die with the one that started them.
        tokio::task::block_in_place(|| Self::furnish(cluster, &etcd))
    }

    fn furnish(cluster: Cluster, etcd: &[String]) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let data = ["a", "b"].map(|name| home.path().join(name));
        let first = Process::start(&data[0], "a", etcd);
        // The servers of one cloud have one authority.
        fs::create_dir_all(&data[1]).expect("a folder");
        fs::copy(data[0].join("authority.pem"), data[1].join("authority.pem")).expect("copied");
        let authority = fs::read_to_string(data[0].join("authority.pem")).expect("an authority");
        let key = fs::read_to_string(first.data.join("operator.key")).expect("a key");
        let servers = vec![first, Process::start(&data[1], "b", etcd)];
        let operator = Caller::new(&servers, &authority, key.trim());
        let post =
            |path: &str, body: Value| operator.post(0, path, &body, &format!("{path} {body}"));
        post(
            "/v1/regions",
            json!({ "name": "north", "fabric": "f1", "vlans": { "from": 100, "to": 199 },
                "addresses": "10.64.0.0/16" }),
        );
        post(
            "/v1/flavors",
            json!({ "name": "small", "vcpus": 1, "ram_mib": 256,
                "vfs": { "count": 1, "rate_mbps": 100, "rdma": "software" } }),
        );
        post("/v1/images", json!({ "name": "guest", "source": "builtin" }));
        post("/v1/organizations", json!({ "name": "acme" }));
        let key = operator.within("acme").post(
            0,
            "/v1/api-keys",
            &json!({ "name": "test", "role": "member" }),
            "key",
        );
        let member = Caller::new(&servers, &authority, key["secret"].as_str().expect("a secret"));
        let environment = id(&member.post(
            0,
            "/v1/environments",
            &json!({ "name": "lab", "region": "north" }),
            "e",
        ));
        let urls: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
        let agents = (0..HOSTS).map(|host| {
            let path = format!("/v1/regions/north/hosts/h{host}/token");
            let token = operator.post(0, &path, &Value::Null, &path);
            let token = token["token"].as_str().expect("a token");
            Agent::enrol(&urls, &authority, token, &inventory())
        });
        let agents = agents.collect();
        let answered = Arc::default();
        Self { cluster, agents, servers, operator, member, environment, answered, _home: home }
    }

    /// Ask for all VMs at once, each under an idempotency key, from both servers.
    pub(crate) fn ask_for_vms(&self) -> Vec<(String, JoinHandle<u64>)> {
        let ask = |number: usize| {
            let name = format!("vm{number:03}");
            let (member, answered) = (self.member.clone(), Arc::clone(&self.answered));
            let body = json!({ "name": name, "environment": self.environment, "flavor": "small",
                "image": "guest" });
            let key = name.clone();
            let asked = tokio::task::spawn_blocking(move || {
                let made = member.post(number, "/v1/vms", &body, &key);
                answered.fetch_add(1, Ordering::Relaxed);
                id(&made)
            });
            (name, asked)
        };
        (0..VMS).map(ask).collect()
    }

    /// Wait until so many of them are answered.
    pub(crate) async fn until_asked(&self, count: usize) {
        self.until("requests are answered", async || {
            (self.answered.load(Ordering::Relaxed) >= count).then_some(())
        })
        .await;
    }

    async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(Instant::now() < end, "never: {what}");
            tokio::time::sleep(AGAIN).await;
        }
    }

    pub(crate) async fn kill_leading_server(&mut self) {
        let store = self.cluster.connect().await;
        let store: &dyn lanekeeper_control::store::Store = &store;
        let (_, all) = store.all(keys::everything()).await.expect("an answer");
        let leader = all.iter().find(|entry| entry.key.as_str().starts_with("/v1/leaders/"));
        let leader = String::from_utf8_lossy(&leader.expect("a leader").value).into_owned();
        let leads = |server: &&mut Process| server.name == leader;
        let server = self.servers.iter_mut().find(leads);
        server.unwrap_or_else(|| panic!("one of the servers is '{leader}'")).kill();
    }

    pub(crate) fn revive_agent(&mut self, host: usize) {
        self.agents[host].run();
    }

    pub(crate) async fn all(&self, path: &str) -> Vec<Value> {
        let (member, path) = (self.member.clone(), path.to_owned());
        apart(move || member.all(&path)).await
    }

    /// All VMs once each is ACTIVE, or in ERROR if that may be; as an operator sees them.
    pub(crate) async fn settled(&self, error_may_be: bool) -> Vec<Value> {
        let operator = self.operator.within("acme");
        self.until("every VM is ACTIVE", async || {
            let operator = operator.clone();
            let vms = apart(move || operator.all("/v1/vms")).await;
            let settled =
                |vm: &Value| vm["status"] == "ACTIVE" || (error_may_be && vm["status"] == "ERROR");
            (vms.len() >= VMS && vms.iter().all(settled)).then_some(vms)
        })
        .await
    }

    pub(crate) async fn claimed_vfs(&self) -> usize {
        let operator = self.operator.clone();
        apart(move || {
            let get = |client: &Client| Ok(client.get::<Value>("/v1/regions/north/hosts")?.body);
            let hosts = operator.call(0, get).expect("hosts");
            let hosts = hosts["items"].as_array().expect("items").clone();
            let used = hosts.iter().map(|host| host["vfs_used"].as_u64().expect("a number"));
            usize::try_from(used.sum::<u64>()).expect("few")
        })
        .await
    }

    /// What the tenant's VMs use of its quota.
    pub(crate) async fn used(&self) -> Vec<u64> {
        let member = self.member.clone();
        apart(move || {
            let get = |client: &Client| Ok(client.get::<Value>("/v1/quota")?.body);
            let used = member.call(0, get).expect("a quota")["used"].clone();
            let used = used.as_object().expect("uses").values().filter_map(Value::as_u64);
            used.collect()
        })
        .await
    }

    /// Delete VMs, and wait until there are none.
    pub(crate) async fn delete_all(&self, ids: impl Iterator<Item = &u64>) {
        let calls: Vec<_> = ids
            .copied()
            .map(|id| {
                let member = self.member.clone();
                tokio::task::spawn_blocking(move || {
                    let path = format!("/v1/vms/{id}");
                    let delete = |client: &Client| Ok(client.delete::<Value>(&path)?.body);
                    match member.call(0, delete) {
                        Ok(_) => {}
                        // It was deleted by a call whose answer was lost.
                        Err(error) if error.status() == Some(404) => {}
                        Err(error) => panic!("DELETE {path}: {error}"),
                    }
                })
            })
            .collect();
        for call in calls {
            call.await.expect("deleted");
        }
        self.until("no VM is left", async || self.all("/v1/vms").await.is_empty().then_some(()))
            .await;
    }

    /// The keys of all that is to be gone with the VMs.
    pub(crate) async fn keys(&self) -> BTreeSet<String> {
        let store = self.cluster.connect().await;
        let store: &dyn lanekeeper_control::store::Store = &store;
        let (_, all) = store.all(keys::everything()).await.expect("an answer");
        let all = all.iter().map(|entry| entry.key.as_str().to_owned());
        all.filter(|key| !STAYS.iter().any(|stays| key.starts_with(stays))).collect()
    }
}
