//! The software NIC's control socket: one JSON object a line, a request and its answer.
//!
//! [`Client`] is the far end and implements [`Hardware`], so that whoever owns VFs speaks to a
//! software NIC as to any other back end. Requests are bounded in size, connections in number, and
//! both ends in time: a client that stalls costs one thread for a few seconds, never the NIC.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lanekeeper_hw::{Hardware, HardwareError, PfStatus, vf_range};
use lanekeeper_model::{PfId, SoftNicName, VfChange, VfCounters, VfIndex, VfStatus};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::roce::RoceReport;
use crate::threads;

/// Name of the socket in a NIC's folder.
pub const SOCKET_NAME: &str = "control.sock";
/// Longest request or answer, in bytes: 64 VFs with every counter stay far below.
const MAX_LINE: u64 = 1 << 20;
/// How long either end waits for the other.
const DEADLINE: Duration = Duration::from_secs(5);
/// Connections served at once.
const MAX_CONNECTIONS: usize = 32;
/// How long to wait when the system is short of what a connection takes.
const BETWEEN_FAILURES: Duration = Duration::from_millis(50);

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
    /// What was seen of RoCE.
    Roce,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer<T> {
    Ok(T),
    Error(String),
}

/// Answer requests as long as `wait` says that another connection is there, not that the NIC stops.
pub(crate) fn serve<H: Hardware + 'static>(
    listener: &UnixListener,
    pf: &PfId,
    hardware: &Arc<H>,
    roce: &Arc<impl Fn() -> RoceReport + Send + Sync + 'static>,
    wait: impl Fn() -> bool,
) {
    let open = Arc::new(AtomicUsize::new(0));
    while wait() {
        let taken = listener.accept().and_then(|(stream, _)| {
            let turn = Turn::take(&open);
            if turn.is_none() {
                return turn_away(&stream);
            }
            let (pf, hardware, roce) = (pf.clone(), Arc::clone(hardware), Arc::clone(roce));
            threads::spawn("control-client", move || {
                let _turn = turn;
                if let Err(error) = converse(&stream, &pf, &*hardware, &*roce) {
                    tracing::debug!(%error, "control connection ended");
                }
            })
            .map(drop)
        });
        if let Err(error) = taken {
            // Descriptors, threads or memory are short, and may be there again in a moment.
            tracing::warn!(%error, "cannot serve a control connection");
            std::thread::sleep(BETWEEN_FAILURES);
        }
    }
}

/// One of the connections that are served at once.
struct Turn(Arc<AtomicUsize>);

impl Turn {
    /// `None` when there is none left.
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let turn = Self(Arc::clone(open));
        (open.fetch_add(1, Ordering::AcqRel) < MAX_CONNECTIONS).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Say that there are too many connections, without waiting for whoever asks.
fn turn_away(mut stream: &UnixStream) -> std::io::Result<()> {
    let busy = format!(
        "busy: {MAX_CONNECTIONS} requests are being answered or waited for; try again in a few \
         seconds"
    );
    stream.set_nonblocking(true)?;
    // Who is gone already needs no answer.
    let _ = stream.write_all((encode::<()>(Err(busy)) + "\n").as_bytes());
    Ok(())
}

fn converse(
    stream: &UnixStream,
    pf: &PfId,
    hardware: &dyn Hardware,
    roce: &dyn Fn() -> RoceReport,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(Timed::new(stream, DEADLINE));
    while let Some(line) = read_line(&mut reader)? {
        let mut answer = respond(&line, pf, hardware, roce);
        answer.push('\n');
        Timed::new(stream, DEADLINE).write_all(answer.as_bytes())?;
        reader.get_mut().restart(DEADLINE);
    }
    Ok(())
}

/// A connection over which a whole message must pass in time, not only its next byte.
struct Timed<'s> {
    stream: &'s UnixStream,
    until: Instant,
}

impl<'s> Timed<'s> {
    fn new(stream: &'s UnixStream, within: Duration) -> Self {
        Self { stream, until: Instant::now() + within }
    }

    fn restart(&mut self, within: Duration) {
        self.until = Instant::now() + within;
    }

