//! What the emulated NIC does and the product relies on, and the product from PF to VM and back.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lanekeeper_emulated::{Cable, PfPlan, SwitchPlan, Tenant, TenantPlan};
use lanekeeper_model::{MacAddr, PciAddr};
use lanekeeper_verify::{Perftest, RdmaEndpoint, rdma_measure, rxe_on};
use lanekeeper_vmm::Host;
use serde_json::Value;

use crate::rig::{Lab, PF, READY, SHORT, boot};

/// A VM within an emulated machine: its CPU is emulated, and switches into it as well.
const TENANT_READY: Duration = Duration::from_secs(600);

/// A PF beside another GPU.
const FAR: MacAddr = MacAddr([0x02, 0x1a, 0, 0, 0, 2]);

fn vf_mac(vf: u8) -> MacAddr {
    MacAddr([0x02, 0x1a, 0, 0, 1, vf])
}

impl Lab {
    /// Makes all seven VFs, bound to nothing, with an administrative MAC each; gives back where
    /// they are.
    fn make_vfs(&self) -> Vec<PciAddr> {
        let pf = self.host.pf_addr(PF).expect("the PF is there");
        self.sh(&format!(
            "ip link set {dev} up && cd /sys/bus/pci/devices/{pf} && \
             until [ $(cat /sys/class/net/{dev}/carrier) = 1 ]; do sleep 0.1; done && \
             echo 0 >sriov_drivers_autoprobe && echo 7 >sriov_numvfs",
            dev = self.pf_interface()
        ));
        let list = format!(
            "for n in 0 1 2 3 4 5 6; do readlink -f /sys/bus/pci/devices/{pf}/virtfn$n; done"
        );
        let addr = |line: &str| line.rsplit('/').next().expect("a name").parse().expect("a BDF");
        let vfs: Vec<PciAddr> = self.sh(&list).lines().map(addr).collect();
        for vf in 0..7 {
            self.sh(&format!("ip link set {} vf {vf} mac {}", self.pf_interface(), vf_mac(vf)));
        }
        vfs
    }

    fn bind(&self, vf: PciAddr, driver: &str) {
        self.sh(&format!(
            "cd /sys/bus/pci/devices/{vf} && echo {driver} >driver_override && \
             {{ [ ! -e driver ] || echo {vf} >driver/unbind; }} && \
             echo {vf} >/sys/bus/pci/drivers_probe && \
             [ $(basename $(readlink driver)) = {driver} ]"
        ));
    }

    /// Puts a VF's interface into a network namespace of its own, as a tenant would have it.
    fn isolate(&self, vf: u8) {
        let dev = self.interface(vf_mac(vf)).expect("the driver took the administrative MAC");
        self.sh(&format!(
            "ip netns add t{vf} && ip link set {dev} netns t{vf} && \
             ip -n t{vf} addr add 10.0.0.{}/24 dev {dev} && ip -n t{vf} link set {dev} up && \
             until ip netns exec t{vf} cat /sys/class/net/{dev}/carrier | grep -q 1; do \
             sleep 0.1; done",
            vf + 1
        ));
    }

    fn is_heard(&self, from: u8, to: u8) -> bool {
        let ping = format!("ip netns exec t{from} ping -c 3 -i 0.3 -W 2 10.0.0.{}", to + 1);
        self.host.run(&ping, SHORT).expect("runs").success()
    }
}

#[test]
fn seven_vfs_have_a_link_and_their_mac_and_their_vlan_keeps_them_apart() {
    let lab = boot("h1", |_| ());
    let vfs = lab.make_vfs();
    assert_eq!(vfs.len(), 7);
    for (vf, addr) in (0..2).zip(&vfs) {
        lab.bind(*addr, "igbvf");
        lab.isolate(vf);
    }
    let pf = lab.pf_interface();
    lab.sh(&format!("ip link set {pf} vf 0 vlan 100 && ip link set {pf} vf 1 vlan 100"));
    assert!(lab.is_heard(0, 1), "two VFs of one VLAN do not hear each other");
    lab.sh(&format!("ip link set {pf} vf 1 vlan 200"));
    assert!(!lab.is_heard(0, 1), "the VLAN does not keep VFs apart");
    lab.sh(&format!("ip link set {pf} vf 1 vlan 100"));
    assert!(lab.is_heard(0, 1), "a VF that is back in its VLAN is not heard");

    // A VF's carrier says nothing of the PF's link.
    lab.host.set_link(0, false).expect("unplugged");
    lab.sh(&format!("until grep -q 0 /sys/class/net/{pf}/carrier; do sleep 0.1; done"));
    lab.host.set_link(0, true).expect("plugged in");
    lab.sh(&format!("until grep -q 1 /sys/class/net/{pf}/carrier; do sleep 0.1; done"));
    assert!(lab.is_heard(0, 1), "traffic does not come back with the link");
}

