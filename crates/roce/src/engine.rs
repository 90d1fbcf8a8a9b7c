//! The queue-pair engine: what an RDMA adapter does between verbs and packets, without a clock and
//! without a socket.
//!
//! - [`Endpoint`]: one port with its queue pairs; packets and time go in, packets and completions
//!   come out.
//! - [`Regions`]: registered memory, and who may touch what of it.
//! - [`WorkRequest`], [`ReceiveRequest`], [`Completion`]: the verbs.
//! - [`Transition`]: what a queue pair needs on its way from RESET to RTS.
//!
//! Sections cited as "IBTA" are those of the InfiniBand Architecture Specification, volume 1.

mod access;
mod completion;
mod endpoint;
mod error;
mod mr;
mod qp;
mod sequence;
mod work;

pub use access::Access;
pub use completion::{Completion, CompletionKind, CqId, Event, EventKind, Status};
pub use endpoint::{Config, Endpoint, Sink};
pub use error::EngineError;
pub use mr::{AccessFault, Domain, Regions};
pub use qp::{
    Counters, Init, QpInfo, QpSettings, QpState, ReadyToReceive, ReadyToSend, Transition,
};
pub use work::{Address, Pieces, ReceiveRequest, Remote, Sge, Verb, WorkRequest};
