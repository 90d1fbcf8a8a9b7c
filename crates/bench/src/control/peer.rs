//! The peer: OpenStack Placement from PyPI on `SQLite`, served by waitress. It is asked for what it can
//! be asked for: a VM with a GPU and a VF on one host. That both hang off one PCIe switch, which rail
//! the VF is on, and how full a leaf group is are nothing that it knows of.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lanekeeper_control::claims::Ask;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::Request;

use super::cloud::Cloud;
use super::fleet::{GPUS, HOST, PFS, VFS};
use crate::process::{Running, free_ports, tool};
use crate::{BenchError, Stop};

/// Folder of its virtual environment in the cache; raise the number when it is made in another way.
const FOLDER: &str = "placement-1";
/// Made last in that folder.
const COMPLETE: &str = "complete";
/// Processes that serve, each with one thread: Python runs one thread at a time.
const SERVERS: usize = 2;
/// The newest microversion that what is asked here needs (consumer types).
const MICROVERSION: &str = "placement 1.38";
/// An answer may take so long: of 10,000 hosts of nine providers, half a minute.
const ANSWER: Duration = Duration::from_secs(300);
/// Times that something is tried when another was quicker.
const TRIES: usize = 10;
/// Another was quicker, or has the database locked.
const AGAIN: [u16; 3] = [409, 500, 503];
const SCRIPT: &str = include_str!("hosts.py");

/// The programs, installed.
#[derive(Clone, Debug)]
pub struct Program {
    python: String,
    /// Versions of Placement and of what it runs on.
    pub version: String,
}

/// How a host is told to Placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One provider with all of it: the least that does.
    Flat,
    /// A provider for the host and one below it for each PF, as neutron and nova report them.
    Nested,
}

impl Shape {
    /// In the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "Placement, 1 provider a host",
            Self::Nested => "Placement, 9 providers a host",
        }
    }
}

/// Install it with pip into a virtual environment in `cache`, if it is not there.
///
/// # Errors
/// No Python with `venv`, or pip cannot install it.
pub fn install(cache: &Path, logs: &Path, stop: &Stop) -> Result<Program, BenchError> {
    fs::create_dir_all(cache).map_err(BenchError::io(cache.display()))?;
    let lock = cache.join("placement.lock");
    let lock = File::create(&lock).map_err(BenchError::io(lock.display()))?;
    lock.lock().map_err(BenchError::io("placement.lock"))?;
    let folder = cache.join(FOLDER);
    let python = folder.join("bin/python").display().to_string();
    if !folder.join(COMPLETE).exists() {
        eprintln!("placement: installing openstack-placement into {} (once)", folder.display());
        let minutes = Duration::from_secs(600);
        let place = folder.display().to_string();
        let make = ["python3", "-m", "venv", "--clear", &place];
        Running::start("venv", make, logs)?.finish(minutes, stop)?;
        let pip = [&python, "-m", "pip", "--disable-pip-version-check", "install"];
        let pip = pip.into_iter().chain(["openstack-placement", "waitress"]);
        Running::start("pip", pip, logs)?.finish(minutes, stop)?;
        File::create(folder.join(COMPLETE)).map_err(BenchError::io(folder.display()))?;
    }
    let versions = "import platform, sqlite3; from importlib.metadata import version as v; \
                    print(f\"{v('openstack-placement')}, SQLAlchemy {v('SQLAlchemy')}, SQLite \
                    {sqlite3.sqlite_version}, waitress {v('waitress')}, Python \
                    {platform.python_version()}\")";
    let version = tool(&python, ["-c", versions])?.trim().to_owned();
    Ok(Program { python, version })
}

/// One Placement with its database; ends when dropped.
#[derive(Debug)]
pub struct Placement {
    program: Program,
    shape: Shape,
    folder: PathBuf,
    /// Where it answers.
    pub client: Client,
    _servers: Vec<Running>,
}

