//! What the demo proves, in the order in which it is shown: lanes on one host, lanes across hosts,
//! the traditional path beside them, and tenants kept apart.

use std::net::Ipv4Addr;
use std::time::Duration;

use lanekeeper_hw::Hardware;
use lanekeeper_model::{MacAddr, PfId, VfChange, VfIndex, VlanId, VlanTag};
use lanekeeper_verify::{
    Forgery, Host, HostError, Isolation, Loss, Measured, Perftest, PingPlan, ProbeError,
    RdmaEndpoint, RdmaPort, Reach, Report, Row, arping, converged, forge, largest_packet, ping,
    rdma_connects, rdma_measure, rxe_on, tcp_throughput,
};

use super::plan::{self, MTU, PREFIX, PlannedVm, Tenant};
use super::progress::Progress;
use super::residue::Site;
use super::{DemoError, hosts};

/// How many times [`run`] calls [`Progress::step`].
pub(super) const STEPS: usize = 2 * LANE_STEPS + 2 * BRIDGED_STEPS + ISOLATION_STEPS;
/// How many times [`run_for_tenants`] does.
pub(super) const TENANT_STEPS: usize = 2 * LANE_STEPS + APART_STEPS;
const BRIDGED_STEPS: usize = 5;
const LANE_STEPS: usize = 8;
const ISOLATION_STEPS: usize = 9;
const APART_STEPS: usize = 7;

/// Longest one measurement may take: ten times what it takes on emulated CPUs that are shared.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long RDMA may stay unanswered before it counts as silent: three times what an answered
/// attempt takes on emulated CPUs.
const SILENCE: Duration = Duration::from_secs(10);
const TCP: Duration = Duration::from_secs(2);
/// Message of 64 KiB, as perftest sends by default.
const WRITE_BW: Perftest = Perftest::write_bw(65_536, 120);
/// Long enough to run beside [`TCP`].
const WRITE_BW_LONG: Perftest = Perftest::write_bw(65_536, 300);
const WRITE_LAT: Perftest = Perftest::write_lat(100);
const SEND_LAT: Perftest = Perftest::send_lat(100);
/// The RoCE path MTU that jumbo packets must bring: the largest there is (InfiniBand's 4096).
const ROCE_MTU: u64 = 4096;
/// Of ten thousand RoCE packets this many may be lost and sent again: receive rings of emulated
/// CPUs overflow now and then, and there is no PFC on a software NIC.
const TOLERATED: u64 = 100;

/// One NIC of a VM, set up.
pub(super) struct Nic {
    pub(super) netdev: String,
    pub(super) address: Ipv4Addr,
    pub(super) rdma: RdmaPort,
}

/// A VM whose NICs are set up.
pub(super) struct Station<'a> {
    pub(super) name: String,
    /// Which of [`plan::HOSTS`].
    pub(super) host: usize,
    pub(super) machine: &'a dyn Host,
    /// Where its lane is.
    pub(super) pf: PfId,
    pub(super) vf: VfIndex,
    pub(super) mac: MacAddr,
    pub(super) lane: Nic,
    /// Its traditional NIC, if it has one.
    pub(super) bridged: Option<Nic>,
}

impl Station<'_> {
    /// The NIC beside its lane; without one, the lane.
    fn aside(&self) -> &Nic {
        self.bridged.as_ref().unwrap_or(&self.lane)
    }
}

/// Give both NICs of a VM their MTU, address and RDMA device.
///
/// # Errors
/// [`DemoError::Probe`] when the VM refuses.
pub(super) fn set_up(vm: PlannedVm, host: &dyn Host) -> Result<Station<'_>, DemoError> {
    let lane = set_up_nic(host, vm.lane_mac(), vm.lane_address(), "rxe0")?;
    let bridged = set_up_nic(host, vm.bridged_mac(), vm.bridged_address(), "rxe1")?;
    Ok(Station {
        name: vm.name.to_owned(),
        host: vm.host,
        machine: host,
        pf: plan::pf(vm.host)?,
        vf: vm.vf()?,
        mac: vm.lane_mac(),
        lane,
        bridged: Some(bridged),
    })
}

