//! DPDK's testpmd: as an independent virtio driver on our VFs, and as a peer that switches nothing.
//! It is told what to do through its console and asked what it saw through DPDK's telemetry socket.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lanekeeper_model::MacAddr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use serde_json::Value;

use crate::process::{Running, Thread};
use crate::{BenchError, Stop};

const PROMPT: &str = "testpmd> ";
const PATIENCE: Duration = Duration::from_secs(20);

/// How a virtqueue is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// Virtio 1.0 layout.
    Split,
    /// Virtio 1.1 layout.
    Packed,
}

impl Ring {
    /// Both, in the order in which they are reported.
    pub const ALL: [Self; 2] = [Self::Split, Self::Packed];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Packed => "packed",
        }
    }
}

/// Where DPDK takes its memory from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Huge pages, as a fast host would.
    Huge,
    /// Ordinary pages: needs no set-up, and about half as fast.
    Ordinary,
}

/// One port of a testpmd.
#[derive(Clone, Debug)]
pub enum Port {
    /// The device side: a vhost-user socket it listens on.
    Vhost {
        /// Where to listen.
        socket: PathBuf,
    },
    /// The driver side: a virtio-net driver in user space on somebody's vhost-user socket.
    VirtioUser {
        /// Where to connect.
        socket: PathBuf,
        /// Address of the port.
        mac: MacAddr,
        /// Ring layout to offer.
        ring: Ring,
    },
}

impl Port {
    /// The device argument that DPDK takes for it, as port `index` of its kind.
    pub fn device(&self, index: usize, ring_size: u16) -> String {
        match self {
            Self::Vhost { socket } => {
                format!("net_vhost{index},iface={},queues=1", socket.display())
            }
            Self::VirtioUser { socket, mac, ring } => format!(
                "net_virtio_user{index},path={},mac={mac},queues=1,queue_size={ring_size},\
                 packed_vq={},mrg_rxbuf=1,in_order=0",
                socket.display(),
                u8::from(*ring == Ring::Packed),
            ),
        }
    }
}

/// What a testpmd is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Name of the process in logs, and its DPDK file prefix.
    pub name: String,
    /// Core of the forwarding thread.
    pub core: usize,
    /// Cores on which its other threads may run.
    pub others: Vec<usize>,
    /// Where its memory comes from.
    pub memory: Memory,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Descriptors in each ring.
    pub ring_size: u16,
    /// testpmd's forwarding mode (`io`, `mac`, `rxonly`, ...).
    pub forward: String,
    /// Destination address of frames that leave each port, by port number.
    pub peers: Vec<MacAddr>,
}

/// Frames that one port has seen, as DPDK counts them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PortCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// A running testpmd with an open console.
#[derive(Debug)]
pub struct Testpmd {
    process: Running,
    worker: Thread,
    telemetry: PathBuf,
    stop: Stop,
}

impl Testpmd {
    /// Start it in `folder` and wait for its console.
    ///
    /// # Errors
    /// It could not be started or did not come up; the error carries the end of its output.
    pub fn start(setup: &Setup, folder: &Path, stop: &Stop) -> Result<Self, BenchError> {
        let mut process = Running::start(&setup.name, setup.command(), folder)?;
        process.wait_for("its console", PATIENCE, stop, |process| {
            Ok(process.output()?.contains(PROMPT).then_some(()))
        })?;
        let worker = process.thread(&["worker"], stop)?;
        let telemetry = folder.join("dpdk").join(&setup.name).join("dpdk_telemetry.v2");
        Ok(Self { process, worker, telemetry, stop: stop.clone() })
    }

    /// Type one line on its console and return what it answered.
    ///
    /// # Errors
    /// It ended or did not answer.
    pub fn command(&mut self, line: &str) -> Result<String, BenchError> {
        let before = self.process.output()?;
        let prompts = before.matches(PROMPT).count();
        if let Some(console) = self.process.stdin() {
            writeln!(console, "{line}").map_err(BenchError::io("testpmd's console"))?;
        }
        let whole = self.process.wait_for(line, PATIENCE, &self.stop, |process| {
            let output = process.output()?;
            Ok((output.matches(PROMPT).count() > prompts).then_some(output))
        })?;
        Ok(whole.get(before.len()..).unwrap_or_default().to_owned())
    }

