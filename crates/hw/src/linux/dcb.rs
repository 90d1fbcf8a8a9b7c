//! Data centre bridging over rtnetlink: PFC, ETS, receive buffers and the APP table
//! (include/uapi/linux/dcbnl.h). Each set is what was read with one thing changed, as
//! `struct ieee_ets` and its like hold more than is set here.

use std::collections::{BTreeMap, BTreeSet};

use lanekeeper_model::{Dscp, Pcp};

use super::netlink::attribute::{Attribute, Attributes, Builder, u32_at};
use super::netlink::message::Said;
use super::netlink::{Connection, Failure};

const RTM_GETDCB: u16 = 78;
const RTM_SETDCB: u16 = 79;

const CMD_IEEE_SET: u8 = 20;
const CMD_IEEE_GET: u8 = 21;
const CMD_IEEE_DEL: u8 = 27;

const ATTR_IFNAME: u16 = 1;
const ATTR_IEEE: u16 = 13;
/// Inside `DCB_ATTR_IEEE`.
const IEEE_ETS: u16 = 1;
const IEEE_PFC: u16 = 2;
const IEEE_APP_TABLE: u16 = 3;
const DCB_BUFFER: u16 = 10;
/// Inside the APP table.
const IEEE_APP: u16 = 1;

/// `struct dcbmsg`: family, command, padding.
const HEADER: usize = 4;

/// `IEEE_8021QAZ_APP_SEL_DSCP`.
const SELECTOR_DSCP: u8 = 5;
/// `IEEE_8021QAZ_TSA_STRICT` and `IEEE_8021QAZ_TSA_ETS`.
const STRICT: u8 = 0;
const ETS: u8 = 2;

/// Places in `struct ieee_pfc`.
const PFC_ENABLED: usize = 1;
/// After capability, mask, bypass, padding, delay and eight counts of what was sent.
const PFC_RECEIVED: usize = 72;
/// Places in `struct ieee_ets`: share sent and kind of scheduling, of each class.
const ETS_SHARE: usize = 3;
const ETS_KIND: usize = 19;
/// Places in `struct dcbnl_buffer`: eight sizes, then their sum.
const BUFFER_SIZES: usize = 8;

/// One entry of the APP table that goes by code point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct App {
    pub(crate) dscp: Dscp,
    pub(crate) priority: Pcp,
}

impl App {
    /// `struct dcb_app`: selector, priority, protocol.
    fn encode(self) -> [u8; 4] {
        let [low, high] = u16::from(self.dscp.get()).to_ne_bytes();
        [SELECTOR_DSCP, self.priority.get(), low, high]
    }

    fn decode(entry: Attribute<'_>) -> Option<Self> {
        let [SELECTOR_DSCP, priority, low, high] = *entry.value else { return None };
        let protocol = u16::from_ne_bytes([low, high]);
        let dscp = Dscp::new(protocol.into()).ok()?;
        Some(Self { dscp, priority: Pcp::new(priority.into()).ok()? })
    }
}

/// What an interface's driver tells of DCB; `None` of what it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dcb {
    pfc: Option<Vec<u8>>,
    ets: Option<Vec<u8>>,
    buffer: Option<Vec<u8>>,
    /// Entries of the APP table that go by code point.
    pub(crate) apps: Option<BTreeSet<App>>,
}

/// Ask an interface's driver. `EOPNOTSUPP` from one without DCB.
pub(crate) fn read(kernel: &mut Connection, interface: &str) -> Result<Dcb, Failure> {
    let answer = kernel.get(RTM_GETDCB, header(CMD_IEEE_GET, interface).finish())?;
    Ok(Dcb::parse(&answer.payload))
}

impl Dcb {
    fn parse(answer: &[u8]) -> Self {
        let mut told = Self::default();
        let body = Attributes(answer.get(HEADER..).unwrap_or_default());
        for attribute in body.first(ATTR_IEEE).into_iter().flat_map(Attribute::nested) {
            let whole = |length| attribute.value.get(..length).map(<[u8]>::to_vec);
            match attribute.kind {
                IEEE_PFC => told.pfc = whole(136),
                IEEE_ETS => told.ets = whole(59),
                DCB_BUFFER => told.buffer = whole(44),
                IEEE_APP_TABLE => {
                    let entries = attribute.nested().filter(|entry| entry.kind == IEEE_APP);
                    told.apps = Some(entries.filter_map(App::decode).collect());
                }
                _ => {}
            }
        }
        told
    }

