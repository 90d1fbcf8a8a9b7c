//! The driver against the device side of the rings, in one process without a socket.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{NET_HEADER, TxFrame, VfDriver, VfOptions};
use crate::ring::{FillError, Gather, GuestMemory, Journal, PopScratch, Position, Queue, RingKind};

/// A device that sends every frame of a pair back on the same pair.
struct Loopback {
    memory: Arc<GuestMemory>,
    receive: Queue,
    send: Queue,
    scratch: PopScratch,
    mergeable: bool,
    header_len: usize,
    dropped: usize,
}

impl Loopback {
    fn new(driver: &VfDriver) -> Self {
        let memory = Arc::new(GuestMemory::map(vec![driver.region()]).unwrap());
        let queue = |index| {
            let spec = driver.ring_spec(index).unwrap();
            Queue::new(Arc::clone(&memory), spec, Position::START).unwrap()
        };
        Self {
            receive: queue(0),
            send: queue(1),
            memory: Arc::clone(&memory),
            scratch: PopScratch::new(),
            mergeable: driver.options().mergeable,
            header_len: driver.options().header_len(),
            dropped: 0,
        }
    }

    /// One batch there and back; returns the frames popped.
    fn turn(&mut self) -> usize {
        let popped = self.send.pop(&mut self.scratch).unwrap();
        let mut fill = self.receive.fill();
        for index in 0..popped.len() {
            let frame = popped.frame(index);
            let mut header = [0; NET_HEADER];
            frame.copy_at(0, &mut header[..self.header_len]);
            let body = frame.replace_head(&[], self.header_len);
            match fill.push(&header[..self.header_len], self.mergeable, &body) {
                Ok(()) => {}
                Err(FillError::NoBuffer | FillError::BufferTooSmall) => self.dropped += 1,
                Err(FillError::Fault(fault)) => panic!("{fault}"),
            }
        }
        let count = popped.len();
        fill.publish();
        popped.complete();
        count
    }
}

fn options(kind: RingKind) -> VfOptions {
    VfOptions { kind, size: 64, ..VfOptions::default() }
}

/// A frame whose bytes depend on its number, so that a mix-up shows.
fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at * 7 + at / 251) as u8).collect()
}

/// Sends frames of these lengths through the loopback in batches and checks what comes back.
fn check_round_trip(options: VfOptions, lengths: &[usize], batch: usize) {
    let mut driver = VfDriver::unconnected(options).unwrap();
    let mut device = Loopback::new(&driver);
    let frames = lengths.iter().enumerate().map(|(n, len)| frame(n, *len)).collect::<Vec<_>>();
    let mut sent = 0;
    let mut received = Vec::new();
    let mut idle = 0;
    while received.len() < frames.len() {
        let rest = &frames[sent..];
        let batch = rest.iter().take(batch).map(|bytes| TxFrame::plain(bytes)).collect::<Vec<_>>();
        let offered = driver.send(0, &batch).unwrap();
        sent += offered;
        let moved = device.turn();
        let got = driver
            .receive(0, usize::MAX, |_, frame| {
                let mut bytes = vec![0; frame.len()];
                frame.copy_at(0, &mut bytes);
                received.push(bytes);
            })
            .unwrap();
        idle = if offered + moved + got == 0 { idle + 1 } else { 0 };
        assert!(idle < 3, "nothing moves after {sent} sent, {} received", received.len());
    }
    assert_eq!(device.dropped, 0);
    for (number, (sent, received)) in frames.iter().zip(&received).enumerate() {
        assert_eq!(sent, received, "frame {number}");
    }
}

#[test]
fn small_frames_pass_over_several_laps_of_every_kind_of_ring() {
    for kind in [RingKind::Split, RingKind::Packed] {
        for bits in 0..16 {
            let options = VfOptions {
                event_idx: bits & 1 != 0,
                in_order: bits & 2 != 0,
                indirect: bits & 4 != 0,
                header_apart: bits & 8 != 0,
                ..options(kind)
            };
            check_round_trip(options, &[60; 1000], 20);
        }
    }
}

#[test]
fn a_packed_ring_of_an_odd_size_wraps_where_it_should() {
    let options = VfOptions { size: 37, indirect: false, ..options(RingKind::Packed) };
    check_round_trip(VfOptions { tx_piece: Some(200), ..options }, &[500; 400], 7);
}

#[test]
fn a_64_kib_frame_is_merged_from_many_buffers() {
    for kind in [RingKind::Split, RingKind::Packed] {
        for indirect in [false, true] {
            let options = VfOptions { indirect, ..options(kind) };
            check_round_trip(options, &[65_550, 1, 65_550, 9_216], 1);
        }
    }
}

#[test]
fn a_legacy_driver_without_merging_has_a_ten_byte_header() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let options = VfOptions { legacy: true, mergeable: false, ..options(kind) };
        check_round_trip(options, &[60, 1514, 2038, 60], 4);
    }
}

