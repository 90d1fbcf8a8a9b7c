//! Placement: named scenarios, and random worlds in which each answer is judged by the definitions and
//! each refusal by trying everything.

mod brute;
mod scenarios;
mod worlds;

use std::collections::BTreeSet;

use lanekeeper_control::keys::{
    FabricName, GpuModel, HostName, LeafName, PfName, PlacementId, PodName,
};
use lanekeeper_control::placement::{
    DataPath, Flavor, Gpu, GpuNeed, Gpus, HostReport, PciPosition, Pf, Scalars, VfNeed,
};
use lanekeeper_host::RdmaNeed;
use lanekeeper_model::{Mbps, PciAddr, VfIndex};
use lanekeeper_topology::Distance;

fn host(n: usize) -> HostName {
    HostName::new(&format!("h{n}")).expect("a name")
}

fn id(n: usize) -> PlacementId {
    PlacementId::new(&format!("p{n}")).expect("a name")
}

fn fabric(name: &str) -> FabricName {
    FabricName::new(name).expect("a name")
}

fn model(name: &str) -> GpuModel {
    GpuModel::new(name).expect("a name")
}

fn gpu_addr(n: usize) -> PciAddr {
    format!("0000:{:02x}:00.0", n + 1).parse().expect("an address")
}

/// Where the n-th of eight is on a host of two sockets, with a switch for each two.
fn of_eight(n: usize) -> PciPosition {
    let (numa, bridge, switch) = ((n / 4) as u32, (n / 2) as u32, (n / 2) as u32);
    PciPosition {
        numa: Some(numa),
        host_bridge: Some(bridge),
        root_port: Some(bridge),
        switch: Some(switch),
    }
}

/// A host as they stand in a rail-optimised pod: eight GPUs and eight PFs of 400 Gb/s with two VFs.
fn big_host(pod: &str, leaf: &str) -> HostReport {
    let pfs = (0..8).map(|n| Pf {
        name: PfName::new(&format!("rail{n}")).expect("a name"),
        path: DataPath::SriovRdma,
        fabric: fabric("east"),
        rail: Some(n as u16),
        leaf: Some(LeafName::new(&format!("{leaf}-{n}")).expect("a name")),
        position: of_eight(n),
        rate: Mbps(400_000),
        vfs: VfIndex::first(2).collect::<BTreeSet<_>>(),
        cable: None,
    });
    HostReport {
        pod: PodName::new(pod).ok(),
        scalars: Scalars { vcpus: 192, ram_mib: 1 << 20, disk_gib: 10_000 },
        gpus: Some(Gpus {
            model: model("H100"),
            list: (0..8).map(|n| Gpu { addr: gpu_addr(n), position: of_eight(n) }).collect(),
        }),
        pfs: pfs.collect(),
    }
}

fn flavor(gpus: u32, vfs: u32) -> Flavor {
    Flavor {
        gpus: (gpus > 0).then(|| GpuNeed { model: model("H100"), count: gpus }),
        vfs: (vfs > 0).then(|| VfNeed {
            count: vfs,
            rate: Mbps(200_000),
            fabric: fabric("east"),
            rdma: RdmaNeed::Hardware,
            farthest: Distance::Sys,
            rail_aligned: false,
        }),
        scalars: Scalars { vcpus: 16, ram_mib: 64 << 10, disk_gib: 100 },
    }
}
