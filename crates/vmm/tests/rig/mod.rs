//! What VM tests stand on: QEMU, the small guest, and KVM or emulation, made ready once for all
//! tests of a program. Tests of other crates that boot VMs take it from here.

use std::path::Path;
use std::sync::OnceLock;

use lanekeeper_testbed::guest_image::{self, GuestImage};
use lanekeeper_testbed::packages;
use lanekeeper_vmm::{Accel, Boot, Hugepages, Qemu, VmSpec, accel};

pub(crate) struct Rig {
    pub(crate) qemu: Qemu,
    pub(crate) image: GuestImage,
    pub(crate) accel: Accel,
}

/// Packages, guest image and accelerator.
pub(crate) fn rig() -> &'static Rig {
    static RIG: OnceLock<Rig> = OnceLock::new();
    RIG.get_or_init(|| {
        let mut progress = |step: &str| println!("{step}");
        packages::ensure(packages::VM, &mut progress).expect("packages");
        let cache = guest_image::cache_folder();
        let image = guest_image::ensure(&cache, &mut progress).expect("a guest image");
        let qemu = Qemu::find().expect("QEMU");
        let verdict = accel::choose(&qemu, &image.kernel, &cache).expect("a verdict");
        println!("{:?}: {}", verdict.accel, verdict.reason);
        Rig { qemu, image, accel: verdict.accel }
    })
}

/// A VM of that name that boots the small guest, its files in `folder`.
pub(crate) fn spec(name: &str, folder: &Path) -> VmSpec {
    let Rig { image, accel, .. } = rig();
    let boot = Boot::Kernel {
        kernel: image.kernel.clone(),
        initramfs: Some(image.initramfs.clone()),
        command_line: image.command_line(name),
    };
    // The machine's hugepages, if it has any, were set aside for something else.
    let hugepages = Hugepages::Never;
    VmSpec { accel: *accel, hugepages, ..VmSpec::new(name, 192, boot, &folder.join(name)) }
}
