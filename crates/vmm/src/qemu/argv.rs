//! A [`VmSpec`] as QEMU's command line: a pure function, so that tests hold it to the byte.
//!
//! The machine is a q35 with a fixed layout on its root bus: the serial controller of the agent at
//! 01, the random source at 02, disks at 03 and 04, and from 05 one PCIe root port a slot, in the
//! order of slot numbers. Ports behind root ports can be attached and detached while the VM runs,
//! and a guest counts buses in that order too, so the order of slots is the order of its NICs.

use std::path::Path;

use serde_json::{Value, json};

use super::Version;
use crate::accel::Accel;
use crate::process::number;
use crate::spec::{
    Boot, Disk, DiskFormat, HostFunction, MANAGEMENT, Slots, Tap, TapPort, VfPort, VmSpec,
};

/// Place of the first slot's root port on the root bus.
const FIRST_ROOT_PORT: u8 = 0x05;

/// Entries of a VF's rings. QEMU's default of 256 holds 28 jumbo frames.
const RING_ENTRIES: u16 = 1024;

/// What the command line depends on beside the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// QEMU's release.
    pub version: Version,
    /// Memory comes from 2 MiB hugepages.
    pub hugepages: bool,
}

/// Files in a VM's run folder.
pub(super) mod file {
    pub(in crate::qemu) const MONITOR: &str = "monitor.sock";
    pub(in crate::qemu) const AGENT: &str = "agent.sock";
    pub(in crate::qemu) const CONSOLE: &str = "console.sock";
    pub(in crate::qemu) const SERIAL_LOG: &str = "serial.log";
    pub(in crate::qemu) const QEMU_LOG: &str = "qemu.log";
    pub(in crate::qemu) const SEED: &str = "seed.img";
}

/// QEMU's arguments for a VM.
///
/// # Errors
/// [`crate::VmError::Invalid`] as [`crate::Driver::start`] gives it.
pub fn arguments(spec: &VmSpec, platform: Platform) -> Result<Vec<String>, crate::VmError> {
    Ok(build(spec, &spec.check()?, platform))
}

pub(super) fn build(spec: &VmSpec, slots: &Slots, platform: Platform) -> Vec<String> {
    let mut line = Line::default();
    let memory = u64::from(spec.memory_mib);
    line.option("-name", format!("guest={},debug-threads=on", spec.name));
    for flag in ["-no-user-config", "-nodefaults"] {
        line.flag(flag);
    }
    if !spec.reboots {
        line.flag("-no-reboot");
    }
    line.option("-display", "none");
    // QEMU takes the memory of a machine or that of its nodes, not both.
    let backend = if spec.numa_nodes == 1 { ",memory-backend=mem" } else { "" };
    line.option("-machine", format!("q35{backend},smbus=off,sata=off,vmport=off"));
    match spec.accel {
        Accel::Kvm => {
            line.option("-accel", "kvm");
            line.option("-cpu", "host");
        }
        Accel::Tcg => {
            line.option("-accel", "tcg,tb-size=256");
            line.option("-cpu", "qemu64");
        }
    }
    line.option("-smp", spec.vcpus.to_string());
    line.option("-m", format!("{memory}M"));
    line.memory(spec, platform);
    line.option("-chardev", server("monitor", &spec.run_folder.join(file::MONITOR)));
    line.option("-mon", "chardev=monitor,mode=control");
    let log = escape(&spec.run_folder.join(file::SERIAL_LOG));
    let console = server("console", &spec.run_folder.join(file::CONSOLE));
    line.option("-chardev", format!("{console},logfile={log},logappend=off"));
    line.option("-serial", "chardev:console");
    line.device("virtio-serial-pci,id=serial,bus=pcie.0,addr=0x1");
    line.option("-chardev", server("agent", &spec.run_folder.join(file::AGENT)));
    line.device("virtserialport,bus=serial.0,chardev=agent,name=org.qemu.guest_agent.0");
    line.option("-object", "rng-random,id=random,filename=/dev/urandom");
    line.device("virtio-rng-pci,rng=random,bus=pcie.0,addr=0x2");
    boot(&mut line, spec);
    for slot in slots.present() {
        let place = FIRST_ROOT_PORT + slot - 1;
        line.device(&format!(
            "pcie-root-port,id={},bus=pcie.0,addr={place:#x},chassis={slot},slot={slot}",
            bus(*slot)
        ));
    }
    for vf in &spec.vfs {
        let backend = vf_chardev(&vf.name, &vf.socket, platform.version);
        line.option("-chardev", backend.command_line());
        line.option("-netdev", vf_netdev(vf).command_line());
        let interrupts = Interrupts::of(spec.accel, platform.version);
        line.device(&vf_device(vf, slots.of(&vf.name), interrupts).command_line());
    }
    for function in &spec.functions {
        line.device(&function_device(function, slots.of(&function.name)).command_line());
    }
    for tap in &spec.taps {
        line.option("-netdev", tap_netdev(tap).command_line());
        line.device(&tap_device(tap, slots.of(&tap.name)).command_line());
    }
    if let Some(management) = &spec.management {
        let forward = management
            .ssh_port
            .map_or_else(String::new, |port| format!(",hostfwd=tcp:127.0.0.1:{port}-:22"));
        line.option("-netdev", format!("user,id={}{forward}", backend_id(MANAGEMENT)));
        let device = net_device(MANAGEMENT, &management.mac.to_string(), slots.of(MANAGEMENT));
        line.device(&device.command_line());
    }
    line.arguments.extend(spec.arguments.iter().cloned());
    line.arguments
}

