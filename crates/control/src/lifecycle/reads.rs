//! How often the store is read: counted, since that is what grows with the fleet, and is the same on a
//! slow machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::survey::look_at_all;
use super::{Item, LEADER_LEASE, Work, see_to};
use crate::cloud::Cloud;
use crate::keys::{self, DutyName, HostName, OrgName, RegionName, ServerName};
use crate::placement::{HostReport, Inventory};
use crate::protocol::{Power, VmReport, VmReports, VmState};
use crate::resource::{OrganizationSpec, Vm, VmStatus};
use crate::store::{
    Election, Embedded, KeyPage, Lease, LeaseId, Outcome, Page, Range, Revision, Scope, Store,
    StoreError, Transaction, Watch,
};

/// An embedded store that counts how often it is read, and how many values it gives away.
pub(super) struct Counting {
    inner: Embedded,
    reads: AtomicUsize,
    values: AtomicUsize,
}

impl Counting {
    pub(super) fn open(folder: &std::path::Path) -> Arc<Self> {
        let inner = Embedded::open(folder).expect("a store");
        Arc::new(Self { inner, reads: AtomicUsize::new(0), values: AtomicUsize::new(0) })
    }

    /// Readings and values since this was last asked.
    pub(super) fn since(&self) -> (usize, usize) {
        (self.reads.swap(0, Ordering::Relaxed), self.values.swap(0, Ordering::Relaxed))
    }
}

impl Counting {
    /// Forget what was counted since it was this.
    fn forgive(&self, (reads, values): (usize, usize)) {
        self.reads.store(reads, Ordering::Relaxed);
        self.values.store(values, Ordering::Relaxed);
    }
}

#[async_trait]
impl Store for Counting {
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.inner.commit(transaction).await
    }
    async fn range(&self, range: Range) -> Result<Page, StoreError> {
        let page = self.inner.range(range).await?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.values.fetch_add(page.entries.len(), Ordering::Relaxed);
        Ok(page)
    }
    async fn keys(&self, range: Range) -> Result<KeyPage, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.keys(range).await
    }
    async fn watch(&self, scope: Scope, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.inner.watch(scope, after).await
    }
    async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        self.inner.grant(ttl).await
    }
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.keep_alive(lease).await
    }
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.revoke(lease).await
    }
    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }
}

/// A region whose leader does what it is told to, and nothing by itself.
struct World {
    store: Arc<Counting>,
    work: Work,
    acme: OrgName,
    environment: u64,
    _folder: tempfile::TempDir,
}

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a value")
}

fn host(n: usize) -> HostName {
    HostName::new(&format!("h{n}")).expect("a name")
}

/// What a host with eight PFs of two VFs has.
fn inventory() -> Vec<u8> {
    let nowhere = json!({"numa": null, "host_bridge": null, "root_port": null, "switch": null});
    let pf = |n: usize| {
        json!({"name": format!("nic{n}"), "path": "software", "fabric": "f1", "rail": n,
            "leaf": null, "position": nowhere, "rate": 100_000, "vfs": [0, 1]})
    };
    let report: HostReport = of(json!({
        "pod": null,
        "scalars": {"vcpus": 64, "ram_mib": 65536, "disk_gib": 1000},
        "gpus": null,
        "pfs": (0..8).map(pf).collect::<Vec<_>>()
    }));
    serde_json::to_vec(&Inventory::new(report).expect("an inventory")).expect("text")
}

