//! Hosts, their NICs and VFs as an operator sees them, and taking a host out of use.

use std::collections::BTreeMap;

use lanekeeper_model::VfIndex;

use super::{Cloud, CloudError, Draft, Stored};
use crate::keys::{self, HostName, Key, PfName, RegionName};
use crate::placement::{Cable, Closed, HostClaims, Inventory, Scalars, VmPlace};
use crate::resource::{HostView, NicView, Region, VfUse, VfView};
use crate::store::{Range, Scope};

/// A host as it is stored: what it has, and what is claimed of it.
struct Host {
    name: HostName,
    inventory: Inventory,
    claims: HostClaims,
    alive: bool,
}

/// A page of hosts.
#[derive(Clone, Debug, Default)]
pub struct HostPage {
    /// The hosts, by name.
    pub hosts: Vec<HostView>,
    /// Whether there are more.
    pub more: bool,
}

impl Cloud {
    async fn host(&self, region: &RegionName, name: &HostName) -> Result<Host, CloudError> {
        let get = async |key: Key| self.store.get(&key).await;
        let entry = get(keys::host(region, name)).await?;
        let entry = entry.ok_or_else(|| CloudError::none("host", &format!("'{name}'")))?;
        let claims = get(keys::claims_of(region, name)).await?;
        let claims = claims.map(Stored::<HostClaims>::read).transpose()?;
        Ok(Host {
            name: name.clone(),
            inventory: Stored::read(entry)?.value,
            claims: claims.map(|stored| stored.value).unwrap_or_default(),
            alive: self.is_alive(region, name).await?,
        })
    }

    /// A page of a region's hosts.
    ///
    /// # Errors
    /// [`CloudError::NotFound`] without the region.
    pub async fn hosts(
        &self,
        region: &RegionName,
        after: Option<&HostName>,
        limit: usize,
    ) -> Result<HostPage, CloudError> {
        self.named_global::<Region>(region.as_str()).await?;
        let page = self.store.range(Range {
            after: after.map(|host| keys::host(region, host)),
            limit: limit.clamp(1, super::read::MOST),
            ..Range::of(Scope::Under(keys::hosts(region)))
        });
        let page = page.await?;
        let mut hosts = Vec::new();
        for entry in page.entries {
            let name = HostName::new(entry.key.last())?;
            hosts.push(self.host(region, &name).await?.view(region));
        }
        Ok(HostPage { hosts, more: page.more })
    }

    /// One host.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn host_view(
        &self,
        region: &RegionName,
        name: &HostName,
    ) -> Result<HostView, CloudError> {
        Ok(self.host(region, name).await?.view(region))
    }

    /// A host's PFs and software NICs.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn nics(
        &self,
        region: &RegionName,
        name: &HostName,
    ) -> Result<Vec<NicView>, CloudError> {
        Ok(self.host(region, name).await?.nics())
    }

    /// A host's VFs.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn vfs(
        &self,
        region: &RegionName,
        name: &HostName,
    ) -> Result<Vec<VfView>, CloudError> {
        Ok(self.host(region, name).await?.vfs())
    }

    /// Place no more VMs on a host; those on it stay.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn drain(
        &self,
        region: &RegionName,
        name: &HostName,
        drain: bool,
    ) -> Result<HostView, CloudError> {
        let host = self.host(region, name).await?;
        if drain || host.claims.closed == Some(Closed::Draining) {
            let closed = drain.then_some(Closed::Draining);
            self.claims(region).await?.close(name.clone(), closed).await?;
        }
        self.host_view(region, name).await
    }

    /// Know a host no more: it is declared dead, and what was claimed of it is free. Only what is sure
    /// not to run any more may be forgotten.
    ///
    /// # Errors
    /// [`CloudError::State`] while its agent is heard of.
    pub async fn forget_host(
        &self,
        region: &RegionName,
        name: &HostName,
    ) -> Result<(), CloudError> {
        let host = self.host(region, name).await?;
        if host.alive {
            return Err(CloudError::State {
                what: "host",
                which: format!("'{name}'"),
                state: "alive".to_owned(),
                why: "end its agent, and its VMs, before it is declared dead".to_owned(),
            });
        }
        let mut draft = Draft::new();
        draft.raw(|transaction| {
            transaction.delete(keys::host(region, name)).delete(keys::agent(region, name))
        });
        self.commit(draft).await?;
        Ok(())
    }

    /// Whether a host is known.
    pub(crate) async fn knows_host(
        &self,
        region: &RegionName,
        name: &HostName,
    ) -> Result<bool, CloudError> {
        Ok(self.store.has(&keys::host(region, name)).await?)
    }

    /// Whether a host's agent is heard of.
    pub(crate) async fn is_alive(
        &self,
        region: &RegionName,
        name: &HostName,
    ) -> Result<bool, CloudError> {
        Ok(self.store.has(&keys::alive_one(region, name)).await?)
    }
}

