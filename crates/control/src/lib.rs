//! The control plane: what hosts have, what tenants asked for, and which host serves whom.
//!
//! - [`store`] keeps everything: a revisioned key-value store with compare-and-swap transactions,
//!   watches and leases, embedded or etcd. Nothing else here knows which of the two it is.
//! - [`keys`] is the one place that knows where in the store things are.
//! - [`placement`] decides, without I/O, which hosts, GPUs and VFs serve a request.
//! - [`claims`] writes what was decided, each placement in one transaction, so that nothing is given
//!   twice however many servers place at once.
//!
//! No hardware is touched from here; a host's agent does that, by what it finds under its own key.
#![forbid(unsafe_code)]

pub mod api;
pub mod claims;
pub mod cloud;
pub mod console;
pub mod keys;
pub mod lifecycle;
pub mod metrics;
pub mod placement;
pub mod protocol;
pub mod resource;
pub mod server;
pub mod spans;
pub mod store;
pub mod tls;
