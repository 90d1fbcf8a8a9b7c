//! VM drivers: a VM is described by a [`VmSpec`], started by a [`Driver`], and held as a
//! [`Machine`], which is also a [`Host`] that `verify`'s probes run on.
//!
//! The one driver so far is [`Qemu`], over QMP and the QEMU guest agent. What a VM leaves behind
//! is its run folder with the serial log; processes and sockets go with the [`Vm`].
#![deny(unsafe_code)]

pub mod accel;
pub mod agent;
mod guest;
mod machine;
pub mod passthrough;
mod process;
pub mod qemu;
pub mod qmp;
pub mod seed;
mod spec;
mod wire;

pub use accel::{Accel, Verdict};
pub use guest::AgentHost;
pub use lanekeeper_verify::{Host, HostError, Job, Output};
pub use machine::{Driver, Ending, Exit, Kept, Machine, VmError};
pub use qemu::{Qemu, Version, Vm};
pub use seed::Seed;
pub use spec::{
    Boot, Disk, DiskFormat, HostFunction, Hugepages, Management, Tap, TapPort, VfPort, VmSpec,
};
