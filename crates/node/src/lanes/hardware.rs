//! VFs of the host's own hardware, through the host's [`Owner`]: its ledger says whose a VF is, also for
//! whoever uses this host by `lanekeeper host` beside the agent. Each VF that a VM has is a claim with
//! a token of the VF's own, which is derived from a secret of this agent.
//!
//! What a NIC cannot hold a VF to is left out: the addresses that it may send from. Its MAC and its
//! VLAN hold it. A guaranteed rate that is a VF's ceiling as well needs no more than ceilings, if every VF
//! of its PF has one and the PF's link can carry them all: so it is where a NIC has ceilings only. A
//! VF's link follows the PF's: not every NIC can take it down (`igb` cannot), and a VF
//! that no VM has open sends nothing.

use std::path::Path;
use std::sync::Arc;

use lanekeeper_control::keys::PfName;
use lanekeeper_control::protocol::DesiredPort;
use lanekeeper_host::ledger::{ClaimRecord, Life, PfRecord};
use lanekeeper_host::{
    ClaimId, ClaimRequest, DriverWanted, HostError, OwnedVfs, Owner, OwnerToken, RdmaNeed,
    Released, VFIO, Which,
};
use lanekeeper_hw::inventory::PfReading;
use lanekeeper_hw::{Hardware, HardwareError};
use lanekeeper_model::{
    LinkState, MacAddr, Mbps, PfId, RateLimits, VfChange, VfCounters, VfIndex, VfSettings, VfStatus,
};
use lanekeeper_vmm::HostFunction;

use super::{Device, Lane, Nics};
use crate::error::NodeError;
use crate::journal::replace;

#[cfg(test)]
mod tests;

/// PFs that `lanekeeper host apply` has set up, and of which VMs may have VFs.
pub(crate) struct HardwareNics {
    owner: Arc<Owner>,
    secret: Secret,
    /// Pools whose PFs are meant; none for all.
    pools: Vec<String>,
}

/// What the tokens of this agent's claims are derived from.
struct Secret([u8; 32]);

impl Secret {
    /// The one in a folder, made if it is not there.
    fn load(folder: &Path) -> Result<Self, NodeError> {
        let path = folder.join("vf-secret");
        match std::fs::read(&path) {
            Ok(bytes) => bytes.try_into().map(Self).map_err(|bytes: Vec<u8>| {
                let why = format!("it has {} bytes, not 32; restore it", bytes.len());
                NodeError::file(&path, "use")(std::io::Error::other(why))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes)
                    .map_err(|error| NodeError::file(&path, "draw")(error.into()))?;
                replace(&path, &bytes)?;
                Ok(Self(bytes))
            }
            Err(error) => Err(NodeError::file(&path, "read")(error)),
        }
    }

    fn token(&self, lane: &Lane) -> OwnerToken {
        OwnerToken::derived(&self.0, &lane.to_string())
    }
}

/// One PF whose VFs VMs may have.
pub(crate) struct OfferedPf {
    /// What the ledger knows of it.
    pub(crate) record: PfRecord,
    /// VFs that are free or this agent's.
    pub(crate) vfs: Vec<VfIndex>,
    /// Of them, this agent's.
    pub(crate) ours: Vec<VfIndex>,
}

