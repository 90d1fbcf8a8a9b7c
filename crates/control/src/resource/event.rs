//! What has happened: events for tenants, the audit trail, and what was used how long.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Role, Time, resource};
use crate::keys::{HostName, OrgName};
use crate::protocol::Traffic;

/// How much an event matters.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As was wished.
    Info,
    /// Somebody should look.
    Warning,
    /// Something does not work.
    Error,
}

/// Something that happened to a resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Id.
    pub id: u64,
    /// Whose resource.
    pub organization: OrgName,
    /// Kind of the resource, as in its path.
    pub kind: String,
    /// Id of the resource.
    pub resource: u64,
    /// What happened, in a word: `created`, `placed`, `active`, `moved`, ...
    pub reason: String,
    /// What happened, in a sentence.
    pub message: String,
    /// How much it matters.
    pub severity: Severity,
    /// When.
    pub at: Time,
}
resource!(Event, "events", "event", tenant);

/// Somebody changed something, or tried to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Id.
    pub id: u64,
    /// The organization it was done in.
    pub organization: OrgName,
    /// By which API key.
    pub api_key: u64,
    /// What that may do.
    pub role: Role,
    /// Method and path.
    pub action: String,
    /// The status it was answered with.
    pub status: u16,
    /// From which address.
    pub from: String,
    /// When.
    pub at: Time,
}
resource!(AuditRecord, "audit", "audit record", tenant);

/// What a VM had for how long.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UsageRecord {
    /// Id.
    pub id: u64,
    /// Who pays.
    pub organization: OrgName,
    /// Which VM.
    pub vm: u64,
    /// What it was called.
    pub name: String,
    /// Its flavor.
    pub flavor: String,
    /// Where it was placed first.
    pub host: Option<HostName>,
    /// VFs it had.
    pub vfs: u32,
    /// GPUs it had.
    pub gpus: u32,
    /// Since when.
    pub from: Time,
    /// Until when; still, if not said.
    pub to: Option<Time>,
    /// Hours times VFs, until now if it still has them.
    pub vf_hours: f64,
    /// Hours times GPUs.
    pub gpu_hours: f64,
    /// Bytes that passed its VFs from it, as its host last told.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Bytes that passed them to it.
    #[serde(default)]
    pub received_bytes: u64,
}
resource!(UsageRecord, "usage-records", "usage record", tenant);

impl UsageRecord {
    /// Add what has passed on a host.
    pub(crate) fn add(&mut self, traffic: Traffic) {
        self.sent_bytes = self.sent_bytes.saturating_add(traffic.sent_bytes);
        self.received_bytes = self.received_bytes.saturating_add(traffic.received_bytes);
    }

    /// Reckon the hours: until now if it still has them.
    pub fn reckon(&mut self) {
        let until = self.to.unwrap_or_else(Time::now);
        let seconds = until.second().saturating_sub(self.from.second()).max(0).unsigned_abs();
        let hours = Duration::from_secs(seconds).as_secs_f64() / 3600.0;
        (self.vf_hours, self.gpu_hours) =
            (hours * f64::from(self.vfs), hours * f64::from(self.gpus));
    }
}
