//! Named scenarios: what placement prefers, and what its refusals say.

use std::collections::BTreeSet;

use lanekeeper_control::placement::{
    Closed, Flavor, HostClaims, Index, Inventory, Placement, Policy, Quota, Refusal, Request, Usage,
};
use lanekeeper_model::Mbps;
use lanekeeper_topology::{Distance, Strictness};

use crate::{big_host, flavor, host, id};

/// Pods of two leaf groups of two hosts each.
fn region(pods: usize) -> Index {
    let mut index = Index::new();
    for n in 0..pods * 4 {
        let report = big_host(&format!("pod{}", n / 4), &format!("leaf{}", n / 2));
        index.set_inventory(&host(n), Some(Inventory::new(report).expect("consistent")));
    }
    index
}

fn ask(vms: u32, flavor: Flavor, policy: Policy) -> Request {
    Request { vms, spares: 0, flavor, policy }
}

const COMPACT: Policy = Policy::Compact(Strictness::Preferred);

fn hosts(placement: &Placement) -> Vec<&str> {
    placement.0.keys().map(lanekeeper_control::keys::HostName::as_str).collect()
}

fn rail_aligned(mut flavor: Flavor) -> Flavor {
    flavor.vfs.as_mut().expect("VFs").rail_aligned = true;
    flavor
}

#[test]
fn each_gpu_of_a_vm_gets_a_vf_beside_it() {
    let index = region(1);
    for (gpus, vfs) in [(1, 1), (2, 2), (4, 4), (8, 8), (4, 8), (8, 4)] {
        let placement = index.place(&ask(1, flavor(gpus, vfs), COMPACT)).expect("room");
        let place = &placement.0.values().next().expect("a host")[0];
        let distances: Vec<_> = place.vfs.iter().map(|vf| vf.distance).collect();
        assert!(distances.iter().all(|far| *far == Some(Distance::Pix)), "{gpus}: {distances:?}");
    }
}

#[test]
fn small_vms_are_packed_so_that_whole_hosts_stay_whole() {
    let mut index = region(1);
    for n in 0..8 {
        let placement = index.place(&ask(1, flavor(1, 1), COMPACT)).expect("room");
        assert_eq!(hosts(&placement), ["h0"], "VM {n}");
        index.add(&id(n), &placement);
    }
    let whole = index.place(&ask(3, flavor(8, 8), COMPACT)).expect("three hosts are whole");
    assert_eq!(hosts(&whole), ["h1", "h2", "h3"]);
}

#[test]
fn a_gang_is_kept_in_one_leaf_group_and_else_in_one_pod() {
    let mut index = region(2);
    let pair = index.place(&ask(2, flavor(8, 8), COMPACT)).expect("room");
    assert_eq!(hosts(&pair), ["h0", "h1"]);
    let four = index.place(&ask(4, flavor(8, 8), COMPACT)).expect("room");
    assert_eq!(hosts(&four), ["h0", "h1", "h2", "h3"]);
    index.add(&id(0), &pair);
    let four = index.place(&ask(4, flavor(8, 8), COMPACT)).expect("room");
    assert_eq!(hosts(&four), ["h4", "h5", "h6", "h7"]);
    let strict = Policy::SameLeaf(Strictness::Strict);
    let refusal = index.place(&ask(3, flavor(8, 8), strict)).expect_err("a leaf group has two");
    let Refusal::NoRoom { room, at_once, .. } = refusal else { panic!("{refusal}") };
    assert_eq!((room, at_once), (6, 2));
}

#[test]
fn rail_aligned_vms_share_their_rails() {
    let mut index = region(1);
    let request = ask(4, rail_aligned(flavor(2, 2)), COMPACT);
    let placement = index.place(&request).expect("room");
    let rails: BTreeSet<Vec<&str>> = placement
        .0
        .values()
        .flatten()
        .map(|place| place.vfs.iter().map(|vf| vf.pf.as_str()).collect())
        .collect();
    assert_eq!(rails.len(), 1, "{rails:?}");
    index.add(&id(0), &placement);
    let request = ask(16, rail_aligned(flavor(0, 8)), Policy::Spread(Strictness::Preferred));
    let refusal = index.place(&request).expect_err("some rails have only one VF left");
    assert!(refusal.to_string().contains("have room for"), "{refusal}");
}

