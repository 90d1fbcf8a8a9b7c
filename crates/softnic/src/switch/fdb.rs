//! The forwarding table: which VF has an address in a VLAN, and who is in a VLAN at all.
//!
//! Built once per change of settings and never written afterwards. Open addressing in a table at
//! most a quarter full; the builder tries multipliers until no address is further than
//! [`MAX_PROBES`] from its place, so a VM that chooses its further addresses cannot make everyone's
//! look-ups slow.

use std::collections::BTreeMap;

use lanekeeper_model::{MAX_VFS, VfIndex};

use super::vlan::VlanKey;

/// Furthest an address may be from the place that its hash says, unless no multiplier tried
/// manages it.
const MAX_PROBES: usize = 4;

/// How many multipliers are tried.
const TRIES: u64 = 16;

/// An address in a VLAN, as one word: VLAN in bits 63..48, MAC in bits 47..0.
type Key = u64;

/// Stands for every VLAN of a trunk; no [`VlanKey`] has this value.
const ANY_TRUNK_VLAN: u64 = 0x4000 << 48;

/// No key has VLAN 0xffff.
const FREE: Key = u64::MAX;

const fn key(vlan: VlanKey, mac: u64) -> Key {
    (vlan.index() as u64) << 48 | mac
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: Key,
    vf: u8,
    fixed: bool,
}

/// An administrative address that another VF of the same VLAN has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occupied {
    /// Who has it.
    pub holder: VfIndex,
}

/// Collects addresses and members, and makes a [`Fdb`] of them.
#[derive(Clone, Debug)]
pub struct FdbBuilder {
    addresses: BTreeMap<Key, (VfIndex, bool)>,
    members: Box<[u64]>,
    trunks: u64,
}

impl Default for FdbBuilder {
    fn default() -> Self {
        Self { addresses: BTreeMap::new(), members: vec![0; VlanKey::SPACE].into(), trunks: 0 }
    }
}

impl FdbBuilder {
    /// Makes a VF a member of one VLAN.
    pub fn join(&mut self, vf: VfIndex, vlan: VlanKey) {
        self.members[vlan.index()] |= 1 << vf.get();
    }

    /// Makes a VF a member of every VLAN that a trunk can be in.
    pub fn join_trunk(&mut self, vf: VfIndex) {
        self.trunks |= 1 << vf.get();
    }

    /// Gives a VF its administrative address in one VLAN, or in all of a trunk's (`None`).
    ///
    /// # Errors
    /// [`Occupied`] if another VF has it as administrative address in one of these VLANs.
    pub fn fix(&mut self, vf: VfIndex, vlan: Option<VlanKey>, mac: u64) -> Result<(), Occupied> {
        if let Some(holder) = self.fixed_holder(vlan, mac).filter(|holder| *holder != vf) {
            return Err(Occupied { holder });
        }
        self.addresses.insert(address(vlan, mac), (vf, true));
        Ok(())
    }

    /// Gives a VF a further address, unless somebody has it already. All administrative addresses
    /// must be in before: they win, and they are never taken over.
    pub fn add(&mut self, vf: VfIndex, vlan: Option<VlanKey>, mac: u64) {
        if self.fixed_holder(vlan, mac).is_none() {
            self.addresses.entry(address(vlan, mac)).or_insert((vf, false));
        }
    }

    /// Who has `mac` as administrative address in any of these VLANs.
    fn fixed_holder(&self, vlan: Option<VlanKey>, mac: u64) -> Option<VfIndex> {
        let fixed = |key: &Key| self.addresses.get(key).filter(|(_, fixed)| *fixed);
        let holder = match vlan {
            Some(vlan) if vlan.on_trunk() => {
                fixed(&key(vlan, mac)).or_else(|| fixed(&(ANY_TRUNK_VLAN | mac)))
            }
            Some(vlan) => fixed(&key(vlan, mac)),
            None => self
                .addresses
                .iter()
                .find(|(key, (_, fixed))| {
                    *fixed && **key << 16 == mac << 16 && (**key >> 48) & 0x1000 == 0
                })
                .map(|(_, entry)| entry),
        };
        holder.map(|(vf, _)| *vf)
    }

    /// The finished table.
    pub fn build(self) -> Fdb {
        let capacity = (self.addresses.len() * 4).next_power_of_two().max(64);
        let lay_out = |attempt| {
            let multiplier = multiplier(attempt);
            let (slots, probes) = lay_out(&self.addresses, capacity, multiplier);
            (slots, multiplier, probes)
        };
        let (mut slots, mut multiplier, mut probes) = lay_out(0);
        for attempt in 1..TRIES {
            if probes <= MAX_PROBES {
                break;
            }
            let other = lay_out(attempt);
            if other.2 < probes {
                (slots, multiplier, probes) = other;
            }
        }
        Fdb {
            shift: 64 - capacity.trailing_zeros(),
            slots,
            multiplier,
            members: self.members,
            trunks: self.trunks,
        }
    }
}

