//! rtnetlink: what a PF's interface tells of itself and its VFs, and the writes to it.
//!
//! Writes are `RTM_NEWLINK` without leave to create (no `NLM_F_CREATE`), as iproute2 sends them;
//! for an interface that exists the kernel takes that as `RTM_SETLINK` does (`rtnl_changelink`).

use lanekeeper_model::{MacAddr, Mtu, VfCounters, VfIndex};

use super::netlink::attribute::{Attribute, Attributes, Builder, u16_at};
use super::netlink::{Connection, Failure};
use super::vf_info;
use crate::inventory::VfAttributes;
use crate::message::VfMessage;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;

const IFLA_MTU: u16 = 4;
const IFLA_NUM_VF: u16 = 21;
const IFLA_VFINFO_LIST: u16 = 22;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PERM_ADDRESS: u16 = 54;
/// Inside `IFLA_VFINFO_LIST`.
const IFLA_VF_INFO: u16 = 1;

/// Tell of VFs (`RTEXT_FILTER_VF`).
const VFS: u32 = 1;
/// But not their counters, which are most of the bytes (`RTEXT_FILTER_SKIP_STATS`).
const WITHOUT_COUNTERS: u32 = 8;

/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
const IFF_UP: u32 = 1;

/// What the kernel tells of a PF's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// The address that was burnt in.
    pub(crate) permanent_mac: Option<MacAddr>,
    /// Its VFs, each with its number.
    pub(crate) vfs: Vec<(u32, VfAttributes)>,
}

/// Everything of a link but the VFs' counters.
pub(crate) fn read(kernel: &mut Connection, index: u32) -> Result<Link, Failure> {
    let answer = get(kernel, index, VFS | WITHOUT_COUNTERS)?;
    let told = Told::parse(&answer);
    Ok(Link {
        permanent_mac: told.permanent_mac,
        vfs: told.vfs.iter().filter_map(vf_info::read).collect(),
    })
}

/// Counters of one VF. The kernel tells those of all, or none.
pub(crate) fn read_counters(
    kernel: &mut Connection,
    index: u32,
    vf: VfIndex,
) -> Result<Option<VfCounters>, Failure> {
    let answer = get(kernel, index, VFS)?;
    let told = Told::parse(&answer);
    let mut all = told.vfs.iter().filter_map(vf_info::read_counters);
    Ok(all.find(|(number, _)| *number == u32::from(vf)).map(|(_, counters)| counters))
}

/// Set one VF: one message with one VF in it.
pub(crate) fn set_vf(
    kernel: &mut Connection,
    index: u32,
    vf: VfIndex,
    message: &VfMessage,
) -> Result<(), Failure> {
    let mut request = header(index, 0, 0);
    request.unmarked_nest(IFLA_VFINFO_LIST, |list| {
        list.unmarked_nest(IFLA_VF_INFO, |info| vf_info::write(vf, message, info));
    });
    kernel.set(RTM_NEWLINK, request.finish()).map(drop)
}

/// Set an interface up or down.
pub(crate) fn set_up(kernel: &mut Connection, index: u32, up: bool) -> Result<(), Failure> {
    let request = header(index, if up { IFF_UP } else { 0 }, IFF_UP);
    kernel.set(RTM_NEWLINK, request.finish()).map(drop)
}

/// Set an interface's MTU.
pub(crate) fn set_mtu(kernel: &mut Connection, index: u32, mtu: Mtu) -> Result<(), Failure> {
    let mut request = header(index, 0, 0);
    request.u32(IFLA_MTU, mtu.into());
    kernel.set(RTM_NEWLINK, request.finish()).map(drop)
}

/// Set an interface up or down and its MTU.
pub(crate) fn set_up_and_mtu(
    kernel: &mut Connection,
    index: u32,
    up: bool,
    mtu: u32,
) -> Result<(), Failure> {
    let mut request = header(index, if up { IFF_UP } else { 0 }, IFF_UP);
    request.u32(IFLA_MTU, mtu);
    kernel.set(RTM_NEWLINK, request.finish()).map(drop)
}

/// Ask for a link; `extent` says of what else to tell.
pub(crate) fn get(kernel: &mut Connection, index: u32, extent: u32) -> Result<Vec<u8>, Failure> {
    let mut request = header(index, 0, 0);
    request.u32(IFLA_EXT_MASK, extent);
    kernel.get(RTM_GETLINK, request.finish()).map(|answer| answer.payload)
}

/// What an answer tells of the link.
pub(crate) fn attributes(answer: &[u8]) -> Attributes<'_> {
    Attributes(answer.get(LINK_HEADER..).unwrap_or_default())
}

/// `struct ifinfomsg`: family, type, index, flags, and which of the flags are meant.
fn header(index: u32, flags: u32, change: u32) -> Builder {
    let words = [0, index, flags, change];
    Builder::after(&words.map(u32::to_ne_bytes).concat())
}

