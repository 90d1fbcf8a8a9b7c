//! The demo as a cloud does it: a server, an agent on each of two emulated hosts, and two tenants who ask
//! its API for a network and a group of VMs. Their VMs boot, are checked as any lane is, and are deleted
//! through the API, after which no VF may be anybody's.

mod processes;
mod tenants;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lanekeeper_client::{Client, Endpoint};
use lanekeeper_control::protocol::CheckVerdict;
use lanekeeper_control::resource::{VerificationView, Verified};
use lanekeeper_hw::Hardware;
use lanekeeper_model::{PfId, VfIndex, VfSettings};
use lanekeeper_softnic::Client as Nics;
use lanekeeper_testbed::netns::Namespace;
use lanekeeper_verify::{Report, Row, rxe_on};
use lanekeeper_vmm::AgentHost;

use super::checks::{self, Nic, Station, TENANT_STEPS, Tenants};
use super::guide::{self, Kept};
use super::hosts::{self, NicProcess};
use super::plan::{self, HOSTS};
use super::progress::Progress;
use super::residue::Site;
use super::vms::{Lines, keep_lines};
use super::{DemoError, Done, Outcome};
use processes::{AgentProcess, Server, ServerAt};
pub(super) use tenants::Group;
use tenants::{Member, Operator};

/// How many times [`perform`] calls [`Progress::step`].
pub(super) const STEPS: usize = 3 + 7 + TENANT_STEPS + 1;

const TITLE: &str = "Lanekeeper demo: a server, two hosts, groups of VMs of two tenants by its API";
/// VFs of each host's NIC.
const VFS: usize = 8;
/// How long a guest may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where everything of a host is.
fn host_folder(site: &Site, host: usize) -> PathBuf {
    site.folder().join(HOSTS[host])
}

/// Run the whole demo.
///
/// # Errors
/// [`DemoError`] for what could not be made; a check that does not hold is a row of the report.
pub(super) fn perform(site: &Site, keep: bool, progress: &Progress) -> Outcome {
    let began = Instant::now();
    let (_, cpus) = super::prepare(progress)?;
    progress.step("two hosts");
    let namespaces = hosts::build_bare(site)?;
    progress.step("a software NIC for each host");
    let mut nics = start_nics(site, &namespaces)?;
    progress.step("a server");
    let mut server = Server::start(site)?;
    let at = server.at().clone();
    let mut report = Report::new(TITLE);
    report.rows.push(console(&at)?);
    progress.step("an agent on each host");
    let operator = Operator::begin(&at)?;
    let mut agents = Vec::new();
    for (host, name) in HOSTS.iter().enumerate() {
        agents.push(AgentProcess::start(site, host, &at, &operator.token(name)?)?);
    }
    operator.await_hosts()?;
    progress.step("two tenants ask for a network each");
    let [a, b] = operator.tenants()?;
    progress.step("they ask for three VMs and for two, and wait until these are ACTIVE");
    let groups = [a.group("train", 3)?, b.group("rival", 2)?];
    for (group, tenant) in groups.iter().zip(["A", "B"]) {
        report.rows.push(made(tenant, group));
    }
    let mut watch = || -> Result<(), DemoError> {
        nics.iter_mut().try_for_each(NicProcess::still_runs)?;
        agents.iter_mut().try_for_each(AgentProcess::still_runs)?;
        server.still_runs()
    };
    progress.step("their hosts prove each VM's lane");
    for (group, tenant) in groups.iter().zip([&a, &b]) {
        report.rows.extend(proven(&tenant.verify(group)?));
    }
    let machines = connect(site, &groups)?;
    let stations = stations(&groups, &machines)?;
    let map = guide::cloud_map(&groups, &stations);
    let root = hosts::nics_folder(site);
    let hardware = Nics::discover(&root).map_err(|error| DemoError::file(&root, error))?;
    let report = checks::run_for_tenants(&stations, &hardware, &mut watch, progress, report);
    // A NIC or an agent that has ended is why the last check failed, so it is said first.
    watch()?;
    let mut report = report?;
    drop(stations);
    drop(machines);
    let guide = if keep {
        progress.step("everything stays");
        keep_lines(site, &lines(site, &groups))?;
        guide::write_cloud(&Kept { map, server: &at.url, data: &at.data, nics: &root })
    } else {
        progress.step("the tenants delete what they asked for");
        report.rows.push(deleted(&operator, &[a, b], &groups, &root)?);
        String::new()
    };
    super::conclude(&mut report, &cpus, began);
    Ok(Done { report, guide })
}