impl Placement {
    /// Make a database with one host in `folder`, and serve it.
    ///
    /// # Errors
    /// It does not start, or does not take the host.
    pub fn start(
        program: &Program,
        shape: Shape,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self, BenchError> {
        let io = || BenchError::io(folder.display());
        fs::create_dir_all(folder).map_err(io())?;
        fs::write(folder.join("hosts.py"), SCRIPT).map_err(io())?;
        fs::write(folder.join("placement.conf"), configuration(folder)).map_err(io())?;
        let config = format!("OS_PLACEMENT_CONFIG_DIR={}", folder.display());
        let python = program.python.as_str();
        let manage = "from placement.cmd.manage import main; main()";
        let file = folder.join("placement.conf").display().to_string();
        let sync = [python, "-c", manage, "--config-file", &file, "db", "sync"];
        Running::start("db-sync", sync, folder)?.finish(Duration::from_secs(60), stop)?;
        let ports = free_ports(SERVERS)?;
        let urls: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let busy = urls.iter().map(|_| AtomicUsize::new(0)).collect();
        let agent =
            Agent::config_builder().http_status_as_error(false).timeout_global(Some(ANSWER));
        let agent = agent.build().into();
        let client =
            Client(Arc::new(Inner { urls, busy, agent, shape, again: AtomicUsize::new(0) }));
        let mut servers = Vec::new();
        // One after the other: each writes its traits into the database when it starts, and one that
        // finds it locked does not start.
        for (n, (port, url)) in ports.iter().zip(&client.0.urls).enumerate() {
            let listen = format!("--listen=127.0.0.1:{port}");
            let serve = ["env", &config, python, "-m", "waitress", &listen, "--threads=1"];
            let serve = serve.into_iter().chain(["placement.wsgi.api:application"]);
            let mut server = Running::start(&format!("placement{n}"), serve, folder)?;
            server.wait_for("its first answer", Duration::from_secs(60), stop, |_| {
                let answer = client.0.send(url, "GET", "/", None);
                Ok(answer.ok().filter(|(status, _)| *status == 200).map(drop))
            })?;
            servers.push(server);
        }
        client.0.first_host()?;
        let folder = folder.to_owned();
        Ok(Self { program: program.clone(), shape, folder, client, _servers: servers })
    }

    /// Let it have so many hosts, at least those that it has: copies of the first, by SQL, for the
    /// requests that its API wants for each take hours for 10,000.
    ///
    /// # Errors
    /// It does not know the last of them then.
    pub fn grow(&self, hosts: usize, stop: &Stop) -> Result<(), BenchError> {
        let script = self.folder.join("hosts.py").display().to_string();
        let database = database(&self.folder).display().to_string();
        let command = [&self.program.python, &script, &database, &hosts.to_string()];
        Running::start("hosts", command, &self.folder)?.finish(Duration::from_secs(300), stop)?;
        let last = hosts.saturating_sub(1);
        let path = match self.shape {
            Shape::Flat => format!("/resource_providers?name=h{last}"),
            Shape::Nested => format!("/resource_providers?name=h{last}_rail{}", PFS - 1),
        };
        let found = self.client.0.expect(&self.client.0.urls[0], "GET", &path, None, &[200])?;
        if found["resource_providers"].as_array().is_some_and(|found| found.len() == 1) {
            return Ok(());
        }
        Err(BenchError::Unexpected { what: path, got: found.to_string() })
    }
}

impl Client {
    /// How often it had to be asked again: another was quicker, or had the database locked.
    pub fn asked_again(&self) -> usize {
        self.0.again.load(Ordering::Relaxed)
    }
}

fn database(folder: &Path) -> PathBuf {
    folder.join("placement.sqlite")
}

/// Its own defaults, but: no keystone, no line of log for each request, and no schema update when each
/// of the two starts.
fn configuration(folder: &Path) -> String {
    format!(
        "[DEFAULT]\ndefault_log_levels = placement=WARNING\n[api]\nauth_strategy = noauth2\n\
         [placement_database]\nconnection = sqlite:///{}\nsync_on_startup = false\n",
        database(folder).display()
    )
}

/// A client of one Placement.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    urls: Vec<String>,
    /// Requests that each server has now.
    busy: Vec<AtomicUsize>,
    agent: Agent,
    shape: Shape,
    /// How often something had to be tried again.
    again: AtomicUsize,
}

