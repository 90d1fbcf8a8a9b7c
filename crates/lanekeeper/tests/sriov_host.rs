//! An emulated host with real drivers: what its NIC does is what the product relies on, and the
//! product's own program runs in it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use lanekeeper_emulated::{Cable, HostPlan, PfPlan, Rig, Share, SriovHost, Tenant, TenantPlan};
use lanekeeper_model::{MacAddr, PciAddr};
use lanekeeper_verify::{Perftest, RdmaEndpoint, rdma_measure, rxe_on};
use lanekeeper_vmm::Host;
use tempfile::TempDir;

/// Far more than a boot takes on an idle machine, since tests share theirs.
const READY: Duration = Duration::from_secs(180);
const SHORT: Duration = Duration::from_secs(60);
/// A VM within an emulated machine: its CPU is emulated, and switches into it as well.
const TENANT_READY: Duration = Duration::from_secs(600);

const PF: MacAddr = MacAddr([0x02, 0x1a, 0, 0, 0, 1]);

fn vf_mac(vf: u8) -> MacAddr {
    MacAddr([0x02, 0x1a, 0, 0, 1, vf])
}

/// A host with one PF, in a folder that is removed after it.
struct Emulated {
    host: SriovHost,
    _folder: TempDir,
}

fn boot(name: &str, tenants: &[&str]) -> Emulated {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::prepare(&mut |step| println!("{step}")).expect("a rig");
    let program = Path::new(env!("CARGO_BIN_EXE_lanekeeper"));
    let host = rig.start(HostPlan {
        name: name.to_owned(),
        pfs: vec![PfPlan { mac: PF, cable: Cable::Wire(0) }],
        shares: vec![Share {
            tag: "bin".to_owned(),
            folder: program.parent().expect("in a folder").to_owned(),
        }],
        tenants: tenants.iter().map(|&name| name.to_owned()).collect(),
        run_folder: folder.path().to_owned(),
    });
    let host = host.expect("starts");
    println!("{name} was ready after {:?}", host.wait_ready(READY).expect("gets ready"));
    Emulated { host, _folder: folder }
}

impl Emulated {
    fn sh(&self, command: &str) -> String {
        self.host.check(command, SHORT).unwrap_or_else(|error| panic!("{error}"))
    }

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

    fn pf_interface(&self) -> String {
        self.interface(PF).expect("the PF has an interface")
    }

    fn interface(&self, mac: MacAddr) -> Option<String> {
        let names = self.sh(&format!("grep -lx {mac} /sys/class/net/*/address || true"));
        names.split('/').nth(4).map(str::to_owned)
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

    fn hears(&self, from: u8, to: u8) -> bool {
        let ping = format!("ip netns exec t{from} ping -c 3 -i 0.3 -W 2 10.0.0.{}", to + 1);
        self.host.run(&ping, SHORT).expect("runs").success()
    }
}

#[test]
fn seven_vfs_have_a_link_and_their_mac_and_their_vlan_keeps_them_apart() {
    let lab = boot("h1", &[]);
    let vfs = lab.make_vfs();
    assert_eq!(vfs.len(), 7);
    for (vf, addr) in (0..2).zip(&vfs) {
        lab.bind(*addr, "igbvf");
        lab.isolate(vf);
    }
    let pf = lab.pf_interface();
    lab.sh(&format!("ip link set {pf} vf 0 vlan 100 && ip link set {pf} vf 1 vlan 100"));
    assert!(lab.hears(0, 1), "two VFs of one VLAN do not hear each other");
    lab.sh(&format!("ip link set {pf} vf 1 vlan 200"));
    assert!(!lab.hears(0, 1), "the VLAN does not keep VFs apart");
    lab.sh(&format!("ip link set {pf} vf 1 vlan 100"));
    assert!(lab.hears(0, 1), "a VF that is back in its VLAN is not heard");

    // A VF's carrier says nothing of the PF's link.
    lab.host.set_link(0, false).expect("unplugged");
    lab.sh(&format!("until grep -q 0 /sys/class/net/{pf}/carrier; do sleep 0.1; done"));
    lab.host.set_link(0, true).expect("plugged in");
    lab.sh(&format!("until grep -q 1 /sys/class/net/{pf}/carrier; do sleep 0.1; done"));
    assert!(lab.hears(0, 1), "traffic does not come back with the link");
}

#[test]
fn a_vf_goes_to_vfio_in_a_group_of_its_own_and_keeps_its_settings_over_a_reset() {
    let lab = boot("h2", &[]);
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

/// Starts a tenant on a VF that is bound to vfio-pci, and gives it an address on it.
fn tenant<'a>(lab: &'a Emulated, name: &str, vf: u8, addr: PciAddr) -> Tenant<'a> {
    let plan = TenantPlan { name: name.to_owned(), vfs: vec![addr] };
    let tenant = lab.host.start_tenant(&plan).expect("starts");
    println!("{name} was ready after {:?}", tenant.wait_ready(TENANT_READY).expect("gets ready"));
    let up = format!(
        "dev=$(grep -lx {} /sys/class/net/*/address | cut -d/ -f5) && \
         ip addr add 10.0.0.{}/24 dev $dev && ip link set $dev up && \
         until grep -q 1 /sys/class/net/$dev/carrier; do sleep 0.1; done",
        vf_mac(vf),
        vf + 1
    );
    tenant.check(&up, SHORT).expect("the VF is the tenant's, with its MAC and a link");
    tenant
}

