//! Random small worlds. Requests are placed one after the other, and some are removed again. Each
//! placement is checked against the definitions, each refusal against trying everything, and the
//! index against one that is built anew.

use std::collections::{BTreeMap, BTreeSet};

use lanekeeper_control::keys::{LeafName, PfName, PodName};
use lanekeeper_control::placement::{
    Closed, DataPath, Flavor, Gpu, GpuNeed, Gpus, HostClaims, HostReport, Index, Inventory,
    PciPosition, Pf, Placement, Policy, Refusal, Request, Scalars, VfNeed, VmPlace,
};
use lanekeeper_host::RdmaNeed;
use lanekeeper_model::{Mbps, VfIndex};
use lanekeeper_topology::{Distance, Strictness};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use crate::brute::{most, serves, units};
use crate::{fabric, gpu_addr, host, id, model};

fn position() -> impl Strategy<Value = PciPosition> {
    let tree = (0..2_u32, 0..2_u32, 0..2_u32, 0..2_u32).prop_map(|(numa, bridge, port, switch)| {
        let host_bridge = numa * 2 + bridge;
        let root_port = host_bridge * 2 + port;
        PciPosition {
            numa: Some(numa),
            host_bridge: Some(host_bridge),
            root_port: Some(root_port),
            switch: Some(root_port * 2 + switch),
        }
    });
    let software =
        (0..2_u32).prop_map(|numa| PciPosition { numa: Some(numa), ..PciPosition::default() });
    prop_oneof![5 => tree, 1 => software]
}

fn pf() -> impl Strategy<Value = Pf> {
    let path = prop_oneof![
        4 => Just(DataPath::SriovRdma),
        1 => Just(DataPath::Sriov),
        1 => Just(DataPath::Software),
    ];
    let leaf = prop::option::weighted(0.9, prop_oneof![3 => Just("l0"), 2 => Just("l1")]);
    let fabric_name = prop_oneof![5 => Just("east"), 1 => Just("west")];
    (path, fabric_name, leaf, position(), 2..=4_u32, 0..=3_usize).prop_map(
        |(path, name, leaf, position, rate, vfs)| Pf {
            name: PfName::new("pf").expect("a name"),
            path,
            fabric: fabric(name),
            rail: None,
            leaf: leaf.map(|leaf| LeafName::new(leaf).expect("a name")),
            position,
            rate: Mbps(rate * 100),
            vfs: VfIndex::first(vfs).collect(),
            cable: None,
        },
    )
}