impl HardwareNics {
    /// Those of an owner, in some pools of its host file, or all. The secret is in `folder`.
    pub(crate) fn new(
        owner: Arc<Owner>,
        folder: &Path,
        pools: &[String],
    ) -> Result<Self, NodeError> {
        Ok(Self { owner, secret: Secret::load(folder)?, pools: pools.to_vec() })
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Whether there is a PF of this name among them.
    pub(crate) fn has(&self, pf: &PfName) -> Result<bool, NodeError> {
        Ok(self.find(pf)?.is_some())
    }

    /// Those of the ledger's records that can be read: a damaged one is its own PF's alone.
    fn records(&self) -> Result<Vec<(String, PfRecord)>, NodeError> {
        let all = self.owner.ledger().read_all();
        let all = all.map_err(|error| NodeError::Owner(Box::new(HostError::from(error))))?;
        let mut good = Vec::new();
        for (key, record) in all {
            match record {
                Ok(record) => good.push((key, record)),
                Err(error) => tracing::error!(%error, "a PF is left out"),
            }
        }
        Ok(good)
    }

    fn means(&self, record: &PfRecord) -> bool {
        let offered = |pools: &[String]| {
            self.pools.is_empty() || pools.iter().any(|pool| self.pools.contains(pool))
        };
        // What is no longer offered and in use still is let go of by the same way.
        record.target.as_ref().is_some_and(|target| offered(&target.pools))
            || record.claims.values().any(|claim| self.is_ours(record, claim))
    }

    fn is_ours(&self, record: &PfRecord, claim: &ClaimRecord) -> bool {
        let Ok(pf) = PfName::new(&record.name) else { return false };
        self.secret.token(&Lane { pf, vf: claim.vf }).hash() == claim.token
    }

    /// PFs that VFs can be had of now: quarantined VFs and those of others are not among theirs, and
    /// while the host's agent withholds a PF only those are that VMs have.
    pub(crate) fn offered(&self) -> Result<Vec<OfferedPf>, NodeError> {
        let withheld = self.owner.ledger().withheld();
        let mut offered = Vec::new();
        for (key, record) in self.records()? {
            if !self.means(&record) {
                continue;
            }
            let ours = |vf: &VfIndex| {
                record.owner_of(*vf).is_some_and(|(_, claim)| self.is_ours(&record, claim))
            };
            let free = |vf: &VfIndex| {
                !withheld.contains_key(&key)
                    && record.target.is_some()
                    && record.unconfirmed.is_none()
                    && record.free_vfs().any(|free| free == *vf)
            };
            let vfs = record.vfs.keys().filter(|vf| ours(vf) || free(vf)).copied().collect();
            let ours = record.vfs.keys().filter(|vf| ours(vf)).copied().collect();
            offered.push(OfferedPf { record, vfs, ours });
        }
        Ok(offered)
    }

    /// A PF that is meant, by its name.
    fn find(&self, pf: &PfName) -> Result<Option<PfRecord>, NodeError> {
        let mut records = self.records()?.into_iter().map(|(_, record)| record);
        Ok(records.find(|record| record.name == pf.as_str() && self.means(record)))
    }

    fn record(&self, lane: &Lane) -> Result<PfRecord, NodeError> {
        self.find(&lane.pf)?.ok_or_else(|| NodeError::Nic {
            lane: lane.clone(),
            source: HardwareError::Host {
                what: format!("pf {}", lane.pf),
                source: std::io::Error::other("the host's ledger has none of this name"),
            },
        })
    }

    /// The claim that a VF is by, if it is ours, with where the VF stands.
    fn claimed(&self, lane: &Lane) -> Result<Option<Claimed>, NodeError> {
        let token = self.secret.token(lane);
        let hash = token.hash();
        let record = self.record(lane)?;
        Ok(record.claim_of(&hash).map(|(id, claim)| Claimed {
            id: id.clone(),
            settings: claim.settings.clone(),
            life: record.vfs.get(&lane.vf).map_or(Life::Absent, |vf| vf.life.clone()),
            pf: PfId::Pci(record.last_address),
            view: OwnedVfs::new(Arc::clone(&self.owner), &token),
            token,
        }))
    }

    fn claim(&self, lane: &Lane, settings: &VfSettings) -> Result<(), NodeError> {
        let reading = self.owner.reading(lane.pf.as_str()).map_err(of(lane))?;
        let rdma = if reading.rdma.is_some() { RdmaNeed::Hardware } else { RdmaNeed::Software };
        let request = ClaimRequest {
            pf: Some(lane.pf.as_str().to_owned()),
            vf: Some(lane.vf),
            mac: Some(settings.mac),
            vlan: Some(settings.vlan),
            min_rate: Some(settings.rate.min),
            max_rate: Some(settings.rate.max),
            trust: Some(settings.trust),
            spoofchk: Some(settings.spoofchk),
            link_state: Some(settings.link_state),
            mtu: Some(settings.mtu),
            rdma: Some(rdma),
            driver: Some(DriverWanted::VfioPci),
            ..ClaimRequest::new(self.secret.token(lane))
        };
        let claim = match self.owner.claim(&request) {
            Err(HostError::NotOnThisPath { field: "min_rate", .. })
                if self.ceilings_do(lane, settings.rate, &reading)? =>
            {
                self.owner.claim(&ClaimRequest { min_rate: Some(Mbps(0)), ..request })
            }
            answer => answer,
        };
        let claim = claim.map_err(of(lane))?;
        tracing::info!(vf = %lane, claim = %claim.id, address = %claim.address, "claimed");
        Ok(())
    }

    /// Whether ceilings alone guarantee a VF its rate: each of its PF's has one, and all of them
    /// together are no more than its link carries.
    fn ceilings_do(
        &self,
        lane: &Lane,
        rate: RateLimits,
        reading: &PfReading,
    ) -> Result<bool, NodeError> {
        let Some(speed) = reading.netdev.as_ref().and_then(|netdev| netdev.speed) else {
            return Ok(false);
        };
        let others = self.record(lane)?.claims.into_values();
        let mut ceilings: Vec<Mbps> = others.map(|claim| claim.settings.rate.max).collect();
        ceilings.push(rate.max);
        let sum: u64 = ceilings.iter().map(|ceiling| u64::from(ceiling.0)).sum();
        let each_has_one = ceilings.iter().all(|ceiling| ceiling.0 != 0);
        Ok(rate.min == rate.max && each_has_one && sum <= u64::from(speed.0))
    }

    fn release(&self, lane: &Lane, claimed: &Claimed) -> Result<(), NodeError> {
        let which = Which::Claim(claimed.id.clone());
        let released = self.owner.release(&which, &claimed.token).map_err(of(lane))?;
        if matches!(released, Released::Quarantined { .. }) {
            // It is not offered any more, so that no VM gets it.
            tracing::error!(vf = %lane, "{released}");
        } else {
            tracing::info!(vf = %lane, "{released}");
        }
        Ok(())
    }
}

/// A claim of ours.
struct Claimed {
    id: ClaimId,
    token: OwnerToken,
    settings: VfSettings,
    life: Life,
    pf: PfId,
    view: OwnedVfs,
}

impl Claimed {
    /// What it is asked for now: by ceilings alone if it was claimed so.
    fn asked(&self, settings: &VfSettings) -> VfSettings {
        let mut asked = on_a_nic(settings);
        let by_ceiling = self.settings.rate.min == Mbps(0) && self.settings.rate.max != Mbps(0);
        if by_ceiling
            && asked.rate == (RateLimits { min: asked.rate.max, max: self.settings.rate.max })
        {
            asked.rate.min = Mbps(0);
        }
        asked
    }

