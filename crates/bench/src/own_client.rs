//! The lightest client: our own virtio driver on two VFs of any vhost-user switch. It sends on each
//! as many frames as it received on the other and looks at none, so that more of what is measured
//! is the switch. DPDK's driver costs as much as a switch does, and hides a quick one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lanekeeper_softnic::driver::{TxFrame, VfDriver, VfOptions};
use lanekeeper_softnic::ring::RingKind;

use crate::core_distance::pin;
use crate::peers::{Client, Load, MACS};
use crate::process::Thread;
use crate::softnic;
use crate::testpmd::Ring;
use crate::{BenchError, Stop};

/// Bytes of a virtio-net header (virtio 1.2, 5.1.6).
const NET_HEADER: usize = 12;
/// Bytes of a receive buffer, as DPDK's are by default.
const BUFFER: u32 = 2_048;

/// A thread that circulates frames whenever it is not paused.
#[derive(Debug)]
pub struct OwnClient {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), BenchError>>>,
    worker: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    /// Kernel's number of the thread, once it runs.
    id: AtomicU32,
    wanted: AtomicBool,
    running: AtomicBool,
    ended: AtomicBool,
    received: [AtomicU64; 2],
}

impl OwnClient {
    /// Connect a driver to each socket; no frame is sent yet.
    ///
    /// # Errors
    /// A socket does not answer, or not with the features asked for.
    pub fn start(sockets: &[PathBuf; 2], load: &Load, stop: &Stop) -> Result<Self, BenchError> {
        let vfs = connect(sockets, load)?;
        let shared = Arc::new(Shared::default());
        let (theirs, load) = (Arc::clone(&shared), load.clone());
        let thread = std::thread::Builder::new()
            .name("own-client".to_owned())
            .spawn(move || circulate(&theirs, vfs, &load))
            .map_err(BenchError::io("a thread"))?;
        let mut client = Self {
            shared,
            thread: Some(thread),
            worker: Thread { process: std::process::id(), id: 0, name: "own-client".to_owned() },
        };
        while client.worker.id == 0 {
            stop.sleep(Duration::from_millis(1))?;
            client.worker.id = client.shared.id.load(Ordering::Acquire);
        }
        Ok(client)
    }

    fn set_running(&self, wanted: bool) -> Result<(), BenchError> {
        self.shared.wanted.store(wanted, Ordering::Release);
        let Some(thread) = &self.thread else { return Ok(()) };
        thread.thread().unpark();
        while self.shared.running.load(Ordering::Acquire) != wanted {
            if thread.is_finished() {
                return Err(in_process("circulate")("the client has ended"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl Client for OwnClient {
    fn begin(&mut self, _bursts: u32) -> Result<(), BenchError> {
        self.set_running(true)
    }

    fn resume(&self) -> Result<(), BenchError> {
        self.set_running(true)
    }

    fn pause(&self) -> Result<(), BenchError> {
        self.set_running(false)
    }

    fn received(&self) -> Result<[u64; 2], BenchError> {
        Ok([0, 1].map(|vf: usize| self.shared.received[vf].load(Ordering::Relaxed)))
    }

    fn worker(&self) -> &Thread {
        &self.worker
    }

    fn prioritise(&self) -> Result<(), BenchError> {
        self.worker.real_time(1)
    }
}

impl Drop for OwnClient {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("own client: {error}"),
                Err(_) => eprintln!("own client: it panicked"),
            }
        }
    }
}

fn circulate(shared: &Shared, mut vfs: [VfDriver; 2], load: &Load) -> Result<(), BenchError> {
    pin(load.cores[1])?;
    let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    shared.id.store(id, Ordering::Release);
    let mut begun = false;
    while !shared.ended.load(Ordering::Acquire) {
        if !shared.wanted.load(Ordering::Acquire) {
            shared.running.store(false, Ordering::Release);
            std::thread::park();
            continue;
        }
        if !begun {
            for vf in &mut vfs {
                send(vf, load.length, load.bursts as usize * 32)?;
            }
            begun = true;
        }
        shared.running.store(true, Ordering::Release);
        for _ in 0..64 {
            for from in [0, 1] {
                let received = forward(&mut vfs, from, load.length)? as u64;
                let counter = &shared.received[from];
                counter.store(counter.load(Ordering::Relaxed) + received, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// A driver on each of two VFs.
///
/// # Errors
/// As [`OwnClient::start`].
pub fn connect(sockets: &[PathBuf; 2], load: &Load) -> Result<[VfDriver; 2], BenchError> {
    Ok([driver(&sockets[0], 0, load)?, driver(&sockets[1], 1, load)?])
}

/// A driver on one VF, set up as DPDK's is, but that a long frame is one
/// buffer and not several.
fn driver(socket: &Path, vf: usize, load: &Load) -> Result<VfDriver, BenchError> {
    let whole_frame = (load.length + NET_HEADER).next_multiple_of(64) as u32;
    let buffer_size = whole_frame.max(BUFFER);
    let options = VfOptions {
        kind: match load.ring {
            Ring::Split => RingKind::Split,
            Ring::Packed => RingKind::Packed,
        },
        size: load.ring_size,
        event_idx: false,
        buffer_size,
        // As many bytes on offer as a ring of DPDK's 2 KiB buffers, so that neither has less to
        // fit into the caches.
        rx_buffers: Some((u32::from(load.ring_size) * BUFFER / buffer_size) as u16),
        hugepages: true,
        patience: Duration::from_secs(5),
        ..VfOptions::default()
    };
    let mut driver = VfDriver::connect(socket, options).map_err(in_process("connect a driver"))?;
    let frame = frame(vf, load.length);
    driver.prepare(0, &TxFrame::plain(&frame)).map_err(in_process("prepare frames"))?;
    Ok(driver)
}

/// The frame that testpmd makes: IPv4 and UDP between the RFC 2544 test addresses. Its checksums
/// are left out: a switch does not look at them.
fn frame(vf: usize, length: usize) -> Vec<u8> {
    let mut frame = [MACS[1 - vf].0, MACS[vf].0].concat();
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((length.saturating_sub(14) as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(softnic::SOURCE);
    frame.extend([198, 18, 0, 2]);
    frame.resize(length, 0);
    frame
}

/// Take up to 32 frames of one VF and send as many on the other; how many there were.
///
/// # Errors
/// The device misbehaves, or the other VF's ring has no room.
#[inline]
pub fn forward(vfs: &mut [VfDriver; 2], from: usize, length: usize) -> Result<usize, BenchError> {
    let received = vfs[from].receive(0, 32, |_, _| ()).map_err(in_process("receive"))?;
    if received > 0 {
        send(&mut vfs[1 - from], length, received)?;
    }
    Ok(received)
}

/// Send frames of one VF to the other.
///
/// # Errors
/// The ring has no room for all of them.
#[inline]
pub fn send(vf: &mut VfDriver, length: usize, count: usize) -> Result<(), BenchError> {
    match vf.send_prepared(0, length, count).map_err(in_process("send"))? {
        sent if sent == count => Ok(()),
        sent => Err(in_process("send")(format!("room for {sent} frames of {count}"))),
    }
}

/// Name what was done when something of the software NIC refused.
pub fn in_process<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| BenchError::InProcess { what, said: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_goes_from_its_vf_to_the_other() {
        let frame = frame(1, 64);
        assert_eq!(frame.len(), 64);
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        assert_eq!(frame[26..30], softnic::SOURCE);
    }
}
