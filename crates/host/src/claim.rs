//! A claim: one VF becomes somebody's. Journal, unbind, settings in one message, read back, driver,
//! read back, facts for the hand-over; whatever fails on the way, the VF is free and scrubbed again.

use lanekeeper_hw::HardwareError;
use lanekeeper_hw::inventory::{PfReading, VfReading};
use lanekeeper_hw::message::VfMessage;
use lanekeeper_model::{Guid, Mbps, Mtu, RateLimits, VfIndex};
use rustix::io::Errno;

use crate::drivers::{self, Knob};
use crate::error::{HostError, Preflight};
use crate::handover::{HandOver, check_node, node_note};
use crate::ledger::{ClaimRecord, Life, PfRecord, VfOriginal, VfRecord};
use crate::owner::{Session, is_refusal, kernel_says, read_back};
use crate::request::{Claim, ClaimId, DriverWanted, RdmaNeed, VmFacts};
use crate::resolve::netns_note;
use crate::scrub::{Scrubbed, is_no_guid, one_by_one};

/// The driver that hands a device to user space.
pub const VFIO: &str = "vfio-pci";

/// What a VF lacks of what its owner asked for; a GUID that the driver does not tell is not told
/// to be missing.
pub(crate) fn message(vf: &VfReading, claim: &ClaimRecord) -> VfMessage {
    let Some(now) = vf.attributes else { return VfMessage::default() };
    let mut message = VfMessage::between(&now, &claim.settings);
    let other = |now: Option<Guid>| claim.guid.filter(|guid| now.is_some_and(|now| now != *guid));
    message.node_guid = other(now.node_guid);
    message.port_guid = other(now.port_guid);
    message
}

/// The same of a VF that is in use: a VM that is trusted may have given itself another MAC.
pub(crate) fn drift(vf: &VfReading, claim: &ClaimRecord) -> VfMessage {
    let mut message = message(vf, claim);
    if claim.settings.trust && vf.holder.is_some() {
        message.mac = None;
    }
    message
}

/// In what a claim's VF is not as it was handed over, beyond what its PF tells of it: its driver, its
/// representor, its MTU on this host. Each in words.
pub(crate) fn astray(pf: &PfReading, vf: &VfReading, claim: &ClaimRecord) -> Vec<String> {
    let mut astray = Vec::new();
    if vf.holder.is_none()
        && let Some(wanted) = wanted_driver(pf, claim)
    {
        if vf.driver.as_deref() != Some(wanted) {
            let found = vf.driver.as_deref().unwrap_or("no driver");
            astray.push(format!("{found} has it, not {wanted}"));
        } else if vf.driver_override.as_deref() != Some(wanted) {
            astray.push(format!("its driver_override is not {wanted}"));
        }
    }
    if !is_open(vf, claim) {
        astray.push("its representor is closed, or smaller than its MTU".to_owned());
    }
    let host_mtu = vf.netdev.as_ref().map(|netdev| netdev.mtu);
    if claim.driver == DriverWanted::Kernel
        && host_mtu.is_some_and(|mtu| mtu != u32::from(claim.settings.mtu))
    {
        astray.push(format!("its MTU is not {}", claim.settings.mtu));
    }
    astray
}

/// Its representor, if it has one, passes what the claim may send.
pub(crate) fn is_open(vf: &VfReading, claim: &ClaimRecord) -> bool {
    let passes = |state: lanekeeper_hw::inventory::RepresentorState| {
        state.up && state.mtu >= u32::from(claim.settings.mtu)
    };
    vf.representor_state.is_none_or(passes)
}

