//! The state of a fake host, and how VFs come to be and go.

use std::collections::{BTreeMap, BTreeSet};

use lanekeeper_model::{
    EswitchMode, Guid, LinkState, MacAddr, Mtu, PciAddr, PfAddr, PfId, RateLimits, RdmaNetns,
    RoceSetting, VfAddr, VfCounters, VfIndex, VlanTag,
};
use rustix::io::Errno;

use super::log::{End, Write, Written};
use super::personality::{NodeGuid, OwnMac, Rules, WhileDown};
use super::pf::{FakePf, Grouping, Pending};
use super::watch::Watchers;
use crate::HardwareError;
use crate::inventory::{Holder, PciNode, RepresentorState, TotalVfs, VfAttributes};

/// A representor as its driver makes it: every interface begins so.
pub(super) const NEW_REPRESENTOR: RepresentorState = RepresentorState { up: false, mtu: 1_500 };

/// Why a step has no answer.
pub(super) enum Halt {
    /// Refused.
    Refused(HardwareError),
    /// It waits for something outside to happen.
    Waits,
    /// It waits, and holds the PF's device lock meanwhile, so that every other call on the PF waits
    /// too (spdk#3205).
    WaitsLocked,
}

impl From<HardwareError> for Halt {
    fn from(error: HardwareError) -> Self {
        Self::Refused(error)
    }
}

/// A whole host.
pub(super) struct Machine {
    pub(super) pfs: BTreeMap<PfAddr, Pf>,
    pub(super) extra: Vec<PciNode>,
    pub(super) log: Vec<Written>,
    pub(super) drivers: BTreeSet<String>,
    pub(super) netns: RdmaNetns,
    pub(super) namespaces: u32,
    pub(super) numbers: Numbers,
    /// Attributes that were sent to a VF that had them already.
    pub(super) repeats: usize,
    pub(super) watchers: Watchers,
}

/// Numbers that the kernel gives out; none is given twice.
#[derive(Default)]
pub(super) struct Numbers {
    identity: u32,
    interface: u32,
    group: u32,
    rdma: u32,
    random: u32,
}

impl Numbers {
    pub(super) fn identity(&mut self) -> u32 {
        self.identity += 1;
        self.identity
    }

    pub(super) fn interface(&mut self) -> u32 {
        self.interface += 1;
        self.interface
    }

    pub(super) fn group(&mut self) -> u32 {
        self.group += 1;
        self.group
    }

    pub(super) fn rdma(&mut self) -> u32 {
        self.rdma += 1;
        self.rdma - 1
    }

    /// An address as `eth_hw_addr_random` makes one; an odd factor keeps each its own.
    pub(super) fn random_mac(&mut self) -> MacAddr {
        self.random += 1;
        let [_, a, b, c] = self.random.wrapping_mul(0x9e_3779).to_be_bytes();
        MacAddr([0x0a, 0xfa, 0xce, a, b, c])
    }

    /// After a boot the numbering is another.
    pub(super) fn reboot(&mut self) {
        self.interface += 7;
        self.group += 5;
        self.rdma = 0;
    }
}

/// One PF.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Pf {
    pub(super) identity: u32,
    pub(super) spec: FakePf,
    pub(super) addr: PfAddr,
    pub(super) name: String,
    pub(super) mac: MacAddr,
    pub(super) serial: String,
    pub(super) slot: String,
    pub(super) total: TotalVfs,
    pub(super) pending: Option<Pending>,
    pub(super) driver: Option<String>,
    pub(super) netdev_here: bool,
    pub(super) interface: u32,
    pub(super) up: bool,
    pub(super) cable: bool,
    pub(super) mtu: Mtu,
    pub(super) autoprobe: bool,
    pub(super) eswitch: EswitchMode,
    pub(super) rdma: u32,
    pub(super) group: Option<u32>,
    pub(super) roce: BTreeMap<&'static str, RoceSetting>,
    pub(super) vfs: Vec<Vf>,
    /// Pause frames received, by priority, if the driver counts them.
    pub(super) pause_frames: Option<[u64; 8]>,
    /// Reads until all VFs are there.
    pub(super) unborn: u32,
    pub(super) hung: bool,
    pub(super) locked: bool,
    /// What of a VF is refused, with which errno, how many times.
    pub(super) refusals: BTreeMap<(Matter, VfIndex), (i32, u32)>,
}

