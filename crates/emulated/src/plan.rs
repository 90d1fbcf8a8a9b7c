//! What an emulated host shall be, and that as arguments of QEMU.

use std::path::PathBuf;

use lanekeeper_model::MacAddr;

use crate::EmulatedError;

/// Most memory of a host in MiB. QEMU 10.0 cuts the VFs' memory addresses to 32 bits: with memory
/// above 4 GiB, or so much below that the window for devices becomes too small, VFs appear, bind
/// their driver, and never get a link.
const MOST_MEMORY: u32 = 2_750;

/// Memory of a host without tenants, in MiB: its files take 40, a test little more.
const OWN_MEMORY: u32 = 512;

/// What a tenant needs of the host beside its own memory, in MiB: QEMU, and its files in the page
/// cache.
const PER_TENANT: u32 = 192;

/// Place of the first PF's root port on the root bus. The VM's own devices are below, its disks
/// and ports are not used here.
const FIRST_ROOT_PORT: usize = 0x08;

/// Most PFs: places on the root bus up to those of the NUMA nodes.
const MOST_PFS: usize = 8;

/// Place of the first NUMA node's host bridge on the root bus; QEMU gives those after them, and the
/// ones that are free before, to shared folders.
const FIRST_HOST_BRIDGE: usize = 0x10;

/// Buses of a NUMA node: the first has number `(node + 1) * BUSES`, so that the root bus has as many.
const BUSES: usize = 32;

/// Most NUMA nodes: their buses are numbered up to 255.
const MOST_NODES: u8 = 7;

/// Most switches of a host, and most devices behind each: every switch takes two buses, and each of
/// its ports one.
const MOST_SWITCHES: usize = 4;
const MOST_BEHIND: usize = 5;

/// An emulated host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// As VM names are spelled.
    pub name: String,
    /// Its NICs.
    pub pfs: Vec<PfPlan>,
    /// PCIe switches. With one or more of them the host has as many NUMA nodes as they name.
    pub switches: Vec<SwitchPlan>,
    /// Folders of this machine that it sees, read-only.
    pub shares: Vec<Share>,
    /// Names of the tenants that may be started in it, as VM names are spelled.
    pub tenants: Vec<String>,
    /// Folder for its sockets and logs, on this machine.
    pub run_folder: PathBuf,
    /// Network namespace of this machine to run it in, by file (as in `/run/netns/NAME`).
    pub namespace: Option<PathBuf>,
    /// The kernel ends it when this process ends, however that comes about.
    pub dies_with_parent: bool,
}

/// One PF: an Intel 82576 with seven VFs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfPlan {
    /// Its permanent address.
    pub mac: MacAddr,
    /// Where its port leads to.
    pub cable: Cable,
    /// Which of [`HostPlan::switches`] it is behind; `None` for a root port of its own.
    pub switch: Option<usize>,
}

/// A PCIe switch below a root port of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// The node, from 0.
    pub numa_node: u8,
    /// GPUs behind it. They stand in for GPUs by their class, that of a display controller which is
    /// no VGA adapter, and compute nothing.
    pub gpus: u8,
    /// Its downstream ports have access control services, as those of a server's switches do. Without
    /// them all that is behind a port is one IOMMU group, with the port.
    pub acs: bool,
}

/// What a PF's port is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cable {
    /// A wire within the host, by number: PFs with the same number are connected. One alone has a
    /// link and nobody at the other end.
    Wire(u8),
    /// A cable to a PF of another host: a datagram socket at each end, whose PF has the two the
    /// other way round.
    Socket {
        /// This end's socket, which QEMU makes.
        here: PathBuf,
        /// The other end's.
        there: PathBuf,
    },
}

/// A folder that the host sees at `/shared/TAG`, read-only. Files must not change while the host runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name there, at most 31 letters.
    pub tag: String,
    /// The folder.
    pub folder: PathBuf,
}

impl HostPlan {
    /// Memory of the host in MiB.
    pub(crate) fn memory_mib(&self) -> u32 {
        let tenants = u32::try_from(self.tenants.len()).unwrap_or(u32::MAX);
        OWN_MEMORY.saturating_add(tenants.saturating_mul(PER_TENANT + crate::tenant::MEMORY_MIB))
    }

