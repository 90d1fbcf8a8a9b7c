//! Firewalls: security rules under a name, for several VMs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SecurityRule, Time, resource};
use crate::keys::OrgName;

/// Security rules under a name, for several VMs of one environment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Firewall {
    /// Id.
    pub id: u64,
    /// Name, unique in the organization.
    pub name: String,
    /// Whose it is.
    pub organization: OrgName,
    /// The environment it is of.
    pub environment: u64,
    /// What it is for, for people.
    pub description: String,
    /// What may come and go.
    pub rules: Vec<SecurityRule>,
    /// The VMs it is for. One that was deleted since may still be among them.
    pub vms: Vec<Guarded>,
    /// When it was made.
    pub created_at: Time,
}
resource!(Firewall, "firewalls", "firewall", tenant, name);

/// A VM that a firewall is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Guarded {
    /// The VM, by id.
    pub vm: u64,
    /// Since when.
    pub since: Time,
}
