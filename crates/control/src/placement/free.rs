//! What is free on one host: how many VMs of a flavor it takes, exactly, and which GPUs and VFs they
//! get. What "unit" and "island" mean is in [the module](super).

use std::collections::BTreeMap;

use lanekeeper_host::RdmaNeed;
use lanekeeper_model::VfIndex;
use lanekeeper_topology::Distance;

use super::inventory::{DataPath, HostReport, Island, Pf};
use super::{Filter, Flavor, HostClaims, Scalars, VfNeed, VfPlace, VmPlace};
use crate::keys::GpuModel;

const DISTANCES: [Distance; 5] =
    [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys];

/// A flavor, divided into units.
pub(super) struct Need<'r> {
    pub(super) model: Option<&'r GpuModel>,
    pub(super) gpus: u32,
    pub(super) vf: Option<&'r VfNeed>,
    pub(super) vfs: u32,
    pub(super) scalars: Scalars,
    units: u32,
    unit_gpus: u32,
    unit_vfs: u32,
    /// How far the functions of a unit may be from each other.
    farthest: Distance,
}

impl<'r> Need<'r> {
    pub(super) fn of(flavor: &'r Flavor) -> Self {
        let gpus = flavor.gpus.as_ref().map_or(0, |need| need.count);
        let vfs = flavor.vfs.as_ref().map_or(0, |need| need.count);
        let units = match (gpus, vfs) {
            (0, _) | (_, 0) => 1,
            (gpus, vfs) if vfs % gpus == 0 => gpus,
            (gpus, vfs) if gpus % vfs == 0 => vfs,
            _ => 1,
        };
        let farthest = match &flavor.vfs {
            Some(need) if gpus > 0 => need.farthest,
            _ => Distance::Sys,
        };
        Self {
            model: flavor.gpus.as_ref().map(|need| &need.model),
            gpus,
            vf: flavor.vfs.as_ref(),
            vfs,
            scalars: flavor.scalars,
            units,
            unit_gpus: gpus / units,
            unit_vfs: vfs / units,
            farthest,
        }
    }
}

/// The first rail of a VM's VFs, if they are to be rail-aligned.
pub(super) type FirstRail = Option<u16>;

#[derive(Clone, PartialEq, Eq, Debug)]
struct FreePf {
    /// In order.
    vfs: Vec<VfIndex>,
    /// In Mb/s.
    rate: u32,
}

/// What is free on a host; GPUs and PFs by their places in its report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Free {
    gpus: Vec<usize>,
    pfs: Vec<FreePf>,
    pub(super) scalars: Scalars,
}

impl Free {
    /// What a host has, without what is claimed of it. A claim of something that is no longer there
    /// takes nothing.
    pub(super) fn of(report: &HostReport, claims: &HostClaims) -> Self {
        let places = || claims.placements.values().flatten();
        let gpus = report.gpus.as_ref().map_or(&[][..], |gpus| &gpus.list);
        let taken = |addr| places().any(|place| place.gpus.contains(&addr));
        let mut free = Self {
            gpus: (0..gpus.len()).filter(|at| !taken(gpus[*at].addr)).collect(),
            pfs: Vec::with_capacity(report.pfs.len()),
            scalars: report.scalars,
        };
        free.pfs.extend(
            report
                .pfs
                .iter()
                .map(|pf| FreePf { vfs: pf.vfs.iter().copied().collect(), rate: pf.rate.0 }),
        );
        for place in places() {
            let Scalars { vcpus, ram_mib, disk_gib } = place.scalars;
            let scalars = &mut free.scalars;
            scalars.vcpus = scalars.vcpus.saturating_sub(vcpus);
            scalars.ram_mib = scalars.ram_mib.saturating_sub(ram_mib);
            scalars.disk_gib = scalars.disk_gib.saturating_sub(disk_gib);
            for vf in &place.vfs {
                let Some(at) = report.pfs.iter().position(|pf| pf.name == vf.pf) else { continue };
                let pf = &mut free.pfs[at];
                pf.vfs.retain(|index| *index != vf.vf);
                pf.rate = pf.rate.saturating_sub(vf.rate.0);
            }
        }
        free
    }

    pub(super) fn gpu_count(&self) -> usize {
        self.gpus.len()
    }

    pub(super) fn vf_count(&self) -> usize {
        self.pfs.iter().map(|pf| pf.vfs.len()).sum()
    }