/// Every setting as read is as wanted.
fn compare(now: &VfReading, claim: &ClaimRecord) -> Result<(), HostError> {
    let left = one_by_one(&message(now, claim));
    let Some((_, what, _)) = left.first() else { return Ok(()) };
    let (wanted, found) = (&claim.settings, now.attributes.unwrap_or_default());
    let wanted = match *what {
        "MAC" => wanted.mac.to_string(),
        "VLAN" => format!("{:?}", wanted.vlan),
        "rate" => format!("{:?}", wanted.rate),
        "link state" => wanted.link_state.to_string(),
        "trust" => wanted.trust.to_string(),
        "spoofchk" => wanted.spoofchk.to_string(),
        _ => format!("{:?}", claim.guid),
    };
    Err(read_back(now.addr, what, &wanted, &format!("{found:?}")))
}

/// The rates that are limits, with the fields that asked for them.
fn rate_in_words(rate: RateLimits) -> (&'static str, String) {
    match (rate.min, rate.max) {
        (Mbps(0), max) => ("max_rate", max.to_string()),
        (min, Mbps(0)) => ("min_rate", min.to_string()),
        (min, max) => ("min_rate, max_rate", format!("{min}, {max}")),
    }
}

/// Name of the driver that a claim is handed over with, if it is known.
pub(crate) fn wanted_driver(pf: &PfReading, claim: &ClaimRecord) -> Option<&'static str> {
    match claim.driver {
        DriverWanted::VfioPci => Some(VFIO),
        DriverWanted::Kernel => drivers::of(pf).of_vfs,
    }
}

