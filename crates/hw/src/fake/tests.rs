//! Each rule of each personality.

use super::*;
use lanekeeper_model::MacAddr;

fn vf(index: u32) -> VfIndex {
    VfIndex::new(index).expect("valid")
}

#[test]
fn vfs_are_made_from_none_and_removed_to_none_only() {
    for personality in Personality::ALL {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(personality));
        fake.write_num_vfs(pf, 4).expect("from none");
        let error = fake.write_num_vfs(pf, 2).expect_err("from four to two");
        assert!(error.to_string().contains("write 2 to sriov_numvfs"), "{error}");
        fake.write_num_vfs(pf, 4).expect("as it is");
        fake.write_num_vfs(pf, 0).expect("to none");
        assert_eq!(fake.num_vfs_writes(pf), 4);
        let reading = fake.read(pf).expect("read");
        assert_eq!((reading.num_vfs, reading.vfs.len()), (0, 0));
    }
}

#[test]
fn a_mac_holds_for_a_bound_vf_once_its_driver_is_probed_anew() {
    for personality in Personality::ALL {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(personality));
        fake.write_num_vfs(pf, 2).expect("made");
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        fake.send_vf(pf, vf(1), &VfMessage { mac: Some(mac), ..VfMessage::default() })
            .expect("set");
        let reading = |fake: &Fake| fake.read(pf).expect("read").vfs[1].clone();
        let before = reading(&fake);
        assert_eq!(before.attributes.expect("told").mac, mac);
        assert_ne!(before.netdev.expect("bound").mac, mac);
        fake.unbind(pf, before.addr).expect("unbound");
        fake.probe(pf, before.addr).expect("probed");
        assert_eq!(reading(&fake).netdev.expect("bound").mac, mac);
    }
}
