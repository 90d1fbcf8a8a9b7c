//! What one front-end may take of what the process has: address space and file descriptors. The
//! rest stays with the other VFs.

mod rig;

use std::fs::File;
use std::os::fd::AsRawFd;

use lanekeeper_softnic::driver::VfOptions;
use rig::*;
use rustix::fs::MemfdFlags;
use vhost::VhostBackend;
use vhost::VhostUserMemoryRegionInfo;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vmm_sys_util::eventfd::EventFd;

const GIB: u64 = 1 << 30;
const GUEST: u64 = 1 << 32;
const USER: u64 = 1 << 46;

/// A front-end that has agreed on features and waits for the answer to each message.
fn front_end(rig: &Rig, vf: u32) -> Frontend {
    let mut front_end = Frontend::connect(rig.config.vf_socket(index(vf)), 16).expect("connects");
    front_end.set_owner().expect("taken");
    let features = front_end.get_features().expect("answered");
    front_end.set_features(features & (1 << 30 | 1 << 32)).expect("taken");
    let protocol = front_end.get_protocol_features().expect("answered");
    front_end.set_protocol_features(protocol).expect("taken");
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front_end
}

/// Memory that takes room in nobody's RAM.
fn sparse(name: &str, size: u64) -> File {
    let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(size).expect("sparse");
    file
}

fn region(file: &File, at: u64, size: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST + at,
        memory_size: size,
        userspace_addr: USER + at,
        mmap_offset: at,
        mmap_handle: file.as_raw_fd(),
    }
}

#[test]
fn a_vf_maps_its_share_of_the_address_space_and_no_more() {
    let rig = Rig::with(64, |_| {});
    let file = sparse("share", 1025 * GIB);
    // 64 TiB over 64 VFs.
    let mut modest = front_end(&rig, 0);
    modest.add_mem_region(&region(&file, 0, 1024 * GIB)).expect("its share");
    assert!(modest.add_mem_region(&region(&file, 1024 * GIB, GIB)).is_err(), "a region more");
    let mut greedy = front_end(&rig, 1);
    assert!(greedy.add_mem_region(&region(&file, 0, 1025 * GIB)).is_err(), "in one piece");
    let sly = front_end(&rig, 2);
    let twice = [
        region(&file, 0, 600 * GIB),
        VhostUserMemoryRegionInfo { mmap_offset: 0, ..region(&file, 600 * GIB, 600 * GIB) },
    ];
    // SET_MEM_TABLE is answered only when the next message is.
    let refused = sly.set_mem_table(&twice).is_err() || sly.get_features().is_err();
    assert!(refused, "the same bytes twice");
    let (mut a, mut b) = (rig.plain(3), rig.plain(4));
    send(&mut a, &[frame(mac(4), mac(3), 1, 64)]);
    assert_eq!(receive(&mut b, 1), [frame(mac(4), mac(3), 1, 64)]);
}

/// Descriptors of this process, and so of the NIC in it, for a memfd of this name.
fn descriptors_of(name: &str) -> usize {
    let wanted = format!("/memfd:{name} (deleted)");
    std::fs::read_dir("/proc/self/fd")
        .expect("procfs")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy() == wanted)
        .count()
}

#[test]
fn a_file_of_many_regions_costs_one_descriptor() {
    let rig = Rig::new(1);
    let file = sparse("many-regions", 64 * 4096);
    let mut front_end = front_end(&rig, 0);
    for page in 0..64 {
        front_end.add_mem_region(&region(&file, page * 4096, 4096)).expect("taken");
    }
    assert_eq!(descriptors_of("many-regions"), 2, "this test's and the NIC's");
    front_end.remove_mem_region(&region(&file, 0, 4096)).expect("removed");
    assert_eq!(descriptors_of("many-regions"), 2, "the others still need it");
    drop(front_end);
    rig.eventually("the NIC gives it up", || descriptors_of("many-regions") == 1);
}

#[test]
fn a_ring_that_the_vf_does_not_have_takes_no_descriptor() {
    let rig = Rig::new(1);
    let bell = EventFd::new(0).expect("made");
    let honest = front_end(&rig, 0);
    for ring in 0..=2 {
        honest.set_vring_call(ring, &bell).expect("receive, transmit, control");
    }
    assert!(honest.set_vring_call(3, &bell).is_err());
    drop(honest);
    let mut honest = rig.driver(0, VfOptions { control: true, ..VfOptions::default() });
    assert_eq!(honest.control(9, 9, &[1], SOON).expect("answered"), 1);
}