/// Steps on a VF that may be refused for a while.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Matter {
    /// Messages.
    Message,
    /// Driver override, unbind, probe, reset.
    Binding,
}

/// One VF.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Vf {
    pub(super) index: VfIndex,
    pub(super) addr: VfAddr,
    pub(super) group: Option<u32>,
    pub(super) mac: MacAddr,
    pub(super) vlan: VlanTag,
    pub(super) rate: RateLimits,
    pub(super) spoofchk: bool,
    pub(super) trust: bool,
    pub(super) link_state: LinkState,
    pub(super) node_guid: Guid,
    pub(super) port_guid: Guid,
    pub(super) driver: Option<String>,
    pub(super) driver_override: Option<String>,
    /// Reads during which the driver link is missing.
    pub(super) driver_lag: u32,
    /// Readings in which the PF's driver does not tell of it.
    pub(super) untold: u32,
    /// What it tells for so many readings in place of what was set.
    pub(super) stale: Option<(u32, VfAttributes)>,
    pub(super) port: Option<Port>,
    pub(super) holder: Option<Holder>,
    /// The address that its driver, a guest's above all, chose by itself.
    pub(super) own_mac: Option<MacAddr>,
    /// How its representor is set, while it has one.
    pub(super) representor: RepresentorState,
    /// It has a VLAN trunk, which no message sets (sriov-cni#291).
    pub(super) trunk: bool,
    /// A guest ended without cleaning up: only a reset makes the VF usable (sriov-dp#714).
    pub(super) guest_state: bool,
    /// It was made while the PF was down.
    pub(super) stillborn: bool,
    /// The PF was reset under it.
    pub(super) orphaned: bool,
    pub(super) counters: VfCounters,
}

/// What the VF's network driver made of it when it was probed.
pub(super) struct Port {
    pub(super) interface: u32,
    pub(super) mac: MacAddr,
    pub(super) mtu: Mtu,
    /// The host uses it.
    pub(super) up: bool,
    pub(super) carrier: bool,
    /// Its RDMA device: number and node GUID.
    pub(super) rdma: Option<(u32, Guid)>,
}

impl Machine {
    pub(super) fn new() -> Self {
        let drivers = ["igbvf", "ixgbevf", "iavf", "mlx5_core", "bnxt_en", "vfio-pci"];
        Self {
            pfs: BTreeMap::new(),
            extra: Vec::new(),
            log: Vec::new(),
            drivers: drivers.into_iter().map(str::to_owned).collect(),
            netns: RdmaNetns::Shared,
            namespaces: 1,
            numbers: Numbers::default(),
            repeats: 0,
            watchers: Watchers::default(),
        }
    }

    pub(super) fn pf(&mut self, addr: PfAddr) -> Result<&mut Pf, HardwareError> {
        self.pfs.get_mut(&addr).ok_or(HardwareError::NoPf(PfId::Pci(addr)))
    }

    pub(super) fn begin(&mut self, write: Write) {
        self.log.push(Written { write, end: End::Outstanding });
    }

    pub(super) fn end(&mut self, write: &Write, done: bool) {
        let mut open = self.log.iter_mut().rev();
        if let Some(entry) = open.find(|at| at.end == End::Outstanding && at.write == *write) {
            entry.end = if done { End::Done } else { End::Refused };
        }
    }