/// An answer taken apart.
#[derive(Debug, Default)]
struct Told<'a> {
    permanent_mac: Option<MacAddr>,
    vfs: Vec<Attributes<'a>>,
}

impl<'a> Told<'a> {
    fn parse(answer: &'a [u8]) -> Self {
        let mut told = Self::default();
        let mut count = 0;
        let mut rest = attributes(answer);
        loop {
            if kind(rest.rest()) == Some(IFLA_VFINFO_LIST) && count > 0 {
                rest = told.take_vfs(rest.rest(), count);
            }
            let Some(attribute) = rest.next() else { return told };
            match attribute.kind {
                IFLA_NUM_VF => count = attribute.u32().unwrap_or(0),
                IFLA_PERM_ADDRESS => told.permanent_mac = station(attribute),
                _ => {}
            }
        }
    }

    /// The VFs of a list, and what comes after it. The list's own length has 16 bits and is what
    /// remains of the true one when 256 VFs take more than 64 KiB, so the VFs are counted instead:
    /// `IFLA_NUM_VF` says before the list how many there are at most.
    fn take_vfs(&mut self, list: &'a [u8], count: u32) -> Attributes<'a> {
        let mut inside = Attributes(list.get(4..).unwrap_or_default());
        for _ in 0..count {
            if kind(inside.rest()) != Some(IFLA_VF_INFO) {
                break;
            }
            let Some(info) = inside.next() else { break };
            self.vfs.push(info.nested());
        }
        inside
    }
}

/// The type of the attribute that these bytes begin with, without its flags.
fn kind(bytes: &[u8]) -> Option<u16> {
    u16_at(bytes, 2).map(|kind| kind & 0x3fff)
}

fn station(attribute: Attribute<'_>) -> Option<MacAddr> {
    attribute.value.try_into().ok().map(MacAddr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An answer as the kernel writes it, lengths of 16 bits and all.
    fn answer(count: u32, told: impl Iterator<Item = u32>, room: usize) -> Vec<u8> {
        let mut vfs = Builder::default();
        for vf in told {
            vfs.unmarked_nest(IFLA_VF_INFO, |info| {
                let mut mac = vf.to_ne_bytes().to_vec();
                mac.extend([2, 0, 0, 0, (vf >> 8) as u8, vf as u8]);
                mac.resize(36, 0);
                info.bytes(1, &mac).bytes(13, &vec![0; room]);
            });
        }
        let mut bytes = Builder::after(&[0; LINK_HEADER]);
        bytes.u32(IFLA_NUM_VF, count);
        let mut bytes = bytes.finish().to_vec();
        let length = (4 + vfs.finish().len()) as u16;
        bytes.extend(length.to_ne_bytes());
        bytes.extend(IFLA_VFINFO_LIST.to_ne_bytes());
        bytes.extend(vfs.finish());
        let mut after = Builder::default();
        after.bytes(IFLA_PERM_ADDRESS, &[2, 9, 9, 9, 9, 9]);
        bytes.extend(after.finish());
        bytes
    }

    fn numbers(answer: &[u8]) -> Vec<u32> {
        let told = Told::parse(answer);
        assert_eq!(told.permanent_mac, Some(MacAddr([2, 9, 9, 9, 9, 9])));
        told.vfs.iter().filter_map(vf_info::read).map(|(vf, _)| vf).collect()
    }

    #[test]
    fn a_list_longer_than_its_16_bit_length_is_read_whole() {
        let bytes = answer(256, 0..256, 300);
        assert!(bytes.len() > 65_536, "{}", bytes.len());
        assert_eq!(numbers(&bytes), (0..256).collect::<Vec<_>>());
    }

    #[test]
    fn a_list_whose_16_bit_length_is_nought_is_read_whole() {
        // 256 entries of 4 + 40 + 4 + 208 bytes are 65,536, and the list's own 4 remain.
        let bytes = answer(256, 0..256, 208);
        assert_eq!(numbers(&bytes).len(), 256);
    }

    #[test]
    fn a_vf_that_the_driver_does_not_tell_of_is_left_out() {
        assert_eq!(numbers(&answer(4, [0, 1, 3].into_iter(), 8)), [0, 1, 3]);
        assert_eq!(numbers(&answer(0, std::iter::empty(), 0)), Vec::<u32>::new());
    }

    proptest! {
        #[test]
        fn any_answer_can_be_read(
            cut in 0_usize..2_000, place in 0_usize..2_000, byte in any::<u8>()
        ) {
            let mut bytes = answer(4, 0..4, 300);
            let place = place % bytes.len();
            bytes[place] = byte;
            bytes.truncate(cut);
            for info in Told::parse(&bytes).vfs {
                let _ = (vf_info::read(&info), vf_info::read_counters(&info));
            }
        }
    }
}
