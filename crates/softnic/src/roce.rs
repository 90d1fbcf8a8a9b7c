//! Whose RoCE traffic passes, and how it fares: counted per VF and per queue pair from the first bytes of
//! frames, which the switch has at hand anyway. Only one batch in so many is looked at
//! ([`Config::roce_sampling`](crate::Config::roce_sampling)), so that it costs next to nothing; what is
//! told is multiplied by that, an estimate.
//!
//! A queue pair is known by its receiver: RoCE carries the number of the receiving queue pair only. A
//! packet of a request whose sequence number is not beyond all before it was sent again. A round trip
//! is from a request that wants an answer to the answer with its sequence number.
//!
//! Pure: no I/O, no clock. Guests decide what is in here, so all of it is bounded.

use std::collections::{BTreeMap, HashMap, VecDeque};

use lanekeeper_model::VfIndex;
use lanekeeper_roce::wire::{Ecn, Gid, Glimpse, NakCode, Opcode, Psn, Qpn, Syndrome, Version};
use serde::{Deserialize, Serialize};

/// Most queue pairs that are known at a time.
const MOST_PAIRS: usize = 1024;
/// Most queue pairs that are told of.
pub(crate) const MOST_TOLD: usize = 64;
/// Requests whose answer is waited for.
const OUTSTANDING: usize = 64;
/// An answer that comes later than this is not waited for any more, in nanoseconds.
const LATE: u64 = 1_000_000_000;

/// From whom a frame came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum From {
    Vf(usize),
    Uplink,
}

/// What was counted of a sender, or of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RoceCounters {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames, FCS excluded.
    pub bytes: u64,
    /// Messages that ended: last and only packets of requests and of read responses.
    pub messages: u64,
    /// Packets of requests that were sent again.
    pub retransmitted: u64,
    /// Negative acknowledgements: a packet missing.
    pub sequence_naks: u64,
    /// Negative acknowledgements: receiver not ready.
    pub rnr_naks: u64,
    /// Negative acknowledgements of other kinds: the request was refused.
    pub other_naks: u64,
    /// Congestion notifications.
    pub cnps: u64,
    /// Packets with the mark that congestion was met.
    pub ecn_marked: u64,
}

/// A queue pair, by what is sent to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RocePair {
    /// The VF that sends to it; none for whoever is behind the uplink.
    pub from: Option<VfIndex>,
    /// 1 or 2.
    pub version: u8,
    /// The sender's address.
    pub source: std::net::IpAddr,
    /// The receiver's.
    pub dest: std::net::IpAddr,
    /// The receiving queue pair.
    pub qp: u32,
    /// What was counted.
    #[serde(flatten)]
    pub counters: RoceCounters,
    /// Round trip in nanoseconds, smoothed, if one was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<u64>,
}

/// All that was seen.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RoceReport {
    /// One batch in so many was looked at; 0 if none is. Counters are multiplied by it.
    pub sampling: u32,
    /// By sending VF.
    pub vfs: BTreeMap<VfIndex, RoceCounters>,
    /// From the uplink.
    pub uplink: RoceCounters,
    /// Queue pairs, the most bytes first, at most 64.
    pub pairs: Vec<RocePair>,
    /// Packets of queue pairs that there was no room for.
    pub untracked: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    from: From,
    version: Version,
    source: Gid,
    dest: Gid,
    qp: Qpn,
}

struct Pair {
    counters: RoceCounters,
    /// The furthest sequence number of a request.
    furthest: Option<Psn>,
    rtt_ns: Option<u64>,
    seen: u64,
}

/// A request that wants an answer.
struct Asked {
    key: Key,
    psn: Psn,
    at: u64,
}

/// The table.
#[derive(Default)]
pub(crate) struct RoceTable {
    vfs: BTreeMap<usize, RoceCounters>,
    uplink: RoceCounters,
    pairs: HashMap<Key, Pair>,
    asked: VecDeque<Asked>,
    untracked: u64,
    /// A pair was let go in this batch already: looking for one costs time.
    made_room: bool,
}

impl RoceTable {
    /// Before the frames of a batch.
    pub(crate) fn begin(&mut self) {
        self.made_room = false;
    }

