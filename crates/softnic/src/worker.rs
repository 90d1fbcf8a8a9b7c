//! A worker: one thread that takes frames from VFs and the uplink in batches and gives each to
//! whoever it is for.
//!
//! One round looks at every ring the worker polls. Of each it takes up to 32 frames; copies the
//! virtio-net header and the first bytes of each out of guest memory, once, and judges only that
//! copy; then visits each receiver once, with its ring locked, and copies the frames straight from
//! the sender's buffers into the receiver's; then gives the sender its buffers back. Nothing is
//! allocated, and neither a lock nor the kernel is involved, for a single frame: locks,
//! publications and interrupts come once a batch.
//!
//! When nothing came for a while the worker asks all rings for kicks, looks once more, and sleeps.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lanekeeper_model::{DropReason, MAX_VFS};
use rustix::event::epoll;

use crate::cores;
use crate::features;
use crate::nic::{News, Published, Shared};
use crate::ring::{BATCH, Fill, FillError, Gather, PopScratch, Popped, RingFault, guard};
use crate::roce;
use crate::switch::{
    EDITED_HEAD, Egress, FrameBytes, HEAD, Ingress, Meter, NetHeader, OffloadSet, PortTally, Route,
    Segments, Source, SwitchTable, Work, WorkerCounters, finish_checksum, flow_hash, judge_egress,
    judge_ingress, judge_uplink, judge_uplink_egress,
};
use crate::uplink::{ReceiveBatch, UplinkQueue};

/// Rounds in a row that VFs with a guarantee have to themselves at most.
const FAVOURED_ROUNDS: u32 = 8;
/// How long a worker sleeps at most while some ring gives it no kick, or its uplink's driver none.
const WITHOUT_KICK: Duration = Duration::from_millis(1);

/// A worker, to be run on a thread of its own or polled.
pub struct Worker {
    shared: Arc<Shared>,
    number: usize,
    published: Arc<Published>,
    seen_table: u64,
    seen_rings: u64,
    /// Rings to take frames from, as (VF, pair).
    polled: Vec<(usize, usize)>,
    bells: Bells,
    uplink: Option<UplinkQueue>,
    received: Box<ReceiveBatch>,
    scratch: Box<PopScratch>,
    batch: Box<Batch>,
    edits: Box<[[u8; EDITED_HEAD]; BATCH]>,
    meters: Box<[Option<Meter>; MAX_VFS]>,
    started: Instant,
    /// Counts up to [`u16::MAX`] and begins anew.
    rounds: u16,
    /// Rounds in a row in which only VFs with a guarantee were served.
    favoured: u32,
    /// Mappings that had been lost when this was last looked at.
    seen_lost: usize,
    /// Batches until one is looked at for RoCE.
    until_roce: u32,
}

/// What wakes a sleeping worker.
struct Bells {
    epoll: std::os::fd::OwnedFd,
    kicks: Vec<Arc<File>>,
    /// Some ring has no kick and must be looked at from time to time.
    some_without: bool,
}

impl Bells {
    /// Wait for the kicks of just these rings. Edge-triggered, so that no counter need be read.
    fn set_kicks(&mut self, kicks: Vec<Option<Arc<File>>>) {
        for kick in self.kicks.drain(..) {
            // It may be gone with its front-end already.
            let _ = epoll::delete(&self.epoll, &kick);
        }
        self.some_without = kicks.iter().any(Option::is_none);
        for kick in kicks.into_iter().flatten() {
            let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
            if epoll::add(&self.epoll, &kick, epoll::EventData::new_u64(0), edge).is_ok() {
                self.kicks.push(kick);
            } else {
                self.some_without = true;
            }
        }
    }

    fn wait(&self, timeout: Option<Duration>) {
        let timeout = if self.some_without { Some(WITHOUT_KICK) } else { timeout };
        let timeout = timeout.and_then(|timeout| rustix::time::Timespec::try_from(timeout).ok());
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 8];
        // An interrupted wait is a short one.
        let _ = epoll::wait(&self.epoll, &mut events, timeout.as_ref());
    }
}

