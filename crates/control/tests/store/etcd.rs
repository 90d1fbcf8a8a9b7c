//! The contract on etcd: a cluster of three members on loopback, then with members killed while
//! workers count, and while a leader leads.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_control::store::{Etcd, EtcdConfig, Outcome, Store, Transaction};
use lanekeeper_testbed::{etcd, guest_image, silent};

use crate::{cases, election, key, put, workload};

/// How long a cluster may take to have a leader.
const START: Duration = Duration::from_secs(60);

struct Member {
    arguments: Vec<String>,
    log: PathBuf,
    client: String,
    process: Option<Child>,
}

/// Three members, killed when this is dropped.
struct Cluster {
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
    async fn start() -> Self {
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
    fn run(&mut self, n: usize) {
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

    fn kill(&mut self, n: usize) {
        if let Some(mut process) = self.members[n].process.take() {
            process.kill().expect("killed");
            process.wait().expect("dead");
        }
    }

    async fn connect(&self) -> Etcd {
        let ends = Instant::now() + START;
        loop {
            let endpoints = self.members.iter().map(|member| member.client.clone()).collect();
            let config = EtcdConfig { endpoints, root: "/lanekeeper".to_owned() };
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
    async fn leader(&self) -> usize {
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

#[tokio::test(flavor = "multi_thread")]
async fn each_promise_holds_on_three_members() {
    let cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    for (name, case) in cases::ALL {
        println!("{name}");
        case(Arc::clone(&store)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_count_is_lost_when_the_leader_and_then_a_follower_are_killed() {
    let mut cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    let counting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { workload::count(&store, "deaths", 12, 150).await })
    };
    for kill_leader in [true, false] {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let leader = cluster.leader().await;
        let victim = if kill_leader { leader } else { (leader + 1) % 3 };
        cluster.kill(victim);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!counting.is_finished(), "it ended while a member was dead");
        cluster.run(victim);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let done = counting.await.expect("they end");
    workload::judge(&store, "deaths", &done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_when_its_member_is_killed() {
    let mut cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    let a = key("moves", "a");
    let start = put(&*store, &a, "start").await;
    let mut watch = store.watch(a.clone().into(), start).await.expect("a watch");
    put(&*store, &a, "before").await;
    let told = watch.next().await.expect("a batch").revision;
    // The first endpoint is favoured while it answers: the watch is there.
    cluster.kill(0);
    let later = loop {
        if let Ok(Outcome::Committed(revision)) =
            store.commit(Transaction::new().put(a.clone(), "after")).await
        {
            break revision;
        }
    };
    let next = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let batch = watch.next().await.expect("a batch");
            if batch.revision == later {
                return batch;
            }
        }
    });
    assert!(next.await.expect("in time").revision > told);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leader_a_duty_while_etcds_own_leader_is_killed() {
    let mut cluster = Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    let (first, second) =
        (election::stand(&store, "sweep", "s1"), election::stand(&store, "sweep", "s2"));
    let leading = first.campaign().await.expect("elected");
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let waiting = tokio::time::timeout(Duration::from_secs(60), second.campaign());
    let fenced = leading.fence(Transaction::new().put(key("duty", "a"), "by the first"));
    drop(leading);
    let following = waiting.await.expect("in time").expect("elected");
    let late = store.commit(fenced).await.expect("an answer");
    assert!(matches!(late, Outcome::Conflict { .. }), "{late:?}");
    following.resign().await.expect("resigned");
}