    fn status(&self, lane: &Lane) -> Result<VfStatus, NodeError> {
        let read = self.view.vf(&self.pf, lane.vf);
        read.map_err(|source| NodeError::Nic { lane: lane.clone(), source })
    }

    fn change(&self, lane: &Lane, change: &VfChange) -> Result<(), NodeError> {
        let changed = self.view.set_vf(&self.pf, lane.vf, change);
        changed.map(drop).map_err(|source| NodeError::Nic { lane: lane.clone(), source })
    }
}

fn of(lane: &Lane) -> impl Fn(HostError) -> NodeError {
    let lane = lane.clone();
    move |source| NodeError::Claim { lane: lane.clone(), source: Box::new(source) }
}

/// What of a port's settings a NIC is asked for.
fn on_a_nic(settings: &VfSettings) -> VfSettings {
    VfSettings { addresses: Vec::new(), link_state: LinkState::Auto, ..settings.clone() }
}

impl Nics for HardwareNics {
    fn set(&self, lane: &Lane, settings: &VfSettings) -> Result<(), NodeError> {
        let Some(claimed) = self.claimed(lane)? else {
            return self.claim(lane, &on_a_nic(settings));
        };
        let status = claimed.status(lane)?;
        if claimed.life == Life::Attached && !status.attached {
            self.owner.detached(&claimed.id, &claimed.token).map_err(of(lane))?;
        }
        let now = self.owner.claim_of(&claimed.id, &claimed.token).map_err(of(lane))?;
        if !status.attached && now.driver.as_deref() != Some(VFIO) {
            // Whoever took its driver away may have done more.
            self.release(lane, &claimed)?;
            return self.claim(lane, &on_a_nic(settings));
        }
        claimed.change(lane, &VfChange::to(&claimed.asked(settings)))
    }

