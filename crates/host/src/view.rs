//! One owner's VFs as any back end shows them, so that who holds a VF of a NIC and who holds one of
//! the software NIC does the same with it. A change goes to VFs of the token's own claims only, and
//! is in the ledger before it is on the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use lanekeeper_hw::inventory::{PfReading, VfReading};
use lanekeeper_hw::{Hardware, HardwareError, PfStatus};
use lanekeeper_model::{LinkCounters, PfId, VfChange, VfCounters, VfIndex, VfSettings, VfStatus};

use crate::claim::is_open;
use crate::drivers;
use crate::error::HostError;
use crate::ledger::{ClaimRecord, Identity, PfRecord};
use crate::owner::{Owner, Session};
use crate::request::{DriverWanted, OwnerToken};

/// VFs of one owner token.
pub struct OwnedVfs {
    owner: Arc<Owner>,
    token: String,
}

impl OwnedVfs {
    /// VFs of this token.
    pub fn new(owner: Arc<Owner>, token: &OwnerToken) -> Self {
        Self { owner, token: token.hash() }
    }

    fn readings(&self) -> Result<Vec<(PfReading, PfRecord)>, HardwareError> {
        let seen = self.owner.readings().map_err(refused(None))?;
        let records = self.owner.records().map_err(refused(None))?;
        let mine = |record: &&PfRecord| record.claim_of(&self.token).is_some();
        let mut found = Vec::new();
        for pf in seen.into_iter().filter_map(|pf| pf.reading.ok()) {
            let Some(identity) = Identity::of(&pf) else { continue };
            let mut of_it = records.iter().filter(mine);
            if let Some(record) = of_it.find(|record| record.identity.is(&identity)) {
                found.push((pf, record.clone()));
            }
        }
        Ok(found)
    }

    /// One PF: it alone is read, so that another that hangs delays nobody.
    fn pf(&self, pf: &PfId) -> Result<(PfReading, PfRecord), HardwareError> {
        let no_pf = || HardwareError::NoPf(pf.clone());
        let PfId::Pci(address) = pf else { return Err(no_pf()) };
        let reading = self.owner.hw.read(*address)?;
        let identity = Identity::of(&reading).ok_or_else(no_pf)?;
        let records = self.owner.ledger.read_all();
        let records = records.map_err(|error| refused(Some(pf))(error.into()))?;
        let mine = |record: &PfRecord| {
            record.claim_of(&self.token).is_some() && record.identity.is(&identity)
        };
        // A damaged record is of another PF, or this one is nobody's that could be known.
        let mut good = records.into_iter().filter_map(|(_, record)| record.ok());
        let record = good.find(mine).ok_or_else(no_pf)?;
        Ok((reading, record))
    }

    fn owned(&self, pf: &PfId, vf: VfIndex) -> Result<(PfReading, PfRecord), HardwareError> {
        let (reading, record) = self.pf(pf)?;
        let num_vfs = reading.vfs.len();
        let mine = record.owner_of(vf).is_some_and(|(_, claim)| claim.token == self.token);
        if mine && reading.vf(vf).is_some() {
            return Ok((reading, record));
        }
        Err(HardwareError::NoVf { pf: pf.clone(), vf, num_vfs })
    }
}

fn refused(pf: Option<&PfId>) -> impl Fn(HostError) -> HardwareError {
    move |error| match (error, pf) {
        (HostError::Hardware(error), _) => error,
        (HostError::Invalid(error), _) => HardwareError::Invalid(error),
        (error, Some(pf)) => HardwareError::Refused { pf: pf.clone(), message: error.to_string() },
        (error, None) => HardwareError::Host {
            what: "the host's PFs".to_owned(),
            source: std::io::Error::other(error.to_string()),
        },
    }
}

impl Hardware for OwnedVfs {
    fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError> {
        let status = |pf: &PfReading| {
            let netdev = pf.netdev.as_ref();
            PfStatus {
                pf: pf.id(),
                driver: pf.driver.clone().unwrap_or_default(),
                uplink: netdev.map(|netdev| netdev.name.clone()),
                link_up: netdev.is_some_and(|netdev| netdev.carrier),
                num_vfs: pf.vfs.len(),
                total_vfs: match pf.total_vfs {
                    lanekeeper_hw::inventory::TotalVfs::UpTo(most) => usize::from(most),
                    _ => 0,
                },
                tx: LinkCounters::default(),
                rx: LinkCounters::default(),
                rx_drops: BTreeMap::new(),
            }
        };
        Ok(self.readings()?.iter().map(|(pf, _)| status(pf)).collect())
    }

