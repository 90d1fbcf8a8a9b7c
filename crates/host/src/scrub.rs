//! Scrub: bring a VF to the one safe state, whoever had it and whatever they did, and read it back.
//! Total: MAC, VLAN with priority and protocol, rates, anti-spoof, trust, link state, MTU, GUIDs,
//! driver, then a function reset, and the representor (representor.rs); sriov-cni#214: what is not
//! scrubbed, the next tenant gets.

use std::time::Instant;

use lanekeeper_hw::HardwareError;
use lanekeeper_hw::inventory::{PfReading, VfAttributes, VfReading};
use lanekeeper_hw::message::VfMessage;
use lanekeeper_model::{
    EswitchMode, Guid, LinkState, MacAddr, Mtu, RateLimits, VfIndex, VfSettings, VlanTag,
};

use crate::drivers::{self, Knob};
use crate::error::HostError;
use crate::ledger::PfRecord;
use crate::owner::{Session, is_refusal, is_unsupported};

/// How a scrub went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scrubbed {
    /// The VF is in the safe state. What the reader should know of the way there.
    Clean(Vec<String>),
    /// It is not, and why.
    Dirty(String),
    /// There is no VF any more.
    Gone,
}

/// Whether a driver has no such knob, by the table or by what was learnt.
fn lacks(pf: &PfReading, record: &PfRecord, knob: Knob, mode: Option<EswitchMode>) -> bool {
    record.lacks.contains(&knob) || drivers::of(pf).lacks(knob, mode).is_some()
}

/// Whether a VF passes nothing and keeps nothing. A knob that the driver lacks holds nothing: a
/// link that cannot be disabled, or anti-spoof that cannot be turned off, is nobody's leftover.
pub(crate) fn is_scrubbed(
    pf: &PfReading,
    vf: &VfReading,
    record: &PfRecord,
    mode: Option<EswitchMode>,
) -> bool {
    // What its PF does not tell may be anything.
    if vf.attributes.is_none() {
        return pf.netdev.is_none();
    }
    let mut left = what_is_left(pf, vf, record, mode);
    // The address that the host's own driver took when it was bound is the driver's.
    let of_driver = vf.netdev.as_ref().map(|netdev| netdev.mac);
    if of_driver.is_some() && of_driver == vf.attributes.map(|now| now.mac) {
        (left.mac, left.node_guid, left.port_guid) = (None, None, None);
    }
    left.is_empty()
}

/// Whether a VF without a driver tells a MAC that it should not have.
pub(crate) fn keeps_a_mac(pf: &PfReading, vf: &VfReading, record: &PfRecord) -> bool {
    vf.driver.is_none() && what_is_left(pf, vf, record, pf.eswitch).mac.is_some()
}

/// No GUID, or the one that mlx5 makes of no MAC (`node_guid_gen_from_mac`, eswitch.c).
pub(crate) fn is_no_guid(guid: Guid) -> bool {
    guid.is_zero() || guid == Guid::from_mac(MacAddr::ZERO)
}

/// The message that takes away what is left; empty if nothing is.
fn what_is_left(
    pf: &PfReading,
    vf: &VfReading,
    record: &PfRecord,
    mode: Option<EswitchMode>,
) -> VfMessage {
    let Some(now) = vf.attributes else { return VfMessage::default() };
    let mut message = VfMessage::between(&now, &VfSettings::scrubbed());
    let parked = record.vfs.get(&vf.vf).and_then(|vf| vf.parked_mac);
    if parked == Some(now.mac) {
        message.mac = None;
    } else if let (Some(_), Some(parked)) = (message.mac, parked) {
        message.mac = Some(parked);
    }
    if lacks(pf, record, Knob::LinkState, mode) {
        message.link_state = None;
    }
    if lacks(pf, record, Knob::Spoofchk, mode) {
        message.spoofchk = None;
    }
    let leftover = |guid: Option<Guid>| {
        let own = parked.map(Guid::from_mac);
        guid.filter(|guid| !is_no_guid(*guid) && Some(*guid) != own).map(|_| Guid::ZERO)
    };
    message.node_guid = leftover(now.node_guid);
    message.port_guid = leftover(now.port_guid);
    message
}

