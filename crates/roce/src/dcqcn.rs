//! DCQCN, the congestion control of RoCE v2 (Zhu et al., "Congestion Control for Large-Scale RDMA
//! Deployments", SIGCOMM 2015; CNP format: IBTA vol. 1, annex A17.9).
//!
//! A switch marks packets (ECN) when its queue grows. The receiver, the *notification point*, turns
//! marks into CNPs, at most one per interval and queue pair. The sender, the *reaction point*, cuts
//! its rate on a CNP and finds its way back by a timer and a byte counter.

mod notification;
mod pacer;
mod parameters;
mod reaction;

pub use notification::NotificationPoint;
pub use pacer::Pacer;
pub use parameters::{Dcqcn, Notification, Reaction};
pub use reaction::ReactionPoint;
