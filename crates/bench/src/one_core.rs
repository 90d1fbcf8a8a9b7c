//! Driver and device on one thread of one core: no cache line crosses cores, so the distance
//! between them does not matter and figures repeat. What is measured is the work of both ends.

use std::path::Path;
use std::time::{Duration, Instant};

use lanekeeper_softnic::driver::VfDriver;
use lanekeeper_softnic::{Nic, Worker};

use crate::core_distance::pin;
use crate::machine::AboveAll;
use crate::own_client::{connect, forward, in_process, send};
use crate::peers::{Load, MACS};
use crate::softnic;
use crate::testpmd::{Memory, Port, Setup, Testpmd};
use crate::two_cores::Effort;
use crate::window::Spread;
use crate::{BenchError, Stop};

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
    let (_nic, mut worker) = Nic::start_polled(config).map_err(in_process("start the NIC"))?;
    let sockets = [folder.join("vf0.sock"), folder.join("vf1.sock")];
    let mut vfs = connect(&sockets, load)?;
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
            frames += forward(vfs, 0, length)? + forward(vfs, 1, length)?;
        }
        let time = start.elapsed();
        if time >= window {
            return Ok(frames as f64 / time.as_secs_f64());
        }
    }
}
