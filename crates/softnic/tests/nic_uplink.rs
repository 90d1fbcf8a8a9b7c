//! A whole NIC over an uplink that takes shorter frames than its VFs may have. Needs root; says so and
//! passes otherwise.

#[path = "uplink/hosts.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod hosts;
mod rig;

use hosts::{Pair, packet};
use lanekeeper_hw::HardwareError;
use lanekeeper_model::{DropReason, MacAddr, Mbps, Mtu, VfChange, VlanProtocol, VlanTag};
use lanekeeper_softnic::driver::VfOptions;
use rig::*;

const ELSEWHERE: MacAddr = MacAddr([2, 0, 0, 0, 9, 9]);

fn mtu(bytes: u32) -> VfChange {
    VfChange { mtu: Some(Mtu::new(bytes).expect("an MTU")), ..VfChange::default() }
}

/// A NIC of two VFs over an uplink of MTU 1500; the file gives VF 1 an MTU of 9000.
fn jumbo_rig(pair: &Pair) -> Rig {
    pair.left.host.run(|| {
        Rig::with(2, |config| {
            config.uplink = packet("wire");
            config.vf.get_mut("1").expect("VF 1").mtu = mtu(9000).mtu;
        })
    })
}

#[test]
fn a_change_whose_frames_the_uplink_does_not_take_is_refused_with_what_it_needs() {
    let Some(pair) = Pair::new("vfmtu", 1500) else { return };
    let rig = jumbo_rig(&pair);
    let refused = |change: &VfChange| {
        let error = rig.hardware.set_vf(&rig.pf(), index(0), change).expect_err("does not fit");
        assert!(matches!(error, HardwareError::Refused { .. }), "{error}");
        error.to_string()
    };
    let text = refused(&mtu(9000));
    assert!(text.contains("'wire' has 1500") && text.contains("mtu 9000"), "{text}");
    let service = VlanTag { protocol: VlanProtocol::Dot1Ad, ..vlan(5) };
    let text = refused(&VfChange { vlan: Some(service.into()), ..VfChange::default() });
    assert!(text.contains("mtu 1504"), "{text}");
    rig.set(0, &mtu(1400));
    // What does not fit already does not stand in the way of other changes, nor of one that fits.
    rig.set(1, &VfChange { max_rate: Some(Mbps(100)), ..VfChange::default() });
    rig.set(1, &mtu(1500));
}

#[test]
fn a_frame_that_the_uplink_does_not_take_is_dropped_and_not_sent() {
    let Some(pair) = Pair::new("vflong", 1500) else { return };
    let rig = jumbo_rig(&pair);
    rig.eventually("the uplink is up", || rig.hardware.pfs().expect("answers")[0].link_up);
    let big = VfOptions { buffer_size: 4096, ..VfOptions::default() };
    let (mut a, mut b) = (rig.plain(0), rig.driver(1, big));
    send(&mut b, &[frame(ELSEWHERE, mac(1), 1, 1914)]);
    rig.eventually("it is dropped", || rig.counters(1).tx_dropped(DropReason::TooLong) == 1);
    assert_eq!((rig.counters(1).tx.frames, rig.counters(1).tx.bytes), (0, 0));
    send(&mut b, &[frame(ELSEWHERE, mac(1), 2, 1514)]);
    rig.eventually("a shorter one is sent", || rig.counters(1).tx.frames == 1);
    assert_eq!(rig.counters(1).tx.bytes, 1514);
    // A VF beside it gets what the uplink does not take, if its own MTU allows.
    send(&mut b, &[frame(MacAddr::BROADCAST, mac(1), 3, 1600)]);
    rig.eventually("it is dropped at the uplink", || {
        rig.counters(1).tx_dropped(DropReason::TooLong) == 2
    });
    rig.eventually("and sent to VF 0", || rig.counters(1).tx.frames == 2);
    assert!(intruders(&mut a).is_empty(), "which takes no frame of 1600 bytes");
}