#[test]
fn the_product_makes_vfs_claims_one_for_a_tenant_and_takes_it_back() {
    let lab = boot("h3", &["t1"]);
    let lanekeeper = |arguments: &str| {
        let command =
            format!("LANEKEEPER_TOKEN=token-of-t1 /shared/bin/lanekeeper host {arguments}");
        lab.host.run(&command, SHORT).expect("runs")
    };
    let done = |arguments: &str| {
        let output = lanekeeper(arguments);
        assert!(output.success(), "{arguments}: {}", output.complaint());
        output.stdout
    };
    lab.sh(&format!(
        "echo 'version: 1
pfs:
  - {{ name: nic0, select: {{ permanent_mac: \"{PF}\" }}, vfs: 4 }}' >/tmp/host.yaml"
    ));
    assert_eq!(lanekeeper("check /tmp/host.yaml").status, 2, "there are no VFs yet");
    done("apply /tmp/host.yaml");
    done("check /tmp/host.yaml");

    let claim = done(&format!("claim --vlan 100 --mac {}", vf_mac(0)));
    let claim: serde_json::Value = serde_json::from_str(&claim).expect("JSON");
    let text = |key: &str| claim[key].as_str().expect("is there").to_owned();
    let addr = text("address").parse().expect("an address");
    let kernel =
        lab.sh(&format!("ip link show {} | grep 'vf {} '", lab.pf_interface(), claim["vf"]));
    assert!(kernel.contains(&vf_mac(0).to_string()) && kernel.contains("vlan 100"), "{kernel}");

    let tenant = tenant(&lab, "t1", 0, addr);
    let held = lanekeeper(&format!("release {}", text("id")));
    assert!(!held.success() && held.complaint().contains("qemu-t1"), "{}", held.complaint());
    let stranger = lab.host.start_tenant(&TenantPlan { name: "t9".to_owned(), vfs: Vec::new() });
    let refused = stranger.expect_err("is not in the plan").to_string();
    assert!(refused.contains("t9") && refused.contains("t1"), "{refused}");

    tenant.kill().expect("killed");
    done(&format!("release {}", text("id")));
    let kernel =
        lab.sh(&format!("ip link show {} | grep 'vf {} '", lab.pf_interface(), claim["vf"]));
    assert!(!kernel.contains("vlan") && !kernel.contains(&vf_mac(0).to_string()), "{kernel}");
    done("check /tmp/host.yaml");
}

#[test]
#[ignore = "minutes: two VMs within an emulated host"]
fn two_tenants_have_roce_between_their_vfs_and_none_across_vlans() {
    let lab = boot("h4", &["t1", "t2"]);
    let vfs = lab.make_vfs();
    let pf = lab.pf_interface();
    for (vf, addr) in vfs.iter().take(2).enumerate() {
        lab.bind(*addr, "vfio-pci");
        lab.sh(&format!("ip link set {pf} vf {vf} vlan 100"));
    }
    let (one, two) = (tenant(&lab, "t1", 0, vfs[0]), tenant(&lab, "t2", 1, vfs[1]));
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    let port = |tenant: &Tenant, last| {
        rxe_on(tenant, "rxe0", "eth0", address(last)).expect("software RoCE over the VF")
    };
    let (first, second) = (port(&one, 1), port(&two, 2));
    let client = RdmaEndpoint { host: &one, port: &first, exchange: address(1) };
    let server = RdmaEndpoint { host: &two, port: &second, exchange: address(2) };
    let test = Perftest::write_bw(65_536, 20);
    let measured = rdma_measure(&test, &server, &client, TENANT_READY).expect("RDMA connects");
    println!("{measured:?}");
    lab.sh(&format!("ip link set {pf} vf 1 vlan 200"));
    let ping = one.run("ping -c 3 -W 2 10.0.0.2", SHORT).expect("runs");
    assert!(!ping.success(), "the VLAN does not keep tenants apart: {}", ping.stdout);
}