fn set_up_nic(
    host: &dyn Host,
    mac: MacAddr,
    address: Ipv4Addr,
    device: &str,
) -> Result<Nic, ProbeError> {
    // Names of interfaces depend on the order in which the kernel finds them; MACs do not.
    let find = format!(
        "for d in /sys/class/net/*; do read m < $d/address; [ \"$m\" = {mac} ] && n=${{d##*/}}; \
         done; [ -n \"$n\" ] || {{ echo 'no interface has MAC {mac}' >&2; exit 1; }}; \
         ip link set $n mtu {MTU} up && ip address add {address}/{PREFIX} dev $n && echo $n"
    );
    let netdev = host.check(&find, PATIENCE)?.trim().to_owned();
    let rdma = rxe_on(host, device, &netdev, address.into())?;
    Ok(Nic { netdev, address, rdma })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Lane,
    Bridged,
}

impl Path {
    fn of<'s>(self, station: &'s Station<'_>) -> &'s Nic {
        match self {
            Self::Lane => &station.lane,
            Self::Bridged => station.aside(),
        }
    }
}

/// Between whom and over what a measurement runs.
#[derive(Clone, Copy)]
struct Between<'a> {
    path: Path,
    client: &'a Station<'a>,
    server: &'a Station<'a>,
}

impl<'a> Between<'a> {
    fn name(&self) -> String {
        let nic = match self.path {
            Path::Lane => "VF",
            Path::Bridged => "bridge",
        };
        let hosts = if self.client.host == self.server.host { "same host" } else { "across hosts" };
        format!("{nic}, {hosts}")
    }

    fn row(&self, what: &str) -> Row {
        Row::new(self.name(), format!("{} → {}", self.client.name, self.server.name), what)
    }

    fn endpoint(&self, station: &'a Station<'a>) -> RdmaEndpoint<'a> {
        let nic = self.path.of(station);
        RdmaEndpoint { host: station.machine, port: &nic.rdma, exchange: nic.address.into() }
    }

    fn target(&self) -> Ipv4Addr {
        self.path.of(self.server).address
    }

    fn remedy(&self) -> String {
        match self.path {
            Path::Lane => {
                look_at_vfs("run again with --keep and look at link and drops of the VFs")
            }
            Path::Bridged => {
                "run again with --keep and look at the bridge: ip -n lkdemo-host1 -s link"
                    .to_owned()
            }
        }
    }
}

/// What to do, with the command that shows the VFs of both hosts.
fn look_at_vfs(what: &str) -> String {
    let root = hosts::nics_folder(&Site::default());
    format!("{what}: {} softnic show --run-root {}", crate::program(), root.display())
}

/// Everything that is checked, made into a report as it goes.
pub(super) struct Checks<'a> {
    progress: &'a Progress,
    hardware: &'a dyn Hardware,
    /// Fails once the run has no sense any more.
    watch: &'a mut dyn FnMut() -> Result<(), DemoError>,
    report: Report,
}

