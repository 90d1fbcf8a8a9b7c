//! A whole cloud on an emulated host with an SR-IOV NIC: the server, an agent, and a tenant's VM that
//! gets a real VF by VFIO through the API, is killed with its agent, comes back, and gives it back.

use std::time::Duration;

use lanekeeper_emulated::SwitchPlan;
use lanekeeper_vmm::Host as _;
use serde_json::Value;

use crate::rig::{Lab, PF, PROGRAM, SHORT, boot};

/// A VM within an emulated machine: its CPU is emulated, and switches into it as well.
const VM_READY: Duration = Duration::from_secs(600);

const NODE: &str = r#"
fabric = "lab"
vcpus = 1
vcpus_per_core = 1
ram_mib = 256
disk_gib = 1
boot_seconds = 500
accel = "kvm"
qemu = "/shared/qemu/qemu-system-x86_64"
builtin_folder = "/shared/image"
[hardware]
pools = ["lanes"]
[nics.nic0]
rail = 0
rate = 1000
"#;

impl Lab {
    /// The command line, as the operator.
    fn cloud(&self, arguments: &str) -> String {
        self.cloud_within(arguments, SHORT)
    }

    fn cloud_within(&self, arguments: &str, patience: Duration) -> String {
        let output = self.host.run(&format!(". /tmp/operator && {PROGRAM} {arguments}"), patience);
        let output = output.expect("runs");
        if !output.success() {
            let log = self.sh("tail -n 40 /tmp/vms.log /tmp/server.log");
            panic!("{arguments}: {}\n{log}", output.complaint());
        }
        output.stdout
    }

    fn start_server(&self) {
        self.sh(&format!(
            "{{ setsid sh -c 'exec {PROGRAM} server --listen 127.0.0.1:8443 --data /tmp/server \
             >/tmp/server.log 2>&1 </dev/null' & }} && \
             end=$(($(date +%s) + 80)); until grep -q 'operator.key' /tmp/server.log; do sleep 0.2; \
             [ $(date +%s) -lt $end ] || {{ cat /tmp/server.log; exit 1; }}; done; \
             echo 'export HOME=/root LANEKEEPER_SERVER=https://127.0.0.1:8443 \
             LANEKEEPER_AUTHORITY=/tmp/server/authority.crt \
             LANEKEEPER_API_KEY='$(cat /tmp/server/operator.key) >/tmp/operator"
        ));
    }

    fn start_vms(&self) {
        self.sh(&format!(
            "rm -f /tmp/vms.pid && {{ setsid sh -c 'echo $$ >/tmp/vms.pid; exec {PROGRAM} agent vms \
             --config /tmp/node.toml >>/tmp/vms.log 2>&1 </dev/null' & }} && \
             until [ -s /tmp/vms.pid ]; do sleep 0.1; done"
        ));
    }

    fn soon(&self, what: &str, patience: Duration) {
        let wait = format!(
            "end=$(($(date +%s) + {seconds})); until {what}; do sleep 1; \
             [ $(date +%s) -lt $end ] || {{ tail -n 40 /tmp/vms.log /tmp/server.log; exit 1; }}; done",
            seconds = patience.as_secs()
        );
        let waited = self.host.check(&wait, patience + SHORT);
        waited.unwrap_or_else(|error| panic!("not: {what}: {error}"));
    }

    /// Processes of VMs, by their names: the program is run by a loader.
    fn vmms(&self) -> String {
        self.sh("grep -l 'guest=[v]m-' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3")
    }

    /// Where the ledger has a VF in its life.
    fn life(&self, vf: u32) -> String {
        let shown = self.json("nobody", "--json show");
        let life = shown.pointer(&format!("/pfs/0/ledger/{vf}/life")).and_then(Value::as_str);
        life.unwrap_or_else(|| panic!("no VF {vf}: {shown:#}")).to_owned()
    }

    /// Another VF of the host's own, on a VLAN, in a network namespace of its name.
    fn peer(&self, vlan: &str, address: &str) {
        let claim = self.json("peer", &format!("claim --pool lanes --vlan {vlan} --driver kernel"));
        let dev = claim.pointer("/hand_over/netdev").and_then(Value::as_str).expect("an interface");
        self.sh(&format!(
            "ip netns add peer && ip link set {dev} netns peer && \
             ip -n peer addr add {address}/24 dev {dev} && ip -n peer link set {dev} up && \
             until ip netns exec peer grep -q 1 /sys/class/net/{dev}/carrier; do sleep 0.1; done"
        ));
    }

    /// A PF with four VFs, a server, a tenant's network, and this host as one of the server's, with what
    /// more its node file says and what flavor its VMs have.
    fn found_cloud(&self, node: &str, flavor: &str) {
        self.sh(&format!(
            "echo 'version: 1\npfs:\n  - {{ name: nic0, select: {{ permanent_mac: \"{PF}\" }}, vfs: 4, \
             pools: [lanes] }}' >/tmp/host.yaml"
        ));
        self.done("nobody", "apply /tmp/host.yaml");
        self.sh(&format!("echo '{NODE}{node}' >/tmp/node.toml"));
        self.start_server();
        self.cloud("region create here --fabric lab --vlans 100-199 --addresses 10.64.0.0/16");
        self.cloud("image create guest --builtin");
        self.cloud(&format!("flavor create small --vcpus 1 --ram 256 --vfs 1 {flavor}"));
        self.cloud("organization create acme");
        self.sh("echo 'export LANEKEEPER_ORGANIZATION=acme' >>/tmp/operator");
        self.cloud("environment create lab --region here");
        self.cloud("network create lane --environment lab --profile ethernet --mtu 1500");
        let said = self.cloud("fleet token here --region here");
        self.sh(&format!(
            "{PROGRAM} agent enrol https://127.0.0.1:8443 --authority /tmp/server/authority.crt \
             --config /tmp/node.toml --token $(echo '{said}' | grep -o 'lke_[A-Za-z0-9_-]*' | head -n 1)"
        ));
        self.start_vms();
        self.soon(&format!(". /tmp/operator; {PROGRAM} fleet nics here | grep -q nic0"), SHORT);
        println!("{}", self.cloud("fleet nics here"));
    }
}

