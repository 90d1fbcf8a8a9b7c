//! What a consumer of the engine can ask for in vain: the immediate errors of verbs (IBTA 11.6.1).

use thiserror::Error;

use super::{QpState, Verb};
use crate::wire::{Qpn, Service};

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// No queue pair has the number.
    #[error("there is no queue pair {0}: it was never created, or was destroyed")]
    NoQueuePair(Qpn),
    /// No completion queue has the number.
    #[error("there is no completion queue {0}: create it on this endpoint first")]
    NoCompletionQueue(u32),
    /// The endpoint holds as many queue pairs as numbers can tell apart.
    #[error("there are {0} queue pairs already, the most an endpoint holds: destroy one first")]
    TooManyQueuePairs(usize),
    /// A queue pair of no such service.
    #[error("a queue pair cannot be of the service {0:?}: choose Rc, Uc or Ud")]
    Service(Service),
    /// The state does not have this transition (IBTA 10.3.1).
    #[error("a queue pair in {from} cannot go to {to}: the way is RESET, INIT, RTR, RTS")]
    Transition {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// An attribute out of its range.
    #[error("{name} is {value}, but goes from 0 to {most}")]
    Attribute {
        /// Which.
        name: &'static str,
        /// What was given.
        value: u32,
        /// The most there is.
        most: u32,
    },
    /// The queue does not take requests in this state.
    #[error("a queue pair in {state} takes no {what} requests: bring it to {needed} first")]
    NotReady {
        /// The state it is in.
        state: QpState,
        /// "send" or "receive".
        what: &'static str,
        /// From which state on it takes them.
        needed: QpState,
    },
    /// The queue holds as many requests as it was created for.
    #[error(
        "the {what} queue holds {depth} requests, as it was created for: poll completions first"
    )]
    QueueFull {
        /// "send" or "receive".
        what: &'static str,
        /// How many it holds.
        depth: usize,
    },
    /// The service does not have the verb (IBTA 10.2.2, table of services and operations).
    #[error("{verb:?} is not a verb of the service {service:?}")]
    Verb {
        /// What was asked for.
        verb: Verb,
        /// Of what service the queue pair is.
        service: Service,
    },
    /// A datagram without an address, or an address without a datagram.
    #[error("a request has an address exactly if the queue pair is UD, and this one is {0:?}")]
    Addressing(Service),
    /// Too long a message.
    #[error("the message has {length} bytes, the most is {most}: split it")]
    MessageTooLong {
        /// What was given.
        length: u64,
        /// The most there is.
        most: u64,
    },
    /// An atomic on anything but eight bytes.
    #[error("an atomic takes 8 bytes of local memory for the old value, not {0}")]
    AtomicLength(u64),
    /// Too many pieces.
    #[error("a request has {given} pieces of memory, the most is 4: split it")]
    TooManyPieces {
        /// What was given.
        given: usize,
    },
    /// A region past the end of addresses.
    #[error("a region of {length} bytes at {start:#x} goes past the last address: start it lower")]
    RegionWraps {
        /// Where it begins.
        start: u64,
        /// How long it is.
        length: u64,
    },
    /// A remote right that the owner has not.
    #[error("remote write and atomic need local write (IBTA 10.6.3.1): register with that too")]
    RightsWithoutLocalWrite,
    /// As many regions as keys can tell apart.
    #[error("there are 2^24 - 1 regions, the most keys can name: deregister one first")]
    TooManyRegions,
}
