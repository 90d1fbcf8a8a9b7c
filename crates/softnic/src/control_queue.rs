//! Commands that a VM's driver sends on the control queue (virtio 1.2, 5.1.6.5).
//!
//! QEMU and DPDK answer this queue themselves; VMMs that hand it over, and our own driver, reach
//! it here. Parsing is pure; what a command is allowed to do is the NIC's to decide.

use lanekeeper_model::{MacAddr, VlanId};

use crate::ring::{PopScratch, Queue, RingFault};

/// Longest command looked at: two MAC tables of 128 entries fit.
pub(crate) const MAX_COMMAND: usize = 2_048;
/// Most entries of one MAC table.
const MAX_TABLE: usize = 128;

/// One command, well-formed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Receive every frame of the VLAN.
    Promiscuous(bool),
    /// Receive every multicast frame.
    AllMulticast(bool),
    /// Receive frames for these unicast addresses too; multicast ones are flooded anyway.
    MacTable(Vec<MacAddr>),
    /// Use this address.
    MacAddress(MacAddr),
    /// Receive frames of this VLAN.
    VlanAdd(VlanId),
    /// Receive frames of this VLAN no more.
    VlanRemove(VlanId),
    /// The driver has announced itself.
    AnnounceAck,
    /// Spread received frames over this many pairs.
    QueuePairs(u16),
    /// Use these receive offloads from now on.
    GuestOffloads(u64),
}

/// Read a command; `None` for what is malformed, too long or unknown.
pub(crate) fn parse(bytes: &[u8]) -> Option<Command> {
    let (&[class, code], data) = bytes.split_first_chunk::<2>()?;
    let switch = || match data {
        [value, ..] => Some(*value != 0),
        [] => None,
    };
    let word = || Some(u16::from_le_bytes(*data.first_chunk::<2>()?));
    let vlan = || VlanId::new(word()?.into()).ok();
    match (class, code) {
        (0, 0) => switch().map(Command::Promiscuous),
        (0, 1) => switch().map(Command::AllMulticast),
        (1, 0) => mac_tables(data).map(Command::MacTable),
        (1, 1) => data.first_chunk::<6>().map(|mac| Command::MacAddress(MacAddr(*mac))),
        (2, 0) => vlan().map(Command::VlanAdd),
        (2, 1) => vlan().map(Command::VlanRemove),
        (3, 0) => Some(Command::AnnounceAck),
        (4, 0) => word().map(Command::QueuePairs),
        (5, 0) => {
            data.first_chunk::<8>().map(|set| Command::GuestOffloads(u64::from_le_bytes(*set)))
        }
        _ => None,
    }
}

/// The unicast table; the multicast table after it must be whole, too.
fn mac_tables(data: &[u8]) -> Option<Vec<MacAddr>> {
    let (unicast, rest) = mac_table(data)?;
    mac_table(rest)?;
    Some(unicast)
}

fn mac_table(data: &[u8]) -> Option<(Vec<MacAddr>, &[u8])> {
    let (count, entries) = data.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    if count > MAX_TABLE {
        return None;
    }
    let (table, rest) = entries.split_at_checked(6 * count)?;
    let macs = table.as_chunks::<6>().0.iter().map(|mac| MacAddr(*mac)).collect();
    Some((macs, rest))
}

const ACK_OK: u8 = 0;
const ACK_ERROR: u8 = 1;

/// Answer the next command, if there is one. `decide` says whether it was done.
pub(crate) fn serve_one(
    queue: &mut Queue,
    scratch: &mut PopScratch,
    buffer: &mut [u8; MAX_COMMAND],
    decide: impl FnOnce(&Command) -> bool,
) -> Result<bool, RingFault> {
    let Some(mut chain) = queue.pop_mixed(scratch)? else { return Ok(false) };
    let length = chain.request().len();
    let done = length <= MAX_COMMAND
        && chain.request().copy_at(0, &mut buffer[..length]) == length
        && parse(&buffer[..length]).is_some_and(|command| decide(&command));
    chain.respond(&[if done { ACK_OK } else { ACK_ERROR }]);
    chain.complete();
    Ok(true)
}

/// A hostile driver's control queue from any bytes, with what must hold whatever they are.
#[cfg(any(test, fuzzing))]
pub mod fuzz_harness {
    use std::cell::RefCell;
    use std::sync::Arc;

    use super::{Command, MAX_COMMAND, MAX_TABLE, serve_one};
    use crate::driver::{VfDriver, VfOptions};
    use crate::ring::{PopScratch, Position, Queue, RingKind};

    const SIZE: u16 = 8;

    thread_local! {
        /// Mapping takes longer than a run, so it is done once a thread.
        static DRIVERS: RefCell<Option<[VfDriver; 2]>> = const { RefCell::new(None) };
    }

