//! Networks, subnets and addresses: each network gets a VLAN of its own from its region's range (an
//! InfiniBand network a partition), each subnet its addresses, each port an address and a MAC that stay
//! its own as long as it is there.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use lanekeeper_model::{Guid, MacAddr};

use super::{Cloud, CloudError, Draft, Once, Stored};
use crate::keys::{self, OrgName};
use crate::resource::{
    Environment, Network, NetworkSpec, Port, Profile, Region, RoceVersion, Subnet, SubnetSpec, Time,
};
use crate::store::{Entry, Scope, StoreError};

/// MTU of a network that says none: a RoCE packet of 4096 bytes with its headers (BTH, RETH, ICRC, UDP,
/// IPv6) is below it.
pub(super) const DEFAULT_MTU: u16 = 4200;

/// Bits of a subnet that is cut from its region's addresses.
const BLOCK_PREFIX: u8 = 24;

/// A subnet's shortest and longest prefix.
const PREFIXES: std::ops::RangeInclusive<u8> = 16..=29;

/// Numbers that are tried before all that are taken are read.
const PROBES: u32 = 4;

/// Partitions of InfiniBand: 15 bits, without 0 and the default one (InfiniBand Architecture, 10.9.1).
const PARTITIONS: u32 = 0x7ffe;

/// How often free numbers were chosen and another was quicker.
#[derive(Default)]
pub(super) struct Attempts(u32);

