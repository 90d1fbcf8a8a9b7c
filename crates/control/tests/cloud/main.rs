//! The cloud over the embedded store, with hosts whose agents are played by the tests.

mod access;
mod lives;
mod networks;
#[path = "../played/obedience.rs"]
mod obedience;
mod rig;
mod verifications;
