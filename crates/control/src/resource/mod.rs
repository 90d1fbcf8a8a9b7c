//! The nouns of the API: what an operator offers and what tenants have, as they are stored and as they
//! are answered. Plain data; what may be done to it is in [`cloud`](crate::cloud).
//!
//! A resource is either the operator's ([`Global`]: regions, flavors, images, organizations) or an
//! organization's ([`Tenant`]). The latter's organization is part of its key in the store, so that a
//! look-up cannot cross to another's.

mod catalog;
mod compute;
mod event;
mod firewall;
mod network;
mod tenancy;
mod time;
mod verification;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use catalog::{
    FlavorResource, FlavorSpec, GpuSpec, HostView, ImageResource, ImageSpec, NicView, Region,
    RegionSpec, VfSpec, VfUse, VfView, VlanRange,
};
pub use compute::{
    Fault, FaultKind, Group, GroupMember, GroupSpec, Kept, Keypair, KeypairSpec, Located,
    PolicyResource, PolicySpec, SecurityRule, Vm, VmSpec, VmStatus, Want,
};
pub use event::{AuditRecord, Event, Severity, UsageRecord};
pub use firewall::{Firewall, Guarded};
pub use network::{
    Network, NetworkAttachment, NetworkSpec, Port, Profile, RoceVersion, Subnet, SubnetSpec,
};
pub(crate) use tenancy::StoredKey;
pub use tenancy::{
    ApiKey, ApiKeySpec, Environment, EnvironmentSpec, Organization, OrganizationSpec, QuotaView,
    Role,
};
pub use time::Time;
pub use verification::{
    Verification, VerificationPart, VerificationSpec, VerificationState, VerificationSum,
    VerificationView, Verified,
};

/// Anything that has an id and is kept in the store.
pub trait Resource:
    Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + std::fmt::Debug + 'static
{
    /// Its kind: part of its key, and of its path in the API.
    const KIND: &'static str;
    /// What one of it is called in a message.
    const NOUN: &'static str;

    /// Its id: unique among all resources there ever were.
    fn id(&self) -> u64;

    /// What it is called; none if it has no name.
    fn name(&self) -> Option<&str>;
}

/// A resource of the operator's.
pub trait Global: Resource {}

/// A resource of one organization's.
pub trait Tenant: Resource {
    /// Whose it is.
    fn organization(&self) -> &crate::keys::OrgName;
}

macro_rules! resource {
    ($type:ident, $kind:literal, $noun:literal, global $(, $name:ident)?) => {
        resource!(@common $type, $kind, $noun $(, $name)?);
        impl super::Global for $type {}
    };
    ($type:ident, $kind:literal, $noun:literal, tenant $(, $name:ident)?) => {
        resource!(@common $type, $kind, $noun $(, $name)?);
        impl super::Tenant for $type {
            fn organization(&self) -> &crate::keys::OrgName {
                &self.organization
            }
        }
    };
    (@common $type:ident, $kind:literal, $noun:literal $(, $name:ident)?) => {
        impl super::Resource for $type {
            const KIND: &'static str = $kind;
            const NOUN: &'static str = $noun;
            fn id(&self) -> u64 {
                self.id
            }
            fn name(&self) -> Option<&str> {
                resource!(@name self $(, $name)?)
            }
        }
    };
    (@name $self:ident) => { None };
    (@name $self:ident, $name:ident) => { Some(AsRef::<str>::as_ref(&$self.$name)) };
}
use resource;
