//! The hosts of a region, in an order that finds room without looking at each of them. All of it
//! follows from what was last said of each host; to change one costs a logarithm of their number.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use super::free::{Free, Need};
use super::{Closed, HostClaims, Inventory, Placement};
use crate::keys::{FabricName, GpuModel, HostName, LeafName, PlacementId, PodName};

/// A host's place in [`Index::hosts`].
pub(super) type HostRef = u32;

/// One host.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Host {
    pub(super) name: HostName,
    pub(super) inventory: Option<Inventory>,
    pub(super) claims: HostClaims,
    /// Only of a host that was reported.
    pub(super) free: Option<Free>,
    pub(super) group: Option<u32>,
    pub(super) pod: Option<u32>,
    /// Where it is in the order; nowhere if it is closed.
    sorted: Option<Sorted>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Sorted {
    bucket: Bucket,
    sums: Sums,
}

/// Number of a GPU model; 0 for hosts without GPUs.
type Model = u32;

/// Hosts with about as much free: GPUs and VFs exactly, the rest by its number of binary digits. The
/// order is that in which the tightest come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Bucket {
    model: Model,
    gpus: u32,
    vfs: u32,
    vcpus: u8,
    ram: u8,
    rate: u8,
}

fn digits(number: u64) -> u8 {
    (u64::BITS - number.leading_zeros()) as u8
}

impl Bucket {
    const FIRST: Self = Self { model: 0, gpus: 0, vfs: 0, vcpus: 0, ram: 0, rate: 0 };

    /// Whether a host in it may have room for one VM.
    fn admits(self, need: &Need<'_>) -> bool {
        let rate = need.vf.map_or(0, |vf| vf.rate.0);
        self.gpus >= need.gpus
            && self.vfs >= need.vfs
            && self.vcpus >= digits(need.scalars.vcpus.into())
            && self.ram >= digits(need.scalars.ram_mib)
            && self.rate >= digits(rate.into())
    }
}

/// What several hosts have free together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Sums {
    gpus: u64,
    vfs: u64,
    vcpus: u64,
    ram: u64,
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.gpus += other.gpus;
        self.vfs += other.vfs;
        self.vcpus += other.vcpus;
        self.ram += other.ram;
    }

    fn subtract(&mut self, other: Self) {
        self.gpus -= other.gpus;
        self.vfs -= other.vfs;
        self.vcpus -= other.vcpus;
        self.ram -= other.ram;
    }

    fn admit(self, need: &Need<'_>, vms: u64) -> bool {
        self.gpus >= vms * u64::from(need.gpus)
            && self.vfs >= vms * u64::from(need.vfs)
            && self.vcpus >= vms * u64::from(need.scalars.vcpus)
            && self.ram >= vms.saturating_mul(need.scalars.ram_mib)
    }
}

/// A leaf group or a pod.
#[derive(Clone, PartialEq, Default, Debug)]
struct Area {
    hosts: BTreeSet<HostRef>,
    /// What is free of hosts with each GPU model, and of all (under [`ANY`]).
    sums: BTreeMap<Model, Sums>,
}

/// Stands for all models, where GPUs are of no matter.
const ANY: Model = Model::MAX;

/// All leaf groups, or all pods, and the order that finds the tightest.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Areas<K: Eq + Hash> {
    numbers: HashMap<K, u32>,
    list: Vec<Area>,
    order: BTreeSet<(Model, Sums, u32)>,
}

impl<K: Eq + Hash> Default for Areas<K> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), list: Vec::new(), order: BTreeSet::new() }
    }
}

impl<K: Eq + Hash> Areas<K> {
    fn number(&mut self, key: K) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.list.push(Area::default());
        }
        number
    }

    /// Put a host into its area or take it out.
    fn count(&mut self, area: u32, host: HostRef, of: Sorted, is_in: bool) {
        let place = &mut self.list[area as usize];
        if is_in {
            place.hosts.insert(host);
        } else {
            place.hosts.remove(&host);
        }
        for model in [of.bucket.model, ANY] {
            let sums = place.sums.entry(model).or_default();
            let before = *sums;
            if is_in {
                sums.add(of.sums);
            } else {
                sums.subtract(of.sums);
            }
            let after = *sums;
            self.order.remove(&(model, before, area));
            if after == Sums::default() {
                place.sums.remove(&model);
            } else {
                self.order.insert((model, after, area));
            }
        }
    }

    /// Areas that have enough for so many VMs in sum, the tightest first.
    fn roomy<'a>(
        &'a self,
        model: Model,
        need: &'a Need<'_>,
        vms: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        let vms = u64::from(vms);
        let least = Sums { gpus: vms * u64::from(need.gpus), ..Sums::default() };
        let order = self.order.range((model, least, 0)..).take_while(move |(of, ..)| *of == model);
        order.filter(move |(_, sums, _)| sums.admit(need, vms)).map(|(.., area)| *area)
    }

    pub(super) fn hosts(&self, area: u32) -> impl Iterator<Item = HostRef> + '_ {
        self.list[area as usize].hosts.iter().copied()
    }
}