    fn vf(&self, pf: &PfId, vf: VfIndex) -> Result<VfStatus, HardwareError> {
        let (reading, _) = self.owned(pf, vf)?;
        let num_vfs = reading.vfs.len();
        let missing = || HardwareError::NoVf { pf: pf.clone(), vf, num_vfs };
        Ok(reading.vf(vf).ok_or_else(missing)?.status(&reading)?)
    }

    fn set_vf(&self, pf: &PfId, vf: VfIndex, change: &VfChange) -> Result<VfStatus, HardwareError> {
        let (_, record) = self.owned(pf, vf)?;
        if change.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty()) {
            return Err(HardwareError::Unsupported {
                driver: "a NIC".to_owned(),
                what: "hold a VF to IP addresses".to_owned(),
                said: None,
                instead: "spoofchk holds it to its MAC; use the software NIC for addresses"
                    .to_owned(),
            });
        }
        let changed = self.owner.change(&record.name, vf, &self.token, change);
        changed.map_err(refused(Some(pf)))?;
        self.vf(pf, vf)
    }

    fn counters(&self, pf: &PfId, vf: VfIndex) -> Result<VfCounters, HardwareError> {
        let (reading, _) = self.owned(pf, vf)?;
        self.owner.hw.vf_counters(reading.addr, vf)
    }

    fn scrub(&self, pf: &PfId, _vf: VfIndex) -> Result<VfStatus, HardwareError> {
        Err(HardwareError::Refused {
            pf: pf.clone(),
            message: "an owned VF is scrubbed when it is released".to_owned(),
        })
    }
}

impl Owner {
    /// Change the settings of an owned VF: in the ledger, then on the device, in one message; if
    /// the device refuses, both are as before.
    pub(crate) fn change(
        &self,
        pf: &str,
        vf: VfIndex,
        token: &str,
        change: &VfChange,
    ) -> Result<(), HostError> {
        let mut session = self.session(&self.key_of(pf)?)?;
        let mine = session.record.owner_of(vf).filter(|(_, claim)| claim.token == token);
        let missing = || HostError::VfMissing { pf: pf.to_owned(), vf };
        let (id, before) =
            mine.map(|(id, claim)| (id.clone(), claim.clone())).ok_or_else(missing)?;
        let settings = change.apply_to(&before.settings)?;
        let (pf, now) = session.read_vf(vf)?;
        if now.holder.is_some() && settings.mac != before.settings.mac {
            return Err(HostError::NotOnThisPath {
                pf: session.name().to_owned(),
                driver: drivers::words(&pf),
                field: "mac",
                value: settings.mac.to_string(),
                instead: "a VF's MAC changes only while no VM holds it: detach it first".to_owned(),
            });
        }
        let lane = |settings: &VfSettings| (settings.mac, settings.vlan.id, settings.vlan.protocol);
        let addresses = self.ledger.lock_addresses(self.lock_until())?;
        if lane(&settings) != lane(&before.settings) && !settings.mac.is_zero() {
            session.unused(settings.mac, settings.vlan, &pf)?;
        }
        let pf_mtu = pf.netdev.as_ref().map_or(u32::MAX, |netdev| netdev.mtu);
        if u32::from(settings.mtu) > pf_mtu && settings.mtu != before.settings.mtu {
            return Err(HostError::NotOnThisPath {
                pf: session.name().to_owned(),
                driver: drivers::words(&pf),
                field: "mtu",
                value: settings.mtu.to_string(),
                instead: format!("the PF has {pf_mtu}: raise its mtu in the host file"),
            });
        }
        let wanted = ClaimRecord { settings, ..before.clone() };
        session.record.claims.insert(id.clone(), wanted.clone());
        session.save()?;
        drop(addresses);
        let Err(error) = session.bring_to(&now, &wanted) else { return Ok(()) };
        session.record.claims.insert(id, before);
        session.save()?;
        let (_, now) = session.read_vf(vf)?;
        session.settle(&now)?;
        Err(error)
    }
}

impl Session<'_> {
    /// Bring a VF to what its changed claim says, and look whether it is there.
    fn bring_to(&self, now: &VfReading, claim: &ClaimRecord) -> Result<(), HostError> {
        self.settle(now)?;
        if let (DriverWanted::Kernel, Some(netdev)) = (claim.driver, &now.netdev) {
            self.host_mtu(claim, netdev.mtu)?;
        }
        let (_, now) = self.read_told(claim.vf)?;
        if !is_open(&now, claim) {
            self.open_representor(claim)?;
        }
        // A VM that is trusted may have another MAC of its own.
        if now.holder.is_none() {
            self.prove(claim)?;
        }
        Ok(())
    }
}
