//! What a VMM can do with the descriptors and the memory that it hands over and keeps: its own VF is
//! stopped, and every other goes on.

mod rig;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lanekeeper_model::{LinkState, Mbps, VfChange};
use lanekeeper_softnic::driver::{TxFrame, VfDriver};
use lanekeeper_softnic::features;
use lanekeeper_softnic::ring::{GuestMemory, Region};
use rig::*;
use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

const SIZE: u64 = 1 << 20;
const USER: u64 = 0x5500_0000_0000;
const RING: u16 = 64;
/// Offsets in the memory of one ring: descriptors, available, used; then buffers.
const DESC: u64 = 0x1000;
const AVAIL: u64 = 0x2000;
const USED: u64 = 0x3000;
const BUFFER: u64 = 0x8000;

/// A front end with a split ring to send on, in memory that is any file it likes.
struct Vmm {
    frontend: Frontend,
    memory: GuestMemory,
    file: File,
    call: EventFd,
    kick: EventFd,
    sent: u16,
}

impl Vmm {
    fn start(rig: &Rig, vf: u32, file: File) -> Self {
        file.set_len(SIZE).expect("room");
        let path = rig.config.vf_socket(index(vf));
        let mut frontend = Frontend::connect(&path, 2).expect("connects");
        frontend.set_owner().expect("taken");
        let offered = frontend.get_features().expect("answers");
        let wanted = features::VERSION_1 | features::PROTOCOL_FEATURES;
        let protocol = frontend.get_protocol_features().expect("answers")
            & (VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::BACKEND_REQ);
        frontend.set_protocol_features(protocol).expect("taken");
        frontend.set_features(offered & wanted).expect("taken");
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: SIZE,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).expect("taken");
        let own = Region {
            guest_addr: 0,
            size: SIZE,
            user_addr: USER,
            mmap_offset: 0,
            file: Arc::new(file.try_clone().expect("one more descriptor")),
        };
        let memory = GuestMemory::map(vec![own]).expect("maps");
        let (call, kick) = (EventFd::new(0).expect("made"), EventFd::new(0).expect("made"));
        Self { frontend, memory, file, call, kick, sent: 0 }
    }

    /// Hand the transmit ring over.
    fn start_ring(&mut self) {
        let addresses = VringConfigData {
            queue_max_size: RING,
            queue_size: RING,
            flags: 0,
            desc_table_addr: USER + DESC,
            used_ring_addr: USER + USED,
            avail_ring_addr: USER + AVAIL,
            log_addr: None,
        };
        self.frontend.set_vring_num(1, RING).expect("taken");
        self.frontend.set_vring_base(1, 0).expect("taken");
        self.frontend.set_vring_addr(1, &addresses).expect("taken");
        self.frontend.set_vring_call(1, &self.call).expect("taken");
        self.frontend.set_vring_kick(1, &self.kick).expect("taken");
        self.frontend.set_vring_enable(1, true).expect("taken");
        // An answer means that all of that was dealt with.
        self.frontend.get_features().expect("answers");
    }

    fn offer(&mut self, bytes: &[u8]) {
        let slot = u64::from(self.sent % RING);
        let put = |at: u64, bytes: &[u8]| self.memory.write(at, bytes).expect("its own memory");
        put(BUFFER, &[&[0; 12], bytes].concat());
        put(DESC + 16 * slot, &BUFFER.to_le_bytes());
        put(DESC + 16 * slot + 8, &(bytes.len() as u32 + 12).to_le_bytes());
        put(DESC + 16 * slot + 12, &[0; 4]);
        put(AVAIL + 4 + 2 * slot, &(slot as u16).to_le_bytes());
        self.sent += 1;
        put(AVAIL + 2, &self.sent.to_le_bytes());
        // Without waiting, should it be full.
        self.kick.write(1).expect("kicks");
    }
}

fn memfd(sealable: bool) -> File {
    let sealing = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let flags = if sealable { sealing } else { rustix::fs::MemfdFlags::empty() };
    File::from(rustix::fs::memfd_create("vmm", flags).expect("memory"))
}

fn traffic_goes_on(a: &mut VfDriver, b: &mut VfDriver) {
    let sent: Vec<_> = (0..40).map(|n| frame(mac(1), mac(0), n, 200)).collect();
    send(a, &sent);
    assert!(receive(b, 40) == sent);
}

