//! A VM as its host is told of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use lanekeeper_model::{Mbps, Mtu, Pcp, VlanId, VlanTag};

use crate::cloud::{Cloud, CloudError};
use crate::protocol::{DesiredPort, DesiredVm, PortAddress, Power, Route};
use crate::resource::{Located, Network, Port, Subnet, Vm};

fn wrong(field: &'static str, value: &impl ToString, why: &impl ToString) -> CloudError {
    CloudError::Invalid { field, value: value.to_string(), why: why.to_string() }
}

/// What a VM's host is told.
pub(super) async fn compose(
    cloud: &Cloud,
    vm: &Vm,
    located: &Located,
    power: Power,
    fenced: bool,
) -> Result<DesiredVm, CloudError> {
    let mut ports = Vec::new();
    // Each is read once, however many ports are on it.
    let mut networks = BTreeMap::new();
    for (port, vf) in cloud.ports_of(vm).await?.iter().zip(&located.place.vfs) {
        let id = port.value.network;
        if let Entry::Vacant(unread) = networks.entry(id) {
            let network = cloud.get::<Network>(&vm.organization, id).await?.value;
            let subnets = cloud.subnets_of(&network).await?;
            unread.insert((network, subnets));
        }
        let (network, subnets) = &networks[&id];
        let subnets: Vec<&Subnet> = subnets.iter().map(|subnet| &subnet.value).collect();
        ports.push(compose_port(&port.value, network, &subnets, vf.rate)?);
    }
    Ok(DesiredVm {
        vm: vm.id,
        name: vm.name.clone(),
        generation: vm.generation,
        power,
        resets: vm.resets,
        place: located.place.clone(),
        image: vm.image.source.clone(),
        ports,
        public_key: vm.public_key.clone(),
        user_data: vm.user_data.clone(),
        fenced,
    })
}

fn compose_port(
    port: &Port,
    network: &Network,
    subnets: &[&Subnet],
    rate: Mbps,
) -> Result<DesiredPort, CloudError> {
    let vlan = network.vlan.unwrap_or(0);
    let id = VlanId::new(vlan.into()).map_err(|error| wrong("vlan", &vlan, &error))?;
    let vlan = VlanTag { id, pcp: Pcp::default(), ..VlanTag::default() };
    let mtu = Mtu::new(network.mtu.into()).map_err(|error| wrong("mtu", &network.mtu, &error))?;
    Ok(DesiredPort {
        port: port.id,
        name: port.name.clone(),
        mac: port.mac,
        vlan,
        addresses: vec![PortAddress { address: port.address.into(), prefix: port.prefix }],
        mtu,
        max_rate: rate,
        min_rate: rate,
        routes: routes(port, subnets),
    })
}

/// The other subnets of the network, by the router of the port's own.
fn routes(port: &Port, subnets: &[&Subnet]) -> Vec<Route> {
    let own = subnets.iter().find(|subnet| subnet.id == port.subnet);
    let Some(via) = own.and_then(|subnet| subnet.gateway) else { return Vec::new() };
    let others = subnets.iter().filter(|subnet| subnet.id != port.subnet);
    let route = |subnet: &&Subnet| Route {
        to: PortAddress { address: subnet.cidr.network().into(), prefix: subnet.cidr.prefix_len() },
        via: via.into(),
    };
    others.map(route).collect()
}
