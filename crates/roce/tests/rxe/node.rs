//! Our end: an engine with one queue pair and one region, and the loop that drives it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lanekeeper_roce::engine::{
    Access, Address, Completion, Config, CqId, Endpoint, Init, Pieces, QpSettings, ReadyToReceive,
    ReadyToSend, ReceiveRequest, Status, Transition, Verb, WorkRequest,
};
use lanekeeper_roce::time::Time;
use lanekeeper_roce::transport::{FRAME_CAPACITY, UdpConfig, UdpWire, Wire};
use lanekeeper_roce::wire::{Flow, Frame, Headers, Packet, PathMtu, Psn, Qpn, Version};

use super::PATIENCE;
use super::exchange::Keys;
use super::guest::{Case, Guest};

/// Where our memory begins; some address that is not its place in this process.
pub(crate) const START: u64 = 0x10_0000_0000;
/// How much of it there is: perftest's buffers have two halves.
pub(crate) const LENGTH: usize = 256 << 10;

/// The key of all of perftest's datagrams.
const QKEY: u32 = 0x1111_1111;

/// Outstanding reads that we offer, and use.
const READS: u8 = 16;

pub(crate) struct Node {
    endpoint: Endpoint,
    queue: CqId,
    qpn: Qpn,
    key: u32,
    wire: UdpWire,
    mtu: PathMtu,
    begin: Instant,
    way: Way,
}

/// What happens to packets on their way, in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// One of so many is lost.
    Lose(u32),
    /// One of so many is overtaken by the next.
    Overtake(u32),
}

/// What faults are drawn from: another for each connection of a run.
fn seed() -> u64 {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
    CONNECTIONS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A packet that is held back.
type Held = Option<(Flow, Headers, Vec<u8>)>;

struct Way {
    fault: Fault,
    packets: u32,
    faults: u32,
    random: u64,
    held_in: Held,
    held_out: Held,
}

impl Way {
    /// The fault that befalls the next packet.
    fn next(&mut self) -> Fault {
        self.packets += 1;
        let (Fault::Lose(every) | Fault::Overtake(every)) = self.fault else { return self.fault };
        // Not each so-manieth: what is repeated in rounds of that length would always lose the same.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if !self.random.is_multiple_of(u64::from(every)) {
            return Fault::Nothing;
        }
        self.faults += 1;
        self.fault
    }
}

impl Node {
    pub(crate) fn new(guest: &Guest, case: &Case) -> Self {
        let config = UdpConfig { mtu: 4500, ..UdpConfig::new(Guest::ours()) };
        let wire = guest.host.run(|| UdpWire::open(&config)).expect("enters").expect("opens");
        let mut endpoint = Endpoint::new(Config::default());
        let (domain, queue) = (endpoint.domain(), endpoint.completion_queue());
        let memory = (0..LENGTH).map(pattern).collect();
        let key = endpoint.regions.register(domain, START, memory, Access::ALL).expect("fits");
        let qpn = endpoint.create(QpSettings::new(case.service, domain, queue)).expect("room");
        endpoint
            .modify(qpn, &Transition::Init(Init { qkey: QKEY, ..Init::default() }))
            .expect("from RESET");
        let way = Way {
            fault: case.fault,
            packets: 0,
            faults: 0,
            random: seed(),
            held_in: None,
            held_out: None,
        };
        Self { endpoint, queue, qpn, key, wire, mtu: case.mtu, begin: Instant::now(), way }
    }

    pub(crate) fn keys(&self) -> Keys {
        Keys {
            reads: READS.into(),
            qpn: self.qpn,
            psn: Psn::truncate(0xff_fff0),
            rkey: self.key,
            address: START,
            gid: self.wire.local(),
        }
    }

    /// Ready to receive and to send, with the other end of these keys.
    pub(crate) fn connect(&mut self, peer: &Keys) {
        let receive = ReadyToReceive {
            flow: self.flow(),
            peer: peer.qpn,
            mtu: self.mtu,
            first_psn: peer.psn,
            reads: READS,
            rnr_timer: 12,
        };
        let send = ReadyToSend {
            first_psn: self.keys().psn,
            ack_timeout: 16,
            retries: 7,
            rnr_retries: 7,
            reads: (peer.reads as u8).clamp(1, READS),
        };
        self.endpoint.modify(self.qpn, &Transition::Rtr(receive)).expect("from INIT");
        self.endpoint.modify(self.qpn, &Transition::Rts(send)).expect("from RTR");
    }

