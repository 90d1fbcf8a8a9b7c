//! Driver and device on one thread of one core: no cache line crosses cores, so the distance
//! between them does not matter and figures repeat. What is measured is the work of both ends.

use std::path::Path;
use std::time::{Duration, Instant};

use lanekeeper_model::VfIndex;
use lanekeeper_softnic::driver::{TxFrame, VfDriver, VfOptions};
use lanekeeper_softnic::ring::RingKind;
use lanekeeper_softnic::{Nic, Worker};

use crate::core_distance::pin;
use crate::machine::AboveAll;
use crate::peers::{Load, MACS};
use crate::softnic;
use crate::testpmd::{Memory, Port, Ring, Setup, Testpmd};
use crate::two_cores::Effort;
use crate::window::Spread;
use crate::{BenchError, Stop};

/// Bytes of a virtio-net header (virtio 1.2, 5.1.6).
const NET_HEADER: usize = 12;
/// Bytes of a receive buffer, as DPDK's are by default.
const BUFFER: u32 = 2_048;

/// Frames per second that crossed DPDK's vhost library (`io`: no address is looked at) and DPDK's
/// virtio driver, with both in one testpmd.
///
/// # Errors
/// It did not come up or stopped passing frames, or the user asked to stop.
pub fn dpdk(load: &Load, effort: Effort, folder: &Path, stop: &Stop) -> Result<Spread, BenchError> {
    let folder = folder.join("one-core");
    std::fs::create_dir_all(&folder).map_err(BenchError::io(folder.display()))?;
    let sockets = [folder.join("vf0"), folder.join("vf1")];
    let setup = Setup {
        name: "both".to_owned(),
        core: load.cores[0],
        others: load.cores.to_vec(),
        memory: Memory::Huge,
        ports: sockets.iter().map(|socket| Port::Vhost { socket: socket.clone() }).collect(),
        ring_size: load.ring_size,
        forward: "io".to_owned(),
        peers: Vec::new(),
    };
    let mut both = Testpmd::start(&setup, &folder, stop)?;
    for (index, socket) in sockets.into_iter().enumerate() {
        let port = Port::VirtioUser { socket, mac: MACS[index], ring: load.ring };
        both.command(&format!("port attach {}", port.device(index, load.ring_size)))?;
        both.command(&format!("port start {}", index + 2))?;
    }
    both.set_frame_length(load.length)?;
    both.command("set portlist 0,1,2,3")?;
    both.command(&format!("start tx_first {}", load.bursts))?;
    both.process().pause()?;
    both.process().prioritise(both.worker())?;
    let _above = AboveAll::raise()?;
    let received = |both: &Testpmd| -> Result<u64, BenchError> {
        Ok(both.counters(2)?.rx_frames + both.counters(3)?.rx_frames)
    };
    let mut rates = Vec::new();
    for _ in 0..effort.windows {
        both.process().resume()?;
        let (start, first) = (Instant::now(), received(&both)?);
        stop.sleep(effort.window)?;
        let frames = received(&both)? - first;
        rates.push(frames as f64 / start.elapsed().as_secs_f64());
        both.process().pause()?;
        // Lets everything else of the machine have its turn.
        stop.sleep(effort.window)?;
    }
    let silent = || BenchError::Silent { peer: "testpmd on one core".to_owned() };
    Spread::of(&rates).filter(|spread| spread.least > 0.0).ok_or_else(silent)
}

/// Frames per second that crossed our software NIC with every VF policy on, and our own driver on
/// two VFs of it, which sends on each as many frames as it received on the other.
///
/// # Errors
/// The NIC or a driver did not come up or stopped passing frames, or the user asked to stop.
pub fn softnic(
    load: &Load,
    effort: Effort,
    folder: &Path,
    stop: &Stop,
) -> Result<Spread, BenchError> {
    let folder = folder.join("one-core-softnic");
    std::fs::create_dir_all(&folder).map_err(BenchError::io(folder.display()))?;
    let config = softnic::config(load, &folder)?;
    let (nic, mut worker) = Nic::start_polled(config).map_err(in_process("start the NIC"))?;
    let mut vfs = [driver(&nic, 0, load)?, driver(&nic, 1, load)?];
    let before = std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            pin(load.cores[0])?;
            let _above = AboveAll::raise()?;
            for vf in &mut vfs {
                send(vf, load.length, load.bursts as usize * 32)?;
            }
            let mut rates = Vec::new();
            for _ in 0..effort.windows {
                rates.push(circulate(&mut worker, &mut vfs, load.length, effort.window)?);
                stop.sleep(effort.window)?;
            }
            Ok(rates)
        });
        let gone = |_| BenchError::InProcess { what: "circulate", said: "a panic".to_owned() };
        measured.join().map_err(gone)?
    });
    let silent = || BenchError::Silent { peer: "Lanekeeper on one core".to_owned() };
    Spread::of(&before?).filter(|spread| spread.least > 0.0).ok_or_else(silent)
}

/// A driver on one VF, set up as DPDK's is in the other measurement, but that a long frame is one
/// buffer and not several.
fn driver(nic: &Nic, vf: usize, load: &Load) -> Result<VfDriver, BenchError> {
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
    let number = VfIndex::new(vf as u32).map_err(in_process("name a VF"))?;
    let mut driver = VfDriver::connect(&nic.vf_socket(number), options)
        .map_err(in_process("connect a driver"))?;
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

/// Frames per second over one window.
fn circulate(
    worker: &mut Worker,
    vfs: &mut [VfDriver; 2],
    length: usize,
    window: Duration,
) -> Result<f64, BenchError> {
    let start = Instant::now();
    let mut frames = 0;
    loop {
        for _ in 0..64 {
            worker.poll();
            for from in [0, 1] {
                let received =
                    vfs[from].receive(0, 32, |_, _| ()).map_err(in_process("receive"))?;
                send(&mut vfs[1 - from], length, received)?;
                frames += received;
            }
        }
        let time = start.elapsed();
        if time >= window {
            return Ok(frames as f64 / time.as_secs_f64());
        }
    }
}

fn send(vf: &mut VfDriver, length: usize, count: usize) -> Result<(), BenchError> {
    match vf.send_prepared(0, length, count).map_err(in_process("send"))? {
        sent if sent == count => Ok(()),
        sent => Err(in_process("send")(format!("room for {sent} frames of {count}"))),
    }
}

fn in_process<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> BenchError {
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