    /// Priorities that are paused rather than dropped.
    pub(crate) fn pfc(&self) -> Option<BTreeSet<Pcp>> {
        let mask = self.pfc.as_ref()?[PFC_ENABLED];
        Some(priorities().filter(|pcp| mask & (1 << pcp.get()) != 0).collect())
    }

    /// Pause frames that were received, by priority: `indications`. What the driver does not count
    /// is nought.
    pub(crate) fn pause_frames(&self) -> Option<[u64; 8]> {
        let pfc = self.pfc.as_ref()?;
        let count = |at: usize| pfc.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        Some(std::array::from_fn(|priority| count(PFC_RECEIVED + 8 * priority).unwrap_or(0)))
    }

    /// Share of each class: nought for one of strict priority.
    pub(crate) fn ets(&self) -> Option<[u8; 8]> {
        let ets = self.ets.as_ref()?;
        let share = |class| if ets[ETS_KIND + class] == ETS { ets[ETS_SHARE + class] } else { 0 };
        Some(std::array::from_fn(share))
    }

    /// Bytes of each receive buffer.
    pub(crate) fn buffers(&self) -> Option<[u32; 8]> {
        let buffer = self.buffer.as_ref()?;
        let size = |number| u32_at(buffer, BUFFER_SIZES + 4 * number).unwrap_or(0);
        Some(std::array::from_fn(size))
    }

    /// Priority of each code point that has one; of several the greatest, as `dcb_ieee_getapp_mask`
    /// has it.
    pub(crate) fn dscp_priority(&self) -> Option<BTreeMap<Dscp, Pcp>> {
        Some(self.apps.as_ref()?.iter().map(|app| (app.dscp, app.priority)).collect())
    }

    /// Set the priorities that are paused; `false` if the driver told of none.
    pub(crate) fn set_pfc(
        &self,
        kernel: &mut Connection,
        interface: &str,
        paused: &BTreeSet<Pcp>,
    ) -> Result<bool, Failure> {
        let Some(mut pfc) = self.pfc.clone() else { return Ok(false) };
        pfc[PFC_ENABLED] = paused.iter().fold(0, |mask, pcp| mask | 1 << pcp.get());
        set(kernel, interface, IEEE_PFC, &pfc)
    }

    /// Set the classes' shares; `false` if the driver told of none.
    pub(crate) fn set_ets(
        &self,
        kernel: &mut Connection,
        interface: &str,
        shares: [u8; 8],
    ) -> Result<bool, Failure> {
        let Some(mut ets) = self.ets.clone() else { return Ok(false) };
        ets[ETS_SHARE..ETS_SHARE + 8].copy_from_slice(&shares);
        let kinds = shares.map(|share| if share == 0 { STRICT } else { ETS });
        ets[ETS_KIND..ETS_KIND + 8].copy_from_slice(&kinds);
        set(kernel, interface, IEEE_ETS, &ets)
    }

    /// Set the receive buffers' sizes; `false` if the driver told of none.
    pub(crate) fn set_buffers(
        &self,
        kernel: &mut Connection,
        interface: &str,
        sizes: [u32; 8],
    ) -> Result<bool, Failure> {
        let Some(mut buffer) = self.buffer.clone() else { return Ok(false) };
        buffer[BUFFER_SIZES..BUFFER_SIZES + 32]
            .copy_from_slice(&sizes.map(u32::to_ne_bytes).concat());
        set(kernel, interface, DCB_BUFFER, &buffer)
    }
}

/// Add entries to the APP table.
pub(crate) fn add_apps(
    kernel: &mut Connection,
    interface: &str,
    apps: &BTreeSet<App>,
) -> Result<(), Failure> {
    change_apps(kernel, interface, CMD_IEEE_SET, apps)
}

/// Take entries from the APP table.
pub(crate) fn delete_apps(
    kernel: &mut Connection,
    interface: &str,
    apps: &BTreeSet<App>,
) -> Result<(), Failure> {
    change_apps(kernel, interface, CMD_IEEE_DEL, apps)
}

