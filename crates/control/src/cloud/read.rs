//! Reading resources: one by id or by name, or a page of them.

use serde::de::DeserializeOwned;

use super::{Cloud, CloudError};
use crate::keys::{self, Key, OrgName, Prefix};
use crate::resource::{Global, Resource, Tenant};
use crate::store::{Entry, Range, Revision, Scope, StoreError};

/// Most resources in a page.
pub(crate) const MOST: usize = 1000;

/// A resource as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored<T> {
    /// Where.
    pub(super) key: Key,
    /// Which revision last wrote it: its entity tag.
    pub revision: Revision,
    /// It.
    pub value: T,
}

impl<T: DeserializeOwned> Stored<T> {
    pub(crate) fn read(entry: Entry) -> Result<Self, StoreError> {
        let value = serde_json::from_slice(&entry.value)
            .map_err(|error| StoreError::Foreign(format!("{}: {error}", entry.key)))?;
        Ok(Self { key: entry.key, revision: entry.modified, value })
    }
}

/// Which page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Only resources with ids after this one.
    pub after: Option<u64>,
    /// Most in the page.
    pub limit: usize,
}

/// A page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed<T> {
    /// The resources, by id.
    pub items: Vec<Stored<T>>,
    /// Whether there are more.
    pub more: bool,
}

impl Cloud {
    async fn one<T: Resource>(&self, key: Key, id: u64) -> Result<Stored<T>, CloudError> {
        match self.store.get(&key).await? {
            Some(entry) => Ok(Stored::read(entry)?),
            None => Err(CloudError::none(T::NOUN, &id)),
        }
    }

    /// One of an organization's resources.
    ///
    /// # Errors
    /// [`CloudError::NotFound`], also if it is another's.
    pub async fn get<T: Tenant>(
        &self,
        organization: &OrgName,
        id: u64,
    ) -> Result<Stored<T>, CloudError> {
        self.one(keys::tenant_one(T::KIND, organization, id), id).await
    }

    /// One of the operator's resources.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn get_global<T: Global>(&self, id: u64) -> Result<Stored<T>, CloudError> {
        self.one(keys::global_one(T::KIND, id), id).await
    }

    async fn page<T: Resource>(
        &self,
        prefix: Prefix,
        after: Option<Key>,
        limit: usize,
    ) -> Result<Listed<T>, CloudError> {
        let limit = limit.clamp(1, MOST);
        let page = self.store.range(Range { after, limit, ..Range::of(Scope::Under(prefix)) });
        let page = page.await?;
        let items = page.entries.into_iter().map(Stored::read).collect::<Result<_, _>>()?;
        Ok(Listed { items, more: page.more })
    }

    /// A page of an organization's resources.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn list<T: Tenant>(
        &self,
        organization: &OrgName,
        ask: Ask,
    ) -> Result<Listed<T>, CloudError> {
        let after = ask.after.map(|id| keys::tenant_one(T::KIND, organization, id));
        self.page(keys::tenant(T::KIND, organization), after, ask.limit).await
    }

    /// A page of the operator's resources.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn list_global<T: Global>(&self, ask: Ask) -> Result<Listed<T>, CloudError> {
        let after = ask.after.map(|id| keys::global_one(T::KIND, id));
        self.page(keys::global(T::KIND), after, ask.limit).await
    }

    pub(super) async fn everything<T: Resource>(
        &self,
        prefix: Prefix,
    ) -> Result<Vec<Stored<T>>, CloudError> {
        let (_, entries) = self.store.all(Scope::Under(prefix)).await?;
        Ok(entries.into_iter().map(Stored::read).collect::<Result<_, _>>()?)
    }

    /// All of an organization's resources of a kind.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn all<T: Tenant>(
        &self,
        organization: &OrgName,
    ) -> Result<Vec<Stored<T>>, CloudError> {
        self.everything(keys::tenant(T::KIND, organization)).await
    }

    /// All of the operator's resources of a kind.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn all_global<T: Global>(&self) -> Result<Vec<Stored<T>>, CloudError> {
        self.everything(keys::global(T::KIND)).await
    }

    /// The id of the resource that has a name within a scope; none if none has it.
    ///
    /// # Errors
    /// [`CloudError::Store`].
    pub async fn who_has<T: Resource>(
        &self,
        scope: &str,
        name: &str,
    ) -> Result<Option<u64>, CloudError> {
        let key = keys::taken(T::KIND, scope, name);
        let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
        let id = std::str::from_utf8(&entry.value).ok().and_then(|text| text.parse().ok());
        id.map(Some).ok_or_else(|| StoreError::Foreign(format!("{key} is no id")).into())
    }

    /// An organization's resource by its name.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn named<T: Tenant>(
        &self,
        organization: &OrgName,
        name: &str,
    ) -> Result<Stored<T>, CloudError> {
        match self.who_has::<T>(organization.as_str(), name).await? {
            Some(id) => self.get(organization, id).await,
            None => Err(CloudError::none(T::NOUN, &format!("'{name}'"))),
        }
    }

    /// A resource of the operator's by its name.
    ///
    /// # Errors
    /// [`CloudError::NotFound`].
    pub async fn named_global<T: Global>(&self, name: &str) -> Result<Stored<T>, CloudError> {
        match self.who_has::<T>("", name).await? {
            Some(id) => self.get_global(id).await,
            None => Err(CloudError::none(T::NOUN, &format!("'{name}'"))),
        }
    }
}