    /// The most that is left of one PF, in Mb/s.
    pub(super) fn best_rate(&self) -> u32 {
        self.pfs.iter().map(|pf| pf.rate).max().unwrap_or(0)
    }

    /// How many VFs of a PF can be had at this rate.
    fn slots(&self, at: usize, need: &VfNeed) -> u32 {
        let FreePf { vfs, rate } = &self.pfs[at];
        let vfs = vfs.len() as u32;
        rate.checked_div(need.rate.0).map_or(vfs, |most| most.min(vfs))
    }

    /// How many VMs the host takes, at least one; or what it lacks for one.
    pub(super) fn capacity(
        &self,
        report: &HostReport,
        need: &Need<'_>,
        first_rail: FirstRail,
    ) -> Result<u32, Filter> {
        let mut most = self.scalar_capacity(need)?;
        if let Some(model) = need.model {
            if report.gpus.as_ref().is_none_or(|gpus| gpus.model != *model) {
                return Err(Filter::GpuModel);
            }
            match self.gpus.len() as u32 / need.gpus {
                0 => return Err(Filter::Gpus),
                count => most = most.min(count),
            }
        }
        let Some(vf) = need.vf else { return Ok(most) };
        let by_vfs = match first_rail {
            None => self.by_islands(report, need, vf),
            Some(first) => self.by_rails(report, need, vf, first),
        };
        by_vfs.map(|count| most.min(count))
    }

    fn scalar_capacity(&self, need: &Need<'_>) -> Result<u32, Filter> {
        let (has, wants) = (self.scalars, need.scalars);
        let mut most = u32::MAX;
        for (has, wants, filter) in [
            (u64::from(has.vcpus), u64::from(wants.vcpus), Filter::Vcpus),
            (has.ram_mib, wants.ram_mib, Filter::Ram),
            (has.disk_gib, wants.disk_gib, Filter::Disk),
        ] {
            match has.checked_div(wants) {
                Some(0) => return Err(filter),
                Some(count) => most = most.min(u32::try_from(count).unwrap_or(u32::MAX)),
                None => {}
            }
        }
        Ok(most)
    }

    fn by_islands(&self, report: &HostReport, need: &Need<'_>, vf: &VfNeed) -> Result<u32, Filter> {
        let (mut on_fabric, mut with_rdma, mut vfs, mut slots) = (false, false, 0, 0);
        for (at, pf) in report.pfs.iter().enumerate() {
            on_fabric |= pf.fabric == vf.fabric;
            if serves(pf, vf) {
                with_rdma = true;
                vfs += self.pfs[at].vfs.len() as u32;
                slots += self.slots(at, vf);
            }
        }
        match () {
            () if !on_fabric => return Err(Filter::Fabric),
            () if !with_rdma => return Err(Filter::Rdma),
            () if vfs < need.vfs => return Err(Filter::Vfs),
            () if slots < need.vfs => return Err(Filter::Rate),
            () if need.farthest == Distance::Sys => return Ok(slots / need.vfs),
            () => {}
        }
        let islands = self.islands(report, need, need.farthest);
        let units: u32 = islands.values().map(|island| island.units(need)).sum();
        match units / need.units {
            0 => Err(Filter::Distance),
            count => Ok(count),
        }
    }

    fn by_rails(
        &self,
        report: &HostReport,
        need: &Need<'_>,
        vf: &VfNeed,
        first: u16,
    ) -> Result<u32, Filter> {
        if !report.pfs.iter().any(|pf| pf.fabric == vf.fabric) {
            return Err(Filter::Fabric);
        }
        let mut most = u32::MAX;
        let pfs = rail_pfs(report, need, vf, first).ok_or(Filter::Rails)?;
        for at in &pfs {
            if !serves(&report.pfs[*at], vf) {
                return Err(Filter::Rdma);
            }
            if self.pfs[*at].vfs.is_empty() {
                return Err(Filter::Rails);
            }
            match self.slots(*at, vf) {
                0 => return Err(Filter::Rate),
                slots => most = most.min(slots),
            }
        }
        if need.farthest == Distance::Sys {
            return Ok(most);
        }
        // Each unit's rails say which island its GPUs must be in.
        let mut wanted: BTreeMap<Island, u32> = BTreeMap::new();
        for unit in pfs.chunks(need.unit_vfs as usize) {
            let island = common_island(report, unit, need.farthest).ok_or(Filter::Distance)?;
            *wanted.entry(island).or_default() += need.unit_gpus;
        }
        let islands = self.islands(report, need, need.farthest);
        for (island, wanted) in wanted {
            match islands.get(&island).map_or(0, |island| island.gpus) / wanted {
                0 => return Err(Filter::Distance),
                count => most = most.min(count),
            }
        }
        Ok(most)
    }

