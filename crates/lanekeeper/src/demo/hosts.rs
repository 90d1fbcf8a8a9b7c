//! The two emulated hosts and the software NIC of each.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lanekeeper_softnic::{Client, Config};
use lanekeeper_testbed::netns::{Lab, Namespace};

use super::DemoError;
use super::plan::{self, BRIDGE, BRIDGE_CABLE, CABLE_MTU, HOSTS, MTU, UPLINK, VMS};
use super::process::{self, Heard, Process};
use super::residue::Site;

/// How long a software NIC may take until it answers.
const NIC_PATIENCE: Duration = Duration::from_secs(20);

/// Make both hosts: a namespace each, a cable between the software NICs, a bridge with the taps of
/// the VMs, and a cable between the bridges. They stand until [`Site::remove`].
///
/// # Errors
/// [`DemoError::Network`].
pub(super) fn build(site: &Site) -> Result<[Namespace; 2], DemoError> {
    site.make(|| {
        let (lab, hosts) = cabled(site)?;
        let [one, two] = &hosts;
        lab.cable((one, BRIDGE_CABLE), (two, BRIDGE_CABLE), MTU.into())?;
        for host in &hosts {
            host.add_bridge(BRIDGE, MTU.into())?;
            host.ip(&["link", "set", BRIDGE_CABLE, "master", BRIDGE])?;
        }
        for vm in &VMS {
            hosts[vm.host].add_tap(&vm.tap(), BRIDGE, MTU.into())?;
        }
        lab.keep();
        Ok(hosts)
    })
}

/// Make both hosts with nothing but the cable between the software NICs. They stand until
/// [`Site::remove`].
///
/// # Errors
/// [`DemoError::Network`].
pub(super) fn build_bare(site: &Site) -> Result<[Namespace; 2], DemoError> {
    site.make(|| {
        let (lab, hosts) = cabled(site)?;
        lab.keep();
        Ok(hosts)
    })
}

fn cabled(site: &Site) -> Result<(Lab, [Namespace; 2]), DemoError> {
    let mut lab = Lab::named(site.prefix());
    let hosts = [lab.namespace(HOSTS[0])?, lab.namespace(HOSTS[1])?];
    let [one, two] = &hosts;
    lab.cable((one, UPLINK), (two, UPLINK), CABLE_MTU)?;
    Ok((lab, hosts))
}

/// A software NIC that runs in a host's namespace.
pub(super) struct NicProcess {
    process: Process,
    host: usize,
}

impl NicProcess {
    /// Start a host's NIC from this very program and wait until it answers.
    ///
    /// # Errors
    /// [`DemoError::Process`] with the end of its log.
    pub(super) fn start(
        site: &Site,
        host: usize,
        namespace: &Namespace,
        config: &Config,
    ) -> Result<Self, DemoError> {
        let text = toml::to_string(config).map_err(|error| DemoError::plan(&error))?;
        let file = site.folder().join(format!("{}.toml", config.name));
        let log = site.folder().join(format!("{}.log", config.name));
        fs::write(&file, text).map_err(|error| DemoError::file(&file, error))?;
        let mut command = namespace.command(&process::program()?.to_string_lossy());
        command.args(["softnic", "--config"]).arg(&file);
        let what = format!("software NIC of {}", HOSTS[host]);
        let process = Process::start(site, &what, log, Heard::Complaints, command)?;
        let mut nic = Self { process, host };
        nic.await_answer(&Client::for_run_dir(config.name.clone(), &config.run_dir()))?;
        Ok(nic)
    }

    fn await_answer(&mut self, client: &Client) -> Result<(), DemoError> {
        let name = plan::nic_name(self.host)?;
        let deadline = Instant::now() + NIC_PATIENCE;
        while !client.is_running(&name) {
            self.still_runs()?;
            if Instant::now() >= deadline {
                return Err(self.process.failed(format!("did not answer after {NIC_PATIENCE:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// # Errors
    /// [`DemoError::Process`] when it has ended.
    pub(super) fn still_runs(&mut self) -> Result<(), DemoError> {
        self.process.still_runs()
    }
}

/// The folder with one folder for each software NIC.
pub(super) fn nics_folder(site: &Site) -> PathBuf {
    site.folder().join("nics")
}