impl World {
    /// With so many hosts, all of them alive.
    async fn new(hosts: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Counting::open(folder.path());
        let shared: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
        let cloud = Arc::new(Cloud::new(Arc::clone(&shared)));
        let (acme, region): (OrgName, RegionName) = (of(json!("acme")), of(json!("north")));
        let organization = OrganizationSpec { name: acme.clone(), description: String::new() };
        cloud.create_organization(organization, None).await.expect("made");
        let spec = json!({"name": "north", "fabric": "f1", "addresses": "10.64.0.0/16",
            "vlans": {"from": 100, "to": 199}});
        cloud.create_region(of(spec), None).await.expect("made");
        let spec = json!({"name": "small", "vcpus": 1, "ram_mib": 256, "disk_gib": 1,
            "vfs": {"count": 1, "rate_mbps": 1000, "rdma": "software"}});
        cloud.create_flavor(of(spec), None).await.expect("made");
        let spec = json!({"name": "guest", "source": "builtin"});
        cloud.create_image(of(spec), None).await.expect("made");
        let spec = json!({"name": "lab", "region": "north"});
        let environment = cloud.create_environment(&acme, of(spec), None).await.expect("made").id;
        let all: Vec<usize> = (0..hosts).collect();
        for some in all.chunks(Transaction::MOST_KEYS / 2) {
            let transaction = some.iter().fold(Transaction::new(), |transaction, n| {
                let transaction = transaction.put(keys::host(&region, &host(*n)), inventory());
                transaction.put(keys::alive_one(&region, &host(*n)), "test")
            });
            shared.commit(transaction).await.expect("written");
        }
        let duty = DutyName::new("lifecycle-north").expect("a name");
        let server = ServerName::new("s1").expect("a name");
        let leadership = Election::new(shared, &duty, server, LEADER_LEASE).campaign().await;
        let leadership = Arc::new(leadership.expect("elected"));
        let work = Work { cloud, region, leadership, metrics: Arc::default() };
        Self { store, work, acme, environment, _folder: folder }
    }

    fn spec(&self, name: &str) -> Value {
        json!({"name": name, "environment": self.environment, "flavor": "small", "image": "guest"})
    }

    async fn group(&self, name: &str, count: u32) -> u64 {
        let spec = json!({"count": count, "vm": self.spec(name), "policy": {"spread": "strict"}});
        self.work.cloud.create_group(&self.acme, of(spec), None).await.expect("made").id
    }

    /// See to something, and to all that comes of it; agents obey at once.
    async fn drive(&self, items: impl IntoIterator<Item = Item>) {
        let (wake, _woken) = tokio::sync::mpsc::unbounded_channel();
        let mut ready: BTreeSet<Item> = items.into_iter().collect();
        while let Some(item) = ready.pop_first() {
            let owner = Some(self.acme.clone());
            let next = see_to(&self.work, &item, owner, &wake).await.expect("seen to");
            if let Item::Vm(id) = item
                && self.obey(id).await
            {
                ready.insert(Item::Vm(id));
            }
            let again = |next: &Item| matches!(next, Item::Vm(_)) || !matches!(item, Item::Vm(_));
            ready.extend(next.into_iter().filter(|next| *next != item && again(next)));
        }
    }

    /// Let a VM's host report what it is asked for; whether it had not done so before.
    async fn obey(&self, id: u64) -> bool {
        // What the agent causes to be read is not the leader's.
        let counted = self.store.since();
        let vm = self.work.cloud.get::<Vm>(&self.acme, id).await;
        let Some(located) = vm.ok().and_then(|vm| vm.value.located) else {
            self.store.forgive(counted);
            return false;
        };
        let region = &self.work.region;
        let desired = self.work.cloud.desired(region, &located.host).await.expect("read");
        let report = |vm: &crate::protocol::DesiredVm| {
            let state = if vm.power == Power::On { VmState::Running } else { VmState::Gone };
            VmReport {
                vm: vm.vm,
                generation: vm.generation,
                state,
                resets: vm.resets,
                traffic: crate::protocol::Traffic::default(),
            }
        };
        let reports = VmReports { vms: desired.vms.iter().map(report).collect() };
        let key = keys::report(region, &located.host, id);
        let before = self.store.get_value(&key).await;
        self.work.cloud.take_reports(region, &located.host, reports).await.expect("taken");
        self.store.forgive(counted);
        self.store.get_value(&key).await != before
    }

    async fn statuses(&self) -> Vec<VmStatus> {
        let all = self.work.cloud.all::<Vm>(&self.acme).await.expect("read");
        all.into_iter().map(|vm| vm.value.status).collect()
    }
}