    fn flow(&self) -> Flow {
        Flow::new(Version::V2, self.wire.local(), Guest::address().into())
    }

    /// A receive into the start of our memory.
    pub(crate) fn post_receive(&mut self, id: u64, length: u32) {
        let local = Pieces::one(START, length, self.key);
        self.endpoint.post_receive(self.qpn, &ReceiveRequest { id, local }).expect("room");
    }

    /// Work with our memory from `offset` on, and wait until it is done.
    pub(crate) fn work(&mut self, verb: Verb, offset: u64, length: u32) {
        let local = Pieces::one(START + offset, length, self.key);
        self.request(&WorkRequest::new(7, verb, local));
    }

    /// Send a datagram to a queue pair of the guest.
    pub(crate) fn send_datagram(&mut self, peer: Qpn, length: u32) {
        let to = Address { flow: self.flow(), peer, qkey: QKEY };
        let local = Pieces::one(START, length, self.key);
        self.request(&WorkRequest::datagram(7, Verb::Send, local, to));
    }

    fn request(&mut self, request: &WorkRequest) {
        let verb = request.verb;
        self.endpoint.post_send(self.qpn, request).expect("room");
        let start = Instant::now();
        loop {
            self.turn();
            if let Some(done) = self.completion() {
                assert_eq!((done.id, done.status), (7, Status::Success), "{verb:?}");
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{verb:?} does not end; {}", self.story());
        }
    }

    pub(crate) fn completion(&mut self) -> Option<Completion> {
        self.endpoint.poll(self.queue)
    }

    pub(crate) fn memory(&self) -> &[u8] {
        self.endpoint.regions.bytes(self.key).expect("registered")
    }

    pub(crate) fn memory_mut(&mut self) -> &mut [u8] {
        self.endpoint.regions.bytes_mut(self.key).expect("registered")
    }

    /// One round: packets in, time, packets out. Sleeps a little if nothing comes.
    pub(crate) fn turn(&mut self) {
        self.packets_in();
        let now = self.now();
        if self.endpoint.next_timeout().is_some_and(|at| at <= now) {
            self.endpoint.on_timeout(now);
        }
        self.packets_out(now);
    }

    fn packets_in(&mut self) {
        let mut buffer = [0; FRAME_CAPACITY];
        let any = self.wire.wait(Duration::from_millis(1)).expect("polls");
        while any && let Some(arrival) = self.wire.receive(&mut buffer).expect("the socket works") {
            let Frame { flow, packet, .. } = arrival.expect("rxe sends whole packets");
            let now = Time::from_nanos(self.begin.elapsed().as_nanos() as u64);
            match self.way.next() {
                Fault::Lose(_) => continue,
                Fault::Overtake(_) if self.way.held_in.is_none() => {
                    self.way.held_in = Some((flow, packet.headers, packet.payload.to_vec()));
                    continue;
                }
                _ => self.endpoint.receive(now, &flow, &packet),
            }
            if let Some((flow, headers, payload)) = self.way.held_in.take() {
                self.endpoint.receive(now, &flow, &Packet { headers, payload: &payload });
            }
        }
    }

    fn packets_out(&mut self, now: Time) {
        let (wire, way) = (&mut self.wire, &mut self.way);
        // What has no room is lost as well, and repeated.
        let mut sink = |flow: &Flow, headers: &Headers, payload: &[&[u8]]| match way.next() {
            Fault::Lose(_) => {}
            Fault::Overtake(_) if way.held_out.is_none() => {
                way.held_out = Some((*flow, *headers, payload.concat()));
            }
            _ => {
                wire.send(flow, headers, payload).expect("can be sent");
                if let Some((flow, headers, payload)) = way.held_out.take() {
                    wire.send(&flow, &headers, &[&payload]).expect("can be sent");
                }
            }
        };
        self.endpoint.poll_transmit(now, &mut sink, 64);
    }

    /// What happened so far.
    pub(crate) fn story(&mut self) -> String {
        let now = self.now();
        let info = self.endpoint.query(self.qpn, now).expect("there");
        let Way { packets, faults, fault, .. } = self.way;
        let took = self.begin.elapsed();
        format!("{took:.1?}, {fault:?} befell {faults} of {packets} packets; {:?}", info.counters)
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.begin.elapsed().as_nanos() as u64)
    }
}

/// What our memory is filled with.
pub(crate) fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}