    /// What is free in each island of this size.
    fn islands(
        &self,
        report: &HostReport,
        need: &Need<'_>,
        size: Distance,
    ) -> BTreeMap<Island, FreeIsland> {
        let mut islands: BTreeMap<Island, FreeIsland> = BTreeMap::new();
        let gpus = report.gpus.as_ref().map_or(&[][..], |gpus| &gpus.list);
        if need.gpus > 0 {
            for island in self.gpus.iter().filter_map(|at| gpus[*at].position.island(size)) {
                islands.entry(island).or_default().gpus += 1;
            }
        }
        let Some(vf) = need.vf else { return islands };
        for (at, pf) in report.pfs.iter().enumerate().filter(|(_, pf)| serves(pf, vf)) {
            if let Some(island) = pf.position.island(size) {
                islands.entry(island).or_default().slots += self.slots(at, vf);
            }
        }
        islands
    }
}

/// What is free in an island.
#[derive(Clone, Copy, Default)]
struct FreeIsland {
    gpus: u32,
    slots: u32,
}

impl FreeIsland {
    fn units(self, need: &Need<'_>) -> u32 {
        let of = |free: u32, wanted| free.checked_div(wanted).unwrap_or(u32::MAX);
        of(self.gpus, need.unit_gpus).min(of(self.slots, need.unit_vfs))
    }
}

/// Whether a PF's VFs can be what is needed.
fn serves(pf: &Pf, need: &VfNeed) -> bool {
    pf.fabric == need.fabric && (need.rdma != RdmaNeed::Hardware || pf.path == DataPath::SriovRdma)
}

/// The PFs of a VM's rails, in their order; none unless each rail has one.
fn rail_pfs(report: &HostReport, need: &Need<'_>, vf: &VfNeed, first: u16) -> Option<Vec<usize>> {
    let on = |rail| {
        let here = |pf: &Pf| pf.fabric == vf.fabric && pf.rail == Some(rail);
        report.pfs.iter().position(here)
    };
    (first..first.saturating_add(need.vfs as u16)).map(on).collect()
}

fn common_island(report: &HostReport, pfs: &[usize], size: Distance) -> Option<Island> {
    let mut islands = pfs.iter().map(|at| report.pfs[*at].position.island(size));
    let first = islands.next()??;
    islands.all(|island| island == Some(first)).then_some(first)
}

/// What a unit was given: places in the report.
struct Unit {
    gpus: Vec<usize>,
    pfs: Vec<usize>,
}

impl Free {
    /// Take one VM's GPUs and VFs. None if the host has no room for it, which [`Self::capacity`]
    /// tells beforehand.
    pub(super) fn take(
        &mut self,
        report: &HostReport,
        need: &Need<'_>,
        first_rail: FirstRail,
        vm: u32,
    ) -> Option<VmPlace> {
        self.capacity(report, need, first_rail).ok()?;
        let mut place = VmPlace { vm, gpus: Vec::new(), vfs: Vec::new(), scalars: need.scalars };
        let mut used = Vec::new();
        for number in 0..need.units as usize {
            let mut sizes = DISTANCES.into_iter().filter(|size| *size <= need.farthest);
            let unit = match (first_rail, need.vf) {
                (Some(first), Some(vf)) => {
                    let rails = rail_pfs(report, need, vf, first)?;
                    let pfs = rails.chunks(need.unit_vfs as usize).nth(number)?;
                    sizes.find_map(|size| self.unit_beside(report, need, pfs, size))?
                }
                _ => sizes.find_map(|size| self.unit_within(report, need, size, &used))?,
            };
            used.extend(&unit.pfs);
            self.give(report, need, &unit, &mut place)?;
        }
        let (has, wants) = (&mut self.scalars, need.scalars);
        has.vcpus -= wants.vcpus;
        has.ram_mib -= wants.ram_mib;
        has.disk_gib -= wants.disk_gib;
        Some(place)
    }

    fn free_gpus_in(&self, report: &HostReport, island: Island, size: Distance) -> Vec<usize> {
        let gpus = report.gpus.as_ref().map_or(&[][..], |gpus| &gpus.list);
        let inside = |at: &usize| gpus[*at].position.island(size) == Some(island);
        self.gpus.iter().copied().filter(inside).collect()
    }