fn boot(line: &mut Line, spec: &VmSpec) {
    match &spec.boot {
        Boot::Kernel { kernel, initramfs, command_line } => {
            line.option("-kernel", plain(kernel));
            if let Some(initramfs) = initramfs {
                line.option("-initrd", plain(initramfs));
            }
            line.option("-append", command_line.as_str());
        }
        Boot::Disk(disk) => {
            line.option("-drive", drive("disk", disk));
            line.device("virtio-blk-pci,drive=disk,bus=pcie.0,addr=0x3,bootindex=1");
        }
    }
    if spec.seed.is_some() {
        let image = spec.run_folder.join(file::SEED);
        let seed = Disk { image, format: DiskFormat::Raw, throw_away: false };
        line.option("-drive", format!("{},read-only=on", drive("seed", &seed)));
        line.device("virtio-blk-pci,drive=seed,bus=pcie.0,addr=0x4");
    }
}

fn drive(id: &str, disk: &Disk) -> String {
    let format = match disk.format {
        DiskFormat::Qcow2 => "qcow2",
        DiskFormat::Raw => "raw",
    };
    let snapshot = if disk.throw_away { ",snapshot=on" } else { "" };
    format!("if=none,id={id},format={format},file={}{snapshot}", escape(&disk.image))
}

/// Identifiers of a port's parts. A port's name is unique in its VM and has no character that QEMU
/// does not take in an identifier.
pub(super) fn device_id(port: &str) -> String {
    format!("port-{port}")
}

pub(super) fn backend_id(port: &str) -> String {
    format!("net-{port}")
}

pub(super) fn chardev_id(port: &str) -> String {
    format!("vhost-{port}")
}

fn bus(slot: u8) -> String {
    format!("slot{slot}")
}

