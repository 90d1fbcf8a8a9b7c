//! Random work on a connection, with a model of what must come of it: which bytes lie where, which
//! completions come in which order, which values atomics see.
#![allow(dead_code, unreachable_pub)]

use std::collections::VecDeque;

use lanekeeper_roce::engine::{
    Access, Completion, CompletionKind, Pieces, ReceiveRequest, Remote, Status, Transition, Verb,
    WorkRequest,
};
use lanekeeper_roce::sim::{Network, Random};

use super::End;

/// What fills memory that nothing may touch.
const CANARY: u8 = 0xee;

/// How much work, of which size.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Requests under way at once.
    pub slots: usize,
    /// The longest message.
    pub size: usize,
    /// Requests in all.
    pub requests: u64,
    /// How often a receive is not posted at once.
    pub starve: f64,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    id: u64,
    verb: Verb,
    slot: usize,
    length: usize,
    /// The value an atomic must find.
    old: u64,
}

/// Work from one end to the other.
#[derive(Debug)]
pub struct Load {
    from: End,
    to: End,
    own: u32,
    peer: u32,
    receives: u32,
    amount: Amount,
    random: Random,
    free: Vec<usize>,
    pending: VecDeque<Operation>,
    /// Operations that use a receive up, in the order in which they must.
    expected: VecDeque<Operation>,
    unposted: Vec<u64>,
    counter: u64,
    posted: u64,
    /// Requests that succeeded.
    pub done: u64,
    received: u64,
    announced: u64,
    /// How the first request that did not succeed ended.
    pub failed: Option<Status>,
    flushed: u64,
}

impl Load {
    /// Registers memory at both ends. The last 8 bytes of the peer's are the atomics' counter.
    pub fn new(network: &mut Network, from: End, to: End, amount: Amount, seed: u64) -> Load {
        let bytes = amount.slots * amount.size;
        let mut register = |end: &End, bytes: usize| {
            let memory = vec![CANARY; bytes].into();
            network
                .endpoint(end.port)
                .regions
                .register(end.domain, 0, memory, Access::ALL)
                .expect("a region")
        };
        let (own, peer) = (register(&from, bytes), register(&to, bytes + 8));
        let receives = register(&to, bytes);
        let mut load = Load {
            from,
            to,
            own,
            peer,
            receives,
            amount,
            random: Random::new(seed),
            free: (0..amount.slots).collect(),
            pending: VecDeque::new(),
            expected: VecDeque::new(),
            unposted: (0..amount.slots as u64).collect(),
            counter: 0,
            posted: 0,
            done: 0,
            received: 0,
            announced: 0,
            failed: None,
            flushed: 0,
        };
        let at = load.counter_at();
        network.endpoint(to.port).regions.bytes_mut(peer).expect("the load\'s region")[at..]
            .fill(0);
        load.post_receives(network, true);
        load
    }

    fn counter_at(&self) -> usize {
        self.amount.slots * self.amount.size
    }

    /// Everything is done, one way or the other.
    pub fn is_over(&self) -> bool {
        let all = self.done == self.amount.requests;
        self.pending.is_empty() && (all || self.failed.is_some())
    }

    /// Posts as much as there is room for.
    pub fn fill(&mut self, network: &mut Network) {
        self.post_receives(network, false);
        let mut any = false;
        while self.failed.is_none() && self.posted < self.amount.requests {
            let Some(slot) = self.free.pop() else { break };
            self.post(network, slot);
            any = true;
        }
        if any {
            network.kick(self.from.port);
        }
    }

    fn post_receives(&mut self, network: &mut Network, all: bool) {
        let mut any = false;
        let mut left = self.unposted.len();
        while left > 0 && self.failed.is_none() {
            left -= 1;
            if !all && self.random.chance(self.amount.starve) {
                continue;
            }
            let id = self.unposted.swap_remove(left);
            let size = self.amount.size;
            let local = Pieces::one(id * size as u64, size as u32, self.receives);
            let request = ReceiveRequest { id, local };
            let endpoint = network.endpoint(self.to.port);
            endpoint.post_receive(self.to.qpn, &request).expect("a receive is posted");
            any = true;
        }
        if any {
            network.kick(self.to.port);
        }
    }

