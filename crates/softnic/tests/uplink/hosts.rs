//! Hosts (namespaces) with uplinks in them, and the waiting that tests of them need.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use lanekeeper_model::Mtu;
use lanekeeper_softnic::ring::Gather;
use lanekeeper_softnic::uplink::{
    InterfaceName, LinkStatus, NetHeader, ReceiveBatch, Sent, Uplink, UplinkConfig, UplinkError,
    UplinkQueue,
};
use lanekeeper_testbed::netns::{Lab, Namespace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long something that must happen may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn name(text: &str) -> InterfaceName {
    InterfaceName::new(text).expect("valid")
}

pub(crate) fn packet(interface: &str) -> UplinkConfig {
    UplinkConfig::Packet { interface: name(interface) }
}

pub(crate) fn tap(tap: &str, mtu: Option<u32>) -> UplinkConfig {
    UplinkConfig::Tap { name: name(tap), mtu: mtu.map(|mtu| Mtu::new(mtu).expect("valid")) }
}

pub(crate) fn is_readable(fd: Option<BorrowedFd<'_>>, patience: Duration) -> bool {
    let fd = fd.expect("an uplink with an interface");
    let timeout = Timespec::try_from(patience).expect("short");
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).expect("polls") == 1
}

fn may_make_namespaces() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    root
}

/// A network namespace. Interfaces made in it send no IPv6 of their own.
pub(crate) struct Host(Namespace);

impl Host {
    fn new(lab: &mut Lab, label: &str) -> Self {
        let namespace = lab.namespace(label).expect("made");
        namespace.silence("default").expect("set");
        Self(namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }

    pub(crate) fn ip(&self, arguments: &[&str]) {
        self.0.ip(arguments).expect("iproute2 obeys");
    }

    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(work).expect("enters")
    }

    /// How many have asked for all frames of an interface.
    pub(crate) fn promiscuity(&self, interface: &str) -> u32 {
        let arguments = ["-n", self.name(), "-d", "link", "show", interface];
        let output = std::process::Command::new("ip").args(arguments).output().expect("runs");
        let text = String::from_utf8(output.stdout).expect("text");
        let (_, after) = text.split_once("promiscuity ").expect("iproute2 says it");
        after.split_whitespace().next().and_then(|count| count.parse().ok()).expect("a count")
    }

    pub(crate) fn open(&self, config: &UplinkConfig, queues: usize) -> Result<End, UplinkError> {
        let (uplink, queues) = self.run(|| Uplink::open(config, queues))?;
        Ok(End { namespace: self.0.clone(), uplink, queues, batch: ReceiveBatch::new() })
    }
}

/// A host in a lab of its own.
pub(crate) struct OwnHost {
    host: Host,
    _lab: Lab,
}

impl OwnHost {
    pub(crate) fn new(label: &str) -> Option<Self> {
        if !may_make_namespaces() {
            return None;
        }
        let mut lab = Lab::new(label);
        let host = Host::new(&mut lab, "h");
        Some(Self { host, _lab: lab })
    }
}

impl std::ops::Deref for OwnHost {
    type Target = Host;
    fn deref(&self) -> &Host {
        &self.host
    }
}

/// One of a [`Pair`].
pub(crate) struct Side {
    pub(crate) host: Host,
}

/// Two hosts joined by a cable, called `wire` on both.
pub(crate) struct Pair {
    pub(crate) left: Side,
    pub(crate) right: Side,
    mtu: u32,
    lab: Lab,
}

impl Pair {
    pub(crate) fn new(label: &str, mtu: u32) -> Option<Self> {
        if !may_make_namespaces() {
            return None;
        }
        let mut lab = Lab::new(label);
        let [left, right] = ["l", "r"].map(|side| Side { host: Host::new(&mut lab, side) });
        let pair = Self { left, right, mtu, lab };
        pair.cable();
        Some(pair)
    }

    pub(crate) fn cable(&self) {
        let ends = ((&self.left.host.0, "wire"), (&self.right.host.0, "wire"));
        self.lab.cable(ends.0, ends.1, self.mtu).expect("joined");
    }

