//! Captured from a fake host, written, read, replayed, masked.

use std::net::Ipv6Addr;

use super::*;
use crate::chaos::{Chaos, Fault};
use crate::fake::{Fake, FakePf, Grouping, Personality};
use lanekeeper_model::{Guid, LinkCounters, MacAddr};

fn facts() -> Facts {
    Facts { kernel: "6.12.95".to_owned(), lanekeeper: "0.1.0".to_owned(), taken: 1_795_000_000 }
}

fn vf(index: u32) -> VfIndex {
    VfIndex::new(index).expect("valid")
}

/// One PF of each personality, with VFs, one of them held.
fn host() -> Fake {
    let fake = Fake::new();
    for personality in Personality::ALL {
        let pf = fake.add_pf(FakePf::new(personality).grouped(Grouping::Shared(2)));
        fake.write_num_vfs(pf, 3).expect("made");
        let mac = Some(MacAddr([2, 0, 0, 0, 0, 9]));
        fake.send_vf(pf, vf(1), &VfMessage { mac, ..VfMessage::default() }).expect("set");
        let rx = LinkCounters { frames: 3, bytes: 300 };
        fake.set_pause_frames(pf, Some([0, 0, 0, 7, 0, 0, 0, 0])).expect("there");
        fake.set_counters(pf, vf(2), VfCounters { rx, ..VfCounters::default() }).expect("there");
    }
    fake
}

fn captured() -> Bundle {
    Bundle::capture(&host(), facts()).expect("captured")
}

/// A bundle of one PF whose reading is changed.
fn with(change: impl FnOnce(&mut PfReading)) -> Bundle {
    let fake = Fake::new();
    let mac = MacAddr([0x0c, 0x42, 0xa1, 0xaa, 0xbb, 0xcc]);
    let pf = fake.add_pf(FakePf::new(Personality::Mlx5).mac(mac).serial("MT2210X00001"));
    fake.write_num_vfs(pf, 2).expect("made");
    let mut bundle = Bundle::capture(&fake, facts()).expect("captured");
    let Some(Told::Answer(reading)) = bundle.pfs.get_mut(&pf) else { panic!("it was read") };
    change(reading);
    bundle
}

fn only(bundle: &Bundle) -> &PfReading {
    let Some(Told::Answer(reading)) = bundle.pfs.values().next() else { panic!("it was read") };
    reading
}

#[test]
fn a_recorded_host_reads_as_the_host_did() {
    let fake = host();
    let text = Bundle::capture(&fake, facts()).expect("captured").to_json().expect("written");
    let recorded = Recorded::new(Bundle::from_json(&text).expect("read"));
    assert_eq!(recorded.bundle().facts, facts());
    let pfs = fake.list().expect("listed");
    assert_eq!(recorded.list().expect("listed"), pfs);
    assert_eq!(recorded.pci_tree().expect("read"), fake.pci_tree().expect("read"));
    for pf in pfs {
        assert_eq!(recorded.read(pf).expect("read"), fake.read(pf).expect("read"));
        let counters = |hardware: &dyn SriovHardware| hardware.vf_counters(pf, vf(2));
        assert_eq!(counters(&recorded).expect("read"), counters(&fake).expect("read"));
        assert_eq!(recorded.pause_frames(pf).expect("read"), Some([0, 0, 0, 7, 0, 0, 0, 0]));
    }
}

#[test]
fn what_could_not_be_read_is_recorded_with_the_reason() {
    let fake = host();
    let pfs = fake.list().expect("listed");
    // Step 0 lists, step 1 reads the first PF; the tree is read last.
    let count = pfs.len() as u64;
    let tree = 1 + count + 3 * (count - 1) + count;
    let chaos = Chaos::new(fake, [(1, Fault::Refuse(5)), (tree, Fault::Refuse(13))]);
    let recorded = Recorded::new(Bundle::capture(&chaos, facts()).expect("captured"));
    let error = recorded.read(pfs[0]).expect_err("as it was").to_string();
    assert!(error.contains("when it was recorded") && error.contains("os error 5"), "{error}");
    let error = recorded.pci_tree().expect_err("as it was").to_string();
    assert!(error.contains("the PCIe tree") && error.contains("os error 13"), "{error}");
    recorded.read(pfs[1]).expect("the others were read");
}

