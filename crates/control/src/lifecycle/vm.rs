//! Seeing to one VM: read what is known, decide, write.

use super::step::{Becoming, Step, View, next};
use super::{Item, Work, desired, orphan};
use crate::claims::{Ask, ClaimError};
use crate::cloud::{Cloud, CloudError, Draft, Stored};
use crate::keys::{self, Key, OrgName};
use crate::placement::{Placement, Policy, Refusal, Request};
use crate::protocol::Power;
use crate::resource::{
    Fault, FaultKind, Group, Located, Port, Region, Severity, Time, UsageRecord, Vm, VmStatus, Want,
};
use crate::spans::TARGET;
use lanekeeper_topology::Strictness;
use tracing::{Instrument, trace_span};

pub(super) async fn see_to(work: &Work, owner: &OrgName, id: u64) -> Result<Vec<Item>, CloudError> {
    loop {
        let vm = match work.cloud.get::<Vm>(owner, id).await {
            Ok(vm) if vm.value.region == work.region => vm,
            Ok(_) => return Ok(Vec::new()),
            Err(CloudError::NotFound { .. }) => {
                orphan::give_back(work, &Item::Vm(id)).await?;
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let group = vm.value.group.map(|member| Item::Group(member.group));
        let view = look(work, &vm.value).await?;
        let step = next(&view);
        let span = trace_span!(target: TARGET, "step", what = word(&step), vm = id);
        let is_last = matches!(step, Step::Wait | Step::Finish);
        take(work, &vm, step).instrument(span).await?;
        if is_last {
            return Ok(group.into_iter().collect());
        }
    }
}

async fn take(work: &Work, vm: &Stored<Vm>, step: Step) -> Result<(), CloudError> {
    match step {
        Step::Wait => Ok(()),
        Step::Place => place(work, vm).await,
        Step::Tell(power) => tell(work, vm, power).await,
        Step::Become(becoming) => become_other(work, vm, becoming).await,
        Step::Finish => finish(work, vm).await,
    }
}

/// A step in a word.
fn word(step: &Step) -> &'static str {
    match step {
        Step::Wait => "wait",
        Step::Place => "place",
        Step::Tell(Power::On) => "tell on",
        Step::Tell(Power::Off) => "tell off",
        Step::Tell(Power::Gone) => "tell gone",
        Step::Become(becoming) => crate::cloud::status_word(becoming.status),
        Step::Finish => "finish",
    }
}

async fn read<T: serde::de::DeserializeOwned>(
    work: &Work,
    key: &Key,
) -> Result<Option<T>, CloudError> {
    let entry = work.cloud.store().get(key).await?;
    Ok(entry.map(Stored::<T>::read).transpose()?.map(|stored| stored.value))
}

async fn look(work: &Work, vm: &Vm) -> Result<View, CloudError> {
    let mut view =
        View { vm: vm.clone(), host_alive: true, host_known: true, told: None, report: None };
    if let Some(Located { host, .. }) = &vm.located {
        let region = &work.region;
        let (told, report) =
            (keys::desired_vm(region, host, vm.id), keys::report(region, host, vm.id));
        // At once: with etcd each is a way to another machine.
        (view.host_alive, view.host_known, view.told, view.report) = tokio::try_join!(
            work.cloud.is_alive(region, host),
            work.cloud.knows_host(region, host),
            read(work, &told),
            read(work, &report),
        )?;
    }
    Ok(view)
}

/// Ask for a place, and write what came of it.
async fn place(work: &Work, was: &Stored<Vm>) -> Result<(), CloudError> {
    let vm = &was.value;
    let region = work.cloud.named_global::<Region>(work.region.as_str()).await?;
    let request = Request {
        vms: 1,
        spares: 0,
        flavor: vm.flavor.to_placement(&region.value.fabric),
        policy: Policy::Compact(Strictness::Preferred),
    };
    let ask = Ask { organization: vm.organization.clone(), request };
    match work.cloud.claims(&work.region).await?.place(vm.placement(), ask).await {
        Ok(placement) => locate(work, was, located_in(&placement, 0)?, "placed").await,
        Err(ClaimError::Refused(refusal)) => refuse(work, was, &refusal).await,
        Err(error) => Err(error.into()),
    }
}

/// Where a VM of a number is in a placement.
pub(super) fn located_in(placement: &Placement, number: u32) -> Result<Located, CloudError> {
    let mut all =
        placement.0.iter().flat_map(|(host, places)| places.iter().map(move |p| (host, p)));
    let found = all.find(|(_, place)| place.vm == number);
    let (host, place) = found.ok_or_else(|| CloudError::none("place of VM", &number))?;
    Ok(Located { host: host.clone(), place: place.clone() })
}

/// Write where a VM is, and tell its host.
pub(super) async fn locate(
    work: &Work,
    was: &Stored<Vm>,
    located: Located,
    reason: &str,
) -> Result<(), CloudError> {
    let mut draft = Draft::new();
    let now = draft_located(work, &mut draft, was, located, reason).await?;
    let key = keys::tenant_one("usage-records", &now.organization, now.id);
    if work.cloud.store().get(&key).await?.is_none() {
        draft.create(&usage_of(&now))?;
    }
    work.commit(draft).await
}

/// That a VM is somewhere from now on.
pub(super) async fn draft_located(
    work: &Work,
    draft: &mut Draft,
    was: &Stored<Vm>,
    located: Located,
    reason: &str,
) -> Result<Vm, CloudError> {
    let mut now = was.value.clone();
    let message = format!("{reason} on host {}", located.host);
    now.located = Some(located.clone());
    (now.status, now.fault, now.changed_at) = (VmStatus::Build, None, Time::now());
    now.generation += 1;
    draft.change(was, &now)?;
    let event = work.cloud.event(&now, reason, Severity::Info, message).await?;
    draft.create(&event)?;
    draft_told(work, draft, &now, &located, Power::On).await?;
    Ok(now)
}

fn usage_of(vm: &Vm) -> UsageRecord {
    let host = vm.located.as_ref().map(|located| located.host.clone());
    UsageRecord {
        id: vm.id,
        organization: vm.organization.clone(),
        vm: vm.id,
        name: vm.name.clone(),
        flavor: vm.flavor.name.clone(),
        host,
        vfs: vm.flavor.vf_count(),
        gpus: vm.flavor.gpu_count(),
        from: Time::now(),
        to: None,
        vf_hours: 0.0,
        gpu_hours: 0.0,
        sent_bytes: 0,
        received_bytes: 0,
    }
}

/// Write what a host is told of a VM.
pub(super) async fn draft_told(
    work: &Work,
    draft: &mut Draft,
    vm: &Vm,
    located: &Located,
    power: Power,
) -> Result<(), CloudError> {
    let fenced = match vm.group {
        Some(member) => {
            let group = work.cloud.get::<Group>(&vm.organization, member.group).await;
            group.is_ok_and(|group| group.value.spares > 0)
        }
        None => false,
    };
    let told = desired::compose(&work.cloud, vm, located, power, fenced).await?;
    let key = keys::desired_vm(&work.region, &located.host, vm.id);
    let value = serde_json::to_vec(&told)
        .map_err(|error| crate::store::StoreError::Foreign(format!("{key}: {error}")))?;
    draft.raw(|transaction| transaction.put(key, value));
    Ok(())
}

async fn tell(work: &Work, was: &Stored<Vm>, power: Power) -> Result<(), CloudError> {
    let Some(located) = &was.value.located else { return Ok(()) };
    let mut draft = Draft::new();
    draft.depend(was);
    draft_told(work, &mut draft, &was.value, located, power).await?;
    work.commit(draft).await
}

/// There is no room, or no quota.
pub(super) async fn refuse(
    work: &Work,
    was: &Stored<Vm>,
    refusal: &Refusal,
) -> Result<(), CloudError> {
    let kind = match refusal {
        Refusal::Quota { .. } => FaultKind::Quota,
        _ => FaultKind::NoRoom,
    };
    let message = refusal.to_string();
    let becoming = Becoming {
        status: VmStatus::Error,
        fault: Some(Fault { kind, message: message.clone() }),
        rests: false,
        reason: "refused",
        message,
    };
    become_other(work, was, becoming).await
}

async fn become_other(work: &Work, was: &Stored<Vm>, becoming: Becoming) -> Result<(), CloudError> {
    let Becoming { status, fault, rests, reason, message } = becoming;
    let mut now = was.value.clone();
    let severity = if fault.is_some() { Severity::Error } else { Severity::Info };
    (now.status, now.fault, now.changed_at) = (status, fault, Time::now());
    if rests {
        now.want = Want::Stopped;
        now.generation += 1;
    }
    let mut draft = Draft::new();
    draft.change(was, &now)?;
    draft.create(&work.cloud.event(&now, reason, severity, message).await?)?;
    work.commit(draft).await?;
    let word = crate::cloud::status_word(status);
    let series = format!("lanekeeper_vm_transitions_total{{status=\"{word}\"}}");
    work.metrics.count(series, "How often a VM came to a status.");
    Ok(())
}

/// Give back what a VM had, and forget it.
async fn finish(work: &Work, was: &Stored<Vm>) -> Result<(), CloudError> {
    let vm = &was.value;
    // A group's places are given back together, when its last VM is gone.
    if vm.group.is_none() {
        work.cloud.claims(&work.region).await?.release(vm.placement()).await?;
    }
    let mut draft = Draft::new();
    draft.delete(was);
    draft.drop_name::<Vm>(&vm.environment.to_string(), &vm.name);
    for id in &vm.ports {
        match work.cloud.get::<Port>(&vm.organization, *id).await {
            Ok(port) => Cloud::draft_delete_port(&mut draft, &port)?,
            Err(CloudError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(Located { host, .. }) = &vm.located {
        let (told, report) =
            (keys::desired_vm(&work.region, host, vm.id), keys::report(&work.region, host, vm.id));
        draft.raw(|transaction| transaction.delete(told).delete(report));
    }
    let usage = work.cloud.get::<UsageRecord>(&vm.organization, vm.id).await;
    if let Ok(usage) = usage {
        let mut over = UsageRecord { to: Some(Time::now()), ..usage.value.clone() };
        over.reckon();
        over.add(work.cloud.traffic_of(vm).await?);
        draft.change(&usage, &over)?;
    }
    let event = work.cloud.event(vm, "deleted", Severity::Info, "nothing of it is left").await?;
    draft.create(&event)?;
    work.commit(draft).await
}
