//! Uplinks: what carries traffic between the embedded switch and the world off the host.
//!
//! [`Uplink::open`] makes one [`UplinkQueue`] a worker. A queue sends and receives batches without
//! a lock, an allocation, or a copy on our side: what leaves is gathered by the kernel straight
//! from the guest's memory. The [`Uplink`] itself stays with one controlling thread, which puts
//! [`Uplink::fd`] into its event loop and calls [`Uplink::refresh`]: carrier, MTU, an interface
//! that goes and one that comes back are noticed there, and the workers go on with the queues they
//! have.
//!
//! Network namespaces: an uplink belongs to the namespace of the thread that opened it, and
//! `refresh` must be called from a thread of the same.

#[allow(unsafe_code)]
mod batch;
mod config;
mod link;
mod packet;
#[allow(unsafe_code)]
mod sys;
mod tap;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lanekeeper_model::{Mtu, VlanProtocol, VlanTag};
use rustix::event::epoll;

pub use batch::{NetHeader, ReceiveBatch, SendBatch, Sent};
pub use config::{InterfaceName, InterfaceNameError, UplinkConfig};
pub use link::{Link, LinkStatus};

use batch::{MAX_PIECES, Stage};
use link::{Interfaces, Watch};

/// Most queues one uplink can have (packet(7), `PACKET_FANOUT`; `MAX_TAP_QUEUES`).
pub const MAX_QUEUES: usize = 256;

/// Why an uplink cannot be opened or used as asked.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// There is no interface of this name.
    #[error("there is no interface '{name}' in this network namespace; there are: {existing}")]
    NoInterface {
        /// What was asked for.
        name: InterfaceName,
        /// Those that exist, separated by commas.
        existing: String,
    },
    /// The process may not do this.
    #[error("may not open the uplink '{name}': run as root, or with {needs}")]
    Permission {
        /// The interface.
        name: InterfaceName,
        /// The capability that is missing.
        needs: &'static str,
    },
    /// Another process has the TAP.
    #[error("the TAP '{name}' is in use by another process; stop it or take another name")]
    TapBusy {
        /// The TAP.
        name: InterfaceName,
    },
    /// The TAP was made with one queue, but each worker needs its own.
    #[error(
        "the TAP '{name}' has one queue, but there are {queues} workers; remove it (ip link del \
         {name}) so that it is made anew, or name one core only in cpus"
    )]
    TapUnfit {
        /// The TAP.
        name: InterfaceName,
        /// Queues asked for, one a worker.
        queues: usize,
    },
    /// There is an interface of that name that is no TAP.
    #[error(
        "the interface '{name}' exists and is no TAP; take a name that no interface has, or use the \
         interface itself: kind = \"packet\", interface = \"{name}\""
    )]
    NoTap {
        /// The interface.
        name: InterfaceName,
    },
    /// The kernel's TAP device cannot be opened.
    #[error("cannot open {device} (is the kernel module `tun` loaded?): {source}")]
    TunDevice {
        /// Its path.
        device: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// No queue, or more than the kernel has.
    #[error("an uplink cannot have {0} queues; use 1 to {max}", max = MAX_QUEUES)]
    Queues(usize),
    /// Full-length frames of a VF do not fit through the uplink.
    #[error(
        "a VF of MTU {vf} needs an uplink of MTU {needed}, but '{name}' has {uplink}; lower the \
         VF's MTU, or: ip link set {name} mtu {needed}"
    )]
    Mtu {
        /// The uplink's interface.
        name: InterfaceName,
        /// The VF's MTU.
        vf: Mtu,
        /// The uplink's MTU, in bytes.
        uplink: u32,
        /// What it would have to be.
        needed: u32,
    },
    /// A system call failed for another reason.
    #[error("cannot {what} '{name}': {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The interface.
        name: InterfaceName,
        /// What the system said.
        source: io::Error,
    },
    /// The means of noticing changes are not to be had.
    #[error("cannot watch network interfaces: {0}")]
    Watch(io::Error),
}

