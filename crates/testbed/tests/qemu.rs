//! The QEMU that emulates SR-IOV, really unpacked (and taken from the cache when it is there).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use lanekeeper_testbed::{guest_image, qemu};

fn says(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_qemu_of_ones_own_emulates_the_nic_and_runs_from_wherever_it_is_seen() {
    let tree = qemu::tree(&guest_image::cache_folder(), &mut |step| println!("{step}"));
    let tree = tree.expect("it can be unpacked");
    let folder = tempfile::tempdir().expect("a folder");
    let elsewhere = folder.path().join("seen here");
    symlink(&tree, &elsewhere).expect("links");
    let program = elsewhere.join(qemu::PROGRAM);
    assert!(says(&program, &["-device", "igb,help"]).starts_with("igb options"));
    // Its firmware is its own, and not that of a QEMU which the machine may have.
    let firmware = says(&program, &["-L", "help"]);
    assert!(firmware.lines().next().is_some_and(|first| first.contains("qemu-1")), "{firmware}");
}

#[test]
fn the_qemu_to_use_has_the_nic_and_is_found_at_once_the_second_time() {
    let cache = guest_image::cache_folder();
    let first = qemu::with_sriov(&cache, &mut |step| println!("{step}")).expect("there is one");
    assert!(says(&first, &["-device", "igb,help"]).starts_with("igb options"));
    let mut steps = Vec::new();
    let second = qemu::with_sriov(&cache, &mut |step| steps.push(step.to_owned()));
    assert_eq!((second.expect("cached"), steps), (first, Vec::new()));
    assert!(!fs::exists(cache.join("qemu-in-work")).expect("can be looked at"));
}
