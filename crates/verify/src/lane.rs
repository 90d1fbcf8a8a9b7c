//! Whether the lane of one port works, as seen from within the machine that has it: its interface, its
//! addresses, its MTU, its neighbours. Each check says what it found, and what to do where that is not
//! as it must be; what could not be looked at is said to be skipped, never to hold.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use lanekeeper_model::{MacAddr, Mtu};
use serde::Serialize;

use crate::{Host, Latency, PingPlan, ProbeError, largest_packet, ping};

const SHORT: Duration = Duration::from_secs(30);

/// What a port shall be, and whom it shall reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LanePlan {
    /// Its MAC, by which its interface is found.
    pub mac: MacAddr,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its MTU, which packets to the others must pass with.
    pub mtu: Mtu,
    /// Whom it shall reach.
    pub peers: Vec<Peer>,
}

/// A port that another shall reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its name, for people.
    pub name: String,
    /// Where it is.
    pub address: IpAddr,
    /// Its MTU.
    pub mtu: Mtu,
}

/// What is looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Look {
    /// The interface is there, up, and has a carrier.
    Interface,
    /// It has the MTU.
    Mtu,
    /// It has the addresses.
    Addresses,
    /// Small packets to a peer come back.
    Reach(String),
    /// Packets of the whole MTU to a peer come back, unfragmented.
    PathMtu(String),
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface => f.write_str("interface"),
            Self::Mtu => f.write_str("MTU"),
            Self::Addresses => f.write_str("addresses"),
            Self::Reach(peer) => write!(f, "reaches {peer}"),
            Self::PathMtu(peer) => write!(f, "MTU to {peer}"),
        }
    }
}

/// What came of a look.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Outcome {
    /// It is as it must be.
    Holds,
    /// It is not.
    Fails {
        /// What to do.
        remedy: String,
    },
    /// It could not be looked at.
    Skipped,
}

/// One look.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Check {
    /// At what.
    pub look: Look,
    /// What was found, in words.
    pub found: String,
    /// Round trip, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<Latency>,
    /// What came of it.
    pub outcome: Outcome,
}

impl Check {
    fn holds(look: Look, found: impl Into<String>) -> Self {
        Self { look, found: found.into(), round_trip: None, outcome: Outcome::Holds }
    }

    fn fails(look: Look, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let outcome = Outcome::Fails { remedy: remedy.into() };
        Self { look, found: found.into(), round_trip: None, outcome }
    }

    fn skipped(look: Look, why: impl Into<String>) -> Self {
        Self { look, found: why.into(), round_trip: None, outcome: Outcome::Skipped }
    }
}

/// An interface as the machine shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Interface {
    name: String,
    mtu: u32,
    up: bool,
    carrier: bool,
    addresses: Vec<IpAddr>,
}

/// Look at a port from within the machine that has it.
///
/// A machine that runs no commands for us (its guest agent is not there, or may not) is no failure of
/// the lane: all is skipped then.
pub fn lane(machine: &dyn Host, plan: &LanePlan) -> Vec<Check> {
    let interface = match find(machine, plan.mac) {
        Ok(Some(interface)) => interface,
        Ok(None) => {
            let found = format!("no interface has the MAC {}", plan.mac);
            let remedy =
                "see that the guest has a driver for the VF, and that the VM was started with it";
            let mut checks = vec![Check::fails(Look::Interface, found, remedy)];
            checks.extend(beyond(plan, "there is no interface"));
            return checks;
        }
        Err(error) => {
            let why = format!("the guest ran no command: {error}");
            let first = Check::skipped(Look::Interface, why.clone());
            return [first].into_iter().chain(beyond(plan, &why)).collect();
        }
    };
    let mut checks = vec![linked(&interface), wide(&interface, plan), addressed(&interface, plan)];
    for peer in &plan.peers {
        checks.extend(to_peer(machine, plan, peer));
    }
    checks
}

/// All looks after the first, skipped.
fn beyond(plan: &LanePlan, why: &str) -> Vec<Check> {
    let peers = plan.peers.iter();
    let of_peer = |peer: &Peer| [Look::Reach(peer.name.clone()), Look::PathMtu(peer.name.clone())];
    [Look::Mtu, Look::Addresses]
        .into_iter()
        .chain(peers.flat_map(of_peer))
        .map(|look| Check::skipped(look, why))
        .collect()
}

fn linked(interface: &Interface) -> Check {
    let Interface { name, up, carrier, .. } = interface;
    match (up, carrier) {
        (true, true) => Check::holds(Look::Interface, format!("{name} is up and has a link")),
        (false, _) => Check::fails(
            Look::Interface,
            format!("{name} is down"),
            format!("in the VM: ip link set {name} up; cloud-init does that by itself"),
        ),
        (true, false) => Check::fails(
            Look::Interface,
            format!("{name} has no link"),
            "look at the link of the VF and of its PF's uplink: lanekeeper softnic show, lanekeeper \
             host show",
        ),
    }
}

