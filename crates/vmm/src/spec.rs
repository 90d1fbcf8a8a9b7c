//! What a VM shall be. A [`VmSpec`] is plain data; [`VmSpec::check`] refuses what no driver could
//! start, and names the field and the value.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lanekeeper_model::{MacAddr, Mtu, PciAddr};

use crate::VmError;
use crate::accel::Accel;
use crate::seed::Seed;

/// PCI slots a port may be put in: `1..=SLOTS`. Each is a PCIe root port of its own, and the guest
/// counts its buses in the order of slots. Within the guest a port is best found by its MAC.
pub(crate) const SLOTS: u8 = 24;

/// Most queue pairs a VF has.
pub(crate) const QUEUE_PAIRS: u8 = 8;

/// Most NUMA nodes.
const NUMA_NODES: u8 = 8;

/// Longest path of a UNIX socket in bytes (unix(7): 108 with the final zero).
const SOCKET_PATH: usize = 107;

/// Longest name of a file this crate puts into the run folder, with its slash.
const LONGEST_SOCKET_NAME: usize = "/console.sock".len();

/// A virtual machine.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// 1 to 32 of `a-z`, `0-9` and `-`, beginning with a letter.
    pub name: String,
    /// Virtual CPUs, at least 1.
    pub vcpus: u8,
    /// Memory in MiB, at least 64. It is shared with the software NIC by file descriptor.
    pub memory_mib: u32,
    /// NUMA nodes that the memory is spread over in equal parts, 1 to 8 and at least 64 MiB each; the
    /// CPUs are on the first.
    pub numa_nodes: u8,
    /// What carries the guest's instructions out: see [`crate::accel::choose`].
    pub accel: Accel,
    /// What is booted.
    pub boot: Boot,
    /// First-boot data for cloud-init, if the guest has that.
    pub seed: Option<Seed>,
    /// VFs, in the order the guest shall see them where no slot says otherwise.
    pub vfs: Vec<VfPort>,
    /// Functions of the host's own hardware, after the VFs: VFs of an SR-IOV NIC, GPUs.
    pub functions: Vec<HostFunction>,
    /// Traditional NICs; the guest sees them after the VFs.
    pub taps: Vec<TapPort>,
    /// A NIC for the guest's own way out, after all others.
    pub management: Option<Management>,
    /// Slots left empty for ports attached later.
    pub spare_slots: u8,
    /// Whether the memory may come from the host's hugepages.
    pub hugepages: Hugepages,
    /// Folder of this VM alone: sockets, and the serial log, which stays. Made if it is not there.
    pub run_folder: PathBuf,
    /// Network namespace to run in, by file (as in `/run/netns/NAME`).
    pub namespace: Option<PathBuf>,
    /// Killed by the kernel when this process ends, however it ends.
    pub dies_with_parent: bool,
    /// A guest that reboots goes on within the VM; otherwise its reboot, or its panic, ends it.
    pub reboots: bool,
    /// QEMU's own arguments, after all that come from the fields above: devices that only an
    /// emulated host has. They are taken as they are.
    pub arguments: Vec<String>,
}

/// What a VM boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A kernel, without a boot loader.
    Kernel {
        /// A bzImage, or an ELF image with a PVH entry, which boots faster.
        kernel: PathBuf,
        /// An initramfs.
        initramfs: Option<PathBuf>,
        /// The kernel's command line. The serial console is `ttyS0`.
        command_line: String,
    },
    /// A disk with a boot loader (PC BIOS).
    Disk(Disk),
}

/// A disk image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The image file.
    pub image: PathBuf,
    /// Its format. It is never guessed: a guest could write a header that lies.
    pub format: DiskFormat,
    /// What the guest writes goes to a temporary file and is lost when it ends.
    pub throw_away: bool,
}

/// Format of a disk image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFormat {
    /// QEMU's own.
    Qcow2,
    /// Byte for byte.
    Raw,
}

/// A VF: a virtio-net device whose rings are worked by the process behind a vhost-user socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfPort {
    /// Name of the port within the VM, as VM names are spelled.
    pub name: String,
    /// The VF's vhost-user socket, which must be there already: QEMU waits for it while it holds
    /// everything else up.
    pub socket: PathBuf,
    /// The guest's address: a station's.
    pub mac: MacAddr,
    /// PCI slot, `1..=24`; the lowest free one if none is said.
    pub slot: Option<u8>,
    /// Queue pairs, `1..=8`.
    pub queue_pairs: u8,
    /// Offer packed rings.
    pub packed: bool,
    /// MTU told to the guest.
    pub mtu: Mtu,
}