/// Check everything. A check that does not hold is a row that says so; the run goes on.
///
/// # Errors
/// [`DemoError::Probe`] when a VM no longer answers, [`DemoError::Hardware`] when a NIC does not,
/// and those of `watch`, which is asked before each check.
pub(super) fn run(
    stations: &[Station<'_>],
    hardware: &dyn Hardware,
    watch: &mut dyn FnMut() -> Result<(), DemoError>,
    progress: &Progress,
    title: String,
) -> Result<Report, DemoError> {
    let [a1, a2, a3, b1] = stations else {
        return Err(DemoError::Plan(format!("there are {} VMs, not four", stations.len())));
    };
    let mut checks = Checks { progress, hardware, watch, report: Report::new(title) };
    let between = |path, client, server| Between { path, client, server };
    checks.lane(between(Path::Lane, a1, a2))?;
    checks.lane(between(Path::Lane, a1, a3))?;
    checks.bridged(between(Path::Bridged, a1, a2))?;
    checks.bridged(between(Path::Bridged, a1, a3))?;
    checks.isolation(b1, a1, a3)?;
    Ok(checks.report)
}

/// Check VMs that were made through the API: lanes of A's, and that they are kept from B's.
///
/// # Errors
/// As [`run`].
pub(super) fn run_for_tenants(
    tenants: &Tenants<'_>,
    hardware: &dyn Hardware,
    watch: &mut dyn FnMut() -> Result<(), DemoError>,
    progress: &Progress,
    report: Report,
) -> Result<Report, DemoError> {
    let Tenants { near: [one, two], far, .. } = tenants;
    let mut checks = Checks { progress, hardware, watch, report };
    checks.lane(Between { path: Path::Lane, client: one, server: two })?;
    checks.lane(Between { path: Path::Lane, client: one, server: far })?;
    checks.apart(tenants)?;
    Ok(checks.report)
}

/// VMs of two tenants, whose networks have the same addresses.
pub(super) struct Tenants<'a> {
    /// Two of A's on one host.
    pub(super) near: [Station<'a>; 2],
    /// One of A's on another host.
    pub(super) far: Station<'a>,
    /// One of B's, on the host of A's two.
    pub(super) intruder: Station<'a>,
    /// Another of B's.
    pub(super) friend: Station<'a>,
    pub(super) vlan_of_a: VlanId,
    pub(super) vlan_of_b: VlanId,
}

impl Checks<'_> {
    /// Make one check. What it finds wrong becomes a failing row; a VM that is gone ends the run.
    fn check(
        &mut self,
        row: Row,
        remedy: &str,
        look: impl FnOnce(Row) -> Result<Row, ProbeError>,
    ) -> Result<(), DemoError> {
        let Row { path, between, what, .. } = &row;
        (self.watch)()?;
        self.progress.step(&format!("{path}: {between}: {what}"));
        self.report.rows.push(judged(row, remedy, look)?);
        Ok(())
    }

    fn lane(&mut self, between: Between<'_>) -> Result<(), DemoError> {
        self.neighbour(between)?;
        self.bridged(between)?;
        self.jumbo(between)?;
        self.converged(between)
    }

    /// The address on the link belongs to the station it should, and to no other.
    fn neighbour(&mut self, between: Between<'_>) -> Result<(), DemoError> {
        let Between { client, server, .. } = between;
        let remedy = &between.remedy();
        self.check(between.row("ARP"), remedy, |mut row| {
            let replies = arping(client.machine, &client.lane.netdev, between.target(), 2)?;
            row.loss = Some(replies.loss);
            Ok(match replies.stations[..] {
                [station] if station == server.mac => row.seen(format!("{station} answers")),
                _ => row.seen(format!("{:?} answer", replies.stations)).fails(remedy),
            })
        })
    }

    fn bridged(&mut self, between: Between<'_>) -> Result<(), DemoError> {
        let Between { client, server, .. } = between;
        let remedy = &between.remedy();
        self.check(between.row("ping, 84 bytes"), remedy, |mut row| {
            let ping = ping(client.machine, between.target().into(), &PingPlan::default())?;
            (row.latency, row.loss) = (ping.round_trip, Some(ping.loss));
            Ok(if ping.loss.none() { row.seen("round trip") } else { row.fails(remedy) })
        })?;
        for (test, what) in [
            (WRITE_BW, "ib_write_bw, 64 KiB"),
            (WRITE_LAT, "ib_write_lat, 2 bytes"),
            (SEND_LAT, "ib_send_lat, 2 bytes"),
        ] {
            self.check(between.row(what), remedy, |row| {
                let (from, to) = (between.endpoint(client), between.endpoint(server));
                let measured = rdma_measure(&test, &to, &from, PATIENCE)?;
                Ok(judge_rdma(row, &measured, ROCE_MTU, remedy))
            })?;
        }
        self.check(between.row("TCP, iperf3"), remedy, |mut row| {
            let to = between.target().into();
            let tcp = tcp_throughput(server.machine, to, client.machine, TCP)?;
            (row.throughput, row.loss) = (Some(tcp.throughput), Some(tcp.loss));
            Ok(row)
        })
    }

    fn jumbo(&mut self, between: Between<'_>) -> Result<(), DemoError> {
        let remedy = &between.remedy();
        self.check(between.row("ping, 9000 bytes"), remedy, |mut row| {
            let ping = largest_packet(between.client.machine, between.target().into(), MTU)?;
            (row.latency, row.loss) = (ping.round_trip, Some(ping.loss));
            Ok(if ping.loss.none() { row.seen("in one piece") } else { row.fails(remedy) })
        })
    }

    fn converged(&mut self, between: Between<'_>) -> Result<(), DemoError> {
        let Between { client, server, .. } = between;
        let remedy = &between.remedy();
        let rdma_row = between.row("converged: ib_write_bw");
        let mut tcp_row = between.row("converged: TCP, iperf3");
        self.check(rdma_row, remedy, |row| {
            let both = converged(
                &WRITE_BW_LONG,
                &between.endpoint(server),
                &between.endpoint(client),
                between.target().into(),
                2 * TCP,
                PATIENCE,
            )?;
            tcp_row.throughput = Some(both.tcp.throughput);
            tcp_row.loss = Some(both.tcp.loss);
            let overlap = format!("{:.1} s at once on one VF", both.together.as_secs_f64());
            let row = judge_rdma(row, &both.rdma, ROCE_MTU, remedy).seen(overlap.as_str());
            tcp_row.seen = overlap;
            Ok(if both.together >= TCP / 2 {
                row
            } else {
                row.fails("the streams did not overlap; run again")
            })
        })?;
        if tcp_row.throughput.is_some() {
            self.report.rows.push(tcp_row);
        }
        Ok(())
    }

    /// B's VM tries to reach A's: once moved into A's VLAN, as the control that shows the tools and
    /// the VF work, and once in its own.
    fn isolation(
        &mut self,
        intruder: &Station<'_>,
        near: &Station<'_>,
        far: &Station<'_>,
    ) -> Result<(), DemoError> {
        for target in [near, far] {
            acquaint(intruder, target)?;
            acquaint(target, intruder)?;
        }
        self.progress.step("isolation: control: b1's VF moves into A's VLAN");
        self.move_to(intruder, Tenant::A)?;
        let attempts =
            |target| Attempts { intruder, target, control: "answered in A's VLAN".to_owned() };
        let (near, far) = (attempts(near), attempts(far));
        let controls = [near.by_arp(), near.by_ping(), far.by_ping(), near.by_rdma(PATIENCE)];
        self.progress.step("isolation: b1's VF goes back into B's VLAN");
        self.move_to(intruder, Tenant::B)?;
        let [arp, echo, echo_far, rdma] = controls;
        self.must_not_reach(&near, "ARP", arp, Attempts::by_arp)?;
        self.must_not_reach(&near, "ping", echo, Attempts::by_ping)?;
        self.must_not_reach(&far, "ping, across hosts", echo_far, Attempts::by_ping)?;
        self.must_not_reach(&near, "ib_write_bw", rdma, |near| near.by_rdma(SILENCE))?;
        self.must_drop_forgeries(intruder, near.target, [Tenant::A.vlan()?, Tenant::B.vlan()?])
    }

    /// B's VM tries to reach A's, by what reaches its own tenant's VM: that is the control.
    fn apart(&mut self, tenants: &Tenants<'_>) -> Result<(), DemoError> {
        let Tenants { near: [near, _], far, intruder, friend, .. } = tenants;
        for target in [near, far, friend] {
            acquaint(intruder, target)?;
            acquaint(target, intruder)?;
        }
        let control = format!("{} answers, in its own network", friend.name);
        let attempts = |target| Attempts { intruder, target, control: control.clone() };
        self.progress.step("isolation: control: B's VMs reach each other");
        let own = attempts(friend);
        let (arp, echo, echo_far) = (own.by_arp(), own.by_ping(), own.by_ping());
        let (near_attempts, far_attempts) = (attempts(near), attempts(far));
        self.must_not_reach(&near_attempts, "ARP", arp, Attempts::by_arp)?;
        self.must_not_reach(&near_attempts, "ping", echo, Attempts::by_ping)?;
        self.must_not_reach(&far_attempts, "ping, across hosts", echo_far, Attempts::by_ping)?;
        self.must_drop_forgeries(intruder, near, [tenants.vlan_of_a, tenants.vlan_of_b])
    }

    fn move_to(&self, station: &Station<'_>, tenant: Tenant) -> Result<(), DemoError> {
        let vlan = Some(VlanTag { id: tenant.vlan()?, ..VlanTag::default() }.into());
        let change = VfChange { vlan, ..VfChange::default() };
        self.hardware.set_vf(&station.pf, station.vf, &change)?;
        Ok(())
    }

    fn must_not_reach<'a>(
        &mut self,
        attempts: &Attempts<'a>,
        what: &str,
        control: Result<Reach, ProbeError>,
        attempt: impl FnOnce(&Attempts<'a>) -> Result<Reach, ProbeError>,
    ) -> Result<(), DemoError> {
        let answered = &attempts.control;
        let (from, to) = (&attempts.intruder.name, &attempts.target.name);
        let row = Row::new("isolation", format!("{from} ↛ {to}"), what);
        let remedy = &look_at_vfs("the VLANs of the VFs must differ");
        self.check(row, remedy, |row| {
            let isolation = Isolation { control: control?, attempt: attempt(attempts)? };
            Ok(match isolation.proven() {
                Ok(seen) => row.seen(format!("{seen}; {answered}")),
                Err(why) => row.seen(why).fails(remedy),
            })
        })
    }

    /// Frames of B that claim to be A's, with the address of A's VM and with A's VLAN; and A's own VM may
    /// not enter B's network.
    fn must_drop_forgeries(
        &mut self,
        intruder: &Station<'_>,
        target: &Station<'_>,
        [vlan_of_a, vlan_of_b]: [VlanId; 2],
    ) -> Result<(), DemoError> {
        self.must_drop(intruder, Forgery::Mac(target.mac))?;
        self.must_drop(intruder, Forgery::Vlan(vlan_of_a))?;
        self.must_drop(target, Forgery::Vlan(vlan_of_b))
    }

    fn must_drop(&mut self, station: &Station<'_>, forgery: Forgery) -> Result<(), DemoError> {
        let what = match forgery {
            Forgery::Mac(_) => "forged MAC of a VM of A's".to_owned(),
            Forgery::Vlan(id) => format!("forged VLAN tag, {id}"),
        };
        let row = Row::new("isolation", format!("{} ↛ any", station.name), what);
        let remedy = &look_at_vfs("anti-spoof must be on and trust off for this VF");
        let (pf, vf, hardware) = (&station.pf, station.vf, self.hardware);
        let netdev = station.lane.netdev.as_str();
        self.check(row, remedy, |mut row| {
            let forged = forge(station.machine, netdev, forgery, 3, hardware, (pf, vf))?;
            row.loss = Some(Loss { lost: forged.dropped.min(forged.sent), of: forged.sent });
            let row = row.seen(format!("dropped, counted as {}", forgery.reason()));
            if forged.all_dropped() {
                return Ok(row);
            }
            Ok(row.seen(format!("{} of {} dropped", forged.dropped, forged.sent)).fails(remedy))
        })
    }
}

