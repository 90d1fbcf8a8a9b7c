//! perftest in the guest is the client: it sends to us, and writes, reads and counts in our memory.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use lanekeeper_roce::engine::{CompletionKind, Status};
use lanekeeper_roce::wire::{PathMtu, Service};
use lanekeeper_vmm::Host;

use super::PATIENCE;
use super::exchange::{Exchange, Said};
use super::guest::{Case, Guest, OURS};
use super::node::{Fault, LENGTH, Node, pattern};

const MESSAGES: usize = 20;
const SIZE: u32 = 5000;

pub(crate) fn rxe_sends_writes_reads_and_counts_in_our_memory(guest: &Guest, fault: Fault) {
    let size = format!("-n {MESSAGES} -s {SIZE}");
    all_are_received(served(guest, &Case::new("ib_send_bw", &size, fault)), SIZE);
    let changed = changed(&served(guest, &Case::new("ib_write_bw", &size, fault)));
    assert!(changed >= SIZE as usize / 2, "it wrote only {changed} other bytes");
    let changed = self::changed(&served(guest, &Case::new("ib_read_bw", &size, fault)));
    assert_eq!(changed, 0, "reading changes nothing");
    for atomic in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        let count = format!("-n {MESSAGES} -A {atomic}");
        let changed = self::changed(&served(guest, &Case::new("ib_atomic_bw", &count, fault)));
        assert!(changed <= 64, "{atomic} in some words: {changed} bytes changed");
    }
}

pub(crate) fn rxe_uses_other_services_and_path_mtus(guest: &Guest) {
    let size = format!("-n {MESSAGES} -s {SIZE}");
    let plain = Case::new("ib_write_bw", &size, Fault::Nothing);
    for mtu in [PathMtu::M256, PathMtu::M4096] {
        assert_ne!(changed(&served(guest, &Case { mtu, ..plain })), 0);
    }
    assert_ne!(changed(&served(guest, &Case { service: Service::Uc, ..plain })), 0);
    let send = Case { tool: "ib_send_bw", ..plain };
    all_are_received(served(guest, &Case { service: Service::Uc, ..send }), SIZE);
    let small = format!("-n {MESSAGES} -s 1000");
    let datagrams = Case { service: Service::Ud, arguments: &small, ..send };
    // Each with the 40 bytes that say from where it came.
    all_are_received(served(guest, &datagrams), 1040);
}

fn changed(node: &Node) -> usize {
    (0..LENGTH).filter(|&at| node.memory()[at] != pattern(at)).count()
}

fn all_are_received(mut node: Node, length: u32) {
    let mut received = 0;
    while let Some(done) = node.completion() {
        assert_eq!((done.status, done.kind), (Status::Success, CompletionKind::Receive));
        assert_eq!(done.bytes, length);
        received += 1;
    }
    assert_eq!(received, MESSAGES);
}

/// Run one of perftest's programs in the guest against us, to its end.
fn served(guest: &Guest, case: &Case) -> Node {
    let mut node = Node::new(guest, case);
    let listen = || TcpListener::bind((OURS, 0));
    let listener = guest.host.run(listen).expect("enters").expect("listens");
    let port = listener.local_addr().expect("bound").port();
    let command = case.command(port, OURS);
    let mut client = guest.vm.start(&command).expect("starts");
    listener.set_nonblocking(true).expect("set");
    let start = Instant::now();
    let mut exchange: Option<Exchange> = None;
    let mut connected = false;
    loop {
        node.turn();
        if exchange.is_none() {
            exchange = listener.accept().ok().map(|(stream, _)| Exchange::new(stream));
        }
        match exchange.as_mut().and_then(Exchange::hear) {
            Some(Said::Keys(keys)) => {
                if !connected {
                    node.connect(&keys);
                    (0..64).for_each(|id| node.post_receive(id, SIZE));
                    connected = true;
                }
                let ours = node.keys();
                exchange.as_mut().expect("it said something").say(&ours);
            }
            // What it measured is what we measured.
            Some(Said::Other(bytes)) => {
                exchange.as_mut().expect("it said something").say_bytes(&bytes);
            }
            Some(Said::End) => break,
            None => {}
        }
        let ended = exchange.is_none() && client.wait(Duration::ZERO).expect("answers").is_some();
        if ended || start.elapsed() > PATIENCE {
            let output = client.stop().expect("stops");
            panic!("{command} does not get to its end: {output:?}; {}", node.story());
        }
    }
    let output = client.wait(PATIENCE).expect("answers").expect("has ended");
    println!("{command}: {}", node.story());
    assert_eq!(output.status, 0, "{command}: {output:?}; {}", node.story());
    node
}
