//! Claims, with several servers on one store: whatever they do at once, nothing is given twice, nothing
//! is lost, and all that hosts have can be used.

#[cfg(feature = "etcd")]
#[path = "../store/cluster.rs"]
mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lanekeeper_control::claims::{Ask, ClaimError, Claims, Placed};
use lanekeeper_control::keys::{
    self, FabricName, HostName, OrgName, PfName, PlacementId, RegionName,
};
use lanekeeper_control::placement::{
    Closed, DataPath, Flavor, HostClaims, HostReport, Inventory, PciPosition, Pf, Policy, Quota,
    Refusal, Request, Scalars, Usage, VfNeed,
};
use lanekeeper_control::store::{Embedded, Entry, Expect, Outcome, Store, StoreError, Transaction};
use lanekeeper_host::RdmaNeed;
use lanekeeper_model::{Mbps, VfIndex};
use lanekeeper_topology::{Distance, Strictness};

fn region() -> RegionName {
    RegionName::new("north").expect("a name")
}

fn host(n: usize) -> HostName {
    HostName::new(&format!("h{n}")).expect("a name")
}

fn id(text: &str) -> PlacementId {
    PlacementId::new(text).expect("a name")
}

fn organization(text: &str) -> OrgName {
    OrgName::new(text).expect("a name")
}

/// A host with `pfs` PFs of two VFs each.
fn inventory(pfs: usize) -> Inventory {
    let pf = |n| Pf {
        name: PfName::new(&format!("pf{n}")).expect("a name"),
        path: DataPath::SriovRdma,
        fabric: FabricName::new("east").expect("a name"),
        rail: None,
        leaf: None,
        position: PciPosition::default(),
        rate: Mbps(100_000),
        vfs: VfIndex::first(2).collect(),
        cable: None,
    };
    let scalars = Scalars { vcpus: 64, ram_mib: 1 << 18, disk_gib: 1000 };
    let report = HostReport { pod: None, scalars, gpus: None, pfs: (0..pfs).map(pf).collect() };
    Inventory::new(report).expect("consistent")
}

/// So many VMs with so many VFs each.
fn ask(of: &str, vms: u32, vfs: u32) -> Ask {
    let vfs = VfNeed {
        count: vfs,
        rate: Mbps(50_000),
        fabric: FabricName::new("east").expect("a name"),
        rdma: RdmaNeed::Hardware,
        farthest: Distance::Sys,
        rail_aligned: false,
    };
    let scalars = Scalars { vcpus: 1, ram_mib: 1024, disk_gib: 1 };
    let flavor = Flavor { gpus: None, vfs: Some(vfs), scalars };
    let policy = Policy::Compact(Strictness::Preferred);
    Ask { organization: organization(of), request: Request { vms, spares: 0, flavor, policy } }
}

async fn commit(store: &Arc<dyn Store>, transaction: Transaction) {
    let outcome = store.commit(transaction).await.expect("a store that answers");
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
}

async fn report(store: &Arc<dyn Store>, n: usize, pfs: usize) {
    let value = serde_json::to_vec(&inventory(pfs)).expect("JSON");
    commit(store, Transaction::new().put(keys::host(&region(), &host(n)), value)).await;
}

async fn open(store: &Arc<dyn Store>) -> Claims {
    Claims::open(Arc::clone(store), region()).await.expect("a region")
}

async fn embedded(hosts: usize) -> (tempfile::TempDir, Arc<dyn Store>) {
    let home = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn Store> = Arc::new(Embedded::open(home.path()).expect("a store"));
    for n in 0..hosts {
        report(&store, n, 4).await;
    }
    (home, store)
}

fn read<T: serde::de::DeserializeOwned>(entry: &Entry) -> T {
    serde_json::from_slice(&entry.value).expect("readable")
}