    /// Put a PF in.
    ///
    /// # Panics
    /// If its functions would have addresses that others have.
    pub(super) fn plug(&mut self, spec: FakePf) -> PfAddr {
        let identity = self.numbers.identity();
        let addr = spec.addr.unwrap_or_else(|| self.free_address());
        assert!(!self.pfs.contains_key(&addr), "there is a PF at {addr} already");
        let group = (spec.grouping != Grouping::Off).then(|| self.numbers.group());
        let [_, high, middle, low] = identity.to_be_bytes();
        let (bus, function) = bus_and_function(addr);
        let oui = match spec.personality.rules().vendor {
            0x15b3 => [0x0c, 0x42, 0xa1],
            0x14e4 => [0x84, 0x16, 0x0c],
            _ => [0x68, 0x05, 0xca],
        };
        let chosen_mac = MacAddr([oui[0], oui[1], oui[2], high, middle, low]);
        let pf = Pf {
            identity,
            addr,
            name: spec.netdev.clone().unwrap_or_else(|| format!("enp{bus}s0f{function}")),
            mac: spec.mac.unwrap_or(chosen_mac),
            serial: spec.serial.clone().unwrap_or_else(|| format!("FAKE{identity:06}")),
            slot: spec.slot.clone().unwrap_or_else(|| identity.to_string()),
            total: spec.total_vfs,
            pending: spec.pending.clone(),
            driver: Some(spec.personality.rules().driver.to_owned()),
            netdev_here: true,
            interface: self.numbers.interface(),
            up: spec.up,
            cable: true,
            mtu: Mtu::ETHERNET,
            autoprobe: true,
            eswitch: EswitchMode::Legacy,
            rdma: self.numbers.rdma(),
            group,
            roce: super::roce::defaults(spec.personality),
            vfs: Vec::new(),
            pause_frames: None,
            unborn: 0,
            hung: false,
            locked: false,
            refusals: BTreeMap::new(),
            spec,
        };
        let taken = self.routing_ids();
        for id in pf.every_routing_id() {
            assert!(!taken.contains(&id), "{addr}: a VF would be where {id:x?} is");
        }
        self.pfs.insert(addr, pf);
        addr
    }

    fn free_address(&self) -> PfAddr {
        let buses = (0x11..=0xf1).step_by(0x10).map(|bus| format!("0000:{bus:02x}:00.0"));
        let mut free = buses.filter_map(|text| text.parse().ok());
        free.find(|addr| !self.pfs.contains_key(addr)).expect("fewer than 16 PFs are put in")
    }

    fn routing_ids(&self) -> BTreeSet<(String, u32)> {
        self.pfs.values().flat_map(Pf::every_routing_id).collect()
    }

    /// Make `count` VFs, as the PF's driver does; they may be seen later.
    pub(super) fn make_vfs(&mut self, addr: PfAddr, count: u16) -> Result<(), HardwareError> {
        let Self { pfs, numbers, .. } = self;
        let pf = pfs.get_mut(&addr).ok_or(HardwareError::NoPf(PfId::Pci(addr)))?;
        let rules = pf.rules();
        let stillborn = !pf.up && rules.while_down == WhileDown::MadeDead;
        let mut shared = None;
        for index in VfIndex::first(usize::from(count)) {
            let group = match pf.spec.grouping {
                Grouping::Off => None,
                Grouping::WithPf => pf.group,
                Grouping::Own => Some(numbers.group()),
                Grouping::Shared(size) => {
                    if index.get() % usize::from(size.max(1)) == 0 {
                        shared = Some(numbers.group());
                    }
                    shared
                }
            };
            let vf = Vf::new(index, pf.vf_addr(index), group, &rules, stillborn);
            pf.vfs.push(vf);
        }
        pf.unborn = pf.spec.appear_after;
        for index in VfIndex::first(usize::from(count)) {
            self.probe(addr, index);
        }
        Ok(())
    }

