//! VMs: what a tenant asks for is checked, and written with its ports in one transaction. That they
//! come to be is the work of the [`lifecycle`](crate::lifecycle).

use std::collections::BTreeSet;

use super::networks::{Attempts, check_name};
use super::{Cloud, CloudError, Draft, Once, Stored};
use crate::keys::OrgName;
use crate::resource::{
    Environment, Event, FaultKind, FlavorResource, GroupMember, ImageResource, Keypair, Network,
    NetworkAttachment, Port, Profile, SecurityRule, Severity, Subnet, Time, Vm, VmSpec, VmStatus,
    Want,
};

/// Most bytes of user data.
const MOST_USER_DATA: usize = 64 << 10;

/// A network that VFs of a VM are to be on, and how many of them.
struct Attached {
    network: Stored<Network>,
    subnets: Vec<Stored<Subnet>>,
    vfs: u32,
}

/// What VMs are made from, looked up and checked.
pub(super) struct Plan {
    spec: VmSpec,
    environment: Stored<Environment>,
    flavor: Stored<FlavorResource>,
    image: Stored<ImageResource>,
    keypair: Option<Stored<Keypair>>,
    attached: Vec<Attached>,
}

impl Plan {
    pub(super) fn environment(&self) -> &Environment {
        &self.environment.value
    }

    pub(super) fn flavor(&self) -> &crate::resource::FlavorSpec {
        &self.flavor.value.spec
    }

    /// Keys that a VM of it writes at most, and what all of them depend on.
    pub(super) fn keys_each(&self) -> (usize, usize) {
        let ports = self.flavor.value.spec.vf_count() as usize;
        (3 + 2 * ports, 1 + self.attached.len())
    }

    /// All depend on these as they were read.
    pub(super) fn depend(&self, draft: &mut Draft) {
        draft.depend(&self.environment);
        for attached in &self.attached {
            draft.depend(&attached.network);
        }
    }
}

impl Cloud {
    /// Look up and check what a VM is to be made from.
    pub(super) async fn plan_vm(
        &self,
        organization: &OrgName,
        spec: VmSpec,
    ) -> Result<Plan, CloudError> {
        check_host_name(&spec.name)?;
        let environment = self.environment(organization, spec.environment).await?;
        let flavor = self.named_global::<FlavorResource>(&spec.flavor).await?;
        let image = self.named_global::<ImageResource>(&spec.image).await?;
        let keypair = match &spec.keypair {
            Some(name) => Some(self.named::<Keypair>(organization, name).await?),
            None => None,
        };
        if let Some(keypair) = &keypair
            && keypair.value.environment != environment.value.id
        {
            let why = format!(
                "it is of environment {}, the VM of {}; import it there too, under another name",
                keypair.value.environment, environment.value.id
            );
            return Err(CloudError::invalid("keypair", keypair.value.name.clone(), why));
        }
        if spec.user_data.as_ref().is_some_and(|data| data.len() > MOST_USER_DATA) {
            let size = spec.user_data.as_ref().map_or(0, String::len);
            let why = format!("{MOST_USER_DATA} bytes is the most; fetch the rest from within");
            return Err(CloudError::invalid("user_data", format!("{size} bytes"), why));
        }
        for label in &spec.labels {
            check_name("labels", label)?;
        }
        spec.security_rules.iter().try_for_each(check_rule)?;
        let attached = self.attach(organization, &environment.value, &flavor.value, &spec).await?;
        Ok(Plan { spec, environment, flavor, image, keypair, attached })
    }