/// Which of the two kinds of area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    Group,
    Pod,
}

/// Where the tightest hosts come, or the emptiest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum First {
    Tightest,
    Emptiest,
}

type GroupKey = Vec<(FabricName, Option<u16>, LeafName)>;

/// The hosts of one region: what each has, what is claimed of it, and where there is room.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Index {
    numbers: HashMap<HostName, HostRef>,
    hosts: Vec<Host>,
    models: HashMap<GpuModel, Model>,
    buckets: BTreeMap<Bucket, BTreeSet<HostRef>>,
    groups: Areas<GroupKey>,
    pods: Areas<PodName>,
    /// How many PFs there are on each rail.
    rails: BTreeMap<FabricName, BTreeMap<u16, usize>>,
}

impl Index {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// What a host has; none if it is no longer there. What is claimed of it stays known.
    pub fn set_inventory(&mut self, name: &HostName, inventory: Option<Inventory>) {
        let host = self.host_ref(name);
        self.take_out(host);
        self.count_rails(host, false);
        let (mut group, mut pod) = (None, None);
        if let Some(inventory) = &inventory {
            group = inventory.leaf_group().map(|leaves| self.groups.number(leaves));
            pod = inventory.report().pod.clone().map(|pod| self.pods.number(pod));
            if let Some(gpus) = &inventory.report().gpus {
                let next = self.models.len() as Model + 1;
                self.models.entry(gpus.model.clone()).or_insert(next);
            }
        }
        let record = &mut self.hosts[host as usize];
        (record.inventory, record.group, record.pod) = (inventory, group, pod);
        self.count_rails(host, true);
        self.put_in(host);
    }

    /// The hosts that are closed to placements.
    pub fn closed(&self) -> impl Iterator<Item = (&HostName, Closed)> {
        let closed = |host: HostRef| self.hosts[host as usize].claims.closed;
        self.numbers.iter().filter_map(move |(name, host)| Some((name, closed(*host)?)))
    }

    /// What is claimed of a host.
    pub fn set_claims(&mut self, name: &HostName, claims: HostClaims) {
        let host = self.host_ref(name);
        self.take_out(host);
        self.hosts[host as usize].claims = claims;
        self.put_in(host);
    }

    /// What is claimed of a host, as it was last said.
    pub fn claims(&self, name: &HostName) -> Option<&HostClaims> {
        self.numbers.get(name).map(|host| &self.hosts[*host as usize].claims)
    }

    /// Claim what a placement says.
    pub fn add(&mut self, id: &PlacementId, placement: &Placement) {
        for (name, places) in &placement.0 {
            let host = self.host_ref(name);
            self.take_out(host);
            let claims = &mut self.hosts[host as usize].claims;
            claims.placements.insert(id.clone(), places.clone());
            self.put_in(host);
        }
    }

    /// Free what a placement had: after it the index is as if the placement had never been.
    pub fn remove(&mut self, id: &PlacementId, placement: &Placement) {
        for name in placement.0.keys() {
            let host = self.host_ref(name);
            self.take_out(host);
            self.hosts[host as usize].claims.placements.remove(id);
            self.put_in(host);
        }
    }

    fn host_ref(&mut self, name: &HostName) -> HostRef {
        if let Some(host) = self.numbers.get(name) {
            return *host;
        }
        let host = self.hosts.len() as HostRef;
        self.numbers.insert(name.clone(), host);
        self.hosts.push(Host {
            name: name.clone(),
            inventory: None,
            claims: HostClaims::default(),
            free: None,
            group: None,
            pod: None,
            sorted: None,
        });
        host
    }

    fn count_rails(&mut self, host: HostRef, is_in: bool) {
        let inventory = &self.hosts[host as usize].inventory;
        for pf in inventory.iter().flat_map(|inventory| &inventory.report().pfs) {
            let Some(rail) = pf.rail else { continue };
            let of_fabric = self.rails.entry(pf.fabric.clone()).or_default();
            let count = of_fabric.entry(rail).or_default();
            if is_in {
                *count += 1;
            } else {
                *count -= 1;
            }
            if *count == 0 {
                of_fabric.remove(&rail);
            }
        }
    }

