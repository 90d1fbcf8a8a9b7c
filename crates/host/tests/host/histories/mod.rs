//! Random histories: claims, releases, guests, refusals, deaths at any step, hot removals, reboots.
//! After each event ledger and devices must agree, no VF have two owners, none be lost, and free
//! ones be scrubbed. What died is not always followed by its next start at once: the host boots, the NIC
//! is pulled out, or another stands in its place. A seed tells a history in full: `HISTORY_SEED=<seed> cargo test -p
//! lanekeeper-host one_history_by_its_seed -- --ignored`.

mod events;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lanekeeper_host::{ClaimId, ClaimRequest, HostError, HostFile, Owner, Patience, Which};
use lanekeeper_hw::SriovHardware;
use lanekeeper_hw::chaos::{Chaos, Fault, survive};
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_model::PfAddr;

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
    /// What each tenant asked for.
    asked: BTreeMap<String, ClaimRequest>,
    /// Somebody else's boards that stand where ours were.
    strangers: Vec<PfAddr>,
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
            asked: BTreeMap::new(),
            strangers: Vec::new(),
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
            self.meanwhile();
            self.recover();
        }
    }

    fn recover(&mut self) {
        let owner = self.owner(Arc::new(self.rig.fake.clone()));
        let recovered = owner.recover().expect("the ledger can be read");
        assert!(recovered.failed.is_empty(), "{recovered:?}\n{:#?}", self.told);
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
                match owner.release(&which, &token(tenant)) {
                    Ok(_) | Err(HostError::NotYours(_)) => {}
                    Err(error) => panic!("nobody holds it: {error}"),
                }
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