    /// Refuses what could not be started, as far as the VM driver does not.
    pub(crate) fn check(&self) -> Result<(), EmulatedError> {
        let refuse = |field: &'static str, value: String, why: String| {
            Err(EmulatedError::Plan { host: self.name.clone(), field, value, why })
        };
        if self.pfs.len() > MOST_PFS {
            let why = format!("a host has at most {MOST_PFS}");
            return refuse("number of PFs", self.pfs.len().to_string(), why);
        }
        if self.switches.len() > MOST_SWITCHES {
            let why = format!("a host has at most {MOST_SWITCHES}");
            return refuse("number of switches", self.switches.len().to_string(), why);
        }
        if let Some(switch) = self.switches.iter().find(|it| it.numa_node >= MOST_NODES) {
            let why = format!("use 0 to {}", MOST_NODES - 1);
            return refuse("NUMA node", switch.numa_node.to_string(), why);
        }
        for (number, switch) in self.switches.iter().enumerate() {
            let behind = self.behind(number).count() + usize::from(switch.gpus);
            if behind > MOST_BEHIND {
                let why = format!("at most {MOST_BEHIND} PFs and GPUs are behind a switch");
                return refuse("devices behind a switch", behind.to_string(), why);
            }
        }
        let unknown = |pf: &&PfPlan| pf.switch.is_some_and(|it| it >= self.switches.len());
        if let Some(number) = self.pfs.iter().find(unknown).and_then(|pf| pf.switch) {
            let why = format!("there are {}, counted from 0", self.switches.len());
            return refuse("switch of a PF", number.to_string(), why);
        }
        if let Some(pf) = self.pfs.iter().find(|pf| !pf.mac.is_station()) {
            let why = "use a unicast address that is not zero".to_owned();
            return refuse("MAC of a PF", pf.mac.to_string(), why);
        }
        if self.memory_mib() > MOST_MEMORY {
            let why = format!("they need {} MiB and there are {MOST_MEMORY}", self.memory_mib());
            return refuse("number of tenants", self.tenants.len().to_string(), why);
        }
        let is_tag = |tag: &str| {
            (1..=31).contains(&tag.len()) && tag.chars().all(|it| it.is_ascii_lowercase())
        };
        if let Some(share) = self.shares.iter().find(|share| !is_tag(&share.tag)) {
            return refuse("tag", share.tag.clone(), "use 1 to 31 of a-z".to_owned());
        }
        Ok(())
    }

    /// NUMA nodes.
    pub(crate) fn numa_nodes(&self) -> u8 {
        self.switches.iter().map(|switch| switch.numa_node + 1).max().unwrap_or(1)
    }

    /// Numbers of the PFs behind a switch.
    fn behind(&self, switch: usize) -> impl Iterator<Item = usize> {
        let is_there = move |(_, pf): &(usize, &PfPlan)| pf.switch == Some(switch);
        self.pfs.iter().enumerate().filter(is_there).map(|(number, _)| number)
    }

    /// What the kernel has to be told beside the usual.
    pub(crate) fn kernel_options(&self) -> String {
        let pages = self.tenants.len() * crate::tenant::MEMORY_MIB as usize / 2;
        format!("intel_iommu=on default_hugepagesz=2M hugepages={pages}")
    }

    /// This machine's end of the line to a tenant's agent.
    pub(crate) fn line(&self, tenant: &str) -> PathBuf {
        self.run_folder.join(format!("{tenant}.sock"))
    }

    /// QEMU's arguments beside those of any VM.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |option: &str, value: String| {
            arguments.extend([option.to_owned(), value]);
        };
        // KVM in the host needs nested paging; without it a tenant does not boot within minutes.
        add("-cpu", "qemu64,+svm,+npt,+x2apic".to_owned());
        // The other half of what keeps VFs' memory below 4 GiB (see MOST_MEMORY).
        add("-global", "q35-pcihost.pci-hole64-size=0".to_owned());
        add("-device", "intel-iommu,intremap=on,caching-mode=on".to_owned());
        if !self.switches.is_empty() {
            // Each node's host bridge is on the root bus and has buses of its own below it.
            for node in 0..self.numa_nodes() {
                let (place, bus) = (FIRST_HOST_BRIDGE + usize::from(node), first_bus(node));
                add(
                    "-device",
                    format!(
                        "pxb-pcie,id=node{node},bus=pcie.0,addr={place:#x},bus_nr={bus},numa_node={node}"
                    ),
                );
            }
        }
        for (number, switch) in self.switches.iter().enumerate() {
            self.add_switch(number, *switch, &mut add);
        }
        for (number, pf) in self.pfs.iter().enumerate() {
            if pf.switch.is_none() {
                let place = FIRST_ROOT_PORT + number;
                let port = port_of(&device(number));
                add("-device", root_port(&port, "pcie.0", place, place));
            }
            add("-netdev", pf.netdev(number));
            add(
                "-device",
                format!(
                    "igb,id={id},bus={},netdev={},mac={},romfile=",
                    port_of(&device(number)),
                    backend(number),
                    pf.mac,
                    id = device(number),
                ),
            );
        }
        for Share { tag, folder } in &self.shares {
            let folder = escape(folder);
            add("-fsdev", format!("local,id={tag},path={folder},security_model=none,readonly=on"));
            add("-device", format!("virtio-9p-pci,bus=pcie.0,fsdev={tag},mount_tag={tag}"));
        }
        for tenant in &self.tenants {
            let socket = escape(&self.line(tenant));
            add("-chardev", format!("socket,id=line-{tenant},path={socket},server=on,wait=off"));
            let port = crate::tenant::port_name(tenant);
            add(
                "-device",
                format!("virtserialport,bus=serial.0,chardev=line-{tenant},name={port}"),
            );
        }
        arguments
    }

    /// A switch with a port for each PF and each GPU behind it, and the GPUs.
    fn add_switch(&self, number: usize, switch: SwitchPlan, add: &mut impl FnMut(&str, String)) {
        let (node, above) = (switch.numa_node, format!("above-switch{number}"));
        // A slot has one number in the whole host.
        let slots = (number + 1) * BUSES;
        let place = self.switches[..number].iter().filter(|it| it.numa_node == node).count();
        add("-device", root_port(&above, &format!("node{node}"), place, slots));
        add("-device", format!("x3130-upstream,id=switch{number},bus={above}"));
        let gpus: Vec<String> = (0..switch.gpus).map(|gpu| format!("gpu{number}-{gpu}")).collect();
        let behind = self.behind(number).map(device).chain(gpus.iter().cloned());
        for (place, device) in behind.enumerate() {
            let (port, slot) = (port_of(&device), slots + 1 + place);
            let bus = format!("switch{number}");
            add(
                "-device",
                if switch.acs {
                    // QEMU's downstream ports have no ACS. Its root ports do, and the host's kernel
                    // takes one for a port of the switch.
                    root_port(&port, &bus, place, slot)
                } else {
                    format!(
                        "xio3130-downstream,id={port},bus={bus},addr={place:#x},chassis={slot},slot={slot}"
                    )
                },
            );
        }
        for gpu in gpus {
            // The least memory that it takes: all of it is in the window for devices.
            add("-device", format!("bochs-display,id={gpu},bus={},vgamem=4M", port_of(&gpu)));
        }
    }
}

