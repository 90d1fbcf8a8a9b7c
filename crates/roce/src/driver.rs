//! Joins an [`Endpoint`] with a [`Wire`] and the real clock: a loop that takes what has arrived, lets
//! time pass, and sends what may go.

use std::time::{Duration, Instant};

use crate::engine::Endpoint;
use crate::time::Time;
use crate::transport::{FRAME_CAPACITY, Wire, WireError};
use crate::wire::{Flow, Headers};

/// Packets of one kind before the others have their turn.
const BATCH: usize = 32;

/// An endpoint on a wire.
#[derive(Debug)]
pub struct Driver<W> {
    /// The endpoint: verbs are posted and completions polled here, between turns.
    pub endpoint: Endpoint,
    wire: W,
    start: Instant,
    buffer: Box<[u8]>,
    /// A packet that the wire had no room for.
    waiting: Option<Waiting>,
    /// How long to look for work before sleeping.
    spin: Duration,
    malformed: u64,
}

#[derive(Debug)]
struct Waiting {
    flow: Flow,
    headers: Headers,
    payload: Vec<u8>,
}

impl<W: Wire> Driver<W> {
    /// An endpoint on a wire. It sleeps as soon as there is nothing to do.
    pub fn new(endpoint: Endpoint, wire: W) -> Driver<W> {
        Driver {
            endpoint,
            wire,
            start: Instant::now(),
            buffer: vec![0; FRAME_CAPACITY].into(),
            waiting: None,
            spin: Duration::ZERO,
            malformed: 0,
        }
    }

    /// Looks for work so long before it sleeps: a core's time for microseconds of latency.
    #[must_use]
    pub fn spinning(mut self, spin: Duration) -> Driver<W> {
        self.spin = spin;
        self
    }

    /// The wire.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// The wire, to change it.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// The endpoint's time.
    pub fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Frames that arrived and were none, a wrong ICRC among the reasons.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// One turn, without sleeping: whether anything came or went.
    ///
    /// # Errors
    ///
    /// The wire refused. A packet that could not be sent counts as lost; the next turn goes on.
    pub fn turn(&mut self) -> Result<bool, WireError> {
        let received = self.take_arrived()?;
        let now = self.now();
        if self.endpoint.next_timeout().is_some_and(|at| at <= now) {
            self.endpoint.on_timeout(now);
        }
        let sent = self.send_ready()?;
        Ok(received + sent > 0)
    }

    /// Takes turns until `done` says so, or `limit` is over; whether it was done.
    ///
    /// # Errors
    ///
    /// As for [`Driver::turn`].
    pub fn run(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Endpoint) -> bool,
    ) -> Result<bool, WireError> {
        let end = Instant::now() + limit;
        let mut busy = Instant::now();
        loop {
            if done(&mut self.endpoint) {
                return Ok(true);
            }
            let active = self.turn()?;
            let now = Instant::now();
            if now >= end {
                return Ok(done(&mut self.endpoint));
            }
            if active {
                busy = now;
            } else if now - busy >= self.spin {
                // What a timer ended is done without a packet.
                if done(&mut self.endpoint) {
                    return Ok(true);
                }
                self.rest(end - now)?;
            }
        }
    }

    /// Sleeps until something arrives or is due.
    fn rest(&mut self, limit: Duration) -> Result<(), WireError> {
        if self.endpoint.has_work() && self.waiting.is_none() {
            return Ok(());
        }
        let due = self.endpoint.next_timeout().map(|at| at.since(self.now()));
        let mut span = due.unwrap_or(limit).min(limit);
        if self.waiting.is_some() {
            // The wire does not say when it has room again.
            span = span.min(Duration::from_micros(50));
        }
        self.wire.wait(span)?;
        Ok(())
    }

    fn take_arrived(&mut self) -> Result<usize, WireError> {
        for count in 0..BATCH {
            let now = Time::ZERO + self.start.elapsed();
            match self.wire.receive(&mut self.buffer)? {
                None => return Ok(count),
                Some(Ok(frame)) => self.endpoint.receive(now, &frame.flow, &frame.packet),
                Some(Err(_)) => self.malformed += 1,
            }
        }
        Ok(BATCH)
    }

    fn send_ready(&mut self) -> Result<usize, WireError> {
        if let Some(waiting) = &self.waiting {
            if !self.wire.send(&waiting.flow, &waiting.headers, &[&waiting.payload])? {
                return Ok(0);
            }
            self.waiting = None;
        }
        for count in 0..BATCH {
            let now = self.now();
            let (wire, waiting) = (&mut self.wire, &mut self.waiting);
            let mut failure = None;
            let mut sink = |flow: &Flow, headers: &Headers, payload: &[&[u8]]| match wire
                .send(flow, headers, payload)
            {
                Ok(true) => {}
                Ok(false) => {
                    let (flow, headers) = (*flow, *headers);
                    *waiting = Some(Waiting { flow, headers, payload: payload.concat() });
                }
                Err(error) => failure = Some(error),
            };
            let sent = self.endpoint.poll_transmit(now, &mut sink, 1);
            if let Some(error) = failure {
                return Err(error);
            }
            if sent == 0 || self.waiting.is_some() {
                return Ok(count);
            }
        }
        Ok(BATCH)
    }
}