fn wide(interface: &Interface, plan: &LanePlan) -> Check {
    let (found, wanted) = (interface.mtu, u32::from(plan.mtu));
    let name = &interface.name;
    if found == wanted {
        Check::holds(Look::Mtu, format!("{found} bytes"))
    } else {
        let found = format!("{found} bytes, and {wanted} are the network's");
        Check::fails(Look::Mtu, found, format!("in the VM: ip link set {name} mtu {wanted}"))
    }
}

fn addressed(interface: &Interface, plan: &LanePlan) -> Check {
    let listed = |all: &[IpAddr]| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    let missing: Vec<IpAddr> =
        plan.addresses.iter().filter(|it| !interface.addresses.contains(it)).copied().collect();
    if missing.is_empty() {
        return Check::holds(Look::Addresses, listed(&plan.addresses));
    }
    let found = format!("{} missing; it has {}", listed(&missing), listed(&interface.addresses));
    let remedy =
        "in the VM, give the interface its address; cloud-init does that by itself, by MAC";
    Check::fails(Look::Addresses, found, remedy)
}

fn to_peer(machine: &dyn Host, plan: &LanePlan, peer: &Peer) -> [Check; 2] {
    let (near, far) = (Look::Reach(peer.name.clone()), Look::PathMtu(peer.name.clone()));
    let reached = ping(machine, peer.address, &PingPlan { count: 3, ..PingPlan::default() });
    let broken = |look, error: &ProbeError| {
        Check::fails(look, error.to_string(), "see that the address and its route are in the guest")
    };
    let reach = match reached {
        Ok(ping) if ping.loss.none() => {
            let found = format!("{} answered", peer.address);
            Check { round_trip: ping.round_trip, ..Check::holds(near, found) }
        }
        Ok(ping) => {
            let found =
                format!("{} of {} packets to {} lost", ping.loss.lost, ping.loss.of, peer.address);
            let remedy = "see that both are on one VLAN, that both guests are up, and the drops by \
                          reason of both VFs";
            Check::fails(near, found, remedy)
        }
        Err(error) => broken(near, &error),
    };
    if reach.outcome != Outcome::Holds {
        let why = format!("{} is not reached", peer.address);
        return [reach, Check::skipped(far, why)];
    }
    let size = plan.mtu.min(peer.mtu).get();
    let whole = match largest_packet(machine, peer.address, size) {
        Ok(ping) if ping.loss.none() => {
            Check { round_trip: ping.round_trip, ..Check::holds(far, format!("{size} bytes pass")) }
        }
        Ok(ping) => {
            let found = format!(
                "small packets pass, and {} of {} of {size} bytes do not",
                ping.loss.lost, ping.loss.of
            );
            let remedy = format!(
                "a hop carries less than {size} bytes: raise the MTU of both PFs and of the switches \
                 between, or lower the network's"
            );
            Check::fails(far, found, remedy)
        }
        Err(error) => broken(far, &error),
    };
    [reach, whole]
}

/// The interface with this MAC.
fn find(machine: &dyn Host, mac: MacAddr) -> Result<Option<Interface>, ProbeError> {
    // sysfs-class-net: flags bit 0 is IFF_UP; carrier cannot be read while the interface is down.
    let look = format!(
        "for i in /sys/class/net/*; do read -r a <$i/address || continue; [ \"$a\" = {mac} ] || continue; \
         read -r m <$i/mtu; read -r f <$i/flags; c=0; {{ read -r c <$i/carrier; }} 2>/dev/null; \
         echo \"${{i##*/}} $m $f $c\"; ip -o addr show dev ${{i##*/}}; break; done"
    );
    let text = machine.check(&look, SHORT)?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let unreadable =
        || ProbeError::unreadable("the guest's shell", machine.name(), "it is no interface", &text);
    parse(&text).map(Some).ok_or_else(unreadable)
}

