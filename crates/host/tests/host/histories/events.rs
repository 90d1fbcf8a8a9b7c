//! What happens in a history.

use std::sync::Arc;

use lanekeeper_host::{ClaimRequest, DriverWanted, HostError, Owner, RdmaNeed, Which};
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_model::{LinkState, MacAddr, Mbps, Mtu, PfAddr};

use super::History;
use crate::rig::token;

impl History {
    fn request(&mut self, tenant: &str) -> ClaimRequest {
        let mut request = ClaimRequest::new(token(tenant));
        let pfs: Vec<String> = self.file.pfs.iter().map(|pf| pf.name.clone()).collect();
        request.pf = Some(self.dice.of(&pfs).clone());
        if self.dice.one_in(2) {
            request.vlan = serde_json::from_str(r#"{"id": 7, "pcp": 3}"#).ok();
        }
        if self.dice.one_in(2) {
            request.max_rate = Some(Mbps(100));
        }
        request.trust = self.dice.one_in(3).then_some(true);
        request.link_state = self.dice.one_in(4).then_some(LinkState::Disable);
        request.rdma = self.dice.one_in(4).then_some(RdmaNeed::Hardware);
        request.driver = self.dice.one_in(4).then_some(DriverWanted::Kernel);
        request
    }

    fn claim(&mut self) {
        self.tenants += 1;
        let tenant = format!("tenant-{}", self.tenants);
        let (request, fault) = (self.request(&tenant), self.fault());
        self.asked.insert(tenant.clone(), request.clone());
        let (outcome, struck) = self.run(fault, |owner| owner.claim(&request));
        match outcome {
            Some(Ok(claim)) => {
                self.held.insert(tenant, claim.id);
            }
            Some(Err(_)) if !struck => {}
            _ => {
                self.unsure.insert(tenant);
            }
        }
        if struck {
            self.meanwhile();
            self.recover();
        }
    }

    fn release(&mut self) {
        let tenants: Vec<String> = self.held.keys().cloned().collect();
        if tenants.is_empty() {
            return;
        }
        let tenant = self.dice.of(&tenants).clone();
        let which = Which::Claim(self.held[&tenant].clone());
        if self.dice.one_in(4) {
            let wrong = token("somebody-else");
            let owner = self.owner(Arc::new(self.rig.fake.clone()));
            let error = owner.release(&which, &wrong).expect_err("another's");
            assert!(matches!(error, HostError::NotYours(_)), "{error}");
            return;
        }
        let fault = self.fault();
        let (outcome, struck) = self.run(fault, |owner| owner.release(&which, &token(&tenant)));
        match outcome {
            Some(Ok(_)) => {
                self.held.remove(&tenant);
            }
            Some(Err(HostError::Busy { .. })) => {}
            _ => {
                assert!(struck, "{outcome:?}\n{:#?}", self.told);
                self.held.remove(&tenant);
                self.unsure.insert(tenant);
            }
        }
        if struck {
            self.meanwhile();
            self.recover();
        }
    }

    /// A VM takes its VF, changes it, or dies.
    fn guest(&mut self) {
        let pfs = self.rig.fake.list().expect("PFs");
        if pfs.is_empty() {
            return;
        }
        let pf = *self.dice.of(&pfs);
        let vfs = self.rig.read(pf).vfs;
        if vfs.is_empty() {
            return;
        }
        let vf = self.dice.of(&vfs).clone();
        let record = self.record_of(&self.rig.read(pf));
        let owned = record.is_some_and(|record| record.owner_of(vf.vf).is_some());
        if vf.holder.is_some() {
            if self.dice.one_in(2) {
                let mac = MacAddr([2, 0xee, 0, 0, 0, self.dice.below(9) as u8]);
                self.rig.fake.guest_sets_mac(pf, vf.vf, mac).expect("a guest");
            } else {
                self.rig.fake.close_vf(pf, vf.vf).expect("it dies");
                self.recover();
            }
        } else if owned {
            // Only what vfio-pci has can be opened; the rest is the host's own.
            let _ = self.rig.fake.open_vf(pf, vf.vf, 4711, "qemu");
        }
    }

    /// Pull one of our PFs out, if there is one; where it was.
    fn pull_out(&mut self) -> Option<PfAddr> {
        let mut pfs = self.rig.fake.list().expect("PFs");
        pfs.retain(|pf| !self.strangers.contains(pf));
        let pf = *pfs.get(self.dice.below(2) as usize).or(pfs.first())?;
        self.out.push(self.rig.fake.hot_remove(pf).expect("it is there"));
        Some(pf)
    }

    /// Between a death and the next start the world goes on.
    pub(super) fn meanwhile(&mut self) {
        let happens = self.dice.below(8);
        self.told.push(format!("  meanwhile {happens}"));
        match happens {
            0 => self.rig.fake.reboot(),
            1 => drop(self.pull_out()),
            2 => {
                // Out and in again: the same board, with nothing on it.
                if self.pull_out().is_some()
                    && let Some(board) = self.out.pop()
                {
                    self.rig.fake.add_pf(board);
                }
            }
            3 => {
                if let Some(place) = self.pull_out() {
                    let other = FakePf::new(*self.dice.of(&Personality::ALL)).at(place);
                    self.strangers.push(self.rig.fake.add_pf(other));
                }
            }
            _ => {}
        }
    }

    /// An owner asks once more, for the same or for something else.
    fn claim_again(&mut self) {
        let tenants: Vec<String> = self.held.keys().cloned().collect();
        if tenants.is_empty() {
            return;
        }
        let tenant = self.dice.of(&tenants).clone();
        let mut request = self.asked[&tenant].clone();
        let same = self.dice.one_in(2);
        if !same {
            request.mtu = Mtu::new(1_400).ok();
        }
        let (outcome, _) = self.run(None, |owner| owner.claim(&request));
        match outcome {
            Some(Ok(claim)) => {
                assert!(same, "{claim:?}\n{:#?}", self.told);
                assert_eq!(claim.id, self.held[&tenant], "{:#?}", self.told);
            }
            Some(Err(HostError::Conflict { .. })) => assert!(!same, "{:#?}", self.told),
            outcome => assert!(!self.out.is_empty(), "{outcome:?}\n{:#?}", self.told),
        }
    }

    /// The host file has another number of VFs; what dies of it may find the old file again.
    fn change_file(&mut self) {
        let before = self.file.clone();
        let at = self.dice.below(self.file.pfs.len() as u64) as usize;
        self.file.pfs[at].vfs = 1 + self.dice.below(4) as u16;
        let fault = if self.file.pfs.len() == 1 { self.fault() } else { None };
        let file = self.file.clone();
        let (outcome, struck) = self.run(fault, |owner| owner.apply(&owner.plan(&file)?, None));
        if matches!(outcome, Some(Ok(_))) && !struck {
            return;
        }
        if struck {
            self.meanwhile();
        }
        self.recover();
        // It may have died just after all was done.
        let records = self.rig.owner().records().expect("ledger");
        let is_it = |record: &&lanekeeper_host::ledger::PfRecord| record.name == file.pfs[at].name;
        let target = records.iter().find(is_it).and_then(|record| record.target.as_ref());
        self.file = before;
        if let Some(target) = target {
            self.file.pfs[at].vfs = target.vfs;
        }
    }

    pub(super) fn remove_or_put_back(&mut self) {
        if let Some(board) = self.out.pop() {
            for stranger in self.strangers.drain(..) {
                self.rig.fake.hot_remove(stranger).expect("it is there");
            }
            let board = if self.dice.one_in(2) {
                let elsewhere = format!("0000:{:02x}:00.0", 0xd0 + self.dice.below(8));
                let elsewhere: PfAddr = elsewhere.parse().expect("an address");
                let taken = self.rig.fake.list().expect("PFs").contains(&elsewhere);
                if taken { board } else { board.at(elsewhere) }
            } else {
                board
            };
            self.rig.fake.add_pf(board);
        } else {
            self.pull_out();
        }
        self.recover();
    }

    pub(super) fn event(&mut self) {
        let event = self.dice.below(15);
        self.told.push(format!("event {event}"));
        match event {
            0..=3 => self.claim(),
            4..=6 => self.release(),
            7 | 8 => self.guest(),
            9 => {
                self.rig.fake.reboot();
                let fault = self.fault();
                // A recovery may die as well.
                self.run(fault, Owner::recover);
                self.meanwhile();
                self.recover();
            }
            10 => self.remove_or_put_back(),
            11 => self.claim_again(),
            12 => self.change_file(),
            _ => {
                // Several PFs are read side by side, so that a step's number would say nothing.
                let fault = if self.file.pfs.len() == 1 { self.fault() } else { None };
                self.apply(fault);
            }
        }
    }
}