/// A PCI function of the host that the guest gets by VFIO, which must have it already (the driver
/// vfio-pci). All of the guest's memory stays in the host's for as long as it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFunction {
    /// Name of the port within the VM, as VM names are spelled.
    pub name: String,
    /// Where it is on the host.
    pub address: PciAddr,
    /// The address that a VF was given, so that no other port has it; `None` for what is no NIC.
    pub mac: Option<MacAddr>,
    /// PCI slot, `1..=24`; the lowest free one if none is said.
    pub slot: Option<u8>,
}

/// A traditional NIC: virtio-net on a tap, the frames through the host's kernel.
#[derive(Clone, Debug)]
pub struct TapPort {
    /// Name of the port within the VM, as VM names are spelled.
    pub name: String,
    /// The tap.
    pub tap: Tap,
    /// The guest's address: a station's.
    pub mac: MacAddr,
    /// PCI slot, `1..=24`; the lowest free one if none is said.
    pub slot: Option<u8>,
    /// MTU told to the guest.
    pub mtu: Mtu,
}

/// Which tap.
#[derive(Clone, Debug)]
pub enum Tap {
    /// By interface name, in the namespace the VM runs in. It must exist, with the virtio-net
    /// header (`ip tuntap add mode tap vnet_hdr`).
    Named(String),
    /// Opened already.
    Open(Arc<OwnedFd>),
}

/// A NIC on QEMU's own user-mode network: outgoing connections only, the address by DHCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// The guest's address: a station's.
    pub mac: MacAddr,
    /// TCP port of this machine's loopback that leads to the guest's port 22; `None` for no way in.
    pub ssh_port: Option<u16>,
}

/// Whether a VM's memory may come from hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hugepages {
    /// If enough 2 MiB pages are free when the VM starts.
    WhenFree,
    /// Ordinary pages.
    Never,
}

impl VmSpec {
    /// A VM with one CPU and nothing attached, that dies with this process.
    pub fn new(name: &str, memory_mib: u32, boot: Boot, run_folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            vcpus: 1,
            memory_mib,
            numa_nodes: 1,
            accel: Accel::Tcg,
            boot,
            seed: None,
            vfs: Vec::new(),
            functions: Vec::new(),
            taps: Vec::new(),
            management: None,
            spare_slots: 2,
            hugepages: Hugepages::WhenFree,
            run_folder: run_folder.to_owned(),
            namespace: None,
            dies_with_parent: true,
            reboots: false,
            arguments: Vec::new(),
        }
    }

    /// Refuse what no driver could start, and give every port its slot.
    pub(crate) fn check(&self) -> Result<Slots, VmError> {
        let refuse = |field: &str, value: String, why: &str| {
            Err(VmError::Invalid {
                vm: self.name.clone(),
                field: field.to_owned(),
                value,
                why: why.to_owned(),
            })
        };
        if !is_name(&self.name) {
            return refuse("name", self.name.clone(), NAME_RULE);
        }
        if self.vcpus == 0 {
            return refuse("vcpus", "0".to_owned(), "use at least 1");
        }
        if self.memory_mib < 64 {
            return refuse("memory_mib", self.memory_mib.to_string(), "use at least 64");
        }
        if !(1..=NUMA_NODES).contains(&self.numa_nodes)
            || self.memory_mib / u32::from(self.numa_nodes) < 64
        {
            let why = "use 1 to 8, with 64 MiB of memory for each";
            return refuse("numa_nodes", self.numa_nodes.to_string(), why);
        }
        let folder = self.run_folder.as_os_str().len();
        if folder + LONGEST_SOCKET_NAME > SOCKET_PATH {
            return refuse(
                "run_folder",
                self.run_folder.display().to_string(),
                "it is too long for the sockets in it (107 bytes with their names)",
            );
        }
        for (field, path) in self.files() {
            if !path.is_file() {
                return refuse(field, path.display().to_string(), "there is no such file");
            }
        }
        for path in self.files().map(|(_, path)| path).chain([self.run_folder.as_path()]) {
            if path.to_str().is_none() {
                return refuse("path", path.display().to_string(), "it is not UTF-8");
            }
        }
        let mut addresses = BTreeSet::new();
        if let Some(twice) = self.functions.iter().find(|it| !addresses.insert(it.address)) {
            let field = format!("{}.address", twice.name);
            return refuse(&field, twice.address.to_string(), "the VM has it already");
        }
        self.slots()
    }

    /// Which port is in which slot: the same each time it is asked.
    pub(crate) fn slots(&self) -> Result<Slots, VmError> {
        let mut slots = Slots::default();
        // Those that ask for a slot first, so that no other takes it.
        let fixed = |slot: Option<u8>| slot.is_some();
        for asked in [true, false] {
            for vf in self.vfs.iter().filter(|vf| fixed(vf.slot) == asked) {
                vf.check(&self.name)?;
                slots.take(&self.name, &vf.name, vf.slot, Some(vf.mac))?;
            }
            for function in self.functions.iter().filter(|it| fixed(it.slot) == asked) {
                function.check(&self.name)?;
                slots.take(&self.name, &function.name, function.slot, function.mac)?;
            }
            for tap in self.taps.iter().filter(|tap| fixed(tap.slot) == asked) {
                tap.check(&self.name)?;
                slots.take(&self.name, &tap.name, tap.slot, Some(tap.mac))?;
            }
        }
        if let Some(management) = &self.management {
            check_mac(&self.name, "management.mac", management.mac)?;
            slots.take(&self.name, MANAGEMENT, None, Some(management.mac))?;
        }
        slots.spare(self.spare_slots);
        Ok(slots)
    }

    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = match &self.boot {
            Boot::Kernel { kernel, initramfs, .. } => [
                Some(("kernel", kernel.as_path())),
                initramfs.as_deref().map(|it| ("initramfs", it)),
            ],
            Boot::Disk(disk) => [Some(("image", disk.image.as_path())), None],
        };
        files.into_iter().flatten()
    }
}

