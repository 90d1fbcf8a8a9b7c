//! Groups: VMs that are placed together, all or none, with places held for those whose host is lost.

use std::collections::BTreeSet;

use lanekeeper_topology::Strictness;

use super::networks::Attempts;
use super::{Cloud, CloudError, Draft, Once, Stored};
use crate::keys::OrgName;
use crate::placement::{Policy, Request};
use crate::resource::{Group, GroupMember, GroupSpec, Time, Vm, VmStatus, Want};
use crate::store::Transaction;

impl Cloud {
    /// A new group. Its VMs are placed and made afterwards, together.
    ///
    /// # Errors
    /// [`CloudError`], for whatever of it cannot be.
    pub async fn create_group(
        &self,
        organization: &OrgName,
        spec: GroupSpec,
        once: Option<&Once>,
    ) -> Result<Group, CloudError> {
        let GroupSpec { count, spares, policy, vm } = spec;
        let policy = policy.unwrap_or(Policy::Compact(Strictness::Preferred));
        let name = vm.name.clone();
        let plan = self.plan_vm(organization, vm).await?;
        let fabric = crate::keys::FabricName::new("any")?;
        let flavor = plan.flavor().to_placement(&fabric);
        Request { vms: count, spares, flavor, policy }
            .check()
            .map_err(|error| CloudError::Refused(error.into()))?;
        let id = self.new_id().await?;
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.new_id().await?);
        }
        let environment = plan.environment();
        let group = Group {
            id,
            name,
            organization: organization.clone(),
            environment: environment.id,
            region: environment.region.clone(),
            vms: ids,
            policy,
            spares,
            held: Vec::new(),
            complete: false,
            deleting: false,
            created_at: Time::now(),
        };
        let mut draft = Draft::new();
        plan.depend(&mut draft);
        draft.create(&group)?;
        draft.take_name::<Group>(&group.environment.to_string(), &group.name, id);
        draft.answer_once(once, 201, &group)?;
        self.commit(draft).await?;

        // More VMs than one transaction holds are made in several; until the last the group is not
        // complete, and one that never becomes so is deleted by the lifecycle.
        let (each, all) = plan.keys_each();
        let at_once = ((Transaction::MOST_KEYS - all) / each).max(1);
        let members: Vec<(u32, u64)> = (0..).zip(group.vms.iter().copied()).collect();
        for members in members.chunks(at_once) {
            let mut attempts = Attempts::default();
            loop {
                let (mut draft, mut barred) = (Draft::new(), BTreeSet::new());
                plan.depend(&mut draft);
                for (number, vm) in members {
                    let name = format!("{}-{number}", group.name);
                    let member = GroupMember { group: id, number: *number };
                    self.draft_vm(&mut draft, &plan, *vm, name, Some(member), &mut barred).await?;
                }
                if attempts.settles(self.commit(draft).await)? {
                    break;
                }
            }
        }
        let was = self.get::<Group>(organization, id).await?;
        let now = Group { complete: true, ..was.value.clone() };
        let mut draft = Draft::new();
        draft.change(&was, &now)?;
        self.commit(draft).await?;
        Ok(now)
    }

    /// The VMs of a group, by number; those that are gone are left out.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn vms_of(&self, group: &Group) -> Result<Vec<Stored<Vm>>, CloudError> {
        let mut vms = Vec::new();
        for id in &group.vms {
            match self.get::<Vm>(&group.organization, *id).await {
                Ok(vm) => vms.push(vm),
                Err(CloudError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(vms)
    }

    /// Delete a group and its VMs: they are gone once their hosts have said so.
    ///
    /// # Errors
    /// [`CloudError::Stale`].
    pub async fn delete_group(&self, was: &Stored<Group>) -> Result<Group, CloudError> {
        if was.value.deleting {
            return Ok(was.value.clone());
        }
        let now = Group { deleting: true, ..was.value.clone() };
        let mut draft = Draft::new();
        draft.change(was, &now)?;
        self.commit(draft).await?;
        Ok(now)
    }

    /// That a VM of a group that is being deleted is to be deleted too.
    pub(crate) fn draft_end_of_member(
        draft: &mut Draft,
        was: &Stored<Vm>,
    ) -> Result<(), CloudError> {
        let mut now = was.value.clone();
        (now.want, now.status, now.changed_at) = (Want::Deleted, VmStatus::Deleting, Time::now());
        now.generation += 1;
        draft.change(was, &now)
    }
}