/// A batch of frames on its way through the switch: what was read of each, and what was decided.
struct Batch {
    heads: [[u8; HEAD]; BATCH],
    head_len: [u8; BATCH],
    /// Length of the frame, net header excluded.
    len: [u32; BATCH],
    ingress: [Option<Ingress>; BATCH],
    /// Frames for each VF, one bit each.
    to_vf: [u32; MAX_VFS],
    /// VFs with a bit in `to_vf`.
    vfs: u64,
    to_uplink: u32,
}

impl Batch {
    fn new() -> Self {
        Self {
            heads: [[0; HEAD]; BATCH],
            head_len: [0; BATCH],
            len: [0; BATCH],
            ingress: [None; BATCH],
            to_vf: [0; MAX_VFS],
            vfs: 0,
            to_uplink: 0,
        }
    }

    /// Notes the length of a frame; gives the room that its first bytes are to be copied to.
    #[inline(always)]
    fn begin(&mut self, frame: usize, len: usize) -> &mut [u8] {
        let head_len = len.min(HEAD);
        self.head_len[frame] = head_len as u8;
        self.len[frame] = len as u32;
        &mut self.heads[frame][..head_len]
    }

    #[inline]
    fn head(&self, frame: usize) -> &[u8] {
        &self.heads[frame][..self.head_len[frame] as usize]
    }

    #[inline]
    fn route(&mut self, frame: usize, route: Route) {
        let bit = 1u32 << frame;
        match route {
            Route::Vf(vf) => {
                self.to_vf[vf] |= bit;
                self.vfs |= 1 << vf;
            }
            Route::Group { vfs, uplink } => {
                for vf in bits(vfs) {
                    self.to_vf[vf] |= bit;
                }
                self.vfs |= vfs;
                self.to_uplink |= u32::from(uplink) << frame;
            }
        }
    }

    /// Count a frame that the uplink did not take. Unless a VF took it, too, it was not sent.
    #[cold]
    fn not_taken(&self, frame: usize, reason: DropReason, tally: &mut PortTally) {
        tally.tx_drop(reason);
        if !bits(self.vfs).any(|vf| self.to_vf[vf] & 1 << frame != 0) {
            tally.take_back_tx(self.len[frame] as usize);
        }
    }

    fn clear(&mut self) {
        for vf in bits(self.vfs) {
            self.to_vf[vf] = 0;
        }
        self.vfs = 0;
        self.to_uplink = 0;
    }
}

/// Numbers of the bits that are set.
#[inline]
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        lowest
    })
}