/// What is written agrees with itself, and no VF is given twice; gives back the placements.
async fn judge(store: &Arc<dyn Store>) -> BTreeMap<String, Placed> {
    let (_, entries) = store.all(keys::placements(&region())).await.expect("an answer");
    let placed: BTreeMap<String, Placed> =
        entries.iter().map(|entry| (entry.key.last().to_owned(), read(entry))).collect();
    let (_, entries) = store.all(keys::claims(&region())).await.expect("an answer");
    let (mut vfs, mut on_hosts) = (BTreeSet::new(), BTreeSet::new());
    for entry in &entries {
        let claims: HostClaims = read(entry);
        for (id, places) in claims.placements {
            let host = HostName::new(entry.key.last()).expect("a name");
            let of_placement = &placed[id.as_str()].placement.0[&host];
            assert_eq!(*of_placement, places, "{id} on {host}");
            on_hosts.insert((id.as_str().to_owned(), host.as_str().to_owned()));
            for vf in places.iter().flat_map(|place| &place.vfs) {
                assert!(
                    vfs.insert((host.clone(), vf.pf.clone(), vf.vf)),
                    "{host} {vf:?} is given twice"
                );
            }
        }
    }
    let mut usages: BTreeMap<String, Usage> = BTreeMap::new();
    for (id, placed) in &placed {
        for host in placed.placement.0.keys() {
            assert!(on_hosts.contains(&(id.clone(), host.as_str().to_owned())), "{id} on {host}");
        }
        let usage = usages.entry(placed.ask.organization.as_str().to_owned()).or_default();
        *usage = usage.plus(placed.ask.request.usage());
    }
    let (_, entries) = store.all(keys::usages()).await.expect("an answer");
    for entry in &entries {
        let expected = usages.remove(entry.key.last()).unwrap_or_default();
        assert_eq!(read::<Usage>(entry), expected, "{}", entry.key);
    }
    assert_eq!(usages, BTreeMap::new(), "each usage is written");
    placed
}

fn is_full(result: &Result<impl Sized, ClaimError>) -> bool {
    matches!(result, Err(ClaimError::Refused(Refusal::NoRoom { .. })))
}

#[tokio::test]
async fn a_placement_is_written_in_one_revision() {
    let (_home, store) = embedded(2).await;
    let claims = open(&store).await;
    let placement = claims.place(id("g"), ask("a", 2, 8)).await.expect("room");
    assert_eq!(placement.0.len(), 2);
    let (_, entries) = store.all(keys::claims(&region())).await.expect("an answer");
    let mut revisions: BTreeSet<_> = entries.iter().map(|entry| entry.modified).collect();
    let of = store.get(&keys::placement(&region(), &id("g"))).await.expect("an answer");
    revisions.insert(of.expect("written").modified);
    let usage = store.get(&keys::usage(&organization("a"))).await.expect("an answer");
    revisions.insert(usage.expect("written").modified);
    assert_eq!((entries.len(), revisions.len()), (2, 1));
    judge(&store).await;
}

#[tokio::test]
async fn asked_again_a_request_is_not_placed_again() {
    let (_home, store) = embedded(2).await;
    let (first, second) = (open(&store).await, open(&store).await);
    let placement = first.place(id("g"), ask("a", 1, 2)).await.expect("room");
    for claims in [&first, &second] {
        assert_eq!(claims.place(id("g"), ask("a", 1, 2)).await, Ok(placement.clone()));
        let other = claims.place(id("g"), ask("b", 1, 2)).await;
        assert_eq!(other, Err(ClaimError::Taken(id("g"))));
    }
    assert_eq!(judge(&store).await.len(), 1);
}

#[tokio::test]
async fn what_is_released_is_free_for_others_and_a_second_release_does_nothing() {
    let (_home, store) = embedded(1).await;
    let (first, second) = (open(&store).await, open(&store).await);
    first.place(id("g"), ask("a", 1, 8)).await.expect("room");
    assert!(is_full(&second.place(id("h"), ask("b", 1, 1)).await));
    assert_eq!(second.release(id("g")).await, Ok(true));
    assert_eq!(first.release(id("g")).await, Ok(false));
    first.place(id("h"), ask("b", 1, 8)).await.expect("room again");
    assert_eq!(judge(&store).await.len(), 1);
}

