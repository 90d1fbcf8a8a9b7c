//! The engine over loopback UDP: 8-byte SENDs to and fro, and WRITEs of 64 KiB, with both ends on one
//! thread, beside bare UDP sockets that carry the same packets by the same system calls. What is
//! left between the two is the engine, its codec and its ICRC.

#![allow(missing_docs)]
#![allow(clippy::cast_precision_loss)] // Counts far below 2^52.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use lanekeeper_roce::driver::Driver;
use lanekeeper_roce::engine::{
    Access, Config, CqId, Endpoint, Init, Pieces, QpSettings, ReadyToReceive, ReadyToSend,
    ReceiveRequest, Remote, Status, Transition, Verb, WorkRequest,
};
use lanekeeper_roce::transport::{UdpConfig, UdpWire, Wire};
use lanekeeper_roce::wire::{Flow, PathMtu, Psn, Qpn, Service, Version};

const ROUNDS: usize = 5;
const WINDOW: Duration = Duration::from_millis(300);
const WRITE: u32 = 64 << 10;
/// Bytes of headers and ICRC in a RoCE packet's UDP payload.
const ROCE: usize = 16;

struct End {
    driver: Driver<UdpWire>,
    qpn: Qpn,
    queue: CqId,
    key: u32,
}

impl End {
    fn new() -> End {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let config = UdpConfig { port: 0, mtu: 65_536, ..UdpConfig::new(local) };
        let wire = UdpWire::open(&config).expect("sockets on loopback");
        let mut endpoint = Endpoint::new(Config::default());
        let (domain, queue) = (endpoint.domain(), endpoint.completion_queue());
        let bytes = vec![0; WRITE as usize].into();
        let key = endpoint.regions.register(domain, 0, bytes, Access::ALL).expect("a region");
        let settings = QpSettings { window: 32, ..QpSettings::new(Service::Rc, domain, queue) };
        let qpn = endpoint.create(settings).expect("a queue pair");
        endpoint.modify(qpn, &Transition::Init(Init::default())).expect("INIT");
        End { driver: Driver::new(endpoint, wire), qpn, queue, key }
    }

    fn connect(&mut self, peer: Qpn, port: u16) {
        self.driver.wire_mut().set_peer_port(port);
        let local = self.driver.wire().local();
        let rtr = ReadyToReceive {
            flow: Flow::new(Version::V2, local, local),
            peer,
            mtu: PathMtu::M4096,
            first_psn: Psn::ZERO,
            reads: 1,
            rnr_timer: 1,
        };
        let rts = ReadyToSend {
            first_psn: Psn::ZERO,
            ack_timeout: 14,
            retries: 7,
            rnr_retries: 7,
            reads: 1,
        };
        self.driver.endpoint.modify(self.qpn, &Transition::Rtr(rtr)).expect("RTR");
        self.driver.endpoint.modify(self.qpn, &Transition::Rts(rts)).expect("RTS");
    }

    fn post(&mut self, verb: Verb, length: u32) {
        let work = WorkRequest {
            signaled: matches!(verb, Verb::Write(_)),
            ..WorkRequest::new(0, verb, Pieces::one(0, length, self.key))
        };
        self.driver.endpoint.post_send(self.qpn, &work).expect("work is posted");
    }

    fn receive(&mut self) {
        let request = ReceiveRequest { id: 0, local: Pieces::one(0, 8, self.key) };
        self.driver.endpoint.post_receive(self.qpn, &request).expect("a receive is posted");
    }

    fn turn(&mut self) -> usize {
        self.driver.turn().expect("a turn");
        let completions = std::iter::from_fn(|| self.driver.endpoint.poll(self.queue));
        completions.inspect(|done| assert_eq!(done.status, Status::Success)).count()
    }
}

fn pair() -> [End; 2] {
    let mut ends = [End::new(), End::new()];
    let names = [0, 1].map(|end| (ends[end].qpn, ends[end].driver.wire().port()));
    ends[0].connect(names[1].0, names[1].1);
    ends[1].connect(names[0].0, names[0].1);
    ends
}

/// Microseconds from one end to the other.
fn engine_latency() -> f64 {
    let mut ends = pair();
    (0..2).for_each(|end| (0..16).for_each(|_| ends[end].receive()));
    ends[0].post(Verb::Send, 8);
    let (start, mut hops, mut turn) = (Instant::now(), 0_u64, 0);
    while start.elapsed() < WINDOW {
        turn = 1 - turn;
        for _ in 0..ends[turn].turn() {
            hops += 1;
            ends[turn].receive();
            ends[turn].post(Verb::Send, 8);
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / hops as f64
}

/// Gigabits a second of payload.
fn engine_goodput() -> f64 {
    let mut ends = pair();
    let verb = Verb::Write(Remote { address: 0, rkey: ends[1].key });
    (0..8).for_each(|_| ends[0].post(verb, WRITE));
    let (start, mut bytes) = (Instant::now(), 0_u64);
    while start.elapsed() < WINDOW {
        for _ in 0..ends[0].turn() {
            bytes += u64::from(WRITE);
            ends[0].post(verb, WRITE);
        }
        ends[1].turn();
    }
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
}

fn sockets() -> [UdpSocket; 2] {
    let open = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let sockets = [open(), open()];
    for end in 0..2 {
        let peer = sockets[1 - end].local_addr().expect("its address");
        sockets[end].connect(peer).expect("the other socket");
    }
    sockets
}

fn socket_latency() -> f64 {
    let (sockets, mut buffer) = (sockets(), [0; 8 + ROCE]);
    let (start, mut hops) = (Instant::now(), 0_u64);
    while start.elapsed() < WINDOW {
        for end in 0..2 {
            sockets[end].send(&buffer).expect("a send");
            sockets[1 - end].recv(&mut buffer).expect("a receive");
            hops += 1;
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / hops as f64
}

fn socket_goodput() -> f64 {
    let (sockets, mut buffer) = (sockets(), vec![0; 4096 + ROCE]);
    let (start, mut bytes) = (Instant::now(), 0_u64);
    while start.elapsed() < WINDOW {
        for _ in 0..16 {
            sockets[0].send(&buffer).expect("a send");
        }
        for _ in 0..16 {
            bytes += sockets[1].recv(&mut buffer).expect("a receive") as u64;
        }
    }
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
}

/// Median of a list.
fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list[list.len() / 2]
}

fn main() {
    let rows: Vec<[f64; 4]> = (0..ROUNDS)
        .map(|_| [engine_latency(), socket_latency(), engine_goodput(), socket_goodput()])
        .collect();
    let column = |at: usize| median(rows.iter().map(|row| row[at]).collect());
    let ratio =
        |left: usize, right: usize| median(rows.iter().map(|row| row[left] / row[right]).collect());
    println!("over loopback UDP, both ends on one thread   engine   bare UDP   engine / bare");
    println!(
        "8-byte SEND, one way, us                   {:>8.2} {:>10.2} {:>15.2}",
        column(0),
        column(1),
        ratio(0, 1)
    );
    println!(
        "64 KiB WRITE, Gb/s of payload              {:>8.2} {:>10.2} {:>15.2}",
        column(2),
        column(3),
        ratio(2, 3)
    );
}
