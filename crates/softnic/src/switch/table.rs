//! Everything the switch knows, as one immutable value: the policies of all ports, the forwarding
//! table, the uplink. A change makes a new table, which replaces the old one whole, so no frame is
//! ever judged by half of a change.

use std::collections::VecDeque;

use lanekeeper_model::{DropReason, MAX_VFS, MacAddr, VfIndex, VfSettings};

use super::fdb::{Fdb, FdbBuilder, Occupied};
use super::policy::{Ingress, PortPolicy, Tagging, UplinkPolicy};
use super::vlan::VlanKey;

/// Most further addresses that a trusted VM may ask for on its control queue.
pub const MAX_EXTRA_MACS: usize = 16;

/// Most addresses learned from one trusted VF.
pub const MAX_LEARNED_MACS: usize = 16;

/// One VF, as the table is made from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// Which VF.
    pub vf: VfIndex,
    /// Its settings.
    pub settings: VfSettings,
    /// The VM asked for all frames of its VLAN that have no known receiver. Heeded if trusted.
    pub promiscuous: bool,
    /// Further addresses that the VM asked for; the first [`MAX_EXTRA_MACS`] are heeded if trusted.
    pub extra_macs: Vec<MacAddr>,
    /// Addresses learned from what the VM sent. Heeded if trusted and not checked for spoofing.
    pub learned: Learned,
}

impl PortSpec {
    /// A VF whose VM has asked for nothing.
    pub fn new(vf: VfIndex, settings: VfSettings) -> Self {
        Self {
            vf,
            settings,
            promiscuous: false,
            extra_macs: Vec::new(),
            learned: Learned::default(),
        }
    }
}

/// Addresses learned from one VF, at most [`MAX_LEARNED_MACS`], the latest in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Learned(VecDeque<(VlanKey, u64)>);

impl Learned {
    /// Takes an address in. The oldest goes when there are too many.
    pub fn insert(&mut self, vlan: VlanKey, mac: u64) {
        if self.0.contains(&(vlan, mac)) {
            return;
        }
        if self.0.len() == MAX_LEARNED_MACS {
            self.0.pop_front();
        }
        self.0.push_back((vlan, mac));
    }

    /// Lets an address go, because it was seen behind another VF or behind the uplink.
    pub fn remove(&mut self, vlan: VlanKey, mac: u64) {
        self.0.retain(|entry| *entry != (vlan, mac));
    }

    /// What was learned.
    pub fn iter(&self) -> impl Iterator<Item = (VlanKey, u64)> + '_ {
        self.0.iter().copied()
    }
}

/// Two VFs that share a VLAN have the same administrative address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("MAC {mac} of VF {vf} is already that of VF {holder} in the same VLAN")]
pub struct DuplicateMac {
    /// The address.
    pub mac: MacAddr,
    /// Who was to have it.
    pub vf: VfIndex,
    /// Who has it.
    pub holder: VfIndex,
}

/// Where a frame came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From a VM.
    Vf(VfIndex),
    /// From the uplink.
    Uplink,
}

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// To one VF, given as a number below [`MAX_VFS`].
    Vf(usize),
    /// To each of these VFs, one bit each, and perhaps to the uplink; never empty.
    Group {
        /// The VFs.
        vfs: u64,
        /// Whether to the uplink too.
        uplink: bool,
    },
}

/// The whole switch, immutable.
#[derive(Clone, Debug)]
pub struct SwitchTable {
    ports: Box<[PortPolicy; MAX_VFS]>,
    fdb: Fdb,
    promiscuous: u64,
    uplink: Option<UplinkPolicy>,
}

