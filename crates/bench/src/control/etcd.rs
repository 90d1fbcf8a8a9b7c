//! An etcd cluster of three members on loopback: Debian's server with its defaults, which put every
//! transaction on the disk of a majority before it is answered.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lanekeeper_testbed::{etcd, guest_image};

use super::server::Place;
use crate::machine::resident;
use crate::process::{Running, free_ports, tool};
use crate::{BenchError, Stop};

/// How long a cluster may take to have a leader.
const START: Duration = Duration::from_secs(60);

const MEMBERS: usize = 3;

/// Three members; killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Running>,
    clients: Vec<String>,
    /// Where the first one keeps its data.
    data: PathBuf,
}

fn program() -> Result<PathBuf, BenchError> {
    let mut progress = |text: &str| eprintln!("etcd: {text}");
    etcd::program(&guest_image::cache_folder(), &mut progress)
        .map_err(|error| BenchError::InProcess { what: "etcd", said: error.to_string() })
}

impl Etcd {
    /// What `etcd --version` says of itself.
    ///
    /// # Errors
    /// There is no etcd.
    pub fn version() -> Result<String, BenchError> {
        let text = tool(&program()?.display().to_string(), ["--version"])?;
        let first = text.lines().next().unwrap_or_default();
        Ok(first.trim_start_matches("etcd Version: ").to_owned())
    }

    /// Start the members with their data in `folder`, and wait until they have a leader.
    ///
    /// # Errors
    /// They do not start.
    pub fn start(folder: &Path, stop: &Stop) -> Result<Self, BenchError> {
        std::fs::create_dir_all(folder).map_err(BenchError::io(folder.display()))?;
        let program = program()?.display().to_string();
        let ports = free_ports(2 * MEMBERS)?;
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (clients, peers) = ports.split_at(MEMBERS);
        let cluster = peers.iter().enumerate().map(|(n, port)| format!("m{n}={}", url(*port)));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        let data = |n: usize| folder.join(format!("m{n}"));
        let mut members = Vec::new();
        for (n, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let arguments = [
                ("--name", format!("m{n}")),
                ("--data-dir", data(n).display().to_string()),
                ("--listen-client-urls", url(*client)),
                ("--advertise-client-urls", url(*client)),
                ("--listen-peer-urls", url(*peer)),
                ("--initial-advertise-peer-urls", url(*peer)),
                ("--initial-cluster", cluster.clone()),
                ("--initial-cluster-token", folder.display().to_string()),
            ];
            let arguments =
                arguments.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
            let command = std::iter::once(program.clone()).chain(arguments);
            members.push(Running::start(&format!("m{n}"), command, folder)?);
        }
        let clients = clients.iter().map(|port| url(*port)).collect();
        let cluster = Self { members, clients, data: data(0) };
        cluster.wait_for_leader(stop)?;
        Ok(cluster)
    }

    fn wait_for_leader(&self, stop: &Stop) -> Result<(), BenchError> {
        let runtime = super::load::runtime()?;
        let ends = Instant::now() + START;
        loop {
            match runtime.block_on(self.place().open()) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > ends => return Err(error),
                Err(_) => stop.sleep(Duration::from_millis(100))?,
            }
        }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place::etcd(self.clients.clone())
    }

    /// Its members, as URLs.
    pub fn members(&self) -> &[String] {
        &self.clients
    }

    /// Its processes.
    pub fn processes(&self) -> Vec<u32> {
        self.members.iter().map(Running::id).collect()
    }

    /// The file of the first member's database; its log beside it is not in it.
    pub fn database(&self) -> PathBuf {
        self.data.join("member/snap/db")
    }

    /// Memory of the member that has most, in KiB.
    ///
    /// # Errors
    /// A member is gone.
    pub fn resident(&self) -> Result<u64, BenchError> {
        let each = self.members.iter().map(|member| resident(member.id()));
        Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0))
    }
}
