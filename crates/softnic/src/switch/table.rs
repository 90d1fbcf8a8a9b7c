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
    any_learned: bool,
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
        let any_learned = ports.iter().any(|port| port.learned.iter().next().is_some());
        let ports = Box::new(policies.map(|policy| policy.unwrap_or_else(|| absent.clone())));
        Ok(Self { ports, fdb: fdb.build(), promiscuous, any_learned, uplink })
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

    /// Whether the control side should forget that some VF sends from `frame.src`, because the
    /// frame came from the uplink: the station has moved off this host.
    #[inline]
    pub fn should_forget(&self, frame: &Ingress) -> bool {
        self.any_learned
            && self.fdb.find(frame.vlan(), frame.src).is_some()
            && !self.fdb.is_fixed(frame.vlan(), frame.src)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::frames::{Packet, tagged};
    use crate::switch::head::HEAD;
    use crate::switch::{NetHeader, OffloadSet, judge_ingress, judge_uplink};
    use lanekeeper_model::{VlanId, VlanProtocol, VlanTag};

    fn vf(index: u32) -> VfIndex {
        VfIndex::new(index).expect("valid")
    }

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    fn vlan(id: u32) -> VlanKey {
        VlanKey::new(VlanProtocol::Dot1Q, VlanId::new(id).expect("valid"))
    }

    /// A VF with the address of its number, in an 802.1Q VLAN or none.
    fn port(index: u32, id: u32) -> PortSpec {
        let mut settings = VfSettings::for_mac(mac(index as u8)).expect("a station's address");
        settings.vlan = VlanTag { id: VlanId::new(id).expect("valid"), ..VlanTag::default() };
        PortSpec::new(vf(index), settings)
    }

    fn trusted(index: u32, id: u32) -> PortSpec {
        let mut spec = port(index, id);
        (spec.settings.trust, spec.settings.spoofchk) = (true, false);
        spec
    }

    fn build(ports: &[PortSpec]) -> SwitchTable {
        SwitchTable::build(ports, Some(UplinkPolicy::PLAIN)).expect("addresses differ")
    }

    fn frame(from: MacAddr, to: MacAddr) -> Vec<u8> {
        Packet { src_mac: from.0, dst_mac: to.0, ..Packet::udp4(&[0; 60]) }.bytes()
    }

    fn enter(table: &SwitchTable, from: u32, frame: &[u8]) -> Ingress {
        let head = &frame[..frame.len().min(HEAD)];
        let (port, header) = (table.port(vf(from)), NetHeader::default());
        judge_ingress(port, head, frame.len(), &header, OffloadSet::NONE).expect("allowed")
    }

    fn send(table: &SwitchTable, from: u32, to: MacAddr) -> Result<Route, DropReason> {
        let ingress = enter(table, from, &frame(mac(from as u8), to));
        table.route(Source::Vf(vf(from)), &ingress)
    }

    fn from_wire(table: &SwitchTable, frame: &[u8]) -> Result<Route, DropReason> {
        let (uplink, header) = (UplinkPolicy::PLAIN, NetHeader::default());
        let ingress =
            judge_uplink(&uplink, &frame[..frame.len().min(HEAD)], frame.len(), &header, None);
        table.route(Source::Uplink, &ingress.expect("allowed"))
    }

    #[test]
    fn unicast_goes_to_its_one_vf_of_the_vlan() {
        let table = build(&[port(1, 5), port(2, 5), port(3, 6)]);
        assert_eq!(send(&table, 1, mac(2)), Ok(Route::Vf(2)));
        assert_eq!(send(&table, 1, mac(3)), Ok(Route::Group { vfs: 0, uplink: true }));
    }

    #[test]
    fn group_frames_stay_in_the_vlan_and_do_not_come_back() {
        let table = build(&[port(1, 5), port(2, 5), port(3, 6), port(4, 5), trusted(5, 0)]);
        let everyone = Route::Group { vfs: 0b11_0100, uplink: true };
        assert_eq!(send(&table, 1, MacAddr::BROADCAST), Ok(everyone));
        assert_eq!(send(&table, 1, MacAddr([0x33, 0x33, 0, 0, 0, 1])), Ok(everyone));
        let on_5 = tagged(&frame(mac(9), MacAddr::BROADCAST), 0x8100, 5);
        let all_of_5 = Route::Group { vfs: 0b11_0110, uplink: false };
        assert_eq!(from_wire(&table, &on_5), Ok(all_of_5));
    }

    #[test]
    fn unknown_unicast_goes_to_the_uplink_only_and_never_back_to_it() {
        let table = build(&[port(1, 0), port(2, 0)]);
        assert_eq!(send(&table, 1, mac(9)), Ok(Route::Group { vfs: 0, uplink: true }));
        let unknown = from_wire(&table, &frame(mac(8), mac(9)));
        assert_eq!(unknown, Err(DropReason::NoDestination));
        let known = from_wire(&table, &frame(mac(8), mac(2)));
        assert_eq!(known, Ok(Route::Vf(2)));
    }

    #[test]
    fn without_an_uplink_unknown_unicast_goes_nowhere() {
        let table = SwitchTable::build(&[port(1, 0), port(2, 0)], None).expect("addresses differ");
        assert_eq!(send(&table, 1, mac(9)), Err(DropReason::NoDestination));
        assert_eq!(send(&table, 1, mac(2)), Ok(Route::Vf(2)));
        let alone = SwitchTable::build(&[port(1, 0)], None).expect("addresses differ");
        assert_eq!(send(&alone, 1, MacAddr::BROADCAST), Err(DropReason::NoDestination));
    }

    #[test]
    fn a_frame_to_its_own_sender_goes_nowhere() {
        let table = build(&[port(1, 0)]);
        assert_eq!(send(&table, 1, mac(1)), Err(DropReason::NoDestination));
    }

    #[test]
    fn only_a_trusted_vf_of_the_vlan_is_promiscuous() {
        let promiscuous = |spec: PortSpec| PortSpec { promiscuous: true, ..spec };
        let table = build(&[
            port(1, 5),
            promiscuous(port(2, 5)),
            promiscuous(trusted(3, 5)),
            promiscuous(trusted(4, 6)),
        ]);
        assert_eq!(send(&table, 1, mac(9)), Ok(Route::Group { vfs: 0b1000, uplink: true }));
        assert_eq!(send(&table, 1, mac(2)), Ok(Route::Vf(2)), "known unicast is not overheard");
    }

    #[test]
    fn further_addresses_are_for_trusted_vfs_and_are_counted() {
        let asking = |mut spec: PortSpec| {
            spec.extra_macs = (100..120).map(mac).collect();
            spec
        };
        let refused = build(&[port(1, 0), asking(port(2, 0))]);
        assert_eq!(send(&refused, 1, mac(100)), Ok(Route::Group { vfs: 0, uplink: true }));
        let table = build(&[port(1, 0), asking(trusted(2, 0))]);
        for (last, heeded) in [(100, true), (115, true), (116, false)] {
            assert_eq!(send(&table, 1, mac(last)) == Ok(Route::Vf(2)), heeded, "{last}");
        }
    }

    #[test]
    fn what_a_trusted_unchecked_vf_sends_from_is_learned() {
        let mut ports = [port(1, 0), trusted(2, 0)];
        let table = build(&ports);
        let ingress = enter(&table, 2, &tagged(&frame(mac(50), mac(1)), 0x8100, 7));
        assert!(table.should_learn(vf(2), &ingress));
        ports[1].learned.insert(ingress.vlan(), ingress.src);
        let table = build(&ports);
        assert!(!table.should_learn(vf(2), &ingress), "known by now");
        let on_7 = tagged(&frame(mac(9), mac(50)), 0x8100, 7);
        assert_eq!(from_wire(&table, &on_7), Ok(Route::Vf(2)));
        let untagged = from_wire(&table, &frame(mac(9), mac(50)));
        assert_eq!(untagged, Err(DropReason::NoDestination), "learned in VLAN 7 only");
    }

    #[test]
    fn a_learned_address_that_comes_from_the_uplink_has_moved() {
        let mut ports = [port(1, 0), trusted(2, 0)];
        let wire = frame(mac(50), mac(1));
        let arrived = |table: &SwitchTable| {
            judge_uplink(&UplinkPolicy::PLAIN, &wire, wire.len(), &NetHeader::default(), None)
                .map(|ingress| table.should_forget(&ingress))
        };
        assert_eq!(arrived(&build(&ports)), Ok(false), "nobody was seen with it");
        ports[1].learned.insert(VlanKey::NONE, mac(50).to_u64());
        assert_eq!(arrived(&build(&ports)), Ok(true));
    }

    #[test]
    fn an_administrative_address_is_never_learned_elsewhere() {
        let mut ports = [port(1, 0), trusted(2, 0)];
        ports[1].learned.insert(VlanKey::NONE, mac(1).to_u64());
        ports[1].extra_macs.push(mac(1));
        let table = build(&ports);
        let stolen = enter(&table, 2, &frame(mac(1), mac(9)));
        assert!(!table.should_learn(vf(2), &stolen));
        assert_eq!(from_wire(&table, &frame(mac(9), mac(1))), Ok(Route::Vf(1)));
        let own = enter(&table, 2, &frame(mac(2), mac(9)));
        assert!(!table.should_learn(vf(2), &own));
        let unchecked = build(&[{
            let mut spec = port(1, 0);
            spec.settings.spoofchk = false;
            spec
        }]);
        let frame = enter(&unchecked, 1, &frame(mac(50), mac(9)));
        assert!(!unchecked.should_learn(vf(1), &frame), "not trusted");
    }

    #[test]
    fn no_more_is_learned_than_there_is_room_for() {
        let mut learned = Learned::default();
        for mac in 0..100 {
            learned.insert(vlan(1), mac);
            learned.insert(vlan(1), mac);
        }
        let kept: Vec<u64> = learned.iter().map(|(_, mac)| mac).collect();
        assert_eq!(kept, (84..100).collect::<Vec<u64>>());
        learned.remove(vlan(2), 99);
        learned.remove(vlan(1), 98);
        assert_eq!(learned.iter().count(), MAX_LEARNED_MACS - 1);
    }

    #[test]
    fn two_vfs_of_one_vlan_cannot_share_a_mac() {
        let mut twin = port(2, 5);
        twin.settings.mac = mac(1);
        let error = SwitchTable::build(&[port(1, 5), twin.clone()], None).expect_err("twins");
        assert_eq!(error, DuplicateMac { mac: mac(1), vf: vf(2), holder: vf(1) });
        assert!(error.to_string().contains("02:00:00:00:00:01"), "{error}");
        assert!(SwitchTable::build(&[port(1, 6), twin], None).is_ok());
        let nobody = PortSpec::new(vf(3), VfSettings::scrubbed());
        let nobody_else = PortSpec::new(vf(4), VfSettings::scrubbed());
        assert!(SwitchTable::build(&[nobody, nobody_else], None).is_ok(), "no address, no twin");
    }

    #[test]
    fn a_vf_that_was_not_mentioned_has_its_link_down() {
        let table = build(&[port(1, 0)]);
        assert!(table.port(vf(1)).link_up());
        assert!(!table.port(vf(2)).link_up());
        assert!(!table.port_at(63).link_up());
    }
}
