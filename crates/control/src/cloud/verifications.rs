//! Verification runs. A run is written with one task for each of its VMs, where the VM's host sees it;
//! what the host's agent finds takes the task's place. Nothing has to watch a run: how far it is follows
//! from what is there and from its deadline.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use lanekeeper_model::Mtu;
use serde::{Deserialize, Serialize};

use super::draft::json;
use super::{Ask, Cloud, CloudError, Draft, Listed, Once, Stored, again, status_word};
use crate::keys::{self, HostName, OrgName, RegionName};
use crate::protocol::{
    CheckVerdict, DesiredProof, ProofPeer, ProofPort, ProofReport, ProofReports,
};
use crate::resource::{
    Group, Network, Port, Resource, Severity, Time, Verification, VerificationPart,
    VerificationSpec, VerificationSum, VerificationView, Verified, Vm, VmStatus,
};
use crate::store::Expect;

/// Most VMs of a run: deleting it is one transaction.
const MOST_VMS: usize = 40;
/// Runs that are kept of an organization; the oldest goes when there would be more.
const MOST_RUNS: usize = 50;
/// How long hosts may take, in seconds.
const PATIENCE: i64 = 600;
/// Most checks that a host tells of one VM: more than any run asks for.
const MOST_CHECKS: usize = 4096;
/// Most bytes of each text that a host tells: it may have been taken over.
const MOST_TEXT: usize = 400;

/// What a run asks of a VM's host, and where the answer belongs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProofTask {
    pub(super) proof: DesiredProof,
    organization: OrgName,
    part: u64,
}

/// A VM that is to be looked at.
struct Member {
    vm: Vm,
    host: HostName,
    ports: Vec<Port>,
}

impl Cloud {
    /// Have the lanes of some VMs looked at.
    ///
    /// # Errors
    /// [`CloudError::Invalid`] for none, too many, or VMs of several regions; [`CloudError::State`] for
    /// one that does not run.
    pub async fn create_verification(
        &self,
        organization: &OrgName,
        spec: VerificationSpec,
        once: Option<&Once>,
    ) -> Result<VerificationView, CloudError> {
        let members = self.members(organization, &spec).await?;
        let Some(region) = members.first().map(|first| first.vm.region.clone()) else {
            let why = "it names no VM; name a group, or VMs";
            return Err(CloudError::invalid("vms", "[]", why));
        };
        let networks = self.networks_of(organization, &members).await?;
        // Last of what can be refused: whoever is refused has deleted nothing.
        self.make_room(organization).await?;
        let run = self.new_id().await?;
        let mut draft = Draft::new();
        let mut vms = Vec::new();
        for member in &members {
            let part = self.new_id().await?;
            let key = keys::desired_proof(&region, &member.host, run, member.vm.id);
            let proof = proof(run, member, &members, &networks);
            let task = ProofTask { proof, organization: organization.clone(), part };
            let value = json(&key, &task)?;
            draft
                .raw(|transaction| transaction.expect(key.clone(), Expect::Absent).put(key, value));
            let (vm, name, host) = (member.vm.id, member.vm.name.clone(), member.host.clone());
            vms.push(Verified { vm, name, host, part });
        }
        let now = Time::now();
        let run = Verification {
            id: run,
            organization: organization.clone(),
            region,
            group: spec.group,
            vms,
            deadline: Time::from_second(now.second() + PATIENCE),
            created_at: now,
        };
        draft.create(&run)?;
        let view = VerificationView::new(run, Vec::new(), now);
        draft.answer_once(once, 201, &view)?;
        self.commit(draft).await?;
        Ok(view)
    }