    async fn attach(
        &self,
        organization: &OrgName,
        environment: &Environment,
        flavor: &FlavorResource,
        spec: &VmSpec,
    ) -> Result<Vec<Attached>, CloudError> {
        let vfs = flavor.spec.vf_count();
        let usual = [NetworkAttachment { network: environment.default_network, vfs: None }];
        let asked = match spec.networks.as_slice() {
            [] if vfs == 0 => return Ok(Vec::new()),
            [] => &usual,
            asked => asked,
        };
        let mut left = vfs;
        let mut all = Vec::new();
        for NetworkAttachment { network, vfs: wanted } in asked {
            let taken = wanted.unwrap_or(left);
            if taken == 0 || taken > left {
                let why = format!(
                    "flavor {} has {vfs} VFs, of which {left} are left for it; say how many of them \
                     each network gets, or take a flavor with more",
                    flavor.spec.name
                );
                return Err(CloudError::invalid("networks", format!("network {network}"), why));
            }
            left -= taken;
            let network = self.network(organization, *network).await?;
            if network.value.region != environment.region {
                let why =
                    format!("it is in {}, the VM in {}", network.value.region, environment.region);
                return Err(CloudError::invalid("networks", network.value.id.to_string(), why));
            }
            if network.value.profile == Profile::Infiniband {
                return Err(CloudError::PathCannot {
                    what: "a VM on an InfiniBand network".to_owned(),
                    path: "every PF of this region",
                    why: "is Ethernet",
                    instead: "use a network with the profile 'roce'",
                });
            }
            let subnets = self.subnets_of(&network.value).await?;
            if subnets.is_empty() {
                let why = "it has no subnet; make one first";
                return Err(CloudError::invalid("networks", network.value.id.to_string(), why));
            }
            all.push(Attached { network, subnets, vfs: taken });
        }
        if left > 0 {
            let why = format!("{left} of the flavor's {vfs} VFs are on no network; say of which");
            return Err(CloudError::invalid("networks", format!("{} networks", asked.len()), why));
        }
        Ok(all)
    }

    /// A VM of a plan, with its ports.
    pub(super) async fn draft_vm(
        &self,
        draft: &mut Draft,
        plan: &Plan,
        id: u64,
        name: String,
        group: Option<GroupMember>,
        barred: &mut BTreeSet<(u64, u32)>,
    ) -> Result<Vm, CloudError> {
        let environment = &plan.environment.value;
        let mut ports = Vec::new();
        for attached in &plan.attached {
            for nth in 0..attached.vfs {
                let index = ports.len() as u32;
                let subnet = &attached.subnets[nth as usize % attached.subnets.len()].value;
                let network = &attached.network.value;
                let port = self.draft_port(draft, network, subnet, id, index, barred).await?;
                ports.push(port.id);
            }
        }
        let now = Time::now();
        let vm = Vm {
            id,
            name,
            organization: environment.organization.clone(),
            environment: environment.id,
            region: environment.region.clone(),
            flavor: plan.flavor.value.spec.clone(),
            flavor_id: plan.flavor.value.id,
            image: plan.image.value.spec.clone(),
            image_id: plan.image.value.id,
            keypair: plan.keypair.as_ref().map(|keypair| keypair.value.id),
            public_key: plan.keypair.as_ref().map(|keypair| keypair.value.public_key.clone()),
            user_data: plan.spec.user_data.clone(),
            ports,
            security_rules: numbered(&plan.spec.security_rules),
            labels: plan.spec.labels.clone(),
            group,
            status: VmStatus::Creating,
            want: Want::Running,
            generation: 1,
            resets: 0,
            located: None,
            fault: None,
            created_at: now,
            changed_at: now,
        };
        draft.create(&vm)?;
        draft.take_name::<Vm>(&environment.id.to_string(), &vm.name, id);
        let event = self.event(&vm, "created", Severity::Info, "it is asked for").await?;
        draft.create(&event)?;
        Ok(vm)
    }

    /// Something that happened to a VM.
    pub(crate) async fn event(
        &self,
        vm: &Vm,
        reason: &str,
        severity: Severity,
        message: impl Into<String>,
    ) -> Result<Event, CloudError> {
        Ok(Event {
            id: self.new_id().await?,
            organization: vm.organization.clone(),
            kind: "vms".to_owned(),
            resource: vm.id,
            reason: reason.to_owned(),
            message: message.into(),
            severity,
            at: Time::now(),
        })
    }

