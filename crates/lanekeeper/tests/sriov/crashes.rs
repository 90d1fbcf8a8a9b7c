//! Death and trouble in the middle of things, on a real kernel: whatever is killed, the next start
//! makes devices and ledger agree.

use std::time::{Duration, Instant};

use lanekeeper_vmm::Host as _;
use serde_json::Value;

use crate::rig::{Lab, PF, PROGRAM, READY, SHORT, boot};

/// Longer than a VF's driver takes to find that its PF was down and to start anew: 8 to 12 s.
const AWAKE: Duration = Duration::from_secs(40);

impl Lab {
    /// Kills `lanekeeper host` with these arguments after a while. Whether it had not ended before.
    fn killed(&self, owner: &str, arguments: &str, after: Duration) -> bool {
        let status = self.sh(&format!(
            "LANEKEEPER_TOKEN=token-of-{owner} {PROGRAM} host {arguments} >/tmp/killed 2>&1 & \
             sleep {}; kill -9 $! 2>/dev/null; wait $!; echo $?",
            after.as_secs_f64()
        ));
        assert!(["0", "137"].contains(&status.trim()), "{}", self.sh("cat /tmp/killed"));
        status.trim() == "137"
    }

    /// How long it takes when nobody kills it.
    fn time(&self, owner: &str, arguments: &str) -> Duration {
        let began = Instant::now();
        self.done(owner, arguments);
        began.elapsed()
    }

    /// VFs by the ledger: number and life of each that is not free.
    fn in_use(&self) -> Vec<(String, Value)> {
        let shown = self.json("nobody", "show --json");
        let vfs = shown["pfs"][0]["ledger"].as_object().expect("is ours").clone();
        vfs.into_iter().filter(|(_, vf)| vf["life"] != "free").collect()
    }

    /// Whether `to` answers within [`AWAKE`].
    fn answers(&self, from: &str, to: u8) -> bool {
        let ping = format!("ip netns exec {from} ping -c 1 -W 1 10.0.0.{to}");
        let until = AWAKE.as_secs();
        let ping = format!(
            "end=$(($(date +%s) + {until})); until {ping}; do [ $(date +%s) -lt $end ] || exit 1; done"
        );
        self.host.run(&ping, SHORT).expect("runs").success()
    }

    /// Claims a VF for the host's own use, in a network namespace of its owner's name.
    fn claim_into_namespace(&self, owner: &str, last: u8) -> Value {
        let claim = self.json(owner, "claim --driver kernel --vlan 100");
        let dev = claim["hand_over"]["netdev"].as_str().expect("an interface");
        self.sh(&format!(
            "ip netns add {owner} && ip link set {dev} netns {owner} && \
             ip -n {owner} addr add 10.0.0.{last}/24 dev {dev} && ip -n {owner} link set {dev} up && \
             until ip netns exec {owner} grep -q 1 /sys/class/net/{dev}/carrier; do sleep 0.1; done"
        ));
        claim
    }

    fn release(&self, owner: &str, claim: &Value) {
        self.sh(&format!("ip netns del {owner} 2>/dev/null || true"));
        self.done(owner, &format!("release {}", claim["id"].as_str().expect("a claim")));
    }
}

#[test]
#[ignore = "minutes: many commands on an emulated CPU"]
fn what_is_killed_at_any_moment_is_whole_or_undone_by_the_next_recovery() {
    let lab = boot("k1", |_| ());
    lab.host_file(4, &[PF]);
    let whole = lab.time("nobody", "apply /tmp/host.yaml");
    let (mut vfs, mut cut, mut undone) = (4, 0, 0);
    for eighth in 1..8 {
        let wanted = if vfs == 4 { 6 } else { 4 };
        lab.host_file(wanted, &[PF]);
        cut += u32::from(lab.killed("nobody", "apply /tmp/host.yaml", whole * eighth / 8));
        undone += u32::from(lab.done("nobody", "recover").contains("cut short is undone"));
        let now = lab.num_vfs();
        assert!(now == vfs || now == wanted, "{now} VFs are neither {vfs} nor {wanted}");
        vfs = now;
        lab.host_file(vfs, &[PF]);
        lab.done("nobody", "check /tmp/host.yaml");
        assert_eq!(lab.in_use(), [], "killed after {eighth}/8");
    }
    println!("of 7 applies {cut} were cut short, and {undone} of these undone");
    assert!(undone > 0, "no apply was killed between its first write and its last");

    let claim = "claim --driver kernel --vlan 100";
    let whole = lab.time("first", claim);
    let id = lab.json("first", claim)["id"].as_str().expect("a claim").to_owned();
    let released = lab.time("first", &format!("release {id}"));
    for sixth in 1..6 {
        let owner = format!("owner{sixth}");
        lab.killed(&owner, claim, whole * sixth / 6);
        lab.done("nobody", "recover");
        let in_use = lab.in_use();
        assert!(in_use.len() <= 1 && in_use.iter().all(|(_, vf)| vf["life"] == "bound"));
        // The same token gets the claim that it has, or one.
        let id = lab.json(&owner, claim)["id"].as_str().expect("a claim").to_owned();
        assert!(in_use.iter().all(|(_, vf)| vf["claim"] == *id), "{in_use:?} is not {id}");
        let release = format!("release {id}");
        lab.killed(&owner, &release, released * sixth / 6);
        lab.done("nobody", "recover");
        lab.done(&owner, &release);
        assert_eq!(lab.in_use(), []);
        let kernel = lab.sh(&format!("ip link show {}", lab.pf_interface()));
        assert!(!kernel.contains("vlan"), "{kernel}");
    }
    lab.done("nobody", "check /tmp/host.yaml");
}

