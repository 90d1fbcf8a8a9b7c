//! Looks at VMs for verification runs: each port's VF as the host has it, then the lane as the guest
//! sees it, and, where the guest reaches somebody not, what the VF dropped meanwhile.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lanekeeper_control::protocol::{
    CheckVerdict, DesiredPort, DesiredProof, DesiredVm, ProofCheck, ProofPort, ProofReport,
};
use lanekeeper_model::{DropReason, LinkState, VfCounters};
use lanekeeper_verify::lane::{Check, LanePlan, Outcome, Peer, lane};
use lanekeeper_vmm::Host;

use crate::error::NodeError;
use crate::lanes::{Lane, Lanes, lanes_of, settings};

/// Look at a VM. `vm` is what it shall be and the machine that it is; without, there is nothing to look
/// at, which is what is told.
pub(crate) fn prove(
    proof: &DesiredProof,
    lanes: &Lanes,
    vm: Option<(&DesiredVm, &dyn Host)>,
) -> ProofReport {
    let checks = match vm {
        Some((want, machine)) => {
            let on = |port: &ProofPort| {
                let at = want.ports.iter().position(|it| it.port == port.port)?;
                Some((lanes_of(want).nth(at)?, want.ports.get(at)?))
            };
            proof
                .ports
                .iter()
                .flat_map(|port| match on(port) {
                    Some((lane, desired)) => look(lanes, &lane, desired, port, machine),
                    None => vec![failed(
                        &port.port.to_string(),
                        "port",
                        "the VM has no such port here",
                        "verify it again once the VM is as it was changed",
                    )],
                })
                .collect()
        }
        None => vec![failed(
            "",
            "VM",
            "it does not run on this host",
            "see its status and its events; start it if it is off",
        )],
    };
    ProofReport { run: proof.run, vm: proof.vm, checks }
}

fn look(
    lanes: &Lanes,
    lane_of: &Lane,
    port: &DesiredPort,
    asked: &ProofPort,
    machine: &dyn Host,
) -> Vec<ProofCheck> {
    let before = counters(lanes, lane_of);
    let mut checks = vec![vf(lanes, lane_of, port), link(lanes, lane_of, port)];
    let peers = asked.peers.iter();
    let plan = LanePlan {
        mac: port.mac,
        addresses: port.addresses.iter().map(|it| it.address).collect::<Vec<IpAddr>>(),
        mtu: port.mtu,
        peers: peers
            .map(|it| Peer { name: it.name.clone(), address: it.address, mtu: it.mtu })
            .collect(),
    };
    checks.extend(lane(machine, &plan).into_iter().map(|check| told(&port.name, check)));
    if checks.iter().any(|check| check.verdict == CheckVerdict::Failed)
        && let (Some(before), Some(after)) = (before, counters(lanes, lane_of))
    {
        checks.extend(dropped(port, &before, &after));
    }
    checks
}

/// The VF is set as it shall be.
fn vf(lanes: &Lanes, lane: &Lane, port: &DesiredPort) -> ProofCheck {
    let look = "settings of the VF";
    let is = lanes.of(lane).and_then(|nics| nics.is(lane, &settings(port, LinkState::Auto)));
    let remedy = "the agent sets it again within seconds; if that lasts, see its log";
    match is {
        Ok(true) => {
            let (mac, vlan) = (port.mac, port.vlan.id);
            held(&port.name, look, format!("{lane}: MAC {mac}, VLAN {vlan}, anti-spoof on"))
        }
        Ok(false) => failed(&port.name, look, format!("{lane} is not as it was set"), remedy),
        Err(error) => failed(&port.name, look, error.to_string(), "see that the NIC answers"),
    }
}

/// It has a link.
fn link(lanes: &Lanes, lane: &Lane, port: &DesiredPort) -> ProofCheck {
    let look = "link of the VF";
    let status: Result<_, NodeError> = lanes.of(lane).and_then(|nics| nics.status(lane));
    match status {
        Ok(status) if status.stopped.is_some() => {
            let why = status.stopped.unwrap_or_default();
            let remedy = "the guest's driver broke its rings: reboot the VM";
            failed(&port.name, look, format!("{lane} is stopped: {why}"), remedy)
        }
        Ok(status) if status.link_up && status.attached => {
            held(&port.name, look, format!("{lane} is up, and the VM has it open"))
        }
        Ok(status) if status.link_up => {
            let remedy = "see that the guest has a driver for it";
            failed(&port.name, look, format!("{lane} is up, and the VM has it not open"), remedy)
        }
        Ok(_) => {
            let remedy = "see the link of the PF: lanekeeper softnic show, lanekeeper host show";
            failed(&port.name, look, format!("{lane} has no link"), remedy)
        }
        Err(error) => failed(&port.name, look, error.to_string(), "see that the NIC answers"),
    }
}

fn counters(lanes: &Lanes, lane: &Lane) -> Option<VfCounters> {
    lanes.of(lane).and_then(|nics| nics.counters(lane)).ok()
}

/// What the VF dropped meanwhile, if it dropped anything.
fn dropped(port: &DesiredPort, before: &VfCounters, after: &VfCounters) -> Option<ProofCheck> {
    let more = |of: &str, before: &BTreeMap<DropReason, u64>, after: &BTreeMap<DropReason, u64>| {
        let grown = |(reason, now): (&DropReason, &u64)| {
            let was = before.get(reason).copied().unwrap_or_default();
            (*now > was).then(|| format!("{} {of}: {}", now - was, reason.label()))
        };
        after.iter().filter_map(grown).collect::<Vec<_>>()
    };
    let mut all = more("from the VM", &before.tx_drops, &after.tx_drops);
    all.extend(more("to the VM", &before.rx_drops, &after.rx_drops));
    let remedy =
        "the reasons say why the VF held frames back: lanekeeper softnic --help explains them";
    (!all.is_empty()).then(|| failed(&port.name, "drops of the VF", all.join("; "), remedy))
}