    /// What is left of the time, which is not nothing.
    fn left(&self) -> std::io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(std::io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// The answer to one request line; whatever the line holds, there is one.
pub fn respond(
    line: &str,
    pf: &PfId,
    hardware: &dyn Hardware,
    roce: &dyn Fn() -> RoceReport,
) -> String {
    let request = match serde_json::from_str::<Request>(line) {
        Ok(request) => request,
        Err(error) => return encode::<()>(Err(format!("not a request: {error}"))),
    };
    match request {
        Request::Pf => encode(
            hardware
                .pfs()
                .map_err(|error| reason(&error))
                .and_then(|mut pfs| pfs.pop().ok_or_else(|| "no PF".to_owned())),
        ),
        Request::Vf { vf } => encode(hardware.vf(pf, vf).map_err(|error| reason(&error))),
        Request::SetVf { vf, change } => {
            encode(hardware.set_vf(pf, vf, &change).map_err(|error| reason(&error)))
        }
        Request::Counters { vf } => {
            encode(hardware.counters(pf, vf).map_err(|error| reason(&error)))
        }
        Request::Roce => encode(Ok(roce())),
    }
}

/// Why a request was refused, without the PF: the far end knows whom it asked, and says it.
fn reason(error: &HardwareError) -> String {
    match error {
        HardwareError::NoVf { vf, num_vfs, .. } => {
            format!("there is no VF {vf}; it has {}", vf_range(*num_vfs))
        }
        HardwareError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
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
        return Err(Error::new(ErrorKind::InvalidData, "line cut or too long"));
    }
    Ok(Some(line))
}

/// Software NICs of this host, reached through their control sockets.
#[derive(Clone, Debug)]
pub struct Client {
    nics: Vec<(SoftNicName, PathBuf)>,
}

impl Client {
    /// The NIC of this name, whose folder this is. Each request asks first whether it is.
    pub fn for_run_dir(name: SoftNicName, run_dir: &Path) -> Self {
        Self { nics: vec![(name, run_dir.to_owned())] }
    }

    /// The NIC whose folder this is, by the name that it says itself.
    ///
    /// # Errors
    /// What keeps it from answering: [`ErrorKind::NotFound`] where none runs,
    /// [`ErrorKind::ConnectionRefused`] where one was killed, [`ErrorKind::WouldBlock`] where one
    /// hangs, [`ErrorKind::PermissionDenied`] for who may not ask.
    pub fn at(run_dir: &Path) -> std::io::Result<Self> {
        let answer = Connection::open(run_dir)?.ask::<PfStatus>(&Request::Pf)?;
        match answer.map_err(Error::other)?.pf {
            PfId::Soft(name) => Ok(Self::for_run_dir(name, run_dir)),
            other @ PfId::Pci(_) => {
                let problem = format!("{} answers as {other}", run_dir.display());
                Err(Error::new(ErrorKind::InvalidData, problem))
            }
        }
    }

    /// Every NIC with a folder under `root`, by the folder's name.
    ///
    /// # Errors
    /// When `root` exists but cannot be read.
    pub fn discover(root: &Path) -> std::io::Result<Self> {
        let named = |dir: PathBuf| {
            Some((dir.file_name()?.to_string_lossy().parse::<SoftNicName>().ok()?, dir))
        };
        Ok(Self { nics: folders(root)?.into_iter().filter_map(named).collect() })
    }

    /// The NICs this client knows of.
    pub fn names(&self) -> impl Iterator<Item = &SoftNicName> {
        self.nics.iter().map(|(name, _)| name)
    }

    /// Whether the NIC of this name answers.
    pub fn is_running(&self, name: &SoftNicName) -> bool {
        self.pf(name).is_ok()
    }

    /// What the PF of this NIC says, without asking any other.
    ///
    /// # Errors
    /// Those of [`Hardware::pfs`].
    pub fn pf(&self, name: &SoftNicName) -> Result<PfStatus, HardwareError> {
        self.ask(&PfId::Soft(name.clone()), &Request::Pf)
    }

    /// What a NIC has seen of RoCE.
    ///
    /// # Errors
    /// Those of [`Hardware::pfs`].
    pub fn roce(&self, name: &SoftNicName) -> Result<RoceReport, HardwareError> {
        self.ask(&PfId::Soft(name.clone()), &Request::Roce)
    }

    fn ask<T: DeserializeOwned>(&self, pf: &PfId, request: &Request) -> Result<T, HardwareError> {
        let dir = match pf {
            PfId::Soft(name) => self.nics.iter().find(|(known, _)| known == name),
            PfId::Pci(_) => None,
        };
        let (_, dir) = dir.ok_or_else(|| HardwareError::NoPf(pf.clone()))?;
        let failed = |source: Error| match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                HardwareError::Deadline { pf: pf.clone(), after: DEADLINE }
            }
            _ => HardwareError::Io { pf: pf.clone(), source },
        };
        let refused = |message| HardwareError::Refused { pf: pf.clone(), message };
        let mut connection = Connection::open(dir).map_err(failed)?;
        // A folder's name is no proof: its NIC may have been given another one.
        let there: PfStatus = connection.ask(&Request::Pf).map_err(failed)?.map_err(refused)?;
        if there.pf != *pf {
            let problem = format!("the NIC of {} is {}", dir.display(), there.pf);
            return Err(failed(Error::new(ErrorKind::InvalidInput, problem)));
        }
        connection.ask(request).map_err(failed)?.map_err(refused)
    }
}

/// Folders under `root` in which a NIC has its control socket, and those that may not be looked
/// into, sorted.
///
/// # Errors
/// When `root` exists but cannot be read.
pub fn folders(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let folder = entry?.path();
        match std::fs::symlink_metadata(folder.join(SOCKET_NAME)) {
            Err(error) if error.kind() != ErrorKind::PermissionDenied => {}
            _ => folders.push(folder),
        }
    }
    folders.sort();
    Ok(folders)
}

/// One line to one NIC: what is asked over it is answered by the same process.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn open(run_dir: &Path) -> std::io::Result<Self> {
        let kind = SocketType::STREAM;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        // It holds for connecting, too: a process that was stopped accepts nobody.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(DEADLINE))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(DEADLINE))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(run_dir.join(SOCKET_NAME))?)?;
        Ok(Self(BufReader::new(UnixStream::from(socket))))
    }

    /// The answer, or the NIC's reason to refuse.
    fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
    ) -> std::io::Result<Result<T, String>> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        match self.0.get_mut().write_all(line.as_bytes()) {
            // A NIC that is busy answers before it is asked, and hangs up.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
        let line = read_line(&mut self.0)?
            .ok_or_else(|| Error::new(ErrorKind::UnexpectedEof, "the NIC closed the connection"))?;
        match serde_json::from_str(&line).map_err(Error::other)? {
            Answer::Ok(value) => Ok(Ok(value)),
            Answer::Error(message) => Ok(Err(message)),
        }
    }
}

impl Hardware for Client {
    fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError> {
        self.names().map(|name| self.pf(name)).collect()
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
