//! The simulated fleet: hosts with eight GPUs and eight PFs of two VFs, and what is asked of them. A
//! seed tells all that follows, so that every store and the peer get the same.

use std::collections::BTreeSet;

use lanekeeper_control::claims::Ask;
use lanekeeper_control::keys::{
    FabricName, GpuModel, HostName, KeyError, LeafName, OrgName, PfName, PodName, RegionName,
};
use lanekeeper_control::placement::{
    DataPath, Flavor, Gpu, GpuNeed, Gpus, HostReport, Inventory, PciPosition, Pf, Policy, Request,
    Scalars, VfNeed,
};
use lanekeeper_host::RdmaNeed;
use lanekeeper_model::{Mbps, VfIndex};
use lanekeeper_topology::{Distance, Strictness};

use crate::BenchError;

/// GPUs of a host.
pub const GPUS: usize = 8;
/// PFs of a host, one a rail.
pub const PFS: usize = 8;
/// VFs of a PF.
pub const VFS: usize = 2;
/// What a host has beside its devices.
pub const HOST: Scalars = Scalars { vcpus: 192, ram_mib: 2 << 20, disk_gib: 20_000 };

/// Hosts whose PFs hang off the same leaves.
const LEAF_GROUP: usize = 32;
/// Hosts of a pod.
const POD: usize = 512;
const MODEL: &str = "H100";
const FABRIC: &str = "east";

/// Names here are fixed words and numbers; the error is that of a word that is no name.
#[allow(clippy::needless_pass_by_value)] // `map_err` gives it away
fn named(error: KeyError) -> BenchError {
    BenchError::InProcess { what: "a name of the fleet", said: error.to_string() }
}

/// The region all hosts are in.
///
/// # Errors
/// None, for a word that is a name.
pub fn region() -> Result<RegionName, BenchError> {
    RegionName::new("north").map_err(named)
}

/// Name of the n-th host.
///
/// # Errors
/// None, for a word that is a name.
pub fn host(n: usize) -> Result<HostName, BenchError> {
    HostName::new(&format!("h{n}")).map_err(named)
}

/// What the n-th host reports: of GPU n and PF n pairs share a PCIe switch, four a NUMA node; 32 hosts
/// share their leaves, 512 a pod.
///
/// # Errors
/// None, for a report that is consistent.
pub fn inventory(n: usize) -> Result<Inventory, BenchError> {
    let position = |n: usize| PciPosition {
        numa: Some(n as u32 / 4),
        host_bridge: Some(n as u32 / 2),
        root_port: Some(n as u32 / 2),
        switch: Some(n as u32 / 2),
    };
    let pf = |rail: usize| {
        Ok(Pf {
            name: PfName::new(&format!("rail{rail}"))?,
            path: DataPath::SriovRdma,
            fabric: FabricName::new(FABRIC)?,
            rail: Some(rail as u16),
            leaf: Some(LeafName::new(&format!("leaf{}-{rail}", n / LEAF_GROUP))?),
            position: position(rail),
            rate: Mbps(400_000),
            vfs: VfIndex::first(VFS).collect::<BTreeSet<_>>(),
            cable: None,
        })
    };
    let inconsistent =
        |said: String| BenchError::InProcess { what: "the report of a simulated host", said };
    let gpu = |n: usize| {
        let addr = format!("0000:{:02x}:00.0", n + 1).parse();
        let addr = addr.map_err(|error: lanekeeper_model::ModelError| error.to_string())?;
        Ok(Gpu { addr, position: position(n) })
    };
    let list = (0..GPUS).map(gpu).collect::<Result<_, String>>().map_err(inconsistent)?;
    let report = HostReport {
        pod: Some(PodName::new(&format!("pod{}", n / POD)).map_err(named)?),
        scalars: HOST,
        gpus: Some(Gpus { model: GpuModel::new(MODEL).map_err(named)?, list }),
        pfs: (0..PFS).map(pf).collect::<Result<_, KeyError>>().map_err(named)?,
    };
    Inventory::new(report).map_err(|error| inconsistent(error.to_string()))
}

/// `SplitMix64` (Steele, Lea and Flood, 2014): a seed tells all that follows.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

fn request(
    vms: u32,
    gpus: u32,
    vfs: u32,
    rail_aligned: bool,
    policy: Policy,
) -> Result<Request, BenchError> {
    let vf = VfNeed {
        count: vfs,
        rate: Mbps(100_000),
        fabric: FabricName::new(FABRIC).map_err(named)?,
        rdma: RdmaNeed::Hardware,
        farthest: if gpus > 0 { Distance::Pxb } else { Distance::Sys },
        rail_aligned,
    };
    let gpus = match gpus {
        0 => None,
        count => Some(GpuNeed { model: GpuModel::new(MODEL).map_err(named)?, count }),
    };
    let scalars = Scalars { vcpus: 16, ram_mib: 128 << 10, disk_gib: 500 };
    Ok(Request { vms, spares: 0, flavor: Flavor { gpus, vfs: Some(vf), scalars }, policy })
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// A VM with one GPU and one VF: what OpenStack Placement can be asked for as well.
    Single,
    /// Mostly single VMs of several sizes, some without GPUs, and gangs of 4 to 16: in the mean 1.85
    /// VMs.
    Varied,
}

impl Mix {
    /// The next request.
    ///
    /// # Errors
    /// None, for words that are names.
    pub fn draw(self, dice: &mut Dice) -> Result<Request, BenchError> {
        let compact = Policy::Compact(Strictness::Preferred);
        let shape = match self {
            Self::Single => 0,
            Self::Varied => dice.below(100),
        };
        match shape {
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

    /// The next request, of one of 64 organizations.
    ///
    /// # Errors
    /// As [`Self::draw`].
    pub fn ask(self, dice: &mut Dice) -> Result<Ask, BenchError> {
        let organization = OrgName::new(&format!("o{}", dice.below(64))).map_err(named)?;
        Ok(Ask { organization, request: self.draw(dice)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_tells_the_same_requests_again() {
        let draw = |seed| {
            let mut dice = Dice(seed);
            (0..50).map(|_| Mix::Varied.ask(&mut dice).expect("one")).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn the_varied_mix_has_as_many_vms_in_the_mean_as_it_says() {
        let mut dice = Dice(1);
        let vms: u32 = (0..20_000).map(|_| Mix::Varied.draw(&mut dice).expect("one").vms).sum();
        let mean = f64::from(vms) / 20_000.0;
        assert!((1.75..1.95).contains(&mean), "{mean}");
    }
}
