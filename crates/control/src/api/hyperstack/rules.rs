//! Security rules of a VM, and the protocols that rules can name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::access::Caller;
use super::super::route::{Call, Json, NoQuery, Reply, Routes};
use super::fields::RuleFields;
use super::{About, Answer, Served, again, delete, get, post, served, show};
use crate::cloud::CloudError;
use crate::resource::{SecurityRule, Time, Vm};

/// Protocols that the official API knows.
const PROTOCOLS: [&str; 26] = [
    "any",
    "ah",
    "dccp",
    "egp",
    "esp",
    "gre",
    "hopopt",
    "icmp",
    "igmp",
    "ip",
    "ipip",
    "ipv6-encap",
    "ipv6-frag",
    "ipv6-icmp",
    "icmpv6",
    "ipv6-nonxt",
    "ipv6-opts",
    "ipv6-route",
    "ospf",
    "pgm",
    "rsvp",
    "sctp",
    "tcp",
    "udp",
    "udplite",
    "vrrp",
];

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("hyperstack-security-rules")
        .add(get("/v1/core/sg-rules-protocols", "Protocols that rules can name."), protocols)
        .add(post("/v1/core/virtual-machines/{id}/sg-rules", "One more rule of a VM."), add_rule)
        .add(
            delete("/v1/core/virtual-machines/{id}/sg-rules/{rule}", "Take a rule away."),
            delete_rule,
        );
}

/// A new rule.
#[derive(Clone, Deserialize, JsonSchema)]
pub(super) struct CreateRule {
    /// `ingress` or `egress`.
    direction: String,
    /// `IPv4` or `IPv6`.
    ethertype: String,
    /// `any`, or the name of a protocol.
    protocol: String,
    /// Whom it is about, as `0.0.0.0/0`.
    remote_ip_prefix: String,
    /// First port.
    port_range_min: Option<i64>,
    /// Last port.
    port_range_max: Option<i64>,
}

impl CreateRule {
    /// As it is kept.
    pub(super) fn read(self) -> Result<SecurityRule, CloudError> {
        if !PROTOCOLS.contains(&self.protocol.as_str()) {
            let why = "see /v1/core/sg-rules-protocols for those there are";
            return Err(CloudError::invalid("protocol", self.protocol, why));
        }
        let port = |field, port: Option<i64>| match port.map(u16::try_from) {
            None => Ok(None),
            Some(Ok(port)) => Ok(Some(port)),
            Some(Err(_)) => {
                let value = port.unwrap_or_default().to_string();
                Err(CloudError::invalid(field, value, "use 0 to 65535"))
            }
        };
        Ok(SecurityRule {
            id: 0,
            direction: self.direction,
            ethertype: self.ethertype,
            protocol: self.protocol,
            remote_ip_prefix: self.remote_ip_prefix,
            port_range_min: port("port_range_min", self.port_range_min)?,
            port_range_max: port("port_range_max", self.port_range_max)?,
            created_at: None,
        })
    }
}

#[derive(Serialize, JsonSchema)]
struct Protocols {
    #[serde(flatten)]
    served: Served,
    protocols: Vec<&'static str>,
}

async fn protocols(_: Call<Caller>) -> Answer<Protocols> {
    let protocols = PROTOCOLS.to_vec();
    Ok(Reply::new(Protocols { served: served("Protocols retrieved successfully"), protocols }))
}

#[derive(Serialize, JsonSchema)]
struct OneRule {
    #[serde(flatten)]
    served: Served,
    security_rule: RuleFields,
}

async fn add_rule(call: About<NoQuery, Json<CreateRule>>) -> Answer<OneRule> {
    let cloud = &call.state.cloud;
    let Json(body) = call.body;
    let rule = body.read()?;
    let made = again(|| async {
        let was = cloud.get::<Vm>(&call.who.organization, call.path.id).await?;
        cloud.add_rule(&was, rule.clone()).await
    });
    Ok(Reply::new(OneRule {
        served: served("Security rule added successfully"),
        security_rule: show::rule(&made.await?, Time::now()),
    }))
}

/// A rule of a VM.
#[derive(Deserialize, JsonSchema)]
struct RuleOf {
    /// The VM's id.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    id: u64,
    /// The rule's id within it.
    rule: u64,
}

async fn delete_rule(call: Call<Caller, RuleOf>) -> Answer<Served> {
    let cloud = &call.state.cloud;
    again(|| async {
        let was = cloud.get::<Vm>(&call.who.organization, call.path.id).await?;
        cloud.delete_rule(&was, call.path.rule).await
    })
    .await?;
    Ok(Reply::new(served("Security rule deleted successfully")))
}
