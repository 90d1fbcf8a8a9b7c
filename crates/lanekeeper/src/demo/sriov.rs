//! `lanekeeper demo --sriov`: the same job on real SR-IOV VFs. An emulated host with an emulated NIC
//! runs this very program: it makes VFs, claims them for tenants, hands them to VMs by VFIO, and
//! takes them back scrubbed.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use lanekeeper_emulated::{Cable, HostPlan, PfPlan, Rig, Share, SriovHost, Tenant, TenantPlan};
use lanekeeper_host::{Claim, DriverWanted};
use lanekeeper_model::MacAddr;
use lanekeeper_testbed::netns;
use lanekeeper_verify::{
    Host, HostError, Perftest, PingPlan, RdmaEndpoint, Report, Row, ping, rdma_measure, rxe_on,
    tcp_throughput,
};

use super::progress::Progress;
use super::residue::Site;
use super::{DemoError, Done, Outcome, checks, guide, vms};

/// How many times [`perform`] calls [`Progress::step`].
pub(super) const STEPS: usize = 15;

/// The host under emulation takes seconds for what takes milliseconds on hardware.
const PATIENCE: Duration = Duration::from_secs(120);
/// A VM in a VM boots in seconds on an idle machine, in minutes on one that does much else.
const READY: Duration = Duration::from_secs(600);
const PF: MacAddr = MacAddr([0x02, 0x1a, 0, 0, 0, 1]);
/// VLANs of the two tenants.
const A: u16 = 100;
const B: u16 = 200;
const WRITE_BW: Perftest = Perftest::write_bw(65_536, 20);
const TCP: Duration = Duration::from_secs(3);
/// The RoCE path MTU that Ethernet's 1500 bytes leave room for.
const ROCE_MTU: u64 = 1024;
const HOST_FILE: &str = "/tmp/host.yaml";
/// This program, as the host sees it.
const PROGRAM: &str = "/shared/bin/lanekeeper";

/// Run it and give back what was found.
///
/// # Errors
/// [`DemoError`] when a step that everything after it needs did not work.
pub(super) fn perform(site: &Site, keep: bool, progress: &Progress) -> Outcome {
    let began = Instant::now();
    progress.step("packages, kernel and a QEMU that emulates an SR-IOV NIC");
    let rig = Rig::prepare(&mut |what| progress.detail(what))?;
    progress.step("an emulated host with an SR-IOV NIC boots");
    let host = site.make(|| boot(site, &rig, keep))?;
    progress.detail(&format!("ready after {:.1} s", host.wait_ready(READY)?.as_secs_f64()));
    let lab = Lab { host: &host, progress };
    let mut report = Report::new(
        "Lanekeeper demo: real VFs of an emulated SR-IOV NIC, in VMs of two tenants by VFIO",
    );
    lab.show(&mut report)?;
    report.statements.push(
        "Emulated: the host, its IOMMU and its NIC (QEMU's igb, an Intel 82576 with 7 VFs) and every \
         CPU. Real: the kernel's PF and VF drivers, VFIO, and every command shown. This NIC enforces \
         VLANs and MACs; it takes anti-spoof and rates without effect. The figures show that it works, \
         never how fast hardware would be."
            .to_owned(),
    );
    let took = began.elapsed().as_secs();
    let holds = if report.holds() { "all hold" } else { "NOT all hold" };
    report.statements.push(format!("{} checks, {holds} in {took} s.", report.rows.len()));
    if keep {
        // There it is called by its name alone.
        lab.sh(&format!("ln -s {PROGRAM} /usr/bin/lanekeeper"))?;
        vms::keep(site, vec![host.keep_running()?])?;
    }
    Ok(Done { report, guide: guide::write_sriov(&crate::program(), HOST_FILE) })
}

fn boot(site: &Site, rig: &Rig, keep: bool) -> Result<SriovHost, DemoError> {
    let program = std::env::current_exe()
        .map_err(|error| DemoError::file("/proc/self/exe".as_ref(), error))?;
    let folder = program.parent().unwrap_or("/".as_ref()).to_owned();
    // By it, whoever cleans up finds the host's process.
    let mut lab = netns::Lab::named(site.prefix());
    let home = lab.namespace("host")?;
    lab.keep();
    Ok(rig.start(HostPlan {
        name: "host".to_owned(),
        pfs: vec![PfPlan { mac: PF, cable: Cable::Wire(0), switch: None }],
        switches: Vec::new(),
        shares: vec![Share { tag: "bin".to_owned(), folder }],
        tenants: vec!["a1".to_owned(), "a2".to_owned()],
        run_folder: site.folder().to_owned(),
        namespace: Some(home.path()),
        dies_with_parent: !keep,
    })?)
}

struct Lab<'a> {
    host: &'a SriovHost,
    progress: &'a Progress,
}

