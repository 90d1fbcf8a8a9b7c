//! What a frame costs at the rings alone, on one core: nanoseconds a frame, median of many runs.
//!
//! `cargo bench -p lanekeeper-softnic --bench rings`. Each run handles a whole ring of frames in
//! batches of 32 and is timed from outside; the other end's work is not in the time, except in the
//! rows that say so. Everything lies in the cache, so this is the floor, not a forecast.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use lanekeeper_softnic::driver::{TxFrame, VfDriver, VfOptions};
use lanekeeper_softnic::ring::{BATCH, Gather, GuestMemory, PopScratch, Position, Queue, RingKind};

/// Frames of one timed run: a whole ring.
const RING: u16 = 256;
const RUNS: usize = 4001;
const HEADER: usize = 12;
/// What a switch looks at: net header and the first bytes of the frame.
const HEAD: usize = HEADER + 128;

/// One VF: its driver, and the two queues of its first pair as the device has them.
struct Vf {
    driver: VfDriver,
    receive: Queue,
    send: Queue,
}

impl Vf {
    fn new(kind: RingKind, len: usize) -> Self {
        let options = VfOptions {
            kind,
            size: RING,
            event_idx: false,
            auto_kick: false,
            ..VfOptions::default()
        };
        let mut driver = VfDriver::unconnected(options).expect("memory for a ring");
        driver.prepare(0, &TxFrame::plain(&vec![0x5a; len])).expect("pair 0");
        let region = driver.region();
        let memory = Arc::new(GuestMemory::map(vec![region]).expect("memory that can be mapped"));
        let queue = |index| {
            let spec = driver.ring_spec(index).expect("pair 0");
            Queue::new(Arc::clone(&memory), spec, Position::START).expect("a sound ring")
        };
        Self { receive: queue(0), send: queue(1), driver }
    }

    /// A ring full of frames to send.
    fn offer(&mut self, len: usize) {
        let sent = self.driver.send_prepared(0, len, usize::from(RING)).expect("a sound device");
        assert_eq!(sent, usize::from(RING));
    }

    /// Takes what was received, as a driver that looks at no payload.
    fn collect(&mut self) -> usize {
        let look = |_: &[u8; HEADER], frame: &Gather<'_>| {
            black_box(frame.len());
        };
        self.driver.receive(0, usize::MAX, look).expect("a sound device")
    }
}

/// Prints the median of `RUNS` runs, each of which returns the time it took for a ring of frames.
fn row(kind: RingKind, len: usize, what: &str, mut run: impl FnMut() -> Duration) {
    let mut times: Vec<f64> =
        (0..RUNS).map(|_| run().as_secs_f64() * 1e9 / f64::from(RING)).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[RUNS * share / 100];
    let kind = format!("{kind:?}").to_lowercase();
    let (median, low, high) = (at(50), at(5), at(95));
    println!("{kind:6} {len:5} B  {what:34} {median:6.1} ns  [{low:.1}..{high:.1}]");
}

/// Takes all frames of `send` in batches and copies the first `head` bytes of each out.
fn pop_all(send: &mut Queue, scratch: &mut PopScratch, head: usize) {
    let mut bytes = [0; 2048];
    let mut left = usize::from(RING);
    while left > 0 {
        let popped = send.pop(scratch).expect("a sound driver");
        for index in 0..popped.len() {
            let frame = popped.frame(index);
            black_box(frame.copy_at(0, black_box(&mut bytes[..head.min(frame.len())])));
        }
        left -= popped.len();
        popped.complete();
    }
}

/// From one VF to the other as a switch does it, one batch: judged head from a local copy, payload
/// straight from memory to memory. Returns frames taken and frames delivered.
fn hop_batch(from: &mut Queue, to: &mut Queue, scratch: &mut PopScratch) -> (usize, usize) {
    let mut heads = [[0; HEAD]; BATCH];
    let popped = from.pop(scratch).expect("a sound driver");
    let mut fill = to.fill();
    let mut delivered = 0;
    for (index, head) in heads.iter_mut().enumerate().take(popped.len()) {
        let frame = popped.frame(index);
        let taken = frame.copy_at(0, head);
        let (header, start) = head[..taken].split_at(HEADER);
        delivered +=
            usize::from(fill.push(header, true, &frame.replace_head(start, taken)).is_ok());
    }
    fill.publish();
    let taken = popped.len();
    popped.complete();
    (taken, delivered)
}

