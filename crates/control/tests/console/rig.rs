//! A server as it is run, on loopback, with hosts whose agents are played: they do what is desired.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lanekeeper_control::api::Rates;
use lanekeeper_control::cloud::Cloud;
use lanekeeper_control::keys::{HostName, OrgName, RegionName, ServerName};
use lanekeeper_control::placement::HostReport;
use lanekeeper_control::resource::{ApiKeySpec, Environment, OrganizationSpec, Role};
use lanekeeper_control::server::{Config, Server, StoreConfig};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::browser::Browser;
use super::obedience::obeyed;

pub(crate) struct Rig {
    runtime: Runtime,
    pub(crate) cloud: Arc<Cloud>,
    pub(crate) acme: OrgName,
    pub(crate) region: RegionName,
    pub(crate) url: String,
    /// Whether the cable between browser and server is whole.
    cable: watch::Sender<bool>,
    agents: Arc<Mutex<Vec<HostName>>>,
    playing: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Before the store is closed under them.
        self.playing.abort();
    }
}

/// Something as its JSON says.
pub(crate) fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("as it should be")
}

fn region() -> RegionName {
    RegionName::new("north").expect("a name")
}

fn organization(name: &str) -> OrgName {
    OrgName::new(name).expect("a name")
}

async fn furnish(cloud: &Cloud) {
    let region = json!({"name": "north", "fabric": "rocky", "addresses": "10.64.0.0/16",
        "vlans": {"from": 100, "to": 199}});
    cloud.create_region(from(region), None).await.expect("made");
    let flavors = [
        json!({"name": "small", "vcpus": 2, "ram_mib": 4096, "disk_gib": 20,
            "vfs": {"count": 1, "rate_mbps": 10_000}}),
        json!({"name": "gpu8", "vcpus": 96, "ram_mib": 1_048_576, "disk_gib": 500,
            "gpus": {"model": "H100", "count": 8},
            "vfs": {"count": 8, "rate_mbps": 100_000, "rail_aligned": true}}),
    ];
    for flavor in flavors {
        cloud.create_flavor(from(flavor), None).await.expect("made");
    }
    let image = json!({"name": "guest", "source": "builtin"});
    cloud.create_image(from(image), None).await.expect("made");
    let acme = OrganizationSpec { name: organization("acme"), description: String::new() };
    cloud.create_organization(acme, None).await.expect("made");
}

/// A host with two rails, each on a leaf of its pod.
fn inventory(pod: &str) -> HostReport {
    let pf = |rail: u16| {
        json!({"name": format!("rail{rail}"), "path": "sriov_rdma", "fabric": "rocky", "rail": rail,
            "leaf": format!("{pod}-leaf{rail}"), "rate": 200_000, "vfs": (0..8).collect::<Vec<_>>(),
            "position": {"numa": rail, "host_bridge": null, "root_port": null, "switch": null}})
    };
    from(json!({"pod": pod, "gpus": null, "pfs": [pf(0), pf(1)],
        "scalars": {"vcpus": 192, "ram_mib": 2_097_152, "disk_gib": 8000}}))
}

/// Do as the agents of `hosts` do: every VM is as is desired, at once.
async fn obey(cloud: &Cloud, hosts: &[HostName]) {
    for host in hosts {
        cloud.heartbeat(&region(), host, "test").await.expect("alive");
        let desired = cloud.desired(&region(), host).await.expect("read");
        cloud.take_reports(&region(), host, obeyed(&desired)).await.expect("taken");
    }
}