impl Session<'_> {
    /// Bring a VF that is in the journal as claimed to where it can be handed over. It can be done
    /// again at any time: what is as wanted is not written.
    pub(crate) fn make_ready(&mut self, id: &ClaimId) -> Result<(), HostError> {
        let claim = self.claim(id)?;
        let (pf, now) = self.read_told(claim.vf)?;
        if claim.driver == DriverWanted::VfioPci {
            self.owner.own_group(&now)?;
        }
        let sends = message(&now, &claim);
        if !sends.is_empty() || now.driver.as_deref() != wanted_driver(&pf, &claim) {
            self.unbind(&now)?;
        }
        self.configure(&pf, &now, &claim)?;
        self.set_life(claim.vf, Life::Configured)?;
        if claim.rdma == RdmaNeed::Hardware {
            self.prove_guid(&pf, &claim)?;
        }
        self.hand_over_driver(&pf, &claim)?;
        self.open_representor(&claim)?;
        let now = self.prove(&claim)?;
        if claim.driver == DriverWanted::VfioPci {
            let group = self.owner.own_group(&now)?;
            check_node(&*self.owner.preflight, group)?;
        }
        if let Some(claim) = self.record.claims.get_mut(id) {
            claim.lost = None;
        }
        self.record.vfs.entry(claim.vf).or_insert_with(VfRecord::free).life = Life::Bound;
        self.save()
    }

    pub(crate) fn claim(&self, id: &ClaimId) -> Result<ClaimRecord, HostError> {
        let claim = self.record.claims.get(id).cloned();
        claim.ok_or_else(|| HostError::NotYours(id.clone()))
    }

    pub(crate) fn set_life(&mut self, vf: VfIndex, life: Life) -> Result<(), HostError> {
        let record = self.record.vfs.entry(vf).or_insert_with(VfRecord::free);
        if record.life != life {
            record.life = life;
            self.save()?;
        }
        Ok(())
    }

    /// Settings, in one message, and what came of it.
    fn configure(
        &mut self,
        pf: &PfReading,
        now: &VfReading,
        claim: &ClaimRecord,
    ) -> Result<(), HostError> {
        let mut wanted = message(now, claim);
        let told = now.attributes.and_then(|attributes| attributes.node_guid).is_some();
        if claim.guid.is_some() && !told && drivers::of(pf).lacks(Knob::Guid, None).is_none() {
            // It may take what it does not tell.
            (wanted.node_guid, wanted.port_guid) = (claim.guid, claim.guid);
        }
        if !wanted.is_empty() {
            let sent = self.send_settings(claim.vf, &wanted);
            if let Err(error) = sent {
                return Err(self.name_refusal(pf, claim, &wanted, error));
            }
        }
        self.prove(claim).map(drop)
    }

    /// The VF once all is read back as its owner asked: a driver may tell of it a moment later.
    pub(crate) fn prove(&self, claim: &ClaimRecord) -> Result<VfReading, HostError> {
        let look = || self.read_told(claim.vf);
        let (_, now) = self.owner.look_until(look, |(_, now)| compare(now, claim).is_ok())?;
        compare(&now, claim).map(|()| now)
    }

    /// Which setting it was that the driver refused. The kernel applies a message's attributes in
    /// their order, so it is the first that is not there.
    fn name_refusal(
        &self,
        pf: &PfReading,
        claim: &ClaimRecord,
        sent: &VfMessage,
        error: HardwareError,
    ) -> HostError {
        if !is_refusal(&error) {
            return error.into();
        }
        let Ok((_, now)) = self.read_vf(claim.vf) else { return error.into() };
        let mut left = message(&now, claim);
        if left.is_empty() {
            (left.node_guid, left.port_guid) = (sent.node_guid, sent.port_guid);
        }
        let refused = one_by_one(&left).into_iter().next();
        let Some((_, what, _)) = refused else { return error.into() };
        let wanted = &claim.settings;
        let (field, value) = match what {
            "MAC" => ("mac", wanted.mac.to_string()),
            "VLAN" => ("vlan", format!("{} ({})", wanted.vlan.id, wanted.vlan.protocol)),
            "rate" => rate_in_words(wanted.rate),
            "spoofchk" => ("spoofchk", wanted.spoofchk.to_string()),
            "link state" => ("link_state", wanted.link_state.to_string()),
            "trust" => ("trust", wanted.trust.to_string()),
            _ => ("guid", claim.guid.unwrap_or_default().to_string()),
        };
        let speed = pf.netdev.as_ref().and_then(|netdev| netdev.speed);
        let fastest = wanted.rate.max.max(wanted.rate.min);
        let instead = match (&error, speed) {
            (_, Some(speed)) if what == "rate" && fastest > speed => {
                format!("the PF's link has {speed} Mb/s: ask for no more than that")
            }
            // What else it may be that drivers refuse is no matter once it is known what it was.
            (HardwareError::Kernel { source, .. }, _) if kernel_says(&error, &[Errno::INVAL]) => {
                format!("{source}: leave it out, or ask for another value")
            }
            (error, _) => error.to_string(),
        };
        HostError::NotOnThisPath {
            pf: self.name().to_owned(),
            driver: drivers::words(pf),
            field,
            value,
            instead,
        }
    }

    /// RDMA in a VM needs a VF with a node GUID (sriov-network-operator#267). Where the PF does not
    /// tell it, the VF's own driver does: it is probed anew, for a MAC takes effect on the GUID
    /// only then (openshift/sriov-network-operator#237).
    fn prove_guid(&mut self, pf: &PfReading, claim: &ClaimRecord) -> Result<(), HostError> {
        let (_, now) = self.read_vf(claim.vf)?;
        if now.attributes.and_then(|now| now.node_guid).is_some_and(|guid| !is_no_guid(guid)) {
            return Ok(());
        }
        let no_guid = HostError::from(Preflight::NoGuid { address: now.addr });
        let Some(driver) = drivers::of(pf).of_vfs else { return Err(no_guid) };
        let now = self.bind(claim.vf, driver)?;
        if now.driver.as_deref() != Some(driver) {
            let driver = driver.to_owned();
            return Err(Preflight::Module { address: now.addr, driver }.into());
        }
        match now.rdma {
            Some(rdma) if !is_no_guid(rdma.node_guid) => Ok(()),
            _ => Err(no_guid),
        }
    }

    fn hand_over_driver(&mut self, pf: &PfReading, claim: &ClaimRecord) -> Result<(), HostError> {
        let Some(driver) = wanted_driver(pf, claim) else {
            return Err(HostError::NotOnThisPath {
                pf: self.name().to_owned(),
                driver: drivers::words(pf),
                field: "driver",
                value: "kernel".to_owned(),
                instead: "its VFs' driver is not known: use vfio-pci".to_owned(),
            });
        };
        let now = self.bind(claim.vf, driver)?;
        let (address, wanted) = (now.addr, driver.to_owned());
        match now.driver {
            None => return Err(Preflight::Module { address, driver: wanted }.into()),
            Some(found) if found != driver => {
                return Err(Preflight::WrongDriver { address, driver: wanted, found }.into());
            }
            Some(_) => {}
        }
        if claim.driver == DriverWanted::Kernel {
            let Some(netdev) = now.netdev else {
                return Err(Preflight::NoNetdev { address, driver: wanted }.into());
            };
            self.host_mtu(claim, netdev.mtu)?;
        }
        Ok(())
    }

    /// A VF that stays on the host gets its MTU from us; one in a VM, from the VM.
    pub(crate) fn host_mtu(&self, claim: &ClaimRecord, now: u32) -> Result<(), HostError> {
        let wanted = claim.settings.mtu;
        if now == u32::from(wanted) {
            return Ok(());
        }
        self.owner.patiently(|hw| hw.set_vf_mtu(self.addr, claim.vf, wanted))?;
        let (_, vf) = self.read_vf(claim.vf)?;
        let found = vf.netdev.map_or(0, |netdev| netdev.mtu);
        if found == u32::from(wanted) {
            return Ok(());
        }
        Err(read_back(vf.addr, "MTU", &wanted, &found))
    }

    /// Strike a claim: its VF is scrubbed, with the driver that it had, and nobody's.
    pub(crate) fn strike_claim(&mut self, id: &ClaimId) -> Result<Vec<String>, HostError> {
        let claim = self.claim(id)?;
        let scrubbed = self.scrub(claim.vf)?;
        let notes = self.put_back(claim.vf, scrubbed)?;
        self.record.claims.remove(id);
        self.settle_life(claim.vf);
        self.save()?;
        Ok(notes)
    }

    /// After a scrub: give the driver back, and say where the VF stands. Nothing is saved: a claim
    /// goes in the same write.
    pub(crate) fn put_back(
        &mut self,
        vf: VfIndex,
        scrubbed: Scrubbed,
    ) -> Result<Vec<String>, HostError> {
        let record = self.record.vfs.entry(vf).or_insert_with(VfRecord::free);
        let (life, notes) = match scrubbed {
            Scrubbed::Clean(notes) => (Life::Free, notes),
            Scrubbed::Dirty(reason) => (Life::Quarantined { reason }, Vec::new()),
            Scrubbed::Gone => (Life::Absent, vec![format!("VF {vf} is gone")]),
        };
        let original = record.original.clone();
        let mut notes = notes;
        if life == Life::Free
            && let Some(original) = original
        {
            notes.extend(self.give_driver_back(vf, &original)?);
        }
        let record = self.record.vfs.entry(vf).or_insert_with(VfRecord::free);
        // What a VF had is given back once it is clean, however long that takes.
        if !matches!(life, Life::Quarantined { .. }) {
            record.original = None;
        }
        record.life = life;
        Ok(notes)
    }

    fn give_driver_back(
        &self,
        vf: VfIndex,
        original: &VfOriginal,
    ) -> Result<Option<String>, HostError> {
        let mut note = None;
        if let Some(driver) = &original.driver {
            let why = match self.bind(vf, driver) {
                Ok(now) => (now.driver.as_ref() != Some(driver)).then(String::new),
                Err(HostError::Hardware(error @ HardwareError::Kernel { .. })) => {
                    Some(format!(": {error}"))
                }
                Err(error) => return Err(error),
            };
            note = why.map(|why| format!("VF {vf}: its driver {driver} did not take it back{why}"));
        }
        let (_, now) = self.read_vf(vf)?;
        self.set_override(&now, original.driver_override.as_deref())?;
        Ok(note)
    }

    /// A VF whose claim is gone and that does not exist is not listed beyond the target.
    pub(crate) fn settle_life(&mut self, vf: VfIndex) {
        let wanted = self.record.target.as_ref().map_or(0, |target| usize::from(target.vfs));
        if vf.get() >= wanted {
            self.record.vfs.remove(&vf);
        }
    }

    /// A claim as its owner sees it.
    pub(crate) fn describe(&self, id: &ClaimId, vm: &VmFacts) -> Result<Claim, HostError> {
        let claim = self.claim(id)?;
        let (pf, now) = self.read_vf(claim.vf)?;
        let mut notes = Vec::new();
        let pf_mtu = pf.netdev.as_ref().map_or(1_500, |netdev| netdev.mtu);
        let settings = now.settings(pf_mtu.min(Mtu::MAX))?;
        let group = now.iommu_group.as_ref();
        let node = match (claim.driver, group) {
            (DriverWanted::VfioPci, Some(group)) => {
                Some(check_node(&*self.owner.preflight, group.number)?)
            }
            _ => None,
        };
        notes.extend(node.as_ref().and_then(|node| node_note(&*self.owner.preflight, node, vm)));
        if claim.driver == DriverWanted::VfioPci && u32::from(claim.settings.mtu) != pf_mtu {
            notes.push(format!("the VM sets its own MTU: use {} there", claim.settings.mtu));
        }
        let mut hand_over = HandOver::of(id, &claim, now.addr, node, vm);
        hand_over.netdev = now.netdev.as_ref().map(|netdev| netdev.name.clone());
        hand_over.rdma_device = now.rdma.as_ref().map(|rdma| rdma.name.clone());
        let limit = self.owner.preflight.memlock_limit();
        if let (Some(needed), Some(limit)) = (hand_over.memlock_bytes, limit)
            && needed > limit
        {
            notes.push(format!(
                "the VMM must lock {needed} bytes, and this process may lock {limit}: raise its \
                 RLIMIT_MEMLOCK"
            ));
        }
        if claim.rdma == RdmaNeed::Hardware
            && let Some(device) = &hand_over.rdma_device
        {
            notes.extend(netns_note(&pf, device));
        }
        if claim.rdma == RdmaNeed::Software {
            notes.push("RDMA is the VM's own: load rdma_rxe there".to_owned());
        }
        let told = now.attributes.and_then(|now| now.node_guid).filter(|guid| !is_no_guid(*guid));
        let by_mac = (claim.rdma == RdmaNeed::Hardware).then(|| Guid::from_mac(claim.settings.mac));
        let guid = told.or(now.rdma.map(|rdma| rdma.node_guid)).or(claim.guid).or(by_mac);
        let life = self.life(claim.vf);
        Ok(Claim {
            id: id.clone(),
            pf: self.name().to_owned(),
            pf_address: self.addr,
            vf: claim.vf,
            address: now.addr,
            life,
            settings: lanekeeper_model::VfSettings { mtu: claim.settings.mtu, ..settings },
            guid,
            driver: now.driver.clone(),
            iommu_group: group.map(|group| group.number),
            group_members: group
                .map(|group| group.members.iter().copied().collect())
                .unwrap_or_default(),
            numa_node: pf.numa_node,
            distance: None,
            hand_over,
            notes,
        })
    }

    pub(crate) fn life(&self, vf: VfIndex) -> Life {
        self.record.vfs.get(&vf).map_or(Life::Absent, |vf| vf.life.clone())
    }
}

/// Whether a record's driver turned out to lack a knob, or is known to.
pub(crate) fn lacks(pf: &PfReading, record: &PfRecord, knob: Knob) -> Option<String> {
    let known = drivers::of(pf).lacks(knob, pf.eswitch).map(str::to_owned);
    let learnt = "this driver refused it before: leave it out, or use another NIC";
    known.or_else(|| record.lacks.contains(&knob).then(|| learnt.to_owned()))
}
