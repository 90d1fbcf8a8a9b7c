//! Seeing to one group: placing it as a whole, moving its VMs from a lost host to the places that are
//! held for them, and giving all back when it is deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;

use super::vm::{draft_located, draft_told, locate, located_in, refuse};
use super::{FENCE, Item, Work, later, orphan};
use crate::claims::{Ask, ClaimError};
use crate::cloud::{Cloud, CloudError, Draft, Stored};
use crate::keys::{self, HostName, OrgName, PlacementId};
use crate::placement::{Placement, Request};
use crate::protocol::{Power, VmReport, VmState};
use crate::resource::{Group, Kept, Located, Region, Time, UsageRecord, Vm, VmStatus, Want};

/// What is counted in whole seconds may be one short.
const A_MOMENT: Duration = Duration::from_secs(2);
/// A group that is not complete after so many seconds never will be: who was making it has ended.
const MADE_WITHIN: i64 = 120;

pub(super) async fn see_to(
    work: &Work,
    owner: &OrgName,
    id: u64,
    wake: &mpsc::UnboundedSender<Item>,
) -> Result<Vec<Item>, CloudError> {
    let group = match work.cloud.get::<Group>(owner, id).await {
        Ok(group) if group.value.region == work.region => group,
        Ok(_) => return Ok(Vec::new()),
        Err(CloudError::NotFound { .. }) => {
            orphan::give_back(work, &Item::Group(id)).await?;
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    if group.value.deleting {
        return end(work, &group).await;
    }
    if !group.value.complete {
        if Time::now().second() - group.value.created_at.second() > MADE_WITHIN {
            work.cloud.delete_group(&group).await?;
        }
        return Ok(Vec::new());
    }
    let vms = work.cloud.vms_of(&group.value).await?;
    let unplaced =
        |vm: &&Stored<Vm>| vm.value.located.is_none() && vm.value.status == VmStatus::Creating;
    if vms.iter().any(|vm| unplaced(&vm)) {
        place(work, &group, &vms).await?;
        return Ok(vms.iter().map(|vm| Item::Vm(vm.value.id)).collect());
    }
    if unfence(work, &group).await? {
        return Ok(vec![Item::Group(id)]);
    }
    let alive = alive_of(work, &group.value, &vms).await?;
    let lost: Vec<&Stored<Vm>> = vms.iter().filter(|vm| is_lost(&vm.value, &alive)).collect();
    if let Some(moved) = replace_one(work, &group, &lost, &alive).await? {
        return Ok(vec![Item::Vm(moved), Item::Group(id)]);
    }
    // What is started elsewhere must have ended where it was.
    if lost.iter().any(|vm| !is_fenced(&vm.value)) {
        later(wake, Item::Group(id), FENCE + A_MOMENT);
    }
    let unmarked = lost.iter().filter(|vm| vm.value.status != VmStatus::Error);
    Ok(unmarked.map(|vm| Item::Vm(vm.value.id)).collect())
}

/// Those of a group's hosts that are heard of: few, whatever the region has.
async fn alive_of(
    work: &Work,
    group: &Group,
    vms: &[Stored<Vm>],
) -> Result<BTreeSet<HostName>, CloudError> {
    let running = vms.iter().filter_map(|vm| vm.value.located.as_ref());
    let hosts = running.chain(group.held.iter().map(|kept| &kept.located));
    let hosts: BTreeSet<&HostName> = hosts.map(|located| &located.host).collect();
    let mut alive = BTreeSet::new();
    for host in hosts {
        if work.cloud.is_alive(&work.region, host).await? {
            alive.insert(host.clone());
        }
    }
    Ok(alive)
}

/// Whether there is nothing to be done for a group as long as nothing changes. Of its VMs those are
/// given that are there.
pub(super) fn is_quiet<'v>(
    group: &Group,
    vm: impl Fn(u64) -> Option<&'v Vm>,
    alive: &BTreeSet<HostName>,
) -> bool {
    let is_placed = |vm: &Vm| vm.located.is_some() || vm.status != VmStatus::Creating;
    let vm_is_quiet = |id: &u64| vm(*id).is_none_or(|vm| is_placed(vm) && !is_lost(vm, alive));
    group.complete
        && !group.deleting
        && group.held.iter().all(|kept| kept.fenced.is_none())
        && group.vms.iter().all(vm_is_quiet)
}

/// Whether a VM should run and its host is not heard of.
fn is_lost(vm: &Vm, alive: &BTreeSet<HostName>) -> bool {
    let host = vm.located.as_ref().map(|located| &located.host);
    vm.want == Want::Running && host.is_some_and(|host| !alive.contains(host))
}

/// Whether a lost VM has been so for long enough that it does not run any more.
fn is_fenced(vm: &Vm) -> bool {
    let since = Time::now().second() - vm.changed_at.second();
    vm.status == VmStatus::Error && since > FENCE.as_secs().cast_signed()
}

fn placement_id(group: &Group) -> Result<PlacementId, CloudError> {
    Ok(PlacementId::new(&format!("group-{}", group.id))?)
}

async fn place(work: &Work, group: &Stored<Group>, vms: &[Stored<Vm>]) -> Result<(), CloudError> {
    let Some(first) = vms.first() else { return Ok(()) };
    let region = work.cloud.named_global::<Region>(work.region.as_str()).await?;
    let count = group.value.vms.len() as u32;
    let request = Request {
        vms: count,
        spares: group.value.spares,
        flavor: first.value.flavor.to_placement(&region.value.fabric),
        policy: group.value.policy,
    };
    let ask = Ask { organization: group.value.organization.clone(), request };
    let claims = work.cloud.claims(&work.region).await?;
    match claims.place(placement_id(&group.value)?, ask).await {
        Ok(placement) => {
            hold(work, group, &placement, count).await?;
            for vm in vms.iter().filter(|vm| vm.value.located.is_none()) {
                let located = located_in(&placement, vm.value.number())?;
                locate(work, vm, located, "placed").await?;
            }
            Ok(())
        }
        Err(ClaimError::Refused(refusal)) => {
            for vm in vms.iter().filter(|vm| vm.value.status == VmStatus::Creating) {
                refuse(work, vm, &refusal).await?;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Write which places are held.
async fn hold(
    work: &Work,
    was: &Stored<Group>,
    placement: &Placement,
    count: u32,
) -> Result<(), CloudError> {
    let mut held = Vec::new();
    for number in count..count + was.value.spares {
        held.push(Kept { located: located_in(placement, number)?, fenced: None });
    }
    if was.value.held == held {
        return Ok(());
    }
    let now = Group { held, ..was.value.clone() };
    let mut draft = Draft::new();
    draft.change(was, &now)?;
    work.commit(draft).await
}

async fn says_gone(work: &Work, host: &HostName, vm: u64) -> Result<bool, CloudError> {
    if !work.cloud.knows_host(&work.region, host).await? {
        return Ok(true);
    }
    let entry = work.cloud.store().get(&keys::report(&work.region, host, vm)).await?;
    let report = entry.map(Stored::<VmReport>::read).transpose()?;
    Ok(report.is_some_and(|report| report.value.state == VmState::Gone))
}

/// A place whose host has said that nothing of the VM is left there is free to be used again.
async fn unfence(work: &Work, was: &Stored<Group>) -> Result<bool, CloudError> {
    let mut now = was.value.clone();
    let mut draft = Draft::new();
    for kept in &mut now.held {
        let Some(vm) = kept.fenced else { continue };
        let host = &kept.located.host;
        if says_gone(work, host, vm).await? {
            let (told, report) =
                (keys::desired_vm(&work.region, host, vm), keys::report(&work.region, host, vm));
            let traffic = work.cloud.traffic_at(&work.region, host, vm).await?;
            draft.raw(|transaction| transaction.delete(told).delete(report));
            if let Ok(usage) = work.cloud.get::<UsageRecord>(&was.value.organization, vm).await
                && !traffic.is_none()
            {
                let mut more = usage.value.clone();
                more.add(traffic);
                draft.change(&usage, &more)?;
            }
            kept.fenced = None;
        }
    }
    if now == was.value {
        return Ok(false);
    }
    draft.change(was, &now)?;
    work.commit(draft).await?;
    Ok(true)
}

/// Move one VM from a lost host to a place that is held, if there is such a VM and such a place.
async fn replace_one(
    work: &Work,
    was: &Stored<Group>,
    lost: &[&Stored<Vm>],
    alive: &BTreeSet<HostName>,
) -> Result<Option<u64>, CloudError> {
    let Some(vm) = lost.iter().find(|vm| is_fenced(&vm.value)) else { return Ok(None) };
    let free = |kept: &Kept| kept.fenced.is_none() && alive.contains(&kept.located.host);
    let Some(index) = was.value.held.iter().position(free) else { return Ok(None) };
    let Some(old) = vm.value.located.clone() else { return Ok(None) };

    let mut group = was.value.clone();
    let new: Located = group.held[index].located.clone();
    group.held[index] = Kept { located: old.clone(), fenced: Some(vm.value.id) };
    let mut draft = Draft::new();
    draft.change(was, &group)?;
    let now = draft_located(work, &mut draft, vm, new.clone(), "moved").await?;
    // When the lost host is back, it is to end what it still has.
    draft_told(work, &mut draft, &now, &old, Power::Gone).await?;
    let why = format!(
        "VM {} of group '{}' moved from host {}, which is lost, to the place held on host {}",
        now.id, group.name, old.host, new.host
    );
    let event = work.cloud.event(&now, "re-placed", crate::resource::Severity::Warning, why);
    draft.create(&event.await?)?;
    work.commit(draft).await?;
    work.metrics.count("lanekeeper_vms_moved_total", "VMs moved from a lost host to a held place.");
    Ok(Some(now.id))
}

/// End a group: its VMs first, then its places.
async fn end(work: &Work, group: &Stored<Group>) -> Result<Vec<Item>, CloudError> {
    let vms = work.cloud.vms_of(&group.value).await?;
    for vm in vms.iter().filter(|vm| vm.value.want != Want::Deleted) {
        let mut draft = Draft::new();
        Cloud::draft_end_of_member(&mut draft, vm)?;
        work.commit(draft).await?;
    }
    // Each of them wakes its group when it is gone.
    if !vms.is_empty() {
        return Ok(Vec::new());
    }
    if unfence(work, group).await? {
        return Ok(vec![Item::Group(group.value.id)]);
    }
    if group.value.held.iter().any(|kept| kept.fenced.is_some()) {
        return Ok(Vec::new());
    }
    let claims = work.cloud.claims(&work.region).await?;
    claims.release(placement_id(&group.value)?).await?;
    let mut draft = Draft::new();
    draft.delete(group);
    draft.drop_name::<Group>(&group.value.environment.to_string(), &group.value.name);
    work.commit(draft).await?;
    Ok(Vec::new())
}
