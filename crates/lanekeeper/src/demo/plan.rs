//! What the demo sets up: which hosts, VMs, tenants, addresses and NICs. Data only.

use std::net::Ipv4Addr;
use std::path::Path;

use lanekeeper_model::{
    MacAddr, ModelError, Mtu, PfId, SoftNicName, VfChange, VfIndex, VlanId, VlanTag,
};
use lanekeeper_softnic::Config;
use lanekeeper_softnic::uplink::{InterfaceName, UplinkConfig};

use super::DemoError;

/// Packets of this size cross every path, in bytes.
pub(super) const MTU: u16 = 9000;
/// The cable between the hosts also carries the Ethernet header's VLAN tag.
pub(super) const CABLE_MTU: u32 = 9216;
/// Each host's end of the cable between the software NICs.
pub(super) const UPLINK: &str = "uplink0";
/// Each host's end of the cable between the bridges.
pub(super) const BRIDGE_CABLE: &str = "cable0";
/// The bridge of the traditional path.
pub(super) const BRIDGE: &str = "br0";
/// Interface on the path between VFs, named in reports.
pub(super) const HOSTS: [&str; 2] = ["host1", "host2"];

/// Who owns a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tenant {
    A,
    B,
}

impl Tenant {
    /// The VLAN of the tenant's RoCE network.
    pub(super) fn vlan(self) -> Result<VlanId, ModelError> {
        VlanId::new(match self {
            Self::A => 100,
            Self::B => 200,
        })
    }
}

/// A VM of the demo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PlannedVm {
    pub(super) name: &'static str,
    pub(super) tenant: Tenant,
    /// Which of [`HOSTS`].
    pub(super) host: usize,
    /// Which VF of that host's NIC.
    vf: u32,
    /// Last byte of its addresses.
    number: u8,
}

/// Two VMs of A on host 1, one of A on host 2, and one of B beside the first two. B's VM has an
/// address in A's subnet, so that nothing but the VLAN keeps it out.
pub(super) const VMS: [PlannedVm; 4] = [
    PlannedVm { name: "a1", tenant: Tenant::A, host: 0, vf: 0, number: 1 },
    PlannedVm { name: "a2", tenant: Tenant::A, host: 0, vf: 1, number: 2 },
    PlannedVm { name: "a3", tenant: Tenant::A, host: 1, vf: 0, number: 3 },
    PlannedVm { name: "b1", tenant: Tenant::B, host: 0, vf: 2, number: 9 },
];

/// Every address is a /24.
pub(super) const PREFIX: u8 = 24;

impl PlannedVm {
    pub(super) fn vf(&self) -> Result<VfIndex, ModelError> {
        VfIndex::new(self.vf)
    }

    /// Address of its VF.
    pub(super) fn lane_mac(&self) -> MacAddr {
        MacAddr([0x02, 0x1a, 0, 0, 1, self.number])
    }

    /// Address of its traditional NIC.
    pub(super) fn bridged_mac(&self) -> MacAddr {
        MacAddr([0x02, 0x1a, 0, 0, 2, self.number])
    }

    pub(super) fn lane_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 10, 0, self.number)
    }

    pub(super) fn bridged_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 20, 0, self.number)
    }

    /// The tap behind its traditional NIC.
    pub(super) fn tap(&self) -> String {
        format!("tap-{}", self.name)
    }
}

/// Name of a host's software NIC.
pub(super) fn nic_name(host: usize) -> Result<SoftNicName, ModelError> {
    format!("nic{}", host + 1).parse()
}

/// The PF that a host's software NIC is known by.
pub(super) fn pf(host: usize) -> Result<PfId, ModelError> {
    Ok(PfId::Soft(nic_name(host)?))
}

/// Configuration of a host's software NIC with its folder under `root`.
pub(super) fn nic_config(host: usize, root: &Path) -> Result<Config, DemoError> {
    let here: Vec<&PlannedVm> = VMS.iter().filter(|vm| vm.host == host).collect();
    let mut config = bare_nic_config(host, here.len(), root)?;
    for vm in here {
        let change = VfChange {
            mac: Some(vm.lane_mac()),
            vlan: Some(VlanTag { id: vm.tenant.vlan()?, ..VlanTag::default() }.into()),
            mtu: Some(Mtu::new(MTU.into())?),
            ..VfChange::default()
        };
        config.vf.insert(vm.vf()?.to_string(), change);
    }
    config.validate().map_err(|error| DemoError::plan(&error))?;
    Ok(config)
}

/// Configuration of a host's software NIC whose VFs nobody has yet.
pub(super) fn bare_nic_config(host: usize, vfs: usize, root: &Path) -> Result<Config, DemoError> {
    let name = nic_name(host)?;
    let mut config = Config::new(name.clone(), vfs);
    let interface = InterfaceName::new(UPLINK).map_err(|error| DemoError::plan(&error))?;
    config.uplink = UplinkConfig::Packet { interface };
    config.run_dir = Some(root.join(name.as_str()));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_nic_of_the_plan_is_valid_and_checks_every_vf() {
        for host in 0..HOSTS.len() {
            let config = nic_config(host, Path::new("/run/demo")).expect("valid");
            for settings in config.initial_settings().expect("valid") {
                assert!(settings.spoofchk && settings.vlan.id.is_some());
                assert_eq!(settings.mtu.get(), MTU);
            }
        }
    }

    #[test]
    fn no_two_vms_share_an_address() {
        let macs: BTreeSet<_> =
            VMS.iter().flat_map(|vm| [vm.lane_mac(), vm.bridged_mac()]).collect();
        let addresses: BTreeSet<_> =
            VMS.iter().flat_map(|vm| [vm.lane_address(), vm.bridged_address()]).collect();
        assert_eq!((macs.len(), addresses.len()), (2 * VMS.len(), 2 * VMS.len()));
    }

    #[test]
    fn the_other_tenant_is_kept_out_by_its_vlan_alone() {
        let subnet = |vm: &PlannedVm| vm.lane_address().octets()[..3].to_vec();
        assert!(VMS.iter().all(|vm| subnet(vm) == subnet(&VMS[0])));
        assert_ne!(Tenant::A.vlan(), Tenant::B.vlan());
    }

    #[test]
    fn the_cable_carries_a_full_packet_with_its_tag() {
        assert!(CABLE_MTU >= u32::from(MTU) + 4);
    }
}
