//! The search: where there is room for all VMs of a request under its policy.

use std::collections::BTreeMap;

use lanekeeper_topology::Strictness;

use super::free::{FirstRail, Need};
use super::index::{First, Host, HostRef, Index, Level};
use super::{Filter, Flavor, Placement, Policy, Refusal, Request};

/// Leaf groups and pods that are looked at closely where being near is only preferred.
const TRIES: (usize, usize) = (16, 2);

/// A host with room, and for how many VMs.
#[derive(Clone, Copy)]
struct Room {
    host: HostRef,
    group: Option<u32>,
    vms: u32,
    /// Whether nothing of this request is on it yet.
    fresh: bool,
}

/// How many VMs and how many spares a host gets.
type Shares = Vec<(HostRef, u32, u32)>;

struct Search<'a> {
    index: &'a Index,
    request: &'a Request,
    need: Need<'a>,
    /// From which rail on VFs can be: one choice for all VMs.
    rails: Vec<FirstRail>,
}

fn rails(index: &Index, need: &Need<'_>) -> Vec<FirstRail> {
    match need.vf {
        Some(vf) if vf.rail_aligned => {
            let count = need.vfs as u16;
            let blocks = index.rail_count(&vf.fabric) / count;
            (0..blocks).map(|block| Some(block * count)).collect()
        }
        _ => vec![None],
    }
}

/// How many VMs open hosts have room for; on each host under the rails that give the most.
pub(super) fn room(index: &Index, flavor: &Flavor) -> u64 {
    let need = Need::of(flavor);
    let rails = rails(index, &need);
    let on = |host| {
        let here = |rail: &FirstRail| capacity(index.host(host), &need, *rail).ok();
        rails.iter().filter_map(here).max().unwrap_or(0)
    };
    index.candidates(&need, First::Tightest).map(|host| u64::from(on(host))).sum()
}

pub(super) fn place(index: &Index, request: &Request) -> Result<Placement, Refusal> {
    request.check()?;
    let need = Need::of(&request.flavor);
    let rails = rails(index, &need);
    let search = Search { index, request, need, rails };
    match search.find() {
        Some((shares, rail)) => search.assign(&shares, rail).ok_or_else(|| search.refuse()),
        None => Err(search.refuse()),
    }
}

impl Search<'_> {
    fn find(&self) -> Option<(Shares, FirstRail)> {
        use Strictness::{Preferred, Strict};
        let (groups, pods) = TRIES;
        match self.request.policy {
            Policy::Spread(strictness) => self.anywhere(Some(strictness)),
            _ if self.request.total() == 1 => self.one(),
            Policy::SameLeaf(Strict) => self.within(Level::Group, usize::MAX),
            Policy::Compact(Strict) => {
                self.within(Level::Group, groups).or_else(|| self.within(Level::Pod, usize::MAX))
            }
            Policy::Compact(Preferred) | Policy::SameLeaf(Preferred) => self
                .within(Level::Group, groups)
                .or_else(|| self.within(Level::Pod, pods))
                .or_else(|| self.anywhere(None)),
        }
    }

    fn room(&self, host: HostRef, rail: FirstRail) -> Option<Room> {
        let record = self.index.host(host);
        let vms = capacity(record, &self.need, rail).ok()?;
        Some(Room { host, group: record.group, vms, fresh: true })
    }

    /// One VM goes to the tightest host there is.
    fn one(&self) -> Option<(Shares, FirstRail)> {
        self.index.candidates(&self.need, First::Tightest).find_map(|host| {
            let rail = self.rails.iter().find(|rail| self.room(host, **rail).is_some())?;
            Some((vec![(host, 1, 0)], *rail))
        })
    }

    /// All in one area.
    fn within(&self, level: Level, tries: usize) -> Option<(Shares, FirstRail)> {
        let mut areas = self.index.areas(level, &self.need, self.request.total()).take(tries);
        areas.find_map(|hosts| {
            self.rails.iter().find_map(|rail| {
                let rooms = hosts.iter().filter_map(|host| self.room(*host, *rail)).collect();
                Some((self.divide(rooms, None)?, *rail))
            })
        })
    }

    /// Anywhere in the region, from the emptiest hosts on.
    fn anywhere(&self, spread: Option<Strictness>) -> Option<(Shares, FirstRail)> {
        self.rails.iter().find_map(|rail| {
            let mut rooms = Vec::new();
            let mut enough = Enough::default();
            for host in self.index.candidates(&self.need, First::Emptiest) {
                let Some(room) = self.room(host, *rail) else { continue };
                rooms.push(room);
                if enough.with(room, self.request, spread) {
                    break;
                }
            }
            Some((self.divide(rooms, spread)?, *rail))
        })
    }

    fn divide(&self, rooms: Vec<Room>, spread: Option<Strictness>) -> Option<Shares> {
        let Request { vms, spares, .. } = *self.request;
        let all: u64 = rooms.iter().map(|room| u64::from(room.vms)).sum();
        if all < u64::from(self.request.total()) {
            return None;
        }
        match spread {
            Some(strictness) => spread_out(&rooms, vms, spares, strictness),
            None => Some(pack(rooms, vms, spares)),
        }
    }

    /// GPUs and VFs for each VM.
    fn assign(&self, shares: &Shares, rail: FirstRail) -> Option<Placement> {
        let mut placement = Placement::default();
        let (mut vm, mut spare) = (0, self.request.vms);
        for (host, vms, spares) in shares {
            let record = self.index.host(*host);
            let report = record.inventory.as_ref()?.report();
            let mut free = record.free.clone()?;
            let numbers = (vm..vm + vms).chain(spare..spare + spares);
            let places = numbers.map(|number| free.take(report, &self.need, rail, number));
            placement.0.insert(record.name.clone(), places.collect::<Option<_>>()?);
            (vm, spare) = (vm + vms, spare + spares);
        }
        Some(placement)
    }

    /// Count why not, under the rails that come closest.
    fn refuse(&self) -> Refusal {
        let rails = if self.rails.is_empty() { &[Some(0)] } else { self.rails.as_slice() };
        let tallies = rails.iter().map(|rail| self.tally(*rail));
        let best = tallies.max_by_key(|tally| (tally.at_once, tally.room)).unwrap_or_default();
        let Tally { hosts, failed, room, at_once } = best;
        Refusal::NoRoom { wanted: self.request.total(), hosts, failed, room, at_once }
    }

    fn tally(&self, rail: FirstRail) -> Tally {
        let mut tally = Tally::default();
        let (mut groups, mut pods) = (BTreeMap::new(), BTreeMap::new());
        let mut taking = 0;
        for host in self.index.reported() {
            tally.hosts += 1;
            match capacity(host, &self.need, rail) {
                Err(filter) => *tally.failed.entry(filter).or_default() += 1,
                Ok(vms) => {
                    tally.room += u64::from(vms);
                    taking += 1;
                    for (areas, area) in [(&mut groups, host.group), (&mut pods, host.pod)] {
                        if let Some(area) = area {
                            *areas.entry(area).or_insert(0) += u64::from(vms);
                        }
                    }
                }
            }
        }
        let most = |areas: BTreeMap<u32, u64>| areas.into_values().max().unwrap_or(0);
        tally.at_once = match self.request.policy {
            Policy::Spread(Strictness::Strict) => taking,
            Policy::SameLeaf(Strictness::Strict) => most(groups),
            Policy::Compact(Strictness::Strict) => most(groups).max(most(pods)),
            _ => tally.room,
        };
        tally
    }
}