    /// A unit whose PFs are given by their rails.
    fn unit_beside(
        &self,
        report: &HostReport,
        need: &Need<'_>,
        pfs: &[usize],
        size: Distance,
    ) -> Option<Unit> {
        let mut gpus = Vec::new();
        if need.unit_gpus > 0 {
            gpus = self.free_gpus_in(report, common_island(report, pfs, size)?, size);
            if gpus.len() < need.unit_gpus as usize {
                return None;
            }
            gpus.truncate(need.unit_gpus as usize);
        }
        Some(Unit { gpus, pfs: pfs.to_vec() })
    }

    /// A unit from one island. With GPUs the island that has the least left is taken, so that whole
    /// ones stay whole; without, the one with the most, so that load is spread. `used` are the PFs
    /// that the VM has VFs of already.
    fn unit_within(
        &self,
        report: &HostReport,
        need: &Need<'_>,
        size: Distance,
        used: &[usize],
    ) -> Option<Unit> {
        // VFs alone may as well be of all PFs of a NUMA node.
        if need.gpus == 0 && size < Distance::Node {
            return None;
        }
        let islands = self.islands(report, need, size).into_iter();
        let roomy = islands.filter(|(_, free)| free.units(need) > 0);
        let island = if need.gpus > 0 {
            roomy.min_by_key(|(_, free)| (free.units(need), free.gpus, free.slots))
        } else {
            roomy.max_by_key(|(_, free)| free.slots)
        };
        let Some((island, _)) = island else {
            // Neither GPUs nor VFs are wanted: nothing is as good as anything.
            let nothing = need.gpus == 0 && need.vfs == 0;
            return nothing.then(|| Unit { gpus: Vec::new(), pfs: Vec::new() });
        };
        let mut gpus = self.free_gpus_in(report, island, size);
        gpus.truncate(need.unit_gpus as usize);
        let mut pfs = Vec::new();
        for _ in 0..need.unit_vfs {
            let inside = |pf: &Pf| pf.position.island(size) == Some(island);
            pfs.push(self.best_pf(report, need.vf?, inside, used, &pfs)?);
        }
        Some(Unit { gpus, pfs })
    }

    /// The PF to take one more VF of: one that the VM has none of, and of those the one with the most
    /// rate and VFs left. The VM has VFs of `used` already, and is about to take more of `taken`.
    fn best_pf(
        &self,
        report: &HostReport,
        vf: &VfNeed,
        inside: impl Fn(&Pf) -> bool,
        used: &[usize],
        taken: &[usize],
    ) -> Option<usize> {
        let pfs = report.pfs.iter().enumerate().filter(|(_, pf)| serves(pf, vf) && inside(pf));
        let rated = pfs.filter_map(|(at, _)| {
            let times = |list: &[usize]| list.iter().filter(|other| **other == at).count() as u32;
            let (before, now) = (times(used), times(taken));
            let left = self.slots(at, vf).checked_sub(now).filter(|left| *left > 0)?;
            let rate = self.pfs[at].rate.saturating_sub(now * vf.rate.0);
            Some((before + now, std::cmp::Reverse((rate, left)), at))
        });
        rated.min().map(|(.., at)| at)
    }

    /// Write a unit into the VM's place, and off what is free.
    fn give(
        &mut self,
        report: &HostReport,
        need: &Need<'_>,
        unit: &Unit,
        place: &mut VmPlace,
    ) -> Option<()> {
        let gpus = report.gpus.as_ref().map_or(&[][..], |gpus| &gpus.list);
        self.gpus.retain(|at| !unit.gpus.contains(at));
        place.gpus.extend(unit.gpus.iter().map(|at| gpus[*at].addr));
        for at in &unit.pfs {
            let (pf, rate) = (&report.pfs[*at], need.vf?.rate);
            let free = &mut self.pfs[*at];
            let vf = (!free.vfs.is_empty()).then(|| free.vfs.remove(0))?;
            free.rate = free.rate.checked_sub(rate.0)?;
            let distances = unit.gpus.iter().map(|gpu| pf.position.distance(gpus[*gpu].position));
            let distance = distances.max();
            place.vfs.push(VfPlace { pf: pf.name.clone(), vf, rate, distance });
        }
        Some(())
    }
}