    async fn members(
        &self,
        organization: &OrgName,
        spec: &VerificationSpec,
    ) -> Result<Vec<Member>, CloudError> {
        let vms = match spec.group {
            Some(id) if spec.vms.is_empty() => {
                let group = self.get::<Group>(organization, id).await?;
                self.vms_of(&group.value).await?
            }
            Some(id) => {
                let why = "name either a group or VMs; a group's VMs are all looked at";
                return Err(CloudError::invalid("group", id.to_string(), why));
            }
            None => {
                let mut ids = spec.vms.clone();
                ids.sort_unstable();
                ids.dedup();
                let mut vms = Vec::new();
                for id in ids.into_iter().take(MOST_VMS + 1) {
                    vms.push(self.get::<Vm>(organization, id).await?);
                }
                vms
            }
        };
        if vms.len() > MOST_VMS {
            let why = format!("a run has at most {MOST_VMS} VMs; name fewer, in several runs");
            return Err(CloudError::invalid("vms", vms.len().to_string(), why));
        }
        let mut members: Vec<Member> = Vec::new();
        for Stored { value: vm, .. } in vms {
            let host = match (&vm.located, vm.status) {
                (Some(located), VmStatus::Active) => located.host.clone(),
                (_, status) => {
                    return Err(CloudError::State {
                        what: "VM",
                        which: vm.name,
                        state: status_word(status).to_owned(),
                        why: "only VMs that are ACTIVE can be looked at".to_owned(),
                    });
                }
            };
            if let Some(other) = members.first().filter(|first| first.vm.region != vm.region) {
                let why =
                    format!("VM '{}' is in another region; make a run of each", other.vm.name);
                return Err(CloudError::invalid("vms", vm.name, why));
            }
            let ports = self.ports_of(&vm).await?.into_iter().map(|port| port.value).collect();
            members.push(Member { vm, host, ports });
        }
        Ok(members)
    }

    async fn networks_of(
        &self,
        organization: &OrgName,
        members: &[Member],
    ) -> Result<BTreeMap<u64, Network>, CloudError> {
        let mut networks = BTreeMap::new();
        for id in members.iter().flat_map(|member| &member.ports).map(|port| port.network) {
            if let Entry::Vacant(unread) = networks.entry(id) {
                unread.insert(self.get::<Network>(organization, id).await?.value);
            }
        }
        Ok(networks)
    }