    fn post(&mut self, network: &mut Network, slot: usize) {
        let at = slot * self.amount.size;
        let length = self.length();
        let remote = Remote { address: at as u64, rkey: self.peer };
        let counter = Remote { address: self.counter_at() as u64, rkey: self.peer };
        let value = self.random.word();
        let old = self.counter;
        let (verb, length) = match self.random.below(10) {
            0 | 1 => (Verb::Send, length),
            2 => (Verb::SendImmediate(value as u32), length),
            3 | 4 => (Verb::Write(remote), length),
            5 => (Verb::WriteImmediate(remote, value as u32), length),
            6 | 7 => (Verb::Read(remote), length),
            8 => {
                self.counter = old.wrapping_add(value);
                (Verb::FetchAdd { remote: counter, add: value }, 8)
            }
            _ => {
                let equal = value.is_multiple_of(2);
                self.counter = if equal { value } else { old };
                let compare = if equal { old } else { !old };
                (Verb::CompareSwap { remote: counter, compare, swap: value }, 8)
            }
        };
        let id = self.posted;
        self.posted += 1;
        let operation = Operation { id, verb, slot, length, old };
        self.prepare(network, &operation);
        let local = Pieces::one(at as u64, length as u32, self.own);
        let work =
            WorkRequest { fence: value.is_multiple_of(16), ..WorkRequest::new(id, verb, local) };
        network.endpoint(self.from.port).post_send(self.from.qpn, &work).expect("work is posted");
        self.pending.push_back(operation);
        if matches!(verb, Verb::Send | Verb::SendImmediate(_) | Verb::WriteImmediate(..)) {
            self.announced += 1;
            self.expected.push_back(operation);
        }
    }

    /// Empty, short and long ones, and those around packet boundaries.
    fn length(&mut self) -> usize {
        let size = self.amount.size as u64;
        let length = match self.random.below(8) {
            0 => 0,
            1 => 1 + self.random.below(16),
            2 => 256 * self.random.below(1 + size / 256) + self.random.below(3),
            _ => self.random.below(size + 1),
        };
        length.min(size) as usize
    }

    /// Random bytes where data comes from, canaries where it goes.
    fn prepare(&mut self, network: &mut Network, operation: &Operation) {
        let range = operation.slot * self.amount.size..(operation.slot + 1) * self.amount.size;
        let random = &mut self.random;
        let mut set = |port: usize, key: u32, data: bool| {
            let bytes =
                &mut network.endpoint(port).regions.bytes_mut(key).expect("the load\'s region")
                    [range.clone()];
            if data {
                random.fill(&mut bytes[..operation.length]);
            } else {
                bytes.fill(CANARY);
            }
        };
        let reads = matches!(operation.verb, Verb::Read(_));
        set(self.to.port, self.peer, reads);
        set(self.from.port, self.own, !reads);
    }

    /// A send request of this load's completed.
    pub fn completed(&mut self, network: &mut Network, done: &Completion) {
        let operation = self.pending.pop_front().expect("no completion without a request");
        assert_eq!(done.id, operation.id, "completions come in order");
        if done.status != Status::Success {
            match self.failed {
                None => self.failed = Some(done.status),
                Some(_) => {
                    assert_eq!(done.status, Status::WrFlush, "behind a failure all is flushed");
                }
            }
            return;
        }
        assert_eq!(self.failed, None, "nothing succeeds behind a failure");
        self.done += 1;
        self.check(network, &operation);
        self.free.push(operation.slot);
    }

    fn check(&self, network: &mut Network, operation: &Operation) {
        let size = self.amount.size;
        let range = operation.slot * size..(operation.slot + 1) * size;
        let own =
            network.endpoint(self.from.port).regions.bytes(self.own).expect("the load\'s region")
                [range.clone()]
            .to_vec();
        let peer =
            &network.endpoint(self.to.port).regions.bytes(self.peer).expect("the load\'s region")
                [range];
        let (data, rest) = own.split_at(operation.length);
        match operation.verb {
            Verb::Write(_) | Verb::WriteImmediate(..) => {
                assert_eq!(&peer[..operation.length], data, "{operation:?}");
                assert!(peer[operation.length..].iter().all(|byte| *byte == CANARY));
            }
            Verb::Read(_) => {
                assert_eq!(&peer[..operation.length], data, "{operation:?}");
                assert!(rest.iter().all(|byte| *byte == CANARY));
            }
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => {
                assert_eq!(data, operation.old.to_ne_bytes(), "an atomic is done once, in order");
            }
            _ => {
                let waits = self.expected.front().is_some_and(|next| next.id <= operation.id);
                assert!(!waits, "a SEND completes only when it was received");
            }
        }
    }