/// An object that is made with an option at the start and with a monitor command later, from the
/// same keys and values.
pub(super) struct Thing {
    /// The value that stands first in an option; `key` is its name for the monitor.
    head: (&'static str, String),
    entries: Vec<(&'static str, Value)>,
}

impl Thing {
    fn new(key: &'static str, value: &str) -> Self {
        Self { head: (key, value.to_owned()), entries: Vec::new() }
    }

    fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.entries.push((key, value.into()));
        self
    }

    fn command_line(&self) -> String {
        let entries = self.entries.iter().map(|(key, value)| match value {
            Value::Bool(true) => format!(",{key}=on"),
            Value::Bool(false) => format!(",{key}=off"),
            Value::String(text) => format!(",{key}={}", text.replace(',', ",,")),
            other => format!(",{key}={other}"),
        });
        std::iter::once(self.head.1.clone()).chain(entries).collect()
    }

    /// Arguments of `netdev_add` and `device_add`.
    pub(super) fn monitor(&self) -> Value {
        let mut arguments = serde_json::Map::new();
        arguments.insert(self.head.0.to_owned(), self.head.1.clone().into());
        for (key, value) in &self.entries {
            arguments.insert((*key).to_owned(), value.clone());
        }
        Value::Object(arguments)
    }
}

/// Seconds between attempts to find the software NIC again after it went away; from 9.2 on QEMU
/// takes milliseconds (qapi/char.json, `reconnect-ms`).
const RECONNECT_SECONDS: u32 = 1;
const RECONNECT_MILLISECONDS: u32 = 200;

fn reconnect(version: Version) -> (&'static str, u32) {
    if version >= (Version { major: 9, minor: 2 }) {
        ("reconnect-ms", RECONNECT_MILLISECONDS)
    } else {
        ("reconnect", RECONNECT_SECONDS)
    }
}

fn vf_chardev(port: &str, socket: &Path, version: Version) -> Thing {
    let (key, value) = reconnect(version);
    Thing::new("backend", "socket")
        .with("id", chardev_id(port))
        .with("path", plain(socket))
        .with(key, value)
}

/// Arguments of `chardev-add` (qapi/char.json), whose form is not that of the option.
pub(super) fn vf_chardev_monitor(port: &str, socket: &Path, version: Version) -> Value {
    let (key, value) = reconnect(version);
    let mut data = json!({
        "addr": { "type": "unix", "data": { "path": plain(socket) } },
        "server": false,
    });
    data[key] = value.into();
    json!({ "id": chardev_id(port), "backend": { "type": "socket", "data": data } })
}

pub(super) fn vf_netdev(vf: &VfPort) -> Thing {
    Thing::new("type", "vhost-user")
        .with("id", backend_id(&vf.name))
        .with("chardev", chardev_id(&vf.name))
        .with("queues", vf.queue_pairs)
}

/// How a VF's device interrupts its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupts {
    /// By message, one for each ring.
    Messages,
    /// By the device's one pin.
    Pin,
}

impl Interrupts {
    /// QEMU 7.2 without KVM crashes as the guest's driver starts a vhost-user device that has MSI-X
    /// (`virtio_pci_vector_unmask` goes on to `kvm_virtio_pci_irqfd_use` without irqfds); 10.0 does
    /// not. Releases between were not tried.
    pub(super) fn of(accel: Accel, version: Version) -> Self {
        if accel == Accel::Tcg && version < (Version { major: 10, minor: 0 }) {
            Self::Pin
        } else {
            Self::Messages
        }
    }
}

pub(super) fn vf_device(vf: &VfPort, slot: Option<u8>, interrupts: Interrupts) -> Thing {
    let device = net_device(&vf.name, &vf.mac.to_string(), slot)
        .with("host_mtu", vf.mtu.get())
        .with("rx_queue_size", RING_ENTRIES)
        .with("tx_queue_size", RING_ENTRIES);
    let device = if vf.packed { device.with("packed", true) } else { device };
    let device = if vf.queue_pairs == 1 { device } else { device.with("mq", true) };
    match interrupts {
        Interrupts::Pin => device.with("vectors", 0),
        Interrupts::Messages if vf.queue_pairs == 1 => device,
        // One for each ring, one for the control ring, one for configuration changes.
        Interrupts::Messages => device.with("vectors", 2 * u32::from(vf.queue_pairs) + 2),
    }
}

/// No option ROM of a VF: it has none of its own, and QEMU would look for it. A GPU keeps its own.
fn function_device(function: &HostFunction, slot: Option<u8>) -> Thing {
    let device = Thing::new("driver", "vfio-pci")
        .with("id", device_id(&function.name))
        .with("host", function.address.to_string());
    let device = match slot {
        Some(slot) => device.with("bus", bus(slot)),
        None => device,
    };
    if function.mac.is_some() { device.with("rombar", 0) } else { device }
}

