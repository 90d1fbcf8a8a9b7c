//! A small cloud to call: one region with one host, two organizations, flavors and an image.

use std::sync::Arc;

use lanekeeper_control::cloud::Cloud;
use lanekeeper_control::keys::{FabricName, GpuModel, HostName, OrgName, PfName, RegionName};
use lanekeeper_control::placement::{DataPath, Gpu, Gpus, HostReport, PciPosition, Pf, Scalars};
use lanekeeper_control::protocol::Image;
use lanekeeper_control::resource::{
    ApiKeySpec, FlavorSpec, GpuSpec, ImageSpec, OrganizationSpec, RegionSpec, Role, VfSpec,
    VlanRange,
};
use lanekeeper_host::RdmaNeed;
use lanekeeper_model::{Mbps, VfIndex};
use lanekeeper_topology::Distance;

pub(crate) const REGION: &str = "NORTH-1";
pub(crate) const FLAVOR: &str = "n1-vf1";
pub(crate) const GPU_FLAVOR: &str = "n1-H100x2";
pub(crate) const IMAGE: &str = "Debian 12 (Lanekeeper)";

/// VFs of the host.
pub(crate) const VFS: usize = 8;

pub(crate) fn region() -> RegionName {
    RegionName::new(REGION).expect("a name")
}

pub(crate) fn host() -> HostName {
    HostName::new("h0").expect("a name")
}

pub(crate) fn organization(name: &str) -> OrgName {
    OrgName::new(name).expect("a name")
}

/// What the host has.
fn report() -> HostReport {
    roomy_report(VFS)
}

/// What a host with so many VFs has.
pub(crate) fn roomy_report(vfs: usize) -> HostReport {
    let gpu = |n: usize| Gpu {
        addr: format!("0000:4{n}:00.0").parse().expect("an address"),
        position: PciPosition::default(),
    };
    let model = GpuModel::new("H100").expect("a name");
    HostReport {
        pod: None,
        scalars: Scalars { vcpus: 128, ram_mib: 1 << 20, disk_gib: 1000 },
        gpus: Some(Gpus { model, list: (0..4).map(gpu).collect() }),
        pfs: vec![Pf {
            name: PfName::new("nic0").expect("a name"),
            path: DataPath::Software,
            fabric: FabricName::new("east").expect("a name"),
            rail: Some(0),
            leaf: None,
            position: PciPosition::default(),
            rate: Mbps(100_000),
            vfs: VfIndex::first(vfs).collect(),
            cable: None,
        }],
    }
}

fn flavor(name: &str, gpus: u32) -> FlavorSpec {
    let model = GpuModel::new("H100").expect("a name");
    FlavorSpec {
        name: name.to_owned(),
        gpus: (gpus > 0).then_some(GpuSpec { model, count: gpus }),
        vcpus: 1,
        ram_mib: 1536,
        disk_gib: 10,
        vfs: Some(VfSpec {
            count: gpus.max(1),
            rate_mbps: 1000,
            rdma: RdmaNeed::Software,
            farthest: Distance::Sys,
            rail_aligned: false,
        }),
        network_optimised: true,
        labels: [("tier".to_owned(), "lab".to_owned())].into(),
    }
}

/// Make it; the region's host reports, but nobody serves it.
pub(crate) async fn furnish(cloud: &Cloud) {
    for name in ["acme", "rival"] {
        let spec = OrganizationSpec { name: organization(name), description: String::new() };
        cloud.create_organization(spec, None).await.expect("an organization");
    }
    let spec = RegionSpec {
        name: region(),
        description: "a rack".to_owned(),
        country: "Norway".to_owned(),
        fabric: FabricName::new("east").expect("a name"),
        vlans: VlanRange { from: 100, to: 199 },
        addresses: "10.64.0.0/16".parse().expect("addresses"),
    };
    cloud.create_region(spec, None).await.expect("a region");
    for flavor in [flavor(FLAVOR, 0), flavor(GPU_FLAVOR, 2)] {
        cloud.create_flavor(flavor, None).await.expect("a flavor");
    }
    let spec = ImageSpec {
        name: IMAGE.to_owned(),
        os: "Debian".to_owned(),
        version: "12".to_owned(),
        description: String::new(),
        size: 52_428_800,
        source: Image::Builtin,
    };
    cloud.create_image(spec, None).await.expect("an image");
    cloud.take_inventory(&region(), &host(), report()).await.expect("an inventory");
    cloud.heartbeat(&region(), &host(), "fake").await.expect("a sign of life");
}

/// A new API key of an organization.
pub(crate) async fn key(cloud: &Arc<Cloud>, name: &str, role: Role) -> String {
    let spec = ApiKeySpec { name: "test".to_owned(), role, expires_at: None };
    let (_, secret) =
        cloud.create_key(&organization(name), spec, Role::Operator).await.expect("a key");
    secret.reveal().to_owned()
}