/// Join whoever connects to `port` with the server, as long as the cable is whole.
async fn join(port: TcpListener, server: SocketAddr, whole: watch::Receiver<bool>) {
    loop {
        let (mut near, _) = port.accept().await.expect("accepts");
        let mut whole = whole.clone();
        tokio::spawn(async move {
            if !*whole.borrow() {
                return;
            }
            let mut far = TcpStream::connect(server).await.expect("connects");
            tokio::select! {
                // However it ends, both ends are closed.
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = whole.wait_for(|whole| !whole) => {}
            }
        });
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config {
            data: folder.path().to_owned(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            names: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            certificate: None,
            store: StoreConfig::Embedded,
            name: ServerName::new("s1").expect("a name"),
            rates: Rates::default(),
        };
        let agents: Arc<Mutex<Vec<HostName>>> = Arc::default();
        let (cable, whole) = watch::channel(true);
        let (cloud, url) = runtime.block_on(async {
            let server = Server::start(config).await.expect("starts");
            let cloud = Arc::clone(server.cloud());
            let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let url = format!("https://{}", port.local_addr().expect("an address"));
            tokio::spawn(join(port, server.address(), whole));
            tokio::spawn(server.run(std::future::pending()));
            furnish(&cloud).await;
            (cloud, url)
        });
        let (played, of) = (Arc::clone(&agents), Arc::clone(&cloud));
        let playing = runtime.spawn(async move {
            loop {
                let hosts = played.lock().expect("a lock").clone();
                obey(&of, &hosts).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self {
            runtime,
            cloud,
            acme: organization("acme"),
            region: region(),
            url,
            cable,
            agents,
            playing,
            _folder: folder,
        }
    }

    /// Break every connection between browser and server, and let none be made.
    pub(crate) fn cut(&self) {
        self.cable.send_replace(false);
    }

    /// Let connections be made again.
    pub(crate) fn mend(&self) {
        self.cable.send_replace(true);
    }

    /// Wait for what the cloud does.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The text of a new API key.
    pub(crate) fn key(&self, organization_name: &str, role: Role) -> String {
        let spec = ApiKeySpec { name: "test".to_owned(), role, expires_at: None };
        let name = organization(organization_name);
        let made = self.wait(self.cloud.create_key(&name, spec, Role::Operator));
        made.expect("made").1.reveal().to_owned()
    }

    /// A host whose agent was not heard of yet.
    pub(crate) fn silent_host(&self, name: &str, pod: &str) -> HostName {
        let host = HostName::new(name).expect("a name");
        self.wait(self.cloud.take_inventory(&self.region, &host, inventory(pod))).expect("taken");
        host
    }

    /// Many hosts, whose agents were heard of once.
    pub(crate) fn hosts(&self, count: usize, pod: impl Fn(usize) -> String) {
        let one = async |number: usize| {
            let host = HostName::new(&format!("h{number:04}")).expect("a name");
            let report = inventory(&pod(number));
            self.cloud.take_inventory(&self.region, &host, report).await.expect("taken");
            self.cloud.heartbeat(&self.region, &host, "test").await.expect("alive");
        };
        self.wait(futures_util::future::join_all((0..count).map(one)));
    }

    /// The same, with an agent that obeys.
    pub(crate) fn host(&self, name: &str, pod: &str) {
        let host = self.silent_host(name, pod);
        self.wait(obey(&self.cloud, std::slice::from_ref(&host)));
        self.agents.lock().expect("a lock").push(host);
    }

    /// An environment of acme's.
    pub(crate) fn environment(&self, name: &str) -> Environment {
        let spec = json!({"name": name, "region": "north"});
        self.wait(self.cloud.create_environment(&self.acme, from(spec), None)).expect("made")
    }

    /// A VM of acme's; gives back its id.
    pub(crate) fn vm(&self, environment: &Environment, name: &str) -> u64 {
        let spec = json!({"name": name, "environment": environment.id, "flavor": "small",
            "image": "guest"});
        self.wait(self.cloud.create_vm(&self.acme, from(spec), None)).expect("made").id
    }

    /// A browser that has signed in.
    pub(crate) fn signed_in(&self, organization: &str, role: Role) -> Browser {
        let browser = Browser::start();
        browser.open(&self.url);
        browser.fill("API key", &self.key(organization, role));
        browser.press("Sign in");
        browser.until("document.querySelector('.live.good')");
        browser
    }

    /// Go to one of the console's pages.
    pub(crate) fn visit(&self, browser: &Browser, page: &str) {
        browser.open(&format!("{}/#/{page}", self.url));
    }
}