impl Host {
    fn places(&self) -> impl Iterator<Item = &VmPlace> {
        self.claims.placements.values().flatten()
    }

    fn view(&self, region: &RegionName) -> HostView {
        let report = self.inventory.report();
        let sum = |scalars: fn(&VmPlace) -> u64| self.places().map(scalars).sum::<u64>();
        let vm = |placement: &str| placement.strip_prefix("vm-")?.parse().ok();
        HostView {
            name: self.name.clone(),
            region: region.clone(),
            pod: report.pod.clone(),
            alive: self.alive,
            closed: self.claims.closed,
            total: report.scalars,
            used: Scalars {
                vcpus: sum(|place| place.scalars.vcpus.into()) as u32,
                ram_mib: sum(|place| place.scalars.ram_mib),
                disk_gib: sum(|place| place.scalars.disk_gib),
            },
            gpu_model: report.gpus.as_ref().map(|gpus| gpus.model.clone()),
            gpus: report.gpus.as_ref().map_or(0, |gpus| gpus.list.len() as u32),
            gpus_used: sum(|place| place.gpus.len() as u64) as u32,
            vfs: report.pfs.iter().map(|pf| pf.vfs.len() as u32).sum(),
            vfs_used: sum(|place| place.vfs.len() as u64) as u32,
            vms: self.claims.placements.keys().filter_map(|id| vm(id.as_str())).collect(),
        }
    }

    fn nics(&self) -> Vec<NicView> {
        let nic = |pf: &crate::placement::Pf| {
            let used = || self.places().flat_map(|place| &place.vfs).filter(|vf| vf.pf == pf.name);
            NicView {
                host: self.name.clone(),
                name: pf.name.clone(),
                path: pf.path,
                fabric: pf.fabric.clone(),
                rail: pf.rail,
                leaf: pf.leaf.clone(),
                rate_mbps: pf.rate.0,
                rate_used_mbps: used().map(|vf| vf.rate.0).sum(),
                vfs: pf.vfs.len() as u32,
                vfs_used: used().count() as u32,
                cable: pf.cable.clone(),
                differs: pf.cable.as_ref().map(Cable::differences).unwrap_or_default(),
            }
        };
        self.inventory.report().pfs.iter().map(nic).collect()
    }

    fn vfs(&self) -> Vec<VfView> {
        let mut claimed = BTreeMap::new();
        for (placement, places) in &self.claims.placements {
            for vf in places.iter().flat_map(|place| &place.vfs) {
                claimed.insert((&vf.pf, vf.vf), (placement, vf.rate.0));
            }
        }
        let view = |nic: &PfName, vf: VfIndex| {
            let claim = claimed.get(&(nic, vf));
            VfView {
                host: self.name.clone(),
                nic: nic.clone(),
                vf: vf.get() as u16,
                state: if claim.is_some() { VfUse::Claimed } else { VfUse::Free },
                placement: claim.map(|(placement, _)| placement.to_string()),
                rate_mbps: claim.map(|(_, rate)| *rate),
            }
        };
        let pfs = self.inventory.report().pfs.iter();
        pfs.flat_map(|pf| pf.vfs.iter().map(move |vf| (&pf.name, *vf)))
            .map(|(nic, vf)| view(nic, vf))
            .collect()
    }
}
