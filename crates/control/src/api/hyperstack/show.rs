//! Resources as the Hyperstack API shows them.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::fields::{
    EnvironmentFeatures, EnvironmentFields, Features, InstanceEnvironmentFields, InstanceFields,
    InstanceFlavorFields, KeypairFields, LabelFields, NOT_GREEN, NameFields, RuleFields,
};
use crate::cloud::{Cloud, CloudError, status_word};
use crate::keys::OrgName;
use crate::resource::{
    Environment, FlavorSpec, Keypair, Network, Organization, Port, SecurityRule, Subnet, Tenant,
    Time, Vm, VmStatus,
};

pub(super) fn environment_features() -> EnvironmentFeatures {
    // Each has a RoCE network of its own from the start.
    EnvironmentFeatures { network_optimised: true, green_status: NOT_GREEN }
}

pub(super) fn environment(environment: &Environment) -> EnvironmentFields {
    EnvironmentFields {
        id: environment.id,
        name: environment.name.clone(),
        region: environment.region.to_string(),
        features: environment_features(),
        created_at: environment.created_at.without_zone(),
    }
}

pub(super) fn keypair(keypair: &Keypair, of: &Environment) -> KeypairFields {
    KeypairFields {
        id: keypair.id,
        name: keypair.name.clone(),
        environment: environment(of),
        public_key: keypair.public_key.clone(),
        fingerprint: fingerprint(&keypair.public_key),
        created_at: keypair.created_at.without_zone(),
    }
}

/// As `ssh-keygen -l` shows it: the hash of what the key's second word encodes.
fn fingerprint(public_key: &str) -> String {
    let word = public_key.split_ascii_whitespace().nth(1).unwrap_or_default();
    let blob = BASE64_STANDARD_NO_PAD.decode(word.trim_end_matches('=')).unwrap_or_default();
    format!("SHA256:{}", BASE64_STANDARD_NO_PAD.encode(Sha256::digest(blob)))
}

/// A count, for a figure that people read.
#[expect(clippy::cast_precision_loss, reason = "nobody reads more than fifteen digits")]
pub(super) fn rounded(count: u64) -> f64 {
    count as f64
}

pub(super) fn gib(mib: u64) -> f64 {
    rounded(mib) / 1024.0
}

pub(super) fn gpu_model(flavor: &FlavorSpec) -> String {
    flavor.gpus.as_ref().map(|gpus| gpus.model.to_string()).unwrap_or_default()
}

pub(super) fn labels(flavor: &FlavorSpec) -> Vec<LabelFields> {
    let text = |(name, value): (&String, &String)| {
        if value.is_empty() { name.clone() } else { format!("{name}={value}") }
    };
    let all = (1..).zip(flavor.labels.iter().map(text));
    all.map(|(id, label)| LabelFields { id, label }).collect()
}

/// What a flavor's VFs are, and what its VMs cannot do.
pub(super) fn flavor_features(flavor: &FlavorSpec) -> Features {
    let mut features = Features::from_iter([
        ("network_optimised".to_owned(), flavor.network_optimised.into()),
        ("no_hibernation".to_owned(), true.into()),
        ("no_snapshot".to_owned(), true.into()),
        ("local_storage_only".to_owned(), true.into()),
    ]);
    if let Some(vfs) = &flavor.vfs {
        features.insert("rdma".to_owned(), json!(vfs));
    }
    features
}

fn instance_flavor(vm: &Vm) -> InstanceFlavorFields {
    let flavor = &vm.flavor;
    InstanceFlavorFields {
        id: vm.flavor_id,
        name: flavor.name.clone(),
        cpu: flavor.vcpus,
        ram: gib(flavor.ram_mib),
        disk: flavor.disk_gib,
        ephemeral: 0,
        gpu: gpu_model(flavor),
        gpu_count: flavor.gpu_count(),
        labels: labels(flavor),
        features: flavor_features(flavor),
    }
}

/// A rule. One that was made before rules had a time is as old as what it is of.
pub(super) fn rule(rule: &SecurityRule, of: Time) -> RuleFields {
    RuleFields {
        id: rule.id,
        direction: rule.direction.clone(),
        ethertype: rule.ethertype.clone(),
        protocol: rule.protocol.clone(),
        remote_ip_prefix: rule.remote_ip_prefix.clone(),
        port_range_min: rule.port_range_min,
        port_range_max: rule.port_range_max,
        status: "SUCCESS",
        created_at: rule.created_at.unwrap_or(of).without_zone(),
    }
}

/// What is shown with VMs: what they are of, and their ports with their networks.
pub(super) struct Surroundings {
    organization: u64,
    environments: BTreeMap<u64, Environment>,
    keypairs: BTreeMap<u64, Keypair>,
    ports: BTreeMap<u64, Port>,
    networks: BTreeMap<u64, Network>,
    subnets: BTreeMap<u64, Subnet>,
}