#[test]
fn a_frame_that_fits_no_single_buffer_is_refused_without_merging_and_takes_none() {
    let options = VfOptions { mergeable: false, ..options(RingKind::Split) };
    let mut driver = VfDriver::unconnected(options).unwrap();
    let mut device = Loopback::new(&driver);
    let (long, short) = (frame(1, 2037), frame(2, 2036));
    driver.send(0, &[TxFrame::plain(&long), TxFrame::plain(&short)]).unwrap();
    device.turn();
    assert_eq!(device.dropped, 1);
    assert_eq!(driver.receive_all(0, 2, Duration::ZERO).unwrap(), [short]);
}

#[test]
fn net_headers_arrive_with_the_number_of_buffers_filled_in() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let mut driver = VfDriver::unconnected(options(kind)).unwrap();
        let mut device = Loopback::new(&driver);
        let bytes = frame(0, 5000);
        let header = [1, 4, 66, 0, 0x78, 5, 34, 0, 6, 0, 99, 99];
        driver.send(0, &[TxFrame { header, frame: Gather::from_slice(&bytes) }]).unwrap();
        device.turn();
        let mut seen = None;
        driver.receive(0, 1, |header, frame| seen = Some((*header, frame.len()))).unwrap();
        assert_eq!(seen, Some(([1, 4, 66, 0, 0x78, 5, 34, 0, 6, 0, 3, 0], 5000)));
    }
}

#[test]
fn prepared_frames_are_sent_as_they_lie_in_the_buffers() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let mut driver = VfDriver::unconnected(options(kind)).unwrap();
        let mut device = Loopback::new(&driver);
        let bytes = frame(9, 60);
        driver.prepare(0, &TxFrame::plain(&bytes)).unwrap();
        for _ in 0..20 {
            assert_eq!(driver.send_prepared(0, 60, 32).unwrap(), 32);
            assert_eq!(device.turn(), 32);
            let received = driver.receive_all(0, 32, Duration::ZERO).unwrap();
            assert!(received.len() == 32 && received.iter().all(|frame| *frame == bytes));
        }
    }
}

#[test]
fn a_full_send_queue_takes_no_more_and_goes_on_when_drained() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let mut driver = VfDriver::unconnected(options(kind)).unwrap();
        let mut device = Loopback::new(&driver);
        let bytes = frame(0, 60);
        let batch = [TxFrame::plain(&bytes); 100];
        assert_eq!(driver.send(0, &batch).unwrap(), 64);
        assert_eq!(driver.send(0, &batch).unwrap(), 0);
        assert_eq!(device.turn(), 32);
        assert_eq!(driver.send(0, &batch).unwrap(), 32);
    }
}

#[test]
fn kicks_and_interrupts_come_when_asked_for_and_not_otherwise() {
    for kind in [RingKind::Split, RingKind::Packed] {
        for event_idx in [false, true] {
            let options = VfOptions { event_idx, ..options(kind) };
            let mut driver = VfDriver::unconnected(options).unwrap();
            let mut device = Loopback::new(&driver);
            let bytes = frame(0, 60);
            let kicked = |driver: &VfDriver| driver.lines[1].kick.read().is_ok();
            device.send.disable_kicks();
            // The first answers on a fresh ring may be yes whatever was asked for.
            for _ in 0..4 {
                driver.send(0, &[TxFrame::plain(&bytes)]).unwrap();
                device.turn();
                device.receive.wants_notify();
                driver.receive_all(0, 1, Duration::ZERO).unwrap();
            }
            kicked(&driver);
            for _ in 0..200 {
                driver.send(0, &[TxFrame::plain(&bytes)]).unwrap();
                assert!(!kicked(&driver), "{kind:?}: kicked though busy");
                device.turn();
                assert!(!device.receive.wants_notify(), "{kind:?}: interrupt though polled");
                assert_eq!(driver.receive_all(0, 1, Duration::ZERO).unwrap().len(), 1);
            }
            for _ in 0..200 {
                assert!(!device.send.enable_kicks(), "nothing was sent yet");
                assert!(!driver.lines[0].queue.set_interrupts(true), "nothing was received yet");
                driver.send(0, &[TxFrame::plain(&bytes)]).unwrap();
                assert!(kicked(&driver), "{kind:?}: no kick though asleep");
                assert!(device.send.has_work() && device.send.enable_kicks());
                device.turn();
                assert!(device.receive.wants_notify(), "{kind:?}: no interrupt though asleep");
                assert!(!device.receive.wants_notify(), "{kind:?}: asked twice for one batch");
                assert_eq!(driver.receive_all(0, 1, Duration::ZERO).unwrap().len(), 1);
            }
        }
    }
}