/// What the steps of a round share, borrowed apart from what they change.
#[derive(Clone, Copy)]
struct Round<'a> {
    shared: &'a Shared,
    table: &'a SwitchTable,
    counters: &'a WorkerCounters,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        number: usize,
        uplink: Option<UplinkQueue>,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &shared.wakes[number], data, edge)?;
        if let Some(fd) = uplink.as_ref().and_then(UplinkQueue::fd) {
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN)?;
        }
        let published = shared.published();
        Ok(Self {
            shared,
            number,
            published,
            seen_table: 0,
            seen_rings: 0,
            polled: Vec::new(),
            bells: Bells { epoll, kicks: Vec::new(), some_without: false },
            uplink,
            received: Box::default(),
            scratch: Box::default(),
            batch: Box::new(Batch::new()),
            edits: Box::new([[0; EDITED_HEAD]; BATCH]),
            meters: Box::new([None; MAX_VFS]),
            started: Instant::now(),
            rounds: 0,
            favoured: 0,
            seen_lost: guard::lost_so_far(),
            until_roce: 0,
        })
    }

    /// Serve until the NIC stops, on core `cpu` if one is named.
    pub(crate) fn run(mut self, cpu: Option<usize>) {
        if let Some(cpu) = cpu
            && let Err(error) = cores::pin(cpu)
        {
            // It was usable when the configuration was read.
            tracing::warn!(worker = self.number, cpu, %error, "cannot run on that core; the kernel places this worker");
        }
        let spin = Duration::from_micros(self.shared.config.idle_spin_us);
        let mut idle_since = None;
        while !self.shared.is_stopped() {
            if self.poll() > 0 {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() < spin {
                std::hint::spin_loop();
                continue;
            }
            self.sleep();
            idle_since = None;
        }
    }

    /// One round over everything this worker serves; how many frames it moved.
    pub fn poll(&mut self) -> usize {
        self.take_up_changes();
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds == 0 {
            self.count_missed();
        }
        let mut moved = 0;
        if self.published.any_rate {
            moved += self.serve_by_rate();
        } else {
            for at in 0..self.polled.len() {
                let (vf, pair) = self.polled[at];
                moved += self.serve_vf(vf, pair);
            }
        }
        if self.uplink.is_some() {
            moved += self.serve_uplink();
        }
        moved
    }

    /// VFs that have sent less than their guarantee come first; those above their ceiling not at
    /// all, so that their rings fill up and nothing is dropped.
    fn serve_by_rate(&mut self) -> usize {
        let now = self.now();
        for meter in self.meters.iter_mut().flatten() {
            meter.advance(now);
        }
        let mut moved = 0;
        for guaranteed in [true, false] {
            for at in 0..self.polled.len() {
                let (vf, pair) = self.polled[at];
                let meter = self.meters[vf].as_ref();
                let below = meter.is_some_and(Meter::below_guarantee);
                if below == guaranteed && meter.is_none_or(Meter::may_send) {
                    moved += self.serve_vf(vf, pair);
                }
            }
            if guaranteed && moved > 0 && self.favoured < FAVOURED_ROUNDS {
                // Those that are owed something are served until they have it or have nothing, but a
                // guarantee that cannot be kept must not shut everyone else out.
                self.favoured += 1;
                return moved;
            }
        }
        self.favoured = 0;
        moved
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// A VM's memory vanished: stop every VF that lies in such memory.
    #[cold]
    fn stop_lost(&mut self) {
        self.seen_lost = guard::lost_so_far();
        for port in &self.shared.ports {
            let rings = port.tx.iter().chain(&port.rx);
            let lost = rings.into_iter().any(|ring| {
                let ring = ring.lock();
                ring.as_ref().is_some_and(|ring| ring.queue.memory().is_lost())
            });
            if lost {
                port.stop(RingFault::MemoryLost);
            }
        }
    }

    fn take_up_changes(&mut self) {
        if guard::lost_so_far() != self.seen_lost {
            self.stop_lost();
        }
        let table = self.shared.newer_table(&mut self.seen_table);
        let rings = self.shared.rings_changed_since(&mut self.seen_rings);
        if let Some(published) = table {
            let now = self.now();
            for (meter, rates) in self.meters.iter_mut().zip(&published.rates) {
                match (meter.as_mut(), rates) {
                    (Some(meter), Some(rates)) => meter.set(*rates, now),
                    (None, Some(rates)) => *meter = Some(Meter::new(*rates, now)),
                    (_, None) => *meter = None,
                }
            }
            self.published = published;
        } else if !rings {
            return;
        }
        self.choose_rings();
    }

    /// A VF with a rate is metered in one place, so all its rings go to one worker; those of
    /// others are spread.
    fn choose_rings(&mut self) {
        let workers = self.shared.workers();
        self.polled.clear();
        let mut kicks = Vec::new();
        for (vf, port) in self.shared.ports.iter().enumerate() {
            let metered = self.published.rates[vf].is_some();
            for pair in bits(port.tx_attached().into()) {
                let owner = if metered { vf } else { vf + pair };
                if owner % workers != self.number {
                    continue;
                }
                self.polled.push((vf, pair));
                if let Some(ring) = port.tx[pair].lock().as_mut() {
                    ring.queue.disable_kicks();
                    kicks.push(ring.kick.clone());
                }
            }
        }
        self.bells.set_kicks(kicks);
    }

    fn serve_vf(&mut self, vf: usize, pair: usize) -> usize {
        let Self { shared, published, number, scratch, batch, uplink, edits, meters, .. } = self;
        let (until_roce, started) = (&mut self.until_roce, self.started);
        let round = Round { shared, table: &published.table, counters: &shared.counters[*number] };
        let port = &shared.ports[vf];
        let Some(mut guard) = port.tx[pair].try_lock() else { return 0 };
        let Some(ring) = guard.as_mut() else { return 0 };
        if !ring.queue.has_work() || port.is_stopped() {
            return 0;
        }
        let (header_len, may_send) = (ring.header_len, OffloadSet::sent_by(ring.features));
        let popped = match ring.queue.pop(scratch) {
            Ok(popped) => popped,
            Err(fault) => {
                port.stop(fault);
                return 0;
            }
        };
        let count = popped.len();
        let policy = published.table.port(port.index);
        let mut tally = PortTally::default();
        let mut wire_bytes = 0;
        for frame in 0..count {
            match read_head(batch, frame, &popped, header_len) {
                Some(header) => {
                    let len = batch.len[frame] as usize;
                    let verdict = judge_ingress(policy, batch.head(frame), len, &header, may_send)
                        .and_then(|ingress| {
                            let route = published.table.route(Source::Vf(port.index), &ingress);
                            if published.table.should_learn(port.index, &ingress) {
                                shared.learn(News {
                                    vf: Some(port.index),
                                    vlan: ingress.vlan(),
                                    mac: ingress.src,
                                });
                            }
                            route.map(|route| (ingress, route))
                        });
                    match verdict {
                        Ok((ingress, route)) => {
                            tally.tx(len);
                            wire_bytes += ingress.wire_bytes(len);
                            batch.ingress[frame] = Some(ingress);
                            batch.route(frame, route);
                        }
                        Err(reason) => tally.tx_drop(reason),
                    }
                }
                None => tally.tx_drop(DropReason::TooShort),
            }
        }
        if is_due(until_roce, shared.config.roce_sampling) {
            look_at_roce(shared, batch, roce::From::Vf(vf), started);
        }
        let whole = |frame: usize| popped.frame(frame);
        deliver(round, batch, header_len, whole);
        if batch.to_uplink != 0 {
            if let Some(uplink) = uplink {
                send_up(round, batch, edits, header_len, uplink, whole, &mut tally);
            } else {
                for frame in bits(batch.to_uplink.into()) {
                    batch.not_taken(frame, DropReason::UplinkBusy, &mut tally);
                }
            }
        }
        batch.clear();
        popped.complete();
        if let Err(fault) = ring.notify() {
            port.stop(fault);
        }
        if let Some(meter) = &mut meters[vf] {
            meter.spend(wire_bytes as u64);
        }
        round.counters.add(vf, &tally);
        count
    }

    fn serve_uplink(&mut self) -> usize {
        let Self { shared, published, number, batch, uplink, received, .. } = self;
        let (until_roce, started) = (&mut self.until_roce, self.started);
        let round = Round { shared, table: &published.table, counters: &shared.counters[*number] };
        let (Some(uplink), Some(policy)) = (uplink, published.table.uplink()) else { return 0 };
        uplink.receive(received);
        let mut tally = PortTally::default();
        for _ in 0..received.unusable() {
            tally.rx_drop(DropReason::BadOffload);
        }
        for (frame, (header, bytes)) in received.iter().enumerate() {
            let header = NetHeader::parse(header);
            let len = bytes.len();
            let head = batch.begin(frame, len);
            head.copy_from_slice(&bytes[..head.len()]);
            let verdict =
                judge_uplink(policy, batch.head(frame), len, &header, None).and_then(|ingress| {
                    if round.table.should_forget(&ingress) {
                        let (vlan, mac) = (ingress.vlan(), ingress.src);
                        shared.learn(News { vf: None, vlan, mac });
                    }
                    let route = round.table.route(Source::Uplink, &ingress)?;
                    Ok((ingress, route))
                });
            match verdict {
                Ok((ingress, route)) => {
                    tally.rx(len);
                    batch.ingress[frame] = Some(ingress);
                    batch.route(frame, route);
                }
                Err(reason) => tally.rx_drop(reason),
            }
        }
        if !received.is_empty() && is_due(until_roce, shared.config.roce_sampling) {
            look_at_roce(shared, batch, roce::From::Uplink, started);
        }
        deliver(round, batch, 0, |frame| Gather::from_slice(received.frame(frame).1));
        batch.clear();
        if tally != PortTally::default() {
            round.counters.add_uplink(&tally);
        }
        received.len()
    }

    /// Count what the kernel had to drop because the uplink was not emptied in time.
    fn count_missed(&mut self) {
        let missed = self.uplink.as_mut().map_or(0, UplinkQueue::missed);
        if missed > 0 {
            let mut tally = PortTally::default();
            tally.rx_drops_elsewhere(DropReason::NoBuffer, missed);
            self.shared.counters[self.number].add_uplink(&tally);
        }
    }

    /// Ask for kicks, look once more, and sleep until one comes.
    fn sleep(&mut self) {
        self.count_missed();
        let mut work = false;
        for &(vf, pair) in &self.polled {
            let port = &self.shared.ports[vf];
            // A VF without credit would only wake us for nothing; the time-out is for it.
            if self.meters[vf].as_ref().is_some_and(|meter| !meter.may_send()) || port.is_stopped()
            {
                continue;
            }
            match port.tx[pair].try_lock() {
                Some(mut guard) => {
                    work |= guard.as_mut().is_some_and(|ring| ring.queue.enable_kicks());
                }
                None => work = true,
            }
        }
        if !work && !self.shared.is_stopped() && !self.is_behind() {
            let wait = self.meters.iter().flatten().map(Meter::wait).filter(|wait| *wait > 0).min();
            self.bells.wait(wait.map(Duration::from_nanos));
        }
        for &(vf, pair) in &self.polled {
            if let Some(mut guard) = self.shared.ports[vf].tx[pair].try_lock()
                && let Some(ring) = guard.as_mut()
            {
                ring.queue.disable_kicks();
            }
        }
    }

    /// Whether something changed that was not taken up yet.
    fn is_behind(&self) -> bool {
        self.shared.versions() != (self.seen_table, self.seen_rings)
    }
}

/// Whether this batch is one that is looked at.
#[inline(always)]
fn is_due(until: &mut u32, sampling: u32) -> bool {
    if sampling == 0 {
        return false;
    }
    let due = *until == 0;
    *until = if due { sampling - 1 } else { *until - 1 };
    due
}

/// Count the RoCE of a batch, of what goes anywhere. Where another worker is at it this batch goes by.
#[inline(never)]
fn look_at_roce(shared: &Shared, batch: &Batch, from: roce::From, started: Instant) {
    let Ok(mut table) = shared.roce.try_lock() else { return };
    let now = started.elapsed().as_nanos() as u64;
    let to_vfs = bits(batch.vfs).fold(0, |all, vf| all | batch.to_vf[vf]);
    table.begin();
    for frame in bits((to_vfs | batch.to_uplink).into()) {
        table.see(from, batch.head(frame), batch.len[frame] as usize, now);
    }
}

/// Copy the net header and the head of a frame out of guest memory; `None` if it has no bytes
/// behind the net header.
#[inline(always)]
fn read_head(
    batch: &mut Batch,
    frame: usize,
    popped: &Popped<'_>,
    header_len: usize,
) -> Option<NetHeader> {
    let mut bytes = [0; NetHeader::LEN];
    let len = popped.frame_len(frame).checked_sub(header_len).filter(|len| *len > 0)?;
    popped.copy_at(frame, 0, &mut bytes[..header_len]);
    popped.copy_at(frame, header_len, batch.begin(frame, len));
    // A legacy header has no `num_buffers`; the zeroes in its place say the same.
    Some(NetHeader::parse(&bytes))
}

/// Give every frame of the batch to the VFs it is for: each receiver's ring is locked, published
/// and rung once. Never two at a time, so workers cannot wait for each other in a circle.
#[inline]
fn deliver<'f>(
    round: Round<'_>,
    batch: &Batch,
    header_len: usize,
    whole: impl Fn(usize) -> Gather<'f>,
) {
    for vf in bits(batch.vfs) {
        let port = &round.shared.ports[vf];
        let mut tally = PortTally::default();
        let frames = batch.to_vf[vf];
        let pairs = if port.is_stopped() { 0 } else { port.rx_pairs() };
        if pairs <= 1 {
            deliver_to(
                round,
                batch,
                header_len,
                &whole,
                vf,
                (pairs == 1).then_some(0),
                frames,
                &mut tally,
            );
        } else {
            for pair in 0..pairs {
                let share = bits(frames.into())
                    .filter(|&frame| flow_hash(batch.head(frame)) as usize % pairs == pair)
                    .fold(0, |share, frame| share | 1 << frame);
                if share != 0 {
                    deliver_to(round, batch, header_len, &whole, vf, Some(pair), share, &mut tally);
                }
            }
        }
        round.counters.add(vf, &tally);
    }
}