fn parse(text: &str) -> Option<Interface> {
    let mut lines = text.lines();
    let mut words = lines.next()?.split_whitespace();
    let (name, mtu, flags) = (words.next()?, words.next()?, words.next()?);
    let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
    let addresses = lines.filter_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| !word.starts_with("inet"));
        words.nth(1)?.split('/').next()?.parse().ok()
    });
    Some(Interface {
        name: name.to_owned(),
        mtu: mtu.parse().ok()?,
        up: flags & 1 != 0,
        carrier: words.next() == Some("1"),
        addresses: addresses.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Scripted;
    use proptest::prelude::*;

    const HERE: &str = "rail0 4200 0x1003 1\n\
        3: rail0    inet 10.9.0.1/24 brd 10.9.0.255 scope global rail0\\       valid_lft forever\n\
        3: rail0    inet6 fe80::1/64 scope link \\       valid_lft forever preferred_lft forever\n";
    const ANSWERED: &str = include_str!("../samples/ping-answered.txt");
    const TOO_LONG: &str = include_str!("../samples/ping-too-long.txt");
    const SILENT: &str = include_str!("../samples/ping-silent.txt");

    fn plan() -> LanePlan {
        let mtu = Mtu::new(4200).expect("in range");
        let address = "10.9.0.2".parse().expect("valid");
        LanePlan {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            addresses: vec!["10.9.0.1".parse().expect("valid")],
            mtu,
            peers: vec![Peer { name: "a2/rail0".to_owned(), address, mtu }],
        }
    }

    fn guest(interface: &str) -> Scripted {
        Scripted::new("a1").answer("/sys/class/net", 0, interface, "")
    }

    fn of(checks: &[Check], look: &str) -> Check {
        let found = checks.iter().find(|check| check.look.to_string() == look);
        found.unwrap_or_else(|| panic!("no {look} among {checks:?}")).clone()
    }

    fn remedy(check: &Check) -> &str {
        match &check.outcome {
            Outcome::Fails { remedy } => remedy,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lane_that_works_holds_in_all_of_it() {
        let guest = guest(HERE).answer("ping", 0, ANSWERED, "");
        let checks = lane(&guest, &plan());
        assert!(checks.iter().all(|check| check.outcome == Outcome::Holds), "{checks:?}");
        assert_eq!(checks.len(), 5);
        assert!(of(&checks, "reaches a2/rail0").round_trip.is_some());
        assert!(guest.commands().iter().any(|command| command.contains(" -s 4172 ")));
    }

    #[test]
    fn a_hop_with_a_smaller_mtu_is_told_from_a_dead_peer() {
        let narrow =
            guest(HERE).answer(" -s 4172 ", 1, TOO_LONG, "").answer("ping", 0, ANSWERED, "");
        let checks = lane(&narrow, &plan());
        assert_eq!(of(&checks, "reaches a2/rail0").outcome, Outcome::Holds);
        assert!(remedy(&of(&checks, "MTU to a2/rail0")).contains("raise the MTU"));
        let dead = guest(HERE).answer("ping", 1, SILENT, "");
        let checks = lane(&dead, &plan());
        assert!(remedy(&of(&checks, "reaches a2/rail0")).contains("VLAN"));
        assert_eq!(of(&checks, "MTU to a2/rail0").outcome, Outcome::Skipped);
    }

    #[test]
    fn an_interface_that_is_not_as_it_must_be_is_named_with_what_to_do() {
        let answered = |interface: &str| guest(interface).answer("ping", 0, ANSWERED, "");
        let down = answered(&HERE.replace("0x1003", "0x1002"));
        assert!(remedy(&of(&lane(&down, &plan()), "interface")).contains("ip link set rail0 up"));
        let cut = answered(&HERE.replace("0x1003 1", "0x1003 0"));
        assert!(of(&lane(&cut, &plan()), "interface").found.contains("no link"));
        let narrow = answered(&HERE.replace("4200", "1500"));
        assert!(remedy(&of(&lane(&narrow, &plan()), "MTU")).contains("mtu 4200"));
        let other = answered(&HERE.replace("10.9.0.1/", "10.9.0.7/"));
        assert!(of(&lane(&other, &plan()), "addresses").found.contains("10.9.0.1 missing"));
        let checks = lane(&guest(""), &plan());
        assert!(of(&checks, "interface").found.contains("02:00:00:00:00:01"));
        assert_eq!(of(&checks, "MTU to a2/rail0").outcome, Outcome::Skipped);
        assert_eq!(checks.len(), 5);
    }

    #[test]
    fn a_guest_that_runs_no_commands_fails_nothing_and_proves_nothing() {
        let checks = lane(&Scripted::new("a1"), &plan());
        assert_eq!(checks.len(), 5);
        assert!(checks.iter().all(|check| check.outcome == Outcome::Skipped), "{checks:?}");
    }

    #[test]
    fn this_machines_own_loopback_is_read() {
        let here = crate::LocalHost::new("here");
        let found = find(&here, MacAddr::ZERO).expect("a shell").expect("lo has no MAC");
        assert_eq!(found.name, "lo");
        assert!(found.addresses.contains(&"127.0.0.1".parse().expect("valid")), "{found:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(?s).{0,200}") {
            let _ = parse(&text);
        }
    }
}