    fn driver(kind: RingKind) -> VfDriver {
        let options =
            VfOptions { kind, size: SIZE, control: true, indirect: true, ..VfOptions::default() };
        VfDriver::unconnected(options).expect("memory for a driver")
    }

    /// The first byte chooses the ring's format, the next 128 are its descriptors (addresses are
    /// bent into memory), two more the available index, the rest what lies in the buffers.
    ///
    /// # Panics
    /// When a command passes that no well-formed bytes stand for, or the ring yields more chains
    /// than it has.
    pub fn control_queue(data: &[u8]) {
        let Some((&first, data)) = data.split_first() else { return };
        let Some((descriptors, data)) = data.split_first_chunk::<128>() else { return };
        let Some((index, content)) = data.split_first_chunk::<2>() else { return };
        let make = || [RingKind::Split, RingKind::Packed].map(driver);
        DRIVERS.with_borrow_mut(|drivers| {
            let driver = &drivers.get_or_insert_with(make)[usize::from(first & 1)];
            run(driver, descriptors, *index, content);
        });
    }

    fn run(driver: &VfDriver, descriptors: &[u8; 128], index: [u8; 2], content: &[u8]) {
        let memory = driver.guest_memory();
        let number = driver.control_queue().expect("it was asked for");
        let spec = driver.ring_spec(number).expect("it was asked for");
        let poke = |at: u64, bytes: &[u8]| memory.write(at, bytes).expect("its own memory");
        let data = driver.ring_spec(0).expect("a receive ring").desc;
        let mut ring = *descriptors;
        for descriptor in ring.as_chunks_mut::<16>().0 {
            // Near the ring, mostly: what lies far away is only ever refused.
            if descriptor[7] & 0xf0 == 0 {
                let near = u64::from(u16::from_le_bytes([descriptor[0], descriptor[1]]) & 0xfff);
                descriptor[..8].copy_from_slice(&(data + near).to_le_bytes());
            }
        }
        poke(data, &content[..content.len().min(0x1000)]);
        poke(spec.desc, &ring);
        if spec.kind == RingKind::Split {
            poke(spec.avail + 2, &index);
            poke(spec.avail + 4, &[0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0]);
        }
        let Ok(mut queue) = Queue::new(Arc::clone(memory), spec, Position::START) else { return };
        let (mut scratch, mut buffer) = (PopScratch::new(), [0; MAX_COMMAND]);
        for served in 0.. {
            assert!(served <= usize::from(SIZE), "a ring of {SIZE} has no more chains");
            let decide = |command: &Command| {
                if let Command::MacTable(table) = command {
                    assert!(table.len() <= MAX_TABLE);
                }
                true
            };
            match serve_one(&mut queue, &mut scratch, &mut buffer, decide) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_a_vm_writes_parsing_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes);
        }
    }

    proptest! {
        #[test]
        fn whatever_a_vm_does_to_its_control_ring_the_device_survives(
            bytes in proptest::collection::vec(any::<u8>(), 131..700),
        ) {
            fuzz_harness::control_queue(&bytes);
        }
    }

    #[test]
    fn each_command_is_read() {
        let mac = [2, 0, 0, 0, 0, 9];
        assert_eq!(parse(&[0, 0, 1]), Some(Command::Promiscuous(true)));
        assert_eq!(parse(&[1, 1, 2, 0, 0, 0, 0, 9]), Some(Command::MacAddress(MacAddr(mac))));
        assert_eq!(parse(&[2, 0, 7, 0]), Some(Command::VlanAdd(VlanId::new(7).expect("valid"))));
        assert_eq!(parse(&[4, 0, 4, 0]), Some(Command::QueuePairs(4)));
        let mut table = vec![1, 0, 1, 0, 0, 0];
        table.extend(mac);
        table.extend([0, 0, 0, 0]);
        assert_eq!(parse(&table), Some(Command::MacTable(vec![MacAddr(mac)])));
    }

    #[test]
    fn a_table_that_lies_about_its_length_is_refused() {
        assert_eq!(parse(&[1, 0, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(parse(&[1, 0, 1, 0, 0, 0, 2, 0, 0]), None);
        assert_eq!(parse(&[1, 0, 0, 0, 0, 0]), None, "the multicast table is missing");
    }

    #[test]
    fn a_short_or_unknown_command_is_refused() {
        for bytes in
            [&[][..], &[0], &[0, 0], &[2, 0, 7], &[2, 0, 0xff, 0x0f], &[9, 9, 9], &[0, 2, 1]]
        {
            assert_eq!(parse(bytes), None, "{bytes:?}");
        }
    }
}
