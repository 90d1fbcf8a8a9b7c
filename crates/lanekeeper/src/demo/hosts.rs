//! The two emulated hosts and the software NIC of each.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use lanekeeper_softnic::{Client, Config};
use lanekeeper_testbed::netns::{Lab, Namespace};

use super::DemoError;
use super::plan::{self, BRIDGE, BRIDGE_CABLE, CABLE_MTU, HOSTS, MTU, UPLINK, VMS};
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
    child: Child,
    log: PathBuf,
    host: usize,
}

impl NicProcess {
    /// Start a host's NIC from this very program and wait until it answers.
    ///
    /// # Errors
    /// [`DemoError::Nic`] with the end of its log.
    pub(super) fn start(
        site: &Site,
        host: usize,
        namespace: &Namespace,
        config: &Config,
    ) -> Result<Self, DemoError> {
        let text = toml::to_string(config).map_err(|error| DemoError::plan(&error))?;
        let file = site.folder().join(format!("{}.toml", config.name));
        let log = site.folder().join(format!("{}.log", config.name));
        let written = |path: &Path, error| DemoError::file(path, error);
        fs::write(&file, text).map_err(|error| written(&file, error))?;
        let output = File::create(&log).map_err(|error| written(&log, error))?;
        let program = std::env::current_exe().map_err(|error| written(Path::new("self"), error))?;
        let child = site.make(|| {
            namespace
                .command(&program.to_string_lossy())
                .args(["softnic", "--config"])
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(output)
                // A Ctrl-C on the terminal is for the demo, which then ends the NIC itself.
                .process_group(0)
                .spawn()
                .map_err(|error| DemoError::file(&program, error))
        })?;
        let mut nic = Self { child, log, host };
        nic.await_answer(&Client::for_run_dir(config.name.clone(), &config.run_dir()))?;
        Ok(nic)
    }

    fn await_answer(&mut self, client: &Client) -> Result<(), DemoError> {
        let name = plan::nic_name(self.host)?;
        let deadline = Instant::now() + NIC_PATIENCE;
        while !client.is_running(&name) {
            self.still_runs()?;
            if Instant::now() >= deadline {
                return Err(self.failed(format!("did not answer after {NIC_PATIENCE:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// # Errors
    /// [`DemoError::Nic`] when the process has ended.
    pub(super) fn still_runs(&mut self) -> Result<(), DemoError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failed(format!("ended: {status}"))),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    fn failed(&self, why: String) -> DemoError {
        DemoError::Nic { host: HOSTS[self.host], why, log: tail(&self.log) }
    }
}

/// The folder with one folder for each software NIC.
pub(super) fn nics_folder(site: &Site) -> PathBuf {
    site.folder().join("nics")
}

/// The last lines of a log, for an error.
pub(super) fn tail(log: &Path) -> String {
    const LINES: usize = 15;
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n  ");
    if last.is_empty() {
        format!("{} is empty", log.display())
    } else {
        format!("{}:\n  {last}", log.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_shown_and_a_missing_one_is_said() {
        let log = std::env::temp_dir().join(format!("lane-log-{}", std::process::id()));
        let lines: Vec<String> = (0..40).map(|line| format!("line {line}\n\n")).collect();
        fs::write(&log, lines.concat()).expect("written");
        let shown = tail(&log);
        assert!(shown.contains("line 39") && !shown.contains("line 20"), "{shown}");
        fs::remove_file(&log).expect("removed");
        assert!(tail(&log).ends_with("is empty"));
    }
}
