//! Random histories: claims, releases, guests, refusals, deaths at any step, hot removals, reboots.
//! After each event ledger and devices must agree, no VF have two owners, none be lost, and free
//! ones be scrubbed. A seed tells a history in full: `HISTORY_SEED=<seed> cargo test -p
//! lanekeeper-host one_history_by_its_seed -- --ignored`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lanekeeper_host::ledger::{Identity, Life, PfRecord};
use lanekeeper_host::{
    ClaimId, ClaimRequest, DriverWanted, HostError, HostFile, Owner, Patience, RdmaNeed, Released,
    Which,
};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::chaos::{Chaos, Fault, survive};
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::{LinkState, MacAddr, Mbps, PfAddr, RateLimits, VlanTag};

use crate::rig::{QUICK, Rig, entry, token};

const PATIENCE: Patience = Patience {
    busy: Duration::from_millis(200),
    poll: Duration::from_micros(100),
    vfs: Duration::from_millis(500),
    ..QUICK
};

/// `SplitMix64` (Steele, Lea and Flood, 2014): a seed tells all that follows.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len() as u64) as usize]
    }
}

/// Says which history it was that failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("HISTORY_SEED={}", self.0);
        }
    }
}

struct History {
    dice: Dice,
    rig: Rig,
    file: HostFile,
    /// PFs that were pulled out.
    out: Vec<FakePf>,
    /// Who has a claim, by what we were told.
    held: BTreeMap<String, ClaimId>,
    /// Who may have one: the answer never came.
    unsure: BTreeSet<String>,
    tenants: u64,
    draws: Arc<AtomicU64>,
    told: Vec<String>,
}

impl History {
    fn begin(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let rig = Rig::new();
        let mut file: Option<HostFile> = None;
        for name in ["rail0", "rail1"].iter().take(1 + dice.below(2) as usize) {
            let mut pf = FakePf::new(*dice.of(&Personality::ALL));
            if dice.one_in(3) {
                pf = pf.refusing_zero_mac();
            }
            if dice.one_in(3) {
                pf = pf.with_vf_guids();
            }
            if dice.one_in(3) {
                pf = pf.driver_lagging(2).appearing_after(3);
            }
            let addr = rig.fake.add_pf(pf);
            let part = entry(&rig.fake, addr, name, 2 + dice.below(2) as u16, "pools: [fast]");
            match &mut file {
                None => file = Some(part),
                Some(file) => file.pfs.extend(part.pfs),
            }
        }
        let draws = Arc::new(AtomicU64::new(seed));
        let file = file.expect("one PF at least");
        let mut history = Self {
            dice,
            rig,
            file,
            out: Vec::new(),
            held: BTreeMap::new(),
            unsure: BTreeSet::new(),
            tenants: 0,
            draws,
            told: Vec::new(),
        };
        history.apply(None);
        history
    }

    fn owner(&self, hw: Arc<dyn SriovHardware>) -> Owner {
        let draws = Arc::clone(&self.draws);
        let draw = move || Dice(draws.fetch_add(1, Ordering::Relaxed)).roll();
        self.rig.owner_over(hw).with_patience(PATIENCE).with_draw(draw)
    }

    /// Something that goes wrong at some step, now and then.
    fn fault(&mut self) -> Option<(u64, Fault)> {
        let fault = *self.dice.of(&[
            Fault::DieBefore,
            Fault::DieAfter,
            Fault::Refuse(5),
            Fault::Refuse(11),
            Fault::Refuse(22),
            Fault::Refuse(95),
        ]);
        let step = self.dice.below(40);
        self.dice.one_in(2).then_some((step, fault))
    }

    /// Do something as a program that may die of it; whether anything went wrong.
    fn run<T>(
        &mut self,
        fault: Option<(u64, Fault)>,
        program: impl FnOnce(&Owner) -> Result<T, HostError>,
    ) -> (Option<Result<T, HostError>>, bool) {
        let Some((step, fault)) = fault else {
            return (Some(program(&self.owner(Arc::new(self.rig.fake.clone())))), false);
        };
        let chaos = Chaos::at(self.rig.fake.clone(), step, fault);
        let owner = self.owner(Arc::new(chaos.clone()));
        let outcome = survive(|| program(&owner)).ok();
        self.told.push(format!("  {fault:?} at step {step}"));
        (outcome, chaos.steps() > step)
    }

