//! DCQCN between endpoints of ours: seven senders on one receiver find their shares, and the queue
//! stays where the marks keep it.

mod rig;

use std::time::Duration;

use lanekeeper_roce::dcqcn::Dcqcn;
use lanekeeper_roce::engine::{Config, Verb};
use lanekeeper_roce::sim::{Link, Marking, Network, Topology};
use lanekeeper_roce::time::Time;
use lanekeeper_roce::wire::PathMtu;
use rig::{Choice, End, connect, end};

const SENDERS: usize = 7;
/// One WRITE; several are always posted.
const WRITE: u32 = 60_000;

/// What an incast came to, over its second half.
#[derive(Debug)]
struct Incast {
    /// Bytes each sender had acknowledged, as parts of the mean.
    shares: Vec<f64>,
    /// All of them together, as a part of the link's rate.
    used: f64,
    /// The queue before the receiver's link, in bytes.
    mean: f64,
    deepest: u64,
    lost: u64,
    cnps: u64,
}

fn topology(dcqcn: Option<Dcqcn>, rate: f64, marking: Marking) -> Topology {
    let link = Link { rate, delay: Duration::from_micros(1), capacity: 64 << 20, marking };
    let endpoint = Config { dcqcn, ..Config::default() };
    Topology {
        ports: SENDERS + 1,
        up: Link { marking: Marking::NEVER, ..link },
        down: link,
        endpoint,
        ..Topology::default()
    }
}

fn post(network: &mut Network, from: &End, to: &End) {
    from.verb(network, 0, Verb::Write(to.remote(0)), 0, WRITE);
}

#[allow(clippy::cast_precision_loss)]
fn incast(topology: &Topology, millis: u64) -> Incast {
    let mut network = Network::new(7, topology);
    let choice = Choice { mtu: PathMtu::M4096, window: 4096, ack_timeout: 16, ..Choice::default() };
    let pairs: Vec<(End, End)> = (1..=SENDERS)
        .map(|port| {
            let pair = (end(&mut network, port, &choice), end(&mut network, 0, &choice));
            connect(&mut network, &pair.0, &pair.1, &choice);
            pair
        })
        .collect();
    for (from, to) in &pairs {
        for _ in 0..16 {
            post(&mut network, from, to);
        }
    }
    let (half, whole) = (millis * 500_000, millis * 1_000_000);
    let mut bytes = [0_u64; SENDERS];
    let (mut queued, mut samples, mut next, mut deepest) = (0_u64, 0_u64, half, 0);
    while network.now().nanos() < whole {
        let port = network.step().expect("work never ends");
        if let Some((from, to)) = port.checked_sub(1).map(|sender| pairs[sender]) {
            for _ in from.polled(&mut network) {
                bytes[port - 1] += u64::from(network.now().nanos() > half) * u64::from(WRITE);
                post(&mut network, &from, &to);
            }
        }
        if network.now().nanos() >= next {
            next += 1000;
            queued += network.queued(0);
            deepest = deepest.max(network.queued(0));
            samples += 1;
        }
    }
    let mean = bytes.iter().sum::<u64>() as f64 / SENDERS as f64;
    let now: Time = network.now();
    let cnps = |(from, _): &(End, End)| {
        network.endpoint(from.port).query(from.qpn, now).expect("a sender").counters.cnps_received
    };
    Incast {
        cnps: pairs.iter().map(cnps).sum(),
        shares: bytes.iter().map(|bytes| *bytes as f64 / mean).collect(),
        used: mean * SENDERS as f64 * 8e9 / (whole - half) as f64 / topology.down.rate,
        mean: queued as f64 / samples as f64,
        deepest,
        lost: network.traffic().overflowed,
    }
}

#[allow(clippy::cast_precision_loss)]
fn settled(incast: &Incast, marking: Marking) {
    let fair = incast.shares.iter().all(|share| (0.9..1.1).contains(share));
    assert!(fair, "each sender has its share: {incast:?}");
    assert!(incast.used > 0.9, "the link is used: {incast:?}");
    let kmax = marking.maximum as f64;
    let kmin = marking.minimum as f64;
    assert!(incast.mean > kmin && incast.mean < kmax, "marks hold the queue: {incast:?}");
    assert!(incast.deepest < 2 * marking.maximum, "{incast:?}");
    assert_eq!(incast.lost, 0);
}

#[test]
fn seven_on_one_settle_at_40g_with_the_papers_parameters() {
    let marking = Marking { minimum: 5_000, maximum: 200_000, probability: 0.01 };
    let incast = incast(&topology(Some(Dcqcn::paper()), 40e9, marking), 120);
    settled(&incast, marking);
}

#[test]
fn seven_on_one_settle_at_400g() {
    let marking = Marking { minimum: 50_000, maximum: 2_000_000, probability: 0.1 };
    let incast = incast(&topology(Some(Dcqcn::at_400g()), 400e9, marking), 60);
    settled(&incast, marking);
}

#[test]
fn without_congestion_control_the_queue_only_grows() {
    let incast = incast(&topology(None, 40e9, Marking::NEVER), 2);
    assert!(incast.mean > 1_000_000.0, "{incast:?}");
    assert_eq!(incast.cnps, 0);
}
