//! Real VMs on the VFs of a software NIC: one is killed and the others notice nothing; the NIC is
//! killed, and the VMs live on and talk again within two seconds of its coming back.

mod nic_process;
#[path = "../../vmm/tests/rig/mod.rs"]
mod rig;

use std::time::{Duration, Instant};

use lanekeeper_model::{MacAddr, Mtu};
use lanekeeper_vmm::{Driver, Host, Job, Machine, VfPort, Vm};
use nic_process::Process;

/// Far more than a boot takes on an idle machine, since tests share theirs.
const READY: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_secs(30);
/// What the software NIC promises, and the second that QEMU may take to look for it again.
const RESUMED_WITHIN: Duration = Duration::from_secs(3);

/// Boot a VM for each of the NIC's first VFs, the second one with packed rings.
fn boot(nic: &Process, folder: &std::path::Path, count: u8) -> Vec<Vm> {
    let start = |vf: u8| {
        let name = format!("v{vf}");
        let mut spec = rig::spec(&name, folder);
        spec.vfs.push(VfPort {
            name: "lane".to_owned(),
            socket: nic.socket(vf),
            mac: MacAddr([2, 0, 0, 0, 0, vf]),
            slot: None,
            queue_pairs: 1,
            packed: vf == 1,
            mtu: Mtu::ETHERNET,
        });
        Driver::start(&rig::rig().qemu, spec).expect("starts")
    };
    let vms: Vec<Vm> = (0..count).map(start).collect();
    for (vf, vm) in vms.iter().enumerate() {
        let after = vm.wait_ready(READY).expect("gets ready");
        println!("{} was ready after {after:?}", vm.name());
        let device = "dev=$(ip -o link | grep 02:00:00:00:00 | cut -d: -f2 | tr -d ' ')";
        let up =
            format!("{device}; ip addr add 10.5.0.{}/24 dev $dev; ip link set $dev up", vf + 1);
        vm.check(&up, SHORT).expect("the VF's interface comes up");
    }
    vms
}

/// Pings the VM with the second VF, `every` seconds, until it is stopped.
fn pings<'a>(vm: &'a Vm, every: &str) -> Box<dyn Job + 'a> {
    Host::start(vm, &format!("exec ping -D -n -i {every} 10.5.0.2")).expect("starts")
}

/// When each reply came, in seconds, by its sequence number.
fn replies(output: &str) -> Vec<(u32, f64)> {
    let parse = |line: &str| {
        let at = line.strip_prefix('[')?.split_once(']')?.0.parse().ok()?;
        let number = line.split_once("icmp_seq=")?.1.split(' ').next()?.parse().ok()?;
        line.contains("bytes from").then_some((number, at))
    };
    output.lines().filter_map(parse).collect()
}

/// The time of a VM's own clock, in whole seconds.
fn clock(vm: &Vm) -> f64 {
    let time = vm.check("date +%s", SHORT).expect("the VM tells the time");
    time.trim().parse().expect("a number of seconds")
}

#[test]
fn vms_outlive_a_killed_nic_and_do_not_notice_a_killed_vm() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut nic = Process::start("vms", 3);
    let mut vms = boot(&nic, folder.path(), 3);
    vms[0].check("ping -c 3 -W 5 10.5.0.2 && ping -c 1 -W 5 10.5.0.3", SHORT).expect("they talk");

    let victim = vms.pop().expect("the third VM");
    let mut job = pings(&vms[0], "0.05");
    std::thread::sleep(Duration::from_secs(1));
    victim.kill().expect("killed");
    std::thread::sleep(Duration::from_secs(1));
    let got = replies(&job.stop().expect("stops").stdout);
    let last = got.last().expect("replies came").0;
    // The ping that was under way when it was stopped has no reply.
    assert!(got.len() as u32 + 1 >= last, "{} of {last} pings were answered", got.len());

    for _ in 0..2 {
        let mut job = pings(&vms[0], "0.05");
        std::thread::sleep(Duration::from_secs(1));
        let killed = clock(&vms[0]);
        nic.kill_and_start_again();
        nic.wait_until_it_answers();
        let back = Instant::now();
        while back.elapsed() < 2 * RESUMED_WITHIN {
            std::thread::sleep(Duration::from_millis(200));
        }
        let got = replies(&job.stop().expect("stops").stdout);
        let gaps = got.windows(2).map(|pair| pair[1].1 - pair[0].1);
        let longest = Duration::from_secs_f64(gaps.fold(0.0, f64::max));
        println!("the longest silence was {longest:?}");
        assert!(longest < RESUMED_WITHIN, "silence of {longest:?} after the NIC was killed");
        // Without a reply from after that time the silence would have no end, and be no gap.
        let last = got.last().expect("replies came").1;
        assert!(last > killed + RESUMED_WITHIN.as_secs_f64(), "it stopped for good");
    }
    for vm in &vms {
        assert!(vm.exit().is_none(), "{} has ended", vm.name());
    }
}
