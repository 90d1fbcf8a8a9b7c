//! A server as a process of its own, which can be killed: this very program.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lanekeeper_control::api::{Rate, Rates};
use lanekeeper_control::keys::ServerName;
use lanekeeper_control::server::{Config, Server, StoreConfig};
use lanekeeper_control::store::EtcdConfig;

/// What the child is told: its data directory, its name, and the members of etcd.
const DATA: &str = "LANEKEEPER_TEST_DATA";
const NAME: &str = "LANEKEEPER_TEST_NAME";
const ETCD: &str = "LANEKEEPER_TEST_ETCD";
/// Under which all is kept.
pub(crate) const ROOT: &str = "/lanekeeper";

/// A server that runs; it is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) data: PathBuf,
    pub(crate) url: String,
    child: Child,
}

impl Process {
    /// Start one, and wait until it serves.
    pub(crate) fn start(data: &Path, name: &str, etcd: &[String]) -> Self {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["server::the_process_that_is_killed", "--exact", "--ignored", "--nocapture"])
            .env(DATA, data)
            .env(NAME, name)
            .env(ETCD, etcd.join(","))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let address = lines.find_map(|line| {
            let line = line.expect("text");
            // libtest has begun the line with the test's name.
            line.split_once("serving ").map(|(_, address)| address.to_owned())
        });
        // Whatever else libtest says must have somewhere to go.
        std::thread::spawn(move || lines.for_each(drop));
        let url = format!("https://{}", address.expect("it serves"));
        Self { name: name.to_owned(), data: data.to_owned(), url, child }
    }

    pub(crate) fn kill(&mut self) {
        // It may have been killed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the child of the tests"]
async fn the_process_that_is_killed() {
    let variable = |name| std::env::var(name);
    let (Ok(data), Ok(name), Ok(etcd)) = (variable(DATA), variable(NAME), variable(ETCD)) else {
        return;
    };
    let endpoints = etcd.split(',').map(str::to_owned).collect();
    let rate = Rate { per_second: 1e9, burst: 1e9 };
    let server = Server::start(Config {
        data: data.into(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        names: vec!["127.0.0.1".to_owned()],
        certificate: None,
        store: StoreConfig::Etcd(EtcdConfig { endpoints, root: ROOT.to_owned() }),
        name: ServerName::new(&name).expect("a name"),
        rates: Rates { callers: rate, strangers: rate, public: rate },
    })
    .await
    .expect("a server");
    println!("serving {}", server.address());
    server.run(std::future::pending()).await.expect("it serves until it is killed");
}
