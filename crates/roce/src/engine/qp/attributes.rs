//! What a queue pair is created with, what each transition needs, and what can be seen of it
//! (IBTA 11.2.4, 11.2.5).

use std::fmt;

use crate::engine::{Access, CqId, Domain};
use crate::wire::{DEFAULT_PKEY, Flow, PathMtu, Psn, Qpn, Service};

/// What a queue pair is for its whole life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpSettings {
    /// RC, UC or UD.
    pub service: Service,
    /// Whose regions it reaches.
    pub domain: Domain,
    /// Where its send requests complete.
    pub send_queue: CqId,
    /// Where its receive requests complete.
    pub receive_queue: CqId,
    /// The most send requests it holds.
    pub max_sends: usize,
    /// The most receive requests it holds.
    pub max_receives: usize,
    /// Each send request completes, signaled or not.
    pub signal_all: bool,
    /// The most packets that may be on their way unacknowledged.
    pub window: u32,
    /// RC: of what a window lost only that is sent again, instead of all from there on. The packets
    /// are the standard's either way; it pays when both ends do it.
    pub selective: bool,
    /// RC: tell the peer how many receives are posted (IBTA 9.7.7.2).
    pub credits: bool,
}

impl QpSettings {
    /// An RC queue pair with usual numbers and one completion queue for all.
    pub fn new(service: Service, domain: Domain, queue: CqId) -> QpSettings {
        QpSettings {
            service,
            domain,
            send_queue: queue,
            receive_queue: queue,
            max_sends: 128,
            max_receives: 512,
            signal_all: false,
            window: 256,
            selective: false,
            credits: true,
        }
    }
}

/// The states of a queue pair (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Created; does nothing.
    Reset,
    /// Takes receive requests.
    Init,
    /// Ready to receive: takes what comes in.
    Rtr,
    /// Ready to send: everything.
    Rts,
    /// A send failed (UC, UD): the send queue is flushed, receiving goes on.
    Sqe,
    /// Everything is flushed.
    Error,
}

impl fmt::Display for QpState {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqe => "SQE",
            QpState::Error => "ERR",
        })
    }
}

/// What INIT needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// What peers may do, of what regions allow.
    pub access: Access,
    /// UD: who has it may send here.
    pub qkey: u32,
    /// The partition.
    pub pkey: u16,
}

impl Default for Init {
    fn default() -> Init {
        Init { access: Access::ALL, qkey: 0, pkey: DEFAULT_PKEY }
    }
}

/// What RTR needs. UD looks at the path MTU only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// By which addresses packets go to the peer.
    pub flow: Flow,
    /// The peer's queue pair.
    pub peer: Qpn,
    /// The largest payload.
    pub mtu: PathMtu,
    /// The first PSN that the peer sends.
    pub first_psn: Psn,
    /// How many READs and atomics of the peer's can be under way here.
    pub reads: u8,
    /// RNR timer code: how long the peer shall wait when there is no receive (IBTA 9.7.5.2.8).
    pub rnr_timer: u8,
}

/// What RTS needs. UC and UD look at the PSN only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// The first PSN sent.
    pub first_psn: Psn,
    /// 4.096 us * 2^this without an acknowledgement is a timeout; 0 waits for ever.
    pub ack_timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retries: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 is endless.
    pub rnr_retries: u8,
    /// How many READs and atomics may be under way: no more than the peer said in its RTR.
    pub reads: u8,
}

/// A way from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// From RESET.
    Init(Init),
    /// From INIT.
    Rtr(ReadyToReceive),
    /// From RTR.
    Rts(ReadyToSend),
    /// From SQE back to RTS.
    Resume,
    /// From any state: flush everything.
    Error,
    /// From any state: forget everything, without completions.
    Reset,
}

impl Transition {
    /// Where it leads.
    pub const fn to(&self) -> QpState {
        match self {
            Transition::Init(_) => QpState::Init,
            Transition::Rtr(_) => QpState::Rtr,
            Transition::Rts(_) | Transition::Resume => QpState::Rts,
            Transition::Error => QpState::Error,
            Transition::Reset => QpState::Reset,
        }
    }
}

/// What happened on a queue pair since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data packets sent, repeated ones too.
    pub packets_sent: u64,
    /// Their payload.
    pub bytes_sent: u64,
    /// Packets accepted.
    pub packets_received: u64,
    /// Request packets that were sent before.
    pub retransmissions: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Sequence NAKs that came in, and answers that were missed.
    pub sequence_naks_received: u64,
    /// RNR NAKs that came in.
    pub rnr_naks_received: u64,
    /// Requests that came in ahead of one that is missing.
    pub out_of_sequence: u64,
    /// Requests that came in before.
    pub duplicates: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// Packets thrown away: of another peer, partition, key or state.
    pub dropped: u64,
    /// Packets that came in with a congestion mark.
    pub marked: u64,
    /// CNPs sent.
    pub cnps_sent: u64,
    /// CNPs that came in.
    pub cnps_received: u64,
}

/// A queue pair as it is at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QpInfo {
    /// Its state.
    pub state: QpState,
    /// Send requests that are not done.
    pub sends: usize,
    /// Receive requests that wait.
    pub receives: usize,
    /// What DCQCN lets it send, in bit/s.
    pub rate: Option<f64>,
    /// What happened so far.
    pub counters: Counters,
}
