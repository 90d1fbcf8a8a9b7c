//! What the tests of a whole NIC share: a NIC with its folder, drivers on its VFs, frames.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lanekeeper_hw::Hardware;
use lanekeeper_model::{
    LinkState, MacAddr, PfId, VfChange, VfCounters, VfIndex, VfStatus, VlanId, VlanTag,
};
use lanekeeper_softnic::driver::{TxFrame, VfDriver, VfOptions};
use lanekeeper_softnic::ring::RingKind;
use lanekeeper_softnic::{Config, Nic};

/// Long enough for a loaded machine; nothing waits it out unless it fails.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// How long to look for a frame that must not come.
pub(crate) const A_WHILE: Duration = Duration::from_millis(100);

pub(crate) struct Rig {
    pub(crate) nic: Option<Nic>,
    pub(crate) config: Config,
    pub(crate) hardware: Arc<dyn Hardware>,
    pub(crate) dir: PathBuf,
}

/// Each VF's address.
pub(crate) fn mac(vf: u32) -> MacAddr {
    MacAddr([0x02, 0, 0, 0, 1, vf as u8])
}

pub(crate) fn index(vf: u32) -> VfIndex {
    VfIndex::new(vf).expect("a VF number")
}

pub(crate) fn vlan(id: u32) -> VlanTag {
    VlanTag { id: VlanId::new(id).expect("a VLAN"), ..VlanTag::default() }
}

/// A change that makes a VF usable in a VLAN.
pub(crate) fn usable(vf: u32, id: u32) -> VfChange {
    VfChange { mac: Some(mac(vf)), vlan: Some(vlan(id).into()), ..VfChange::default() }
}

impl Rig {
    /// A NIC whose VFs are all in VLAN 5.
    pub(crate) fn new(vfs: u32) -> Self {
        Self::with(vfs, |_| {})
    }

    pub(crate) fn with(vfs: u32, adjust: impl FnOnce(&mut Config)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("lk-{name}"));
        let mut config = Config::new(name.parse().expect("a name"), vfs as usize);
        config.run_dir = Some(dir.clone());
        config.vf = (0..vfs).map(|vf| (vf.to_string(), usable(vf, 5))).collect();
        adjust(&mut config);
        let nic = Nic::start(config.clone()).expect("the NIC starts");
        let hardware = nic.hardware();
        Self { nic: Some(nic), config, hardware, dir }
    }

    pub(crate) fn pf(&self) -> PfId {
        PfId::Soft(self.config.name.clone())
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers make it where they pass it")]
    pub(crate) fn driver(&self, vf: u32, options: VfOptions) -> VfDriver {
        let options = VfOptions { patience: SOON, ..options };
        let driver =
            VfDriver::connect(&self.config.vf_socket(index(vf)), options).expect("connects");
        self.eventually("the rings are attached", || self.status(vf).attached);
        driver
    }

    pub(crate) fn plain(&self, vf: u32) -> VfDriver {
        self.driver(vf, VfOptions::default())
    }

    pub(crate) fn set(&self, vf: u32, change: &VfChange) -> VfStatus {
        self.hardware.set_vf(&self.pf(), index(vf), change).expect("the change is taken")
    }

    pub(crate) fn status(&self, vf: u32) -> VfStatus {
        self.hardware.vf(&self.pf(), index(vf)).expect("the VF is there")
    }

    pub(crate) fn counters(&self, vf: u32) -> VfCounters {
        self.hardware.counters(&self.pf(), index(vf)).expect("the VF is there")
    }

    #[expect(clippy::unused_self, reason = "reads as a promise of the NIC")]
    pub(crate) fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !holds() {
            assert!(Instant::now() < deadline, "{what}: not within {SOON:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.nic.take());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Both ring formats, so that each test holds for both.
pub(crate) const KINDS: [RingKind; 2] = [RingKind::Split, RingKind::Packed];

pub(crate) fn of_kind(kind: RingKind) -> VfOptions {
    VfOptions { kind, ..VfOptions::default() }
}

/// A frame of `len` bytes from one address to another, told apart by `number`.
pub(crate) fn frame(to: MacAddr, from: MacAddr, number: u8, len: usize) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    frame.extend([0x88, 0xb5]);
    frame.resize(len, number);
    frame
}

/// The same frame with a VLAN tag put in.
pub(crate) fn tagged(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    [&frame[..12], &tpid.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]].concat()
}

pub(crate) fn send(driver: &mut VfDriver, frames: &[Vec<u8>]) {
    let frames: Vec<TxFrame<'_>> = frames.iter().map(|frame| TxFrame::plain(frame)).collect();
    let mut done = 0;
    let deadline = Instant::now() + SOON;
    while done < frames.len() {
        done += driver.send(0, &frames[done..]).expect("frames can be sent");
        assert!(Instant::now() < deadline, "the VF takes no frames");
    }
}

pub(crate) fn receive(driver: &mut VfDriver, count: usize) -> Vec<Vec<u8>> {
    driver.receive_all(0, count, SOON).expect("frames can be received")
}

/// Frames that came although none should have.
pub(crate) fn intruders(driver: &mut VfDriver) -> Vec<Vec<u8>> {
    driver.receive_all(0, 1, A_WHILE).expect("frames can be received")
}

pub(crate) fn link(state: LinkState) -> VfChange {
    VfChange { link_state: Some(state), ..VfChange::default() }
}
