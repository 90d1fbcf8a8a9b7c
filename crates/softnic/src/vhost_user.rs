//! The vhost-user back end of one VF: a front-end (QEMU, DPDK, our own driver) connects to the
//! VF's socket, agrees on features, shares its memory and hands over its rings.
//!
//! The protocol itself is the `vhost` crate's; what is here is what each message means for a VF
//! (QEMU, docs/interop/vhost-user.rst). A ring runs when its memory, size, addresses and kick are
//! there and it is enabled; every message that changes one of these goes through [`Session::sync`].
//! One thread serves one VF, one connection at a time; when it breaks the next one is awaited, so a
//! VM may crash and come back, and so may we.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};

use crate::config::MAX_QUEUE_PAIRS;
use crate::control_queue::{self, MAX_COMMAND};
use crate::features;
use crate::intercept::{self, BackendLine, Intercepted};
use crate::nic::Shared;
use crate::port::{Port, PortQueue, Side};
use crate::resume::{ResumeSlot, ring_key};
use crate::ring::{
    GuestMemory, PopScratch, Position, Queue, Region, RingFault, RingKind, RingSpec,
};
use crate::watched;

/// Memory slots a front-end may use (`VHOST_USER_GET_MAX_MEM_SLOTS`).
pub(crate) const MAX_MEMORY_REGIONS: u64 = 64;
/// Address space, in bytes, that VFs together may map memory into, each its share: half of what a
/// process has on x86-64. A memory table costs its VMM nothing, so without a bound one VF could take
/// what the NIC itself needs for its next thread.
const MAPPABLE: u64 = 64 << 40;
/// Largest ring of virtio (virtio 1.2, 2.7 and 2.8).
const MAX_RING_SIZE: u32 = 32_768;