    /// As the kernel looks for a driver of one VF: none, its own, or the one that is named.
    pub(super) fn probe(&mut self, addr: PfAddr, index: VfIndex) {
        let Self { pfs, numbers, drivers, .. } = self;
        let Some(pf) = pfs.get_mut(&addr) else { return };
        let rules = pf.rules();
        let (up, autoprobe, lag) = (pf.up, pf.autoprobe, pf.spec.driver_lag);
        let Some(vf) = pf.vfs.get_mut(index.get()) else { return };
        if vf.driver.is_some() {
            return;
        }
        // drivers/pci/pci-driver.c pci_device_can_probe.
        let name = match &vf.driver_override {
            Some(name) => name.clone(),
            None if autoprobe => rules.vf_driver.to_owned(),
            None => return,
        };
        let knows_it = name == rules.vf_driver || is_vfio(&name);
        let can = knows_it && drivers.contains(&name);
        // drivers/vfio/group.c vfio_group_find_or_alloc: not without an IOMMU.
        if !can || is_vfio(&name) && vf.group.is_none() {
            return;
        }
        if !is_vfio(&name) {
            vf.start(numbers, &rules, up);
        }
        vf.driver = Some(name);
        vf.driver_lag = lag;
        pf.tell_carrier();
    }

    /// Every function in an IOMMU group.
    pub(super) fn members(&self, group: u32) -> BTreeSet<PciAddr> {
        let mut members = BTreeSet::new();
        for pf in self.pfs.values() {
            if pf.group == Some(group) {
                members.insert(pf.addr.into());
            }
            let vfs = pf.vfs.iter().filter(|vf| vf.group == Some(group));
            members.extend(vfs.map(|vf| PciAddr::from(vf.addr)));
        }
        let extra = self.extra.iter().filter(|node| node.iommu_group == Some(group));
        members.extend(extra.map(|node| node.addr));
        members
    }
}

impl Pf {
    pub(super) fn rules(&self) -> Rules {
        self.spec.personality.rules()
    }

    pub(super) fn id(&self) -> PfId {
        PfId::Pci(self.addr)
    }

    /// Its own driver is bound to it.
    pub(super) fn is_driven(&self) -> bool {
        self.driver.as_deref() == Some(self.rules().driver)
    }

    pub(super) fn carrier(&self) -> bool {
        self.up && self.cable
    }

    pub(super) fn switchdev(&self) -> bool {
        self.eswitch == EswitchMode::Switchdev
    }

    /// How many VFs have a `virtfn` link by now.
    pub(super) fn seen(&self) -> usize {
        let after = self.spec.appear_after.max(1) as usize;
        self.vfs.len() * (after - (self.unborn as usize).min(after)) / after
    }

    /// Whether this step is to be refused, and with what.
    pub(super) fn next_refusal(&mut self, matter: Matter, index: VfIndex) -> Option<Errno> {
        let (errno, left) = self.refusals.get_mut(&(matter, index))?;
        *left = left.checked_sub(1)?;
        Some(Errno::from_raw_os_error(*errno))
    }

    /// # Errors
    /// [`HardwareError::NoVf`].
    pub(super) fn vf(&mut self, index: VfIndex) -> Result<&mut Vf, HardwareError> {
        let (pf, num_vfs) = (self.id(), self.vfs.len());
        self.vfs.get_mut(index.get()).ok_or(HardwareError::NoVf { pf, vf: index, num_vfs })
    }

    /// The VF that is at an address, if it is seen.
    pub(super) fn at(&self, addr: VfAddr) -> Option<VfIndex> {
        let seen = self.vfs.iter().take(self.seen());
        seen.into_iter().find(|vf| vf.addr == addr).map(|vf| vf.index)
    }

    /// First VF offset. By default VFs of a device's functions follow one another.
    fn offset(&self) -> u32 {
        if let Some(offset) = self.spec.offset {
            return u32::from(offset);
        }
        let (_, function) = bus_and_function(self.addr);
        let TotalVfs::UpTo(total) = self.spec.total_vfs else { return 8 };
        if self.spec.stride > 1 { 0x80 } else { 8 + function * u32::from(total) - function }
    }

