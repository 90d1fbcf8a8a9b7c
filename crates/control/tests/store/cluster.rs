//! An etcd cluster of three members on loopback, whose members can be killed and started again.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lanekeeper_control::store::{Etcd, EtcdConfig};
use lanekeeper_testbed::{etcd, guest_image, silent};

/// How long a cluster may take to have a leader.
const START: Duration = Duration::from_secs(60);

struct Member {
    arguments: Vec<String>,
    log: PathBuf,
    client: String,
    process: Option<Child>,
}

/// Three members, killed when this is dropped.
pub(crate) struct Cluster {
    program: PathBuf,
    members: Vec<Member>,
    _home: tempfile::TempDir,
}

/// So many free ports: all are held until each is known.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    held.iter().map(|listener| listener.local_addr().expect("bound").port()).collect()
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let program = etcd::program(&guest_image::cache_folder(), &mut silent).expect("etcd");
        let home = tempfile::tempdir().expect("a folder");
        let ports = free_ports(6);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let name = |n: usize| format!("m{n}");
        let peers: Vec<String> =
            (0..3).map(|n| format!("{}={}", name(n), url(ports[3 + n]))).collect();
        let members = (0..3).map(|n| {
            let arguments = [
                ("--name", name(n)),
                ("--data-dir", home.path().join(name(n)).display().to_string()),
                ("--listen-client-urls", url(ports[n])),
                ("--advertise-client-urls", url(ports[n])),
                ("--listen-peer-urls", url(ports[3 + n])),
                ("--initial-advertise-peer-urls", url(ports[3 + n])),
                ("--initial-cluster", peers.join(",")),
                ("--initial-cluster-token", home.path().display().to_string()),
            ];
            let arguments = arguments.map(|(flag, value)| [flag.to_owned(), value]);
            let log = home.path().join(format!("{}.log", name(n)));
            let arguments = arguments.into_iter().flatten().collect();
            Member { arguments, log, client: url(ports[n]), process: None }
        });
        let mut cluster = Self { program, members: members.collect(), _home: home };
        for n in 0..3 {
            cluster.run(n);
        }
        cluster.connect().await;
        cluster
    }

    /// Under setpriv a member dies with this test, however that ends.
    pub(crate) fn run(&mut self, n: usize) {
        let member = &mut self.members[n];
        let log = std::fs::File::create(&member.log).expect("a log");
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .args(&member.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().expect("the log")))
            .stderr(Stdio::from(log))
            .spawn()
            .expect("etcd starts");
        member.process = Some(process);
    }

    pub(crate) fn kill(&mut self, n: usize) {
        if let Some(mut process) = self.members[n].process.take() {
            process.kill().expect("killed");
            process.wait().expect("dead");
        }
    }

    /// Where members serve clients.
    pub(crate) fn clients(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client.clone()).collect()
    }

    pub(crate) async fn connect(&self) -> Etcd {
        let ends = Instant::now() + START;
        loop {
            let config = EtcdConfig { endpoints: self.clients(), root: "/lanekeeper".to_owned() };
            match Etcd::connect(config).await {
                Ok(etcd) => return etcd,
                Err(error) => assert!(Instant::now() < ends, "{error}\n{}", self.logs()),
            }
        }
    }

    fn logs(&self) -> String {
        let last = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        };
        self.members.iter().map(|member| last(&member.log)).collect::<Vec<_>>().join("\n\n")
    }

    /// Which member leads the cluster, as the members themselves say.
    pub(crate) async fn leader(&self) -> usize {
        for (n, member) in self.members.iter().enumerate() {
            if member.process.is_none() {
                continue;
            }
            let Ok(mut client) = etcd_client::Client::connect([&member.client], None).await else {
                continue;
            };
            let Ok(status) = client.status().await else { continue };
            let own = status.header().map(etcd_client::ResponseHeader::member_id);
            if own == Some(status.leader()) {
                return n;
            }
        }
        panic!("no member leads\n{}", self.logs());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..3 {
            self.kill(n);
        }
    }
}