#[allow(clippy::too_many_arguments)]
#[inline]
fn deliver_to<'f>(
    round: Round<'_>,
    batch: &Batch,
    header_len: usize,
    whole: &impl Fn(usize) -> Gather<'f>,
    vf: usize,
    pair: Option<usize>,
    frames: u32,
    tally: &mut PortTally,
) {
    let port = &round.shared.ports[vf];
    let mut guard = pair.map(|pair| port.rx[pair].spin_lock());
    let Some(ring) = guard.as_mut().and_then(|guard| guard.as_mut()) else {
        for _ in bits(frames.into()) {
            tally.rx_drop(DropReason::LinkDown);
        }
        return;
    };
    let policy = round.table.port_at(vf);
    let accepts =
        OffloadSet::accepted_by(ring.features & port.guest_offloads.load(Ordering::Relaxed));
    let receiver = Receiver {
        header_len: ring.header_len,
        mergeable: ring.features & features::MRG_RXBUF != 0,
    };
    ring.queue.expect(frames.count_ones() as usize);
    let mut fill = ring.queue.fill();
    let mut edited = [0; EDITED_HEAD];
    for frame in bits(frames.into()) {
        let len = batch.len[frame] as usize;
        let Some(ingress) = &batch.ingress[frame] else { continue };
        let egress = match judge_egress(policy, accepts, ingress, len) {
            Ok(egress) => egress,
            Err(reason) => {
                tally.rx_drop(reason);
                continue;
            }
        };
        let head = batch.head(frame);
        let (all_local, skip) = (head.len() == len, header_len + head.len());
        let head = if egress.edit.is_none() {
            head
        } else {
            let edited_len = egress.edit.apply(head, &mut edited);
            &edited[..edited_len]
        };
        let result = if egress.work() == Work::None && all_local {
            receiver.push_local(&mut fill, egress.header(), head, tally)
        } else {
            let gather = whole(frame).replace_head(head, skip);
            receiver.push_prepared(&mut fill, &egress, head, &gather, tally)
        };
        match result {
            Ok(()) => {}
            Err(FillError::NoBuffer) => tally.rx_drop(DropReason::NoBuffer),
            Err(FillError::BufferTooSmall) => tally.rx_drop(DropReason::BufferTooSmall),
            Err(FillError::Fault(fault)) => {
                port.stop(fault);
                break;
            }
        }
    }
    fill.publish();
    if let Err(fault) = ring.notify() {
        port.stop(fault);
    }
}