impl Inner {
    fn send(
        &self,
        url: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, String), BenchError> {
        let failed = |said: String| BenchError::InProcess { what: "a request to Placement", said };
        let request = Request::builder()
            .method(method)
            .uri(format!("{url}{path}"))
            .header("X-Auth-Token", "admin")
            .header("OpenStack-API-Version", MICROVERSION)
            .header("Content-Type", "application/json");
        let answer = if let Some(body) = body {
            let request = request.body(body.to_string());
            self.agent.run(request.map_err(|error| failed(error.to_string()))?)
        } else {
            let request = request.body(());
            self.agent.run(request.map_err(|error| failed(error.to_string()))?)
        };
        let mut answer = answer.map_err(|error| failed(format!("{method} {path}: {error}")))?;
        let text = answer.body_mut().read_to_string();
        Ok((answer.status().as_u16(), text.map_err(|error| failed(error.to_string()))?))
    }

    /// Send, and take nothing but these statuses.
    fn expect(
        &self,
        url: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
        statuses: &[u16],
    ) -> Result<Value, BenchError> {
        let (status, text) = self.send(url, method, path, body)?;
        if statuses.contains(&status) {
            return Ok(serde_json::from_str(&text).unwrap_or(Value::Null));
        }
        let (what, got) = (format!("{method} {path} of Placement"), format!("{status} {text}"));
        Err(BenchError::Unexpected { what, got })
    }

    fn first_host(&self) -> Result<(), BenchError> {
        let mut inventories = json!({
            "VCPU": { "total": HOST.vcpus },
            "MEMORY_MB": { "total": HOST.ram_mib },
            "DISK_GB": { "total": HOST.disk_gib },
            "PGPU": { "total": GPUS },
        });
        let root = provider(0);
        if self.shape == Shape::Flat {
            inventories["SRIOV_NET_VF"] = json!({ "total": PFS * VFS });
        }
        self.add(&json!({ "name": "h0", "uuid": root }), &inventories)?;
        if self.shape == Shape::Nested {
            for pf in 0..PFS {
                let below = json!({ "name": format!("h0_rail{pf}"), "uuid": provider(1 + pf),
                                    "parent_provider_uuid": root });
                self.add(&below, &json!({ "SRIOV_NET_VF": { "total": VFS } }))?;
            }
        }
        Ok(())
    }

    fn add(&self, provider: &Value, inventories: &Value) -> Result<(), BenchError> {
        let url = &self.urls[0];
        self.expect(url, "POST", "/resource_providers", Some(provider), &[200])?;
        let uuid = provider["uuid"].as_str().unwrap_or_default();
        let path = format!("/resource_providers/{uuid}/inventories");
        let body = json!({ "resource_provider_generation": 0, "inventories": inventories });
        self.expect(url, "PUT", &path, Some(&body), &[200]).map(drop)
    }