    /// A new VM. It is placed and made afterwards: its status tells.
    ///
    /// # Errors
    /// [`CloudError`], for whatever of it cannot be.
    pub async fn create_vm(
        &self,
        organization: &OrgName,
        spec: VmSpec,
        once: Option<&Once>,
    ) -> Result<Vm, CloudError> {
        let plan = self.plan_vm(organization, spec).await?;
        let mut attempts = Attempts::default();
        loop {
            let (mut draft, mut barred) = (Draft::new(), BTreeSet::new());
            plan.depend(&mut draft);
            let (id, name) = (self.new_id().await?, plan.spec.name.clone());
            let vm = self.draft_vm(&mut draft, &plan, id, name, None, &mut barred).await?;
            draft.answer_once(once, 201, &vm)?;
            if attempts.settles(self.commit(draft).await)? {
                return Ok(vm);
            }
        }
    }

    async fn change_vm(
        &self,
        was: &Stored<Vm>,
        reason: &str,
        message: &str,
        change: impl FnOnce(&mut Vm),
    ) -> Result<Vm, CloudError> {
        let mut now = was.value.clone();
        change(&mut now);
        if now.status != was.value.status {
            now.changed_at = Time::now();
        }
        let mut draft = Draft::new();
        draft.change(was, &now)?;
        draft.create(&self.event(&now, reason, Severity::Info, message).await?)?;
        self.commit(draft).await?;
        Ok(now)
    }

    fn refuse_state(vm: &Vm, why: &str) -> CloudError {
        CloudError::State {
            what: "VM",
            which: format!("{} ('{}')", vm.id, vm.name),
            state: status_word(vm.status).to_owned(),
            why: why.to_owned(),
        }
    }

    /// Start a VM that does not run.
    ///
    /// # Errors
    /// [`CloudError::State`].
    pub async fn start_vm(&self, was: &Stored<Vm>) -> Result<Vm, CloudError> {
        let vm = &was.value;
        let failed = vm.fault.as_ref().is_some_and(|fault| fault.kind == FaultKind::Host);
        match vm.status {
            VmStatus::Active | VmStatus::Starting if vm.want == Want::Running => Ok(vm.clone()),
            VmStatus::Shutoff | VmStatus::Error
                if vm.want != Want::Deleted && (vm.status == VmStatus::Shutoff || failed) =>
            {
                self.change_vm(was, "starting", "it is asked to start", |vm| {
                    (vm.want, vm.status, vm.fault) = (Want::Running, VmStatus::Starting, None);
                    vm.generation += 1;
                })
                .await
            }
            _ => Err(Self::refuse_state(vm, "a VM is started when it is SHUTOFF")),
        }
    }

    /// Stop a VM. What it has stays its own.
    ///
    /// # Errors
    /// [`CloudError::State`].
    pub async fn stop_vm(&self, was: &Stored<Vm>) -> Result<Vm, CloudError> {
        match was.value.status {
            VmStatus::Shutoff | VmStatus::Stopping => Ok(was.value.clone()),
            VmStatus::Active | VmStatus::Rebooting | VmStatus::Starting => {
                self.change_vm(was, "stopping", "it is asked to stop", |vm| {
                    (vm.want, vm.status) = (Want::Stopped, VmStatus::Stopping);
                    vm.generation += 1;
                })
                .await
            }
            _ => Err(Self::refuse_state(&was.value, "a VM is stopped when it is ACTIVE")),
        }
    }

