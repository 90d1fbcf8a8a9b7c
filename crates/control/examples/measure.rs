//! Figures, not verdicts: how long a placement takes at 100 to 10,000 hosts, how many transactions a
//! second the embedded store makes durable, and how many claims a second come of the two.
//! `cargo run --release -p lanekeeper-control --example measure`

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lanekeeper_control::claims::{Ask, Claims};
use lanekeeper_control::keys::{
    self, FabricName, GpuModel, HostName, LeafName, OrgName, PfName, PlacementId, PodName,
    RegionName,
};
use lanekeeper_control::placement::{
    DataPath, Flavor, Gpu, GpuNeed, Gpus, HostReport, Index, Inventory, PciPosition, Pf, Placement,
    Policy, Request, Scalars, VfNeed,
};
use lanekeeper_control::store::{Embedded, Store, Transaction};
use lanekeeper_host::RdmaNeed;
use lanekeeper_model::{Mbps, VfIndex};
use lanekeeper_topology::{Distance, Strictness};

/// `SplitMix64` (Steele, Lea and Flood, 2014): a seed tells all that follows.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

fn name(n: usize) -> HostName {
    HostName::new(&format!("h{n}")).expect("a name")
}

fn id(n: u64) -> PlacementId {
    PlacementId::new(&format!("p{n}")).expect("a name")
}

/// Eight GPUs, eight PFs with two VFs; 32 hosts a leaf group, 16 leaf groups a pod.
fn inventory(n: usize) -> Inventory {
    let position = |n: usize| PciPosition {
        numa: Some(n as u32 / 4),
        host_bridge: Some(n as u32 / 2),
        root_port: Some(n as u32 / 2),
        switch: Some(n as u32 / 2),
    };
    let pf = |rail: usize| Pf {
        name: PfName::new(&format!("rail{rail}")).expect("a name"),
        path: DataPath::SriovRdma,
        fabric: FabricName::new("east").expect("a name"),
        rail: Some(rail as u16),
        leaf: LeafName::new(&format!("leaf{}-{rail}", n / 32)).ok(),
        position: position(rail),
        rate: Mbps(400_000),
        vfs: VfIndex::first(2).collect::<BTreeSet<_>>(),
    };
    let gpu = |n: usize| {
        let addr = format!("0000:{:02x}:00.0", n + 1).parse().expect("an address");
        Gpu { addr, position: position(n) }
    };
    let report = HostReport {
        pod: PodName::new(&format!("pod{}", n / 512)).ok(),
        scalars: Scalars { vcpus: 192, ram_mib: 2 << 20, disk_gib: 20_000 },
        gpus: Some(Gpus {
            model: GpuModel::new("H100").expect("a name"),
            list: (0..8).map(gpu).collect(),
        }),
        pfs: (0..8).map(pf).collect(),
    };
    Inventory::new(report).expect("consistent")
}

fn request(vms: u32, gpus: u32, vfs: u32, rail_aligned: bool, policy: Policy) -> Request {
    let vf = VfNeed {
        count: vfs,
        rate: Mbps(100_000),
        fabric: FabricName::new("east").expect("a name"),
        rdma: RdmaNeed::Hardware,
        farthest: if gpus > 0 { Distance::Pxb } else { Distance::Sys },
        rail_aligned,
    };
    let gpus =
        (gpus > 0).then(|| GpuNeed { model: GpuModel::new("H100").expect("a name"), count: gpus });
    let scalars = Scalars { vcpus: 16, ram_mib: 128 << 10, disk_gib: 500 };
    Request { vms, spares: 0, flavor: Flavor { gpus, vfs: Some(vf), scalars }, policy }
}

/// Mostly single VMs of several sizes, and some gangs.
fn draw(dice: &mut Dice) -> Request {
    let compact = Policy::Compact(Strictness::Preferred);
    match dice.below(100) {
        0..30 => request(1, 1, 1, false, compact),
        30..50 => request(1, 2, 2, true, compact),
        50..65 => request(1, 4, 4, true, compact),
        65..75 => request(1, 0, 2, false, compact),
        75..85 => request(1, 8, 8, true, compact),
        85..92 => request(4, 2, 2, true, compact),
        92..97 => request(8, 8, 8, true, compact),
        97..99 => request(8, 8, 8, true, Policy::SameLeaf(Strictness::Strict)),
        _ => request(16, 1, 1, false, Policy::Spread(Strictness::Strict)),
    }
}

/// The duration that so many of a thousand do not exceed.
fn at(sorted: &[Duration], part: usize) -> Duration {
    sorted[(sorted.len() - 1) * part / 1000]
}

fn placements_at_100_to_10_000_hosts() {
    println!(
        "hosts  full  answers placed refused |  p50    p99    max   | refusals p50   p99 | add+remove mean"
    );
    for hosts in [100, 1000, 10_000] {
        for full in [50, 80, 95] {
            measure(hosts, full);
        }
    }
}

