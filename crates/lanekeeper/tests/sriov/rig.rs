//! An emulated host in which the product's own program runs.

use std::path::Path;
use std::time::Duration;

use lanekeeper_emulated::{Cable, HostPlan, PfPlan, Rig, Share, SriovHost};
use lanekeeper_model::MacAddr;
use lanekeeper_vmm::{Host as _, Output};
use serde_json::Value;
use tempfile::TempDir;

/// Far more than a boot takes on an idle machine, since tests share theirs.
pub(crate) const READY: Duration = Duration::from_secs(180);
/// The same for a command.
pub(crate) const SHORT: Duration = Duration::from_secs(90);

pub(crate) const PF: MacAddr = MacAddr([0x02, 0x1a, 0, 0, 0, 1]);

/// The program, as the host sees it.
pub(crate) const PROGRAM: &str = "/shared/bin/lanekeeper";

const AGENT: &str = "agent --config /tmp/host.yaml --listen 127.0.0.1:9000";

/// A host, in a folder that is removed after it.
pub(crate) struct Lab {
    pub(crate) host: SriovHost,
    _folder: TempDir,
}

/// A host with one PF, or what `change` makes of that.
pub(crate) fn boot(name: &str, change: impl FnOnce(&mut HostPlan)) -> Lab {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::prepare(&mut |step| println!("{step}")).expect("a rig");
    let program = Path::new(env!("CARGO_BIN_EXE_lanekeeper"));
    let mut plan = HostPlan {
        name: name.to_owned(),
        pfs: vec![PfPlan { mac: PF, cable: Cable::Wire(0), switch: None }],
        switches: Vec::new(),
        shares: vec![Share {
            tag: "bin".to_owned(),
            folder: program.parent().expect("in a folder").to_owned(),
        }],
        tenants: Vec::new(),
        run_folder: folder.path().to_owned(),
        namespace: None,
        dies_with_parent: true,
    };
    change(&mut plan);
    let host = rig.start(plan).expect("starts");
    println!("{name} was ready after {:?}", host.wait_ready(READY).expect("gets ready"));
    Lab { host, _folder: folder }
}

impl Lab {
    pub(crate) fn sh(&self, command: &str) -> String {
        self.host.check(command, SHORT).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `lanekeeper host` with these arguments, for the owner of this name.
    pub(crate) fn lanekeeper(&self, owner: &str, arguments: &str) -> Output {
        let command = format!("LANEKEEPER_TOKEN=token-of-{owner} {PROGRAM} host {arguments}");
        self.host.run(&command, SHORT).expect("runs")
    }

    /// The same, which must do it; what it said.
    pub(crate) fn done(&self, owner: &str, arguments: &str) -> String {
        let output = self.lanekeeper(owner, arguments);
        assert!(output.success(), "{arguments}: {}", output.complaint());
        output.stdout
    }

    /// The same, which must refuse it; why.
    pub(crate) fn refused(&self, owner: &str, arguments: &str) -> String {
        let output = self.lanekeeper(owner, arguments);
        assert!(!output.success(), "{arguments}: {}", output.stdout);
        output.complaint()
    }

    /// The same, whose answer is JSON.
    pub(crate) fn json(&self, owner: &str, arguments: &str) -> Value {
        serde_json::from_str(&self.done(owner, arguments)).expect("JSON")
    }

    /// Writes a host file with PFs of these addresses, named `nic0` and so on.
    pub(crate) fn host_file(&self, vfs: u32, pfs: &[MacAddr]) {
        let entries = pfs.iter().enumerate().map(|(number, mac)| {
            let select = format!("{{ permanent_mac: \"{mac}\" }}");
            format!("  - {{ name: nic{number}, select: {select}, vfs: {vfs} }}\n")
        });
        let entries: String = entries.collect();
        self.sh(&format!("echo 'version: 1\npfs:\n{entries}' >/tmp/host.yaml"));
    }

    pub(crate) fn pf_interface(&self) -> String {
        self.interface(PF).expect("the PF has an interface")
    }

    pub(crate) fn interface(&self, mac: MacAddr) -> Option<String> {
        let names = self.sh(&format!("grep -lx {mac} /sys/class/net/*/address || true"));
        names.split('/').nth(4).map(str::to_owned)
    }

    /// What the kernel says of a VF.
    pub(crate) fn kernel_says(&self, vf: &Value) -> String {
        self.sh(&format!("ip link show {} | grep 'vf {vf} '", self.pf_interface()))
    }

    pub(crate) fn num_vfs(&self) -> u32 {
        let text =
            self.sh(&format!("cat /sys/class/net/{}/device/sriov_numvfs", self.pf_interface()));
        text.trim().parse().expect("a number")
    }

    pub(crate) fn start_agent(&self) {
        // In a session of its own, for what a command leaves behind in its own ends with it.
        self.sh(&format!(
            ">/tmp/events && rm -f /tmp/agent.pid && {{ setsid sh -c 'echo $$ >/tmp/agent.pid; \
             exec {PROGRAM} {AGENT} >>/tmp/events 2>>/tmp/agent.log </dev/null' & }} && \
             until [ -s /tmp/agent.pid ]; do sleep 0.1; done"
        ));
    }

    /// Kills the agent, and waits until it is no more: what it asked of the kernel last takes its time.
    pub(crate) fn kill_agent(&self) {
        self.sh("p=$(cat /tmp/agent.pid); kill -9 $p; while [ -e /proc/$p ]; do sleep 0.1; done");
    }

    /// Until an event with these words was told since the last call of [`Lab::forget`].
    pub(crate) fn hears(&self, event: &str, words: &str) {
        // Two patterns, for the order of an event's fields is not promised.
        let heard = format!("grep '\"event\":\"{event}\"' /tmp/events | grep -q '{words}'");
        self.sh(&format!(
            "end=$(($(date +%s) + 60)); until {heard}; do sleep 0.3; \
             [ $(date +%s) -lt $end ] || {{ cat /tmp/events /tmp/agent.log; exit 1; }}; done"
        ));
    }

    pub(crate) fn forget(&self) {
        self.sh(">/tmp/events");
    }
}