/// Name of the management NIC among the ports.
pub(crate) const MANAGEMENT: &str = "management";

const NAME_RULE: &str = "use 1 to 32 of a-z, 0-9 and '-', beginning with a letter";

fn is_name(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-')
}

fn check_mac(vm: &str, field: &str, mac: MacAddr) -> Result<(), VmError> {
    if mac.is_station() {
        return Ok(());
    }
    Err(VmError::Invalid {
        vm: vm.to_owned(),
        field: field.to_owned(),
        value: mac.to_string(),
        why: "use a unicast address that is not zero".to_owned(),
    })
}

fn check_socket(vm: &str, field: String, path: &Path) -> Result<(), VmError> {
    let why = match path.to_str() {
        None => "it is not UTF-8",
        Some(text) if text.len() > SOCKET_PATH => "a socket's path has at most 107 bytes",
        Some(_) => return Ok(()),
    };
    let value = path.display().to_string();
    Err(VmError::Invalid { vm: vm.to_owned(), field, value, why: why.to_owned() })
}

fn check_port_name(vm: &str, name: &str) -> Result<(), VmError> {
    if is_name(name) && name != MANAGEMENT {
        return Ok(());
    }
    Err(VmError::Invalid {
        vm: vm.to_owned(),
        field: "port name".to_owned(),
        value: name.to_owned(),
        why: format!("{NAME_RULE}; '{MANAGEMENT}' is taken"),
    })
}

impl VfPort {
    pub(crate) fn check(&self, vm: &str) -> Result<(), VmError> {
        check_port_name(vm, &self.name)?;
        check_mac(vm, &format!("{}.mac", self.name), self.mac)?;
        check_socket(vm, format!("{}.socket", self.name), &self.socket)?;
        if (1..=QUEUE_PAIRS).contains(&self.queue_pairs) {
            return Ok(());
        }
        Err(VmError::Invalid {
            vm: vm.to_owned(),
            field: format!("{}.queue_pairs", self.name),
            value: self.queue_pairs.to_string(),
            why: format!("use 1 to {QUEUE_PAIRS}"),
        })
    }
}

impl HostFunction {
    fn check(&self, vm: &str) -> Result<(), VmError> {
        check_port_name(vm, &self.name)?;
        self.mac.map_or(Ok(()), |mac| check_mac(vm, &format!("{}.mac", self.name), mac))
    }
}