impl UplinkError {
    fn system(what: &'static str, name: &InterfaceName, source: io::Error) -> Self {
        Self::System { what, name: name.clone(), source }
    }

    fn no_interface(name: &InterfaceName) -> Self {
        // The list is a help; if it cannot be had, the error stands without it.
        let existing = sys::interface_names().unwrap_or_default().join(", ");
        Self::NoInterface { name: name.clone(), existing }
    }
}

/// Which of the two ways to the kernel a queue takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Tap,
    Packet,
}

/// What opening an interface gave.
struct Opened {
    /// One for each queue.
    files: Vec<OwnedFd>,
    /// Bytes of virtio-net header in front of a frame.
    header_len: usize,
    /// The interface, or `None` while the files are not attached to it.
    index: Option<u32>,
}

/// One queue's way to the kernel. Its numbers stay the same for ever; which file stands behind
/// [`Slot::fd`] changes when the interface has gone and come back.
#[derive(Debug)]
struct Slot {
    file: OwnedFd,
    /// Readable when frames wait. Holds `file` while that is attached: what would otherwise report
    /// an error to each poll, of a TAP that is gone, then reports nothing.
    ready: OwnedFd,
    header_len: usize,
}

impl Slot {
    fn new(file: OwnedFd, header_len: usize) -> io::Result<Self> {
        Ok(Self { file, ready: epoll::create(epoll::CreateFlags::CLOEXEC)?, header_len })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn header_len(&self) -> usize {
        self.header_len
    }

    fn listen(&self) -> io::Result<()> {
        let nothing = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.ready, &self.file, nothing, epoll::EventFlags::IN)?)
    }

    fn ignore(&self) {
        // If it was not listening, it is silent already.
        let _ = epoll::delete(&self.ready, &self.file);
    }
}

/// What would keep an uplink from being opened in this network namespace now, as far as that can be
/// told without opening it: a packet uplink needs its interface to be there.
pub fn obstacle(config: &UplinkConfig) -> Option<UplinkError> {
    let UplinkConfig::Packet { interface } = config else { return None };
    match Interfaces::open().and_then(|interfaces| interfaces.index(interface)) {
        Ok(Some(_)) => None,
        Ok(None) => Some(UplinkError::no_interface(interface)),
        Err(error) => Some(UplinkError::system("look up the interface", interface, error)),
    }
}

/// An uplink, as its controlling thread has it.
#[derive(Debug)]
pub struct Uplink {
    config: UplinkConfig,
    link: Link,
    interface: Option<Interface>,
}

/// The interface under an uplink.
struct Interface {
    name: InterfaceName,
    kind: Kind,
    slots: Vec<Arc<Slot>>,
    /// What the slots are attached to, if to anything.
    index: Option<u32>,
    watch: Watch,
    system: Interfaces,
    /// The last failed attempt to attach, so that it is said once, not every second.
    complaint: Option<String>,
}