    fn scrub(&self, lane: &Lane) -> Result<(), NodeError> {
        match self.claimed(lane)? {
            Some(claimed) => self.release(lane, &claimed),
            // It was never claimed, or is released by now: the ledger has no VF free unscrubbed.
            None => Ok(()),
        }
    }

    fn cut(&self, lane: &Lane) -> Result<(), NodeError> {
        let Some(claimed) = self.claimed(lane)? else { return Ok(()) };
        if claimed.status(lane)?.attached {
            let down = VfChange { link_state: Some(LinkState::Disable), ..VfChange::default() };
            claimed.change(lane, &down)?;
        }
        Ok(())
    }

    fn is(&self, lane: &Lane, settings: &VfSettings) -> Result<bool, NodeError> {
        let Some(claimed) = self.claimed(lane)? else { return Ok(false) };
        let now = claimed.status(lane)?.settings;
        // The VM sets its MTU by itself.
        let wanted = VfSettings { mtu: now.mtu, ..claimed.asked(settings) };
        Ok(now.differing(&wanted).is_empty())
    }

    fn clear_for(&self, lane: &Lane, mac: MacAddr) -> Result<(), NodeError> {
        match self.claimed(lane)? {
            Some(claimed) if claimed.settings.mac != mac => self.release(lane, &claimed),
            _ => Ok(()),
        }
    }

    fn device(&self, lane: &Lane, name: String, port: &DesiredPort) -> Result<Device, NodeError> {
        let Some(claimed) = self.claimed(lane)? else {
            return Err(NodeError::Unclaimed(lane.clone()));
        };
        let claim = self.owner.claim_of(&claimed.id, &claimed.token).map_err(of(lane))?;
        let address = claim.address.into();
        Ok(Device::Function(HostFunction { name, address, mac: Some(port.mac), slot: None }))
    }

    fn status(&self, lane: &Lane) -> Result<VfStatus, NodeError> {
        let claimed = self.claimed(lane)?;
        claimed.ok_or_else(|| NodeError::Unclaimed(lane.clone()))?.status(lane)
    }

    fn counters(&self, lane: &Lane) -> Result<VfCounters, NodeError> {
        let claimed = self.claimed(lane)?.ok_or_else(|| NodeError::Unclaimed(lane.clone()))?;
        let read = claimed.view.counters(&claimed.pf, lane.vf);
        read.map_err(|source| NodeError::Nic { lane: lane.clone(), source })
    }

    fn hand_over(&self, lane: &Lane) -> Result<(), NodeError> {
        let Some(claimed) = self.claimed(lane)? else {
            return Err(NodeError::Unclaimed(lane.clone()));
        };
        self.owner.attached(&claimed.id, &claimed.token).map_err(of(lane))
    }
}
