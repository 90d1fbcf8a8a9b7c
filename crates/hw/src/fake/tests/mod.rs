//! Each rule of each personality, read as a sentence, and random histories over all of them.

mod binding;
mod births;
mod happenings;
mod knobs;
mod macs;
mod random;
mod roce;

use lanekeeper_model::{MacAddr, Mbps, RateLimits, VlanId, VlanTag};

use super::*;
use crate::inventory::{VfAttributes, VfReading};

fn vf(index: u32) -> VfIndex {
    VfIndex::new(index).expect("valid")
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// A host with this PF and so many of its VFs.
fn with_vfs(pf: FakePf, count: u16) -> (Fake, PfAddr) {
    let fake = Fake::new();
    let pf = fake.add_pf(pf);
    fake.write_num_vfs(pf, count).expect("made");
    (fake, pf)
}

fn reading(fake: &Fake, pf: PfAddr, index: u32) -> VfReading {
    let reading = fake.read(pf).expect("read");
    reading.vf(vf(index)).expect("there").clone()
}

fn attributes(fake: &Fake, pf: PfAddr, index: u32) -> VfAttributes {
    reading(fake, pf, index).attributes.expect("told")
}

fn send(fake: &Fake, pf: PfAddr, index: u32, message: VfMessage) -> Result<(), HardwareError> {
    fake.send_vf(pf, vf(index), &message)
}

fn set_mac(mac: MacAddr) -> VfMessage {
    VfMessage { mac: Some(mac), ..VfMessage::default() }
}

fn set_rate(min: u32, max: u32) -> VfMessage {
    let rate = RateLimits { min: Mbps(min), max: Mbps(max) };
    VfMessage { rate: Some(rate), ..VfMessage::default() }
}

fn set_vlan(id: u32) -> VfMessage {
    let vlan = VlanTag { id: VlanId::new(id).expect("valid"), ..VlanTag::default() };
    VfMessage { vlan: Some(vlan), ..VfMessage::default() }
}

fn set_spoofchk(on: bool) -> VfMessage {
    VfMessage { spoofchk: Some(on), ..VfMessage::default() }
}

fn set_trust(on: bool) -> VfMessage {
    VfMessage { trust: Some(on), ..VfMessage::default() }
}

/// Bound to VFIO in place of what it was bound to.
fn bind_vfio(fake: &Fake, pf: PfAddr, index: u32) {
    let addr = reading(fake, pf, index).addr;
    fake.write_driver_override(pf, addr, Some("vfio-pci")).expect("overridden");
    fake.unbind(pf, addr).expect("unbound");
    fake.probe(pf, addr).expect("probed");
}

/// The refusal's errno.
fn refusal<T: std::fmt::Debug>(answer: Result<T, HardwareError>) -> i32 {
    let error = answer.expect_err("refused");
    error.errno().unwrap_or_else(|| panic!("no errno in {error}"))
}

/// The refusal is that there is no such thing; its text.
fn lacking<T: std::fmt::Debug>(answer: Result<T, HardwareError>) -> String {
    match answer.expect_err("refused") {
        error @ HardwareError::Unsupported { .. } => error.to_string(),
        other => panic!("refused otherwise: {other}"),
    }
}

const EPERM: i32 = 1;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
