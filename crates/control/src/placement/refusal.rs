//! A refusal, and the counts that explain it.

use std::collections::BTreeMap;
use std::fmt;

use super::RequestError;

/// Why one host takes none of a request's VMs: the first of these that it fails, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Filter {
    /// It is drained or lost.
    Closed,
    /// It has no GPUs of the model.
    GpuModel,
    /// Too few GPUs are free.
    Gpus,
    /// Too few CPUs are free.
    Vcpus,
    /// Too little memory is free.
    Ram,
    /// Too little disk is free.
    Disk,
    /// It has no PF on the network's fabric.
    Fabric,
    /// Its PFs there have no RDMA engine.
    Rdma,
    /// It has no PFs on as many neighbouring rails, or they have no VF free.
    Rails,
    /// Too few VFs are free.
    Vfs,
    /// VFs are free, but the PFs have not so much rate left.
    Rate,
    /// GPUs and VFs are free, but farther from each other than is allowed.
    Distance,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "are drained or lost",
            Self::GpuModel => "have no GPUs of this model",
            Self::Gpus => "have too few GPUs free",
            Self::Vcpus => "have too few vCPUs free",
            Self::Ram => "have too little RAM free",
            Self::Disk => "have too little disk free",
            Self::Fabric => "have no PF on this fabric",
            Self::Rdma => "have no PF with RDMA in hardware there",
            Self::Rails => "have no neighbouring rails with a VF free on each",
            Self::Vfs => "have too few VFs free",
            Self::Rate => "have too little rate left for their VFs",
            Self::Distance => "have GPUs and VFs free, but too far from each other",
        })
    }
}

/// Why a request is not placed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// It makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It would exceed a quota.
    #[error("{asked} {what} are asked for, {used} are used, and the quota is {limit}")]
    Quota {
        /// Of what.
        what: &'static str,
        /// How much may be.
        limit: u64,
        /// How much is.
        used: u64,
        /// How much more was asked for.
        asked: u64,
    },
    /// There is no room for the whole of it.
    #[error("{}", explain(*.wanted, *.hosts, .failed, *.room, *.at_once))]
    NoRoom {
        /// VMs and spares asked for.
        wanted: u32,
        /// Hosts there are.
        hosts: usize,
        /// How many hosts failed each filter.
        failed: BTreeMap<Filter, usize>,
        /// How many VMs the other hosts have room for, all together.
        room: u64,
        /// How many of them under the policy.
        at_once: u64,
    },
}

fn explain(
    wanted: u32,
    hosts: usize,
    failed: &BTreeMap<Filter, usize>,
    room: u64,
    at_once: u64,
) -> String {
    let mut parts: Vec<String> =
        failed.iter().map(|(filter, count)| format!("{count} {filter}")).collect();
    let others = hosts - failed.values().sum::<usize>();
    if others > 0 {
        let policy = if at_once < room {
            format!(", but only for {at_once} under the policy")
        } else {
            String::new()
        };
        parts.push(format!("{others} have room for {room} together{policy}"));
    }
    let what = if wanted == 1 { "the VM".to_owned() } else { format!("{wanted} VMs at once") };
    if hosts == 0 {
        return format!(
            "no room for {what}: no host of the region has told yet what it has; look at its agent"
        );
    }
    format!("no room for {what}; of {hosts} hosts {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(wanted: u32, hosts: usize, failed: &[(Filter, usize)]) -> String {
        let failed = failed.iter().copied().collect();
        Refusal::NoRoom { wanted, hosts, failed, room: 1, at_once: 1 }.to_string()
    }

    #[test]
    fn a_region_without_hosts_is_told_from_one_that_is_full() {
        let none = refusal(1, 0, &[]);
        assert!(none.starts_with("no room for the VM: no host of the region has told"), "{none}");
        let full = refusal(2, 3, &[(Filter::Rails, 2)]);
        assert!(full.starts_with("no room for 2 VMs at once; of 3 hosts 2 have no"), "{full}");
        assert!(full.ends_with("1 have room for 1 together"), "{full}");
    }
}