pub(super) fn tap_netdev(tap: &TapPort) -> Thing {
    let netdev = Thing::new("type", "tap").with("id", backend_id(&tap.name));
    match &tap.tap {
        Tap::Named(name) => {
            netdev.with("ifname", name.as_str()).with("script", "no").with("downscript", "no")
        }
        Tap::Open(descriptor) => netdev.with("fd", number(descriptor).to_string()),
    }
}

pub(super) fn tap_device(tap: &TapPort, slot: Option<u8>) -> Thing {
    net_device(&tap.name, &tap.mac.to_string(), slot).with("host_mtu", tap.mtu.get())
}

/// A NIC in a slot. No option ROM: nothing boots over it, and loading it costs time.
fn net_device(port: &str, mac: &str, slot: Option<u8>) -> Thing {
    let device = Thing::new("driver", "virtio-net-pci")
        .with("id", device_id(port))
        .with("netdev", backend_id(port))
        .with("mac", mac);
    let device = match slot {
        Some(slot) => device.with("bus", bus(slot)),
        None => device,
    };
    device.with("romfile", "")
}

#[derive(Default)]
struct Line {
    arguments: Vec<String>,
}

impl Line {
    fn flag(&mut self, name: &str) {
        self.arguments.push(name.to_owned());
    }

    fn memory(&mut self, spec: &VmSpec, platform: Platform) {
        let pages = if platform.hugepages { ",hugetlb=on,hugetlbsize=2M" } else { "" };
        let backend = |line: &mut Self, id: &str, size: u32| {
            line.option(
                "-object",
                format!("memory-backend-memfd,id={id},size={size}M,share=on{pages}"),
            );
        };
        let nodes = u32::from(spec.numa_nodes);
        if nodes == 1 {
            backend(self, "mem", spec.memory_mib);
            return;
        }
        let part = spec.memory_mib / nodes;
        for node in 0..nodes {
            let (rest, cpus) = match node {
                0 => (spec.memory_mib % nodes, format!(",cpus=0-{}", spec.vcpus - 1)),
                _ => (0, String::new()),
            };
            backend(self, &format!("mem{node}"), part + rest);
            self.option("-numa", format!("node,nodeid={node},memdev=mem{node}{cpus}"));
        }
    }

    fn option(&mut self, name: &str, value: impl Into<String>) {
        self.arguments.extend([name.to_owned(), value.into()]);
    }

    fn device(&mut self, value: &str) {
        self.option("-device", value);
    }
}

pub(super) fn server(id: &str, path: &Path) -> String {
    format!("socket,id={id},path={},server=on,wait=off", escape(path))
}