#[test]
#[ignore = "minutes: many starts on an emulated CPU"]
fn an_agent_killed_while_it_applies_ends_it_at_its_next_start_and_so_after_a_reboot() {
    let lab = boot("k2", |_| ());
    lab.host_file(4, &[PF]);
    let began = Instant::now();
    lab.start_agent();
    lab.hears("ready", "");
    let whole = began.elapsed();
    for (fifth, vfs) in (1..5).zip([6, 3, 5, 4]) {
        lab.kill_agent();
        lab.host_file(vfs, &[PF]);
        lab.start_agent();
        std::thread::sleep(whole * fifth / 5);
        lab.kill_agent();
        lab.start_agent();
        lab.hears("ready", "");
        assert_eq!(lab.num_vfs(), vfs);
        lab.done("nobody", "check /tmp/host.yaml");
    }
    let claim = lab.json("tenant", "claim --driver kernel --vlan 100");
    let before = lab.kernel_says(&claim["vf"]);
    assert!(before.contains("vlan 100"), "{before}");

    // The host's disk is memory, so what a reboot would leave is carried over it.
    let state = lab.sh("tar c -C /var/lib lanekeeper | base64 | tr -d '\\n'");
    lab.host.reset(READY).expect("comes back");
    assert_eq!(lab.num_vfs(), 0);
    lab.sh(&format!("mkdir -p /var/lib && echo {state} | base64 -d | tar x -C /var/lib"));
    lab.host_file(4, &[PF]);
    lab.start_agent();
    lab.hears("ready", "");
    lab.hears("recovered", "claim_ready");
    assert_eq!(lab.num_vfs(), 4);
    assert_eq!(lab.kernel_says(&claim["vf"]), before);
    let again = lab.json("tenant", "claim --driver kernel --vlan 100");
    assert_eq!((&again["id"], &again["settings"]), (&claim["id"], &claim["settings"]));
    lab.release("tenant", &claim);
    lab.done("nobody", "check /tmp/host.yaml");
}

#[test]
#[ignore = "minutes: VFs are made three times on an emulated CPU"]
fn a_pf_that_was_down_is_put_up_and_vfs_that_its_reset_silenced_work_once_made_again() {
    let lab = boot("k3", |_| ());
    lab.host_file(4, &[PF]);
    lab.done("nobody", "apply /tmp/host.yaml");
    let pf = lab.pf_interface();
    let (one, two) = (lab.claim_into_namespace("one", 1), lab.claim_into_namespace("two", 2));
    assert!(lab.answers("one", 2), "two VFs of one VLAN do not hear each other");

    // PF down: seen, put right, and the VFs are as they were.
    lab.sh(&format!("ip link set {pf} down"));
    let drift = lab.lanekeeper("nobody", "check /tmp/host.yaml");
    assert!(drift.status == 2 && drift.stdout.contains("set the PF up"), "{}", drift.stdout);
    lab.done("nobody", "recover");
    lab.done("nobody", "check /tmp/host.yaml");
    assert!(lab.answers("one", 2), "the VFs do not work after their PF was down");

    // A function reset of the PF, which no step of ours does: the kernel shows VFs as before, and
    // they pass nothing. What helps is to make them again.
    lab.sh(&format!("echo flr >/sys/class/net/{pf}/device/reset_method"));
    lab.sh(&format!("echo 1 >/sys/class/net/{pf}/device/reset"));
    assert!(
        !lab.answers("one", 2),
        "VFs outlive a reset of their PF: docs/field-faults.md is wrong"
    );
    lab.host_file(0, &[PF]);
    let said = lab.refused("nobody", "apply /tmp/host.yaml");
    assert!(said.contains(one["id"].as_str().expect("a claim")), "{said}");
    lab.release("one", &one);
    lab.release("two", &two);
    lab.done("nobody", "apply /tmp/host.yaml");
    lab.host_file(4, &[PF]);
    lab.done("nobody", "apply /tmp/host.yaml");
    let (one, two) = (lab.claim_into_namespace("one", 1), lab.claim_into_namespace("two", 2));
    assert!(lab.answers("one", 2), "VFs that were made again do not hear each other");
    lab.release("one", &one);
    lab.release("two", &two);
    lab.done("nobody", "check /tmp/host.yaml");
}
