//! One port: its regions, its queue pairs, and the three doors of a driver: packets in, packets out,
//! time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::qp::{QueuePair, Step};
use super::{
    Completion, CqId, Domain, EngineError, Event, QpInfo, QpSettings, ReceiveRequest, Regions,
    Transition, WorkRequest,
};
use crate::dcqcn::Dcqcn;
use crate::time::Time;
use crate::wire::{Flow, Headers, Packet, Qpn, Service};

/// Numbers 0 and 1 are the standard's (IBTA 3.9.5, 13.5).
const RESERVED: usize = 2;
/// A number's low bits say which slot; its high ones how often the slot was used before.
const SLOT_BITS: u32 = 16;

/// What an endpoint is for its whole life.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Congestion control; none sends as fast as it is asked to.
    pub dcqcn: Option<Dcqcn>,
    /// Bytes a packet has on the wire besides its payload, for rates.
    pub overhead: usize,
}

impl Default for Config {
    /// No congestion control; an overhead of preamble, gap, Ethernet, IPv4, UDP, BTH, ICRC and FCS.
    fn default() -> Config {
        Config { dcqcn: None, overhead: 20 + 14 + 20 + 8 + 12 + 4 + 4 }
    }
}

/// Where packets go that an endpoint sends.
pub trait Sink {
    /// Takes one packet; its payload is the slices, one after the other.
    fn send(&mut self, flow: &Flow, headers: &Headers, payload: &[&[u8]]);
}

impl<F: FnMut(&Flow, &Headers, &[&[u8]])> Sink for F {
    fn send(&mut self, flow: &Flow, headers: &Headers, payload: &[&[u8]]) {
        self(flow, headers, payload);
    }
}

/// What a queue pair needs of its endpoint.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) regions: &'a mut Regions,
    pub(crate) queues: &'a mut [VecDeque<Completion>],
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) dcqcn: Option<&'a Dcqcn>,
    pub(crate) overhead: usize,
}

impl Context<'_> {
    pub(crate) fn complete(&mut self, queue: CqId, completion: Completion) {
        if let Some(queue) = self.queues.get_mut(queue.0 as usize) {
            queue.push_back(completion);
        }
    }
}

#[derive(Debug)]
struct Slot {
    qp: QueuePair,
    /// It is in `ready`.
    queued: bool,
    /// The moment it has in `timers`, if that is still wanted.
    armed: Option<Time>,
}

/// A port with its queue pairs.
#[derive(Debug, Default)]
pub struct Endpoint {
    config: Config,
    /// Registered memory.
    pub regions: Regions,
    domains: u32,
    queues: Vec<VecDeque<Completion>>,
    events: VecDeque<Event>,
    slots: Vec<Option<Box<Slot>>>,
    /// How often each slot was used before.
    uses: Vec<u8>,
    free: VecDeque<usize>,
    /// Queue pairs that may have something to send, in turn.
    ready: VecDeque<usize>,
    timers: BinaryHeap<Reverse<(Time, usize)>>,
    /// Packets for numbers that no queue pair has.
    strangers: u64,
}

impl Endpoint {
    /// An endpoint without anything on it.
    pub fn new(config: Config) -> Endpoint {
        Endpoint { config, ..Endpoint::default() }
    }

    /// A new protection domain.
    pub fn domain(&mut self) -> Domain {
        self.domains += 1;
        Domain(self.domains)
    }

    /// A new completion queue. It holds whatever is not polled.
    pub fn completion_queue(&mut self) -> CqId {
        self.queues.push(VecDeque::new());
        CqId(self.queues.len() as u32 - 1)
    }

    /// A new queue pair, in RESET.
    ///
    /// # Errors
    ///
    /// When its service is none that queue pairs have, its completion queues are not this
    /// endpoint's, or there are 65,534 already.
    pub fn create(&mut self, settings: QpSettings) -> Result<Qpn, EngineError> {
        if settings.service == Service::Congestion {
            return Err(EngineError::Service(settings.service));
        }
        for queue in [settings.send_queue, settings.receive_queue] {
            if queue.0 as usize >= self.queues.len() {
                return Err(EngineError::NoCompletionQueue(queue.0));
            }
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < (1 << SLOT_BITS) - RESERVED => {
                self.slots.push(None);
                self.uses.push(0);
                self.slots.len() - 1
            }
            None => return Err(EngineError::TooManyQueuePairs(self.slots.len())),
        };
        let number = u32::from(self.uses[index]) << SLOT_BITS | (index + RESERVED) as u32;
        let qpn = Qpn::truncate(number);
        let qp = QueuePair::new(qpn, settings);
        self.slots[index] = Some(Box::new(Slot { qp, queued: false, armed: None }));
        Ok(qpn)
    }

    /// Ends a queue pair, without completions. Its number comes back late: packets that are still on
    /// their way must not meet a new one.
    ///
    /// # Errors
    ///
    /// When there is none of the number.
    pub fn destroy(&mut self, qpn: Qpn) -> Result<(), EngineError> {
        let index = self.index(qpn).ok_or(EngineError::NoQueuePair(qpn))?;
        self.slots[index] = None;
        self.uses[index] = self.uses[index].wrapping_add(1);
        self.free.push_back(index);
        Ok(())
    }