#[test]
fn spares_are_on_hosts_without_a_vm_of_the_group() {
    let index = region(2);
    let request = Request { spares: 2, ..ask(2, flavor(8, 8), COMPACT) };
    let placement = index.place(&request).expect("room");
    let with = |is_spare: bool| {
        let all = placement.0.iter();
        let these = all.filter(|(_, places)| places.iter().any(|p| (p.vm >= 2) == is_spare));
        these.map(|(name, _)| name.as_str()).collect::<BTreeSet<_>>()
    };
    assert!(with(true).is_disjoint(&with(false)), "{placement:?}");
    let small = Request { spares: 1, ..ask(3, flavor(1, 1), COMPACT) };
    let placement = index.place(&small).expect("room");
    let spare = placement.0.values().find(|places| places.iter().any(|place| place.vm == 3));
    assert_eq!(spare.expect("placed").len(), 1, "{placement:?}");
}

#[test]
fn vfs_of_a_vm_are_spread_over_pfs() {
    let index = region(1);
    let placement = index.place(&ask(1, flavor(0, 4), COMPACT)).expect("room");
    let place = &placement.0.values().next().expect("a host")[0];
    let pfs: BTreeSet<_> = place.vfs.iter().map(|vf| vf.pf.as_str()).collect();
    assert_eq!(pfs.len(), 4, "{place:?}");
}

#[test]
fn a_rate_is_set_aside_and_no_more_than_there_is() {
    let mut index = region(1);
    let mut greedy = flavor(0, 8);
    greedy.vfs.as_mut().expect("VFs").rate = Mbps(300_000);
    for n in 0..4 {
        let placement = index.place(&ask(1, greedy.clone(), COMPACT)).expect("room");
        index.add(&id(n), &placement);
    }
    let refusal = index.place(&ask(1, greedy, COMPACT)).expect_err("a VF is left, but no rate");
    assert_eq!(
        refusal.to_string(),
        "no room for the VM; of 4 hosts 4 have too little rate left for their VFs"
    );
    let mut modest = flavor(0, 8);
    modest.vfs.as_mut().expect("VFs").rate = Mbps(100_000);
    index.place(&ask(4, modest, COMPACT)).expect("room at a lower rate");
}

#[test]
fn a_refusal_counts_what_each_host_lacks() {
    let mut index = region(1);
    let closed = HostClaims { closed: Some(Closed::Draining), ..HostClaims::default() };
    index.set_claims(&host(0), closed);
    let taken = index.place(&ask(1, flavor(4, 0), COMPACT)).expect("room");
    index.add(&id(0), &taken);
    let refusal = index.place(&ask(3, flavor(8, 8), COMPACT)).expect_err("two are whole");
    assert_eq!(
        refusal.to_string(),
        "no room for 3 VMs at once; of 4 hosts 1 are drained or lost, 1 have too few GPUs free, \
         2 have room for 2 together"
    );
    let mut other = flavor(1, 1);
    other.gpus.as_mut().expect("GPUs").model = crate::model("B200");
    let refusal = index.place(&ask(1, other, COMPACT)).expect_err("no such GPU").to_string();
    assert!(refusal.contains("3 have no GPUs of this model"), "{refusal}");
}

#[test]
fn a_request_without_sense_is_refused_as_such() {
    let index = region(1);
    let refusal = index.place(&ask(0, flavor(1, 1), COMPACT)).expect_err("none");
    assert_eq!(refusal.to_string(), "0 VMs are asked for; ask for one, or leave it out");
    let refusal = index.place(&ask(4000, flavor(1, 1), COMPACT)).expect_err("too many");
    assert!(refusal.to_string().contains("1024 is the most"), "{refusal}");
}

#[test]
fn a_quota_counts_spares_too_and_names_what_is_exceeded() {
    let request = Request { spares: 1, ..ask(3, flavor(2, 2), COMPACT) };
    let used = Usage { gpus: 10, vms: 5, ..Usage::default() };
    let quota = Quota { gpus: Some(18), ..Quota::default() };
    assert_eq!(quota.allows(used, request.usage()), Ok(()));
    let quota = Quota { gpus: Some(17), ..Quota::default() };
    let refusal = quota.allows(used, request.usage()).expect_err("one too many");
    assert_eq!(refusal.to_string(), "8 GPUs are asked for, 10 are used, and the quota is 17");
}

#[test]
fn a_host_that_reports_anew_keeps_its_claims() {
    let mut index = region(1);
    let placement = index.place(&ask(1, flavor(8, 8), COMPACT)).expect("room");
    index.add(&id(0), &placement);
    let before = index.clone();
    index.set_inventory(&host(0), None);
    let refusal = index.place(&ask(4, flavor(8, 8), COMPACT)).expect_err("three are left");
    assert!(refusal.to_string().contains("of 3 hosts"), "{refusal}");
    let report = Inventory::new(big_host("pod0", "leaf0")).expect("consistent");
    index.set_inventory(&host(0), Some(report));
    assert_eq!(index, before);
}
