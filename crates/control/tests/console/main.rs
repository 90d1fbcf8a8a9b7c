//! The console in a real browser, against a server as it is run, with agents that are played.

mod browser;
mod fabric;
mod names;
#[path = "../played/obedience.rs"]
mod obedience;
mod rig;
mod tenant;