/// Paths were found to be UTF-8 by [`VmSpec::check`].
fn plain(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// In an option a comma ends a value unless it is doubled.
fn escape(path: &Path) -> String {
    plain(path).replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use lanekeeper_model::{MacAddr, Mtu};

    use super::*;
    use crate::seed::Seed;
    use crate::spec::{Hugepages, Management};

    const DEBIAN_12: Platform =
        Platform { version: Version { major: 7, minor: 2 }, hugepages: false };

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    fn vf(name: &str, last: u8) -> VfPort {
        VfPort {
            name: name.to_owned(),
            socket: format!("/run/nic/{name}.sock").into(),
            mac: mac(last),
            slot: None,
            queue_pairs: 1,
            packed: false,
            mtu: Mtu::ETHERNET,
        }
    }

    /// A file that exists, and the text that stands for it in the expected lines.
    fn file() -> std::path::PathBuf {
        std::env::current_exe().expect("this program has a file")
    }

    fn kernel_vm() -> VmSpec {
        let boot = Boot::Kernel {
            kernel: file(),
            initramfs: Some(file()),
            command_line: "console=ttyS0 quiet".to_owned(),
        };
        VmSpec { spare_slots: 0, ..VmSpec::new("a1", 256, boot, Path::new("/run/vm/a1")) }
    }

    fn line(spec: &VmSpec, platform: Platform) -> String {
        let arguments = arguments(spec, platform).expect("sound");
        let text = arguments.join(" ").replace(" -", "\n-");
        text.replace(&*file().to_string_lossy(), "FILE")
    }

    /// The lines that begin with one of these options.
    fn only(spec: &VmSpec, platform: Platform, options: &[&str]) -> Vec<String> {
        let text = line(spec, platform);
        let wanted = |line: &&str| options.iter().any(|option| line.starts_with(option));
        text.lines().filter(wanted).map(str::to_owned).collect()
    }

    #[test]
    fn a_vm_with_a_vf_a_tap_and_a_way_out() {
        let mut spec = kernel_vm();
        spec.vfs = vec![vf("lane", 1)];
        spec.taps = vec![TapPort {
            name: "old".to_owned(),
            tap: Tap::Named("tap0".to_owned()),
            mac: mac(2),
            slot: None,
            mtu: Mtu::new(9000).expect("in range"),
        }];
        spec.management = Some(Management { mac: mac(3), ssh_port: Some(2222) });
        let want = "\
-name guest=a1,debug-threads=on
-no-user-config
-nodefaults
-no-reboot
-display none
-machine q35,memory-backend=mem,smbus=off,sata=off,vmport=off
-accel tcg,tb-size=256
-cpu qemu64
-smp 1
-m 256M
-object memory-backend-memfd,id=mem,size=256M,share=on
-chardev socket,id=monitor,path=/run/vm/a1/monitor.sock,server=on,wait=off
-mon chardev=monitor,mode=control
-chardev socket,id=console,path=/run/vm/a1/console.sock,server=on,wait=off,\
logfile=/run/vm/a1/serial.log,logappend=off
-serial chardev:console
-device virtio-serial-pci,id=serial,bus=pcie.0,addr=0x1
-chardev socket,id=agent,path=/run/vm/a1/agent.sock,server=on,wait=off
-device virtserialport,bus=serial.0,chardev=agent,name=org.qemu.guest_agent.0
-object rng-random,id=random,filename=/dev/urandom
-device virtio-rng-pci,rng=random,bus=pcie.0,addr=0x2
-kernel FILE
-initrd FILE
-append console=ttyS0 quiet
-device pcie-root-port,id=slot1,bus=pcie.0,addr=0x5,chassis=1,slot=1
-device pcie-root-port,id=slot2,bus=pcie.0,addr=0x6,chassis=2,slot=2
-device pcie-root-port,id=slot3,bus=pcie.0,addr=0x7,chassis=3,slot=3
-chardev socket,id=vhost-lane,path=/run/nic/lane.sock,reconnect=1
-netdev vhost-user,id=net-lane,chardev=vhost-lane,queues=1
-device virtio-net-pci,id=port-lane,netdev=net-lane,mac=02:00:00:00:00:01,bus=slot1,romfile=,\
host_mtu=1500,rx_queue_size=1024,tx_queue_size=1024,vectors=0
-netdev tap,id=net-old,ifname=tap0,script=no,downscript=no
-device virtio-net-pci,id=port-old,netdev=net-old,mac=02:00:00:00:00:02,bus=slot2,romfile=,\
host_mtu=9000
-netdev user,id=net-management,hostfwd=tcp:127.0.0.1:2222-:22
-device virtio-net-pci,id=port-management,netdev=net-management,mac=02:00:00:00:00:03,bus=slot3,\
romfile=";
        assert_eq!(line(&spec, DEBIAN_12), want);
    }

    #[test]
    fn vfs_stand_in_the_slots_they_ask_for_and_the_rest_around_them() {
        let mut spec = kernel_vm();
        spec.vfs = vec![VfPort { slot: Some(7), ..vf("x", 1) }, vf("y", 2)];
        spec.spare_slots = 1;
        let want = [
            "-device pcie-root-port,id=slot1,bus=pcie.0,addr=0x5,chassis=1,slot=1",
            "-device pcie-root-port,id=slot2,bus=pcie.0,addr=0x6,chassis=2,slot=2",
            "-device pcie-root-port,id=slot7,bus=pcie.0,addr=0xb,chassis=7,slot=7",
        ];
        assert_eq!(only(&spec, DEBIAN_12, &["-device pcie-root-port"]), want);
        let devices = only(&spec, DEBIAN_12, &["-device virtio-net"]);
        assert!(devices[0].contains("id=port-x") && devices[0].contains("bus=slot7"));
        assert!(devices[1].contains("id=port-y") && devices[1].contains("bus=slot1"));
    }

    #[test]
    fn functions_of_the_host_are_behind_root_ports_of_their_own() {
        let mut spec = kernel_vm();
        let function = |name: &str, address: &str, mac| HostFunction {
            name: name.to_owned(),
            address: address.parse().expect("an address"),
            mac,
            slot: None,
        };
        spec.functions = vec![
            function("vf0", "0000:81:10.1", Some(mac(1))),
            function("gpu0", "0000:84:00.0", None),
        ];
        let want = [
            "-device vfio-pci,id=port-vf0,host=0000:81:10.1,bus=slot1,rombar=0",
            "-device vfio-pci,id=port-gpu0,host=0000:84:00.0,bus=slot2",
        ];
        assert_eq!(only(&spec, DEBIAN_12, &["-device vfio"]), want);
    }

    #[test]
    fn several_queue_pairs_and_packed_rings_are_asked_for_on_both_sides() {
        let mut spec = kernel_vm();
        spec.vfs = vec![VfPort { queue_pairs: 4, packed: true, ..vf("lane", 1) }];
        let want = [
            "-netdev vhost-user,id=net-lane,chardev=vhost-lane,queues=4",
            "-device virtio-net-pci,id=port-lane,netdev=net-lane,mac=02:00:00:00:00:01,bus=slot1,\
             romfile=,host_mtu=1500,rx_queue_size=1024,tx_queue_size=1024,packed=on,mq=on,\
             vectors=10",
        ];
        spec.accel = Accel::Kvm;
        assert_eq!(only(&spec, DEBIAN_12, &["-netdev", "-device virtio-net"]), want);
    }

    #[test]
    fn only_an_old_qemu_without_kvm_goes_without_message_interrupts() {
        let (old, new) = (DEBIAN_12.version, Version { major: 10, minor: 0 });
        assert_eq!(Interrupts::of(Accel::Tcg, old), Interrupts::Pin);
        assert_eq!(Interrupts::of(Accel::Kvm, old), Interrupts::Messages);
        assert_eq!(Interrupts::of(Accel::Tcg, new), Interrupts::Messages);
    }

    #[test]
    fn a_newer_qemu_looks_for_the_software_nic_more_often() {
        let mut spec = kernel_vm();
        spec.vfs = vec![vf("lane", 1)];
        for (major, minor, want) in
            [(9, 1, "reconnect=1"), (9, 2, "reconnect-ms=200"), (10, 0, "reconnect-ms=200")]
        {
            let platform = Platform { version: Version { major, minor }, hugepages: false };
            let chardev = only(&spec, platform, &["-chardev socket,id=vhost"]);
            assert!(chardev[0].ends_with(&format!("lane.sock,{want}")), "{chardev:?}");
        }
    }

    #[test]
    fn kvm_and_hugepages_change_only_cpu_and_memory() {
        let mut spec = kernel_vm();
        spec.accel = Accel::Kvm;
        spec.hugepages = Hugepages::WhenFree;
        let platform = Platform { hugepages: true, ..DEBIAN_12 };
        let want = [
            "-accel kvm",
            "-cpu host",
            "-object memory-backend-memfd,id=mem,size=256M,share=on,hugetlb=on,hugetlbsize=2M",
        ];
        assert_eq!(only(&spec, platform, &["-accel", "-cpu", "-object memory"]), want);
        let without = |spec: &VmSpec, platform| {
            let mut lines: Vec<String> = line(spec, platform).lines().map(str::to_owned).collect();
            lines.retain(|line| !["-acc", "-cpu", "-obj"].contains(&&line[..4]));
            lines
        };
        assert_eq!(without(&spec, platform), without(&kernel_vm(), DEBIAN_12));
    }

    #[test]
    fn several_numa_nodes_share_the_memory_and_the_first_has_the_cpus() {
        let spec = VmSpec { numa_nodes: 3, vcpus: 2, ..kernel_vm() };
        let want = [
            "-machine q35,smbus=off,sata=off,vmport=off",
            "-object memory-backend-memfd,id=mem0,size=86M,share=on",
            "-numa node,nodeid=0,memdev=mem0,cpus=0-1",
            "-object memory-backend-memfd,id=mem1,size=85M,share=on",
            "-numa node,nodeid=1,memdev=mem1",
            "-object memory-backend-memfd,id=mem2,size=85M,share=on",
            "-numa node,nodeid=2,memdev=mem2",
        ];
        let options = ["-machine", "-object memory", "-numa"];
        assert_eq!(only(&spec, DEBIAN_12, &options), want);
    }

    #[test]
    fn a_disk_is_booted_with_its_seed_beside_it() {
        let image = file();
        let disk = Disk { image, format: DiskFormat::Qcow2, throw_away: true };
        let mut spec = VmSpec { boot: Boot::Disk(disk), ..kernel_vm() };
        spec.seed = Some(Seed::default());
        let want = [
            "-drive if=none,id=disk,format=qcow2,file=FILE,snapshot=on",
            "-device virtio-blk-pci,drive=disk,bus=pcie.0,addr=0x3,bootindex=1",
            "-drive if=none,id=seed,format=raw,file=/run/vm/a1/seed.img,read-only=on",
            "-device virtio-blk-pci,drive=seed,bus=pcie.0,addr=0x4",
        ];
        assert_eq!(only(&spec, DEBIAN_12, &["-drive", "-device virtio-blk", "-kernel"]), want);
    }

    #[test]
    fn arguments_of_ones_own_stand_last_where_they_override() {
        let spec = VmSpec {
            arguments: ["-cpu", "qemu64,+svm"].map(str::to_owned).to_vec(),
            ..kernel_vm()
        };
        assert_eq!(only(&spec, DEBIAN_12, &["-cpu"]), ["-cpu qemu64", "-cpu qemu64,+svm"]);
        assert!(line(&spec, DEBIAN_12).ends_with("-cpu qemu64,+svm"));
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option() {
        let mut spec = kernel_vm();
        spec.run_folder = "/run/a,b".into();
        spec.vfs = vec![VfPort { socket: "/run/c,d.sock".into(), ..vf("lane", 1) }];
        let text = line(&spec, DEBIAN_12);
        assert!(text.contains("path=/run/a,,b/monitor.sock,server=on"), "{text}");
        assert!(text.contains("path=/run/c,,d.sock,reconnect=1"), "{text}");
    }

    #[test]
    fn a_port_attached_later_has_the_same_values_as_one_from_the_start() {
        let port = VfPort { packed: true, ..vf("lane", 1) };
        assert_eq!(
            vf_device(&port, Some(2), Interrupts::Messages).monitor(),
            json!({
                "driver": "virtio-net-pci", "id": "port-lane", "netdev": "net-lane",
                "mac": "02:00:00:00:00:01", "bus": "slot2", "romfile": "", "host_mtu": 1500,
                "rx_queue_size": 1024, "tx_queue_size": 1024, "packed": true,
            })
        );
        assert_eq!(
            vf_chardev_monitor("lane", Path::new("/run/x.sock"), DEBIAN_12.version),
            json!({ "id": "vhost-lane", "backend": { "type": "socket", "data": {
                "addr": { "type": "unix", "data": { "path": "/run/x.sock" } },
                "server": false, "reconnect": 1,
            }}})
        );
    }
}
