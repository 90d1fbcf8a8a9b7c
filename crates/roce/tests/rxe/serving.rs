//! perftest in the guest is the client: it sends to us, and writes, reads and counts in our memory.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use lanekeeper_roce::engine::{CompletionKind, Status};
use lanekeeper_roce::wire::Service;
use lanekeeper_vmm::Host;

use super::PATIENCE;
use super::exchange::{Exchange, Said};
use super::guest::{Guest, OURS, perftest};
use super::node::{Fault, LENGTH, Node, pattern};

const MESSAGES: usize = 20;
const SIZE: u32 = 5000;

pub(crate) fn rxe_sends_writes_reads_and_counts_in_our_memory(guest: &Guest, fault: Fault) {
    let size = format!("-n {MESSAGES} -s {SIZE}");
    let mut node = served(guest, "ib_send_bw", &size, Service::Rc, fault);
    let mut received = 0;
    while let Some(done) = node.completion() {
        assert_eq!((done.status, done.kind), (Status::Success, CompletionKind::Receive));
        assert_eq!(done.bytes, SIZE);
        received += 1;
    }
    assert_eq!(received, MESSAGES);
    drop(node);
    let node = served(guest, "ib_write_bw", &size, Service::Rc, fault);
    let changed = (0..LENGTH).filter(|&at| node.memory()[at] != pattern(at)).count();
    assert!(changed >= SIZE as usize / 2, "it wrote only {changed} other bytes");
    drop(node);
    let node = served(guest, "ib_read_bw", &size, Service::Rc, fault);
    assert!((0..LENGTH).all(|at| node.memory()[at] == pattern(at)), "reading changes nothing");
    let count = format!("-n {MESSAGES} -A FETCH_AND_ADD");
    drop(node);
    let node = served(guest, "ib_atomic_bw", &count, Service::Rc, fault);
    let changed = (0..LENGTH).filter(|&at| node.memory()[at] != pattern(at)).count();
    assert!((1..=64).contains(&changed), "counted in some words: {changed} bytes changed");
    drop(node);
    if fault == Fault::Nothing {
        served(guest, "ib_write_bw", &format!("-c UC {size}"), Service::Uc, fault);
    }
}

/// Run one of perftest's programs in the guest against us, to its end.
fn served(guest: &Guest, tool: &str, arguments: &str, service: Service, fault: Fault) -> Node {
    let mut node = Node::new(guest, service, fault);
    let listen = || TcpListener::bind((OURS, 0));
    let listener = guest.host.run(listen).expect("enters").expect("listens");
    let port = listener.local_addr().expect("bound").port();
    let command = perftest(tool, &format!("-p {port} {arguments} {OURS}"));
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
    println!("{tool} {arguments} {}", node.story());
    assert_eq!(output.status, 0, "{command}: {output:?}; {}", node.story());
    node
}