    /// Run something with the server that has least to do.
    fn with_server<T>(&self, run: impl FnOnce(&str) -> T) -> T {
        let least = self.busy.iter().enumerate();
        let least = least.min_by_key(|(_, busy)| busy.load(Ordering::Relaxed));
        let n = least.map_or(0, |(n, _)| n);
        self.busy[n].fetch_add(1, Ordering::Relaxed);
        let result = run(&self.urls[n]);
        self.busy[n].fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// `GET /allocation_candidates`, then `PUT /allocations`, as nova-scheduler does. One candidate is
    /// asked for, the least work.
    fn claim(&self, url: &str, id: u64, ask: &Ask) -> Result<bool, BenchError> {
        let query = query(self.shape, ask)?;
        let path = format!("/allocations/{}", consumer(id));
        let claimed = self.until_done(|| {
            let candidates = self.expect(url, "GET", &query, None, &[200])?;
            let Some(first) = candidates["allocation_requests"].get(0) else {
                return Ok(Some(false));
            };
            let body = json!({
                "allocations": first["allocations"],
                "consumer_generation": null,
                "consumer_type": "INSTANCE",
                "project_id": ask.organization.as_str(),
                "user_id": ask.organization.as_str(),
            });
            Ok(self.write(url, "PUT", &path, Some(&body), &[204])?.then_some(true))
        })?;
        Ok(claimed.unwrap_or(false))
    }

    /// What is no longer there is free too: an attempt that failed late had done it. What every attempt
    /// failed to free stays claimed; its fleet has room enough.
    fn free(&self, url: &str, id: u64) -> Result<(), BenchError> {
        let path = format!("/allocations/{}", consumer(id));
        let delete = || Ok(self.write(url, "DELETE", &path, None, &[204, 404])?.then_some(()));
        self.until_done(delete).map(drop)
    }

    /// Whether it is written, as these statuses say; it is not if another was quicker.
    fn write(
        &self,
        url: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
        done: &[u16],
    ) -> Result<bool, BenchError> {
        let (status, text) = self.send(url, method, path, body)?;
        if done.contains(&status) || AGAIN.contains(&status) {
            return Ok(done.contains(&status));
        }
        let (what, got) = (format!("{method} {path} of Placement"), format!("{status} {text}"));
        Err(BenchError::Unexpected { what, got })
    }

    fn until_done<T>(
        &self,
        attempt: impl Fn() -> Result<Option<T>, BenchError>,
    ) -> Result<Option<T>, BenchError> {
        for _ in 0..TRIES {
            let done = attempt()?;
            if done.is_some() {
                return Ok(done);
            }
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        Ok(None)
    }
}

/// UUID of a provider of the first host; the first eight digits are the host's number.
fn provider(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012x}")
}

fn consumer(id: u64) -> String {
    format!("{:08x}-0000-4000-9000-{:012x}", id >> 32, id & 0xffff_ffff)
}

fn query(shape: Shape, ask: &Ask) -> Result<String, BenchError> {
    let request = &ask.request;
    let gpus = request.flavor.gpus.as_ref().map_or(0, |gpus| gpus.count);
    let vfs = request.flavor.vfs.as_ref().map_or(0, |vfs| vfs.count);
    if (request.vms, gpus, vfs) != (1, 1, 1) {
        let said =
            format!("{} VMs of {gpus} GPUs and {vfs} VFs; ask it for 1 of each", request.vms);
        return Err(BenchError::InProcess { what: "what Placement is asked for", said });
    }
    let scalars = request.flavor.scalars;
    let group = match shape {
        Shape::Flat => ",SRIOV_NET_VF:1",
        Shape::Nested => "&resources1=SRIOV_NET_VF:1",
    };
    Ok(format!(
        "/allocation_candidates?limit=1&resources=VCPU:{},MEMORY_MB:{},DISK_GB:{},PGPU:1{group}",
        scalars.vcpus, scalars.ram_mib, scalars.disk_gib
    ))
}

#[async_trait]
impl Cloud for Client {
    async fn place(&self, id: u64, ask: Ask) -> Result<bool, BenchError> {
        let own = Arc::clone(&self.0);
        in_thread(move || own.with_server(|url| own.claim(url, id, &ask))).await
    }

    async fn release(&self, id: u64) -> Result<(), BenchError> {
        let own = Arc::clone(&self.0);
        in_thread(move || own.with_server(|url| own.free(url, id))).await
    }
}

async fn in_thread<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, BenchError> + Send + 'static,
) -> Result<T, BenchError> {
    let failed = |said: String| BenchError::InProcess { what: "a request to Placement", said };
    tokio::task::spawn_blocking(run).await.map_err(|error| failed(error.to_string()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::fleet::{Dice, Mix};

    #[test]
    fn placement_is_asked_for_what_the_flavor_has() {
        let ask = Mix::Single.ask(&mut Dice(1)).expect("a request");
        let all = "limit=1&resources=VCPU:16,MEMORY_MB:131072,DISK_GB:500,PGPU:1";
        let flat = query(Shape::Flat, &ask).expect("a query");
        assert_eq!(flat, format!("/allocation_candidates?{all},SRIOV_NET_VF:1"));
        let nested = query(Shape::Nested, &ask).expect("a query");
        assert_eq!(nested, format!("/allocation_candidates?{all}&resources1=SRIOV_NET_VF:1"));
    }

    #[test]
    fn what_placement_cannot_be_asked_for_is_refused() {
        let mut ask = Mix::Single.ask(&mut Dice(1)).expect("a request");
        ask.request.vms = 8;
        let error = query(Shape::Flat, &ask).expect_err("a gang").to_string();
        assert!(error.contains("8 VMs of 1 GPUs and 1 VFs"), "{error}");
    }

    #[test]
    fn no_two_claims_are_one_consumer() {
        assert_ne!(consumer(1), consumer(1 << 32));
        assert_eq!(consumer(10).len(), 36);
    }
}