#[test]
fn a_vf_goes_to_vfio_in_a_group_of_its_own_and_keeps_its_settings_over_a_reset() {
    let lab = boot("h2", |_| ());
    let vfs = lab.make_vfs();
    let pf = lab.pf_interface();
    let group = |vf: PciAddr| {
        lab.sh(&format!("basename $(readlink -f /sys/bus/pci/devices/{vf}/iommu_group)"))
    };
    for vf in &vfs {
        let members = format!("ls /sys/bus/pci/devices/{vf}/iommu_group/devices");
        assert_eq!(lab.sh(&members).trim(), vf.to_string());
    }
    lab.bind(vfs[2], "vfio-pci");
    lab.sh(&format!("test -c /dev/vfio/{}", group(vfs[2]).trim()));
    lab.sh(&format!("ip link set {pf} vf 2 vlan 30 qos 3"));
    let reset = format!("/sys/bus/pci/devices/{}/reset", vfs[2]);
    assert_eq!(lab.sh(&format!("cat {reset}_method")).trim(), "flr");
    lab.sh(&format!("echo 1 >{reset}"));
    let settings = lab.sh(&format!("ip link show {pf} | grep 'vf 2 '"));
    for part in [&vf_mac(2).to_string(), "vlan 30, qos 3"] {
        assert!(settings.contains(part), "{part} is not in: {settings}");
    }

    lab.host.reset(READY).expect("comes back");
    let numvfs = format!("/sys/bus/pci/devices/{}/sriov_numvfs", lab.host.pf_addr(PF).expect("PF"));
    assert_eq!(lab.sh(&format!("cat {numvfs}")), "0\n");
    lab.host.remove_pf(0, SHORT).expect("the host lets go of the NIC");
    assert_eq!(lab.interface(PF), None);
    lab.sh(&format!("! test -e {numvfs}"));
}

fn start_tenant<'a>(lab: &'a Lab, name: &str, vfs: Vec<PciAddr>) -> Tenant<'a> {
    let tenant = lab.host.start_tenant(&TenantPlan { name: name.to_owned(), vfs }).expect("starts");
    println!("{name} was ready after {:?}", tenant.wait_ready(TENANT_READY).expect("gets ready"));
    tenant
}

/// Waits for a VF in a tenant, and gives it an address.
fn give_address(tenant: &Tenant, vf: u8) {
    let up = format!(
        "until grep -qx {mac} /sys/class/net/*/address; do sleep 0.1; done; \
         dev=$(grep -lx {mac} /sys/class/net/*/address | cut -d/ -f5) && \
         ip addr add 10.0.0.{}/24 dev $dev && ip link set $dev up && \
         until grep -q 1 /sys/class/net/$dev/carrier; do sleep 0.1; done",
        vf + 1,
        mac = vf_mac(vf)
    );
    tenant.check(&up, SHORT).expect("the VF is the tenant's, with its MAC and a link");
}

/// Two PFs behind a switch each, on a NUMA node each, with a GPU beside each.
fn boot_beside_gpus(name: &str) -> Lab {
    let lab = boot(name, |plan| {
        plan.switches = vec![
            SwitchPlan { numa_node: 0, gpus: 1, acs: true },
            SwitchPlan { numa_node: 1, gpus: 1, acs: false },
        ];
        plan.pfs[0].switch = Some(0);
        plan.pfs.push(PfPlan { mac: FAR, cable: Cable::Wire(1), switch: Some(1) });
        plan.tenants = vec!["t1".to_owned()];
    });
    lab.host_file(4, &[PF, FAR]);
    lab
}

/// The entry of a list that has this value under this key.
fn with<'a>(list: &'a Value, key: &str, value: &str) -> &'a Value {
    let entries = list.as_array().expect("a list");
    let found = entries.iter().find(|entry| entry[key] == value);
    found.unwrap_or_else(|| panic!("no {key} {value} in {list}"))
}

