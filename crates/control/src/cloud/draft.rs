//! A draft of a change: what is to be made, changed and deleted, in one transaction.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CloudError, Stored};
use crate::keys::{self, Key, OrgName};
use crate::resource::{Global, Resource, Tenant, Time};
use crate::store::{Expect, StoreError, Transaction};

/// How long the same request with the same idempotency key is answered the same, in seconds.
const ANSWERED_FOR: u64 = 24 * 3600;

/// A change that is not made yet.
#[derive(Debug, Default)]
pub struct Draft {
    transaction: Transaction,
    wanted: BTreeMap<Key, (&'static str, String)>,
}

/// A request that carries an idempotency key: what it is answered is written with what it does, so
/// that the same request, asked again, does nothing and is answered the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Once {
    /// Whose request.
    pub organization: OrgName,
    /// The idempotency key.
    pub key: String,
    /// A fingerprint of method, path and body: another request must not carry the same key.
    pub fingerprint: String,
}

/// What is written of a request with an idempotency key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, serde::Deserialize)]
pub(crate) struct Answered {
    pub(crate) fingerprint: String,
    pub(crate) status: u16,
    pub(crate) body: serde_json::Value,
    pub(crate) at: Time,
}

pub(super) fn json(key: &Key, value: &impl Serialize) -> Result<Vec<u8>, CloudError> {
    let text = serde_json::to_vec(value);
    text.map_err(|error| StoreError::Foreign(format!("{key}: {error}")).into())
}

impl Draft {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn into_parts(self) -> (Transaction, BTreeMap<Key, (&'static str, String)>) {
        (self.transaction, self.wanted)
    }

    /// Change the transaction itself.
    pub(crate) fn raw(&mut self, change: impl FnOnce(Transaction) -> Transaction) {
        self.transaction = change(std::mem::take(&mut self.transaction));
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.transaction.writes().len().max(self.transaction.expects().len())
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn make(&mut self, key: Key, value: &impl Serialize) -> Result<(), CloudError> {
        let value = json(&key, value)?;
        self.raw(|transaction| transaction.expect(key.clone(), Expect::Absent).put(key, value));
        Ok(())
    }

    /// Make a tenant's resource.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] if it cannot be JSON.
    pub fn create<T: Tenant>(&mut self, value: &T) -> Result<(), CloudError> {
        self.make(keys::tenant_one(T::KIND, value.organization(), value.id()), value)
    }

    /// Make a resource of the operator's.
    ///
    /// # Errors
    /// As [`Draft::create`].
    pub fn create_global<T: Global>(&mut self, value: &T) -> Result<(), CloudError> {
        self.make(keys::global_one(T::KIND, value.id()), value)
    }

    /// Change what was read, if nobody has meanwhile.
    ///
    /// # Errors
    /// As [`Draft::create`].
    pub fn change<T: Resource>(&mut self, was: &Stored<T>, value: &T) -> Result<(), CloudError> {
        let (key, revision) = (was.key.clone(), was.revision);
        let value = json(&key, value)?;
        self.raw(|transaction| {
            transaction.expect(key.clone(), Expect::At(revision)).put(key, value)
        });
        Ok(())
    }

    /// Delete what was read, if nobody has changed it meanwhile.
    pub fn delete<T: Resource>(&mut self, was: &Stored<T>) {
        let (key, revision) = (was.key.clone(), was.revision);
        self.raw(|transaction| transaction.expect(key.clone(), Expect::At(revision)).delete(key));
    }

    /// Depend on something as it was read, without changing it.
    pub fn depend<T: Resource>(&mut self, on: &Stored<T>) {
        let (key, revision) = (on.key.clone(), on.revision);
        self.raw(|transaction| transaction.expect(key, Expect::At(revision)));
    }

    fn take(&mut self, key: Key, noun: &'static str, value: String, id: u64) {
        self.wanted.insert(key.clone(), (noun, value));
        self.raw(|transaction| {
            transaction.expect(key.clone(), Expect::Absent).put(key, id.to_string())
        });
    }

    /// Take a name for a resource, within a scope: that of an organization, or "" for all.
    pub fn take_name<T: Resource>(&mut self, scope: &str, name: &str, id: u64) {
        self.take(keys::taken(T::KIND, scope, name), T::NOUN, name.to_owned(), id);
    }

    /// Give a resource's name back.
    pub fn drop_name<T: Resource>(&mut self, scope: &str, name: &str) {
        let key = keys::taken(T::KIND, scope, name);
        self.raw(|transaction| transaction.delete(key));
    }

    /// Take a number that only one can have.
    ///
    /// # Errors
    /// [`CloudError::Invalid`] if the scope is no name.
    pub fn take_number(
        &mut self,
        what: &'static str,
        scope: &str,
        number: u32,
        id: u64,
    ) -> Result<(), CloudError> {
        self.take(keys::number(what, scope, number)?, what, number.to_string(), id);
        Ok(())
    }

    /// Give a number back.
    ///
    /// # Errors
    /// [`CloudError::Invalid`] if the scope is no name.
    pub fn drop_number(
        &mut self,
        what: &'static str,
        scope: &str,
        number: u32,
    ) -> Result<(), CloudError> {
        let key = keys::number(what, scope, number)?;
        self.raw(|transaction| transaction.delete(key));
        Ok(())
    }

    /// Write, with the rest, what a request with an idempotency key is answered.
    ///
    /// # Errors
    /// As [`Draft::create`].
    pub fn answer_once(
        &mut self,
        once: Option<&Once>,
        status: u16,
        body: &impl Serialize,
    ) -> Result<(), CloudError> {
        let Some(once) = once else { return Ok(()) };
        let key = keys::once(&once.organization, &once.key);
        let body = serde_json::to_value(body)
            .map_err(|error| StoreError::Foreign(format!("{key}: {error}")))?;
        let fingerprint = once.fingerprint.clone();
        let at = Time::now();
        let end = u64::try_from(at.second()).unwrap_or_default() + ANSWERED_FOR;
        let end = keys::end_of_once(end, &once.organization, &once.key);
        self.raw(|transaction| transaction.put(end, Vec::new()));
        self.make(key, &Answered { fingerprint, status, body, at })
    }
}
