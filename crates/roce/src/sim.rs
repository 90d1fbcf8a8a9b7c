//! A deterministic network simulator: endpoints of this crate's engine, links with a rate and a
//! delay, a switch whose queues mark (ECN), and faults: loss, duplication, reordering, corruption,
//! jitter. One seed gives one history, so a failure is its seed.

mod faults;
mod link;
mod network;
mod random;
mod wheel;

pub use faults::{Fate, Faults};
pub use link::{Link, Marking};
pub use network::{Network, Topology, Traffic};
pub use random::Random;
pub use wheel::Wheel;
