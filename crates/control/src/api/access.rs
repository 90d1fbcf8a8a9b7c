//! Who calls, and whether they may: the one place where that is decided. A route says whom it is for
//! by the type of its call ([`Caller`], [`AgentCaller`] or [`Nobody`]), and which role it wants at
//! least; nothing reaches a handler that was not let in here.

use std::net::IpAddr;
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode, request::Parts};

use super::problem::Problem;
use super::state::{From, State};
use crate::keys::{HostName, OrgName, RegionName};
use crate::resource::{Organization, Role};

/// Whom a route is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Permission {
    /// Everybody.
    Public,
    /// Bearers of an API key that may do at least this.
    Role(Role),
    /// Agents, by their certificate.
    Agent,
}

/// The bearer of an API key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Which key, by id.
    pub key: u64,
    /// The organization it works in: its own, or the one that an operator has named.
    pub organization: OrgName,
    /// What it may do there.
    pub role: Role,
    /// Where it calls from.
    pub from: IpAddr,
}

/// An agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentCaller {
    /// Where its host is.
    pub region: RegionName,
    /// Its host.
    pub host: HostName,
}

/// Somebody who need not be known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nobody {
    /// Where they call from.
    pub from: IpAddr,
}

/// Somebody that a route can be for.
pub trait Who: Sized + Send + 'static {
    /// What a route for them that wants `role` at least is called.
    fn permission(role: Role) -> Permission;

    /// Let them in.
    fn admit(
        state: &State,
        parts: &Parts,
        from: &From,
        role: Role,
    ) -> impl Future<Output = Result<Self, Problem>> + Send;

    /// As the bearer of a key, if that is who they are.
    fn caller(&self) -> Option<&Caller>;
}

/// The header by which an operator names the organization it works in.
pub const ORGANIZATION: &str = "lanekeeper-organization";

/// The API key that a request carries: as a bearer token (RFC 6750), or as clients of the Hyperstack
/// API send it.
fn shown_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    text("authorization")
        .and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        })
        .or_else(|| text("api_key"))
        .or_else(|| text("api-key"))
}

fn too_often(wait: std::time::Duration) -> Problem {
    let detail = format!("wait {:.1} s before the next call", wait.as_secs_f64());
    let status = StatusCode::TOO_MANY_REQUESTS;
    Problem::new(status, "too-often", "Too many calls", detail)
}

impl Who for Caller {
    fn permission(role: Role) -> Permission {
        Permission::Role(role)
    }

    async fn admit(state: &State, parts: &Parts, from: &From, role: Role) -> Result<Self, Problem> {
        let unknown = |detail: &str| {
            // Guessing is slowed down, however many keys are tried.
            match state.strangers.admit(from.address, Instant::now()) {
                Ok(()) => Problem::unauthorized(detail),
                Err(wait) => too_often(wait),
            }
        };
        let Some(text) = shown_key(&parts.headers) else {
            return Err(unknown("send an API key, as 'Authorization: Bearer lk_...'"));
        };
        let Some(key) = state.cloud.authenticate(text).await? else {
            return Err(unknown("this API key is not known, was revoked, or has ended"));
        };
        state.callers.admit(key.id, Instant::now()).map_err(too_often)?;
        let organization = match parts.headers.get(ORGANIZATION) {
            None => key.organization,
            Some(name) => named(state, name.as_bytes(), key.role, &key.organization).await?,
        };
        if key.role < role {
            let wanted = serde_json::to_value(role).unwrap_or_default();
            return Err(Problem::forbidden(format!(
                "this takes a key with the role {wanted} or more; ask an administrator for one"
            )));
        }
        Ok(Self { key: key.id, organization, role: key.role, from: from.address })
    }

    fn caller(&self) -> Option<&Caller> {
        Some(self)
    }
}

/// The organization that the header names: any, for an operator; its own, for others.
async fn named(state: &State, name: &[u8], role: Role, own: &OrgName) -> Result<OrgName, Problem> {
    let text = String::from_utf8_lossy(name);
    let none = || Problem::not_found(format!("there is no organization '{text}'"));
    let name = OrgName::new(&text).map_err(|_| none())?;
    if name == *own {
        return Ok(name);
    }
    if role != Role::Operator {
        return Err(none());
    }
    state.cloud.named_global::<Organization>(name.as_str()).await?;
    Ok(name)
}

impl Who for AgentCaller {
    fn permission(_: Role) -> Permission {
        Permission::Agent
    }

    async fn admit(state: &State, _: &Parts, from: &From, _: Role) -> Result<Self, Problem> {
        let Some(agent) = &from.agent else {
            let detail = "only an agent may call this, with the certificate it was enrolled with";
            return Err(Problem::unauthorized(detail));
        };
        let settled = state.cloud.settled(&agent.region, &agent.host).await?;
        let shown = agent.certificate.fingerprint.to_string();
        if settled.is_none_or(|settled| settled.fingerprint != shown) {
            let host = &agent.host;
            return Err(Problem::forbidden(format!(
                "host '{host}' was forgotten or enrolled anew since this certificate was made; enrol \
                 it again with a new token"
            )));
        }
        Ok(Self { region: agent.region.clone(), host: agent.host.clone() })
    }

    fn caller(&self) -> Option<&Caller> {
        None
    }
}

impl Who for Nobody {
    fn permission(_: Role) -> Permission {
        Permission::Public
    }

    async fn admit(state: &State, _: &Parts, from: &From, _: Role) -> Result<Self, Problem> {
        state.public.admit(from.address, Instant::now()).map_err(too_often)?;
        Ok(Self { from: from.address })
    }

    fn caller(&self) -> Option<&Caller> {
        None
    }
}
