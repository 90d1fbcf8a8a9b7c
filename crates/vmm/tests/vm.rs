//! VMs that really boot, under whatever this machine has: KVM or emulation.

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lanekeeper_model::{MacAddr, Mtu};
use lanekeeper_testbed::guest_image::boot_sector;
use lanekeeper_testbed::netns::Lab;
use lanekeeper_vmm::{
    AgentHost, Boot, Disk, DiskFormat, Driver, Ending, Host, HostError, Machine, Seed, Tap,
    TapPort, Vm, VmError, VmSpec, accel,
};
use rig::rig;
use serde_json::json;
use tempfile::TempDir;

/// Far more than a boot takes on an idle machine, since tests share theirs.
const READY: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(30);

fn spec(name: &str, folder: &TempDir) -> VmSpec {
    rig::spec(name, folder.path())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn start(spec: VmSpec) -> Vm {
    let vm = Driver::start(&rig().qemu, spec).expect("starts");
    let after = vm.wait_ready(READY).expect("gets ready");
    println!("{} was ready after {after:?}", vm.name());
    vm
}

fn tap(name: &str, last: u8) -> TapPort {
    TapPort {
        name: name.to_owned(),
        tap: Tap::Named(name.to_owned()),
        mac: MacAddr([2, 0, 0, 0, 0, last]),
        slot: None,
        mtu: Mtu::new(4500).expect("in range"),
    }
}

#[test]
fn a_guest_boots_runs_commands_and_powers_off_when_asked() {
    let folder = folder();
    let vm = start(spec("a1", &folder));
    assert_eq!(vm.check("hostname", SHORT).expect("runs").trim(), "a1");

    let output = vm.run("echo out; echo err >&2; exit 3", SHORT).expect("runs");
    assert_eq!((output.status, &*output.stdout, &*output.stderr), (3, "out\n", "err\n"));
    // busybox's commands must not stand in for the real ones, whoever starts them.
    for command in ["ping -V", "timeout 9 ping -V", "env ping -V"] {
        let version = vm.check(command, SHORT).expect("runs");
        assert!(version.contains("iputils"), "{command}: {version}");
    }
    assert_eq!(vm.run("kill -9 $$", SHORT).expect("runs").status, 137);
    assert_eq!(vm.run("no-such-command", SHORT).expect("runs").status, 127);

    let begin = Instant::now();
    let bytes = 2_000_000;
    let large = vm.check(&format!("yes lane | head -c {bytes}"), SHORT).expect("runs");
    println!("{bytes} bytes of output took {:?}", begin.elapsed());
    assert_eq!(large.len(), bytes);
    assert!(large.starts_with("lane\nlane\n"));

    assert_eq!(vm.shutdown(SHORT).expect("ends"), Ending::ByGuest);
    assert!(vm.exit().expect("has ended").status.success());
    let log = fs::read_to_string(vm.serial_log()).expect("the log is kept");
    assert!(log.contains("guest: ready"), "{log}");
    let gone = vm.run("true", SHORT).expect_err("the VM has ended");
    assert!(
        matches!(&gone, HostError::Unreachable { why, .. } if why.contains("has ended")),
        "{gone}"
    );
}

#[test]
fn commands_in_the_guest_end_with_their_children_and_files_go_both_ways() {
    let folder = folder();
    let vm = start(spec("a2", &folder));
    let long = "sleep 1000 & echo $! >/tmp/child; wait";
    let late = vm.run(long, Duration::from_secs(2)).expect_err("does not end");
    assert!(matches!(late, HostError::Deadline { .. }), "{late}");
    vm.check("! kill -0 $(cat /tmp/child)", SHORT).expect("the child was ended too");

    let begin = Instant::now();
    let output = vm.check("sleep 1000 & echo done", SHORT).expect("a child left behind");
    assert_eq!(output, "done\n");
    assert!(begin.elapsed() < Duration::from_secs(20), "the child held the answer back");

    let mut job = Host::start(&vm, "echo begun; sleep 1000").expect("starts");
    assert_eq!(job.wait(Duration::from_secs(1)).expect("answers"), None);
    assert_eq!(vm.check("echo meanwhile", SHORT).expect("runs beside it"), "meanwhile\n");
    let stopped = job.stop().expect("stops");
    assert_eq!((stopped.status, stopped.stdout.as_str()), (137, "begun\n"));
    assert_eq!(job.stop().expect("again"), stopped);

    let bytes: Vec<u8> = (0..700_000_u32).map(|it| (it % 251) as u8).collect();
    vm.agent().write_file("/tmp/file", &bytes, SHORT).expect("writes");
    assert_eq!(vm.agent().read_file("/tmp/file", SHORT).expect("reads"), bytes);
    let absent = vm.agent().read_file("/tmp/none", SHORT).expect_err("is not there").to_string();
    assert!(absent.contains("No such file"), "{absent}");
}

#[test]
fn two_guests_on_a_bridge_have_rdma_between_them_and_ports_come_and_go() {
    let folder = folder();
    let mut lab = Lab::new("vm");
    let host = lab.namespace("host").expect("made");
    host.add_bridge("br0", 4500).expect("made");
    for name in ["tap1", "tap2", "tap3"] {
        host.add_tap(name, "br0", 4500).expect("made");
    }
    let namespace = Some(host.path());
    let with = |name: &str, port| VmSpec {
        taps: vec![port],
        namespace: namespace.clone(),
        ..spec(name, &folder)
    };
    let starting = [with("b1", tap("tap1", 1)), with("b2", tap("tap2", 2))]
        .map(|spec| Driver::start(&rig().qemu, spec).expect("starts"));
    let [one, two] = &starting;
    for (vm, address) in [(one, "10.0.0.1"), (two, "10.0.0.2")] {
        vm.wait_ready(READY).expect("gets ready");
        let command = format!(
            "ip link set eth0 up && ip address add {address}/24 dev eth0 && \
             rdma link add rxe0 type rxe netdev eth0"
        );
        vm.check(&command, SHORT).expect("RDMA over the NIC");
    }
    assert_eq!(one.check("cat /sys/class/net/eth0/mtu", SHORT).expect("runs"), "4500\n");
    // The root port of slot 1 is the first on the root bus, so the first bus is behind it.
    let place = one.check("readlink -f /sys/class/net/eth0/device", SHORT).expect("runs");
    assert!(place.contains("/0000:00:05.0/0000:01:00.0/"), "{place}");
    two.check("ping -c 2 -W 5 -M do -s 4400 10.0.0.1", SHORT).expect("jumbo frames pass");

    let write = "ib_write_bw -d rxe0 -x 1 -F -n 20 -s 65536";
    let server = Host::start(two, write).expect("starts");
    two.check("until ss -tln | grep -q :18515; do sleep 0.1; done", SHORT).expect("listens");
    let report = one.check(&format!("{write} 10.0.0.2"), READY).expect("writes");
    assert!(report.contains("65536      20"), "{report}");
    drop(server);

    let third = tap("tap3", 3);
    let slot = one.attach_tap(&third).expect("attaches");
    assert_eq!(slot, 2);
    let again = one.attach_tap(&third).expect_err("is there already").to_string();
    assert!(again.contains("tap3") && again.contains("taken"), "{again}");
    let found = "grep -l 02:00:00:00:00:03 /sys/class/net/*/address";
    let wait =
        |until: &str| format!("n=0; until {until}; do sleep 0.1; n=$((n+1)); [ $n -lt 300 ]; done");
    one.check(&wait(found), READY).expect("the guest sees it");

    one.set_link("tap1", false).expect("carrier off");
    one.check(&wait("[ $(cat /sys/class/net/eth0/carrier) = 0 ]"), SHORT).expect("is seen");
    one.set_link("tap1", true).expect("carrier on");
    one.check(&wait("[ $(cat /sys/class/net/eth0/carrier) = 1 ]"), SHORT).expect("is seen");

    one.detach("tap3", SHORT).expect("the guest lets go");
    one.check(&format!("! {found}"), SHORT).expect("is gone");
    assert!(matches!(one.detach("tap3", SHORT), Err(VmError::NoSuchPort { .. })));
    one.attach_tap(&third).expect("the slot and the tap are free again");

    drop(starting);
    lab.tear_down().expect("nothing holds the namespace");
}

#[test]
fn a_failed_attach_leaves_the_vm_as_it_was() {
    let folder = folder();
    let mut lab = Lab::new("no");
    let host = lab.namespace("host").expect("made");
    host.add_bridge("br0", 4500).expect("made");
    host.add_tap("tap1", "br0", 4500).expect("made");
    let vm = start(VmSpec { namespace: Some(host.path()), ..spec("c1", &folder) });
    // Something that is in the way of the last step only.
    let monitor = |command, arguments| {
        vm.monitor().execute(command, &arguments, SHORT).expect("QEMU does it");
    };
    monitor("netdev_add", json!({ "type": "user", "id": "other" }));
    let driver = "virtio-net-pci";
    let taken = json!({ "driver": driver, "id": "port-tap1", "netdev": "other", "bus": "slot2" });
    monitor("device_add", taken);
    for _ in 0..3 {
        let error = vm.attach_tap(&tap("tap1", 9)).expect_err("the name is taken").to_string();
        // Were the first step not undone, the second time would fail there.
        assert!(error.contains("device_add") && error.contains("Duplicate device"), "{error}");
    }
    vm.check("true", SHORT).expect("it goes on");
}

#[test]
fn a_vm_killed_from_outside_is_noticed_at_once_with_its_last_words() {
    let folder = folder();
    let vm = start(spec("d1", &folder));
    let killed = rustix::process::Pid::from_raw(i32::try_from(vm.pid()).expect("fits"));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| vm.run("sleep 1000", READY));
        std::thread::sleep(Duration::from_secs(1));
        let begin = Instant::now();
        rustix::process::kill_process(killed.expect("a pid"), rustix::process::Signal::KILL)
            .expect("killed");
        let exit = vm.wait_for_exit(SHORT).expect("noticed");
        assert!(begin.elapsed() < Duration::from_secs(2), "noticed after {:?}", begin.elapsed());
        assert!(exit.status.to_string().contains("signal: 9"), "{}", exit.status);
        assert!(exit.last_words.contains("guest: ready"), "{}", exit.last_words);
        let error = running.join().expect("no panic").expect_err("the guest is gone").to_string();
        assert!(error.contains("signal: 9"), "{error}");
    });
    assert!(matches!(vm.shutdown(SHORT), Ok(Ending::ByGuest | Ending::ByMonitor | Ending::ByKill)));
    let sockets = || {
        let entries = fs::read_dir(folder.path().join("d1")).expect("the folder stays");
        entries
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|it| it == "sock"))
            .count()
    };
    assert_eq!(sockets(), 3);
    drop(vm);
    assert_eq!(sockets(), 0);
}

