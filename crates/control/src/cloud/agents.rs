//! What agents do: enrol, say that they are alive, report what their host is and what became of its
//! VMs, and fetch what it shall have.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::draft::json;
use super::verifications::ProofTask;
use super::{Cloud, CloudError, Draft, Stored, again};
use crate::keys::{self, HostName, RegionName};
use crate::placement::{HostReport, Inventory};
use crate::protocol::{Desired, DesiredProof, DesiredVm, Traffic, VmReport, VmReports};
use crate::resource::{Region, Time, Vm};
use crate::store::{Expect, LeaseId, Outcome, Scope, StoreError, Transaction};
use crate::tls::token::{Kind, Secret, SecretHash};

/// How long a host counts as alive after its agent's last sign of life.
pub const LEASE: Duration = Duration::from_secs(15);

/// An agent that has not heard for more revisions is told at once: to see whether any of them concerns
/// it, all would be read. After a restart that would be every revision since, for each host.
const FAR_BEHIND: u64 = 256;

/// A one-time token, as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredToken {
    hash: SecretHash,
    region: RegionName,
    host: HostName,
    expires_at: Time,
}

/// Which certificate is a host's: an older one is refused, whoever has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settled {
    /// SHA-256 of the certificate, in hexadecimal digits.
    pub fingerprint: String,
    /// When it was given out.
    pub at: Time,
}

impl Cloud {
    /// A token that enrols one host, once, within an hour.
    ///
    /// # Errors
    /// [`CloudError::NotFound`] without the region.
    pub async fn create_token(
        &self,
        region: RegionName,
        host: HostName,
    ) -> Result<(Secret, Time), CloudError> {
        const GOOD_FOR: i64 = 3600;
        self.named_global::<Region>(region.as_str()).await?;
        let secret = Secret::generate(Kind::Enrolment)?;
        let key = keys::token(secret.id())?;
        let expires_at = Time::from_second(Time::now().second() + GOOD_FOR);
        let stored = StoredToken { hash: secret.hash(), region, host, expires_at };
        let value = json(&key, &stored)?;
        let mut draft = Draft::new();
        draft.raw(|transaction| transaction.expect(key.clone(), Expect::Absent).put(key, value));
        self.commit(draft).await?;
        Ok((secret, expires_at))
    }

    /// Use a token up: the host it is for gets the certificate that `sign` makes.
    ///
    /// # Errors
    /// [`CloudError::Forbidden`] for a token that is none, or was used, or has ended.
    pub async fn enrol<T>(
        &self,
        token: &str,
        sign: impl FnOnce(&RegionName, &HostName) -> Result<(T, String), CloudError>,
    ) -> Result<(T, RegionName, HostName), CloudError> {
        let refused = || {
            let why = "this enrolment token is not known, was used already, or is over an hour old; \
                       make another with: lanekeeper host token";
            CloudError::Forbidden(why.to_owned())
        };
        let secret = Secret::parse(token).map_err(|_| refused())?;
        let key = keys::token(secret.id())?;
        let entry = self.store.get(&key).await?.ok_or_else(refused)?;
        let revision = entry.modified;
        let StoredToken { hash, region, host, expires_at } = Stored::read(entry)?.value;
        if secret.kind() != Kind::Enrolment || !hash.matches(&secret) || expires_at < Time::now() {
            return Err(refused());
        }
        let (signed, fingerprint) = sign(&region, &host)?;
        self.settle(&region, &host, fingerprint, |transaction| {
            transaction.expect(key.clone(), Expect::At(revision)).delete(key)
        })
        .await
        .map_err(|error| if matches!(error, CloudError::Stale) { refused() } else { error })?;
        Ok((signed, region, host))
    }

    /// Say which certificate is a host's from now on.
    ///
    /// # Errors
    /// [`CloudError::Stale`] if what else the transaction expects is not so.
    pub async fn settle(
        &self,
        region: &RegionName,
        host: &HostName,
        fingerprint: String,
        and: impl FnOnce(Transaction) -> Transaction,
    ) -> Result<(), CloudError> {
        let key = keys::agent(region, host);
        let value = json(&key, &Settled { fingerprint, at: Time::now() })?;
        let mut draft = Draft::new();
        draft.raw(|transaction| and(transaction.put(key, value)));
        self.commit(draft).await?;
        Ok(())
    }

