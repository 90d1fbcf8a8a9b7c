//! Our software NIC under measurement: two VFs of one VLAN, with every policy that a VF can have.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lanekeeper_model::{Mbps, Mtu, SoftNicName, VfChange, VlanId, VlanTag};
use lanekeeper_softnic::Config;
use serde_json::Value;

use crate::peers::{Load, MACS};
use crate::process::{Running, Thread, tool};
use crate::{BenchError, Stop};

/// Name of the software NIC.
pub const NAME: &str = "bench";
/// Source of the frames that testpmd makes (RFC 2544 test addresses).
pub const SOURCE: [u8; 4] = [198, 18, 0, 1];
/// High enough to meter every frame and stop none.
const CEILING: Mbps = Mbps(1_000_000);

/// The NIC's configuration: its worker on the switch's core, and on each VF an administrative MAC,
/// an access VLAN, anti-spoof for MAC and IP address, a rate ceiling and an MTU.
///
/// # Errors
/// The load's frames are longer than the NIC carries.
pub fn config(load: &Load, folder: &Path) -> Result<Config, BenchError> {
    let wrong = |error: lanekeeper_model::ModelError| BenchError::Unexpected {
        what: "the software NIC's configuration".to_owned(),
        got: error.to_string(),
    };
    let name: SoftNicName = NAME.parse().map_err(wrong)?;
    let mut config = Config::new(name, MACS.len());
    config.cpus = vec![load.cores[0]];
    config.run_dir = Some(folder.to_owned());
    let mtu = load.length.saturating_sub(14).max(1_500);
    let mtu = Mtu::new(mtu as u32).map_err(wrong)?;
    let vlan = VlanTag { id: VlanId::new(5).map_err(wrong)?, ..VlanTag::default() };
    let mut vfs = BTreeMap::new();
    for (vf, mac) in MACS.into_iter().enumerate() {
        let change = VfChange {
            mac: Some(mac),
            vlan: Some(vlan.into()),
            addresses: Some(vec![SOURCE.into()]),
            max_rate: Some(CEILING),
            mtu: Some(mtu),
            ..VfChange::default()
        };
        vfs.insert(vf.to_string(), change);
    }
    config.vf = vfs;
    Ok(config)
}

/// `lanekeeper softnic` in a process of its own.
#[derive(Debug)]
pub struct SoftNic {
    process: Running,
    worker: Thread,
    program: PathBuf,
    folder: PathBuf,
}

impl SoftNic {
    /// Start it with `config`, whose folder is `folder`.
    ///
    /// # Errors
    /// It did not come up.
    pub fn start(
        program: &Path,
        config: &Config,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self, BenchError> {
        let file = folder.join("nic.toml");
        let text = toml::to_string(config).map_err(|error| BenchError::Unexpected {
            what: file.display().to_string(),
            got: error.to_string(),
        })?;
        fs::write(&file, text).map_err(BenchError::io(file.display()))?;
        let command = [program, Path::new("softnic"), Path::new("--config"), &file];
        let mut process = Running::start("softnic", command, folder)?;
        let worker = process.thread(&["worker"], stop)?;
        let socket = folder.join("vf1.sock");
        process.wait_for("its sockets", std::time::Duration::from_secs(10), stop, |_| {
            Ok(socket.exists().then_some(()))
        })?;
        let (program, folder) = (program.to_owned(), folder.to_owned());
        Ok(Self { process, worker, program, folder })
    }

    /// What `lanekeeper softnic show --json` says of its VFs.
    ///
    /// # Errors
    /// It does not answer.
    pub fn vfs(&self) -> Result<Vec<Value>, BenchError> {
        let folder = self.folder.display().to_string();
        let text = tool(
            &self.program.display().to_string(),
            ["softnic", "show", NAME, "--run-dir", &folder, "--json"],
        )?;
        let wrong = || BenchError::Unexpected { what: "softnic show".into(), got: text.clone() };
        let mut shown: Value = serde_json::from_str(&text).map_err(|_| wrong())?;
        match shown[0]["vfs"].take() {
            Value::Array(vfs) => Ok(vfs),
            _ => Err(wrong()),
        }
    }

    /// The process.
    pub fn process(&self) -> &Running {
        &self.process
    }

    /// The thread that moves frames.
    pub fn worker(&self) -> &Thread {
        &self.worker
    }
}
