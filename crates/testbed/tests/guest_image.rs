//! The guest image, really built from the machine's packages (and taken from the cache when it is
//! there).

use std::collections::BTreeMap;
use std::fs;

use lanekeeper_testbed::guest_image::{self, GuestImage};

fn image() -> GuestImage {
    guest_image::ensure(&guest_image::cache_folder(), &mut |step| println!("{step}"))
        .expect("the guest can be built")
}

/// Contents by path.
fn files(image: &GuestImage) -> BTreeMap<String, Vec<u8>> {
    let archive = fs::read(&image.initramfs).expect("readable");
    let mut rest = archive.as_slice();
    let mut files = BTreeMap::new();
    loop {
        let reader = cpio::newc::Reader::new(rest).expect("well formed");
        if reader.entry().is_trailer() {
            return files;
        }
        let name = reader.entry().name().to_owned();
        let mut content = Vec::new();
        rest = reader.to_writer(&mut content).expect("well formed");
        files.insert(name, content);
    }
}

#[test]
fn the_guest_is_small_and_every_library_a_program_needs_is_in_it() {
    let image = image();
    let size = fs::metadata(&image.initramfs).expect("is there").len();
    assert!(size < 60 << 20, "the initramfs takes {size} bytes");
    let files = files(&image);
    for (path, content) in &files {
        let Ok(elf) = goblin::elf::Elf::parse(content) else { continue };
        for library in elf.libraries {
            let wanted = format!("usr/lib/x86_64-linux-gnu/{library}");
            assert!(files.contains_key(&wanted), "{path} needs {library}");
        }
    }
}

#[test]
fn every_module_and_all_it_needs_is_in_the_guest() {
    let files = files(&image());
    let (path, text) =
        files.iter().find(|(path, _)| path.ends_with("/modules.dep")).expect("is there");
    let folder = path.strip_suffix("modules.dep").expect("just found by it");
    let text = String::from_utf8(text.clone()).expect("text");
    let line = |name: &str| {
        let found = text.lines().find(|line| line.starts_with(&format!("{name}.ko:")));
        found.unwrap_or_else(|| panic!("{name} is not in {text}"))
    };
    assert!(line("rdma_rxe").contains("ib_uverbs.ko ib_core.ko"), "{}", line("rdma_rxe"));
    assert!(line("virtio_net").contains("virtio.ko"), "{}", line("virtio_net"));
    for name in text.split([':', ' ', '\n']).filter(|name| !name.is_empty()) {
        assert!(files.contains_key(&format!("{folder}{name}")), "{name}");
    }
}

#[test]
fn the_kernel_can_be_entered_as_pvh() {
    let kernel = fs::read(image().kernel).expect("readable");
    let elf = goblin::elf::Elf::parse(&kernel).expect("an ELF image");
    // XEN_ELFNOTE_PHYS32_ENTRY (xen/include/public/elfnote.h): what QEMU looks for.
    let entry = elf
        .iter_note_headers(&kernel)
        .expect("it has notes")
        .flatten()
        .any(|note| note.name.starts_with("Xen") && note.n_type == 18);
    assert!(entry, "no PVH entry note");
}

#[test]
fn the_second_time_nothing_is_built() {
    let cache = guest_image::cache_folder();
    let first = image();
    let made = fs::metadata(&first.kernel).and_then(|status| status.modified()).expect("is there");
    let mut steps = Vec::new();
    let second =
        guest_image::ensure(&cache, &mut |step| steps.push(step.to_owned())).expect("cached");
    assert_eq!(steps, Vec::<String>::new());
    assert_eq!(second, first);
    let still =
        fs::metadata(&second.kernel).and_then(|status| status.modified()).expect("is there");
    assert_eq!(still, made);
}