/// The row of a check. What it finds wrong becomes a failing row; a machine that is gone ends the
/// run.
pub(super) fn judged(
    row: Row,
    remedy: &str,
    look: impl FnOnce(Row) -> Result<Row, ProbeError>,
) -> Result<Row, DemoError> {
    let failing = row.clone();
    match look(row) {
        Err(error @ ProbeError::Host(HostError::Unreachable { .. })) => Err(error.into()),
        Err(error) => Ok(failing.seen(error.to_string()).fails(remedy)),
        Ok(row) => Ok(row),
    }
}

/// A measurement over RDMA holds if the packets were as large as the lane allows and few were lost.
pub(super) fn judge_rdma(mut row: Row, measured: &Measured, path_mtu: u64, remedy: &str) -> Row {
    let sample = &measured.sample;
    (row.throughput, row.latency, row.loss) = (sample.throughput, sample.latency, measured.loss);
    let mtu = sample.path_mtu;
    let row = row.seen(mtu.map_or_else(String::new, |mtu| format!("RoCE v2, MTU {mtu}")));
    let lossy = measured.loss.is_some_and(|loss| loss.lost * 10_000 > loss.of * TOLERATED);
    if mtu == Some(path_mtu) && !lossy { row } else { row.fails(remedy) }
}

/// Tell one VM the other's address on the link, so that silence is not for want of knowing it.
fn acquaint(who: &Station<'_>, with: &Station<'_>) -> Result<(), DemoError> {
    let (netdev, address, mac) = (&who.lane.netdev, with.lane.address, with.mac);
    let command = format!("ip neigh replace {address} lladdr {mac} nud permanent dev {netdev}");
    who.machine.check(&command, PATIENCE).map_err(ProbeError::Host)?;
    Ok(())
}