    /// A receive that this load posted at the other end completed.
    pub fn arrived(&mut self, network: &mut Network, done: &Completion) {
        if done.status != Status::Success {
            assert_eq!(done.status, Status::WrFlush);
            self.flushed += 1;
            return;
        }
        self.received += 1;
        let operation = self.expected.pop_front().expect("nothing arrives that was not sent");
        assert_eq!(done.bytes as usize, operation.length);
        let immediate = match operation.verb {
            Verb::SendImmediate(value) | Verb::WriteImmediate(_, value) => Some(value),
            _ => None,
        };
        assert_eq!(done.immediate, immediate, "messages arrive in order, once");
        if !matches!(operation.verb, Verb::WriteImmediate(..)) {
            assert_eq!(done.kind, CompletionKind::Receive);
            let size = self.amount.size;
            let sent = network
                .endpoint(self.from.port)
                .regions
                .bytes(self.own)
                .expect("the load\'s region")[operation.slot * size..][..operation.length]
                .to_vec();
            let got = &network
                .endpoint(self.to.port)
                .regions
                .bytes(self.receives)
                .expect("the load\'s region")[done.id as usize * size..][..operation.length];
            assert_eq!(got, sent, "{operation:?}");
        }
        self.unposted.push(done.id);
    }

    /// At the end: the counter is what all atomics together make of it.
    pub fn finish(&self, network: &mut Network) {
        if self.failed.is_none() {
            let at = self.counter_at();
            let bytes = &network
                .endpoint(self.to.port)
                .regions
                .bytes(self.peer)
                .expect("the load\'s region")[at..];
            assert_eq!(bytes, self.counter.to_ne_bytes());
            assert_eq!(self.received, self.announced, "each message arrives once");
        }
    }
}

/// Runs loads in both directions over one connection until both are over.
pub fn run(network: &mut Network, loads: &mut [Load; 2], limit: u64) {
    let mut steps = 0_u64;
    for load in loads.iter_mut() {
        load.fill(network);
    }
    while !loads.iter().all(Load::is_over) {
        assert!(network.now().nanos() < limit, "not over in time: {:?}", network.traffic());
        steps += 1;
        let port = network.step();
        if let Some(port) = port {
            take(network, loads, port);
        }
        // A receive that was held back comes in the end, though nothing else completes.
        if port.is_none() || steps.is_multiple_of(1024) {
            for load in loads.iter_mut() {
                load.post_receives(network, true);
            }
        }
    }
    for load in loads.iter() {
        load.finish(network);
    }
}

/// Polls what completed at a port. A connection that failed at one end is ended at both, as its
/// owner would.
fn take(network: &mut Network, loads: &mut [Load; 2], port: usize) {
    if poll(network, loads, port) == 0 {
        return;
    }
    if loads.iter().all(|load| load.failed.is_none()) {
        for load in loads.iter_mut() {
            load.fill(network);
        }
        return;
    }
    for load in loads.iter_mut() {
        let endpoint = network.endpoint(load.from.port);
        endpoint.modify(load.from.qpn, &Transition::Error).expect("to ERR");
        load.failed.get_or_insert(Status::WrFlush);
    }
    // What had arrived before the end is looked at before what it was sent by.
    poll(network, loads, 1 - port);
    poll(network, loads, port);
}

fn poll(network: &mut Network, loads: &mut [Load; 2], port: usize) -> usize {
    let end = loads[port].from;
    let completions = end.polled(network);
    for done in &completions {
        match done.kind {
            CompletionKind::Receive | CompletionKind::ReceiveWrite => {
                loads[1 - port].arrived(network, done);
            }
            _ => loads[port].completed(network, done),
        }
    }
    completions.len()
}