#[test]
fn a_recording_refuses_every_write_and_says_what_it_is() {
    let recorded = Recorded::new(captured());
    let pf = recorded.list().expect("listed")[0];
    let addr = recorded.read(pf).expect("read").vfs[0].addr;
    let mtu = Mtu::ETHERNET;
    let answers = [
        recorded.write_num_vfs(pf, 1),
        recorded.write_autoprobe(pf, true),
        recorded.set_up(pf, true),
        recorded.set_eswitch(pf, EswitchMode::Legacy),
        recorded.send_vf(pf, vf(0), &VfMessage::default()),
        recorded.set_vf_mtu(pf, vf(0), mtu),
        recorded.set_representor(pf, vf(0), RepresentorState { up: true, mtu: 1_500 }),
        recorded.write_driver_override(pf, addr, None),
        recorded.unbind(pf, addr),
        recorded.probe(pf, addr),
        recorded.reset(pf, addr),
        recorded.set_roce(pf, &RoceSetting::Mtu(mtu)),
    ];
    for answer in answers {
        let error = answer.expect_err("refused");
        assert!(matches!(error, HardwareError::Unsupported { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("this is a recording and cannot"), "{text}");
        assert!(text.ends_with("do it on the host itself, without --replay"), "{text}");
    }
}

#[test]
fn a_pf_or_vf_that_was_not_recorded_is_not_there() {
    let recorded = Recorded::new(captured());
    let stranger = "0000:ff:1f.7".parse().expect("valid");
    let error = recorded.read(stranger).expect_err("not there");
    assert!(matches!(error, HardwareError::NoPf(_)), "{error}");
    assert!(error.to_string().contains("`lanekeeper host show`"), "{error}");
    assert!(matches!(recorded.set_up(stranger, true), Err(HardwareError::NoPf(_))));
    let pf = recorded.list().expect("listed")[0];
    let answer = recorded.vf_counters(pf, vf(3));
    assert!(matches!(answer, Err(HardwareError::NoVf { num_vfs: 3, .. })), "{answer:?}");
}

#[test]
fn a_bundle_of_another_format_is_refused_by_its_number() {
    let text = captured().to_json().expect("written").replace("\"format\": 1", "\"format\": 2");
    let error = Bundle::from_json(&text).expect_err("another format").to_string();
    assert!(error.contains("format 2") && error.contains("format 1"), "{error}");
    for text in ["", "{}", "[]", "{\"format\": 1}"] {
        let error = Bundle::from_json(text).expect_err("no bundle").to_string();
        assert!(error.contains("the recording"), "{error}");
    }
}

#[test]
fn addresses_of_hosts_are_never_in_a_bundle() {
    let fake = host();
    let pf = fake.list().expect("listed")[4];
    let mut bundle = Bundle::capture(&fake, facts()).expect("captured");
    let Some(Told::Answer(reading)) = bundle.pfs.get_mut(&pf) else { panic!("it was read") };
    let v4: Ipv6Addr = "::ffff:10.1.2.3".parse().expect("valid");
    let v6: Ipv6Addr = "fd00:1234::9".parse().expect("valid");
    let gids = &mut reading.rdma.as_mut().expect("a device").gids;
    let link_local = gids[0].address;
    let gid = |index, address| crate::inventory::Gid { index, address, ..gids[0].clone() };
    let more = [gid(7, v4), gid(8, v4), gid(9, v6)];
    gids.extend(more);
    reading.warnings.push("10.1.2.3 is not 10.1.2.30, nor is fd00:1234::9".to_owned());
    let clean = mask::without_addresses(bundle);
    let Told::Answer(reading) = &clean.pfs[&pf] else { panic!("it was read") };
    let gids = &reading.rdma.as_ref().expect("a device").gids;
    let told: Vec<_> = gids.iter().map(|gid| gid.address.to_string()).collect();
    assert_eq!(gids[0].address, link_local);
    assert_eq!(told[2..], ["::ffff:198.18.0.1", "::ffff:198.18.0.1", "2001:db8::2"]);
    assert_eq!(reading.warnings, ["198.18.0.1 is not 10.1.2.30, nor is 2001:db8::2"]);
}

#[test]
fn a_masked_bundle_has_none_of_the_identities_and_keeps_which_are_equal() {
    let bundle = captured();
    let masked = bundle.clone().masked();
    assert!(masked.masked && !bundle.masked);
    let text = masked.to_json().expect("written");
    for told in bundle.pfs.values() {
        let Told::Answer(reading) = told else { panic!("it was read") };
        let serial = reading.serial.as_ref().expect("told");
        assert!(!text.contains(&format!("\"{serial}\"")), "{serial}");
        for vf in &reading.vfs {
            let netdev = vf.netdev.as_ref().expect("bound");
            assert!(!text.contains(&netdev.mac.to_string()), "{}", netdev.mac);
        }
    }
    // The same address was set on a VF of each PF.
    let set: std::collections::BTreeSet<_> = masked
        .pfs
        .values()
        .map(|told| {
            let Told::Answer(reading) = told else { panic!("it was read") };
            reading.vfs[1].attributes.expect("told").mac
        })
        .collect();
    assert_eq!(set.len(), 1);
}

#[test]
fn a_masked_address_stays_the_vendors_and_what_was_made_of_it_follows() {
    let masked = with(|reading| {
        reading.netdev.as_mut().expect("there").name = "enx0c42a1aabbcc".to_owned();
        reading.warnings.push("MT2210X00001 (0c:42:a1:aa:bb:cc), not MT2210X000011".to_owned());
    })
    .masked();
    let reading = only(&masked);
    let netdev = reading.netdev.as_ref().expect("there");
    assert_eq!(reading.permanent_mac, Some(netdev.mac));
    assert_eq!(netdev.mac.to_string(), "0c:42:a1:00:00:01");
    assert_eq!(netdev.name, "enx0c42a1000001");
    let rdma = reading.rdma.as_ref().expect("a device");
    assert_eq!(rdma.node_guid, Guid::from_mac(netdev.mac));
    assert_eq!(rdma.gids[0].address.to_string(), "fe80::e42:a1ff:fe00:1");
    assert_eq!(reading.warnings, ["SERIAL1 (0c:42:a1:00:00:01), not MT2210X000011"]);
}

#[test]
fn what_is_zero_stays_zero_and_a_guid_of_its_own_is_masked_too() {
    let own = Guid(0x0c42_a103_00aa_bbcc);
    let masked = with(|reading| reading.rdma.as_mut().expect("a device").node_guid = own).masked();
    let reading = only(&masked);
    let guid = reading.rdma.as_ref().expect("a device").node_guid;
    assert_eq!(guid, Guid(0x0c42_a100_0000_0001));
    let vf = &reading.vfs[0];
    assert!(vf.rdma.as_ref().expect("a device").node_guid.is_zero());
    assert!(vf.attributes.expect("told").mac.is_zero());
}

#[test]
fn a_masked_address_that_is_anothers_real_one_is_not_masked_twice() {
    let masked = with(|reading| {
        let next = MacAddr([0x0c, 0x42, 0xa1, 0, 0, 1]);
        reading.vfs[0].netdev.as_mut().expect("bound").mac = next;
        reading.warnings.push("0c:42:a1:aa:bb:cc then 0c:42:a1:00:00:01".to_owned());
    })
    .masked();
    let reading = only(&masked);
    let of_vf = reading.vfs[0].netdev.as_ref().expect("bound").mac;
    assert_ne!(of_vf, reading.permanent_mac.expect("told"));
    assert_eq!(reading.warnings, [format!("0c:42:a1:00:00:01 then {of_vf}")]);
}

#[test]
fn a_masked_bundle_can_be_replayed() {
    let masked = Recorded::new(captured().masked());
    for pf in masked.list().expect("listed") {
        let reading = masked.read(pf).expect("read");
        assert_eq!(reading.vfs.len(), 3);
        masked.vf_counters(pf, vf(1)).expect("read");
    }
}

#[test]
fn facts_are_of_this_host() {
    let facts = Facts::here().expect("Linux tells its version");
    assert!(facts.kernel.contains('.') && !facts.kernel.ends_with('\n'));
    assert!(facts.taken > 1_700_000_000);
}