    /// A frame that may pass: its first bytes and its length, at a time in nanoseconds.
    pub(crate) fn see(&mut self, from: From, head: &[u8], len: usize, now: u64) {
        let Some(glimpse) = Glimpse::of_ethernet(head) else { return };
        let Glimpse { flow, bth, .. } = glimpse;
        let key =
            Key { from, version: flow.version, source: flow.source, dest: flow.dest, qp: bth.dest };
        let mut seen = counted(&glimpse, len);
        if let Some(pair) = self.pair(key, now) {
            if bth.opcode.is_request() {
                match pair.furthest {
                    Some(furthest) if bth.psn.distance(furthest) <= 0 => seen.retransmitted = 1,
                    _ => pair.furthest = Some(bth.psn),
                }
            }
            pair.counters += seen;
            pair.seen = now;
        } else {
            self.untracked += 1;
        }
        *self.of(from) += seen;
        if bth.opcode.is_request() && (bth.ack_request || bth.opcode == Opcode::RC_READ_REQUEST) {
            if self.asked.len() == OUTSTANDING {
                self.asked.pop_front();
            }
            self.asked.push_back(Asked { key, psn: bth.psn, at: now });
        } else if bth.opcode.is_response() {
            self.answered(&glimpse, now);
        }
    }

    fn of(&mut self, from: From) -> &mut RoceCounters {
        match from {
            From::Vf(vf) => self.vfs.entry(vf).or_default(),
            From::Uplink => &mut self.uplink,
        }
    }

    /// The queue pair, if it is known or there is room for it: for one in a batch the one that was seen
    /// longest ago makes room.
    fn pair(&mut self, key: Key, now: u64) -> Option<&mut Pair> {
        if !self.pairs.contains_key(&key) {
            if self.pairs.len() >= MOST_PAIRS {
                if self.made_room {
                    return None;
                }
                self.made_room = true;
                let oldest = self.pairs.iter().min_by_key(|(_, pair)| pair.seen).map(|it| *it.0);
                self.pairs.remove(&oldest?);
            }
            let counters = RoceCounters::default();
            let new = Pair { counters, furthest: None, rtt_ns: None, seen: now };
            self.pairs.insert(key, new);
        }
        self.pairs.get_mut(&key)
    }

    /// An answer goes the other way, to a queue pair that the request did not name.
    fn answered(&mut self, answer: &Glimpse, now: u64) {
        let flow = &answer.flow;
        let is_of = |asked: &Asked| {
            asked.key.source == flow.dest
                && asked.key.dest == flow.source
                && asked.key.version == flow.version
                && asked.psn == answer.bth.psn
        };
        let Some(at) = self.asked.iter().position(is_of) else { return };
        let Some(Asked { key, at, .. }) = self.asked.remove(at) else { return };
        let took = now.saturating_sub(at);
        if took > LATE {
            return;
        }
        if let Some(pair) = self.pairs.get_mut(&key) {
            // As TCP smooths it (RFC 6298, 2): an eighth of each new one.
            pair.rtt_ns = Some(pair.rtt_ns.map_or(took, |was| was - was / 8 + took / 8));
        }
    }

    /// What was seen, where one batch in `sampling` was looked at.
    pub(crate) fn report(&self, sampling: u32) -> RoceReport {
        let by = |counters: &RoceCounters| counters.times(sampling.into());
        let vf = |vf: usize| u32::try_from(vf).ok().and_then(|vf| VfIndex::new(vf).ok());
        let mut pairs: Vec<RocePair> = self
            .pairs
            .iter()
            .map(|(key, pair)| RocePair {
                from: match key.from {
                    From::Vf(number) => vf(number),
                    From::Uplink => None,
                },
                version: match key.version {
                    Version::V1 => 1,
                    Version::V2 => 2,
                },
                source: key.source.ip(),
                dest: key.dest.ip(),
                qp: key.qp.get(),
                counters: by(&pair.counters),
                rtt_ns: pair.rtt_ns,
            })
            .collect();
        pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.counters.bytes), pair.qp));
        pairs.truncate(MOST_TOLD);
        RoceReport {
            sampling,
            vfs: self.vfs.iter().filter_map(|(n, seen)| Some((vf(*n)?, by(seen)))).collect(),
            uplink: by(&self.uplink),
            pairs,
            untracked: self.untracked * u64::from(sampling),
        }
    }
}