    /// Packet uplinks on both ends, whatever their state.
    pub(crate) fn open_as_it_is(&self, queues: usize) -> (End, End) {
        let open = |side: &Side| side.host.open(&packet("wire"), queues).expect("opens");
        (open(&self.left), open(&self.right))
    }

    /// Packet uplinks on both ends, with a carrier.
    pub(crate) fn open(&self, queues: usize) -> (End, End) {
        let (mut left, mut right) = self.open_as_it_is(queues);
        for end in [&mut left, &mut right] {
            end.until(|status| status.carrier);
            end.settle();
        }
        (left, right)
    }
}

/// An open uplink in its namespace.
pub(crate) struct End {
    namespace: Namespace,
    pub(crate) uplink: Uplink,
    pub(crate) queues: Vec<UplinkQueue>,
    pub(crate) batch: ReceiveBatch,
}

impl End {
    pub(crate) fn send(&mut self, frames: &[(NetHeader, &[u8])]) -> Sent {
        self.send_on(0, frames)
    }

    pub(crate) fn send_on(&mut self, queue: usize, frames: &[(NetHeader, &[u8])]) -> Sent {
        let mut batch = self.queues[queue].batch();
        for (header, frame) in frames {
            batch.push(header, Gather::from_slice(frame)).expect("at most 32");
        }
        batch.send()
    }

    /// Refresh in the uplink's own namespace.
    pub(crate) fn refresh(&mut self) -> Option<LinkStatus> {
        let Self { namespace, uplink, .. } = self;
        namespace.run(|| uplink.refresh()).expect("enters")
    }

    /// Pass over what is still reported of changes made before.
    pub(crate) fn settle(&mut self) {
        while is_readable(self.uplink.fd(), Duration::from_millis(20)) {
            self.refresh();
        }
    }

    /// Wait, as a controller does, until the state is so.
    pub(crate) fn until(&mut self, wanted: impl Fn(LinkStatus) -> bool) -> LinkStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.uplink.link().status();
            if wanted(status) {
                return status;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(is_readable(self.uplink.fd(), left), "not noticed; still {status:?}");
            self.refresh();
        }
    }

    /// Wait, as a worker does, for frames on queue 0.
    pub(crate) fn wait(&self) {
        assert!(is_readable(self.queues[0].fd(), PATIENCE), "nothing arrives");
    }

    fn take(&mut self, mut each: impl FnMut(usize, &NetHeader, &[u8])) {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            queue.receive(&mut self.batch);
            assert_eq!(self.batch.unusable(), 0);
            for (header, frame) in self.batch.iter() {
                each(number, header, frame);
            }
        }
    }

    /// Frames that arrive within a time.
    pub(crate) fn receive_for(&mut self, time: Duration) -> Vec<(NetHeader, Vec<u8>)> {
        let end = Instant::now() + time;
        let mut frames = Vec::new();
        while Instant::now() < end {
            self.take(|_, header, frame| frames.push((*header, frame.to_vec())));
        }
        frames
    }

    /// So many frames, and the queue each came from.
    pub(crate) fn receive_with_queue(&mut self, count: usize) -> Vec<(usize, Vec<u8>)> {
        self.receive_until(count, |queue, _, frame| (queue, frame.to_vec()))
    }

    /// So many frames.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<(NetHeader, Vec<u8>)> {
        self.receive_until(count, |_, header, frame| (*header, frame.to_vec()))
    }

    fn receive_until<T>(
        &mut self,
        count: usize,
        each: impl Fn(usize, &NetHeader, &[u8]) -> T,
    ) -> Vec<T> {
        let end = Instant::now() + PATIENCE;
        let mut frames = Vec::new();
        while frames.len() < count {
            assert!(Instant::now() < end, "{} of {count} frames arrived", frames.len());
            self.take(|queue, header, frame| frames.push(each(queue, header, frame)));
        }
        frames
    }

    /// The first frame that is wanted; others are passed over.
    pub(crate) fn first(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut found = None;
            self.take(|_, _, frame| {
                if wanted(frame) {
                    found = Some(frame.to_vec());
                }
            });
            if let Some(found) = found {
                return found;
            }
            assert!(Instant::now() < end, "no such frame");
        }
    }
}