/// Serve a VF's socket until the NIC stops.
pub(crate) fn serve(shared: &Arc<Shared>, port: usize, listener: &UnixListener) {
    while wait_readable(shared, &[Some(listener.as_fd())]).is_some() {
        match listener.accept() {
            Ok((stream, _)) => serve_connection(shared, port, listener, stream),
            Err(error) => {
                if may_log(shared, port) {
                    tracing::warn!(vf = port, %error, "cannot accept a front-end");
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }
}

/// Whether what a front-end causes to be said of a VF may be said now.
fn may_log(shared: &Shared, port: usize) -> bool {
    shared.ports[port].log.allows(Instant::now())
}

/// Serve one front-end until it is gone. Another one that connects meanwhile waits for its turn: it
/// may be the same VM, started anew before the end of the old one was noticed.
fn serve_connection(
    shared: &Arc<Shared>,
    port: usize,
    listener: &UnixListener,
    stream: UnixStream,
) {
    let Ok(socket) = stream.try_clone() else { return };
    let _hang_up = shared.hang_up_on_stop(&socket);
    let session = Arc::new(Mutex::new(Session::new(Arc::clone(shared), port)));
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
    if may_log(shared, port) {
        tracing::info!(vf = port, "front-end connected");
    }
    let mut another_waits = false;
    loop {
        let control = lock(&session).control_kick();
        let next = (!another_waits).then(|| listener.as_fd());
        let fds = [Some(socket.as_fd()), control.as_ref().map(|kick| kick.as_fd()), next];
        let Some(ready) = wait_readable(shared, &fds) else { break };
        if ready & 4 != 0 {
            another_waits = true;
            if may_log(shared, port) {
                tracing::warn!(
                    vf = port,
                    "the VF has a front-end; another one waits until it is gone"
                );
            }
        }
        if ready & 2 != 0 {
            lock(&session).serve_control_queue();
        }
        if ready & 1 != 0 && !intercepted(&socket, &session) {
            match handler.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected | Error::SocketBroken(_)) => break,
                Err(error) => {
                    if may_log(shared, port) {
                        say_why(port, &error);
                    }
                    break;
                }
            }
        }
    }
    lock(&session).detach_all();
    if may_log(shared, port) {
        tracing::info!(vf = port, "front-end gone");
    }
}

/// Whose fault the end of a connection is.
fn say_why(port: usize, error: &Error) {
    match error {
        Error::ReqHandlerError(error) => {
            tracing::warn!(vf = port, %error, "cannot do what the front-end asked for; hanging up");
        }
        error => tracing::warn!(vf = port, %error, "front-end broke the protocol; hanging up"),
    }
}

/// Take one of the messages that are not for the crate, if it is the next. Whether it was.
fn intercepted(socket: &UnixStream, session: &Mutex<Session>) -> bool {
    let mut session = lock(session);
    let before_features = session.accepted & features::PROTOCOL_FEATURES == 0;
    let line = session.protocol.contains(VhostUserProtocolFeatures::BACKEND_REQ);
    let Some(taken) = intercept::take(socket, before_features, line) else { return false };
    let done = match &taken.message {
        Intercepted::RingEnable { index, enable } => {
            session.set_vring_enable(*index, *enable).is_ok()
        }
        Intercepted::BackendLine(line) => line.try_clone().is_ok_and(|line| {
            session.backend = Some(line);
            session.listen_for_changes()
        }),
    };
    taken.answer(socket, done);
    true
}

fn lock(session: &Mutex<Session>) -> std::sync::MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wait until one of those `fds` that are there is readable; bit i of the answer stands for
/// `fds[i]`. `None` once the NIC stops.
pub(crate) fn wait_readable(shared: &Shared, fds: &[Option<BorrowedFd<'_>>]) -> Option<u32> {
    let present = || fds.iter().enumerate().filter_map(|(index, fd)| Some((index, (*fd)?)));
    loop {
        let mut polled: Vec<PollFd<'_>> = std::iter::once(shared.stopping.as_fd())
            .chain(present().map(|(_, fd)| fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match rustix::event::poll(&mut polled, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        if !polled[0].revents().is_empty() {
            return None;
        }
        let ready = present().zip(&polled[1..]).filter(|(_, fd)| !fd.revents().is_empty());
        let mask = ready.fold(0, |mask, ((index, _), _)| mask | 1 << index);
        if mask != 0 {
            return Some(mask);
        }
    }
}

/// What a ring index means once features are agreed (virtio 1.2, 5.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Data { pair: usize, side: Side },
    Control,
}

/// What the front-end has said of one ring.
#[derive(Default)]
struct RingSetup {
    size: u16,
    /// Descriptor, driver and device area, as front-end user addresses.
    areas: Option<[u64; 3]>,
    base: u32,
    /// `SET_VRING_KICK` came: the ring is started, perhaps to be polled without a kick.
    started: bool,
    enabled: bool,
    kick: Option<Arc<File>>,
    call: Option<Arc<File>>,
    attached: bool,
}

/// The control queue is served by the session's own thread: it is no fast path.
struct ControlRing {
    ring: PortQueue,
    scratch: Box<PopScratch>,
}

struct Session {
    shared: Arc<Shared>,
    port: usize,
    accepted: u64,
    regions: Vec<Region>,
    memory: Option<Arc<GuestMemory>>,
    rings: Vec<RingSetup>,
    control: Option<ControlRing>,
    protocol: VhostUserProtocolFeatures,
    /// Our requests to the front-end. Kept open even when there is nothing to ask: QEMU 7.2 complains
    /// of the end of the line otherwise.
    backend: Option<BackendLine>,
}

impl Session {
    fn new(shared: Arc<Shared>, port: usize) -> Self {
        // Descriptors for rings that the VF does not have would be nobody's but count.
        let rings = (0..=2 * shared.config.queue_pairs).map(|_| RingSetup::default()).collect();
        Self {
            shared,
            port,
            accepted: 0,
            regions: Vec::new(),
            memory: None,
            rings,
            control: None,
            protocol: VhostUserProtocolFeatures::empty(),
            backend: None,
        }
    }

    fn port(&self) -> &Port {
        &self.shared.ports[self.port]
    }

    /// Have link and MTU changes announced, if the front end reads the configuration space from us.
    fn listen_for_changes(&self) -> bool {
        if !self.protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            return true;
        }
        let line = self.backend.as_ref().and_then(|line| line.try_clone().ok());
        let there = line.is_some();
        self.shared.set_config_listener(self.port, line);
        there
    }

    fn let_go_on(&self) -> Result<()> {
        if self.port().clear_stop() {
            return Ok(());
        }
        unsupported("the VF was stopped for a descriptor that blocks; try again in a few seconds")
    }

    fn role(&self, index: usize) -> Option<Role> {
        let has = |feature| self.accepted & feature != 0;
        let pairs = if has(features::MQ) { self.shared.config.queue_pairs } else { 1 };
        if index < 2 * pairs {
            let side = if index.is_multiple_of(2) { Side::Rx } else { Side::Tx };
            Some(Role::Data { pair: index / 2, side })
        } else if index == 2 * pairs && has(features::CTRL_VQ) {
            Some(Role::Control)
        } else {
            None
        }
    }

    fn ring_mut(&mut self, index: u32) -> Result<&mut RingSetup> {
        self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Bring the ring's workers in line with what the front-end has said of it.
    fn sync(&mut self, index: usize) -> Result<()> {
        let setup = &self.rings[index];
        let complete = setup.started && setup.enabled && setup.areas.is_some() && setup.size != 0;
        match (complete && self.memory.is_some(), setup.attached) {
            (true, false) => self.attach(index),
            (false, true) => {
                self.detach(index);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn attach(&mut self, index: usize) -> Result<()> {
        let role = self.role(index).ok_or(Error::InvalidParam)?;
        let memory = Arc::clone(self.memory.as_ref().ok_or(Error::InvalidParam)?);
        let spec = self.spec(index, &memory)?;
        let slot = self.slot(index, role);
        let key = ring_key(
            &memory.identity(),
            &[spec.desc, spec.avail, spec.used, u64::from(spec.size), self.accepted],
        );
        let journal = slot.journal(spec.kind).map_err(Error::ReqHandlerError)?;
        let queue = if slot.holds(key) {
            Queue::resume(memory, spec, journal)
        } else {
            slot.clear();
            let base = Position::from_vring_base(spec.kind, self.rings[index].base);
            Queue::with_journal(memory, spec, base, journal)
        };
        let mut queue = match queue {
            Ok(queue) => queue,
            Err(fault) => {
                self.port().stop(fault);
                return Err(Error::InvalidParam);
            }
        };
        slot.set(key);
        let setup = &mut self.rings[index];
        setup.attached = true;
        let call = setup.call.clone();
        let kick = setup.kick.clone();
        // Receive buffers are looked for when a frame needs one, so nobody has to tell of them.
        queue.disable_kicks();
        if role == Role::Control {
            queue.enable_kicks();
        }
        let header_len = features::net_header_len(self.accepted);
        let mut ring =
            PortQueue { queue, resume: slot, features: self.accepted, header_len, call, kick };
        // The driver may have waited for an interrupt that an earlier process owed it.
        if let Err(fault) = ring.ring_bell() {
            self.port().stop(fault);
        }
        match role {
            Role::Data { pair, side } => {
                self.port().swap(pair, side, Some(ring));
                self.shared.rings_changed();
            }
            Role::Control => {
                self.control = Some(ControlRing { ring, scratch: Box::default() });
                self.serve_control_queue();
            }
        }
        tracing::debug!(vf = self.port, index, ?role, "ring attached");
        Ok(())
    }

    fn spec(&self, index: usize, memory: &GuestMemory) -> Result<RingSpec> {
        let setup = &self.rings[index];
        let [desc, avail, used] = setup.areas.ok_or(Error::InvalidParam)?;
        let guest = |user| memory.user_to_guest(user).ok_or(Error::InvalidParam);
        let has = |feature| self.accepted & feature != 0;
        Ok(RingSpec {
            kind: if has(features::RING_PACKED) { RingKind::Packed } else { RingKind::Split },
            size: setup.size,
            desc: guest(desc)?,
            avail: guest(avail)?,
            used: guest(used)?,
            indirect: has(features::INDIRECT_DESC),
            event_idx: has(features::EVENT_IDX),
            in_order: has(features::IN_ORDER),
        })
    }

    fn slot(&self, index: usize, role: Role) -> ResumeSlot {
        let ring = if role == Role::Control { 2 * MAX_QUEUE_PAIRS } else { index };
        self.shared.resume.slot(self.port, ring)
    }

    /// Take a ring from the workers; its position becomes the base for the next start.
    fn detach(&mut self, index: usize) {
        let Some(role) = self.role(index) else { return };
        let ring = match role {
            Role::Data { pair, side } => self.port().swap(pair, side, None),
            Role::Control => self.control.take().map(|control| control.ring),
        };
        let setup = &mut self.rings[index];
        setup.attached = false;
        if let Some(ring) = ring {
            setup.base = ring.queue.position().to_vring_base(ring.queue.kind());
            ring.resume.clear();
        }
        self.shared.rings_changed();
    }

    /// The connection is gone. The resume slots stay: the same VM may come back on a new one.
    fn detach_all(&mut self) {
        for index in 0..self.rings.len() {
            if let Some(Role::Data { pair, side }) = self.role(index) {
                self.port().swap(pair, side, None);
            }
        }
        self.control = None;
        self.port().forget_error_bells();
        self.shared.forget_guest_filters(self.port);
        self.shared.set_config_listener(self.port, None);
        self.shared.rings_changed();
    }

    /// Memory changed: map it anew and move every running ring over.
    fn remap(&mut self) -> Result<()> {
        let running: Vec<usize> =
            (0..self.rings.len()).filter(|&index| self.rings[index].attached).collect();
        for &index in &running {
            self.detach(index);
        }
        self.memory = None;
        if !self.regions.is_empty() {
            self.check_share()?;
            let memory = GuestMemory::map(self.regions.clone()).map_err(refused)?;
            if !memory.sealed() {
                // Anonymous memory of QEMU and others can be sealed and is; files cannot.
                tracing::debug!(vf = self.port, "the front-end could shrink its memory under us");
            }
            self.memory = Some(Arc::new(memory));
        }
        for index in running {
            self.sync(index)?;
        }
        Ok(())
    }

    /// A VF that maps more than its share would take it from the others.
    fn check_share(&self) -> Result<()> {
        let vfs = self.shared.config.vfs as u64;
        let share = MAPPABLE / vfs;
        let wanted = self.regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.size));
        if wanted <= share {
            return Ok(());
        }
        Err(refused(std::io::Error::other(format!(
            "its VM has {} GiB of memory, but a VF of this NIC can map {} GiB (64 TiB for {vfs} \
             VFs); configure fewer VFs",
            wanted >> 30,
            share >> 30
        ))))
    }

    fn control_kick(&self) -> Option<Arc<File>> {
        self.control.as_ref().and_then(|control| control.ring.kick.clone())
    }

    fn serve_control_queue(&mut self) {
        let Some(mut control) = self.control.take() else { return };
        let kick = control.ring.kick.as_deref();
        let silenced = kick.map_or(Ok(()), watched::silence);
        let served = silenced
            .map_err(|watched::Blocks| RingFault::BellBlocks)
            .and_then(|()| self.run_commands(&mut control));
        match served {
            Ok(()) if control.ring.queue.memory().is_lost() => {
                self.port().stop(RingFault::MemoryLost);
            }
            Ok(()) => self.control = Some(control),
            Err(fault) => self.port().stop(fault),
        }
    }

    fn run_commands(&self, control: &mut ControlRing) -> std::result::Result<(), RingFault> {
        if self.port().is_stopped() {
            return Ok(());
        }
        let mut command = [0; MAX_COMMAND];
        loop {
            control.ring.queue.disable_kicks();
            while control_queue::serve_one(
                &mut control.ring.queue,
                &mut control.scratch,
                &mut command,
                |request| self.shared.guest_command(self.port, request),
            )? {
                control.ring.notify()?;
                if self.shared.is_stopped() {
                    return Ok(());
                }
            }
            if !control.ring.queue.enable_kicks() {
                return Ok(());
            }
        }
    }
}

/// Keep a descriptor for each file, not for each region: front-ends cut one file into many regions.
fn shared_file(regions: &[Region], file: File) -> Result<Arc<File>> {
    let identity = |file: &File| match rustix::fs::fstat(file) {
        Ok(stat) => Ok((stat.st_dev, stat.st_ino)),
        Err(error) => Err(Error::ReqHandlerError(error.into())),
    };
    let wanted = identity(&file)?;
    for region in regions {
        if identity(&region.file)? == wanted {
            return Ok(Arc::clone(&region.file));
        }
    }
    Ok(Arc::new(file))
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(std::io::Error::other(error))
}

fn unsupported<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

/// Take a notification descriptor only if it is an eventfd, and make it non-blocking: a pipe or a
/// socket in its place could block the worker that rings it.
fn eventfd(file: File) -> Result<File> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let target = std::fs::read_link(link).map_err(Error::ReqHandlerError)?;
    if target.to_string_lossy() != "anon_inode:[eventfd]" {
        return Err(Error::InvalidParam);
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| Error::ReqHandlerError(e.into()))?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)
        .map_err(|e| Error::ReqHandlerError(e.into()))?;
    Ok(file)
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        self.let_go_on()
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        for index in 0..self.rings.len() {
            if self.rings[index].attached {
                self.detach(index);
            }
            self.rings[index] = RingSetup::default();
        }
        self.shared.forget_guest_filters(self.port);
        self.let_go_on()
    }

    fn get_features(&mut self) -> Result<u64> {
        let single = if self.shared.config.queue_pairs == 1 { features::MQ } else { 0 };
        Ok(features::OFFERED & !single)
    }

    fn set_features(&mut self, accepted: u64) -> Result<()> {
        if accepted & !features::OFFERED != 0 {
            return Err(Error::InvalidParam);
        }
        if accepted != self.accepted {
            for index in 0..self.rings.len() {
                if self.rings[index].attached {
                    self.detach(index);
                }
            }
        }
        self.accepted = accepted;
        // Without protocol features there is no SET_VRING_ENABLE: rings start enabled.
        if accepted & features::PROTOCOL_FEATURES == 0 {
            for ring in &mut self.rings {
                ring.enabled = true;
            }
        }
        self.let_go_on()?;
        self.shared.driver_starts(self.port, accepted);
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        if regions.len() != files.len() {
            return Err(Error::InvalidParam);
        }
        self.regions.clear();
        for (region, file) in regions.iter().zip(files) {
            self.regions.push(Region {
                guest_addr: region.guest_phys_addr,
                size: region.memory_size,
                user_addr: region.user_addr,
                mmap_offset: region.mmap_offset,
                file: shared_file(&self.regions, file)?,
            });
        }
        self.remap().map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        if num == 0 || num > MAX_RING_SIZE {
            return Err(Error::InvalidParam);
        }
        self.ring_mut(index)?.size = num as u16;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let ring = self.ring_mut(index)?;
        let areas = Some([descriptor, available, used]);
        if ring.areas == areas && ring.attached {
            return Ok(());
        }
        if ring.attached {
            self.detach(index as usize);
        }
        self.ring_mut(index)?.areas = areas;
        self.sync(index as usize)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ring_mut(index)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring_mut(index)?;
        if self.rings[index as usize].attached {
            self.detach(index as usize);
        }
        let ring = self.ring_mut(index)?;
        // The ring is stopped by this message and needs a new kick to start.
        ring.started = false;
        ring.kick = None;
        ring.call = None;
        Ok(VhostUserVringState::new(index, ring.base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = fd.map(eventfd).transpose()?.map(Arc::new);
        let attached = self.ring_mut(index.into())?.attached;
        if attached {
            self.detach(index.into());
        }
        let ring = self.ring_mut(index.into())?;
        ring.kick = kick;
        ring.started = true;
        self.sync(index.into())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = fd.map(eventfd).transpose()?.map(Arc::new);
        let ring = self.ring_mut(index.into())?;
        ring.call.clone_from(&call);
        if !ring.attached {
            return Ok(());
        }
        match self.role(index.into()) {
            Some(Role::Data { pair, side }) => {
                let locks = if side == Side::Rx { &self.port().rx } else { &self.port().tx };
                if let Some(ring) = locks[pair].lock().as_mut() {
                    ring.call = call;
                    // What was published before this descriptor came rang no bell.
                    if let Err(fault) = ring.ring_bell() {
                        self.port().stop(fault);
                    }
                }
            }
            Some(Role::Control) => {
                if let Some(control) = &mut self.control {
                    control.ring.call = call;
                }
            }
            None => {}
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let bell = fd.map(eventfd).transpose()?;
        self.ring_mut(index.into())?;
        self.port().set_error_bell(index, bell);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.protocol = VhostUserProtocolFeatures::from_bits_truncate(features);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.shared.config.queue_pairs as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring_mut(index)?.enabled = enable;
        self.sync(index as usize)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let space = self.shared.config_space(self.port);
        let mut answer = vec![0; size as usize];
        if let Some(from) = space.get(offset as usize..) {
            let known = from.len().min(answer.len());
            answer[..known].copy_from_slice(&from[..known]);
        }
        Ok(answer)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        // Nothing in a virtio 1 network device's configuration is the driver's to write.
        Err(Error::InvalidParam)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_MEMORY_REGIONS)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.regions.len() as u64 >= MAX_MEMORY_REGIONS {
            return Err(Error::InvalidParam);
        }
        self.regions.push(Region {
            guest_addr: region.guest_phys_addr,
            size: region.memory_size,
            user_addr: region.user_addr,
            mmap_offset: region.mmap_offset,
            file: shared_file(&self.regions, file)?,
        });
        if let Err(error) = self.remap() {
            self.regions.pop();
            self.remap()?;
            return Err(error);
        }
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let before = self.regions.len();
        self.regions.retain(|known| {
            (known.guest_addr, known.size) != (region.guest_phys_addr, region.memory_size)
        });
        if self.regions.len() == before {
            return Err(Error::InvalidParam);
        }
        self.remap()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unsupported("a NIC has no GPU socket")
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unsupported("a NIC shares no objects")
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        unsupported("positions are kept by the software NIC itself; see resume.rs")
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        unsupported("positions are kept by the software NIC itself; see resume.rs")
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        unsupported("a plain VF cannot be migrated live")
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported("a plain VF cannot be migrated live")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported("a NIC has no shared memory regions")
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        unsupported("a plain VF cannot be migrated live")
    }
}
