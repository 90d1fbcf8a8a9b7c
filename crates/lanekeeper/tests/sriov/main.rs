//! The product's own program on emulated hosts with a real kernel, real drivers and real VFs.

mod agent;
mod cloud;
mod crashes;
mod host;
mod rig;
