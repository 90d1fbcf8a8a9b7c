//! Endpoints around one switch: each has a link to it and one from it. A packet waits for its
//! sender's link, crosses it, joins the queue of its receiver's link, may be marked there, and meets
//! its fate on the last stretch.

use std::net::{IpAddr, Ipv4Addr};

use super::link::Line;
use super::{Fate, Faults, Link, Random, Wheel};
use crate::engine::{Config, Endpoint};
use crate::time::Time;
use crate::wire::{Ecn, Flow, Gid, Headers, Packet, Version};

/// What a network is made of.
#[derive(Clone, Debug)]
pub struct Topology {
    /// How many endpoints.
    pub ports: usize,
    /// Each endpoint's link to the switch.
    pub up: Link,
    /// The switch's link to each endpoint.
    pub down: Link,
    /// What goes wrong.
    pub faults: Faults,
    /// What the endpoints are.
    pub endpoint: Config,
}

impl Default for Topology {
    fn default() -> Topology {
        Topology {
            ports: 2,
            up: Link::default(),
            down: Link::default(),
            faults: Faults::NONE,
            endpoint: Config::default(),
        }
    }
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets that left an endpoint.
    pub sent: u64,
    /// Packets that an endpoint was given.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Thrown away for their ICRC.
    pub corrupted: u64,
    /// Lost because a queue was full.
    pub overflowed: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Marked.
    pub marked: u64,
}

#[derive(Debug)]
enum Event {
    /// A packet has come to the switch.
    AtSwitch(usize),
    /// A packet has come to the endpoint.
    AtPort(usize, usize),
    /// A port's link up is free.
    Free(usize),
    /// An endpoint wants to be asked again.
    Timer(usize),
}

#[derive(Debug)]
struct Port {
    endpoint: Endpoint,
    up: Line,
    down: Line,
    /// Its link up is in use; a `Free` will come.
    sending: bool,
    /// A `Timer` will come then.
    timer: Option<Time>,
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct Parcel {
    flow: Flow,
    headers: Headers,
    payload: Vec<u8>,
    /// How often it will still arrive.
    copies: u8,
}

/// A simulated network.
#[derive(Debug)]
pub struct Network {
    now: Time,
    events: Wheel<Event>,
    ports: Vec<Port>,
    random: Random,
    faults: Faults,
    overhead: usize,
    parcels: Vec<Parcel>,
    free: Vec<usize>,
    traffic: Traffic,
}

impl Network {
    /// A network whose history `seed` determines.
    pub fn new(seed: u64, topology: &Topology) -> Network {
        let port = || Port {
            endpoint: Endpoint::new(topology.endpoint.clone()),
            up: Line::new(topology.up),
            down: Line::new(topology.down),
            sending: false,
            timer: None,
        };
        Network {
            now: Time::ZERO,
            events: Wheel::default(),
            ports: (0..topology.ports).map(|_| port()).collect(),
            random: Random::new(seed),
            faults: topology.faults,
            overhead: topology.endpoint.overhead,
            parcels: Vec::new(),
            free: Vec::new(),
            traffic: Traffic::default(),
        }
    }

    /// The moment it is.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The address of a port's endpoint.
    pub fn gid(port: usize) -> Gid {
        let [high, low] = (port as u16 + 1).to_be_bytes();
        Gid::from(IpAddr::from(Ipv4Addr::new(10, 0, high, low)))
    }

    /// The flow from one port to another.
    pub fn flow(from: usize, to: usize) -> Flow {
        Flow::new(Version::V2, Network::gid(from), Network::gid(to))
    }

    /// A port's endpoint. After posting work to it, [`Network::kick`] the port.
    pub fn endpoint(&mut self, port: usize) -> &mut Endpoint {
        &mut self.ports[port].endpoint
    }

    /// What became of packets so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Bytes in the queue before a port's link from the switch.
    pub fn queued(&self, port: usize) -> u64 {
        self.ports[port].down.queued(self.now)
    }

    /// The most bytes that ever waited there.
    pub fn deepest(&self, port: usize) -> u64 {
        self.ports[port].down.deepest()
    }

    /// Something was posted to a port's endpoint.
    pub fn kick(&mut self, port: usize) {
        self.send(port);
        self.set_timer(port);
    }

