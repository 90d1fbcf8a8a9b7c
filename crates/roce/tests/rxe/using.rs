//! perftest in the guest is the server: we send to it, and write, read and count in its memory.

use std::net::TcpStream;
use std::time::Instant;

use lanekeeper_roce::engine::{Remote, Verb};
use lanekeeper_roce::wire::{PathMtu, Service};
use lanekeeper_vmm::Host;

use super::PATIENCE;
use super::exchange::{Exchange, Keys, Said};
use super::guest::{Case, GUEST, Guest};
use super::node::{Fault, Node};

const MESSAGES: u64 = 20;
const SIZE: u32 = 5000;
/// Where answers go in our memory.
const ANSWERS: u64 = 100_000;

pub(crate) fn we_send_write_read_and_count_in_the_memory_of_rxe(guest: &Guest, fault: Fault) {
    let size = format!("-n {MESSAGES} -s {SIZE}");
    using(guest, &Case::new("ib_send_bw", &size, fault), |node, _| {
        (0..MESSAGES).for_each(|_| node.work(Verb::Send, 0, SIZE));
    });
    using(guest, &Case::new("ib_write_bw", &size, fault), |node, theirs| {
        let remote = memory(theirs);
        (0..MESSAGES).for_each(|_| node.work(Verb::Write(remote), 0, SIZE));
    });
    using(guest, &Case::new("ib_read_bw", &size, fault), |node, theirs| {
        let remote = memory(theirs);
        (0..MESSAGES).for_each(|round| {
            node.work(Verb::Read(remote), ANSWERS, SIZE);
            let answer = node.memory()[ANSWERS as usize..][..SIZE as usize].to_vec();
            node.work(Verb::Read(remote), 0, SIZE);
            assert_eq!(node.memory()[..SIZE as usize], answer, "in round {round}");
        });
    });
    let count = format!("-n {MESSAGES} -A FETCH_AND_ADD");
    using(guest, &Case::new("ib_atomic_bw", &count, fault), |node, theirs| {
        let remote = memory(theirs);
        let at = ANSWERS as usize;
        let word = |node: &mut Node, verb| {
            node.memory_mut()[at..at + 8].fill(0xee);
            node.work(verb, ANSWERS, 8);
            u64::from_ne_bytes(node.memory()[at..at + 8].try_into().expect("eight"))
        };
        let before = word(node, Verb::FetchAdd { remote, add: 3 });
        for round in 1..=MESSAGES {
            let seen = word(node, Verb::FetchAdd { remote, add: 3 });
            assert_eq!(seen, before.wrapping_add(3 * round), "each adds once");
        }
        let now = before.wrapping_add(3 * (MESSAGES + 1));
        let refused = Verb::CompareSwap { remote, compare: now ^ 1, swap: 1 };
        assert_eq!(word(node, refused), now, "not equal, so left alone");
        assert_eq!(word(node, Verb::CompareSwap { remote, compare: now, swap: 77 }), now);
        assert_eq!(word(node, Verb::FetchAdd { remote, add: 0 }), 77);
    });
}

pub(crate) fn we_use_other_services_and_path_mtus(guest: &Guest) {
    let size = format!("-n {MESSAGES} -s {SIZE}");
    let plain = Case::new("ib_write_bw", &size, Fault::Nothing);
    for mtu in [PathMtu::M256, PathMtu::M4096] {
        using(guest, &Case { mtu, ..plain }, |node, theirs| {
            (0..MESSAGES).for_each(|_| node.work(Verb::Write(memory(theirs)), 0, SIZE));
        });
    }
    let send = Case { tool: "ib_send_bw", service: Service::Uc, ..plain };
    using(guest, &send, |node, _| {
        (0..MESSAGES).for_each(|_| node.work(Verb::Send, 0, SIZE));
    });
    let small = format!("-n {MESSAGES} -s 1000");
    let datagrams = Case { service: Service::Ud, arguments: &small, ..send };
    using(guest, &datagrams, |node, theirs| {
        (0..MESSAGES).for_each(|_| node.send_datagram(theirs.qpn, 1000));
    });
}

/// The other end's memory.
fn memory(theirs: &Keys) -> Remote {
    Remote { address: theirs.address, rkey: theirs.rkey }
}

/// Start one of perftest's programs in the guest as server, and work with it.
fn using(guest: &Guest, case: &Case, work: impl FnOnce(&mut Node, &Keys)) {
    let tool = case.tool;
    let mut node = Node::new(guest, case);
    // The one before may still hold its port.
    let port = guest.vm.check("shuf -i 20000-60000 -n 1", PATIENCE).expect("a number");
    let port: u16 = port.trim().parse().expect("a number");
    let command = case.command(port, "");
    let mut server = guest.vm.start(&command).expect("starts");
    let listens = format!("until ss -tln | grep -q :{port}; do sleep 0.1; done");
    guest.vm.check(&listens, PATIENCE).expect("listens");
    let connect = || TcpStream::connect((GUEST, port));
    let stream = guest.host.run(connect).expect("enters").expect("connects");
    let mut exchange = Exchange::new(stream);
    greet(&mut node, &mut exchange, case.mtu);
    let theirs = told(&mut node, &mut exchange);
    node.connect(&theirs);
    // It tells its keys anew whenever it is a step further: connected, and ready; one that will be sent
    // to has also posted receives.
    let steps = if tool == "ib_send_bw" { 3 } else { 2 };
    for _ in 0..steps {
        told(&mut node, &mut exchange);
    }
    work(&mut node, &theirs);
    println!("we, with {command}: {}", node.story());
    told(&mut node, &mut exchange);
    if tool != "ib_send_bw" {
        // It would show what we measured: size, messages, and three rates.
        (0..5).for_each(|_| trade(&mut node, &mut exchange, &[0; 8]));
        told(&mut node, &mut exchange);
    }
    exchange.say_bytes(b"done\0");
    let output = server.wait(PATIENCE).expect("answers").expect("has ended");
    assert_eq!(output.status, 0, "{tool}: {output:?}");
}

/// What perftest's ends ask each other first, each answered with as many bytes: version, page size, line
/// size, path MTU (by its code, as text).
fn greet(node: &mut Node, exchange: &mut Exchange, mtu: PathMtu) {
    let mtu = [b'0' + (mtu.bytes() / 256).ilog2() as u8 + 1, 0];
    let mut version = [0; 16];
    version[..4].copy_from_slice(b"6.06");
    for ours in [&version[..], &4096_u32.to_be_bytes(), &64_u32.to_be_bytes(), &mtu] {
        trade(node, exchange, ours);
    }
}

/// Say some bytes, and hear as many.
fn trade(node: &mut Node, exchange: &mut Exchange, ours: &[u8]) {
    exchange.say_bytes(ours);
    let mut theirs = 0;
    let start = Instant::now();
    while theirs < ours.len() {
        node.turn();
        match exchange.hear() {
            Some(Said::Other(bytes)) => theirs += bytes.len(),
            Some(other) => panic!("not {} bytes but {other:?}", ours.len()),
            None => assert!(start.elapsed() < PATIENCE, "it does not answer"),
        }
    }
}

/// Tell our keys, and hear theirs.
fn told(node: &mut Node, exchange: &mut Exchange) -> Keys {
    exchange.say(&node.keys());
    let start = Instant::now();
    loop {
        node.turn();
        match exchange.hear() {
            Some(Said::Keys(keys)) => return keys,
            Some(other) => panic!("no keys but {other:?}"),
            None => assert!(start.elapsed() < PATIENCE, "it says nothing"),
        }
    }
}