impl std::fmt::Debug for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interface")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl Uplink {
    /// Open an uplink with this many queues, one for each worker.
    ///
    /// A packet uplink whose interface is down opens, and attaches once it is up.
    ///
    /// # Errors
    /// [`UplinkError`]; names the interfaces there are, or the missing capability.
    pub fn open(
        config: &UplinkConfig,
        queues: usize,
    ) -> Result<(Self, Vec<UplinkQueue>), UplinkError> {
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(UplinkError::Queues(queues));
        }
        let link = Link::default();
        let interface = match config.interface() {
            None => None,
            Some(name) => Some(Interface::open(config, name, queues)?),
        };
        let ends = (0..queues).map(|queue| UplinkQueue {
            slot: interface.as_ref().map(|interface| Arc::clone(&interface.slots[queue])),
            kind: interface.as_ref().map_or(Kind::Packet, |interface| interface.kind),
            link: link.clone(),
            stage: Stage::new(MAX_PIECES),
        });
        let ends = ends.collect();
        let mut uplink = Self { config: config.clone(), link, interface };
        if uplink.interface.is_some() {
            uplink.refresh();
            if !uplink.link.carrier() {
                let name = config.interface().map(InterfaceName::as_str);
                tracing::warn!(uplink = name, "the uplink has no carrier");
            }
        }
        Ok((uplink, ends))
    }

    /// What it was opened from.
    pub fn config(&self) -> &UplinkConfig {
        &self.config
    }

    /// A view of the last known state, for other threads.
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    /// Becomes readable when [`Self::refresh`] should be called; `None` for no uplink.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.interface.as_ref().map(|interface| interface.watch.fd())
    }

    /// Look at the interface: attach to it if it has come (back), and answer with the new state if
    /// that has changed. Does not block.
    pub fn refresh(&mut self) -> Option<LinkStatus> {
        let interface = self.interface.as_mut()?;
        let status = interface.refresh(&self.config);
        let changed = status != self.link.status();
        self.link.set(status);
        changed.then_some(status)
    }

    /// Check that full-length frames of a VF fit through the uplink, as [`check_mtu`] does.
    ///
    /// # Errors
    /// [`UplinkError::Mtu`] with what the uplink would need.
    pub fn check_mtu(&self, vf: Mtu, tag: VlanTag) -> Result<(), UplinkError> {
        check_mtu(&self.config, self.link.status(), vf, tag)
    }
}

/// Check that full-length frames of a VF fit through an uplink in this state; one that is not there
/// says nothing of what fits.
///
/// A packet socket takes frames that exceed the interface's MTU by one 802.1Q tag, but not by an
/// 802.1ad one (`packet_snd`), so that needs 4 bytes more.
///
/// # Errors
/// [`UplinkError::Mtu`] with what the uplink would need.
pub fn check_mtu(
    config: &UplinkConfig,
    link: LinkStatus,
    vf: Mtu,
    tag: VlanTag,
) -> Result<(), UplinkError> {
    let (Some(name), Some(uplink)) = (config.interface(), link.mtu) else { return Ok(()) };
    let service_tag = tag.id.is_some() && tag.protocol == VlanProtocol::Dot1Ad;
    let needed = u32::from(vf) + if service_tag { 4 } else { 0 };
    if needed <= uplink {
        return Ok(());
    }
    Err(UplinkError::Mtu { name: name.clone(), vf, uplink, needed })
}

impl Interface {
    fn open(
        config: &UplinkConfig,
        name: &InterfaceName,
        queues: usize,
    ) -> Result<Self, UplinkError> {
        // The watch comes first: a change after this is noticed.
        let watch = Watch::open().map_err(UplinkError::Watch)?;
        let system = Interfaces::open().map_err(UplinkError::Watch)?;
        let opened = open_files(config, name, &system, queues)?;
        let slots = opened
            .files
            .into_iter()
            .map(|file| Slot::new(file, opened.header_len).map(Arc::new))
            .collect::<io::Result<Vec<_>>>()
            .map_err(UplinkError::Watch)?;
        let kind = match config {
            UplinkConfig::Tap { .. } => Kind::Tap,
            UplinkConfig::None | UplinkConfig::Packet { .. } => Kind::Packet,
        };
        let mut interface =
            Self { name: name.clone(), kind, slots, index: None, watch, system, complaint: None };
        match opened.index {
            Some(index) => interface.attached(index),
            None => interface.detached(),
        }
        .map_err(UplinkError::Watch)?;
        Ok(interface)
    }

    fn refresh(&mut self, config: &UplinkConfig) -> LinkStatus {
        self.watch.drain();
        if let Some(index) = self.index
            && !self.is_attached(index)
        {
            tracing::warn!(uplink = %self.name, "the uplink's interface is gone");
            if let Err(error) = self.detached() {
                tracing::error!(uplink = %self.name, %error, "the uplink will not be tried again");
            }
        }
        if self.index.is_none() {
            self.try_attach(config);
        }
        let Some(index) = self.index else { return LinkStatus::default() };
        match self.system.status(index) {
            Some(status) => status,
            // A TAP may be handed to another network namespace; frames cross all the same, but
            // what its state is there cannot be seen from here.
            None => LinkStatus { carrier: self.kind == Kind::Tap, mtu: None },
        }
    }

