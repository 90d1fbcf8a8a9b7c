//! Commands that a VM's driver sends on the control queue (virtio 1.2, 5.1.6.5).
//!
//! QEMU and DPDK answer this queue themselves; VMMs that hand it over, and our own driver, reach
//! it here. Parsing is pure; what a command is allowed to do is the NIC's to decide.

use lanekeeper_model::{MacAddr, VlanId};

use crate::port::PortQueue;
use crate::ring::{PopScratch, RingFault};

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
    ring: &mut PortQueue,
    scratch: &mut PopScratch,
    buffer: &mut [u8; MAX_COMMAND],
    decide: impl FnOnce(&Command) -> bool,
) -> Result<bool, RingFault> {
    let Some(mut chain) = ring.queue.pop_mixed(scratch)? else { return Ok(false) };
    let length = chain.request().len();
    let done = length <= MAX_COMMAND
        && chain.request().copy_at(0, &mut buffer[..length]) == length
        && parse(&buffer[..length]).is_some_and(|command| decide(&command));
    chain.respond(&[if done { ACK_OK } else { ACK_ERROR }]);
    chain.complete();
    Ok(true)
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
