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
        let tables = (0..TRIES).map(|attempt| {
            // Odd multipliers, the first of them 2^64 divided by the golden ratio.
            let multiplier = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * attempt + 1);
            lay_out(&self.addresses, capacity, multiplier)
        });
        let mut best = None;
        for (slots, multiplier, probes) in tables {
            if best.as_ref().is_none_or(|(_, _, fewest)| probes < *fewest) {
                best = Some((slots, multiplier, probes));
            }
            if probes <= MAX_PROBES {
                break;
            }
        }
        let (slots, multiplier, _) = best.unwrap_or_else(|| lay_out(&self.addresses, capacity, 1));
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

/// Puts every address into a table of `capacity` slots; also says how far the worst one is from
/// its place.
fn lay_out(
    addresses: &BTreeMap<Key, (VfIndex, bool)>,
    capacity: usize,
    multiplier: u64,
) -> (Box<[Slot]>, u64, usize) {
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
    (slots, multiplier, worst)
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