    fn is_attached(&self, index: u32) -> bool {
        // The kernel detaches all queues of an interface or none.
        match self.kind {
            Kind::Tap => tap::is_attached(&self.slots[0].file),
            Kind::Packet => packet::is_attached(&self.slots[0].file, index),
        }
    }

    fn attached(&mut self, index: u32) -> io::Result<()> {
        for slot in &self.slots {
            slot.listen()?;
        }
        self.index = Some(index);
        self.complaint = None;
        self.watch.set_retry(false)
    }

    fn detached(&mut self) -> io::Result<()> {
        for slot in &self.slots {
            slot.ignore();
        }
        self.index = None;
        self.watch.set_retry(true)
    }

    fn try_attach(&mut self, config: &UplinkConfig) {
        let opened = match open_files(config, &self.name, &self.system, self.slots.len()) {
            Ok(opened) => opened,
            Err(UplinkError::NoInterface { .. }) => return,
            Err(error) => return self.complain(&error),
        };
        let Some(index) = opened.index else { return };
        let replaced = self
            .slots
            .iter()
            .zip(&opened.files)
            .try_for_each(|(slot, file)| sys::replace_file(&slot.file, file));
        match replaced.and_then(|()| self.attached(index)) {
            Ok(()) => tracing::info!(uplink = %self.name, "attached to the uplink's interface"),
            Err(error) => {
                // Some slots may listen; none must, or the next attempt cannot add them.
                for slot in &self.slots {
                    slot.ignore();
                }
                self.complain(&error);
            }
        }
    }

    fn complain(&mut self, error: &dyn std::fmt::Display) {
        let text = error.to_string();
        if self.complaint.as_deref() != Some(&text) {
            tracing::warn!(uplink = %self.name, error = text, "cannot attach to the uplink");
            self.complaint = Some(text);
        }
    }
}

fn open_files(
    config: &UplinkConfig,
    name: &InterfaceName,
    system: &Interfaces,
    queues: usize,
) -> Result<Opened, UplinkError> {
    match config {
        UplinkConfig::Tap { mtu, .. } => tap::open(system, name, *mtu, queues),
        UplinkConfig::None | UplinkConfig::Packet { .. } => packet::open(system, name, queues),
    }
}

/// One worker's end of an uplink.
pub struct UplinkQueue {
    slot: Option<Arc<Slot>>,
    kind: Kind,
    link: Link,
    stage: Stage,
}

impl UplinkQueue {
    /// Readable when frames wait, level-triggered; the same as long as the queue lives, also while
    /// the interface is gone. `None` for no uplink.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.slot.as_ref().map(|slot| slot.ready.as_fd())
    }

    /// Whether frames can leave, as [`Uplink::refresh`] last saw it. One load.
    #[inline]
    pub fn carrier(&self) -> bool {
        self.link.carrier()
    }

    /// Begin a batch of frames to send.
    pub fn batch<'f>(&mut self) -> SendBatch<'_, 'f> {
        SendBatch::new(self)
    }

    /// Take frames that have arrived, up to 32, in place of those in `into`. Does not block.
    ///
    /// Net headers say what the kernel knows (checksums to finish, segment size); a tag that the
    /// kernel has taken off is back in its place, and the header describes the frame with it.
    #[inline]
    pub fn receive(&mut self, into: &mut ReceiveBatch) {
        into.clear();
        let Some(slot) = &self.slot else { return };
        match self.kind {
            Kind::Packet => into.fill_from_packet(slot.fd(), slot.header_len),
            Kind::Tap => into.fill_from_tap(slot.fd()),
        }
    }

    /// Frames the kernel dropped since this was last asked, because this queue was not emptied in
    /// time. Always 0 for a TAP, whose own `tx_dropped` counts them.
    pub fn missed(&mut self) -> u64 {
        match (&self.slot, self.kind) {
            (Some(slot), Kind::Packet) => sys::packet_drops(slot.fd()).map_or(0, u64::from),
            _ => 0,
        }
    }
}