impl<'a> Lab<'a> {
    fn show(&self, report: &mut Report) -> Result<(), DemoError> {
        self.progress.step("lanekeeper host apply: 4 VFs");
        let row = Row::new("PF → VF", "host", "lanekeeper host apply");
        let began = Instant::now();
        self.sh(&format!(
            "echo 'version: 1
pfs:
  - {{ name: nic0, select: {{ permanent_mac: \"{PF}\" }}, vfs: 4, pools: [lanes] }}' >{HOST_FILE}"
        ))?;
        self.lanekeeper("", &format!("apply {HOST_FILE}"))?;
        report
            .rows
            .push(row.seen(format!("4 VFs, scrubbed, {:.1} s", began.elapsed().as_secs_f64())));

        let mut claims = Vec::new();
        for (name, vlan, driver) in [
            ("a1", A, DriverWanted::VfioPci),
            ("a2", A, DriverWanted::VfioPci),
            ("a3", A, DriverWanted::Kernel),
            ("b1", B, DriverWanted::Kernel),
        ] {
            self.progress.step(&format!("lanekeeper host claim: {name}"));
            let claim = self.claim(name, vlan, driver)?;
            report.rows.push(
                Row::new("claim", name, format!("VLAN {vlan}, {}", word(driver))).seen(format!(
                    "VF {} at {}, IOMMU group {}",
                    claim.vf,
                    claim.address,
                    claim.iommu_group.map_or_else(|| "none".to_owned(), |group| group.to_string())
                )),
            );
            claims.push(claim);
        }
        let [a1, a2, a3, b1] = &claims[..] else {
            return Err(DemoError::Plan("four claims were asked for".to_owned()));
        };
        let one = self.tenant("a1", a1, 1, report)?;
        let two = self.tenant("a2", a2, 2, report)?;
        self.lanes(&one, &two, report)?;
        self.isolation(a3, b1, report)?;
        self.progress.step("release while a VM holds the VF");
        let held = self.host.run(&command("a1", &format!("release {}", a1.id)), PATIENCE)?;
        let row = Row::new("VF → PF", "a1", "release, VM runs");
        report.rows.push(if held.success() {
            row.fails("a VF went from under its VM; look at the holder that `host show` names")
        } else {
            row.seen(format!("refused: {}", held.complaint()))
        });
        self.progress.step("VMs end; lanekeeper host release");
        one.kill()?;
        two.kill()?;
        for (name, claim) in [("a1", a1), ("a2", a2), ("a3", a3), ("b1", b1)] {
            report.rows.push(self.release(name, claim)?);
        }
        self.progress.step("lanekeeper host check");
        let drift = self.host.run(&command("", &format!("check {HOST_FILE}")), PATIENCE)?;
        let row = Row::new("VF → PF", "host", "lanekeeper host check").seen(drift.stdout.trim());
        report.rows.push(if drift.success() { row } else { row.fails("see what differs") });
        Ok(())
    }

    fn sh(&self, text: &str) -> Result<String, HostError> {
        self.host.check(text, PATIENCE)
    }

    fn lanekeeper(&self, name: &str, arguments: &str) -> Result<String, HostError> {
        self.sh(&command(name, arguments))
    }

    fn claim(&self, name: &str, vlan: u16, driver: DriverWanted) -> Result<Claim, DemoError> {
        let arguments = format!("claim --pool lanes --vlan {vlan} --driver {}", word(driver));
        let said = self.lanekeeper(name, &arguments)?;
        serde_json::from_str(&said).map_err(|error| DemoError::plan(&error))
    }

    /// Boot a tenant's VM with a claimed VF, and give it an address on it.
    fn tenant(
        &self,
        name: &str,
        claim: &Claim,
        last: u8,
        report: &mut Report,
    ) -> Result<Tenant<'a>, DemoError> {
        self.progress.step(&format!("VM {name} boots with its VF"));
        let vf = claim.address.into();
        let tenant =
            self.host.start_tenant(&TenantPlan { name: name.to_owned(), vfs: vec![vf] })?;
        let ready = tenant.wait_ready(READY)?;
        let mac = claim.settings.mac;
        tenant.check(
            &format!(
                "dev=$(grep -lx {mac} /sys/class/net/*/address | cut -d/ -f5) && \
                 ip addr add {}/24 dev $dev && ip link set $dev up && \
                 until grep -q 1 /sys/class/net/$dev/carrier; do sleep 0.1; done",
                address(last)
            ),
            PATIENCE,
        )?;
        report.rows.push(
            Row::new("VF → VM", name, "VFIO passthrough")
                .seen(format!("MAC {mac}, ready after {:.1} s", ready.as_secs_f64())),
        );
        Ok(tenant)
    }

    fn lanes(&self, one: &Tenant, two: &Tenant, report: &mut Report) -> Result<(), DemoError> {
        let remedy = "look at link and VLAN of both VFs: lanekeeper host show";
        let lane = |what: &str| Row::new("VF, same NIC", "a1 → a2", what);
        let end = |tenant: &Tenant, last| rxe_on(tenant, "rxe0", "eth0", address(last).into());
        let (first, second) = (end(one, 1)?, end(two, 2)?);
        let client = RdmaEndpoint { host: one, port: &first, exchange: address(1).into() };
        let server = RdmaEndpoint { host: two, port: &second, exchange: address(2).into() };
        self.progress.step("VF, same NIC: ping");
        report.rows.push(checks::judged(lane("ping, 84 bytes"), remedy, |mut row| {
            let ping = ping(one, address(2).into(), &PingPlan::default())?;
            (row.latency, row.loss) = (ping.round_trip, Some(ping.loss));
            Ok(if ping.loss.none() { row.seen("round trip") } else { row.fails(remedy) })
        })?);
        self.progress.step("VF, same NIC: ib_write_bw");
        report.rows.push(checks::judged(lane("ib_write_bw, 64 KiB"), remedy, |row| {
            let measured = rdma_measure(&WRITE_BW, &server, &client, PATIENCE)?;
            Ok(checks::judge_rdma(row, &measured, ROCE_MTU, remedy))
        })?);
        self.progress.step("VF, same NIC: TCP");
        report.rows.push(checks::judged(lane("TCP, iperf3"), remedy, |mut row| {
            let tcp = tcp_throughput(two, address(2).into(), one, TCP)?;
            (row.throughput, row.loss) = (Some(tcp.throughput), Some(tcp.loss));
            Ok(row)
        })?);
        Ok(())
    }

    /// Two more VFs with the host's own driver, each in a network namespace: one of A, which shows
    /// that the way is there, and one of B, which must not find it.
    fn isolation(&self, a3: &Claim, b1: &Claim, report: &mut Report) -> Result<(), DemoError> {
        self.progress.step("tenants are kept apart");
        for (name, claim, last) in [("a3", a3, 3), ("b1", b1, 4)] {
            let dev = claim.hand_over.netdev.as_deref().unwrap_or("none");
            self.sh(&format!(
                "ip netns add {name} && ip link set {dev} netns {name} && \
                 ip -n {name} addr add {}/24 dev {dev} && ip -n {name} link set {dev} up && \
                 until ip netns exec {name} grep -q 1 /sys/class/net/{dev}/carrier; do sleep 0.1; done",
                address(last)
            ))?;
        }
        for (name, reaches) in [("a3", true), ("b1", false)] {
            let from = InNamespace { host: self.host, name };
            let plan = PingPlan::default();
            let found = ping(&from, address(1).into(), &plan)?;
            let row = Row::new("isolation", format!("{name} → a1"), "ping");
            let row = Row { loss: Some(found.loss), ..row };
            let silent = found.loss.of > 0 && found.loss.lost == found.loss.of;
            report.rows.push(match (reaches, found.loss.none(), silent) {
                (true, true, _) => row.seen("control: same VLAN, all answered"),
                (false, _, true) => row.seen("another VLAN, none answered"),
                (true, ..) => row.fails("the control does not get through: lanekeeper host show"),
                (false, ..) => row.fails("the NIC does not keep VLANs apart"),
            });
        }
        Ok(())
    }

    fn release(&self, name: &str, claim: &Claim) -> Result<Row, DemoError> {
        // The namespace gives the interface back to the host.
        self.sh(&format!("ip netns del {name} 2>/dev/null || true"))?;
        let said = self.lanekeeper(name, &format!("release {}", claim.id))?;
        let pf = self.sh(&format!("ls /sys/bus/pci/devices/{}/net", claim.pf_address))?;
        let kernel = self.sh(&format!("ip link show {} | grep 'vf {} '", pf.trim(), claim.vf))?;
        let row = Row::new("VF → PF", name, "release, scrub");
        let clean = !kernel.contains("vlan") && !kernel.contains(&claim.settings.mac.to_string());
        Ok(if clean {
            row.seen(format!("VF {}: no MAC, no VLAN, reset", claim.vf))
        } else {
            row.seen(said).fails(format!("the kernel still says: {}", kernel.trim()))
        })
    }
}

fn command(name: &str, arguments: &str) -> String {
    format!("LANEKEEPER_LOG=warn LANEKEEPER_TOKEN=token-of-{name} {PROGRAM} host {arguments}")
}

fn word(driver: DriverWanted) -> &'static str {
    match driver {
        DriverWanted::VfioPci => "vfio-pci",
        DriverWanted::Kernel => "kernel",
    }
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

/// A network namespace of the emulated host.
struct InNamespace<'a> {
    host: &'a SriovHost,
    name: &'a str,
}

impl Host for InNamespace<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn start(&self, command: &str) -> Result<Box<dyn lanekeeper_verify::Job + '_>, HostError> {
        let quoted = command.replace('\'', r"'\''");
        self.host.start(&format!("ip netns exec {} sh -c '{quoted}'", self.name))
    }
}
