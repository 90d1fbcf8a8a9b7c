//! The demo as a person runs it: every check holds, and nothing stays behind, whether it ends by
//! itself, is interrupted, or is killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lanekeeper_testbed::guest_image;
use lanekeeper_testbed::sdk::{Sdk, Target};

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

/// Whether an agent has started a VM.
fn a_vm_boots() -> bool {
    let run = std::fs::read_dir("/run/lanekeeper/demo/host1/run").into_iter().flatten();
    run.flatten().any(|vm| vm.path().join("serial.log").exists())
}

/// Start a demo and wait until its VMs boot.
fn start_and_wait_for_vms() -> Child {
    let mut child = demo(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let deadline = Instant::now() + Duration::from_secs(300);
    while !a_vm_boots() {
        let ended = child.try_wait().expect("asked");
        assert_eq!(ended, None, "it ended early; is a demo kept up?");
        assert!(Instant::now() < deadline, "no VM was started");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

/// What a run has found: its rows, by their paths.
fn report(arguments: &[&str]) -> BTreeMap<String, Vec<serde_json::Value>> {
    let Output { status, stdout, stderr } =
        demo(arguments).arg("--json").stdin(Stdio::null()).output().expect("runs");
    let said = String::from_utf8_lossy(&stderr);
    let report: serde_json::Value =
        serde_json::from_slice(&stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(status.success(), "{said}\n{report:#}");
    assert_eq!(report["holds"], true);
    let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for row in report["rows"].as_array().expect("rows") {
        let path = row["path"].as_str().expect("text").to_owned();
        rows.entry(path).or_default().push(row.clone());
    }
    rows
}

#[test]
fn vms_made_by_the_api_are_proven_and_deleted_and_nothing_is_left() {
    let _alone = alone();
    let rows = report(&[]);
    let paths: Vec<_> = rows.keys().map(String::as_str).collect();
    let wanted = ["API", "VF, across hosts", "VF, same host", "console", "isolation", "proof"];
    assert_eq!(paths, wanted);
    assert_eq!(rows["proof"].len(), 5, "one for each VM");
    let deleted = rows["API"].last().expect("the last one");
    assert!(deleted["seen"].as_str().is_some_and(|it| it.ends_with("free and scrubbed")));
    assert_nothing_is_left();
}

/// The server's data directory of a demo that is kept up.
const DATA: &str = "/run/lanekeeper/demo/server";

/// The server's address.
fn server() -> String {
    let log = std::fs::read_to_string("/run/lanekeeper/demo/server.log").expect("a log");
    let server = log.lines().find_map(|line| line.strip_prefix("serving ")).expect("an address");
    server.to_owned()
}

/// What the program says, as an operator.
fn lanekeeper(arguments: &[&str]) -> String {
    let key = std::fs::read_to_string(Path::new(DATA).join("operator.key")).expect("a key");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanekeeper"));
    command.args(arguments).env("LANEKEEPER_SERVER", server());
    command.env("LANEKEEPER_AUTHORITY", Path::new(DATA).join("authority.crt"));
    command.env("LANEKEEPER_API_KEY", key.trim());
    let output = command.output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The public SDK of this language takes two VMs that really boot through their life.
fn lives(sdk: Sdk, key: &str) {
    let cache = guest_image::cache_folder();
    let installed = sdk.install(&cache, &mut |what| println!("{what}")).expect("installed");
    let target = Target {
        url: &format!("{}/v1", server()),
        key,
        authority: &Path::new(DATA).join("authority.crt"),
        region: "demo",
        flavor: "small",
        image: "guest",
        seconds: 180,
    };
    let mut script = sdk.script(&installed, &target).expect("written");
    let ended = script.stdin(Stdio::null()).output().expect("runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
    assert!(said.contains("ok: the environment is gone"), "{said}");
}

#[test]
fn what_is_kept_up_has_a_server_for_the_command_line_and_the_public_sdks() {
    let _alone = alone();
    let rows = report(&["--keep"]);
    assert_eq!(rows["API"].len(), 2);
    let vms = lanekeeper(&["vm", "list", "--organization", "tenant-a"]);
    assert_eq!(vms.matches("ACTIVE").count(), 3, "{vms}");
    let names = lanekeeper(&["demo", "exec", "train-2", "hostname"]);
    assert_eq!(names, "train-2\n");
    // A VM that is stopped and started again comes up as it was.
    lanekeeper(&["vm", "stop", "rival-0", "--wait", "--organization", "tenant-b"]);
    lanekeeper(&["vm", "start", "rival-0", "--wait", "--organization", "tenant-b"]);
    let address = lanekeeper(&["demo", "exec", "rival-0", "ip -br -4 address show dev rail0"]);
    assert!(address.contains("10.10.0."), "{address}");
    let made = lanekeeper(&[
        "key",
        "create",
        "sdk",
        "--role",
        "member",
        "--organization",
        "tenant-a",
        "--json",
    ]);
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    let key = made["secret"].as_str().expect("a secret");
    lives(Sdk::Python, key);
    lives(Sdk::JavaScript, key);
    assert!(demo(&["--down"]).status().expect("runs").success());
    assert_nothing_is_left();
}

#[test]
#[ignore = "minutes: the same lanes as with a server, beside traditional NICs"]
fn lanes_hold_beside_traditional_nics_and_nothing_is_left() {
    let _alone = alone();
    let rows = report(&["--lanes"]);
    let wanted = [
        "VF, across hosts",
        "VF, same host",
        "bridge, across hosts",
        "bridge, same host",
        "isolation",
    ];
    assert_eq!(rows.keys().map(String::as_str).collect::<Vec<_>>(), wanted);
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