fn address(vlan: Option<VlanKey>, mac: u64) -> Key {
    vlan.map_or(ANY_TRUNK_VLAN | mac, |vlan| key(vlan, mac))
}

/// An odd multiplier: 2^64 divided by the golden ratio first, then numbers that have nothing to do with
/// it (splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). With
/// its multiples, addresses in equal steps that are bad for one are bad for many.
fn multiplier(attempt: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    if attempt == 0 {
        return GOLDEN;
    }
    let mixed = GOLDEN.wrapping_mul(attempt + 1);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) | 1
}

/// Puts every address into a table of `capacity` slots; also says how far the worst one is from
/// its place.
fn lay_out(
    addresses: &BTreeMap<Key, (VfIndex, bool)>,
    capacity: usize,
    multiplier: u64,
) -> (Box<[Slot]>, usize) {
    let shift = 64 - capacity.trailing_zeros();
    let mut slots = vec![Slot { key: FREE, vf: 0, fixed: false }; capacity].into_boxed_slice();
    let mut worst = 0;
    for (&key, &(vf, fixed)) in addresses {
        let mut at = (key.wrapping_mul(multiplier) >> shift) as usize;
        let mut probes = 1;
        while slots[at].key != FREE {
            at = (at + 1) & (capacity - 1);
            probes += 1;
        }
        slots[at] = Slot { key, vf: vf.get() as u8, fixed };
        worst = worst.max(probes);
    }
    (slots, worst)
}

/// The forwarding table. See the module for how it is made.
#[derive(Clone, Debug)]
pub struct Fdb {
    slots: Box<[Slot]>,
    multiplier: u64,
    shift: u32,
    members: Box<[u64]>,
    trunks: u64,
}

impl Fdb {
    /// Which VF has this address in this VLAN, as a number below [`MAX_VFS`].
    #[inline]
    pub fn find(&self, vlan: VlanKey, mac: u64) -> Option<usize> {
        self.entry(vlan, mac).map(|slot| slot.vf as usize % MAX_VFS)
    }

    /// Whether this address is some VF's administrative one, which is never learned elsewhere.
    pub fn is_fixed(&self, vlan: VlanKey, mac: u64) -> bool {
        self.entry(vlan, mac).is_some_and(|slot| slot.fixed)
    }

    #[inline]
    fn entry(&self, vlan: VlanKey, mac: u64) -> Option<&Slot> {
        self.probe(key(vlan, mac)).or_else(|| {
            if self.trunks != 0 && vlan.on_trunk() {
                self.probe(ANY_TRUNK_VLAN | mac)
            } else {
                None
            }
        })
    }

    #[inline]
    fn probe(&self, key: Key) -> Option<&Slot> {
        let last = self.slots.len() - 1;
        let mut at = (key.wrapping_mul(self.multiplier) >> self.shift) as usize;
        loop {
            let slot = &self.slots[at & last];
            if slot.key == key {
                return Some(slot);
            }
            if slot.key == FREE {
                return None;
            }
            at += 1;
        }
    }