impl Counting {
    async fn get_value(&self, key: &keys::Key) -> Option<Vec<u8>> {
        let page = self.inner.range(Range::of(key.clone())).await.expect("read");
        page.entries.into_iter().next().map(|entry| entry.value)
    }
}

#[tokio::test]
async fn a_fleet_at_rest_is_looked_at_in_pages_and_a_group_at_its_own_hosts() {
    const HOSTS: usize = 1000;
    let world = World::new(HOSTS).await;
    let mut items = Vec::new();
    for n in 0..5 {
        items.push(Item::Group(world.group(&format!("g{n}"), 4).await));
    }
    for n in 0..20 {
        let spec = of(world.spec(&format!("v{n}")));
        let vm = world.work.cloud.create_vm(&world.acme, spec, None).await.expect("made");
        items.push(Item::Vm(vm.id));
    }
    let found = look_at_all(&world.work).await.expect("looked").items;
    assert!(items.iter().all(|item| found.contains(item)), "{items:?} in {found:?}");
    let group = items[0].clone();
    world.drive(found).await;
    assert_eq!(world.statuses().await, [VmStatus::Active; 40]);

    // Once more, since what was seen to last may have left something.
    world.store.since();
    world.drive([group]).await;
    let (reads, values) = world.store.since();
    assert!(
        reads <= 10 && values <= 6,
        "a placed group of four: {reads} readings, {values} values"
    );

    let survey = look_at_all(&world.work).await.expect("looked");
    let (reads, values) = world.store.since();
    assert_eq!(survey.items, BTreeSet::new(), "nothing is to be done");
    // Keys of hosts and leases; what 40 VMs and 5 groups are; nothing a host has.
    assert!(reads <= 7 + 2 * HOSTS.div_ceil(1000), "{reads} readings");
    assert!(values <= 3 * 40 + 5, "{values} values");
}

#[tokio::test]
async fn a_look_at_all_finds_what_the_watch_may_have_missed_and_only_that() {
    let world = World::new(3).await;
    let vm = |name: &str| of(world.spec(name));
    let cloud = &world.work.cloud;
    let mut vms = Vec::new();
    for name in ["a", "b", "c"] {
        vms.push(cloud.create_vm(&world.acme, vm(name), None).await.expect("made").id);
    }
    world.drive(vms.iter().map(|id| Item::Vm(*id))).await;
    let look = async || look_at_all(&world.work).await.expect("looked").items;
    assert_eq!(look().await, BTreeSet::new());

    // One is to be deleted, and one is claimed for that is nobody's.
    let doomed = cloud.get::<Vm>(&world.acme, vms[0]).await.expect("there");
    cloud.delete_vm(&doomed).await.expect("deleted");
    let region = &world.work.region;
    let placed = cloud.store().get(&keys::placement(region, &doomed.value.placement())).await;
    let placed: crate::claims::Placed =
        serde_json::from_slice(&placed.expect("read").expect("placed").value).expect("a placement");
    let late = crate::keys::PlacementId::new("vm-424242").expect("an id");
    let claims = cloud.claims(region).await.expect("claims");
    claims.place(late, placed.ask).await.expect("placed");
    assert_eq!(look().await, BTreeSet::from([Item::Vm(vms[0]), Item::Vm(424_242)]));
    world.drive([Item::Vm(vms[0])]).await;

    // A host is lost, and with it what runs there.
    let located = cloud.get::<Vm>(&world.acme, vms[1]).await.expect("there").value.located;
    let lost = located.expect("placed").host;
    let gone = Transaction::new().delete(keys::alive_one(region, &lost));
    cloud.store().commit(gone).await.expect("written");
    let found = look().await;
    assert!(found.contains(&Item::Host(lost.clone())) && found.contains(&Item::Vm(vms[1])));
    claims
        .release(crate::keys::PlacementId::new("vm-424242").expect("an id"))
        .await
        .expect("freed");
    world.drive(look().await).await;
    assert_eq!(look().await, BTreeSet::new(), "a lost host is closed once");

    let back = Transaction::new().put(keys::alive_one(region, &lost), "test");
    cloud.store().commit(back).await.expect("written");
    assert!(look().await.contains(&Item::Host(lost)));
}
