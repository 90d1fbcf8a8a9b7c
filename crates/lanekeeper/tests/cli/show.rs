//! `show`: each NIC for itself, whatever becomes of another.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::nics::{Root, Said, softnic, unread};

#[test]
fn a_nic_that_was_killed_or_hangs_is_told_and_hides_no_other() {
    let root = Root::new();
    let _live = root.start("live");
    let mut dead = root.start("dead");
    let hung = root.start("hung");
    dead.kill();
    hung.signal(Signal::STOP);

    let began = Instant::now();
    let said = softnic(&["show", "live", "--run-root", root.text()]);
    assert!(began.elapsed() < Duration::from_secs(4), "the others were waited for");
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert!(said.out.contains("softnic:live: 2 VFs"), "{}", said.out);

    let said = softnic(&["show", "--run-root", root.text()]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("softnic:live: 2 VFs"), "{}", said.out);
    assert!(
        said.out.contains("softnic:dead: does not answer; its process is gone"),
        "{}",
        said.out
    );
    assert!(said.out.contains("softnic:hung: does not answer in time"), "{}", said.out);

    let said = softnic(&["show", "--json", "--run-root", root.text()]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(json[2]["pf"]["soft"], "live");
    assert_eq!(json[2]["vfs"][0]["settings"]["vlan"]["id"], 100);
    for (at, name) in [(0, "dead"), (1, "hung")] {
        assert_eq!(json[at]["pf"]["soft"], name);
        assert!(json[at]["error"].as_str().expect("a reason").contains("does not answer"));
    }

    for (name, why) in [("dead", "its process is gone"), ("hung", "stopped or hangs")] {
        let said = softnic(&["show", name, "--run-root", root.text()]);
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
        assert!(said.err.contains(why), "{}", said.err);
    }
    hung.signal(Signal::CONT);
}

#[test]
fn a_nic_is_shown_by_its_own_name_whatever_its_folder_is_called() {
    let root = Root::new();
    let _nic = root.start_in("x", "nic8");
    let said: Said = Command::new(env!("CARGO_BIN_EXE_lanekeeper"))
        .args(["softnic", "show", "--run-dir", "x"])
        .current_dir(root.path())
        .output()
        .expect("runs")
        .into();
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert!(said.out.starts_with("softnic:nic8: 2 VFs"), "{}", said.out);
    let said = softnic(&["show", "--run-root", root.text()]);
    assert!(said.out.starts_with("softnic:nic8: 2 VFs"), "{}", said.out);
    let said = softnic(&["show", "x", "--run-root", root.text()]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("is softnic:nic8"), "{}", said.err);
}

#[test]
fn who_may_not_ask_is_told_so_and_not_that_nothing_runs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become somebody else");
        return;
    }
    let root = Root::new();
    let _nic = root.start("nic0");
    let program = root.path().join("lanekeeper");
    std::fs::copy(env!("CARGO_BIN_EXE_lanekeeper"), &program).expect("copied");
    let as_nobody = |arguments: &[&str]| -> Said {
        let mut command = Command::new(&program);
        command.arg("softnic").args(arguments).args(["--run-root", root.text()]);
        command.uid(65_534).gid(65_534).output().expect("runs").into()
    };
    for arguments in [
        &["show"][..],
        &["show", "--json"],
        &["show", "nic0"],
        &["set", "nic0", "0", "--mtu", "9000"],
        &["scrub", "nic0", "0"],
    ] {
        let said = as_nobody(arguments);
        assert_eq!(said.code, Some(1), "{arguments:?}: {}", said.out);
        assert!(said.err.contains("as root"), "{arguments:?}: {}", said.err);
        let all = said.out + &said.err;
        assert!(!all.contains("no software NIC"), "{arguments:?}: {all}");
    }
    let closed = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(root.path(), closed).expect("changed");
    let said = as_nobody(&["show"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("cannot look into") && said.err.contains("as root"), "{}", said.err);
}

#[test]
fn one_vf_can_be_shown_alone() {
    let root = Root::new();
    let _nic = root.start("nic0");
    let said = softnic(&["show", "nic0", "0", "--run-root", root.text()]);
    assert!(said.out.contains("02:00:00:00:00:01"), "{}", said.out);
    let said = softnic(&["show", "nic0", "1", "--json", "--run-root", root.text()]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(json[0]["vfs"].as_array().expect("a list").len(), 1);
    assert_eq!(json[0]["vfs"][0]["vf"], 1);
}

#[test]
fn a_folder_that_is_not_there_is_an_error_and_one_without_nics_is_not() {
    let root = Root::new();
    let nowhere = root.join("nowhere");
    for arguments in [&["show"][..], &["show", "nic0"], &["scrub", "nic0", "0"]] {
        let said = softnic(&[arguments, &["--run-root", &nowhere]].concat());
        assert_eq!(said.code, Some(2), "{arguments:?}");
        assert!(said.err.contains(&format!("there is no folder {nowhere}")), "{}", said.err);
        let said = softnic(&[arguments, &["--run-dir", &nowhere]].concat());
        assert_eq!(said.code, Some(1), "{arguments:?}");
        assert!(said.err.contains(&format!("no software NIC runs in {nowhere}")), "{}", said.err);
    }
    let said = softnic(&["show", "--run-root", root.text()]);
    assert_eq!(said.code, Some(0));
    assert!(said.out.contains("no software NIC runs under"), "{}", said.out);
    let said = softnic(&["show", "nic0", "--run-root", root.text()]);
    assert_eq!(said.code, Some(1));
    let hint = format!("softnic show --run-root {}`", root.text());
    assert!(said.err.contains(&hint), "{}", said.err);
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_command_quietly() {
    let root = Root::new();
    let nic = root.start("nic0");
    let (place, file) = (["--run-root", root.text()], nic.file.to_str().expect("text"));
    for arguments in [
        &[&["softnic", "show"][..], &place].concat()[..],
        &[&["softnic", "show", "--json"][..], &place].concat(),
        &[&["softnic", "set", "nic0", "0", "--mtu", "9000"][..], &place].concat(),
        &[&["softnic", "scrub", "nic0", "1"][..], &place].concat(),
        &["softnic", "--check", file],
        &["softnic", "--help"],
        &["completion", "bash"],
    ] {
        assert_eq!(unread(arguments), (Some(0), String::new()), "{arguments:?}");
    }
}