/// How a VF's receive ring takes frames.
#[derive(Clone, Copy)]
struct Receiver {
    header_len: usize,
    mergeable: bool,
}

impl Receiver {
    #[inline]
    fn push(
        self,
        fill: &mut Fill<'_>,
        header: NetHeader,
        frame: &Gather<'_>,
        tally: &mut PortTally,
    ) -> Result<(), FillError> {
        fill.push(&header.to_bytes()[..self.header_len], self.mergeable, frame)?;
        tally.rx(frame.len());
        Ok(())
    }

    /// A frame whose bytes were all copied and judged.
    #[inline(always)]
    fn push_local(
        self,
        fill: &mut Fill<'_>,
        header: NetHeader,
        frame: &[u8],
        tally: &mut PortTally,
    ) -> Result<(), FillError> {
        fill.push_local(&header.to_bytes()[..self.header_len], self.mergeable, frame)?;
        tally.rx(frame.len());
        Ok(())
    }

    /// Any frame, also one whose receiver takes less than its sender left to do.
    #[inline(never)]
    fn push_prepared(
        self,
        fill: &mut Fill<'_>,
        egress: &Egress,
        head: &[u8],
        frame: &Gather<'_>,
        tally: &mut PortTally,
    ) -> Result<(), FillError> {
        match egress.work() {
            Work::None => self.push(fill, egress.header(), frame, tally),
            Work::FinishChecksum { start, offset } => {
                let mut finished = [0; EDITED_HEAD];
                let finished = &mut finished[..head.len()];
                finished.copy_from_slice(head);
                finish_checksum(finished, frame, frame.len(), start, offset);
                self.push(fill, egress.header(), &frame.replace_head(finished, head.len()), tally)
            }
            Work::Segment(plan) => {
                let Some(mut segments) = Segments::new(head, frame.len(), plan) else {
                    tally.rx_drop(DropReason::BadOffload);
                    return Ok(());
                };
                let mut headers = [0; EDITED_HEAD];
                while let Some(segment) = segments.next(frame, &mut headers) {
                    let piece = frame.truncate(segment.payload.end);
                    let piece =
                        piece.replace_head(&headers[..segment.headers], segment.payload.start);
                    self.push(fill, egress.header(), &piece, tally)?;
                }
                Ok(())
            }
        }
    }
}