fn report() -> impl Strategy<Value = HostReport> {
    let pod = prop::option::weighted(0.8, prop_oneof![Just("p0"), Just("p1")]);
    let gpus = prop::collection::vec(position(), 0..=5);
    let name = prop_oneof![12 => Just("H100"), 1 => Just("A100")];
    let rails = prop::option::weighted(0.8, Just([0_u16, 1, 2, 3]).prop_shuffle());
    (pod, gpus, name, prop::collection::vec(pf(), 1..=4), rails, 2..=12_u32).prop_map(
        |(pod, positions, name, mut pfs, rails, vcpus)| {
            for (n, pf) in pfs.iter_mut().enumerate() {
                pf.name = PfName::new(&format!("pf{n}")).expect("a name");
                pf.rail = rails.map(|rails| rails[n]);
            }
            let list: Vec<Gpu> = positions
                .into_iter()
                .enumerate()
                .map(|(n, position)| Gpu { addr: gpu_addr(n), position })
                .collect();
            HostReport {
                pod: pod.map(|pod| PodName::new(pod).expect("a name")),
                scalars: Scalars { vcpus, ram_mib: 64, disk_gib: 64 },
                gpus: (!list.is_empty()).then(|| Gpus { model: model(name), list }),
                pfs,
            }
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let strictness = || prop_oneof![Just(Strictness::Strict), Just(Strictness::Preferred)];
    let policy = prop_oneof![
        strictness().prop_map(Policy::Compact),
        strictness().prop_map(Policy::SameLeaf),
        strictness().prop_map(Policy::Spread),
    ];
    let distance = prop_oneof![
        1 => Just(Distance::Pix),
        1 => Just(Distance::Pxb),
        1 => Just(Distance::Phb),
        1 => Just(Distance::Node),
        4 => Just(Distance::Sys),
    ];
    let rdma = prop_oneof![Just(RdmaNeed::Hardware), Just(RdmaNeed::None)];
    let vfs = (1..=3_u32, 0..=2_u32, rdma, distance, any::<bool>()).prop_map(
        |(count, rate, rdma, farthest, rail_aligned)| VfNeed {
            count,
            rate: Mbps(rate * 100),
            fabric: fabric("east"),
            rdma,
            farthest,
            rail_aligned,
        },
    );
    let gpus = prop_oneof![3 => Just(1_u32), 2 => Just(2), 1 => Just(3)]
        .prop_map(|count| GpuNeed { model: model("H100"), count });
    let flavor = (prop::option::of(gpus), prop::option::weighted(0.9, vfs), 0..=3_u32);
    (1..=3_u32, 0..=1_u32, flavor, policy).prop_map(|(vms, spares, (gpus, vfs, vcpus), policy)| {
        let scalars = Scalars { vcpus, ram_mib: 4, disk_gib: 4 };
        Request { vms, spares, flavor: Flavor { gpus, vfs, scalars }, policy }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Place(Request),
    Remove(prop::sample::Index),
    Close(prop::sample::Index, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => request().prop_map(Step::Place),
        2 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, shut)| Step::Close(at, shut)),
    ]
}

struct World {
    reports: Vec<HostReport>,
    index: Index,
    placed: BTreeMap<usize, Placement>,
    next: usize,
}

impl World {
    fn new(reports: Vec<HostReport>) -> Self {
        let mut index = Index::new();
        for (n, report) in reports.iter().enumerate() {
            let inventory = Inventory::new(report.clone()).expect("consistent");
            index.set_inventory(&host(n), Some(inventory));
        }
        Self { reports, index, placed: BTreeMap::new(), next: 0 }
    }

    fn claims(&self, n: usize) -> &HostClaims {
        self.index.claims(&host(n)).expect("known")
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Place(request) => self.place(&request),
            Step::Remove(which) => {
                let ids: Vec<usize> = self.placed.keys().copied().collect();
                if !ids.is_empty() {
                    let n = *which.get(&ids);
                    let placement = self.placed.remove(&n).expect("placed");
                    self.index.remove(&id(n), &placement);
                }
            }
            Step::Close(which, shut) => {
                let n = which.index(self.reports.len());
                let closed = shut.then_some(Closed::Draining);
                let claims = HostClaims { closed, ..self.claims(n).clone() };
                self.index.set_claims(&host(n), claims);
            }
        }
        assert_eq!(self.index, self.anew(), "kept up as if built anew");
    }

    fn anew(&self) -> Index {
        let mut fresh = World::new(self.reports.clone()).index;
        for n in 0..self.reports.len() {
            fresh.set_claims(&host(n), self.claims(n).clone());
        }
        fresh
    }

    fn place(&mut self, request: &Request) {
        match self.index.place(request) {
            Ok(placement) => {
                self.check(request, &placement);
                let before = self.index.clone();
                self.index.add(&id(self.next), &placement);
                let mut after = self.index.clone();
                after.remove(&id(self.next), &placement);
                assert_eq!(after, before, "removed as if it had never been");
                self.placed.insert(self.next, placement);
                self.next += 1;
            }
            Err(refusal) => self.check_refusal(request, &refusal),
        }
    }

    fn rails(&self, request: &Request) -> Vec<Option<u16>> {
        match &request.flavor.vfs {
            Some(need) if need.rail_aligned => {
                let (count, fabric) = (need.count as u16, &need.fabric);
                let on_fabric = |pf: &&Pf| pf.fabric == *fabric;
                let rails = self.reports.iter().flat_map(|report| &report.pfs).filter(on_fabric);
                let last = rails.filter_map(|pf| pf.rail).max();
                let blocks = last.map_or(0, |last| last + 1) / count;
                (0..blocks).map(|block| Some(block * count)).collect()
            }
            _ => vec![None],
        }
    }

    /// Everything was tried, and nothing is possible.
    fn check_refusal(&self, request: &Request, refusal: &Refusal) {
        let Refusal::NoRoom { hosts, failed, .. } = refusal else { panic!("{refusal}") };
        assert_eq!(*hosts, self.reports.len());
        let mut best = 0;
        for rail in self.rails(request) {
            let rooms = |n: usize| most(&self.reports[n], self.claims(n), &request.flavor, rail);
            let rooms: Vec<u64> = (0..self.reports.len()).map(rooms).collect();
            best = best.max(rooms.iter().filter(|room| **room > 0).count());
            let possible = self.possible(request, &rooms);
            assert!(!possible, "{rooms:?} would do for {request:?}; {refusal}");
        }
        let not_failed = hosts - failed.values().sum::<usize>();
        assert!(not_failed <= best, "{not_failed} hosts with room, {best} at most: {refusal}");
    }

    fn possible(&self, request: &Request, rooms: &[u64]) -> bool {
        let total = u64::from(request.vms + request.spares);
        let in_areas = |area: &dyn Fn(&HostReport) -> Option<String>| {
            let mut areas: BTreeMap<String, u64> = BTreeMap::new();
            for (report, room) in self.reports.iter().zip(rooms) {
                if let Some(area) = area(report) {
                    *areas.entry(area).or_default() += room;
                }
            }
            areas.values().any(|room| *room >= total)
        };
        let anywhere = rooms.iter().sum::<u64>() >= total;
        match request.policy {
            Policy::Spread(Strictness::Strict) => {
                rooms.iter().filter(|room| **room > 0).count() as u64 >= total
            }
            _ if total == 1 => anywhere,
            Policy::SameLeaf(Strictness::Strict) => in_areas(&leaves),
            Policy::Compact(Strictness::Strict) => in_areas(&leaves) || in_areas(&pod),
            _ => anywhere,
        }
    }

    /// The placement is what was asked for, of what is free.
    fn check(&self, request: &Request, placement: &Placement) {
        let total = request.vms + request.spares;
        let numbers = placement.0.values().flatten().map(|place| place.vm);
        let numbers: BTreeSet<u32> = numbers.collect();
        assert_eq!(numbers, (0..total).collect(), "each VM once");
        assert_eq!(placement.0.values().map(Vec::len).sum::<usize>() as u32, total);
        let mut rails = BTreeSet::new();
        let mut reports = Vec::new();
        for (name, places) in &placement.0 {
            let n: usize = name.as_str()[1..].parse().expect("hN");
            assert_eq!(self.claims(n).closed, None, "{name} is closed");
            let claimed = self.claims(n).placements.values().flatten();
            check_host(&self.reports[n], claimed.chain(places));
            for place in places {
                rails.insert(check_vm(&self.reports[n], request, place));
            }
            reports.push(&self.reports[n]);
        }
        if request.flavor.vfs.as_ref().is_some_and(|need| need.rail_aligned) {
            assert_eq!(rails.len(), 1, "all VMs on the same rails: {rails:?}");
        }
        let same = |area: &dyn Fn(&HostReport) -> Option<String>| {
            let areas: BTreeSet<_> = reports.iter().map(|report| area(report)).collect();
            areas.len() == 1 && areas.first().is_some_and(Option::is_some)
        };
        match request.policy {
            Policy::Spread(Strictness::Strict) => assert_eq!(reports.len() as u32, total),
            _ if total == 1 => {}
            Policy::SameLeaf(Strictness::Strict) => assert!(same(&leaves)),
            Policy::Compact(Strictness::Strict) => assert!(same(&leaves) || same(&pod)),
            _ => {}
        }
    }
}

fn pod(report: &HostReport) -> Option<String> {
    report.pod.as_ref().map(ToString::to_string)
}

/// The leaf group as text.
fn leaves(report: &HostReport) -> Option<String> {
    let of = |pf: &Pf| Some(format!("{} {:?} {}", pf.fabric, pf.rail, pf.leaf.as_ref()?));
    let leaves: BTreeSet<String> = report.pfs.iter().map(of).collect::<Option<_>>()?;
    (!leaves.is_empty()).then(|| leaves.into_iter().collect::<Vec<_>>().join(", "))
}

/// Nothing of a host is given twice, and nothing that it has not.
fn check_host<'a>(report: &HostReport, places: impl Iterator<Item = &'a VmPlace>) {
    let (mut gpus, mut vfs) = (BTreeSet::new(), BTreeSet::new());
    let mut rates: BTreeMap<&PfName, u32> = BTreeMap::new();
    let mut sums = [0; 3];
    let there: Vec<_> =
        report.gpus.iter().flat_map(|gpus| &gpus.list).map(|gpu| gpu.addr).collect();
    for place in places {
        for gpu in &place.gpus {
            assert!(there.contains(gpu) && gpus.insert(*gpu), "{gpu}");
        }
        for vf in &place.vfs {
            let pf = report.pfs.iter().find(|pf| pf.name == vf.pf).expect("a PF of the host");
            assert!(pf.vfs.contains(&vf.vf) && vfs.insert((&vf.pf, vf.vf)), "{vf:?}");
            *rates.entry(&vf.pf).or_default() += vf.rate.0;
        }
        let Scalars { vcpus, ram_mib, disk_gib } = place.scalars;
        for (sum, more) in sums.iter_mut().zip([vcpus.into(), ram_mib, disk_gib]) {
            *sum += more;
        }
    }
    for pf in &report.pfs {
        assert!(rates.get(&pf.name).is_none_or(|rate| *rate <= pf.rate.0), "{}", pf.name);
    }
    let Scalars { vcpus, ram_mib, disk_gib } = report.scalars;
    assert!(sums[0] <= vcpus.into() && sums[1] <= ram_mib && sums[2] <= disk_gib);
}