fn change_apps(
    kernel: &mut Connection,
    interface: &str,
    command: u8,
    apps: &BTreeSet<App>,
) -> Result<(), Failure> {
    let mut request = header(command, interface);
    request.nest(ATTR_IEEE, |ieee| {
        ieee.nest(IEEE_APP_TABLE, |table| {
            for app in apps {
                table.bytes(IEEE_APP, &app.encode());
            }
        });
    });
    write(kernel, &request)
}

fn set(kernel: &mut Connection, interface: &str, kind: u16, value: &[u8]) -> Result<bool, Failure> {
    let mut request = header(CMD_IEEE_SET, interface);
    request.nest(ATTR_IEEE, |ieee| {
        ieee.bytes(kind, value);
    });
    write(kernel, &request).map(|()| true)
}

/// The acknowledgement of a write says only that it was understood. What the driver made of it is
/// in an answer before it: one byte that is a negative errno (`dcbnl_ieee_set`, net/dcb/dcbnl.c).
fn write(kernel: &mut Connection, request: &Builder) -> Result<(), Failure> {
    let answers = kernel.set(RTM_SETDCB, request.finish())?;
    let told = answers
        .iter()
        .find_map(|answer| Attributes(answer.payload.get(HEADER..)?).first(ATTR_IEEE)?.u8());
    match told.unwrap_or(0).cast_signed() {
        0 => Ok(()),
        errno => Err(Failure::Refused(Said { errno: i32::from(errno).abs(), text: None })),
    }
}

fn header(command: u8, interface: &str) -> Builder {
    let mut request = Builder::after(&[0, command, 0, 0]);
    request.text(ATTR_IFNAME, interface);
    request
}

fn priorities() -> impl Iterator<Item = Pcp> {
    (0..8).filter_map(|pcp| Pcp::new(pcp).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(entries: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut answer = header(CMD_IEEE_GET, "ens1");
        answer.unmarked_nest(ATTR_IEEE, |ieee| {
            for (kind, value) in entries {
                ieee.bytes(*kind, value);
            }
        });
        answer.finish().to_vec()
    }

    #[test]
    fn what_a_driver_lacks_is_none_and_not_off() {
        let told = Dcb::parse(&answer(&[(IEEE_PFC, [8, 0b1000].repeat(68))]));
        assert_eq!(told.pfc(), Some(BTreeSet::from([Pcp::new(3).expect("valid")])));
        assert_eq!((told.ets(), told.buffers(), told.dscp_priority()), (None, None, None));
    }

    #[test]
    fn pause_frames_are_those_received_and_not_those_sent() {
        let mut pfc = vec![0; 136];
        pfc[8..72].fill(0xff);
        pfc[72 + 24..72 + 32].copy_from_slice(&4_711_u64.to_ne_bytes());
        let told = Dcb::parse(&answer(&[(IEEE_PFC, pfc)]));
        assert_eq!(told.pause_frames(), Some([0, 0, 0, 4_711, 0, 0, 0, 0]));
    }

    #[test]
    fn a_class_of_strict_priority_has_no_share() {
        let mut ets = vec![0; 59];
        ets[ETS_SHARE..ETS_SHARE + 8].copy_from_slice(&[70, 30, 0, 0, 0, 0, 0, 9]);
        ets[ETS_KIND..ETS_KIND + 8].copy_from_slice(&[2, 2, 0, 0, 0, 0, 0, 0]);
        let told = Dcb::parse(&answer(&[(IEEE_ETS, ets)]));
        assert_eq!(told.ets(), Some([70, 30, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn only_entries_by_code_point_are_read_from_the_app_table() {
        let mut table = Builder::default();
        table.bytes(IEEE_APP, &[SELECTOR_DSCP, 3, 26, 0]).bytes(IEEE_APP, &[1, 5, 8, 6]);
        let told = Dcb::parse(&answer(&[(IEEE_APP_TABLE, table.finish().to_vec())]));
        let map = told.dscp_priority().expect("a table");
        assert_eq!(map, BTreeMap::from([(Dscp::ROCE, Pcp::new(3).expect("valid"))]));
    }

    proptest! {
        #[test]
        fn any_answer_can_be_read(
            list in proptest::collection::vec(
                (0_u16..14, proptest::collection::vec(any::<u8>(), 0..160)), 0..6)
        ) {
            let told = Dcb::parse(&answer(&list));
            let _ = (told.pfc(), told.ets(), told.buffers(), told.dscp_priority());
        }
    }
}