impl FrameBytes for Gather<'_> {
    fn copy_at(&self, offset: usize, into: &mut [u8]) -> usize {
        Gather::copy_at(self, offset, into)
    }
}

/// Send the batch's frames for the uplink, in one call to the kernel, straight from the guest's
/// buffers. What the uplink does not take is counted at the sender.
fn send_up<'f>(
    round: Round<'_>,
    batch: &Batch,
    edits: &mut [[u8; EDITED_HEAD]; BATCH],
    header_len: usize,
    uplink: &mut UplinkQueue,
    whole: impl Fn(usize) -> Gather<'f>,
    tally: &mut PortTally,
) {
    let Some(policy) = round.table.uplink() else { return };
    let mut sending = uplink.batch();
    let mut frames = [0u8; BATCH];
    let mut lengths = [0u32; BATCH];
    for (frame, edited) in edits.iter_mut().enumerate() {
        if batch.to_uplink & 1 << frame == 0 {
            continue;
        }
        let len = batch.len[frame] as usize;
        let Some(ingress) = &batch.ingress[frame] else { continue };
        let egress = match judge_uplink_egress(policy, ingress, len) {
            Ok(egress) if egress.work() == Work::None => egress,
            // The kernel's uplinks take every offload there is.
            Ok(_) => {
                batch.not_taken(frame, DropReason::BadOffload, tally);
                continue;
            }
            Err(reason) => {
                batch.not_taken(frame, reason, tally);
                continue;
            }
        };
        let head = batch.head(frame);
        let edited_len = egress.edit.apply(head, edited);
        let gather = whole(frame).replace_head(&edited[..edited_len], header_len + head.len());
        frames[sending.len()] = frame as u8;
        lengths[sending.len()] = gather.len() as u32;
        sending.push(&egress.header().to_bytes(), gather);
    }
    let sent = sending.send();
    let mut up = PortTally::default();
    for (at, len) in lengths.into_iter().enumerate() {
        let bit = 1 << at;
        let reason = match () {
            () if sent.taken & bit != 0 => {
                up.tx(len as usize);
                continue;
            }
            () if sent.busy & bit != 0 => DropReason::UplinkBusy,
            () if sent.link_down & bit != 0 => DropReason::LinkDown,
            () if sent.refused & bit != 0 => DropReason::UplinkRefused,
            () => continue,
        };
        batch.not_taken(usize::from(frames[at]), reason, tally);
    }
    round.counters.add_uplink(&up);
}