/// A whole ring of frames from one VF to the other.
fn hop(from: &mut Queue, to: &mut Queue, scratch: &mut PopScratch) {
    let mut left = usize::from(RING);
    while left > 0 {
        let (taken, delivered) = hop_batch(from, to, scratch);
        assert_eq!(taken, delivered, "a free buffer for each");
        left -= taken;
    }
}

/// The same hop with the drivers of both VFs on another core, for as long as the lines of rings and
/// buffers travel between two cores: millions of frames a second, median and span of the windows.
/// On shared machines the distance between cores changes; compare only what ran side by side.
fn two_cores(kind: RingKind, len: usize) {
    const WINDOWS: usize = 15;
    let (mut from, mut to) = (Vf::new(kind, len), Vf::new(kind, len));
    let stop = AtomicBool::new(false);
    let moved = Barrier::new(2);
    let cores = rustix::thread::sched_getaffinity(None).expect("a running thread");
    let Vf { driver: sender, send, .. } = &mut from;
    let Vf { driver: receiver, receive, .. } = &mut to;
    let mut rates = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            moved.wait();
            while !stop.load(Ordering::Relaxed) {
                sender.send_prepared(0, len, BATCH).expect("a sound device");
                let look = |_: &[u8; HEADER], frame: &Gather<'_>| {
                    black_box(frame.len());
                };
                receiver.receive(0, BATCH, look).expect("a sound device");
            }
        });
        moved.wait();
        pin(0);
        let mut scratch = PopScratch::new();
        let rates = (0..WINDOWS).map(|_| window(send, receive, &mut scratch)).collect::<Vec<_>>();
        stop.store(true, Ordering::Relaxed);
        rates
    });
    let _ = rustix::thread::sched_setaffinity(None, &cores);
    rates.sort_by(f64::total_cmp);
    let kind = format!("{kind:?}").to_lowercase();
    let (median, low, high) = (rates[WINDOWS / 2], rates[0], rates[WINDOWS - 1]);
    println!("{kind:6} {len:5} B  hop between two cores  {median:6.2} Mpps  [{low:.2}..{high:.2}]");
}

/// Frames a microsecond that one window delivered.
fn window(send: &mut Queue, receive: &mut Queue, scratch: &mut PopScratch) -> f64 {
    let start = Instant::now();
    let mut delivered = 0;
    while start.elapsed() < Duration::from_millis(50) {
        for _ in 0..64 {
            delivered += hop_batch(send, receive, scratch).1;
        }
    }
    f64::from(delivered as u32) / (start.elapsed().as_secs_f64() * 1e6)
}

/// Keeps the calling thread on one core; without that right it floats, and so do the figures.
fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &cores);
}

fn timed(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

fn main() {
    let mut scratch = PopScratch::new();
    for kind in [RingKind::Split, RingKind::Packed] {
        for len in [64, 1500] {
            let (mut from, mut to) = (Vf::new(kind, len), Vf::new(kind, len));
            let mut pop = |what: &str, head: usize| {
                row(kind, len, what, || {
                    from.offer(len);
                    timed(|| pop_all(&mut from.send, &mut scratch, head))
                });
            };
            pop("pop + complete", 0);
            pop("pop + head copied out + complete", HEAD);
            pop("pop + all copied out + complete", usize::MAX);

            let bytes = vec![0xa5; len];
            row(kind, len, "fill + publish", || {
                let time = timed(|| {
                    for _ in 0..usize::from(RING) / BATCH {
                        let mut fill = to.receive.fill();
                        for _ in 0..BATCH {
                            let frame = Gather::from_slice(&bytes);
                            fill.push(&[0; HEADER], true, &frame).expect("a free buffer");
                        }
                    }
                });
                assert_eq!(to.collect(), usize::from(RING));
                time
            });
            row(kind, len, "hop: pop + copy + fill", || {
                from.offer(len);
                let time = timed(|| hop(&mut from.send, &mut to.receive, &mut scratch));
                assert_eq!(to.collect(), usize::from(RING));
                time
            });
            row(kind, len, "driver: send + receive", || {
                let send = timed(|| from.offer(len));
                hop(&mut from.send, &mut to.receive, &mut scratch);
                send + timed(|| {
                    to.collect();
                })
            });
            two_cores(kind, len);
        }
    }
}