impl SwitchTable {
    /// Makes the table of these VFs; a VF that is not among them has its link down.
    ///
    /// # Errors
    /// [`DuplicateMac`] if two VFs that share a VLAN have the same administrative address.
    pub fn build(ports: &[PortSpec], uplink: Option<UplinkPolicy>) -> Result<Self, DuplicateMac> {
        let carrier = uplink.map(|uplink| uplink.up);
        let absent = PortPolicy::new(&VfSettings::scrubbed(), carrier);
        let mut policies = Box::new([const { None }; MAX_VFS]);
        let mut fdb = FdbBuilder::default();
        let mut promiscuous = 0;
        for port in ports {
            let policy = PortPolicy::new(&port.settings, carrier);
            match place(&policy) {
                Some(vlan) => fdb.join(port.vf, vlan),
                None => fdb.join_trunk(port.vf),
            }
            if policy.mac != 0 {
                fdb.fix(port.vf, place(&policy), policy.mac).map_err(|Occupied { holder }| {
                    DuplicateMac { mac: port.settings.mac, vf: port.vf, holder }
                })?;
            }
            if policy.trusted && port.promiscuous {
                promiscuous |= 1 << port.vf.get();
            }
            policies[port.vf.get()] = Some(policy);
        }
        for port in ports {
            if let Some(policy) = &policies[port.vf.get()] {
                add_further_macs(&mut fdb, port, policy);
            }
        }
        let ports = Box::new(policies.map(|policy| policy.unwrap_or_else(|| absent.clone())));
        Ok(Self { ports, fdb: fdb.build(), promiscuous, uplink })
    }

    /// One VF's policy.
    #[inline]
    pub fn port(&self, vf: VfIndex) -> &PortPolicy {
        &self.ports[vf.get() % MAX_VFS]
    }

    /// Policy of the VF with this number, as [`Route`] gives it.
    #[inline]
    pub fn port_at(&self, vf: usize) -> &PortPolicy {
        &self.ports[vf % MAX_VFS]
    }

    /// The uplink, if there is one.
    #[inline]
    pub fn uplink(&self) -> Option<&UplinkPolicy> {
        self.uplink.as_ref()
    }

    /// Where a frame goes. Unicast goes to the one VF that has the address; a group address to
    /// all of the VLAN; an address that no VF has to the uplink and to promiscuous VFs of the
    /// VLAN. Nothing goes back where it came from.
    ///
    /// # Errors
    /// [`DropReason::NoDestination`] if that is nobody.
    #[inline]
    pub fn route(&self, source: Source, frame: &Ingress) -> Result<Route, DropReason> {
        let not_back = match source {
            Source::Vf(vf) => !(1 << vf.get()),
            Source::Uplink => u64::MAX,
        };
        let receivers = if frame.is_group() {
            u64::MAX
        } else if let Some(vf) = self.fdb.find(frame.vlan(), frame.dst) {
            return if not_back >> vf & 1 == 1 {
                Ok(Route::Vf(vf))
            } else {
                Err(DropReason::NoDestination)
            };
        } else {
            self.promiscuous
        };
        let vfs = self.fdb.members(frame.vlan()) & receivers & not_back;
        let uplink = self.uplink.is_some() && source != Source::Uplink;
        if vfs == 0 && !uplink {
            return Err(DropReason::NoDestination);
        }
        Ok(Route::Group { vfs, uplink })
    }

    /// Whether the control side should learn that this VF sends from `frame.src`, and make a new
    /// table. A VM can make this true for every frame it sends; bound the rate of new tables.
    #[inline]
    pub fn should_learn(&self, vf: VfIndex, frame: &Ingress) -> bool {
        let policy = self.port(vf);
        policy.uses_further_macs()
            && frame.src != policy.mac
            && self.fdb.find(frame.vlan(), frame.src) != Some(vf.get())
            && !self.fdb.is_fixed(frame.vlan(), frame.src)
    }
}

/// The VLAN a port's own addresses are in; `None` for all that a trunk can be in.
fn place(policy: &PortPolicy) -> Option<VlanKey> {
    (policy.tagging != Tagging::Trunk).then_some(policy.vlan)
}

fn add_further_macs(fdb: &mut FdbBuilder, port: &PortSpec, policy: &PortPolicy) {
    if !policy.trusted {
        return;
    }
    for mac in port.extra_macs.iter().take(MAX_EXTRA_MACS).filter(|mac| mac.is_station()) {
        fdb.add(port.vf, place(policy), mac.to_u64());
    }
    if policy.uses_further_macs() {
        for (vlan, mac) in port.learned.iter().filter(|(vlan, _)| policy.is_member(*vlan)) {
            fdb.add(port.vf, Some(vlan), mac);
        }
    }
}
