//! The host's owner over hosts in memory: each test is named after what it guards, most of them
//! faults that users reported against other tools. No hardware is needed.

mod affinity;
mod agent;
mod apply;
mod astray;
mod claims;
mod contention;
mod every_step;
mod files;
mod full_disk;
mod histories;
mod plans;
mod rdma;
mod recovery;
mod releases;
mod representors;
mod requests;
mod rig;
mod told;
mod views;