    /// Reset a VM that runs.
    ///
    /// # Errors
    /// [`CloudError::State`].
    pub async fn reboot_vm(&self, was: &Stored<Vm>) -> Result<Vm, CloudError> {
        match was.value.status {
            VmStatus::Active => {
                self.change_vm(was, "rebooting", "it is asked to reboot", |vm| {
                    vm.status = VmStatus::Rebooting;
                    vm.resets += 1;
                    vm.generation += 1;
                })
                .await
            }
            _ => Err(Self::refuse_state(&was.value, "a VM is rebooted when it is ACTIVE")),
        }
    }

    /// Delete a VM: it is gone once its host has said so.
    ///
    /// # Errors
    /// [`CloudError::InUse`] for one of a group.
    pub async fn delete_vm(&self, was: &Stored<Vm>) -> Result<Vm, CloudError> {
        let vm = &was.value;
        if let Some(member) = vm.group {
            return Err(CloudError::InUse {
                noun: "VM",
                which: vm.id.to_string(),
                by: format!("group {}", member.group),
                instead: "delete the group: its VMs are placed together",
            });
        }
        if vm.want == Want::Deleted {
            return Ok(vm.clone());
        }
        self.change_vm(was, "deleting", "it is asked to be deleted", |vm| {
            (vm.want, vm.status) = (Want::Deleted, VmStatus::Deleting);
            vm.generation += 1;
        })
        .await
    }

    /// Give a VM other labels.
    ///
    /// # Errors
    /// [`CloudError::Invalid`], [`CloudError::Stale`].
    pub async fn label_vm(&self, was: &Stored<Vm>, labels: Vec<String>) -> Result<Vm, CloudError> {
        if labels.len() > 64 {
            return Err(CloudError::invalid("labels", labels.len().to_string(), "use at most 64"));
        }
        labels.iter().try_for_each(|label| check_name("labels", label))?;
        self.change_vm(was, "labelled", "its labels were changed", |vm| vm.labels = labels).await
    }

    /// One more rule for a VM.
    ///
    /// # Errors
    /// [`CloudError::PathCannot`] for one that its path does not enforce.
    pub async fn add_rule(
        &self,
        was: &Stored<Vm>,
        rule: SecurityRule,
    ) -> Result<SecurityRule, CloudError> {
        check_rule(&rule)?;
        let id = was.value.security_rules.iter().map(|rule| rule.id).max().unwrap_or(0) + 1;
        let rule = SecurityRule { id, created_at: Some(Time::now()), ..rule };
        let added = rule.clone();
        self.change_vm(was, "rules", "a security rule was added", |vm| {
            vm.security_rules.push(added);
        })
        .await?;
        Ok(rule)
    }

    /// Take a rule of a VM away.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn delete_rule(&self, was: &Stored<Vm>, id: u64) -> Result<(), CloudError> {
        if !was.value.security_rules.iter().any(|rule| rule.id == id) {
            return Err(CloudError::none("security rule", &id));
        }
        self.change_vm(was, "rules", "a security rule was taken away", |vm| {
            vm.security_rules.retain(|rule| rule.id != id);
        })
        .await?;
        Ok(())
    }

    /// A VM's ports, in the order of its VFs.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn ports_of(&self, vm: &Vm) -> Result<Vec<Stored<Port>>, CloudError> {
        let mut ports = Vec::new();
        for id in &vm.ports {
            ports.push(self.get::<Port>(&vm.organization, *id).await?);
        }
        Ok(ports)
    }
}

fn numbered(rules: &[SecurityRule]) -> Vec<SecurityRule> {
    let created_at = Some(Time::now());
    let numbered =
        |(id, rule): (u64, &SecurityRule)| SecurityRule { id, created_at, ..rule.clone() };
    (1..).zip(rules).map(numbered).collect()
}

/// A status as the API spells it.
pub(crate) fn status_word(status: VmStatus) -> &'static str {
    match status {
        VmStatus::Creating => "CREATING",
        VmStatus::Build => "BUILD",
        VmStatus::Active => "ACTIVE",
        VmStatus::Stopping => "STOPPING",
        VmStatus::Shutoff => "SHUTOFF",
        VmStatus::Starting => "STARTING",
        VmStatus::Rebooting => "REBOOTING",
        VmStatus::Error => "ERROR",
        VmStatus::Deleting => "DELETING",
    }
}