    /// Set the length of the frames that it makes itself, in bytes without FCS. Long ones are laid
    /// over several of its 2 KiB buffers, as a guest with mergeable buffers lays them.
    ///
    /// # Errors
    /// As [`Testpmd::command`].
    pub fn set_frame_length(&mut self, length: usize) -> Result<(), BenchError> {
        let pieces = length.div_ceil(2_000);
        let each = length / pieces;
        let mut lengths = vec![each.to_string(); pieces - 1];
        lengths.push((length - each * (pieces - 1)).to_string());
        self.command(&format!("set txpkts {}", lengths.join(","))).map(drop)
    }

    /// Counters of one port.
    ///
    /// # Errors
    /// The telemetry socket does not answer, or not as DPDK documents it.
    pub fn counters(&self, port: usize) -> Result<PortCounters, BenchError> {
        let answer = self.ask(&format!("/ethdev/stats,{port}"))?;
        let field = |name: &str| {
            answer["/ethdev/stats"][name].as_u64().ok_or_else(|| BenchError::Unexpected {
                what: format!("telemetry field {name}"),
                got: answer.to_string(),
            })
        };
        Ok(PortCounters {
            rx_frames: field("ipackets")?,
            rx_bytes: field("ibytes")?,
            tx_frames: field("opackets")?,
            tx_bytes: field("obytes")?,
        })
    }

    /// Whether somebody is at the other end of one port.
    ///
    /// # Errors
    /// As [`Testpmd::counters`].
    pub fn link_up(&self, port: usize) -> Result<bool, BenchError> {
        Ok(self.ask(&format!("/ethdev/link_status,{port}"))?["/ethdev/link_status"]["status"]
            == "UP")
    }

    /// The thread that moves frames.
    pub fn worker(&self) -> &Thread {
        &self.worker
    }

    /// The process behind it.
    pub fn process(&self) -> &Running {
        &self.process
    }

    fn ask(&self, question: &str) -> Result<Value, BenchError> {
        let failed = |error: rustix::io::Errno| BenchError::Io {
            what: self.telemetry.display().to_string(),
            source: error.into(),
        };
        let line = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).map_err(failed)?;
        let address = SocketAddrUnix::new(&self.telemetry).map_err(failed)?;
        connect(&line, &address).map_err(failed)?;
        let mut buffer = vec![0; 16_384];
        // DPDK greets first, then answers (DPDK user guide, "Telemetry Library").
        recv(&line, &mut buffer, RecvFlags::empty()).map_err(failed)?;
        send(&line, question.as_bytes(), SendFlags::empty()).map_err(failed)?;
        let (length, _) = recv(&line, &mut buffer, RecvFlags::empty()).map_err(failed)?;
        serde_json::from_slice(&buffer[..length]).map_err(|error| BenchError::Unexpected {
            what: format!("telemetry answer to {question}"),
            got: error.to_string(),
        })
    }
}

impl Setup {
    fn command(&self) -> Vec<String> {
        let others = self.others.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let lcores = format!("0@({others}),1@{}", self.core);
        let mut line: Vec<String> =
            ["stdbuf", "-oL", "dpdk-testpmd", "--lcores", &lcores, "--no-pci", "--iova-mode=va"]
                .map(str::to_owned)
                .into();
        // One file for all memory: a vhost-user front end may name eight regions at most.
        line.extend(["--single-file-segments", "-m", "256"].map(str::to_owned));
        line.push(
            match self.memory {
                Memory::Huge => "--in-memory",
                Memory::Ordinary => "--no-huge",
            }
            .to_owned(),
        );
        line.push(format!("--file-prefix={}", self.name));
        let mut vhosts = 0;
        let mut virtios = 0;
        for port in &self.ports {
            let index = match port {
                Port::Vhost { .. } => &mut vhosts,
                Port::VirtioUser { .. } => &mut virtios,
            };
            line.extend(["--vdev".to_owned(), port.device(*index, self.ring_size)]);
            *index += 1;
        }
        line.extend(["--", "-i", "--nb-cores=1", "--total-num-mbufs=16384"].map(str::to_owned));
        line.push(format!("--forward-mode={}", self.forward));
        line.push(format!("--rxd={}", self.ring_size));
        line.push(format!("--txd={}", self.ring_size));
        for (port, mac) in self.peers.iter().enumerate() {
            line.push(format!("--eth-peer={port},{mac}"));
        }
        line
    }
}
