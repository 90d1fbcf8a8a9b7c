//! Who there is: organizations, their API keys and roles, and their environments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, resource};
use crate::keys::{OrgName, RegionName};
use crate::placement::{Quota, Usage};
use crate::tls::token::SecretHash;

/// What a caller may do, from most to least.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at what the organization has.
    Reader,
    /// Create, change and delete what the organization has.
    Member,
    /// Beside that, the organization's API keys.
    Admin,
    /// Everything, of every organization, and hosts, regions, flavors and quotas.
    Operator,
}

/// An organization: a tenant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Organization {
    /// Id.
    pub id: u64,
    /// Name, by which its quota and its usage go.
    pub name: OrgName,
    /// What it is, for people.
    pub description: String,
    /// When it was made.
    pub created_at: Time,
}
resource!(Organization, "organizations", "organization", global);

/// A new organization.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationSpec {
    /// Name.
    pub name: OrgName,
    /// What it is, for people.
    #[serde(default)]
    #[schemars(length(max = 500))]
    pub description: String,
}

/// What an organization may use, and uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QuotaView {
    /// Most of each; what is not mentioned is not limited.
    pub limits: Quota,
    /// In use, held spares included.
    pub used: Usage,
}

/// An API key. The secret is shown once, when it is made; only its hash is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApiKey {
    /// Id.
    pub id: u64,
    /// What it is for, for people.
    pub name: String,
    /// How its text begins, after `lk_`: to recognise it by. It is no secret.
    pub prefix: String,
    /// Whose it is.
    pub organization: OrgName,
    /// What its bearer may do.
    pub role: Role,
    /// When it was made.
    pub created_at: Time,
    /// When it ends; never if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}
resource!(ApiKey, "api-keys", "API key", tenant, name);

/// A new API key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeySpec {
    /// What it is for, for people.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// What its bearer may do. None may make a key that may do more than itself.
    pub role: Role,
    /// When it ends; never if not said.
    #[serde(default)]
    pub expires_at: Option<Time>,
}

/// What is stored of an API key under its public half: whose it is, and the hash of the other half.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredKey {
    pub(crate) hash: SecretHash,
    pub(crate) key: ApiKey,
}

/// An environment: a tenant's project in one region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Id.
    pub id: u64,
    /// Name, unique in the organization.
    pub name: String,
    /// Whose it is.
    pub organization: OrgName,
    /// Where its VMs are.
    pub region: RegionName,
    /// The network of VMs that name none.
    pub default_network: u64,
    /// Whether it is being deleted: nothing more is made in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// When it was made.
    pub created_at: Time,
}
resource!(Environment, "environments", "environment", tenant, name);

/// A new environment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentSpec {
    /// Name, unique in the organization.
    #[schemars(length(min = 1, max = 50))]
    pub name: String,
    /// Where its VMs are to be.
    pub region: RegionName,
}