impl PfPlan {
    fn netdev(&self, number: usize) -> String {
        let id = backend(number);
        match &self.cable {
            Cable::Wire(wire) => format!("hubport,id={id},hubid={wire}"),
            Cable::Socket { here, there } => {
                let (here, there) = (escape(here), escape(there));
                format!(
                    "dgram,id={id},local.type=unix,local.path={here},\
                     remote.type=unix,remote.path={there}"
                )
            }
        }
    }
}

/// QEMU's name of a PF.
pub(crate) fn device(number: usize) -> String {
    format!("pf{number}")
}

fn backend(number: usize) -> String {
    format!("net-pf{number}")
}

/// QEMU's name of the port above a device.
fn port_of(device: &str) -> String {
    format!("port-{device}")
}

fn root_port(id: &str, bus: &str, place: usize, slot: usize) -> String {
    format!("pcie-root-port,id={id},bus={bus},addr={place:#x},chassis={slot},slot={slot}")
}

fn first_bus(node: u8) -> usize {
    (usize::from(node) + 1) * BUSES
}

/// In an option a comma ends a value unless it is doubled.
fn escape(path: &std::path::Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> HostPlan {
        let pf = |last, cable| PfPlan { mac: MacAddr([2, 0, 0, 0, 0, last]), cable, switch: None };
        let socket = Cable::Socket { here: "/run/a".into(), there: "/run/b".into() };
        HostPlan {
            name: "h1".to_owned(),
            pfs: vec![pf(1, Cable::Wire(7)), pf(2, socket)],
            switches: Vec::new(),
            shares: vec![Share { tag: "bin".to_owned(), folder: "/a,b".into() }],
            tenants: vec!["t1".to_owned()],
            run_folder: "/run/h1".into(),
            namespace: None,
            dies_with_parent: true,
        }
    }

    fn complaint(change: impl FnOnce(&mut HostPlan)) -> String {
        let mut plan = plan();
        change(&mut plan);
        plan.check().expect_err("refused").to_string()
    }

    #[test]
    fn each_pf_is_behind_a_root_port_of_its_own_and_each_tenant_has_a_line() {
        let text = plan().arguments().join(" ").replace(" -", "\n-");
        let want = "\
-cpu qemu64,+svm,+npt,+x2apic
-global q35-pcihost.pci-hole64-size=0
-device intel-iommu,intremap=on,caching-mode=on
-device pcie-root-port,id=port-pf0,bus=pcie.0,addr=0x8,chassis=8,slot=8
-netdev hubport,id=net-pf0,hubid=7
-device igb,id=pf0,bus=port-pf0,netdev=net-pf0,mac=02:00:00:00:00:01,romfile=
-device pcie-root-port,id=port-pf1,bus=pcie.0,addr=0x9,chassis=9,slot=9
-netdev dgram,id=net-pf1,local.type=unix,local.path=/run/a,remote.type=unix,remote.path=/run/b
-device igb,id=pf1,bus=port-pf1,netdev=net-pf1,mac=02:00:00:00:00:02,romfile=
-fsdev local,id=bin,path=/a,,b,security_model=none,readonly=on
-device virtio-9p-pci,bus=pcie.0,fsdev=bin,mount_tag=bin
-chardev socket,id=line-t1,path=/run/h1/t1.sock,server=on,wait=off
-device virtserialport,bus=serial.0,chardev=line-t1,name=tenant.t1";
        assert_eq!(text, want);
    }

    #[test]
    fn switches_are_on_their_numa_nodes_with_pfs_and_gpus_behind_them() {
        let mut plan = plan();
        plan.switches = vec![
            SwitchPlan { numa_node: 0, gpus: 1, acs: true },
            SwitchPlan { numa_node: 1, gpus: 0, acs: false },
        ];
        plan.pfs[0].switch = Some(0);
        plan.pfs[1].switch = Some(1);
        assert!(plan.check().is_ok());
        assert_eq!(plan.numa_nodes(), 2);
        let text = plan.arguments().join(" ").replace(" -", "\n-");
        let buses = |line: &&str| line.starts_with("-device") && !line.contains("virt");
        let found: Vec<&str> = text.lines().filter(buses).skip(1).collect();
        let want = "\
-device pxb-pcie,id=node0,bus=pcie.0,addr=0x10,bus_nr=32,numa_node=0
-device pxb-pcie,id=node1,bus=pcie.0,addr=0x11,bus_nr=64,numa_node=1
-device pcie-root-port,id=above-switch0,bus=node0,addr=0x0,chassis=32,slot=32
-device x3130-upstream,id=switch0,bus=above-switch0
-device pcie-root-port,id=port-pf0,bus=switch0,addr=0x0,chassis=33,slot=33
-device pcie-root-port,id=port-gpu0-0,bus=switch0,addr=0x1,chassis=34,slot=34
-device bochs-display,id=gpu0-0,bus=port-gpu0-0,vgamem=4M
-device pcie-root-port,id=above-switch1,bus=node1,addr=0x0,chassis=64,slot=64
-device x3130-upstream,id=switch1,bus=above-switch1
-device xio3130-downstream,id=port-pf1,bus=switch1,addr=0x0,chassis=65,slot=65
-device igb,id=pf0,bus=port-pf0,netdev=net-pf0,mac=02:00:00:00:00:01,romfile=
-device igb,id=pf1,bus=port-pf1,netdev=net-pf1,mac=02:00:00:00:00:02,romfile=";
        assert_eq!(found.join("\n"), want);
    }

    #[test]
    fn memory_for_each_tenant_is_set_aside_as_the_host_boots() {
        let one = plan();
        assert!(one.kernel_options().ends_with("hugepages=128"));
        let none = HostPlan { tenants: Vec::new(), ..plan() };
        assert!(one.memory_mib() >= none.memory_mib() + 2 * 128);
    }

    #[test]
    fn what_the_emulated_hardware_cannot_bear_is_refused_with_the_value() {
        assert!(plan().check().is_ok());
        assert!(complaint(|plan| plan.pfs = vec![plan.pfs[0].clone(); 9]).contains("'9'"));
        assert!(complaint(|plan| plan.pfs[0].mac = MacAddr::BROADCAST).contains("ff:ff"));
        assert!(complaint(|plan| plan.shares[0].tag = "a/b".to_owned()).contains("a/b"));
        let switch = SwitchPlan { numa_node: 0, gpus: 1, acs: true };
        assert!(complaint(|plan| plan.pfs[0].switch = Some(3)).contains("'3'"));
        assert!(complaint(|plan| plan.switches = vec![switch; 5]).contains("'5'"));
        assert!(
            complaint(|plan| plan.switches = vec![SwitchPlan { numa_node: 7, ..switch }])
                .contains("0 to 6")
        );
        assert!(
            complaint(|plan| plan.switches = vec![SwitchPlan { gpus: 6, ..switch }])
                .contains("'6'")
        );
        let many = |plan: &mut HostPlan| plan.tenants = vec!["t".to_owned(); 6];
        assert!(complaint(many).contains("2750"));
    }
}