    /// Take a host out of the order.
    fn take_out(&mut self, host: HostRef) {
        let record = &mut self.hosts[host as usize];
        let Some(sorted) = record.sorted.take() else { return };
        let (group, pod) = (record.group, record.pod);
        if let Some(hosts) = self.buckets.get_mut(&sorted.bucket) {
            hosts.remove(&host);
            if hosts.is_empty() {
                self.buckets.remove(&sorted.bucket);
            }
        }
        if let Some(group) = group {
            self.groups.count(group, host, sorted, false);
        }
        if let Some(pod) = pod {
            self.pods.count(pod, host, sorted, false);
        }
    }

    /// Work out anew what is free on a host, and put it into the order by that.
    fn put_in(&mut self, host: HostRef) {
        let record = &mut self.hosts[host as usize];
        record.free =
            record.inventory.as_ref().map(|inventory| Free::of(inventory.report(), &record.claims));
        let (Some(free), None) = (&record.free, record.claims.closed) else { return };
        let gpus = record.inventory.as_ref().and_then(|inventory| inventory.report().gpus.as_ref());
        let model = gpus.and_then(|gpus| self.models.get(&gpus.model)).copied().unwrap_or(0);
        let (vcpus, ram) = (u64::from(free.scalars.vcpus), free.scalars.ram_mib);
        let (gpus, vfs) = (free.gpu_count(), free.vf_count());
        let sorted = Sorted {
            bucket: Bucket {
                model,
                gpus: gpus as u32,
                vfs: vfs as u32,
                vcpus: digits(vcpus),
                ram: digits(ram),
                rate: digits(free.best_rate().into()),
            },
            sums: Sums { gpus: gpus as u64, vfs: vfs as u64, vcpus, ram },
        };
        record.sorted = Some(sorted);
        let (group, pod) = (record.group, record.pod);
        self.buckets.entry(sorted.bucket).or_default().insert(host);
        if let Some(group) = group {
            self.groups.count(group, host, sorted, true);
        }
        if let Some(pod) = pod {
            self.pods.count(pod, host, sorted, true);
        }
    }

    pub(super) fn host(&self, host: HostRef) -> &Host {
        &self.hosts[host as usize]
    }

    /// Every host that was reported.
    pub(super) fn reported(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.inventory.is_some())
    }

    /// Number of a GPU model; none if no host has it.
    fn model(&self, need: &Need<'_>) -> Option<Model> {
        need.model.map_or(Some(0), |model| self.models.get(model).copied())
    }

    /// Open hosts that may have room for one VM. Where GPUs are of no matter, hosts without come
    /// first.
    pub(super) fn candidates<'a>(
        &'a self,
        need: &'a Need<'_>,
        first: First,
    ) -> Box<dyn Iterator<Item = HostRef> + 'a> {
        let Some(model) = self.model(need) else { return Box::new(std::iter::empty()) };
        let from = |model| Bucket { model, ..Bucket::FIRST };
        let own = self.buckets.range(Bucket { gpus: need.gpus, ..from(model) }..from(model + 1));
        let others = (model == 0).then(|| self.buckets.range(from(1)..));
        let others = others.into_iter().flatten();
        let buckets: Box<dyn Iterator<Item = _>> = match first {
            First::Tightest => Box::new(own.chain(others)),
            First::Emptiest => Box::new(own.rev().chain(others.rev())),
        };
        let roomy = buckets.filter(|(bucket, _)| bucket.admits(need));
        Box::new(roomy.flat_map(|(_, hosts)| hosts.iter().copied()))
    }

    /// Leaf groups or pods that have enough for so many VMs in sum, the tightest first; each as its
    /// open hosts.
    pub(super) fn areas<'a>(
        &'a self,
        level: Level,
        need: &'a Need<'_>,
        vms: u32,
    ) -> Box<dyn Iterator<Item = Vec<HostRef>> + 'a> {
        let model = match self.model(need) {
            None => return Box::new(std::iter::empty()),
            Some(0) => ANY,
            Some(model) => model,
        };
        match level {
            Level::Group => {
                let roomy = self.groups.roomy(model, need, vms);
                Box::new(roomy.map(|area| self.groups.hosts(area).collect()))
            }
            Level::Pod => {
                let roomy = self.pods.roomy(model, need, vms);
                Box::new(roomy.map(|area| self.pods.hosts(area).collect()))
            }
        }
    }

    /// How many rails a fabric has: one more than its last one's number.
    pub(super) fn rail_count(&self, fabric: &FabricName) -> u16 {
        let last = self.rails.get(fabric).and_then(|rails| rails.last_key_value());
        last.map_or(0, |(rail, _)| rail + 1)
    }
}