    /// Lets the next thing happen; the port whose endpoint it touched. None when nothing will ever
    /// happen again.
    pub fn step(&mut self) -> Option<usize> {
        loop {
            let (at, event) = self.events.pop()?;
            self.now = self.now.max(at);
            match event {
                Event::AtSwitch(parcel) => self.forward(parcel),
                Event::AtPort(port, parcel) => {
                    self.deliver(port, parcel);
                    self.kick(port);
                    return Some(port);
                }
                Event::Free(port) => {
                    self.ports[port].sending = false;
                    self.kick(port);
                    return Some(port);
                }
                Event::Timer(port) => {
                    if self.ports[port].timer != Some(at) {
                        continue;
                    }
                    self.ports[port].timer = None;
                    self.ports[port].endpoint.on_timeout(self.now);
                    self.kick(port);
                    return Some(port);
                }
            }
        }
    }

    /// One packet from an endpoint onto its link, if the link is free.
    fn send(&mut self, port: usize) {
        if self.ports[port].sending || !self.ports[port].endpoint.has_work() {
            return;
        }
        let index = self.free.pop().unwrap_or(self.parcels.len());
        let mut filled = false;
        let parcels = &mut self.parcels;
        let mut sink = |flow: &Flow, headers: &Headers, payload: &[&[u8]]| {
            filled = true;
            fill(parcels, index, flow, headers, payload);
        };
        self.ports[port].endpoint.poll_transmit(self.now, &mut sink, 1);
        if !filled {
            if index < self.parcels.len() {
                self.free.push(index);
            }
            return;
        }
        self.traffic.sent += 1;
        let bytes = (self.parcels[index].payload.len() + self.overhead) as u64;
        let Some(passage) = self.ports[port].up.join(self.now, bytes, &mut self.random) else {
            self.traffic.overflowed += 1;
            self.free.push(index);
            return;
        };
        self.ports[port].sending = true;
        self.events.insert(passage.left, Event::Free(port));
        self.events.insert(passage.arrives, Event::AtSwitch(index));
    }

    /// The switch puts a packet into its receiver's queue.
    fn forward(&mut self, index: usize) {
        let parcel = &mut self.parcels[index];
        let to = parcel.flow.dest.0;
        let port = usize::from(u16::from_be_bytes([to[14], to[15]])).wrapping_sub(1);
        let bytes = (parcel.payload.len() + self.overhead) as u64;
        let passage = self
            .ports
            .get_mut(port)
            .and_then(|port| port.down.join(self.now, bytes, &mut self.random));
        let Some(passage) = passage else {
            self.traffic.overflowed += 1;
            self.free.push(index);
            return;
        };
        if passage.marked && parcel.flow.ecn != Ecn::NotCapable {
            parcel.flow.ecn = Ecn::Ce;
            self.traffic.marked += 1;
        }
        match self.faults.draw(&mut self.random) {
            Fate::Arrives(late) => {
                self.events.insert(passage.arrives + late, Event::AtPort(port, index));
            }
            Fate::Twice(first, second) => {
                self.traffic.duplicated += 1;
                self.parcels[index].copies = 2;
                self.events.insert(passage.arrives + first, Event::AtPort(port, index));
                self.events.insert(passage.arrives + second, Event::AtPort(port, index));
            }
            Fate::Lost => {
                self.traffic.lost += 1;
                self.free.push(index);
            }
            Fate::Corrupted => {
                self.traffic.corrupted += 1;
                self.free.push(index);
            }
        }
    }

    fn deliver(&mut self, port: usize, index: usize) {
        self.traffic.delivered += 1;
        let parcel = &mut self.parcels[index];
        parcel.copies -= 1;
        let packet = Packet { headers: parcel.headers, payload: &parcel.payload };
        self.ports[port].endpoint.receive(self.now, &parcel.flow, &packet);
        if parcel.copies == 0 {
            self.free.push(index);
        }
    }

    fn set_timer(&mut self, port: usize) {
        let port_state = &mut self.ports[port];
        let Some(at) = port_state.endpoint.next_timeout().map(|at| at.max(self.now)) else {
            return;
        };
        if port_state.timer.is_none_or(|timer| at < timer) {
            port_state.timer = Some(at);
            self.events.insert(at, Event::Timer(port));
        }
    }
}

/// Writes a packet into a parcel, whose buffer is reused.
fn fill(parcels: &mut Vec<Parcel>, index: usize, flow: &Flow, headers: &Headers, data: &[&[u8]]) {
    if let Some(parcel) = parcels.get_mut(index) {
        (parcel.flow, parcel.headers, parcel.copies) = (*flow, *headers, 1);
        parcel.payload.clear();
    } else {
        let (flow, headers) = (*flow, *headers);
        parcels.push(Parcel { flow, headers, payload: Vec::new(), copies: 1 });
    }
    for slice in data {
        parcels[index].payload.extend_from_slice(slice);
    }
}