    fn apply(&mut self, fault: Option<(u64, Fault)>) {
        let file = self.file.clone();
        let (outcome, struck) = self.run(fault, |owner| owner.apply(&owner.plan(&file)?, None));
        let may_fail = struck || !self.out.is_empty();
        assert!(may_fail || matches!(outcome, Some(Ok(_))), "{outcome:?}\n{:#?}", self.told);
        if struck {
            self.recover();
        }
    }

    fn recover(&mut self) {
        let owner = self.owner(Arc::new(self.rig.fake.clone()));
        let recovered = owner.recover().expect("the ledger can be read");
        assert!(recovered.failed.is_empty(), "{recovered:?}\n{:#?}", self.told);
    }

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
            let answer = owner.release(&which, &wrong).expect("no error");
            assert!(matches!(answer, Released::NoOp { .. }), "{answer}");
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

    fn remove_or_put_back(&mut self) {
        if let Some(board) = self.out.pop() {
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
            let pfs = self.rig.fake.list().expect("PFs");
            let pf = *self.dice.of(&pfs);
            self.out.push(self.rig.fake.hot_remove(pf).expect("it is there"));
        }
        self.recover();
    }

    fn event(&mut self) {
        let event = self.dice.below(12);
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
                self.recover();
            }
            10 => self.remove_or_put_back(),
            _ => {
                // Several PFs are read side by side, so that a step's number would say nothing.
                let fault = if self.file.pfs.len() == 1 { self.fault() } else { None };
                self.apply(fault);
            }
        }
    }

    fn record_of(&self, pf: &PfReading) -> Option<PfRecord> {
        let identity = Identity::of(pf)?;
        let records = self.rig.owner().records().expect("the ledger can be read");
        records.into_iter().find(|record| record.identity.is(&identity))
    }

    /// What must hold after every event.
    fn judge(&mut self) {
        let told = || format!("{:#?}", self.told);
        let records = self.rig.owner().records().expect("no VF has two owners");
        let mut found = BTreeSet::new();
        for record in &records {
            assert!(!record.is_cut_short(), "{record:?}\n{}", told());
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

fn history(seed: u64) {
    let _says = Seed(seed);
    let mut history = History::begin(seed);
    history.judge();
    let events = 4 + history.dice.below(10);
    for _ in 0..events {
        history.event();
        history.judge();
    }
    // With everything put back and everybody gone, all VFs are free again.
    while !history.out.is_empty() {
        history.remove_or_put_back();
    }
    history.rig.fake.reboot();
    history.recover();
    let owner = history.owner(Arc::new(history.rig.fake.clone()));
    for record in owner.records().expect("ledger") {
        for id in record.claims.keys() {
            let tenants = history.held.keys().chain(&history.unsure);
            for tenant in tenants {
                let which = Which::Claim(id.clone());
                owner.release(&which, &token(tenant)).expect("nobody holds it");
            }
        }
    }
    history.recover();
    for record in owner.records().expect("ledger") {
        let wanted = record.target.as_ref().map_or(0, |target| usize::from(target.vfs));
        assert_eq!(record.free_vfs().count(), wanted, "{record:#?}\n{:#?}", history.told);
    }
}

fn histories(seeds: std::ops::Range<u64>) {
    std::thread::scope(|scope| {
        for half in 0..2 {
            let seeds = seeds.clone();
            scope.spawn(move || seeds.filter(|seed| seed % 2 == half).for_each(history));
        }
    });
}

#[test]
fn five_hundred_random_histories_leave_ledger_and_devices_in_agreement() {
    histories(0..500);
}

#[test]
#[ignore = "long: ten thousand histories"]
fn ten_thousand_random_histories_leave_ledger_and_devices_in_agreement() {
    histories(0..10_000);
}

#[test]
#[ignore = "long: only with HISTORY_SEED, to look at one"]
fn one_history_by_its_seed() {
    if let Ok(seed) = std::env::var("HISTORY_SEED") {
        history(seed.parse().expect("a number"));
    }
}
