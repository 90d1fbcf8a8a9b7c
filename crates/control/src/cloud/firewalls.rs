//! Firewalls: security rules under a name. The path of a VF enforces none of them, so only those that
//! let everything pass are taken, and a firewall is attached only if its rules say that much.

use super::networks::check_name;
use super::vms::check_rule;
use super::{Cloud, CloudError, Draft, Stored};
use crate::keys::OrgName;
use crate::resource::{Firewall, Guarded, SecurityRule, Time, Vm};

/// Most rules of a firewall.
const MOST_RULES: usize = 64;
/// Most VMs that a firewall is for.
const MOST_VMS: usize = 1000;

impl Cloud {
    /// A new firewall, without rules.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::NotFound`] without the environment.
    pub async fn create_firewall(
        &self,
        organization: &OrgName,
        environment: u64,
        name: String,
        description: String,
    ) -> Result<Firewall, CloudError> {
        check_name("name", &name)?;
        if description.len() > 500 {
            let why = "use at most 500 bytes";
            return Err(CloudError::invalid("description", description.len().to_string(), why));
        }
        let environment = self.environment(organization, environment).await?;
        let made = Firewall {
            id: self.new_id().await?,
            name,
            organization: organization.clone(),
            environment: environment.value.id,
            description,
            rules: Vec::new(),
            vms: Vec::new(),
            created_at: Time::now(),
        };
        let mut draft = Draft::new();
        draft.depend(&environment);
        draft.create(&made)?;
        draft.take_name::<Firewall>(organization.as_str(), &made.name, made.id);
        self.commit(draft).await?;
        Ok(made)
    }

    /// Delete a firewall that is for no VM.
    ///
    /// # Errors
    /// [`CloudError::InUse`].
    pub async fn delete_firewall(&self, was: &Stored<Firewall>) -> Result<(), CloudError> {
        if let Some(vm) = self.guarded_by(&was.value).await?.first() {
            return Err(CloudError::InUse {
                noun: "firewall",
                which: format!("'{}'", was.value.name),
                by: format!("VM {} ('{}')", vm.value.id, vm.value.name),
                instead: "detach it from its VMs first",
            });
        }
        let mut draft = Draft::new();
        draft.delete(was);
        draft.drop_name::<Firewall>(was.value.organization.as_str(), &was.value.name);
        self.commit(draft).await?;
        Ok(())
    }

