//! A virtio-net driver in user space: uses a VF without a VM.
//!
//! It speaks vhost-user as a VMM does, over a socket of the software NIC or of any other back end,
//! and drives the rings as a guest's driver does. Tests and benchmarks use it as guest, programs
//! that want a VF for themselves as NIC. It polls; [`VfDriver::wait`] sleeps where that is wanted.
//!
//! The device is trusted no further than memory safety asks: what it writes into the rings is
//! checked and ends in a [`DriverError`].

mod layout;
mod link;
mod queue;
mod rings;

#[cfg(test)]
mod tests;

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::features;
use crate::ring::{
    Gather, GuestMemory, MemoryError, Position, Region, RingFault, RingKind, RingSpec,
};
use layout::DriverMemory;
use link::{Link, Vring};
use queue::DriverQueue;

/// Bytes of the virtio-net header with the number of buffers at its end (5.1.6).
pub const NET_HEADER: usize = 12;
/// Bytes of the header of a legacy driver without mergeable buffers.
const LEGACY_HEADER: usize = 10;

/// How often the answer to a command is looked for when no interrupt tells of it.
const CONTROL_LOOK: Duration = Duration::from_millis(5);

/// What a driver asks for. Features set here are required: connecting fails without them.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one feature to negotiate")]
pub struct VfOptions {
    /// Format of all queues.
    pub kind: RingKind,
    /// Descriptors of each queue; for split queues a power of two.
    pub size: u16,
    /// Queue pairs, at least 1; more than one asks for multiqueue.
    pub pairs: u16,
    /// Ask for a control queue.
    pub control: bool,
    /// Mergeable receive buffers.
    pub mergeable: bool,
    /// Event index.
    pub event_idx: bool,
    /// In-order use of buffers.
    pub in_order: bool,
    /// Indirect descriptors, used for frames in more than one piece (never when in order).
    pub indirect: bool,
    /// Checksum and segmentation offloads, both ways, as far as the device offers them.
    pub offloads: bool,
    /// A driver from before virtio 1.0; the header is 10 bytes unless buffers are mergeable.
    pub legacy: bool,
    /// Bytes of each buffer.
    pub buffer_size: u32,
    /// Receive buffers offered; all of them if not set. Fewer keep more of the cache.
    pub rx_buffers: Option<u16>,
    /// Most bytes of a frame that are sent in one piece; `buffer_size` if not set.
    pub tx_piece: Option<u32>,
    /// Send the net header as a piece of its own.
    pub header_apart: bool,
    /// Memory in 2 MiB pages, which must have been set aside.
    pub hugepages: bool,
    /// Notify the device by itself when it wants that. Off, [`VfDriver::kick`] does it.
    pub auto_kick: bool,
    /// How long to wait for the socket to be there.
    pub patience: Duration,
}

impl Default for VfOptions {
    fn default() -> Self {
        Self {
            kind: RingKind::Split,
            size: 256,
            pairs: 1,
            control: false,
            mergeable: true,
            event_idx: true,
            in_order: false,
            indirect: true,
            offloads: false,
            legacy: false,
            buffer_size: 2048,
            rx_buffers: None,
            tx_piece: None,
            header_apart: false,
            hugepages: false,
            auto_kick: true,
            patience: Duration::ZERO,
        }
    }
}

impl VfOptions {
    /// Queues: two a pair, and the control queue.
    fn queues(&self) -> usize {
        2 * usize::from(self.pairs) + usize::from(self.control)
    }

    /// Bytes of the net header.
    fn header_len(&self) -> usize {
        if self.legacy && !self.mergeable { LEGACY_HEADER } else { NET_HEADER }
    }

    /// Feature bits without which nothing works as asked.
    fn required(&self) -> u64 {
        let flag = |wanted: bool, bits: u64| if wanted { bits } else { 0 };
        flag(!self.legacy, features::VERSION_1)
            | flag(self.kind == RingKind::Packed, features::RING_PACKED)
            | flag(self.pairs > 1, features::MQ)
            | flag(self.control, features::CTRL_VQ)
            | flag(self.mergeable, features::MRG_RXBUF)
            | flag(self.event_idx, features::EVENT_IDX)
            | flag(self.in_order, features::IN_ORDER)
            | flag(self.indirect, features::INDIRECT_DESC)
    }

