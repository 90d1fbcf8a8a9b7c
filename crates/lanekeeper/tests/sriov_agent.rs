//! The agent on an emulated host with a real kernel, a real driver and real VFs: what the kernel
//! tells it by itself, and what it does about it.

use std::path::Path;
use std::time::Duration;

use lanekeeper_emulated::{Cable, HostPlan, PfPlan, Rig, Share, SriovHost};
use lanekeeper_model::MacAddr;
use lanekeeper_vmm::Host as _;

/// Far more than a boot takes on an idle machine, since tests share theirs.
const READY: Duration = Duration::from_secs(180);
const SHORT: Duration = Duration::from_secs(60);

const PF: MacAddr = MacAddr([0x02, 0x1a, 0, 0, 0, 1]);
const AGENT: &str = "/shared/bin/lanekeeper agent --config /tmp/host.yaml --listen 127.0.0.1:9000";

struct Lab(SriovHost);

impl Lab {
    fn sh(&self, command: &str) -> String {
        self.0.check(command, SHORT).unwrap_or_else(|error| panic!("{error}"))
    }

    fn start_agent(&self) {
        // In a session of its own, for what a command leaves behind in its own ends with it.
        self.sh(&format!(
            ">/tmp/events && rm -f /tmp/agent.pid && {{ setsid sh -c 'echo $$ >/tmp/agent.pid; \
             exec {AGENT} >>/tmp/events 2>>/tmp/agent.log </dev/null' & }} && \
             until [ -s /tmp/agent.pid ]; do sleep 0.1; done"
        ));
    }

    /// Until an event with these words was told since the last call of [`Lab::forget`].
    fn hears(&self, event: &str, words: &str) {
        // Two patterns, for the order of an event's fields is not promised.
        let heard = format!("grep '\"event\":\"{event}\"' /tmp/events | grep -q '{words}'");
        self.sh(&format!(
            "end=$(($(date +%s) + 40)); until {heard}; do sleep 0.3; \
             [ $(date +%s) -lt $end ] || {{ cat /tmp/events /tmp/agent.log; exit 1; }}; done"
        ));
    }

    fn forget(&self) {
        self.sh(">/tmp/events");
    }

    fn claim(&self, token: &str) -> (bool, String) {
        let claim = format!(
            "LANEKEEPER_TOKEN=token-{token} /shared/bin/lanekeeper host claim --driver kernel"
        );
        let output = self.0.run(&claim, SHORT).expect("runs");
        (output.success(), format!("{}{}", output.stdout, output.complaint()))
    }
}

#[test]
fn it_hears_a_real_kernel_and_keeps_its_vfs_as_they_were_claimed() {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::prepare(&mut |step| println!("{step}")).expect("a rig");
    let program = Path::new(env!("CARGO_BIN_EXE_lanekeeper"));
    let host = rig.start(HostPlan {
        name: "agent".to_owned(),
        pfs: vec![PfPlan { mac: PF, cable: Cable::Wire(0) }],
        shares: vec![Share {
            tag: "bin".to_owned(),
            folder: program.parent().expect("in a folder").to_owned(),
        }],
        tenants: Vec::new(),
        run_folder: folder.path().to_owned(),
    });
    let lab = Lab(host.expect("starts"));
    lab.0.wait_ready(READY).expect("gets ready");
    let names = lab.sh(&format!("grep -lx {PF} /sys/class/net/*/address"));
    let dev = names.split('/').nth(4).expect("the PF has an interface").to_owned();
    lab.sh(&format!(
        "echo 'version: 1
pfs:
  - {{ name: nic0, select: {{ permanent_mac: \"{PF}\" }}, vfs: 4 }}' >/tmp/host.yaml"
    ));

    lab.start_agent();
    lab.hears("ready", "");
    let numvfs = format!("cat /sys/class/net/{dev}/device/sriov_numvfs");
    assert_eq!(lab.sh(&numvfs).trim(), "4");

    // Somebody gives a VF a VLAN: the kernel tells, and it is taken back.
    lab.forget();
    lab.sh(&format!("ip link set {dev} vf 2 vlan 30"));
    lab.hears("drift_repaired", "nic0");
    assert!(!lab.sh(&format!("ip link show {dev}")).contains("vlan 30"));

    // No link, no VFs; and again once it has lasted.
    lab.forget();
    lab.0.set_link(0, false).expect("unplugged");
    lab.hears("pf_unavailable", "no link");
    let (claimed, said) = lab.claim("nobody");
    assert!(!claimed && said.contains("it has no link"), "{said}");
    lab.0.set_link(0, true).expect("plugged in");
    lab.hears("pf_available", "nic0");
    let (claimed, said) = lab.claim("tenant");
    assert!(claimed, "{said}");

    // It is killed, and so are its VFs, while nobody looks.
    lab.sh(&format!(
        "kill -9 $(cat /tmp/agent.pid) && echo 0 >/sys/class/net/{dev}/device/sriov_numvfs"
    ));
    lab.start_agent();
    lab.hears("ready", "");
    lab.hears("recovered", "claim_ready");
    assert_eq!(lab.sh(&numvfs).trim(), "4");

    // The NIC is pulled out.
    lab.forget();
    lab.0.remove_pf(0, SHORT).expect("the host lets go of the NIC");
    lab.hears("pf_gone", "nic0");
    lab.hears("recovered", "claim_lost");
    lab.sh("kill $(cat /tmp/agent.pid)");
    lab.hears("stopped", "");
}
