//! Placement by trying everything: how many VMs one host takes, found by giving each VM every choice
//! of GPUs and PFs that the definitions allow.

use std::collections::HashMap;

use lanekeeper_control::placement::{
    DataPath, Flavor, HostClaims, HostReport, PciPosition, Pf, VfNeed,
};
use lanekeeper_host::RdmaNeed;

/// Free GPUs, free VFs and rate of each PF, and scalars.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Left {
    gpus: Vec<usize>,
    pfs: Vec<(u32, u32)>,
    scalars: [u64; 3],
}

fn left(report: &HostReport, claims: &HostClaims) -> Left {
    let places: Vec<_> = claims.placements.values().flatten().collect();
    let gpus = report.gpus.as_ref().map_or(0, |gpus| gpus.list.len());
    let taken = |n: &usize| {
        let addr = report.gpus.as_ref().expect("there").list[*n].addr;
        places.iter().any(|place| place.gpus.contains(&addr))
    };
    let of = |pf: &Pf| {
        let used: Vec<_> =
            places.iter().flat_map(|place| &place.vfs).filter(|vf| vf.pf == pf.name).collect();
        let rate: u32 = used.iter().map(|vf| vf.rate.0).sum();
        ((pf.vfs.len() - used.len()) as u32, pf.rate.0 - rate)
    };
    let sum = |number: &dyn Fn(&lanekeeper_control::placement::Scalars) -> u64| {
        number(&report.scalars) - places.iter().map(|place| number(&place.scalars)).sum::<u64>()
    };
    Left {
        gpus: (0..gpus).filter(|n| !taken(n)).collect(),
        pfs: report.pfs.iter().map(of).collect(),
        scalars: [sum(&|s| s.vcpus.into()), sum(&|s| s.ram_mib), sum(&|s| s.disk_gib)],
    }
}

pub(crate) fn serves(pf: &Pf, need: &VfNeed) -> bool {
    pf.fabric == need.fabric && (need.rdma != RdmaNeed::Hardware || pf.path == DataPath::SriovRdma)
}

/// How the module's text divides a VM: GPUs and VFs of each of its units.
pub(crate) fn units(
    gpus: usize,
    vfs: usize,
) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let count = match (gpus, vfs) {
        (0, _) | (_, 0) => return Vec::new(),
        (gpus, vfs) if vfs % gpus == 0 => gpus,
        (gpus, vfs) if gpus % vfs == 0 => vfs,
        _ => 1,
    };
    let (g, v) = (gpus / count, vfs / count);
    (0..count).map(|n| (n * g..(n + 1) * g, n * v..(n + 1) * v)).collect()
}

/// All ordered choices of `count` of these, each as often as `times` says.
fn choices(times: &[u32], count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (n, left) in times.iter().enumerate().filter(|(_, left)| **left > 0) {
        let mut others = times.to_vec();
        others[n] = left - 1;
        for rest in choices(&others, count - 1) {
            all.push([vec![n], rest].concat());
        }
    }
    all
}

/// How many VMs the host takes.
pub(crate) fn most(
    report: &HostReport,
    claims: &HostClaims,
    flavor: &Flavor,
    first_rail: Option<u16>,
) -> u64 {
    if claims.closed.is_some() {
        return 0;
    }
    if let (Some(need), gpus) = (&flavor.gpus, &report.gpus)
        && gpus.as_ref().is_none_or(|gpus| gpus.model != need.model)
    {
        return 0;
    }
    most_of(report, left(report, claims), flavor, first_rail, &mut HashMap::new())
}

fn most_of(
    report: &HostReport,
    left: Left,
    flavor: &Flavor,
    first_rail: Option<u16>,
    known: &mut HashMap<Left, u64>,
) -> u64 {
    if let Some(most) = known.get(&left) {
        return *most;
    }
    let wants = [flavor.scalars.vcpus.into(), flavor.scalars.ram_mib, flavor.scalars.disk_gib];
    let mut best = 0;
    if left.scalars.iter().zip(wants).all(|(has, wants)| *has >= wants) {
        for (gpus, pfs) in one_vm(report, &left, flavor, first_rail) {
            let mut next = left.clone();
            next.gpus.retain(|gpu| !gpus.contains(gpu));
            for pf in pfs {
                next.pfs[pf].0 -= 1;
                next.pfs[pf].1 -= flavor.vfs.as_ref().map_or(0, |need| need.rate.0);
            }
            for (has, wants) in next.scalars.iter_mut().zip(wants) {
                *has -= wants;
            }
            best = best.max(1 + most_of(report, next, flavor, first_rail, known));
        }
    }
    known.insert(left, best);
    best
}

/// Every way to give one VM its GPUs and PFs.
fn one_vm(
    report: &HostReport,
    left: &Left,
    flavor: &Flavor,
    first_rail: Option<u16>,
) -> Vec<(Vec<usize>, Vec<usize>)> {
    let gpus = flavor.gpus.as_ref().map_or(0, |need| need.count as usize);
    let positions: Vec<PciPosition> =
        report.gpus.iter().flat_map(|gpus| &gpus.list).map(|gpu| gpu.position).collect();
    let mut free = vec![0; positions.len()];
    left.gpus.iter().for_each(|gpu| free[*gpu] = 1);
    let of_gpus = choices(&free, gpus);
    let Some(need) = &flavor.vfs else {
        return of_gpus.into_iter().map(|gpus| (gpus, Vec::new())).collect();
    };
    let slots = |(pf, (vfs, rate)): (&Pf, &(u32, u32))| {
        let by_rate = rate.checked_div(need.rate.0).map_or(*vfs, |most| most.min(*vfs));
        if serves(pf, need) { by_rate } else { 0 }
    };
    let slots: Vec<u32> = report.pfs.iter().zip(&left.pfs).map(slots).collect();
    let on_rails = |pfs: &Vec<usize>| match first_rail {
        None => true,
        Some(first) => {
            pfs.iter().enumerate().all(|(n, pf)| report.pfs[*pf].rail == Some(first + n as u16))
        }
    };
    let of_pfs: Vec<Vec<usize>> =
        choices(&slots, need.count as usize).into_iter().filter(on_rails).collect();
    let mut all = Vec::new();
    for gpus in &of_gpus {
        for pfs in &of_pfs {
            let near = |(g, v): (std::ops::Range<usize>, std::ops::Range<usize>)| {
                let pairs = gpus[g].iter().flat_map(|g| pfs[v.clone()].iter().map(move |v| (g, v)));
                pairs
                    .into_iter()
                    .all(|(g, v)| positions[*g].distance(report.pfs[*v].position) <= need.farthest)
            };
            if units(gpus.len(), pfs.len()).into_iter().all(near) {
                all.push((gpus.clone(), pfs.clone()));
            }
        }
    }
    all
}