    /// Feature bits taken where offered.
    fn welcome(&self) -> u64 {
        use features::{CSUM, GUEST_OFFLOADS, HOST_OFFLOADS, MAC, MTU, STATUS};
        let offloads = CSUM | GUEST_OFFLOADS | HOST_OFFLOADS;
        let control = features::CTRL_RX | features::CTRL_VLAN | features::CTRL_MAC_ADDR;
        MAC | MTU
            | STATUS
            | if self.offloads { offloads } else { 0 }
            | if self.control { control } else { 0 }
    }
}

/// What went wrong with a VF driver.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The socket, or what the device answered over it.
    #[error("vhost-user: {0}")]
    Protocol(#[from] vhost::Error),
    /// The driver's own memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The options do not make a ring.
    #[error("options make no ring: {0}")]
    Ring(#[from] RingFault),
    /// A call to the kernel failed.
    #[error("system call failed")]
    Io(#[source] std::io::Error),
    /// Features that the options require and the device does not offer, as bits.
    #[error("the device does not offer the feature bits {0:#x}")]
    NotOffered(u64),
    /// There is no such queue pair, or no control queue.
    #[error("no such queue")]
    NoSuchQueue,
    /// The control queue has no room for another command.
    #[error("queue is full")]
    QueueFull,
    /// A frame that the driver's buffers cannot hold, in bytes.
    #[error("a frame of {0} bytes does not fit the driver's buffers")]
    FrameTooLong(usize),
    /// The device wrote something impossible.
    #[error("the device wrote an impossible {0}")]
    BadDevice(&'static str),
    /// The device did not answer in time.
    #[error("the device did not answer in time")]
    TimedOut,
    /// Not connected.
    #[error("not connected to a device")]
    NotConnected,
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// virtio-net header; all zeroes asks for nothing.
    pub header: [u8; NET_HEADER],
    /// The frame from its destination address on.
    pub frame: Gather<'a>,
}

impl<'a> TxFrame<'a> {
    /// A frame without offloads.
    pub fn plain(frame: &'a [u8]) -> Self {
        Self { header: [0; NET_HEADER], frame: Gather::from_slice(frame) }
    }
}

/// Configuration space of a network device (5.1.4), as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// MAC address; meaningful with [`features::MAC`].
    pub mac: [u8; 6],
    /// Bit 0: link up; meaningful with [`features::STATUS`].
    pub status: u16,
    /// Most queue pairs; meaningful with [`features::MQ`].
    pub max_pairs: u16,
    /// MTU in bytes; meaningful with [`features::MTU`].
    pub mtu: u16,
}

impl DeviceConfig {
    const BYTES: usize = 12;

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.get(..Self::BYTES)?.try_into().ok()?;
        let (mac, words) = bytes.split_first_chunk::<6>()?;
        let word = |at: usize| u16::from_le_bytes([words[at], words[at + 1]]);
        Some(Self { mac: *mac, status: word(0), max_pairs: word(2), mtu: word(4) })
    }
}

/// A queue and its two event file descriptors.
struct Line {
    queue: DriverQueue,
    kick: EventFd,
    call: EventFd,
    /// Waits for `call`.
    called: Epoll,
}

/// A virtio-net driver for one VF.
pub struct VfDriver {
    options: VfOptions,
    /// Receive and send queue of each pair in turn, then the control queue: as the device numbers
    /// them (5.1.2).
    lines: Vec<Line>,
    memory: DriverMemory,
    path: Option<PathBuf>,
    link: Option<Link>,
}

impl std::fmt::Debug for VfDriver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("VfDriver")
            .field("path", &self.path)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl VfDriver {
    /// A driver with memory and rings, receive buffers offered, but no device: one in the same
    /// process may use [`VfDriver::guest_memory`] and [`VfDriver::ring_spec`].
    ///
    /// # Errors
    /// [`DriverError`] when the options make no ring or the kernel has no memory of that kind.
    pub fn unconnected(options: VfOptions) -> Result<Self, DriverError> {
        let memory = DriverMemory::new(&options)?;
        let mut lines = Vec::with_capacity(options.queues());
        for (index, layout) in memory.queues.iter().enumerate() {
            let mut queue = DriverQueue::new(&memory.mapped, *layout, &options)?;
            let receives = index % 2 == 0 && index < 2 * usize::from(options.pairs);
            if receives {
                queue.offer_receive_buffers(options.rx_buffers.unwrap_or(options.size));
            }
            lines.push(Line::new(queue).map_err(DriverError::Io)?);
        }
        Ok(Self { options, lines, memory, path: None, link: None })
    }

    /// Connects to the device behind a vhost-user socket and starts it.
    ///
    /// # Errors
    /// [`DriverError`] when the socket cannot be reached within the options' patience, when a
    /// required feature is not offered, and as [`VfDriver::unconnected`].
    pub fn connect(path: &Path, options: VfOptions) -> Result<Self, DriverError> {
        let mut driver = Self::unconnected(options)?;
        driver.path = Some(path.to_path_buf());
        driver.reconnect()?;
        Ok(driver)
    }

    /// Drops the session, if there still is one, and starts a new one with the same rings: frames
    /// offered before and not used are still offered.
    ///
    /// # Errors
    /// As [`VfDriver::connect`].
    pub fn reconnect(&mut self) -> Result<(), DriverError> {
        let path = self.path.as_deref().ok_or(DriverError::NotConnected)?;
        self.link = None;
        let (required, welcome) = (self.options.required(), self.options.welcome());
        let patience = self.options.patience;
        let mut link = Link::connect(path, self.lines.len(), required, welcome, patience)?;
        let vrings = self.lines.iter().map(Line::vring).collect::<Vec<_>>();
        link.start(&self.memory, &vrings)?;
        self.link = Some(link);
        // Frames may have been offered while nobody listened.
        for line in &self.lines {
            line.kick.write(1).map_err(DriverError::Io)?;
        }
        Ok(())
    }

    /// Ends the session; the rings stay as they are.
    pub fn disconnect(&mut self) {
        self.link = None;
    }

    /// Feature bits agreed on with the device; 0 when not connected.
    pub fn features(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.features)
    }

    /// Whether the device has rung the error descriptor of a ring since this was last asked
    /// (`VHOST_USER_SET_VRING_ERR`): it no longer serves what it found there.
    pub fn was_stopped(&self) -> bool {
        self.link.as_ref().is_some_and(Link::was_stopped)
    }

    /// The device's configuration space as it was when connecting, where it offers that.
    pub fn config(&self) -> Option<DeviceConfig> {
        self.link.as_ref().and_then(|link| link.config)
    }

    /// Reads the configuration space again.
    ///
    /// # Errors
    /// [`DriverError::NotConnected`], or the device's refusal.
    pub fn read_config(&mut self) -> Result<DeviceConfig, DriverError> {
        self.link.as_mut().ok_or(DriverError::NotConnected)?.read_config()
    }

    /// Sends frames on a queue pair, in order, until there is no room for one; returns how many the
    /// device was offered. Buffers of frames it is done with are taken back first.
    ///
    /// # Errors
    /// [`DriverError::NoSuchQueue`], [`DriverError::FrameTooLong`], [`DriverError::BadDevice`].
    #[inline]
    pub fn send(&mut self, pair: u16, frames: &[TxFrame<'_>]) -> Result<usize, DriverError> {
        let auto_kick = self.options.auto_kick;
        let line = self.line(2 * usize::from(pair) + 1, pair)?;
        let sent = line.queue.send(frames)?;
        line.notify(auto_kick)?;
        Ok(sent)
    }

    /// Writes a frame into every send buffer of a pair, for [`VfDriver::send_prepared`].
    ///
    /// # Errors
    /// [`DriverError::NoSuchQueue`].
    pub fn prepare(&mut self, pair: u16, frame: &TxFrame<'_>) -> Result<(), DriverError> {
        let mut bytes = vec![0; frame.frame.len()];
        frame.frame.copy_at(0, &mut bytes);
        self.line(2 * usize::from(pair) + 1, pair)?.queue.prepare(&frame.header, &bytes);
        Ok(())
    }

    /// Sends up to `count` times the frame prepared before, `len` bytes of it, without touching its
    /// bytes: what a load generator does.
    ///
    /// # Errors
    /// As [`VfDriver::send`].
    #[inline]
    pub fn send_prepared(
        &mut self,
        pair: u16,
        len: usize,
        count: usize,
    ) -> Result<usize, DriverError> {
        let auto_kick = self.options.auto_kick;
        let line = self.line(2 * usize::from(pair) + 1, pair)?;
        let sent = line.queue.send_prepared(len, count)?;
        line.notify(auto_kick)?;
        Ok(sent)
    }

    /// Calls `each` with net header and frame of up to `limit` received frames, then offers their
    /// buffers again; returns how many there were. The frame's bytes are the device's to change:
    /// copy what is to be looked at twice.
    ///
    /// # Errors
    /// [`DriverError::NoSuchQueue`], [`DriverError::BadDevice`].
    #[inline]
    pub fn receive(
        &mut self,
        pair: u16,
        limit: usize,
        mut each: impl FnMut(&[u8; NET_HEADER], &Gather<'_>),
    ) -> Result<usize, DriverError> {
        let auto_kick = self.options.auto_kick;
        let line = self.line(2 * usize::from(pair), pair)?;
        let received = line.queue.receive(limit, &mut each)?;
        if received > 0 {
            line.notify(auto_kick)?;
        }
        Ok(received)
    }

    /// Receives until `timeout` runs out or `limit` frames came; returns them whole. For tests and
    /// programs in no hurry.
    ///
    /// # Errors
    /// As [`VfDriver::receive`].
    pub fn receive_all(
        &mut self,
        pair: u16,
        limit: usize,
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, DriverError> {
        let deadline = Instant::now() + timeout;
        let mut frames = Vec::new();
        while frames.len() < limit {
            self.receive(pair, limit - frames.len(), |_, frame| {
                let mut bytes = vec![0; frame.len()];
                frame.copy_at(0, &mut bytes);
                frames.push(bytes);
            })?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if frames.len() < limit {
                self.wait(pair, left)?;
            }
        }
        Ok(frames)
    }

    /// Takes back buffers of frames that were sent; returns how many descriptors of the pair's send
    /// queue are free then.
    ///
    /// # Errors
    /// As [`VfDriver::send`].
    pub fn reclaim(&mut self, pair: u16) -> Result<u16, DriverError> {
        let queue = &mut self.line(2 * usize::from(pair) + 1, pair)?.queue;
        queue.reclaim()?;
        Ok(queue.free())
    }

    /// Notifies the device of a queue, by the device's numbering, whether it wants that or not.
    ///
    /// # Errors
    /// [`DriverError::NoSuchQueue`], or what the kernel said.
    pub fn kick(&mut self, queue: usize) -> Result<(), DriverError> {
        let line = self.lines.get(queue).ok_or(DriverError::NoSuchQueue)?;
        line.kick.write(1).map_err(DriverError::Io)
    }

    /// Sleeps until the pair's receive queue has frames or the timeout ends; true if it has.
    ///
    /// # Errors
    /// [`DriverError::NoSuchQueue`], or what the kernel said.
    pub fn wait(&mut self, pair: u16, timeout: Duration) -> Result<bool, DriverError> {
        self.line(2 * usize::from(pair), pair)?.wait(timeout)
    }

    /// Sends a command to the control queue (5.1.6.5) and waits for its answer: 0 is "done".
    ///
    /// # Errors
    /// [`DriverError::NoSuchQueue`] without a control queue, [`DriverError::TimedOut`].
    pub fn control(
        &mut self,
        class: u8,
        command: u8,
        data: &[u8],
        timeout: Duration,
    ) -> Result<u8, DriverError> {
        if !self.options.control {
            return Err(DriverError::NoSuchQueue);
        }
        let line = self.lines.last_mut().ok_or(DriverError::NoSuchQueue)?;
        let request = [&[class, command], data].concat();
        let deadline = Instant::now() + timeout;
        line.queue.command(&request)?;
        line.notify(true)?;
        loop {
            if let Some(status) = line.queue.answer()? {
                return Ok(status);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DriverError::TimedOut);
            }
            line.wait(left.min(CONTROL_LOOK))?;
        }
    }

    /// Number of the control queue, if there is one: after the last pair (5.1.2).
    pub fn control_queue(&self) -> Option<usize> {
        self.options.control.then_some(self.lines.len() - 1)
    }

    /// Stops a queue and returns how far the device says it got (`GET_VRING_BASE`).
    ///
    /// # Errors
    /// [`DriverError::NotConnected`], or the device's refusal.
    pub fn stop_queue(&mut self, queue: usize) -> Result<Position, DriverError> {
        let link = self.link.as_ref().ok_or(DriverError::NotConnected)?;
        Ok(Position::from_vring_base(self.options.kind, link.stop_queue(queue)?))
    }

    /// Enables or disables a queue (`SET_VRING_ENABLE`).
    ///
    /// # Errors
    /// [`DriverError::NotConnected`], or the device's refusal.
    pub fn enable_queue(&mut self, queue: usize, enable: bool) -> Result<(), DriverError> {
        self.link.as_mut().ok_or(DriverError::NotConnected)?.enable_queue(queue, enable)
    }

    /// The options it was made with.
    pub fn options(&self) -> &VfOptions {
        &self.options
    }

    /// The driver's memory, as the region a device would be told of.
    pub fn region(&self) -> Region {
        self.memory.region()
    }

    /// Where a queue lies, by the device's numbering.
    pub fn ring_spec(&self, queue: usize) -> Option<RingSpec> {
        self.lines.get(queue).map(|line| line.queue.spec)
    }

    /// Where a device should start, or go on, with a queue.
    pub fn position(&self, queue: usize) -> Option<Position> {
        self.lines.get(queue).map(|line| line.queue.position())
    }

    /// The driver's memory itself: for a device in the same process, and for tests that play a
    /// hostile guest and write garbage into it.
    #[doc(hidden)]
    pub fn guest_memory(&self) -> &Arc<GuestMemory> {
        &self.memory.mapped
    }

    /// Queue number `index`, provided that `pair` exists.
    #[inline(always)]
    fn line(&mut self, index: usize, pair: u16) -> Result<&mut Line, DriverError> {
        if pair >= self.options.pairs {
            return Err(DriverError::NoSuchQueue);
        }
        self.lines.get_mut(index).ok_or(DriverError::NoSuchQueue)
    }
}

impl Line {
    fn new(queue: DriverQueue) -> std::io::Result<Self> {
        let (kick, call) = (EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?);
        let called = Epoll::new()?;
        let event = EpollEvent::new(EventSet::IN, 0);
        called.ctl(ControlOperation::Add, call.as_raw_fd(), event)?;
        Ok(Self { queue, kick, call, called })
    }

    fn vring(&self) -> Vring<'_> {
        let Self { queue, kick, call, .. } = self;
        Vring { spec: &queue.spec, at: queue.position(), kick, call }
    }

    /// Kicks if the device wants that.
    #[inline(always)]
    fn notify(&mut self, auto_kick: bool) -> Result<(), DriverError> {
        if auto_kick && self.queue.wants_kick() {
            self.kick.write(1).map_err(DriverError::Io)?;
        }
        Ok(())
    }

    /// Sleeps until there is a used entry or the timeout ends; true if there is one.
    fn wait(&mut self, timeout: Duration) -> Result<bool, DriverError> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.queue.set_interrupts(true) {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.queue.set_interrupts(false);
                return Ok(false);
            }
            // Whole milliseconds, rounded up: 0 would not sleep at all.
            let limit = left.as_millis().saturating_add(1).try_into().unwrap_or(i32::MAX);
            match self.called.wait(limit, &mut [EpollEvent::default()]) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(DriverError::Io(error)),
            }
            // Empties the counter; that it was empty already is fine.
            let _ = self.call.read();
        }
        self.queue.set_interrupts(false);
        Ok(true)
    }
}
