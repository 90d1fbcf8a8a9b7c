//! Organizations, their API keys and quotas, and their environments.

use serde::{Deserialize, Serialize};

use super::draft::json;
use super::{Cloud, CloudError, Draft, Once, Stored};
use crate::keys::{self, OrgName};
use crate::placement::{Quota, Usage};
use crate::resource::{
    ApiKey, ApiKeySpec, Environment, EnvironmentSpec, Firewall, Keypair, Network, NetworkSpec,
    Organization, OrganizationSpec, Profile, QuotaView, Region, RoceVersion, Role, StoredKey, Time,
    Vm,
};
use crate::store::{Expect, StoreError};
use crate::tls::TlsError;
use crate::tls::token::{Kind, Secret};

/// An API key whose bearer was let in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Key {
    /// Its id.
    pub id: u64,
    /// Whose it is.
    pub organization: OrgName,
    /// What it may do.
    pub role: Role,
}

impl From<TlsError> for CloudError {
    fn from(error: TlsError) -> Self {
        Self::Store(StoreError::Unavailable(error.to_string()))
    }
}

impl Cloud {
    /// Whose API key a text is; none if it is nobody's, or has ended.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn authenticate(&self, text: &str) -> Result<Option<Key>, CloudError> {
        let Ok(secret) = Secret::parse(text) else { return Ok(None) };
        if secret.kind() != Kind::ApiKey {
            return Ok(None);
        }
        let Some(entry) = self.store.get(&keys::api_key(secret.id())?).await? else {
            return Ok(None);
        };
        let StoredKey { hash, key, .. } = Stored::<StoredKey>::read(entry)?.value;
        let ended = key.expires_at.is_some_and(|end| end <= Time::now());
        if ended || !hash.matches(&secret) {
            return Ok(None);
        }
        Ok(Some(Key { id: key.id, organization: key.organization, role: key.role }))
    }

    /// A new organization.
    ///
    /// # Errors
    /// [`CloudError::Taken`].
    pub async fn create_organization(
        &self,
        spec: OrganizationSpec,
        once: Option<&Once>,
    ) -> Result<Organization, CloudError> {
        let OrganizationSpec { name, description } = spec;
        let id = self.new_id().await?;
        let made = Organization { id, name, description, created_at: Time::now() };
        let mut draft = Draft::new();
        draft.create_global(&made)?;
        draft.take_name::<Organization>("", made.name.as_str(), id);
        draft.answer_once(once, 201, &made)?;
        self.commit(draft).await?;
        Ok(made)
    }

    /// Delete an organization that has nothing left.
    ///
    /// # Errors
    /// [`CloudError::InUse`].
    pub async fn delete_organization(&self, was: &Stored<Organization>) -> Result<(), CloudError> {
        let name = &was.value.name;
        let environments = self.all::<Environment>(name).await?;
        if let Some(first) = environments.first() {
            return Err(CloudError::InUse {
                noun: "organization",
                which: name.to_string(),
                by: format!("its environment '{}'", first.value.name),
                instead: "delete its environments first",
            });
        }
        for key in self.all::<ApiKey>(name).await? {
            self.delete_key(&key).await?;
        }
        let mut draft = Draft::new();
        draft.delete(was);
        draft.drop_name::<Organization>("", name.as_str());
        draft.raw(|transaction| transaction.delete(keys::quota(name)).delete(keys::usage(name)));
        self.commit(draft).await?;
        Ok(())
    }

    /// A new API key, and its secret, which is not kept.
    ///
    /// # Errors
    /// [`CloudError::Forbidden`] for a key that may do more than its maker.
    pub async fn create_key(
        &self,
        organization: &OrgName,
        spec: ApiKeySpec,
        maker: Role,
    ) -> Result<(ApiKey, Secret), CloudError> {
        let ApiKeySpec { name, role, expires_at } = spec;
        if role > maker {
            let why = "a key may do no more than the key that makes it; ask for a lesser role";
            return Err(CloudError::Forbidden(why.to_owned()));
        }
        if expires_at.is_some_and(|end| end <= Time::now()) {
            let value = expires_at.map(|end| end.to_string()).unwrap_or_default();
            return Err(CloudError::invalid("expires_at", value, "it is over already"));
        }
        self.named_global::<Organization>(organization.as_str()).await?;
        let secret = Secret::generate(Kind::ApiKey)?;
        let key = ApiKey {
            id: self.new_id().await?,
            name,
            prefix: secret.id().to_owned(),
            organization: organization.clone(),
            role,
            created_at: Time::now(),
            expires_at,
        };
        let at = keys::api_key(secret.id())?;
        let stored = StoredKey { hash: secret.hash(), key: key.clone() };
        let value = json(&at, &stored)?;
        let mut draft = Draft::new();
        draft.create(&key)?;
        draft.raw(|transaction| transaction.expect(at.clone(), Expect::Absent).put(at, value));
        self.commit(draft).await?;
        Ok((key, secret))
    }

    /// Revoke an API key: from now on its bearer is nobody.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn delete_key(&self, was: &Stored<ApiKey>) -> Result<(), CloudError> {
        let text = keys::api_key(&was.value.prefix)?;
        let mut draft = Draft::new();
        draft.delete(was);
        draft.raw(|transaction| transaction.delete(text));
        self.commit(draft).await?;
        Ok(())
    }

    /// What an organization may use, and uses.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn quota(&self, organization: &OrgName) -> Result<QuotaView, CloudError> {
        let limits = self.store.get(&keys::quota(organization)).await?;
        let used = self.store.get(&keys::usage(organization)).await?;
        let limits = limits.map(Stored::<Quota>::read).transpose()?;
        let used = used.map(Stored::<Usage>::read).transpose()?;
        Ok(QuotaView {
            limits: limits.map(|stored| stored.value).unwrap_or_default(),
            used: used.map(|stored| stored.value).unwrap_or_default(),
        })
    }

    /// Say what an organization may use.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn set_quota(
        &self,
        organization: &OrgName,
        limits: Quota,
    ) -> Result<QuotaView, CloudError> {
        self.named_global::<Organization>(organization.as_str()).await?;
        let key = keys::quota(organization);
        let value = json(&key, &limits)?;
        let mut draft = Draft::new();
        draft.raw(|transaction| transaction.put(key, value));
        self.commit(draft).await?;
        self.quota(organization).await
    }

    /// A new environment, with a network for VMs that name none.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::NotFound`] without the region, [`CloudError::Exhausted`].
    pub async fn create_environment(
        &self,
        organization: &OrgName,
        spec: EnvironmentSpec,
        once: Option<&Once>,
    ) -> Result<Environment, CloudError> {
        let EnvironmentSpec { name, region } = spec;
        super::networks::check_name("name", &name)?;
        let place = self.named_global::<Region>(region.as_str()).await?;
        let id = self.new_id().await?;
        let mut draft = Draft::new();
        let network = NetworkSpec {
            name: format!("{name}-default"),
            environment: id,
            profile: Profile::Roce,
            roce: RoceVersion::V2,
            mtu: super::networks::DEFAULT_MTU,
            rails: 1,
            routed: false,
            cidr: None,
        };
        let network = self.draft_network(&mut draft, organization, &place.value, network).await?;
        let made = Environment {
            id,
            name,
            organization: organization.clone(),
            region,
            default_network: network.id,
            deleting: false,
            created_at: Time::now(),
        };
        draft.create(&made)?;
        draft.take_name::<Environment>(organization.as_str(), &made.name, id);
        draft.answer_once(once, 201, &made)?;
        self.commit(draft).await?;
        Ok(made)
    }

    /// Give an environment another name.
    ///
    /// # Errors
    /// [`CloudError::Taken`], [`CloudError::Stale`].
    pub async fn rename_environment(
        &self,
        was: &Stored<Environment>,
        name: String,
    ) -> Result<Environment, CloudError> {
        super::networks::check_name("name", &name)?;
        let now = Environment { name, ..was.value.clone() };
        let mut draft = Draft::new();
        draft.change(was, &now)?;
        if now.name != was.value.name {
            let scope = now.organization.as_str();
            draft.drop_name::<Environment>(scope, &was.value.name);
            draft.take_name::<Environment>(scope, &now.name, now.id);
        }
        self.commit(draft).await?;
        Ok(now)
    }

    /// Delete an environment that has no VMs; its networks, key pairs and firewalls go with
    /// it.
    ///
    /// # Errors
    /// [`CloudError::InUse`].
    pub async fn delete_environment(&self, was: &Stored<Environment>) -> Result<(), CloudError> {
        let Environment { id, organization, name, .. } = &was.value;
        let vms = self.all::<Vm>(organization).await?;
        if let Some(vm) = vms.iter().find(|vm| vm.value.environment == *id) {
            return Err(CloudError::InUse {
                noun: "environment",
                which: format!("'{name}'"),
                by: format!("VM {} ('{}')", vm.value.id, vm.value.name),
                instead: "delete its VMs first",
            });
        }
        // From here on nothing is made in it: what is made depends on how the environment was read.
        let now = Environment { deleting: true, ..was.value.clone() };
        let mut draft = Draft::new();
        draft.change(was, &now)?;
        self.commit(draft).await?;
        if self.all::<Vm>(organization).await?.iter().any(|vm| vm.value.environment == *id) {
            let mut draft = Draft::new();
            draft.change(&self.get::<Environment>(organization, *id).await?, &was.value)?;
            self.commit(draft).await?;
            return Err(CloudError::Stale);
        }
        for network in self.all::<Network>(organization).await? {
            if network.value.environment == *id {
                self.delete_network(network).await?;
            }
        }
        for keypair in self.all::<Keypair>(organization).await? {
            if keypair.value.environment == *id {
                self.delete_keypair(&keypair).await?;
            }
        }
        for firewall in self.all::<Firewall>(organization).await? {
            if firewall.value.environment == *id {
                self.delete_firewall(&firewall).await?;
            }
        }
        let was = self.get::<Environment>(organization, *id).await?;
        let mut draft = Draft::new();
        draft.delete(&was);
        draft.drop_name::<Environment>(organization.as_str(), name);
        self.commit(draft).await?;
        Ok(())
    }
}