    /// Members of a VLAN, one bit a VF.
    #[inline]
    pub fn members(&self, vlan: VlanKey) -> u64 {
        self.members[vlan.index()] | if vlan.on_trunk() { self.trunks } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_model::{VlanId, VlanProtocol};
    use proptest::prelude::*;

    fn vf(index: u32) -> VfIndex {
        VfIndex::new(index).expect("valid")
    }

    fn vlan(id: u32) -> VlanKey {
        VlanKey::new(VlanProtocol::Dot1Q, VlanId::new(id).expect("valid"))
    }

    fn service_vlan(id: u32) -> VlanKey {
        VlanKey::new(VlanProtocol::Dot1Ad, VlanId::new(id).expect("valid"))
    }

    proptest! {
        #[test]
        fn what_was_put_in_is_found_and_nothing_else(
            entries in prop::collection::btree_map((0..20_u32, 0..40_u64), 0..64_u32, 0..400),
        ) {
            let mut builder = FdbBuilder::default();
            for ((id, mac), holder) in &entries {
                builder.add(vf(*holder), Some(vlan(*id)), *mac);
            }
            let fdb = builder.build();
            for id in 0..20 {
                for mac in 0..40 {
                    let expected = entries.get(&(id, mac)).map(|holder| *holder as usize);
                    prop_assert_eq!(fdb.find(vlan(id), mac), expected);
                    prop_assert_eq!(fdb.find(service_vlan(id + 1), mac), None);
                }
            }
        }

        #[test]
        fn a_full_table_is_searched_in_few_steps_whatever_the_addresses(
            base in 0..1_u64 << 47,
            step in 1..1_u64 << 36,
        ) {
            let mut builder = FdbBuilder::default();
            for index in 0..2_048 {
                builder.add(vf(index % 64), Some(vlan(1)), (base + u64::from(index) * step) & ((1 << 48) - 1));
            }
            let longest = longest_search(builder);
            prop_assert!(longest < Some(32), "{longest:?}");
        }
    }

    /// Most steps that any address is looked for.
    fn longest_search(builder: FdbBuilder) -> Option<usize> {
        let addresses = builder.addresses.clone();
        let fdb = builder.build();
        let steps = addresses.keys().map(|key| {
            let mut at = (key.wrapping_mul(fdb.multiplier) >> fdb.shift) as usize;
            let mut steps = 1;
            while fdb.slots[at & (fdb.slots.len() - 1)].key != *key {
                at += 1;
                steps += 1;
            }
            steps
        });
        steps.max()
    }

    #[test]
    fn steps_that_every_multiple_of_the_golden_ratio_is_bad_for_are_searched_in_few_steps_too() {
        let mut builder = FdbBuilder::default();
        for index in 0..2_048 {
            let mac = (u64::from(index) * 45_802_513_665) & ((1 << 48) - 1);
            builder.add(vf(index % 64), Some(vlan(1)), mac);
        }
        assert!(longest_search(builder) <= Some(MAX_PROBES));
    }

    #[test]
    fn an_address_belongs_to_one_vf_of_a_vlan_and_to_another_in_another() {
        let mut builder = FdbBuilder::default();
        assert_eq!(builder.fix(vf(1), Some(vlan(1)), 7), Ok(()));
        assert_eq!(builder.fix(vf(1), Some(vlan(1)), 7), Ok(()), "its own, once more");
        assert_eq!(builder.fix(vf(2), Some(vlan(2)), 7), Ok(()));
        assert_eq!(builder.fix(vf(3), Some(service_vlan(1)), 7), Ok(()));
        assert_eq!(builder.fix(vf(4), Some(vlan(1)), 7), Err(Occupied { holder: vf(1) }));
        let fdb = builder.build();
        assert_eq!(fdb.find(vlan(1), 7), Some(1));
        assert_eq!(fdb.find(vlan(2), 7), Some(2));
        assert_eq!(fdb.find(service_vlan(1), 7), Some(3));
    }

    #[test]
    fn a_trunk_shares_every_customer_vlan() {
        let mut builder = FdbBuilder::default();
        assert_eq!(builder.fix(vf(1), None, 7), Ok(()));
        assert_eq!(builder.fix(vf(2), Some(vlan(5)), 7), Err(Occupied { holder: vf(1) }));
        assert_eq!(builder.fix(vf(2), Some(VlanKey::NONE), 7), Err(Occupied { holder: vf(1) }));
        assert_eq!(builder.fix(vf(2), Some(service_vlan(5)), 7), Ok(()));
        assert_eq!(builder.fix(vf(3), Some(vlan(5)), 8), Ok(()));
        assert_eq!(builder.fix(vf(4), None, 8), Err(Occupied { holder: vf(3) }));
        builder.join_trunk(vf(1));
        builder.join(vf(3), vlan(5));
        let fdb = builder.build();
        assert_eq!(fdb.find(VlanKey::NONE, 7), Some(1));
        assert_eq!(fdb.find(vlan(4000), 7), Some(1));
        assert_eq!(fdb.find(service_vlan(5), 7), Some(2));
        assert_eq!(fdb.members(vlan(5)), 0b1010);
        assert_eq!(fdb.members(vlan(6)), 0b10);
        assert_eq!(fdb.members(service_vlan(5)), 0);
    }

    #[test]
    fn a_further_address_never_displaces_an_administrative_one() {
        let mut builder = FdbBuilder::default();
        builder.fix(vf(1), None, 7).expect("free");
        builder.fix(vf(2), Some(vlan(5)), 8).expect("free");
        builder.add(vf(3), Some(vlan(5)), 7);
        builder.add(vf(3), None, 8);
        builder.join_trunk(vf(1));
        let fdb = builder.build();
        assert_eq!(fdb.find(vlan(5), 7), Some(1));
        assert_eq!(fdb.find(vlan(5), 8), Some(2));
        assert_eq!(fdb.find(vlan(6), 8), None);
        assert!(fdb.is_fixed(vlan(5), 7) && fdb.is_fixed(vlan(5), 8));
    }
}
