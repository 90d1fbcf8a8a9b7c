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

/// Path MTU of all connections: what Ethernet's usual MTU gives, and several packets a message.
const MTU: u32 = 1024;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    root
}

#[test]
fn every_verb_goes_both_ways_between_rxe_and_us() {
    if !is_root() {
        return;
    }
    let guest = guest::Guest::start();
    for fault in [Fault::Nothing, Fault::Lose(23), Fault::Overtake(11)] {
        serving::rxe_sends_writes_reads_and_counts_in_our_memory(&guest, fault);
        using::we_send_write_read_and_count_in_the_memory_of_rxe(&guest, fault);
    }
}
