//! The software NIC's control socket: one JSON object a line, a request and its answer.
//!
//! [`Client`] is the far end and implements [`Hardware`], so that whoever owns VFs speaks to a
//! software NIC as to any other back end. Requests are bounded in size, connections in number, and
//! both ends in time: a client that stalls costs one thread for a few seconds, never the NIC.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{PfId, SoftNicName, VfChange, VfCounters, VfIndex, VfStatus};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Name of the socket in a NIC's folder.
pub const SOCKET_NAME: &str = "control.sock";
/// Longest request or answer, in bytes: 64 VFs with every counter stay far below.
const MAX_LINE: u64 = 1 << 20;
/// How long either end waits for the other.
const DEADLINE: Duration = Duration::from_secs(5);
/// Connections served at once.
const MAX_CONNECTIONS: usize = 32;

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The PF.
    Pf,
    /// One VF.
    Vf {
        /// Which.
        vf: VfIndex,
    },
    /// Change one VF.
    SetVf {
        /// Which.
        vf: VfIndex,
        /// How.
        change: VfChange,
    },
    /// Counters of one VF.
    Counters {
        /// Which.
        vf: VfIndex,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer<T> {
    Ok(T),
    Error(String),
}

/// Answer requests until the NIC stops (its listener is then shut down).
pub(crate) fn serve<H: Hardware + 'static>(
    listener: &UnixListener,
    pf: &PfId,
    hardware: &Arc<H>,
    stopping: impl Fn() -> bool,
) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if stopping() {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            open.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (open, pf, hardware) = (Arc::clone(&open), pf.clone(), Arc::clone(hardware));
        std::thread::spawn(move || {
            if let Err(error) = converse(&stream, &pf, &*hardware) {
                tracing::debug!(%error, "control connection ended");
            }
            open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

fn converse(stream: &UnixStream, pf: &PfId, hardware: &dyn Hardware) -> std::io::Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let mut reader = BufReader::new(stream);
    while let Some(line) = read_line(&mut reader)? {
        let mut answer = respond(&line, pf, hardware);
        answer.push('\n');
        (&*stream).write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// The answer to one request line; whatever the line holds, there is one.
pub fn respond(line: &str, pf: &PfId, hardware: &dyn Hardware) -> String {
    let request = match serde_json::from_str::<Request>(line) {
        Ok(request) => request,
        Err(error) => return encode::<()>(Err(format!("not a request: {error}"))),
    };
    match request {
        Request::Pf => encode(
            hardware
                .pfs()
                .map_err(|error| error.to_string())
                .and_then(|mut pfs| pfs.pop().ok_or_else(|| "no PF".to_owned())),
        ),
        Request::Vf { vf } => encode(hardware.vf(pf, vf).map_err(|error| error.to_string())),
        Request::SetVf { vf, change } => {
            encode(hardware.set_vf(pf, vf, &change).map_err(|error| error.to_string()))
        }
        Request::Counters { vf } => {
            encode(hardware.counters(pf, vf).map_err(|error| error.to_string()))
        }
    }
}

fn encode<T: Serialize>(result: Result<T, String>) -> String {
    let answer = match result {
        Ok(value) => Answer::Ok(value),
        Err(message) => Answer::Error(message),
    };
    serde_json::to_string(&answer).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

fn read_line(reader: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    if reader.take(MAX_LINE).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    if !line.ends_with('\n') {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "line cut or too long"));
    }
    Ok(Some(line))
}

/// Software NICs of this host, reached through their control sockets.
#[derive(Clone, Debug)]
pub struct Client {
    nics: Vec<(SoftNicName, PathBuf)>,
}

impl Client {
    /// The NIC whose folder this is.
    pub fn for_run_dir(name: SoftNicName, run_dir: &Path) -> Self {
        Self { nics: vec![(name, run_dir.join(SOCKET_NAME))] }
    }

    /// Every NIC with a folder under `root`, by name.
    ///
    /// # Errors
    /// When `root` exists but cannot be read.
    pub fn discover(root: &Path) -> std::io::Result<Self> {
        let entries = match std::fs::read_dir(root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { nics: Vec::new() });
            }
            Err(error) => return Err(error),
        };
        let mut nics = Vec::new();
        for entry in entries {
            let entry = entry?;
            let socket = entry.path().join(SOCKET_NAME);
            if let (Ok(name), true) = (entry.file_name().to_string_lossy().parse(), socket.exists())
            {
                nics.push((name, socket));
            }
        }
        nics.sort();
        Ok(Self { nics })
    }

    /// The NICs this client knows of.
    pub fn names(&self) -> impl Iterator<Item = &SoftNicName> {
        self.nics.iter().map(|(name, _)| name)
    }

    /// Whether the NIC of this name answers.
    pub fn is_running(&self, name: &SoftNicName) -> bool {
        self.ask::<PfStatus>(&PfId::Soft(name.clone()), &Request::Pf).is_ok()
    }

    fn ask<T: DeserializeOwned>(&self, pf: &PfId, request: &Request) -> Result<T, HardwareError> {
        let socket = match pf {
            PfId::Soft(name) => self.nics.iter().find(|(known, _)| known == name),
            PfId::Pci(_) => None,
        };
        let (_, socket) = socket.ok_or_else(|| HardwareError::NoPf(pf.clone()))?;
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                HardwareError::Deadline { pf: pf.clone(), after: DEADLINE }
            }
            _ => HardwareError::Io { pf: pf.clone(), source },
        };
        let line = exchange(socket, request).map_err(failed)?;
        match serde_json::from_str(&line) {
            Ok(Answer::Ok(value)) => Ok(value),
            Ok(Answer::Error(message)) => Err(HardwareError::Refused { pf: pf.clone(), message }),
            Err(error) => Err(failed(std::io::Error::other(error))),
        }
    }
}

fn exchange(socket: &Path, request: &Request) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    read_line(&mut BufReader::new(&stream))?.ok_or_else(|| {
        std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the NIC closed the connection")
    })
}

impl Hardware for Client {
    fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError> {
        self.nics
            .iter()
            .map(|(name, _)| self.ask(&PfId::Soft(name.clone()), &Request::Pf))
            .collect()
    }

    fn vf(&self, pf: &PfId, vf: VfIndex) -> Result<VfStatus, HardwareError> {
        self.ask(pf, &Request::Vf { vf })
    }

    fn set_vf(&self, pf: &PfId, vf: VfIndex, change: &VfChange) -> Result<VfStatus, HardwareError> {
        self.ask(pf, &Request::SetVf { vf, change: change.clone() })
    }

    fn counters(&self, pf: &PfId, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        self.ask(pf, &Request::Counters { vf })
    }
}