    /// Delete the oldest runs, so that one more is not too many.
    async fn make_room(&self, organization: &OrgName) -> Result<(), CloudError> {
        let runs = self.all::<Verification>(organization).await?;
        let too_many = (runs.len() + 1).saturating_sub(MOST_RUNS);
        for run in runs.iter().take(too_many) {
            match self.delete_verification(run).await {
                // Another call has made the same room.
                Ok(()) | Err(CloudError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A run with what was found so far.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn verification(
        &self,
        organization: &OrgName,
        id: u64,
    ) -> Result<VerificationView, CloudError> {
        let run = self.get::<Verification>(organization, id).await?.value;
        let mut parts = Vec::new();
        for vm in &run.vms {
            match self.get::<VerificationPart>(organization, vm.part).await {
                Ok(part) => parts.push(part.value),
                Err(CloudError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(VerificationView::new(run, parts, Time::now()))
    }

    /// A page of runs, each with how far it is. What was found is left out: it is much.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn verifications(
        &self,
        organization: &OrgName,
        ask: Ask,
    ) -> Result<(Vec<VerificationView>, bool), CloudError> {
        let Listed { items, more } = self.list::<Verification>(organization, ask).await?;
        let mut by_run: BTreeMap<u64, Vec<VerificationSum>> = BTreeMap::new();
        for sum in self.all::<VerificationSum>(organization).await? {
            by_run.entry(sum.value.run).or_default().push(sum.value);
        }
        let view = |run: Stored<Verification>| {
            let sums = by_run.remove(&run.value.id).unwrap_or_default();
            VerificationView::without_checks(run.value, &sums, Time::now())
        };
        Ok((items.into_iter().map(view).collect(), more))
    }

    /// Delete a run: what it still asks for, and what was found.
    ///
    /// # Errors
    /// [`CloudError::Stale`].
    pub async fn delete_verification(&self, was: &Stored<Verification>) -> Result<(), CloudError> {
        let mut draft = Draft::new();
        draft.delete(was);
        let Verification { id, region, organization, vms, .. } = &was.value;
        for Verified { vm, host, part, .. } in vms {
            let task = keys::desired_proof(region, host, *id, *vm);
            let of_part = |kind| keys::tenant_one(kind, organization, *part);
            let found = of_part(VerificationPart::KIND);
            let sum = of_part(VerificationSum::KIND);
            draft.raw(|transaction| transaction.delete(task).delete(found).delete(sum));
        }
        self.commit(draft).await?;
        Ok(())
    }

    /// Take up what an agent found. What nobody asks it for, or does not any more, is let go.
    ///
    /// # Errors
    /// [`CloudError::Invalid`] for more than any run asks for.
    pub async fn take_proofs(
        &self,
        region: &RegionName,
        host: &HostName,
        reports: ProofReports,
    ) -> Result<(), CloudError> {
        for report in &reports.proofs {
            if report.checks.len() > MOST_CHECKS {
                let why = format!("a VM has at most {MOST_CHECKS} checks");
                return Err(CloudError::invalid("checks", report.checks.len().to_string(), why));
            }
            again(|| self.take_proof(region, host, report)).await?;
        }
        Ok(())
    }

    async fn take_proof(
        &self,
        region: &RegionName,
        host: &HostName,
        report: &ProofReport,
    ) -> Result<(), CloudError> {
        let key = keys::desired_proof(region, host, report.run, report.vm);
        let Some(entry) = self.store.get(&key).await? else { return Ok(()) };
        let revision = entry.modified;
        let ProofTask { organization, part, .. } = Stored::<ProofTask>::read(entry)?.value;
        let mut checks = report.checks.clone();
        for check in &mut checks {
            let texts = [&mut check.port, &mut check.check, &mut check.found];
            texts.into_iter().chain(check.remedy.as_mut()).for_each(shorten);
        }
        let failed = checks.iter().find(|check| check.verdict == CheckVerdict::Failed).cloned();
        let mut draft = Draft::new();
        draft.raw(|transaction| transaction.expect(key.clone(), Expect::At(revision)).delete(key));
        let part = VerificationPart {
            id: part,
            organization: organization.clone(),
            run: report.run,
            vm: report.vm,
            checks,
            at: Time::now(),
        };
        draft.create(&part)?;
        draft.create(&VerificationSum::of(&part))?;
        if let Some(check) = failed
            && let Ok(vm) = self.get::<Vm>(&organization, report.vm).await
        {
            let why = format!("{} of {}: {}", check.check, check.port, check.found);
            let event = self.event(&vm.value, "verification-failed", Severity::Warning, why);
            draft.create(&event.await?)?;
        }
        self.commit(draft).await.map(drop)
    }
}

fn shorten(text: &mut String) {
    if text.len() > MOST_TEXT {
        let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MOST_TEXT).last();
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
}

/// What is asked of a VM: each of its ports shall reach those of the others that are on its network,
/// and in its subnet unless the network's subnets reach each other.
fn proof(
    run: u64,
    of: &Member,
    members: &[Member],
    networks: &BTreeMap<u64, Network>,
) -> DesiredProof {
    let others = || members.iter().filter(|other| other.vm.id != of.vm.id);
    let ports = of.ports.iter().filter_map(|port| {
        let network = networks.get(&port.network)?;
        let mtu = Mtu::new(network.mtu.into()).ok()?;
        let reached = |other: &&Port| {
            other.network == port.network && (other.subnet == port.subnet || network.routed)
        };
        let peers = others().flat_map(|other| {
            other.ports.iter().filter(reached).map(|it| ProofPeer {
                name: format!("{}/{}", other.vm.name, it.name),
                address: it.address.into(),
                mtu,
            })
        });
        Some(ProofPort { port: port.id, peers: peers.collect() })
    });
    DesiredProof { run, vm: of.vm.id, ports: ports.collect() }
}
