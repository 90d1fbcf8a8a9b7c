//! The RoCE profile of a file, and the settings that it comes to. All of it is set on the PF, for
//! all its VFs: a VM can set its own packets' ToS and no more (network-operator#269).

use std::collections::{BTreeMap, BTreeSet};

use lanekeeper_model::{Dscp, Mtu, Pcp, RdmaNetns, RoceMode, RoceSetting, Trust};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FileError, value};

/// A RoCE profile. What is not given is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoceProfile {
    /// PF only. What received packets get their priority from: `pcp` or `dscp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TrustName>")]
    pub trust: Option<Trust>,
    /// PF only. Priority of each code point, as in `{26: 3, 48: 6}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, u8>>")]
    pub dscp_priority: Option<BTreeMap<Dscp, Pcp>>,
    /// PF only. Priorities that are paused rather than dropped, as in `[3]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeSet<u8>>")]
    pub pfc: Option<BTreeSet<Pcp>>,
    /// PF only. Share of the link of each of eight traffic classes in per cent; all zero for
    /// strict priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ets: Option<[u8; 8]>,
    /// PF only. Bytes of each of eight receive buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffers: Option<[u32; 8]>,
    /// PF only. Link-level pause, which PFC wants off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_pause: Option<bool>,
    /// PF only. Priorities in which congestion is notified, as in `[3]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeSet<u8>>")]
    pub ecn: Option<BTreeSet<Pcp>>,
    /// PF only. Code point of congestion notification packets, 0 to 63.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u8>", range(max = 63))]
    pub cnp_dscp: Option<Dscp>,
    /// PF only. Priority of congestion notification packets, 0 to 7.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u8>", range(max = 7))]
    pub cnp_priority: Option<Pcp>,
    /// PF only: connections that RDMA-CM makes on this host. Code point, 0 to 63. A VM sets its
    /// own (`NCCL_IB_TC`, `traffic_class`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u8>", range(max = 63))]
    pub cm_dscp: Option<Dscp>,
    /// PF only. Whether those connections are ECN-capable; a field of its own, for code point 26
    /// is ToS 104 without it and 106 with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cm_ecn: Option<bool>,
    /// PF only. GID type of those connections: `v1` or `v2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RoceModeName>")]
    pub cm_mode: Option<RoceMode>,
    /// The whole host. Where RDMA devices are seen: `shared` or `exclusive`. It can be changed
    /// only while no network namespace but the first exists (rdma-cni#39).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NetnsName>")]
    pub netns: Option<RdmaNetns>,
    /// PF and VFs. MTU of the PF in bytes; RoCE's own MTU 4096 wants about 4200 or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>", range(min = 68, max = 9202))]
    pub mtu: Option<Mtu>,
}

/// How the schema writes [`Trust`].
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase", inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum TrustName {
    /// The VLAN tag's PCP.
    Pcp,
    /// The IP header's DSCP.
    Dscp,
}

/// How the schema writes [`RoceMode`].
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase", inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum RoceModeName {
    /// Ethertype 0x8915.
    V1,
    /// UDP port 4791.
    V2,
}

/// How the schema writes [`RdmaNetns`].
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase", inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum NetnsName {
    /// In every network namespace.
    Shared,
    /// In one.
    Exclusive,
}

impl RoceProfile {
    /// The settings, in the order to make them: what sorts packets before what depends on it.
    pub fn settings(&self) -> Vec<RoceSetting> {
        let tos = self.cm_dscp.map(|dscp| dscp.tos(self.cm_ecn.unwrap_or(false)));
        [
            self.netns.map(RoceSetting::Netns),
            self.mtu.map(RoceSetting::Mtu),
            self.global_pause.map(RoceSetting::GlobalPause),
            self.trust.map(RoceSetting::Trust),
            self.dscp_priority.clone().map(RoceSetting::DscpPriority),
            self.buffers.map(RoceSetting::Buffers),
            self.ets.map(RoceSetting::Ets),
            self.pfc.clone().map(RoceSetting::Pfc),
            self.ecn.clone().map(RoceSetting::Ecn),
            self.cnp_dscp.map(RoceSetting::CnpDscp),
            self.cnp_priority.map(RoceSetting::CnpPriority),
            self.cm_mode.map(RoceSetting::CmMode),
            tos.map(RoceSetting::CmTos),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    pub(super) fn validate(&self, key: &str) -> Result<(), FileError> {
        let key = |field: &str| format!("{key}.{field}");
        if let Some(ets) = self.ets {
            let sum: u32 = ets.iter().map(|share| u32::from(*share)).sum();
            if sum != 0 && sum != 100 {
                let remedy = format!("the shares make {sum}; they must make 100, or all be 0");
                return Err(value(&key("ets"), &format!("{ets:?}"), remedy));
            }
        }
        if self.cm_ecn.is_some() && self.cm_dscp.is_none() {
            let remedy = "needs cm_dscp, for both are written as one ToS byte";
            return Err(value(&key("cm_ecn"), &"given", remedy));
        }
        let pauses = self.pfc.as_ref().is_some_and(|pfc| !pfc.is_empty());
        if pauses && self.global_pause == Some(true) {
            let remedy = "contradicts pfc: a link pauses as a whole or by priority, not both";
            return Err(value(&key("global_pause"), &true, remedy));
        }
        Ok(())
    }
}