/// A host name (RFC 1123, 2.1), since it is the guest's.
pub(super) fn check_host_name(name: &str) -> Result<(), CloudError> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let fits = (1..=50).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.as_bytes()[name.len() - 1].is_ascii_alphanumeric()
        && name.bytes().all(inner);
    let why = "use 1 to 50 letters, digits, '-' and '.', with a letter or digit first and last: it is \
               the VM's host name";
    if fits { Ok(()) } else { Err(CloudError::invalid("name", name, why)) }
}

/// Only what lets everything pass: a VF's frames go from the VM to the NIC, and nothing on their way
/// keeps connections apart.
pub(super) fn check_rule(rule: &SecurityRule) -> Result<(), CloudError> {
    let one_of = |field: &'static str, value: &str, known: &[&str]| {
        if known.contains(&value) {
            Ok(())
        } else {
            Err(CloudError::invalid(field, value, format!("use one of {}", known.join(", "))))
        }
    };
    one_of("security_rules.direction", &rule.direction, &["ingress", "egress"])?;
    one_of("security_rules.ethertype", &rule.ethertype, &["IPv4", "IPv6"])?;
    let everybody = ["0.0.0.0/0", "::/0"].contains(&rule.remote_ip_prefix.as_str());
    let every_port = matches!(
        (rule.port_range_min, rule.port_range_max),
        (None | Some(0 | 1), None | Some(u16::MAX))
    );
    if rule.protocol == "any" && everybody && every_port {
        return Ok(());
    }
    Err(CloudError::PathCannot {
        what: format!(
            "a security rule for {} {} {}",
            rule.direction, rule.protocol, rule.remote_ip_prefix
        ),
        path: "a VF",
        why: "carries frames past every filter of the host, so that the rule would not be enforced",
        instead: "filter within the VM; rules that let everything pass are taken, and tenants are \
                  kept apart by their networks in any case",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(protocol: &str, prefix: &str, ports: Option<(u16, u16)>) -> SecurityRule {
        SecurityRule {
            id: 0,
            direction: "ingress".to_owned(),
            ethertype: "IPv4".to_owned(),
            protocol: protocol.to_owned(),
            remote_ip_prefix: prefix.to_owned(),
            port_range_min: ports.map(|ports| ports.0),
            port_range_max: ports.map(|ports| ports.1),
            created_at: None,
        }
    }

    #[test]
    fn a_rule_that_the_path_would_not_enforce_is_refused_and_says_what_to_do() {
        assert!(check_rule(&rule("any", "0.0.0.0/0", None)).is_ok());
        assert!(check_rule(&rule("any", "0.0.0.0/0", Some((1, 65535)))).is_ok());
        for rule in [
            rule("tcp", "0.0.0.0/0", Some((22, 22))),
            rule("any", "10.0.0.0/8", None),
            rule("any", "0.0.0.0/0", Some((80, 443))),
        ] {
            let refused = check_rule(&rule).expect_err("refused");
            assert!(matches!(refused, CloudError::PathCannot { .. }), "{refused}");
            assert!(refused.to_string().contains("filter within the VM"), "{refused}");
        }
        let odd = SecurityRule { direction: "in".to_owned(), ..rule("any", "0.0.0.0/0", None) };
        assert!(check_rule(&odd).is_err_and(|error| error.to_string().contains("'in'")));
    }

    #[test]
    fn a_vms_name_is_a_host_name() {
        for name in ["", "-a", "a-", "a b", "a_b", "ä", &"a".repeat(51)] {
            assert!(check_host_name(name).is_err(), "{name}");
        }
        for name in ["a", "vm-1", "gpu.7", "A9"] {
            assert!(check_host_name(name).is_ok(), "{name}");
        }
    }
}