/// A VM has what its flavor says; gives back its rails.
fn check_vm(report: &HostReport, request: &Request, place: &VmPlace) -> Vec<Option<u16>> {
    let Flavor { gpus, vfs, scalars } = &request.flavor;
    assert_eq!(place.scalars, *scalars);
    assert_eq!(place.gpus.len() as u32, gpus.as_ref().map_or(0, |need| need.count));
    assert_eq!(place.vfs.len() as u32, vfs.as_ref().map_or(0, |need| need.count));
    if let Some(need) = gpus {
        assert_eq!(report.gpus.as_ref().map(|gpus| &gpus.model), Some(&need.model));
    }
    let Some(need) = vfs else { return Vec::new() };
    let pf = |n: usize| {
        let name = &place.vfs[n].pf;
        report.pfs.iter().find(|pf| pf.name == *name).expect("a PF of the host")
    };
    let position = |n: usize| {
        let of_host = report.gpus.iter().flat_map(|gpus| &gpus.list);
        of_host.clone().find(|gpu| gpu.addr == place.gpus[n]).expect("a GPU of the host").position
    };
    for n in 0..place.vfs.len() {
        assert!(serves(pf(n), need), "{:?} does not serve {need:?}", pf(n));
        assert_eq!(place.vfs[n].rate, need.rate);
    }
    for (of_gpus, of_vfs) in units(place.gpus.len(), place.vfs.len()) {
        for v in of_vfs {
            let distances = of_gpus.clone().map(|g| position(g).distance(pf(v).position));
            let farthest = distances.max();
            assert!(farthest <= Some(need.farthest), "{farthest:?}");
            assert_eq!(place.vfs[v].distance, farthest);
        }
    }
    let rails: Vec<Option<u16>> = (0..place.vfs.len()).map(|n| pf(n).rail).collect();
    if need.rail_aligned {
        let first = rails[0].expect("on a rail");
        assert_eq!(u32::from(first) % need.count, 0);
        let wanted: Vec<_> = (first..first + need.count as u16).map(Some).collect();
        assert_eq!(rails, wanted);
    }
    rails
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn placements_keep_the_rules_and_refusals_are_true(
        reports in prop::collection::vec(report(), 1..=4),
        steps in prop::collection::vec(step(), 1..=10),
    ) {
        let mut world = World::new(reports);
        for step in steps {
            world.step(step);
        }
    }
}

/// Worlds in which everything is refused, or nothing, would prove nothing.
#[test]
fn random_requests_are_placed_and_refused_both_often() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut placed, mut refused) = (0, 0);
    for _ in 0..200 {
        let drawn = (prop::collection::vec(report(), 2..=4), request()).new_tree(&mut runner);
        let (reports, request) = drawn.expect("a world").current();
        match World::new(reports).index.place(&request) {
            Ok(_) => placed += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(placed > 30 && refused > 30, "{placed} placed, {refused} refused");
}
