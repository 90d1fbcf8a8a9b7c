//! What a person is told about a demo that is kept up: who is where, and commands to try.

use std::fmt::Write as _;
use std::path::Path;

use lanekeeper_model::ModelError;

use super::checks::{Nic, Station, Tenants};
use super::cloud::Group;
use super::plan::{HOSTS, PlannedVm, VMS};

const HEADER: [&str; 7] = ["VM", "tenant", "VLAN", "host", "VF", "its address", "bridged NIC"];

/// How to look at the VMs, log in, run RDMA between them, and take all down. `program` is this
/// program as the user calls it, `nics` the folder of the software NICs.
pub(super) fn write(
    stations: &[Station<'_>],
    program: &str,
    nics: &Path,
) -> Result<String, ModelError> {
    let mut text = format!("\nThe demo is kept up.\n\n{}", map(stations)?);
    let mut offer = |what: &str, command: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n{what}:\n    {program} {command}");
    };
    offer("Run a command in a VM", "demo exec a1 -- ip -br address");
    offer("Log in to a VM (Ctrl-] leaves it)", "demo console a1");
    if let [one, two, ..] = stations {
        let (server, client) = rdma_pair(one, two);
        offer(
            "RDMA between two VFs",
            &format!("demo exec {server} &\n    sleep 3; {program} demo exec {client}"),
        );
    }
    offer("Look at the NICs", &format!("softnic show --run-root {}", nics.display()));
    offer("Take it down", "demo --down");
    Ok(text)
}

/// A demo with a server that is kept up.
pub(super) struct Kept<'a> {
    /// Who is where.
    pub(super) map: String,
    /// The server's address.
    pub(super) server: &'a str,
    /// Its data directory.
    pub(super) data: &'a Path,
    /// The folder of the software NICs.
    pub(super) nics: &'a Path,
}

/// Who is where: the groups of both tenants.
pub(super) fn cloud_map(groups: &[Group; 2], tenants: &Tenants<'_>) -> String {
    let vlans = [tenants.vlan_of_a, tenants.vlan_of_b];
    let mut text = String::new();
    for ((group, vlan), tenant) in groups.iter().zip(vlans).zip(["tenant-a", "tenant-b"]) {
        for vm in &group.members {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "  {:8}  {tenant}  VLAN {vlan}  {}  VF {}  {} ({})",
                vm.name, HOSTS[vm.host], vm.vf, vm.port.address, vm.port.name
            );
        }
    }
    text
}

/// How to use the server, its console and its VMs.
pub(super) fn write_cloud(kept: &Kept<'_>) -> String {
    let Kept { map, server, data, nics } = kept;
    let (data, program) = (data.display(), crate::program());
    let mut text = format!(
        "\nThe demo is kept up.\n\n{map}\nThe console, for a browser on this machine (its certificate is of an \
         authority of its own):\n    {server}/\nThe operator's API key, to sign in with:\n    {data}/operator.key\n"
    );
    let add = format!(
        "context add demo --server {server} \\\n      --authority {data}/authority.crt --key-file \
         {data}/operator.key"
    );
    for (what, command) in [
        ("Use the API from the command line", add),
        ("See the hosts, and a tenant's VMs", "fleet list".to_owned()),
        ("", "vm list --organization tenant-a".to_owned()),
        ("Run a command in a VM", "demo exec train-0 -- ip -br address".to_owned()),
        ("Log in to a VM (Ctrl-] leaves it)", "demo console train-0".to_owned()),
        ("Look at the NICs", format!("softnic show --run-root {}", nics.display())),
        ("Take it down", "demo --down".to_owned()),
    ] {
        let head = if what.is_empty() { String::new() } else { format!("\n{what}:\n") };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{head}    {program} {command}");
    }
    text
}

