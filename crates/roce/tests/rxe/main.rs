//! Our engine and the Linux kernel's `rdma_rxe`, in a guest, with perftest as the program that uses it:
//! each verb in both directions, also with packets lost or overtaken on the way.
//!
//! The engine runs in this process on a UDP socket, on a bridge with the guest.

#[path = "../../../vmm/tests/rig/mod.rs"]
#[allow(dead_code, unreachable_pub)]
mod rig;

mod exchange;
mod guest;
mod node;
mod serving;
mod using;

use std::time::Duration;

use node::Fault;

/// Far more than anything takes here on an idle machine: guests are emulated, and tests share theirs.
const PATIENCE: Duration = Duration::from_secs(120);

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    root
}

#[test]
fn every_verb_goes_both_ways_between_rxe_and_us_also_where_packets_are_lost() {
    if is_root() {
        both_ways(&guest::Guest::start(), &[Fault::Nothing, Fault::Lose(10)]);
    }
}

#[test]
#[ignore = "long: a minute or two in an emulated guest"]
fn other_services_and_path_mtus_work_with_rxe_and_packets_may_overtake_each_other() {
    if is_root() {
        let guest = guest::Guest::start();
        serving::rxe_uses_other_services_and_path_mtus(&guest);
        using::we_use_other_services_and_path_mtus(&guest);
        both_ways(&guest, &[Fault::Overtake(11), Fault::Lose(97)]);
    }
}

fn both_ways(guest: &guest::Guest, faults: &[Fault]) {
    for &fault in faults {
        serving::rxe_sends_writes_reads_and_counts_in_our_memory(guest, fault);
        using::we_send_write_read_and_count_in_the_memory_of_rxe(guest, fault);
    }
}
