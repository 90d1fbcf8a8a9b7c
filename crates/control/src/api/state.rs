//! What every call is served from.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::http::Extensions;

use super::limit::{Limiter, Rate};
use crate::cloud::Cloud;
use crate::metrics::Metrics;
use crate::tls::{AgentIdentity, Authority, Peer};

/// How often who may call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// The bearer of one API key.
    pub callers: Rate,
    /// An address, without a key that is known.
    pub strangers: Rate,
    /// An address, what everybody may.
    pub public: Rate,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            callers: Rate { per_second: 100.0, burst: 1000.0 },
            strangers: Rate { per_second: 10.0, burst: 50.0 },
            public: Rate { per_second: 100.0, burst: 400.0 },
        }
    }
}

/// What calls are served from.
pub struct State {
    /// What can be done.
    pub cloud: Arc<Cloud>,
    /// Who signs agents' certificates.
    pub authority: Arc<Authority>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// How often bearers of a key may call.
    pub callers: Limiter<u64>,
    /// How often an address may call without a key that is known.
    pub strangers: Limiter<IpAddr>,
    /// How often an address may call what everybody may.
    pub public: Limiter<IpAddr>,
}

impl State {
    /// With an operator's limits.
    pub fn new(
        cloud: Arc<Cloud>,
        authority: Arc<Authority>,
        metrics: Arc<Metrics>,
        rates: Rates,
    ) -> Self {
        Self {
            cloud,
            authority,
            metrics,
            callers: Limiter::new(rates.callers),
            strangers: Limiter::new(rates.strangers),
            public: Limiter::new(rates.public),
        }
    }
}

/// Where a call comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct From {
    /// Which address.
    pub address: IpAddr,
    /// Which host's agent, if it has shown a certificate.
    pub agent: Option<AgentIdentity>,
}

impl From {
    /// As the listener knows it.
    pub fn of(extensions: &Extensions) -> Self {
        match extensions.get::<ConnectInfo<Peer>>() {
            Some(ConnectInfo(peer)) => {
                Self { address: peer.address.ip(), agent: peer.agent.clone() }
            }
            // Only tests call without a connection.
            None => Self { address: Ipv4Addr::LOCALHOST.into(), agent: None },
        }
    }
}