impl Attempts {
    /// Whether it is done; false if a number was taken meanwhile, and others are to be chosen.
    pub(super) fn settles<T>(&mut self, done: Result<T, CloudError>) -> Result<bool, CloudError> {
        const MOST: u32 = 32;
        let numbers = ["vlans", "partitions", "blocks", "addresses"];
        match done {
            Ok(_) => Ok(true),
            Err(CloudError::Taken { what, .. }) if numbers.contains(&what) && self.0 < MOST => {
                self.0 += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Names that people give: what can be shown on one line.
pub(super) fn check_name(field: &'static str, name: &str) -> Result<(), CloudError> {
    let why = "use 1 to 128 characters, none of them a control character";
    let fits = (1..=128).contains(&name.chars().count())
        && !name.chars().any(char::is_control)
        && name.trim() == name;
    if fits { Ok(()) } else { Err(CloudError::invalid(field, name, why)) }
}

impl Cloud {
    /// A number below `count` that nobody has, looked for from `seed` on. Another may take it before
    /// it is written; then that transaction fails with `Taken`.
    async fn free_number(
        &self,
        what: &'static str,
        scope: &str,
        count: u32,
        seed: u64,
        barred: &BTreeSet<u32>,
    ) -> Result<Option<u32>, CloudError> {
        if count == 0 {
            return Ok(None);
        }
        let start = (seed % u64::from(count)) as u32;
        let nth = |step: u32| (start + step) % count;
        for number in (0..count.min(PROBES)).map(nth) {
            let key = keys::number(what, scope, number)?;
            if !barred.contains(&number) && self.store.get(&key).await?.is_none() {
                return Ok(Some(number));
            }
        }
        let (_, taken) = self.store.all(Scope::Under(keys::numbers(what, scope)?)).await?;
        let number = |entry: &Entry| entry.key.last().parse::<u32>().ok();
        let taken: BTreeSet<u32> = taken.iter().filter_map(number).collect();
        Ok((0..count).map(nth).find(|number| !taken.contains(number) && !barred.contains(number)))
    }

    /// A new network, with its subnets.
    ///
    /// # Errors
    /// [`CloudError`]: `PathCannot` for RoCE v1 over a router, `Exhausted` without a free VLAN.
    pub async fn create_network(
        &self,
        organization: &OrgName,
        spec: NetworkSpec,
        once: Option<&Once>,
    ) -> Result<Network, CloudError> {
        let environment = self.environment(organization, spec.environment).await?;
        let region = self.named_global::<Region>(environment.value.region.as_str()).await?;
        let mut attempts = Attempts::default();
        loop {
            let mut draft = Draft::new();
            draft.depend(&environment);
            let made =
                self.draft_network(&mut draft, organization, &region.value, spec.clone()).await?;
            draft.answer_once(once, 201, &made)?;
            if attempts.settles(self.commit(draft).await)? {
                return Ok(made);
            }
        }
    }

    /// An environment that things can be made in.
    pub(super) async fn environment(
        &self,
        organization: &OrgName,
        id: u64,
    ) -> Result<Stored<Environment>, CloudError> {
        let environment = self.get::<Environment>(organization, id).await?;
        if environment.value.deleting {
            return Err(CloudError::none("environment", &id));
        }
        Ok(environment)
    }

    pub(super) async fn draft_network(
        &self,
        draft: &mut Draft,
        organization: &OrgName,
        region: &Region,
        spec: NetworkSpec,
    ) -> Result<Network, CloudError> {
        let NetworkSpec { name, environment, profile, roce, mtu, rails, routed, cidr } = spec;
        check_name("name", &name)?;
        if !(1280..=9000).contains(&mtu) {
            return Err(CloudError::invalid("mtu", mtu.to_string(), "use 1280 to 9000"));
        }
        if !(1..=16).contains(&rails) {
            return Err(CloudError::invalid("rails", rails.to_string(), "use 1 to 16"));
        }
        if profile == Profile::Roce && roce == RoceVersion::V1 && routed {
            return Err(roce_v1_is_not_routed());
        }
        let id = self.new_id().await?;
        let (mut vlan, mut partition) = (None, None);
        let scope = region.name.as_str();
        let none = |what, instead| CloudError::Exhausted {
            what,
            within: format!("region {}", region.name),
            instead,
        };
        if profile == Profile::Infiniband {
            let free =
                self.free_number("partitions", scope, PARTITIONS, id, &BTreeSet::new()).await?;
            let free = free.ok_or_else(|| none("partition", "delete a network"))?;
            draft.take_number("partitions", scope, free, id)?;
            partition = Some(free as u16 + 1);
        } else {
            let range = region.vlans;
            let count = u32::from(range.to - range.from) + 1;
            let free = self.free_number("vlans", scope, count, id, &BTreeSet::new()).await?;
            let instead = "delete a network, or ask the operator for a wider range of VLANs";
            let free = free.ok_or_else(|| none("VLAN", instead))?;
            draft.take_number("vlans", scope, free, id)?;
            vlan = Some(range.from + free as u16);
        }
        let network = Network {
            id,
            name,
            organization: organization.clone(),
            environment,
            region: region.name.clone(),
            fabric: region.fabric.clone(),
            profile,
            roce,
            vlan,
            partition,
            mtu,
            routed,
            deleting: false,
            created_at: Time::now(),
        };
        draft.create(&network)?;
        draft.take_name::<Network>(organization.as_str(), &network.name, id);
        let mut barred = BTreeSet::new();
        for rail in 0..rails {
            let cidr = cidr.map(|first| following(first, rail)).transpose()?;
            let rail = (rails > 1).then_some(rail);
            let spec = SubnetSpec { network: id, cidr, gateway: None, rail };
            self.draft_subnet(draft, region, &network, spec, &mut barred).await?;
        }
        Ok(network)
    }

    async fn draft_subnet(
        &self,
        draft: &mut Draft,
        region: &Region,
        network: &Network,
        spec: SubnetSpec,
        barred: &mut BTreeSet<u32>,
    ) -> Result<Subnet, CloudError> {
        let id = self.new_id().await?;
        let cidr = if let Some(cidr) = spec.cidr {
            usable(cidr)?
        } else {
            let scope = region.name.as_str();
            let bits = u32::from(BLOCK_PREFIX.saturating_sub(region.addresses.prefix_len()));
            let count = 1_u32.checked_shl(bits).unwrap_or(u32::MAX);
            let free = self.free_number("blocks", scope, count, id, barred).await?;
            let free = free.ok_or_else(|| CloudError::Exhausted {
                what: "block of addresses",
                within: format!("region {} ({})", region.name, region.addresses),
                instead: "name a cidr of your own, or delete a subnet",
            })?;
            barred.insert(free);
            draft.take_number("blocks", scope, free, id)?;
            block(region.addresses, free)
        };
        let first = Ipv4Addr::from_bits(cidr.network().to_bits() + 1);
        let gateway = spec.gateway.or(network.routed.then_some(first));
        if let Some(gateway) = gateway
            && index_in(cidr, gateway).is_none()
        {
            let why = format!("it is no address of a station in {cidr}");
            return Err(CloudError::invalid("gateway", gateway.to_string(), why));
        }
        let subnet = Subnet {
            id,
            organization: network.organization.clone(),
            network: network.id,
            cidr,
            gateway,
            rail: spec.rail,
            created_at: Time::now(),
        };
        draft.create(&subnet)?;
        Ok(subnet)
    }

    /// One more subnet of a network.
    ///
    /// # Errors
    /// [`CloudError`]: `PathCannot` on a RoCE v1 network that would need a router then.
    pub async fn create_subnet(
        &self,
        organization: &OrgName,
        spec: SubnetSpec,
        once: Option<&Once>,
    ) -> Result<Subnet, CloudError> {
        let network = self.network(organization, spec.network).await?;
        let region = self.named_global::<Region>(network.value.region.as_str()).await?;
        if network.value.profile == Profile::Roce
            && network.value.roce == RoceVersion::V1
            && spec.gateway.is_some()
        {
            return Err(roce_v1_is_not_routed());
        }
        let others = self.subnets_of(&network.value).await?;
        if let Some(cidr) = spec.cidr {
            let overlaps = |other: &&Stored<Subnet>| overlap(other.value.cidr, cidr);
            if let Some(other) = others.iter().find(overlaps) {
                let why =
                    format!("it overlaps with subnet {} ({})", other.value.id, other.value.cidr);
                return Err(CloudError::invalid("cidr", cidr.to_string(), why));
            }
        }
        let mut attempts = Attempts::default();
        loop {
            let mut draft = Draft::new();
            // Written anew as it is, so that of two subnets made at once each sees the other.
            draft.change(&network, &network.value)?;
            let (spec, mut barred) = (spec.clone(), BTreeSet::new());
            let (region, network) = (&region.value, &network.value);
            let subnet = self.draft_subnet(&mut draft, region, network, spec, &mut barred).await?;
            draft.answer_once(once, 201, &subnet)?;
            if attempts.settles(self.commit(draft).await)? {
                return Ok(subnet);
            }
        }
    }

    /// A network that ports can be put on.
    pub(super) async fn network(
        &self,
        organization: &OrgName,
        id: u64,
    ) -> Result<Stored<Network>, CloudError> {
        let network = self.get::<Network>(organization, id).await?;
        if network.value.deleting {
            return Err(CloudError::none("network", &id));
        }
        Ok(network)
    }

    /// The subnets of a network, by rail.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn subnets_of(&self, network: &Network) -> Result<Vec<Stored<Subnet>>, CloudError> {
        let mut subnets = self.all::<Subnet>(&network.organization).await?;
        subnets.retain(|subnet| subnet.value.network == network.id);
        subnets.sort_by_key(|subnet| (subnet.value.rail, subnet.value.id));
        Ok(subnets)
    }

    /// Delete a subnet that has no ports.
    ///
    /// # Errors
    /// [`CloudError::InUse`].
    pub async fn delete_subnet(&self, was: &Stored<Subnet>) -> Result<(), CloudError> {
        let subnet = &was.value;
        let network = self.get::<Network>(&subnet.organization, subnet.network).await?;
        let mut draft = Draft::new();
        // Whoever puts a port on the subnet depends on the network as it was.
        draft.change(&network, &network.value)?;
        self.check_unused(subnet, &subnet.organization).await?;
        self.draft_delete_subnet(&mut draft, was, &network.value).await?;
        self.commit(draft).await?;
        Ok(())
    }

    async fn check_unused(&self, subnet: &Subnet, of: &OrgName) -> Result<(), CloudError> {
        let ports = self.all::<Port>(of).await?;
        match ports.iter().find(|port| port.value.subnet == subnet.id) {
            None => Ok(()),
            Some(port) => Err(CloudError::InUse {
                noun: "subnet",
                which: format!("{} ({})", subnet.id, subnet.cidr),
                by: format!("port {} of VM {}", port.value.id, port.value.vm),
                instead: "delete that VM first",
            }),
        }
    }

    async fn draft_delete_subnet(
        &self,
        draft: &mut Draft,
        was: &Stored<Subnet>,
        network: &Network,
    ) -> Result<(), CloudError> {
        draft.delete(was);
        let region = self.named_global::<Region>(network.region.as_str()).await?;
        let Some(block) = block_number(region.value.addresses, was.value.cidr) else {
            return Ok(());
        };
        // A tenant's own choice of addresses may look like a block, which is another's then.
        let key = keys::number("blocks", network.region.as_str(), block)?;
        let owner = self.store.get(&key).await?;
        if owner.is_some_and(|entry| entry.value == was.value.id.to_string().as_bytes()) {
            draft.drop_number("blocks", network.region.as_str(), block)?;
        }
        Ok(())
    }

    /// Delete a network that has no ports, with its subnets.
    ///
    /// # Errors
    /// [`CloudError::InUse`].
    pub async fn delete_network(&self, was: Stored<Network>) -> Result<(), CloudError> {
        let organization = was.value.organization.clone();
        let subnets = self.subnets_of(&was.value).await?;
        for subnet in &subnets {
            self.check_unused(&subnet.value, &organization).await?;
        }
        // From here on no port is put on it: who does depends on how the network was read.
        let marked = Network { deleting: true, ..was.value.clone() };
        let mut draft = Draft::new();
        draft.change(&was, &marked)?;
        self.commit(draft).await?;
        let now = self.get::<Network>(&organization, was.value.id).await?;
        for subnet in &subnets {
            if let Err(used) = self.check_unused(&subnet.value, &organization).await {
                let mut draft = Draft::new();
                draft.change(&now, &was.value)?;
                self.commit(draft).await?;
                return Err(used);
            }
        }
        let mut draft = Draft::new();
        for subnet in self.subnets_of(&was.value).await? {
            self.draft_delete_subnet(&mut draft, &subnet, &was.value).await?;
        }
        draft.delete(&now);
        draft.drop_name::<Network>(organization.as_str(), &was.value.name);
        let scope = was.value.region.as_str();
        if let Some(vlan) = was.value.vlan {
            let region = self.named_global::<Region>(scope).await?;
            let number = u32::from(vlan.saturating_sub(region.value.vlans.from));
            draft.drop_number("vlans", scope, number)?;
        }
        if let Some(partition) = was.value.partition {
            draft.drop_number("partitions", scope, u32::from(partition) - 1)?;
        }
        self.commit(draft).await?;
        Ok(())
    }

    /// A port of a VM's on a subnet, with an address and a MAC.
    pub(super) async fn draft_port(
        &self,
        draft: &mut Draft,
        network: &Network,
        subnet: &Subnet,
        vm: u64,
        index: u32,
        barred: &mut BTreeSet<(u64, u32)>,
    ) -> Result<Port, CloudError> {
        let id = self.new_id().await?;
        let scope = subnet.id.to_string();
        let count = stations(subnet.cidr);
        let mut not: BTreeSet<u32> =
            barred.iter().filter(|(of, _)| *of == subnet.id).map(|(_, number)| *number).collect();
        not.extend(subnet.gateway.and_then(|gateway| index_in(subnet.cidr, gateway)));
        let free = self.free_number("addresses", &scope, count, id, &not).await?;
        let free = free.ok_or_else(|| CloudError::Exhausted {
            what: "address",
            within: format!("subnet {} ({})", subnet.id, subnet.cidr),
            instead: "delete a VM, or make the VM on another network",
        })?;
        barred.insert((subnet.id, free));
        draft.take_number("addresses", &scope, free, id)?;
        let mac = station(id);
        let guid = network.profile == Profile::Infiniband;
        let port = Port {
            id,
            organization: network.organization.clone(),
            vm,
            index,
            name: format!("rail{index}"),
            network: network.id,
            subnet: subnet.id,
            mac,
            address: Ipv4Addr::from_bits(subnet.cidr.network().to_bits() + 1 + free),
            prefix: subnet.cidr.prefix_len(),
            guid: guid.then(|| Guid::from_mac(mac).to_string()),
            created_at: Time::now(),
        };
        draft.create(&port)?;
        Ok(port)
    }

    /// Delete a port and give its address back.
    pub(crate) fn draft_delete_port(
        draft: &mut Draft,
        port: &Stored<Port>,
    ) -> Result<(), CloudError> {
        draft.delete(port);
        let cidr = Ipv4Net::new(port.value.address, port.value.prefix)
            .map_err(|error| StoreError::Foreign(format!("port {}: {error}", port.value.id)))?;
        if let Some(index) = index_in(cidr, port.value.address) {
            draft.drop_number("addresses", &port.value.subnet.to_string(), index)?;
        }
        Ok(())
    }
}

fn roce_v1_is_not_routed() -> CloudError {
    CloudError::PathCannot {
        what: "RoCE v1 between subnets".to_owned(),
        path: "a router",
        why: "forwards IP packets, and RoCE v1 has no IP header (InfiniBand Architecture, annex A16)",
        instead: "use RoCE v2, or one subnet without a gateway",
    }
}

/// A MAC that no other port has: locally administered, with the port's id.
fn station(port: u64) -> MacAddr {
    let mut mac = [0x02; 6];
    mac[1..].copy_from_slice(&port.to_be_bytes()[3..]);
    MacAddr(mac)
}

/// Addresses of stations in a subnet.
fn stations(cidr: Ipv4Net) -> u32 {
    (1_u32 << (32 - u32::from(cidr.prefix_len()))) - 2
}

/// Which station of a subnet has an address.
fn index_in(cidr: Ipv4Net, address: Ipv4Addr) -> Option<u32> {
    let offset = address.to_bits().checked_sub(cidr.network().to_bits())?.checked_sub(1)?;
    (offset < stations(cidr)).then_some(offset)
}

fn usable(cidr: Ipv4Net) -> Result<Ipv4Net, CloudError> {
    let refused = |why: &str| Err(CloudError::invalid("cidr", cidr.to_string(), why));
    let network = cidr.network();
    if !PREFIXES.contains(&cidr.prefix_len()) {
        return refused("use a prefix of 16 to 29 bits");
    }
    if network.is_multicast()
        || network.is_loopback()
        || network.octets()[0] == 0
        || network.is_link_local()
        || network.octets()[0] >= 240
    {
        return refused(
            "use unicast addresses, of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16 say",
        );
    }
    Ok(cidr.trunc())
}

/// The n-th subnet after the first, of its size.
fn following(first: Ipv4Net, n: u16) -> Result<Ipv4Net, CloudError> {
    let first = usable(first)?;
    let size = u64::from(stations(first)) + 2;
    let at = u64::from(first.network().to_bits()) + size * u64::from(n);
    let network = u32::try_from(at).ok().map(Ipv4Addr::from_bits);
    let cidr = network.and_then(|network| Ipv4Net::new(network, first.prefix_len()).ok());
    let why = "there are not as many subnets of its size after it as the network has rails";
    cidr.map_or_else(|| Err(CloudError::invalid("cidr", first.to_string(), why)), usable)
}

fn block(addresses: Ipv4Net, number: u32) -> Ipv4Net {
    let size = 1_u32 << (32 - u32::from(BLOCK_PREFIX));
    let network = Ipv4Addr::from_bits(addresses.trunc().network().to_bits() + number * size);
    Ipv4Net::new_assert(network, BLOCK_PREFIX.max(addresses.prefix_len()))
}

/// Which block of a region's addresses a subnet is, if it is one.
fn block_number(addresses: Ipv4Net, cidr: Ipv4Net) -> Option<u32> {
    let offset = cidr.network().to_bits().checked_sub(addresses.trunc().network().to_bits())?;
    let number = offset >> (32 - u32::from(BLOCK_PREFIX));
    (addresses.contains(&cidr) && block(addresses, number) == cidr).then_some(number)
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().expect("a network")
    }

    #[test]
    fn a_block_is_found_again_by_its_addresses() {
        let addresses = net("10.64.0.0/12");
        for number in [0, 1, 255, 4095] {
            let cidr = block(addresses, number);
            assert_eq!(block_number(addresses, cidr), Some(number), "{cidr}");
        }
        assert_eq!(block(addresses, 4095), net("10.79.255.0/24"));
        for other in ["10.64.0.0/25", "10.80.0.0/24", "192.168.0.0/24"] {
            assert_eq!(block_number(addresses, net(other)), None, "{other}");
        }
    }

    #[test]
    fn every_station_of_a_subnet_has_a_number_and_network_and_broadcast_have_none() {
        let cidr = net("192.168.7.0/29");
        let index = |text: &str| index_in(cidr, text.parse().expect("an address"));
        assert_eq!(index("192.168.7.0"), None);
        assert_eq!(index("192.168.7.1"), Some(0));
        assert_eq!(index("192.168.7.6"), Some(5));
        assert_eq!(index("192.168.7.7"), None);
        assert_eq!(index("192.168.6.255"), None);
    }

    #[test]
    fn a_subnet_that_no_station_can_be_in_is_refused() {
        for text in [
            "10.0.0.0/30",
            "10.0.0.0/8",
            "224.0.0.0/24",
            "127.0.0.0/24",
            "0.0.0.0/16",
            "255.255.255.0/24",
            "169.254.0.0/24",
        ] {
            assert!(usable(net(text)).is_err(), "{text}");
        }
        assert_eq!(usable(net("10.1.2.3/24")).ok(), Some(net("10.1.2.0/24")));
        assert!(following(net("223.255.255.0/24"), 1).is_err());
        assert_eq!(following(net("10.0.0.0/24"), 3).ok(), Some(net("10.0.3.0/24")));
    }

    #[test]
    fn every_port_has_a_mac_of_a_station() {
        for id in [1, 255, 1 << 20, (1 << 40) - 1] {
            assert!(station(id).is_station(), "{id}");
        }
        assert_ne!(station(1), station(2));
    }
}
