//! Two endpoints on real sockets: the same engine as in the simulator, by the real clock.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use lanekeeper_roce::driver::Driver;
use lanekeeper_roce::engine::{
    Access, Completion, Config, CqId, Endpoint, Init, Pieces, QpSettings, ReadyToReceive,
    ReadyToSend, ReceiveRequest, Remote, Status, Transition, Verb, WorkRequest,
};
use lanekeeper_roce::transport::{UdpConfig, UdpWire, Wire};
use lanekeeper_roce::wire::{Flow, Psn, Qpn, Service, Version};

const SIZE: u32 = 300_000;

struct End {
    driver: Driver<UdpWire>,
    qpn: Qpn,
    queue: CqId,
    key: u32,
}

impl End {
    fn new() -> End {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let wire =
            UdpWire::open(&UdpConfig { port: 0, ..UdpConfig::new(local) }).expect("a socket");
        let mut endpoint = Endpoint::new(Config::default());
        let (domain, queue) = (endpoint.domain(), endpoint.completion_queue());
        let bytes = vec![0; SIZE as usize + 8].into();
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
            mtu: self.driver.wire().path_mtu(),
            first_psn: Psn::ZERO,
            reads: 4,
            rnr_timer: 12,
        };
        let rts = ReadyToSend {
            first_psn: Psn::ZERO,
            ack_timeout: 14,
            retries: 7,
            rnr_retries: 7,
            reads: 4,
        };
        self.driver.endpoint.modify(self.qpn, &Transition::Rtr(rtr)).expect("RTR");
        self.driver.endpoint.modify(self.qpn, &Transition::Rts(rts)).expect("RTS");
    }

    fn post(&mut self, id: u64, verb: Verb, length: u32) {
        let work = WorkRequest::new(id, verb, Pieces::one(0, length, self.key));
        self.driver.endpoint.post_send(self.qpn, &work).expect("work is posted");
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.driver.endpoint.regions.bytes_mut(self.key).expect("the region")
    }
}

fn pair() -> (End, End) {
    let (mut left, mut right) = (End::new(), End::new());
    let (left_port, right_port) = (left.driver.wire().port(), right.driver.wire().port());
    let (left_qpn, right_qpn) = (left.qpn, right.qpn);
    left.connect(right_qpn, right_port);
    right.connect(left_qpn, left_port);
    (left, right)
}

/// Both ends take turns until the left one has so many completions.
fn completions(left: &mut End, right: &mut End, count: usize) -> Vec<Completion> {
    let limit = Instant::now() + Duration::from_secs(120);
    let mut done = Vec::new();
    while done.len() < count {
        assert!(Instant::now() < limit, "{done:?}");
        left.driver.run(Duration::ZERO, |_| false).expect("a turn");
        right.driver.run(Duration::from_micros(50), |_| false).expect("a turn");
        done.extend(std::iter::from_fn(|| left.driver.endpoint.poll(left.queue)));
    }
    done
}

#[test]
fn every_verb_goes_over_udp_sockets() {
    let (mut left, mut right) = pair();
    let pattern: Vec<u8> = (0..SIZE).map(|at| (at * 31 / 7) as u8).collect();
    left.bytes()[..SIZE as usize].copy_from_slice(&pattern);
    let remote = Remote { address: 0, rkey: right.key };
    left.post(1, Verb::Write(remote), SIZE);
    let done = completions(&mut left, &mut right, 1);
    assert_eq!(done[0].status, Status::Success);
    assert!(right.bytes()[..SIZE as usize] == pattern, "the write's bytes are there");

    left.bytes().fill(0);
    left.post(2, Verb::Read(remote), SIZE);
    let done = completions(&mut left, &mut right, 1);
    assert_eq!(done[0].status, Status::Success);
    assert!(left.bytes()[..SIZE as usize] == pattern, "the read's bytes are there");

    let counter = Remote { address: u64::from(SIZE), ..remote };
    left.post(3, Verb::FetchAdd { remote: counter, add: 5 }, 8);
    left.post(4, Verb::CompareSwap { remote: counter, compare: 5, swap: 6 }, 8);
    let local = Pieces::one(0, 5000, right.key);
    right.driver.endpoint.post_receive(right.qpn, &ReceiveRequest { id: 9, local }).unwrap();
    left.post(5, Verb::SendImmediate(1), 5000);
    let done = completions(&mut left, &mut right, 3);
    assert!(done.iter().all(|done| done.status == Status::Success), "{done:?}");
    assert_eq!(right.bytes()[SIZE as usize..], 6_u64.to_ne_bytes());
    let received = right.driver.endpoint.poll(right.queue).unwrap();
    assert_eq!((received.id, received.bytes, received.immediate), (9, 5000, Some(1)));
    assert_eq!((left.driver.malformed(), right.driver.malformed()), (0, 0));
}

#[test]
fn a_driver_wakes_for_its_endpoints_timers() {
    let (mut left, right) = pair();
    let remote = Remote { address: 0, rkey: right.key };
    // Nobody turns the right end's driver: all retries run out, by the clock alone.
    left.post(1, Verb::Write(remote), 100);
    let (queue, mut status) = (left.queue, None);
    let done = left.driver.run(Duration::from_secs(120), |endpoint| {
        status = endpoint.poll(queue).map(|done| done.status);
        status.is_some()
    });
    assert!(done.unwrap());
    assert_eq!(status, Some(Status::RetryExceeded));
}
