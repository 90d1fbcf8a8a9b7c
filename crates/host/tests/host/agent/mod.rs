//! The agent: what it makes of a host that does not stay as it was.

mod offers;
mod play;
mod repairs;
mod running;
mod starts;
