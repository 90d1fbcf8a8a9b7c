//! The demo as a person runs it: every check holds, and nothing stays behind, whether it ends by
//! itself, is interrupted, or is killed.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One demo at a time runs on a machine.
fn alone() -> MutexGuard<'static, ()> {
    static DEMO: Mutex<()> = Mutex::new(());
    DEMO.lock().unwrap_or_else(PoisonError::into_inner)
}

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanekeeper"));
    command.arg("demo").args(arguments);
    command
}

fn namespaces() -> Vec<String> {
    std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("lkdemo-"))
        .collect()
}

/// Command lines of processes that work in the demo's folder.
fn processes() -> Vec<String> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains("/run/lanekeeper/demo/"))
        .collect()
}

fn assert_nothing_is_left() {
    assert_eq!(namespaces(), [""; 0]);
    assert_eq!(processes(), [""; 0]);
    assert!(!Path::new("/run/lanekeeper/demo").exists());
}

/// Start a demo and wait until its VMs boot.
fn start_and_wait_for_vms() -> Child {
    let mut child = demo(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let deadline = Instant::now() + Duration::from_secs(300);
    while !Path::new("/run/lanekeeper/demo/b1/serial.log").exists() {
        let ended = child.try_wait().expect("asked");
        assert_eq!(ended, None, "it ended early; is a demo kept up?");
        assert!(Instant::now() < deadline, "no VM was started");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

#[test]
fn every_check_holds_and_nothing_is_left() {
    let _alone = alone();
    let Output { status, stdout, stderr } =
        demo(&["--json"]).stdin(Stdio::null()).output().expect("runs");
    let said = String::from_utf8_lossy(&stderr);
    let report: serde_json::Value =
        serde_json::from_slice(&stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(status.success(), "{said}\n{report:#}");
    assert_eq!(report["holds"], true);
    let rows = report["rows"].as_array().expect("rows");
    let paths: std::collections::BTreeSet<_> =
        rows.iter().filter_map(|row| row["path"].as_str()).collect();
    let wanted = [
        "VF, across hosts",
        "VF, same host",
        "bridge, across hosts",
        "bridge, same host",
        "isolation",
    ];
    assert_eq!(paths.into_iter().collect::<Vec<_>>(), wanted);
    assert_nothing_is_left();
}

#[test]
fn an_interrupt_ends_it_within_seconds_and_nothing_is_left() {
    let _alone = alone();
    let mut child = start_and_wait_for_vms();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("runs").success());
    let begin = Instant::now();
    // 128 and the number of SIGINT, as shells say it.
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert_nothing_is_left();
}

#[test]
fn what_a_killed_demo_leaves_is_removed_by_down() {
    let _alone = alone();
    let mut child = start_and_wait_for_vms();
    child.kill().expect("killed");
    child.wait().expect("reaped");
    assert_eq!(namespaces().len(), 2);
    assert!(demo(&["--down"]).status().expect("runs").success());
    assert_nothing_is_left();
}

#[test]
#[ignore = "minutes: VMs within an emulated host"]
fn an_emulated_host_that_is_kept_up_takes_commands_until_it_is_taken_down() {
    let _alone = alone();
    let kept = demo(&["--sriov", "--keep"]).stdout(Stdio::null()).output().expect("runs");
    let said = String::from_utf8_lossy(&kept.stderr);
    assert!(kept.status.success(), "{said}");
    assert!(said.contains("demo exec host lanekeeper host show"), "{said}");
    let show = demo(&["exec", "host", "lanekeeper host show --json"]).output().expect("runs");
    let shown: serde_json::Value = serde_json::from_slice(&show.stdout).expect("JSON");
    assert_eq!(shown["pfs"].as_array().map(Vec::len), Some(1), "{shown:#}");
    assert_eq!(processes().len(), 1);
    assert!(demo(&["--down"]).status().expect("runs").success());
    assert_nothing_is_left();
}