/// Those of these that are there.
async fn gather<T: Tenant>(
    cloud: &Cloud,
    organization: &OrgName,
    ids: BTreeSet<u64>,
) -> Result<BTreeMap<u64, T>, CloudError> {
    let mut found = BTreeMap::new();
    for id in ids {
        match cloud.get::<T>(organization, id).await {
            Ok(stored) => drop(found.insert(id, stored.value)),
            Err(CloudError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Surroundings {
    pub(super) async fn of(cloud: &Cloud, name: &OrgName, vms: &[Vm]) -> Result<Self, CloudError> {
        let organization = cloud.named_global::<Organization>(name.as_str()).await?.value.id;
        let ids = |id: fn(&Vm) -> Option<u64>| vms.iter().filter_map(id).collect();
        let ports: BTreeMap<u64, Port> =
            gather(cloud, name, vms.iter().flat_map(|vm| vm.ports.iter().copied()).collect())
                .await?;
        let of_ports = |id: fn(&Port) -> u64| ports.values().map(id).collect();
        Ok(Self {
            organization,
            environments: gather(cloud, name, ids(|vm| Some(vm.environment))).await?,
            keypairs: gather(cloud, name, ids(|vm| vm.keypair)).await?,
            networks: gather(cloud, name, of_ports(|port| port.network)).await?,
            subnets: gather(cloud, name, of_ports(|port| port.subnet)).await?,
            ports,
        })
    }

    fn ports(&self, vm: &Vm) -> Vec<&Port> {
        vm.ports.iter().filter_map(|id| self.ports.get(id)).collect()
    }

    fn port(&self, port: &Port) -> Value {
        let network = self.networks.get(&port.network);
        let subnet = self.subnets.get(&port.subnet);
        json!({
            "id": port.id,
            "name": port.name,
            "mac": port.mac,
            "address": port.address,
            "prefix": port.prefix,
            "gateway": subnet.and_then(|subnet| subnet.gateway),
            "rail": subnet.and_then(|subnet| subnet.rail),
            "network": network.map(|network| &network.name),
            "network_id": port.network,
            "profile": network.map(|network| network.profile),
            "roce": network.map(|network| network.roce),
            "vlan": network.and_then(|network| network.vlan),
            "mtu": network.map(|network| network.mtu),
        })
    }

    fn features(&self, vm: &Vm) -> Features {
        let mut features = flavor_features(&vm.flavor);
        let mut rdma = features.remove("rdma").unwrap_or_else(|| json!({}));
        rdma["ports"] = self.ports(vm).into_iter().map(|port| self.port(port)).collect();
        features.insert("rdma".to_owned(), rdma);
        if let Some(fault) = &vm.fault {
            features.insert("fault".to_owned(), json!(fault));
        }
        features
    }

    pub(super) fn instance(&self, vm: &Vm) -> InstanceFields {
        let environment = self.environments.get(&vm.environment);
        let (power_state, vm_state) = states(vm.status);
        let name = |keypair: &Keypair| keypair.name.clone();
        InstanceFields {
            id: vm.id,
            name: vm.name.clone(),
            status: status_word(vm.status),
            power_state,
            vm_state,
            environment: InstanceEnvironmentFields {
                id: vm.environment,
                name: environment.map(|environment| environment.name.clone()).unwrap_or_default(),
                org_id: self.organization,
                region: vm.region.to_string(),
                features: environment_features(),
            },
            image: NameFields { name: vm.image.name.clone() },
            flavor: instance_flavor(vm),
            keypair: NameFields {
                name: vm
                    .keypair
                    .and_then(|id| self.keypairs.get(&id))
                    .map(name)
                    .unwrap_or_default(),
            },
            os: vm.image.os.clone(),
            fixed_ip: self.ports(vm).first().map(|port| port.address.to_string()),
            floating_ip: None,
            floating_ip_status: None,
            security_rules: vm.security_rules.iter().map(|r| rule(r, vm.created_at)).collect(),
            volume_attachments: Vec::new(),
            labels: vm.labels.clone(),
            features: self.features(vm),
            callback_url: None,
            locked: false,
            contract_id: None,
            port_randomization: false,
            port_randomization_status: None,
            requires_public_ip: false,
            created_at: vm.created_at.without_zone(),
        }
    }
}

/// `power_state` and `vm_state`: what it is while nothing else is under way.
fn states(status: VmStatus) -> (&'static str, &'static str) {
    match status {
        VmStatus::Creating | VmStatus::Build => ("NOSTATE", "building"),
        VmStatus::Active | VmStatus::Stopping | VmStatus::Rebooting => ("RUNNING", "active"),
        VmStatus::Shutoff | VmStatus::Starting => ("SHUTDOWN", "stopped"),
        VmStatus::Error => ("NOSTATE", "error"),
        VmStatus::Deleting => ("NOSTATE", "deleting"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_that_of_ssh_keygen() {
        // ssh-keygen -lf of this very key.
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGAKhUI8fcdFMscKvyM0cf+hmgo8XjD4fbvmEz8MZ/rc me@there";
        assert_eq!(fingerprint(key), "SHA256:1ZS1BFcnJa5Nhx1A0HKgJLyKpLQ6WOQTq+4ksdQt3g4");
    }
}
