//! What is in the initramfs of a guest, and in that of an emulated host, which is a guest with more
//! in it: drivers of a NIC with SR-IOV, of VFIO and of KVM, and a way to a folder of this machine.

/// Which machine an initramfs is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A VM of a tenant.
    Guest,
    /// An emulated host with SR-IOV NICs, in which VMs run.
    Host,
}

impl Role {
    /// Programs in `/usr/bin`.
    pub(super) fn programs(self) -> Vec<&'static str> {
        self.of(PROGRAMS, HOST_PROGRAMS)
    }

    /// Modules loaded at boot.
    pub(super) fn modules(self) -> Vec<&'static str> {
        self.of(MODULES, HOST_MODULES)
    }

    /// Own files: path, may be executed, contents.
    pub(super) fn scripts(self) -> Vec<Script> {
        self.of(SCRIPTS, HOST_SCRIPTS)
    }

    /// Libraries that no program in the image asks for.
    pub(super) fn libraries(self) -> Vec<&'static str> {
        self.of(&[], HOST_LIBRARIES)
    }

    fn of<T: Copy>(self, everywhere: &[T], host: &[T]) -> Vec<T> {
        match self {
            Self::Guest => everywhere.to_vec(),
            Self::Host => [everywhere, host].concat(),
        }
    }
}

/// Path in the image, whether it may be executed, contents.
type Script = (&'static str, bool, &'static str);

/// Packages whose programs are in the images.
pub(super) const PACKAGES: &[&str] = &[
    "busybox-static",
    "coreutils",
    "dash",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "iputils-arping",
    "iputils-ping",
    "pciutils",
    "perftest",
    "qemu-guest-agent",
    "util-linux",
];

/// Programs taken out of the packages. They stand before busybox's of the same name. Among them are
/// those that start other programs (env, nice, nohup, setsid, timeout): busybox's would start its
/// own `ping` for a `ping` that is not given by its path.
const PROGRAMS: &[&str] = &[
    "arping",
    "bridge",
    "dash",
    "env",
    "ethtool",
    "ib_atomic_bw",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_ud_pingpong",
    "ip",
    "iperf3",
    "nice",
    "nohup",
    "ping",
    "qemu-ga",
    "rdma",
    "setsid",
    "ss",
    "tc",
    "timeout",
];

/// What a host has beside them.
const HOST_PROGRAMS: &[&str] = &["dcb", "devlink", "lspci", "setpci"];

/// What programs need that are built on this machine and run there from a shared folder.
const HOST_LIBRARIES: &[&str] = &["libc.so.6", "libgcc_s.so.1", "libm.so.6"];

/// Modules loaded at boot, with all they need. crc32_generic: rdma_rxe asks for the algorithm by
/// name at `rdma link add`, and answers ENOENT without it.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "virtio_rng",
    "virtio_blk",
    "button",
    "evdev",
    "crc32_generic",
    "igbvf",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
    "8021q",
    "macvlan",
    "vfat",
    "nls_ascii",
    "nls_cp437",
];

/// What a host loads beside them: shared folders, the NICs, KVM and VFIO.
const HOST_MODULES: &[&str] =
    &["9p", "9pnet_virtio", "igb", "kvm_amd", "vfio_iommu_type1", "vfio_pci"];

/// The guest's own files: path in the guest, may be executed, contents.
const SCRIPTS: &[Script] = &[
    ("init", true, include_str!("../../guest/init")),
    ("etc/inittab", false, include_str!("../../guest/inittab")),
    ("etc/rc", true, include_str!("../../guest/rc")),
    ("etc/seed", true, include_str!("../../guest/seed")),
    ("etc/agent", true, include_str!("../../guest/agent")),
    ("etc/acpi/PWRF/00000080", true, include_str!("../../guest/power")),
    ("usr/sbin/shutdown", true, include_str!("../../guest/shutdown")),
    ("etc/passwd", false, "root::0:0:root:/root:/bin/sh\n"),
    ("etc/group", false, "root:x:0:\n"),
    ("etc/hosts", false, "127.0.0.1 localhost\n"),
];

/// What a host has beside them.
const HOST_SCRIPTS: &[Script] = &[("etc/rc.host", true, include_str!("../../guest/rc.host"))];

/// What makes the kernel boot quickly on an emulated CPU, beside the console: no mitigations, no
/// self-tests of ciphers, no calibration of clocks against each other, and none of three
/// initialisations that take 0.1 to 0.4 s each there and serve nothing here. Nor does it rewrite its
/// code for a single CPU, or protect and check its own pages: each makes QEMU translate anew what it
/// had translated.
pub(super) const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check \
     mitigations=off nokaslr cryptomgr.notests audit=0 nowatchdog noreplace-smp rodata=off \
     initcall_blacklist=crypto_kdf108_init,jent_mod_init,init_blk_tracer";