fn start_nics(site: &Site, namespaces: &[Namespace]) -> Result<Vec<NicProcess>, DemoError> {
    let start = |(host, namespace)| {
        let config = plan::bare_nic_config(host, VFS, &hosts::nics_folder(site))?;
        NicProcess::start(site, host, namespace, &config)
    };
    namespaces.iter().enumerate().map(start).collect()
}

/// That the console is served, as to a browser that knows nobody's key.
fn console(server: &ServerAt) -> Result<Row, DemoError> {
    let row = Row::new("console", "any browser", "GET /");
    let client = Client::new(&Endpoint {
        authority_pem: Some(server.authority()?),
        ..Endpoint::new(&server.url)
    })?;
    let page = client.call(lanekeeper_client::Method::GET, "/").send_for_text()?.body;
    Ok(if page.contains("<html") {
        row.seen(format!("a page of {} bytes", page.len()))
    } else {
        row.fails("look at the server's log in the demo's folder, kept with --keep")
    })
}

/// The row of a group that came to be.
fn made(tenant: &str, group: &Group) -> Row {
    let what = format!("{} VMs, spread", group.members.len());
    let on = |host: usize| group.members.iter().filter(|vm| vm.host == host).count();
    let places: Vec<_> =
        HOSTS.iter().enumerate().map(|(host, name)| format!("{} on {name}", on(host))).collect();
    let took = group.took.as_secs_f64();
    let seen = format!("ACTIVE after {took:.1} s: {}", places.join(", "));
    let row = Row::new("API", format!("{tenant}: {}", group.name), what).seen(seen);
    if (0..HOSTS.len()).all(|host| on(host) > 0) {
        row
    } else {
        row.fails("a spread group must be on both hosts; see: lanekeeper group show")
    }
}

/// A row for each VM of a verification run.
fn proven(view: &VerificationView) -> Vec<Row> {
    let row = |vm: &Verified| {
        let peers = view.run.vms.len() - 1;
        let peers = if peers == 1 { "1 peer".to_owned() } else { format!("{peers} peers") };
        let row = Row::new("proof", &vm.name, format!("lanekeeper verify, {peers}"));
        let checks = view.parts.iter().find(|part| part.vm == vm.vm).map(|part| &part.checks);
        let checks = checks.map(Vec::as_slice).unwrap_or_default();
        let bad = checks.iter().find(|check| check.verdict != CheckVerdict::Held);
        match bad {
            Some(check) => {
                let remedy = check.remedy.as_deref().unwrap_or("see that its guest agent answers");
                row.seen(format!("{}: {}", check.check, check.found)).fails(remedy)
            }
            None if checks.is_empty() => row.fails("see the log of its host's agent"),
            None => row.seen(format!("{} checks hold, whole MTU to each peer", checks.len())),
        }
    };
    view.run.vms.iter().map(row).collect()
}

/// Everybody's guests, by VM.
fn connect(site: &Site, groups: &[Group]) -> Result<BTreeMap<u64, AgentHost>, DemoError> {
    let connect = |vm: &Member| {
        let failed = |error| DemoError::Agent { vm: vm.name.clone(), error };
        let guest =
            AgentHost::connect(&vm.name, &run_folder(site, vm).join("agent.sock"), PATIENCE)
                .map_err(failed)?;
        guest.wait_ready(PATIENCE).map_err(failed)?;
        Ok((vm.id, guest))
    };
    groups.iter().flat_map(|group| &group.members).map(connect).collect()
}

