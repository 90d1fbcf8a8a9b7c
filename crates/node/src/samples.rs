//! VMs for tests.

use lanekeeper_control::keys::PfName;
use lanekeeper_control::placement::{Scalars, VfPlace, VmPlace};
use lanekeeper_control::protocol::{DesiredPort, DesiredVm, Image, PortAddress, Power, VmId};
use lanekeeper_model::{MacAddr, Mbps, Mtu, VfIndex, VlanId, VlanTag};

use crate::lanes::Lane;

pub(crate) fn lane(vf: u32) -> Lane {
    Lane { pf: PfName::new("nic0").expect("a name"), vf: VfIndex::new(vf).expect("in range") }
}

/// A VM that shall run, with one port, on the VF of the same number.
pub(crate) fn vm(id: VmId) -> DesiredVm {
    let number = u8::try_from(id).expect("a small number");
    DesiredVm {
        vm: id,
        name: format!("vm{id}"),
        generation: 1,
        power: Power::On,
        resets: 0,
        place: VmPlace {
            vm: 0,
            gpus: Vec::new(),
            vfs: vec![place(id)],
            scalars: Scalars { vcpus: 1, ram_mib: 192, disk_gib: 0 },
        },
        image: Image::Builtin,
        ports: vec![port("rail0", number)],
        public_key: None,
        user_data: None,
        fenced: false,
    }
}

pub(crate) fn place(vf: u64) -> VfPlace {
    let Lane { pf, vf } = lane(u32::try_from(vf).expect("small"));
    VfPlace { pf, vf, rate: Mbps(0), distance: None }
}

pub(crate) fn port(name: &str, number: u8) -> DesiredPort {
    let tag = VlanTag { id: VlanId::new(100).expect("in range"), ..VlanTag::default() };
    DesiredPort {
        port: number.into(),
        name: name.to_owned(),
        mac: MacAddr([2, 0, 0, 0, 1, number]),
        vlan: tag,
        addresses: vec![PortAddress { address: [10, 9, 0, number].into(), prefix: 24 }],
        mtu: Mtu::new(4500).expect("in range"),
        max_rate: Mbps(0),
        min_rate: Mbps(0),
        routes: Vec::new(),
    }
}