#[test]
fn commands_of_the_control_queue_are_answered() {
    for kind in [RingKind::Split, RingKind::Packed] {
        for indirect in [false, true] {
            let options = VfOptions { control: true, pairs: 2, indirect, size: 8, ..options(kind) };
            let mut driver = VfDriver::unconnected(options).unwrap();
            assert_eq!(driver.control_queue(), Some(4));
            let memory = Arc::new(GuestMemory::map(vec![driver.region()]).unwrap());
            let spec = driver.ring_spec(4).unwrap();
            let mut queue = Queue::new(memory, spec, Position::START).unwrap();
            let device = std::thread::spawn(move || {
                let mut scratch = PopScratch::new();
                let mut seen = Vec::new();
                while seen.len() < 20 {
                    let Some(mut command) = queue.pop_mixed(&mut scratch).unwrap() else {
                        std::thread::yield_now();
                        continue;
                    };
                    let mut bytes = vec![0; command.request().len()];
                    command.request().copy_at(0, &mut bytes);
                    assert_eq!(command.respond(&[seen.len() as u8 % 2, 77]), 1);
                    command.complete();
                    seen.push(bytes);
                }
                seen
            });
            for number in 0..20 {
                let timeout = Duration::from_secs(10);
                // This device never calls: the driver must look for itself now and then.
                let status = driver.control(4, 0, &[number, 0], timeout).unwrap();
                assert_eq!(status, number % 2);
            }
            let seen = device.join().unwrap();
            assert_eq!(seen, (0..20).map(|number| vec![4, 0, number, 0]).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_device_that_forgot_everything_goes_on_where_the_driver_says() {
    for kind in [RingKind::Split, RingKind::Packed] {
        for in_order in [false, true] {
            let options =
                VfOptions { in_order, tx_piece: Some(100), indirect: false, ..options(kind) };
            let mut driver = VfDriver::unconnected(options).unwrap();
            let mut device = Loopback::new(&driver);
            let mut received = 0;
            for round in 0..100 {
                let bytes = frame(round, 150);
                driver.send(0, &[TxFrame::plain(&bytes); 3]).unwrap();
                device.turn();
                if round % 3 == 0 {
                    // Frames not looked at by the driver, and used descriptors not reclaimed.
                    let at = |index| driver.position(index).unwrap();
                    let spec = |index| driver.ring_spec(index).unwrap();
                    assert_eq!(at(1), device.send.position());
                    let memory = &device.memory;
                    let again =
                        |index| Queue::new(Arc::clone(memory), spec(index), at(index)).unwrap();
                    (device.receive, device.send) = (again(0), again(1));
                }
                received += driver.receive_all(0, 3, Duration::ZERO).unwrap().len();
            }
            assert_eq!(received, 300);
        }
    }
}

#[test]
fn a_killed_device_resumes_from_its_journal_without_losing_a_descriptor() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let mut driver = VfDriver::unconnected(options(kind)).unwrap();
        let mut device = Loopback::new(&driver);
        let file = std::fs::File::from(
            rustix::fs::memfd_create("journal", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.set_len(2 * crate::ring::JOURNAL_BYTES).unwrap();
        let journal = |index: u64| {
            let offset = index * crate::ring::JOURNAL_BYTES;
            Journal::open(file.try_clone().unwrap(), offset).unwrap()
        };
        let specs = [0, 1].map(|index| driver.ring_spec(index).unwrap());
        let memory = Arc::clone(&device.memory);
        let resume = |index: usize| {
            let journal = journal(index as u64);
            Queue::resume(Arc::clone(&memory), specs[index], journal).unwrap()
        };
        (device.receive, device.send) = (resume(0), resume(1));
        let mut received = 0;
        for round in 0..100 {
            let bytes = frame(round, 3000);
            driver.send(0, &[TxFrame::plain(&bytes); 3]).unwrap();
            device.turn();
            // As a kill between two batches leaves it: no position is handed over.
            (device.receive, device.send) = (resume(0), resume(1));
            received += driver.receive_all(0, 3, Duration::ZERO).unwrap().len();
        }
        assert_eq!(received, 300);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn frames_of_any_length_arrive_whole_and_in_order(
        packed: bool,
        event_idx: bool,
        in_order: bool,
        indirect: bool,
        header_apart: bool,
        tx_piece in prop::option::of(64_u32..2048),
        buffer_size in 256_u32..3000,
        lengths in prop::collection::vec(1_usize..4000, 1..120),
        batch in 1_usize..40,
    ) {
        let kind = if packed { RingKind::Packed } else { RingKind::Split };
        let tx_piece = tx_piece.map(|piece| piece.clamp(128, buffer_size));
        let options = VfOptions {
            event_idx, in_order, indirect, header_apart, tx_piece, buffer_size, size: 128,
            ..options(kind)
        };
        check_round_trip(options, &lengths, batch);
    }
}