#[test]
fn a_bell_made_blocking_and_full_stops_its_vf_and_holds_nobody_up() {
    let rig = Rig::new(3);
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    let mut villain = Vmm::start(&rig, 2, memfd(true));
    villain.start_ring();
    // What both ends share are the flags and the counter.
    let flags = rustix::fs::fcntl_getfl(villain.call_file()).expect("flags");
    rustix::fs::fcntl_setfl(villain.call_file(), flags - OFlags::NONBLOCK).expect("set");
    let _ = villain.call.read();
    villain.call.write(u64::MAX - 1).expect("there is room");
    villain.offer(&frame(mac(1), mac(2), 9, 64));
    rig.eventually("the VF is stopped", || rig.status(2).stopped.is_some());
    assert!(rig.status(2).stopped.is_some_and(|reason| reason.contains("blocks")));
    let _ = receive(&mut b, 1);
    traffic_goes_on(&mut a, &mut b);
    // It may not do that again at once.
    drop(villain);
    let path = rig.config.vf_socket(index(2));
    let again = Frontend::connect(&path, 2).expect("connects");
    let _ = again.set_owner();
    assert!(again.get_features().is_err(), "hung up on");
    // And a NIC that was held up ends when told to.
    let start = Instant::now();
    drop(rig);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn memory_that_shrinks_stops_its_vf_and_not_the_process() {
    let rig = Rig::new(3);
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    let folder = tempfile::tempdir().expect("a folder");
    let file = || {
        let path = folder.path().join("ram");
        File::options().create(true).truncate(true).read(true).write(true).open(path)
    };
    for (what, memory) in [("memfd", memfd(false)), ("file", file().expect("a file"))] {
        let mut villain = Vmm::start(&rig, 2, memory);
        villain.start_ring();
        villain.offer(&frame(mac(1), mac(2), 9, 64));
        assert_eq!(receive(&mut b, 1).len(), 1, "{what}: an honest frame passes first");
        villain.file.set_len(0).expect("shrinks");
        villain.kick.write(1).expect("kicks");
        let vanished = || rig.status(2).stopped.is_some_and(|reason| reason.contains("vanished"));
        rig.eventually(&format!("the VF with a {what} is stopped"), vanished);
        traffic_goes_on(&mut a, &mut b);
    }
    let mut reborn = rig.plain(2);
    send(&mut reborn, &[frame(mac(1), mac(2), 9, 64)]);
    assert_eq!(receive(&mut b, 1).len(), 1, "a VM that starts anew is served");
}

#[test]
fn link_and_mtu_changes_are_announced_and_a_vmm_that_does_not_listen_holds_nobody_up() {
    let rig = Rig::new(3);
    let (mut a, mut b) = (rig.plain(0), rig.plain(1));
    let mut vmm = Vmm::start(&rig, 2, memfd(true));
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    vmm.frontend.set_backend_request_fd(&theirs).expect("taken");
    vmm.frontend.get_features().expect("answers");
    rig.set(2, &link(LinkState::Disable));
    let mut message = [0; 12];
    ours.set_read_timeout(Some(SOON)).expect("set");
    ours.read_exact(&mut message).expect("a word of the change");
    // Request 2, version 1, nothing behind it (docs/interop/vhost-user.rst).
    let words = [2_u32, 1, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(message, *words);
    let (done, waited) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..250 {
                rig.set(2, &link(LinkState::Auto));
                rig.set(2, &link(LinkState::Disable));
            }
            done.send(()).expect("somebody waits");
        });
        traffic_goes_on(&mut a, &mut b);
        waited.recv_timeout(Duration::from_secs(60)).expect("no change waits for the listener");
    });
    traffic_goes_on(&mut a, &mut b);
}

#[test]
fn a_guarantee_that_cannot_be_kept_does_not_shut_the_others_out() {
    let rig = Rig::new(4);
    let guarantee = VfChange { min_rate: Some(Mbps(u32::MAX)), ..VfChange::default() };
    rig.set(0, &guarantee);
    let mut greedy = rig.plain(0);
    let (mut a, mut b) = (rig.plain(2), rig.plain(3));
    let flood: Vec<_> = (0..64).map(|n| frame(mac(1), mac(0), n, 64)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let flood: Vec<_> = flood.iter().map(|frame| TxFrame::plain(frame)).collect();
                greedy.send(0, &flood).expect("frames can be sent");
            }
        });
        let start = Instant::now();
        for round in 0..50 {
            let sent = [frame(mac(3), mac(2), round, 64)];
            send(&mut a, &sent);
            assert!(receive(&mut b, 1) == sent);
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        assert!(took < Duration::from_secs(5), "50 frames took {took:?}");
    });
}

impl Vmm {
    /// The descriptor of its bell as a file, for what EventFd does not do.
    fn call_file(&self) -> File {
        let clone = self.call.try_clone().expect("one more descriptor");
        // SAFETY: taken out of its owner just now.
        unsafe { File::from_raw_fd(clone.into_raw_fd()) }
    }
}

#[test]
fn the_flags_of_an_eventfd_are_shared_by_both_ends() {
    // What the first test stands on.
    let bell = File::from(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("made"));
    let other = bell.try_clone().expect("one more descriptor");
    let flags = rustix::fs::fcntl_getfl(&other).expect("flags");
    rustix::fs::fcntl_setfl(&other, flags - OFlags::NONBLOCK).expect("set");
    assert!(!rustix::fs::fcntl_getfl(&bell).expect("flags").contains(OFlags::NONBLOCK));
    (&bell).write_all(&1u64.to_ne_bytes()).expect("rings");
}
