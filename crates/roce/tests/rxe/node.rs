//! Our end: an engine with one queue pair and one region, and the loop that drives it.

use std::time::{Duration, Instant};

use lanekeeper_roce::engine::{
    Access, Completion, Config, CqId, Endpoint, Init, Pieces, QpSettings, ReadyToReceive,
    ReadyToSend, ReceiveRequest, Status, Transition, Verb, WorkRequest,
};
use lanekeeper_roce::time::Time;
use lanekeeper_roce::transport::{FRAME_CAPACITY, UdpConfig, UdpWire, Wire};
use lanekeeper_roce::wire::{Flow, Headers, PathMtu, Psn, Qpn, Service, Version};

use super::exchange::Keys;
use super::guest::Guest;
use super::{MTU, PATIENCE};

/// Where our memory begins; some address that is not its place in this process.
pub(crate) const START: u64 = 0x10_0000_0000;
/// How much of it there is: perftest's buffers have two halves.
pub(crate) const LENGTH: usize = 256 << 10;

/// Outstanding reads that we offer, and use.
const READS: u8 = 16;

pub(crate) struct Node {
    endpoint: Endpoint,
    queue: CqId,
    qpn: Qpn,
    key: u32,
    wire: UdpWire,
    begin: Instant,
    losses: Losses,
}

/// Every so-manieth packet is lost, in either direction.
struct Losses {
    every: Option<u32>,
    packets: u32,
    lost: u32,
}

impl Losses {
    fn loses(&mut self) -> bool {
        self.packets += 1;
        let lost = self.every.is_some_and(|every| self.packets.is_multiple_of(every));
        self.lost += u32::from(lost);
        lost
    }
}

impl Node {
    pub(crate) fn new(guest: &Guest, service: Service, lose_every: Option<u32>) -> Self {
        let config = UdpConfig { mtu: 4500, ..UdpConfig::new(Guest::ours()) };
        let wire = guest.host.run(|| UdpWire::open(&config)).expect("enters").expect("opens");
        let mut endpoint = Endpoint::new(Config::default());
        let (domain, queue) = (endpoint.domain(), endpoint.completion_queue());
        let memory = (0..LENGTH).map(|at| pattern(at)).collect();
        let key = endpoint.regions.register(domain, START, memory, Access::ALL).expect("fits");
        let qpn = endpoint.create(QpSettings::new(service, domain, queue)).expect("room");
        endpoint.modify(qpn, &Transition::Init(Init::default())).expect("from RESET");
        let losses = Losses { every: lose_every, packets: 0, lost: 0 };
        Self { endpoint, queue, qpn, key, wire, begin: Instant::now(), losses }
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
        let flow = Flow::new(Version::V2, self.wire.local(), Guest::address().into());
        let receive = ReadyToReceive {
            flow,
            peer: peer.qpn,
            mtu: PathMtu::from_bytes(MTU).expect("one of five"),
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

    /// A receive into the start of our memory.
    pub(crate) fn post_receive(&mut self, id: u64, length: u32) {
        let local = Pieces::one(START, length, self.key);
        self.endpoint.post_receive(self.qpn, &ReceiveRequest { id, local }).expect("room");
    }

    /// Work with our memory from `offset` on, and wait until it is done.
    pub(crate) fn work(&mut self, verb: Verb, offset: u64, length: u32) {
        let local = Pieces::one(START + offset, length, self.key);
        let request = WorkRequest::new(7, verb, local);
        self.endpoint.post_send(self.qpn, &request).expect("room");
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
        let mut buffer = [0; FRAME_CAPACITY];
        let mut now = self.now();
        if self.wire.wait(Duration::from_millis(1)).expect("polls") {
            while let Some(arrival) = self.wire.receive(&mut buffer).expect("the socket works") {
                let frame = arrival.expect("rxe sends whole packets");
                if !self.losses.loses() {
                    now = Time::from_nanos(self.begin.elapsed().as_nanos() as u64);
                    self.endpoint.receive(now, &frame.flow, &frame.packet);
                }
            }
        }
        if self.endpoint.next_timeout().is_some_and(|at| at <= now) {
            self.endpoint.on_timeout(now);
        }
        let (wire, losses) = (&mut self.wire, &mut self.losses);
        let mut sink = |flow: &Flow, headers: &Headers, payload: &[&[u8]]| {
            if !losses.loses() {
                // What has no room is lost as well, and repeated.
                wire.send(flow, headers, payload).expect("can be sent");
            }
        };
        self.endpoint.poll_transmit(now, &mut sink, 64);
    }

    /// What happened so far.
    pub(crate) fn story(&mut self) -> String {
        let now = self.now();
        let info = self.endpoint.query(self.qpn, now).expect("there");
        let Losses { packets, lost, .. } = self.losses;
        format!("{lost} of {packets} packets lost; {info:?}")
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.begin.elapsed().as_nanos() as u64)
    }
}

/// What our memory is filled with.
pub(crate) fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}