/// What one packet counts for.
fn counted(glimpse: &Glimpse, len: usize) -> RoceCounters {
    let opcode = glimpse.bth.opcode;
    let carries = opcode.is_request() || opcode.is_read_response();
    let one = u64::from;
    let nak = |wanted: fn(&Syndrome) -> bool| one(glimpse.syndrome.as_ref().is_some_and(wanted));
    RoceCounters {
        packets: 1,
        bytes: len as u64,
        messages: one(carries && (opcode.is_last() || opcode.is_only())),
        retransmitted: 0,
        sequence_naks: nak(|it| *it == Syndrome::Nak(NakCode::PsnSequence)),
        rnr_naks: nak(|it| matches!(it, Syndrome::RnrNak { .. })),
        other_naks: nak(|it| matches!(it, Syndrome::Nak(code) if *code != NakCode::PsnSequence)),
        cnps: one(opcode == Opcode::CNP),
        ecn_marked: one(glimpse.flow.ecn == Ecn::Ce),
    }
}

impl RoceCounters {
    fn each(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            packets: join(self.packets, other.packets),
            bytes: join(self.bytes, other.bytes),
            messages: join(self.messages, other.messages),
            retransmitted: join(self.retransmitted, other.retransmitted),
            sequence_naks: join(self.sequence_naks, other.sequence_naks),
            rnr_naks: join(self.rnr_naks, other.rnr_naks),
            other_naks: join(self.other_naks, other.other_naks),
            cnps: join(self.cnps, other.cnps),
            ecn_marked: join(self.ecn_marked, other.ecn_marked),
        }
    }

    fn times(self, by: u64) -> Self {
        self.each(self, |count, _| count.saturating_mul(by))
    }
}