fn run_folder(site: &Site, vm: &Member) -> PathBuf {
    host_folder(site, vm.host).join("run").join(format!("vm-{}", vm.id))
}

fn lines(site: &Site, groups: &[Group]) -> BTreeMap<String, Lines> {
    let line = |vm: &Member| {
        let folder = run_folder(site, vm);
        let (agent, console) = (folder.join("agent.sock"), folder.join("console.sock"));
        (vm.name.clone(), Lines { agent, console })
    };
    groups.iter().flat_map(|group| &group.members).map(line).collect()
}

/// Who is checked against whom: two of A's VMs that share a host and one that does not, and two of B's.
fn stations<'a>(
    groups: &[Group; 2],
    machines: &'a BTreeMap<u64, AgentHost>,
) -> Result<Tenants<'a>, DemoError> {
    let [a, b] = groups;
    let contradicts = |why: &str| DemoError::Plan(why.to_owned());
    let on = |group: &Group, host| -> Vec<Member> {
        group.members.iter().filter(|vm| vm.host == host).cloned().collect()
    };
    let shared = (0..HOSTS.len()).find(|host| on(a, *host).len() >= 2);
    let shared = shared.ok_or_else(|| contradicts("no two VMs of A's share a host"))?;
    let other = 1 - shared;
    let station = |vm: Option<&Member>| {
        let vm = vm.ok_or_else(|| contradicts("a group is not on both hosts"))?;
        let machine = &machines[&vm.id];
        // The agent has told the guest its addresses, and the guest has named the port by its MAC.
        let rdma = rxe_on(machine, "rxe0", &vm.port.name, vm.port.address.into())?;
        Ok::<_, DemoError>(Station {
            name: vm.name.clone(),
            host: vm.host,
            machine,
            pf: PfId::Soft(plan::nic_name(vm.host)?),
            vf: vm.vf,
            mac: vm.port.mac,
            lane: Nic { netdev: vm.port.name.clone(), address: vm.port.address, rdma },
            bridged: None,
        })
    };
    let (near, far) = (on(a, shared), on(a, other));
    Ok(Tenants {
        near: [station(near.first())?, station(near.get(1))?],
        far: station(far.first())?,
        intruder: station(on(b, shared).first())?,
        friend: station(on(b, other).first())?,
        vlan_of_a: a.vlan,
        vlan_of_b: b.vlan,
    })
}

/// Delete both groups; the row says whether anything is left of them.
fn deleted(
    operator: &Operator,
    tenants: &[tenants::Tenant; 2],
    groups: &[Group; 2],
    root: &Path,
) -> Result<Row, DemoError> {
    let row = Row::new("API", "A and B", "groups deleted");
    let began = Instant::now();
    for (tenant, group) in tenants.iter().zip(groups) {
        tenant.delete(group)?;
    }
    let took = began.elapsed().as_secs_f64();
    let claimed = operator.claimed_vfs()?;
    let hardware = Nics::discover(root).map_err(|error| DemoError::file(root, error))?;
    let mut unclean = 0;
    for name in hardware.names() {
        let pf = PfId::Soft(name.clone());
        for vf in VfIndex::first(VFS) {
            let settings = hardware.vf(&pf, vf)?.settings;
            unclean += usize::from(settings != VfSettings::scrubbed());
        }
    }
    let all = VFS * HOSTS.len();
    Ok(if claimed == 0 && unclean == 0 {
        row.seen(format!("after {took:.1} s all {all} VFs are free and scrubbed"))
    } else {
        row.seen(format!("{claimed} of {all} VFs claimed, {unclean} not scrubbed"))
            .fails("run again with --keep, and look at: lanekeeper fleet vfs, lanekeeper event")
    })
}
