//! What must hold.

use std::collections::BTreeSet;

use lanekeeper_host::DriverWanted;
use lanekeeper_host::ledger::{Identity, Life, PfRecord};
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::{RateLimits, VlanTag};

use super::History;
use crate::rig::token;

impl History {
    pub(super) fn record_of(&self, pf: &PfReading) -> Option<PfRecord> {
        let identity = Identity::of(pf)?;
        let records = self.rig.owner().records().expect("the ledger can be read");
        records.into_iter().find(|record| record.identity.is(&identity))
    }

    fn is_here(&self, record: &PfRecord) -> bool {
        let pfs = self.rig.fake.list().expect("PFs");
        let mut identities = pfs.into_iter().filter_map(|pf| Identity::of(&self.rig.read(pf)));
        identities.any(|identity| identity.is(&record.identity))
    }

    /// What must hold after every event.
    pub(super) fn judge(&mut self) {
        let told = || format!("{:#?}", self.told);
        let records = self.rig.owner().records().expect("no VF has two owners");
        let mut found = BTreeSet::new();
        for record in &records {
            // What a PF that is out was in the middle of waits for it.
            assert!(!self.is_here(record) || !record.is_cut_short(), "{record:?}\n{}", told());
            for (id, claim) in &record.claims {
                assert!(claim.handed_over, "{claim:?}\n{}", told());
                found.insert((id.clone(), claim.token.clone()));
            }
        }
        for (tenant, id) in &self.held {
            let hash = token(tenant).hash();
            assert!(found.remove(&(id.clone(), hash)), "{tenant} lost {id}\n{}", told());
        }
        let unsure: BTreeSet<String> =
            self.unsure.iter().map(|tenant| token(tenant).hash()).collect();
        for (id, hash) in found {
            assert!(unsure.contains(&hash), "{id} is nobody's\n{}", told());
        }
        for pf in self.rig.fake.list().expect("PFs") {
            let pf = self.rig.read(pf);
            let Some(record) = self.record_of(&pf) else { continue };
            self.judge_pf(&pf, &record);
        }
    }

    fn judge_pf(&self, pf: &PfReading, record: &PfRecord) {
        let told = || format!("{record:#?}\n{:#?}", self.told);
        let Some(target) = &record.target else {
            assert_eq!(pf.num_vfs, 0, "{}", told());
            return;
        };
        assert_eq!(pf.num_vfs, target.vfs, "{}", told());
        for vf in &pf.vfs {
            let now = vf.attributes.expect("told");
            let life = &record.vfs[&vf.vf].life;
            let owner = record.owner_of(vf.vf);
            match (life, owner) {
                (Life::Free, None) => {
                    let parked = record.vfs[&vf.vf].parked_mac;
                    assert!(now.mac.is_zero() || Some(now.mac) == parked, "{now:?}\n{}", told());
                    assert_eq!(now.vlan, VlanTag::default(), "{}", told());
                    assert_eq!(now.rate, RateLimits::default(), "{}", told());
                    assert_ne!(now.trust, Some(true), "{}", told());
                    assert_eq!((&vf.driver, &vf.driver_override), (&None, &None), "{}", told());
                }
                (Life::Quarantined { .. }, None) => {}
                (Life::Bound | Life::Attached | Life::Detaching, Some((_, claim))) => {
                    let wanted = &claim.settings;
                    // A VM that is trusted may give itself another.
                    let same_mac = now.mac == wanted.mac || wanted.trust && vf.holder.is_some();
                    assert!(same_mac, "{now:?}\n{}", told());
                    assert_eq!(now.vlan, wanted.vlan, "{}", told());
                    assert_eq!(now.rate, wanted.rate, "{}", told());
                    assert_eq!(now.trust.unwrap_or(false), wanted.trust, "{}", told());
                    let vfio = vf.driver.as_deref() == Some("vfio-pci");
                    assert_eq!(vfio, claim.driver == DriverWanted::VfioPci, "{}", told());
                    assert!(vf.driver.is_some(), "{}", told());
                }
                _ => panic!("VF {} is {life} with owner {owner:?}\n{}", vf.vf, told()),
            }
        }
    }
}
