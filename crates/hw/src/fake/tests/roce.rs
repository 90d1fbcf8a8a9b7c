//! RoCE settings of each personality.

use std::collections::BTreeMap;

use super::*;
use lanekeeper_model::{Dscp, Pcp, RdmaNetns, RoceSetting, Trust};

fn kinds(personality: Personality) -> Vec<&'static str> {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(personality));
    fake.read(pf).expect("read").roce.iter().map(RoceSetting::kind).collect()
}

fn pfc() -> RoceSetting {
    RoceSetting::Pfc([Pcp::new(3).expect("valid")].into())
}

fn dscp_map() -> RoceSetting {
    RoceSetting::DscpPriority(BTreeMap::from([(Dscp::ROCE, Pcp::new(3).expect("valid"))]))
}

#[test]
fn mlx5_has_every_kind_and_igb_next_to_none() {
    assert_eq!(kinds(Personality::Mlx5).len(), 13);
    assert_eq!(kinds(Personality::Igb), ["global_pause", "mtu"]);
    let ice = kinds(Personality::Ice);
    assert!(["pfc", "ets", "dscp_priority"].iter().all(|kind| ice.contains(kind)), "{ice:?}");
    assert!(!ice.contains(&"trust") && !ice.contains(&"ecn") && !ice.contains(&"buffers"));
}

#[test]
fn what_is_told_can_be_set_and_what_is_not_told_is_refused() {
    let all = {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(Personality::Mlx5));
        fake.read(pf).expect("read").roce
    };
    for personality in Personality::ALL {
        let fake = Fake::new();
        let pf = fake.add_pf(FakePf::new(personality));
        let told = kinds(personality);
        for setting in &all {
            let answer = fake.set_roce(pf, setting);
            if told.contains(&setting.kind()) {
                answer.expect("set");
            } else {
                assert!(lacking(answer).contains(setting.kind()));
            }
        }
    }
}

#[test]
fn a_setting_is_read_back() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Ice));
    fake.set_roce(pf, &pfc()).expect("set");
    assert!(fake.read(pf).expect("read").roce.contains(&pfc()));
}

#[test]
fn shares_that_are_not_the_whole_link_are_refused() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Mlx5));
    let ets = |first| RoceSetting::Ets([first, 0, 0, 30, 0, 0, 0, 0]);
    assert_eq!(refusal(fake.set_roce(pf, &ets(60))), EINVAL);
    fake.set_roce(pf, &ets(70)).expect("set");
    fake.set_roce(pf, &RoceSetting::Ets([0; 8])).expect("strict");
}

#[test]
fn mlx5_trusts_dscp_as_long_as_there_is_a_mapping() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Mlx5));
    let trusts = |trust| fake.read(pf).expect("read").roce.contains(&RoceSetting::Trust(trust));
    fake.set_roce(pf, &dscp_map()).expect("set");
    assert!(trusts(Trust::Dscp));
    fake.set_roce(pf, &RoceSetting::DscpPriority(BTreeMap::new())).expect("taken away");
    assert!(trusts(Trust::Pcp));
}

#[test]
fn dcb_cannot_be_set_while_the_firmware_runs_lldp() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Ice).with_firmware_lldp());
    for setting in [pfc(), dscp_map(), RoceSetting::Ets([100, 0, 0, 0, 0, 0, 0, 0])] {
        assert_eq!(refusal(fake.set_roce(pf, &setting)), EINVAL);
    }
    fake.set_roce(pf, &RoceSetting::GlobalPause(false)).expect("not DCB");
}

#[test]
fn where_rdma_devices_are_seen_is_the_hosts_and_set_before_there_are_namespaces() {
    let fake = Fake::new();
    let pf = fake.add_pf(FakePf::new(Personality::Mlx5));
    let other = fake.add_pf(FakePf::new(Personality::BnxtEn));
    let exclusive = RoceSetting::Netns(RdmaNetns::Exclusive);
    fake.set_roce(pf, &exclusive).expect("set");
    assert!(fake.read(other).expect("read").roce.contains(&exclusive));
    fake.set_network_namespaces(2);
    let shared = RoceSetting::Netns(RdmaNetns::Shared);
    assert_eq!(refusal(fake.set_roce(pf, &shared)), EBUSY);
    fake.set_roce(pf, &exclusive).expect("as it is");
}
