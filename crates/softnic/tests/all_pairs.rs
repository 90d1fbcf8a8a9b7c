//! A full NIC: 64 VFs in 8 VLANs, a driver on each. Every pair that may talk does, no other does.

mod rig;

use lanekeeper_model::{DropReason, MacAddr};
use rig::*;

const VFS: u32 = 64;
const VLANS: u32 = 8;

fn vlan_of(vf: u32) -> u32 {
    100 + vf % VLANS
}

fn marked(to: MacAddr, from: u32) -> Vec<u8> {
    frame(to, mac(from), from as u8, 64)
}

#[test]
fn of_64_vfs_every_pair_of_one_vlan_talks_and_no_other() {
    let rig = Rig::with(VFS, |config| {
        config.vf = (0..VFS).map(|vf| (vf.to_string(), usable(vf, vlan_of(vf)))).collect();
        config.cpus = vec![0, 1];
    });
    let mut vfs: Vec<_> =
        (0..VFS).map(|vf| rig.driver(vf, of_kind(KINDS[vf as usize % 2]))).collect();
    for from in 0..VFS {
        let mut frames: Vec<_> =
            (0..VFS).filter(|&to| to != from).map(|to| marked(mac(to), from)).collect();
        frames.push(marked(MacAddr::BROADCAST, from));
        send(&mut vfs[from as usize], &frames);
        // Let them through before the next sender: a receiver has 256 buffers.
        let peers = VFS / VLANS - 1;
        rig.eventually("all are judged", || {
            let counters = rig.counters(from);
            counters.tx.frames == u64::from(peers) + 1
                && counters.tx_dropped(DropReason::NoDestination) == u64::from(VFS - 1 - peers)
        });
    }
    for vf in 0..VFS {
        let peers: Vec<u32> =
            (0..VFS).filter(|&other| other != vf && vlan_of(other) == vlan_of(vf)).collect();
        let mut got = receive(&mut vfs[vf as usize], 2 * peers.len());
        let mut wanted: Vec<_> = peers
            .iter()
            .flat_map(|&from| [marked(mac(vf), from), marked(MacAddr::BROADCAST, from)])
            .collect();
        got.sort();
        wanted.sort();
        assert!(got == wanted, "VF {vf} got {} frames of {}", got.len(), wanted.len());
    }
    for vf in 0..VFS {
        let extra =
            vfs[vf as usize].receive_all(0, 1, std::time::Duration::ZERO).expect("received");
        assert!(extra.is_empty(), "VF {vf} got a frame that was not for it");
        assert!(rig.counters(vf).rx_drops.is_empty(), "VF {vf}");
    }
}
