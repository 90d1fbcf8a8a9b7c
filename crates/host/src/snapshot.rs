//! What a PF was before a change, so that the way back leads there whatever was reached.

use std::collections::BTreeMap;

use lanekeeper_hw::inventory::{PfReading, VfAttributes, VfReading};
use lanekeeper_model::{EswitchMode, RoceSetting, VfIndex};
use serde::{Deserialize, Serialize};

use crate::ledger::PfRecord;
use crate::request::ClaimId;

/// Everything of a PF that we set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PfSnapshot {
    /// Its interface was up.
    pub up: Option<bool>,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// Drivers were bound to VFs as they appeared.
    pub autoprobe: bool,
    /// Mode of its embedded switch.
    pub eswitch: Option<EswitchMode>,
    /// How many VFs it had.
    pub num_vfs: u16,
    /// What its driver told of a RoCE profile.
    pub roce: Vec<RoceSetting>,
    /// Its VFs.
    pub vfs: BTreeMap<VfIndex, VfSnapshot>,
}

/// Everything of a VF that we set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VfSnapshot {
    /// Whose it was. A VF that changed hands since is not brought back.
    pub claim: Option<ClaimId>,
    /// What was set on it.
    pub attributes: Option<VfAttributes>,
    /// Driver that was bound.
    pub driver: Option<String>,
    /// Driver that alone could bind.
    pub driver_override: Option<String>,
    /// MTU of its interface on this host, in bytes.
    pub mtu: Option<u32>,
}

impl PfSnapshot {
    /// A PF as it is.
    pub fn of(pf: &PfReading, record: &PfRecord) -> Self {
        let vf = |reading: &VfReading| {
            let snapshot = VfSnapshot {
                claim: record.owner_of(reading.vf).map(|(id, _)| id.clone()),
                attributes: reading.attributes,
                driver: reading.driver.clone(),
                driver_override: reading.driver_override.clone(),
                mtu: reading.netdev.as_ref().map(|netdev| netdev.mtu),
            };
            (reading.vf, snapshot)
        };
        Self {
            up: pf.netdev.as_ref().map(|netdev| netdev.up),
            mtu: pf.netdev.as_ref().map(|netdev| netdev.mtu),
            autoprobe: pf.autoprobe,
            eswitch: pf.eswitch,
            num_vfs: pf.num_vfs,
            roce: pf.roce.clone(),
            vfs: pf.vfs.iter().map(vf).collect(),
        }
    }

    /// The first thing in which a PF is not as it was, in words.
    pub fn difference(&self, pf: &PfReading, record: &PfRecord) -> Option<String> {
        let now = Self::of(pf, record);
        let pairs = [
            ("VFs", self.num_vfs == now.num_vfs),
            ("mode of the embedded switch", self.eswitch == now.eswitch),
            ("autoprobe", self.autoprobe == now.autoprobe),
            ("MTU", self.mtu == now.mtu),
            ("up", self.up == now.up),
        ];
        if let Some((what, _)) = pairs.iter().find(|(_, same)| !same) {
            return Some((*what).to_owned());
        }
        let mut roce = self.roce.iter();
        if let Some(setting) = roce.find(|setting| !now.roce.contains(setting)) {
            return Some(format!("RoCE setting {}", setting.kind()));
        }
        self.vfs.iter().find_map(|(vf, before)| {
            let now = now.vfs.get(vf)?;
            let theirs = before.claim != now.claim;
            // What nobody told before cannot be brought back.
            let attributes = before.attributes.and(now.attributes);
            let now = VfSnapshot { attributes, ..now.clone() };
            (!theirs && *before != now).then(|| format!("VF {vf}"))
        })
    }
}
