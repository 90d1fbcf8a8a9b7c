//! The software NIC: vhost-user VFs, an embedded switch, uplinks.

pub mod driver;
pub mod ring;
pub mod switch;
pub mod uplink;

mod turn_lock;
