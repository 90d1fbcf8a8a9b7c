//! The Hyperstack API as its clients see it: the rules of the wire, called without a network, and the
//! official SDKs. A fake agent does whatever a host is asked.

mod agent;
mod firewalls;
mod life;
#[path = "../played/obedience.rs"]
mod obedience;
mod rig;
mod schemathesis;
mod sdk;
mod served;
mod wire;
mod world;