#[test]
fn a_guest_that_hangs_is_ended_all_the_same() {
    let folder = folder();
    let vm = start(spec("e1", &folder));
    // Neither the agent nor the power button's daemon can answer any more.
    vm.monitor().execute("stop", &json!({}), SHORT).expect("its CPU is stopped");
    assert_eq!(vm.shutdown(Duration::from_secs(2)).expect("ends"), Ending::ByMonitor);
}

#[test]
fn a_kernel_that_panics_ends_the_vm_with_the_console_in_the_error() {
    let folder = folder();
    let mut spec = spec("f1", &folder);
    if let Boot::Kernel { initramfs, .. } = &mut spec.boot {
        *initramfs = None;
    }
    let vm = Driver::start(&rig().qemu, spec).expect("starts");
    let error = vm.wait_ready(READY).expect_err("no root file system");
    assert!(matches!(error, VmError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("Kernel panic"), "{error}");
}

#[test]
fn a_file_that_is_no_kernel_is_refused_with_qemus_reason() {
    let folder = folder();
    let kernel = folder.path().join("text");
    fs::write(&kernel, "this is no kernel\n".repeat(100)).expect("writes");
    let boot = Boot::Kernel { kernel, initramfs: None, command_line: String::new() };
    let spec = VmSpec { boot, ..spec("g1", &folder) };
    let error = Driver::start(&rig().qemu, spec).expect_err("no kernel");
    assert!(matches!(error, VmError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("invalid kernel header"), "{error}");
}

#[test]
fn a_seed_reaches_the_guest_as_a_disk_with_the_label() {
    let folder = folder();
    let mut spec = spec("h1", &folder);
    spec.seed = Some(Seed {
        user_data: "#cloud-config\n".to_owned(),
        meta_data: "instance-id: h1\n".to_owned(),
        network_config: None,
    });
    let vm = start(spec);
    let text = vm
        .check("mkdir /tmp/m && mount -t vfat -o ro $(findfs LABEL=CIDATA) /tmp/m && cat /tmp/m/user-data /tmp/m/meta-data", SHORT)
        .expect("mounts");
    assert_eq!(text, "#cloud-config\ninstance-id: h1\n");
}

#[test]
fn a_disk_boots_and_what_is_thrown_away_is_not_written() {
    let folder = folder();
    let image = folder.path().join("disk.raw");
    let mut disk = boot_sector("booted from disk\r\n");
    disk.resize(1 << 20, 0);
    fs::write(&image, &disk).expect("writes");
    // QEMU keeps the changes elsewhere, so it need not be allowed to write.
    fs::set_permissions(&image, fs::Permissions::from_mode(0o444)).expect("sets");
    let boot = Boot::Disk(Disk { image: image.clone(), format: DiskFormat::Raw, throw_away: true });
    let spec = VmSpec { boot, ..spec("i1", &folder) };
    let vm = Driver::start(&rig().qemu, spec).expect("starts");
    let deadline = Instant::now() + SHORT;
    let log = |vm: &Vm| fs::read_to_string(vm.serial_log()).unwrap_or_default();
    while !log(&vm).contains("booted from disk") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(log(&vm).contains("booted from disk"), "{}", log(&vm));
    let error = vm.wait_ready(Duration::from_secs(1)).expect_err("it has no agent");
    assert!(matches!(error, VmError::NotReady { .. }), "{error}");
    assert!(error.to_string().contains("booted from disk"), "{error}");
}

#[test]
fn a_vm_that_is_kept_outlives_its_handle() {
    let folder = folder();
    let vm = start(VmSpec { dies_with_parent: false, ..spec("j1", &folder) });
    let kept = vm.keep_running().expect("may be kept");
    let alive = || Path::new(&format!("/proc/{}/exe", kept.pid)).exists();
    assert!(alive());
    let guest = AgentHost::connect("j1", &kept.agent, SHORT).expect("its agent can be reached");
    guest.wait_ready(SHORT).expect("answers");
    assert_eq!(guest.check("hostname", SHORT).expect("runs"), "j1\n");
    drop(guest);
    let agent = lanekeeper_vmm::agent::Agent::connect(&kept.agent, SHORT, || !alive());
    agent.expect("its agent can be reached").power_off(SHORT).expect("asked");
    let deadline = Instant::now() + SHORT;
    while alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!alive());
}

/// Ends what runs in a folder however the test ends: a VM that was left is nobody's.
struct Ends(PathBuf);

impl Drop for Ends {
    fn drop(&mut self) {
        rig().qemu.end(&self.0).expect("no VM is left behind");
    }
}

#[test]
fn a_vm_that_was_left_is_adopted_with_its_ports_and_reset_and_its_end_is_told() {
    let folder = folder();
    let qemu = &rig().qemu;
    let spec = VmSpec { dies_with_parent: false, reboots: true, ..spec("l1", &folder) };
    let _ends = Ends(spec.run_folder.clone());
    assert!(qemu.adopt(&spec).expect("looks").is_none());
    let first = start(spec.clone());
    let pid = first.pid();
    first.check("touch /tmp/mark", SHORT).expect("runs");
    let second = Driver::start(qemu, spec.clone()).expect_err("one runs there").to_string();
    assert!(second.contains("a VM runs in it"), "{second}");
    first.leave().expect("may be left");
    drop(first);

    let vm = qemu.adopt(&spec).expect("answers").expect("is there");
    assert_eq!(vm.pid(), pid);
    vm.wait_ready(SHORT).expect("its guest answers");
    vm.check("[ -e /tmp/mark ]", SHORT).expect("it is the same guest");
    vm.reset().expect("reset");
    vm.wait_ready(READY).expect("boots anew");
    vm.check("! [ -e /tmp/mark ]", SHORT).expect("it has booted anew");
    vm.agent().start("reboot", SHORT).expect("reboots from within");
    let deadline = Instant::now() + READY;
    while fs::read_to_string(vm.serial_log()).expect("a log").matches("guest: ready").count() < 3 {
        assert!(Instant::now() < deadline, "the guest's own reboot ended it: {:?}", vm.exit());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(vm.shutdown(SHORT).expect("ends"), Ending::ByGuest);
    let exit = vm.exit().expect("has ended");
    assert!(exit.by_guest && exit.status.success(), "{exit:?}");
    assert!(qemu.adopt(&spec).expect("looks").is_none());
}

#[test]
fn a_vm_is_ended_by_its_folder_even_if_its_monitor_is_taken() {
    let folder = folder();
    let spec = VmSpec { dies_with_parent: false, ..spec("m1", &folder) };
    let _ends = Ends(spec.run_folder.clone());
    let vm = Driver::start(&rig().qemu, spec.clone()).expect("starts");
    rig().qemu.end(&spec.run_folder).expect("ends");
    let exit = vm.wait_for_exit(SHORT).expect("has ended");
    assert!(!exit.by_guest, "{exit:?}");
    rig().qemu.end(&spec.run_folder).expect("none there is as good");
}

#[test]
fn a_vm_that_dies_with_its_parent_is_not_kept() {
    let folder = folder();
    let vm = Driver::start(&rig().qemu, spec("k1", &folder)).expect("starts");
    let pid = vm.pid();
    let error = vm.keep_running().expect_err("cannot").to_string();
    assert!(error.contains("dies_with_parent"), "{error}");
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the refused VM still runs");
}

#[test]
fn the_accelerator_is_decided_once_and_remembered() {
    let rig = rig();
    let cache = folder();
    let first = accel::choose(&rig.qemu, &rig.image.kernel, cache.path()).expect("a verdict");
    assert!(!first.reason.is_empty());
    let begin = Instant::now();
    let second = accel::choose(&rig.qemu, &rig.image.kernel, cache.path()).expect("a verdict");
    assert_eq!(second, first);
    assert!(begin.elapsed() < Duration::from_millis(500), "it was probed again");
    let left: Vec<_> = fs::read_dir(cache.path()).expect("lists").flatten().collect();
    assert_eq!(left.len(), 1, "the probe left something behind: {left:?}");
}
