//! The server and the agents of the demo: this very program, each a process of its own that ends with
//! the demo.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lanekeeper_control::keys::{FabricName, PfName};
use lanekeeper_model::Mbps;
use lanekeeper_node::{Membership, NicLabels, NodeConfig};

use super::super::DemoError;
use super::super::hosts::nics_folder;
use super::super::plan;
use super::super::process::{self, Heard, Process};
use super::super::residue::Site;
use super::host_folder;

/// How long a server may take until it serves.
const SERVER_PATIENCE: Duration = Duration::from_secs(30);
/// What all hosts are cabled to.
pub(super) const FABRIC: &str = "demo";
/// What a host gives to VMs: an emulated CPU is only as much as there is time for.
const VCPUS: u32 = 8;
const RAM_MIB: u64 = 2048;
const DISK_GIB: u64 = 10;
/// What a NIC is said to carry; nothing measures by it.
const RATE: Mbps = Mbps(100_000);

/// Start this program, in a way that it ends with the demo.
fn start(
    site: &Site,
    what: &str,
    log: PathBuf,
    arguments: impl FnOnce(&mut Command),
) -> Result<Process, DemoError> {
    let mut command = Command::new(process::program()?);
    arguments(&mut command);
    site.mark(&mut command);
    Process::start(site, what, log, Heard::All, command)
}

/// The server.
pub(super) struct Server {
    process: Process,
    at: ServerAt,
}

/// Where the server is, and what whoever speaks to it needs.
#[derive(Clone)]
pub(super) struct ServerAt {
    /// Its data directory.
    pub(super) data: PathBuf,
    pub(super) url: String,
}

impl Server {
    /// Start it on a free port of this machine's loopback, and wait until it serves.
    ///
    /// # Errors
    /// [`DemoError::Process`] with the end of its log.
    pub(super) fn start(site: &Site) -> Result<Self, DemoError> {
        let data = site.folder().join("server");
        let mut process = start(site, "server", site.folder().join("server.log"), |command| {
            command.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
        })?;
        let end = Instant::now() + SERVER_PATIENCE;
        loop {
            let said = fs::read_to_string(process.log()).unwrap_or_default();
            // All that it says at its start is there with the last line.
            if said.contains("operator.key\n")
                && let Some(url) = said.lines().find_map(|line| line.strip_prefix("serving "))
            {
                let at = ServerAt { url: url.to_owned(), data };
                return Ok(Self { process, at });
            }
            process.still_runs()?;
            if Instant::now() >= end {
                return Err(process.failed(format!("does not serve after {SERVER_PATIENCE:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// # Errors
    /// [`DemoError::Process`] when it has ended.
    pub(super) fn still_runs(&mut self) -> Result<(), DemoError> {
        self.process.still_runs()
    }

    pub(super) fn at(&self) -> &ServerAt {
        &self.at
    }
}

impl ServerAt {
    /// The certificate that its own is checked by.
    ///
    /// # Errors
    /// [`DemoError::File`].
    pub(super) fn authority(&self) -> Result<String, DemoError> {
        read(&self.data.join("authority.crt"))
    }

    /// The first operator's API key.
    ///
    /// # Errors
    /// [`DemoError::File`].
    pub(super) fn operator_key(&self) -> Result<String, DemoError> {
        Ok(read(&self.data.join("operator.key"))?.trim().to_owned())
    }
}

fn read(file: &Path) -> Result<String, DemoError> {
    fs::read_to_string(file).map_err(|error| DemoError::file(file, error))
}

/// The agent of a host.
pub(super) struct AgentProcess(Process);

impl AgentProcess {
    /// Enrol a host with its token, and start its agent.
    ///
    /// # Errors
    /// [`DemoError::Node`] if the server refuses; [`DemoError::File`].
    pub(super) fn start(
        site: &Site,
        host: usize,
        server: &ServerAt,
        token: &str,
    ) -> Result<Self, DemoError> {
        let folder = host_folder(site, host);
        let config = config(site, host, &folder)?;
        let text = toml::to_string(&config).map_err(|error| DemoError::plan(&error))?;
        let file = folder.join("node.toml");
        fs::write(&file, text).map_err(|error| DemoError::file(&file, error))?;
        Membership::enrol(&config.state_folder, &server.url, Some(server.authority()?), token)?;
        let what = format!("agent of {}", plan::HOSTS[host]);
        start(site, &what, folder.join("agent.log"), |command| {
            command.args(["agent", "vms", "--config"]).arg(&file);
        })
        .map(Self)
    }

    /// # Errors
    /// [`DemoError::Process`] when it has ended.
    pub(super) fn still_runs(&mut self) -> Result<(), DemoError> {
        self.0.still_runs()
    }
}

/// A host's configuration, with its folders made. It knows its own NIC alone.
fn config(site: &Site, host: usize, folder: &Path) -> Result<NodeConfig, DemoError> {
    let nics = folder.join("nics");
    fs::create_dir_all(&nics).map_err(|error| DemoError::file(&nics, error))?;
    let name = plan::nic_name(host)?;
    let (link, own) = (nics.join(name.as_str()), nics_folder(site).join(name.as_str()));
    symlink(own, &link).map_err(|error| DemoError::file(&link, error))?;
    let fabric = FabricName::new(FABRIC).map_err(|error| DemoError::plan(&error))?;
    let pf = PfName::new(name.as_str()).map_err(|error| DemoError::plan(&error))?;
    let labels = NicLabels { rail: Some(0), rate: RATE, ..NicLabels::default() };
    Ok(NodeConfig {
        state_folder: folder.join("state"),
        run_folder: folder.join("run"),
        image_folder: folder.join("images"),
        nic_folder: nics,
        nics: [(pf, labels)].into(),
        vcpus: Some(VCPUS),
        vcpus_per_core: VCPUS,
        ram_mib: Some(RAM_MIB),
        disk_gib: Some(DISK_GIB),
        hugepages: false,
        ..NodeConfig::new(fabric)
    })
}