    /// Brings a queue pair to another state.
    ///
    /// # Errors
    ///
    /// When there is no such way from its state (IBTA 10.3.1), or an attribute is out of range.
    pub fn modify(&mut self, qpn: Qpn, transition: &Transition) -> Result<(), EngineError> {
        self.with(qpn, Time::ZERO, |qp, context| qp.modify(transition, context))?
    }

    /// What can be seen of a queue pair.
    ///
    /// # Errors
    ///
    /// When there is none of the number.
    pub fn query(&mut self, qpn: Qpn, now: Time) -> Result<QpInfo, EngineError> {
        let index = self.index(qpn).ok_or(EngineError::NoQueuePair(qpn))?;
        let info = self.context(now, index, |qp, context| qp.info(context));
        info.ok_or(EngineError::NoQueuePair(qpn))
    }

    /// Queues work.
    ///
    /// # Errors
    ///
    /// The immediate errors of IBTA 11.4.1.1; whatever fails later comes as a completion.
    pub fn post_send(&mut self, qpn: Qpn, work: &WorkRequest) -> Result<(), EngineError> {
        self.with(qpn, Time::ZERO, |qp, context| qp.post_send(work, context))?
    }

    /// Queues a receive.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::post_send`].
    pub fn post_receive(&mut self, qpn: Qpn, receive: &ReceiveRequest) -> Result<(), EngineError> {
        self.with(qpn, Time::ZERO, |qp, context| qp.post_receive(receive, context))?
    }

    /// The next completion of a queue.
    pub fn poll(&mut self, queue: CqId) -> Option<Completion> {
        self.queues.get_mut(queue.0 as usize)?.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Packets that came for numbers that no queue pair has.
    pub fn strangers(&self) -> u64 {
        self.strangers
    }

    /// A packet came in.
    pub fn receive(&mut self, now: Time, flow: &Flow, packet: &Packet) {
        let qpn = packet.headers.bth.dest;
        let taken = self.with(qpn, now, |qp, context| qp.receive(flow, packet, context));
        if taken.is_err() {
            self.strangers += 1;
        }
    }

    /// Sends what may go at `now`, up to `budget` packets, queue pair after queue pair; how many
    /// went.
    pub fn poll_transmit(&mut self, now: Time, sink: &mut impl Sink, budget: usize) -> usize {
        let mut sent = 0;
        while sent < budget {
            let Some(index) = self.ready.pop_front() else { break };
            let step = self.context(now, index, |qp, context| qp.transmit(context, sink));
            let Some(step) = step else { continue };
            if let Some(slot) = &mut self.slots[index] {
                slot.queued = false;
            }
            match step {
                Step::Sent => {
                    sent += 1;
                    self.wake(index);
                }
                Step::Wait(at) => self.arm(index, at),
                Step::Idle => {}
            }
            self.arm_deadline(index);
        }
        sent
    }

    /// Whether something may be ready to send.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When to call [`Endpoint::on_timeout`] at the latest. It may turn out to be too early.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Time has come to `now`.
    pub fn on_timeout(&mut self, now: Time) {
        while let Some(&Reverse((at, index))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(slot) = self.slots[index].as_mut().filter(|slot| slot.armed == Some(at))
            else {
                continue;
            };
            slot.armed = None;
            self.context(now, index, QueuePair::expire);
            self.wake(index);
            self.arm_deadline(index);
        }
    }

    fn index(&self, qpn: Qpn) -> Option<usize> {
        let low = qpn.get() as usize & ((1 << SLOT_BITS) - 1);
        let index = low.checked_sub(RESERVED)?;
        let slot = self.slots.get(index)?.as_ref()?;
        (slot.qp.number() == qpn).then_some(index)
    }

    /// Does something with a queue pair that may give it something to send.
    fn with<T>(
        &mut self,
        qpn: Qpn,
        now: Time,
        act: impl FnOnce(&mut QueuePair, &mut Context) -> T,
    ) -> Result<T, EngineError> {
        let index = self.index(qpn).ok_or(EngineError::NoQueuePair(qpn))?;
        let done = self.context(now, index, act).ok_or(EngineError::NoQueuePair(qpn))?;
        self.wake(index);
        self.arm_deadline(index);
        Ok(done)
    }

    fn context<T>(
        &mut self,
        now: Time,
        index: usize,
        act: impl FnOnce(&mut QueuePair, &mut Context) -> T,
    ) -> Option<T> {
        let slot = self.slots.get_mut(index)?.as_mut()?;
        let mut context = Context {
            now,
            regions: &mut self.regions,
            queues: &mut self.queues,
            events: &mut self.events,
            dcqcn: self.config.dcqcn.as_ref(),
            overhead: self.config.overhead,
        };
        Some(act(&mut slot.qp, &mut context))
    }

    fn wake(&mut self, index: usize) {
        if let Some(slot) = self.slots[index].as_mut().filter(|slot| !slot.queued) {
            slot.queued = true;
            self.ready.push_back(index);
        }
    }

    fn arm_deadline(&mut self, index: usize) {
        if let Some(at) = self.slots[index].as_ref().and_then(|slot| slot.qp.deadline()) {
            self.arm(index, at);
        }
    }

    fn arm(&mut self, index: usize, at: Time) {
        let slot = self.slots[index].as_mut();
        if let Some(slot) = slot.filter(|slot| slot.armed.is_none_or(|armed| at < armed)) {
            slot.armed = Some(at);
            self.timers.push(Reverse((at, index)));
        }
    }
}