/// The attributes of a message, each in a message of its own, with the knob that it turns.
pub(crate) fn one_by_one(message: &VfMessage) -> Vec<(Knob, &'static str, VfMessage)> {
    let none = VfMessage::default();
    let rate = |rate: RateLimits| {
        let knob = if rate.min.0 > 0 { Knob::MinRate } else { Knob::Rate };
        (knob, "rate", VfMessage { rate: Some(rate), ..none })
    };
    [
        message.mac.map(|mac| (Knob::Mac, "MAC", VfMessage { mac: Some(mac), ..none })),
        message.vlan.map(|vlan| (Knob::Vlan, "VLAN", VfMessage { vlan: Some(vlan), ..none })),
        message.rate.map(rate),
        message
            .spoofchk
            .map(|on| (Knob::Spoofchk, "spoofchk", VfMessage { spoofchk: Some(on), ..none })),
        message.link_state.map(|state| {
            (Knob::LinkState, "link state", VfMessage { link_state: Some(state), ..none })
        }),
        message.trust.map(|on| (Knob::Trust, "trust", VfMessage { trust: Some(on), ..none })),
        message
            .node_guid
            .map(|guid| (Knob::Guid, "node GUID", VfMessage { node_guid: Some(guid), ..none })),
        message
            .port_guid
            .map(|guid| (Knob::Guid, "port GUID", VfMessage { port_guid: Some(guid), ..none })),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Session<'_> {
    /// Bring the VF's attributes to the safe state: one message, or, if the driver refuses part of
    /// it, as many as it takes. What the reader should know is in the answer; an error that says
    /// "dirty" is the inner one.
    pub(crate) fn scrub_attributes(
        &mut self,
        pf: &PfReading,
        vf: &VfReading,
    ) -> Result<Result<Vec<String>, String>, HostError> {
        let message = what_is_left(pf, vf, &self.record, pf.eswitch);
        if message.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let sent = self.owner.patiently(|hw| hw.send_vf(self.addr, vf.vf, &message));
        match sent {
            Ok(()) => Ok(Ok(Vec::new())),
            Err(error) if is_refusal(&error) => self.scrub_piecewise(vf.vf),
            Err(error) => Err(error.into()),
        }
    }

    fn scrub_piecewise(&mut self, vf: VfIndex) -> Result<Result<Vec<String>, String>, HostError> {
        let (pf, now) = self.read_vf(vf)?;
        let (mut notes, mut dirty) = (Vec::new(), Vec::new());
        for (knob, what, message) in one_by_one(&what_is_left(&pf, &now, &self.record, pf.eswitch))
        {
            let error = match self.owner.patiently(|hw| hw.send_vf(self.addr, vf, &message)) {
                Ok(()) => continue,
                Err(error) if is_refusal(&error) => error,
                Err(error) => return Err(error.into()),
            };
            match knob {
                Knob::Mac => match self.park_mac(vf)? {
                    Ok(note) => notes.push(note),
                    Err(refusal) => dirty.push(format!("MAC: {error}; {refusal}")),
                },
                // Nothing of a tenant's is in a link or a check that cannot be turned off.
                Knob::LinkState | Knob::Spoofchk if is_unsupported(&error) => {
                    self.record.lacks.insert(knob);
                    self.save()?;
                    notes.push(format!("{what} cannot be set on this NIC and stays as it is"));
                }
                _ => dirty.push(format!("{what}: {error}")),
            }
        }
        Ok(if dirty.is_empty() { Ok(notes) } else { Err(dirty.join("; ")) })
    }

    /// A VF that its driver does not let be without a MAC gets a locally administered one, drawn once
    /// for the VF: the driver takes no zero one back (sriov-cni#88), or then tells one that a guest
    /// gave itself (bnxt_sriov.c, bnxt_vf_configure_mac).
    pub(crate) fn park_mac(&mut self, vf: VfIndex) -> Result<Result<String, String>, HostError> {
        let known = self.record.vfs.get(&vf).and_then(|vf| vf.parked_mac);
        let mac = known.unwrap_or_else(|| self.owner.drawn_mac());
        if let Some(record) = self.record.vfs.get_mut(&vf) {
            record.parked_mac = Some(mac);
        }
        self.save()?;
        let message = VfMessage { mac: Some(mac), ..VfMessage::default() };
        match self.owner.patiently(|hw| hw.send_vf(self.addr, vf, &message)) {
            Ok(()) => {
                Ok(Ok(format!("this NIC does not let VF {vf} be without a MAC; it keeps {mac}")))
            }
            Err(error) if is_refusal(&error) => Ok(Err(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Scrub a VF that somebody had: its driver goes, its settings go, and it is reset. Whatever the
    /// kernel says of a step, if the PF itself answers, it is the VF that cannot be scrubbed.
    pub(crate) fn scrub(&mut self, vf: VfIndex) -> Result<Scrubbed, HostError> {
        match self.scrub_all(vf) {
            Err(HostError::Hardware(error @ HardwareError::Kernel { .. })) => {
                self.read()?;
                Ok(Scrubbed::Dirty(error.to_string()))
            }
            Err(error @ HostError::Untold { .. }) => Ok(Scrubbed::Dirty(error.to_string())),
            other => other,
        }
    }

    fn scrub_all(&mut self, vf: VfIndex) -> Result<Scrubbed, HostError> {
        let (pf, now) = match self.read_vf(vf) {
            Ok(found) => found,
            Err(HostError::VfMissing { .. }) => return Ok(Scrubbed::Gone),
            Err(error) => return Err(error),
        };
        let mut notes = Vec::new();
        if let Some(netdev) = &now.netdev
            && netdev.mtu != u32::from(Mtu::ETHERNET)
        {
            let set =
                |hw: &dyn lanekeeper_hw::SriovHardware| hw.set_vf_mtu(self.addr, vf, Mtu::ETHERNET);
            match self.owner.patiently(set) {
                Ok(()) => {}
                // It goes with the interface, when its driver is taken away next.
                Err(error) if is_refusal(&error) => notes.push(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        self.set_override(&now, None)?;
        self.unbind(&now)?;
        let (_, now) = self.read_told(vf)?;
        match self.scrub_attributes(&pf, &now)? {
            Ok(more) => notes.extend(more),
            Err(dirty) => return Ok(Scrubbed::Dirty(dirty)),
        }
        let begun = Instant::now();
        let reset = self.owner.patiently(|hw| hw.reset(self.addr, now.addr));
        let outcome = match &reset {
            Ok(()) => format!("done in {:?}", begun.elapsed()),
            Err(error) => error.to_string(),
        };
        if let Some(record) = self.record.vfs.get_mut(&vf) {
            record.last_reset = Some(outcome);
        }
        match reset {
            Ok(()) => {}
            Err(error) if is_refusal(&error) => {
                return Ok(Scrubbed::Dirty(format!("function reset: {error}")));
            }
            Err(error) => return Err(error.into()),
        }
        let (mut pf, mut now) = self.settled_after_reset(vf)?;
        if what_is_left(&pf, &now, &self.record, pf.eswitch).mac.is_some() {
            match self.park_mac(vf)? {
                Ok(note) => notes.push(note),
                Err(refusal) => return Ok(Scrubbed::Dirty(format!("MAC: {refusal}"))),
            }
            (pf, now) = self.read_told(vf)?;
        }
        if let Some(left) = self.leftovers(&pf, &now) {
            return Ok(Scrubbed::Dirty(left));
        }
        Ok(match self.put_representor_back(vf)? {
            None => Scrubbed::Clean(notes),
            Some(left) => Scrubbed::Dirty(left),
        })
    }

    /// The VF once nothing is left on it, or as it is when patience ends: a PF's driver may hear of
    /// the reset a moment later.
    fn settled_after_reset(&self, vf: VfIndex) -> Result<(PfReading, VfReading), HostError> {
        let settled = |(pf, now): &(PfReading, VfReading)| {
            let left = what_is_left(pf, now, &self.record, pf.eswitch);
            // A MAC that is told all the same does not go by waiting.
            now.attributes.is_some() && VfMessage { mac: None, ..left }.is_empty()
        };
        self.owner.look_until(|| self.read_vf(vf), settled)
    }

    /// What is left on a VF after its scrub, in words.
    fn leftovers(&self, pf: &PfReading, vf: &VfReading) -> Option<String> {
        if let Some(driver) = &vf.driver {
            return Some(format!("{driver} is bound again"));
        }
        let Some(now) = vf.attributes else {
            return Some("the PF tells nothing of its VFs".to_owned());
        };
        let left = one_by_one(&what_is_left(pf, vf, &self.record, pf.eswitch));
        let words = left.iter().map(|(_, what, _)| format!("{what} ({})", value(&now, what)));
        let words = words.collect::<Vec<_>>().join(", ");
        (!words.is_empty()).then(|| format!("the driver says that it is done, but left: {words}"))
    }
}

fn value(now: &VfAttributes, what: &str) -> String {
    let VfAttributes { mac, vlan: VlanTag { id, pcp, .. }, rate, .. } = now;
    match what {
        "MAC" => mac.to_string(),
        "VLAN" => format!("{id}, PCP {pcp}"),
        "rate" => format!("{} to {} Mb/s", rate.min, rate.max),
        "link state" => now.link_state.unwrap_or(LinkState::Auto).to_string(),
        "node GUID" | "port GUID" => "not zero".to_owned(),
        _ => "on".to_owned(),
    }
}
