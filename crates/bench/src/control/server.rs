//! A server's store in each of its two forms: opened, filled with hosts, weighed; and started anew in a
//! process of its own, which tells how long it takes until it places, and how much memory it has then.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_control::claims::Claims;
use lanekeeper_control::keys;
use lanekeeper_control::store::{Embedded, Store, StoreError, Transaction};
use serde::{Deserialize, Serialize};

use super::cloud::Cloud;
use super::fleet::{Dice, Mix, host, inventory, region};
use crate::machine::resident;
use crate::process::Running;
use crate::{BenchError, Stop};

/// Hosts that are written by one transaction.
const AT_ONCE: usize = 100;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(120);

/// The command of this program that [`serve`] is behind.
pub const COMMAND: &str = "control-server";

/// Where a store is.
#[derive(clap::Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Place {
    /// The directory of an embedded store.
    #[arg(long)]
    embedded: Option<PathBuf>,
    /// The members of etcd, as URLs.
    #[arg(long, value_delimiter = ',')]
    etcd: Vec<String>,
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::InProcess { what: "the store", said: error.to_string() }
}

impl Place {
    /// A directory.
    pub fn embedded(directory: &Path) -> Self {
        Self { embedded: Some(directory.to_owned()), etcd: Vec::new() }
    }

    /// The members of etcd.
    pub fn etcd(members: Vec<String>) -> Self {
        Self { embedded: None, etcd: members }
    }

    /// Open the store.
    ///
    /// # Errors
    /// It cannot be opened, or this program was built without etcd.
    pub async fn open(&self) -> Result<Arc<dyn Store>, BenchError> {
        match &self.embedded {
            Some(directory) => Ok(Arc::new(Embedded::open(directory).map_err(failed)?)),
            None => Ok(open_etcd(self.etcd.clone()).await.map_err(failed)?),
        }
    }

    fn arguments(&self) -> [String; 2] {
        match &self.embedded {
            Some(directory) => ["--embedded".to_owned(), directory.display().to_string()],
            None => ["--etcd".to_owned(), self.etcd.join(",")],
        }
    }
}

#[cfg(feature = "etcd")]
async fn open_etcd(endpoints: Vec<String>) -> Result<Arc<dyn Store>, StoreError> {
    use lanekeeper_control::store::{Etcd, EtcdConfig};
    Ok(Arc::new(Etcd::connect(EtcdConfig { endpoints, root: "/lanekeeper".to_owned() }).await?))
}

#[cfg(not(feature = "etcd"))]
#[expect(clippy::unused_async, reason = "as the other one is")]
async fn open_etcd(_: Vec<String>) -> Result<Arc<dyn Store>, StoreError> {
    let why = "this program was built without etcd; build it with --features etcd";
    Err(StoreError::Unavailable(why.to_owned()))
}

/// Write what so many hosts report.
///
/// # Errors
/// The store does not take it, or it is time to end.
pub async fn write_hosts(store: &dyn Store, hosts: usize, stop: &Stop) -> Result<(), BenchError> {
    let region = region()?;
    for first in (0..hosts).step_by(AT_ONCE) {
        if let Some(reason) = stop.reason() {
            return Err(reason);
        }
        let mut transaction = Transaction::new();
        for n in first..hosts.min(first + AT_ONCE) {
            let value = serde_json::to_vec(&inventory(n)?).map_err(failed)?;
            transaction = transaction.put(keys::host(&region, &host(n)?), value);
        }
        store.commit(transaction).await.map_err(failed)?;
    }
    Ok(())
}

/// What a server needed to start: from the begin of its work to each of these.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The store was open, or connected to.
    pub opened: Duration,
    /// All hosts and claims were read.
    pub loaded: Duration,
    /// A VM was placed, and that on disk.
    pub placed: Duration,
    /// Its memory then (`VmRSS`), in KiB.
    pub resident: u64,
}

/// Be a server: start, place a VM, free it, print a [`Start`], and stay until standard input ends.
///
/// # Errors
/// The store cannot be opened or read, or there is no room.
pub fn serve(place: &Place) -> Result<(), BenchError> {
    let begun = Instant::now();
    let runtime = super::load::runtime()?;
    runtime.block_on(async {
        let store = place.open().await?;
        let opened = begun.elapsed();
        let claims = Claims::open(store, region()?).await.map_err(failed)?;
        let loaded = begun.elapsed();
        let id = u64::MAX;
        if !Cloud::place(&claims, id, Mix::Single.ask(&mut Dice(1))?).await? {
            return Err(failed("no room for one VM more"));
        }
        let placed = begun.elapsed();
        let start = Start { opened, loaded, placed, resident: resident(std::process::id())? };
        Cloud::release(&claims, id).await?;
        let text = serde_json::to_string(&start).map_err(failed)?;
        let written = writeln!(std::io::stdout().lock(), "{text}");
        written.map_err(BenchError::io("standard output"))?;
        // As a server that was not told to end: the store stays open.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        Ok(())
    })
}

/// Start a server on a store, and kill it once it has placed.
///
/// # Errors
/// It did not start.
pub fn start(place: &Place, folder: &Path, stop: &Stop) -> Result<Start, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::io("this program"))?;
    let program = program.display().to_string();
    let [flag, value] = place.arguments();
    let command = [program, COMMAND.to_owned(), flag, value];
    let mut server = Running::start("server", command, folder)?;
    let started = server.wait_for("its first placement", START, stop, |server| {
        let output = server.output()?;
        Ok(output.lines().find_map(|line| serde_json::from_str(line).ok()))
    })?;
    server.kill()?;
    Ok(started)
}
