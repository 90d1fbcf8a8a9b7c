//! perftest in the guest is the server: we send to it, and write, read and count in its memory.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use lanekeeper_roce::engine::{Remote, Verb};
use lanekeeper_roce::wire::Service;
use lanekeeper_vmm::Host;

use super::PATIENCE;
use super::exchange::{Exchange, Keys, Said};
use super::guest::{GUEST, Guest, perftest};
use super::node::Node;

const MESSAGES: u64 = 20;
const SIZE: u32 = 5000;
/// Where answers go in our memory.
const ANSWERS: u64 = 100_000;

pub(crate) fn we_send_write_read_and_count_in_the_memory_of_rxe(
    guest: &Guest,
    lose_every: Option<u32>,
) {
    let size = format!("-n {MESSAGES} -s {SIZE}");
    using(guest, "ib_send_bw", &size, lose_every, |node, _| {
        (0..MESSAGES).for_each(|_| node.work(Verb::Send, 0, SIZE));
    });
    using(guest, "ib_write_bw", &size, lose_every, |node, remote| {
        (0..MESSAGES).for_each(|_| node.work(Verb::Write(remote), 0, SIZE));
    });
    using(guest, "ib_read_bw", &size, lose_every, |node, remote| {
        (0..MESSAGES).for_each(|round| {
            node.work(Verb::Read(remote), ANSWERS, SIZE);
            let answer = node.memory()[ANSWERS as usize..][..SIZE as usize].to_vec();
            node.work(Verb::Read(remote), 0, SIZE);
            assert_eq!(node.memory()[..SIZE as usize], answer, "in round {round}");
        });
    });
    let count = format!("-n {MESSAGES} -A FETCH_AND_ADD");
    using(guest, "ib_atomic_bw", &count, lose_every, |node, remote| {
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

/// Start one of perftest's programs in the guest as server, and work with it.
fn using(
    guest: &Guest,
    tool: &str,
    arguments: &str,
    lose_every: Option<u32>,
    work: impl FnOnce(&mut Node, Remote),
) {
    let mut node = Node::new(guest, Service::Rc, lose_every);
    // The one before may still hold its port.
    let port = guest.vm.check("shuf -i 20000-60000 -n 1", PATIENCE).expect("a number");
    let port: u16 = port.trim().parse().expect("a number");
    let mut server =
        guest.vm.start(&perftest(tool, &format!("-p {port} {arguments}"))).expect("starts");
    let listens = format!("until ss -tln | grep -q :{port}; do sleep 0.1; done");
    guest.vm.check(&listens, PATIENCE).expect("listens");
    let connect = || TcpStream::connect((GUEST, port));
    let stream = guest.host.run(connect).expect("enters").expect("connects");
    let mut exchange = Exchange::new(stream);
    let theirs = told(&mut node, &mut exchange);
    node.connect(&theirs);
    // Once more: now it is ready as well.
    told(&mut node, &mut exchange);
    work(&mut node, Remote { address: theirs.address, rkey: theirs.rkey });
    println!("we: {tool} {arguments} {lose_every:?}: {}", node.story());
    // It would like to hear what we measured.
    server.stop().expect("stops");
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
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < PATIENCE, "it says nothing");
    }
}