#[tokio::test]
async fn a_host_that_is_reported_later_is_used() {
    let (_home, store) = embedded(0).await;
    let claims = open(&store).await;
    assert!(is_full(&claims.place(id("g"), ask("a", 1, 1)).await));
    report(&store, 0, 1).await;
    let placed = async {
        while claims.place(id("g"), ask("a", 1, 1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), placed).await.expect("heard of by the watch");
}

/// Ask for VMs from all servers at once; gives back how many were placed and how many refused.
async fn storm(servers: &[Claims], requests: usize, of: &str) -> (usize, usize) {
    let asked: Vec<_> = (0..requests)
        .map(|n| {
            let claims = servers[n % servers.len()].clone();
            let ask = ask(&format!("{of}{}", n % 7), 1, 1 + (n % 2) as u32);
            let id = id(&format!("{of}.{n}"));
            tokio::spawn(async move {
                loop {
                    match claims.place(id.clone(), ask.clone()).await {
                        Err(ClaimError::Store(StoreError::Unavailable(_))) => {}
                        other => return other,
                    }
                }
            })
        })
        .collect();
    let (mut placed, mut refused) = (0, 0);
    for answer in asked {
        let answer = answer.await.expect("an answer");
        if is_full(&answer) {
            refused += 1;
        } else {
            answer.expect("placed or full");
            placed += 1;
        }
    }
    (placed, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn four_servers_at_once_give_nothing_twice_and_use_all_there_is() {
    let (_home, store) = embedded(20).await;
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(open(&store).await);
    }
    let (placed, refused) = storm(&servers, 200, "o").await;
    let vfs_of = |placed: &BTreeMap<String, Placed>| -> usize {
        let places = placed.values().flat_map(|placed| placed.placement.0.values().flatten());
        places.map(|place| place.vfs.len()).sum()
    };
    let all = judge(&store).await;
    assert_eq!((all.len(), placed + refused), (placed, 200));
    assert!(refused > 0);
    // What is left is less than the largest request, and is given to who asks for the smallest.
    let left = 20 * 8 - vfs_of(&all);
    for n in 0..left {
        servers[n % 4].place(id(&format!("rest.{n}")), ask("z", 1, 1)).await.expect("room");
    }
    assert_eq!(vfs_of(&judge(&store).await), 20 * 8, "all is used");
    assert!(is_full(&servers[0].place(id("one-more"), ask("z", 1, 1)).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_place_and_release_at_once_lose_nothing() {
    let (_home, store) = embedded(4).await;
    let servers = [open(&store).await, open(&store).await, open(&store).await];
    let working: Vec<_> = (0..12)
        .map(|worker| {
            let claims = servers.clone();
            tokio::spawn(async move {
                for n in 0..15_usize {
                    let id = id(&format!("w{worker}.{n}"));
                    let placed = claims[n % 3].place(id.clone(), ask("a", 2, 2)).await;
                    if is_full(&placed) {
                        continue;
                    }
                    placed.expect("placed");
                    assert_eq!(claims[(n + 1) % 3].release(id).await, Ok(true));
                }
            })
        })
        .collect();
    for worker in working {
        worker.await.expect("all went well");
    }
    assert_eq!(judge(&store).await.len(), 0);
    open(&store).await.place(id("all"), ask("a", 4, 8)).await.expect("all is free again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_across_servers() {
    let (_home, store) = embedded(20).await;
    let quota = Quota { vfs: Some(30), ..Quota::default() };
    let value = serde_json::to_vec(&quota).expect("JSON");
    commit(&store, Transaction::new().put(keys::quota(&organization("a")), value)).await;
    let servers = [open(&store).await, open(&store).await, open(&store).await];
    let asked: Vec<_> = (0..60)
        .map(|n| {
            let claims = servers[n % 3].clone();
            tokio::spawn(async move { claims.place(id(&format!("q{n}")), ask("a", 1, 1)).await })
        })
        .collect();
    let mut placed = 0;
    for answer in asked {
        match answer.await.expect("an answer") {
            Ok(_) => placed += 1,
            Err(ClaimError::Refused(Refusal::Quota { limit: 30, .. })) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(placed, 30);
    judge(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_a_host_is_closed_nothing_more_comes() {
    let (_home, store) = embedded(2).await;
    let servers = [open(&store).await, open(&store).await];
    let placing = {
        let servers = servers.clone();
        tokio::spawn(async move { storm(&servers, 40, "c").await })
    };
    tokio::time::sleep(Duration::from_millis(2)).await;
    servers[0].close(host(0), Some(Closed::Draining)).await.expect("closed");
    let at_closing = store.get(&keys::claims_of(&region(), &host(0))).await.expect("an answer");
    placing.await.expect("all were answered");
    let later = store.get(&keys::claims_of(&region(), &host(0))).await.expect("an answer");
    let later: HostClaims = read(&later.expect("written"));
    let at_closing: HostClaims = read(&at_closing.expect("written"));
    assert_eq!(later, at_closing);
    assert_eq!(later.closed, Some(Closed::Draining));
    judge(&store).await;
    servers[1].close(host(0), None).await.expect("open again");
}

/// A writer that does not keep to the index, as an operator with a tool would be.
#[tokio::test]
async fn claims_that_somebody_else_wrote_are_respected() {
    let (_home, store) = embedded(1).await;
    let claims = open(&store).await;
    let placement = claims.place(id("g"), ask("a", 1, 4)).await.expect("room");
    let key = keys::claims_of(&region(), &host(0));
    let entry = store.get(&key).await.expect("an answer").expect("written");
    let mut theirs: HostClaims = read(&entry);
    let mut places = placement.0[&host(0)].clone();
    let used: BTreeSet<_> = places[0].vfs.iter().map(|vf| (vf.pf.clone(), vf.vf)).collect();
    let all = (0..4).flat_map(|n| {
        let pf = PfName::new(&format!("pf{n}")).expect("a name");
        VfIndex::first(2).map(move |vf| (pf.clone(), vf))
    });
    let others: Vec<_> = all.filter(|vf| !used.contains(vf)).collect();
    for (vf, (pf, index)) in places[0].vfs.iter_mut().zip(others) {
        (vf.pf, vf.vf) = (pf, index);
    }
    theirs.placements.insert(id("theirs"), places);
    let value = serde_json::to_vec(&theirs).expect("JSON");
    let write = Transaction::new().expect(key.clone(), Expect::At(entry.modified)).put(key, value);
    commit(&store, write).await;
    assert!(is_full(&claims.place(id("h"), ask("a", 1, 1)).await), "the host is full");
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_placements_survive_the_death_of_etcds_leader_and_a_follower() {
    let mut cluster = cluster::Cluster::start().await;
    let store: Arc<dyn Store> = Arc::new(cluster.connect().await);
    for n in 0..40 {
        report(&store, n, 4).await;
    }
    let mut servers = Vec::new();
    for _ in 0..3 {
        let own: Arc<dyn Store> = Arc::new(cluster.connect().await);
        servers.push(open(&own).await);
    }
    for round in ["first", "second"] {
        let placing = {
            let (servers, round) = (servers.clone(), round.to_owned());
            tokio::spawn(async move { storm(&servers, 100, &round).await })
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
        let leader = cluster.leader().await;
        let victim = if round == "first" { leader } else { (leader + 1) % 3 };
        cluster.kill(victim);
        let (placed, refused) = placing.await.expect("all were answered");
        assert_eq!((placed, refused), (100, 0));
        cluster.run(victim);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(judge(&store).await.len(), 200);
}
