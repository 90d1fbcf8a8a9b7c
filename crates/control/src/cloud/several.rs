//! VMs that differ in name only, made by one call; and whether there is room for them.

use std::collections::BTreeSet;

use lanekeeper_topology::Strictness;

use super::networks::Attempts;
use super::vms::{Plan, check_host_name};
use super::{Cloud, CloudError, Draft};
use crate::claims::ClaimError;
use crate::keys::{OrgName, RegionName};
use crate::placement::{Index, Policy, Request};
use crate::resource::{Region, Vm, VmSpec};
use crate::store::Transaction;

impl Cloud {
    /// New VMs that differ in name only. They are not placed together: a group is. That there is no
    /// quota or no room for them is told at once if it is so now; if it is so only later, it is told
    /// by their status.
    ///
    /// # Errors
    /// [`CloudError`], for whatever of them cannot be; then none is made.
    pub async fn create_vms(
        &self,
        organization: &OrgName,
        spec: VmSpec,
        names: &[String],
    ) -> Result<Vec<Vm>, CloudError> {
        names.iter().try_for_each(|name| check_host_name(name))?;
        let plan = self.plan_vm(organization, spec).await?;
        self.check_room(organization, &plan, names.len() as u32).await?;
        // What one transaction does not hold is made in several.
        let (each, all) = plan.keys_each();
        let at_once = ((Transaction::MOST_KEYS - all) / each).max(1);
        let mut made: Vec<Vm> = Vec::new();
        for names in names.chunks(at_once) {
            match self.create_some(&plan, names).await {
                Ok(vms) => made.extend(vms),
                Err(error) => {
                    self.unmake(&made).await;
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    async fn create_some(&self, plan: &Plan, names: &[String]) -> Result<Vec<Vm>, CloudError> {
        let mut attempts = Attempts::default();
        loop {
            let (mut draft, mut barred) = (Draft::new(), BTreeSet::new());
            plan.depend(&mut draft);
            let mut vms = Vec::new();
            for name in names {
                let id = self.new_id().await?;
                let name = name.clone();
                vms.push(self.draft_vm(&mut draft, plan, id, name, None, &mut barred).await?);
            }
            if attempts.settles(self.commit(draft).await)? {
                return Ok(vms);
            }
        }
    }

    /// Delete VMs whose siblings could not be made.
    async fn unmake(&self, vms: &[Vm]) {
        for vm in vms {
            loop {
                let deleted = match self.get::<Vm>(&vm.organization, vm.id).await {
                    Ok(was) => self.delete_vm(&was).await.map(drop),
                    Err(error) => Err(error),
                };
                match deleted {
                    // Its life has begun meanwhile.
                    Err(CloudError::Stale) => {}
                    Err(error) => {
                        tracing::warn!(%error, vm = vm.id, "a VM without its siblings stays");
                        break;
                    }
                    Ok(()) => break,
                }
            }
        }
    }

    async fn check_room(
        &self,
        organization: &OrgName,
        plan: &Plan,
        vms: u32,
    ) -> Result<(), CloudError> {
        let name = &plan.environment().region;
        let region = self.named_global::<Region>(name.as_str()).await?;
        let request = Request {
            vms,
            spares: 0,
            flavor: plan.flavor().to_placement(&region.value.fabric),
            policy: Policy::Compact(Strictness::Preferred),
        };
        let quota = self.quota(organization).await?;
        quota.limits.allows(quota.used, request.usage())?;
        self.look(name, move |index| index.place(&request)).await??;
        Ok(())
    }

    /// Look at what is free in a region, as this server knows it.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn look<T: Send + 'static>(
        &self,
        region: &RegionName,
        look: impl FnOnce(&Index) -> T + Send + Sync + 'static,
    ) -> Result<T, CloudError> {
        let claims = self.claims(region).await.map_err(ClaimError::from)?;
        Ok(claims.look(look).await?)
    }
}