    /// Which certificate is a host's.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn settled(
        &self,
        region: &RegionName,
        host: &HostName,
    ) -> Result<Option<Settled>, CloudError> {
        let entry = self.store.get(&keys::agent(region, host)).await?;
        Ok(entry.map(Stored::read).transpose()?.map(|stored| stored.value))
    }

    /// A sign of life. Gives back for how long it is good.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn heartbeat(
        &self,
        region: &RegionName,
        host: &HostName,
        version: &str,
    ) -> Result<Duration, CloudError> {
        let key = keys::alive_one(region, host);
        if let Some(entry) = self.store.get(&key).await?
            && let Some(lease) = entry.lease
            && self.renew(lease).await?
        {
            return Ok(LEASE);
        }
        // A server that was asked at the same time by the same agent may have made another: the last
        // one written stands, and the other's end deletes nothing of it.
        let lease = self.store.grant(LEASE).await?;
        let value = version.as_bytes().to_vec();
        let alive = Transaction::new().put_under(lease.id, key, value);
        match self.store.commit(alive).await? {
            Outcome::Committed(_) => Ok(LEASE),
            Outcome::Conflict { .. } => Err(CloudError::Stale),
        }
    }

    async fn renew(&self, lease: LeaseId) -> Result<bool, CloudError> {
        match self.store.keep_alive(lease).await {
            Ok(()) => Ok(true),
            Err(StoreError::LeaseGone(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Take up what a host has. Nothing is written if it is what was known.
    ///
    /// # Errors
    /// [`CloudError::Invalid`] for a report that contradicts itself.
    pub async fn take_inventory(
        &self,
        region: &RegionName,
        host: &HostName,
        report: HostReport,
    ) -> Result<(), CloudError> {
        let inventory = Inventory::new(report)
            .map_err(|error| CloudError::invalid("inventory", host.as_str(), error.to_string()))?;
        let key = keys::host(region, host);
        let value = json(&key, &inventory)?;
        if self.store.get(&key).await?.is_some_and(|entry| entry.value == value) {
            return Ok(());
        }
        let mut draft = Draft::new();
        draft.raw(|transaction| transaction.put(key, value));
        self.commit(draft).await?;
        Ok(())
    }

    /// Take up what became of a host's VMs.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn take_reports(
        &self,
        region: &RegionName,
        host: &HostName,
        reports: VmReports,
    ) -> Result<(), CloudError> {
        for reports in reports.vms.chunks(Transaction::MOST_KEYS / 2) {
            again(|| self.take_some(region, host, reports)).await?;
        }
        Ok(())
    }

    /// Take up as many reports as a transaction holds.
    async fn take_some(
        &self,
        region: &RegionName,
        host: &HostName,
        reports: &[VmReport],
    ) -> Result<(), CloudError> {
        let mut draft = Draft::new();
        for report in reports {
            self.draft_report(&mut draft, region, host, report).await?;
        }
        if draft.is_empty() {
            return Ok(());
        }
        self.commit(draft).await.map(drop)
    }

    /// A report is kept as long as its host is asked for the VM, and goes with that: one that comes late
    /// (sent twice, or by an agent that has ended since) would stay for ever.
    async fn draft_report(
        &self,
        draft: &mut Draft,
        region: &RegionName,
        host: &HostName,
        report: &VmReport,
    ) -> Result<(), CloudError> {
        let key = keys::report(region, host, report.vm);
        let known = self.store.get(&key).await?;
        let value = json(&key, report)?;
        if known.as_ref().is_some_and(|entry| entry.value == value) {
            return Ok(());
        }
        let desired = keys::desired_vm(region, host, report.vm);
        match (self.store.get(&desired).await?, known) {
            (Some(asked), _) => draft.raw(|transaction| {
                transaction.expect(desired, Expect::At(asked.modified)).put(key, value)
            }),
            (None, Some(known)) => draft.raw(|transaction| {
                let transaction = transaction.expect(desired, Expect::Absent);
                transaction.expect(key.clone(), Expect::At(known.modified)).delete(key)
            }),
            (None, None) => {}
        }
        Ok(())
    }

    /// What has passed the VFs of a VM on its host, as that last told.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub(crate) async fn traffic_of(&self, vm: &Vm) -> Result<Traffic, CloudError> {
        match &vm.located {
            Some(located) => self.traffic_at(&vm.region, &located.host, vm.id).await,
            None => Ok(Traffic::default()),
        }
    }

    /// The same on a host where it may be no more.
    pub(crate) async fn traffic_at(
        &self,
        region: &RegionName,
        host: &HostName,
        vm: u64,
    ) -> Result<Traffic, CloudError> {
        let entry = self.store.get(&keys::report(region, host, vm)).await?;
        let report = entry.map(Stored::<VmReport>::read).transpose()?;
        Ok(report.map(|report| report.value.traffic).unwrap_or_default())
    }

    /// What a host shall have, now.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn desired(
        &self,
        region: &RegionName,
        host: &HostName,
    ) -> Result<Desired, CloudError> {
        let (revision, entries) = self.store.all(keys::desired(region, host)).await?;
        let (proofs, vms): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| keys::is_proof(&entry.key));
        let vms: Result<Vec<DesiredVm>, StoreError> = vms
            .into_iter()
            .map(|entry| Stored::<DesiredVm>::read(entry).map(|stored| stored.value))
            .collect();
        let proofs: Result<Vec<DesiredProof>, StoreError> = proofs
            .into_iter()
            .map(|entry| Stored::<ProofTask>::read(entry).map(|stored| stored.value.proof))
            .collect();
        Ok(Desired { revision: revision.get(), vms: vms?, proofs: proofs? })
    }

    /// What a host shall have, once that has changed after a revision, or after `wait`; at once if much
    /// else has changed since.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn desired_after(
        &self,
        region: &RegionName,
        host: &HostName,
        after: u64,
        wait: Duration,
    ) -> Result<Desired, CloudError> {
        let now = self.desired(region, host).await?;
        if now.revision.saturating_sub(after) > FAR_BEHIND {
            return Ok(now);
        }
        let scope = Scope::Under(keys::desired(region, host));
        let after = crate::store::Revision::from_number(after.max(1));
        if let Ok(mut watch) = self.store.watch(scope, after).await {
            // That it is over, or that revisions are gone, are reasons to look as well.
            let _ = tokio::time::timeout(wait, watch.next()).await;
        }
        self.desired(region, host).await
    }
}