    /// The address that the hardware gives a VF (PCI Express Base 6.0, 9.2.1.2). Whoever asks the
    /// fake reads it from the VF's link.
    fn vf_addr(&self, index: VfIndex) -> VfAddr {
        let (domain, base) = routing_id(self.addr);
        let step = u32::from(self.spec.stride) * index.get() as u32;
        let id = base + self.offset() + step;
        let text = format!("{domain}:{:02x}:{:02x}.{:x}", id >> 8 & 0xff, id >> 3 & 0x1f, id & 7);
        text.parse().expect("three masked fields make an address")
    }

    fn every_routing_id(&self) -> Vec<(String, u32)> {
        let (domain, base) = routing_id(self.addr);
        let total = match self.total {
            TotalVfs::UpTo(total) => u32::from(total),
            TotalVfs::Never | TotalVfs::OffInFirmware => 0,
        };
        let vfs = (0..total).map(|n| base + self.offset() + u32::from(self.spec.stride) * n);
        std::iter::once(base).chain(vfs).map(|id| (domain.clone(), id)).collect()
    }
}

impl Vf {
    fn new(
        index: VfIndex,
        addr: VfAddr,
        group: Option<u32>,
        rules: &Rules,
        stillborn: bool,
    ) -> Self {
        Self {
            index,
            addr,
            group,
            mac: MacAddr::ZERO,
            vlan: VlanTag::default(),
            rate: RateLimits::default(),
            spoofchk: rules.spoofchk_at_birth,
            trust: false,
            link_state: LinkState::Auto,
            node_guid: Guid::ZERO,
            port_guid: Guid::ZERO,
            driver: None,
            driver_override: None,
            driver_lag: 0,
            untold: 0,
            stale: None,
            port: None,
            holder: None,
            own_mac: None,
            guest_state: false,
            representor: NEW_REPRESENTOR,
            trunk: false,
            stillborn,
            orphaned: false,
            counters: VfCounters::default(),
        }
    }

    /// A network driver starts: what was set by then is what it works with.
    fn start(&mut self, numbers: &mut Numbers, rules: &Rules, up: bool) {
        if self.orphaned {
            return;
        }
        self.stillborn &= !up;
        let left = self.own_mac.filter(|_| rules.own_mac == OwnMac::UntilReset);
        let given = (!self.mac.is_zero()).then_some(self.mac).or(left);
        let mac = given.filter(|_| !self.stillborn).unwrap_or_else(|| numbers.random_mac());
        // Nobody of the VF's drivers reaches a PF that is down.
        if rules.tells_mac_at_probe && self.mac.is_zero() && !self.stillborn {
            self.own_mac = Some(mac);
        }
        let guid = match rules.node_guid {
            NodeGuid::None => None,
            NodeGuid::FromAdminMac => Some(self.node_guid),
            NodeGuid::FromOwnMac => Some(Guid::from_mac(mac)),
        };
        self.port = Some(Port {
            interface: numbers.interface(),
            mac,
            mtu: Mtu::ETHERNET,
            up: false,
            carrier: false,
            rdma: guid.map(|guid| (numbers.rdma(), guid)),
        });
    }

    /// Its driver leaves it.
    pub(super) fn stop(&mut self) {
        self.driver = None;
        self.driver_lag = 0;
        self.port = None;
    }
}

/// Whether a driver hands a device to user space.
pub(super) fn is_vfio(driver: &str) -> bool {
    driver.starts_with("vfio") || driver.ends_with("vfio_pci")
}

/// Bus and function number of an address.
pub(super) fn bus_and_function(addr: PfAddr) -> (u32, u32) {
    let (_, id) = routing_id(addr);
    (id >> 8, id & 7)
}

/// Domain and routing id (PCI Express Base 6.0, 2.2.4.2) of an address.
fn routing_id(addr: PfAddr) -> (String, u32) {
    let text = addr.to_string();
    let mut parts = text.split([':', '.']);
    let domain = parts.next().unwrap_or_default().to_owned();
    let mut hex = || u32::from_str_radix(parts.next().unwrap_or_default(), 16).unwrap_or_default();
    let (bus, device, function) = (hex(), hex(), hex());
    (domain, bus << 8 | device << 3 | function)
}