/// One VM that tries to reach another over its VF.
struct Attempts<'a> {
    intruder: &'a Station<'a>,
    target: &'a Station<'a>,
    /// What the same attempts come to where they may succeed.
    control: String,
}

impl Attempts<'_> {
    fn by_arp(&self) -> Result<Reach, ProbeError> {
        let (from, to) = (self.intruder, self.target.lane.address);
        Reach::by_arp(from.machine, &from.lane.netdev, to, 3)
    }

    fn by_ping(&self) -> Result<Reach, ProbeError> {
        Reach::by_ping(self.intruder.machine, self.target.lane.address.into(), 5)
    }

    /// The ends tell each other their addresses over the traditional path, so that RDMA itself is
    /// what must fail.
    fn by_rdma(&self, patience: Duration) -> Result<Reach, ProbeError> {
        let end = |station: &'_ Station<'_>| station.aside().address.into();
        let server = RdmaEndpoint {
            host: self.target.machine,
            port: &self.target.lane.rdma,
            exchange: end(self.target),
        };
        let client = RdmaEndpoint {
            host: self.intruder.machine,
            port: &self.intruder.lane.rdma,
            exchange: end(self.intruder),
        };
        rdma_connects(&server, &client, patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_verify::{LocalHost, Sample, Verdict};

    fn judged(path_mtu: Option<u64>, loss: Option<Loss>) -> Verdict {
        let sample =
            Sample { size: 65_536, iterations: 120, path_mtu, throughput: None, latency: None };
        let row = Row::new("VF, same host", "a1 → a2", "ib_write_bw");
        judge_rdma(row, &Measured { sample, loss }, ROCE_MTU, "look").verdict
    }

    #[test]
    fn rdma_holds_with_jumbo_packets_and_hardly_any_loss() {
        let loss = |lost| Some(Loss { lost, of: 10_000 });
        assert_eq!(judged(Some(4096), loss(100)), Verdict::Holds);
        assert_eq!(judged(Some(4096), None), Verdict::Holds);
        assert_ne!(judged(Some(4096), loss(101)), Verdict::Holds);
        assert_ne!(judged(Some(1024), loss(0)), Verdict::Holds);
        assert_ne!(judged(None, loss(0)), Verdict::Holds);
    }

    #[test]
    fn a_mac_that_no_interface_has_is_named() {
        let vm = plan::VMS[0];
        let error = set_up(vm, &LocalHost::new("here")).err().expect("this machine is no VM");
        assert!(error.to_string().contains(&vm.lane_mac().to_string()), "{error}");
    }
}