/// How to try `lanekeeper host` in the emulated host, whose applied host file is `host_file`.
pub(super) fn write_sriov(program: &str, host_file: &str) -> String {
    let mut text = "\nThe emulated host is kept up, with 4 free VFs.\n".to_owned();
    for (what, command) in [
        ("Look at its NICs", "demo exec host lanekeeper host show".to_owned()),
        ("See how it was set up", format!("demo exec host cat {host_file}")),
        (
            "Claim a VF, and give it back with the id that this prints",
            "demo exec host 'LANEKEEPER_TOKEN=mine lanekeeper host claim --pool lanes --vlan 100'"
                .to_owned(),
        ),
        (
            "Bring a host file of your own",
            "demo exec host \"echo $(base64 -w0 mine.yaml) | base64 -d >/tmp/mine.yaml\""
                .to_owned(),
        ),
        (
            "See what it would change",
            "demo exec host lanekeeper host plan /tmp/mine.yaml".to_owned(),
        ),
        ("Change it", "demo exec host lanekeeper host apply /tmp/mine.yaml".to_owned()),
        ("Log in (Ctrl-] leaves it)", "demo console host".to_owned()),
        ("Take it down", "demo --down".to_owned()),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n{what}:\n    {program} {command}");
    }
    text
}

/// Server and client of a write test from the first VM to the second, over their VFs.
fn rdma_pair(from: &Station<'_>, to: &Station<'_>) -> (String, String) {
    let command = |station: &Station<'_>, server: &str| {
        let rdma = &station.lane.rdma;
        let (device, gid) = (&rdma.device, rdma.gid.index);
        format!("{} 'ib_write_bw -F -d {device} -x {gid} -n 100{server}'", station.name)
    };
    (command(to, ""), command(from, &format!(" {}", to.lane.address)))
}

type Cells = [String; HEADER.len()];

fn map(stations: &[Station<'_>]) -> Result<String, ModelError> {
    let header = Ok(HEADER.map(str::to_owned));
    let rows = std::iter::once(header).chain(VMS.iter().zip(stations).map(row));
    let rows = rows.collect::<Result<Vec<Cells>, _>>()?;
    let widths: Vec<usize> = (0..HEADER.len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let line = |row: &Cells| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    Ok(rows.iter().map(line).collect())
}

fn row((vm, station): (&PlannedVm, &Station<'_>)) -> Result<Cells, ModelError> {
    let place = |nic: &Nic| format!("{} ({}, {})", nic.address, nic.netdev, nic.rdma.device);
    Ok([
        vm.name.to_owned(),
        format!("{:?}", vm.tenant),
        vm.tenant.vlan()?.to_string(),
        HOSTS[vm.host].to_owned(),
        vm.vf()?.to_string(),
        place(&station.lane),
        station.bridged.as_ref().map(place).unwrap_or_default(),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::plan::VMS;
    use super::*;
    use lanekeeper_verify::{Gid, LocalHost, RdmaPort};

    #[test]
    fn every_line_on_the_emulated_host_is_short_and_calls_the_program_as_the_user_did() {
        let text = write_sriov("./lk", "/tmp/host.yaml");
        assert!(text.contains("    ./lk demo exec host lanekeeper host show\n"), "{text}");
        let commands = text.lines().filter(|line| line.starts_with("    "));
        assert!(commands.clone().all(|line| line.starts_with("    ./lk demo ")), "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn it_says_where_each_vm_is_and_offers_commands_that_fit() {
        let host = LocalHost::new("here");
        let nic = |netdev: &str, device: &str, address: std::net::Ipv4Addr, index| Nic {
            netdev: netdev.to_owned(),
            address,
            rdma: RdmaPort {
                device: device.to_owned(),
                gid: Gid { index, address: address.into(), v2: true },
            },
        };
        let stations = VMS.map(|vm| Station {
            name: vm.name.to_owned(),
            host: vm.host,
            machine: &host,
            pf: super::super::plan::pf(vm.host).expect("a name"),
            vf: vm.vf().expect("a VF"),
            mac: vm.lane_mac(),
            lane: nic("eth0", "rxe0", vm.lane_address(), 3),
            bridged: Some(nic("eth1", "rxe1", vm.bridged_address(), 1)),
        });
        let text = write(&stations, "./lk", Path::new("/run/nics")).expect("a sound plan");
        for part in [
            "b1  B       200   host1  2   10.10.0.9 (eth0, rxe0)  10.20.0.9 (eth1, rxe1)\n",
            "    ./lk demo console a1\n",
            "    ./lk demo exec a2 'ib_write_bw -F -d rxe0 -x 3 -n 100' &\n    sleep 3; ./lk demo \
             exec a1 'ib_write_bw -F -d rxe0 -x 3 -n 100 10.10.0.2'\n",
            "    ./lk softnic show --run-root /run/nics\n",
            "    ./lk demo --down\n",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