impl TapPort {
    pub(crate) fn check(&self, vm: &str) -> Result<(), VmError> {
        check_port_name(vm, &self.name)?;
        check_mac(vm, &format!("{}.mac", self.name), self.mac)?;
        match &self.tap {
            // IFNAMSIZ is 16 with the final zero (netdevice(7)).
            Tap::Named(name) if name.is_empty() || name.len() > 15 => Err(VmError::Invalid {
                vm: vm.to_owned(),
                field: format!("{}.tap", self.name),
                value: name.clone(),
                why: "an interface's name has 1 to 15 bytes".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// Which port is in which slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    taken: BTreeMap<u8, (String, Option<MacAddr>)>,
    /// Every slot the VM has, taken or not: fixed at its start.
    present: Vec<u8>,
}

impl Slots {
    /// Puts a port into the slot it asks for, or into the lowest free one.
    fn take(
        &mut self,
        vm: &str,
        port: &str,
        asked: Option<u8>,
        mac: Option<MacAddr>,
    ) -> Result<u8, VmError> {
        let slot = self.choose(vm, port, asked, mac, |_| true)?;
        self.taken.insert(slot, (port.to_owned(), mac));
        if !self.present.contains(&slot) {
            self.present.push(slot);
            self.present.sort_unstable();
        }
        Ok(slot)
    }

    /// The same, into a slot that the running VM has.
    pub(crate) fn take_present(
        &mut self,
        vm: &str,
        port: &str,
        asked: Option<u8>,
        mac: MacAddr,
    ) -> Result<u8, VmError> {
        let present = self.present.clone();
        let slot = self.choose(vm, port, asked, Some(mac), |slot| present.contains(&slot))?;
        self.taken.insert(slot, (port.to_owned(), Some(mac)));
        Ok(slot)
    }

    fn choose(
        &self,
        vm: &str,
        port: &str,
        asked: Option<u8>,
        mac: Option<MacAddr>,
        usable: impl Fn(u8) -> bool,
    ) -> Result<u8, VmError> {
        let refuse = |field: String, value: String, why: String| {
            Err(VmError::Invalid { vm: vm.to_owned(), field, value, why })
        };
        for (name, address) in self.taken.values() {
            if name == port {
                return refuse("port name".to_owned(), port.to_owned(), "it is taken".to_owned());
            }
            if let Some(mac) = mac.filter(|mac| *address == Some(*mac)) {
                let why = format!("port {name} has the same");
                return refuse(format!("{port}.mac"), mac.to_string(), why);
            }
        }
        let free = |slot: &u8| usable(*slot) && !self.taken.contains_key(slot);
        match asked {
            None => match (1..=SLOTS).find(free) {
                Some(slot) => Ok(slot),
                None => refuse(
                    format!("{port}.slot"),
                    "any".to_owned(),
                    "no slot is free; raise spare_slots".to_owned(),
                ),
            },
            Some(slot) if free(&slot) && (1..=SLOTS).contains(&slot) => Ok(slot),
            Some(slot) => {
                let why = match self.taken.get(&slot) {
                    Some((name, _)) => format!("port {name} is in it"),
                    None if (1..=SLOTS).contains(&slot) => {
                        "the VM was started without it; raise spare_slots".to_owned()
                    }
                    None => format!("use 1 to {SLOTS}"),
                };
                refuse(format!("{port}.slot"), slot.to_string(), why)
            }
        }
    }

    fn spare(&mut self, count: u8) {
        let free: Vec<u8> = (1..=SLOTS)
            .filter(|slot| !self.taken.contains_key(slot))
            .take(usize::from(count))
            .collect();
        self.present.extend(free);
        self.present.sort_unstable();
        self.present.dedup();
    }

    pub(crate) fn present(&self) -> &[u8] {
        &self.present
    }

    pub(crate) fn of(&self, port: &str) -> Option<u8> {
        self.taken.iter().find(|(_, (name, _))| name == port).map(|(slot, _)| *slot)
    }

    pub(crate) fn release(&mut self, port: &str) {
        self.taken.retain(|_, (name, _)| name != port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    fn vf(name: &str, last: u8, slot: Option<u8>) -> VfPort {
        VfPort {
            name: name.to_owned(),
            socket: format!("/run/{name}.sock").into(),
            mac: mac(last),
            slot,
            queue_pairs: 1,
            packed: false,
            mtu: Mtu::ETHERNET,
        }
    }

    fn spec() -> VmSpec {
        let kernel = std::env::current_exe().expect("this program has a file");
        let boot = Boot::Kernel { kernel, initramfs: None, command_line: String::new() };
        VmSpec::new("a1", 256, boot, Path::new("/run/a1"))
    }

    fn complaint(change: impl FnOnce(&mut VmSpec)) -> String {
        let mut spec = spec();
        change(&mut spec);
        spec.check().expect_err("refused").to_string()
    }

    #[test]
    fn ports_get_slots_in_their_order_around_those_that_ask() {
        let mut spec = spec();
        spec.vfs = vec![vf("x", 1, None), vf("y", 2, Some(1)), vf("z", 3, None)];
        spec.management = Some(Management { mac: mac(4), ssh_port: None });
        let slots = spec.check().expect("sound");
        let of = |name| slots.of(name).expect("has one");
        assert_eq!((of("x"), of("y"), of("z"), of(MANAGEMENT)), (2, 1, 3, 4));
        assert_eq!(slots.present(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_refusal_names_the_vm_the_field_and_the_value() {
        let text = complaint(|spec| spec.vfs = vec![vf("x", 1, Some(25))]);
        for part in ["a1", "x.slot", "25", "1 to 24"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn what_no_driver_could_start_is_refused() {
        let long = PathBuf::from(format!("/run/{}", "x".repeat(110)));
        assert!(complaint(|spec| spec.name = "A 1".into()).contains("name"));
        assert!(complaint(|spec| spec.vcpus = 0).contains("vcpus"));
        assert!(complaint(|spec| spec.memory_mib = 32).contains("memory_mib"));
        assert!(complaint(|spec| spec.numa_nodes = 0).contains("numa_nodes"));
        assert!(complaint(|spec| spec.numa_nodes = 5).contains("64 MiB"));
        assert!(complaint(|spec| spec.run_folder = long.clone()).contains("run_folder"));
        assert!(complaint(|spec| spec.vfs = vec![vf("x", 1, Some(0))]).contains("x.slot"));
        assert!(
            complaint(|spec| {
                spec.vfs = vec![VfPort { queue_pairs: 9, ..vf("x", 1, None) }];
            })
            .contains("queue_pairs")
        );
        assert!(
            complaint(|spec| {
                spec.vfs = vec![VfPort { mac: MacAddr::BROADCAST, ..vf("x", 1, None) }];
            })
            .contains("ff:ff")
        );
        assert!(
            complaint(|spec| {
                spec.vfs = vec![VfPort { socket: long, ..vf("x", 1, None) }];
            })
            .contains("x.socket")
        );
        assert!(
            complaint(|spec| {
                let tap = Tap::Named("a-name-of-17-char".into());
                let mtu = Mtu::ETHERNET;
                spec.taps = vec![TapPort { name: "t".into(), tap, mac: mac(1), slot: None, mtu }];
            })
            .contains("t.tap")
        );
    }

    #[test]
    fn two_ports_never_share_a_name_an_address_or_a_slot() {
        let with = |ports: [VfPort; 2]| complaint(|spec| spec.vfs = ports.to_vec());
        assert!(with([vf("x", 1, None), vf("x", 2, None)]).contains("taken"));
        assert!(with([vf("x", 1, None), vf("y", 1, None)]).contains("the same"));
        assert!(with([vf("x", 1, Some(3)), vf("y", 2, Some(3))]).contains("port x is in it"));
        assert!(with([vf("management", 1, None), vf("y", 2, None)]).contains("taken"));
    }

    #[test]
    fn a_function_of_the_host_is_given_once_and_shares_no_address() {
        let function = |name: &str, mac| HostFunction {
            name: name.to_owned(),
            address: "0000:81:10.1".parse().expect("an address"),
            mac,
            slot: None,
        };
        let twice = vec![function("x", None), function("y", None)];
        assert!(complaint(|spec| spec.functions = twice).contains("y.address"));
        let text = complaint(|spec| {
            spec.vfs = vec![vf("x", 1, None)];
            spec.functions = vec![function("y", Some(mac(1)))];
        });
        assert!(text.contains("port x has the same"), "{text}");
    }

    #[test]
    fn a_kernel_that_is_not_there_is_named() {
        let text = complaint(|spec| {
            let kernel = PathBuf::from("/no/such/kernel");
            spec.boot = Boot::Kernel { kernel, initramfs: None, command_line: String::new() };
        });
        assert!(text.contains("kernel") && text.contains("/no/such/kernel"), "{text}");
    }

    #[test]
    fn a_running_vm_takes_ports_only_into_slots_it_has() {
        let mut slots = spec().check().expect("sound");
        assert_eq!(slots.present(), [1, 2]);
        assert_eq!(slots.take_present("a1", "x", None, mac(1)).expect("free"), 1);
        let text = slots.take_present("a1", "y", Some(9), mac(2)).expect_err("absent").to_string();
        assert!(text.contains("spare_slots"), "{text}");
        assert_eq!(slots.take_present("a1", "y", None, mac(2)).expect("free"), 2);
        assert!(slots.take_present("a1", "z", None, mac(3)).is_err());
        slots.release("x");
        assert_eq!(slots.take_present("a1", "z", None, mac(3)).expect("free again"), 1);
    }
}