/// `host show` knows NUMA nodes, GPUs, how far they are and what is on the way. Gives back where
/// the GPUs are: the one beside nic0 first.
fn what_is_near_is_shown(lab: &Lab) -> [String; 2] {
    let shown = lab.json("nobody", "show --json");
    let mut gpus = Vec::new();
    for (name, numa) in [("nic0", 0), ("nic1", 1)] {
        let pf = with(&shown["pfs"], "name", name);
        assert_eq!(pf["reading"]["numa_node"], numa, "{name}");
        let near = with(&pf["gpus"], "distance", "PIX");
        let far = with(&pf["gpus"], "distance", "SYS");
        assert_eq!(far["path"]["detour"], "no_common_bridge");
        let ports = near["path"]["ports"].as_array().expect("a list");
        assert_eq!(ports.len(), 2, "the switch's two downstream ports: {ports:?}");
        // The kernel turns on what keeps tenants apart, wherever a port can.
        let (acs, detour) = match name {
            "nic0" => (0x1d, &near["path"]["detour"]["redirected"]["bridge"]),
            _ => (0, &near["path"]["detour"]),
        };
        assert!(ports.iter().all(|port| port[1] == acs), "{name}: {ports:?}");
        assert_eq!(detour.is_null(), acs == 0, "{name}: {near}");
        gpus.push(near["address"].as_str().expect("an address").to_owned());
    }
    gpus.try_into().expect("two")
}

/// A VF of the PF beside the GPU, or none, or another: as it was asked.
fn affinity_is_kept(lab: &Lab, [near, far]: &[String; 2]) {
    let said = lab.refused("a", &format!("claim --gpu {far} --strict --pf nic0"));
    assert!(said.contains("SYS") && said.contains("preferred"), "{said}");
    // Beside that GPU there are VFs, but their switch does not keep them apart from their PF.
    let said = lab.refused("a", &format!("claim --gpu {far} --strict"));
    let pf = lab.host.pf_addr(FAR).expect("the PF is there").to_string();
    assert!(said.contains("IOMMU group") && said.contains(&pf), "{said}");
    for (gpu, pf, distance) in [(far, "nic0", "SYS"), (near, "nic0", "PIX")] {
        let claim = lab.json("a", &format!("claim --gpu {gpu}"));
        assert_eq!((&claim["pf"], &claim["distance"]), (&pf.into(), &distance.into()));
        lab.done("a", &format!("release {}", claim["id"].as_str().expect("a claim")));
    }
    // With the host's own driver there is no group to share.
    let claim = lab.json("a", &format!("claim --gpu {far} --strict --driver kernel"));
    assert_eq!((&claim["pf"], &claim["numa_node"]), (&"nic1".into(), &1.into()));
    lab.done("a", &format!("release {}", claim["id"].as_str().expect("a claim")));
}

/// What the ledger says of the VF of a claim.
fn life(lab: &Lab, claim: &Value) -> String {
    let shown = lab.json("nobody", "show --json");
    let pf = with(&shown["pfs"], "name", claim["pf"].as_str().expect("a PF"));
    pf["ledger"][claim["vf"].to_string()]["life"].as_str().expect("a life").to_owned()
}

/// The claimed VF into the running VM, where it is heard, and out of it, twice; then the VM dies.
fn plugged_in_and_out(lab: &Lab, tenant: &Tenant, claim: &Value, peer: &Value) {
    let id = claim["id"].as_str().expect("a claim");
    let hand = format!("{id} --qmp {}", tenant.monitor());
    let dev = peer["hand_over"]["netdev"].as_str().expect("an interface");
    lab.sh(&format!(
        "ip netns add peer && ip link set {dev} netns peer && \
         ip -n peer addr add 10.0.0.9/24 dev {dev} && ip -n peer link set {dev} up"
    ));
    for _ in 0..2 {
        lab.done("t1", &format!("attach {hand}"));
        give_address(tenant, 0);
        tenant.check("ping -c 3 -W 5 10.0.0.9", SHORT).expect("the VF is heard on its VLAN");
        let held = lab.refused("t1", &format!("release {id}"));
        assert!(held.contains("qemu-t1"), "{held}");
        assert_eq!(life(lab, claim), "attached");
        lab.done("t1", &format!("detach {hand}"));
        let gone = format!("! grep -qx {} /sys/class/net/*/address", vf_mac(0));
        tenant.check(&gone, SHORT).expect("the VF is the tenant's no more");
        assert_eq!(life(lab, claim), "bound");
    }
    lab.done("t1", &format!("attach {hand}"));
    give_address(tenant, 0);
    lab.sh("kill -9 $(pidof qemu-t1) && while pidof qemu-t1; do sleep 0.1; done");
    lab.done("nobody", "recover");
    assert_eq!(life(lab, claim), "bound");
    let kernel = lab.kernel_says(&claim["vf"]);
    assert!(kernel.contains(&vf_mac(0).to_string()) && kernel.contains("vlan 100"), "{kernel}");
}

