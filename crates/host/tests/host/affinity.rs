//! Affinity: a VF on the NUMA node, or beside the GPU, that its owner named.

use std::path::Path;

use lanekeeper_host::{AffinityWanted, ClaimRequest, HostError, NodeState, PreflightFacts};
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_hw::inventory::PciNode;
use lanekeeper_model::PciAddr;
use lanekeeper_topology::{Affinity, Distance, Strictness};

use crate::rig::{AllNodes, Rig, entry, request};

fn function(addr: &str, parent: Option<&str>, class: u32) -> PciNode {
    PciNode {
        addr: addr.parse().expect("an address"),
        parent: parent.map(|parent| parent.parse().expect("an address")),
        class,
        vendor: 0x10de,
        device: 0x2330,
        driver: None,
        numa_node: Some(0),
        iommu_group: None,
        acs: None,
        ats: None,
        relaxed_ordering: None,
        max_read_request: None,
    }
}

fn two_nodes() -> Rig {
    let rig = Rig::new();
    let pfs = [0, 1].map(|node| rig.fake.add_pf(FakePf::new(Personality::Ice).numa(Some(node))));
    let mut file = entry(&rig.fake, pfs[0], "near", 1, "pools: [fast]");
    file.pfs.extend(entry(&rig.fake, pfs[1], "far", 4, "pools: [fast]").pfs);
    rig.apply(&file);
    rig
}

fn numa(of: &str, node: u32, strictness: Strictness) -> ClaimRequest {
    let affinity = Some(AffinityWanted { to: Affinity::Numa(node), strictness });
    ClaimRequest { affinity, ..request(of) }
}

fn on_node(of: &str, strictness: Strictness) -> ClaimRequest {
    numa(of, 0, strictness)
}

#[test]
fn strict_affinity_fails_where_preferred_says_how_far_it_is() {
    let rig = two_nodes();
    let owner = rig.owner();
    let near = owner.claim(&on_node("a-tenant", Strictness::Strict)).expect("the near one");
    assert_eq!((near.pf.as_str(), near.numa_node), ("near", Some(0)));
    let far = owner.claim(&on_node("b-tenant", Strictness::Preferred)).expect("the far one");
    assert_eq!((far.pf.as_str(), far.distance), ("far", Some(Distance::Sys)));
    assert!(far.notes.iter().any(|note| note.contains("another NUMA node")), "{far:?}");
    let error = owner.claim(&on_node("c-tenant", Strictness::Strict)).expect_err("none near");
    assert!(matches!(error, HostError::Exhausted { .. } | HostError::TooFar { .. }), "{error}");
}

#[test]
fn a_numa_node_that_the_host_does_not_have_is_refused_in_any_case() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Igb).numa(None), 1);
    for strictness in [Strictness::Strict, Strictness::Preferred] {
        let error = rig.owner().claim(&numa("tenant", 7, strictness)).expect_err("no such node");
        assert!(error.to_string().contains("no NUMA node 7; it has 0, 1"), "{error}");
    }
}

#[test]
fn a_pf_whose_node_is_not_known_is_near_no_node_of_several() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Igb).numa(None), 1);
    let error = rig.owner().claim(&numa("tenant", 1, Strictness::Strict)).expect_err("not known");
    let text = error.to_string();
    assert!(text.contains("node of pf rail0 is not known") && text.contains("--strict"), "{text}");
    let claim = rig.owner().claim(&numa("tenant", 1, Strictness::Preferred)).expect("any will do");
    assert_eq!(claim.distance, None);
    assert!(claim.notes.iter().any(|note| note.contains("is not known")), "{claim:?}");
}

#[test]
fn a_host_with_one_node_has_everything_on_it() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Igb).numa(None), 1);
    let owner = rig.owner().with_preflight(std::sync::Arc::new(OneNode));
    let claim = owner.claim(&numa("tenant", 0, Strictness::Strict)).expect("there is no other");
    assert_eq!(claim.distance, Some(Distance::Node));
}

struct OneNode;

impl PreflightFacts for OneNode {
    fn node(&self, path: &Path) -> NodeState {
        AllNodes.node(path)
    }

    fn memlock_limit(&self) -> Option<u64> {
        None
    }

    fn numa_nodes(&self) -> Vec<u32> {
        vec![0]
    }
}

#[test]
fn what_is_no_gpu_is_refused_and_the_gpus_are_listed() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 1);
    let beside = |addr: PciAddr| {
        let to = Affinity::Gpu { addr, within: Distance::Pxb };
        let affinity = Some(AffinityWanted { to, strictness: Strictness::Preferred });
        rig.owner().claim(&ClaimRequest { affinity, ..request("tenant") })
    };
    let nic = PciAddr::from(pf);
    let error = beside(nic).expect_err("a NIC").to_string();
    assert!(error.contains(&format!("{nic} is no GPU; this host has no GPU")), "{error}");
    rig.fake.add_pci(function("0000:00:03.0", None, 0x07_80_00));
    rig.fake.add_pci(function("0000:10:00.0", None, 0x03_02_00));
    let error = beside("0000:00:03.0".parse().expect("an address")).expect_err("a console");
    assert!(error.to_string().contains("those of this host are 0000:10:00.0"), "{error}");
}

#[test]
fn a_vf_is_beside_the_gpu_that_was_named() {
    let rig = Rig::new();
    for (root, gpu) in [("0000:00:01.0", "0000:10:00.0"), ("0000:00:02.0", "0000:20:00.0")] {
        rig.fake.add_pci(function(root, None, 0x06_04_00));
        rig.fake.add_pci(function(gpu, Some(root), 0x03_02_00));
    }
    let mut file = None;
    for (name, root) in [("one", "0000:00:01.0"), ("two", "0000:00:02.0")] {
        let pf = FakePf::new(Personality::Ice).below(root.parse().expect("an address"));
        let pf = rig.fake.add_pf(pf);
        let part = entry(&rig.fake, pf, name, 2, "");
        match &mut file {
            None => file = Some(part),
            Some(file) => file.pfs.extend(part.pfs),
        }
    }
    rig.apply(&file.expect("two PFs"));
    let beside = |of: &str, gpu: &str, strictness| {
        let to = Affinity::Gpu { addr: gpu.parse().expect("an address"), within: Distance::Pxb };
        rig.owner().claim(&ClaimRequest {
            affinity: Some(AffinityWanted { to, strictness }),
            ..request(of)
        })
    };
    assert_eq!(beside("a-tenant", "0000:20:00.0", Strictness::Strict).expect("near").pf, "two");
    assert_eq!(beside("b-tenant", "0000:10:00.0", Strictness::Strict).expect("near").pf, "one");
    let error = beside("c-tenant", "0000:99:00.0", Strictness::Strict).expect_err("no such GPU");
    assert!(error.to_string().contains("0000:99:00.0"), "{error}");
}