    /// The VMs that a firewall is for, those that are gone left out.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn guarded_by(&self, firewall: &Firewall) -> Result<Vec<Stored<Vm>>, CloudError> {
        let mut vms = Vec::new();
        for Guarded { vm, .. } in &firewall.vms {
            match self.get::<Vm>(&firewall.organization, *vm).await {
                Ok(vm) => vms.push(vm),
                Err(CloudError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(vms)
    }

    async fn change_firewall(
        &self,
        was: &Stored<Firewall>,
        change: impl FnOnce(&mut Firewall),
    ) -> Result<Firewall, CloudError> {
        let mut now = was.value.clone();
        change(&mut now);
        let mut draft = Draft::new();
        draft.change(was, &now)?;
        self.commit(draft).await?;
        Ok(now)
    }

    /// One more rule.
    ///
    /// # Errors
    /// [`CloudError::PathCannot`] for one that a VF's path does not enforce.
    pub async fn add_firewall_rule(
        &self,
        was: &Stored<Firewall>,
        rule: SecurityRule,
    ) -> Result<SecurityRule, CloudError> {
        check_rule(&rule)?;
        if was.value.rules.len() >= MOST_RULES {
            let why = format!("{MOST_RULES} rules are the most; take one away");
            return Err(CloudError::invalid("rules", was.value.rules.len().to_string(), why));
        }
        let id = was.value.rules.iter().map(|rule| rule.id).max().unwrap_or(0) + 1;
        let rule = SecurityRule { id, created_at: Some(Time::now()), ..rule };
        self.change_firewall(was, |firewall| firewall.rules.push(rule.clone())).await?;
        Ok(rule)
    }

    /// Take a rule away.
    ///
    /// # Errors
    /// [`CloudError::NotFound`]; [`CloudError::PathCannot`] if nothing would be let in any more to VMs
    /// that it is for.
    pub async fn delete_firewall_rule(
        &self,
        was: &Stored<Firewall>,
        id: u64,
    ) -> Result<(), CloudError> {
        if !was.value.rules.iter().any(|rule| rule.id == id) {
            return Err(CloudError::none("firewall rule", &id));
        }
        let mut now = was.value.clone();
        now.rules.retain(|rule| rule.id != id);
        if !self.guarded_by(&was.value).await?.is_empty() {
            check_open(&now)?;
        }
        self.change_firewall(was, |firewall| *firewall = now).await?;
        Ok(())
    }

    /// Say which VMs a firewall is for: these and no others.
    ///
    /// # Errors
    /// [`CloudError::PathCannot`] if its rules let nothing in; [`CloudError::NotFound`] without a VM.
    pub async fn attach_firewall(
        &self,
        was: &Stored<Firewall>,
        vms: &[u64],
    ) -> Result<Firewall, CloudError> {
        if vms.len() > MOST_VMS {
            let why = format!("{MOST_VMS} are the most; make another firewall");
            return Err(CloudError::invalid("vms", vms.len().to_string(), why));
        }
        if !vms.is_empty() {
            check_open(&was.value)?;
        }
        let mut guarded: Vec<Guarded> = Vec::new();
        for id in vms {
            let vm = self.get::<Vm>(&was.value.organization, *id).await?.value;
            check_same_environment(&was.value, &vm)?;
            let before = was.value.vms.iter().find(|guarded| guarded.vm == *id);
            let since = before.map_or_else(Time::now, |guarded| guarded.since);
            if !guarded.iter().any(|guarded| guarded.vm == *id) {
                guarded.push(Guarded { vm: *id, since });
            }
        }
        self.change_firewall(was, |firewall| firewall.vms = guarded).await
    }

    /// Say which firewalls a VM has: these and no others.
    ///
    /// # Errors
    /// As [`Cloud::attach_firewall`].
    pub async fn set_firewalls_of(&self, vm: &Vm, wanted: &[u64]) -> Result<(), CloudError> {
        let all = self.all::<Firewall>(&vm.organization).await?;
        for id in wanted {
            let found = all.iter().find(|firewall| firewall.value.id == *id);
            let firewall = &found.ok_or_else(|| CloudError::none("firewall", &id))?.value;
            check_open(firewall)?;
            check_same_environment(firewall, vm)?;
        }
        let mut draft = Draft::new();
        for was in &all {
            let mut now = was.value.clone();
            let has = now.vms.iter().any(|guarded| guarded.vm == vm.id);
            match (has, wanted.contains(&now.id)) {
                (true, false) => now.vms.retain(|guarded| guarded.vm != vm.id),
                (false, true) => now.vms.push(Guarded { vm: vm.id, since: Time::now() }),
                _ => continue,
            }
            draft.change(was, &now)?;
        }
        if !draft.is_empty() {
            self.commit(draft).await?;
        }
        Ok(())
    }
}

/// A firewall denies what no rule lets in. A VF denies nothing: one without such a rule would be a
/// promise that is not kept.
fn check_open(firewall: &Firewall) -> Result<(), CloudError> {
    if firewall.rules.iter().any(|rule| rule.direction == "ingress") {
        return Ok(());
    }
    Err(CloudError::PathCannot {
        what: format!("firewall '{}' for a VM, without a rule that lets in", firewall.name),
        path: "a VF",
        why: "carries frames past every filter of the host, so that nothing would be kept out",
        instead: "give it a rule for ingress, any, 0.0.0.0/0 first, or filter within the VM",
    })
}

fn check_same_environment(firewall: &Firewall, vm: &Vm) -> Result<(), CloudError> {
    if firewall.environment == vm.environment {
        return Ok(());
    }
    let why = format!(
        "it is of environment {}, VM {} of {}; make one there",
        firewall.environment, vm.id, vm.environment
    );
    Err(CloudError::invalid("firewall", firewall.name.clone(), why))
}
