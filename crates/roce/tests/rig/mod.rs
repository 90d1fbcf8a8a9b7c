//! Two endpoints and a pair of connected queue pairs on a simulated network, for tests.
#![allow(dead_code, unreachable_pub)]

pub mod load;

use lanekeeper_roce::engine::{
    Access, Completion, CqId, Domain, Init, Pieces, QpSettings, ReadyToReceive, ReadyToSend,
    ReceiveRequest, Remote, Transition, Verb, WorkRequest,
};
use lanekeeper_roce::sim::{Network, Topology};
use lanekeeper_roce::time::Time;
use lanekeeper_roce::wire::{PathMtu, Psn, Qpn, Service};

/// What a test may want different.
#[derive(Clone, Debug)]
pub struct Choice {
    pub service: Service,
    pub mtu: PathMtu,
    pub window: u32,
    pub selective: bool,
    pub credits: bool,
    pub ack_timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rnr_timer: u8,
    pub reads: u8,
    pub psn: u32,
    pub access: Access,
    pub region: usize,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice {
            service: Service::Rc,
            mtu: PathMtu::M1024,
            window: 64,
            selective: false,
            credits: true,
            ack_timeout: 5,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: 1,
            reads: 4,
            psn: 0xff_fff0,
            access: Access::ALL,
            region: 1 << 16,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub port: usize,
    pub qpn: Qpn,
    pub queue: CqId,
    pub domain: Domain,
    pub key: u32,
    /// Where its region begins.
    pub base: u64,
}

impl End {
    pub fn pieces(&self, offset: u64, length: u32) -> Pieces {
        Pieces::one(self.base + offset, length, self.key)
    }

    pub fn remote(&self, offset: u64) -> Remote {
        Remote { address: self.base + offset, rkey: self.key }
    }

    pub fn bytes<'a>(&self, network: &'a mut Network) -> &'a mut [u8] {
        network.endpoint(self.port).regions.bytes_mut(self.key).expect("the end's region")
    }

    pub fn send(&self, network: &mut Network, work: &WorkRequest) {
        network.endpoint(self.port).post_send(self.qpn, work).expect("the request is posted");
        network.kick(self.port);
    }

    pub fn verb(&self, network: &mut Network, id: u64, verb: Verb, offset: u64, length: u32) {
        self.send(network, &WorkRequest::new(id, verb, self.pieces(offset, length)));
    }

    pub fn receive(&self, network: &mut Network, id: u64, offset: u64, length: u32) {
        let request = ReceiveRequest { id, local: self.pieces(offset, length) };
        network.endpoint(self.port).post_receive(self.qpn, &request).expect("a receive is posted");
        network.kick(self.port);
    }

    pub fn poll(&self, network: &mut Network) -> Option<Completion> {
        network.endpoint(self.port).poll(self.queue)
    }

    pub fn polled(&self, network: &mut Network) -> Vec<Completion> {
        std::iter::from_fn(|| self.poll(network)).collect()
    }
}

/// A queue pair in INIT with a region of its own.
pub fn end(network: &mut Network, port: usize, choice: &Choice) -> End {
    let endpoint = network.endpoint(port);
    let (domain, queue) = (endpoint.domain(), endpoint.completion_queue());
    let base = 0x1_0000 * (port as u64 + 1);
    let bytes = vec![0; choice.region].into();
    let key = endpoint.regions.register(domain, base, bytes, Access::ALL).expect("a region");
    let settings = QpSettings {
        window: choice.window,
        selective: choice.selective,
        credits: choice.credits,
        max_sends: 1024,
        max_receives: 1024,
        ..QpSettings::new(choice.service, domain, queue)
    };
    let qpn = endpoint.create(settings).expect("a queue pair");
    let init = Init { access: choice.access, qkey: 0x1111, ..Init::default() };
    endpoint.modify(qpn, &Transition::Init(init)).expect("INIT");
    End { port, qpn, queue, domain, key, base }
}

/// Brings two ends to RTS, each with the other.
pub fn connect(network: &mut Network, left: &End, right: &End, choice: &Choice) {
    for (own, peer) in [(left, right), (right, left)] {
        let psn = |end: &End| Psn::truncate(choice.psn + end.port as u32 * 1000);
        let rtr = ReadyToReceive {
            flow: Network::flow(own.port, peer.port),
            peer: peer.qpn,
            mtu: choice.mtu,
            first_psn: psn(peer),
            reads: choice.reads,
            rnr_timer: choice.rnr_timer,
        };
        let rts = ReadyToSend {
            first_psn: psn(own),
            ack_timeout: choice.ack_timeout,
            retries: choice.retries,
            rnr_retries: choice.rnr_retries,
            reads: choice.reads,
        };
        let endpoint = network.endpoint(own.port);
        endpoint.modify(own.qpn, &Transition::Rtr(rtr)).expect("RTR");
        endpoint.modify(own.qpn, &Transition::Rts(rts)).expect("RTS");
    }
}

/// A network of two with one connection.
pub fn pair(seed: u64, topology: &Topology, choice: &Choice) -> (Network, End, End) {
    let mut network = Network::new(seed, topology);
    let (left, right) = (end(&mut network, 0, choice), end(&mut network, 1, choice));
    connect(&mut network, &left, &right, choice);
    (network, left, right)
}

/// Lets things happen until nothing does any more, or a second of the network's time has passed.
pub fn settle(network: &mut Network) {
    let end = Time::from_nanos(network.now().nanos() + 1_000_000_000);
    while network.now() < end && network.step().is_some() {}
}
