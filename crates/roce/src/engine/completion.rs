//! Completions: what became of a work request (IBTA 11.6), and events of a queue pair that belong to
//! no request (IBTA 11.6.3).

use crate::wire::{Flow, Qpn};

/// A completion queue of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub(crate) u32);

/// How a request ended, as IBTA 11.6.2 names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Success,
    /// A message longer than its receive, or longer than the service allows.
    LocalLength,
    /// The queue pair itself was at fault.
    LocalQpOperation,
    /// One's own memory was not registered, or not for that.
    LocalProtection,
    /// Not done, because the queue pair is in an error state.
    WrFlush,
    /// The peer's answer was not what such an answer is.
    BadResponse,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer's memory was not registered, or not for that.
    RemoteAccess,
    /// The peer could not do it, for a fault of its own.
    RemoteOperation,
    /// No answer, after all retries.
    RetryExceeded,
    /// The peer had no receive, after all retries.
    RnrRetryExceeded,
}

/// What kind of request it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    /// One of the SENDs.
    Send,
    /// One of the WRITEs.
    Write,
    /// A READ.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A receive that a SEND filled.
    Receive,
    /// A receive that a WRITE with immediate used up.
    ReceiveWrite,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Completion {
    /// The request's.
    pub id: u64,
    /// Whose request it was.
    pub qpn: Qpn,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub kind: CompletionKind,
    /// Bytes of the message.
    pub bytes: u32,
    /// The 32 bits that came with it.
    pub immediate: Option<u32>,
    /// The key that it invalidated.
    pub invalidated: Option<u32>,
    /// The peer asked for an event.
    pub solicited: bool,
    /// UD: from whom it came.
    pub from: Option<(Flow, Qpn)>,
}

/// Something that happened to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// To which.
    pub qpn: Qpn,
    /// What.
    pub kind: EventKind,
}

/// What can happen to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Its first packet came in while it was in RTR (IBTA 12.9.6: communication established).
    Established,
    /// A peer's request was refused for memory; it is in error now.
    AccessViolation,
    /// A peer's request was invalid; it is in error now.
    InvalidRequest,
    /// One of its own receives was at fault; it is in error now.
    Catastrophic,
}