fn told(port: &str, check: Check) -> ProofCheck {
    let (verdict, remedy) = match check.outcome {
        Outcome::Holds => (CheckVerdict::Held, None),
        Outcome::Fails { remedy } => (CheckVerdict::Failed, Some(remedy)),
        Outcome::Skipped => (CheckVerdict::Skipped, None),
    };
    let round_trip_ns = check.round_trip.map(|it| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a time")]
        let ns = (it.typical_us * 1000.0) as u64;
        ns
    });
    ProofCheck {
        port: port.to_owned(),
        check: check.look.to_string(),
        verdict,
        found: check.found,
        remedy,
        round_trip_ns,
    }
}

fn held(port: &str, check: &str, found: impl Into<String>) -> ProofCheck {
    ProofCheck {
        port: port.to_owned(),
        check: check.to_owned(),
        verdict: CheckVerdict::Held,
        found: found.into(),
        remedy: None,
        round_trip_ns: None,
    }
}

fn failed(port: &str, check: &str, found: impl Into<String>, remedy: &str) -> ProofCheck {
    let remedy = Some(remedy.to_owned());
    ProofCheck { verdict: CheckVerdict::Failed, remedy, ..held(port, check, found) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use lanekeeper_control::protocol::ProofPeer;
    use lanekeeper_hw::Hardware;
    use lanekeeper_model::{Mtu, VfChange};
    use lanekeeper_vmm::{HostError, Job};

    use super::*;
    use crate::fakes::{On, World};
    use crate::samples::vm;

    /// A guest that runs no commands.
    struct Mute;

    impl Host for Mute {
        fn name(&self) -> &'static str {
            "mute"
        }

        fn start(&self, _: &str) -> Result<Box<dyn Job + '_>, HostError> {
            Err(HostError::Unreachable { host: "mute".to_owned(), why: "no agent".to_owned() })
        }
    }

    fn asked(vm: &DesiredVm) -> DesiredProof {
        let peer = ProofPeer {
            name: "w-2/rail0".to_owned(),
            address: [10, 9, 0, 2].into(),
            mtu: Mtu::new(4500).expect("in range"),
        };
        let port = |port: &DesiredPort| ProofPort { port: port.port, peers: vec![peer.clone()] };
        DesiredProof { run: 5, vm: vm.vm, ports: vm.ports.iter().map(port).collect() }
    }

    fn of<'a>(report: &'a ProofReport, check: &str) -> &'a ProofCheck {
        let found = report.checks.iter().find(|it| it.check == check);
        found.unwrap_or_else(|| panic!("no {check}: {report:?}"))
    }

    #[test]
    fn the_vf_is_looked_at_from_the_host_whether_or_not_the_guest_answers() {
        let world: Arc<World> = Arc::default();
        let nics = Arc::new(On(Arc::clone(&world)));
        let lanes = Lanes::new(nics.clone(), Path::new("/nics"), None);
        let vm = vm(1);
        let lane = lanes_of(&vm).next().expect("one");
        let set = || {
            lanes.of(&lane).and_then(|it| it.set(&lane, &settings(&vm.ports[0], LinkState::Auto)))
        };
        set().expect("set");
        let report = prove(&asked(&vm), &lanes, Some((&vm, &Mute)));
        assert_eq!((report.run, report.vm), (5, 1));
        assert_eq!(of(&report, "settings of the VF").verdict, CheckVerdict::Held);
        assert_eq!(of(&report, "reaches w-2/rail0").verdict, CheckVerdict::Skipped);
        // Somebody changes the VF beside us.
        let change = VfChange { trust: Some(true), ..VfChange::default() };
        let pf = lanekeeper_model::PfId::Soft("nic0".parse().expect("a name"));
        nics.set_vf(&pf, lane.vf, &change).expect("set");
        let report = prove(&asked(&vm), &lanes, Some((&vm, &Mute)));
        let changed = of(&report, "settings of the VF");
        assert_eq!(changed.verdict, CheckVerdict::Failed);
        assert!(changed.remedy.is_some());
    }

    #[test]
    fn a_vm_that_is_not_here_and_a_port_that_it_has_not_are_told() {
        let lanes = Lanes::new(Arc::new(On(Arc::default())), Path::new("/nics"), None);
        let vm = vm(1);
        let report = prove(&asked(&vm), &lanes, None);
        assert!(of(&report, "VM").found.contains("does not run"));
        let other = DesiredVm { ports: Vec::new(), ..vm.clone() };
        let report = prove(&asked(&vm), &lanes, Some((&other, &Mute)));
        assert_eq!(of(&report, "port").verdict, CheckVerdict::Failed);
    }

    #[test]
    fn drops_are_told_by_reason_and_only_those_of_meanwhile() {
        let port = &vm(1).ports[0];
        let before =
            VfCounters { tx_drops: [(DropReason::ALL[0], 3)].into(), ..VfCounters::default() };
        assert_eq!(dropped(port, &before, &before), None);
        let after = VfCounters { tx_drops: [(DropReason::ALL[0], 5)].into(), ..before.clone() };
        let told = dropped(port, &before, &after).expect("two more");
        assert!(told.found.contains(&format!("2 from the VM: {}", DropReason::ALL[0].label())));
    }
}
