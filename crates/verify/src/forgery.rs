//! Frames that a VM must not be able to send: with another's MAC, or with a VLAN tag of its own.

use std::time::{Duration, Instant};

use lanekeeper_hw::Hardware;
use lanekeeper_model::{DropReason, MacAddr, PfId, VfIndex, VlanId};

use crate::{Host, ProbeError};

/// What is forged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forgery {
    /// The source MAC.
    Mac(MacAddr),
    /// A VLAN tag.
    Vlan(VlanId),
}

impl Forgery {
    /// Why the NIC must drop it.
    pub fn reason(self) -> DropReason {
        match self {
            Self::Mac(_) => DropReason::SpoofedMac,
            Self::Vlan(_) => DropReason::ForgedVlan,
        }
    }

    /// The interface on top of `netdev` that forges what it sends.
    fn interface(self, netdev: &str) -> String {
        match self {
            // vepa: everything leaves by the interface below, nothing turns round inside.
            Self::Mac(mac) => {
                format!("link {netdev} name {FORGE} address {mac} type macvlan mode vepa")
            }
            Self::Vlan(id) => format!("link {netdev} name {FORGE} type vlan id {id}"),
        }
    }
}

/// What became of forged frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forged {
    /// Frames that left the VM.
    pub sent: u64,
    /// Frames that the NIC dropped for the reason in question meanwhile.
    pub dropped: u64,
}

impl Forged {
    /// Something was sent and all of it was dropped for the right reason.
    pub fn all_dropped(self) -> bool {
        self.sent > 0 && self.dropped >= self.sent
    }
}

/// Name of the interface that forges; it exists only while [`forge`] runs.
const FORGE: &str = "lkforge";

/// Send `count` ARP probes with a forged source or tag out of `netdev`, which is VF `vf` of `pf`,
/// and compare with what the NIC counted.
///
/// # Errors
/// [`ProbeError::Host`], [`ProbeError::Tool`] when the frames could not be sent,
/// [`ProbeError::Counters`].
pub fn forge(
    host: &dyn Host,
    netdev: &str,
    forgery: Forgery,
    count: u32,
    nic: &dyn Hardware,
    (pf, vf): (&PfId, VfIndex),
) -> Result<Forged, ProbeError> {
    let dropped = || Ok::<u64, ProbeError>(nic.counters(pf, vf)?.tx_dropped(forgery.reason()));
    let before = dropped()?;
    let sent = send(host, netdev, forgery, count)?;
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        let forged = Forged { sent, dropped: dropped()?.saturating_sub(before) };
        if forged.all_dropped() || Instant::now() >= deadline {
            return Ok(forged);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns how many frames left.
fn send(host: &dyn Host, netdev: &str, forgery: Forgery, count: u32) -> Result<u64, ProbeError> {
    // Without IPv6 nothing but the probes is sent. 192.0.2.1 (RFC 5737) belongs to nobody, and a
    // probe (-D) needs no address of its own.
    let command = format!(
        "trap 'ip link del {FORGE} 2>/dev/null' EXIT; ip link add {} && \
         {{ echo 1 > /proc/sys/net/ipv6/conf/{FORGE}/disable_ipv6; }} 2>/dev/null; \
         ip link set {FORGE} up && {{ arping -D -c {count} -w {} -I {FORGE} 192.0.2.1 >&2; \
         cat /sys/class/net/{FORGE}/statistics/tx_packets; }}",
        forgery.interface(netdev),
        count + 1,
    );
    let output = host.run(&command, Duration::from_secs(u64::from(count) + 30))?;
    let sent = output.stdout.trim().parse();
    sent.map_err(|_| ProbeError::tool("forging with ip and arping", host, &output))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalHost;
    use crate::scripted::Scripted;
    use lanekeeper_hw::{HardwareError, PfStatus};
    use lanekeeper_model::{SoftNicName, VfChange, VfCounters, VfStatus};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A NIC that has counted `step` more forged frames each time it is asked.
    struct Counting {
        reason: DropReason,
        step: u64,
        seen: AtomicU64,
    }

    impl Hardware for Counting {
        fn pfs(&self) -> Result<Vec<PfStatus>, HardwareError> {
            Ok(Vec::new())
        }
        fn vf(&self, pf: &PfId, _: VfIndex) -> Result<VfStatus, HardwareError> {
            Err(HardwareError::NoPf(pf.clone()))
        }
        fn set_vf(&self, pf: &PfId, _: VfIndex, _: &VfChange) -> Result<VfStatus, HardwareError> {
            Err(HardwareError::NoPf(pf.clone()))
        }
        fn counters(&self, _: &PfId, _: VfIndex) -> Result<VfCounters, HardwareError> {
            let mut counters = VfCounters::default();
            let seen = self.seen.fetch_add(self.step, Ordering::SeqCst);
            counters.tx_drops.insert(self.reason, 100 + seen);
            Ok(counters)
        }
    }

    fn forged(forgery: Forgery, reason: DropReason, step: u64) -> Forged {
        let host = Scripted::new("a1").answer("lkforge", 0, "3\n", "");
        let nic = Counting { reason, step, seen: AtomicU64::new(0) };
        let name: SoftNicName = "nic0".parse().expect("valid");
        let (pf, vf) = (PfId::Soft(name), VfIndex::new(0).expect("valid"));
        forge(&host, "eth1", forgery, 3, &nic, (&pf, vf)).expect("sent")
    }

    const MAC: Forgery = Forgery::Mac(MacAddr([2, 0, 0, 0, 0, 9]));

    #[test]
    fn frames_that_were_all_counted_are_all_dropped() {
        let forged = forged(MAC, DropReason::SpoofedMac, 3);
        assert_eq!(forged, Forged { sent: 3, dropped: 3 });
        assert!(forged.all_dropped());
    }

    #[test]
    fn frames_dropped_for_another_reason_do_not_count() {
        assert!(!forged(MAC, DropReason::NoDestination, 3).all_dropped());
    }

    #[test]
    fn nothing_sent_proves_nothing() {
        assert!(!Forged { sent: 0, dropped: 0 }.all_dropped());
    }

    #[test]
    fn a_machine_that_cannot_forge_says_why() {
        let host = Scripted::new("a1").answer("lkforge", 2, "", "Error: Unknown device type.");
        let text = send(&host, "eth1", MAC, 3).expect_err("cannot").to_string();
        assert!(text.contains("Unknown device type"), "{text}");
    }

    #[test]
    fn the_command_is_one_a_shell_takes() {
        let host = Scripted::new("a1").answer("lkforge", 0, "3\n", "");
        for forgery in [MAC, Forgery::Vlan(VlanId::new(7).expect("valid"))] {
            send(&host, "eth1", forgery, 3).expect("sent");
        }
        for command in host.commands() {
            let quoted = command.replace('\'', r"'\''");
            LocalHost::new("here")
                .check(&format!("sh -n -c '{quoted}'"), Duration::from_secs(5))
                .expect("well formed");
        }
    }
}