#[test]
#[ignore = "minutes: a server, an agent and a VM within an emulated host"]
fn a_vm_by_the_api_gets_a_real_vf_and_gives_it_back_scrubbed() {
    let lab = boot("h5", |plan| plan.tenants = ["t1".to_owned()].to_vec());
    lab.found_cloud("", "--vf-rate 100 --rdma software");
    lab.cloud_within(
        "vm create v1 --environment lab --flavor small --image guest --network lane --wait",
        VM_READY,
    );
    // Its guest answers on the address that it was given, over the VF that the ledger has as its own.
    let shown = lab.cloud("vm show v1");
    let address = shown.split_whitespace().find(|word| word.starts_with("10.64.")).expect("a port");
    let address = address.split('/').next().expect("an address");
    assert_eq!(lab.life(0), "attached");
    let kernel = lab.kernel_says(&Value::from(0));
    let vlan = kernel.split("vlan ").nth(1).and_then(|rest| rest.split([',', ' ']).next());
    let peer = format!("{}.250", address.rsplit_once('.').expect("four bytes").0);
    lab.peer(vlan.expect("it is on its network's VLAN"), &peer);
    let ping = format!("ip netns exec peer ping -c 3 -W 5 {address}");
    lab.sh(&ping);
    let said = lab.done("peer", "release --pf nic0 --vf 0");
    assert!(said.contains("another owner's"), "{said}");

    // The agent is killed; the VM runs on, and the next agent takes it over.
    let vm = lab.vmms();
    assert_ne!(vm, "", "it runs");
    lab.sh("p=$(cat /tmp/vms.pid); kill -9 $p; while [ -e /proc/$p ]; do sleep 0.1; done");
    lab.sh(&ping);
    assert_eq!(lab.vmms(), vm);
    lab.start_vms();
    lab.soon("grep -c \"has its VMs as\" /tmp/vms.log | grep -q 2", SHORT);
    lab.cloud_within("vm stop v1 --wait", VM_READY);
    assert_eq!(lab.vmms(), "", "it was {vm}");
    lab.soon(&format!("{PROGRAM} host show --json | grep -q '\"life\": *\"bound\"'"), SHORT);
    lab.cloud_within("vm start v1 --wait", VM_READY);
    lab.sh(&ping);

    // It is deleted: its VF is as it was, and anybody's.
    lab.cloud_within("vm delete v1 --wait", VM_READY);
    assert_eq!(lab.life(0), "free");
    let kernel = lab.kernel_says(&Value::from(0));
    assert!(!kernel.contains("vlan"), "{kernel}");
    lab.sh("ip netns del peer");
    lab.done("peer", "release --pf nic0 --vf 1");
    lab.done("nobody", "check /tmp/host.yaml");
    lab.soon(&format!(". /tmp/operator; {PROGRAM} fleet nics here | grep -q '0/4'"), SHORT);
}

const GPUS: &str = "[hardware.gpus]\nmodel = \"standin\"\n";

#[test]
#[ignore = "minutes: a server, an agent and a VM within an emulated host"]
fn a_vm_by_the_api_gets_a_whole_gpu_and_the_vf_beside_it() {
    let lab = boot("h6", |plan| {
        let switch = |numa_node, gpus| SwitchPlan { numa_node, gpus, acs: true };
        plan.switches = vec![switch(0, 1), switch(1, 0)];
        plan.pfs[0].switch = Some(0);
        plan.tenants = ["t1".to_owned()].to_vec();
    });
    // An operator's part: the GPU is vfio-pci's. It stands in for one by its class.
    let gpu = lab.sh("grep -l 0x038000 /sys/bus/pci/devices/*/class | cut -d/ -f6");
    let gpu = gpu.trim();
    lab.sh(&format!(
        "cd /sys/bus/pci/devices/{gpu} && echo vfio-pci >driver_override && \
         {{ [ ! -e driver ] || echo {gpu} >driver/unbind; }} && \
         echo {gpu} >/sys/bus/pci/drivers_probe && [ $(basename $(readlink driver)) = vfio-pci ]"
    ));
    lab.found_cloud(GPUS, "--gpus 1 --gpu-model standin --farthest PIX");
    lab.cloud_within(
        "vm create v1 --environment lab --flavor small --image guest --network lane --wait",
        VM_READY,
    );
    let shown = lab.cloud("vm show v1");
    assert!(shown.contains(gpu), "{shown}");
    // QEMU has both groups open: the VF's and the GPU's.
    let vm = lab.vmms();
    let groups = lab.sh(&format!("ls -l /proc/{}/fd | grep -c '/dev/vfio/[0-9]'", vm.trim()));
    assert_eq!(groups.trim(), "2");
    lab.cloud_within("vm delete v1 --wait", VM_READY);
    assert_eq!(lab.life(0), "free");
}