impl std::ops::AddAssign for RoceCounters {
    fn add_assign(&mut self, more: Self) {
        *self = self.each(more, u64::wrapping_add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanekeeper_model::MacAddr;
    use lanekeeper_roce::wire::{Aeth, Bth, Cover, Flow, Headers, Link};
    use proptest::prelude::*;

    fn gid(last: u8) -> Gid {
        Gid::from(std::net::IpAddr::from([10, 0, 0, last]))
    }

    fn frame(
        from: u8,
        to: u8,
        qp: u32,
        opcode: Opcode,
        psn: u32,
        change: impl Fn(&mut Flow, &mut Headers),
    ) -> Vec<u8> {
        let mut flow = Flow::new(Version::V2, gid(from), gid(to));
        let mut headers = Headers::new(Bth::new(opcode, Qpn::truncate(qp), Psn::truncate(psn)));
        change(&mut flow, &mut headers);
        let link = Link {
            dest: MacAddr([2, 0, 0, 0, 0, to]),
            source: MacAddr([2, 0, 0, 0, 0, from]),
            vlan: None,
        };
        let payload: &[u8] = if opcode.has_payload() { &[7; 64] } else { &[] };
        let cover = Cover::ethernet(&link, &flow, &headers, &[payload]).expect("fits together");
        [cover.head(), payload, cover.tail()].concat()
    }

    struct Watched(RoceTable);

    impl Watched {
        fn new() -> Self {
            Self(RoceTable::default())
        }

        fn see(&mut self, vf: usize, frame: &[u8], now: u64) {
            self.0.see(From::Vf(vf), &frame[..frame.len().min(128)], frame.len(), now);
        }
    }

    fn of(report: &RoceReport, vf: u32) -> RoceCounters {
        report.vfs.get(&VfIndex::new(vf).expect("in range")).copied().unwrap_or_default()
    }

    #[test]
    fn a_message_is_counted_for_its_vf_and_its_queue_pair_and_its_round_trip_is_taken() {
        let mut table = Watched::new();
        let ask = |headers: &mut Headers| headers.bth.ack_request = true;
        table.see(0, &frame(1, 2, 17, Opcode::RC_SEND_FIRST, 5, |_, _| ()), 1_000);
        table.see(0, &frame(1, 2, 17, Opcode::RC_SEND_LAST, 6, |_, it| ask(it)), 2_000);
        let ack = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };
        let ack = frame(2, 1, 40, Opcode::RC_ACKNOWLEDGE, 6, |_, it| it.aeth = Some(ack));
        table.see(1, &ack, 9_000);
        let report = table.0.report(1);
        let sent = of(&report, 0);
        assert_eq!((sent.packets, sent.messages, sent.retransmitted), (2, 1, 0));
        assert_eq!(of(&report, 1).packets, 1);
        let pair = report.pairs.iter().find(|pair| pair.qp == 17).expect("known");
        assert_eq!((pair.rtt_ns, pair.version, pair.from), (Some(7_000), 2, VfIndex::new(0).ok()));
        assert_eq!(pair.dest.to_string(), "10.0.0.2");
        assert_eq!(report.pairs[0].qp, 17, "the most bytes first");
    }

    #[test]
    fn what_goes_wrong_is_told_apart() {
        let mut table = Watched::new();
        let send = |psn| frame(1, 2, 17, Opcode::RC_SEND_ONLY, psn, |_, _| ());
        for psn in [0x00ff_fffe, 0x00ff_ffff, 0, 1, 0x00ff_ffff, 0, 1, 2] {
            table.see(0, &send(psn), 1);
        }
        let nak = |syndrome| {
            frame(2, 1, 40, Opcode::RC_ACKNOWLEDGE, 0, move |_, it| {
                it.aeth = Some(Aeth { syndrome, msn: 1 });
            })
        };
        table.see(1, &nak(Syndrome::Nak(NakCode::PsnSequence)), 2);
        table.see(1, &nak(Syndrome::RnrNak { timer: 1 }), 2);
        table.see(1, &nak(Syndrome::Nak(NakCode::RemoteAccess)), 2);
        table.see(1, &frame(2, 1, 40, Opcode::RC_SEND_ONLY, 9, |flow, _| flow.ecn = Ecn::Ce), 3);
        let report = table.0.report(1);
        assert_eq!(of(&report, 0).retransmitted, 3);
        let answers = of(&report, 1);
        assert_eq!((answers.sequence_naks, answers.rnr_naks, answers.other_naks), (1, 1, 1));
        assert_eq!(answers.ecn_marked, 1);
    }

    #[test]
    fn a_sample_stands_for_all() {
        let mut table = Watched::new();
        table.see(0, &frame(1, 2, 17, Opcode::RC_SEND_ONLY, 5, |_, _| ()), 1);
        let report = table.0.report(16);
        assert_eq!((of(&report, 0).packets, report.pairs[0].counters.packets), (16, 16));
    }

    #[test]
    fn a_guest_that_makes_up_queue_pairs_fills_no_memory_and_costs_no_more_than_one_search_a_batch()
    {
        let mut table = Watched::new();
        for qp in 0..3000 {
            if qp % 32 == 0 {
                table.0.begin();
            }
            table.see(0, &frame(1, 2, qp, Opcode::RC_SEND_ONLY, 5, |_, _| ()), qp.into());
        }
        let report = table.0.report(1);
        assert_eq!(table.0.pairs.len(), MOST_PAIRS);
        assert_eq!(report.pairs.len(), MOST_TOLD);
        assert_eq!(of(&report, 0).packets, 3000, "each is its VF's all the same");
        assert!(report.untracked > 1500, "{}", report.untracked);
    }

    #[test]
    fn other_traffic_is_not_counted() {
        let mut table = Watched::new();
        let mut other = frame(1, 2, 17, Opcode::RC_SEND_ONLY, 5, |_, _| ());
        // Another UDP port.
        other[14 + 20 + 2] ^= 1;
        table.see(0, &other, 1);
        table.see(0, &[0xff; 64], 1);
        assert_eq!(table.0.report(1), RoceReport { sampling: 1, ..RoceReport::default() });
    }

    proptest! {
        #[test]
        fn any_frame_is_looked_at_without_panic(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..128), 0..40)
        ) {
            let mut table = Watched::new();
            for (now, frame) in frames.iter().enumerate() {
                table.see(now % 3, frame, now as u64);
            }
            let _ = table.0.report(16);
        }
    }
}