#[derive(Default)]
struct Tally {
    hosts: usize,
    failed: BTreeMap<Filter, usize>,
    room: u64,
    at_once: u64,
}

fn capacity(host: &Host, need: &Need<'_>, rail: FirstRail) -> Result<u32, Filter> {
    match (&host.inventory, &host.free, host.claims.closed) {
        (Some(inventory), Some(free), None) => free.capacity(inventory.report(), need, rail),
        _ => Err(Filter::Closed),
    }
}

/// Whether hosts in the order they were found are enough.
#[derive(Default)]
struct Enough {
    hosts: u32,
    vms: u64,
    /// What hosts have room for that came after there was enough for the VMs.
    spares: u64,
}

impl Enough {
    fn with(&mut self, room: Room, request: &Request, spread: Option<Strictness>) -> bool {
        self.hosts += 1;
        if self.vms < u64::from(request.vms) {
            self.vms += u64::from(room.vms);
        } else {
            self.spares += u64::from(room.vms);
        }
        match spread {
            Some(_) => self.hosts >= request.total(),
            None => self.vms >= u64::from(request.vms) && self.spares >= u64::from(request.spares),
        }
    }
}

/// One VM a host, round after round; the spares go on where the VMs end.
fn spread_out(rooms: &[Room], vms: u32, spares: u32, strictness: Strictness) -> Option<Shares> {
    let mut shares: Shares = rooms.iter().map(|room| (room.host, 0, 0)).collect();
    let mut given = 0;
    while given < vms + spares {
        if given > 0 && strictness == Strictness::Strict {
            return None;
        }
        for (room, (_, own, spare)) in rooms.iter().zip(&mut shares) {
            if given == vms + spares || *own + *spare == room.vms {
                continue;
            }
            *(if given < vms { own } else { spare }) += 1;
            given += 1;
        }
    }
    shares.retain(|(_, own, spare)| own + spare > 0);
    Some(shares)
}

/// On few hosts of few leaf groups; the spares on other hosts as far as there are any.
fn pack(mut rooms: Vec<Room>, vms: u32, spares: u32) -> Shares {
    let mut by_group: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for room in &rooms {
        *by_group.entry(room.group).or_default() += u64::from(room.vms);
    }
    let roomiest = |room: &Room| {
        let of_group = if room.group.is_some() { by_group[&room.group] } else { 0 };
        (std::cmp::Reverse(of_group), room.group, std::cmp::Reverse(room.vms), room.host)
    };
    rooms.sort_by_key(roomiest);
    let mut shares: Shares = Vec::new();
    for (host, count) in fill(&mut rooms, vms) {
        shares.push((host, count, 0));
    }
    // Hosts that are used come last now, with what room they have left.
    for (host, count) in fill(&mut rooms, spares) {
        match shares.iter_mut().find(|(own, ..)| *own == host) {
            Some((.., spare)) => *spare += count,
            None => shares.push((host, 0, count)),
        }
    }
    shares
}

/// Take `count` from the first rooms, and the last of it from the tightest host of that group that
/// has room for it. Hosts that were used go to the end, with what room is left.
fn fill(rooms: &mut Vec<Room>, count: u32) -> Vec<(HostRef, u32)> {
    let mut taken = Vec::new();
    let mut used = Vec::new();
    let mut wanted = count;
    while wanted > 0 && !rooms.is_empty() {
        let first = rooms[0];
        let alike = |room: &Room| (room.group, room.fresh) == (first.group, first.fresh);
        let fitting =
            rooms.iter().enumerate().filter(|(_, room)| alike(room) && room.vms >= wanted);
        let at = fitting.min_by_key(|(at, room)| (room.vms, *at)).map_or(0, |(at, _)| at);
        let mut room = rooms.remove(at);
        let share = room.vms.min(wanted);
        taken.push((room.host, share));
        wanted -= share;
        room.vms -= share;
        room.fresh = false;
        used.push(room);
    }
    rooms.extend(used.into_iter().filter(|room| room.vms > 0));
    taken
}