fn measure(hosts: usize, full: u64) {
    let mut index = Index::new();
    (0..hosts).for_each(|n| index.set_inventory(&name(n), Some(inventory(n))));
    let (mut dice, mut next) = (Dice(7), 0);
    let mut there: VecDeque<(PlacementId, Placement, u64)> = VecDeque::new();
    let (mut gpus, goal) = (0, hosts as u64 * 8 * full / 100);
    let (mut placed, mut refused, mut updates) = (Vec::new(), Vec::new(), Vec::new());
    let mut answers = 0;
    while answers < 6000 {
        let request = draw(&mut dice);
        let filled = gpus >= goal;
        let begun = Instant::now();
        let result = index.place(&request);
        let took = begun.elapsed();
        let warm = filled || answers > 0;
        answers += usize::from(warm);
        let list = if result.is_ok() { &mut placed } else { &mut refused };
        if warm {
            list.push(took);
        }
        let begun = Instant::now();
        if let Ok(placement) = result {
            index.add(&id(next), &placement);
            gpus += request.usage().gpus;
            there.push_back((id(next), placement, request.usage().gpus));
            next += 1;
        } else if !warm {
            answers = 1;
        }
        // At the goal, as much goes as comes, in no order.
        while gpus > goal && !there.is_empty() {
            let which = dice.below(there.len() as u64) as usize;
            let (id, placement, of_it) = there.swap_remove_back(which).expect("there");
            index.remove(&id, &placement);
            gpus -= of_it;
        }
        updates.push(begun.elapsed());
    }
    placed.sort();
    refused.sort();
    let of =
        |list: &[Duration], part| if list.is_empty() { Duration::ZERO } else { at(list, part) };
    println!(
        "{hosts:6} {full:4}% {answers:7} {:6} {:7} | {:6.1?} {:6.1?} {:6.1?} | {:6.1?} {:6.1?} | {:6.1?}",
        placed.len(),
        refused.len(),
        of(&placed, 500),
        of(&placed, 990),
        of(&placed, 1000),
        of(&refused, 500),
        of(&refused, 990),
        updates.iter().sum::<Duration>() / updates.len() as u32,
    );
}

fn durable_transactions_a_second() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for workers in [1, 8, 64, 512] {
        let home = tempfile::tempdir().expect("a folder");
        let store: Arc<dyn Store> = Arc::new(Embedded::open(home.path()).expect("a store"));
        let begun = Instant::now();
        let count: u32 = runtime.block_on(async {
            let running: Vec<_> = (0..workers)
                .map(|worker| {
                    let store = Arc::clone(&store);
                    tokio::spawn(async move {
                        let mut done = 0;
                        while begun.elapsed() < Duration::from_secs(2) {
                            let key =
                                keys::usage(&OrgName::new(&format!("o{worker}")).expect("one"));
                            let put = Transaction::new().put(key, vec![b'x'; 600]);
                            store.commit(put).await.expect("committed");
                            done += 1;
                        }
                        done
                    })
                })
                .collect();
            let mut count = 0;
            for worker in running {
                count += worker.await.expect("it ends");
            }
            count
        });
        println!(
            "{workers:4} at once: {:8.0} transactions/s",
            f64::from(count) / begun.elapsed().as_secs_f64()
        );
    }
}

fn claims_a_second_at_10_000_hosts() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let home = tempfile::tempdir().expect("a folder");
        let store: Arc<dyn Store> = Arc::new(Embedded::open(home.path()).expect("a store"));
        let region = RegionName::new("north").expect("a name");
        for n in (0..10_000).step_by(100) {
            let hundred = (n..n + 100).fold(Transaction::new(), |transaction, n| {
                let value = serde_json::to_vec(&inventory(n)).expect("JSON");
                transaction.put(keys::host(&region, &name(n)), value)
            });
            store.commit(hundred).await.expect("committed");
        }
        let begun = Instant::now();
        let claims = Claims::open(Arc::clone(&store), region).await.expect("a region");
        println!("10,000 hosts read in {:.2?}", begun.elapsed());
        let begun = Instant::now();
        let running: Vec<_> = (0..64_u64)
            .map(|worker| {
                let claims = claims.clone();
                tokio::spawn(async move {
                    let organization = OrgName::new(&format!("o{worker}")).expect("a name");
                    for n in 0..100 {
                        let policy = Policy::Compact(Strictness::Preferred);
                        let request = request(1, 1, 1, false, policy);
                        let ask = Ask { organization: organization.clone(), request };
                        claims.place(id(worker * 1000 + n), ask).await.expect("room");
                    }
                })
            })
            .collect();
        for worker in running {
            worker.await.expect("all placed");
        }
        let took = begun.elapsed();
        println!("6400 claims by 64 callers in {took:.2?}: {:.0}/s", 6400.0 / took.as_secs_f64());
    });
}

fn main() {
    placements_at_100_to_10_000_hosts();
    durable_transactions_a_second();
    claims_a_second_at_10_000_hosts();
}