#[test]
fn the_product_makes_vfs_plugs_one_beside_a_gpu_into_a_vm_and_takes_it_back_when_that_dies() {
    let lab = boot_beside_gpus("h3");
    let drift = lab.lanekeeper("nobody", "check /tmp/host.yaml");
    assert_eq!(drift.status, 2, "there are no VFs yet");
    lab.done("nobody", "apply /tmp/host.yaml");
    lab.done("nobody", "check /tmp/host.yaml");
    let gpus = what_is_near_is_shown(&lab);
    affinity_is_kept(&lab, &gpus);

    let claim = format!("claim --gpu {} --strict --vlan 100 --mac {}", gpus[0], vf_mac(0));
    let claim = lab.json("t1", &claim);
    let kernel = lab.kernel_says(&claim["vf"]);
    assert!(kernel.contains(&vf_mac(0).to_string()) && kernel.contains("vlan 100"), "{kernel}");
    let peer = lab.json("peer", "claim --pf nic0 --vlan 100 --driver kernel");

    let stranger = lab.host.start_tenant(&TenantPlan { name: "t9".to_owned(), vfs: Vec::new() });
    let refused = stranger.expect_err("is not in the plan").to_string();
    assert!(refused.contains("t9") && refused.contains("t1"), "{refused}");
    let tenant = start_tenant(&lab, "t1", Vec::new());
    plugged_in_and_out(&lab, &tenant, &claim, &peer);

    lab.sh("ip netns del peer");
    for (owner, claim) in [("t1", &claim), ("peer", &peer)] {
        lab.done(owner, &format!("release {}", claim["id"].as_str().expect("a claim")));
        let kernel = lab.kernel_says(&claim["vf"]);
        let mac = claim["settings"]["mac"].as_str().expect("a MAC");
        assert!(!kernel.contains("vlan") && !kernel.contains(mac), "{kernel}");
    }
    lab.done("nobody", "check /tmp/host.yaml");
}

#[test]
#[ignore = "minutes: two VMs within an emulated host"]
fn two_tenants_have_roce_between_their_vfs_and_none_across_vlans() {
    let lab = boot("h4", |plan| plan.tenants = ["t1", "t2"].map(str::to_owned).to_vec());
    let vfs = lab.make_vfs();
    let pf = lab.pf_interface();
    for (vf, addr) in vfs.iter().take(2).enumerate() {
        lab.bind(*addr, "vfio-pci");
        lab.sh(&format!("ip link set {pf} vf {vf} vlan 100"));
    }
    let [one, two] = [("t1", 0), ("t2", 1)].map(|(name, vf)| {
        let tenant = start_tenant(&lab, name, vec![vfs[usize::from(vf)]]);
        give_address(&tenant, vf);
        tenant
    });
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    let port = |tenant: &Tenant, last| {
        rxe_on(tenant, "rxe0", "eth0", address(last)).expect("software RoCE over the VF")
    };
    let (first, second) = (port(&one, 1), port(&two, 2));
    let client = RdmaEndpoint { host: &one, port: &first, exchange: address(1) };
    let server = RdmaEndpoint { host: &two, port: &second, exchange: address(2) };
    for test in [Perftest::write_bw(65_536, 20), Perftest::write_lat(50)] {
        let measured = rdma_measure(&test, &server, &client, TENANT_READY).expect("RDMA connects");
        println!("{measured:?}");
    }
    lab.sh(&format!("ip link set {pf} vf 1 vlan 200"));
    let ping = one.run("ping -c 3 -W 2 10.0.0.2", SHORT).expect("runs");
    assert!(!ping.success(), "the VLAN does not keep tenants apart: {}", ping.stdout);
}
